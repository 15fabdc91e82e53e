#!/usr/bin/env bash
# Writes the software bill of materials of what is released, in CycloneDX's JSON, to target/sbom/:
# one for the extension with the features of the Postgres major PG, one for the client's crate with
# all its features. Each lists the crates that are built into it, with version, licence and
# checksum, for the platform this runs on.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/release-common.sh
. "$(dirname "$0")/release-common.sh"
need_cargo_tool cargo-cyclonedx 0.5.9

folder=$target/sbom
rm -rf "$folder"
mkdir -p "$folder"
# Dated by the commit that it is of.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
platform=$(rustc -vV | sed -n 's/^host: //p')

# The tool writes beside the manifest of every crate of the workspace.
written=sbom-$$
remove_written() { find . -path ./target -prune -o -name "$written.json" -exec rm -f {} +; }
trap remove_written EXIT

# sbom MANIFEST NAME OPTION…: keeps the one that was asked for.
sbom() {
    local manifest=$1 name=$2
    shift 2
    cargo cyclonedx --quiet --manifest-path "$manifest" --format json --spec-version 1.5 \
        --target "$platform" --override-filename "$written" "$@"
    # Where it was built is nobody's business.
    sed "s|path+file://$root|path+file:///$extension|g" "$(dirname "$manifest")/$written.json" \
        >"$folder/$name.cdx.json"
}

sbom Cargo.toml "$extension-pg$PG" --no-default-features --features "$feature"
sbom client/Cargo.toml sequential-inbox --all-features

for file in "$folder"/*.json; do
    grep -q '"bomFormat": "CycloneDX"' "$file" || fail "$file is no CycloneDX document"
    say "$file: $(grep -c '"purl"' "$file") components"
done

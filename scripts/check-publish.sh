#!/usr/bin/env bash
# Checks that the client's crate could be published: its archive holds what it must and nothing
# else, builds by itself, and the registry's own checks pass. Nothing is uploaded. Needs the
# registry's index.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

crate=sequential-inbox

# What is not committed yet is packaged too: this is to be run before a commit, not only after.
files=$(cargo package --package "$crate" --list --allow-dirty)
for file in Cargo.toml LICENSE-APACHE LICENSE-MIT README.md src/lib.rs; do
    grep -qxF "$file" <<<"$files" || fail "the crate's archive lacks $file"
done
# Cargo adds the first four of these by itself.
if surplus=$(grep -vxE 'Cargo\.(toml|lock|toml\.orig)|\.cargo_vcs_info\.json|LICENSE-(APACHE|MIT)|README\.md|src/.*\.rs' <<<"$files"); then
    fail "not meant to be in the crate's archive: $surplus"
fi

cargo publish --package "$crate" --dry-run --allow-dirty --all-features
say "$crate: $(wc -l <<<"$files") files, ready to be published"

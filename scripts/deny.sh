#!/usr/bin/env bash
# Checks the dependencies by the rules of deny.toml: licences, banned and doubled crates, where they
# come from, and known advisories.
#
# Advisories come from a database, which is a git repository of its own. It is fetched, or taken
# from ADVISORIES, a clone of it. Where it can be had neither way, advisories are not checked; that
# is said, and the command ends with 3: what was checked is right, but not all was checked.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/release-common.sh
. "$(dirname "$0")/release-common.sh"
need_cargo_tool cargo-deny 0.20.2
deny=(cargo deny --workspace --all-features)

heading "licences, bans, sources"
# What brings a crate in is told by cargo tree --invert.
"${deny[@]}" check --hide-inclusion-graph licenses bans sources

heading "advisories"
# Where cargo-deny keeps the database: below db-path, in a folder named after its address.
databases=$target/advisories
config=$target/deny.toml
sed "s|^\[advisories\]$|&\ndb-path = \"$databases\"|" deny.toml >"$config"
deny+=(--config "$config")
if [ -n "${ADVISORIES:-}" ]; then
    rm -rf "$databases"
    git clone --quiet --depth 1 "file://$(realpath "$ADVISORIES")" \
        "$databases/advisory-db-3157b0e258782691"
    deny+=(--offline)
elif ! "${deny[@]}" fetch db >"$target/deny-fetch.log" 2>&1; then
    tail -n 3 "$target/deny-fetch.log"
    say "advisories: NOT CHECKED, there is no database. ADVISORIES=folder names a clone of it."
    exit 3
fi
"${deny[@]}" check advisories

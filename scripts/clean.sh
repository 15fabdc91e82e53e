#!/usr/bin/env bash
# Removes what was built or unpacked here. What is installed into Postgres, the packages that
# setup.sh installed and cargo-pgrx stay.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

rm -rf "$open_dir"
cargo clean

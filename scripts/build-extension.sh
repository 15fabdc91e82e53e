#!/usr/bin/env bash
# Builds the extension as `make install` installs it, and installs nothing: what PGXN's client and
# packagers call before they install.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

# The same command as cargo-pgrx's own, so that nothing is built twice.
cargo build --lib --release --no-default-features --features "$feature"

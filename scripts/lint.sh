#!/usr/bin/env bash
# The checks that need no server, as make test runs them.
#
#     scripts/lint.sh format    is the Rust code formatted?
#     scripts/lint.sh clippy    compiler and clippy, warnings are errors
#     scripts/lint.sh doc       the Rust documentation, warnings are errors

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

case ${1:-} in
format)
    cargo fmt --all --check
    ;;
clippy)
    cargo clippy "${extension_crate[@]}" --all-targets -- -D warnings
    cargo clippy "${other_crates[@]}" --all-targets -- -D warnings
    ;;
doc)
    export RUSTDOCFLAGS=-Dwarnings
    cargo doc --no-deps "${extension_crate[@]}"
    cargo doc --no-deps "${other_crates[@]}"
    ;;
*) fail "expected format, clippy or doc, not '${1:-}'" ;;
esac

#!/usr/bin/env bash
# What `make bench` runs: the benchmark, against a throwaway cluster with the extension installed.
# The variable ARGS is passed on to it.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

# shellcheck disable=SC2086 # several arguments in one variable
exec cargo run --quiet --release --package sequential-inbox-bench -- ${ARGS:-}

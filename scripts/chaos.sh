#!/usr/bin/env bash
# What `make chaos` runs: the chaos test with the extension installed, against a throwaway cluster and
# a throwaway broker. Options come from the environment, as make passes them: DURATION in seconds,
# SEED, CONSUMERS. Empty ones are left to the test's defaults; without a seed it takes any, and tells
# which. Everything is in docs/chaos.md.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

scripts/setup-brokers.sh
arguments=()
for option in duration seed consumers; do
    variable=${option^^}
    if [ -n "${!variable:-}" ]; then
        arguments+=("--$option" "${!variable}")
    fi
done
# The consumers are programs of their own, which cargo run would not build.
cargo build --quiet --release --package inbox-chaos --bins
exec "$target/release/chaos" ${arguments[@]+"${arguments[@]}"}

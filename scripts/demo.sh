#!/usr/bin/env bash
# What `make demo` runs: the demo, against a throwaway cluster with the extension installed.
# Options come from the environment, as make passes them: STREAM, SEQUENCE, ORDER, CONSUMERS,
# SEED, REVERSE=1, and BROKER=rabbitmq. Empty ones are left to the demo's defaults.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

arguments=()
for option in stream sequence order consumers seed; do
    variable=${option^^}
    if [ -n "${!variable:-}" ]; then
        arguments+=("--$option" "${!variable}")
    fi
done
if [ -n "${REVERSE:-}" ]; then
    arguments+=(--reverse)
fi
features=()
if [ -n "${BROKER:-}" ]; then
    arguments+=(--broker "$BROKER")
    if [ "$BROKER" = rabbitmq ]; then
        scripts/setup-brokers.sh
        features=(--features rabbitmq)
    fi
fi
exec cargo run --quiet --release --package sequential-inbox-demo ${features[@]+"${features[@]}"} \
    -- ${arguments[@]+"${arguments[@]}"}

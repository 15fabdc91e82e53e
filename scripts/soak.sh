#!/usr/bin/env bash
# What `make soak` runs: a million calls in one session (CALLS), whose memory must not grow. `make
# test` makes forty thousand.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

INBOX_CALLS=${CALLS:-1000000} cargo test --package sequential-inbox-tests --all-features --test operation -- \
    --exact memory::a_session_that_calls_everything_does_not_grow --nocapture

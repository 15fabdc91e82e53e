#!/usr/bin/env bash
# Builds the extension and installs it into the Postgres that setup.sh found.
#
#     scripts/install-extension.sh release    what is shipped; for make install, demo and bench
#     scripts/install-extension.sh dev        quick to build; for the tests

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

profile=${1:-release}
arguments=(--profile "$profile" --pg-config "$PG_CONFIG")
if [ "$install_with_sudo" = yes ]; then
    arguments+=(--sudo)
fi
heading "building and installing the extension ($profile) for Postgres $PG"
cargo pgrx install "${arguments[@]}"

# What was released before, so that any version can be created and upgraded: cargo pgrx installs
# the newest and the upgrade scripts.
as_root=()
[ "$install_with_sudo" = no ] || as_root=(sudo -n)
${as_root[@]+"${as_root[@]}"} install -m 644 sql/released/*.sql "$("$PG_CONFIG" --sharedir)/extension/"

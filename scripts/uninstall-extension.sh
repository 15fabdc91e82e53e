#!/usr/bin/env bash
# Removes what install-extension.sh has installed into the Postgres that setup.sh found. Databases
# that have the extension keep its tables, but none of its functions work: DROP EXTENSION first.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

as_root=()
[ "$install_with_sudo" = no ] || as_root=(sudo -n)
share=$("$PG_CONFIG" --sharedir)/extension
heading "removing the extension from Postgres $PG"
${as_root[@]+"${as_root[@]}"} rm -f "$("$PG_CONFIG" --pkglibdir)/$extension.so" \
    "$share/$extension.control" "$share/$extension"--*.sql

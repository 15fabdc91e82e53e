#!/usr/bin/env bash
# Checks the archive that dist.sh made as PGXN's users meet it: PGXN's own client unpacks it, builds
# it with the Makefile at its top, installs it into the Postgres that setup.sh found, has the
# regression tests run, and removes it again; that is why this is not part of make test. What is
# built goes to this checkout's target/.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/release-common.sh
. "$(dirname "$0")/release-common.sh"
load_setup

version=$(project_version)
archive=$packages/$extension-$version.zip
[ -f "$archive" ] || fail "$archive is missing: commit version $version, then make dist"
need_debian pgxn pgxnclient

# What pgxn does in the end is call make. The Makefile calls sudo itself where that is needed, for
# the copying only: cargo must not run as root. So it gets a program in sudo's place that changes
# nothing.
export CARGO_TARGET_DIR=$target
script=$("$PG_CONFIG" --sharedir)/extension/$extension--$version.sql
pgxn install --sudo env --yes --pg_config "$PG_CONFIG" "$archive"
[ -f "$script" ] || fail "PGXN's client has not installed $script"
pgxn check --yes --pg_config "$PG_CONFIG" "$archive"
pgxn uninstall --sudo env --yes --pg_config "$PG_CONFIG" "$archive"
[ ! -e "$script" ] || fail "PGXN's client has left $script behind"
say "PGXN's client installs, checks and removes $(basename "$archive")"

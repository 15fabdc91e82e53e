#!/usr/bin/env bash
# What `make check-upgrade-major` runs: pg_upgrade with data, from the major PG to the major TO
# (18 unless it is given), with the extension built for and installed into both. Not part of `make
# test`, because it needs a second Postgres and a second build.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

to=${TO:-18}
[ "$PG" -lt "$to" ] || fail "PG=$PG is not older than TO=$to"

for major in "$to" "$PG"; do
    PG=$major scripts/setup.sh
    PG=$major scripts/install-extension.sh dev
done

# pg_config_of MAJOR: as setup.sh found it.
pg_config_of() {
    (
        feature=pg$1
        load_setup
        printf '%s\n' "$PG_CONFIG"
    )
}

new=$(pg_config_of "$to")
load_setup
heading "pg_upgrade from $PG to $to"
INBOX_NEW_PG_CONFIG=$new cargo test --package sequential-inbox-tests --all-features --test upgrade_major

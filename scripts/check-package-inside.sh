#!/usr/bin/env bash
# Run by check-package.sh as root in a Debian of its own, which has Postgres and no trace of the
# project: installs the package, uses it, installs it again under a running server, removes it, and
# compares the files with those from before.
#
#     check-package-inside.sh PACKAGE.deb MAJOR VERSION

set -euo pipefail

package=$1 major=$2 version=$3
name=$(dpkg-deb --field "$package" Package)
extension=sequential_inbox
bin=/usr/lib/postgresql/$major/bin
cluster=/tmp/cluster

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Everything but what dpkg and apt keep for themselves, and what this script makes.
all_files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp \
        -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) \
        -prune -o -print | sort
}

as_postgres() { runuser -u postgres -- "$@"; }
start() {
    as_postgres "$bin/pg_ctl" start --silent --wait --pgdata="$cluster" --log="$cluster/log" \
        --options="-c listen_addresses='' -c unix_socket_directories='$cluster' $*" || {
        cat "$cluster/log"
        fail "the server does not start"
    }
}
stop() { as_postgres "$bin/pg_ctl" stop --silent --wait --mode=fast --pgdata="$cluster"; }
sql() {
    local database=$1
    shift
    as_postgres psql --host="$cluster" --no-psqlrc --quiet --tuples-only --no-align \
        --set=ON_ERROR_STOP=1 --dbname="$database" --command="$*"
}

# expect WANTED DATABASE SQL
expect() {
    local found
    found=$(sql "$2" "$3")
    [ "$found" = "$1" ] || fail "$3: expected '$1', got '$found'"
}

# Shows what apt says only when it fails.
apt_get() {
    apt-get -q -y --option Dpkg::Use-Pty=0 "$@" >/tmp/apt.log 2>&1 || {
        cat /tmp/apt.log
        fail "apt-get $* failed"
    }
}

cd /
before=$(all_files)
if grep -q "$extension" <<<"$before"; then
    fail "this Debian is not clean: $(grep "$extension" <<<"$before")"
fi

# Offline: so what the package depends on, beside its Postgres, is what every Debian has.
apt_get install --no-install-recommends "$package"

cd /tmp
as_postgres "$bin/initdb" --no-sync --auth=trust --pgdata="$cluster" >/dev/null
start -c shared_preload_libraries=$extension
expect "$version" postgres "SELECT default_version FROM pg_available_extensions WHERE name = '$extension'"

sql postgres "CREATE EXTENSION $extension"
expect t postgres "SELECT inbox_claim('billing', 'evt-7')"
expect f postgres "SELECT inbox_claim('billing', 'evt-7')"
expect t postgres "SELECT preloaded FROM inbox_settings"
echo "created and used: $version"

# Every version that the package has a script for: created, filled, updated, and still known.
while IFS= read -r old; do
    database=from_${old//[^a-z0-9]/_}
    sql postgres "CREATE DATABASE $database"
    sql "$database" "CREATE EXTENSION $extension VERSION '$old'"
    expect t "$database" "SELECT inbox_claim('billing', 'evt-7')"
    sql "$database" "ALTER EXTENSION $extension UPDATE"
    expect "$version" "$database" "SELECT extversion FROM pg_extension WHERE extname = '$extension'"
    expect f "$database" "SELECT inbox_claim('billing', 'evt-7')"
    echo "updated: $old -> $version"
done < <(sql postgres "SELECT version FROM pg_available_extension_versions
    WHERE name = '$extension' AND version <> '$version' ORDER BY 1")

# dpkg puts new files in place of the old ones and never writes into them: a server that has the
# library loaded goes on with the one that it has.
started=$(sql postgres "SELECT pg_postmaster_start_time()")
apt_get install --reinstall "$package"
expect f postgres "SELECT inbox_claim('billing', 'evt-7')"
expect "$started" postgres "SELECT pg_postmaster_start_time()"
stop

apt_get remove "$name"
after=$(all_files)
if ! difference=$(diff <(echo "$before") <(echo "$after")); then
    fail "removed, and these files differ (> was left behind): $difference"
fi
if dpkg-query --show "$name" >/dev/null 2>&1; then
    fail "dpkg still knows $name"
fi

# The tables are the database's and stay, readable without the library.
start
expect 1 postgres "SELECT count(*) FROM inbox_claim_0"
if sql postgres "SELECT inbox_claim('billing', 'evt-8')" 2>/dev/null; then
    fail "the function works without its library"
fi
sql postgres "DROP EXTENSION $extension"
stop
echo "removed: nothing is left but the data"

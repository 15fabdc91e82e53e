#!/usr/bin/env bash
# What `make valgrind` runs: the SQL tests of tests/pg_regress on a server under valgrind's memcheck.
# Fails when a test fails, or when an invalid access or the use of uninitialised memory has the
# extension's library in its stack. Some minutes: a server under valgrind is twenty times slower.
#
# Postgres' own stacks are not looked at: built without USE_VALGRIND it has harmless ones of its own
# (padding that is written to the log, say), and its suppressions come with its source only. Nor is
# leaked memory, since a server's memory contexts end with their process; tests/operation/memory.rs
# watches a session's growth instead.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/packages.sh"
load_setup

server_user=postgres
port=5432

have valgrind || need_package valgrind valgrind

# As the server's user, whom Postgres wants not to be root.
as_server_user=()
if am_root; then
    as_server_user=(sudo -n -u "$server_user")
fi

# Its own folder, and its socket the only address: any port will do.
place=$(mktemp -d /var/tmp/valgrind-XXXXXX)
chmod 755 "$place"
if am_root; then chown "$server_user" "$place"; fi
server=
tidy() {
    if [ -n "$server" ]; then
        "${as_server_user[@]}" "$pg_bindir/pg_ctl" stop --silent --mode=immediate --pgdata="$place/data" || true
        wait "$server" || true
    fi
    rm -rf "$place"
}
trap tidy EXIT

cd "$place"
"${as_server_user[@]}" "$pg_bindir/initdb" --pgdata=data --username=postgres --auth=trust \
    --encoding=UTF8 --no-locale --no-sync >/dev/null
cat >>data/postgresql.conf <<CONF
listen_addresses = ''
unix_socket_directories = '$place'
port = $port
fsync = off
autovacuum = off
max_prepared_transactions = 20
authentication_timeout = 10min
CONF

# A log for each process: a session's stacks would otherwise run into each other.
"${as_server_user[@]}" valgrind --quiet --leak-check=no --num-callers=40 --error-limit=no \
    --log-file="$place/memcheck.%p" "$pg_bindir/postgres" -D "$place/data" >"$place/server.log" 2>&1 &
server=$!
deadline=$((SECONDS + 120))
until "$pg_bindir/psql" --no-psqlrc --quiet --host="$place" --port=$port --username=postgres \
    --command="SELECT" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || fail "no server under valgrind: $(tail -n 5 "$place/server.log")"
    sleep 1
done

heading "tests/pg_regress under valgrind"
input=$root/tests/pg_regress
output=$target/test/$feature/valgrind
rm -rf "$output"
mkdir -p "$output"
status=0
"$pg_regress" --bindir="$pg_bindir" --host="$place" --port=$port --user=postgres --dbname=regress \
    --inputdir="$input" --outputdir="$output" --schedule="$input/schedule" || status=$?
if [ -s "$output/regression.diffs" ]; then
    cat "$output/regression.diffs"
fi

# A stack ends at a line that has nothing behind the process' number.
cat memcheck.* | awk -v library="$extension" '
    { line = $0; sub(/^==[0-9]+== ?/, "", line) }
    line == "" { if (ours) { print stack; found++ } stack = ""; ours = 0; next }
    { stack = stack $0 "\n" }
    line ~ library "[.]so" || line ~ library "::" { ours = 1 }
    END { if (ours) { print stack; found++ } exit found > 0 }' >"$output/memcheck" || status=1
cat "$output/memcheck"
looked_at=$(find . -maxdepth 1 -name 'memcheck.*' | wc -l)
[ "$looked_at" -gt 16 ] || fail "valgrind has watched $looked_at processes only"
[ "$status" = 0 ] || fail "see above"
say "no error with $extension in its stack, in $looked_at processes"

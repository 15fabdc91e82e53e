#!/usr/bin/env bash
# Runs Postgres' own test runners over this project's SQL, against a throwaway cluster that has
# the extension installed.
#
#     scripts/regress.sh regress      tests/pg_regress: one session a test
#     scripts/regress.sh isolation    tests/isolation: several sessions, stepped
#
# Results and differences are kept under target/. Shows the differences when there are some.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
load_setup

kind=${1:-}
case $kind in
regress)
    runner=$pg_regress
    input=$root/tests/pg_regress
    # The schedule's first test creates the extension: that is tested, too.
    arguments=()
    ;;
isolation)
    runner=$pg_isolation_regress
    input=$root/tests/isolation
    arguments=("--load-extension=$extension")
    ;;
*) fail "expected regress or isolation, not '$kind'" ;;
esac
[ -x "$runner" ] || fail "$runner is missing: install postgresql-server-dev-$PG"

output=$target/test/$feature/$kind
rm -rf "$output"
mkdir -p "$output"

# A step that never comes to its end is given up after this many seconds, not five minutes.
export PGISOLATIONTIMEOUT=${PGISOLATIONTIMEOUT:-60}

cargo build --quiet --package throwaway-cluster
status=0
# shellcheck disable=SC2016 # PGPORT is the inner shell's
"$target/debug/throwaway-cluster" run --no-fsync -- \
    sh -c '"$@" --host="$PGHOST" --port="$PGPORT"' sh \
    "$runner" --bindir="$pg_bindir" --user=postgres --dbname="$kind" \
    --inputdir="$input" --outputdir="$output" --schedule="$input/schedule" \
    ${arguments[@]+"${arguments[@]}"} || status=$?
if [ -s "$output/regression.diffs" ]; then
    cat "$output/regression.diffs"
fi
exit "$status"

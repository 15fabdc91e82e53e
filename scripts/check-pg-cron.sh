#!/usr/bin/env bash
# Runs the ```sql pg_cron blocks of docs/scheduling.md on a throwaway cluster with pg_cron, and
# waits until the job that they schedule has run: with success, by the rights of its role alone.
# Debian has pg_cron for its own Postgres; elsewhere, and where it cannot be installed, there is
# nothing to check.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/packages.sh
. "$(dirname "$0")/packages.sh"
load_setup

package=postgresql-$PG-cron

available() { [ -f "$("$PG_CONFIG" --sharedir)/extension/pg_cron.control" ]; }

# Debian's package is for Debian's server.
install_pg_cron() {
    [ "$("$PG_CONFIG" --bindir)" = "/usr/lib/postgresql/$PG/bin" ] && install_packages "$package"
}

if [ -z "${PGHOST:-}" ]; then
    if ! available && ! { install_pg_cron && available; }; then
        say "skipped: pg_cron is not installed for Postgres $PG ($package)"
        exit 0
    fi
    cargo build --quiet --package throwaway-cluster
    # The job's connection comes over the cluster's Unix socket.
    exec "$target/debug/throwaway-cluster" run --no-fsync --preload=pg_cron \
        --conf=cron.database_name=postgres --conf=cron.use_background_workers=on \
        -- "$root/scripts/check-pg-cron.sh"
fi

PATH=$pg_bindir:$PATH
psql=(psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --dbname=postgres --tuples-only --no-align)

awk '/^```sql pg_cron$/ { inside = 1; next } /^```/ { inside = 0 } inside' docs/scheduling.md |
    "${psql[@]}" --file=- >/dev/null

# A minute is the shortest schedule that Debian's pg_cron knows: until the next full one, and a
# little more.
deadline=$((SECONDS + 90))
while [ "$SECONDS" -lt "$deadline" ]; do
    status=$("${psql[@]}" --command="SELECT status FROM cron.job_run_details
        WHERE status IN ('succeeded', 'failed') ORDER BY runid LIMIT 1")
    case $status in
    succeeded)
        rotations=$("${psql[@]}" --command="SELECT rotations FROM inbox_settings")
        [ "$rotations" = 1 ] || fail "the job succeeded and did no housekeeping"
        say "pg_cron: the job of docs/scheduling.md has run"
        exit 0
        ;;
    failed)
        fail "the job failed: $("${psql[@]}" --command="SELECT return_message FROM cron.job_run_details")"
        ;;
    esac
    sleep 1
done
fail "pg_cron has not run the job within 90 seconds"

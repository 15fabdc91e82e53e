#!/usr/bin/env bash
# Checks monitoring/: what prometheus-postgres-exporter makes of its queries is, sample by sample,
# what inbox_metrics() returns, and so is what the queries for sql_exporter give; the alerts and the
# dashboard ask for metrics that exist in expressions that Prometheus can read, and every alert
# fires when it should.
#
# The exporter is the real one, of Debian; it connects as a role with monitor access and nothing
# else. sql_exporter is not in Debian: its file is read and its queries are run as it would run them,
# by monitoring.py.
#
# The server is the one that PGHOST, PGPORT and PGUSER (a superuser) name, which must preload the
# library; without PGHOST it is a throwaway cluster that does.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# The worker would change values while they are compared.
# shellcheck disable=SC2034 # used by on-server.sh
cluster_options=(--preload --conf=sequential_inbox.housekeeping=off)
# shellcheck source=scripts/on-server.sh
. "$(dirname "$0")/on-server.sh"
# shellcheck source=scripts/exporter.sh
. "$(dirname "$0")/exporter.sh"
need_monitoring

database=monitoring_$$
role=monitoring_$$
scratch=$(mktemp -d)
server_pid=''
tidy() {
    [ -z "$server_pid" ] || stop_server "$server_pid"
    rm -rf "$scratch"
    on_database postgres --command="DROP DATABASE IF EXISTS $database WITH (FORCE)" \
        --command="DROP ROLE IF EXISTS $role" 2>/dev/null
}
trap tidy EXIT

wrong=0
# complain_unless COMMAND…: goes on after a failure, so that one run shows them all.
complain_unless() { "$@" || wrong=1; }

# A schema of its own: the queries find the function by the role's search_path.
on_database postgres --command="CREATE DATABASE $database"
on_database "$database" --output=/dev/null <<SQL
CREATE SCHEMA inbox;
CREATE EXTENSION sequential_inbox SCHEMA inbox;
ALTER DATABASE $database SET search_path = inbox;
CREATE ROLE $role LOGIN;
SELECT inbox.inbox_grant('$role', 'monitor');
SQL

# Something of every kind: each metric has a sample, most of them another value than 0.
on_database "$database" --output=/dev/null <<'SQL'
SELECT inbox_declare_sequence('order', '30 days', '[
    {"type": "placed"},
    {"type": "paid", "releaseCondition": {"predecessor": "placed"}},
    {"type": "shipped", "releaseCondition": {"predecessor": "paid"}}]');
-- What has to be escaped on an exporter's page.
SELECT inbox_declare_sequence(E'say "hü" \\ \n', '30 days', E'[{"type": "\\"quoted\\" \\\\ \\n"}]');
SELECT inbox_receive(E'"quoted" \\ \n', 'a', 'one', '');
SELECT inbox_claim(E'a "b" \\ \n', 'a');
SELECT inbox_claim('billing', n::text) FROM generate_series(1, 100) n;
SELECT inbox_claim('billing', n::text) FROM generate_series(1, 7) n;
-- What waits, is ready, is due again; dead letters of both kinds.
SELECT inbox_receive('shipped', n::text, 'one', ''), inbox_receive('paid', n::text, 'one', '')
FROM generate_series(1, 3) n;
SELECT inbox_receive('placed', 'a', 'one', ''), inbox_receive('placed', 'a', 'one', '');
SELECT inbox_receive('placed', 'b', NULL, ''), inbox_receive('shipped', 'b', 'waits', '');
SELECT inbox_next(), inbox_next();
SELECT inbox_fail('billing', 'later', error => 'x', retry_after => '1 hour', payload => '');
SELECT inbox_fail('billing', 'now', error => 'x', retry_after => '0', payload => '');
SELECT inbox_next() FROM generate_series(1, 9);
SELECT inbox_receive('paid', n::text, 'ready', ''), inbox_receive('placed', n::text, 'ready', '')
FROM generate_series(4, 6) n;
SELECT inbox_fail('billing', 'dead ' || n, error => 'x') FROM generate_series(1, 4) n;
SELECT inbox_fail('placed', 'dead', inbox_sequence('order', 'two'), error => 'x', payload => '');
-- An expired instance, one that expires soon, a closed one; the ring has moved on.
SELECT inbox_receive('paid', 'd', 'expired', ''), inbox_receive('paid', 'e', 'soon', ''),
       inbox_receive('paid', 'f', 'closed', '');
UPDATE sequence_instance SET retain_until = created_at WHERE context_id = 'expired';
UPDATE sequence_instance SET created_at = created_at - interval '29 days',
        retain_until = retain_until - interval '29 days' WHERE context_id = 'soon';
SELECT inbox_close(id) FROM sequence_instance WHERE context_id = 'closed';
SELECT inbox_housekeeping();
UPDATE inbox_worker_status SET last_run_at = now() - interval '1 minute', failures = 3,
       last_error_at = now() - interval '1 hour', last_error = 'x';
SQL

# A message that waits for another transaction. That commits once it is waited for.
on_database "$database" --output=/dev/null <<'SQL' &
BEGIN;
SELECT inbox_claim('billing', 'waited for'), pg_advisory_xact_lock(1);
DO $$
BEGIN
    FOR attempt IN 1..6000 LOOP
        IF EXISTS (SELECT FROM pg_locks l
                   WHERE NOT l.granted AND pg_backend_pid() = ANY (pg_blocking_pids(l.pid))) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RAISE 'nobody waits';
END $$;
COMMIT;
SQL
holder=$!
on_database "$database" --output=/dev/null <<'SQL'
DO $$
BEGIN
    FOR attempt IN 1..6000 LOOP
        IF EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted
                   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RAISE 'nobody holds the message';
END $$;
SELECT inbox_claim('billing', 'waited for');
SQL
wait "$holder"

# Rows a line each, as JSON.
as_json() {
    on_database "$database" --tuples-only --no-align \
        --command="SELECT to_json(m) FROM inbox_metrics() m"
}

# The names that the function's body knows, those without a sample too.
names=$scratch/names
on_database "$database" --tuples-only --no-align --output="$names" --command="
    SELECT DISTINCT (regexp_matches(pg_get_functiondef('inbox_metrics'::regproc),
        '''(sequential_inbox_[a-z_]+)''::text', 'g'))[1]"
[ -s "$names" ] || fail "the names of the metrics are not found"

start_exporter "$database" "$role" "$scratch/exporter.log"

heading "prometheus-postgres-exporter"
scrape=$scratch/scrape
as_json >"$scratch/before"
if page "$server_port" /metrics >"$scrape"; then
    as_json >"$scratch/after"
    complain_unless monitoring_py compare "$names" "$scratch/before" "$scratch/after" "$scrape"
else
    cat "$scratch/exporter.log" "$scrape" >&2
    wrong=1
fi
for gauge in pg_exporter_last_scrape_error pg_exporter_user_queries_load_error; do
    if ! grep -qE "^$gauge(\{.*\})? 0$" "$scrape"; then
        cat "$scratch/exporter.log" >&2
        say "$gauge is not 0"
        wrong=1
    fi
done
# What Prometheus itself has to say of the names; the rest of the page is not ours.
grep -E '^(# (HELP|TYPE) )?sequential_inbox_' "$scrape" >"$scratch/ours" || true
complain_unless promtool check metrics <"$scratch/ours"

heading "sql_exporter"
collector=monitoring/sql_exporter.yml
complain_unless monitoring_py collector "$collector" >"$scratch/collector.sql"
as_json >"$scratch/before"
PGUSER=$role on_database "$database" --tuples-only --no-align --output="$scratch/rows" \
    --file="$scratch/collector.sql"
as_json >"$scratch/after"
complain_unless monitoring_py collected "$collector" <"$scratch/rows" >"$scrape"
complain_unless monitoring_py compare "$names" "$scratch/before" "$scratch/after" "$scrape"

heading "alerts"
complain_unless promtool check rules monitoring/alerts.yml
complain_unless promtool test rules monitoring/alerts_test.yml
complain_unless monitoring_py alerts "$names" monitoring/alerts.yml monitoring/alerts_test.yml

heading "dashboard"
complain_unless monitoring_py dashboard "$names" monitoring/grafana.json >"$scratch/dashboard.yml"
complain_unless promtool check rules "$scratch/dashboard.yml"

[ "$wrong" = 0 ]

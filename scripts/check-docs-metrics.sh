#!/usr/bin/env bash
# Compares docs/metrics.md with what inbox_metrics() returns, both ways: each metric has a row with
# its type and unit, and there is no row for anything else. The database that is asked has
# something of every kind: claims, messages in each state, dead letters, ended instances.
#
# The rows are those of the tables whose header begins `| metric | type | unit |`; a unit that is
# empty in the database is empty there.
#
# The server is the one that PGHOST, PGPORT and PGUSER (a superuser) name, which must preload the
# library; without PGHOST it is a throwaway cluster that does.

# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# shellcheck disable=SC2034 # used by on-server.sh
cluster_options=(--preload)
# shellcheck source=scripts/on-server.sh
. "$(dirname "$0")/on-server.sh"

page=docs/metrics.md
database=metrics_$$
returned=$(mktemp)
tidy() {
    rm -f "$returned"
    on_database postgres --command="DROP DATABASE IF EXISTS $database WITH (FORCE)" 2>/dev/null
}
trap tidy EXIT

on_database postgres --command="CREATE DATABASE $database"
on_database "$database" --command="CREATE EXTENSION sequential_inbox"

[ -f "$page" ] || fail "$page is missing"

on_database "$database" --output=/dev/null <<'SQL'
SELECT inbox_declare_sequence('order', '30 days', '[
    {"type": "placed"},
    {"type": "paid", "releaseCondition": {"predecessor": "placed"}},
    {"type": "shipped", "releaseCondition": {"predecessor": "paid"}}]');
-- A duplicate; a message that waits, one that is READY, one that is due again, dead letters.
SELECT inbox_claim('billing', 'a'), inbox_try_claim('billing', 'a');
SELECT inbox_receive('shipped', 'a', 'one', ''), inbox_receive('paid', 'a', 'one', ''),
       inbox_receive('placed', 'a', 'one', ''), inbox_receive('placed', 'a', 'one', '');
SELECT inbox_receive('placed', 'b', NULL, '');
SELECT inbox_fail('billing', 'b', error => 'x', retry_after => '1 hour', payload => '');
SELECT inbox_fail('billing', 'c', error => 'x', payload => '');
SELECT inbox_fail('placed', 'c', inbox_sequence('order', 'two'), error => 'x', payload => '');
SELECT inbox_retry(id) FROM inbox_dead_letters WHERE idempotence_id = 'c' AND sequence_name IS NOT NULL;
-- An expired instance, one that expires soon, a closed one.
SELECT inbox_receive('paid', 'd', 'expired', ''), inbox_receive('paid', 'e', 'soon', ''),
       inbox_receive('paid', 'f', 'closed', '');
UPDATE sequence_instance SET retain_until = created_at WHERE context_id = 'expired';
UPDATE sequence_instance SET created_at = created_at - interval '29 days',
        retain_until = retain_until - interval '29 days' WHERE context_id = 'soon';
SELECT inbox_close(id) FROM sequence_instance WHERE context_id = 'closed';
SELECT inbox_housekeeping();
SELECT inbox_next();
-- As after rounds of the worker, one of them failed.
UPDATE inbox_worker_status SET last_run_at = now(), last_error_at = now();
SQL
on_database "$database" --tuples-only --no-align --field-separator=$'\t' >"$returned" --command="
    SELECT DISTINCT name, type, coalesce(unit, '') FROM inbox_metrics() ORDER BY name"

awk -v page="$page" '
    function trimmed(text) { gsub(/^ +| +$/, "", text); return text }
    FILENAME == ARGV[1] {
        split($0, field, "\t")
        if (field[1] in known) { print field[1] " is returned with two types or units"; wrong = 1 }
        known[field[1]] = field[2] " | " field[3]
        count++
        next
    }
    /^[|] *metric *[|] *type *[|] *unit *[|]/ { table = 1; next }
    !/^[|]/ { table = 0 }
    !table || /^[|] *-/ { next }
    {
        split($0, cell, "|")
        name = trimmed(cell[2])
        gsub(/`/, "", name)
        told[name] = trimmed(cell[3]) " | " trimmed(cell[4])
        if (!(name in known)) { print page ":" FNR ": there is no metric " name; wrong = 1 }
        else if (told[name] != known[name]) {
            print page ":" FNR ": " name " is " known[name] ", not " told[name]
            wrong = 1
        }
    }
    END {
        for (name in known) if (!(name in told)) {
            print page ": lacks: | `" name "` | " known[name] " |"
            wrong = 1
        }
        if (!count) { print "inbox_metrics() returns nothing"; wrong = 1 }
        if (!wrong) print page ": " count " metrics as returned"
        exit wrong
    }' "$returned" "$page"

/* From 0.1.0 to 0.2.0: statistics and metrics (G13). Claims and consumers go on meanwhile. */

\echo Use "ALTER EXTENSION sequential_inbox UPDATE" to load this file. \quit

-- The library of 0.1.0 has none of the new functions. Where it is still the one that is
-- loaded, this says why, before anything is changed.
LOAD 'MODULE_PATHNAME';
DO LANGUAGE plpgsql $$
BEGIN
    IF pg_catalog.current_setting('sequential_inbox.version', true) IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the library of sequential_inbox that this session has loaded is older than 0.2.0',
            HINT = 'Install the newer package on this server, reconnect, and restart the server where the library is in shared_preload_libraries.';
    END IF;
END
$$;

-- What expired, few among the many that were closed: for inbox_metrics(). For the time of
-- one look at the table, nothing is received.
CREATE INDEX sequence_instance_expired ON @extschema@.sequence_instance (name)
    WHERE state OPERATOR(pg_catalog.=) 'EXPIRED';
COMMENT ON INDEX @extschema@.sequence_instance_expired IS 'counts the expired instances of a sequence';

-- How many rows to expect from what only reads: with the 1000 that Postgres assumes a plan looks
-- dear enough to be compiled first. And what reads what is true now does not fit into a parallel
-- plan.
ALTER FUNCTION @extschema@.inbox_lookup(pg_catalog.text, pg_catalog.text) PARALLEL UNSAFE ROWS 2;
ALTER FUNCTION @extschema@.inbox_status() PARALLEL UNSAFE ROWS 1;

CREATE FUNCTION @extschema@.inbox_stat_counters(missing_ok boolean DEFAULT false) RETURNS TABLE (
    kind pg_catalog.text,
    name pg_catalog.text,
    claimed bigint,
    duplicate bigint,
    in_flight bigint,
    waited bigint,
    wait_time double precision,
    received_process bigint,
    received_buffered bigint,
    received_duplicate bigint,
    received_direct bigint,
    received_rejected bigint,
    received_in_flight bigint,
    released bigint,
    retried bigint,
    failed bigint,
    stats_since pg_catalog.timestamptz
)
    LANGUAGE c STABLE PARALLEL SAFE ROWS 100
    AS 'MODULE_PATHNAME', 'inbox_stat_counters_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_stat_counters(boolean) IS
    'the counters of this database; see the view inbox_stat. Without shared_preload_libraries there are none: an error, or no row if missing_ok';
REVOKE ALL ON FUNCTION @extschema@.inbox_stat_counters(boolean) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_stat_reset(all_databases boolean DEFAULT false) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_stat_reset_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_stat_reset(boolean) IS
    'lets the counters of this database, or of all, start from nothing';
REVOKE ALL ON FUNCTION @extschema@.inbox_stat_reset(boolean) FROM PUBLIC;

CREATE VIEW @extschema@.inbox_stat AS
    SELECT c.kind, c.name, c.claimed, c.duplicate, c.in_flight, c.waited, c.wait_time,
           c.received_process, c.received_buffered, c.received_duplicate, c.received_direct,
           c.received_rejected, c.received_in_flight, c.released, c.retried, c.failed, c.stats_since
    FROM @extschema@.inbox_stat_counters() c;
COMMENT ON VIEW @extschema@.inbox_stat IS 'What callers were told since the server started, by consumer and message type; needs shared_preload_libraries';
COMMENT ON COLUMN @extschema@.inbox_stat.kind IS 'consumer, sequence, or others: all that found no room for an entry of their own, in all databases';
COMMENT ON COLUMN @extschema@.inbox_stat.name IS 'the consumer, or the message type';
COMMENT ON COLUMN @extschema@.inbox_stat.claimed IS 'claims that were won';
COMMENT ON COLUMN @extschema@.inbox_stat.duplicate IS 'claims that were answered as duplicates';
COMMENT ON COLUMN @extschema@.inbox_stat.in_flight IS 'answers in_flight of inbox_try_claim()';
COMMENT ON COLUMN @extschema@.inbox_stat.waited IS 'messages that had to wait for another transaction';
COMMENT ON COLUMN @extschema@.inbox_stat.wait_time IS 'how long they waited, in milliseconds';
COMMENT ON COLUMN @extschema@.inbox_stat.received_process IS 'inbox_receive() answered process';
COMMENT ON COLUMN @extschema@.inbox_stat.received_buffered IS 'inbox_receive() answered buffered';
COMMENT ON COLUMN @extschema@.inbox_stat.received_duplicate IS 'inbox_receive() answered duplicate';
COMMENT ON COLUMN @extschema@.inbox_stat.received_direct IS 'inbox_receive() answered direct';
COMMENT ON COLUMN @extschema@.inbox_stat.received_rejected IS 'inbox_receive() answered rejected';
COMMENT ON COLUMN @extschema@.inbox_stat.received_in_flight IS 'inbox_receive() answered in_flight';
COMMENT ON COLUMN @extschema@.inbox_stat.released IS 'messages that inbox_next() handed out';
COMMENT ON COLUMN @extschema@.inbox_stat.retried IS 'those of them that had failed before';
COMMENT ON COLUMN @extschema@.inbox_stat.failed IS 'failures that were recorded';
COMMENT ON COLUMN @extschema@.inbox_stat.stats_since IS 'since when this row counts';

CREATE FUNCTION @extschema@.inbox_metrics() RETURNS TABLE (
    name pg_catalog.text,
    type pg_catalog.text,
    unit pg_catalog.text,
    help pg_catalog.text,
    labels pg_catalog.jsonb,
    value double precision
)
    LANGUAGE sql STABLE PARALLEL UNSAFE ROWS 100
BEGIN ATOMIC
    WITH metric (place, name, type, unit, help) AS (VALUES
        (1, 'sequential_inbox_info', 'info', '', 'Versions of the extension and of its library.'),
        (2, 'sequential_inbox_library_preloaded', 'gauge', '', 'Whether the library is in shared_preload_libraries: background worker and counters.'),
        (3, 'sequential_inbox_messages', 'gauge', '', 'Messages that wait for others or are ready to be handed out.'),
        (4, 'sequential_inbox_oldest_waiting_seconds', 'gauge', 'seconds', 'How long the oldest waiting message has waited; 0 when none waits.'),
        (5, 'sequential_inbox_oldest_ready_seconds', 'gauge', 'seconds', 'How long the oldest ready message has not been fetched; 0 when none is ready.'),
        (6, 'sequential_inbox_dead_letters', 'gauge', '', 'Failed messages that nothing will retry by itself.'),
        (7, 'sequential_inbox_scheduled_retries', 'gauge', '', 'Failed messages that become due again by themselves.'),
        (8, 'sequential_inbox_instances_open', 'gauge', '', 'Sequence instances that are not complete.'),
        (9, 'sequential_inbox_instances_expiring', 'gauge', '', 'Open sequence instances in the last quarter of the retention, or past it.'),
        (10, 'sequential_inbox_instances_expired', 'gauge', '', 'Sequence instances that expired incomplete and are still kept.'),
        (11, 'sequential_inbox_claim_table_rows', 'gauge', '', 'Claims stored in a table, as the server estimates live rows.'),
        (12, 'sequential_inbox_claim_table_bytes', 'gauge', 'bytes', 'Size of a table of claims with its indexes.'),
        (13, 'sequential_inbox_rotations_total', 'counter', '', 'How often the ring of plain claims has moved on.'),
        (14, 'sequential_inbox_next_rotation_seconds', 'gauge', 'seconds', 'Time until the ring may move on; negative: it is overdue.'),
        (15, 'sequential_inbox_housekeeping_last_run_timestamp_seconds', 'gauge', 'seconds', 'When the background worker last finished a round here, in Unix time.'),
        (16, 'sequential_inbox_housekeeping_last_error_timestamp_seconds', 'gauge', 'seconds', 'When a round of the background worker last failed here, in Unix time.'),
        (17, 'sequential_inbox_housekeeping_failures', 'gauge', '', 'How many rounds of the background worker have failed in a row.'),
        (18, 'sequential_inbox_claim_answers_total', 'counter', '', 'Answers of inbox_claim, inbox_try_claim and inbox_claim_batch.'),
        (19, 'sequential_inbox_waits_total', 'counter', '', 'Messages that had to wait for another transaction.'),
        (20, 'sequential_inbox_wait_seconds_total', 'counter', 'seconds', 'How long they waited.'),
        (21, 'sequential_inbox_received_total', 'counter', '', 'Answers of inbox_receive.'),
        (22, 'sequential_inbox_released_total', 'counter', '', 'Messages that inbox_next handed out.'),
        (23, 'sequential_inbox_retried_total', 'counter', '', 'Messages that inbox_next handed out after a failure.'),
        (24, 'sequential_inbox_failures_total', 'counter', '', 'Failures that were recorded.')
    ),
    status AS MATERIALIZED (SELECT s.preloaded, s.next_rotation_at FROM @extschema@.inbox_status() s),
    unfinished AS MATERIALIZED (
        SELECT m.message_type, m.state, pg_catalog.count(*) AS messages,
               pg_catalog.min(m.state_changed_at) AS since
        FROM @extschema@.sequenced_message m
        -- The first condition is the index's.
        WHERE m.state OPERATOR(pg_catalog.=) ANY (ARRAY['WAITING', 'READY', 'FAILED']::pg_catalog.text[])
          AND m.state OPERATOR(pg_catalog.<>) 'FAILED' AND m.sequence_instance_id IS NOT NULL
        GROUP BY m.message_type, m.state
    ),
    counters AS MATERIALIZED (
        SELECT c.*, CASE WHEN c.name IS NULL THEN '{}'
                         WHEN c.kind OPERATOR(pg_catalog.=) 'consumer'
                         THEN pg_catalog.jsonb_build_object('consumer', c.name)
                         ELSE pg_catalog.jsonb_build_object('message_type', c.name) END AS labels
        FROM @extschema@.inbox_stat_counters(missing_ok => true) c
    ),
    -- Apart, because sizes are volatile: a query for one metric, as exporters make them, computes
    -- that metric alone only if `sample` is not.
    claim_tables (metric, labels, value) AS MATERIALIZED (
        SELECT x.metric, pg_catalog.jsonb_build_object('table', c.relname), x.value::double precision
        FROM (VALUES ('@extschema@.inbox_claim_0'::pg_catalog.regclass),
                     ('@extschema@.inbox_claim_1'::pg_catalog.regclass),
                     ('@extschema@.inbox_claim_2'::pg_catalog.regclass),
                     ('@extschema@.sequential_inbox_idempotence'::pg_catalog.regclass)) r (oid)
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.oid
        CROSS JOIN LATERAL (VALUES
            ('sequential_inbox_claim_table_rows', pg_catalog.pg_stat_get_live_tuples(c.oid)),
            ('sequential_inbox_claim_table_bytes', pg_catalog.pg_total_relation_size(c.oid))) x (metric, value)
    ),
    sample (name, labels, value) AS (
        SELECT 'sequential_inbox_info',
               pg_catalog.jsonb_build_object('extension', e.extversion,
                   'library', pg_catalog.current_setting('sequential_inbox.version', true)),
               1
        FROM status s JOIN pg_catalog.pg_extension e ON e.extname OPERATOR(pg_catalog.=) 'sequential_inbox'
        UNION ALL
        SELECT 'sequential_inbox_library_preloaded', '{}', CASE WHEN s.preloaded THEN 1 ELSE 0 END FROM status s
        UNION ALL
        SELECT 'sequential_inbox_messages',
               pg_catalog.jsonb_build_object('sequence', t.sequence_name, 'message_type', t.message_type,
                   'state', pg_catalog.lower(x.state)),
               COALESCE(u.messages, 0)
        FROM @extschema@.sequence_message_type t
        CROSS JOIN (VALUES ('WAITING'), ('READY')) x (state)
        LEFT JOIN unfinished u ON u.message_type OPERATOR(pg_catalog.=) t.message_type
            AND u.state OPERATOR(pg_catalog.=) x.state
        UNION ALL
        SELECT x.metric, pg_catalog.jsonb_build_object('sequence', t.sequence_name),
               COALESCE(EXTRACT(epoch FROM pg_catalog.max(
                   pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) u.since)), 0)
        FROM @extschema@.sequence_message_type t
        CROSS JOIN (VALUES ('WAITING', 'sequential_inbox_oldest_waiting_seconds'),
                           ('READY', 'sequential_inbox_oldest_ready_seconds')) x (state, metric)
        LEFT JOIN unfinished u ON u.message_type OPERATOR(pg_catalog.=) t.message_type
            AND u.state OPERATOR(pg_catalog.=) x.state
        GROUP BY x.metric, t.sequence_name
        UNION ALL
        SELECT 'sequential_inbox_dead_letters',
               CASE WHEN d.sequence_instance_id IS NULL
                    THEN pg_catalog.jsonb_build_object('consumer', d.message_type)
                    ELSE pg_catalog.jsonb_build_object('sequence', d.sequence_name, 'message_type', d.message_type) END,
               pg_catalog.count(*)
        FROM @extschema@.inbox_dead_letters d
        GROUP BY 2
        UNION ALL
        SELECT 'sequential_inbox_scheduled_retries',
               CASE WHEN m.sequence_instance_id IS NULL
                    THEN pg_catalog.jsonb_build_object('consumer', m.message_type)
                    ELSE pg_catalog.jsonb_build_object('sequence', i.name, 'message_type', m.message_type) END,
               pg_catalog.count(*)
        FROM @extschema@.sequenced_message m
        LEFT JOIN @extschema@.sequence_instance i ON i.id OPERATOR(pg_catalog.=) m.sequence_instance_id
        WHERE m.state OPERATOR(pg_catalog.=) 'FAILED' AND m.next_attempt_at IS NOT NULL
        GROUP BY 2
        UNION ALL
        SELECT 'sequential_inbox_instances_open', pg_catalog.jsonb_build_object('sequence', t.name),
               (SELECT pg_catalog.count(*) FROM @extschema@.sequence_instance i
                WHERE i.name OPERATOR(pg_catalog.=) t.name AND i.state OPERATOR(pg_catalog.=) 'OPEN')
        FROM @extschema@.sequence_type t
        UNION ALL
        SELECT 'sequential_inbox_instances_expiring', pg_catalog.jsonb_build_object('sequence', t.name),
               (SELECT pg_catalog.count(*) FROM @extschema@.sequence_instance i
                WHERE i.name OPERATOR(pg_catalog.=) t.name AND i.state OPERATOR(pg_catalog.=) 'OPEN'
                  AND i.retain_until OPERATOR(pg_catalog.<) (pg_catalog.statement_timestamp()
                      OPERATOR(pg_catalog.+) (t.retention OPERATOR(pg_catalog.*) 0.25::double precision)))
        FROM @extschema@.sequence_type t
        UNION ALL
        SELECT 'sequential_inbox_instances_expired', pg_catalog.jsonb_build_object('sequence', t.name),
               (SELECT pg_catalog.count(*) FROM @extschema@.sequence_instance i
                WHERE i.name OPERATOR(pg_catalog.=) t.name AND i.state OPERATOR(pg_catalog.=) 'EXPIRED')
        FROM @extschema@.sequence_type t
        UNION ALL
        SELECT r.metric, r.labels, r.value FROM claim_tables r
        UNION ALL
        SELECT 'sequential_inbox_rotations_total', '{}', COALESCE(pg_catalog.max(r.rotations), 0)
        FROM @extschema@.inbox_claim_ring r
        UNION ALL
        SELECT 'sequential_inbox_next_rotation_seconds', '{}',
               COALESCE(EXTRACT(epoch FROM s.next_rotation_at OPERATOR(pg_catalog.-) pg_catalog.statement_timestamp()), 0)
        FROM status s
        UNION ALL
        SELECT x.metric, '{}', x.value
        FROM @extschema@.inbox_worker_status w
        CROSS JOIN LATERAL (VALUES
            ('sequential_inbox_housekeeping_last_run_timestamp_seconds', EXTRACT(epoch FROM w.last_run_at)),
            ('sequential_inbox_housekeeping_last_error_timestamp_seconds', EXTRACT(epoch FROM w.last_error_at)),
            ('sequential_inbox_housekeeping_failures', w.failures)) x (metric, value)
        WHERE x.value IS NOT NULL
        UNION ALL
        SELECT x.metric, c.labels OPERATOR(pg_catalog.||) x.label, x.value
        FROM counters c
        CROSS JOIN LATERAL (VALUES
            ('sequential_inbox_claim_answers_total', '{"answer": "claimed"}'::pg_catalog.jsonb, c.claimed::double precision),
            ('sequential_inbox_claim_answers_total', '{"answer": "duplicate"}', c.duplicate),
            ('sequential_inbox_claim_answers_total', '{"answer": "in_flight"}', c.in_flight),
            ('sequential_inbox_waits_total', '{}', c.waited),
            ('sequential_inbox_wait_seconds_total', '{}', c.wait_time OPERATOR(pg_catalog./) 1000),
            ('sequential_inbox_received_total', '{"decision": "process"}', c.received_process),
            ('sequential_inbox_received_total', '{"decision": "buffered"}', c.received_buffered),
            ('sequential_inbox_received_total', '{"decision": "duplicate"}', c.received_duplicate),
            ('sequential_inbox_received_total', '{"decision": "direct"}', c.received_direct),
            ('sequential_inbox_received_total', '{"decision": "rejected"}', c.received_rejected),
            ('sequential_inbox_received_total', '{"decision": "in_flight"}', c.received_in_flight),
            ('sequential_inbox_released_total', '{}', c.released),
            ('sequential_inbox_retried_total', '{}', c.retried),
            ('sequential_inbox_failures_total', '{}', c.failed)) x (metric, label, value)
        -- A plain consumer receives nothing.
        WHERE c.kind OPERATOR(pg_catalog.<>) 'consumer'
           OR x.metric OPERATOR(pg_catalog.<>) 'sequential_inbox_received_total'
    )
    -- The sample's name, which a query for one metric so compares early.
    SELECT s.name, m.type, m.unit, m.help, s.labels, s.value::double precision
    FROM metric m JOIN sample s ON s.name OPERATOR(pg_catalog.=) m.name
    ORDER BY m.place, s.labels;
END;
COMMENT ON FUNCTION @extschema@.inbox_metrics() IS
    'what an exporter scrapes: one row a sample, names and labels by the conventions of OpenMetrics';
REVOKE ALL ON FUNCTION @extschema@.inbox_metrics() FROM PUBLIC;

-- A GRANT in this script would count as the extension's own, and pg_dump would leave out
-- what was granted to roles before. So whoever monitors is granted anew by hand.
DO LANGUAGE plpgsql $$
DECLARE
    monitors pg_catalog.text;
BEGIN
    SELECT pg_catalog.string_agg(DISTINCT r.rolname::pg_catalog.text, ', ') INTO monitors
    FROM pg_catalog.pg_class c
    CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
    JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.grantee
    WHERE c.oid OPERATOR(pg_catalog.=) '@extschema@.inbox_dead_letters'::pg_catalog.regclass
      AND a.grantee OPERATOR(pg_catalog.<>) c.relowner;
    IF monitors IS NOT NULL THEN
        RAISE WARNING USING
            MESSAGE = pg_catalog.concat('statistics and metrics are not granted yet to: ', monitors),
            HINT = 'Call inbox_grant(role, access) for each of them again.';
    END IF;
END
$$;

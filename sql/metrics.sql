/*
 * Metrics: what an exporter scrapes, one row a sample (G8).
 *
 * The body is parsed here, once, so that nothing in a caller's search_path can take
 * part (G14). What it reads is bounded by what is unfinished, by indexes; nothing
 * counts processed messages or claims one by one.
 */

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

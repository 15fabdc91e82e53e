/*
 * Statistics: what callers were told since the server started, from counters in
 * shared memory. Names of other databases are not shown.
 */

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

/*
 * Housekeeping: retention of both kinds of claims (G8, G9).
 */

CREATE FUNCTION @extschema@.inbox_housekeeping(batch_size integer DEFAULT 1000) RETURNS TABLE (
    closed bigint,
    expired bigint,
    removed bigint,
    rotated boolean,
    more boolean
)
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_housekeeping_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_housekeeping(integer) IS
    'closes, expires and removes sequence instances and moves the ring on, one bounded batch; call it again while more';
REVOKE ALL ON FUNCTION @extschema@.inbox_housekeeping(integer) FROM PUBLIC;

CREATE TABLE @extschema@.inbox_worker_status (
    singleton boolean NOT NULL DEFAULT true
        CONSTRAINT inbox_worker_status_singleton_check CHECK (singleton),
    installed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    last_run_at pg_catalog.timestamptz,
    last_error pg_catalog.text,
    last_error_at pg_catalog.timestamptz,
    failures integer NOT NULL DEFAULT 0,
    next_run_at pg_catalog.timestamptz,
    CONSTRAINT inbox_worker_status_pkey PRIMARY KEY (singleton)
-- Updated by every round of the worker: room for that on the one page.
) WITH (fillfactor = 50);
-- What is true of this installation only, and so not for a dump.
INSERT INTO @extschema@.inbox_worker_status DEFAULT VALUES;
COMMENT ON TABLE @extschema@.inbox_worker_status IS 'What the background worker did last in this database';
COMMENT ON COLUMN @extschema@.inbox_worker_status.installed_at IS 'when the extension was created here; the worker starts a few rounds later';
COMMENT ON COLUMN @extschema@.inbox_worker_status.singleton IS 'there is at most one row';
COMMENT ON COLUMN @extschema@.inbox_worker_status.last_run_at IS 'when the worker last finished a round';
COMMENT ON COLUMN @extschema@.inbox_worker_status.last_error IS 'the newest error of a round';
COMMENT ON COLUMN @extschema@.inbox_worker_status.last_error_at IS 'when that was';
COMMENT ON COLUMN @extschema@.inbox_worker_status.failures IS 'how many rounds have failed in a row';
COMMENT ON COLUMN @extschema@.inbox_worker_status.next_run_at IS 'after a failure: when the worker tries again';

CREATE FUNCTION @extschema@.inbox_status() RETURNS TABLE (
    preloaded boolean,
    housekeeping boolean,
    housekeeping_interval interval,
    housekeeping_batch_size integer,
    housekeeping_databases pg_catalog.text[],
    claim_retention interval,
    dead_letter_retention interval,
    rotation_lock_timeout interval,
    notify boolean,
    next_rotation_at pg_catalog.timestamptz
)
    LANGUAGE c STABLE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'inbox_status_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_status() IS
    'the settings in force in this session and when the ring may move on; see the view inbox_settings';
REVOKE ALL ON FUNCTION @extschema@.inbox_status() FROM PUBLIC;

CREATE VIEW @extschema@.inbox_settings AS
    SELECT s.preloaded, s.housekeeping, s.housekeeping_interval, s.housekeeping_batch_size,
           s.housekeeping_databases, s.claim_retention, s.dead_letter_retention,
           s.rotation_lock_timeout, s.notify,
           COALESCE(r.current_table, 0) AS current_table, r.current_since,
           COALESCE(r.rotations, 0) AS rotations, s.next_rotation_at,
           w.last_run_at, w.last_error, w.last_error_at, COALESCE(w.failures, 0) AS failures, w.next_run_at
    FROM @extschema@.inbox_status() s
    LEFT JOIN @extschema@.inbox_claim_ring r ON true
    LEFT JOIN @extschema@.inbox_worker_status w ON true;
COMMENT ON VIEW @extschema@.inbox_settings IS 'One row: the settings in force in this session, the ring, and what the background worker did last';
COMMENT ON COLUMN @extschema@.inbox_settings.preloaded IS 'the library is in shared_preload_libraries, so the background worker runs';
COMMENT ON COLUMN @extschema@.inbox_settings.current_table IS 'the ring table that takes new claims';
COMMENT ON COLUMN @extschema@.inbox_settings.next_rotation_at IS 'when the ring may move on at the earliest; NULL: it has never moved and is due';
COMMENT ON COLUMN @extschema@.inbox_settings.last_error IS 'the newest error of the background worker in this database';

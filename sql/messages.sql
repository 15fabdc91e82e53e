/*
 * Messages that were processed, wait or failed, and the payloads of those that
 * are not done (G5 to G8).
 */

CREATE TABLE @extschema@.sequenced_message (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    message_type pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    idempotence_id pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    sequence_instance_id bigint,
    "position" bigint,
    state pg_catalog.text COLLATE pg_catalog."C" NOT NULL
        CONSTRAINT sequenced_message_state_check
        CHECK (state OPERATOR(pg_catalog.=) ANY (ARRAY['WAITING', 'READY', 'PROCESSED', 'FAILED', 'SKIPPED']::pg_catalog.text[])),
    attempts integer NOT NULL DEFAULT 0,
    last_error pg_catalog.text,
    next_attempt_at pg_catalog.timestamptz,
    rejected boolean NOT NULL DEFAULT false,
    forced boolean NOT NULL DEFAULT false,
    created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    state_changed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT sequenced_message_pkey PRIMARY KEY (id),
    CONSTRAINT sequenced_message_sequence_instance_id_fkey FOREIGN KEY (sequence_instance_id)
        REFERENCES @extschema@.sequence_instance (id) ON DELETE CASCADE
);
-- A resend finds its record, a failure its message. Not unique: history that is
-- moved in may repeat itself, and only the claim decides who wins.
CREATE INDEX sequenced_message_key ON @extschema@.sequenced_message (message_type, idempotence_id);
-- The release condition ("is a message of this type processed here?") and the
-- foreign key's cascade.
CREATE INDEX sequenced_message_instance
    ON @extschema@.sequenced_message (sequence_instance_id, message_type, state);
-- What is not done in an instance: whether it is complete, what waits for what.
-- Processed messages, the most, are not in it.
CREATE INDEX sequenced_message_unfinished
    ON @extschema@.sequenced_message (sequence_instance_id, state, message_type)
    WHERE state OPERATOR(pg_catalog.=) ANY (ARRAY['WAITING', 'READY', 'FAILED']::pg_catalog.text[]);
-- Position ordering: what stands at one position of one instance.
CREATE INDEX sequenced_message_position
    ON @extschema@.sequenced_message (sequence_instance_id, "position")
    WHERE "position" IS NOT NULL;
-- What inbox_next() hands out: it never scans instances. Plain consumers' retries
-- stand under NULL.
CREATE INDEX sequenced_message_ready
    ON @extschema@.sequenced_message (sequence_instance_id, "position", id)
    WHERE state OPERATOR(pg_catalog.=) 'READY';
-- Failed messages by the time they are due again; dead letters stand under NULL.
CREATE INDEX sequenced_message_failed
    ON @extschema@.sequenced_message (next_attempt_at, state_changed_at)
    WHERE state OPERATOR(pg_catalog.=) 'FAILED';
COMMENT ON INDEX @extschema@.sequenced_message_key IS 'finds the record of one message';
COMMENT ON INDEX @extschema@.sequenced_message_instance IS 'answers release conditions';
COMMENT ON INDEX @extschema@.sequenced_message_unfinished IS 'finds what is not done in an instance';
COMMENT ON INDEX @extschema@.sequenced_message_position IS 'position ordering: finds the message at one position';
COMMENT ON INDEX @extschema@.sequenced_message_ready IS 'what inbox_next() may hand out';
COMMENT ON INDEX @extschema@.sequenced_message_failed IS 'failed messages by the time they are due again, and dead letters';
COMMENT ON SEQUENCE @extschema@.sequenced_message_id_seq IS 'ids of sequenced_message';
COMMENT ON TABLE @extschema@.sequenced_message IS 'Messages that were processed, wait or failed: one row a message';
COMMENT ON COLUMN @extschema@.sequenced_message.id IS 'the message_id that inbox_receive() and inbox_next() return';
COMMENT ON COLUMN @extschema@.sequenced_message.message_type IS 'qualified name of the message type; for a plain consumer''s failure the consumer';
COMMENT ON COLUMN @extschema@.sequenced_message.idempotence_id IS 'the producer''s stable event id';
COMMENT ON COLUMN @extschema@.sequenced_message.sequence_instance_id IS 'its sequence instance; NULL for a plain consumer''s failure';
COMMENT ON COLUMN @extschema@.sequenced_message."position" IS 'position ordering: its place in the instance, from 1';
COMMENT ON COLUMN @extschema@.sequenced_message.state IS 'WAITING, READY, PROCESSED, FAILED or SKIPPED';
COMMENT ON COLUMN @extschema@.sequenced_message.attempts IS 'how often handling it failed';
COMMENT ON COLUMN @extschema@.sequenced_message.last_error IS 'the newest failure, or why it was rejected';
COMMENT ON COLUMN @extschema@.sequenced_message.next_attempt_at IS 'FAILED: when it is due again by itself; NULL: never (a dead letter)';
COMMENT ON COLUMN @extschema@.sequenced_message.rejected IS 'FAILED without having been handled: late, or its position was taken';
COMMENT ON COLUMN @extschema@.sequenced_message.forced IS 'READY by an operator''s word, whatever the release condition says';
COMMENT ON COLUMN @extschema@.sequenced_message.created_at IS 'when the message was first recorded';
COMMENT ON COLUMN @extschema@.sequenced_message.state_changed_at IS 'when it got its present state';

CREATE TABLE @extschema@.buffered_message (
    message_id bigint NOT NULL,
    payload pg_catalog.bytea,
    message_key pg_catalog.bytea,
    headers pg_catalog.jsonb,
    buffered_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT buffered_message_pkey PRIMARY KEY (message_id),
    CONSTRAINT buffered_message_message_id_fkey FOREIGN KEY (message_id)
        REFERENCES @extschema@.sequenced_message (id) ON DELETE CASCADE
);
COMMENT ON TABLE @extschema@.buffered_message IS 'Payloads of messages that are not done; deleted when the message is processed';
COMMENT ON COLUMN @extschema@.buffered_message.message_id IS 'the message';
COMMENT ON COLUMN @extschema@.buffered_message.payload IS 'its payload, byte for byte';
COMMENT ON COLUMN @extschema@.buffered_message.message_key IS 'its key, byte for byte';
COMMENT ON COLUMN @extschema@.buffered_message.headers IS 'its headers';
COMMENT ON COLUMN @extschema@.buffered_message.buffered_at IS 'when the payload was stored';

-- Without ROWS, as inbox_next(): whoever joins messages to it wants it called for what the join
-- lets through. With one row to expect, Postgres would call it first and join afterwards.
CREATE FUNCTION @extschema@.inbox_receive(
    message_type pg_catalog.text,
    idempotence_id pg_catalog.text,
    context_id pg_catalog.text,
    payload pg_catalog.bytea DEFAULT NULL,
    message_key pg_catalog.bytea DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    "position" bigint DEFAULT NULL,
    wait boolean DEFAULT true
) RETURNS TABLE (
    decision pg_catalog.text,
    reason pg_catalog.text,
    sequence_instance_id bigint,
    message_id bigint
)
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_receive_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_receive(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.bytea, pg_catalog.bytea, pg_catalog.jsonb, bigint, boolean) IS
    'receives a message of a declared sequence: process, buffered, duplicate, direct, rejected or in_flight';
REVOKE ALL ON FUNCTION @extschema@.inbox_receive(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.bytea, pg_catalog.bytea, pg_catalog.jsonb, bigint, boolean) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_next(instance bigint DEFAULT NULL) RETURNS TABLE (
    message_id bigint,
    sequence_instance_id bigint,
    sequence_name pg_catalog.text,
    context_id pg_catalog.text,
    message_type pg_catalog.text,
    idempotence_id pg_catalog.text,
    "position" bigint,
    attempts integer,
    payload pg_catalog.bytea,
    message_key pg_catalog.bytea,
    headers pg_catalog.jsonb,
    buffered_at pg_catalog.timestamptz
)
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_next_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_next(bigint) IS
    'hands out the next message that may be handled now, of this instance or of any, recorded as PROCESSED in this transaction';
REVOKE ALL ON FUNCTION @extschema@.inbox_next(bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_fail(
    message_type pg_catalog.text,
    idempotence_id pg_catalog.text,
    sequence_instance_id bigint DEFAULT NULL,
    error pg_catalog.text DEFAULT NULL,
    retry_after interval DEFAULT NULL,
    payload pg_catalog.bytea DEFAULT NULL,
    message_key pg_catalog.bytea DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL
) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_fail_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_fail(pg_catalog.text, pg_catalog.text, bigint, pg_catalog.text, interval, pg_catalog.bytea, pg_catalog.bytea, pg_catalog.jsonb) IS
    'records a message as FAILED and deletes its claim, so that a resend can win; false: it is done already';
REVOKE ALL ON FUNCTION @extschema@.inbox_fail(pg_catalog.text, pg_catalog.text, bigint, pg_catalog.text, interval, pg_catalog.bytea, pg_catalog.bytea, pg_catalog.jsonb) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_fail_message(
    message_id bigint,
    error pg_catalog.text DEFAULT NULL,
    retry_after interval DEFAULT NULL
) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_fail_message_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_fail_message(bigint, pg_catalog.text, interval) IS
    'the same as inbox_fail() by the id that inbox_receive() or inbox_next() returned';
REVOKE ALL ON FUNCTION @extschema@.inbox_fail_message(bigint, pg_catalog.text, interval) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_lookup(id1 pg_catalog.text, id2 pg_catalog.text) RETURNS TABLE (
    kind pg_catalog.text,
    claimed_at pg_catalog.timestamptz,
    attributes pg_catalog.jsonb,
    sequence_instance_id bigint,
    message_id bigint,
    state pg_catalog.text,
    attempts integer,
    last_error pg_catalog.text
)
    LANGUAGE c STABLE PARALLEL UNSAFE ROWS 2
    AS 'MODULE_PATHNAME', 'inbox_lookup_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_lookup(pg_catalog.text, pg_catalog.text) IS
    'all that the inbox knows of (consumer, message id) or (message type, idempotence id)';
REVOKE ALL ON FUNCTION @extschema@.inbox_lookup(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

/*
 * Declared sequences and their instances (guarantees G6, G7 and the parent of
 * every sequenced claim).
 *
 * Every object and operator is qualified: the script may run in a schema in
 * which others can create objects (G14).
 */

CREATE TABLE @extschema@.sequence_type (
    -- Small and stable: the identity under which consumers and a declaration
    -- exclude each other (an object lock), and the key of each session's cache.
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    retention interval NOT NULL,
    ordering pg_catalog.text COLLATE pg_catalog."C" NOT NULL DEFAULT 'conditions'
        CONSTRAINT sequence_type_ordering_check
        CHECK (ordering OPERATOR(pg_catalog.=) 'conditions' OR ordering OPERATOR(pg_catalog.=) 'position'),
    on_failure pg_catalog.text COLLATE pg_catalog."C" NOT NULL DEFAULT 'block'
        CONSTRAINT sequence_type_on_failure_check
        CHECK (on_failure OPERATOR(pg_catalog.=) 'block' OR on_failure OPERATOR(pg_catalog.=) 'skip'),
    recording_until pg_catalog.timestamptz,
    expiry_grace interval NOT NULL DEFAULT '0',
    -- Changes with every declaration; what a session has cached is valid while
    -- the version it read is the stored one.
    version bigint NOT NULL,
    declared_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT sequence_type_pkey PRIMARY KEY (name),
    CONSTRAINT sequence_type_id_key UNIQUE (id)
);
COMMENT ON SEQUENCE @extschema@.sequence_type_id_seq IS 'ids of sequence_type';
COMMENT ON TABLE @extschema@.sequence_type IS 'Declared sequences: one row a sequence, written by inbox_declare_sequence()';
COMMENT ON COLUMN @extschema@.sequence_type.id IS 'internal identity of the declaration';
COMMENT ON COLUMN @extschema@.sequence_type.name IS 'name of the sequence';
COMMENT ON COLUMN @extschema@.sequence_type.retention IS 'how long an instance, and with it its claims, is kept';
COMMENT ON COLUMN @extschema@.sequence_type.ordering IS 'conditions (release conditions) or position (1, 2, 3 ... without gaps)';
COMMENT ON COLUMN @extschema@.sequence_type.on_failure IS 'block: a failed message holds back what depends on it; skip: it counts as passed';
COMMENT ON COLUMN @extschema@.sequence_type.recording_until IS 'until then messages are handled at once and only recorded';
COMMENT ON COLUMN @extschema@.sequence_type.expiry_grace IS 'how long after its retain_until an open instance may still go on before it expires';
COMMENT ON COLUMN @extschema@.sequence_type.version IS 'changes with every declaration';
COMMENT ON COLUMN @extschema@.sequence_type.declared_at IS 'when the declaration was last changed';

CREATE TABLE @extschema@.sequence_message_type (
    message_type pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    sequence_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    ordinal integer NOT NULL,
    release_condition pg_catalog.jsonb,
    predecessors pg_catalog.text[] COLLATE pg_catalog."C" NOT NULL DEFAULT '{}',
    optional boolean NOT NULL DEFAULT false,
    final boolean NOT NULL DEFAULT false,
    -- The key is the type alone: a message type belongs to at most one sequence.
    CONSTRAINT sequence_message_type_pkey PRIMARY KEY (message_type),
    CONSTRAINT sequence_message_type_sequence_name_fkey FOREIGN KEY (sequence_name)
        REFERENCES @extschema@.sequence_type (name) ON DELETE CASCADE
);
-- Reading one sequence's declaration, and the foreign key's cascade.
CREATE INDEX sequence_message_type_sequence_name ON @extschema@.sequence_message_type (sequence_name);
COMMENT ON INDEX @extschema@.sequence_message_type_sequence_name IS 'finds the message types of one sequence';
COMMENT ON TABLE @extschema@.sequence_message_type IS 'Message types of the declared sequences: one row a type';
COMMENT ON COLUMN @extschema@.sequence_message_type.message_type IS 'qualified name of the message type';
COMMENT ON COLUMN @extschema@.sequence_message_type.sequence_name IS 'the sequence it belongs to';
COMMENT ON COLUMN @extschema@.sequence_message_type.ordinal IS 'its place in the declaration, from 1';
COMMENT ON COLUMN @extschema@.sequence_message_type.release_condition IS 'what must be processed before it, as declared; NULL: nothing';
COMMENT ON COLUMN @extschema@.sequence_message_type.predecessors IS 'every type that its release condition names';
COMMENT ON COLUMN @extschema@.sequence_message_type.optional IS 'an instance is complete without it';
COMMENT ON COLUMN @extschema@.sequence_message_type.final IS 'position ordering: processing it completes the instance';

CREATE TABLE @extschema@.sequence_instance (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    context_id pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    state pg_catalog.text COLLATE pg_catalog."C" NOT NULL DEFAULT 'OPEN'
        CONSTRAINT sequence_instance_state_check
        CHECK (state OPERATOR(pg_catalog.=) 'OPEN' OR state OPERATOR(pg_catalog.=) 'CLOSED' OR state OPERATOR(pg_catalog.=) 'EXPIRED'),
    created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    closed_at pg_catalog.timestamptz,
    retain_until pg_catalog.timestamptz NOT NULL,
    closed_by_operator boolean NOT NULL DEFAULT false,
    next_position bigint NOT NULL DEFAULT 1,
    -- Raised by every receive and hand-out: the row's lock is the instance's
    -- lock, and the change makes a concurrent REPEATABLE READ transaction fail
    -- with 40001 instead of judging with an old snapshot (G7, G10).
    revision bigint NOT NULL DEFAULT 0,
    CONSTRAINT sequence_instance_pkey PRIMARY KEY (id),
    CONSTRAINT sequence_instance_name_context_id_key UNIQUE (name, context_id)
-- No foreign key to sequence_type: every new instance would lock the one row of
-- its declaration. Creation and inbox_drop_sequence() exclude each other instead.
-- The fill factor leaves room for the revision's updates on the same page (HOT).
) WITH (fillfactor = 80);
-- Housekeeping, sequence by sequence: open instances by the time they expire, ended
-- ones by the time before which none of their claims can be old enough, and by the time
-- they ended (which counts where the retention was changed since).
CREATE INDEX sequence_instance_open ON @extschema@.sequence_instance (name, retain_until)
    WHERE state OPERATOR(pg_catalog.=) 'OPEN';
CREATE INDEX sequence_instance_retained ON @extschema@.sequence_instance (name, retain_until)
    WHERE state OPERATOR(pg_catalog.<>) 'OPEN';
CREATE INDEX sequence_instance_ended ON @extschema@.sequence_instance (name, closed_at)
    WHERE state OPERATOR(pg_catalog.<>) 'OPEN';
-- What expired, few among the many that were closed: for inbox_metrics().
CREATE INDEX sequence_instance_expired ON @extschema@.sequence_instance (name)
    WHERE state OPERATOR(pg_catalog.=) 'EXPIRED';
COMMENT ON INDEX @extschema@.sequence_instance_open IS 'open instances in the order in which they expire';
COMMENT ON INDEX @extschema@.sequence_instance_retained IS 'closed and expired instances by the end of their retention';
COMMENT ON INDEX @extschema@.sequence_instance_ended IS 'closed and expired instances by the time they ended';
COMMENT ON INDEX @extschema@.sequence_instance_expired IS 'counts the expired instances of a sequence';
COMMENT ON SEQUENCE @extschema@.sequence_instance_id_seq IS 'ids of sequence_instance';
COMMENT ON TABLE @extschema@.sequence_instance IS 'Sequence instances: one run of a sequence for one context id; deleting a row deletes its claims and messages';
COMMENT ON COLUMN @extschema@.sequence_instance.id IS 'the sequence_instance_id of claims and messages';
COMMENT ON COLUMN @extschema@.sequence_instance.name IS 'name of the sequence';
COMMENT ON COLUMN @extschema@.sequence_instance.context_id IS 'what groups messages into this instance, an order number say';
COMMENT ON COLUMN @extschema@.sequence_instance.state IS 'OPEN, CLOSED (complete, or closed by an operator) or EXPIRED';
COMMENT ON COLUMN @extschema@.sequence_instance.created_at IS 'when the instance was created';
COMMENT ON COLUMN @extschema@.sequence_instance.closed_at IS 'when it was closed or expired';
COMMENT ON COLUMN @extschema@.sequence_instance.retain_until IS 'an open instance expires after this time plus the sequence''s expiry_grace';
COMMENT ON COLUMN @extschema@.sequence_instance.closed_by_operator IS 'closed with inbox_close(), not by completion';
COMMENT ON COLUMN @extschema@.sequence_instance.next_position IS 'position ordering: the position that is handled next';
COMMENT ON COLUMN @extschema@.sequence_instance.revision IS 'raised by everything that receives or hands out a message of this instance';

CREATE FUNCTION @extschema@.inbox_declare_sequence(
    sequence_name pg_catalog.text,
    retention interval,
    messages pg_catalog.jsonb DEFAULT '[]',
    ordering pg_catalog.text DEFAULT 'conditions',
    on_failure pg_catalog.text DEFAULT 'block',
    recording_until pg_catalog.timestamptz DEFAULT NULL,
    expiry_grace interval DEFAULT '0'
) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_declare_sequence_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_declare_sequence(pg_catalog.text, interval, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, interval) IS
    'declares a sequence, or replaces its declaration and judges what waits by it, all or nothing';
REVOKE ALL ON FUNCTION @extschema@.inbox_declare_sequence(pg_catalog.text, interval, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, interval) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_drop_sequence(sequence_name pg_catalog.text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_drop_sequence_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_drop_sequence(pg_catalog.text) IS
    'drops the declaration of a sequence that has no instances';
REVOKE ALL ON FUNCTION @extschema@.inbox_drop_sequence(pg_catalog.text) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_sequence(sequence_name pg_catalog.text, context_id pg_catalog.text) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_sequence_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_sequence(pg_catalog.text, pg_catalog.text) IS
    'the id of the sequence instance of this context, created if need be';
REVOKE ALL ON FUNCTION @extschema@.inbox_sequence(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

/*
 * Claims of plain consumers: a ring of three equal tables (G1 to G4, G9, G12).
 *
 * One table is current and takes new claims, two are sealed and only read. The
 * oldest sealed one is emptied with TRUNCATE when it becomes current again, so
 * that forgetting costs the same for a thousand rows as for a billion.
 * docs/ring.md has the protocol and its proof.
 */

CREATE TABLE @extschema@.inbox_claim_0 (
    consumer pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    message_id pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    claimed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    attributes pg_catalog.jsonb,
    CONSTRAINT inbox_claim_0_pkey PRIMARY KEY (consumer, message_id)
);
CREATE TABLE @extschema@.inbox_claim_1 (
    consumer pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    message_id pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    claimed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    attributes pg_catalog.jsonb,
    CONSTRAINT inbox_claim_1_pkey PRIMARY KEY (consumer, message_id)
);
CREATE TABLE @extschema@.inbox_claim_2 (
    consumer pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    message_id pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    claimed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    attributes pg_catalog.jsonb,
    CONSTRAINT inbox_claim_2_pkey PRIMARY KEY (consumer, message_id)
);
COMMENT ON TABLE @extschema@.inbox_claim_0 IS 'Claims of plain consumers, ring table 0';
COMMENT ON TABLE @extschema@.inbox_claim_1 IS 'Claims of plain consumers, ring table 1';
COMMENT ON TABLE @extschema@.inbox_claim_2 IS 'Claims of plain consumers, ring table 2';
COMMENT ON COLUMN @extschema@.inbox_claim_0.consumer IS 'stable logical name of the handler';
COMMENT ON COLUMN @extschema@.inbox_claim_0.message_id IS 'the producer''s stable event id';
COMMENT ON COLUMN @extschema@.inbox_claim_0.claimed_at IS 'when the claim was made, by the database''s clock';
COMMENT ON COLUMN @extschema@.inbox_claim_0.attributes IS 'what inbox_annotate() stored with it';
COMMENT ON COLUMN @extschema@.inbox_claim_1.consumer IS 'stable logical name of the handler';
COMMENT ON COLUMN @extschema@.inbox_claim_1.message_id IS 'the producer''s stable event id';
COMMENT ON COLUMN @extschema@.inbox_claim_1.claimed_at IS 'when the claim was made, by the database''s clock';
COMMENT ON COLUMN @extschema@.inbox_claim_1.attributes IS 'what inbox_annotate() stored with it';
COMMENT ON COLUMN @extschema@.inbox_claim_2.consumer IS 'stable logical name of the handler';
COMMENT ON COLUMN @extschema@.inbox_claim_2.message_id IS 'the producer''s stable event id';
COMMENT ON COLUMN @extschema@.inbox_claim_2.claimed_at IS 'when the claim was made, by the database''s clock';
COMMENT ON COLUMN @extschema@.inbox_claim_2.attributes IS 'what inbox_annotate() stored with it';

CREATE TABLE @extschema@.inbox_claim_ring (
    singleton boolean NOT NULL DEFAULT true
        CONSTRAINT inbox_claim_ring_singleton_check CHECK (singleton),
    current_table integer NOT NULL
        CONSTRAINT inbox_claim_ring_current_table_check
        CHECK (current_table OPERATOR(pg_catalog.>=) 0 AND current_table OPERATOR(pg_catalog.<=) 2),
    current_since pg_catalog.timestamptz NOT NULL,
    sealed_at_0 pg_catalog.timestamptz,
    sealed_at_1 pg_catalog.timestamptz,
    sealed_at_2 pg_catalog.timestamptz,
    rotations bigint NOT NULL DEFAULT 0,
    CONSTRAINT inbox_claim_ring_pkey PRIMARY KEY (singleton)
);
COMMENT ON TABLE @extschema@.inbox_claim_ring IS 'Which ring table is current; no row means table 0. Its lock is the gate between claims and rotation';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.singleton IS 'there is at most one row';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.current_table IS 'the ring table that takes new claims: 0, 1 or 2';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.current_since IS 'when it became current';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.sealed_at_0 IS 'when table 0 was last sealed; NULL: never, or it is current';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.sealed_at_1 IS 'when table 1 was last sealed; NULL: never, or it is current';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.sealed_at_2 IS 'when table 2 was last sealed; NULL: never, or it is current';
COMMENT ON COLUMN @extschema@.inbox_claim_ring.rotations IS 'how often the ring has moved on';

CREATE FUNCTION @extschema@.inbox_claim(consumer pg_catalog.text, message_id pg_catalog.text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_claim_plain_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_claim(pg_catalog.text, pg_catalog.text) IS
    'claims a message for a plain consumer in this transaction: true: it owns the message; false: the message is a duplicate';
REVOKE ALL ON FUNCTION @extschema@.inbox_claim(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_claim(consumer pg_catalog.text, message_id pg_catalog.uuid) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_claim_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_claim(pg_catalog.text, pg_catalog.uuid) IS
    'claims a message for a plain consumer by the canonical text of its uuid';
REVOKE ALL ON FUNCTION @extschema@.inbox_claim(pg_catalog.text, pg_catalog.uuid) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_try_claim(consumer pg_catalog.text, message_id pg_catalog.text) RETURNS pg_catalog.text
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_try_claim_plain_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_try_claim(pg_catalog.text, pg_catalog.text) IS
    'claims a message for a plain consumer without waiting: claimed, duplicate or in_flight';
REVOKE ALL ON FUNCTION @extschema@.inbox_try_claim(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_try_claim(consumer pg_catalog.text, message_id pg_catalog.uuid) RETURNS pg_catalog.text
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_try_claim_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_try_claim(pg_catalog.text, pg_catalog.uuid) IS
    'claims a message for a plain consumer by the canonical text of its uuid without waiting';
REVOKE ALL ON FUNCTION @extschema@.inbox_try_claim(pg_catalog.text, pg_catalog.uuid) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_claim_batch(consumer pg_catalog.text, message_ids pg_catalog.text[]) RETURNS boolean[]
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_claim_batch_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_claim_batch(pg_catalog.text, pg_catalog.text[]) IS
    'claims many messages for a plain consumer; answers in their order, a repeat is false';
REVOKE ALL ON FUNCTION @extschema@.inbox_claim_batch(pg_catalog.text, pg_catalog.text[]) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_annotate(
    consumer pg_catalog.text,
    message_id pg_catalog.text,
    attributes pg_catalog.jsonb
) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_annotate_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_annotate(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) IS
    'merges attributes into the claim of a plain consumer; false: there is no such claim';
REVOKE ALL ON FUNCTION @extschema@.inbox_annotate(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_release(consumer pg_catalog.text, message_id pg_catalog.text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_release_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_release(pg_catalog.text, pg_catalog.text) IS
    'deletes the claim of a plain consumer, so that a replay is processed again; false: there is no such claim';
REVOKE ALL ON FUNCTION @extschema@.inbox_release(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

/*
 * Claims of sequenced messages (G1 to G5, G12).
 *
 * The claim is the row: committed it is the proof that the message was taken,
 * uncommitted it is the lock on which a concurrent duplicate waits. The primary
 * key is the whole mechanism; there is no lease and nothing to clean up.
 *
 * The table has the shape that hand-written inbox tables commonly have, so that
 * one INSERT ... SELECT moves an existing one over.
 */

CREATE TABLE @extschema@.sequential_inbox_idempotence (
    message_type pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    idempotence_id pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    sequence_instance_id bigint NOT NULL,
    created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT sequential_inbox_idempotence_pkey PRIMARY KEY (message_type, idempotence_id),
    -- A claim lives as long as its instance.
    CONSTRAINT sequential_inbox_idempotence_sequence_instance_id_fkey FOREIGN KEY (sequence_instance_id)
        REFERENCES @extschema@.sequence_instance (id) ON DELETE CASCADE
);
-- The foreign key's cascade, and housekeeping's look at an instance's newest claim.
CREATE INDEX sequential_inbox_idempotence_sequence_instance_id
    ON @extschema@.sequential_inbox_idempotence (sequence_instance_id);
COMMENT ON INDEX @extschema@.sequential_inbox_idempotence_sequence_instance_id IS 'finds the claims of one sequence instance';
COMMENT ON TABLE @extschema@.sequential_inbox_idempotence IS 'Claims of sequenced messages: one row a message that was taken';
COMMENT ON COLUMN @extschema@.sequential_inbox_idempotence.message_type IS 'qualified name of the message type';
COMMENT ON COLUMN @extschema@.sequential_inbox_idempotence.idempotence_id IS 'the producer''s stable event id';
COMMENT ON COLUMN @extschema@.sequential_inbox_idempotence.sequence_instance_id IS 'the sequence instance that the claim belongs to and lives as long as';
COMMENT ON COLUMN @extschema@.sequential_inbox_idempotence.created_at IS 'when the claim was made, by the database''s clock';

CREATE FUNCTION @extschema@.inbox_claim(
    message_type pg_catalog.text,
    idempotence_id pg_catalog.text,
    sequence_instance_id bigint
) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_claim_sequenced_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_claim(pg_catalog.text, pg_catalog.text, bigint) IS
    'claims a sequenced message for this transaction: true: it owns the message; false: the message is a duplicate';
REVOKE ALL ON FUNCTION @extschema@.inbox_claim(pg_catalog.text, pg_catalog.text, bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_try_claim(
    message_type pg_catalog.text,
    idempotence_id pg_catalog.text,
    sequence_instance_id bigint
) RETURNS pg_catalog.text
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_try_claim_sequenced_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_try_claim(pg_catalog.text, pg_catalog.text, bigint) IS
    'claims a sequenced message without waiting: claimed, duplicate or in_flight';
REVOKE ALL ON FUNCTION @extschema@.inbox_try_claim(pg_catalog.text, pg_catalog.text, bigint) FROM PUBLIC;

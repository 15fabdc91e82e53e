/*
 * Views that answer an operator's question in one look (G8).
 */

CREATE VIEW @extschema@.inbox_claims AS
    SELECT 'sequence'::pg_catalog.text AS kind, c.message_type AS id1, c.idempotence_id AS id2,
           c.created_at AS claimed_at, NULL::pg_catalog.jsonb AS attributes, c.sequence_instance_id
    FROM @extschema@.sequential_inbox_idempotence c
    UNION ALL
    SELECT 'consumer', c.consumer, c.message_id, c.claimed_at, c.attributes, NULL
    FROM @extschema@.inbox_claim_0 c
    UNION ALL
    SELECT 'consumer', c.consumer, c.message_id, c.claimed_at, c.attributes, NULL
    FROM @extschema@.inbox_claim_1 c
    UNION ALL
    SELECT 'consumer', c.consumer, c.message_id, c.claimed_at, c.attributes, NULL
    FROM @extschema@.inbox_claim_2 c;
COMMENT ON VIEW @extschema@.inbox_claims IS 'Every claim of both kinds';
COMMENT ON COLUMN @extschema@.inbox_claims.kind IS 'consumer or sequence';
COMMENT ON COLUMN @extschema@.inbox_claims.id1 IS 'the consumer, or the message type';
COMMENT ON COLUMN @extschema@.inbox_claims.id2 IS 'the message id, or the idempotence id';
COMMENT ON COLUMN @extschema@.inbox_claims.claimed_at IS 'when the claim was made';
COMMENT ON COLUMN @extschema@.inbox_claims.attributes IS 'what inbox_annotate() stored with it';
COMMENT ON COLUMN @extschema@.inbox_claims.sequence_instance_id IS 'the sequence instance of a sequenced claim';

-- A failed message that was claimed again since is resolved: whoever claimed it
-- without inbox_receive() left its record as it was.
CREATE VIEW @extschema@.inbox_dead_letters AS
    SELECT m.id, m.message_type, m.idempotence_id, m.sequence_instance_id, m."position", m.state,
           m.attempts, m.last_error, m.next_attempt_at, m.created_at, m.state_changed_at,
           m.rejected, i.name AS sequence_name, i.context_id,
           pg_catalog.octet_length(b.payload) AS payload_size
    FROM @extschema@.sequenced_message m
    LEFT JOIN @extschema@.sequence_instance i ON i.id OPERATOR(pg_catalog.=) m.sequence_instance_id
    LEFT JOIN @extschema@.buffered_message b ON b.message_id OPERATOR(pg_catalog.=) m.id
    WHERE m.state OPERATOR(pg_catalog.=) 'FAILED' AND m.next_attempt_at IS NULL
      AND CASE WHEN m.sequence_instance_id IS NOT NULL THEN
            NOT EXISTS (SELECT FROM @extschema@.sequential_inbox_idempotence c
                WHERE c.message_type OPERATOR(pg_catalog.=) m.message_type
                  AND c.idempotence_id OPERATOR(pg_catalog.=) m.idempotence_id)
          ELSE
            NOT EXISTS (SELECT FROM @extschema@.inbox_claim_0 c
                WHERE c.consumer OPERATOR(pg_catalog.=) m.message_type
                  AND c.message_id OPERATOR(pg_catalog.=) m.idempotence_id)
            AND NOT EXISTS (SELECT FROM @extschema@.inbox_claim_1 c
                WHERE c.consumer OPERATOR(pg_catalog.=) m.message_type
                  AND c.message_id OPERATOR(pg_catalog.=) m.idempotence_id)
            AND NOT EXISTS (SELECT FROM @extschema@.inbox_claim_2 c
                WHERE c.consumer OPERATOR(pg_catalog.=) m.message_type
                  AND c.message_id OPERATOR(pg_catalog.=) m.idempotence_id)
          END;
COMMENT ON VIEW @extschema@.inbox_dead_letters IS 'Failed messages that nothing will retry by itself';
COMMENT ON COLUMN @extschema@.inbox_dead_letters.sequence_name IS 'the sequence; NULL for a plain consumer''s message';
COMMENT ON COLUMN @extschema@.inbox_dead_letters.context_id IS 'the context of its sequence instance';
COMMENT ON COLUMN @extschema@.inbox_dead_letters.payload_size IS 'bytes of the stored payload; NULL: none is stored';

CREATE VIEW @extschema@.inbox_sequences AS
    SELECT i.id, i.name AS sequence_name, i.context_id, i.state, i.created_at, i.retain_until,
           COALESCE(n.waiting, 0) AS waiting, COALESCE(n.ready, 0) AS ready,
           COALESCE(n.failed, 0) AS failed, COALESCE(n.processed, 0) AS processed,
           CASE WHEN t.ordering OPERATOR(pg_catalog.=) 'position' THEN i.next_position END AS next_position,
           CASE WHEN n.waiting OPERATOR(pg_catalog.>) 0 THEN
               CASE WHEN t.ordering OPERATOR(pg_catalog.=) 'position'
                    THEN pg_catalog.concat('position ', i.next_position)
                    ELSE missing.types END
           END AS blocked_on,
           n.oldest_waiting_at,
           i.state OPERATOR(pg_catalog.=) 'OPEN'
               AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>)
                   (i.created_at OPERATOR(pg_catalog.+)
                       ((i.retain_until OPERATOR(pg_catalog.-) i.created_at) OPERATOR(pg_catalog.*) 0.75::double precision))
               AS expiring_soon
    FROM @extschema@.sequence_instance i
    JOIN @extschema@.sequence_type t ON t.name OPERATOR(pg_catalog.=) i.name
    LEFT JOIN LATERAL (
        SELECT pg_catalog.count(*) FILTER (WHERE m.state OPERATOR(pg_catalog.=) 'WAITING') AS waiting,
               pg_catalog.count(*) FILTER (WHERE m.state OPERATOR(pg_catalog.=) 'READY') AS ready,
               -- Without those that were claimed again since, see inbox_dead_letters.
               pg_catalog.count(*) FILTER (WHERE m.state OPERATOR(pg_catalog.=) 'FAILED'
                   AND NOT EXISTS (SELECT FROM @extschema@.sequential_inbox_idempotence c
                       WHERE c.message_type OPERATOR(pg_catalog.=) m.message_type
                         AND c.idempotence_id OPERATOR(pg_catalog.=) m.idempotence_id)) AS failed,
               pg_catalog.count(*) FILTER (WHERE m.state OPERATOR(pg_catalog.=) 'PROCESSED') AS processed,
               pg_catalog.min(m.state_changed_at) FILTER (WHERE m.state OPERATOR(pg_catalog.=) 'WAITING') AS oldest_waiting_at
        FROM @extschema@.sequenced_message m
        WHERE m.sequence_instance_id OPERATOR(pg_catalog.=) i.id
    ) n ON true
    LEFT JOIN LATERAL (
        -- The predecessors of what waits that are not processed here.
        SELECT pg_catalog.string_agg(p.name, ', ' ORDER BY p.name) AS types
        FROM (SELECT DISTINCT u.name
              FROM @extschema@.sequence_message_type mt
              CROSS JOIN LATERAL pg_catalog.unnest(mt.predecessors) AS u (name)
              WHERE mt.sequence_name OPERATOR(pg_catalog.=) i.name
                AND EXISTS (SELECT FROM @extschema@.sequenced_message w
                    WHERE w.sequence_instance_id OPERATOR(pg_catalog.=) i.id
                      AND w.state OPERATOR(pg_catalog.=) 'WAITING'
                      AND w.message_type OPERATOR(pg_catalog.=) mt.message_type)
                AND NOT EXISTS (SELECT FROM @extschema@.sequenced_message d
                    WHERE d.sequence_instance_id OPERATOR(pg_catalog.=) i.id
                      AND d.message_type OPERATOR(pg_catalog.=) u.name
                      AND (d.state OPERATOR(pg_catalog.=) ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])
                           OR (t.on_failure OPERATOR(pg_catalog.=) 'skip' AND d.state OPERATOR(pg_catalog.=) 'FAILED'
                               AND d.next_attempt_at IS NULL AND NOT d.rejected)))) p
    ) missing ON n.waiting OPERATOR(pg_catalog.>) 0;
COMMENT ON VIEW @extschema@.inbox_sequences IS 'Sequence instances: how far each is and what it is blocked on';
COMMENT ON COLUMN @extschema@.inbox_sequences.waiting IS 'messages whose release condition does not hold yet';
COMMENT ON COLUMN @extschema@.inbox_sequences.ready IS 'messages that inbox_next() may hand out';
COMMENT ON COLUMN @extschema@.inbox_sequences.failed IS 'failed messages, dead letters and those that are due again';
COMMENT ON COLUMN @extschema@.inbox_sequences.processed IS 'processed messages';
COMMENT ON COLUMN @extschema@.inbox_sequences.next_position IS 'position ordering: the position that is handled next';
COMMENT ON COLUMN @extschema@.inbox_sequences.blocked_on IS 'what is missing for the messages that wait';
COMMENT ON COLUMN @extschema@.inbox_sequences.oldest_waiting_at IS 'since when the oldest of them waits';
COMMENT ON COLUMN @extschema@.inbox_sequences.expiring_soon IS 'open and past 75 % of its retention';

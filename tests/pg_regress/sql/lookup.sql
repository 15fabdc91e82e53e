-- inbox_lookup, and the views that show claims and dead letters (G8, G12): whatever has happened to
-- a message, its proof is found under (consumer, message id) or (message type, idempotence id).
SELECT inbox_declare_sequence('lookup', '1 day', '[{"type": "lookup.first"},
    {"type": "lookup.second", "releaseCondition": {"predecessor": "lookup.first"}}]');
CREATE FUNCTION known(id1 text, id2 text) RETURNS TABLE (kind text, claimed boolean, attributes jsonb, context text,
    recorded boolean, state text, attempts int, last_error text) LANGUAGE sql AS $$
    SELECT l.kind, l.claimed_at IS NOT NULL, l.attributes,
           (SELECT context_id FROM sequence_instance WHERE id = l.sequence_instance_id),
           l.message_id IS NOT NULL, l.state, l.attempts, l.last_error
    FROM inbox_lookup(id1, id2) l ORDER BY l.kind COLLATE "C"
$$;

-- Nothing known: no row, not a row of NULLs.
SELECT * FROM known('lookup', 'evt-1');

-- A plain claim; annotated; failed; taken again.
SELECT inbox_claim('lookup', 'evt-1');
SELECT * FROM known('lookup', 'evt-1');
SELECT inbox_annotate('lookup', 'evt-1', '{"source": "orders"}');
SELECT * FROM known('lookup', 'evt-1');
SELECT inbox_fail('lookup', 'evt-1', error => 'no route');
SELECT * FROM known('lookup', 'evt-1');
SELECT inbox_claim('lookup', 'evt-1');
SELECT * FROM known('lookup', 'evt-1');
SELECT inbox_release('lookup', 'evt-1');
SELECT * FROM known('lookup', 'evt-1');

-- A claim is found in every table of the ring.
INSERT INTO inbox_claim_1 (consumer, message_id) VALUES ('lookup', 'sealed once');
INSERT INTO inbox_claim_2 (consumer, message_id, attributes) VALUES ('lookup', 'sealed twice', '{"age": 2}');
SELECT * FROM known('lookup', 'sealed once');
SELECT * FROM known('lookup', 'sealed twice');
SELECT inbox_claim('lookup', 'sealed once'), inbox_try_claim('lookup', 'sealed twice'), inbox_claim_batch('lookup', '{sealed twice,new,sealed once}');
SELECT inbox_annotate('lookup', 'sealed once', '{"age": 1}'), inbox_annotate('lookup', 'sealed twice', '{"by": "lookup"}');
SELECT attributes FROM inbox_claims WHERE id1 = 'lookup' AND id2 LIKE 'sealed%' ORDER BY id2;
SELECT inbox_release('lookup', 'sealed once'), inbox_release('lookup', 'sealed twice'), inbox_release('lookup', 'sealed once') AS again;
SELECT * FROM known('lookup', 'sealed once');

-- A sequenced claim: alone, recorded by inbox_receive, waiting, failed.
SELECT inbox_claim('lookup.first', 'evt-1', inbox_sequence('lookup', 'a'));
SELECT * FROM known('lookup.first', 'evt-1');
SELECT decision FROM inbox_receive('lookup.second', 'evt-2', 'b', '\x02');
SELECT * FROM known('lookup.second', 'evt-2');
SELECT decision FROM inbox_receive('lookup.first', 'evt-3', 'b');
SELECT * FROM known('lookup.first', 'evt-3');
SELECT * FROM known('lookup.second', 'evt-2');
SELECT idempotence_id FROM inbox_next(inbox_sequence('lookup', 'b'));
SELECT * FROM known('lookup.second', 'evt-2');
SELECT inbox_fail('lookup.first', 'evt-4', inbox_sequence('lookup', 'c'), 'broken');
SELECT * FROM known('lookup.first', 'evt-4');

-- One id in both spaces: two rows.
SELECT inbox_claim('lookup.first', 'evt-3');
SELECT * FROM known('lookup.first', 'evt-3');

-- The message id is the one that inbox_receive returned.
SELECT message_id FROM inbox_receive('lookup.first', 'evt-5', 'd') \gset
SELECT message_id = :message_id AS the_same FROM inbox_lookup('lookup.first', 'evt-5');

-- An uncommitted claim is seen by its own transaction, and not after its rollback.
BEGIN;
SELECT inbox_claim('lookup', 'evt-6');
SELECT * FROM known('lookup', 'evt-6');
ROLLBACK;
SELECT * FROM known('lookup', 'evt-6');

-- The views.
SELECT kind, id1, id2, attributes, sequence_instance_id IS NOT NULL AS sequenced FROM inbox_claims
    WHERE id1 LIKE 'lookup%' ORDER BY kind COLLATE "C", id1, id2;
SELECT message_type, idempotence_id, state, attempts, last_error, next_attempt_at, sequence_name, context_id, payload_size
    FROM inbox_dead_letters WHERE message_type LIKE 'lookup%' ORDER BY id;
-- Neither what is due again by itself nor what was taken since is a dead letter.
SELECT inbox_fail('lookup.first', 'evt-7', inbox_sequence('lookup', 'c'), 'soon', '1 hour', '\x0708');
SELECT inbox_fail('lookup.first', 'evt-8', inbox_sequence('lookup', 'c'), 'broken', payload => '\x0102');
SELECT inbox_claim('lookup.first', 'evt-4', inbox_sequence('lookup', 'c'));
SELECT message_type, idempotence_id, attempts, last_error, next_attempt_at, context_id, payload_size
    FROM inbox_dead_letters WHERE message_type LIKE 'lookup%' ORDER BY id;

DROP FUNCTION known;

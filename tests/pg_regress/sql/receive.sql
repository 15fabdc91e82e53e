-- inbox_receive and inbox_next by release conditions (G1, G6, G7, G8), one session: what is decided
-- and why, what is stored, what is handed out. Concurrency is in tests/isolation.
SELECT inbox_declare_sequence('receive', '1 day', '[
    {"type": "receive.created"},
    {"type": "receive.paid", "releaseCondition": {"predecessor": "receive.created"}},
    {"type": "receive.packed", "optional": true, "releaseCondition": {"predecessor": "receive.created"}},
    {"type": "receive.shipped", "releaseCondition": {"and": [{"predecessor": "receive.paid"},
        {"or": [{"predecessor": "receive.packed"}, {"predecessor": "receive.paid"}]}]}}]');
CREATE TEMP VIEW stored AS
    SELECT i.context_id AS context, m.message_type AS type, m.idempotence_id AS id, m.state,
           EXISTS (SELECT FROM inbox_claims c WHERE (c.id1, c.id2) = (m.message_type, m.idempotence_id)) AS claimed,
           convert_from(b.payload, 'UTF8') AS payload, b.message_key AS key, b.headers
    FROM sequenced_message m JOIN sequence_instance i ON i.id = m.sequence_instance_id
    LEFT JOIN buffered_message b ON b.message_id = m.id
    WHERE i.name = 'receive' ORDER BY m.id;

-- Backwards: everything waits.
SELECT decision, reason FROM inbox_receive('receive.shipped', '1', 'order-1', 'shipped', '\x0001', '{"trace": "t"}');
SELECT decision, reason FROM inbox_receive('receive.paid', '1', 'order-1', 'paid');
SELECT decision, reason FROM inbox_receive('receive.paid', '2', 'order-1');
SELECT sequence_instance_id AS instance FROM inbox_receive('receive.paid', '1', 'order-1') \gset
SELECT count(*) FROM inbox_next(:instance);
TABLE stored;

-- A duplicate of what waits.
SELECT decision, reason, sequence_instance_id = :instance AS same_instance FROM inbox_receive('receive.paid', '1', 'order-1', 'another');

-- The first: it is handled at once, nothing of it is buffered, and what it releases is READY.
SELECT decision, reason, sequence_instance_id = :instance AS same_instance FROM inbox_receive('receive.created', '1', 'order-1', 'created');
TABLE stored;

-- A handler that rolls back gets it again.
BEGIN;
SELECT message_type, idempotence_id, convert_from(payload, 'UTF8') AS payload FROM inbox_next(:instance);
ROLLBACK;
-- One transaction a message, until nothing is left.
SELECT sequence_name, context_id, message_type, idempotence_id, "position", attempts, convert_from(payload, 'UTF8') AS payload,
       message_key, headers, buffered_at IS NOT NULL AS buffered FROM inbox_next(:instance);
SELECT message_type, idempotence_id, payload FROM inbox_next(:instance);
SELECT message_type, idempotence_id, convert_from(payload, 'UTF8') AS payload, message_key, headers FROM inbox_next(:instance);
SELECT message_type, idempotence_id FROM inbox_next(:instance);
TABLE stored;
SELECT state, closed_at IS NOT NULL AS closed FROM sequence_instance WHERE id = :instance;

-- A duplicate of what was processed; a further message of the closed, complete instance.
SELECT decision, reason FROM inbox_receive('receive.shipped', '1', 'order-1');
SELECT decision, reason FROM inbox_receive('receive.packed', '1', 'order-1');
SELECT state FROM sequence_instance WHERE id = :instance;

-- No context: direct, and nothing is stored.
SELECT * FROM inbox_receive('receive.shipped', '3', NULL);
SELECT * FROM inbox_lookup('receive.shipped', '3');

-- All of it in one transaction, or nothing.
BEGIN;
SELECT decision FROM inbox_receive('receive.paid', '3', 'order-2');
SELECT decision, sequence_instance_id AS other FROM inbox_receive('receive.created', '3', 'order-2') \gset
\echo :decision
SELECT message_type, idempotence_id FROM inbox_next(:other);
ROLLBACK;
SELECT * FROM inbox_lookup('receive.paid', '3');
SELECT count(*) FROM sequence_instance WHERE context_id = 'order-2' AND name = 'receive';

-- Not waiting decides the same where nobody is in the way.
SELECT decision, reason FROM inbox_receive('receive.paid', '4', 'order-4', wait => false);
SELECT decision, reason FROM inbox_receive('receive.created', '4', 'order-4', wait => false);
SELECT decision, reason FROM inbox_receive('receive.created', '4', 'order-4', wait => false);

-- While recording, everything is handled at once; afterwards it counts.
SELECT inbox_declare_sequence('receive', '1 day', '[{"type": "receive.created"},
    {"type": "receive.paid", "releaseCondition": {"predecessor": "receive.created"}}]', recording_until => 'infinity');
SELECT decision FROM inbox_receive('receive.paid', '5', 'order-5');
SELECT inbox_declare_sequence('receive', '1 day', '[{"type": "receive.paid"},
    {"type": "receive.created", "releaseCondition": {"predecessor": "receive.paid"}}]');
SELECT decision FROM inbox_receive('receive.created', '5', 'order-5');
SELECT decision, reason FROM inbox_receive('receive.created', '6', 'order-6');

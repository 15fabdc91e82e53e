-- Failures of sequenced messages (G5, G8): what fails is kept with its payload, counts its attempts,
-- comes back by itself or by a resend, and holds back what depends on it.
SELECT inbox_declare_sequence('failures', '1 day', '[{"type": "failures.a"},
    {"type": "failures.b", "releaseCondition": {"predecessor": "failures.a"}},
    {"type": "failures.c", "releaseCondition": {"predecessor": "failures.b"}}]');
CREATE TEMP VIEW stored AS
    SELECT m.message_type AS type, m.state, m.attempts, m.last_error, m.next_attempt_at IS NOT NULL AS scheduled,
           EXISTS (SELECT FROM inbox_claims c WHERE (c.id1, c.id2) = (m.message_type, m.idempotence_id)) AS claimed,
           convert_from(b.payload, 'UTF8') AS payload
    FROM sequenced_message m JOIN sequence_instance i ON i.id = m.sequence_instance_id
    LEFT JOIN buffered_message b ON b.message_id = m.id
    WHERE i.name = 'failures' ORDER BY m.id;
CREATE TEMP VIEW dead AS
    SELECT message_type, idempotence_id, state, attempts, last_error, sequence_name, context_id, payload_size
    FROM inbox_dead_letters WHERE sequence_name = 'failures' OR message_type = 'failures consumer' ORDER BY id;

-- An immediate message: its record went with the rollback.
SELECT inbox_sequence('failures', 'one') AS instance \gset
BEGIN;
SELECT decision FROM inbox_receive('failures.a', '1', 'one', 'a');
ROLLBACK;
SELECT inbox_fail('failures.a', '1', :instance, 'out of stock');
TABLE stored;
SELECT decision, reason FROM inbox_receive('failures.b', '1', 'one', 'b');
TABLE dead;
-- Its resend takes the same record.
SELECT decision FROM inbox_receive('failures.a', '1', 'one', 'a');
TABLE stored;
TABLE dead;

-- One from inbox_next(): roll back, then fail it by its id.
BEGIN;
SELECT message_id AS b FROM inbox_next(:instance) \gset
ROLLBACK;
SELECT inbox_fail_message(:b, '503', '1 hour');
TABLE stored;
TABLE dead;
SELECT count(*) FROM inbox_next(:instance);
-- Its time comes.
UPDATE sequenced_message SET next_attempt_at = next_attempt_at - interval '1 hour' WHERE id = :b;
SELECT message_type, attempts, convert_from(payload, 'UTF8') AS payload FROM inbox_next(:instance);
-- What is processed stays processed.
SELECT inbox_fail_message(:b, 'too late'), inbox_fail('failures.b', '1', :instance, 'too late');
TABLE stored;

-- retry_after needs a payload, stored or given; an interval below zero is none.
SELECT * FROM error_of(format('SELECT inbox_fail(''failures.c'', ''1'', %s, ''503'', ''1 hour'')', :instance));
SELECT * FROM error_of(format('SELECT inbox_fail(''failures.c'', ''1'', %s, ''503'', ''-1 hour'', ''c'')', :instance));
SELECT inbox_fail('failures.c', '1', :instance, '503', '1 hour', 'c', '\x01', '{}');
SELECT inbox_fail('failures.c', '1', :instance, '410');
TABLE dead;
SELECT inbox_skip(id) FROM sequenced_message WHERE message_type = 'failures.c';
SELECT inbox_fail('failures.c', '1', :instance, 'too late');
SELECT state FROM sequence_instance WHERE id = :instance;

-- A claim that was made directly has no record, and may be failed.
SELECT inbox_claim('failures.c', 'direct', :instance), inbox_fail('failures.c', 'direct', :instance, 'broken');
TABLE dead;
SELECT inbox_claim('failures.c', 'direct', :instance);
TABLE dead;

-- Another instance than the message's, one that is not there, a message that is not there.
SELECT decision FROM inbox_receive('failures.b', '2', 'two');
SELECT state, hint FROM error_of(format('SELECT inbox_fail(''failures.b'', ''2'', %s)', :instance));
SELECT state, hint FROM error_of('SELECT inbox_fail(''failures.b'', ''2'', -1)');
SELECT inbox_fail_message(-1);

-- A plain consumer's failure stands beside them.
SELECT inbox_fail('failures consumer', '1', error => 'no such customer', payload => 'payload');
TABLE dead;
SELECT inbox_claim('failures consumer', '1');
TABLE dead;

-- With on_failure => 'skip' a type that failed for good counts as passed.
SELECT inbox_declare_sequence('failures skip', '1 day', '[{"type": "failures.first"},
    {"type": "failures.second", "releaseCondition": {"predecessor": "failures.first"}}]', on_failure => 'skip');
SELECT decision, sequence_instance_id AS instance FROM inbox_receive('failures.second', '1', 'one') \gset
SELECT inbox_fail('failures.first', '1', :instance, '503', '1 hour', 'first');
SELECT count(*) FROM inbox_next(:instance);
SELECT inbox_fail('failures.first', '1', :instance, '410');
SELECT message_type FROM inbox_next(:instance);

-- Ordering by position (G6, G7, G8): 1, 2, 3 ... without gaps.
SELECT inbox_declare_sequence('position', '1 day', '[{"type": "position.step"}, {"type": "position.last", "final": true}]', 'position');
CREATE TEMP VIEW stored AS
    SELECT i.context_id AS context, m.idempotence_id AS id, m."position", m.state, m.attempts,
           regexp_replace(m.last_error, 'message \d+', 'message N') AS last_error
    FROM sequenced_message m JOIN sequence_instance i ON i.id = m.sequence_instance_id
    WHERE i.name = 'position' ORDER BY i.id, m."position", m.id;
CREATE TEMP VIEW progress AS
    SELECT context_id, state, waiting, ready, failed, processed, next_position, blocked_on
    FROM inbox_sequences WHERE sequence_name = 'position' ORDER BY id;

-- 3, 1, 2 are handled as 1, 2, 3.
SELECT decision, reason, sequence_instance_id AS instance FROM inbox_receive('position.step', 'three', 'a', "position" => 3) \gset
\echo :decision :reason
SELECT decision, reason FROM inbox_receive('position.step', 'one', 'a', "position" => 1);
SELECT count(*) FROM inbox_next(:instance);
SELECT decision, reason FROM inbox_receive('position.step', 'two', 'a', "position" => 2);
SELECT "position", idempotence_id FROM inbox_next(:instance);
TABLE progress;

-- The same position twice: rejected, with its payload kept, and nothing stalls.
SELECT decision, regexp_replace(reason, 'message \d+', 'message N') AS reason
    FROM inbox_receive('position.step', 'another two', 'a', 'payload', "position" => 2);
SELECT decision FROM inbox_receive('position.step', 'four', 'a', "position" => 4);
SELECT idempotence_id, attempts, regexp_replace(last_error, 'message \d+', 'message N') AS last_error, payload_size
    FROM inbox_dead_letters WHERE sequence_name = 'position';
-- With the position that it should have had, the same message is handled.
SELECT decision FROM inbox_receive('position.step', 'another two', 'a', "position" => 5);

-- A gap, and what comes too late for it.
SELECT decision, reason FROM inbox_receive('position.step', 'eight', 'a', "position" => 8);
SELECT decision, reason FROM inbox_receive('position.step', 'nine', 'a', "position" => 9);
TABLE progress;
SELECT inbox_skip_gap(:instance), inbox_skip_gap(:instance);
SELECT decision, reason FROM inbox_receive('position.step', 'seven', 'a', "position" => 7);
SELECT idempotence_id FROM inbox_next(:instance);
SELECT idempotence_id FROM inbox_next(:instance);
SELECT count(*) FROM inbox_next(:instance);
-- The final message completes the instance.
SELECT decision FROM inbox_receive('position.last', 'ten', 'a', "position" => 10);
TABLE progress;
TABLE stored;

-- A failed position blocks what follows, or, as declared, does not.
SELECT decision, sequence_instance_id AS instance FROM inbox_receive('position.step', 'b two', 'b', "position" => 2) \gset
SELECT decision FROM inbox_receive('position.step', 'b three', 'b', "position" => 3);
SELECT decision FROM inbox_receive('position.step', 'b one', 'b', "position" => 1);
BEGIN;
SELECT message_id AS failing, idempotence_id FROM inbox_next(:instance) \gset
ROLLBACK;
SELECT inbox_fail_message(:failing, 'broken');
SELECT count(*) FROM inbox_next(:instance);
SELECT inbox_skip_gap(:instance);
SELECT inbox_declare_sequence('position', '1 day', '[{"type": "position.step"}, {"type": "position.last", "final": true}]', 'position', 'skip');
SELECT idempotence_id FROM inbox_next(:instance);
SELECT decision FROM inbox_receive('position.step', 'b four', 'b', "position" => 4);
-- It can still be sent again.
SELECT decision FROM inbox_receive('position.step', 'b two', 'b', "position" => 2);
TABLE progress;

-- An immediate message that fails keeps its position.
BEGIN;
SELECT decision FROM inbox_receive('position.step', 'b five', 'b', 'payload', "position" => 5);
ROLLBACK;
SELECT inbox_fail('position.step', 'b five', :instance, 'broken', '0', 'payload');
SELECT decision FROM inbox_receive('position.step', 'b six', 'b', "position" => 6);
SELECT "position", idempotence_id, attempts FROM inbox_next(:instance);
SELECT "position", idempotence_id, attempts FROM inbox_next(:instance);

-- Positions are needed and begin with 1.
SELECT e.* FROM unnest(ARRAY['NULL', '0', '-1']) AS wrong,
    error_of(format('SELECT * FROM inbox_receive(''position.step'', ''wrong'', ''a'', "position" => %s)', wrong)) e;

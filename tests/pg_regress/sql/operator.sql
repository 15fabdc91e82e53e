-- The operator's hand (G6, G8): what each function does, and that it answers false, having changed
-- nothing, where the state no longer allows it.
SELECT inbox_declare_sequence('operator', '1 day', '[{"type": "operator.a"},
    {"type": "operator.b", "releaseCondition": {"predecessor": "operator.a"}},
    {"type": "operator.c", "releaseCondition": {"predecessor": "operator.b"}}]');
CREATE TEMP VIEW stored AS
    SELECT i.context_id AS context, m.message_type AS type, m.state, m.attempts, m.last_error, m.forced,
           EXISTS (SELECT FROM inbox_claims c WHERE (c.id1, c.id2) = (m.message_type, m.idempotence_id)) AS claimed,
           b.message_id IS NOT NULL AS payload
    FROM sequenced_message m JOIN sequence_instance i ON i.id = m.sequence_instance_id
    LEFT JOIN buffered_message b ON b.message_id = m.id
    WHERE i.name = 'operator' ORDER BY m.id;

-- What waits is forced, out of turn.
SELECT message_id AS c, sequence_instance_id AS instance FROM inbox_receive('operator.c', '1', 'one', 'c') \gset
SELECT message_id AS b FROM inbox_receive('operator.b', '1', 'one', 'b') \gset
SELECT inbox_retry(:c) AS retry, inbox_force(:c) AS force, inbox_force(:c) AS again;
TABLE stored;
SELECT message_type FROM inbox_next(:instance);
SELECT inbox_retry(:c) AS retry, inbox_force(:c) AS force, inbox_skip(:c) AS skip;

-- What failed is retried: it waits, for its turn has not come.
SELECT inbox_fail_message(:b, 'by hand'), inbox_retry(:b) AS retry, inbox_retry(:b) AS again;
TABLE stored;
-- What waits is skipped: it counts as processed and is not handled.
SELECT inbox_skip(:b) AS skip, inbox_skip(:b) AS again, inbox_force(:b) AS force, inbox_retry(:b) AS retry;
SELECT decision FROM inbox_receive('operator.b', '1', 'one', 'b');
SELECT decision FROM inbox_receive('operator.a', '1', 'one', 'a');
SELECT count(*) FROM inbox_next(:instance);
TABLE stored;
SELECT state FROM sequence_instance WHERE id = :instance;

-- All at once, whatever its state, but not what is ready already.
SELECT message_id AS c, sequence_instance_id AS instance FROM inbox_receive('operator.c', '2', 'two', 'c') \gset
SELECT decision FROM inbox_receive('operator.b', '2', 'two', 'b');
SELECT inbox_fail_message(:c, 'broken', '1 hour');
SELECT inbox_force_all(:instance) AS force_all, inbox_force_all(:instance) AS again;
SELECT message_type, attempts FROM inbox_next(:instance);
SELECT message_type, attempts FROM inbox_next(:instance);

-- Closing ends what waits; it is a dead letter with its payload, and can be sent again.
SELECT message_id AS b, sequence_instance_id AS instance FROM inbox_receive('operator.b', '3', 'three', 'b') \gset
SELECT decision FROM inbox_receive('operator.c', '3', 'three', 'c');
SELECT inbox_close(:instance) AS close, inbox_close(:instance) AS again;
SELECT state, closed_by_operator FROM sequence_instance WHERE id = :instance;
SELECT message_type, attempts, last_error, payload_size FROM inbox_dead_letters WHERE sequence_instance_id = :instance ORDER BY id;
-- What may go is still handled, what would have to wait is rejected, and a retry opens it again.
SELECT decision, reason FROM inbox_receive('operator.c', '3', 'three');
SELECT decision, reason FROM inbox_receive('operator.a', '3', 'three');
SELECT inbox_retry(:b);
SELECT state, closed_by_operator FROM sequence_instance WHERE id = :instance;
SELECT message_type, convert_from(payload, 'UTF8') AS payload FROM inbox_next(:instance);
SELECT count(*) FROM inbox_next(:instance);

-- Gaps are a matter of positions.
SELECT state, hint FROM error_of(format('SELECT inbox_skip_gap(%s)', :instance));
-- A message that is not there is no error, an instance is.
SELECT inbox_retry(-1), inbox_force(-1), inbox_skip(-1);
SELECT e.state, e.message FROM unnest(ARRAY['inbox_skip_gap', 'inbox_force_all', 'inbox_close']) AS function,
    error_of(format('SELECT %s(-1)', function)) e;

-- A plain consumer's failure.
SELECT inbox_fail('operator consumer', '1', error => 'broken', payload => 'payload');
SELECT id AS plain FROM sequenced_message WHERE message_type = 'operator consumer' \gset
SELECT inbox_retry(:plain) AS retry, inbox_retry(:plain) AS again;
SELECT inbox_skip(:plain) AS skip, inbox_skip(:plain) AS again, inbox_force(:plain) AS force;
SELECT inbox_claim('operator consumer', '1');

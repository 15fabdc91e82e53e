-- The views (G8): how far an instance is and what it is blocked on; what is dead; every claim.
SELECT attname FROM pg_attribute WHERE attrelid = 'inbox_sequences'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname FROM pg_attribute WHERE attrelid = 'inbox_dead_letters'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname FROM pg_attribute WHERE attrelid = 'inbox_claims'::regclass AND attnum > 0 ORDER BY attnum;

SELECT inbox_declare_sequence('views', '4 days', '[{"type": "views.a"}, {"type": "views.b"},
    {"type": "views.c", "releaseCondition": {"and": [{"predecessor": "views.a"}, {"predecessor": "views.b"}]}},
    {"type": "views.d", "releaseCondition": {"predecessor": "views.c"}}]');
CREATE TEMP VIEW progress AS
    SELECT context_id, state, waiting, ready, failed, processed, next_position, blocked_on,
           oldest_waiting_at IS NOT NULL AS waits, justify_hours(date_trunc('hour', retain_until - created_at + interval '1 second')) AS retained, expiring_soon
    FROM inbox_sequences WHERE sequence_name = 'views' ORDER BY id;

SELECT inbox_sequence('views', 'empty') AS empty \gset
SELECT sequence_instance_id AS instance FROM inbox_receive('views.c', '1', 'one') \gset
SELECT decision FROM inbox_receive('views.d', '1', 'one');
TABLE progress;
SELECT decision FROM inbox_receive('views.a', '1', 'one');
TABLE progress;
SELECT decision FROM inbox_receive('views.b', '1', 'one');
TABLE progress;
-- Failed: by itself again, then dead.
BEGIN;
SELECT message_id AS c FROM inbox_next(:instance) \gset
ROLLBACK;
SELECT inbox_fail_message(:c, '503', '1 day');
TABLE progress;
SELECT count(*) FROM inbox_dead_letters WHERE sequence_name = 'views';
SELECT inbox_fail_message(:c, '410');
SELECT message_type, idempotence_id, "position", state, attempts, last_error, next_attempt_at, sequence_name, context_id, payload_size
    FROM inbox_dead_letters WHERE sequence_name = 'views';
SELECT inbox_skip(:c);
SELECT message_type FROM inbox_next(:instance);
TABLE progress;
SELECT count(*) FROM inbox_dead_letters WHERE sequence_name = 'views';

-- The oldest wait is the oldest that still waits; past three quarters of its time an open instance
-- expires soon.
SELECT decision, message_id AS first FROM inbox_receive('views.d', '2', 'two') \gset
SELECT decision, message_id AS second FROM inbox_receive('views.d', '3', 'two') \gset
UPDATE sequenced_message SET state_changed_at = '2020-01-01 00:00+00' WHERE id = :first;
UPDATE sequenced_message SET state_changed_at = '2021-01-01 00:00+00' WHERE id = :second;
SELECT oldest_waiting_at = '2020-01-01 00:00+00' AS first FROM inbox_sequences WHERE context_id = 'two' AND sequence_name = 'views';
SELECT inbox_skip(:first);
SELECT oldest_waiting_at = '2021-01-01 00:00+00' AS second FROM inbox_sequences WHERE context_id = 'two' AND sequence_name = 'views';
UPDATE sequence_instance SET created_at = created_at - interval '2 days 23 hours', retain_until = retain_until - interval '2 days 23 hours' WHERE name = 'views';
SELECT context_id, expiring_soon FROM inbox_sequences WHERE sequence_name = 'views' ORDER BY id;
UPDATE sequence_instance SET created_at = created_at - interval '2 hours', retain_until = retain_until - interval '2 hours' WHERE name = 'views';
SELECT context_id, state, expiring_soon FROM inbox_sequences WHERE sequence_name = 'views' ORDER BY id;

-- Claims of both kinds.
SELECT inbox_claim('views consumer', '1'), inbox_annotate('views consumer', '1', '{"source": "test"}');
SELECT kind, id1, id2, attributes, sequence_instance_id = :instance AS of_instance, claimed_at <= clock_timestamp() AS claimed
    FROM inbox_claims WHERE id1 LIKE 'views%' ORDER BY kind, id1, id2;

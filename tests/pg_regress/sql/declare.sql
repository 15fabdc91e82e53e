-- Declaring a sequence (G6, G7): what is stored, what replaces what, every refusal, dropping.
CREATE TEMP VIEW declared AS
    SELECT message_type, release_condition, predecessors, optional, final
    FROM sequence_message_type WHERE sequence_name = 'declare' ORDER BY ordinal;

SELECT inbox_declare_sequence('declare', '7 days', '[
    {"type": "declare.created"},
    {"type": "declare.paid", "releaseCondition": {"predecessor": "declare.created"}},
    {"type": "declare.packed", "optional": true,
     "releaseCondition": {"and": [{"predecessor": "declare.created"}]}},
    {"type": "declare.shipped", "optional": false, "final": false,
     "releaseCondition": {"and": [{"predecessor": "declare.paid"},
        {"or": [{"predecessor": "declare.packed"}, {"predecessor": "declare.created"}]}]}}]');
TABLE declared;
SELECT name, retention, ordering, on_failure, recording_until, expiry_grace FROM sequence_type WHERE name = 'declare';

-- The same again changes nothing, not even the version.
SELECT version AS before FROM sequence_type WHERE name = 'declare' \gset
SELECT inbox_declare_sequence('declare', '7 days', (SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
        'type', message_type, 'releaseCondition', release_condition, 'optional', optional, 'final', final)))
    FROM declared));
SELECT version = :before AS unchanged FROM sequence_type WHERE name = 'declare';

-- Another one replaces all of it: types that are not named are gone.
SELECT inbox_declare_sequence('declare', '1 day', '[
    {"type": "declare.shipped", "final": true}, {"type": "declare.created", "releaseCondition": {"predecessor": "declare.shipped"}}]',
    'position', 'skip', '2000-01-01 00:00+00', '1 hour');
TABLE declared;
SELECT name, retention, ordering, on_failure, recording_until = '2000-01-01 00:00+00' AS recorded, expiry_grace,
       version > :before AS newer FROM sequence_type WHERE name = 'declare';

-- What an ordering does not use is said.
SELECT inbox_declare_sequence('declare', '1 day', '[{"type": "declare.created", "final": true}]');

-- Every refusal names its culprit, and leaves the declaration as it was.
SELECT inbox_declare_sequence('declare other', '1 day', '[{"type": "declare.taken"}]');
CREATE TEMP TABLE refused (id int GENERATED ALWAYS AS IDENTITY, messages jsonb);
INSERT INTO refused (messages) VALUES
    ('[{"type": "declare.created"}, {"type": "declare.taken"}]'),
    ('[{"type": "twice"}, {"type": "twice"}]'),
    ('[{"type": "a", "releaseCondition": {"predecessor": "nobody"}}]'),
    ('[{"type": "a", "releaseCondition": {"predecessor": "declare.taken"}}]'),
    ('[{"type": "a", "releaseCondition": {"predecessor": "b"}}, {"type": "b", "releaseCondition": {"or": [{"predecessor": "c"}]}}, {"type": "c", "releaseCondition": {"predecessor": "b"}}]'),
    ('[{"type": "a", "releaseCondition": {"predecessor": "a"}}]'),
    ('[{"type": "a", "releaseCondition": {"and": []}}]'),
    ('[{"type": "b"}, {"type": "a", "releaseCondition": {"and": [{"predecessor": "b"}, {"or": []}]}}]'),
    ('[{"type": ""}]'),
    ('[{"type": "a", "retries": 3}]'),
    ('[{"type": "a", "releaseCondition": {"not": {"predecessor": "a"}}}]'),
    ('[{"type": "a", "releaseCondition": "b"}]'),
    ('[{"optional": true}]'),
    ('[{"type": null}]'),
    ('["a"]'),
    ('{}');
SELECT id, e.* FROM refused, error_of(format('SELECT inbox_declare_sequence(''declare'', ''1 day'', %L)', messages)) e ORDER BY id;
SELECT e.* FROM unnest(ARRAY['retention => ''0''', 'retention => ''-1 day''', 'retention => ''1 day'', expiry_grace => ''-1 s''',
        'retention => ''1 day'', ordering => ''time''', 'retention => ''1 day'', on_failure => ''retry''']) AS a (arguments),
    error_of(format('SELECT inbox_declare_sequence(''declare'', %s)', arguments)) e;
TABLE declared;

-- A type with unfinished messages cannot be dropped, nor the ordering changed under them.
SELECT inbox_declare_sequence('declare', '1 day', '[{"type": "declare.a"}, {"type": "declare.b", "releaseCondition": {"predecessor": "declare.a"}}]');
SELECT decision, reason, message_id AS waiting FROM inbox_receive('declare.b', '1', 'context-1') \gset
\echo :decision :reason
SELECT e.state, e.message, e.hint FROM error_of('SELECT inbox_declare_sequence(''declare'', ''1 day'', ''[{"type": "declare.a"}]'')') e;
SELECT e.state, e.message, e.hint FROM error_of('SELECT inbox_declare_sequence(''declare'', ''1 day'',
    ''[{"type": "declare.a"}, {"type": "declare.b"}]'', ''position'')') e;
-- A new declaration judges anew what waits.
SELECT inbox_declare_sequence('declare', '1 day', '[{"type": "declare.a"}, {"type": "declare.b"}]');
SELECT idempotence_id, state FROM sequenced_message WHERE id = :waiting;
SELECT inbox_declare_sequence('declare', '1 day', '[{"type": "declare.a"}, {"type": "declare.b", "releaseCondition": {"predecessor": "declare.a"}}]');
SELECT idempotence_id, state FROM sequenced_message WHERE id = :waiting;
SELECT inbox_skip(:waiting);
SELECT inbox_declare_sequence('declare', '1 day', '[{"type": "declare.a"}]', 'position');

-- All or nothing.
BEGIN;
SELECT inbox_declare_sequence('declare', '9 days');
TABLE declared;
ROLLBACK;
TABLE declared;

-- Dropping.
SELECT state, message, hint FROM error_of('SELECT inbox_drop_sequence(''declare'')');
DELETE FROM sequence_instance WHERE name = 'declare';
SELECT inbox_drop_sequence('declare'), inbox_drop_sequence('declare other');
SELECT count(*) FROM sequence_message_type WHERE message_type LIKE 'declare.%';
SELECT * FROM error_of('SELECT inbox_drop_sequence(''declare'')');

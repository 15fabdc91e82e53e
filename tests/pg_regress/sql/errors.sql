-- G11: bad input is an error with its SQLSTATE, a message that shows the value, and a hint; never
-- NULL and never "duplicate". Every function of the extension is tried, as the catalog lists them.
SELECT inbox_declare_sequence('errors', '1 day', '[{"type": "error.type"}]');
SELECT inbox_sequence('errors', 'context-1') AS instance \gset
-- Sees to it that an instance of this id was there.
SELECT inbox_sequence('errors', 'context-2') AS deleted \gset
DELETE FROM sequence_instance WHERE id = :deleted;
SELECT (SELECT count(*) FROM inbox_claims) AS claims, (SELECT count(*) FROM sequenced_message) AS messages \gset

-- The arguments of every function that it cannot do without: all but those that default to NULL.
CREATE TEMP VIEW argument AS
    SELECT p.oid AS function, n, p.proargnames[n] AS name, format_type(p.proargtypes[n - 1], NULL) AS type,
           -- What is right for it.
           CASE p.proargnames[n]
               WHEN 'access' THEN '''monitor''' WHEN 'attributes' THEN '''{}''' WHEN 'batch_size' THEN '1'
               WHEN 'expiry_grace' THEN '''0''' WHEN 'message_ids' THEN 'ARRAY[''errors'']'
               WHEN 'messages' THEN '''[]''' WHEN 'message_type' THEN '''error.type'''
               WHEN 'on_failure' THEN '''block''' WHEN 'ordering' THEN '''conditions'''
               WHEN 'retention' THEN '''1 day''' WHEN 'role_name' THEN 'current_user'
               WHEN 'sequence_instance_id' THEN current_setting('errors.instance')
               WHEN 'sequence_name' THEN '''errors'''
               ELSE CASE p.proargtypes[n - 1] WHEN 'uuid'::regtype THEN '''a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'''
                        WHEN 'bigint'::regtype THEN '-1' WHEN 'boolean'::regtype THEN 'true' ELSE '''errors''' END
           END AS good
    FROM extension_object o
    JOIN pg_proc p ON p.oid = o.objid AND o.classid = 'pg_proc'::regclass
    CROSS JOIN LATERAL generate_series(1, p.pronargs) n
    WHERE pg_get_function_arg_default(p.oid, n) IS NULL
        OR pg_get_function_arg_default(p.oid, n) NOT LIKE 'NULL::%';
SET errors.instance = :instance;

-- A call of a function with one of its arguments replaced; none: 0.
CREATE FUNCTION call_with(function oid, replaced int, value text) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT %s(%s)', $1::regproc,
                  string_agg(format('%I => %s::%s', name, CASE n WHEN replaced THEN value ELSE good END, type), ', ' ORDER BY n))
    FROM argument WHERE argument.function = $1
$$;
CREATE TEMP VIEW function AS
    SELECT p.oid::regprocedure AS identity, p.proname AS name, p.proisstrict, call_with(p.oid, 0, '') AS good_call
    FROM extension_object o JOIN pg_proc p ON p.oid = o.objid AND o.classid = 'pg_proc'::regclass;

-- First of all: what is replaced below is what is wrong, since this is right. (But this sequence
-- has an instance, and no positions, and nothing is counted without preloading.)
SELECT identity, e.state, e.message FROM function, error_of(good_call) e
    WHERE e.state IS NOT NULL ORDER BY identity::text COLLATE "C";

-- A NULL is 22004, whatever the argument. Two may be NULL: a message without a context is direct,
-- and inbox_next() has a default.
SELECT function::regprocedure, string_agg(name, ', ' ORDER BY n) AS "NULL is refused for"
    FROM argument, error_of(call_with(function, n, 'NULL')) e
    WHERE e.state = '22004' AND e.message = name || ' must not be null' AND e.hint = 'Pass a value for ' || name || '.'
    GROUP BY function ORDER BY function::regprocedure::text COLLATE "C";
SELECT function::regprocedure, name, e.* FROM argument, error_of(call_with(function, n, 'NULL')) e
    WHERE e.state IS DISTINCT FROM '22004' ORDER BY function::regprocedure::text COLLATE "C", n;
-- Nothing answers a NULL by itself.
SELECT identity FROM function WHERE proisstrict;

-- An empty name or id is 22023.
SELECT function::regprocedure, string_agg(name, ', ' ORDER BY n) AS "empty is refused for"
    FROM argument, error_of(call_with(function, n, '''''')) e
    WHERE type IN ('text', 'name') AND e.state = '22023'
    GROUP BY function ORDER BY function::regprocedure::text COLLATE "C";
SELECT function::regprocedure, name, e.* FROM argument, error_of(call_with(function, n, '''''')) e
    WHERE type IN ('text', 'name') AND e.state IS DISTINCT FROM '22023' ORDER BY function::regprocedure::text COLLATE "C", n;

-- One that is too long is 22001: names at 513 bytes, ids at 1,025. The limits are of bytes, not of
-- characters, and before compression. (Words that have a list are wrong anyway.)
SELECT function::regprocedure, string_agg(format('%s at %s', name, at), ', ' ORDER BY n) AS "refused"
    FROM argument,
    LATERAL (SELECT CASE WHEN name IN ('message_id', 'idempotence_id', 'context_id', 'id2') THEN 1025 ELSE 513 END) l(at),
    error_of(call_with(function, n, format('repeat(''x'', %s)', at))) e,
    error_of(call_with(function, n, format('repeat(''x'', %s)', at - 1))) fits,
    error_of(call_with(function, n, format('repeat(''x'', %s) || ''é''', at - 2))) bytes,
    error_of(call_with(function, n, 'repeat(''x'', 8000)')) compressible
    WHERE type = 'text' AND name NOT IN ('access', 'ordering', 'on_failure')
        AND e.state = '22001' AND bytes.state = '22001' AND compressible.state = '22001'
        AND fits.state IS DISTINCT FROM '22001'
        AND e.detail = format('It has %s bytes; at most %s are allowed.', at, at - 1)
    GROUP BY function ORDER BY function::regprocedure::text COLLATE "C";
SELECT function::regprocedure, name, e.state FROM argument, error_of(call_with(function, n, 'repeat(''x'', 1025)')) e
    WHERE type = 'text' AND e.state IS DISTINCT FROM '22001' ORDER BY function::regprocedure::text COLLATE "C", n;

-- Nothing of all that was claimed or recorded.
SELECT (SELECT count(*) FROM inbox_claims) = :claims AS claims, (SELECT count(*) FROM sequenced_message) = :messages AS messages;

-- Every SQLSTATE of the documentation once in full.
\x on
SELECT * FROM error_of($$SELECT inbox_claim('billing', NULL::text)$$);
SELECT * FROM error_of($$SELECT inbox_claim('billing', '')$$);
SELECT * FROM error_of($$SELECT inbox_claim(repeat('é', 257), 'evt-1')$$);
SELECT * FROM error_of($$SELECT inbox_sequence('payments', 'payment-1')$$);
SELECT * FROM error_of($$SELECT * FROM inbox_receive('payment.made', 'evt-1', 'payment-1')$$);
SELECT * FROM error_of($$SELECT inbox_claim('error.type', 'evt-1', -1)$$);
SELECT * FROM error_of($$SELECT inbox_annotate('billing', 'evt-1', '[1]')$$);
SELECT * FROM error_of($$SELECT inbox_fail('billing', 'evt-1', retry_after => '-1 s', payload => '')$$);
SELECT * FROM error_of($$SELECT inbox_fail('billing', 'evt-1', retry_after => '1 s')$$);
SELECT * FROM error_of($$SELECT inbox_housekeeping(0)$$);
SELECT * FROM error_of($$SELECT inbox_grant('nobody_of_this_name', 'consumer')$$);
SELECT * FROM error_of($$SELECT inbox_grant('public', 'consumer')$$);
SELECT * FROM error_of($$SELECT inbox_grant(current_user, 'owner')$$);
\x off

-- An instance that is not there, or not any more, is 23503, whoever is asked.
SELECT call, e.state, e.message = format('sequence instance %s does not exist', id) AS message, e.hint LIKE 'Call inbox_sequence(%' AS hint
    FROM (VALUES (:deleted), (0), (-1), (9223372036854775807)) i(id),
    (VALUES ('inbox_claim(''error.type'', ''errors'', %s)'), ('inbox_try_claim(''error.type'', ''errors'', %s)'),
            ('inbox_fail(''error.type'', ''errors'', %s)')) c(call),
    error_of('SELECT ' || format(call, id)) e
    ORDER BY id = :deleted DESC, id, call COLLATE "C";

-- A message that waits in one instance cannot fail in another: 22023.
SELECT inbox_declare_sequence('errors that wait', '1 day', '[{"type": "error.first"},
    {"type": "error.second", "releaseCondition": {"predecessor": "error.first"}}]');
SELECT decision, sequence_instance_id AS waits_in FROM inbox_receive('error.second', 'evt-1', 'context-1', '\x01') \gset
SELECT inbox_sequence('errors that wait', 'context-2') AS other \gset
SELECT e.state, replace(replace(e.message, :'waits_in', 'A'), :'other', 'B') AS message, e.hint
    FROM error_of(format('SELECT inbox_fail(''error.second'', ''evt-1'', %s)', :other)) e;

-- Values that look like formats, quotes, escapes or lines are shown as they are, and cut.
SELECT e.message FROM (VALUES ('%s %d %n %1$s'), ('it''s "so" \ so'), (E'two\nlines\tand a tab'), ('🙈' || repeat('é', 120))) v(value),
    error_of(format('SELECT inbox_sequence(%L, ''x'')', value)) e;

-- A read-only transaction: 25006 for every function that writes, by the function's name.
BEGIN READ ONLY;
SELECT name, count(*) AS forms FROM function, error_of(good_call) e
    WHERE e.state = '25006' AND e.message = format('cannot execute %s() in a read-only transaction', name)
        AND e.hint = 'Start the transaction with READ WRITE.'
    GROUP BY name ORDER BY name;
-- The others read.
SELECT identity, e.state FROM function, error_of(good_call) e
    WHERE e.state IS DISTINCT FROM '25006' ORDER BY identity::text COLLATE "C";
COMMIT;
-- A duplicate is no reading either: the same, whatever the answer would be.
SELECT inbox_claim('errors', 'read only');
BEGIN READ ONLY;
SELECT state FROM error_of($$SELECT inbox_claim('errors', 'read only')$$);
COMMIT;

-- The functions that work in a subtransaction of their own leave none behind when it fails.
BEGIN;
DO $$
BEGIN
    PERFORM inbox_try_claim('error.type', 'subtransaction', -1);
EXCEPTION WHEN foreign_key_violation THEN
    RAISE NOTICE 'caught';
END $$;
SELECT inbox_claim('errors', 'subtransaction');
COMMIT;
SELECT inbox_claim('errors', 'subtransaction');

-- An error ends the transaction like any other, and a savepoint brings it back.
BEGIN;
SELECT inbox_claim('errors', 'before');
SAVEPOINT s;
SELECT inbox_claim('errors', NULL::text);
SELECT inbox_claim('errors', 'aborted');
ROLLBACK TO SAVEPOINT s;
SELECT inbox_claim('errors', 'after');
COMMIT;
SELECT id2 FROM inbox_claims WHERE id1 = 'errors' AND id2 IN ('before', 'aborted', 'after') ORDER BY id2 COLLATE "C";

-- A library that is newer than the schema: 55000, in a session that has no plans yet.
\c -
BEGIN;
ALTER TABLE sequenced_message RENAME COLUMN rejected TO rejected_of_old;
SELECT state, message, regexp_replace(detail, 'version [^;]*;', 'version N;') AS detail, hint
    FROM error_of($$SELECT inbox_fail('billing', 'evt-1')$$);
ROLLBACK;
BEGIN;
ALTER TABLE inbox_claim_2 RENAME TO inbox_claim_of_old;
SELECT state, message, regexp_replace(detail, 'version [^;]*;', 'version N;') AS detail, hint
    FROM error_of($$SELECT inbox_claim('billing', 'evt-1')$$);
ROLLBACK;
-- Nothing of it stays.
SELECT inbox_claim('errors', 'after an old schema');

DROP FUNCTION call_with;

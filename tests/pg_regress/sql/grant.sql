-- G14: PUBLIC gets nothing, a role without grants can do nothing, and each access of inbox_grant can
-- do its part and no more. What there is to try comes from the catalog, so that a new function or
-- table is in here by itself.
CREATE ROLE regress_inbox_nobody;
CREATE ROLE regress_inbox_consumer;
CREATE ROLE regress_inbox_operator;
CREATE ROLE regress_inbox_monitor;
-- A name that needs quotes, and one that would mean everybody if it were not quoted.
CREATE ROLE "regress_inbox ""odd"" name";
SELECT inbox_grant('regress_inbox_consumer', 'consumer');
SELECT inbox_grant('regress_inbox_operator', 'operator');
SELECT inbox_grant('regress_inbox_monitor', 'monitor');
SELECT inbox_grant('regress_inbox "odd" name', 'monitor');
-- Granting again changes nothing.
SELECT inbox_grant('regress_inbox_monitor', 'monitor');

-- Nothing to PUBLIC, by default or by grant: no object of the extension has an ACL that PUBLIC is in.
SELECT identity FROM extension_object WHERE classid = 'pg_proc'::regclass
    AND has_function_privilege('regress_inbox_nobody', objid, 'EXECUTE');
SELECT identity FROM extension_object
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
    WHERE classid = 'pg_class'::regclass AND type IN ('table', 'view')
        AND has_table_privilege('regress_inbox_nobody', objid, p);
SELECT c.oid::regclass FROM pg_class c JOIN extension_object ON objid = c.oid AND classid = 'pg_class'::regclass
    CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) p
    WHERE c.relkind = 'S' AND has_sequence_privilege('regress_inbox_nobody', c.oid, p);

-- Who may execute what.
CREATE TEMP VIEW may AS
    SELECT identity,
        has_function_privilege('regress_inbox_consumer', objid, 'EXECUTE') AS consumer,
        has_function_privilege('regress_inbox_operator', objid, 'EXECUTE') AS operator,
        has_function_privilege('regress_inbox_monitor', objid, 'EXECUTE') AS monitor
    FROM extension_object WHERE classid = 'pg_proc'::regclass;
GRANT SELECT ON may TO PUBLIC;
SELECT replace(replace(replace(identity, 'public.', ''), 'pg_catalog.', ''), 'timestamp with time zone', 'timestamptz') AS function,
    consumer, operator, monitor FROM may ORDER BY identity COLLATE "C";

-- Who may do what to the tables and views: r SELECT, a INSERT, w UPDATE, d DELETE, D TRUNCATE.
SELECT c.relname AS relation, role, string_agg(short, '' ORDER BY place) AS may
    FROM pg_class c JOIN extension_object ON objid = c.oid AND classid = 'pg_class'::regclass
    CROSS JOIN (VALUES ('consumer'), ('operator'), ('monitor')) r(role)
    CROSS JOIN (VALUES (1, 'r', 'SELECT'), (2, 'a', 'INSERT'), (3, 'w', 'UPDATE'), (4, 'd', 'DELETE'), (5, 'D', 'TRUNCATE'),
                       (6, 'x', 'REFERENCES'), (7, 't', 'TRIGGER')) p(place, short, privilege)
    WHERE c.relkind IN ('r', 'v') AND has_table_privilege('regress_inbox_' || role, c.oid, privilege)
    GROUP BY c.relname, role ORDER BY c.relname COLLATE "C", role COLLATE "C";
SELECT c.oid::regclass, role FROM pg_class c JOIN extension_object ON objid = c.oid AND classid = 'pg_class'::regclass
    CROSS JOIN (VALUES ('consumer'), ('operator'), ('monitor')) r(role)
    CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) p
    WHERE c.relkind = 'S' AND has_sequence_privilege('regress_inbox_' || role, c.oid, p);
-- Nothing may be passed on.
SELECT relation, grantee FROM (
    SELECT objid::regclass::text AS relation, (aclexplode(relacl)).* FROM extension_object JOIN pg_class c ON c.oid = objid
        WHERE classid = 'pg_class'::regclass
    UNION ALL
    SELECT objid::regprocedure::text, (aclexplode(proacl)).* FROM extension_object JOIN pg_proc p ON p.oid = objid
        WHERE classid = 'pg_proc'::regclass) a
    WHERE is_grantable AND grantee <> (SELECT oid FROM pg_roles WHERE rolname = current_user);

-- What a role gets for a function that it may not execute: 42501 for each, whatever the arguments.
CREATE FUNCTION attempts() RETURNS TABLE (object text, state text) LANGUAGE sql AS $$
    SELECT o.identity, e.state
    FROM extension_object o JOIN pg_proc p ON p.oid = o.objid AND o.classid = 'pg_proc'::regclass,
        error_of(format('SELECT %s(%s)', p.oid::regproc,
            (SELECT string_agg(format('NULL::%s', format_type(t, NULL)), ', ' ORDER BY n)
             FROM unnest(p.proargtypes) WITH ORDINALITY a(t, n)))) e
    UNION ALL
    SELECT format('%s %s', verb, c.relname), e.state
    FROM extension_object o JOIN pg_class c ON c.oid = o.objid AND o.classid = 'pg_class'::regclass
        CROSS JOIN (VALUES ('SELECT', 'SELECT * FROM %s'), ('INSERT', 'INSERT INTO %s DEFAULT VALUES'),
            ('DELETE', 'DELETE FROM %s'), ('TRUNCATE', 'TRUNCATE %s')) v(verb, statement),
        error_of(format(statement, c.oid::regclass)) e
    WHERE c.relkind = 'r' OR (c.relkind = 'v' AND verb = 'SELECT')
    UNION ALL
    SELECT format('sequence %s', c.relname), e.state
    FROM extension_object o JOIN pg_class c ON c.oid = o.objid AND o.classid = 'pg_class'::regclass,
        error_of(format('SELECT setval(%L, 1)', c.oid::regclass)) e
    WHERE c.relkind = 'S'
$$;
SET ROLE regress_inbox_nobody;
SELECT count(*) > 50 AS many, count(*) FILTER (WHERE state IS DISTINCT FROM '42501') AS not_refused FROM attempts();
SELECT * FROM attempts() WHERE state IS DISTINCT FROM '42501';
RESET ROLE;

-- The others: refused is what they may not, and only that.
SET ROLE regress_inbox_consumer;
SELECT a.object, a.state, may.consumer FROM attempts() a JOIN may ON may.identity = a.object
    WHERE may.consumer = (a.state IS NOT DISTINCT FROM '42501');
SELECT object FROM attempts() WHERE object ~ '^(SELECT|DELETE|TRUNCATE) ' AND state IS NULL ORDER BY object COLLATE "C";
SET ROLE regress_inbox_operator;
SELECT a.object, a.state, may.operator FROM attempts() a JOIN may ON may.identity = a.object
    WHERE may.operator = (a.state IS NOT DISTINCT FROM '42501');
SELECT object FROM attempts() WHERE object ~ '^(SELECT|DELETE|TRUNCATE) ' AND state IS NULL ORDER BY object COLLATE "C";
SET ROLE regress_inbox_monitor;
SELECT a.object, a.state, may.monitor FROM attempts() a JOIN may ON may.identity = a.object
    WHERE may.monitor = (a.state IS NOT DISTINCT FROM '42501');
SELECT object FROM attempts() WHERE object ~ '^(SELECT|DELETE|TRUNCATE) ' AND state IS NULL ORDER BY object COLLATE "C";
RESET ROLE;

-- An operator does all of its part: declares, handles, ends, releases, keeps house, looks.
SET ROLE regress_inbox_operator;
SELECT inbox_declare_sequence('grants', '1 day', '[{"type": "grant.first"},
    {"type": "grant.second", "releaseCondition": {"predecessor": "grant.first"}}]');
SELECT inbox_declare_sequence('grants by position', '1 day', '[{"type": "grant.step"}]', ordering => 'position');
SELECT inbox_claim('grants', 'operator'), inbox_release('grants', 'operator');
SET ROLE regress_inbox_consumer;

-- A consumer does all of its.
SELECT inbox_claim('grants', 'evt-1'), inbox_claim('grants', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid),
       inbox_try_claim('grants', 'evt-2'), inbox_try_claim('grants', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid),
       inbox_claim_batch('grants', '{evt-2,evt-3}'), inbox_annotate('grants', 'evt-1', '{"source": "grants"}');
SELECT inbox_claim('grant.claimed', 'evt-1', inbox_sequence('grants', 'a')),
       inbox_try_claim('grant.claimed', 'evt-1', inbox_sequence('grants', 'a'));
SELECT decision FROM inbox_receive('grant.second', 'evt-2', 'a', '\x02');
SELECT decision FROM inbox_receive('grant.first', 'evt-1', 'a');
SELECT idempotence_id, payload FROM inbox_next(inbox_sequence('grants', 'a'));
SELECT count(*) FROM inbox_next();
SELECT inbox_fail('grants', 'evt-3', error => 'plain'), inbox_fail('grants', 'evt-4', NULL, 'plain', '0', '\x04');
SELECT idempotence_id FROM inbox_next();
SELECT inbox_fail('grant.first', 'evt-5', inbox_sequence('grants', 'b'), 'sequenced', payload => '\x05');
SELECT inbox_fail_message(message_id, 'by its id') FROM inbox_lookup('grant.first', 'evt-5');
SELECT kind, state, attempts, last_error FROM inbox_lookup('grant.first', 'evt-5');
SELECT decision FROM inbox_receive('grant.second', 'evt-6', 'b', '\x06');
SELECT decision FROM inbox_receive('grant.step', 'evt-7', 'p', '\x07', "position" => 3);

-- What is of an operator or of a monitor, it does not.
SELECT inbox_release('grants', 'evt-1');
SELECT inbox_declare_sequence('grants', '2 days');
SELECT count(*) FROM inbox_dead_letters;
SELECT inbox_grant('regress_inbox_consumer', 'operator');

SET ROLE regress_inbox_operator;
SELECT context_id, waiting, failed, blocked_on FROM inbox_sequences WHERE sequence_name LIKE 'grants%' ORDER BY context_id;
SELECT id1, id2 FROM inbox_claims WHERE id1 = 'grants' ORDER BY id2;
SELECT sequence_name, idempotence_id, payload_size FROM inbox_dead_letters WHERE idempotence_id = 'evt-5';
SELECT message_id FROM inbox_lookup('grant.first', 'evt-5') \gset
SELECT inbox_retry(:message_id), inbox_skip(:message_id), inbox_force(message_id) FROM inbox_lookup('grant.second', 'evt-6');
SELECT inbox_skip_gap(inbox_sequence('grants by position', 'p'));
SELECT inbox_force_all(inbox_sequence('grants', 'b')), inbox_close(inbox_sequence('grants', 'b'));
-- Housekeeping, with a rotation of the ring: the first one is due at once, and another is when the
-- clock is set back.
SELECT rotated FROM inbox_housekeeping();
UPDATE inbox_claim_ring SET current_since = current_since - interval '1 year';
SELECT rotated FROM inbox_housekeeping();
SELECT rotated FROM inbox_housekeeping();
DELETE FROM sequence_instance WHERE name LIKE 'grants%';
SELECT inbox_drop_sequence('grants'), inbox_drop_sequence('grants by position');
SELECT inbox_grant('regress_inbox_operator', 'consumer');

-- A monitor looks at everything but payloads.
SET ROLE regress_inbox_monitor;
SELECT count(*) >= 0 AS sequences FROM inbox_sequences;
SELECT count(*) > 0 AS claims FROM inbox_claims;
SELECT count(*) >= 0 AS dead_letters FROM inbox_dead_letters;
SELECT kind, attributes FROM inbox_lookup('grants', 'evt-1');
SELECT count(*) > 10 AS metrics FROM inbox_metrics();
SELECT count(*) AS counters FROM inbox_stat_counters(missing_ok => true);
SELECT inbox_stat_reset();
SELECT payload FROM buffered_message;
SELECT inbox_claim('grants', 'evt-1');
SET ROLE "regress_inbox ""odd"" name";
SELECT count(*) > 0 AS claims FROM inbox_claims;
RESET ROLE;

-- Revoking by hand is possible and complete: no grant hides elsewhere.
DROP FUNCTION attempts;
DROP OWNED BY regress_inbox_nobody, regress_inbox_consumer, regress_inbox_operator, regress_inbox_monitor,
    "regress_inbox ""odd"" name";
DROP ROLE regress_inbox_nobody, regress_inbox_consumer, regress_inbox_operator, regress_inbox_monitor,
    "regress_inbox ""odd"" name";

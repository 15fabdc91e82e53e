-- G14: a session whose search_path begins with another's objects, and whose temporary schema is full
-- of them, gets the same answers; so does an extension that was created in a schema in which another
-- had put such objects before. Each of them raises an error when it is used, or has rows in the end.
\set regression :DBNAME
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_inbox_search_path;
CREATE DATABASE regress_inbox_search_path;
\c regress_inbox_search_path
CREATE ROLE regress_inbox_mallory;
CREATE ROLE regress_inbox_service;
CREATE SCHEMA mallory AUTHORIZATION regress_inbox_mallory;
CREATE SCHEMA inbox;
GRANT CREATE, USAGE ON SCHEMA inbox TO regress_inbox_mallory;
GRANT USAGE ON SCHEMA mallory TO regress_inbox_service;
GRANT CREATE ON SCHEMA public TO regress_inbox_mallory;

-- Operators, functions, types and a collation by the names of those of pg_catalog that could be meant.
SET ROLE regress_inbox_mallory;
CREATE PROCEDURE set_traps(schema name) LANGUAGE plpgsql AS $$
DECLARE
    trap CONSTANT text := 'BEGIN RAISE EXCEPTION ''trapped''; END';
    types CONSTANT regtype[] :=
        '{text,integer,bigint,boolean,name,oid,timestamptz,interval,jsonb,bytea,uuid,text[],double precision}';
    o record;
BEGIN
    FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
            WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
                AND oprleft = ANY (types) AND oprright = ANY (types) LOOP
        EXECUTE format('CREATE FUNCTION %I.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L',
            schema, 'trap ' || o.oprname, o.l, o.r, o.result, trap);
        EXECUTE format('CREATE OPERATOR %I.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %1$I.%5$I)',
            schema, o.oprname, o.l, o.r, 'trap ' || o.oprname);
    END LOOP;
    FOR o IN SELECT proname, pg_get_function_identity_arguments(oid) AS arguments, pg_get_function_result(oid) AS result
            FROM pg_proc
            WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND provariadic = 0
                AND proname IN ('now', 'clock_timestamp', 'statement_timestamp', 'transaction_timestamp', 'octet_length',
                    'pg_extension_config_dump', 'pg_notify', 'set_config', 'current_setting', 'length', 'jsonb_concat',
                    'texteq', 'int8eq', 'date_part', 'extract', 'make_interval', 'pg_relation_size')
                AND pg_get_function_identity_arguments(oid) !~ 'OUT' LOOP
        EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L',
            schema, o.proname, o.arguments, o.result, trap);
    END LOOP;
    -- Better matches than the polymorphic ones of pg_catalog.
    EXECUTE format('CREATE FUNCTION %I.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS %L', schema, trap);
    EXECUTE format('CREATE FUNCTION %I.concat(text, bigint) RETURNS text LANGUAGE plpgsql AS %L', schema, trap);
    EXECUTE format('CREATE FUNCTION %I.pg_identify_object(oid, oid, integer, OUT type text, OUT identity text)
                    LANGUAGE plpgsql AS %L', schema, trap);
    EXECUTE format('CREATE AGGREGATE %I.count(*) (SFUNC = int8inc, STYPE = int8, INITCOND = ''1000'')', schema);
    FOR o IN SELECT typname FROM pg_type
            WHERE oid = ANY (types || '{regclass,regproc}'::regtype[]) AND typname !~ '^_' LOOP
        EXECUTE format('CREATE DOMAIN %I.%I AS pg_catalog.text CHECK (false)', schema, o.typname);
    END LOOP;
    EXECUTE format('CREATE COLLATION %I."C" FROM pg_catalog."POSIX"', schema);
END $$;
CALL set_traps('inbox');
CALL set_traps('mallory');
RESET ROLE;
SELECT nspname, count(*) > 100 AS operators FROM pg_operator o JOIN pg_namespace n ON n.oid = oprnamespace
    WHERE nspname IN ('inbox', 'mallory') GROUP BY nspname ORDER BY nspname;

-- Created by a superuser whose path is as bad.
SET search_path = mallory, inbox, public, pg_catalog;
CREATE EXTENSION sequential_inbox SCHEMA inbox;
RESET search_path;
-- What it consists of depends on nothing of that.
SELECT pg_describe_object(d.classid, d.objid, d.objsubid) AS object, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid) AS uses
    FROM pg_depend d
    WHERE (d.refclassid, d.refobjid) IN (
            SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprowner = 'regress_inbox_mallory'::regrole UNION ALL
            SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE proowner = 'regress_inbox_mallory'::regrole UNION ALL
            SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typowner = 'regress_inbox_mallory'::regrole UNION ALL
            SELECT 'pg_collation'::regclass, oid FROM pg_collation WHERE collowner = 'regress_inbox_mallory'::regrole)
        AND (d.classid, d.objid) IN (
            SELECT classid, objid FROM pg_depend JOIN pg_extension e ON refclassid = 'pg_extension'::regclass AND refobjid = e.oid
                WHERE extname = 'sequential_inbox' AND deptype = 'e' UNION ALL
            SELECT 'pg_constraint'::regclass, oid FROM pg_constraint WHERE connamespace = 'inbox'::regnamespace AND conrelid <> 0 UNION ALL
            SELECT 'pg_attrdef'::regclass, a.oid FROM pg_attrdef a JOIN pg_class c ON c.oid = adrelid WHERE relnamespace = 'inbox'::regnamespace UNION ALL
            SELECT 'pg_rewrite'::regclass, r.oid FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class WHERE relnamespace = 'inbox'::regnamespace UNION ALL
            SELECT 'pg_class'::regclass, oid FROM pg_class WHERE relnamespace = 'inbox'::regnamespace);

-- Tables of the same names, and of the catalog's that the extension reads.
SET ROLE regress_inbox_mallory;
CREATE PROCEDURE set_tables() LANGUAGE plpgsql AS $$
DECLARE
    relation name;
BEGIN
    FOR relation IN SELECT relname FROM pg_class WHERE relnamespace = 'inbox'::regnamespace AND relkind IN ('r', 'v') LOOP
        EXECUTE format('CREATE TABLE mallory.%I (LIKE inbox.%1$I INCLUDING DEFAULTS)', relation);
    END LOOP;
    FOREACH relation IN ARRAY '{pg_roles,pg_proc,pg_extension,pg_depend,pg_class,pg_namespace}'::name[] LOOP
        EXECUTE format('CREATE TABLE mallory.%I (LIKE pg_catalog.%1$I)', relation);
    END LOOP;
    GRANT ALL ON ALL TABLES IN SCHEMA mallory TO PUBLIC;
END $$;
RESET ROLE;
GRANT SELECT ON ALL TABLES IN SCHEMA inbox TO regress_inbox_mallory;
CALL set_tables();
GRANT ALL ON ALL TABLES IN SCHEMA mallory TO PUBLIC;
-- Functions of the same names and others' arguments: the extension calls none of its own by name.
CREATE FUNCTION mallory.inbox_claim(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION mallory.inbox_status() RETURNS boolean LANGUAGE sql AS 'SELECT true';

-- A new session, so that every statement is prepared under this path, and with a temporary schema
-- that comes before everything.
\c -
CREATE TEMP TABLE sequence_type (LIKE inbox.sequence_type);
CREATE TEMP TABLE sequence_message_type (LIKE inbox.sequence_message_type);
CREATE TEMP TABLE sequence_instance (LIKE inbox.sequence_instance INCLUDING ALL);
CREATE TEMP TABLE sequential_inbox_idempotence (LIKE inbox.sequential_inbox_idempotence INCLUDING ALL);
CREATE TEMP TABLE sequenced_message (LIKE inbox.sequenced_message INCLUDING ALL);
CREATE TEMP TABLE inbox_claim_0 (LIKE inbox.inbox_claim_0 INCLUDING ALL);
CREATE TEMP TABLE inbox_claim_ring (LIKE inbox.inbox_claim_ring INCLUDING ALL);
CREATE TEMP TABLE pg_roles (LIKE pg_catalog.pg_roles);
CREATE TEMP TABLE pg_class (LIKE pg_catalog.pg_class);
CREATE DOMAIN pg_temp.text AS pg_catalog.int4;
CREATE DOMAIN pg_temp.timestamptz AS pg_catalog.int4;
CREATE DOMAIN pg_temp.jsonb AS pg_catalog.int4;
GRANT ALL ON ALL TABLES IN SCHEMA pg_temp TO PUBLIC;
SET search_path = pg_temp, mallory, inbox, public, pg_catalog;
-- It is as bad as it looks.
SELECT 1 = 1;
SELECT now();
SELECT 'a'::text;
SELECT * FROM sequence_type;

SELECT inbox.inbox_grant('regress_inbox_service', 'operator');
SET ROLE regress_inbox_service;
SELECT inbox.inbox_claim('path', 'evt-1') AS first, inbox.inbox_claim('path', 'evt-1') AS repeat,
       inbox.inbox_try_claim('path', 'evt-1') AS try_repeat, inbox.inbox_try_claim('path', 'evt-2') AS try;
SELECT inbox.inbox_claim('path', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::pg_catalog.uuid) AS uuid,
       inbox.inbox_claim_batch('path', '{evt-2,evt-3,evt-3}') AS batch;
SELECT inbox.inbox_annotate('path', 'evt-1', '{"a": 1}'), inbox.inbox_annotate('path', 'evt-1', '{"b": 2}');
SELECT kind, attributes FROM inbox.inbox_lookup('path', 'evt-1');
SELECT inbox.inbox_release('path', 'evt-3'), inbox.inbox_claim('path', 'evt-3');
SELECT inbox.inbox_fail('path', 'evt-3', NULL, 'failed', '0', '\x03');
SELECT idempotence_id, payload FROM inbox.inbox_next();
SELECT inbox.inbox_declare_sequence('path', '2 days', '[{"type": "path.first"},
    {"type": "path.second", "releaseCondition": {"predecessor": "path.first"}}]');
SELECT inbox.inbox_declare_sequence('path', '1 day', '[{"type": "path.first"},
    {"type": "path.second", "releaseCondition": {"predecessor": "path.first"}}]');
SELECT inbox.inbox_sequence('path', 'a') AS a, inbox.inbox_sequence('path', 'a') AS again;
SELECT inbox.inbox_claim('path.claimed', 'evt-1', 1) AS first, inbox.inbox_claim('path.claimed', 'evt-1', 1) AS repeat,
       inbox.inbox_try_claim('path.claimed', 'evt-1', 1) AS try_repeat, inbox.inbox_try_claim('path.claimed', 'evt-2', 1) AS try;
SELECT inbox.inbox_claim('path.claimed', 'evt-3', 77);
SELECT * FROM inbox.inbox_receive('path.second', 'evt-2', 'a', '\x02');
SELECT * FROM inbox.inbox_receive('path.first', 'evt-1', 'a');
SELECT * FROM inbox.inbox_receive('path.first', 'evt-1', 'a');
SELECT message_id, idempotence_id, payload FROM inbox.inbox_next(1);
SELECT inbox.inbox_sequence('path', 'b') AS b;
SELECT inbox.inbox_fail('path.first', 'evt-3', 2, 'failed', payload => '\x03');
SELECT id, idempotence_id, context_id, payload_size FROM inbox.inbox_dead_letters;
SELECT inbox.inbox_retry(4), inbox.inbox_force(4), inbox.inbox_skip(4), inbox.inbox_fail_message(4);
SELECT inbox.inbox_force_all(2), inbox.inbox_skip_gap(3);
SELECT inbox.inbox_force_all(2), inbox.inbox_close(2), inbox.inbox_close(2);
SELECT id, sequence_name, context_id, state, waiting, ready, failed, processed FROM inbox.inbox_sequences;
SELECT * FROM inbox.inbox_housekeeping();
SELECT inbox.inbox_claim('path', 'evt-1'), inbox.inbox_claim('path', 'evt-4');
SELECT kind, id1, id2 FROM inbox.inbox_claims ORDER BY kind, id1, id2;
SELECT claim_retention, current_table FROM inbox.inbox_settings;
RESET ROLE;
SELECT inbox.inbox_drop_sequence('path');
RESET search_path;

-- Nothing went into the wrong tables, and nothing was left out of the right ones.
DO $$
DECLARE
    relation regclass;
    rows bigint;
BEGIN
    FOR relation IN SELECT oid FROM pg_catalog.pg_class
            WHERE relkind = 'r' AND relnamespace IN ('mallory'::regnamespace, pg_my_temp_schema()) LOOP
        EXECUTE format('SELECT count(*) FROM %s', relation) INTO rows;
        IF rows <> 0 THEN
            RAISE WARNING '% has % rows', relation, rows;
        END IF;
    END LOOP;
END $$;
SELECT kind, id1, id2 FROM inbox.inbox_claims ORDER BY kind, id1, id2;

\c :regression
SET client_min_messages = warning;
DROP DATABASE regress_inbox_search_path;
DROP ROLE regress_inbox_service, regress_inbox_mallory;

-- Creating the extension in a schema of one's own, living there, and leaving without a trace (G13).
\set regression :DBNAME
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_inbox_extension;
CREATE DATABASE regress_inbox_extension;
\c regress_inbox_extension
CREATE ROLE regress_inbox_service;
-- Everything that can be created, by its kind and name.
CREATE VIEW everything AS
    SELECT classid::regclass AS catalog, i.type, i.identity FROM (
        SELECT 'pg_class'::regclass, oid FROM pg_class UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc UNION ALL
        SELECT 'pg_type'::regclass, oid FROM pg_type UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint UNION ALL
        SELECT 'pg_namespace'::regclass, oid FROM pg_namespace UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator UNION ALL
        SELECT 'pg_trigger'::regclass, oid FROM pg_trigger UNION ALL SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite UNION ALL
        SELECT 'pg_event_trigger'::regclass, oid FROM pg_event_trigger UNION ALL SELECT 'pg_cast'::regclass, oid FROM pg_cast UNION ALL
        SELECT 'pg_extension'::regclass, oid FROM pg_extension UNION ALL SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef) o(classid, objid),
        LATERAL pg_identify_object(classid, objid, 0) i;
CREATE VIEW number_of_rows AS SELECT (SELECT count(*) FROM pg_depend) AS depend, (SELECT count(*) FROM pg_shdepend) AS shdepend,
    (SELECT count(*) FROM pg_description) AS description, (SELECT count(*) FROM pg_init_privs) AS init_privs,
    (SELECT count(*) FROM pg_db_role_setting) AS settings;
CREATE TABLE before AS TABLE everything WITH NO DATA;
CREATE TABLE number_before AS TABLE number_of_rows WITH NO DATA;
INSERT INTO before TABLE everything;
INSERT INTO number_before TABLE number_of_rows;

-- A schema whose name needs quotes, and which is nobody's search_path.
CREATE SCHEMA "Inbox of {s}";
CREATE EXTENSION sequential_inbox SCHEMA "Inbox of {s}";
CREATE EXTENSION sequential_inbox;
CREATE EXTENSION IF NOT EXISTS sequential_inbox;
-- All of it is there and not elsewhere.
SELECT DISTINCT i.schema FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND d.refclassid = 'pg_extension'::regclass,
    LATERAL pg_identify_object(d.classid, d.objid, 0) i WHERE extname = 'sequential_inbox' AND deptype = 'e';

SELECT "Inbox of {s}".inbox_grant('regress_inbox_service', 'operator');
SET ROLE regress_inbox_service;
SHOW search_path;
SELECT "Inbox of {s}".inbox_claim('billing', 'evt-1'), "Inbox of {s}".inbox_claim('billing', 'evt-1') AS repeat,
       "Inbox of {s}".inbox_try_claim('billing', 'evt-2'), "Inbox of {s}".inbox_claim_batch('billing', '{evt-2,evt-3}');
SELECT "Inbox of {s}".inbox_declare_sequence('orders', '1 day', '[{"type": "order.placed"},
    {"type": "order.paid", "releaseCondition": {"predecessor": "order.placed"}}]');
SELECT decision FROM "Inbox of {s}".inbox_receive('order.paid', 'evt-2', 'order-1', '\x02');
SELECT decision FROM "Inbox of {s}".inbox_receive('order.placed', 'evt-1', 'order-1');
SELECT idempotence_id, payload FROM "Inbox of {s}".inbox_next();
SELECT "Inbox of {s}".inbox_fail('billing', 'evt-3', error => 'failed');
SELECT kind, state, last_error FROM "Inbox of {s}".inbox_lookup('billing', 'evt-3');
SELECT sequence_name, context_id, state, processed FROM "Inbox of {s}".inbox_sequences;
SELECT rotated FROM "Inbox of {s}".inbox_housekeeping();
SELECT "Inbox of {s}".inbox_claim('billing', 'evt-1') AS after_rotation, "Inbox of {s}".inbox_release('billing', 'evt-1');
-- The same session once more with the schema in its path, and under another name.
RESET ROLE;
ALTER SCHEMA "Inbox of {s}" RENAME TO "in""box";
SET ROLE regress_inbox_service;
SET search_path = "in""box";
SELECT inbox_claim('billing', 'evt-1'), inbox_claim('billing', 'evt-1') AS repeat, inbox_try_claim('billing', 'evt-2');
SELECT decision FROM inbox_receive('order.placed', 'evt-1', 'order-1');
SELECT inbox_sequence('orders', 'order-2') > inbox_sequence('orders', 'order-1') AS ids_go_on;
SELECT kind, id1, id2 FROM inbox_claims ORDER BY kind, id1, id2;
SELECT count(*) FROM inbox_dead_letters;
RESET ROLE;
RESET search_path;
-- It stays in its schema: its name is in the stored SQL.
ALTER EXTENSION sequential_inbox SET SCHEMA public;

-- What others built on it is only dropped when they say so.
CREATE VIEW report AS SELECT * FROM "in""box".inbox_claims;
CREATE TABLE public.invoice (instance bigint REFERENCES "in""box".sequence_instance);
\set VERBOSITY terse
DROP EXTENSION sequential_inbox;
DROP EXTENSION sequential_inbox CASCADE;
\set VERBOSITY default
DROP TABLE public.invoice;
-- Grants, descriptions and dependencies went with it.
DROP SCHEMA "in""box";
TABLE everything EXCEPT TABLE before;
TABLE before EXCEPT TABLE everything;
TABLE number_of_rows EXCEPT TABLE number_before;
DROP ROLE regress_inbox_service;

-- Created anew, and once more under the name that the session knows, it begins with nothing.
CREATE EXTENSION sequential_inbox;
SELECT inbox_claim('billing', 'evt-1'), inbox_claim('billing', 'evt-1') AS repeat;
SELECT decision FROM inbox_receive('order.placed', 'evt-1', 'order-1');
SELECT inbox_declare_sequence('orders', '1 day', '[{"type": "order.placed"}]');
SELECT decision, sequence_instance_id, message_id FROM inbox_receive('order.placed', 'evt-1', 'order-1');
DROP EXTENSION sequential_inbox;
CREATE EXTENSION sequential_inbox;
SELECT inbox_claim('billing', 'evt-1'), inbox_claim('billing', 'evt-1') AS repeat;
SELECT decision FROM inbox_receive('order.placed', 'evt-1', 'order-1');
SELECT inbox_sequence('orders', 'order-1');
SELECT inbox_declare_sequence('orders', '1 day', '[{"type": "order.placed", "releaseCondition": {"predecessor": "order.paid"}}, {"type": "order.paid"}]');
SELECT decision, sequence_instance_id, message_id FROM inbox_receive('order.placed', 'evt-1', 'order-1', '\x01');

\c :regression
DROP DATABASE regress_inbox_extension;

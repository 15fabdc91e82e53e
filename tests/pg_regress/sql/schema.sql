-- What the extension consists of (G13, G14), asked of the catalog, so that nothing new is left out.

-- Everything is described.
SELECT identity FROM extension_object o
    WHERE type NOT IN ('type', 'table constraint') AND obj_description(objid, classid::regclass::name) IS NULL;
-- Columns, too; those of indexes have their table's.
SELECT a.attrelid::regclass AS relation, a.attname FROM pg_attribute a
    JOIN extension_object o ON o.objid = a.attrelid AND o.classid = 'pg_class'::regclass
    JOIN pg_class c ON c.oid = a.attrelid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind = 'r' AND col_description(a.attrelid, a.attnum) IS NULL
    ORDER BY 1, 2;
-- Indexes that no constraint owns are members in their table's stead.
SELECT i.indexrelid::regclass FROM pg_index i JOIN extension_object o ON o.objid = i.indrelid AND o.classid = 'pg_class'::regclass
    WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid) AND obj_description(i.indexrelid, 'pg_class') IS NULL;

-- Everything that is stored is in a dump: each table and each sequence, whole. Listed is what is not:
-- what the worker did here is true of this database only.
SELECT c.oid::regclass AS relation, extcondition[p.place] AS condition FROM pg_class c
    JOIN extension_object o ON o.objid = c.oid AND o.classid = 'pg_class'::regclass
    LEFT JOIN (pg_extension e CROSS JOIN LATERAL unnest(extconfig) WITH ORDINALITY p(relation, place)) ON extname = 'sequential_inbox' AND p.relation = c.oid
    WHERE c.relkind IN ('r', 'S') AND extcondition[p.place] IS DISTINCT FROM '';
-- And every table is logged.
SELECT c.oid::regclass FROM pg_class c JOIN extension_object o ON o.objid = c.oid AND o.classid = 'pg_class'::regclass
    WHERE c.relpersistence <> 'p';

-- Every text that is a key, or a part of one, is compared by its bytes.
SELECT DISTINCT a.attrelid::regclass AS relation, a.attname, l.collname FROM pg_attribute a
    JOIN extension_object o ON o.objid = a.attrelid AND o.classid = 'pg_class'::regclass
    JOIN pg_index i ON i.indrelid = a.attrelid AND a.attnum = ANY (i.indkey)
    JOIN pg_collation l ON l.oid = a.attcollation
    WHERE l.oid <> 'pg_catalog."C"'::regcollation;
-- The indexes are, too.
SELECT i.indexrelid::regclass FROM pg_index i JOIN extension_object o ON o.objid = i.indrelid AND o.classid = 'pg_class'::regclass
    CROSS JOIN LATERAL unnest(i.indcollation) l
    WHERE l <> 0 AND l <> 'pg_catalog."C"'::regcollation;

-- The claim table has exactly this shape: an existing one is moved over with one INSERT ... SELECT.
SELECT attname, format_type(atttypid, atttypmod) AS type, collname, attnotnull
    FROM pg_attribute LEFT JOIN pg_collation l ON l.oid = attcollation
    WHERE attrelid = 'sequential_inbox_idempotence'::regclass AND attnum > 0 ORDER BY attnum;
SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = 'sequential_inbox_idempotence'::regclass AND contype <> 'n' ORDER BY conname COLLATE "C";
SELECT pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid = 'sequential_inbox_idempotence'::regclass ORDER BY indexrelid::regclass::text COLLATE "C";
SELECT tgname FROM pg_trigger WHERE tgrelid = 'sequential_inbox_idempotence'::regclass AND NOT tgisinternal;

-- The three tables of the ring are equal.
SELECT string_agg(attrelid::regclass::text, ', ' ORDER BY attrelid) AS tables, columns, key FROM (
    SELECT attrelid, array_agg(format('%s %s %s %s %s', attname, format_type(atttypid, atttypmod), attcollation::regcollation,
                                      attnotnull, pg_get_expr(adbin, adrelid)) ORDER BY attnum) AS columns,
           (SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = attrelid AND contype = 'p') AS key
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid IN ('inbox_claim_0'::regclass, 'inbox_claim_1'::regclass, 'inbox_claim_2'::regclass) AND attnum > 0
    GROUP BY attrelid) t GROUP BY columns, key;

-- Functions run with the caller's rights, are called with NULLs, and say what they are: only what
-- reads is STABLE, and PARALLEL SAFE only what needs no newer snapshot than its query's.
SELECT provolatile, proparallel, proisstrict, prosecdef, proleakproof, proconfig, count(*) > 1 AS several,
       CASE WHEN provolatile <> 'v' THEN string_agg(DISTINCT proname, ', ' ORDER BY proname) END AS functions
    FROM pg_proc p JOIN extension_object o ON o.objid = p.oid AND o.classid = 'pg_proc'::regclass
    GROUP BY provolatile, proparallel, proisstrict, prosecdef, proleakproof, proconfig ORDER BY provolatile;

-- A function's argument and a column of its result share no name, and no two forms of one name
-- differ in a text and a bigint in one place.
SELECT p.oid::regprocedure FROM pg_proc p JOIN extension_object o ON o.objid = p.oid AND o.classid = 'pg_proc'::regclass,
    unnest(proargnames) n GROUP BY p.oid, n HAVING count(*) > 1;
SELECT a.oid::regprocedure, b.oid::regprocedure FROM pg_proc a JOIN pg_proc b ON a.proname = b.proname AND a.oid < b.oid
    JOIN extension_object o ON o.objid = a.oid AND o.classid = 'pg_proc'::regclass
    CROSS JOIN LATERAL unnest(a.proargtypes) WITH ORDINALITY x(type, n) JOIN LATERAL unnest(b.proargtypes) WITH ORDINALITY y(type, m) ON m = n
    WHERE x.type <> y.type AND ARRAY[x.type, y.type] <@ ARRAY['text', 'bigint']::regtype[];

-- Every name that its SQL stored is of pg_catalog or its own: checked by what the objects depend on.
SELECT DISTINCT o.identity, n.nspname FROM extension_object o
    JOIN pg_depend d ON d.classid = o.classid AND d.objid = o.objid
    JOIN pg_operator f ON d.refclassid = 'pg_operator'::regclass AND f.oid = d.refobjid
    JOIN pg_namespace n ON n.oid = f.oprnamespace WHERE n.nspname <> 'pg_catalog';

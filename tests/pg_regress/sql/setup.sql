-- Creates the extension that every later test uses, and what the tests share.
CREATE EXTENSION sequential_inbox;
SELECT extnamespace::regnamespace AS schema FROM pg_extension WHERE extname = 'sequential_inbox';

-- The error of a statement, as a client gets it; NULLs where there is none. What the statement did
-- is undone either way.
CREATE FUNCTION error_of(statement text,
    OUT state text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RAISE SQLSTATE 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN
        NULL;
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;

-- The objects that belong to the extension.
CREATE VIEW extension_object AS
    SELECT d.classid, d.objid, i.type, i.name, i.identity
    FROM pg_extension e
    JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
        AND d.deptype = 'e'
    CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) i
    WHERE e.extname = 'sequential_inbox';
GRANT SELECT ON extension_object TO PUBLIC;

/*
 * Roles (G14): functions run with the caller's rights, PUBLIC gets nothing.
 */

CREATE FUNCTION @extschema@.inbox_grant(role_name pg_catalog.name, access pg_catalog.text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_grant_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_grant(pg_catalog.name, pg_catalog.text) IS
    'grants a role exactly what its access needs: consumer, operator or monitor';
REVOKE ALL ON FUNCTION @extschema@.inbox_grant(pg_catalog.name, pg_catalog.text) FROM PUBLIC;

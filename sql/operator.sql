/*
 * The operator's hand (G6, G8): each function is safe beside consumers and answers
 * false, having changed nothing, where the state no longer allows it.
 */

CREATE FUNCTION @extschema@.inbox_retry(message_id bigint) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_retry_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_retry(bigint) IS
    'makes a FAILED message WAITING or READY again';
REVOKE ALL ON FUNCTION @extschema@.inbox_retry(bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_force(message_id bigint) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_force_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_force(bigint) IS
    'makes a WAITING or FAILED message READY whatever its release condition says';
REVOKE ALL ON FUNCTION @extschema@.inbox_force(bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_skip(message_id bigint) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_skip_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_skip(bigint) IS
    'ends a message without handling it; for what depends on it, it counts as processed';
REVOKE ALL ON FUNCTION @extschema@.inbox_skip(bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_skip_gap(sequence_instance_id bigint) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_skip_gap_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_skip_gap(bigint) IS
    'position ordering: gives up the missing positions in front of the next stored message';
REVOKE ALL ON FUNCTION @extschema@.inbox_skip_gap(bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_force_all(sequence_instance_id bigint) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_force_all_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_force_all(bigint) IS
    'forces every WAITING or FAILED message of the instance that was not rejected';
REVOKE ALL ON FUNCTION @extschema@.inbox_force_all(bigint) FROM PUBLIC;

CREATE FUNCTION @extschema@.inbox_close(sequence_instance_id bigint) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'inbox_close_wrapper';
COMMENT ON FUNCTION @extschema@.inbox_close(bigint) IS
    'closes an open instance; what waits in it becomes dead letters';
REVOKE ALL ON FUNCTION @extschema@.inbox_close(bigint) FROM PUBLIC;

/*
 * Last: everything that is stored belongs into a dump (G13). Without the mark pg_dump
 * leaves an extension's tables, and the sequences of their identity columns, out.
 * inbox_worker_status is not marked: it tells of this installation, not of messages.
 */

SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequence_type', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequence_type_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequence_message_type', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequence_instance', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequence_instance_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequential_inbox_idempotence', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequenced_message', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.sequenced_message_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.buffered_message', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.inbox_claim_0', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.inbox_claim_1', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.inbox_claim_2', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.inbox_claim_ring', '');

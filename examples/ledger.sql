-- What became of the stream, as text that can be compared: what was applied and in which order
-- within its context, what failed, what waits, and which claims are stored. Times and numbers
-- that differ from run to run are left out.

\set ON_ERROR_STOP 1
\pset format unaligned
\pset tuples_only on
\pset null '-'

SELECT 'applied', consumer, context_id,
        row_number() OVER (PARTITION BY consumer, context_id ORDER BY entry),
        message_type, message_id, amount, note,
        CASE WHEN released THEN 'released' ELSE 'delivered' END
    FROM ledger ORDER BY consumer, context_id, entry;

SELECT 'retried', message_type, idempotence_id, attempts
    FROM sequenced_message WHERE state = 'PROCESSED' AND attempts > 0
    ORDER BY idempotence_id;

SELECT 'dead letter', message_type, idempotence_id, sequence_name, context_id, attempts,
        regexp_replace(last_error, 'message [0-9]+', 'message …'), payload_size
    FROM inbox_dead_letters ORDER BY idempotence_id;

SELECT 'unfinished', message_type, idempotence_id, state
    FROM sequenced_message WHERE state NOT IN ('PROCESSED', 'FAILED') ORDER BY idempotence_id;

SELECT 'instance', sequence_name, context_id, state, processed, waiting, ready, failed
    FROM inbox_sequences ORDER BY sequence_name, context_id;

SELECT 'claims', kind, count(*) FROM inbox_claims GROUP BY kind ORDER BY kind;

-- That every fault has happened, and how often its message was tried. Nothing without faults.sql.
SELECT 'tries', sequencename, last_value
    FROM pg_catalog.pg_sequences
    WHERE EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgname = sequencename)
    ORDER BY sequencename;

-- Moving over an existing claim table (docs/migration.md, with less in it): what was handled before
-- is a duplicate afterwards, and what was not is not.
SET client_min_messages = warning;
CREATE SCHEMA legacy;
-- A hand-written one of sequenced messages. Nothing there kept history unique.
CREATE TABLE legacy.sequence_instance (
    id bigint PRIMARY KEY, name text NOT NULL, context_id text NOT NULL,
    created_at timestamptz NOT NULL, closed_at timestamptz, UNIQUE (name, context_id));
CREATE TABLE legacy.sequential_inbox_idempotence (
    message_type text NOT NULL, idempotence_id text NOT NULL, sequence_instance_id bigint NOT NULL, created_at timestamptz NOT NULL);
INSERT INTO legacy.sequence_instance VALUES
    (501, 'legacy order', 'order-1', now() - interval '3 days', NULL),
    (502, 'legacy order', 'order-2', now() - interval '2 days', now() - interval '1 day');
INSERT INTO legacy.sequential_inbox_idempotence VALUES
    ('legacy.placed', 'evt-1', 501, now() - interval '3 days'),
    ('legacy.placed', 'evt-2', 502, now() - interval '2 days'),
    ('legacy.placed', 'evt-2', 502, now() - interval '1 day'),
    ('legacy.paid', 'evt-2', 502, now() - interval '1 day');
-- And one of a plain consumer.
CREATE TABLE legacy.processed_message (
    handler text NOT NULL, event_id text NOT NULL, processed_at timestamptz NOT NULL, PRIMARY KEY (handler, event_id));
INSERT INTO legacy.processed_message SELECT 'legacy billing', 'evt-' || n, now() - n * interval '1 minute' FROM generate_series(1, 25000) n;

--
-- Sequenced claims
--
SELECT inbox_declare_sequence('legacy order', '30 days', '[{"type": "legacy.placed"},
    {"type": "legacy.paid", "releaseCondition": {"predecessor": "legacy.placed"}}]');
BEGIN;
INSERT INTO sequence_instance (name, context_id, state, created_at, closed_at, retain_until)
    SELECT old.name, old.context_id, CASE WHEN old.closed_at IS NULL THEN 'OPEN' ELSE 'CLOSED' END,
           old.created_at, old.closed_at, old.created_at + t.retention
    FROM legacy.sequence_instance AS old
    JOIN sequence_type AS t ON t.name = old.name
    ON CONFLICT (name, context_id) DO NOTHING;
INSERT INTO sequential_inbox_idempotence (message_type, idempotence_id, sequence_instance_id, created_at)
    SELECT DISTINCT ON (old.message_type, old.idempotence_id)
           old.message_type, old.idempotence_id, i.id, old.created_at
    FROM legacy.sequential_inbox_idempotence AS old
    JOIN legacy.sequence_instance AS l ON l.id = old.sequence_instance_id
    JOIN sequence_instance AS i ON i.name = l.name AND i.context_id = l.context_id
    ORDER BY old.message_type, old.idempotence_id, old.created_at DESC
    ON CONFLICT (message_type, idempotence_id) DO NOTHING;
INSERT INTO sequenced_message (message_type, idempotence_id, sequence_instance_id, state, created_at, state_changed_at)
    SELECT c.message_type, c.idempotence_id, c.sequence_instance_id, 'PROCESSED', c.created_at, c.created_at
    FROM sequential_inbox_idempotence AS c
    WHERE c.message_type LIKE 'legacy.%'
      AND NOT EXISTS (SELECT FROM sequenced_message AS m
                      WHERE m.message_type = c.message_type AND m.idempotence_id = c.idempotence_id);
COMMIT;
SELECT c.message_type, c.idempotence_id, i.context_id, date_trunc('day', now() - c.created_at) AS age
    FROM sequential_inbox_idempotence c JOIN sequence_instance i ON i.id = c.sequence_instance_id
    WHERE i.name = 'legacy order' ORDER BY c.message_type, c.idempotence_id;

-- Redelivered, each is a duplicate; what comes next is judged by what was moved over.
SELECT inbox_claim('legacy.placed', 'evt-2', inbox_sequence('legacy order', 'order-2')) AS claim;
SELECT decision FROM inbox_receive('legacy.placed', 'evt-1', 'order-1', '\x7b7d');
SELECT decision FROM inbox_receive('legacy.paid', 'evt-2', 'order-2', '\x7b7d');
SELECT decision FROM inbox_receive('legacy.paid', 'evt-3', 'order-1', '\x7b7d');
SELECT decision FROM inbox_receive('legacy.paid', 'evt-4', 'order-3', '\x7b7d');
SELECT context_id, state, waiting, processed FROM inbox_sequences WHERE sequence_name = 'legacy order' ORDER BY context_id;

-- With the ids of before, for whoever has stored them: then the identity goes on after them.
BEGIN;
DELETE FROM sequence_instance WHERE name = 'legacy order';
INSERT INTO sequence_instance (id, name, context_id, created_at, retain_until) OVERRIDING SYSTEM VALUE
    SELECT old.id, old.name, old.context_id, old.created_at, old.created_at + interval '30 days' FROM legacy.sequence_instance AS old;
INSERT INTO sequential_inbox_idempotence SELECT DISTINCT ON (message_type, idempotence_id) * FROM legacy.sequential_inbox_idempotence
    ORDER BY message_type, idempotence_id, created_at DESC;
SELECT setval('sequence_instance_id_seq', (SELECT max(id) FROM sequence_instance));
SELECT inbox_sequence('legacy order', 'order-1') AS old, inbox_sequence('legacy order', 'order-4') AS new;
SELECT inbox_claim('legacy.placed', 'evt-1', 501) AS old, inbox_claim('legacy.placed', 'evt-5', 501) AS new;
ROLLBACK;

--
-- Plain claims
--
SELECT handler, count(*) AS found, count(*) FILTER (WHERE won) AS moved
FROM (SELECT handler, unnest(inbox_claim_batch(handler, array_agg(event_id))) AS won
      FROM (SELECT handler, event_id,
                   row_number() OVER (PARTITION BY handler ORDER BY event_id) / 10000 AS chunk
            FROM legacy.processed_message
            WHERE processed_at > now() - interval '14 days') AS numbered
      GROUP BY handler, chunk) AS claimed
GROUP BY handler;
SELECT inbox_claim('legacy billing', 'evt-1') AS young, inbox_claim('legacy billing', 'evt-20159') AS fourteen_days,
       inbox_claim('legacy billing', 'evt-25000') AS older;
-- Again, after a failure say: nothing is moved twice.
SELECT count(*) FILTER (WHERE won) AS moved
    FROM legacy.processed_message AS old, LATERAL unnest(inbox_claim_batch(old.handler, ARRAY[old.event_id])) AS won
    WHERE old.processed_at > now() - interval '1 day';

-- Changing over without a pause: claimed in both tables, always the old one first.
BEGIN;
WITH old AS (
    INSERT INTO legacy.processed_message VALUES ('legacy billing', 'evt-new', now())
    ON CONFLICT (handler, event_id) DO NOTHING RETURNING 1)
SELECT EXISTS (SELECT FROM old) AS new_to_the_old_table;
SELECT inbox_claim('legacy billing', 'evt-new') AS new_to_the_inbox;
COMMIT;
SELECT count(*) AS missing FROM legacy.processed_message AS old
    WHERE old.processed_at > now() - interval '13 days'
      AND NOT EXISTS (SELECT FROM inbox_claims AS c
                      WHERE c.kind = 'consumer' AND c.id1 = old.handler AND c.id2 = old.event_id);

DROP SCHEMA legacy CASCADE;

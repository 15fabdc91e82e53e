-- What all examples share: the extension, the table that their handlers write to, and the role
-- that they connect as, with what it needs and no more (G14). Run it once, as a superuser:
--
--     psql --dbname=DATABASE --file=examples/setup.sql

\set ON_ERROR_STOP 1

CREATE EXTENSION IF NOT EXISTS sequential_inbox;

-- What the handlers did, in the order in which they did it.
CREATE TABLE ledger (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL,      -- the plain consumer, or the sequence
    context_id text,
    message_type text NOT NULL,
    message_id text NOT NULL,
    amount int NOT NULL,
    note text NOT NULL,
    released boolean NOT NULL    -- handed out by the inbox: false, delivered by the broker
);

-- Roles belong to the whole server, so it may be there from another database.
SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'inbox_example') AS is_missing \gset
\if :is_missing
CREATE ROLE inbox_example LOGIN;
\endif

GRANT INSERT ON ledger TO inbox_example;
-- To claim, receive and fail messages; and, since each example declares its sequences when it
-- starts, to declare.
SELECT inbox_grant('inbox_example', 'consumer');
SELECT inbox_grant('inbox_example', 'operator');

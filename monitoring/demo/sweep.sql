-- A sweeper: whatever may go now, one message a transaction.
BEGIN;
SELECT count(*) > 0 AS won FROM inbox_next() \gset
\if :won
INSERT INTO effect (of) VALUES ('released');
\endif
COMMIT;

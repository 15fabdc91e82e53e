-- A plain consumer: one message in eight is delivered again, now and then while it is still in hand.
\set again random(1, 8)
\set back random(0, 3)
BEGIN;
SELECT CASE WHEN :again = 1 THEN (SELECT last_value FROM invoice) - :back ELSE nextval('invoice') END AS number \gset
SELECT inbox_claim('billing', 'invoice ' || :number) AS won \gset
\if :won
INSERT INTO effect (of) VALUES ('invoice');
\sleep 4 ms
\endif
COMMIT;

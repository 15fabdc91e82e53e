-- Three messages an order, two of three orders out of order. The payment of one order in fifty is
-- lost, and one message in ten comes twice.
\set again random(1, 10)
\set back random(1, 60)
SELECT CASE WHEN :again = 1 THEN greatest((SELECT last_value FROM step) - :back, 3)
            ELSE nextval('step') END AS step \gset
\set number :step / 3
\set type mod(:step + :number, 3)
\if :type = 1 and mod(:number, 50) = 0
\set type 0
\endif
BEGIN;
SELECT decision = 'process' AS won
FROM inbox_receive((ARRAY['order.placed', 'order.paid', 'order.shipped'])[:type + 1],
                   'order ' || :number || '/' || :type, 'order ' || :number, 'payload') \gset
\if :won
INSERT INTO effect (of) VALUES ('order');
\endif
COMMIT;

-- Runs the consumer of install.sql once over the stream: declares what it needs, fills the topic
-- when it is empty, and consumes. When the connection is lost psql ends; run it again then, and
-- it goes on where it was:
--
--     until psql --dbname=DATABASE --username=inbox_example --file=examples/sql/consumer.sql; do
--         sleep 1
--     done
--
-- The stream is found from here: run it in the folder examples/.

\set ON_ERROR_STOP 1

\pset format unaligned
\pset tuples_only on

-- A service declares what it needs at each start: when nothing has changed, nothing is written and
-- nobody waits.

-- By conditions: an order is paid for and packed after it was placed, and shipped after both.
SELECT inbox_declare_sequence('orders', '30 days', '[
    {"type": "order.placed"},
    {"type": "order.paid",      "releaseCondition": {"predecessor": "order.placed"}},
    {"type": "order.packed",    "releaseCondition": {"predecessor": "order.placed"}},
    {"type": "order.shipped",   "releaseCondition": {"and": [
        {"predecessor": "order.paid"}, {"predecessor": "order.packed"}]}},
    {"type": "order.commented", "optional": true}]') \gset

-- By position: the entries of an account, 1, 2, 3 …, until it is closed.
SELECT inbox_declare_sequence('accounts', '90 days', '[
    {"type": "account.entry"},
    {"type": "account.closed", "final": true}]', ordering => 'position') \gset

SELECT NOT EXISTS (SELECT FROM topic) AS is_empty \gset
\if :is_empty
\copy topic (consumer, message_type, message_id, context_id, position_in_context, payload) from 'stream.csv' with (format csv, header)
\endif

-- Outside of a transaction: it commits after each message.
CALL consume();

SELECT outcome, count(*) FROM topic GROUP BY outcome
UNION ALL
SELECT 'redelivered', sum(delivery - 2) FROM topic;

-- What the workload of scripts/dashboard-picture.sh needs: a sequence whose instances live for a
-- minute, so that some expire while one looks, and the numbers of what was sent.
CREATE EXTENSION sequential_inbox;
SELECT inbox_declare_sequence('order', '1 minute', '[
    {"type": "order.placed"},
    {"type": "order.paid", "releaseCondition": {"predecessor": "order.placed"}},
    {"type": "order.shipped", "releaseCondition": {"predecessor": "order.paid"}}]');
CREATE SEQUENCE invoice;
CREATE SEQUENCE step;
CREATE TABLE effect (of text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());

-- A handler that gives up: in most cases for ten seconds, now and then for good.
\set for_good random(1, 20)
SELECT nextval('invoice') AS number \gset
SELECT inbox_fail('billing', 'invoice ' || :number, error => 'the bank does not answer',
                  retry_after => CASE WHEN :for_good > 1 THEN interval '10 seconds' END, payload => 'payload');

-- Claims of both kinds in one session (G1, G4, G5, G12): what each function answers, and what is
-- stored. Concurrency is in tests/isolation.

--
-- Plain claims
--

-- G1: the first one wins; a repeat is a duplicate, in the same statement too.
SELECT inbox_claim('billing', 'evt-1') AS first, inbox_claim('billing', 'evt-1') AS repeat;
SELECT inbox_claim('billing', 'evt-1');
SELECT inbox_try_claim('billing', 'evt-1'), inbox_try_claim('billing', 'evt-2'), inbox_try_claim('billing', 'evt-2');

-- G12: two consumers of one message each see it once.
SELECT inbox_claim('shipping', 'evt-1') AS shipping, inbox_claim('shipping', 'evt-1') AS again;

-- G4: a claim is a row of this transaction and goes with it.
BEGIN;
SELECT inbox_claim('billing', 'rolled back');
ROLLBACK;
SELECT inbox_claim('billing', 'rolled back');

-- So does one of a savepoint, and its key can be claimed anew in the same transaction.
BEGIN;
SAVEPOINT before_claim;
SELECT inbox_claim('billing', 'savepoint');
ROLLBACK TO SAVEPOINT before_claim;
SELECT inbox_claim('billing', 'savepoint');
SELECT inbox_try_claim('billing', 'savepoint');
COMMIT;
SELECT inbox_claim('billing', 'savepoint');

-- The same in a block with an exception handler.
DO $$
BEGIN
    BEGIN
        ASSERT inbox_claim('billing', 'block');
        RAISE EXCEPTION 'the handler failed';
    EXCEPTION WHEN raise_exception THEN
        RAISE NOTICE '%', SQLERRM;
    END;
    RAISE NOTICE 'claimed again: %', inbox_claim('billing', 'block');
END $$;

-- An error of the handler takes the claim with it.
BEGIN;
SELECT inbox_claim('billing', 'failed');
SELECT 1 / 0;
COMMIT;
SELECT inbox_claim('billing', 'failed');

-- A uuid is one message however it is written, as a uuid or as its canonical text.
SELECT inbox_claim('billing', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid) AS upper_case,
       inbox_claim('billing', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid) AS lower_case,
       inbox_claim('billing', '{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}'::uuid) AS braces,
       inbox_claim('billing', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11') AS canonical_text,
       inbox_try_claim('billing', 'A0EEBC999C0B4EF8BB6D6BB9BD380A11'::uuid) AS try;
-- A text is taken as it is.
SELECT inbox_claim('billing', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11');
SELECT message_id FROM inbox_claim_0 WHERE message_id ILIKE 'a0eebc99%' ORDER BY message_id;

-- Many at once: answers in the order of the input, a repeat is false.
SELECT inbox_claim_batch('batch', ARRAY['b1', 'b1', 'b2']);
SELECT inbox_claim_batch('batch', ARRAY['b3', 'b2', 'b0', 'b3', 'b1']);
SELECT inbox_claim_batch('other batch', ARRAY['b1']);
SELECT inbox_claim_batch('batch', ARRAY[]::text[]), inbox_claim_batch('batch', '{}');
-- Subscripts and dimensions do not matter.
SELECT inbox_claim_batch('batch', '[5:6]={b3,b4}'), inbox_claim_batch('batch', '{{b4,b6},{b7,b6}}');
-- A bad element is an error, and nothing is claimed (G11).
SELECT inbox_claim_batch('batch', ARRAY['b5', NULL]);
SELECT inbox_claim_batch('batch', ARRAY['b5', '']);
SELECT inbox_claim_batch('batch', ARRAY['b5', repeat('x', 1025)]);
SELECT inbox_claim_batch('batch', ARRAY['b5']);
-- Ten thousand, and all of them once more with one that is new.
SELECT count(*) FILTER (WHERE won) AS won, count(*) FILTER (WHERE NOT won) AS duplicates
    FROM unnest(inbox_claim_batch('batch', ARRAY(SELECT 'evt-' || n FROM generate_series(1, 10000) n))) won;
SELECT array_position(answers, true), cardinality(array_remove(answers, true)) AS duplicates
    FROM inbox_claim_batch('batch', ARRAY(SELECT 'evt-' || n FROM generate_series(10001, 1, -1) n)) answers;

-- Attributes are merged into the claim.
SELECT inbox_annotate('billing', 'evt-1', '{"source": "orders", "try": 1}');
SELECT inbox_annotate('billing', 'evt-1', '{"try": 2, "result": {"invoice": 12345678901234567890.5}}');
SELECT inbox_annotate('billing', 'evt-1', '{}');
SELECT attributes FROM inbox_claims WHERE id1 = 'billing' AND id2 = 'evt-1';
SELECT inbox_annotate('billing', 'unknown', '{"try": 1}'), inbox_annotate('unknown', 'evt-1', '{"try": 1}');
SELECT count(*) FROM inbox_claims WHERE attributes IS NOT NULL;
SELECT inbox_claim('billing', 'evt-1') AS annotated;

-- Released, a message is taken once more; that of another consumer stays (G12).
SELECT inbox_release('billing', 'evt-1'), inbox_release('billing', 'evt-1') AS again;
SELECT inbox_claim('shipping', 'evt-1') AS shipping, inbox_claim('billing', 'evt-1') AS billing,
       inbox_claim('billing', 'evt-1') AS again;
SELECT attributes FROM inbox_claims WHERE id1 = 'billing' AND id2 = 'evt-1';
SELECT inbox_release('billing', 'unknown');

--
-- Failures of a plain consumer (G5)
--

SELECT inbox_claim('mailing', 'evt-1');
SELECT inbox_fail('mailing', 'evt-1', error => 'mailbox full');
SELECT kind, claimed_at IS NOT NULL AS claimed, state, attempts, last_error FROM inbox_lookup('mailing', 'evt-1');
SELECT message_type, idempotence_id, state, attempts, last_error, payload_size, sequence_name FROM inbox_dead_letters;
-- A resend wins, and fails again. The error that is shown is that of the newest failure, which may
-- have none.
SELECT inbox_claim('mailing', 'evt-1');
SELECT inbox_fail('mailing', 'evt-1', error => 'mailbox still full');
SELECT inbox_fail('mailing', 'evt-1');
SELECT state, attempts, last_error FROM inbox_lookup('mailing', 'evt-1');
-- Then it wins for good: that is no dead letter any more.
SELECT inbox_claim('mailing', 'evt-1');
SELECT state, attempts, last_error FROM inbox_lookup('mailing', 'evt-1');
SELECT count(*) FROM inbox_dead_letters;
-- With a payload it comes back by itself, once.
SELECT inbox_claim('mailing', 'evt-2');
SELECT inbox_fail('mailing', 'evt-2', NULL, 'try again', '0', '\x00ff', '\x01', '{"trace": "t-1"}');
SELECT message_type, idempotence_id, sequence_instance_id, attempts, payload, message_key, headers FROM inbox_next();
SELECT count(*) FROM inbox_next();
SELECT state, attempts FROM inbox_lookup('mailing', 'evt-2');
SELECT inbox_claim('mailing', 'evt-2');
-- What is processed is not overwritten, neither by its key nor by its id.
SELECT inbox_fail('mailing', 'evt-2', error => 'too late');
SELECT inbox_fail_message(message_id, 'too late') FROM inbox_lookup('mailing', 'evt-2');
SELECT state, attempts, last_error FROM inbox_lookup('mailing', 'evt-2');
SELECT inbox_fail_message(9223372036854775807);
-- Not due yet: nothing is handed out, and it is no dead letter.
SELECT inbox_fail('mailing', 'evt-3', NULL, 'later', '1 hour', '\x02');
SELECT count(*) FROM inbox_next();
SELECT count(*) FROM inbox_dead_letters;
-- The payload that is stored serves the next failure, too.
SELECT inbox_fail('mailing', 'evt-3', NULL, 'now', '0');
SELECT idempotence_id, attempts, payload FROM inbox_next();

--
-- Sequenced claims
--

SELECT inbox_declare_sequence('orders', '1 day');
SELECT inbox_sequence('orders', 'order-1') AS order_1, inbox_sequence('orders', 'order-2') AS order_2 \gset
SELECT inbox_sequence('orders', 'order-1') = :order_1 AS the_same, :order_1 <> :order_2 AS another;

-- G1, and G12: the key is type and id.
SELECT inbox_claim('order.placed', 'evt-1', :order_1) AS first, inbox_claim('order.placed', 'evt-1', :order_1) AS repeat,
       inbox_claim('order.paid', 'evt-1', :order_1) AS other_type;
SELECT inbox_try_claim('order.placed', 'evt-1', :order_1), inbox_try_claim('order.placed', 'evt-2', :order_1),
       inbox_try_claim('order.placed', 'evt-2', :order_1);
-- The instance is where the claim lives, not a part of its key.
SELECT inbox_claim('order.placed', 'evt-1', :order_2), inbox_try_claim('order.placed', 'evt-1', :order_2);
SELECT count(*) FROM sequential_inbox_idempotence WHERE sequence_instance_id = :order_2;
-- The two claim spaces are separate.
SELECT inbox_claim('order.placed', 'evt-1') AS plain, inbox_claim('billing', 'evt-1', :order_1) AS sequenced;
SELECT kind, claimed_at IS NOT NULL AS claimed, sequence_instance_id = :order_1 AS instance
    FROM inbox_lookup('order.placed', 'evt-1') ORDER BY kind COLLATE "C";
-- Releasing and annotating reach plain claims only.
SELECT inbox_release('order.paid', 'evt-1'), inbox_annotate('order.paid', 'evt-1', '{}');

BEGIN;
SAVEPOINT before_claim;
SELECT inbox_claim('order.placed', 'savepoint', :order_1);
ROLLBACK TO SAVEPOINT before_claim;
SELECT inbox_claim('order.placed', 'savepoint', :order_1);
ROLLBACK;
SELECT inbox_claim('order.placed', 'savepoint', :order_1);

-- G5: failed and sent again.
SELECT inbox_fail('order.placed', 'evt-1', :order_1, 'out of stock');
SELECT claimed_at IS NOT NULL AS claimed, state, attempts, last_error
    FROM inbox_lookup('order.placed', 'evt-1') WHERE kind = 'sequence';
SELECT sequence_name, context_id, message_type, idempotence_id, last_error FROM inbox_dead_letters;
SELECT inbox_claim('order.placed', 'evt-1', :order_1), inbox_claim('order.placed', 'evt-1', :order_1) AS repeat;
SELECT state, attempts FROM inbox_lookup('order.placed', 'evt-1') WHERE kind = 'sequence';
-- Failed before any claim: there is a record all the same.
SELECT inbox_fail('order.placed', 'never claimed', :order_1, 'unreadable');
SELECT claimed_at, state, attempts, last_error FROM inbox_lookup('order.placed', 'never claimed');
-- Deleting an instance removes its claims, messages and payloads, and no others.
SELECT inbox_claim('order.placed', 'evt-3', :order_2);
SELECT inbox_fail('order.placed', 'evt-4', :order_2, NULL, '1 hour', '\x00');
DELETE FROM sequence_instance WHERE id = :order_2;
SELECT id2 FROM inbox_claims WHERE kind = 'sequence' ORDER BY id2;
SELECT count(*) FROM sequenced_message WHERE sequence_instance_id = :order_2;
SELECT count(*) FROM buffered_message b WHERE NOT EXISTS (SELECT FROM sequenced_message m WHERE m.id = b.message_id);
-- The message is new again, in an instance that is new.
SELECT state, hint FROM error_of(format('SELECT inbox_claim(''order.placed'', ''evt-3'', %s)', :order_2));
SELECT inbox_sequence('orders', 'order-2') > :order_2 AS new_id;
SELECT inbox_claim('order.placed', 'evt-3', inbox_sequence('orders', 'order-2'));

--
-- A claim by many rows, and times
--

SELECT inbox_claim('rows', 'evt-' || n % 3) AS won, count(*) FROM generate_series(1, 9) n GROUP BY won ORDER BY won;
-- claimed_at is the time of the call, not that of the transaction.
BEGIN;
SELECT pg_sleep(0.002);
SELECT inbox_claim('clock', 'evt-1'), inbox_claim('order.placed', 'clock', :order_1);
SELECT kind, claimed_at > now() AS later_than_the_transaction, claimed_at <= clock_timestamp() AS not_later_than_now
    FROM inbox_claims WHERE id1 = 'clock' OR id2 = 'clock' ORDER BY kind COLLATE "C";
COMMIT;

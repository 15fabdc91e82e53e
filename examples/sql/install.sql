-- A consumer in SQL alone, for messages that arrive in a table: of a logical replication, a
-- foreign data wrapper, a COPY. Its two procedures keep what correct use asks for:
--
-- - claim, handler and record in one transaction, and the acknowledgement in the next (G4);
-- - the whole transaction again after a serialization failure or a deadlock (G10);
-- - what a message released is handled right after it, one transaction each (G7);
-- - a handler that fails is rolled back, and its message tried again or given up (G5).
--
-- A procedure may commit when it is called outside of a transaction: CALL consume(); alone.
--
-- Run it once, after examples/setup.sql, as a superuser.

\set ON_ERROR_STOP 1

-- Stands in for the broker: what is not acknowledged is delivered again, after the others.
CREATE TABLE topic (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL,
    message_type text NOT NULL,
    message_id text NOT NULL,
    context_id text,
    position_in_context bigint,
    payload text NOT NULL,
    delivery int NOT NULL DEFAULT 1,
    outcome text                    -- once it is acknowledged
);
CREATE INDEX topic_open ON topic (delivery, place) WHERE outcome IS NULL;

GRANT SELECT, INSERT ON topic TO inbox_example;
GRANT UPDATE (delivery, outcome) ON topic TO inbox_example;

-- The handler: what a message is about. It knows nothing of the inbox, and raises an error when it
-- cannot do its work.
CREATE PROCEDURE handle(
    consumer text, context_id text, message_type text, message_id text, payload bytea,
    released boolean
) LANGUAGE plpgsql AS $$
DECLARE
    body text := convert_from(payload, 'UTF8');
    amount text := split_part(body, ' ', 1);
    note text := substr(body, length(amount) + 2);
BEGIN
    IF amount !~ '^-?[0-9]+$' THEN
        RAISE EXCEPTION '"%" is no amount', amount;
    END IF;
    INSERT INTO ledger (consumer, context_id, message_type, message_id, amount, note, released)
        VALUES (consumer, context_id, message_type, message_id, amount::int, note, released);
END
$$;

-- Handles what is ready, one transaction a message: in that instance, or in any.
CREATE PROCEDURE drain(instance bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
    -- So often a message may fail before it is left to an operator.
    max_failures CONSTANT int := 3;
    -- How long it stays away after a failure. Here it comes back at once, so that the example
    -- ends; a service waits longer each time: interval '10 seconds' * 2 ^ next.attempts.
    pause CONSTANT interval := '0';
    next record;
    next_id bigint;
    conflicts int := 0;
    problem text;
    code text;
BEGIN
    LOOP
        -- The handler's share, which is undone when it fails.
        BEGIN
            code := NULL;
            next_id := NULL;
            SELECT * INTO next FROM inbox_next(instance);
            EXIT WHEN NOT FOUND;
            next_id := next.message_id;
            CALL handle(next.sequence_name, next.context_id, next.message_type,
                next.idempotence_id, next.payload, true);
            -- What the commit would complain about is complained about here.
            SET CONSTRAINTS ALL IMMEDIATE;
        EXCEPTION WHEN OTHERS THEN
            code := SQLSTATE;
            problem := SQLERRM;
        END;
        IF code IS NULL THEN
            COMMIT;
            conflicts := 0;
            CONTINUE;
        END IF;
        ROLLBACK;
        IF code IN ('40001', '40P01') AND conflicts < 6 THEN
            conflicts := conflicts + 1;
            PERFORM pg_sleep(0.01 * 2 ^ conflicts * (1 + random()));
            CONTINUE;
        END IF;
        IF next_id IS NULL THEN
            RAISE EXCEPTION USING MESSAGE = problem, ERRCODE = code;
        END IF;
        -- Nobody redelivers it: its failure is recorded, or it would come again for ever.
        PERFORM inbox_fail_message(next_id, 'the handler failed: ' || problem,
            CASE WHEN next.attempts + 1 < max_failures THEN pause END);
        COMMIT;
        conflicts := 0;
    END LOOP;
    COMMIT;
END
$$;

-- Takes care of all that the topic delivers, then of all that is ready.
CREATE PROCEDURE consume() LANGUAGE plpgsql AS $$
DECLARE
    -- So often the topic delivers a message whose handler fails.
    max_deliveries CONSTANT int := 3;
    message topic;
    is_sequenced boolean;
    is_handled boolean;
    decision text;
    instance bigint;
    conflicts int;
    result text;
    problem text;
    code text;
BEGIN
    LOOP
        SELECT * INTO message FROM topic
            WHERE topic.outcome IS NULL ORDER BY delivery, place LIMIT 1;
        EXIT WHEN NOT FOUND;
        -- Before anything else: a session that dies has delivered it all the same.
        UPDATE topic SET delivery = delivery + 1 WHERE place = message.place;
        COMMIT;

        conflicts := 0;
        LOOP
            -- All of the message's transaction, but for its COMMIT.
            BEGIN
                code := NULL;
                instance := NULL;
                is_handled := false;
                is_sequenced := message.consumer IN ('orders', 'accounts');
                IF is_sequenced THEN
                    SELECT received.decision, received.sequence_instance_id
                        INTO decision, instance
                        FROM inbox_receive(message.message_type, message.message_id,
                            message.context_id, convert_to(message.payload, 'UTF8'),
                            "position" => message.position_in_context) AS received;
                    result := CASE decision WHEN 'process' THEN 'applied' ELSE decision END;
                END IF;
                -- A message without a context has no place in a sequence. It is to have its effect
                -- once all the same, and so is claimed like a plain consumer's.
                IF NOT is_sequenced OR result = 'direct' THEN
                    IF inbox_claim(message.consumer, message.message_id) THEN
                        result := CASE WHEN is_sequenced THEN 'direct' ELSE 'applied' END;
                    ELSE
                        result := 'duplicate';
                    END IF;
                END IF;
                IF result IN ('applied', 'direct') THEN
                    is_handled := true;
                    CALL handle(message.consumer, message.context_id, message.message_type,
                        message.message_id, convert_to(message.payload, 'UTF8'), false);
                END IF;
                SET CONSTRAINTS ALL IMMEDIATE;
            EXCEPTION WHEN OTHERS THEN
                code := SQLSTATE;
                problem := SQLERRM;
            END;
            EXIT WHEN code IS NULL OR code NOT IN ('40001', '40P01') OR conflicts >= 6;
            ROLLBACK;
            conflicts := conflicts + 1;
            PERFORM pg_sleep(0.01 * 2 ^ conflicts * (1 + random()));
        END LOOP;

        IF code IS NULL THEN
            COMMIT;
        ELSE
            ROLLBACK;
            IF NOT is_handled THEN
                -- It could not be taken, and that is not the message's fault.
                RAISE EXCEPTION USING MESSAGE = problem, ERRCODE = code;
            END IF;
            -- Not acknowledged, it is delivered again.
            CONTINUE WHEN message.delivery < max_deliveries;
            -- Given up, in a transaction of its own: a dead letter, with all that is needed to
            -- bring the message back. A bare claim looks the same whether its message succeeded or
            -- not; whoever can claim it now knows that nobody has succeeded.
            problem := format('at delivery %s: the handler failed: %s', message.delivery, problem);
            IF is_sequenced AND message.context_id IS NOT NULL THEN
                result := CASE WHEN inbox_fail(message.message_type, message.message_id,
                    inbox_sequence(message.consumer, message.context_id), problem,
                    payload => convert_to(message.payload, 'UTF8'))
                    THEN 'dead_lettered' ELSE 'duplicate' END;
            ELSE
                result := CASE WHEN inbox_claim(message.consumer, message.message_id)
                    AND inbox_fail(message.consumer, message.message_id, error => problem,
                        payload => convert_to(message.payload, 'UTF8'))
                    THEN 'dead_lettered' ELSE 'duplicate' END;
            END IF;
            COMMIT;
        END IF;

        -- Only now: acknowledge, then handle what the message released.
        UPDATE topic SET outcome = result WHERE place = message.place;
        COMMIT;
        IF instance IS NOT NULL AND result = 'applied' THEN
            CALL drain(instance);
        END IF;
    END LOOP;
    COMMIT;
    -- What a session that died has left released, and what is due again.
    CALL drain();
END
$$;

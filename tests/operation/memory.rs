//! The memory of one session that calls every function again and again, successes, duplicates and
//! errors alike, each round in a transaction of its own: after its caches have their size it does
//! not grow. `make soak` makes a million calls instead of forty thousand; the limit is the same.

use inbox_test_support::{Database, inbox::Session};

use crate::backend::{Held, largest_contexts};

/// Calls, unless INBOX_CALLS says how many.
const CALLS: i64 = 40_000;

/// How many rounds there are before the first look.
const WARM_UP: i64 = 300;

/// By how much what it uses in Postgres' memory contexts may grow in all rounds after that, in
/// kilobytes.
const GROWTH_KB: i64 = 768;

/// The same for what it has from the system, in which what the library allocates by itself is. It
/// steps up by some hundred kilobytes as the tables get larger, and not with each round.
const PRIVATE_GROWTH_KB: i64 = 4 * 1024;

/// One round: every function of the inbox, in every way that it answers. A failed call is caught, as
/// a handler would; `calls` counts what was called.
const ROUND: &str = r#"
CREATE FUNCTION refused(call text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE call;
    RAISE 'not refused: %', call USING ERRCODE = 'XX000';
EXCEPTION WHEN invalid_parameter_value OR undefined_object OR foreign_key_violation
    OR null_value_not_allowed OR string_data_right_truncation THEN
    NULL;
END $$;
CREATE FUNCTION one_round(n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    i bigint;
    m bigint;
    event text := 'evt-' || n;
BEGIN
    -- Plain claims.
    PERFORM inbox_claim('billing', event);
    PERFORM inbox_claim('billing', event);
    PERFORM inbox_claim('billing', gen_random_uuid());
    PERFORM inbox_try_claim('billing', event || 't');
    PERFORM inbox_try_claim('billing', event);
    PERFORM inbox_try_claim('billing', gen_random_uuid());
    PERFORM inbox_claim_batch('billing', ARRAY[event || 'a', event || 'b', event, event || 'a']);
    PERFORM inbox_annotate('billing', event, '{"trace": 1}');
    PERFORM inbox_lookup('billing', event);
    PERFORM inbox_release('billing', event || 'a');
    PERFORM inbox_fail('billing', event || 'b', NULL, 'broken', '1 hour', '\x00');
    -- Sequences by condition.
    i := inbox_sequence('orders', 'o' || n);
    PERFORM inbox_claim('other', event, i);
    PERFORM inbox_try_claim('other', event, i);
    PERFORM inbox_receive('paid', event, 'o' || n, repeat('x', 500)::bytea);
    PERFORM inbox_receive('placed', event, 'o' || n);
    PERFORM inbox_receive('placed', event, 'o' || n);
    PERFORM inbox_receive('placed', event || 'd', NULL);
    PERFORM inbox_next(i);
    PERFORM inbox_next(i);
    SELECT message_id INTO m FROM inbox_receive('noted', event, 'o' || n, '\x00', wait => false);
    PERFORM inbox_fail_message(m, 'broken');
    PERFORM inbox_fail('noted', event || 'f', i, 'broken', NULL, '\x00');
    SELECT s.id INTO m FROM sequenced_message s WHERE s.message_type = 'noted'
        AND s.idempotence_id = event || 'f';
    PERFORM inbox_retry(m);
    PERFORM inbox_next(i);
    PERFORM inbox_receive('paid', event || 'w', 'w' || n, '\x01');
    i := inbox_sequence('orders', 'w' || n);
    SELECT s.id INTO m FROM sequenced_message s WHERE s.sequence_instance_id = i;
    PERFORM inbox_force(m);
    PERFORM inbox_skip(m);
    PERFORM inbox_force_all(i);
    PERFORM inbox_close(i);
    -- And by position.
    PERFORM inbox_receive('step', event || 2, 'p' || n, '\x02', "position" => 2);
    i := inbox_sequence('steps', 'p' || n);
    PERFORM inbox_skip_gap(i);
    PERFORM inbox_next(i);
    PERFORM inbox_next();
    -- Errors of every kind that a caller can make.
    PERFORM refused('SELECT inbox_claim(NULL, ''x'')');
    PERFORM refused('SELECT inbox_claim(''billing'', '''')');
    PERFORM refused('SELECT inbox_claim(''billing'', repeat(''x'', 2000))');
    PERFORM refused('SELECT inbox_claim(''other'', ''x'', 0)');
    PERFORM refused('SELECT inbox_receive(''undeclared'', ''x'', ''y'')');
    -- Declarations, what is shown, housekeeping.
    IF n % 10 = 0 THEN
        PERFORM inbox_declare_sequence('more', '1 day', '[{"type": "m"}]');
        PERFORM inbox_drop_sequence('more');
        PERFORM * FROM inbox_sequences WHERE id = i;
        PERFORM * FROM inbox_settings;
        PERFORM inbox_housekeeping(10);
    END IF;
END $$;
CREATE PROCEDURE rounds(first bigint, last bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN first..last LOOP
        PERFORM one_round(n);
        COMMIT;
    END LOOP;
END $$;
SELECT inbox_declare_sequence('orders', '1 day', '[{"type": "placed"},
    {"type": "paid", "releaseCondition": {"predecessor": "placed"}}, {"type": "noted", "optional": true}]');
SELECT inbox_declare_sequence('steps', '1 day', '[{"type": "step"}]', ordering => 'position', on_failure => 'skip');
"#;

/// How many calls a round makes, leaving out what every tenth does besides.
fn calls_of_a_round() -> i64 {
    let round =
        &ROUND[ROUND.find("FUNCTION one_round(").unwrap()..ROUND.find("IF n % 10").unwrap()];
    i64::try_from(round.matches("inbox_").count()).unwrap()
}

#[test]
fn a_session_that_calls_everything_does_not_grow() {
    let calls = match std::env::var("INBOX_CALLS") {
        Ok(number) => number.parse().expect("INBOX_CALLS is a number"),
        Err(_) => CALLS,
    };
    let rounds = calls / calls_of_a_round() + 1;
    let database = Database::new();
    let mut session = Session::new(&database);
    session.run(ROUND);
    // What Postgres compiles of a query it never returns to the system.
    session.run("SET jit = off");
    session.run(&format!("CALL rounds(1, {WARM_UP})"));
    let warm = Held::by(&mut session);
    session.run(&format!("CALL rounds({WARM_UP} + 1, {WARM_UP} + {rounds})"));
    let after = Held::by(&mut session);
    println!("{calls} calls in {rounds} rounds: {warm:?}, then {after:?}");
    assert!(
        after.private_kb - warm.private_kb < PRIVATE_GROWTH_KB
            && after.contexts_kb - warm.contexts_kb < GROWTH_KB,
        "{warm:?}, then {after:?}\n{}",
        largest_contexts(&mut session)
    );
    assert_eq!(after.deleted_files, warm.deleted_files);
    // It did what it should.
    let done: bool = session.value(
        "SELECT (SELECT count(*) FROM sequence_instance) = 3 * $1::bigint
            AND (SELECT count(*) FROM inbox_claims WHERE kind = 'consumer') >= 4 * $1::bigint",
        &[&(WARM_UP + rounds)],
    );
    assert!(done);
}

//! Ordering by position: strictly 1, 2, 3 … without gaps, until somebody gives one up (G6, G7, G8).

use inbox_test_support::inbox::{Arrival, Received, Session};

use super::{declare_position, declared};

/// Receives `step` messages at these positions, whose ids are the positions, and gives what was
/// decided.
fn steps(session: &mut Session, positions: &[i64]) -> Vec<Received> {
    positions
        .iter()
        .map(|position| session.receive(&Arrival::at("step", &position.to_string(), *position)))
        .collect()
}

fn decisions(received: &[Received]) -> Vec<&str> {
    received.iter().map(|it| it.decision.as_str()).collect()
}

fn next_position(session: &mut Session, instance: i64) -> i64 {
    session.value(
        "SELECT next_position FROM inbox_sequences WHERE id = $1",
        &[&instance],
    )
}

/// Pseudo-random order of 1 ..= n without one of them, the same in every run.
fn shuffled(n: i64, without: i64) -> Vec<i64> {
    let mut positions: Vec<i64> = (1..=n).filter(|p| *p != without).collect();
    let mut seed = 4711_u64;
    for index in (1..positions.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        positions.swap(index, (seed >> 33) as usize % (index + 1));
    }
    positions
}

#[test]
fn g6_three_one_two_is_handled_as_one_two_three() {
    let (_database, mut session) = declared();
    let received = steps(&mut session, &[3, 1, 2]);
    assert_eq!(decisions(&received), ["buffered", "process", "process"]);
    assert_eq!(received[0].reason.as_deref(), Some("waits for position 1"));
    let third = session.next(received[0].instance).expect("the third");
    assert_eq!((&*third.id, third.position), ("3", Some(3)));
    assert_eq!(session.next(received[0].instance), None);
    assert_eq!(next_position(&mut session, received[0].instance()), 4);
}

#[test]
fn g6_g7_a_gap_of_one_among_a_thousand_holds_back_exactly_what_is_behind_it() {
    const N: i64 = 1000;
    const GAP: i64 = 500;
    let (_database, mut session) = declared();
    let mut handled = Vec::new();
    let mut instance = 0;
    for position in shuffled(N, GAP) {
        let received = session.receive(&Arrival::at("step", &position.to_string(), position));
        instance = received.instance();
        if received.decision == "process" {
            handled.push(position);
            handled.extend(
                session
                    .drain(instance)
                    .iter()
                    .map(|id| id.parse::<i64>().unwrap()),
            );
        }
    }
    assert_eq!(handled, (1..GAP).collect::<Vec<_>>());
    let blocked: (i64, String) = (
        session.value("SELECT waiting FROM inbox_sequences", &[]),
        session.value("SELECT blocked_on FROM inbox_sequences", &[]),
    );
    assert_eq!(blocked, (N - GAP, format!("position {GAP}")));
    session.decided("process", &Arrival::at("step", "500", GAP));
    let rest: Vec<i64> = session
        .drain(instance)
        .iter()
        .map(|id| id.parse().unwrap())
        .collect();
    assert_eq!(rest, (GAP + 1..=N).collect::<Vec<_>>());
}

#[test]
fn g8_the_same_position_twice_is_rejected_and_nothing_stalls() {
    let (_database, mut session) = declared();
    let first = session.decided("process", &Arrival::at("step", "1", 1));
    // Of a processed position, and of one that waits.
    let again = session.decided("rejected", &Arrival::at("step", "1 again", 1));
    let reason = again.reason.clone().expect("a reason");
    assert!(reason.contains("position 1 is taken"), "{reason}");
    assert!(reason.contains(&first.message().to_string()), "{reason}");
    session.decided("buffered", &Arrival::at("step", "3", 3));
    session.decided("rejected", &Arrival::at("step", "3 again", 3));
    assert_eq!(
        session.next(None),
        None,
        "a rejected message is not handed out"
    );
    session.decided("process", &Arrival::at("step", "2", 2));
    assert_eq!(session.drain(first.instance()), ["3"]);
    session.decided("process", &Arrival::at("step", "4", 4));
    // It is a dead letter that says why, with its payload; a resend is judged anew, the same way.
    for id in ["1 again", "3 again"] {
        let dead: bool = session.value(
            "SELECT last_error ~ 'is taken' AND rejected AND attempts = 0 AND payload_size = 7
             FROM inbox_dead_letters WHERE idempotence_id = $1",
            &[&id],
        );
        assert!(dead, "{id}");
    }
    let resent = session.decided("rejected", &Arrival::at("step", "1 again", 1));
    assert_eq!(resent.message, again.message);
    // Sent with the position that it should have had, it is handled.
    session.decided("process", &Arrival::at("step", "1 again", 5));
}

#[test]
fn g8_a_late_message_of_a_position_given_up_is_rejected_and_not_handled() {
    let (_database, mut session) = declared();
    let received = steps(&mut session, &[1, 4, 5]);
    let instance = received[0].instance();
    assert!(session.operate("inbox_skip_gap", instance));
    assert_eq!(session.drain(instance), ["4", "5"]);
    let late = session.decided("rejected", &Arrival::at("step", "3", 3));
    assert!(late.reason.expect("a reason").contains("comes too late"));
    assert_eq!(session.next(None), None);
    assert_eq!(session.state_of("3").as_deref(), Some("FAILED"));
    // The operator cannot bring it back into the order, only out of it.
    let late = late.message.expect("a record");
    assert!(!session.operate("inbox_retry", late));
    assert!(session.operate("inbox_force", late));
    assert_eq!(session.drain(instance), ["3"]);
    session.decided("process", &Arrival::at("step", "6", 6));
    assert_eq!(next_position(&mut session, instance), 7);
}

#[test]
fn g6_a_failed_position_holds_back_the_next_until_its_resend() {
    let (_database, mut session) = declared();
    let received = steps(&mut session, &[3, 2, 1]);
    let instance = received[0].instance();
    session.begin();
    let second = session.next(instance).expect("2");
    session.rollback();
    assert!(session.fail(second.message, "broken", None));
    assert_eq!(session.next(instance), None);
    session.decided("buffered", &Arrival::at("step", "4", 4));
    // It is not a gap: there is something to resend, retry or skip.
    assert!(!session.operate("inbox_skip_gap", instance));
    session.decided("process", &Arrival::at("step", "2", 2));
    assert_eq!(session.drain(instance), ["3", "4"]);
}

#[test]
fn with_on_failure_skip_the_next_position_goes_on() {
    let (_database, mut session) = declared();
    declare_position(&mut session, "skip");
    let received = steps(&mut session, &[3, 2, 1]);
    let instance = received[0].instance();
    session.begin();
    let second = session.next(instance).expect("2");
    session.rollback();
    // One that comes back by itself is waited for.
    assert!(session.fail(second.message, "503", Some("1 hour")));
    assert_eq!(session.next(instance), None);
    assert!(session.fail(second.message, "410", None));
    assert_eq!(session.drain(instance), ["3"]);
    session.decided("process", &Arrival::at("step", "4", 4));
    // What was passed over is handled when it is sent again.
    session.decided("process", &Arrival::at("step", "2", 2));
    assert_eq!(next_position(&mut session, instance), 5);
}

#[test]
fn g7_switching_to_skip_lets_what_a_failure_blocked_go_on() {
    let (_database, mut session) = declared();
    let received = steps(&mut session, &[2, 1]);
    let instance = received[0].instance();
    assert!(session.fail(received[0].message(), "broken", None));
    // Nothing waits yet when the declaration changes.
    declare_position(&mut session, "skip");
    session.decided("process", &Arrival::at("step", "3", 3));
    // And back: what was passed stays passed.
    declare_position(&mut session, "block");
    session.decided("process", &Arrival::at("step", "4", 4));
    assert_eq!(next_position(&mut session, instance), 5);
}

#[test]
fn g7_an_immediate_message_that_fails_keeps_its_position() {
    for on_failure in ["block", "skip"] {
        let (_database, mut session) = declared();
        declare_position(&mut session, on_failure);
        let received = steps(&mut session, &[1, 3]);
        let instance = received[0].instance();
        // The handler of 2 fails; the broker is told, and the inbox tries again by itself.
        let fail = |session: &mut Session, retry_after: Option<&str>| {
            session.begin();
            session.decided("process", &Arrival::at("step", "2", 2));
            session.rollback();
            let failed: bool = session.value(
                "SELECT inbox_fail('step', '2', $1, 'broken', $2::text::interval, 'payload of 2')",
                &[&instance, &retry_after],
            );
            assert!(failed);
        };
        fail(&mut session, Some("1 hour"));
        assert_eq!(
            session.next(instance),
            None,
            "{on_failure}: 3 must wait for 2"
        );
        fail(&mut session, Some("0"));
        let second = session.next(instance).expect("2 is due");
        assert_eq!(
            (&*second.id, second.position),
            ("2", Some(2)),
            "{on_failure}"
        );
        assert_eq!(session.drain(instance), ["3"], "{on_failure}");
        // One that fails for good at the head, with nothing recorded of it before.
        session.decided("buffered", &Arrival::at("step", "5", 5));
        session.begin();
        session.decided("process", &Arrival::at("step", "4", 4));
        session.rollback();
        session.run(&format!(
            "SELECT inbox_fail('step', '4', {instance}, 'broken')"
        ));
        let gone_on = session.drain(instance);
        if on_failure == "skip" {
            assert_eq!(gone_on, ["5"]);
        } else {
            assert!(gone_on.is_empty(), "{gone_on:?}");
        }
        session.decided("process", &Arrival::at("step", "4", 4));
        session.drain(instance);
        assert_eq!(next_position(&mut session, instance), 6, "{on_failure}");
    }
}

#[test]
fn g6_a_failure_does_not_give_a_rejected_message_the_position() {
    let (_database, mut session) = declared();
    session.decided("process", &Arrival::at("step", "1", 1));
    let rejected = session.decided("rejected", &Arrival::at("step", "1 again", 1));
    assert!(session.fail(rejected.message(), "still wrong", None));
    session.decided("rejected", &Arrival::at("step", "1 again", 1));
}

#[test]
fn g6_a_resend_under_another_context_does_not_bring_its_position_along() {
    let (_database, mut session) = declared();
    let moved = session.decided("buffered", &Arrival::at("step", "2", 2));
    assert!(session.fail(moved.message(), "wrong context", None));
    for (id, position) in [("b1", 1), ("b2", 2)] {
        session.decided(
            "process",
            &Arrival::at("step", id, position).of("context-2"),
        );
    }
    session.decided("rejected", &Arrival::at("step", "2", 2).of("context-2"));
    session.decided("process", &Arrival::at("step", "2", 3).of("context-2"));
}

#[test]
fn g6_after_a_crash_a_live_message_does_not_overtake_what_is_buffered() {
    let (database, mut session) = declared();
    let received = steps(&mut session, &[2, 3]);
    let instance = received[0].instance();
    // The process that handled 1 dies before it has drained 2 and 3.
    let mut dying = Session::new(&database);
    dying.decided("process", &Arrival::at("step", "1", 1));
    database.terminate(dying.pid());
    let live = session.decided("buffered", &Arrival::at("step", "4", 4));
    assert_eq!(live.reason.as_deref(), Some("waits for position 2"));
    // It dies again in the middle of handling 2.
    let mut dying = Session::new(&database);
    dying.begin();
    assert_eq!(dying.next_id(None), "2");
    database.terminate(dying.pid());
    session.decided("buffered", &Arrival::at("step", "5", 5));
    let mut order = vec![session.next_id(None)];
    order.extend(session.drain(instance));
    assert_eq!(order, ["2", "3", "4", "5"]);
}

#[test]
fn completion_is_the_final_message() {
    let (_database, mut session) = declared();
    let last = session.decided("buffered", &Arrival::at("last", "3", 3));
    let instance = last.instance();
    steps(&mut session, &[1, 2]);
    assert_eq!(session.state_of_instance(instance), "OPEN");
    assert_eq!(session.drain(instance), ["3"]);
    assert_eq!(session.state_of_instance(instance), "CLOSED");
    // A further message is handled, and one that must wait is not forgotten.
    session.decided("process", &Arrival::at("step", "4", 4));
    assert_eq!(session.state_of_instance(instance), "CLOSED");
    session.decided("buffered", &Arrival::at("step", "6", 6));
    assert_eq!(session.state_of_instance(instance), "OPEN");
    session.run("SELECT * FROM inbox_housekeeping()");
    assert_eq!(
        session.state_of_instance(instance),
        "OPEN",
        "something waits"
    );
    session.decided("process", &Arrival::at("step", "5", 5));
    assert_eq!(session.drain(instance), ["6"]);
    assert_eq!(session.state_of_instance(instance), "CLOSED");
}

#[test]
fn a_topic_that_is_recorded_goes_on_by_position_where_recording_ends() {
    let (_database, mut session) = declared();
    let recording = |until: &str| {
        format!(
            r#"SELECT inbox_declare_sequence('position', '1 day', '[{{"type": "step"}}]',
                   ordering => 'position',
                   recording_until => clock_timestamp() + interval '{until}')"#
        )
    };
    // Something waits already when recording begins.
    let waiting = session.decided("buffered", &Arrival::at("step", "38", 38));
    session.run(&recording("1 hour"));
    assert_eq!(session.drain(waiting.instance()), ["38"]);
    // The live topic is somewhere in the middle.
    for position in [41, 42, 43] {
        session.decided(
            "process",
            &Arrival::at("step", &position.to_string(), position),
        );
    }
    session.run(&recording("-1 second"));
    session.decided("buffered", &Arrival::at("step", "45", 45));
    session.decided("rejected", &Arrival::at("step", "40", 40));
    session.decided("process", &Arrival::at("step", "44", 44));
    assert_eq!(session.drain(waiting.instance()), ["45"]);
}

#[test]
fn g7_positions_recorded_before_the_ordering_changed_count() {
    let (_database, mut session) = declared();
    session.run(r#"SELECT inbox_declare_sequence('later', '1 day', '[{"type": "late"}]')"#);
    session.decided("process", &Arrival::at("late", "1", 1));
    session.decided("process", &Arrival::at("late", "2", 2));
    session.run(
        r#"SELECT inbox_declare_sequence('later', '1 day', '[{"type": "late"}]',
               ordering => 'position')"#,
    );
    let fourth = session.decided("buffered", &Arrival::at("late", "4", 4));
    session.decided("process", &Arrival::at("late", "3", 3));
    assert_eq!(session.drain(fourth.instance()), ["4"]);
}

#[test]
fn g7_a_forced_position_is_not_waited_for_again() {
    let (_database, mut session) = declared();
    let received = steps(&mut session, &[3, 4]);
    let instance = received[0].instance();
    assert!(session.operate("inbox_force", received[0].message()));
    assert_eq!(session.drain(instance), ["3"]);
    steps(&mut session, &[1, 2]);
    assert_eq!(session.drain(instance), ["4"]);
    assert_eq!(next_position(&mut session, instance), 5);
}

#[test]
fn g7_a_rejected_message_set_going_by_hand_hides_nothing_at_its_position() {
    // One was rejected at position 3 because its instance was closed; another took the position
    // since. Whatever the operator does with the first, the second is handled in its turn.
    for function in ["inbox_force", "inbox_skip"] {
        let (_database, mut session) = declared();
        let instance: i64 = session.value("SELECT inbox_sequence('position', 'context-1')", &[]);
        assert!(session.operate("inbox_close", instance));
        let first = session.decided("rejected", &Arrival::at("step", "3 first", 3));
        let second = session.decided("rejected", &Arrival::at("step", "3 second", 3));
        assert!(session.operate("inbox_retry", second.message()));
        assert_eq!(session.state_of("3 second").as_deref(), Some("WAITING"));
        assert!(session.operate(function, first.message()), "{function}");
        let mut handled = session.drain(instance);
        steps(&mut session, &[1, 2]);
        handled.extend(session.drain(instance));
        let expected: &[&str] = match function {
            "inbox_force" => &["3 first", "3 second"],
            _ => &["3 second"],
        };
        assert_eq!(handled, expected, "{function}");
        session.decided("process", &Arrival::at("step", "4", 4));
    }
}

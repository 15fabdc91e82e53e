//! What each operator function does to a message or an instance in each state.

use inbox_test_support::inbox::{Arrival, Session};

use super::{attempts, dead_letters, declared, instance, received};

/// Puts a message of type `second` into each state; its record's id.
fn message_in(session: &mut Session, state: &str) -> i64 {
    let second = session.receive(&Arrival::new("second", state)).message();
    if state == "WAITING" {
        return second;
    }
    session.receive(&Arrival::new("first", "first"));
    match state {
        "READY" => {}
        "PROCESSED" => assert_eq!(session.next_id(None), state),
        "FAILED" => assert!(session.fail(second, "broken", None)),
        "scheduled" => assert!(session.fail(second, "broken", Some("1 hour"))),
        _ => assert!(session.operate("inbox_skip", second)),
    }
    second
}

#[test]
fn each_function_answers_true_exactly_where_the_state_allows_it() {
    let states = [
        "WAITING",
        "READY",
        "PROCESSED",
        "FAILED",
        "scheduled",
        "SKIPPED",
    ];
    for (function, expected) in [
        (
            "inbox_retry",
            [None, None, None, Some("READY"), Some("READY"), None],
        ),
        (
            "inbox_force",
            [
                Some("READY"),
                None,
                None,
                Some("READY"),
                Some("READY"),
                None,
            ],
        ),
        (
            "inbox_skip",
            [
                Some("SKIPPED"),
                Some("SKIPPED"),
                None,
                Some("SKIPPED"),
                Some("SKIPPED"),
                None,
            ],
        ),
    ] {
        for (state, expected) in states.into_iter().zip(expected) {
            let (_database, mut session) = declared();
            let message = message_in(&mut session, state);
            let before = session.state_of(state);
            let case = format!("{function} of {state}");
            assert_eq!(
                session.operate(function, message),
                expected.is_some(),
                "{case}"
            );
            match expected {
                Some(after) => {
                    assert_eq!(session.state_of(state).as_deref(), Some(after), "{case}")
                }
                None => assert_eq!(session.state_of(state), before, "{case}"),
            }
            // Whatever was done, a resend is never handled beside it.
            session.decided("duplicate", &Arrival::new("second", state));
        }
    }
}

#[test]
fn inbox_retry_gives_back_a_failed_message_with_its_payload_and_its_attempts() {
    let (_database, mut session) = declared();
    let message = message_in(&mut session, "FAILED");
    assert_eq!(dead_letters(&mut session), ["FAILED: broken"]);
    assert!(session.operate("inbox_retry", message));
    assert!(
        !session.operate("inbox_retry", message),
        "it is not failed any more"
    );
    assert!(dead_letters(&mut session).is_empty());
    let released = session.next(None).expect("the message");
    assert_eq!((released.message, released.attempts), (message, 1));
    assert_eq!(released.payload.as_deref(), Some(b"FAILED".as_slice()));
}

#[test]
fn inbox_retry_of_a_message_whose_condition_does_not_hold_lets_it_wait() {
    let (_database, mut session) = declared();
    let message = session
        .decided("buffered", &Arrival::new("second", "2"))
        .message();
    assert!(session.fail(message, "by hand", None));
    assert!(session.operate("inbox_retry", message));
    assert_eq!(session.state_of("2").as_deref(), Some("WAITING"));
    assert_eq!(session.next(None), None);
    session.decided("process", &Arrival::new("first", "1"));
    assert_eq!(session.next_id(None), "2");
}

#[test]
fn inbox_retry_of_a_failure_that_a_direct_claim_resolved_is_too_late() {
    let (_database, mut session) = declared();
    let message = message_in(&mut session, "FAILED");
    let of = instance(&mut session);
    session.run(&format!("SELECT inbox_claim('second', 'FAILED', {of})"));
    for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
        assert!(!session.operate(function, message), "{function}");
    }
    assert_eq!(session.next(None), None);
    assert!(dead_letters(&mut session).is_empty());
}

#[test]
fn g6_inbox_force_lets_one_message_go_out_of_turn_and_no_other() {
    let (_database, mut session) = declared();
    let ids = received(&mut session, &["third", "second"]);
    let of = instance(&mut session);
    assert!(session.operate("inbox_force", ids[0]));
    assert_eq!(session.drain(of), ["third"]);
    assert_eq!(session.state_of("second").as_deref(), Some("WAITING"));
    session.decided("process", &Arrival::new("first", "first"));
    assert_eq!(session.drain(of), ["second"]);
    // A forced message that fails is not forced any more: its turn counts again.
    let mut again = Arrival::new("third", "third-2").of("context-2");
    let forced = session.decided("buffered", &again);
    assert!(session.operate("inbox_force", forced.message()));
    assert!(session.fail(forced.message(), "broken", None));
    assert!(session.operate("inbox_retry", forced.message()));
    assert_eq!(session.state_of("third-2").as_deref(), Some("WAITING"));
    again.id = "third-3";
    session.decided("buffered", &again);
}

#[test]
fn inbox_skip_counts_as_processed_without_being_handled() {
    let (_database, mut session) = declared();
    let ids = received(&mut session, &["third", "second"]);
    let of = instance(&mut session);
    session.decided("process", &Arrival::new("first", "first"));
    // second is ready; skipping it releases third.
    assert!(session.operate("inbox_skip", ids[1]));
    assert_eq!(session.state_of("second").as_deref(), Some("SKIPPED"));
    assert_eq!(session.drain(of), ["third"]);
    assert_eq!(
        session.state_of_instance(of),
        "CLOSED",
        "complete with what was skipped"
    );
    let payloads: i64 = session.value("SELECT count(*) FROM buffered_message", &[]);
    assert_eq!(payloads, 0);
    // Skipping the last one that waits completes the instance.
    let waiting = session.decided("buffered", &Arrival::new("second", "2").of("context-2"));
    session.decided("process", &Arrival::new("first", "1").of("context-2"));
    assert!(session.operate("inbox_skip", waiting.message()));
    session.decided("process", &Arrival::new("third", "3").of("context-2"));
    assert_eq!(session.state_of_instance(waiting.instance()), "CLOSED");
}

#[test]
fn inbox_skip_moves_a_position_on() {
    let (_database, mut session) = declared();
    let second = session.decided("buffered", &Arrival::at("step", "2", 2));
    let third = session.decided("buffered", &Arrival::at("step", "3", 3));
    assert!(session.operate("inbox_skip", second.message()));
    assert_eq!(session.next(None), None, "1 is still missing");
    session.decided("process", &Arrival::at("step", "1", 1));
    assert_eq!(session.drain(third.instance()), ["3"]);
    // A failed one that blocks, and the last one, which closes the instance.
    let fifth = session.decided("buffered", &Arrival::at("last", "5", 5));
    let fourth = session.decided("process", &Arrival::at("step", "4", 4));
    assert!(!session.operate("inbox_skip", fourth.message()));
    assert!(session.operate("inbox_skip", fifth.message()));
    assert_eq!(session.state_of_instance(third.instance()), "CLOSED");
}

#[test]
fn inbox_skip_gap_gives_up_one_gap_after_the_other() {
    let (_database, mut session) = declared();
    let of: i64 = session.value("SELECT inbox_sequence('position', 'context-1')", &[]);
    assert!(!session.operate("inbox_skip_gap", of), "nothing is there");
    for position in [3, 4, 7] {
        session.decided(
            "buffered",
            &Arrival::at("step", &position.to_string(), position),
        );
    }
    assert!(session.operate("inbox_skip_gap", of));
    assert!(
        !session.operate("inbox_skip_gap", of),
        "3 is next and there"
    );
    assert_eq!(session.drain(of), ["3", "4"]);
    assert!(session.operate("inbox_skip_gap", of));
    assert_eq!(session.drain(of), ["7"]);
    assert!(!session.operate("inbox_skip_gap", of), "nothing is behind");
    for position in [1, 2, 5, 6] {
        session.decided(
            "rejected",
            &Arrival::at("step", &position.to_string(), position),
        );
    }
    // Rejected messages stand at no position: there is still no gap.
    assert!(!session.operate("inbox_skip_gap", of));
    session.decided("process", &Arrival::at("step", "8", 8));
}

#[test]
fn inbox_force_all_lets_everything_go_that_was_not_rejected() {
    let (_database, mut session) = declared();
    let ids = received(&mut session, &["third", "second"]);
    let of = instance(&mut session);
    assert!(session.fail(ids[0], "broken", Some("1 hour")));
    assert!(session.operate("inbox_force_all", of));
    assert!(!session.operate("inbox_force_all", of), "nothing is left");
    assert_eq!(session.drain(of), ["third", "second"]);

    let third = session.decided("buffered", &Arrival::at("step", "3", 3));
    session.decided("rejected", &Arrival::at("step", "3 again", 3));
    session.decided("buffered", &Arrival::at("step", "2", 2));
    assert!(session.operate("inbox_force_all", third.instance()));
    assert_eq!(
        session.drain(third.instance()),
        ["2", "3"],
        "in their order"
    );
    assert_eq!(session.state_of("3 again").as_deref(), Some("FAILED"));
    session.decided("process", &Arrival::at("step", "1", 1));
    session.decided("process", &Arrival::at("step", "4", 4));
}

#[test]
fn g8_inbox_close_turns_what_waits_into_dead_letters_without_counting_an_attempt() {
    let (_database, mut session) = declared();
    let waiting = session.decided("buffered", &Arrival::new("third", "3"));
    let of = waiting.instance();
    session.decided("process", &Arrival::new("first", "1"));
    session.begin();
    session.decided("process", &Arrival::new("second", "2"));
    session.rollback();
    session.run(&format!(
        "SELECT inbox_fail('second', '2', {of}, '503', '1 hour', '2')"
    ));
    session.decided("buffered", &Arrival::new("third", "3 more"));
    let ready = session.decided("buffered", &Arrival::new("third", "3 forced"));
    assert!(session.operate("inbox_force", ready.message()));

    assert!(session.operate("inbox_close", of));
    assert!(!session.operate("inbox_close", of), "it is closed");
    assert_eq!(session.state_of_instance(of), "CLOSED");
    let closed = "the sequence instance was closed by an operator";
    assert_eq!(
        dead_letters(&mut session),
        [
            format!("3: {closed}"),
            "2: 503".to_owned(),
            format!("3 more: {closed}"),
            format!("3 forced: {closed}")
        ]
    );
    assert_eq!(attempts(&mut session, waiting.message()), 0);
    assert_eq!(session.next(None), None);
    // Housekeeping neither opens nor expires it.
    session.run("SELECT * FROM inbox_housekeeping()");
    assert_eq!(session.state_of_instance(of), "CLOSED");
}

#[test]
fn a_closed_instance_handles_what_may_go_and_rejects_what_would_have_to_wait() {
    let (_database, mut session) = declared();
    let waiting = session.decided("buffered", &Arrival::new("second", "2"));
    let of = waiting.instance();
    assert!(session.operate("inbox_close", of));
    let rejected = session.decided("rejected", &Arrival::new("third", "3"));
    let reason = rejected.reason.expect("a reason");
    assert!(
        reason.contains("closed by an operator") && reason.contains("second"),
        "{reason}"
    );
    // A resend of what the closing failed is judged anew.
    session.decided("rejected", &Arrival::new("second", "2"));
    session.decided("process", &Arrival::new("first", "1"));
    session.decided("process", &Arrival::new("second", "2"));
    assert_eq!(session.state_of_instance(of), "CLOSED");
    // A retried message may wait again, and that opens the instance.
    let more = session.decided("process", &Arrival::new("third", "3"));
    assert_eq!(more.message, rejected.message);
    let other = session.decided("buffered", &Arrival::new("second", "2b").of("context-2"));
    assert!(session.operate("inbox_close", other.instance()));
    assert!(session.operate("inbox_retry", other.message()));
    assert_eq!(session.state_of("2b").as_deref(), Some("WAITING"));
    assert_eq!(session.state_of_instance(other.instance()), "OPEN");
    session.decided("process", &Arrival::new("first", "1b").of("context-2"));
    assert_eq!(session.drain(other.instance()), ["2b"]);
}

#[test]
fn an_expired_instance_rejects_what_would_have_to_wait() {
    let (_database, mut session) = declared();
    let waiting = session.decided("buffered", &Arrival::new("second", "2"));
    let of = waiting.instance();
    session.run("UPDATE sequence_instance SET retain_until = clock_timestamp() - interval '1s'");
    session.run("SELECT * FROM inbox_housekeeping()");
    assert_eq!(session.state_of_instance(of), "EXPIRED");
    let dead = dead_letters(&mut session);
    assert_eq!(dead, ["2: the sequence instance expired while it waited"]);
    let rejected = session.decided("rejected", &Arrival::new("third", "3"));
    assert!(rejected.reason.expect("a reason").contains("expired"));
    session.decided("process", &Arrival::new("first", "1"));
    assert!(session.operate("inbox_retry", waiting.message()));
    assert_eq!(session.drain(of), ["2"]);
    session.decided("process", &Arrival::new("third", "3"));
}

#[test]
fn a_plain_consumers_failure_is_retried_forced_and_skipped() {
    let (_database, mut session) = declared();
    let failed = |session: &mut Session, id: &str, retry_after: Option<&str>| -> i64 {
        let sql = "SELECT inbox_fail('billing', $1, NULL, 'broken', $2::text::interval, 'payload')";
        assert!(session.value::<bool>(sql, &[&id, &retry_after]));
        let sql = "SELECT id FROM sequenced_message WHERE idempotence_id = $1";
        session.value(sql, &[&id])
    };
    for function in ["inbox_retry", "inbox_force"] {
        let message = failed(&mut session, function, Some("1 hour"));
        assert_eq!(session.next(None), None);
        assert!(session.operate(function, message));
        assert!(!session.operate(function, message));
        let released = session.next(None).expect(function);
        assert_eq!((released.message, released.instance), (message, None));
        assert_eq!((released.sequence, released.context), (None, None));
        assert_eq!(released.payload.as_deref(), Some(b"payload".as_slice()));
        // The hand-out is its claim.
        let claimed: bool = session.value("SELECT inbox_claim('billing', $1)", &[&function]);
        assert!(!claimed);
        for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
            assert!(!session.operate(function, message), "{function}");
        }
    }
    let message = failed(&mut session, "skipped", None);
    assert!(session.operate("inbox_skip", message));
    assert!(!session.operate("inbox_skip", message));
    assert!(!session.value::<bool>("SELECT inbox_claim('billing', 'skipped')", &[]));
    assert!(!session.value::<bool>("SELECT inbox_fail('billing', 'skipped')", &[]));
    // A resend that won meanwhile makes them all too late.
    let message = failed(&mut session, "resent", None);
    assert!(session.value::<bool>("SELECT inbox_claim('billing', 'resent')", &[]));
    for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
        assert!(!session.operate(function, message), "{function}");
    }
    assert_eq!(session.next(None), None);
}

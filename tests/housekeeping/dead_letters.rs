//! What waits, is ready or failed is never lost (G8): expiry makes dead letters of it, unresolved
//! dead letters hold the removal back, resolved ones do not.

use inbox_test_support::{
    inbox::{Arrival, Session},
    retention::{age_sequences, housekeep},
};

use super::{count, declared, is_there};

/// The ids of the dead letters, in order.
#[track_caller]
fn dead_letters(session: &mut Session) -> Vec<String> {
    session.value(
        "SELECT coalesce(array_agg(idempotence_id ORDER BY id), '{}') FROM inbox_dead_letters",
        &[],
    )
}

#[test]
fn g8_expiry_turns_what_waits_into_dead_letters_that_stay_listed() {
    let (_database, mut session) = declared();
    let waiting = session.decided("buffered", &Arrival::new("b", "waiting"));
    let ready = session.decided("buffered", &Arrival::new("b", "ready").of("2"));
    session.decided("process", &Arrival::new("a", "a").of("2"));
    let retried = session.decided("process", &Arrival::new("a", "retried").of("3"));
    let retry = "SELECT inbox_fail('b', 'scheduled', $1, 'down', '40 days', '\\x00')";
    assert!(session.value::<bool>(retry, &[&retried.instance()]));
    assert_eq!(dead_letters(&mut session), [""; 0]);

    age_sequences(&mut session, "25 hours");
    let batch = housekeep(&mut session);
    assert_eq!((batch.expired, batch.removed), (3, 0));
    assert_eq!(
        dead_letters(&mut session),
        ["waiting", "ready", "scheduled"]
    );
    let reasons: Vec<String> = session.value(
        "SELECT array_agg(last_error ORDER BY id) FROM inbox_dead_letters",
        &[],
    );
    assert!(reasons[..2].iter().all(|it| it.contains("expired")));
    assert_eq!(reasons[2], "down", "its own error is more to the point");
    // Nothing of them is lost, and nothing hands them out by itself.
    let payloads: i64 = session.value(
        "SELECT count(*) FROM buffered_message
         WHERE message_id IN (SELECT id FROM inbox_dead_letters)",
        &[],
    );
    assert_eq!(payloads, 3);
    assert_eq!(session.next(None), None);
    assert!(session.next(waiting.instance).is_none());

    // Days later they are still there, and an operator can still let one be handled.
    age_sequences(&mut session, "28 days");
    assert_eq!(housekeep(&mut session).removed, 0);
    assert_eq!(dead_letters(&mut session).len(), 3);
    assert!(session.operate("inbox_retry", ready.message()));
    let released = session.next(ready.instance).expect("a message");
    assert_eq!(released.payload.as_deref(), Some(&b"ready"[..]));
}

/// The claim of what expired is gone with its turn: a resend is judged anew.
#[test]
fn g8_a_resend_of_an_expired_message_is_not_a_duplicate() {
    let (_database, mut session) = declared();
    let waiting = session.decided("buffered", &Arrival::new("b", "b"));
    age_sequences(&mut session, "25 hours");
    assert_eq!(housekeep(&mut session).expired, 1);
    let resend = session.receive(&Arrival::new("b", "b"));
    assert_eq!(resend.decision, "rejected", "its predecessor never came");
    assert_eq!(resend.message, waiting.message);
    session.decided("process", &Arrival::new("a", "a"));
    session.decided("process", &Arrival::new("b", "b"));
    assert_eq!(dead_letters(&mut session), [""; 0]);
}

#[test]
fn g8_an_unresolved_dead_letter_holds_the_removal_back_for_its_retention() {
    let (_database, mut session) = declared();
    let received = session.decided("buffered", &Arrival::new("b", "b"));
    let instance = received.instance();
    age_sequences(&mut session, "25 hours");
    assert_eq!(housekeep(&mut session).expired, 1);
    age_sequences(&mut session, "29 days 23:59");
    assert_eq!(housekeep(&mut session).removed, 0, "30 days are not over");
    assert_eq!(dead_letters(&mut session), ["b"]);
    session.run("SET sequential_inbox.dead_letter_retention = '31d'");
    age_sequences(&mut session, "2 minutes");
    assert_eq!(housekeep(&mut session).removed, 0, "31 days are not over");
    session.run("RESET sequential_inbox.dead_letter_retention");
    assert_eq!(housekeep(&mut session).removed, 1);
    assert!(!is_there(&mut session, instance));
    assert_eq!(dead_letters(&mut session), [""; 0]);
}

#[test]
fn g8_a_dead_letter_retention_of_zero_leaves_the_sequences_own() {
    let (_database, mut session) = declared();
    session.run("SET sequential_inbox.dead_letter_retention = 0");
    session.decided("buffered", &Arrival::new("b", "b"));
    age_sequences(&mut session, "25 hours");
    assert_eq!(housekeep(&mut session).expired, 1);
    age_sequences(&mut session, "23 hours");
    assert_eq!(housekeep(&mut session).removed, 0, "failed 23 hours ago");
    age_sequences(&mut session, "61 minutes");
    assert_eq!(housekeep(&mut session).removed, 1);
}

/// Each way to resolve a dead letter: after it, a retention later, the instance goes.
#[test]
fn g8_a_resolved_dead_letter_does_not_hold_the_removal_back() {
    let resolutions: [fn(&mut Session, i64, i64); 4] = [
        |session, instance, message| {
            assert!(session.operate("inbox_force", message));
            assert_eq!(session.next_id(instance), "b");
        },
        |session, _, message| assert!(session.operate("inbox_skip", message)),
        |session, _, _| {
            session.decided("process", &Arrival::new("a", "a"));
            session.decided("process", &Arrival::new("b", "b"));
        },
        // Somebody took it without inbox_receive: the record still says FAILED.
        |session, instance, _| assert!(super::claim_in(session, "b", "b", instance)),
    ];
    for (number, resolve) in resolutions.into_iter().enumerate() {
        let (_database, mut session) = declared();
        let received = session.decided("buffered", &Arrival::new("b", "b"));
        let instance = received.instance();
        age_sequences(&mut session, "25 hours");
        assert_eq!(housekeep(&mut session).expired, 1);
        age_sequences(&mut session, "2 days");
        assert_eq!(housekeep(&mut session).removed, 0);
        resolve(&mut session, instance, received.message());
        assert_eq!(dead_letters(&mut session), [""; 0], "way {number}");
        housekeep(&mut session);
        assert!(is_there(&mut session, instance), "claimed just now");
        // Where it was opened again it first has to expire.
        for _ in 0..2 {
            age_sequences(&mut session, "25 hours");
            housekeep(&mut session);
        }
        assert!(!is_there(&mut session, instance), "way {number}");
    }
}

/// Every state a message can be in, far past every retention: nothing that is to be handled goes.
#[test]
fn g8_housekeeping_never_removes_what_waits_or_is_ready() {
    let (_database, mut session) = declared();
    session.run("SET sequential_inbox.dead_letter_retention = 0");
    // The sequence's own clock stands still for these: only their surroundings grow old.
    session.run(
        "SELECT inbox_declare_sequence('s', '1 day', '[{\"type\": \"a\"},
        {\"type\": \"b\", \"releaseCondition\": {\"predecessor\": \"a\"}}]',
        expiry_grace => '100 years')",
    );
    session.decided("buffered", &Arrival::new("b", "waiting").of("1"));
    session.decided("buffered", &Arrival::new("b", "ready").of("2"));
    session.decided("process", &Arrival::new("a", "a").of("2"));
    let received = session.decided("process", &Arrival::new("a", "x").of("3"));
    let schedule = "SELECT inbox_fail('b', 'scheduled', $1, 'down', '1 second', '\\x00')";
    assert!(session.value::<bool>(schedule, &[&received.instance()]));
    age_sequences(&mut session, "10 years");
    for _ in 0..3 {
        let batch = housekeep(&mut session);
        assert_eq!((batch.closed, batch.expired, batch.removed), (0, 0, 0));
    }
    for (id, state) in [
        ("waiting", "WAITING"),
        ("ready", "READY"),
        ("scheduled", "FAILED"),
    ] {
        assert_eq!(session.state_of(id).as_deref(), Some(state), "{id}");
    }
    assert_eq!(session.next_id(None), "ready");
    assert_eq!(session.next_id(None), "scheduled");
    // In an instance that was closed while they waited (by hand in its table, say) they hold the
    // removal back as well.
    session.run("UPDATE sequence_instance SET state = 'CLOSED', closed_at = retain_until");
    housekeep(&mut session);
    assert_eq!(session.state_of("waiting").as_deref(), Some("WAITING"));
    assert_eq!(count(&mut session, "buffered_message"), 1);
}

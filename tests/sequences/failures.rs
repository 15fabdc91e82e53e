//! Messages that fail: what they hold back, what brings them back (G5, G7, G8).

use inbox_test_support::inbox::{Arrival, Session};

use super::{CHAIN, all_decided, count, declared};

/// Makes the scheduled failures due, as time would.
fn let_time_pass(session: &mut Session, by: &str) {
    session.run(&format!(
        "UPDATE sequenced_message SET next_attempt_at = next_attempt_at - interval '{by}'"
    ));
}

#[test]
fn g5_a_failed_predecessor_holds_its_successors_until_its_resend() {
    let (_database, mut session) = declared(CHAIN);
    let instance = all_decided(&mut session, "buffered", &["c", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    // The handler of b fails: roll back, then record it.
    session.begin();
    let b = session.next(instance).expect("b");
    session.write("half of b");
    session.rollback();
    assert!(session.fail(b.message, "out of stock", None));
    assert_eq!(session.state_of("b").as_deref(), Some("FAILED"));
    assert_eq!(session.state_of("c").as_deref(), Some("WAITING"));
    assert_eq!(session.next(instance), None);
    assert_eq!(session.next(None), None);
    session.decided("buffered", &Arrival::new("c", "c-2"));

    let resent = session.decided("process", &Arrival::new("b", "b"));
    assert_eq!(resent.message, Some(b.message), "the record is reused");
    assert_eq!(session.state_of("c").as_deref(), Some("READY"));
    assert_eq!(session.drain(instance), ["c", "c-2"]);
    let attempts: i32 = session.value(
        "SELECT attempts FROM sequenced_message WHERE id = $1",
        &[&b.message],
    );
    assert_eq!(attempts, 1);
    let ledger: i64 = count(&mut session, "ledger");
    assert_eq!(ledger, 0, "the failed handler's writes are gone");
}

#[test]
fn g5_a_failed_successor_holds_back_nothing_else_and_its_resend_is_handled() {
    let (_database, mut session) = declared(
        r#"[{"type": "a"}, {"type": "b", "releaseCondition": {"predecessor": "a"}},
            {"type": "c", "releaseCondition": {"predecessor": "a"}}]"#,
    );
    let instance = all_decided(&mut session, "buffered", &["b"]);
    session.decided("buffered", &Arrival::new("b", "b-2"));
    all_decided(&mut session, "buffered", &["c"]);
    session.decided("process", &Arrival::new("a", "a"));
    session.begin();
    let b = session.next(instance).expect("b");
    assert_eq!(b.id, "b");
    session.rollback();
    assert!(session.fail(b.message, "broken", None));
    assert_eq!(session.drain(instance), ["b-2", "c"]);
    session.decided("process", &Arrival::new("b", "b"));
    session.decided("duplicate", &Arrival::new("b", "b"));
    assert_eq!(session.state_of_instance(instance), "CLOSED");
}

#[test]
fn g5_a_failed_immediate_message_is_recorded_and_its_resend_is_handled() {
    let (_database, mut session) = declared(CHAIN);
    session.begin();
    let received = session.decided("process", &Arrival::new("a", "a"));
    session.rollback();
    assert_eq!(count(&mut session, "sequenced_message"), 0);
    // Nothing is left of the instance either: the caller asks for it again.
    let instance: i64 = session.value("SELECT inbox_sequence('s', 'context-1')", &[]);
    assert_ne!(Some(instance), received.instance);
    let failed: bool = session.value("SELECT inbox_fail('a', 'a', $1, 'broken')", &[&instance]);
    assert!(failed);
    session.decided("buffered", &Arrival::new("b", "b"));
    assert_eq!(session.next(None), None);
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.drain(instance), ["b"]);
    // A processed message is never overwritten.
    for id in ["a", "b"] {
        let failed: bool = session.value(
            "SELECT inbox_fail($1, $1, $2, 'too late')",
            &[&id, &instance],
        );
        assert!(!failed, "{id}");
        assert_eq!(session.state_of(id).as_deref(), Some("PROCESSED"));
    }
}

#[test]
fn g5_a_retry_comes_back_by_itself_and_not_before_its_time() {
    let (_database, mut session) = declared(CHAIN);
    let instance = all_decided(&mut session, "buffered", &["c", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    session.begin();
    let b = session.next(instance).expect("b");
    session.rollback();
    assert!(session.fail(b.message, "503", Some("1 hour")));
    // It is no dead letter: somebody will retry it.
    assert_eq!(count(&mut session, "inbox_dead_letters"), 0);
    for _ in 0..2 {
        assert_eq!(session.next(instance), None, "an hour early");
        assert_eq!(session.next(None), None, "an hour early");
    }
    let_time_pass(&mut session, "59 minutes");
    assert_eq!(session.next(instance), None, "a minute early");
    assert_eq!(session.next(None), None, "a minute early");
    let_time_pass(&mut session, "1 minute");
    session.begin();
    let again = session.next(None).expect("b is due");
    assert_eq!((again.message, again.attempts), (b.message, 1));
    assert_eq!(again.payload, b.payload);
    session.rollback();
    // Its second failure counts too, and it stays itself.
    assert!(session.fail(b.message, "503", Some("0")));
    let third = session.next(instance).expect("b is due");
    assert_eq!((third.message, third.attempts), (b.message, 2));
    assert_eq!(session.drain(instance), ["c"]);
    assert_eq!(session.state_of_instance(instance), "CLOSED");
}

#[test]
fn g5_a_resend_of_a_scheduled_failure_is_handled_once() {
    let (_database, mut session) = declared(CHAIN);
    let instance = all_decided(&mut session, "buffered", &["b"]);
    session.decided("process", &Arrival::new("a", "a"));
    session.begin();
    let b = session.next(instance).expect("b");
    session.rollback();
    assert!(session.fail(b.message, "503", Some("1 hour")));
    session.decided("process", &Arrival::new("b", "b"));
    let_time_pass(&mut session, "2 hours");
    assert_eq!(session.next(instance), None);
    assert_eq!(session.next(None), None);
    assert_eq!(count(&mut session, "buffered_message"), 0);
}

#[test]
fn a_retry_whose_condition_no_longer_holds_waits_again() {
    let (_database, mut session) = declared(r#"[{"type": "a"}, {"type": "b"}]"#);
    let instance = all_decided(&mut session, "process", &["a"]);
    session.run(&format!(
        "SELECT inbox_fail('b', 'b', {instance}, '503', '0', 'payload')"
    ));
    super::declare(
        &mut session,
        r#"[{"type": "a"}, {"type": "x"},
            {"type": "b", "releaseCondition": {"predecessor": "x"}}]"#,
    );
    assert_eq!(session.next(None), None);
    assert_eq!(session.state_of("b").as_deref(), Some("WAITING"));
    session.decided("process", &Arrival::new("x", "x"));
    let released = session.next(instance).expect("b");
    assert_eq!(released.payload.as_deref(), Some(b"payload".as_slice()));
    assert_eq!(released.attempts, 1);
}

#[test]
fn with_on_failure_skip_a_failed_type_counts_as_passed() {
    let (_database, mut session) = declared(CHAIN);
    session.run(&format!(
        "SELECT inbox_declare_sequence('s', '1 day', '{CHAIN}', on_failure => 'skip')"
    ));
    let instance = all_decided(&mut session, "buffered", &["c", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    session.begin();
    let b = session.next(instance).expect("b");
    session.rollback();
    // One that is due again by itself has not failed for good.
    assert!(session.fail(b.message, "503", Some("1 hour")));
    assert_eq!(session.next(instance), None);
    session.decided("buffered", &Arrival::new("c", "c-2"));
    assert!(session.fail(b.message, "410", None));
    assert_eq!(session.drain(instance), ["c", "c-2"]);
    session.decided("process", &Arrival::new("c", "c-3"));
    // It is still a dead letter, and still can be resent.
    assert_eq!(count(&mut session, "inbox_dead_letters"), 1);
    session.decided("process", &Arrival::new("b", "b"));
    assert_eq!(count(&mut session, "inbox_dead_letters"), 0);
}

#[test]
fn a_failure_needs_a_payload_only_for_a_retry() {
    let (_database, mut session) = declared(CHAIN);
    let buffered = session.decided("buffered", &Arrival::new("b", "b"));
    let instance = buffered.instance();
    // The stored payload is enough.
    assert!(session.fail(buffered.message(), "503", Some("1 hour")));
    let sql = format!("SELECT inbox_fail('a', 'a', {instance}, '503', '1 hour')");
    let error = session.query(&sql, &[]).expect_err("no payload");
    let said = inbox_test_support::inbox::server_error(&error);
    assert_eq!(
        (said.code().code(), said.message()),
        ("22004", "payload must not be null")
    );
    // A given one replaces what was stored.
    let replaced: bool = session.value(
        "SELECT inbox_fail('b', 'b', $1, '503', '0', 'newer')",
        &[&instance],
    );
    assert!(replaced);
    session.decided("process", &Arrival::new("a", "a"));
    let released = session.next(instance).expect("b");
    assert_eq!(released.payload.as_deref(), Some(b"newer".as_slice()));
    assert_eq!(released.attempts, 2);
}

#[test]
fn g5_a_failure_is_told_of_the_instance_that_the_message_belongs_to() {
    let (_database, mut session) = declared(CHAIN);
    let buffered = session.decided("buffered", &Arrival::new("b", "b"));
    let other = session.decided("process", &Arrival::new("a", "a-2").of("context-2"));
    let sql = format!(
        "SELECT inbox_fail('b', 'b', {}, 'broken')",
        other.instance()
    );
    let code = inbox_test_support::inbox::sqlstate(session.query(&sql, &[]).map(drop));
    assert_eq!(code, "22023");
    assert_eq!(session.state_of("b").as_deref(), Some("WAITING"));
    session.decided("duplicate", &Arrival::new("b", "b"));
    assert!(session.fail(buffered.message(), "broken", None));
}

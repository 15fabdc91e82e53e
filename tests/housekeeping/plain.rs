//! Plain consumers' failures under housekeeping (G8).

use inbox_test_support::{
    Database,
    inbox::Session,
    retention::{CONSUMER, age_sequences, claim, housekeep, housekeep_by},
};

use super::count;

/// `inbox_fail` of the plain consumer, with a retry after that long where given.
#[track_caller]
fn fail(session: &mut Session, id: &str, retry_after: Option<&str>) {
    let failed: bool = session.value(
        "SELECT inbox_fail($1, $2, NULL, 'down', $3::text::interval, '\\x00')",
        &[&CONSUMER, &id, &retry_after],
    );
    assert!(failed);
}

#[test]
fn g8_a_plain_dead_letter_is_kept_for_its_retention() {
    let database = Database::new();
    let mut session = Session::new(&database);
    fail(&mut session, "m", None);
    age_sequences(&mut session, "29 days 23:59");
    housekeep(&mut session);
    assert_eq!(count(&mut session, "inbox_dead_letters"), 1);
    age_sequences(&mut session, "2 minutes");
    housekeep(&mut session);
    assert_eq!(count(&mut session, "inbox_dead_letters"), 0);
    for table in ["sequenced_message", "buffered_message"] {
        assert_eq!(count(&mut session, table), 0, "{table}");
    }
}

#[test]
fn g8_what_a_plain_consumer_is_to_handle_again_is_kept_for_ever() {
    let database = Database::new();
    let mut session = Session::new(&database);
    fail(&mut session, "scheduled", Some("1 hour"));
    fail(&mut session, "ready", None);
    let id: i64 = session.value("SELECT id FROM inbox_dead_letters", &[]);
    assert!(session.operate("inbox_retry", id));
    age_sequences(&mut session, "10 years");
    housekeep(&mut session);
    assert_eq!(session.next_id(None), "ready");
    assert_eq!(session.next_id(None), "scheduled");
}

#[test]
fn g8_a_plain_failure_that_was_handled_is_forgotten_with_its_claims_retention() {
    let database = Database::new();
    let mut session = Session::new(&database);
    fail(&mut session, "processed", Some("0"));
    assert_eq!(session.next_id(None), "processed");
    fail(&mut session, "skipped", None);
    let id: i64 = session.value("SELECT id FROM inbox_dead_letters", &[]);
    assert!(session.operate("inbox_skip", id));
    age_sequences(&mut session, "13 days 23:59");
    housekeep(&mut session);
    assert_eq!(count(&mut session, "sequenced_message"), 2);
    session.run("SET sequential_inbox.claim_retention = '15d'");
    age_sequences(&mut session, "2 minutes");
    housekeep(&mut session);
    assert_eq!(count(&mut session, "sequenced_message"), 2);
    session.run("RESET sequential_inbox.claim_retention");
    housekeep(&mut session);
    assert_eq!(count(&mut session, "sequenced_message"), 0);
    // The claims are the ring's, which has its own time.
    for id in ["processed", "skipped"] {
        assert!(!claim(&mut session, id));
    }
}

#[test]
fn g8_plain_failures_are_removed_in_bounded_batches() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for number in 0..7 {
        fail(&mut session, &number.to_string(), None);
    }
    age_sequences(&mut session, "31 days");
    for left in [4, 1] {
        assert!(housekeep_by(&mut session, 3).more);
        assert_eq!(count(&mut session, "sequenced_message"), left);
    }
    assert!(!housekeep_by(&mut session, 3).more);
    assert_eq!(count(&mut session, "sequenced_message"), 0);
}

/// One that somebody is working on is passed over, and is gone or not by what that one commits.
#[test]
fn g8_a_plain_failure_in_someones_hands_is_left_alone() {
    let database = Database::new();
    let mut session = Session::new(&database);
    let mut keeper = Session::new(&database);
    keeper.run("SET lock_timeout = '1ms'");
    fail(&mut session, "m", None);
    age_sequences(&mut session, "31 days");
    let id: i64 = session.value("SELECT id FROM inbox_dead_letters", &[]);
    session.begin();
    assert!(session.operate("inbox_retry", id));
    housekeep(&mut keeper);
    session.commit();
    housekeep(&mut keeper);
    assert_eq!(session.next_id(None), "m");
}

//! An instance's life under housekeeping: complete, closed, expired, removed, and when (G8, G9).

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, sqlstate},
    retention::{Batch, age_sequences, housekeep, housekeep_by, rotate, try_housekeep},
};

use super::{PAIR, claim_in, completed, count, declare, declared, is_there};

/// A batch that did nothing but move the ring on, which is due in a new database.
fn only_rotated(batch: Batch) {
    let expected = Batch {
        rotated: true,
        ..Batch::default()
    };
    assert_eq!(batch, expected);
}

#[test]
fn g8_without_work_it_does_nothing() {
    let (_database, mut session) = declared();
    completed(&mut session, "young");
    session.decided("buffered", &Arrival::new("b", "b").of("open"));
    only_rotated(housekeep(&mut session));
    assert_eq!(housekeep(&mut session), Batch::default());
    assert_eq!(count(&mut session, "sequence_instance"), 2);
}

/// A message that completes an instance closes it at once; one that a new declaration has made
/// complete is housekeeping's.
#[test]
fn g8_an_instance_that_became_complete_is_closed() {
    let (_database, mut session) = declared();
    let complete = session.decided("process", &Arrival::new("a", "1").of("complete"));
    let waiting = session.decided("buffered", &Arrival::new("b", "2").of("waiting"));
    let failed = session.decided("process", &Arrival::new("a", "3").of("retried"));
    assert_eq!(housekeep(&mut session).closed, 0, "b is missing in each");
    session.run(
        "SELECT inbox_fail('b', '4', (SELECT id FROM sequence_instance WHERE context_id = 'retried'),
                'down', '1 hour', '\\x00')",
    );
    declare(
        &mut session,
        "1 day",
        r#"[{"type": "a"}, {"type": "b", "optional": true, "releaseCondition": {"predecessor": "a"}}]"#,
    );
    let batch = housekeep(&mut session);
    assert_eq!((batch.closed, batch.more), (1, false));
    assert_eq!(session.state_of_instance(complete.instance()), "CLOSED");
    assert_eq!(session.state_of_instance(waiting.instance()), "OPEN");
    assert_eq!(
        session.state_of_instance(failed.instance()),
        "OPEN",
        "a message is due again by itself"
    );
    assert_eq!(housekeep(&mut session).closed, 0);
}

#[test]
fn g8_an_instance_that_became_complete_is_closed_by_position_too() {
    let database = Database::new();
    let mut session = Session::new(&database);
    let declare = |session: &mut Session, is_final: bool| {
        session.run(&format!(
            "SELECT inbox_declare_sequence('s', '1 day',
                '[{{\"type\": \"a\", \"final\": {is_final}}}]', ordering => 'position')"
        ));
    };
    declare(&mut session, false);
    let complete = session.decided("process", &Arrival::at("a", "1", 1).of("complete"));
    let waiting = session.decided("process", &Arrival::at("a", "2", 1).of("waiting"));
    session.decided("buffered", &Arrival::at("a", "3", 3).of("waiting"));
    declare(&mut session, true);
    assert_eq!(housekeep(&mut session).closed, 1);
    assert_eq!(session.state_of_instance(complete.instance()), "CLOSED");
    assert_eq!(session.state_of_instance(waiting.instance()), "OPEN");
}

#[test]
fn g9_a_closed_instance_is_removed_after_its_retention_with_all_that_belongs_to_it() {
    let (_database, mut session) = declared();
    let instance = completed(&mut session, "1");
    age_sequences(&mut session, "23:59");
    assert_eq!(housekeep(&mut session).removed, 0, "a day is not over");
    assert!(is_there(&mut session, instance));
    age_sequences(&mut session, "2 minutes");
    assert_eq!(housekeep(&mut session).removed, 1);
    for table in [
        "sequence_instance",
        "sequenced_message",
        "sequential_inbox_idempotence",
        "buffered_message",
    ] {
        assert_eq!(count(&mut session, table), 0, "{table}");
    }
    // Its messages are unknown again.
    completed(&mut session, "1");
}

/// Nothing is left that says how long it is to be kept.
#[test]
fn g9_an_instance_outlives_its_time_while_its_newest_claim_is_younger_than_the_retention() {
    let (_database, mut session) = declared();
    let instance = completed(&mut session, "1");
    age_sequences(&mut session, "20 hours");
    // A late message of a complete instance.
    assert!(claim_in(&mut session, "b", "late", instance));
    age_sequences(&mut session, "20 hours");
    assert_eq!(housekeep(&mut session).removed, 0, "claimed 20 hours ago");
    assert!(!claim_in(&mut session, "b", "late", instance));
    age_sequences(&mut session, "4 hours 1 minute");
    assert_eq!(housekeep(&mut session).removed, 1);
}

#[test]
fn g9_a_change_of_state_keeps_it_as_a_claim_does() {
    let (_database, mut session) = declared();
    let received = session.decided("buffered", &Arrival::new("b", "b"));
    age_sequences(&mut session, "25 hours");
    assert_eq!(housekeep(&mut session).expired, 1);
    let instance = received.instance();
    age_sequences(&mut session, "20 hours");
    assert!(session.operate("inbox_skip", received.message()));
    age_sequences(&mut session, "20 hours");
    assert_eq!(housekeep(&mut session).removed, 0, "skipped 20 hours ago");
    age_sequences(&mut session, "4 hours 1 minute");
    assert_eq!(housekeep(&mut session).removed, 1);
    assert!(!is_there(&mut session, instance));
}

#[test]
fn g8_an_open_instance_expires_after_its_time_and_the_grace() {
    let database = Database::new();
    let mut session = Session::new(&database);
    session.run(&format!(
        "SELECT inbox_declare_sequence('s', '1 day', '{PAIR}', expiry_grace => '2 hours')"
    ));
    let received = session.decided("process", &Arrival::new("a", "a"));
    let instance = received.instance();
    age_sequences(&mut session, "25 hours");
    assert_eq!(housekeep(&mut session).expired, 0, "the grace is not over");
    // It goes on as if nothing had been.
    session.decided("process", &Arrival::new("a", "another"));
    assert_eq!(session.state_of_instance(instance), "OPEN");
    age_sequences(&mut session, "2 hours");
    let batch = housekeep(&mut session);
    assert_eq!((batch.expired, batch.removed), (1, 0));
    assert_eq!(session.state_of_instance(instance), "EXPIRED");
    // A day after the newest claim, not after the expiry.
    age_sequences(&mut session, "22 hours 30 minutes");
    assert_eq!(housekeep(&mut session).removed, 1);
}

/// An instance that nothing ever was claimed in goes too.
#[test]
fn g8_an_instance_without_messages_expires_and_is_removed() {
    let (_database, mut session) = declared();
    session.run("SELECT inbox_sequence('s', 'empty')");
    age_sequences(&mut session, "25 hours");
    let batch = housekeep(&mut session);
    assert_eq!((batch.expired, batch.removed), (1, 1));
    assert_eq!(count(&mut session, "sequence_instance"), 0);
}

#[test]
fn g9_a_declared_retention_counts_for_the_instances_that_are_there() {
    let (_database, mut session) = declared();
    let closed = completed(&mut session, "closed");
    let open = session.decided("process", &Arrival::new("a", "a").of("open"));
    let retained = "SELECT bool_and(retain_until = created_at + $1::text::interval)
                    FROM sequence_instance";

    // Longer: what would have gone by now stays.
    declare(&mut session, "3 days", PAIR);
    assert!(session.value::<bool>(retained, &[&"3 days"]));
    age_sequences(&mut session, "2 days");
    let batch = housekeep(&mut session);
    assert_eq!((batch.expired, batch.removed), (0, 0));
    assert!(!claim_in(&mut session, "a", "a closed", closed));

    // Shorter: it goes by the new one, for both states.
    declare(&mut session, "1 day", PAIR);
    assert!(session.value::<bool>(retained, &[&"1 day"]));
    let batch = housekeep(&mut session);
    assert_eq!((batch.expired, batch.removed), (1, 2));
    for instance in [closed, open.instance()] {
        assert!(!is_there(&mut session, instance));
    }
}

/// A retention that was shortened and is long again: the instance had been closed before, and its
/// `retain_until` says nothing of when its newest claim was made.
#[test]
fn g9_a_lengthened_retention_protects_what_was_claimed_late() {
    let (_database, mut session) = declared();
    let instance = completed(&mut session, "1");
    age_sequences(&mut session, "20 days");
    assert!(claim_in(&mut session, "b", "late", instance));
    declare(&mut session, "10 days", PAIR);
    age_sequences(&mut session, "9 days");
    assert_eq!(housekeep(&mut session).removed, 0);
    assert!(!claim_in(&mut session, "b", "late", instance));
    age_sequences(&mut session, "2 days");
    assert_eq!(housekeep(&mut session).removed, 1);
}

#[test]
fn g8_each_sequence_has_its_own_retention() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for (name, retention) in [("short", "1 hour"), ("long", "10 days")] {
        session.run(&format!(
            "SELECT inbox_declare_sequence('{name}', '{retention}', '[{{\"type\": \"{name}\"}}]')"
        ));
        let received = session.decided("process", &Arrival::new(name, "1"));
        assert_eq!(session.state_of_instance(received.instance()), "CLOSED");
    }
    age_sequences(&mut session, "1 day");
    assert_eq!(housekeep(&mut session).removed, 1);
    let left: String = session.value("SELECT name FROM sequence_instance", &[]);
    assert_eq!(left, "long");
}

/// The counts of one call are bounded by the batch size, over all sequences together.
#[test]
fn g8_a_batch_is_bounded_and_says_whether_there_is_more() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for name in ["s1", "s2"] {
        session.run(&format!(
            "SELECT inbox_declare_sequence('{name}', '1 day', '[{{\"type\": \"a {name}\"}}, {{\"type\": \"b {name}\"}}]')"
        ));
        for number in 0..4 {
            let context = number.to_string();
            let ids = ["a", "b"].map(|letter| format!("{letter} {name}"));
            let arrivals = ids
                .each_ref()
                .map(|id| Arrival::new(id, &context).of(&context));
            session.decided("process", &arrivals[0]);
            if number >= 2 {
                session.decided("process", &arrivals[1]);
            }
        }
    }
    // Two of each are open, two closed.
    age_sequences(&mut session, "25 hours");
    let mut total = Batch::default();
    let mut calls = 0;
    loop {
        let batch = housekeep_by(&mut session, 3);
        total.expired += batch.expired;
        total.removed += batch.removed;
        calls += 1;
        let full = batch.expired == 3 || batch.removed == 3;
        assert_eq!(batch.more, full, "{batch:?}");
        if !batch.more {
            break;
        }
    }
    assert_eq!((total.expired, total.removed), (4, 8));
    assert!(calls > 2, "eight removals take three calls of three");
    assert_eq!(count(&mut session, "sequence_instance"), 0);
}

#[test]
fn g11_a_batch_size_that_makes_no_sense_is_an_error() {
    let (_database, mut session) = declared();
    for (batch_size, code) in [
        (None, "22004"),
        (Some(0), "22023"),
        (Some(-1), "22023"),
        (Some(i32::MIN), "22023"),
    ] {
        let answer = try_housekeep(&mut session, batch_size);
        assert_eq!(sqlstate(answer), code, "{batch_size:?}");
    }
    assert!(try_housekeep(&mut session, Some(i32::MAX)).is_ok());
    let by_default: bool = session.value("SELECT more FROM inbox_housekeeping()", &[]);
    assert!(!by_default);
}

#[test]
fn g11_in_a_read_only_transaction_it_is_an_error() {
    let (_database, mut session) = declared();
    session.run("BEGIN READ ONLY");
    assert_eq!(sqlstate(try_housekeep(&mut session, Some(1))), "25006");
    session.rollback();
}

/// All in one transaction, with the caller's own writes.
#[test]
fn g4_a_rolled_back_batch_has_done_nothing() {
    let (_database, mut session) = declared();
    let instance = completed(&mut session, "1");
    session.decided("buffered", &Arrival::new("b", "b").of("2"));
    age_sequences(&mut session, "25 hours");
    session.begin();
    let batch = housekeep(&mut session);
    assert_eq!((batch.expired, batch.removed, batch.rotated), (1, 1, true));
    session.rollback();
    assert!(is_there(&mut session, instance));
    assert_eq!(session.state_of("b").as_deref(), Some("WAITING"));
    assert_eq!(housekeep(&mut session), batch);
}

/// The claims of sequences do not live in the ring: however it moves, they stay.
#[test]
fn g9_rotations_do_not_touch_sequenced_claims() {
    let (_database, mut session) = declared();
    completed(&mut session, "1");
    for _ in 0..4 {
        rotate(&mut session);
    }
    session.decided("duplicate", &Arrival::new("a", "a 1").of("1"));
}

#[test]
fn g14_an_operator_may_call_it_and_a_consumer_or_monitor_may_not() {
    let (database, mut session) = declared();
    completed(&mut session, "1");
    age_sequences(&mut session, "25 hours");
    // Roles are the server's: named after the database.
    for access in ["consumer", "monitor", "operator"] {
        let role = format!("{}_{access}", database.name());
        session.run(&format!(
            "CREATE ROLE {role} LOGIN; SELECT inbox_grant('{role}', '{access}')"
        ));
        let mut as_role = Session::with(database.dsn_as(&role).parse().unwrap());
        let answer = try_housekeep(&mut as_role, Some(10));
        if access == "operator" {
            let batch = answer.unwrap();
            assert_eq!((batch.removed, batch.rotated), (1, true));
        } else {
            assert_eq!(sqlstate(answer), "42501", "{access}");
        }
        drop(as_role);
        session.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
}

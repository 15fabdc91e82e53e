//! Housekeeping beside consumers that are in the middle of something (G2, G8, G9, G10): what they
//! hold is left alone, and what housekeeping holds makes them wait and start anew.

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Received, Session, blocked, sqlstate},
    retention::{Batch, age_sequences, housekeep, housekeep_by, try_housekeep},
};
use postgres::IsolationLevel;

use super::{claim_in, completed, count, declared, is_there};

/// Housekeeping that would rather fail than wait.
fn keeper(database: &Database) -> Session {
    let mut session = Session::new(database);
    session.run("SET lock_timeout = '1ms'");
    session
}

/// What a batch did to instances.
fn done(batch: Batch) -> (i64, i64, i64) {
    (batch.closed, batch.expired, batch.removed)
}

#[test]
fn g9_an_expired_instance_with_a_claim_in_flight_is_left_alone() {
    for ending in ["COMMIT", "ROLLBACK"] {
        let (database, mut consumer) = declared();
        let mut keeper = keeper(&database);
        let instance = completed(&mut consumer, "1");
        age_sequences(&mut consumer, "25 hours");
        consumer.begin();
        assert!(claim_in(&mut consumer, "b", "late", instance));
        for _ in 0..2 {
            assert_eq!(done(housekeep(&mut keeper)), (0, 0, 0));
        }
        consumer.run(ending);
        let removed = housekeep(&mut keeper).removed;
        if ending == "COMMIT" {
            // The claim is young: a retention is not over for it, nor for its instance.
            assert_eq!(removed, 0);
            assert!(!claim_in(&mut consumer, "b", "late", instance));
            age_sequences(&mut consumer, "25 hours");
            assert_eq!(housekeep(&mut keeper).removed, 1);
        } else {
            assert_eq!(removed, 1);
        }
    }
}

/// The same for a claim that waits in PREPARED state.
#[test]
fn g9_an_expired_instance_with_a_prepared_claim_is_left_alone() {
    let (database, mut consumer) = declared();
    let mut keeper = keeper(&database);
    let instance = completed(&mut consumer, "1");
    age_sequences(&mut consumer, "25 hours");
    consumer.begin();
    assert!(claim_in(&mut consumer, "b", "late", instance));
    let name = database.name();
    consumer.run(&format!("PREPARE TRANSACTION '{name}'"));
    assert_eq!(housekeep(&mut keeper).removed, 0);
    consumer.run(&format!("COMMIT PREPARED '{name}'"));
    assert_eq!(housekeep(&mut keeper).removed, 0);
    assert!(!claim_in(&mut consumer, "b", "late", instance));
}

#[test]
fn g9_an_expired_instance_with_a_receive_in_flight_is_left_alone() {
    let (database, mut consumer) = declared();
    let mut keeper = keeper(&database);
    // One closed and past its retention, one open and past its time.
    let closed = completed(&mut consumer, "closed");
    let open = consumer.decided("process", &Arrival::new("a", "a open").of("open"));
    age_sequences(&mut consumer, "25 hours");
    consumer.begin();
    for context in ["closed", "open"] {
        let id = format!("late {context}");
        consumer.decided("process", &Arrival::new("a", &id).of(context));
    }
    for _ in 0..2 {
        assert_eq!(done(housekeep(&mut keeper)), (0, 0, 0));
    }
    consumer.commit();
    // The open one may expire now; neither may go.
    assert_eq!(done(housekeep(&mut keeper)), (0, 1, 0));
    for (context, instance) in [("closed", closed), ("open", open.instance())] {
        let id = format!("late {context}");
        let received = consumer.decided("duplicate", &Arrival::new("a", &id).of(context));
        assert_eq!(received.instance, Some(instance));
    }
}

#[test]
fn g8_an_expired_instance_whose_message_is_handed_out_or_operated_on_is_left_alone() {
    let (database, mut consumer) = declared();
    let mut keeper = keeper(&database);
    let received = consumer.decided("buffered", &Arrival::new("b", "b"));
    consumer.decided("process", &Arrival::new("a", "a"));
    age_sequences(&mut consumer, "25 hours");
    consumer.begin();
    assert_eq!(consumer.next_id(received.instance()), "b");
    assert_eq!(done(housekeep(&mut keeper)), (0, 0, 0));
    consumer.rollback();
    consumer.begin();
    assert!(consumer.fail(received.message(), "down", None));
    assert_eq!(done(housekeep(&mut keeper)), (0, 0, 0));
    consumer.rollback();
    consumer.begin();
    assert!(consumer.operate("inbox_skip", received.message()));
    assert_eq!(done(housekeep(&mut keeper)), (0, 0, 0));
    consumer.rollback();
    assert_eq!(done(housekeep(&mut keeper)), (0, 1, 0));
    assert_eq!(consumer.state_of("b").as_deref(), Some("FAILED"));
}

/// A receive that meets its instance while housekeeping removes it.
fn receive_during_a_removal(
    ending: &str,
    level: IsolationLevel,
    arrival: &Arrival<'_>,
) -> (Result<Received, postgres::Error>, i64, Session) {
    let (database, mut consumer) = declared();
    let mut keeper = Session::new(&database);
    let instance = completed(&mut consumer, "1");
    age_sequences(&mut consumer, "25 hours");
    keeper.begin();
    assert_eq!(housekeep(&mut keeper).removed, 1);
    consumer.begin_at(level);
    let answer = thread::scope(|scope| {
        let received = blocked(scope, &database, &mut consumer, |it| {
            let answer = it.try_receive(arrival);
            it.run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" });
            answer
        });
        keeper.run(ending);
        received.join().unwrap()
    });
    (answer, instance, consumer)
}

#[test]
fn g9_an_instance_removed_while_a_receive_is_on_its_way_is_made_anew() {
    // A message that is new, and one whose retention is over with its instance's.
    for id in ["new", "a 1"] {
        let arrival = Arrival::new("a", id).of("1");
        let (answer, removed, mut consumer) =
            receive_during_a_removal("COMMIT", IsolationLevel::ReadCommitted, &arrival);
        let received = answer.unwrap();
        assert_eq!(received.decision, "process", "{id}");
        assert_ne!(received.instance(), removed);
        assert!(!is_there(&mut consumer, removed));
        assert_eq!(count(&mut consumer, "sequence_instance"), 1);
        consumer.decided("duplicate", &arrival);
    }
}

#[test]
fn g9_a_removal_that_is_rolled_back_leaves_the_receive_its_instance() {
    for (id, decision) in [("new", "process"), ("a 1", "duplicate")] {
        let arrival = Arrival::new("a", id).of("1");
        let (answer, instance, mut consumer) =
            receive_during_a_removal("ROLLBACK", IsolationLevel::ReadCommitted, &arrival);
        let received = answer.unwrap();
        assert_eq!(received.decision, decision, "{id}");
        assert_eq!(received.instance, Some(instance));
        consumer.decided("duplicate", &arrival);
    }
}

#[test]
fn g10_a_receive_with_an_old_snapshot_gets_40001_from_a_removal() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let arrival = Arrival::new("a", "new").of("1");
        let (answer, _, mut consumer) = receive_during_a_removal("COMMIT", level, &arrival);
        assert_eq!(sqlstate(answer), "40001");
        consumer.decided("process", &arrival);
    }
}

#[test]
fn g2_a_receive_that_must_not_wait_answers_in_flight_during_a_removal() {
    let (database, mut consumer) = declared();
    let mut keeper = Session::new(&database);
    completed(&mut consumer, "1");
    age_sequences(&mut consumer, "25 hours");
    keeper.begin();
    assert_eq!(housekeep(&mut keeper).removed, 1);
    for id in ["new", "a 1"] {
        consumer.decided(
            "in_flight",
            &Arrival::new("a", id).of("1").without_waiting(),
        );
    }
    keeper.commit();
    for id in ["new", "a 1"] {
        consumer.decided("process", &Arrival::new("a", id).of("1").without_waiting());
    }
}

/// A claim bound to an instance that goes away under it is an error that says what to do; it never
/// looks like a duplicate and leaves nothing behind.
#[test]
fn g11_a_claim_in_an_instance_that_is_removed_meanwhile_is_told_so() {
    for id in ["late", "a 1"] {
        let (database, mut consumer) = declared();
        let mut keeper = Session::new(&database);
        let instance = completed(&mut consumer, "1");
        age_sequences(&mut consumer, "25 hours");
        keeper.begin();
        assert_eq!(housekeep(&mut keeper).removed, 1);
        let answer = thread::scope(|scope| {
            let claimed = blocked(scope, &database, &mut consumer, |it| {
                it.query("SELECT inbox_claim('a', $1, $2::bigint)", &[&id, &instance])
            });
            keeper.commit();
            claimed.join().unwrap()
        });
        assert_eq!(sqlstate(answer), "23503", "{id}");
        assert_eq!(count(&mut consumer, "sequential_inbox_idempotence"), 0);
    }
}

/// With an old snapshot housekeeping does not see a claim that was committed since. It must not
/// remove its instance by what it saw then.
#[test]
fn g9_g10_housekeeping_with_an_old_snapshot_does_not_remove_a_younger_claim() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let (database, mut consumer) = declared();
        let mut keeper = Session::new(&database);
        let claimed = completed(&mut consumer, "claimed");
        let received = completed(&mut consumer, "received");
        age_sequences(&mut consumer, "25 hours");
        keeper.begin_at(level);
        assert!(claim_in(&mut consumer, "b", "late", claimed));
        let late = Arrival::new("b", "late too").of("received");
        consumer.decided("process", &late);
        let answer = try_housekeep(&mut keeper, Some(10));
        assert_eq!(sqlstate(answer), "40001");
        keeper.rollback();
        for instance in [claimed, received] {
            assert!(is_there(&mut consumer, instance));
        }
        assert!(!claim_in(&mut consumer, "b", "late", claimed));
        consumer.decided("duplicate", &late);
    }
}

/// The one that is held is passed over, not waited for, and not taken for the only one.
#[test]
fn g8_held_instances_do_not_keep_housekeeping_from_the_others() {
    let (database, mut consumer) = declared();
    let mut keeper = keeper(&database);
    let held = completed(&mut consumer, "held");
    for context in ["1", "2", "3"] {
        completed(&mut consumer, context);
    }
    age_sequences(&mut consumer, "25 hours");
    consumer.begin();
    assert!(claim_in(&mut consumer, "b", "late", held));
    assert_eq!(housekeep(&mut keeper).removed, 3);
    consumer.commit();
    assert!(!claim_in(&mut consumer, "b", "late", held));
}

/// Two housekeepers at once never do the same work twice, nor wait for each other.
#[test]
fn g8_two_housekeepers_share_the_work() {
    let (database, mut consumer) = declared();
    for context in ["1", "2", "3"] {
        completed(&mut consumer, context);
    }
    consumer.decided("buffered", &Arrival::new("b", "b").of("4"));
    age_sequences(&mut consumer, "25 hours");
    let mut first = keeper(&database);
    let mut second = keeper(&database);
    first.begin();
    let batch = housekeep_by(&mut first, 2);
    assert_eq!((done(batch), batch.more), ((0, 1, 2), true));
    let batch = housekeep(&mut second);
    assert_eq!((done(batch), batch.more), ((0, 0, 1), false));
    first.commit();
    assert_eq!(done(housekeep(&mut second)), (0, 0, 0));
    assert_eq!(count(&mut consumer, "sequence_instance"), 1);
}

/// A service that declares its sequences, in whatever order, beside a housekeeper that goes through
/// them by name: neither waits for the other with something in its hands.
#[test]
fn g8_housekeeping_and_a_declaration_of_two_sequences_do_not_deadlock() {
    let (database, mut service) = declared();
    let mut keeper = keeper(&database);
    let second = |retention: &str, optional: bool| {
        format!(
            "SELECT inbox_declare_sequence('t', '{retention}',
                '[{{\"type\": \"c\"}}, {{\"type\": \"d\", \"optional\": {optional}}}]')"
        )
    };
    service.run(&second("1 day", false));
    // In `s` something to expire, in `t` something to close.
    service.decided("process", &Arrival::new("a", "1"));
    age_sequences(&mut service, "25 hours");
    service.decided("process", &Arrival::new("c", "1"));
    service.run(&second("1 day", true));
    service.begin();
    service.run(&second("2 days", true));
    let batch = housekeep(&mut keeper);
    assert_eq!(
        done(batch),
        (0, 1, 1),
        "what is being declared is left alone"
    );
    super::declare(&mut service, "2 days", super::PAIR);
    service.commit();
    assert_eq!(done(housekeep(&mut keeper)), (1, 0, 0));
}

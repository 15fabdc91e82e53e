//! From when a sequenced claim's retention counts (G9): from its commit, however long before that it
//! was made. What was made and not committed is older than it is visible.

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
};
use postgres::IsolationLevel;

use super::{claim_in, declared};

/// Lets a transaction take longer than a moment.
fn take_long(session: &mut Session) {
    session.run("SELECT pg_sleep(0.2)");
}

/// The database's clock, in seconds.
fn clock(session: &mut Session) -> f64 {
    session.value("SELECT EXTRACT(epoch FROM clock_timestamp())::float8", &[])
}

/// From when the claim of that id counts, in seconds.
#[track_caller]
fn dated(session: &mut Session, id: &str) -> f64 {
    session.value(
        "SELECT EXTRACT(epoch FROM created_at)::float8 FROM sequential_inbox_idempotence
         WHERE idempotence_id = $1",
        &[&id],
    )
}

/// An instance, and a session of a role that may do what a consumer needs and no more.
fn consumer(database: &Database, session: &mut Session) -> (i64, Session, String) {
    let role = format!("{}_consumer", database.name());
    session.run(&format!(
        "CREATE ROLE {role} LOGIN; SELECT inbox_grant('{role}', 'consumer')"
    ));
    let instance = session.value("SELECT inbox_sequence('s', 'context')", &[]);
    let consumer = Session::with(database.dsn_as(&role).parse().unwrap());
    (instance, consumer, role)
}

#[test]
fn g9_the_retention_of_a_sequenced_claim_counts_from_its_commit() {
    let (database, mut session) = declared();
    let (instance, mut consumer, role) = consumer(&database, &mut session);
    for level in [
        IsolationLevel::ReadCommitted,
        IsolationLevel::RepeatableRead,
        IsolationLevel::Serializable,
    ] {
        let claimed = format!("claimed {level:?}");
        let received = format!("received {level:?}");
        consumer.run(&format!(
            "SET default_transaction_isolation = '{}'",
            words(level)
        ));
        consumer.begin();
        assert!(claim_in(&mut consumer, "a", &claimed, instance));
        // One that is undone and made again, one that is only undone.
        consumer.run("SAVEPOINT s");
        let arrival = Arrival::new("a", &received).of("other");
        consumer.decided("process", &arrival);
        consumer.run("ROLLBACK TO s");
        consumer.decided("process", &arrival);
        consumer.run("SAVEPOINT s");
        assert!(claim_in(&mut consumer, "a", "undone", instance));
        consumer.run("ROLLBACK TO s");
        take_long(&mut consumer);
        let before = clock(&mut session);
        consumer.commit();
        for id in [claimed, received] {
            assert!(dated(&mut session, &id) >= before, "{id}");
        }
    }
    drop(consumer);
    session.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// The words of the setting.
fn words(level: IsolationLevel) -> &'static str {
    match level {
        IsolationLevel::RepeatableRead => "repeatable read",
        IsolationLevel::Serializable => "serializable",
        _ => "read committed",
    }
}

/// In two phases it is the first that counts: the second changes nothing any more.
#[test]
fn g9_the_retention_of_a_prepared_claim_counts_from_its_preparation() {
    let (database, mut session) = declared();
    let instance = session.value("SELECT inbox_sequence('s', 'context')", &[]);
    let mut consumer = Session::new(&database);
    consumer.begin();
    assert!(claim_in(&mut consumer, "a", "prepared", instance));
    take_long(&mut consumer);
    let before = clock(&mut session);
    let name = database.name();
    consumer.run(&format!("PREPARE TRANSACTION '{name}'"));
    consumer.run(&format!("COMMIT PREPARED '{name}'"));
    assert!(dated(&mut session, "prepared") >= before);
}

/// A duplicate leaves the winner's claim as it is, however long its own transaction takes: it would
/// otherwise meet other duplicates there, in whatever order, at the commit.
#[test]
fn g2_a_duplicate_in_a_long_transaction_writes_nothing() {
    let (database, mut winner) = declared();
    let instance: i64 = winner.value("SELECT inbox_sequence('s', 'context')", &[]);
    let mut duplicate = Session::new(&database);
    let stored =
        "SELECT string_agg(format('%s %s %s %s', ctid, xmin, xmax, c), ';' ORDER BY idempotence_id)
                  FROM sequential_inbox_idempotence c WHERE idempotence_id LIKE 'won %'";
    duplicate.begin();
    assert!(claim_in(&mut duplicate, "a", "own", instance));
    for id in ["won 1", "won 2"] {
        assert!(claim_in(&mut winner, "a", id, instance));
    }
    let before: String = winner.value(stored, &[]);
    for id in ["won 2", "won 1"] {
        assert!(!claim_in(&mut duplicate, "a", id, instance));
    }
    take_long(&mut duplicate);
    duplicate.commit();
    assert_eq!(winner.value::<String>(stored, &[]), before);
}

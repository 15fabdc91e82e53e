//! Serialization failures and deadlocks: the whole transaction is run again, a bounded number of
//! times, with growing pauses; nothing else is (G4, G10).

use std::{cell::Cell, sync::mpsc, thread, time::Duration};

use inbox_test_support::Database;
use sequential_inbox_client::{IsolationLevel, Outcome, ProcessError, SqlState};

use super::setting::{beside, both_modes, connect, database, message, without_pauses};

/// Raises that SQLSTATE.
fn raise(code: &str) -> String {
    format!("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")
}

/// Two rows to quarrel about.
fn accounts(database: &Database) {
    database.execute(
        "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
         INSERT INTO account VALUES (1, 0), (2, 0)",
    );
}

#[test]
fn g10_a_serialization_failure_runs_the_transaction_again() {
    for consumer in both_modes() {
        let database = database();
        accounts(&database);
        let (consumer, pauses) =
            without_pauses(consumer.isolation_level(IsolationLevel::RepeatableRead));
        let mut client = connect(&database);
        let attempts = Cell::new(0);
        let outcome = wait!(consumer.process(
            &mut client,
            &message("order.placed", "evt-1"),
            handler!(|tx, delivery| {
                attempts.set(attempts.get() + 1);
                let id = &*delivery.message.idempotence_id;
                done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                if attempts.get() <= 3 {
                    // Committed after this transaction's snapshot.
                    let add = "UPDATE account SET balance = balance + 1 WHERE id = 1";
                    beside(|| database.execute(add));
                }
                done!(tx.execute(
                    "UPDATE account SET balance = balance + 10 WHERE id = 1",
                    &[]
                ))?;
                Ok(attempts.get())
            }),
        ));
        assert_eq!(outcome.unwrap().applied(), Some(4));
        assert_eq!(pauses.lock().unwrap().len(), 3);
        assert_eq!(database.ledger(), ["evt-1"]);
        let balance: i32 = database.value("SELECT balance FROM account WHERE id = 1");
        assert_eq!(balance, 13, "three of the others, one of ours");
    }
}

#[test]
fn g10_a_serialization_failure_at_the_commit_runs_the_transaction_again() {
    for consumer in both_modes() {
        let database = database();
        accounts(&database);
        let (consumer, pauses) =
            without_pauses(consumer.isolation_level(IsolationLevel::Serializable));
        let mut client = connect(&database);
        let mut other = database.observer();
        let attempts = Cell::new(0);
        let outcome = wait!(consumer.process(
            &mut client,
            &message("order.placed", "evt-1"),
            handler!(|tx, _delivery| {
                attempts.set(attempts.get() + 1);
                let sum = "SELECT sum(balance)::bigint FROM account";
                done!(tx.query_one(sum, &[]))?;
                done!(tx.execute("UPDATE account SET balance = 1 WHERE id = 1", &[]))?;
                if attempts.get() == 1 {
                    // Write skew: each reads what the other writes, and the other is committed.
                    beside(|| {
                        other.batch_execute(
                            "BEGIN ISOLATION LEVEL SERIALIZABLE;
                             SELECT sum(balance) FROM account;
                             UPDATE account SET balance = 1 WHERE id = 2;
                             COMMIT",
                        )
                    })?;
                }
                Ok(attempts.get())
            }),
        ));
        assert_eq!(outcome.unwrap().applied(), Some(2));
        assert_eq!(pauses.lock().unwrap().len(), 1);
    }
}

#[test]
fn g10_a_deadlock_runs_the_transaction_again() {
    for consumer in both_modes() {
        let database = database();
        accounts(&database);
        let (consumer, pauses) = without_pauses(consumer);
        let mut client = connect(&database);
        let attempts = Cell::new(0);
        thread::scope(|scope| {
            let (started, is_started) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let (commit, is_committed) = mpsc::channel();
            let database = &database;
            scope.spawn(move || {
                let mut other = database.observer();
                let pid: i32 = other
                    .query_one("SELECT pg_backend_pid()", &[])
                    .unwrap()
                    .get(0);
                other
                    .batch_execute(
                        "SET deadlock_timeout = '1h'; BEGIN;
                         UPDATE account SET balance = balance + 1 WHERE id = 2",
                    )
                    .unwrap();
                started.send(pid).unwrap();
                may_go.recv().unwrap();
                other
                    .batch_execute("UPDATE account SET balance = balance + 1 WHERE id = 1; COMMIT")
                    .unwrap();
                commit.send(()).unwrap();
            });
            let other = is_started.recv().unwrap();
            let outcome = wait!(consumer.process(
                &mut client,
                &message("order.placed", "evt-1"),
                handler!(|tx, _delivery| {
                    attempts.set(attempts.get() + 1);
                    if attempts.get() == 2 {
                        // Else the two could meet again.
                        is_committed.recv().unwrap();
                    }
                    // The first to look for a deadlock is its victim.
                    done!(tx.batch_execute("SET LOCAL deadlock_timeout = '10ms'"))?;
                    let add = "UPDATE account SET balance = balance + 10 WHERE id = $1";
                    done!(tx.execute(add, &[&1]))?;
                    if attempts.get() == 1 {
                        go.send(()).unwrap();
                        beside(|| database.wait_until_blocked(other, || false));
                    }
                    done!(tx.execute(add, &[&2]))?;
                    Ok(attempts.get())
                }),
            ));
            assert_eq!(outcome.unwrap().applied(), Some(2));
        });
        assert_eq!(pauses.lock().unwrap().len(), 1);
        let balances: Vec<i32> =
            database.value("SELECT array_agg(balance ORDER BY id) FROM account");
        assert_eq!(balances, [11, 11]);
    }
}

#[test]
fn retries_are_bounded_and_pauses_grow() {
    for consumer in both_modes() {
        let database = database();
        for code in [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
        ] {
            let (consumer, pauses) = without_pauses(
                consumer
                    .clone()
                    .retries(5)
                    .pauses(Duration::from_millis(10), Duration::from_secs(60)),
            );
            let mut ids = Vec::new();
            let outcome = wait!(consumer.process(
                &mut connect(&database),
                &message("order.placed", "evt-1"),
                handler!(|tx, delivery| {
                    let id = delivery.message.idempotence_id.to_string();
                    done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                    ids.push(id);
                    done!(tx.batch_execute(&raise(code.code())))?;
                    Ok(())
                }),
            ));
            let error = outcome.expect_err("nothing to acknowledge");
            assert!(error.is_retryable(), "{error}");
            assert_eq!(error.sqlstate(), Some(&code));
            assert_eq!(ids, ["evt-1"; 6], "one attempt and five retries");
            let pauses = pauses.lock().unwrap().clone();
            assert_eq!(pauses.len(), 5);
            assert!(
                pauses.windows(2).all(|pair| pair[0] < pair[1]),
                "{pauses:?}"
            );
            assert!(pauses[0] >= Duration::from_millis(10), "{pauses:?}");
            assert!(database.ledger().is_empty(), "all is rolled back");
            let claims: i64 = database.value("SELECT count(*) FROM inbox_claims");
            assert_eq!(claims, 0);
        }
    }
}

#[test]
fn other_errors_are_not_retried() {
    for consumer in both_modes() {
        let database = database();
        let mut client = connect(&database);
        let (consumer, pauses) = without_pauses(consumer);
        for code in ["23505", "22012", "55P03", "57014", "40002", "XX000"] {
            let mut attempts = 0;
            let outcome: Result<Outcome<()>, _> = wait!(consumer.process(
                &mut client,
                &message("order.placed", "evt-1"),
                handler!(|tx, _delivery| {
                    attempts += 1;
                    done!(tx.batch_execute(&raise(code)))?;
                    Ok(())
                }),
            ));
            let error = outcome.expect_err("nothing to acknowledge");
            assert_eq!(error.sqlstate().map(SqlState::code), Some(code));
            assert!(matches!(error, ProcessError::Handler(_)), "{error:?}");
            assert_eq!(attempts, 1);
        }
        assert!(pauses.lock().unwrap().is_empty());
    }
}

#[test]
fn a_conflict_of_a_released_message_is_retried_too() {
    let database = database();
    let consumer = super::Consumer::sequence(super::setting::ORDERS);
    let (consumer, pauses) = without_pauses(consumer);
    let mut client = connect(&database);
    let attempts = Cell::new(0);
    let mut handle = |id, message_type| {
        wait!(consumer.process(
            &mut client,
            &message(message_type, id),
            handler!(|tx, delivery| {
                if delivery.is_released {
                    attempts.set(attempts.get() + 1);
                    if attempts.get() <= 2 {
                        done!(tx.batch_execute(&raise("40001")))?;
                    }
                }
                let id = &*delivery.message.idempotence_id;
                done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                Ok(())
            }),
        ))
        .unwrap()
    };
    assert!(matches!(handle("evt-2", "order.paid"), Outcome::Buffered));
    assert!(handle("evt-1", "order.placed").is_applied());
    assert_eq!(attempts.get(), 3);
    assert_eq!(pauses.lock().unwrap().len(), 2);
    assert_eq!(database.ledger(), ["evt-1", "evt-2"]);
}

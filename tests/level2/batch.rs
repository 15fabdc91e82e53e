//! A whole poll in one transaction, and what happens when one of its messages fails (G1, G4, G6).

use std::{
    collections::HashMap,
    sync::{Barrier, Mutex},
    thread,
};

use inbox_test_support::Database;
use sequential_inbox_client::{BatchOutcomes, Message, Outcome, ProcessError};

use super::{
    Client, Consumer,
    setting::{ORDERS, both_modes, connect, database, dead_letters, message, without_pauses},
};

/// That many messages of ten contexts, in turn.
pub(super) fn ids(count: usize) -> Vec<(String, String)> {
    (0..count)
        .map(|number| (format!("evt-{number:03}"), format!("order-{}", number % 10)))
        .collect()
}

pub(super) fn messages(ids: &[(String, String)]) -> Vec<Message<'_>> {
    ids.iter()
        .map(|(id, context)| message("order.placed", id).context(context.as_str()))
        .collect()
}

/// Processes a batch with a handler that writes ids into the ledger and fails at that one.
pub(super) fn process_batch(
    consumer: &Consumer,
    client: &mut Client,
    messages: &[Message<'_>],
    poison: Option<&str>,
) -> BatchOutcomes<String> {
    wait!(consumer.process_batch(
        client,
        messages,
        handler!(|tx, delivery| {
            let id = delivery.message.idempotence_id.to_string();
            done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
            if poison == Some(&id) {
                return Err("poison".into());
            }
            Ok(id)
        }),
    ))
    .unwrap()
}

/// The ledger in the order of writing.
pub(super) fn written(database: &Database) -> Vec<String> {
    database.value("SELECT array_agg(entry ORDER BY ctid) FROM ledger")
}

#[test]
fn g1_g6_one_poison_costs_its_batch_a_second_try_and_nothing_else() {
    for consumer in both_modes() {
        let database = database();
        let ids = ids(100);
        let poison = 42;
        let mut client = connect(&database);
        let consumer = consumer.give_up_after(2);
        let mut batch = messages(&ids);
        let outcomes = process_batch(&consumer, &mut client, &batch, Some(&ids[poison].0));
        assert_eq!(outcomes.len(), 100);
        for (place, outcome) in outcomes.into_iter().enumerate() {
            if place == poison {
                assert!(
                    matches!(outcome, Err(ProcessError::Handler(_))),
                    "{outcome:?}"
                );
            } else {
                assert_eq!(outcome.unwrap().applied().as_ref(), Some(&ids[place].0));
            }
        }
        let ledger = written(&database);
        assert_eq!(ledger.len(), 99);
        let context_of: HashMap<&str, &str> = ids
            .iter()
            .map(|(id, context)| (&**id, &**context))
            .collect();
        for context in (0..10).map(|number| format!("order-{number}")) {
            let of_context: Vec<&String> = ledger
                .iter()
                .filter(|id| context_of[&***id] == context)
                .collect();
            assert!(of_context.is_sorted(), "{of_context:?}");
        }
        // The broker delivers it a second time, with others.
        batch = vec![
            batch[0].clone(),
            batch[poison].clone().delivery(2),
            message("order.placed", "evt-new"),
        ];
        let outcomes = process_batch(&consumer, &mut client, &batch, Some(&ids[poison].0));
        assert!(matches!(outcomes[0], Ok(Outcome::Duplicate)));
        assert!(matches!(outcomes[1], Ok(Outcome::DeadLettered { .. })));
        assert!(matches!(outcomes[2], Ok(Outcome::Applied(_))));
        assert_eq!(dead_letters(&database)[0].1, ids[poison].0);
        assert_eq!(written(&database).len(), 100);
    }
}

#[test]
fn g6_a_batch_keeps_the_order_and_drains_what_it_released() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS);
    let mut client = connect(&database);
    let earlier = [message("order.shipped", "a-3").context("order-a")];
    let outcomes = process_batch(&consumer, &mut client, &earlier, None);
    assert!(matches!(outcomes[0], Ok(Outcome::Buffered)));
    let batch = [
        message("order.placed", "b-1").context("order-b"),
        message("order.paid", "a-2").context("order-a"),
        message("order.paid", "b-2").context("order-b"),
        message("order.placed", "a-1").context("order-a"),
        message("order.placed", "b-1").context("order-b"),
        Message::new("order.placed", "none"),
    ];
    let outcomes = process_batch(&consumer, &mut client, &batch, None);
    let told: Vec<&str> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().unwrap().as_str())
        .collect();
    assert_eq!(
        told,
        [
            "applied",
            "buffered",
            "applied",
            "applied",
            "duplicate",
            "direct"
        ]
    );
    assert_eq!(written(&database), ["a-1", "b-1", "b-2", "a-2", "a-3"]);
}

#[test]
fn a_batch_that_meets_a_conflict_is_run_again_as_a_whole() {
    for consumer in both_modes() {
        let database = database();
        let (consumer, pauses) = without_pauses(consumer);
        let ids = ids(10);
        let mut handled = 0;
        let outcomes = wait!(consumer.process_batch(
            &mut connect(&database),
            &messages(&ids),
            handler!(|tx, _delivery| {
                handled += 1;
                if handled == 5 {
                    let fail = "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40P01'; END $$";
                    done!(tx.batch_execute(fail))?;
                }
                Ok(())
            }),
        ))
        .unwrap();
        assert!(
            outcomes
                .iter()
                .all(|outcome| outcome.as_ref().unwrap().is_applied())
        );
        assert_eq!(handled, 5 + 10);
        assert_eq!(pauses.lock().unwrap().len(), 1);
    }
}

#[test]
fn an_empty_batch_is_nothing_to_do() {
    let database = database();
    for consumer in both_modes() {
        let outcomes = process_batch(&consumer, &mut connect(&database), &[], None);
        assert!(outcomes.is_empty());
    }
}

/// Lets two sessions process overlapping batches, one forwards and one backwards, so many rounds.
/// Their handlers may also quarrel about rows of their own.
fn overlap(database: &Database, consumer: &Consumer, rounds: usize, quarrel: bool) {
    database.execute(
        "CREATE TABLE stock (id int PRIMARY KEY, taken int NOT NULL);
         INSERT INTO stock SELECT id, 0 FROM generate_series(0, 3) AS id",
    );
    // What deadlocks need not be waited for. A setting of the database, since a session's own would
    // be lost with its server process in PgBouncer.
    database.execute(&format!(
        "ALTER DATABASE {} SET deadlock_timeout = '10ms'",
        database.name()
    ));
    let applied = Mutex::new(HashMap::<String, usize>::new());
    let barrier = Barrier::new(2);
    let work = |first: usize, backwards: bool| {
        let mut client = connect(database);
        for round in 0..rounds {
            let mut ids: Vec<(String, String)> = (first..first + 8)
                .map(|number| {
                    let context = format!("order-{round}-{}", number % 5);
                    (format!("evt-{round}-{number}"), context)
                })
                .collect();
            if backwards {
                ids.reverse();
            }
            barrier.wait();
            let outcomes = wait!(consumer.process_batch(
                &mut client,
                &messages(&ids),
                handler!(|tx, delivery| {
                    let id = delivery.message.idempotence_id.to_string();
                    if quarrel {
                        let number: i32 = id.rsplit('-').next().unwrap().parse()?;
                        let take = "UPDATE stock SET taken = taken + 1 WHERE id = $1";
                        done!(tx.execute(take, &[&(number % 4)]))?;
                    }
                    Ok(id)
                }),
            ))
            .unwrap();
            for outcome in outcomes {
                match outcome.expect("no deadlock is left") {
                    Outcome::Applied(id) => {
                        *applied.lock().unwrap().entry(id).or_default() += 1;
                    }
                    Outcome::Duplicate => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| work(0, false));
        scope.spawn(|| work(4, true));
    });
    let applied = applied.into_inner().unwrap();
    assert_eq!(applied.len(), rounds * 12, "none is lost");
    assert!(
        applied.values().all(|times| *times == 1),
        "none is applied twice"
    );
    let taken: i64 = database.value("SELECT sum(taken) FROM stock");
    let expected = if quarrel { rounds * 12 } else { 0 };
    assert_eq!(usize::try_from(taken), Ok(expected));
}

#[test]
fn g1_g8_overlapping_batches_in_opposite_order_neither_deadlock_nor_lose() {
    for consumer in both_modes() {
        overlap(&database(), &consumer, 200, true);
    }
}

#[test]
fn overlapping_batches_never_deadlock_over_the_inbox_itself() {
    for consumer in both_modes() {
        let (consumer, pauses) = without_pauses(consumer);
        overlap(&database(), &consumer, 50, false);
        assert!(pauses.lock().unwrap().is_empty(), "nothing was run again");
    }
}

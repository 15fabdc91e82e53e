//! What only the asynchronous API promises.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use inbox_test_support::{Database, wait_for};
use sequential_inbox_client::{HandlerError, Outcome, ProcessError, Shutdown, Swept, Wakeups};
use tokio_postgres::NoTls;

use super::{
    Consumer, runtime,
    setting::{BILLING, ORDERS, connect, database, message, state_of},
};

#[test]
fn all_of_a_consumer_can_be_spawned() {
    let database = database();
    let mut client = connect(&database);
    let consumer = Arc::new(Consumer::sequence(ORDERS));
    let handled = Arc::new(AtomicU32::new(0));
    let service = Arc::clone(&handled);
    // A future that is not `Send` would not compile here.
    let work = runtime().spawn(async move {
        let message = message("order.placed", "evt-1");
        let outcome = consumer
            .process(&mut client, &message, async move |transaction, delivery| {
                let _ = service.fetch_add(1, Relaxed);
                let id = &*delivery.message.idempotence_id;
                let sql = "INSERT INTO ledger VALUES ($1)";
                transaction.execute(sql, &[&id]).await?;
                Ok(())
            })
            .await?;
        let messages = [message];
        let outcomes = consumer
            .process_batch(&mut client, &messages, async |_, _| Ok(()))
            .await?;
        let swept = consumer.sweep(&mut client, async |_, _| Ok(())).await?;
        consumer.give_up(&mut client, &messages[0], "no").await?;
        Ok::<_, ProcessError>((outcome.is_applied(), outcomes.len(), swept.applied))
    });
    assert_eq!(wait!(work).unwrap().unwrap(), (true, 1, 0));
    assert_eq!(handled.load(Relaxed), 1);
}

#[test]
fn g4_a_future_that_is_dropped_leaves_nothing() {
    let database = database();
    let mut client = connect(&database);
    let consumer = Consumer::plain(BILLING);
    let message = message("order.placed", "evt-1");
    wait!(async {
        let work = consumer.process(&mut client, &message, async |transaction, _| {
            let sql = "INSERT INTO ledger VALUES ('half')";
            transaction.execute(sql, &[]).await?;
            pending::<Result<(), HandlerError>>().await
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(200), work)
                .await
                .is_err()
        );
        let outcome = consumer
            .process(&mut client, &message, async |_, _| Ok(()))
            .await;
        assert!(outcome.unwrap().is_applied());
    });
    assert!(database.ledger().is_empty());
}

/// A sweep in a task of its own, until the shutdown.
fn sweeping(
    database: &Database,
    consumer: Consumer,
    wakeups: Option<Wakeups>,
) -> tokio::task::JoinHandle<Result<Swept, ProcessError>> {
    let mut client = connect(database);
    runtime().spawn(async move {
        consumer
            .sweep_until_shutdown(
                &mut client,
                wakeups.as_ref(),
                async |transaction, delivery| {
                    let id = &*delivery.message.idempotence_id;
                    let sql = "INSERT INTO ledger VALUES ($1)";
                    transaction.execute(sql, &[&id]).await?;
                    Ok(())
                },
            )
            .await
    })
}

/// Leaves `evt-2` released and not handled.
fn release(database: &Database) {
    let mut client = connect(database);
    let lazy = Consumer::sequence(ORDERS).drain(false);
    for (message_type, id) in [("order.paid", "evt-2"), ("order.placed", "evt-1")] {
        let message = message(message_type, id);
        let outcome = wait!(lazy.process(&mut client, &message, async |_, _| Ok(())));
        assert!(!matches!(outcome.unwrap(), Outcome::Duplicate));
    }
}

#[test]
fn g7_an_announcement_wakes_a_sweep() {
    let database = database();
    let settings = format!(
        "ALTER DATABASE {} SET sequential_inbox.notify = on",
        database.name()
    );
    database.execute(&settings);
    let wakeups = wait!(async {
        let (client, connection) = tokio_postgres::connect(database.dsn(), NoTls)
            .await
            .unwrap();
        Wakeups::listen(client, connection).await.unwrap()
    });
    assert!(!wakeups.is_closed());
    let shutdown = Shutdown::new();
    // Polling alone would never find it in time.
    let consumer = Consumer::sequence(ORDERS)
        .poll_interval(Duration::from_secs(3600))
        .shutdown(&shutdown);
    let sweep = sweeping(&database, consumer, Some(wakeups));
    release(&database);
    wait_for("the released message to be handled", || {
        (state_of(&database, "evt-2") == "PROCESSED").then_some(())
    });
    shutdown.request();
    let swept = wait!(sweep).unwrap().unwrap();
    assert_eq!((swept.applied, swept.failed), (1, 0));
    assert_eq!(database.ledger(), ["evt-2"]);
}

#[test]
fn g7_polling_finds_what_nobody_announced() {
    let database = database();
    let shutdown = Shutdown::new();
    let consumer = Consumer::sequence(ORDERS)
        .poll_interval(Duration::from_millis(20))
        .shutdown(&shutdown);
    let sweep = sweeping(&database, consumer, None);
    release(&database);
    wait_for("the released message to be handled", || {
        (state_of(&database, "evt-2") == "PROCESSED").then_some(())
    });
    shutdown.request();
    assert_eq!(wait!(sweep).unwrap().unwrap().applied, 1);
}

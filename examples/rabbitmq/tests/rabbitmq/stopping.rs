//! Shutdown: what is in hand is finished, the rest is somebody else's (G8).

use std::sync::{
    Barrier,
    atomic::{AtomicBool, Ordering},
};
use std::{sync::Arc, time::Duration};

use inbox_test_support::{Database, wait_for};
use rabbitmq_consumer::run;
use sequential_inbox_client::{Consumer, Shutdown};

use crate::setting::{Queue, message, runtime};

#[test]
fn a_shutdown_finishes_the_message_in_hand_and_leaves_the_rest() {
    let database = Database::new();
    let queue = Queue::new(&database);
    let ids: Vec<String> = (0..10).map(|number| format!("evt-{number}")).collect();
    for id in &ids {
        queue.publish(&message("order.placed", id));
    }
    let (in_hand, finished) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let (reached, done) = (Arc::clone(&in_hand), Arc::clone(&finished));
    let running = queue.consume_with(Consumer::plain("billing"), move |_| {
        // Twice: it is in hand, and the shutdown is requested.
        reached.wait();
        reached.wait();
        done.store(true, Ordering::SeqCst);
        Ok(())
    });
    in_hand.wait();
    running.shutdown.request();
    in_hand.wait();
    let tally = running.stop();
    assert!(finished.load(Ordering::SeqCst));
    assert_eq!((tally.deliveries, tally.applied), (1, 1), "{tally:?}");
    assert_eq!(database.ledger(), ["evt-0"]);
    wait_for(
        "the broker to have all but the one that is acknowledged",
        || (queue.ready() == 9).then_some(()),
    );

    let running = queue.consume(Consumer::plain("billing"));
    wait_for("the rest", || (database.ledger().len() >= 10).then_some(()));
    let tally = running.stop();
    assert_eq!((tally.applied, tally.duplicates), (9, 0), "{tally:?}");
    assert_eq!(database.ledger(), ids);
    assert!(queue.take_rest().is_empty());
}

#[test]
fn a_consumer_that_is_dropped_in_the_middle_leaves_its_messages_to_the_broker() {
    let database = Database::new();
    let queue = Queue::new(&database);
    queue.publish(&message("order.placed", "evt-1"));
    let options = queue.options.clone();
    let consuming = runtime().spawn(async move {
        let consumer = Consumer::plain("billing");
        run(options, consumer, Shutdown::new(), async |tx, _| {
            tx.execute("INSERT INTO ledger VALUES ('half')", &[])
                .await?;
            std::future::pending().await
        })
        .await
    });
    let in_transaction = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle in transaction'
          AND query LIKE 'INSERT INTO ledger%'";
    wait_for("the handler to hang", || {
        (database.value::<i64>(in_transaction) == 1).then_some(())
    });
    consuming.abort();
    let running = queue.consume(Consumer::plain("billing"));
    wait_for("the message to come again", || {
        (database.ledger() == ["evt-1"]).then_some(())
    });
    let tally = running.stop();
    assert_eq!(tally.applied, 1, "{tally:?}");
}

#[test]
fn a_shutdown_does_not_wait_for_servers_that_are_away() {
    let database = Database::new();
    let mut queue = Queue::new(&database);
    queue.options.connection_pauses = (Duration::from_secs(600), Duration::from_secs(600));
    queue.publish(&message("order.placed", "evt-1"));
    // Nobody listens on port 1.
    let dsn = std::mem::replace(&mut queue.options.dsn, "host=127.0.0.1 port=1".to_owned());
    let running = queue.consume(Consumer::plain("billing"));
    wait_for("the delivery", || (queue.ready() == 0).then_some(()));
    assert_eq!(running.stop().applied, 0);
    wait_for("the broker to have it again", || {
        (queue.ready() == 1).then_some(())
    });
    queue.options.dsn = dsn;
    queue.options.amqp_url = "amqp://127.0.0.1:1/%2f".to_owned();
    let running = queue.consume(Consumer::plain("billing"));
    assert_eq!(running.stop().broker_connections, 0);
}

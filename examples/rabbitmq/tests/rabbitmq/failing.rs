//! What becomes of messages whose handler fails (G4, G5, G8).

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
use std::time::Duration;

use inbox_test_support::{Database, wait_for};
use sequential_inbox_client::Consumer;

use crate::setting::{Queue, dead_letters, message};

#[test]
fn g5_a_message_that_always_fails_is_a_dead_letter_until_it_is_retried() {
    let database = Database::new();
    let mut queue = Queue::new(&database);
    queue.options.give_up_after = 3;
    queue.options.sweep_interval = Some(Duration::from_millis(20));
    let (tries, is_mended) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (counted, mended) = (Arc::clone(&tries), Arc::clone(&is_mended));
    let running = queue.consume_with(Consumer::plain("billing"), move |id| {
        if id != "poison" || mended.load(Ordering::SeqCst) {
            return Ok(());
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Err("no such account".into())
    });
    queue.publish(&message("order.placed", "poison"));
    queue.publish(&message("order.placed", "evt-1"));
    wait_for("the dead letter", || {
        (!dead_letters(&database).is_empty()).then_some(())
    });
    let error = "at delivery 3: the handler failed: no such account".to_owned();
    assert_eq!(dead_letters(&database), [("poison".to_owned(), 1, error)]);
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let stored: Vec<u8> = database.value("SELECT payload FROM buffered_message");
    assert_eq!(stored, b"{}");
    wait_for("the other message", || {
        (database.ledger() == ["evt-1"]).then_some(())
    });

    is_mended.store(true, Ordering::SeqCst);
    let is_retried: bool = database.value("SELECT inbox_retry(id) FROM inbox_dead_letters");
    assert!(is_retried);
    wait_for("the retried message", || {
        (database.ledger() == ["evt-1", "poison"]).then_some(())
    });
    assert!(dead_letters(&database).is_empty());
    let tally = running.stop();
    assert_eq!((tally.returned, tally.dead_lettered), (2, 1), "{tally:?}");
    assert_eq!((tally.applied, tally.swept), (1, 1), "{tally:?}");
    assert!(queue.take_rest().is_empty(), "all is acknowledged");
    assert_eq!(queue.dead(), 0);
}

#[test]
fn g4_a_failed_try_leaves_nothing_and_others_go_on_meanwhile() {
    let database = Database::new();
    let mut queue = Queue::new(&database);
    // Longer than the test: the message is not given back before the shutdown.
    queue.options.redelivery_pauses = (Duration::from_secs(600), Duration::from_secs(600));
    let running = queue.consume_with(Consumer::plain("billing"), |id| match id {
        "fails" => Err("not yet".into()),
        _ => Ok(()),
    });
    queue.publish(&message("order.placed", "fails"));
    for id in ["evt-1", "evt-2"] {
        queue.publish(&message("order.placed", id));
    }
    wait_for("the messages behind the failed one", || {
        (database.ledger() == ["evt-1", "evt-2"]).then_some(())
    });
    let tally = running.stop();
    assert_eq!((tally.applied, tally.returned), (2, 1), "{tally:?}");
    assert_eq!(queue.take_rest(), ["fails"], "the broker has it again");
    assert!(dead_letters(&database).is_empty());
}

#[test]
fn what_no_consumer_records_is_put_aside_by_the_broker() {
    let database = Database::new();
    let mut options = Queue::new(&database).options;
    options.queue.push_str("-limited");
    options.delivery_limit = 2;
    let queue = Queue::with(options);
    let running = queue.consume_with(Consumer::plain("billing"), |_| Err("no".into()));
    queue.publish(&message("order.placed", "evt-1"));
    wait_for("the broker to put it aside", || {
        (queue.dead() == 1).then_some(())
    });
    let tally = running.stop();
    assert_eq!(tally.returned, 3, "{tally:?}");
    assert!(queue.take_rest().is_empty());
    assert!(dead_letters(&database).is_empty());
}

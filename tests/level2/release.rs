//! Order: what a message released is handled after it, one transaction a message; what a crash
//! left is found (G6, G7).

use sequential_inbox_client::{Message, Outcome, Schema, Shutdown, Swept};

use inbox_test_support::Database;

use super::{
    Client, Consumer,
    setting::{ORDERS, connect, database, message, state_of},
};

/// Processes a message with a handler that writes its id into the ledger.
fn process(consumer: &Consumer, client: &mut Client, message: &Message<'_>) -> Outcome<String> {
    wait!(consumer.process(
        client,
        message,
        handler!(|tx, delivery| {
            let id = delivery.message.idempotence_id.to_string();
            done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
            Ok(id)
        }),
    ))
    .unwrap()
}

/// Receives `evt-2`, which has to wait for `evt-1`, and then that.
fn release(consumer: &Consumer, client: &mut Client) {
    let outcome = process(consumer, client, &message("order.paid", "evt-2"));
    assert!(matches!(outcome, Outcome::Buffered), "{outcome:?}");
    let outcome = process(consumer, client, &message("order.placed", "evt-1"));
    assert!(outcome.is_applied(), "{outcome:?}");
}

/// Sweeps with such a handler.
fn sweep(consumer: &Consumer, client: &mut Client) -> Swept {
    wait!(consumer.sweep(
        client,
        handler!(|tx, delivery| {
            let id = &*delivery.message.idempotence_id;
            done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
            Ok(())
        }),
    ))
    .unwrap()
}

/// The ledger in the order of writing.
fn written(database: &Database) -> Vec<String> {
    database.value("SELECT coalesce(array_agg(entry ORDER BY ctid), '{}') FROM ledger")
}

#[test]
fn g6_released_messages_are_handled_in_order_each_in_its_transaction() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS);
    let mut client = connect(&database);
    let mut take = |message_type, id| process(&consumer, &mut client, &message(message_type, id));
    assert!(matches!(take("order.shipped", "evt-3"), Outcome::Buffered));
    assert!(matches!(take("order.paid", "evt-2"), Outcome::Buffered));
    assert!(matches!(take("order.paid", "evt-2"), Outcome::Duplicate));
    assert!(written(&database).is_empty());
    let applied = take("order.placed", "evt-1").applied();
    assert_eq!(
        applied.as_deref(),
        Some("evt-1"),
        "the message's own result"
    );
    assert_eq!(written(&database), ["evt-1", "evt-2", "evt-3"]);
    let transactions: i64 = database.value("SELECT count(DISTINCT xmin::text) FROM ledger");
    assert_eq!(transactions, 3);
}

#[test]
fn a_message_outside_of_the_sequence_is_not_handled() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS);
    let outcome = process(
        &consumer,
        &mut connect(&database),
        &Message::new("order.placed", "evt-1"),
    );
    assert!(matches!(outcome, Outcome::Direct), "{outcome:?}");
    assert!(written(&database).is_empty());
}

#[test]
fn a_rejected_message_can_be_acknowledged_and_tells_why() {
    let database = database();
    database.execute(
        r#"SELECT inbox_declare_sequence('steps', '1 day', '[{"type": "step"}]', 'position')"#,
    );
    let consumer = Consumer::sequence("steps");
    let mut client = connect(&database);
    let first = message("step", "evt-1").position(1);
    assert!(process(&consumer, &mut client, &first).is_applied());
    let other = message("step", "evt-other").position(1);
    let outcome = process(&consumer, &mut client, &other);
    let Outcome::Rejected { reason, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(reason.is_some());
}

#[test]
fn g7_what_is_not_drained_is_swept() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS);
    let lazy = consumer.clone().drain(false);
    let mut client = connect(&database);
    release(&lazy, &mut client);
    assert_eq!(written(&database), ["evt-1"]);
    assert_eq!(state_of(&database, "evt-2"), "READY");
    let swept = sweep(&lazy, &mut client);
    assert_eq!((swept.applied, swept.failed), (1, 0));
    assert_eq!(written(&database), ["evt-1", "evt-2"]);
    assert_eq!(sweep(&lazy, &mut client), Swept::default());
}

#[test]
fn g7_a_redelivery_drains_what_a_crash_left() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS);
    let mut client = connect(&database);
    // As if the process had died between its commit and its drain.
    let dying = consumer.clone().drain(false);
    release(&dying, &mut client);
    let outcome = process(&consumer, &mut client, &message("order.placed", "evt-1"));
    assert!(matches!(outcome, Outcome::Duplicate), "{outcome:?}");
    assert_eq!(written(&database), ["evt-1", "evt-2"]);
}

#[test]
fn an_instance_can_be_drained_by_itself() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS).drain(false);
    let mut client = connect(&database);
    let outcome = process(&consumer, &mut client, &message("order.paid", "evt-2"));
    assert!(matches!(outcome, Outcome::Buffered), "{outcome:?}");
    let instance = wait!(consumer.process(
        &mut client,
        &message("order.placed", "evt-1"),
        handler!(|_tx, delivery| { Ok(delivery.sequence_instance_id.unwrap()) }),
    ))
    .unwrap()
    .applied()
    .unwrap();
    let swept = wait!(consumer.drain_instance(
        &mut client,
        instance,
        handler!(|_tx, delivery| { Ok(delivery.message.idempotence_id.to_string()) }),
    ))
    .unwrap();
    assert_eq!(swept.applied, 1);
    assert_eq!(state_of(&database, "evt-2"), "PROCESSED");
}

#[test]
fn a_drain_that_fails_leaves_the_message_applied() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS);
    let mut client = connect(&database);
    let outcome = process(&consumer, &mut client, &message("order.paid", "evt-2"));
    assert!(matches!(outcome, Outcome::Buffered), "{outcome:?}");
    let outcome = wait!(consumer.process(
        &mut client,
        &message("order.placed", "evt-1"),
        handler!(|tx, delivery| {
            let id = &*delivery.message.idempotence_id;
            done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
            if delivery.is_released {
                // The session is lost in the middle of the drain.
                let end = "SELECT pg_terminate_backend(pg_backend_pid())";
                done!(tx.execute(end, &[]))?;
            }
            Ok(())
        }),
    ));
    assert!(outcome.unwrap().is_applied());
    assert_eq!(written(&database), ["evt-1"]);
    assert_eq!(state_of(&database, "evt-2"), "READY");
    assert_eq!(sweep(&consumer, &mut connect(&database)).applied, 1);
}

#[test]
fn a_shutdown_finishes_what_is_in_hand_and_no_more() {
    let database = database();
    let shutdown = Shutdown::new();
    let consumer = Consumer::sequence(ORDERS).shutdown(&shutdown);
    let mut client = connect(&database);
    for (message_type, id) in [("order.shipped", "evt-3"), ("order.paid", "evt-2")] {
        let outcome = process(&consumer, &mut client, &message(message_type, id));
        assert!(matches!(outcome, Outcome::Buffered), "{outcome:?}");
    }
    let outcome = wait!(consumer.process(
        &mut client,
        &message("order.placed", "evt-1"),
        handler!(|tx, delivery| {
            let id = &*delivery.message.idempotence_id;
            done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
            if id == "evt-2" {
                shutdown.request();
            }
            Ok(())
        }),
    ));
    assert!(outcome.unwrap().is_applied());
    assert_eq!(written(&database), ["evt-1", "evt-2"]);
    assert_eq!(state_of(&database, "evt-3"), "READY");
    assert_eq!(sweep(&Consumer::sequence(ORDERS), &mut client).applied, 1);
}

#[test]
fn g14_a_schema_that_is_named_need_not_be_in_the_search_path() {
    let database = Database::bare();
    database.execute(
        "CREATE SCHEMA \"In box\"; CREATE EXTENSION sequential_inbox SCHEMA \"In box\";
         CREATE TABLE ledger (entry text)",
    );
    database.execute(
        r#"SET search_path = "In box";
           SELECT inbox_declare_sequence('orders', '1 day', '[{"type": "order.placed"},
             {"type": "order.paid", "releaseCondition": {"predecessor": "order.placed"}}]')"#,
    );
    let mut client = connect(&database);
    let sequenced = Consumer::sequence(ORDERS).in_schema(Schema::new("In box"));
    release(&sequenced, &mut client);
    let plain = Consumer::plain("billing").in_schema(Schema::new("In box"));
    assert!(process(&plain, &mut client, &message("order.placed", "evt-1")).is_applied());
    assert!(wait!(plain.give_up(&mut client, &message("order.paid", "evt-9"), "no")).unwrap());
    assert_eq!(written(&database), ["evt-1", "evt-2", "evt-1"]);
    assert_eq!(sweep(&plain, &mut client), Swept::default());
}

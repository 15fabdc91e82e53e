//! What the inbox cannot take, and servers that refuse (G11).

use inbox_test_support::{Database, wait_for};
use rabbitmq_consumer::{
    Error, Options,
    lapin::{
        BasicProperties, Connection, ConnectionProperties, options::QueueDeclareOptions,
        types::FieldTable,
    },
    run,
};
use sequential_inbox_client::{Consumer, Shutdown};

use crate::setting::{Queue, broker, message, runtime};

#[test]
fn g11_what_has_no_place_in_the_inbox_is_put_aside() {
    let database = Database::new();
    database.execute(
        r#"SELECT inbox_declare_sequence('orders', '1 day', '[{"type": "order.placed"}]')"#,
    );
    let queue = Queue::new(&database);
    let nameless = BasicProperties::default().with_type("order.placed".into());
    queue.publish_raw(nameless, b"{}");
    queue.publish(&message("order.placed", "no-context"));
    let long = "x".repeat(1025);
    queue.publish(&message("order.placed", "long").context(long));
    queue.publish(&message("order.placed", "good").context("order-1"));
    let running = queue.consume(Consumer::sequence("orders"));
    wait_for("the good message", || {
        (database.ledger() == ["good"]).then_some(())
    });
    wait_for("the others", || (queue.dead() == 3).then_some(()));
    let tally = running.stop();
    assert_eq!(
        (tally.unreadable, tally.applied, tally.returned),
        (3, 1, 0),
        "{tally:?}"
    );
    assert!(queue.take_rest().is_empty());
}

#[test]
fn what_waiting_does_not_mend_ends_the_consumer() {
    let database = Database::new();
    let ended = |options: Options| {
        let consumer = Consumer::plain("billing");
        let running = run(options, consumer, Shutdown::new(), async |_, _| Ok(()));
        runtime().block_on(running).unwrap_err()
    };

    let mut options = Queue::new(&database).options;
    options.dsn = format!("{} dbname=nowhere", database.dsn());
    let queue = Queue::with(options.clone());
    queue.publish(&message("order.placed", "evt-1"));
    let error = ended(options.clone());
    assert!(matches!(error, Error::Database(_)), "{error:?}");
    assert_eq!(queue.take_rest(), ["evt-1"], "nothing is lost");

    options.queue.push_str("-classic");
    runtime().block_on(async {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&broker().amqp_url(), properties)
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let name = options.queue.as_str().into();
        channel
            .queue_declare(name, QueueDeclareOptions::durable(), FieldTable::default())
            .await
            .unwrap();
    });
    let error = ended(options.clone());
    assert!(matches!(error, Error::Broker(_)), "{error:?}");

    options.queue = "x".repeat(252);
    let error = ended(options);
    assert!(matches!(error, Error::TooLong(_)), "{error:?}");
}

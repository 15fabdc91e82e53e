//! Messages out of order, twice, and over several consumers (G1, G6, G7, G12).

use std::time::Duration;

use inbox_test_support::{Database, wait_for};
use rabbitmq_consumer::run;
use sequential_inbox_client::{Consumer, Shutdown};

use crate::setting::{Queue, message, runtime};

const CONTEXTS: i64 = 6;
const STEPS: i64 = 8;

#[test]
fn g6_messages_out_of_order_are_handled_in_order_by_several_consumers() {
    let database = Database::new();
    database.execute(
        r#"SELECT inbox_declare_sequence('orders', '1 day',
            '[{"type": "step"}, {"type": "last", "final": true}]', 'position')"#,
    );
    database.execute(
        "CREATE TABLE handled (
            number bigint GENERATED ALWAYS AS IDENTITY, context text, position bigint)",
    );
    let mut queue = Queue::new(&database);
    queue.options.prefetch = 3;
    // Should a consumer be stopped between a commit and its drain.
    queue.options.sweep_interval = Some(Duration::from_millis(50));
    // Backwards, the contexts by turns, every third message twice.
    for place in (0..CONTEXTS * STEPS).rev() {
        let (position, context) = (place / CONTEXTS + 1, place % CONTEXTS);
        let id = format!("{context}-{position}");
        let kind = if position == STEPS { "last" } else { "step" };
        let message = message(kind, &id)
            .context(context.to_string())
            .position(position);
        for _ in 0..=i64::from(place % 3 == 0) {
            queue.publish(&message);
        }
    }
    let shutdown = Shutdown::new();
    let runs = [(); 3].map(|()| {
        let (options, shutdown) = (queue.options.clone(), shutdown.clone());
        runtime().spawn(async move {
            let consumer = Consumer::sequence("orders");
            run(options, consumer, shutdown, async |tx, delivery| {
                let message = delivery.message;
                let sql = "INSERT INTO handled (context, position) VALUES ($1, $2)";
                tx.execute(sql, &[&message.context_id, &message.position])
                    .await?;
                Ok(())
            })
            .await
        })
    });
    let count = "SELECT count(*) FROM handled";
    wait_for("all to be handled", || {
        (database.value::<i64>(count) >= CONTEXTS * STEPS).then_some(())
    });
    shutdown.request();
    let mut tallies = Vec::new();
    for run in runs {
        tallies.push(runtime().block_on(run).unwrap().unwrap());
    }
    // What may be left are second copies.
    for context in 0..CONTEXTS {
        let order: Vec<i64> = database.value(&format!(
            "SELECT array_agg(position ORDER BY number) FROM handled WHERE context = '{context}'"
        ));
        assert_eq!(order, (1..=STEPS).collect::<Vec<_>>(), "{tallies:?}");
    }
    let buffered: u64 = tallies.iter().map(|tally| tally.buffered).sum();
    assert!(
        buffered >= u64::try_from(CONTEXTS * (STEPS - 1)).unwrap() / 2,
        "{tallies:?}"
    );
    let open: i64 = database.value("SELECT count(*) FROM buffered_message");
    assert_eq!(open, 0);
}

#[test]
fn g12_two_queues_of_one_stream_are_two_consumers() {
    let database = Database::new();
    let queues = [Queue::new(&database), Queue::new(&database)];
    for queue in &queues {
        queue.publish(&message("order.placed", "evt-1"));
        queue.publish(&message("order.placed", "evt-1"));
    }
    let runs = ["billing", "shipping"]
        .into_iter()
        .zip(&queues)
        .map(|(name, queue)| queue.consume(Consumer::plain(name)));
    let runs: Vec<_> = runs.collect();
    wait_for("both to be handled", || {
        (database.ledger() == ["evt-1", "evt-1"]).then_some(())
    });
    wait_for("both queues to be empty", || {
        queues.iter().all(|queue| queue.ready() == 0).then_some(())
    });
    for run in runs {
        let tally = run.stop();
        assert_eq!(tally.applied, 1, "{tally:?}");
        assert_eq!(tally.duplicates, tally.deliveries - 1, "{tally:?}");
    }
    assert_eq!(database.ledger(), ["evt-1", "evt-1"]);
}

//! Connections that break at the worst moment, and servers that go away (G1, G3, G4).

use std::{net::IpAddr, sync::Arc};

use cutting_proxy::{Cut, Proxy};
use inbox_test_support::{Database, cluster, start_cluster, wait_for};
use rabbitmq_consumer::{Tally, run};
use sequential_inbox_client::{Consumer, Shutdown};
use throwaway_broker::Broker;
use tokio::sync::Semaphore;

use crate::setting::{Queue, Scissors, broker, message, runtime};

/// Waits until the ledger has that many entries.
fn wait_for_entries(database: &Database, count: usize) {
    wait_for("entries in the ledger", || {
        (database.ledger().len() >= count).then_some(())
    });
}

#[test]
fn g1_what_is_committed_and_not_acknowledged_comes_again_and_is_a_duplicate() {
    let database = Database::new();
    let mut queue = Queue::new(&database);
    let scissors = Scissors::start(broker().port());
    let direct = format!(":{}/", broker().port());
    let through = format!(":{}/", scissors.port);
    queue.options.amqp_url = queue.options.amqp_url.replace(&direct, &through);
    let cut_at_the_acknowledgement = scissors.trigger();
    let running = queue.consume_with(Consumer::plain("billing"), move |id| {
        if id == "evt-1" {
            cut_at_the_acknowledgement();
        }
        Ok(())
    });
    queue.publish(&message("order.placed", "evt-1"));
    wait_for_entries(&database, 1);
    // A message behind it: when that is handled, so is the first one's redelivery.
    queue.publish(&message("order.placed", "evt-2"));
    wait_for_entries(&database, 2);
    let tally = running.stop();
    assert_eq!(database.ledger(), ["evt-1", "evt-2"]);
    assert_eq!(
        (tally.applied, tally.duplicates, tally.deliveries),
        (2, 1, 3),
        "{tally:?}"
    );
    assert_eq!(tally.broker_connections, 2, "{tally:?}");
    assert!(queue.take_rest().is_empty(), "both are acknowledged");
}

#[test]
fn g3_a_commit_of_which_nothing_is_known_is_not_acknowledged() {
    for (cut, applied, duplicates) in [(Cut::After, 1, 1), (Cut::Before, 2, 0)] {
        let database = Database::new();
        let mut queue = Queue::new(&database);
        let server = (
            cluster().host().parse::<IpAddr>().unwrap(),
            cluster().port(),
        );
        let mut cuts = vec![cut];
        let proxy = Proxy::start(server.into(), move || cuts.pop()).unwrap();
        queue.options.dsn = format!(
            "host={} port={} user={} dbname={}",
            proxy.address().ip(),
            proxy.address().port(),
            cluster().user(),
            database.name()
        );
        let running = queue.consume(Consumer::plain("billing"));
        queue.publish(&message("order.placed", "evt-1"));
        wait_for_entries(&database, 1);
        queue.publish(&message("order.placed", "evt-2"));
        wait_for_entries(&database, 2);
        let tally = running.stop();
        assert_eq!(database.ledger(), ["evt-1", "evt-2"]);
        assert_eq!(tally.returned, 1, "{cut:?}: {tally:?}");
        // What was committed comes again as a duplicate, or is in the queue to come, if it was still
        // to be given back when the consumer stopped.
        let rest = queue.take_rest();
        assert!(rest.iter().all(|id| id == "evt-1"), "{cut:?}: {rest:?}");
        let to_come = rest.len() as u64;
        assert_eq!(tally.duplicates + to_come, duplicates, "{cut:?}: {tally:?}");
        // Counted are those of which the consumer knows.
        assert_eq!(tally.applied, applied, "{cut:?}: {tally:?}");
        assert_eq!(tally.database_sessions, 2, "{cut:?}: {tally:?}");
    }
}

#[test]
fn g8_nothing_is_lost_when_the_database_and_the_broker_go_away_in_the_middle() {
    const MESSAGES: usize = 300;
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let broker = Broker::start().unwrap();
    let queue = Queue::on(&broker, &database);
    let ids: Vec<String> = (0..MESSAGES)
        .map(|number| format!("evt-{number:03}"))
        .collect();
    for id in &ids {
        queue.publish(&message("order.placed", id));
    }
    // Each handler takes a permit before it is done, so that some are in hand and many are left
    // whenever a server goes.
    let permits = Arc::new(Semaphore::new(MESSAGES / 3));
    let shutdown = Shutdown::new();
    let runs = [(); 2].map(|()| {
        let (options, shutdown) = (queue.options.clone(), shutdown.clone());
        let permits = Arc::clone(&permits);
        runtime().spawn(async move {
            let consumer = Consumer::plain("billing");
            run(options, consumer, shutdown, async move |tx, delivery| {
                let sql = "INSERT INTO ledger VALUES ($1)";
                tx.execute(sql, &[&delivery.message.idempotence_id]).await?;
                permits.acquire().await?.forget();
                Ok(())
            })
            .await
        })
    });
    let wait_until_in_hand = || {
        wait_for("the permits to be used up", || {
            (permits.available_permits() == 0).then_some(())
        });
    };
    wait_until_in_hand();
    cluster.stop_immediate().unwrap();
    cluster.start().unwrap();
    permits.add_permits(MESSAGES / 3);
    wait_until_in_hand();
    broker.kill().unwrap();
    broker.start_again().unwrap();
    permits.add_permits(10 * MESSAGES);
    wait_for_entries(&database, MESSAGES);
    shutdown.request();
    let tallies = runs.map(|run| runtime().block_on(run).unwrap().unwrap());
    assert_eq!(database.ledger(), ids);
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    // One session each at least was lost in the middle of a transaction, and one connection each.
    assert!(sum(|it| it.returned) >= 1, "{tallies:?}");
    assert_eq!(sum(|it| it.database_sessions), 4, "{tallies:?}");
    assert_eq!(sum(|it| it.broker_connections), 4, "{tallies:?}");
    // What is still in the queue was applied, and comes again for want of an acknowledgement.
    let queue = Queue::with(queue.options.clone());
    assert!(queue.take_rest().iter().all(|id| ids.contains(id)));
}

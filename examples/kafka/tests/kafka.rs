//! The consumer against librdkafka's mock cluster, which speaks Kafka's protocol, and a real
//! PostgreSQL: when offsets are committed (G1, G4), what comes again (G3), the order within a
//! partition (G6), and what becomes of what always fails (G5, G8).
//!
//! Every test has a cluster and a database of its own.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test may fail by panicking, its helpers too"
)]

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_test_support::{Database, wait_for};
use kafka_consumer::{
    Error, Options, Tally,
    rdkafka::{
        ClientConfig,
        message::{Header, OwnedHeaders},
        mocking::MockCluster,
        producer::{DefaultProducerContext, FutureProducer, FutureRecord},
        types::{RDKafkaApiKey, RDKafkaRespErr},
    },
    run,
};
use sequential_inbox_client::{Consumer, HandlerError, Shutdown};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Semaphore,
    task::JoinHandle,
    time::timeout,
};

/// How long a consumer may take to end. Only a failing test waits it out.
const PATIENCE: Duration = Duration::from_secs(60);

const TOPIC: &str = "orders";

/// What handlers write: who handled what, in the order of the commits of one partition.
const TABLE: &str = "
    CREATE TABLE handled (
        number bigint GENERATED ALWAYS AS IDENTITY, member text, partition text, entry text)";

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(4).enable_all().build().unwrap()
    })
}

/// A cluster with one topic, and a database.
struct Setting {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: FutureProducer,
    database: Database,
    options: Options,
}

impl Setting {
    fn new(partitions: i32) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, partitions, 1).unwrap();
        let database = Database::new();
        database.execute(TABLE);
        let brokers = cluster.bootstrap_servers();
        let mut options = Options::new(&brokers, "billing", [TOPIC], database.dsn());
        options.commit_interval = Duration::from_millis(100);
        let pauses = (Duration::from_millis(10), Duration::from_millis(100));
        options.redelivery_pauses = pauses;
        options.connection_pauses = pauses;
        options.sweep_interval = None;
        // A group notices within moments who comes and goes.
        for (name, milliseconds) in [
            ("heartbeat.interval.ms", "200"),
            ("session.timeout.ms", "6000"),
        ] {
            let setting = (name.to_owned(), milliseconds.to_owned());
            options.settings.push(setting);
        }
        let producer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .create()
            .unwrap();
        Self {
            cluster,
            producer,
            database,
            options,
        }
    }

    /// Publishes a message with an id; the cluster has it when this returns.
    fn publish(&self, partition: i32, key: &str, id: &str) {
        let value = Some(id.as_bytes());
        let headers = OwnedHeaders::new().insert(Header { key: "id", value });
        let record = FutureRecord::to(TOPIC)
            .partition(partition)
            .key(key)
            .payload("{}")
            .headers(headers);
        runtime()
            .block_on(async { self.producer.send(record, PATIENCE).await })
            .unwrap();
    }

    /// Starts a member of the group whose handler writes down each message, and then does that.
    fn consume(
        &self,
        member: &'static str,
        consumer: Consumer,
        then: impl Fn(&str) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Running {
        let then = Arc::new(then);
        let unlimited = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        self.consume_with(member, consumer, &unlimited, then)
    }

    /// The same, where each message takes a permit.
    fn consume_with(
        &self,
        member: &'static str,
        consumer: Consumer,
        permits: &Arc<Semaphore>,
        then: Arc<impl Fn(&str) -> Result<(), HandlerError> + Send + Sync + 'static>,
    ) -> Running {
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let (options, permits) = (self.options.clone(), Arc::clone(permits));
        let member = member.to_owned();
        let consuming = runtime().spawn(async move {
            run(options, consumer, shutdown, async move |tx, delivery| {
                let message = delivery.message;
                let id = message.idempotence_id.clone().into_owned();
                let sql = "INSERT INTO handled (member, partition, entry) VALUES ($1, $2, $3)";
                let key = &message.context_id;
                tx.execute(sql, &[&member, key, &id]).await?;
                permits.acquire().await?.forget();
                then(&id)
            })
            .await
        });
        Running {
            shutdown: stop,
            consuming,
        }
    }

    /// What was handled of a partition, in order.
    fn handled(&self, partition: &str) -> Vec<String> {
        self.database.value(&format!(
            "SELECT coalesce(array_agg(entry ORDER BY number), '{{}}') FROM handled
             WHERE partition = '{partition}'"
        ))
    }

    fn wait_for_entries(&self, count: i64) {
        wait_for("messages to be handled", || {
            let query = "SELECT count(*) FROM handled";
            (self.database.value::<i64>(query) >= count).then_some(())
        });
    }

    /// The dead letters: consumer or type, id, attempts and error.
    fn dead_letters(&self) -> Vec<(String, String, i32, String)> {
        let query = "SELECT message_type, idempotence_id, attempts, last_error
                     FROM inbox_dead_letters ORDER BY id";
        let rows = self.database.observer().query(query, &[]).unwrap();
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
            .collect()
    }
}

/// A consumer in the background.
struct Running {
    shutdown: Shutdown,
    consuming: JoinHandle<Result<Tally, Error>>,
}

impl Running {
    /// Stops it and returns what it did.
    fn stop(self) -> Tally {
        self.shutdown.request();
        runtime()
            .block_on(async { timeout(PATIENCE, self.consuming).await })
            .expect("the consumer ends")
            .expect("the consumer does not panic")
            .unwrap()
    }
}

fn billing() -> Consumer {
    Consumer::plain("billing")
}

#[test]
fn g1_what_comes_again_for_want_of_a_committed_offset_is_a_duplicate() {
    let mut setting = Setting::new(2);
    // No commit of an offset succeeds, as when the consumer dies before its first.
    let often = setting.options.commit_interval;
    setting.options.commit_interval = Duration::from_secs(3600);
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 100];
    setting
        .cluster
        .request_errors(RDKafkaApiKey::OffsetCommit, &refused);
    for number in 0..10 {
        setting.publish(number % 2, "any", &format!("evt-{number}"));
    }
    let running = setting.consume("first", billing(), |_| Ok(()));
    setting.wait_for_entries(10);
    let tally = running.stop();
    assert_eq!((tally.applied, tally.duplicates), (10, 0), "{tally:?}");

    setting.options.commit_interval = often;
    setting
        .cluster
        .clear_request_errors(RDKafkaApiKey::OffsetCommit);
    for number in 10..15 {
        setting.publish(number % 2, "any", &format!("evt-{number}"));
    }
    let running = setting.consume("second", billing(), |_| Ok(()));
    setting.wait_for_entries(15);
    let tally = running.stop();
    assert_eq!((tally.applied, tally.duplicates), (5, 10), "{tally:?}");

    // Now the offsets are committed.
    setting.publish(0, "any", "evt-15");
    let running = setting.consume("third", billing(), |_| Ok(()));
    setting.wait_for_entries(16);
    let tally = running.stop();
    assert_eq!((tally.applied, tally.deliveries), (1, 1), "{tally:?}");
    let mut handled = setting.handled("any");
    handled.sort_unstable();
    let mut once: Vec<String> = (0..16).map(|number| format!("evt-{number}")).collect();
    once.sort_unstable();
    assert_eq!(handled, once);
}

#[test]
fn g6_a_message_that_fails_holds_up_its_partition_and_no_other() {
    let setting = Setting::new(2);
    let ids = |partition: i32| -> Vec<String> {
        (0..8)
            .map(|number| format!("{partition}-{number}"))
            .collect()
    };
    for partition in 0..2 {
        for id in ids(partition) {
            setting.publish(partition, &partition.to_string(), &id);
        }
    }
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let running = setting.consume("only", billing().give_up_after(None), move |id| {
        if id == "0-3" && !mended.load(Ordering::SeqCst) {
            return Err("not yet".into());
        }
        Ok(())
    });
    // All of the other partition, and what lies before the failed message.
    setting.wait_for_entries(8 + 3);
    assert_eq!(setting.handled("1"), ids(1));
    assert_eq!(setting.handled("0"), ids(0)[..3]);
    is_mended.store(true, Ordering::SeqCst);
    setting.wait_for_entries(16);
    let tally = running.stop();
    assert_eq!(setting.handled("0"), ids(0));
    assert!(tally.moved_back >= 1, "{tally:?}");
    assert_eq!((tally.applied, tally.duplicates), (16, 0), "{tally:?}");
    assert!(setting.dead_letters().is_empty());
}

#[test]
fn g5_a_message_that_always_fails_is_a_dead_letter_and_its_partition_goes_on() {
    let mut setting = Setting::new(1);
    setting.options.give_up_after = 3;
    setting.options.sweep_interval = Some(Duration::from_millis(20));
    for id in ["evt-1", "poison", "evt-2"] {
        setting.publish(0, "0", id);
    }
    let (tries, is_mended) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (counted, mended) = (Arc::clone(&tries), Arc::clone(&is_mended));
    let running = setting.consume("only", billing(), move |id| {
        if id != "poison" || mended.load(Ordering::SeqCst) {
            return Ok(());
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Err("no such account".into())
    });
    setting.wait_for_entries(2);
    assert_eq!(setting.handled("0"), ["evt-1", "evt-2"]);
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let error = "at delivery 3: the handler failed: no such account";
    let (consumer, id) = ("billing".to_owned(), "poison".to_owned());
    assert_eq!(
        setting.dead_letters(),
        [(consumer, id, 1, error.to_owned())]
    );

    is_mended.store(true, Ordering::SeqCst);
    let retry = "SELECT inbox_retry(id) FROM inbox_dead_letters";
    assert!(setting.database.value::<bool>(retry));
    setting.wait_for_entries(3);
    let tally = running.stop();
    assert_eq!(setting.handled("0"), ["evt-1", "evt-2", "poison"]);
    assert_eq!((tally.moved_back, tally.dead_lettered), (2, 1), "{tally:?}");
    assert_eq!((tally.applied, tally.swept), (2, 1), "{tally:?}");
    assert!(setting.dead_letters().is_empty());
}

#[test]
fn g3_g6_a_rebalance_in_the_middle_loses_nothing_and_keeps_the_order() {
    const PARTITIONS: i32 = 4;
    const MESSAGES: i32 = 40;
    let setting = Setting::new(PARTITIONS);
    for number in 0..MESSAGES {
        for partition in 0..PARTITIONS {
            let id = format!("{partition}-{number:02}");
            setting.publish(partition, &partition.to_string(), &id);
        }
    }
    // One permit a message, so that many are left when the second member joins.
    let permits = Arc::new(Semaphore::new(20));
    let fine = Arc::new(|_: &str| Ok(()));
    let first = setting.consume_with("first", billing(), &permits, Arc::clone(&fine));
    wait_for("the permits to be used up", || {
        (permits.available_permits() == 0).then_some(())
    });
    let unlimited = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let second = setting.consume_with("second", billing(), &unlimited, fine);
    // The first has one in hand until it gets a permit, and lets go of its partitions after that.
    wait_for("the second member to take over some", || {
        permits.add_permits(1);
        let query = "SELECT count(*) FROM handled WHERE member = 'second'";
        (setting.database.value::<i64>(query) > 0).then_some(())
    });
    permits.add_permits(10_000);
    setting.wait_for_entries(i64::from(PARTITIONS * MESSAGES));
    let tallies = [first.stop(), second.stop()];
    for partition in 0..PARTITIONS {
        let once: Vec<String> = (0..MESSAGES)
            .map(|number| format!("{partition}-{number:02}"))
            .collect();
        assert_eq!(setting.handled(&partition.to_string()), once, "{tallies:?}");
    }
    let applied: u64 = tallies.iter().map(|tally| tally.applied).sum();
    assert_eq!(applied, u64::try_from(PARTITIONS * MESSAGES).unwrap());
}

#[test]
fn g3_a_session_that_is_lost_is_opened_anew() {
    let setting = Setting::new(1);
    for id in ["evt-1", "evt-2"] {
        setting.publish(0, "0", id);
    }
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&is_lost);
    let (shutdown, options) = (Shutdown::new(), setting.options.clone());
    let stop = shutdown.clone();
    let consuming = runtime().spawn(async move {
        run(options, billing(), shutdown, async move |tx, delivery| {
            let sql = "INSERT INTO handled (partition, entry) VALUES ('0', $1)";
            tx.execute(sql, &[&delivery.message.idempotence_id]).await?;
            if !lost.swap(true, Ordering::SeqCst) {
                let sql = "SELECT pg_terminate_backend(pg_backend_pid())";
                tx.execute(sql, &[]).await?;
            }
            Ok(())
        })
        .await
    });
    setting.wait_for_entries(2);
    let running = Running {
        shutdown: stop,
        consuming,
    };
    let tally = running.stop();
    assert_eq!(setting.handled("0"), ["evt-1", "evt-2"]);
    assert_eq!((tally.moved_back, tally.applied), (1, 2), "{tally:?}");
    assert_eq!(tally.database_sessions, 2, "{tally:?}");
}

#[test]
fn g11_what_has_no_place_in_a_sequence_is_a_dead_letter_of_its_topic() {
    let setting = Setting::new(1);
    setting
        .database
        .execute(r#"SELECT inbox_declare_sequence('orders', '1 day', '[{"type": "orders"}]')"#);
    let nameless = FutureRecord::to(TOPIC).partition(0);
    let nameless = nameless.key("order-1").payload("nameless");
    let id = Some("keyless");
    let headers = OwnedHeaders::new().insert(Header {
        key: "id",
        value: id,
    });
    let keyless = FutureRecord::<str, _>::to(TOPIC).partition(0);
    let keyless = keyless.payload("keyless").headers(headers);
    for record in [nameless, keyless] {
        runtime()
            .block_on(async { setting.producer.send(record, PATIENCE).await })
            .unwrap();
    }
    setting.publish(0, &"x".repeat(1025), "long");
    setting.publish(0, "order-1", "good");
    let running = setting.consume("only", Consumer::sequence("orders"), |_| Ok(()));
    setting.wait_for_entries(1);
    let tally = running.stop();
    assert_eq!(setting.handled("order-1"), ["good"]);
    assert_eq!((tally.unreadable, tally.applied), (3, 1), "{tally:?}");
    let dead = setting.dead_letters();
    let places: Vec<_> = dead.iter().map(|(topic, id, ..)| (&**topic, id)).collect();
    for ((topic, id), offset) in places.iter().zip(0..) {
        let place = format!("orders/0/{offset}/");
        assert!(*topic == TOPIC && id.starts_with(&place), "{dead:?}");
    }
    assert_eq!(dead.len(), 3, "{dead:?}");
    let payload: Vec<u8> = setting
        .database
        .value("SELECT payload FROM buffered_message ORDER BY message_id LIMIT 1");
    assert_eq!(payload, b"nameless");
}

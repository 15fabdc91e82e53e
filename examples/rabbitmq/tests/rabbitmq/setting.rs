//! A queue, a database, publishing, and consumers in the background.

use std::{
    net::{Shutdown as Half, TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use inbox_test_support::Database;
use rabbitmq_consumer::{
    Error, Options, Tally, dead_queue, declare,
    lapin::{
        BasicProperties, Channel, Connection, ConnectionProperties,
        options::{
            BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
        },
        types::FieldTable,
    },
    properties, run,
};
use sequential_inbox_client::{Consumer, HandlerError, Message, Shutdown};
use throwaway_broker::Broker;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::timeout,
};

/// How long a consumer may take to end. Only a failing test waits it out.
const PATIENCE: Duration = Duration::from_secs(60);

/// The runtime of all consumers.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    // A handler may block its thread for a while, and the connections must go on.
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(4).enable_all().build().unwrap()
    })
}

/// The broker of this test program, started at the first call and gone with the program.
pub fn broker() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| Broker::start().expect("scripts/setup-brokers.sh installs RabbitMQ"))
}

/// A queue of one test, and a connection to publish on.
pub struct Queue {
    /// How to consume from it into the test's database.
    pub options: Options,
    /// Closes when it is dropped.
    _connection: Connection,
    channel: Channel,
}

impl Queue {
    /// A fresh queue, consumed into that database with short pauses and without sweeps.
    pub fn new(database: &Database) -> Self {
        Self::on(broker(), database)
    }

    /// A fresh queue on that broker.
    pub fn on(broker: &Broker, database: &Database) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!("queue-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut options = Options::new(broker.amqp_url(), name, database.dsn());
        let pauses = (Duration::from_millis(10), Duration::from_millis(100));
        options.redelivery_pauses = pauses;
        options.connection_pauses = pauses;
        options.sweep_interval = None;
        Self::with(options)
    }

    /// The queue of those options.
    pub fn with(options: Options) -> Self {
        let (connection, channel) = runtime().block_on(async {
            let properties = ConnectionProperties::default();
            let connection = Connection::connect(&options.amqp_url, properties)
                .await
                .unwrap();
            let channel = connection.create_channel().await.unwrap();
            declare(&channel, &options).await.unwrap();
            let confirm = ConfirmSelectOptions::default();
            channel.confirm_select(confirm).await.unwrap();
            (connection, channel)
        });
        Self {
            options,
            _connection: connection,
            channel,
        }
    }

    /// Publishes a message; the broker has it when this returns.
    pub fn publish(&self, message: &Message<'_>) {
        let body = message.payload.as_deref().unwrap_or_default();
        self.publish_raw(properties(message).unwrap(), body);
    }

    /// Publishes whatever that is.
    pub fn publish_raw(&self, properties: BasicProperties, body: &[u8]) {
        let name = self.options.queue.as_str();
        let options = BasicPublishOptions::default();
        let confirmation = runtime().block_on(async {
            let sent =
                self.channel
                    .basic_publish("".into(), name.into(), options, body, properties);
            sent.await.unwrap().await.unwrap()
        });
        assert!(confirmation.is_ack());
    }

    /// How many messages nobody has. What was delivered and not acknowledged counts again a little
    /// after its consumer is gone.
    pub fn ready(&self) -> u32 {
        self.count(&self.options.queue)
    }

    /// Takes what is left in the queue, now that no consumer is there: the ids. What comes again is
    /// delivered before what is new, so that a message behind it shows where it ends.
    pub fn take_rest(&self) -> Vec<String> {
        const LAST: &str = "the end of the queue";
        self.publish(&message("order.placed", LAST));
        let mut rest = Vec::new();
        runtime().block_on(async {
            loop {
                let name = self.options.queue.as_str().into();
                let options = BasicGetOptions { no_ack: true };
                let got = self.channel.basic_get(name, options).await.unwrap();
                // What was published may take a moment to get to the front.
                let Some(got) = got else { continue };
                let id = got.properties.message_id().as_ref().unwrap();
                if id.as_str() == LAST {
                    return;
                }
                rest.push(id.as_str().to_owned());
            }
        });
        rest
    }

    /// How many messages the broker has put aside.
    pub fn dead(&self) -> u32 {
        self.count(&dead_queue(&self.options.queue))
    }

    fn count(&self, name: &str) -> u32 {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let declared = self
            .channel
            .queue_declare(name.into(), passive, FieldTable::default());
        runtime().block_on(declared).unwrap().message_count()
    }

    /// Starts a consumer whose handler writes each message's id into the ledger.
    pub fn consume(&self, consumer: Consumer) -> Running {
        self.consume_with(consumer, |_| Ok(()))
    }

    /// Starts a consumer whose handler writes each message's id into the ledger, and then does that.
    pub fn consume_with(
        &self,
        consumer: Consumer,
        then: impl Fn(&str) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Running {
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let options = self.options.clone();
        let then = Arc::new(then);
        let consuming = runtime().spawn(async move {
            run(options, consumer, shutdown, async move |tx, delivery| {
                let id = delivery.message.idempotence_id.clone().into_owned();
                let sql = "INSERT INTO ledger VALUES ($1)";
                tx.execute(sql, &[&id]).await?;
                then(&id)
            })
            .await
        });
        Running {
            shutdown: stop,
            consuming,
        }
    }
}

/// A consumer in the background.
pub struct Running {
    /// Stops it.
    pub shutdown: Shutdown,
    consuming: JoinHandle<Result<Tally, Error>>,
}

impl Running {
    /// Stops it and returns what it did.
    pub fn stop(self) -> Tally {
        self.shutdown.request();
        self.ended().unwrap()
    }

    /// Returns when it has ended.
    pub fn ended(self) -> Result<Tally, Error> {
        runtime()
            .block_on(async { timeout(PATIENCE, self.consuming).await })
            .expect("the consumer ends")
            .expect("the consumer does not panic")
    }
}

/// A message with a payload.
pub fn message<'a>(message_type: &'a str, id: &'a str) -> Message<'a> {
    Message::new(message_type, id).payload(b"{}".as_slice())
}

/// The dead letters: id, attempts and error.
pub fn dead_letters(database: &Database) -> Vec<(String, i32, String)> {
    let query = "SELECT idempotence_id, attempts, last_error FROM inbox_dead_letters ORDER BY id";
    let rows = database.observer().query(query, &[]).unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

/// A proxy in front of a broker that cuts the connection at what the client says next, once armed.
pub struct Scissors {
    pub port: u16,
    is_armed: Arc<AtomicBool>,
}

impl Scissors {
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_armed = Arc::new(AtomicBool::new(false));
        let armed = Arc::clone(&is_armed);
        // It ends with the test program.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let armed = Arc::clone(&armed);
                thread::spawn(move || relay_or_cut(&client, &server, &armed));
            }
        });
        Self { port, is_armed }
    }

    /// What arms it.
    pub fn trigger(&self) -> impl Fn() + Send + Sync + 'static {
        let is_armed = Arc::clone(&self.is_armed);
        move || is_armed.store(true, Ordering::SeqCst)
    }
}

fn relay_or_cut(client: &TcpStream, server: &TcpStream, is_armed: &AtomicBool) {
    use std::io::{Read, Write, copy};
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = copy(&mut { server }, &mut { client });
            let _ = client.shutdown(Half::Both);
        });
        let mut said = [0; 4096];
        let (mut from, mut to) = (client, server);
        while let Ok(length @ 1..) = from.read(&mut said) {
            if is_armed.swap(false, Ordering::SeqCst) || to.write_all(&said[..length]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Half::Both);
        let _ = client.shutdown(Half::Both);
    });
}

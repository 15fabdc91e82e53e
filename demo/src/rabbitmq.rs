//! The replay over a real broker: RabbitMQ delivers, the consumer of `examples/rabbitmq` consumes
//! (G1, G3, G5, G6, G8).
//!
//! Handlers fail where the schedule says so, and what would be recorded as failed at once is here
//! given up after a few deliveries, and an operator retries the dead letter. Sessions are terminated
//! in the middle of a transaction. Half-way the broker is killed and started again, so that whatever
//! was delivered and not acknowledged comes again.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rabbitmq_consumer::{
    Options, Tally, declare,
    lapin::{
        Channel, Connection, ConnectionProperties,
        options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
        types::FieldTable,
    },
    properties,
};
use sequential_inbox_client::{Consumer, Delivery, HandlerError, Ordering, Shutdown};
use throwaway_broker::Broker;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, Transaction, error::SqlState};

use crate::{
    ledger::Ledger,
    replay::{Ended, Kind, Replay},
    report::Delivered,
    schedule::{Copies, Fault},
    stream::Event,
};

/// At which delivery a message is given up.
const GIVE_UP_AFTER: u32 = 3;

/// How many other messages lie between a message and its second copy that comes later.
const SECOND_COPY_DISTANCE: usize = 25;

/// How far the broker may be ahead of a consumer.
const PREFETCH: u16 = 20;

/// How often to look how far the replay is, and for dead letters to retry.
const POLL: Duration = Duration::from_millis(50);

/// How long the replay may go on without an effect before something is wrong: longer than a broker
/// takes to start again.
const PATIENCE: Duration = Duration::from_secs(120);

/// The replays of one database, at the same time, each with a queue and consumers of its own.
pub struct Group {
    replays: Arc<[Arc<Replay>]>,
    broker: Arc<Broker>,
    /// The events of each replay that an operator has looked at, so that they fail no more.
    mended: Arc<[Mutex<HashSet<usize>>]>,
}

/// What the consumers of a queue were given up to now.
type Tallies = Vec<Tally>;

impl Group {
    /// Replays of one database.
    pub fn new(replays: &[Arc<Replay>], broker: &Arc<Broker>) -> Self {
        Self {
            replays: replays.into(),
            broker: Arc::clone(broker),
            mended: replays.iter().map(|_| Mutex::default()).collect(),
        }
    }

    /// Publishes all messages, then consumes with that many consumers a queue, until nothing is left
    /// to do. The ends are in the order of the replays.
    ///
    /// # Errors
    ///
    /// Those of the two servers, and when the replay comes to a standstill.
    pub async fn run(&self, consumers: usize) -> Result<Vec<Ended>> {
        for replay in &*self.replays {
            self.publish(replay).await?;
        }
        let start = Instant::now();
        let mut tallies: Vec<Tallies> = self.replays.iter().map(|_| Vec::new()).collect();
        let mut broker_kills = 0;
        // Consumers that stop leave what they had not handled to the next ones.
        loop {
            let shutdown = Shutdown::new();
            let mut runs = self.start_consumers(consumers, &shutdown);
            let supervised = self.supervise(&mut runs, &mut broker_kills).await;
            shutdown.request();
            while let Some(run) = runs.join_next().await {
                let (index, tally) = run??;
                tallies[index].push(tally);
            }
            supervised?;
            if self.ready().await? == 0 {
                break;
            }
        }
        let elapsed = start.elapsed();
        let ends = self.replays.iter().zip(&tallies).map(|(replay, tallies)| {
            let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
            replay.tally.count(|counts| {
                counts.duplicates = sum(|it| it.duplicates);
                counts.buffered = sum(|it| it.buffered);
            });
            Ended {
                elapsed,
                delivered: Delivered::RabbitMq {
                    deliveries: sum(|it| it.deliveries),
                    returned: sum(|it| it.returned),
                    given_up: sum(|it| it.dead_lettered),
                    broker_kills,
                },
            }
        });
        Ok(ends.collect())
    }

    /// How the consumers of a replay consume.
    fn options(&self, replay: &Replay) -> Options {
        let consumer = replay.kind.consumer();
        let ordering = match replay.kind {
            Kind::Ordered(Ordering::Position) => "-position",
            Kind::Ordered(_) => "-conditions",
            Kind::Plain(_) | Kind::Claims => "",
        };
        let queue = format!("demo-{consumer}{ordering}");
        let mut options = Options::new(self.broker.amqp_url(), queue, &replay.dsn);
        options.prefetch = PREFETCH;
        options.give_up_after = GIVE_UP_AFTER;
        options.redelivery_pauses = (Duration::from_millis(5), Duration::from_millis(50));
        options.connection_pauses = (Duration::from_millis(50), Duration::from_secs(1));
        options.sweep_interval = Some(POLL);
        options
    }

    /// Publishes a replay's messages as its schedule has them arrive; those that are delivered twice
    /// have a copy right behind them, or some messages later.
    async fn publish(&self, replay: &Replay) -> Result<()> {
        let options = self.options(replay);
        let (connection, channel) = connect(&options).await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        declare(&channel, &options).await?;
        let planned = replay.schedule.deliveries();
        let mut arrivals = Vec::with_capacity(planned.len() * 2);
        for (place, planned) in planned.iter().enumerate() {
            let second = match planned.copies {
                Copies::One => None,
                Copies::SameMoment => Some(place),
                Copies::AfterCommit => Some(place + SECOND_COPY_DISTANCE),
            };
            arrivals.push((place, planned.event));
            arrivals.extend(second.map(|place| (place, planned.event)));
        }
        // Stable: a copy at the same place stays behind its message.
        arrivals.sort_by_key(|(place, _)| *place);
        let mut confirmations = Vec::with_capacity(arrivals.len());
        for (_, event) in arrivals {
            let message = replay.message(replay.event(event)?)?;
            let sent = channel.basic_publish(
                "".into(),
                options.queue.as_str().into(),
                BasicPublishOptions::default(),
                message.payload.as_deref().unwrap_or_default(),
                properties(&message)?,
            );
            confirmations.push(sent.await?);
        }
        for confirmation in confirmations {
            ensure!(
                confirmation.await?.is_ack(),
                "the broker did not take a message"
            );
        }
        connection.close(200, "published".into()).await?;
        Ok(())
    }

    /// Starts the consumers; each gives the index of its replay when it ends.
    fn start_consumers(
        &self,
        consumers: usize,
        shutdown: &Shutdown,
    ) -> JoinSet<Result<(usize, Tally)>> {
        let mut runs = JoinSet::new();
        for (index, replay) in self.replays.iter().enumerate() {
            for _ in 0..consumers {
                let name = replay.kind.inbox_name();
                let consumer = match replay.kind {
                    Kind::Plain(_) => Consumer::plain(name),
                    Kind::Claims | Kind::Ordered(_) => Consumer::sequence(name),
                };
                let consumer = consumer.retry_after(POLL);
                let (options, shutdown) = (self.options(replay), shutdown.clone());
                let (replays, mended) = (Arc::clone(&self.replays), Arc::clone(&self.mended));
                runs.spawn(async move {
                    let handler =
                        async move |transaction: &mut Transaction<'_>, delivery: &Delivery<'_>| {
                            handle(&replays, &mended, transaction, delivery).await
                        };
                    let tally = rabbitmq_consumer::run(options, consumer, shutdown, handler);
                    Ok((index, tally.await?))
                });
            }
        }
        runs
    }

    /// Watches over the consumers until every event has had its effect and nothing is left: retries
    /// dead letters as an operator does, and kills the broker once, half-way.
    async fn supervise(
        &self,
        runs: &mut JoinSet<Result<(usize, Tally)>>,
        broker_kills: &mut u64,
    ) -> Result<()> {
        let events: usize = self
            .replays
            .iter()
            .map(|replay| replay.stream.events().len())
            .sum();
        let mut last_effect = (0, Instant::now());
        loop {
            let (mut effects, mut due) = (0, 0);
            for (replay, mended) in self.replays.iter().zip(&*self.mended) {
                effects += effects_of(replay).await?;
                due += replay.due().await? + retry_dead_letters(replay, mended).await?;
            }
            if effects >= events && due == 0 && self.ready().await? == 0 {
                return Ok(());
            }
            if effects >= events / 2 && *broker_kills == 0 {
                *broker_kills += 1;
                let broker = Arc::clone(&self.broker);
                tokio::task::spawn_blocking(move || {
                    broker.kill()?;
                    broker.start_again()
                })
                .await??;
            }
            if let Some(run) = runs.try_join_next() {
                run??;
                bail!("a consumer ended by itself");
            }
            if effects != last_effect.0 {
                last_effect = (effects, Instant::now());
            }
            ensure!(
                last_effect.1.elapsed() < PATIENCE,
                "{effects} of {events} effects, and no more come"
            );
            sleep(POLL).await;
        }
    }

    /// How many messages lie in the queues; those that a consumer has are not counted.
    async fn ready(&self) -> Result<u32> {
        timeout(PATIENCE, self.count_ready())
            .await
            .context("the demo's broker does not answer")?
    }

    async fn count_ready(&self) -> Result<u32> {
        let mut ready = 0;
        for replay in &*self.replays {
            let options = self.options(replay);
            let (connection, channel) = connect(&options).await?;
            let passive = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::durable()
            };
            let queue = options.queue.as_str().into();
            let declared = channel.queue_declare(queue, passive, FieldTable::default());
            ready += declared.await?.message_count();
            connection.close(200, "counted".into()).await?;
        }
        Ok(ready)
    }
}

async fn connect(options: &Options) -> Result<(Connection, Channel)> {
    let properties = ConnectionProperties::default();
    // A broker that is starting may take a connection and say nothing.
    let connection = timeout(PATIENCE, Connection::connect(&options.amqp_url, properties))
        .await
        .context("the demo's broker does not answer")?
        .context("cannot connect to the demo's broker")?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// How many effects a replay has had.
async fn effects_of(replay: &Replay) -> Result<usize> {
    let sql = "SELECT count(*) FROM entry WHERE consumer = $1";
    let row = replay
        .observer
        .query_one(sql, &[&replay.kind.consumer()])
        .await?;
    Ok(usize::try_from(row.try_get::<_, i64>(0)?)?)
}

/// Retries the dead letters of a replay, whose cause is mended; how many there were.
async fn retry_dead_letters(replay: &Replay, mended: &Mutex<HashSet<usize>>) -> Result<i64> {
    let plain = match &replay.kind {
        Kind::Plain(consumer) => Some(consumer),
        Kind::Claims | Kind::Ordered(_) => None,
    };
    let sql = "SELECT id, idempotence_id FROM inbox_dead_letters
               WHERE $1::text IS NULL OR message_type = $1";
    let rows = replay.observer.query(sql, &[&plain]).await?;
    for row in &rows {
        let (id, event): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
        let event = replay.stream.index_of(event);
        lock(mended).insert(event.with_context(|| format!("dead letter {id} is of no event"))?);
        retry(&replay.observer, id).await?;
    }
    Ok(i64::try_from(rows.len())?)
}

/// Retries one dead letter. A second copy may be faster, and may also be in the way: what ended in a
/// deadlock is looked at again next time.
async fn retry(client: &Client, id: i64) -> Result<()> {
    match client.query_one("SELECT inbox_retry($1)", &[&id]).await {
        Err(error) if error.code() != Some(&SqlState::T_R_DEADLOCK_DETECTED) => Err(error.into()),
        _ => Ok(()),
    }
}

fn lock(events: &Mutex<HashSet<usize>>) -> std::sync::MutexGuard<'_, HashSet<usize>> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler: does the event's work, and fails where the schedule says so. A sweep hands out what
/// is due in the database, of any of its replays.
async fn handle(
    replays: &[Arc<Replay>],
    mended: &[Mutex<HashSet<usize>>],
    transaction: &mut Transaction<'_>,
    delivery: &Delivery<'_>,
) -> Result<(), HandlerError> {
    let consumer = delivery.consumer;
    let mut both = replays.iter().zip(mended);
    let (replay, mended) = both
        .find(|(replay, _)| replay.kind.inbox_name() == consumer)
        .with_context(|| format!("a message of \"{consumer}\", which is not replayed"))?;
    let handled = async {
        let event = event_of(replay, delivery)?;
        write(replay, transaction, replay.event(event)?).await?;
        Ok(event)
    };
    let event: usize = match handled.await {
        Ok(event) => event,
        Err(error) => {
            let error: anyhow::Error = error;
            replay.surprise(format!("{error:#}"));
            return Err(error.into());
        }
    };
    let fault = replay.schedule.fault(event);
    let is_first = replay.fault_of_this_try(event).is_some();
    match fault {
        Some(Fault::RolledBack) if is_first => Err("it fails on its first try".into()),
        Some(Fault::Recorded) if !lock(mended).contains(&event) => {
            Err("it fails until an operator has looked at it".into())
        }
        Some(Fault::Killed) if is_first => {
            let pid = transaction
                .query_one("SELECT pg_catalog.pg_backend_pid()", &[])
                .await?
                .try_get(0)?;
            replay.terminate(pid).await?;
            Err("its session was terminated".into())
        }
        _ => {
            if delivery.is_released {
                replay.tally.count(|counts| counts.released += 1);
            }
            replay.step();
            Ok(())
        }
    }
}

async fn write(replay: &Replay, transaction: &Transaction<'_>, event: &Event) -> Result<()> {
    let ledger = Ledger::prepare(transaction, replay.kind.consumer()).await?;
    match replay.kind {
        Kind::Ordered(_) => ledger.write_alone(transaction, event).await,
        Kind::Plain(_) | Kind::Claims => ledger.write(transaction, event).await,
    }
}

/// The event of a message; its content must be as it was published.
fn event_of(replay: &Replay, delivery: &Delivery<'_>) -> Result<usize> {
    let message = delivery.message;
    let id = &*message.idempotence_id;
    let index = replay
        .stream
        .index_of(id)
        .with_context(|| format!("\"{id}\" is no event of the stream"))?;
    let event: Event = delivery
        .json()
        .with_context(|| format!("the payload of \"{id}\""))?;
    ensure!(
        event == *replay.event(index)?
            && message.message_type == event.message_type
            && message.context_id.as_deref() == Some(event.context_id.as_str()),
        "\"{id}\" came with other content than it was published with"
    );
    Ok(index)
}

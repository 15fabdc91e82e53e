//! The loop: records in, offsets back.

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use rdkafka::{
    ClientContext, Offset, TopicPartitionList,
    consumer::{
        BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance, StreamConsumer,
    },
    error::{KafkaError, RDKafkaErrorCode},
    message::{Message as _, OwnedMessage},
};
use sequential_inbox_client::{
    Consumer, Delivery, HandlerError, Message, Outcome, ProcessError, Shutdown,
};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_postgres::{Client, Transaction};
use tracing::warn;

use crate::{
    Error, Options, Tally,
    database::Session,
    message::{coordinates, read},
    offsets::{Partition, Standing},
};

/// How long a partition may take to be moved back.
const SEEK_PATIENCE: Duration = Duration::from_secs(10);

/// How long nothing is asked of a broker after an error, which may come at once each time.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// Consumes until the shutdown is requested; what was done, counted.
///
/// The consumer says whose messages they are and all else about their handling; its limit of
/// failures is [`Options::give_up_after`], and its shutdown the one given here.
///
/// The handler is cloned for each message. The future can be spawned when the handler owns what it
/// uses: `async move |…|` with an `Arc`, say.
///
/// # Errors
///
/// What waiting does not mend. Nothing is lost: what is not committed comes again.
pub async fn run<H>(
    options: Options,
    consumer: Consumer,
    shutdown: Shutdown,
    handler: H,
) -> Result<Tally, Error>
where
    H: AsyncFnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<(), HandlerError> + Clone,
{
    let consumer = consumer
        .give_up_after(options.give_up_after)
        .shutdown(&shutdown);
    let records = Arc::new(subscribe(&options)?);
    let mut work = Work {
        records: Arc::clone(&records),
        options,
        consumer,
        shutdown,
        handler,
        session: Session::default(),
        standing: Standing::default(),
        tally: Tally::default(),
    };
    let result = work.consume().await;
    let mut tally = work.tally;
    tally.database_sessions = work.session.opened;
    // Whoever goes on has less to see again.
    commit_offsets(&*records, CommitMode::Sync);
    result.map(|()| tally)
}

fn subscribe(options: &Options) -> Result<StreamConsumer<Group>, KafkaError> {
    let records: StreamConsumer<Group> = options
        .client_config()
        .create_with_context(Group::default())?;
    let topics: Vec<&str> = options.topics.iter().map(String::as_str).collect();
    records.subscribe(&topics)?;
    Ok(records)
}

/// What the group tells of partitions that come and go.
#[derive(Debug, Default)]
struct Group {
    /// Those that are others' now, until the loop has taken note of it.
    revoked: Mutex<Vec<Partition>>,
}

impl Group {
    fn take_revoked(&self) -> Vec<Partition> {
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut revoked)
    }
}

impl ClientContext for Group {}

impl ConsumerContext for Group {
    /// Commits before partitions go to others, so that those need not see again what is done.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(partitions) = rebalance else {
            return;
        };
        commit_offsets(consumer, CommitMode::Sync);
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        let elements = partitions.elements();
        revoked.extend(
            elements
                .iter()
                .map(|it| (it.topic().to_owned(), it.partition())),
        );
    }
}

/// Commits what is stored. A failure costs no more than duplicates.
fn commit_offsets(consumer: &impl rdkafka::consumer::Consumer<Group>, mode: CommitMode) {
    match consumer.commit_consumer_state(mode) {
        // There is nothing new.
        Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
        Err(error) => warn!(%error, "the offsets are not committed"),
    }
}

/// What is to be done with a record once its transaction is over.
enum Verdict {
    /// Its partition goes on.
    Done,
    /// It comes again.
    Again,
    /// Nothing: the shutdown came before it could be handled.
    Leave,
}

struct Work<H> {
    records: Arc<StreamConsumer<Group>>,
    options: Options,
    consumer: Consumer,
    shutdown: Shutdown,
    handler: H,
    session: Session,
    standing: Standing,
    tally: Tally,
}

impl<H> Work<H>
where
    H: AsyncFnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<(), HandlerError> + Clone,
{
    /// Takes care of what comes in, until the shutdown.
    async fn consume(&mut self) -> Result<(), Error> {
        // Partitions that rest at a message that failed. They are kept here and not slept out, so
        // that others go on meanwhile.
        let mut resting = FuturesUnordered::new();
        let mut commits = ticks(Some(self.options.commit_interval));
        let mut sweeps = ticks(self.options.sweep_interval);
        let shutdown = self.shutdown.clone();
        let mut stopped = shutdown.requested().boxed();
        let records = Arc::clone(&self.records);
        loop {
            // In this order, so that a full topic holds up neither an end nor a sweep.
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(()),
                Some(rested) = resting.next() => self.resume(&rested),
                () = tick(&mut commits) => commit_offsets(&*records, CommitMode::Async),
                () = tick(&mut sweeps) => self.sweep().await?,
                // Boxed for the same reason as the session's connection.
                record = next(&records).boxed() => {
                    let record = match record {
                        Ok(record) => record,
                        Err(KafkaError::MessageConsumptionFatal(code)) => {
                            return Err(KafkaError::MessageConsumptionFatal(code).into());
                        }
                        Err(error) => {
                            // librdkafka connects again by itself.
                            warn!(%error, "nothing comes from Kafka");
                            sleep(AFTER_ERROR).await;
                            continue;
                        }
                    };
                    for partition in records.context().take_revoked() {
                        self.standing.forget(&partition);
                    }
                    let partition = (record.topic().to_owned(), record.partition());
                    if !self.standing.admits(&partition, record.offset()) {
                        continue;
                    }
                    self.tally.deliveries += 1;
                    match self.judge(&partition, &record).await? {
                        Verdict::Done => self.go_on(&partition, record.offset()),
                        Verdict::Again => {
                            let pause = self.move_back(&partition, record.offset());
                            resting.push(async move {
                                sleep(pause).await;
                                partition
                            });
                        }
                        Verdict::Leave => return Ok(()),
                    }
                }
            }
        }
    }

    /// Handles one record to the end of its transaction.
    async fn judge(
        &mut self,
        partition: &Partition,
        record: &OwnedMessage,
    ) -> Result<Verdict, Error> {
        let session = self.session.client(&self.options, &self.shutdown).await?;
        let Some(client) = session else {
            return Ok(Verdict::Leave);
        };
        let reason = match read(record) {
            Err(reason) => reason.to_string(),
            Ok(message) => {
                let failures = self.standing.failures(partition, record.offset());
                let message = message.delivery(failures.saturating_add(1));
                let outcome = self
                    .consumer
                    .process(client, &message, self.handler.clone())
                    .await;
                match outcome {
                    Ok(Outcome::Direct) => "it has no context, which is its key".to_owned(),
                    Ok(outcome) => {
                        self.tally.count(&outcome);
                        return Ok(Verdict::Done);
                    }
                    Err(error) if is_inadmissible(&error) => error.to_string(),
                    // Rolled back, or not known to be committed: the redelivery decides. The client
                    // has told of it already.
                    Err(_) => return Ok(Verdict::Again),
                }
            }
        };
        Ok(match set_aside(client, record, &reason).await {
            Ok(()) => {
                self.tally.unreadable += 1;
                Verdict::Done
            }
            Err(error) => {
                let sqlstate = error.sqlstate().map(|state| state.code());
                warn!(
                    sqlstate,
                    "a record that is no message of the inbox is not recorded"
                );
                Verdict::Again
            }
        })
    }

    /// The partition goes on behind that message.
    fn go_on(&mut self, partition: &Partition, offset: i64) {
        self.standing.done(partition, offset);
        let (topic, number) = partition;
        // The partition may be somebody else's by now, who will see a duplicate.
        if let Err(error) = self.records.store_offset(topic, *number, offset) {
            warn!(%error, topic, partition = number, "the offset is not stored");
        }
    }

    /// Moves the partition back to a message that failed, and lets it rest; for how long.
    fn move_back(&mut self, partition: &Partition, offset: i64) -> Duration {
        self.tally.moved_back += 1;
        let failures = self.standing.failed(partition, offset);
        let (topic, number) = partition;
        let moved = self.records.pause(&one(partition)).and_then(|()| {
            let offset = Offset::Offset(offset);
            self.records.seek(topic, *number, offset, SEEK_PATIENCE)
        });
        // The partition may be somebody else's by now, who begins with that message.
        if let Err(error) = moved {
            warn!(%error, topic, partition = number, "the partition is not moved back");
        }
        self.options.redelivery_pause(failures)
    }

    fn resume(&mut self, partition: &Partition) {
        if let Err(error) = self.records.resume(&one(partition)) {
            warn!(%error, topic = partition.0, partition = partition.1, "it does not go on here");
        }
    }

    /// Handles what the inbox has to hand out. What cannot be handled now stays for the next time.
    async fn sweep(&mut self) -> Result<(), Error> {
        let session = self.session.client(&self.options, &self.shutdown).await?;
        let Some(client) = session else {
            return Ok(());
        };
        match self.consumer.sweep(client, self.handler.clone()).await {
            Ok(swept) => self.tally.count_sweep(&swept),
            Err(error) => {
                let sqlstate = error.sqlstate().map(|state| state.code());
                warn!(sqlstate, "a sweep ended early");
            }
        }
        Ok(())
    }
}

/// Records what the inbox cannot take as a message: a dead letter under the topic's name and the
/// place in it, with its payload.
async fn set_aside(
    client: &mut Client,
    record: &OwnedMessage,
    reason: &str,
) -> Result<(), ProcessError> {
    let mut message = Message::new(record.topic(), coordinates(record));
    message.payload = record.payload().map(Into::into);
    // `false`: it was recorded before.
    let topic = Consumer::plain(record.topic());
    topic.give_up(client, &message, reason).await.map(drop)
}

/// Whether the inbox refuses the message for what it is: class 22, an id that is too long say.
/// Refusals of other classes can end, when a type is declared later for example.
fn is_inadmissible(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Inbox(_))
        && error
            .sqlstate()
            .is_some_and(|state| state.code().starts_with("22"))
}

async fn next(records: &StreamConsumer<Group>) -> Result<OwnedMessage, KafkaError> {
    Ok(records.recv().await?.detach())
}

fn one((topic, number): &Partition) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, *number);
    list
}

fn ticks(time: Option<Duration>) -> Option<Interval> {
    time.map(|time| {
        let mut ticks = interval(time);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    })
}

async fn tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => {
            ticks.tick().await;
        }
        None => pending().await,
    }
}

//! One replay of the stream: a database of its own, consumers that run at the same time, and the
//! check of what they left in it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use sequential_inbox_client::{InboxExt, Message, MessageType, Ordering, Sequence};
use throwaway_cluster::Cluster;
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::Client;

use crate::{
    broker::{Broker, Delivery},
    consumer::Consumer,
    ledger,
    progress::Progress,
    report::{Delivered, Expected, Outcome},
    schedule::{Fault, Schedule},
    session,
    stream::{Event, Stream},
    tally::Tally,
    verify::{Rule, account_errors, effect_errors, order_violations},
};

/// The name of the sequence that the demo declares.
pub const SEQUENCE: &str = "demo";

/// Long enough that nothing expires while the demo runs.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// How long between two sweeps for messages that are due again.
const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// How long sweeps may go on without an effect before something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the consumers of a replay call.
#[derive(Debug, Clone)]
pub enum Kind {
    /// `inbox_claim(consumer, message_id)`, as the consumer of that name.
    Plain(String),
    /// `inbox_sequence`, then `inbox_claim(message_type, idempotence_id, instance)`.
    Claims,
    /// `inbox_receive` and `inbox_next`, in that ordering.
    Ordered(Ordering),
}

impl Kind {
    /// The name under which the effects are in the ledger.
    pub fn consumer(&self) -> &str {
        match self {
            Self::Plain(consumer) => consumer,
            Self::Claims | Self::Ordered(_) => "handler",
        }
    }

    /// The name under which the inbox knows their messages: a plain consumer's, or the sequence's.
    pub fn inbox_name(&self) -> &str {
        match self {
            Self::Plain(consumer) => consumer,
            Self::Claims | Self::Ordered(_) => SEQUENCE,
        }
    }
}

/// How a replay ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// How long the consumers ran.
    pub elapsed: Duration,
    /// Who delivered, and what it counted.
    pub delivered: Delivered,
}

/// A group of consumers at work; shared by them.
#[derive(Debug)]
pub struct Replay {
    /// What they call.
    pub kind: Kind,
    /// What is replayed.
    pub stream: Arc<Stream>,
    /// Where the deliveries come from, unless it is RabbitMQ.
    pub broker: Broker,
    /// What they count.
    pub tally: Tally,
    /// How to connect to the replay's database.
    pub dsn: String,
    /// What goes wrong.
    pub schedule: Schedule,
    progress: Arc<Progress>,
    /// The events whose handler has had its first try, where that one fails.
    tried: Mutex<HashSet<usize>>,
    /// What went wrong in a handler and was not in the schedule, where that does not end the replay.
    surprises: Mutex<Vec<String>>,
    /// A session beside those of the consumers.
    pub observer: Client,
}

impl Replay {
    /// Connects to a database that [`Database::prepare`] made.
    ///
    /// # Errors
    ///
    /// Those of the server and the network.
    pub async fn new(
        kind: Kind,
        stream: Arc<Stream>,
        schedule: Schedule,
        database: &Database,
        progress: Arc<Progress>,
    ) -> Result<Self> {
        Ok(Self {
            kind,
            stream,
            broker: Broker::new(schedule.deliveries()),
            tally: Tally::default(),
            dsn: database.dsn.clone(),
            schedule,
            progress,
            tried: Mutex::default(),
            surprises: Mutex::default(),
            observer: session::connect(&database.dsn).await?,
        })
    }

    /// The event of that index.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn event(&self, index: usize) -> Result<&Event> {
        self.stream
            .event(index)
            .with_context(|| format!("there is no event {index}"))
    }

    /// The event as a message of the sequence.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON.
    pub fn message<'a>(&self, event: &'a Event) -> Result<Message<'a>> {
        let message = Message::new(&event.message_type, &event.event_id)
            .context(&event.context_id)
            .key(event.context_id.as_bytes())
            .json(event)?;
        Ok(match self.kind {
            Kind::Ordered(Ordering::Position) => message.position(event.position),
            _ => message,
        })
    }

    /// How this try of the event's handler ends; `None`: well. The first try alone fails.
    pub fn fault_of_this_try(&self, event: usize) -> Option<Fault> {
        let fault = self.schedule.fault(event)?;
        let is_first = self
            .tried
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(event);
        if !is_first {
            return None;
        }
        self.tally.count(|counts| {
            counts.failed += 1;
            counts.killed += u64::from(fault == Fault::Killed);
        });
        Some(fault)
    }

    /// A handler failed and should not have.
    pub fn surprise(&self, error: String) {
        self.surprises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(error);
    }

    fn surprises(&self) -> Vec<String> {
        self.surprises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// One more effect, as far as is known, for the display.
    pub fn step(&self) {
        self.progress.step();
    }

    /// A delivery was answered as a duplicate and committed.
    pub fn skipped(&self, delivery: Delivery) {
        self.tally.count(|counts| counts.duplicates += 1);
        self.broker.acknowledge(delivery);
    }

    /// A handler's transaction was committed.
    pub fn applied(&self, event: usize) {
        self.tally.count(|counts| counts.applied += 1);
        self.step();
        self.broker.follow_up(event);
    }

    /// A delivery was stored and committed.
    pub fn buffered(&self, delivery: Delivery) {
        self.tally.buffered();
        // The second copy of a message whose handler is still to fail comes after that: it could
        // otherwise find the message failed and be taken for the resend.
        let is_sound = self.schedule.fault(delivery.event).is_none();
        if is_sound {
            self.broker.follow_up(delivery.event);
        }
        self.broker.acknowledge(delivery);
    }

    /// The handler's transaction of a message that had been stored was committed.
    pub fn released(&self, event: usize) {
        self.tally.count(|counts| counts.released += 1);
        self.tally.unbuffered();
        self.applied(event);
    }

    /// Terminates a session and returns when it is gone.
    ///
    /// # Errors
    ///
    /// When it does not go, and those of the server.
    pub async fn terminate(&self, pid: i32) -> Result<()> {
        let is_gone: bool = self
            .observer
            .query_one("SELECT pg_catalog.pg_terminate_backend($1, 10000)", &[&pid])
            .await?
            .try_get(0)?;
        ensure!(is_gone, "session {pid} did not end within 10 s");
        Ok(())
    }

    /// Runs that many consumers until nothing is left to do.
    ///
    /// # Errors
    ///
    /// The first error of a consumer; the others are stopped.
    pub async fn run(self: &Arc<Self>, consumers: usize) -> Result<Ended> {
        let start = Instant::now();
        let mut last_effect = (0, start);
        loop {
            let mut tasks = JoinSet::new();
            for _ in 0..consumers {
                let replay = Arc::clone(self);
                tasks.spawn(async move { Consumer::connect(replay).await?.run().await });
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            if self.broker.is_done() && self.due().await? == 0 {
                return Ok(Ended {
                    elapsed: start.elapsed(),
                    delivered: Delivered::Scripted {
                        deliveries: self.broker.deliveries(),
                    },
                });
            }
            let counts = self.tally.counts();
            let effects = counts.applied + counts.failed;
            if effects != last_effect.0 {
                last_effect = (effects, Instant::now());
            }
            ensure!(
                last_effect.1.elapsed() < PATIENCE,
                "messages are ready and inbox_next() hands none out"
            );
            sleep(SWEEP_PAUSE).await;
        }
    }

    /// How many messages can be handled now or come again by themselves.
    pub async fn due(&self) -> Result<i64> {
        let row = self
            .observer
            .query_one(
                "SELECT count(*) FROM sequenced_message
                 WHERE state = 'READY' OR (state = 'FAILED' AND next_attempt_at IS NOT NULL)",
                &[],
            )
            .await?;
        Ok(row.try_get(0)?)
    }

    /// Checks what the replay left behind.
    ///
    /// # Errors
    ///
    /// Those of the server; what is wrong with the effects is in the outcome.
    pub async fn verify(
        &self,
        title: String,
        types: &[MessageType],
        ended: Ended,
    ) -> Result<Outcome> {
        let consumer = self.kind.consumer();
        let entries = ledger::entries(&self.observer, consumer).await?;
        let accounts = ledger::accounts(&self.observer, consumer).await?;
        let violations = match self.kind {
            Kind::Ordered(Ordering::Position) => {
                Some(order_violations(&self.stream, &entries, &Rule::Position))
            }
            Kind::Ordered(_) => {
                let rule = Rule::Conditions(types);
                Some(order_violations(&self.stream, &entries, &rule))
            }
            Kind::Plain(_) | Kind::Claims => None,
        };
        let (closed, unfinished) = self.states().await?;
        let mut errors = self.surprises();
        errors.extend(effect_errors(&self.stream, &entries));
        errors.extend(account_errors(&self.stream, &accounts));
        let expected = Expected::new(&self.kind, &self.stream, &self.schedule, types);
        Ok(Outcome {
            title,
            counts: self.tally.counts(),
            delivered: ended.delivered,
            effects: entries.len() as u64,
            violations,
            closed: u64::try_from(closed)?,
            unfinished: u64::try_from(unfinished)?,
            errors,
            elapsed: ended.elapsed,
            expected,
        })
    }

    /// How many instances are closed, and how many messages of these consumers are not done:
    /// waiting, ready, failed and unresolved, or done and with their payload still stored. A plain
    /// failure that a resend has resolved keeps its payload until housekeeping removes both.
    async fn states(&self) -> Result<(i64, i64)> {
        // Another plain consumer of the same database may still be at work.
        let plain = match &self.kind {
            Kind::Plain(consumer) => Some(consumer),
            Kind::Claims | Kind::Ordered(_) => None,
        };
        let row = self
            .observer
            .query_one(
                "SELECT (SELECT count(*) FROM sequence_instance WHERE state = 'CLOSED'),
                        (SELECT count(*) FROM sequenced_message m
                         WHERE ($1::text IS NULL OR message_type = $1)
                           AND (state IN ('WAITING', 'READY') OR next_attempt_at IS NOT NULL
                             OR EXISTS (SELECT FROM inbox_dead_letters d WHERE d.id = m.id)
                             OR state <> 'FAILED' AND EXISTS
                                (SELECT FROM buffered_message b WHERE b.message_id = m.id)))",
                &[&plain],
            )
            .await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }
}

/// A database of one part, with the extension, its declaration and an empty ledger.
#[derive(Debug)]
pub struct Database {
    dsn: String,
}

impl Database {
    /// Creates it. Without an ordering, the sequence is declared without message types: enough
    /// for claims.
    ///
    /// # Errors
    ///
    /// When the extension is not installed in this PostgreSQL, the declaration is refused, and
    /// those of the server.
    pub async fn prepare(
        cluster: &Cluster,
        name: &str,
        consumers: &[&str],
        stream: &Stream,
        declared: Option<(Ordering, &[MessageType])>,
    ) -> Result<Self> {
        cluster.createdb(name)?;
        let dsn = cluster.dsn_of(name);
        let mut client = session::connect(&dsn).await?;
        client
            .batch_execute("CREATE EXTENSION sequential_inbox")
            .await
            .context("cannot create the extension; `make install` installs it")?;
        let mut sequence = Sequence::new(SEQUENCE, RETENTION);
        if let Some((ordering, types)) = declared {
            sequence = sequence.ordering(ordering).messages(types.iter().cloned());
        }
        let transaction = client.transaction().await?;
        transaction.inbox().declare_sequence(&sequence).await?;
        transaction.commit().await?;
        ledger::create(&client, consumers, stream).await?;
        Ok(Self { dsn })
    }
}

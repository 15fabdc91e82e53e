//! The producer: publishes with confirms, and publishes again what was not confirmed because the
//! broker went away, so that nothing is lost on the way in (and some comes twice).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rabbitmq_consumer::{
    declare,
    lapin::{
        Channel, Connection, ConnectionProperties,
        options::{
            BasicGetOptions, BasicNackOptions, BasicPublishOptions, ConfirmSelectOptions,
            QueueDeclareOptions,
        },
        types::FieldTable,
    },
    properties,
};
use sequential_inbox_client::Message;
use tokio::time::{sleep, timeout};

use crate::{
    consumer::{Payload, options},
    workload::{Planned, Traffic, Workload},
};

/// How many messages lie in each queue while the run goes on: enough that no consumer waits, and few
/// enough that copies of a message meet.
const BACKLOG: u32 = 150;

/// How many messages are published before their confirms are waited for.
const BATCH: usize = 50;

/// How often the queues are looked at when they are full.
const POLL: Duration = Duration::from_millis(30);

/// How long the broker may take to confirm or to answer. It is then asked on a new connection.
const ANSWER: Duration = Duration::from_secs(20);

/// How long the broker may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// The pause between attempts to reach it.
const PAUSE: Duration = Duration::from_millis(100);

/// What a queue holds, as far as the broker says. A queue that is slow to answer holds nothing, it
/// says then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// Messages that are ready to be delivered; those that a consumer has are not among them.
    pub ready: u32,
    /// Consumers. What one has that is gone is ready again as soon as it is not counted any more.
    pub consumers: u32,
}

/// A connection to the broker that comes back.
#[derive(Debug)]
pub struct Publisher {
    amqp_url: String,
    link: Option<(Connection, Channel)>,
}

impl Publisher {
    /// Connects to the broker and declares the queues.
    ///
    /// # Errors
    ///
    /// When the broker cannot be reached.
    pub async fn connect(amqp_url: &str) -> Result<Self> {
        let mut publisher = Self {
            amqp_url: amqp_url.to_owned(),
            link: None,
        };
        publisher.channel().await?;
        Ok(publisher)
    }

    /// Publishes messages; returns when the broker has confirmed each.
    ///
    /// # Errors
    ///
    /// When the broker stays away.
    pub async fn publish(&mut self, messages: &[&Planned]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_publish(messages).await {
            self.lost(error, deadline).await?;
        }
        Ok(())
    }

    /// What a queue holds.
    ///
    /// # Errors
    ///
    /// When the broker stays away.
    pub async fn look(&mut self, queue: &str) -> Result<Level> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_look(queue).await {
                Ok(level) => return Ok(level),
                Err(error) => self.lost(error, deadline).await?,
            }
        }
    }

    /// Whether a queue has no message to deliver. Surer than [`look`](Self::look): the broker asks
    /// the queue for a message instead of for a number, which it makes up when the queue is slow.
    ///
    /// # Errors
    ///
    /// When the broker stays away.
    pub async fn is_empty(&mut self, queue: &str) -> Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_get(queue).await {
                Ok(is_empty) => return Ok(is_empty),
                Err(error) => self.lost(error, deadline).await?,
            }
        }
    }

    /// Forgets the connection and waits a moment.
    async fn lost(&mut self, error: anyhow::Error, deadline: Instant) -> Result<()> {
        self.link = None;
        if Instant::now() > deadline {
            return Err(error.context("the broker stays away"));
        }
        sleep(PAUSE).await;
        Ok(())
    }

    async fn channel(&mut self) -> Result<&Channel> {
        if self.link.is_none() {
            self.link = Some(timeout(ANSWER, open(&self.amqp_url)).await??);
        }
        let (_, channel) = self.link.as_ref().context("no connection to the broker")?;
        Ok(channel)
    }

    async fn try_publish(&mut self, messages: &[&Planned]) -> Result<()> {
        let channel = self.channel().await?;
        let mut confirms = Vec::with_capacity(messages.len());
        for planned in messages {
            let payload = serde_json::to_vec(&Payload::of(planned))?;
            let mut message =
                Message::new(planned.message_type, planned.id.as_str()).context(&*planned.context);
            message.position = planned.position;
            let confirm = timeout(
                ANSWER,
                channel.basic_publish(
                    "".into(),
                    planned.traffic.name().into(),
                    BasicPublishOptions::default(),
                    &payload,
                    properties(&message)?,
                ),
            );
            confirms.push(confirm.await??);
        }
        for confirm in confirms {
            let confirmation = timeout(ANSWER, confirm).await??;
            ensure!(confirmation.is_ack(), "the broker refuses a message");
        }
        Ok(())
    }

    async fn try_get(&mut self, queue: &str) -> Result<bool> {
        let channel = self.channel().await?;
        let got = channel.basic_get(queue.into(), BasicGetOptions::default());
        let Some(message) = timeout(ANSWER, got).await?? else {
            return Ok(true);
        };
        let back = BasicNackOptions {
            requeue: true,
            ..BasicNackOptions::default()
        };
        timeout(ANSWER, message.delivery.nack(back)).await??;
        Ok(false)
    }

    async fn try_look(&mut self, queue: &str) -> Result<Level> {
        let channel = self.channel().await?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let declared = channel.queue_declare(queue.into(), passive, FieldTable::default());
        let declared = timeout(ANSWER, declared).await??;
        Ok(Level {
            ready: declared.message_count(),
            consumers: declared.consumer_count(),
        })
    }
}

async fn open(amqp_url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(amqp_url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    for traffic in Traffic::ALL {
        declare(&channel, &options(amqp_url, "", traffic)).await?;
    }
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok((connection, channel))
}

/// What the publisher and the rest of the run tell each other.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    /// No more contexts are to be begun.
    pub is_ending: Arc<AtomicBool>,
    /// Messages published so far, copies included.
    pub published: Arc<AtomicU64>,
}

/// Keeps the queues filled until the run ends; then publishes what is begun to its end.
///
/// # Errors
///
/// When the broker stays away.
pub async fn keep_publishing(
    mut publisher: Publisher,
    mut workloads: Vec<Workload>,
    signals: Signals,
) -> Result<(Publisher, Vec<Workload>)> {
    loop {
        let is_ending = signals.is_ending.load(Ordering::Acquire);
        let mut has_published = false;
        for workload in &mut workloads {
            if is_ending {
                workload.close();
            } else if publisher.look(workload.traffic().name()).await?.ready >= BACKLOG {
                continue;
            }
            let batch: Vec<usize> = workload.by_ref().take(BATCH).collect();
            let messages = workload.messages();
            let batch: Vec<&Planned> = batch.iter().map(|&index| &messages[index]).collect();
            has_published |= !batch.is_empty();
            publisher.publish(&batch).await?;
            let count = u64::try_from(batch.len())?;
            signals.published.fetch_add(count, Ordering::AcqRel);
        }
        match (has_published, is_ending) {
            (true, _) => {}
            (false, true) => return Ok((publisher, workloads)),
            (false, false) => sleep(POLL).await,
        }
    }
}

/// Publishes copies of messages that were published long ago.
///
/// # Errors
///
/// When the broker stays away.
pub async fn publish_copies(
    publisher: &mut Publisher,
    workloads: &mut [Workload],
    count: usize,
) -> Result<()> {
    for workload in workloads {
        let copies = workload.late_copies(count);
        if copies.is_empty() {
            bail!("there is nothing to publish again");
        }
        let messages = workload.messages();
        let copies: Vec<&Planned> = copies.iter().map(|&index| &messages[index]).collect();
        for batch in copies.chunks(BATCH) {
            publisher.publish(batch).await?;
        }
    }
    Ok(())
}

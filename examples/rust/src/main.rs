//! A consumer in Rust, on level 2 of the client crate.
//!
//! Run it once over the stream, with a libpq connection string:
//!
//! ```text
//! cargo run --package sequential-inbox-example -- \
//!     examples/stream.csv "host=localhost dbname=shop user=inbox_example"
//! ```
//!
//! What correct use asks for is done by [`Consumer`]: the transaction, the claim, the order, the
//! commit, retries, what was released, and failures. What is left to a service is here.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    path::Path,
    time::Duration,
};

use anyhow::Context;
use sequential_inbox_client::{
    Condition, Consumer, Delivery, HandlerError, InboxExt, Message, MessageType, Ordering, Outcome,
    ProcessError, Sequence,
};
use serde::Deserialize;
use tokio_postgres::{Client, NoTls, Transaction};

/// The broker delivers a message so often, and the inbox hands it out so often, when its handler
/// fails; then it is a dead letter.
const MAX_ATTEMPTS: u32 = 3;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A message as the stream has it.
#[derive(Debug, Deserialize)]
struct Event {
    /// The plain consumer, or the sequence.
    consumer: String,
    message_type: String,
    /// The producer's event id, the same on every redelivery.
    message_id: String,
    context_id: Option<String>,
    position: Option<i64>,
    payload: String,
    /// Counted by the broker.
    #[serde(default)]
    delivery: u32,
}

impl Event {
    fn message(&self) -> Message<'_> {
        let mut message = Message::new(&*self.message_type, &*self.message_id)
            .payload(self.payload.as_bytes())
            .delivery(self.delivery);
        message.context_id = self.context_id.as_deref().map(Into::into);
        message.position = self.position;
        message
    }
}

/// Declares what this service needs. Nothing is written when nothing has changed.
async fn declare(client: &mut Client) -> anyhow::Result<()> {
    let orders = Sequence::new("orders", 30 * DAY)
        .message(MessageType::new("order.placed"))
        .message(MessageType::new("order.paid").after("order.placed"))
        .message(MessageType::new("order.packed").after("order.placed"))
        .message(
            MessageType::new("order.shipped").after(Condition::and(["order.paid", "order.packed"])),
        )
        .message(MessageType::new("order.commented").optional());
    let accounts = Sequence::new("accounts", 90 * DAY)
        .message(MessageType::new("account.entry"))
        .message(MessageType::new("account.closed").completing())
        .ordering(Ordering::Position);
    let transaction = client.transaction().await?;
    transaction.inbox().declare_sequence(&orders).await?;
    transaction.inbox().declare_sequence(&accounts).await?;
    transaction.commit().await?;
    Ok(())
}

/// With the limits of this service.
fn limited(consumer: Consumer) -> Consumer {
    consumer
        .give_up_after(MAX_ATTEMPTS)
        // A released message that failed comes back at once, so that the example ends. A service
        // leaves the default, 10 s and longer each time.
        .retry_after(Duration::ZERO)
}

/// Takes care of a message: what became of it, told after the commit. An error means: do not
/// acknowledge.
async fn process(client: &mut Client, event: &Event) -> Result<&'static str, ProcessError> {
    let message = event.message();
    let plain = limited(Consumer::plain(&event.consumer));
    let outcome = match &*event.consumer {
        "orders" | "accounts" => {
            let sequence = limited(Consumer::sequence(&event.consumer));
            sequence.process(client, &message, handle).await?
        }
        _ => plain.process(client, &message, handle).await?,
    };
    Ok(match outcome {
        // It has no context and so no place in the sequence. It is to have its effect once all
        // the same, and so is claimed like a plain consumer's.
        Outcome::Direct => match plain.process(client, &message, handle).await? {
            Outcome::Applied(()) => "direct",
            outcome => word(&outcome),
        },
        outcome => word(&outcome),
    })
}

/// The outcome in the word of the other examples.
fn word(outcome: &Outcome<()>) -> &'static str {
    match outcome {
        Outcome::Rejected { .. } => "rejected",
        Outcome::DeadLettered { .. } => "dead_lettered",
        outcome => outcome.as_str(),
    }
}

/// The handler: what a message is about. It writes with the transaction that it is given, and
/// returns an error when it cannot do its work.
async fn handle(
    transaction: &mut Transaction<'_>,
    delivery: &Delivery<'_>,
) -> Result<(), HandlerError> {
    let message = delivery.message;
    let payload = message.payload.as_deref().unwrap_or_default();
    let body = str::from_utf8(payload)?;
    let (amount, note) = body.split_once(' ').unwrap_or((body, ""));
    let amount: i32 = amount
        .parse()
        .map_err(|_| format!("\"{amount}\" is no amount"))?;
    transaction
        .execute(
            "INSERT INTO ledger
                 (consumer, context_id, message_type, message_id, amount, note, released)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
            &[
                &delivery.consumer,
                &message.context_id.as_deref(),
                &&*message.message_type,
                &&*message.idempotence_id,
                &amount,
                &note,
                &delivery.is_released,
            ],
        )
        .await?;
    Ok(())
}

/// Stands in for a broker: what is not acknowledged is delivered again, after the others.
struct Broker {
    queue: VecDeque<Event>,
}

impl Broker {
    /// Delivers the messages of a file.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let queue = csv::Reader::from_path(path)
            .and_then(|mut reader| reader.deserialize().collect())
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { queue })
    }

    fn next(&mut self) -> Option<Event> {
        let mut event = self.queue.pop_front()?;
        event.delivery += 1;
        Some(event)
    }

    fn give_back(&mut self, event: Event) {
        self.queue.push_back(event);
    }
}

async fn connect(dsn: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    // Its error is also that of every call on the client.
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [stream, dsn] = &arguments[..] else {
        anyhow::bail!("expected a stream and a connection string");
    };
    let mut broker = Broker::read(Path::new(stream))?;
    let mut client = connect(dsn).await?;
    declare(&mut client).await?;
    let mut outcomes = BTreeMap::<&str, u32>::new();
    while let Some(event) = broker.next() {
        let outcome = match process(&mut client, &event).await {
            // Committed: this is where a message is acknowledged.
            Ok(outcome) => outcome,
            Err(error) => {
                eprintln!("{} goes back to the broker: {error}", event.message_id);
                broker.give_back(event);
                // A pool would do so before it hands the connection out again.
                if client.check_connection().await.is_err() {
                    client = connect(dsn).await?;
                }
                "redelivered"
            }
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    // What a process that died has left released, and what is due again. A service does so all
    // the time, with `sweep_until_shutdown` in a task of its own.
    limited(Consumer::plain("sweeper"))
        .sweep(&mut client, handle)
        .await?;
    for (outcome, count) in outcomes {
        println!("{outcome}|{count}");
    }
    Ok(())
}

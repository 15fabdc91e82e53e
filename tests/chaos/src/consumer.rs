//! A consumer process: the consumer of `examples/rabbitmq`, once for each traffic, with a handler
//! that writes to the ledger and now and then goes wrong in each way in which a handler can.
//!
//! It ends when it is told to (SIGTERM: it finishes what it has in hand), and when whoever started it
//! is gone: it then loses its standard input.

use std::{
    cell::RefCell,
    future::pending,
    io::{self, Read},
    panic,
    path::PathBuf,
    process::{self, ExitCode},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Parser;
use rabbitmq_consumer::{Options, run};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use sequential_inbox_client::{Consumer, Delivery, HandlerError, Schema, Shutdown};
use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use tokio_postgres::Transaction;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt};

use crate::{
    ledger,
    tally::{Deed, Journal, Listener},
    workload::{Fate, Planned, Traffic},
};

/// How long a handler may take. Much longer than one does that is not meant to hang, on a slow
/// machine too.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long one that hangs would take.
const HANG: Duration = Duration::from_secs(30);

/// At which failure a message is given up: few are that need not be, though a kill counts as a
/// delivery too, and poison messages are soon.
const GIVE_UP_AFTER: u32 = 5;

/// How long a message whose failure is recorded stays away at first.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The pauses before a failed message goes back to the broker.
const REDELIVERY_PAUSES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(200));

/// The pauses between attempts to connect.
const CONNECTION_PAUSES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(250));

/// How many deliveries the broker may be ahead: as many come again after a kill.
const PREFETCH: u16 = 8;

/// How often a consumer looks for what others have left behind.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Beyond any number of returns that a run may cause.
const DELIVERY_LIMIT: u32 = 10_000;

/// One consumer process of the chaos test.
#[derive(Debug, Parser)]
pub struct Arguments {
    /// The broker.
    #[arg(long)]
    amqp_url: String,

    /// The database.
    #[arg(long)]
    dsn: String,

    /// The process's number in the run.
    #[arg(long)]
    process: i32,

    /// What the faults of its handlers follow from, together with its number.
    #[arg(long)]
    seed: u64,

    /// The file in which it counts what it does.
    #[arg(long)]
    journal: PathBuf,

    /// No handler goes wrong by itself.
    #[arg(long)]
    calm: bool,
}

/// How the broker's queue of that traffic is used, by consumers and publisher alike.
pub fn options(amqp_url: &str, dsn: &str, traffic: Traffic) -> Options {
    let mut options = Options::new(amqp_url, traffic.name(), dsn);
    options.prefetch = PREFETCH;
    options.give_up_after = GIVE_UP_AFTER;
    options.delivery_limit = DELIVERY_LIMIT;
    options.redelivery_pauses = REDELIVERY_PAUSES;
    options.connection_pauses = CONNECTION_PAUSES;
    options.sweep_interval = Some(SWEEP_INTERVAL);
    options
}

/// Who takes the messages of that traffic. Of one sequence the inbox itself tries failed messages
/// again, of the others the broker does.
fn consumer(traffic: Traffic) -> Consumer {
    let consumer = match traffic {
        Traffic::Payments => Consumer::plain(traffic.name()),
        Traffic::Orders => Consumer::sequence(traffic.name()).reschedule_failures(true),
        Traffic::Accounts => Consumer::sequence(traffic.name()),
    };
    consumer
        .handler_timeout(HANDLER_TIMEOUT)
        .retry_after(RETRY_AFTER)
}

/// What a poison message's handler says.
const POISON: &str = "poison: it fails until its cause is mended";

/// What a message says of its handler's success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// It may succeed.
    Good,
    /// It fails until the operator has mended the cause.
    Mendable,
    /// It always fails.
    Hopeless,
}

impl Payload {
    /// The payload of that message.
    pub fn of(message: &Planned) -> Self {
        match message.fate {
            Fate::Applied => Self::Good,
            Fate::Mended => Self::Mendable,
            Fate::Skipped | Fate::DeadLetter => Self::Hopeless,
        }
    }
}

/// How a handler goes wrong by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// An error.
    Error,
    /// A panic.
    Panic,
    /// It never comes back.
    Hang,
    /// It never comes back from a statement.
    HangInStatement,
    /// The end of the process.
    Abort,
}

impl Fault {
    /// Draws one for most handlers none, in ten thousand.
    fn draw(random: &mut SmallRng) -> Option<Self> {
        Some(match random.random_range(0..10_000) {
            0..200 => Self::Error,
            200..260 => Self::Panic,
            260..268 => Self::Hang,
            268..276 => Self::HangInStatement,
            276..282 => Self::Abort,
            _ => return None,
        })
    }
}

/// The `main` of a consumer process. With `schema`, all calls of the inbox go there.
pub fn main(schema: Option<&str>) -> ExitCode {
    end_with_the_starter();
    match consume(&Arguments::parse(), schema) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends the process when its standard input does.
fn end_with_the_starter() {
    thread::spawn(|| {
        // Nothing is ever sent: it ends, or it fails.
        let _ = io::stdin().read(&mut [0]);
        process::exit(1);
    });
}

#[tokio::main(flavor = "current_thread")]
async fn consume(arguments: &Arguments, schema: Option<&str>) -> Result<()> {
    let journal = Journal::open(&arguments.journal)
        .with_context(|| format!("cannot write {}", arguments.journal.display()))?;
    let journal: &'static Journal = Box::leak(Box::new(journal));
    // What else is told, by the drivers say, is not for counting.
    let told = Targets::new()
        .with_target("sequential_inbox_client", LevelFilter::DEBUG)
        .with_target("rabbitmq_consumer", LevelFilter::DEBUG);
    let subscriber = tracing_subscriber::registry().with(Listener(journal).with_filter(told));
    tracing::subscriber::set_global_default(subscriber)?;

    let shutdown = Shutdown::new();
    let mut asked = signal(SignalKind::terminate())?;
    let told = shutdown.clone();
    tokio::spawn(async move {
        asked.recv().await;
        told.request();
    });

    let handler = Handler {
        process: arguments.process,
        is_calm: arguments.calm,
        // Each process draws from a stream of its own.
        random: RefCell::new(SmallRng::seed_from_u64(
            arguments.seed ^ u64::from(arguments.process.unsigned_abs()).rotate_left(32),
        )),
        journal,
    };
    let work = Traffic::ALL.map(|traffic| {
        let mut consumer = consumer(traffic);
        if let Some(schema) = schema {
            consumer = consumer.in_schema(Schema::new(schema));
        }
        let options = options(&arguments.amqp_url, &arguments.dsn, traffic);
        let handle = async |transaction: &mut Transaction<'_>, delivery: &Delivery<'_>| {
            handler.handle(transaction, delivery).await
        };
        run(options, consumer, shutdown.clone(), handle)
    });
    let [payments, orders, accounts] = work;
    tokio::try_join!(payments, orders, accounts)?;
    Ok(())
}

struct Handler {
    process: i32,
    is_calm: bool,
    random: RefCell<SmallRng>,
    journal: &'static Journal,
}

impl Handler {
    async fn handle(
        &self,
        transaction: &mut Transaction<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<(), HandlerError> {
        if delivery.is_released {
            self.journal.note(Deed::HandedOut);
        }
        let traffic = Traffic::of_name(delivery.consumer)
            .ok_or_else(|| format!("\"{}\" is no traffic", delivery.consumer))?;
        let payload: Payload = delivery.json()?;
        let begun = ledger::begin(transaction).await?;
        let (fault, is_early) = self.fault();
        if let Some(fault) = fault.filter(|_| is_early) {
            fail(fault, transaction).await?;
        }
        ledger::write(transaction, traffic, delivery.message, begun, self.process).await?;
        // After it has written, so that there is something to roll back.
        match payload {
            Payload::Hopeless => return Err(POISON.into()),
            Payload::Mendable if !begun.is_mended => return Err(POISON.into()),
            Payload::Mendable | Payload::Good => {}
        }
        if let Some(fault) = fault {
            fail(fault, transaction).await?;
        }
        Ok(())
    }

    /// Whether something goes wrong this time, and whether before the handler writes.
    fn fault(&self) -> (Option<Fault>, bool) {
        if self.is_calm {
            return (None, false);
        }
        let mut random = self.random.borrow_mut();
        (Fault::draw(&mut random), random.random_ratio(1, 2))
    }
}

/// Goes wrong.
async fn fail(fault: Fault, transaction: &mut Transaction<'_>) -> Result<(), HandlerError> {
    match fault {
        Fault::Error => Err("the handler fails now and then".into()),
        // Without a word on standard error: it is not a mistake.
        Fault::Panic => panic::resume_unwind(Box::new("the handler panics now and then")),
        Fault::Hang => {
            sleep(HANG).await;
            pending().await
        }
        Fault::HangInStatement => {
            let sql = format!("SELECT pg_catalog.pg_sleep({})", HANG.as_secs());
            transaction.batch_execute(&sql).await?;
            pending().await
        }
        Fault::Abort => process::abort(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn handlers_go_wrong_in_every_way_and_most_do_not() {
        let mut random = SmallRng::seed_from_u64(1);
        let drawn: Vec<_> = (0..20_000).map(|_| Fault::draw(&mut random)).collect();
        for fault in [
            Fault::Error,
            Fault::Panic,
            Fault::Hang,
            Fault::HangInStatement,
            Fault::Abort,
        ] {
            assert!(drawn.contains(&Some(fault)), "{fault:?}");
        }
        let good = drawn.iter().filter(|fault| fault.is_none()).count();
        assert!(good > 19_000, "{good}");
    }

    #[test]
    fn a_payload_says_what_its_handler_needs() {
        let mut message = Planned {
            traffic: Traffic::Payments,
            context: String::new(),
            message_type: "payment.made",
            id: String::new(),
            position: None,
            fate: Fate::Applied,
        };
        for (fate, json) in [
            (Fate::Applied, "\"good\""),
            (Fate::Mended, "\"mendable\""),
            (Fate::Skipped, "\"hopeless\""),
            (Fate::DeadLetter, "\"hopeless\""),
        ] {
            message.fate = fate;
            let payload = Payload::of(&message);
            assert_eq!(serde_json::to_string(&payload).unwrap(), json);
        }
    }
}

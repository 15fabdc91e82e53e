//! The demo: replays a message stream through the extension with everything that goes wrong in
//! production, and checks every effect.
//!
//! Several consumers at the same time, every fifth message delivered twice, messages out of order,
//! handlers that fail on their first try, a connection that is terminated in the middle of a
//! transaction. Each handler writes to a ledger in the transaction that has the claim; in the end
//! the ledger must show each event once (G1, G4), and in an order that the declaration allows (G6).
//!
//! Part 1: two plain consumers of one stream, each of which sees each message once (G12). Part 2:
//! claims bound to the instances of a sequence. Part 3: ordered, by release conditions or by
//! position.
//!
//! Messages come from a broker within this program, which delivers to the plan, or with the feature
//! `rabbitmq` and `--broker rabbitmq` from a real one.

mod broker;
mod consumer;
mod declaration;
mod ledger;
mod progress;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod replay;
mod report;
mod schedule;
mod session;
mod stream;
mod tally;
mod verify;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum, builder::RangedU64ValueParser};
use indicatif::HumanCount;
use sequential_inbox_client::{MessageType, Ordering};
use throwaway_cluster::Cluster;

use crate::{
    progress::Progress,
    replay::{Database, Ended, Kind, Replay},
    report::Outcome,
    schedule::{Arrival, Schedule},
    stream::Stream,
};

/// Replays a message stream through sequential_inbox, on a server of its own, with duplicates,
/// failing handlers and lost connections, and checks every effect.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// A CSV file with the columns case_id, position, activity, event_id, occurred_at, resource.
    /// Without it: a small stream that the demo generates.
    #[arg(long, value_name = "FILE")]
    stream: Option<PathBuf>,

    /// A JSON file with the message types of the stream and their release conditions, as
    /// inbox_declare_sequence takes them.
    #[arg(long, value_name = "FILE")]
    sequence: Option<PathBuf>,

    /// What orders the third part. Without it: the conditions of the sequence file, or both in
    /// turn for the generated stream.
    #[arg(long, value_enum)]
    order: Option<Order>,

    /// What delivers the messages. RabbitMQ is started for the demo alone; part 2, which makes the
    /// inbox's calls one by one, is then left out.
    #[arg(long, value_enum, default_value_t = BrokerKind::Own)]
    broker: BrokerKind,

    /// How many consumers run at the same time, in each group.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(2..=32))]
    consumers: usize,

    /// What the generated stream, the order of arrival and the faults follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Deliver the whole stream backwards instead of shuffled.
    #[arg(long)]
    reverse: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BrokerKind {
    /// One within the demo, which delivers to the plan.
    Own,
    /// A RabbitMQ node of the demo's own.
    #[cfg(feature = "rabbitmq")]
    #[value(name = "rabbitmq")]
    RabbitMq,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// By the release conditions of the message types.
    Conditions,
    /// By the positions of the messages, without gaps.
    Position,
}

impl From<Order> for Ordering {
    fn from(order: Order) -> Self {
        match order {
            Order::Conditions => Self::Conditions,
            Order::Position => Self::Position,
        }
    }
}

/// What is replayed and how often.
#[derive(Debug)]
struct Plan {
    stream: Arc<Stream>,
    types: Vec<MessageType>,
    /// The orderings of the third part, one replay each.
    orderings: Vec<Ordering>,
}

impl Arguments {
    /// Reads the files, or generates what is not given.
    fn plan(&self) -> Result<Plan> {
        let stream = match &self.stream {
            Some(path) => Stream::read(path)?,
            None => Stream::generate(self.seed)?,
        };
        let orderings = match (self.order, &self.stream, &self.sequence) {
            (Some(order), ..) => vec![order.into()],
            (None, None, None) => vec![Ordering::Conditions, Ordering::Position],
            (None, _, Some(_)) => vec![Ordering::Conditions],
            (None, Some(_), None) => Vec::new(),
        };
        ensure!(
            self.stream.is_none()
                || self.sequence.is_some()
                || !orderings.contains(&Ordering::Conditions),
            "--order conditions needs the release conditions of the stream: give them with \
             --sequence FILE"
        );
        let types = match (&self.sequence, &self.stream) {
            (Some(path), _) => declaration::read_types(path)?,
            (None, None) => stream::generated_types(),
            (None, Some(_)) => declaration::types_of(&stream),
        };
        if !orderings.is_empty() {
            declaration::check_covers(&types, &stream)?;
        }
        Ok(Plan {
            stream: Arc::new(stream),
            types,
            orderings,
        })
    }

    fn schedule(&self, stream: &Stream, otherwise: Arrival) -> Schedule {
        let arrival = if self.reverse {
            Arrival::Reversed
        } else {
            otherwise
        };
        Schedule::new(stream, arrival, self.seed)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all parts and reports; whether everything was as expected.
async fn run(arguments: &Arguments) -> Result<bool> {
    let plan = arguments.plan()?;
    let events = plan.stream.events().len();
    println!(
        "{} events of {} cases, {} message types; {} consumers, seed {}",
        HumanCount(events as u64),
        HumanCount(plan.stream.cases().len() as u64),
        plan.stream.message_types().len(),
        arguments.consumers,
        arguments.seed
    );
    // The server's crash is not part of the demo, and without fsync it says more about the
    // extension than about the disk.
    let cluster = Cluster::builder()
        .fsync(false)
        .start()
        .context("cannot start a throwaway PostgreSQL server")?;
    let deliverer = Deliverer::start(arguments.broker).await?;
    let setting = Setting {
        arguments,
        plan: &plan,
        cluster: &cluster,
        deliverer: &deliverer,
    };
    let mut outcomes = plain_consumers(&setting).await?;
    if arguments.broker == BrokerKind::Own {
        outcomes.push(claims(&setting).await?);
    }
    for &ordering in &plan.orderings {
        outcomes.push(ordered(&setting, ordering).await?);
    }
    Ok(conclude(&outcomes, arguments.broker))
}

/// What delivers.
enum Deliverer {
    Own,
    #[cfg(feature = "rabbitmq")]
    RabbitMq(Arc<throwaway_broker::Broker>),
}

impl Deliverer {
    async fn start(kind: BrokerKind) -> Result<Self> {
        match kind {
            BrokerKind::Own => Ok(Self::Own),
            #[cfg(feature = "rabbitmq")]
            BrokerKind::RabbitMq => {
                let broker = tokio::task::spawn_blocking(throwaway_broker::Broker::start)
                    .await?
                    .context("cannot start a throwaway RabbitMQ node")?;
                Ok(Self::RabbitMq(Arc::new(broker)))
            }
        }
    }

    /// Runs replays of one database at the same time, with that many consumers each.
    async fn run(&self, replays: &[Arc<Replay>], consumers: usize) -> Result<Vec<Ended>> {
        match self {
            Self::Own => {
                let runs = replays.iter().map(|replay| {
                    let replay = Arc::clone(replay);
                    tokio::spawn(async move { replay.run(consumers).await })
                });
                // All are started before the first is waited for.
                let runs: Vec<_> = runs.collect();
                let mut ends = Vec::new();
                for run in runs {
                    ends.push(run.await??);
                }
                Ok(ends)
            }
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(broker) => rabbitmq::Group::new(replays, broker).run(consumers).await,
        }
    }
}

/// What all parts share.
struct Setting<'a> {
    arguments: &'a Arguments,
    plan: &'a Plan,
    cluster: &'a Cluster,
    deliverer: &'a Deliverer,
}

/// Part 1: two consumers of one stream, at the same time.
async fn plain_consumers(setting: &Setting<'_>) -> Result<Vec<Outcome>> {
    const CONSUMERS: [&str; 2] = ["billing", "analytics"];
    let (arguments, stream) = (setting.arguments, &setting.plan.stream);
    let database = Database::prepare(setting.cluster, "plain", &CONSUMERS, stream, None).await?;
    let total = stream.events().len() * CONSUMERS.len();
    let progress = Arc::new(Progress::start("1 plain consumers", total as u64)?);
    let mut replays = Vec::new();
    for consumer in CONSUMERS {
        let kind = Kind::Plain(consumer.to_owned());
        let schedule = arguments.schedule(stream, Arrival::Shuffled);
        let replay = Replay::new(
            kind,
            Arc::clone(stream),
            schedule,
            &database,
            Arc::clone(&progress),
        );
        replays.push(Arc::new(replay.await?));
    }
    let ends = setting.deliverer.run(&replays, arguments.consumers).await?;
    let mut outcomes = Vec::new();
    for ((replay, ended), consumer) in replays.iter().zip(ends).zip(CONSUMERS) {
        outcomes.push(replay.verify(format!("1 {consumer}"), &[], ended).await?);
    }
    progress.finish();
    Ok(outcomes)
}

/// Part 2: claims bound to sequence instances.
async fn claims(setting: &Setting<'_>) -> Result<Outcome> {
    let schedule = setting
        .arguments
        .schedule(&setting.plan.stream, Arrival::Shuffled);
    let (title, database) = ("2 sequenced claims", "claims");
    let part = Part {
        title,
        database,
        kind: Kind::Claims,
        schedule,
    };
    part.run(setting, None).await
}

/// Part 3: in order.
async fn ordered(setting: &Setting<'_>, ordering: Ordering) -> Result<Outcome> {
    let plan = setting.plan;
    let schedule = setting
        .arguments
        .schedule(&plan.stream, Arrival::ShuffledWithinCases);
    let (title, database) = match ordering {
        Ordering::Position => ("3 in order of position", "position"),
        _ => ("3 in order of conditions", "conditions"),
    };
    let part = Part {
        title,
        database,
        kind: Kind::Ordered(ordering),
        schedule,
    };
    part.run(setting, Some((ordering, plan.types.as_slice())))
        .await
}

/// A part that is one replay.
struct Part {
    title: &'static str,
    database: &'static str,
    kind: Kind,
    schedule: Schedule,
}

impl Part {
    async fn run(
        self,
        setting: &Setting<'_>,
        declared: Option<(Ordering, &[MessageType])>,
    ) -> Result<Outcome> {
        let stream = &setting.plan.stream;
        let consumers = [self.kind.consumer()];
        let database =
            Database::prepare(setting.cluster, self.database, &consumers, stream, declared).await?;
        let progress = Arc::new(Progress::start(self.title, stream.events().len() as u64)?);
        let replay = Replay::new(
            self.kind,
            Arc::clone(stream),
            self.schedule,
            &database,
            Arc::clone(&progress),
        );
        let replays = [Arc::new(replay.await?)];
        let ends = setting
            .deliverer
            .run(&replays, setting.arguments.consumers)
            .await?;
        progress.finish();
        let [replay] = replays;
        let ended = ends.into_iter().next().context("a replay without an end")?;
        let title = self.title.to_owned();
        replay.verify(title, &setting.plan.types, ended).await
    }
}

/// Prints the table, and what is wrong; whether nothing is.
fn conclude(outcomes: &[Outcome], broker: BrokerKind) -> bool {
    println!("{}", report::table(outcomes));
    println!(
        "{}",
        match broker {
            BrokerKind::Own =>
                "waited: duplicates seen waiting for the session that had the message, before it \
                 ended\n\
                 took over: those of them that got the message, since that session's handler failed",
            #[cfg(feature = "rabbitmq")]
            BrokerKind::RabbitMq =>
                "given back: not committed, so not acknowledged; RabbitMQ delivered them again\n\
                 given up: recorded as dead letters after repeated failures, acknowledged, and \
                 retried with inbox_retry",
        }
    );
    let mut is_right = true;
    for outcome in outcomes {
        for problem in outcome.problems() {
            is_right = false;
            println!("WRONG in part {}: {problem}", outcome.title);
        }
    }
    if is_right {
        println!("Every message took effect exactly once, in every part.");
    }
    is_right
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn plan(arguments: &[&str]) -> Result<Plan> {
        Arguments::try_parse_from([&["demo"], arguments].concat())?.plan()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_generated_stream_is_ordered_both_ways() {
        let both = vec![Ordering::Conditions, Ordering::Position];
        assert_eq!(plan(&[]).unwrap().orderings, both);
        let position = plan(&["--order", "position"]).unwrap();
        assert_eq!(position.orderings, [Ordering::Position]);
    }

    #[test]
    fn one_consumer_could_never_meet_another() {
        assert!(plan(&["--consumers", "1"]).is_err());
        assert!(plan(&["--consumers", "2"]).is_ok());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = plan(&["--stream", "nowhere.csv"]).unwrap_err().to_string();
        assert!(error.contains("nowhere.csv"), "{error}");
    }
}

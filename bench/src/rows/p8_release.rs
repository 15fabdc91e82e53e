//! P8: releasing a thousand buffered messages of one instance, against a hundred.
//!
//! Timed is what a consumer does: it receives the message that everything waits for, then takes
//! what that has released, one transaction each, until nothing is left. A side's turn releases a
//! thousand messages either way, in one instance or in ten, so that both are exposed to the same
//! disturbances.

use std::time::Instant;

use anyhow::ensure;
use postgres::{Client, Statement};

use super::Benchmark;
use crate::report::{Row, Series, Target};
use crate::rounds::{alternate, ratios};
use crate::server::{Database, Server};

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P8",
    what: "release of buffered messages",
    run,
};

const DATABASE: &str = "p8";

/// Buffered messages of an instance: many, and few.
const MANY: u32 = 1000;
const FEW: u32 = 100;

const DECLARATIONS: [&str; 2] = [
    r#"SELECT inbox_declare_sequence('by_condition', '30 days', '[
        {"type": "condition.first"},
        {"type": "condition.later", "releaseCondition": {"predecessor": "condition.first"}}
    ]')"#,
    r#"SELECT inbox_declare_sequence('by_position', '30 days', '[
        {"type": "position.any"}
    ]', 'position')"#,
];

const RECEIVE: &str = "\
SELECT decision, sequence_instance_id
FROM inbox_receive($1, $2, $3, '{\"total\": 4711}', \"position\" => $4)";

const NEXT: &str = "SELECT message_id, message_type, payload FROM inbox_next($1)";

/// An ordering, and the types of the message that is waited for and of those that wait.
struct Ordering {
    name: &'static str,
    first: &'static str,
    later: &'static str,
}

const ORDERINGS: [Ordering; 2] = [
    Ordering {
        name: "conditions",
        first: "condition.first",
        later: "condition.later",
    },
    Ordering {
        name: "position",
        first: "position.any",
        later: "position.any",
    },
];

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    let database = server.database(DATABASE)?;
    database.execute(&DECLARATIONS)?;
    ORDERINGS
        .iter()
        .map(|ordering| measure(server, &database, ordering))
        .collect()
}

fn measure(server: &Server, database: &Database<'_>, ordering: &Ordering) -> anyhow::Result<Row> {
    let mut drain = Drain::new(database, ordering)?;
    drain.time(FEW)?;
    database.settle()?;
    let rounds = server.options.rounds();
    let [many, few] = alternate(rounds, |side, round| {
        server.progress.doing(format!(
            "P8 release, {}: round {} of {rounds}",
            ordering.name,
            round + 1
        ));
        let size = [MANY, FEW][side];
        let instances = MANY / size;
        let mut total = 0.0;
        for _ in 0..instances {
            total += drain.time(size)?;
        }
        Ok(total / f64::from(instances))
    })?;
    Ok(Row {
        id: "P8",
        what: format!(
            "release of {MANY} buffered messages, ordering {}; against {FEW}",
            ordering.name
        ),
        unit: "ms",
        ratio: Some(Series::median(ratios(&many, &few))),
        ours: Series::median(many),
        baseline: Some(Series::median(few)),
        target: Target::RatioAtMost(12.0),
        note: None,
        detail: None,
    })
}

/// Two sessions: one fills instances, the other one releases what waits in them.
struct Drain<'a> {
    ordering: &'a Ordering,
    filler: Client,
    fill: Statement,
    consumer: Client,
    receive: Statement,
    next: Statement,
    contexts: u32,
}

impl<'a> Drain<'a> {
    fn new(database: &Database<'_>, ordering: &'a Ordering) -> anyhow::Result<Self> {
        let mut filler = database.session()?;
        // One transaction a message, as messages come, without waiting for each.
        filler.batch_execute("SET synchronous_commit = off")?;
        let fill = filler.prepare(RECEIVE)?;
        let mut consumer = database.session()?;
        let receive = consumer.prepare(RECEIVE)?;
        let next = consumer.prepare(NEXT)?;
        Ok(Self {
            ordering,
            filler,
            fill,
            consumer,
            receive,
            next,
            contexts: 0,
        })
    }

    /// Buffers this many messages in a new instance and times their release, in milliseconds.
    fn time(&mut self, messages: u32) -> anyhow::Result<f64> {
        self.contexts += 1;
        let context = format!("{}-{}", self.ordering.name, self.contexts);
        for position in 2..=i64::from(messages) + 1 {
            let id = format!("{context}-{position}");
            let row = self.filler.query_one(
                &self.fill,
                &[&self.ordering.later, &id, &context, &position],
            )?;
            let decision: &str = row.get(0);
            ensure!(
                decision == "buffered",
                "a message was not buffered: {decision}"
            );
        }

        let begin = Instant::now();
        let id = format!("{context}-1");
        let row = self.consumer.query_one(
            &self.receive,
            &[&self.ordering.first, &id, &context, &1_i64],
        )?;
        let instance: i64 = row.get(1);
        let mut released = 0;
        while self.consumer.query_opt(&self.next, &[&instance])?.is_some() {
            released += 1;
        }
        let took = begin.elapsed();
        ensure!(
            released == messages,
            "{released} messages were released, not {messages}"
        );
        Ok(took.as_secs_f64() * 1e3)
    }
}

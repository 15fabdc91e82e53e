//! P4: `inbox_receive`, one transaction a message, against the classic five transactions.
//!
//! The workload is a sequence of six types, each after the one before, received in order: every
//! message may be handled at once, and the last one completes its context. The handler does
//! nothing, on either side.
//!
//! The five transactions of the classic pattern: look up the instance (and make it for the first
//! message), claim, look up the message, store the message, lock the instance and look for what
//! was released. Its tables are as lean as one would make them by hand: no index that these five
//! do not need. Both sides open and commit their transactions explicitly, as frameworks do and as
//! whatever has a handler to run inside must. What the pattern costs at its very best, with every
//! transaction of a single statement left to autocommit, is shown too, for orientation.

use std::fmt::Write;

use super::{Benchmark, Side, check_added, compare};
use crate::pgbench::{Load, NEW_ID};
use crate::report::{Row, Series, Target};
use crate::rounds::ratios;
use crate::server::{Database, Server};

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P4",
    what: "receive, one transaction a message",
    run,
};

const DATABASE: &str = "p4";

/// Message types of the sequence, and so messages of a context.
const TYPES: u32 = 6;

const CLASSIC: &str = r#"
CREATE SCHEMA classic;
CREATE TABLE classic.sequence_instance (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    context_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'OPEN',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retain_until timestamptz NOT NULL,
    UNIQUE (name, context_id)
);
CREATE TABLE classic.idempotence (
    message_type text COLLATE "C" NOT NULL,
    idempotence_id text COLLATE "C" NOT NULL,
    sequence_instance_id bigint NOT NULL
        REFERENCES classic.sequence_instance ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (message_type, idempotence_id)
);
CREATE INDEX ON classic.idempotence (sequence_instance_id);
CREATE TABLE classic.sequenced_message (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_type text COLLATE "C" NOT NULL,
    idempotence_id text COLLATE "C" NOT NULL,
    sequence_instance_id bigint NOT NULL
        REFERENCES classic.sequence_instance ON DELETE CASCADE,
    state text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (message_type, idempotence_id)
);
CREATE INDEX ON classic.sequenced_message (sequence_instance_id);
"#;

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("P4: making the tables".to_owned());
    let database = server.database(DATABASE)?;
    database.execute(&[CLASSIC, &declaration()?])?;
    let mut rows = Vec::new();
    for (clients, least) in [(1, 4.0), (4, 2.0)] {
        rows.extend(measure(server, &database, clients, least)?);
    }
    Ok(rows)
}

fn measure(
    server: &Server,
    database: &Database<'_>,
    clients: u32,
    least: f64,
) -> anyhow::Result<[Row; 3]> {
    let load = |script| Load {
        database: DATABASE,
        session_options: "",
        script,
        messages: TYPES,
        clients,
    };
    let sides = [
        load(receive_script(false)?),
        load(receive_script(true)?),
        load(classic_script(Style::Explicit)?),
        load(classic_script(Style::Autocommit)?),
    ];
    // Contexts on both sides, and so that plans suit tables that are not empty.
    for side in &sides {
        side.throughput(server, 1)?;
    }
    database.settle()?;
    let processed =
        || database.number("SELECT count(*) FROM sequenced_message WHERE state = 'PROCESSED'");
    let before = processed()?;
    let compared = compare(
        server,
        &format!("P4 receive, clients: {clients}"),
        sides.each_ref().map(|side| side as &dyn Side),
    )?;
    let [plain, drained, ..] = compared.messages;
    check_added("processed messages", before, processed()?, plain + drained)?;
    let [receive, receive_and_next, classic, autocommit] = compared.messages_per_second;
    let row = |what: &str, ours: &[f64], baseline: &[f64], target| Row {
        id: "P4",
        what: format!("{what}, clients: {clients}"),
        unit: "/s",
        ratio: Some(Series::median(ratios(ours, baseline))),
        ours: Series::median(ours.to_vec()),
        baseline: Some(Series::median(baseline.to_vec())),
        target,
        note: None,
        detail: None,
    };
    Ok([
        row(
            "inbox_receive; against five transactions a message",
            &receive,
            &classic,
            Target::RatioAtLeast(least),
        ),
        row(
            "inbox_receive, then inbox_next that finds nothing; against five transactions",
            &receive_and_next,
            &classic,
            Target::None,
        ),
        row(
            "inbox_receive; against five transactions with autocommit",
            &receive,
            &autocommit,
            Target::None,
        ),
    ])
}

fn declaration() -> anyhow::Result<String> {
    let mut messages = String::from(r#"{"type": "order.step1"}"#);
    for step in 2..=TYPES {
        write!(
            messages,
            r#", {{"type": "order.step{step}", "releaseCondition": {{"predecessor": "order.step{}"}}}}"#,
            step - 1
        )?;
    }
    Ok(format!(
        "SELECT inbox_declare_sequence('orders', '30 days', '[{messages}]')"
    ))
}

/// Receives the messages of one context. With `drain`, each is followed by the call that asks
/// what it has released, which here is nothing.
fn receive_script(drain: bool) -> anyhow::Result<String> {
    let mut script = format!("\\set context {NEW_ID}\n");
    for step in 1..=TYPES {
        write!(
            script,
            "\\set id {NEW_ID}
BEGIN;
SELECT decision, sequence_instance_id AS instance
    FROM inbox_receive('order.step{step}', :id, :context, '{{\"total\": 4711}}') \\gset
COMMIT;
"
        )?;
        if drain {
            script += "BEGIN;\nSELECT message_id, payload FROM inbox_next(:instance);\nCOMMIT;\n";
        }
    }
    Ok(script)
}

/// How a transaction of one statement begins and ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Explicit,
    Autocommit,
}

impl Style {
    /// A transaction of these statements.
    fn transaction(self, statements: &[&str]) -> String {
        let body = statements.join("\n");
        if self == Self::Autocommit && statements.len() == 1 {
            format!("{body}\n")
        } else {
            format!("BEGIN;\n{body}\nCOMMIT;\n")
        }
    }
}

/// Receives the messages of one context in five transactions each.
fn classic_script(style: Style) -> anyhow::Result<String> {
    let mut script = format!("\\set context {NEW_ID}\n");
    for step in 1..=TYPES {
        writeln!(script, "\\set id {NEW_ID}")?;
        script += &if step == 1 {
            style.transaction(&[
                "SELECT id FROM classic.sequence_instance
    WHERE name = 'orders' AND context_id = :context;",
                "INSERT INTO classic.sequence_instance (name, context_id, retain_until)
    VALUES ('orders', :context, now() + interval '30 days') RETURNING id AS instance \\gset",
            ])
        } else {
            style.transaction(&["SELECT id AS instance FROM classic.sequence_instance
    WHERE name = 'orders' AND context_id = :context \\gset"])
        };
        script += &style.transaction(&[&format!(
            "INSERT INTO classic.idempotence (message_type, idempotence_id, sequence_instance_id)
    VALUES ('order.step{step}', :id, :instance) ON CONFLICT DO NOTHING;"
        )]);
        script += &style.transaction(&[&format!(
            "SELECT id, state FROM classic.sequenced_message
    WHERE message_type = 'order.step{step}' AND idempotence_id = :id;"
        )]);
        script += &style.transaction(&[&format!(
            "INSERT INTO classic.sequenced_message
        (message_type, idempotence_id, sequence_instance_id, state)
    VALUES ('order.step{step}', :id, :instance, 'PROCESSED') RETURNING id;"
        )]);
        script += &style.transaction(&[
            "SELECT state FROM classic.sequence_instance WHERE id = :instance FOR UPDATE;",
            "SELECT id, message_type FROM classic.sequenced_message
    WHERE sequence_instance_id = :instance AND state = 'WAITING' ORDER BY id;",
        ]);
    }
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classic_pattern_takes_five_transactions_a_message() {
        let explicit = classic_script(Style::Explicit).unwrap();
        assert_eq!(explicit.matches("COMMIT;").count() as u32, 5 * TYPES);
        let autocommit = classic_script(Style::Autocommit).unwrap();
        // The last one of each message has two statements, as has the very first.
        assert_eq!(autocommit.matches("COMMIT;").count() as u32, TYPES + 1);
    }
}

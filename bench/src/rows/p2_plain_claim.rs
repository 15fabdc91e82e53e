//! P2: a plain claim, one a transaction, against an INSERT into one table with the same rows.
//!
//! The ring has all three tables in use, and the one table holds as many rows as they do.

use super::{Benchmark, STORED_CLAIMS, check_added, compare};
use crate::pgbench::{Load, NEW_ID};
use crate::report::{Row, Series, Target};
use crate::rounds::ratios;
use crate::server::{Server, spread_id};

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P2",
    what: "plain claim, one a transaction",
    run,
};

const DATABASE: &str = "p2";

const OURS: &str = "SELECT inbox_claim('billing', :id);";

const BASELINE: &str = "\
INSERT INTO one_table (consumer, message_id) VALUES ('billing', :id) ON CONFLICT DO NOTHING;";

/// What one would write by hand: a ring table's columns and key, in one table for ever.
pub(super) const ONE_TABLE: &str = r#"
CREATE TABLE one_table (
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    attributes jsonb,
    PRIMARY KEY (consumer, message_id)
)"#;

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("P2: storing claims".to_owned());
    let database = server.database(DATABASE)?;
    let stored = server.options.rows(STORED_CLAIMS);
    database.store_plain_claims(stored)?;
    database.execute(&[
        ONE_TABLE,
        &format!(
            "INSERT INTO one_table (consumer, message_id)
             SELECT 'billing', {id} FROM generate_series(0, {stored}::bigint - 1) g",
            id = spread_id(stored),
        ),
    ])?;
    database.settle()?;
    let load = |statement: &str| Load {
        database: DATABASE,
        session_options: "",
        script: format!("\\set id {NEW_ID}\n{statement}\n"),
        messages: 1,
        clients: 1,
    };
    let claims = || database.number("SELECT count(*) FROM inbox_claims");
    let before = claims()?;
    let compared = compare(server, "P2 plain claim", [&load(OURS), &load(BASELINE)])?;
    let [messages, _] = compared.messages;
    check_added("claims", before, claims()?, messages)?;
    let [ours, baseline] = compared.messages_per_second;
    Ok(vec![Row {
        id: "P2",
        what: "plain claim, clients: 1; against INSERT … ON CONFLICT DO NOTHING, one table"
            .to_owned(),
        unit: "/s",
        ratio: Some(Series::median(ratios(&ours, &baseline))),
        ours: Series::median(ours),
        baseline: Some(Series::median(baseline)),
        target: Target::RatioAtLeast(0.9),
        note: None,
        detail: None,
    }])
}

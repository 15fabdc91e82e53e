//! P3: a hundred plain claims in one call and one transaction, against one claim a transaction.

use std::fmt::Write;

use super::{Benchmark, STORED_CLAIMS, check_added, compare};
use crate::pgbench::{Load, NEW_ID};
use crate::report::{Row, Series, Target};
use crate::rounds::ratios;
use crate::server::Server;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P3",
    what: "batches of plain claims",
    run,
};

const DATABASE: &str = "p3";

/// Messages in a batch.
const BATCH: u32 = 100;

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("P3: storing claims".to_owned());
    let database = server.database(DATABASE)?;
    database.store_plain_claims(server.options.rows(STORED_CLAIMS))?;
    database.settle()?;
    let load = |script, messages| Load {
        database: DATABASE,
        session_options: "",
        script,
        messages,
        clients: 1,
    };
    let claims = || database.number("SELECT count(*) FROM inbox_claims");
    let before = claims()?;
    let compared = compare(
        server,
        "P3 batch of plain claims",
        [
            &load(batch_script()?, BATCH),
            &load(
                format!("\\set id {NEW_ID}\nSELECT inbox_claim('billing', :id);\n"),
                1,
            ),
        ],
    )?;
    check_added("claims", before, claims()?, compared.messages.iter().sum())?;
    let [ours, baseline] = compared.messages_per_second;
    Ok(vec![Row {
        id: "P3",
        what: format!("plain claims, batches of {BATCH}, clients: 1; against single claims"),
        unit: "/s",
        ratio: Some(Series::median(ratios(&ours, &baseline))),
        ours: Series::median(ours),
        baseline: Some(Series::median(baseline)),
        target: Target::RatioAtLeast(12.0),
        note: None,
        detail: None,
    }])
}

/// A batch of ids that are as random as those of the single claims, each a parameter.
fn batch_script() -> anyhow::Result<String> {
    let mut script = String::new();
    let mut ids = Vec::new();
    for number in 1..=BATCH {
        writeln!(script, "\\set id{number} {NEW_ID}")?;
        ids.push(format!(":id{number}::text"));
    }
    writeln!(
        script,
        "SELECT inbox_claim_batch('billing', ARRAY[{}]);",
        ids.join(", ")
    )?;
    Ok(script)
}

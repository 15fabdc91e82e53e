//! stat: what the statistics cost, a claim with them against one without.
//!
//! They are kept only by a server that has preloaded the library. So this row has a server of its
//! own, and the other rows measure one that has not.

use super::{ACTIVE_INSTANCES, Benchmark, STORED_CLAIMS, check_added, compare};
use crate::pgbench::{Load, NEW_ID};
use crate::report::{Row, Series, Target};
use crate::rounds::ratios;
use crate::server::{Database, Server};

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "stat",
    what: "claims with and without statistics",
    run,
};

const DATABASE: &str = "stat";

/// A kind of claim: its name, and the statement.
const CLAIMS: [(&str, &str); 2] = [
    (
        "sequenced claim",
        "SELECT inbox_claim('order.placed', :id, :instance);",
    ),
    ("plain claim", "SELECT inbox_claim('billing', :id);"),
];

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("stat: storing claims".to_owned());
    let server = &server.preloaded()?;
    let database = server.database(DATABASE)?;
    let stored = server.options.rows(STORED_CLAIMS);
    database.make_instances(ACTIVE_INSTANCES)?;
    database.store_sequenced_claims(stored, ACTIVE_INSTANCES)?;
    database.store_plain_claims(stored)?;
    database.settle()?;
    let mut rows = Vec::new();
    for (claim, statement) in CLAIMS {
        for clients in [1, 4] {
            rows.push(measure(server, &database, claim, statement, clients)?);
        }
    }
    Ok(rows)
}

fn measure(
    server: &Server,
    database: &Database<'_>,
    claim: &str,
    statement: &str,
    clients: u32,
) -> anyhow::Result<Row> {
    let load = |session_options| Load {
        database: DATABASE,
        session_options,
        script: format!(
            "\\set id {NEW_ID}\n\\set instance random(1, {ACTIVE_INSTANCES})\n{statement}\n"
        ),
        messages: 1,
        clients,
    };
    let claims = || database.number("SELECT count(*) FROM inbox_claims");
    let before = claims()?;
    let what = format!("{claim}, clients: {clients}");
    let compared = compare(
        server,
        &format!("stat {what}"),
        [
            &load("-c sequential_inbox.track=on"),
            &load("-c sequential_inbox.track=off"),
        ],
    )?;
    check_added("claims", before, claims()?, compared.messages.iter().sum())?;
    let [ours, baseline] = compared.messages_per_second;
    Ok(Row {
        id: "stat",
        what: format!("{what}, with statistics; against without"),
        unit: "/s",
        ratio: Some(Series::median(ratios(&ours, &baseline))),
        ours: Series::median(ours),
        baseline: Some(Series::median(baseline)),
        target: Target::RatioAtLeast(0.98),
        note: None,
        detail: None,
    })
}

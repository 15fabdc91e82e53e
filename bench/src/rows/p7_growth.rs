//! P7: what a claim costs when ten million are stored, against a hundred thousand.
//!
//! Message ids are random and fall anywhere among the stored ones, the worst case for an index.
//! Messages arrive for the newest ten thousand instances in both databases: those that are done
//! get none.

use super::{ACTIVE_INSTANCES, Benchmark};
use crate::pgbench::{Load, NEW_ID};
use crate::report::{Row, Series, Target};
use crate::rounds::{mirrored, percentile, ratios};
use crate::server::Server;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P7",
    what: "growth of the claim tables",
    run,
};

/// A database, how many claims of each kind are stored in it, and how many instances.
struct Stored {
    database: &'static str,
    claims: u64,
    instances: u64,
}

const LARGE: Stored = Stored {
    database: "p7_large",
    claims: 10_000_000,
    instances: 1_000_000,
};

const SMALL: Stored = Stored {
    database: "p7_small",
    claims: 100_000,
    instances: ACTIVE_INSTANCES,
};

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    let sides = [LARGE, SMALL].map(|side| Stored {
        claims: server.options.rows(side.claims),
        instances: server.options.rows(side.instances).max(1),
        ..side
    });
    let mut databases = Vec::new();
    for side in &sides {
        server
            .progress
            .doing(format!("P7: storing {} claims of each kind", side.claims));
        let database = server.database(side.database)?;
        database.make_instances(side.instances)?;
        database.store_sequenced_claims(side.claims, side.instances)?;
        database.store_plain_claims(side.claims)?;
        database.settle()?;
        databases.push(database);
    }
    let plain = |_: &Stored| format!("\\set id {NEW_ID}\nSELECT inbox_claim('billing', :id);\n");
    let sequenced = |side: &Stored| {
        format!(
            "\\set id {NEW_ID}\n\\set instance random({first}, {last})\n\
             SELECT inbox_claim('order.placed', :id, :instance);\n",
            first = side.instances.saturating_sub(ACTIVE_INSTANCES) + 1,
            last = side.instances,
        )
    };
    Ok(vec![
        measure(server, &sides, "plain claim", plain)?,
        measure(server, &sides, "sequenced claim", sequenced)?,
    ])
}

fn measure(
    server: &Server,
    sides: &[Stored; 2],
    what: &str,
    script: impl Fn(&Stored) -> String,
) -> anyhow::Result<Row> {
    let loads = sides.each_ref().map(|side| Load {
        database: side.database,
        session_options: "",
        script: script(side),
        messages: 1,
        clients: 1,
    });
    for load in &loads {
        load.latencies_ms(server, super::WARM_UP_SECONDS)?;
    }
    let rounds = server.options.rounds();
    let latencies: [_; 2] = mirrored(rounds, |side, round| {
        server
            .progress
            .doing(format!("P7 {what}: round {} of {rounds}", round + 1));
        loads[side].latencies_ms(server, server.options.slice_seconds())
    })?;
    let [large, small] = latencies.map(|rounds| {
        rounds
            .iter()
            .map(|slices| percentile(&slices.concat(), 0.95))
            .collect::<Vec<_>>()
    });
    Ok(Row {
        id: "P7",
        what: format!(
            "p95 of a {what}, {} stored; against {}",
            sides[0].claims, sides[1].claims
        ),
        unit: "ms",
        ratio: Some(Series::median(ratios(&large, &small))),
        ours: Series::median(large),
        baseline: Some(Series::median(small)),
        target: Target::RatioAtMost(1.5),
        note: None,
        detail: None,
    })
}

//! P9: the order workload through `process_batch`, a hundred messages a transaction, against
//! `process`, one a transaction, over one connection each.
//!
//! The work on the stock is the same on both sides: one UPDATE a message, each in a round trip of
//! its own. What a batch saves is the claim's round trip, BEGIN, COMMIT and the wait for the disk.

use super::{Benchmark, compare};
use crate::orders::{Polls, Shop};
use crate::report::{Row, Series, Target};
use crate::rounds::ratios;
use crate::server::Server;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P9",
    what: "order workload in batches",
    run,
};

/// Messages in a batch.
const BATCH: u32 = 100;

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("P9: storing claims".to_owned());
    let shop = Shop::open(server, "p9")?;
    let batches = Polls::new(shop.till()?, BATCH);
    let single = Polls::new(shop.till()?, 1);
    let compared = compare(server, "P9 process_batch", [&batches, &single])?;
    shop.check(compared.messages.iter().sum())?;
    let [ours, baseline] = compared.messages_per_second;
    Ok(vec![Row {
        id: "P9",
        what: format!("order workload, process_batch of {BATCH}, clients: 1; against process"),
        unit: "/s",
        ratio: Some(Series::median(ratios(&ours, &baseline))),
        ours: Series::median(ours),
        baseline: Some(Series::median(baseline)),
        target: Target::RatioAtLeast(6.0),
        note: None,
        detail: None,
    }])
}

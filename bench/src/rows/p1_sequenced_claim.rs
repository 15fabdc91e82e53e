//! P1: a sequenced claim, one a transaction, against the INSERT that one would write by hand.
//!
//! Both sides write new keys into the same table, foreign key included, for the same instances:
//! the difference is what the function costs.

use super::{ACTIVE_INSTANCES, Benchmark, STORED_CLAIMS, check_added, compare};
use crate::pgbench::{Load, NEW_ID};
use crate::report::{Row, Series, Target};
use crate::rounds::ratios;
use crate::server::Server;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P1",
    what: "sequenced claim, one a transaction",
    run,
};

const DATABASE: &str = "p1";

const OURS: &str = "SELECT inbox_claim('order.placed', :id, :instance);";

const BASELINE: &str = "\
INSERT INTO sequential_inbox_idempotence (message_type, idempotence_id, sequence_instance_id)
VALUES ('order.placed', :id, :instance) ON CONFLICT DO NOTHING;";

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    server.progress.doing("P1: storing claims".to_owned());
    let database = server.database(DATABASE)?;
    database.make_instances(ACTIVE_INSTANCES)?;
    database.store_sequenced_claims(server.options.rows(STORED_CLAIMS), ACTIVE_INSTANCES)?;
    database.settle()?;
    [1, 4]
        .into_iter()
        .map(|clients| {
            let load = |statement: &str| Load {
                database: DATABASE,
                session_options: "",
                script: format!(
                    "\\set id {NEW_ID}\n\\set instance random(1, {ACTIVE_INSTANCES})\n{statement}\n"
                ),
                messages: 1,
                clients,
            };
            let count = || database.number("SELECT count(*) FROM sequential_inbox_idempotence");
            let before = count()?;
            let what = format!("sequenced claim, clients: {clients}");
            let compared = compare(
                server,
                &format!("P1 {what}"),
                [&load(OURS), &load(BASELINE)],
            )?;
            check_added("claims", before, count()?, compared.messages.iter().sum())?;
            let [ours, baseline] = compared.messages_per_second;
            Ok(Row {
                id: "P1",
                what: format!("{what}; against INSERT … ON CONFLICT DO NOTHING, same table"),
                unit: "/s",
                ratio: Some(Series::median(ratios(&ours, &baseline))),
                ours: Series::median(ours),
                baseline: Some(Series::median(baseline)),
                target: Target::RatioAtLeast(0.95),
                note: None,
                detail: None,
            })
        })
        .collect()
}

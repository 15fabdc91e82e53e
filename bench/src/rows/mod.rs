//! The rows of the result. Each has a module that stores what is stored beforehand, measures, and
//! checks that what was measured has happened.

mod p1_sequenced_claim;
mod p2_plain_claim;
mod p3_batch;
mod p4_receive;
mod p6_rotation;
mod p7_growth;
mod p8_release;

use anyhow::{bail, ensure};

use crate::pgbench::Load;
use crate::report::Row;
use crate::rounds::alternate;
use crate::server::Server;

/// How many claims a database holds in which claims are measured: enough for an index of three
/// levels.
const STORED_CLAIMS: u64 = 300_000;

/// How many sequence instances messages arrive for at a time.
const ACTIVE_INSTANCES: u64 = 10_000;

/// How long a side runs before its first round, in seconds: caches fill, files grow.
const WARM_UP_SECONDS: u32 = 1;

/// Something to measure.
#[derive(Debug)]
pub(crate) struct Benchmark {
    /// The name by which it is chosen, `P1` say.
    pub(crate) id: &'static str,
    /// What it measures.
    pub(crate) what: &'static str,
    /// Measures it.
    pub(crate) run: fn(&Server) -> anyhow::Result<Vec<Row>>,
}

/// Everything that can be measured, in the order in which it is.
static ALL: [Benchmark; 7] = [
    p1_sequenced_claim::BENCHMARK,
    p2_plain_claim::BENCHMARK,
    p3_batch::BENCHMARK,
    p4_receive::BENCHMARK,
    p6_rotation::BENCHMARK,
    p7_growth::BENCHMARK,
    p8_release::BENCHMARK,
];

/// The benchmarks of these names, all of them without names.
pub(crate) fn chosen(only: &[String]) -> anyhow::Result<Vec<&'static Benchmark>> {
    for name in only {
        if !ALL.iter().any(|it| it.id.eq_ignore_ascii_case(name)) {
            let known: Vec<_> = ALL.iter().map(|it| it.id).collect();
            bail!("there is no row {name}; there are: {}", known.join(", "));
        }
    }
    let wanted = |it: &&Benchmark| {
        only.is_empty() || only.iter().any(|name| it.id.eq_ignore_ascii_case(name))
    };
    Ok(ALL.iter().filter(wanted).collect())
}

/// What several sides came to, side by side.
struct Compared<const N: usize> {
    /// Messages a second, by side and round.
    messages_per_second: [Vec<f64>; N],
    /// All messages of a side, those before the first round included.
    messages: [u64; N],
}

/// Runs every side for a moment, then all of them in alternating rounds.
fn compare<const N: usize>(
    server: &Server,
    what: &str,
    sides: [&Load; N],
) -> anyhow::Result<Compared<N>> {
    let mut messages = [0; N];
    for (side, load) in sides.iter().enumerate() {
        server.progress.doing(format!("{what}: warming up"));
        messages[side] += load.throughput(server, WARM_UP_SECONDS)?.messages;
    }
    let rounds = server.options.rounds();
    let messages_per_second = alternate(rounds, |side, round| {
        server
            .progress
            .doing(format!("{what}: round {} of {rounds}", round + 1));
        let run = sides[side].throughput(server, server.options.seconds())?;
        messages[side] += run.messages;
        Ok(run.messages_per_second)
    })?;
    Ok(Compared {
        messages_per_second,
        messages,
    })
}

/// Fails unless as many rows were added as messages were counted: what was timed has happened.
fn check_added(what: &str, before: i64, after: i64, messages: u64) -> anyhow::Result<()> {
    let added = after - before;
    ensure!(
        u64::try_from(added) == Ok(messages),
        "{messages} messages were counted, but {added} {what} were added"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_name_in_their_own_order() {
        let ids = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            chosen(&only).map(|them| them.iter().map(|it| it.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["p4", "P1"]).unwrap(), ["P1", "P4"]);
        assert_eq!(ids(&[]).unwrap().len(), ALL.len());
        assert!(ids(&["P1", "P0"]).is_err());
    }

    #[test]
    fn a_run_that_did_not_add_its_rows_is_an_error() {
        assert!(check_added("claims", 10, 15, 5).is_ok());
        assert!(check_added("claims", 10, 14, 5).is_err());
        assert!(check_added("claims", 10, 5, 5).is_err());
    }
}

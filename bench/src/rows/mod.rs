//! The rows of the result. Each has a module that stores what is stored beforehand, measures, and
//! checks that what was measured has happened.

mod p1_sequenced_claim;
mod p2_plain_claim;
mod p3_batch;
mod p4_receive;
mod p5_latency;
mod p6_rotation;
mod p7_growth;
mod p8_release;
mod p9_process_batch;
mod stat;

pub(crate) use p5_latency::Point;

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::report::Row;
use crate::rounds::mirrored;
use crate::server::Server;

/// How many claims a database holds in which claims are measured: enough for an index of three
/// levels.
pub(crate) const STORED_CLAIMS: u64 = 300_000;

/// How many sequence instances messages arrive for at a time.
const ACTIVE_INSTANCES: u64 = 10_000;

/// How long a side runs before its first round, in seconds: caches fill, files grow, and most
/// pages of an index are written to the log whole, as each is once after a checkpoint.
const WARM_UP_SECONDS: u32 = 3;

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
static ALL: [Benchmark; 10] = [
    p1_sequenced_claim::BENCHMARK,
    p2_plain_claim::BENCHMARK,
    p3_batch::BENCHMARK,
    p4_receive::BENCHMARK,
    p5_latency::BENCHMARK,
    p6_rotation::BENCHMARK,
    p7_growth::BENCHMARK,
    p8_release::BENCHMARK,
    p9_process_batch::BENCHMARK,
    stat::BENCHMARK,
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

/// One side of a comparison.
pub(crate) trait Side {
    /// Runs for a number of seconds and measures the throughput.
    fn throughput(&self, server: &Server, seconds: u32) -> anyhow::Result<Throughput>;
}

/// What a run came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput {
    /// Messages a second over the whole run, connecting left out.
    pub(crate) messages_per_second: f64,
    /// Messages in all.
    pub(crate) messages: u64,
}

/// Works for a number of seconds; each piece of work gives the number of its messages.
pub(crate) fn until(
    seconds: u32,
    mut work: impl FnMut() -> anyhow::Result<u32>,
) -> anyhow::Result<Throughput> {
    let limit = Duration::from_secs(seconds.into());
    let begin = Instant::now();
    let mut messages = 0;
    loop {
        messages += u64::from(work()?);
        let passed = begin.elapsed();
        if passed >= limit {
            return Ok(Throughput {
                messages_per_second: messages as f64 / passed.as_secs_f64(),
                messages,
            });
        }
    }
}

/// What several sides came to, side by side.
struct Compared<const N: usize> {
    /// Messages a second, by side and round.
    messages_per_second: [Vec<f64>; N],
    /// All messages of a side, those before the first round included.
    messages: [u64; N],
}

/// Runs every side for a moment, then all of them in rounds, each side twice in a round.
fn compare<const N: usize>(
    server: &Server,
    what: &str,
    sides: [&dyn Side; N],
) -> anyhow::Result<Compared<N>> {
    let mut messages = [0; N];
    for (side, load) in sides.iter().enumerate() {
        server.progress.doing(format!("{what}: warming up"));
        messages[side] += load.throughput(server, WARM_UP_SECONDS)?.messages;
    }
    let rounds = server.options.rounds();
    let measured = mirrored(rounds, |side, round| {
        server
            .progress
            .doing(format!("{what}: round {} of {rounds}", round + 1));
        let run = sides[side].throughput(server, server.options.slice_seconds())?;
        messages[side] += run.messages;
        Ok(run.messages_per_second)
    })?;
    // Both slices are equally long.
    let mean = |[there, back]: &[f64; 2]| (there + back) / 2.0;
    Ok(Compared {
        messages_per_second: measured.map(|rounds| rounds.iter().map(mean).collect()),
        messages,
    })
}

/// Fails unless as many rows were added as messages were counted: what was timed has happened.
pub(crate) fn check_added(
    what: &str,
    before: i64,
    after: i64,
    messages: u64,
) -> anyhow::Result<()> {
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

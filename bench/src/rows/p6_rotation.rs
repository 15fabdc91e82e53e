//! P6: forgetting two million expired plain claims by rotation, against a DELETE of the same rows.
//!
//! Meanwhile another session claims without a pause, on either side, and its longest claim during
//! a rotation counts: forgetting must not be felt.
//!
//! The DELETE alone is the baseline. It leaves the table as large as it was and its rows to VACUUM;
//! what both take together is shown, too, for orientation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use postgres::Client;

use super::Benchmark;
use super::p2_plain_claim::ONE_TABLE;
use crate::report::{Row, Series, Target};
use crate::rounds::{alternate, largest, ratios};
use crate::server::{Database, Server, rotate, spread_id};

pub(super) const BENCHMARK: Benchmark = Benchmark {
    id: "P6",
    what: "forgetting expired plain claims",
    run,
};

const DATABASE: &str = "p6";

/// Claims that have expired and are forgotten in one go.
const EXPIRED: u64 = 2_000_000;

/// How many claims are made before and after a rotation, to see what they cost without one.
const PROBES: u64 = 200;

/// What the rounds of the rotation saw besides its time.
#[derive(Default)]
struct Seen {
    /// The longest claim while the ring moved on, in milliseconds, by round.
    stalls: Vec<f64>,
    /// The longest claim before and after, in milliseconds.
    usual: Vec<f64>,
    /// Bytes of the emptied table, by round.
    bytes: Vec<f64>,
}

/// What the rounds of the DELETE left to do.
#[derive(Default)]
struct Left {
    /// The time of the DELETE and of a VACUUM after it, in milliseconds, by round.
    with_vacuum: Vec<f64>,
    /// Bytes of the table after the DELETE, by round.
    bytes: Vec<f64>,
}

fn run(server: &Server) -> anyhow::Result<Vec<Row>> {
    let database = server.database(DATABASE)?;
    database.execute(&[ONE_TABLE])?;
    database.store_plain_claims(3)?;
    let expired = server.options.rows(EXPIRED);
    let rounds = server.options.rounds();
    let mut seen = Seen::default();
    let mut left = Left::default();
    let [rotation, delete] = alternate(rounds, |side, round| {
        server
            .progress
            .doing(format!("P6 rotation: round {} of {rounds}", round + 1));
        if side == 0 {
            time_rotation(&database, expired, &mut seen)
        } else {
            time_delete(&database, expired, &mut left)
        }
    })?;
    let claims = format!("{expired} expired plain claims");
    Ok(vec![
        Row {
            id: "P6",
            what: format!("{claims} forgotten by rotation; against DELETE"),
            unit: "ms",
            ratio: Some(Series::median(ratios(&delete, &rotation))),
            ours: Series::median(rotation.clone()),
            baseline: Some(Series::median(delete)),
            target: Target::RatioAtLeast(20.0),
            note: None,
            detail: None,
        },
        Row {
            id: "P6",
            what: "the same; against DELETE and the VACUUM it asks for".to_owned(),
            unit: "ms",
            ratio: Some(Series::median(ratios(&left.with_vacuum, &rotation))),
            ours: Series::median(rotation),
            baseline: Some(Series::median(left.with_vacuum)),
            target: Target::None,
            note: None,
            detail: None,
        },
        Row {
            id: "P6",
            what: "longest claim of another session during a rotation".to_owned(),
            unit: "ms",
            ours: Series::largest(seen.stalls),
            baseline: None,
            ratio: None,
            target: Target::OursAtMost(250.0),
            note: Some(format!(
                "longest before and after: {:.1} ms",
                largest(&seen.usual)
            )),
            detail: None,
        },
        Row {
            id: "P6",
            what: "size of the table afterwards; against DELETE".to_owned(),
            unit: "bytes",
            ours: Series::largest(seen.bytes),
            baseline: Some(Series::median(left.bytes)),
            ratio: None,
            target: Target::OursAtMost(0.0),
            note: None,
            detail: None,
        },
    ])
}

/// Fills the table that the ring moves to next, and times the move in milliseconds.
fn time_rotation(database: &Database<'_>, expired: u64, seen: &mut Seen) -> anyhow::Result<f64> {
    let next = (database.number("SELECT current_table::bigint FROM inbox_claim_ring")? + 1) % 3;
    let table = format!("inbox_claim_{next}");
    fill(database, &table, expired)?;
    let mut session = database.session()?;
    // Loads the library and prepares its statements; nothing is due yet.
    session.batch_execute("SELECT * FROM inbox_housekeeping()")?;
    session.batch_execute("SET sequential_inbox.claim_retention = '1s'")?;
    // Now everything that was sealed before the filling is due.
    thread::sleep(Duration::from_secs(1));
    let bytes = session.prepare("SELECT pg_relation_size($1::text::regclass)")?;

    let prober = Prober::start(database)?;
    prober.wait_for_more(PROBES)?;
    let begin = Instant::now();
    // The size is asked for before the commit: afterwards the table takes new claims.
    session.batch_execute("BEGIN")?;
    rotate(&mut session)?;
    let left: i64 = session.query_one(&bytes, &[&table])?.get(0);
    session.batch_execute("COMMIT")?;
    let end = Instant::now();
    prober.wait_for_more(PROBES)?;
    let claims = prober.stop()?;

    let longest = |during: bool| {
        claims
            .iter()
            .filter(|claim| claim.overlaps(begin, end) == during)
            .map(|claim| milliseconds(claim.took))
            .fold(0.0, f64::max)
    };
    seen.stalls.push(longest(true));
    seen.usual.push(longest(false));
    seen.bytes.push(left as f64);
    Ok(milliseconds(end - begin))
}

/// Fills the hand-written table and times a DELETE of it all, in milliseconds.
fn time_delete(database: &Database<'_>, expired: u64, left: &mut Left) -> anyhow::Result<f64> {
    database.execute(&["TRUNCATE one_table"])?;
    fill(database, "one_table", expired)?;
    let mut session = database.session()?;
    let delete =
        session.prepare("DELETE FROM one_table WHERE claimed_at < now() - interval '1 hour'")?;
    let prober = Prober::start(database)?;
    prober.wait_for_more(PROBES)?;
    let begin = Instant::now();
    let deleted = session.execute(&delete, &[])?;
    let took = begin.elapsed();
    prober.stop()?;
    ensure!(
        deleted == expired,
        "{deleted} rows were deleted, not {expired}"
    );
    left.bytes
        .push(database.number("SELECT pg_relation_size('one_table')")? as f64);
    let begin = Instant::now();
    session.batch_execute("VACUUM one_table")?;
    left.with_vacuum.push(milliseconds(took + begin.elapsed()));
    Ok(milliseconds(took))
}

/// Stores claims of long ago, vacuumed as claims of that age are.
fn fill(database: &Database<'_>, table: &str, claims: u64) -> anyhow::Result<()> {
    database.execute(&[
        &format!(
            "INSERT INTO {table} (consumer, message_id, claimed_at)
             SELECT 'old', {id}, now() - interval '1 day'
             FROM generate_series(0, {claims}::bigint - 1) g
             ON CONFLICT DO NOTHING",
            id = spread_id(claims),
        ),
        &format!("VACUUM (ANALYZE) {table}"),
        "CHECKPOINT",
    ])
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// One claim of the prober.
struct Probe {
    begin: Instant,
    took: Duration,
}

impl Probe {
    fn overlaps(&self, begin: Instant, end: Instant) -> bool {
        self.begin <= end && self.begin + self.took >= begin
    }
}

/// A session that claims one message after the other, each in a transaction of its own.
struct Prober {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    thread: JoinHandle<Result<Vec<Probe>, postgres::Error>>,
}

impl Prober {
    fn start(database: &Database<'_>) -> anyhow::Result<Self> {
        // Across rounds no claim may be a duplicate: those are cheaper.
        let first = database.number("SELECT count(*) FROM inbox_claims WHERE id1 = 'prober'")?;
        let session = database.session()?;
        let stop = Arc::new(AtomicBool::new(false));
        let made = Arc::new(AtomicU64::new(0));
        let thread = thread::spawn({
            let (stop, made) = (Arc::clone(&stop), Arc::clone(&made));
            move || probe(session, first, &stop, &made)
        });
        Ok(Self { stop, made, thread })
    }

    /// Returns when this many more claims were made.
    fn wait_for_more(&self, claims: u64) -> anyhow::Result<()> {
        let enough = self.made.load(Ordering::Relaxed) + claims;
        while self.made.load(Ordering::Relaxed) < enough {
            ensure!(!self.thread.is_finished(), "the claiming session has ended");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn stop(self) -> anyhow::Result<Vec<Probe>> {
        self.stop.store(true, Ordering::Relaxed);
        let probes = self
            .thread
            .join()
            .map_err(|_| anyhow!("a thread panicked"))?;
        Ok(probes?)
    }
}

fn probe(
    mut session: Client,
    first: i64,
    stop: &AtomicBool,
    made: &AtomicU64,
) -> Result<Vec<Probe>, postgres::Error> {
    let claim = session.prepare("SELECT inbox_claim('prober', $1::text)")?;
    let mut probes = Vec::new();
    for number in first.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begin = Instant::now();
        session.query_one(&claim, &[&number.to_string()])?;
        probes.push(Probe {
            begin,
            took: begin.elapsed(),
        });
        made.fetch_add(1, Ordering::Relaxed);
    }
    Ok(probes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_overlaps_what_it_waited_for() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let probe = |begin, took| Probe {
            begin: at(begin),
            took: Duration::from_millis(took),
        };
        assert!(probe(5, 10).overlaps(at(10), at(20)));
        assert!(probe(12, 1).overlaps(at(10), at(20)));
        assert!(probe(19, 10).overlaps(at(10), at(20)));
        assert!(!probe(5, 1).overlaps(at(10), at(20)));
        assert!(!probe(21, 1).overlaps(at(10), at(20)));
    }
}

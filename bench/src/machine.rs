//! What the figures depend on besides the code: whether others use the machine, and how long its
//! disk takes to make a commit safe.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};

use crate::rounds::median;
use crate::server::Server;

/// How long the processors are watched before anything is started.
const WATCHED: Duration = Duration::from_secs(1);

/// Small commits whose median is taken.
const COMMITS: usize = 200;

/// Which part of the processors' time others use right now, from 0 to 1. `None` where the
/// operating system does not tell as Linux does.
pub(crate) fn busy_share() -> Option<f64> {
    let (busy, all) = processor_time(&fs::read_to_string("/proc/stat").ok()?)?;
    thread::sleep(WATCHED);
    let (busy_later, all_later) = processor_time(&fs::read_to_string("/proc/stat").ok()?)?;
    let passed = all_later.checked_sub(all).filter(|passed| *passed > 0)?;
    Some(busy_later.saturating_sub(busy) as f64 / passed as f64)
}

/// Ticks that the processors worked, and all ticks, since the machine started.
fn processor_time(stat: &str) -> Option<(u64, u64)> {
    // The first line sums up: user nice system idle iowait irq softirq steal …; the guests' time
    // behind these is part of user and nice.
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let all = ticks.iter().sum();
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    Some((all - idle, all))
}

/// The median time of a small write transaction, in milliseconds.
pub(crate) fn commit_ms(server: &Server) -> Result<f64, postgres::Error> {
    let mut session = Client::connect(&server.cluster.dsn(), NoTls)?;
    session.batch_execute("CREATE TABLE commits (number bigint)")?;
    let insert = session.prepare("INSERT INTO commits VALUES (1)")?;
    let mut times = Vec::with_capacity(COMMITS);
    for _ in 0..COMMITS {
        let begin = Instant::now();
        session.execute(&insert, &[])?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    session.batch_execute("DROP TABLE commits")?;
    Ok(median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_the_disk_is_not_work() {
        let stat = "cpu  10 1 20 300 40 5 6 7 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(processor_time(stat), Some((49, 389)));
        assert_eq!(processor_time("cpu  1 2\n"), None);
        assert_eq!(processor_time("intr 1 2 3\n"), None);
    }
}

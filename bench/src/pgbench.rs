//! Runs pgbench, PostgreSQL's own load generator: prepared statements, scripts of ours.

use std::fs;
use std::ops::RangeInclusive;

use anyhow::{Context, ensure};

use crate::rows::{Side, Throughput};
use crate::server::Server;

/// A pgbench expression for a new message id: 19 digits. One that occurs twice in a whole run is
/// less likely than one in a million.
pub(crate) const NEW_ID: &str = "random(1000000000000000000, 8999999999999999999)";

/// The same for ids that are drawn here.
pub(crate) const ID_RANGE: RangeInclusive<u64> =
    1_000_000_000_000_000_000..=8_999_999_999_999_999_999;

/// One side of a comparison, as pgbench runs it.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// The database it runs in.
    pub(crate) database: &'static str,
    /// The sessions' options, as libpq's `options` takes them; none when empty.
    pub(crate) session_options: &'static str,
    /// The script; running through it once is one transaction to pgbench.
    pub(crate) script: String,
    /// How many messages one pass through the script takes.
    pub(crate) messages: u32,
    /// How many sessions run the script at the same time.
    pub(crate) clients: u32,
}

/// How long a session is new: it loads the library, fills its caches and plans its statements.
/// Each run has new sessions, and what they do in this time is not measured; a consumer's session
/// lasts for hours.
const SETTLING: f64 = 0.5;

/// A transaction as pgbench logged it, in seconds.
#[derive(Debug, Clone, Copy)]
struct Done {
    /// When it ended, since some moment long ago.
    at: f64,
    took: f64,
}

impl Done {
    /// Reads a line of the log: `client_id transaction_no time script_no time_epoch time_us`. The
    /// first time is how long it took, in microseconds; the other two are when it ended.
    fn read(line: &str) -> Option<Self> {
        let fields: Vec<f64> = line
            .split(' ')
            .map_while(|field| field.parse().ok())
            .collect();
        Some(Self {
            at: fields.get(4)? + fields.get(5)? / 1e6,
            took: fields.get(2)? / 1e6,
        })
    }
}

/// The transactions of settled sessions, and since when they count.
fn settled(all: &[Done]) -> (f64, impl Iterator<Item = &Done>) {
    let begin = all
        .iter()
        .map(|done| done.at - done.took)
        .fold(f64::INFINITY, f64::min);
    let from = begin + SETTLING;
    (from, all.iter().filter(move |done| done.at > from))
}

/// Settled transactions a second.
fn per_second(all: &[Done]) -> f64 {
    let (from, counted) = settled(all);
    let (count, end) = counted.fold((0, from), |(count, end), done| {
        (count + 1, f64::max(end, done.at))
    });
    f64::from(count) / (end - from)
}

impl Side for Load {
    fn throughput(&self, server: &Server, seconds: u32) -> anyhow::Result<Throughput> {
        let all = self.run(server, seconds)?;
        Ok(Throughput {
            messages_per_second: per_second(&all) * f64::from(self.messages),
            messages: all.len() as u64 * u64::from(self.messages),
        })
    }
}

impl Load {
    /// Runs for a number of seconds and gives the latency of every transaction, in milliseconds.
    pub(crate) fn latencies_ms(&self, server: &Server, seconds: u32) -> anyhow::Result<Vec<f64>> {
        let all = self.run(server, seconds)?;
        let (_, counted) = settled(&all);
        Ok(counted.map(|done| done.took * 1e3).collect())
    }

    /// Runs for a number of seconds; every transaction.
    fn run(&self, server: &Server, seconds: u32) -> anyhow::Result<Vec<Done>> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let script = folder.path().join("script.sql");
        fs::write(&script, &self.script).context("writing a script")?;
        let script = script.display().to_string();
        let prefix = folder.path().join("transactions").display().to_string();
        let seconds = seconds.to_string();
        let clients = self.clients.to_string();
        let database = format!(
            "dbname={} options='{}'",
            self.database, self.session_options
        );
        server.cluster.run(
            "pgbench",
            [
                "--no-vacuum",
                "--protocol=prepared",
                "--time",
                &seconds,
                "--client",
                &clients,
                "--jobs",
                &clients,
                "--file",
                &script,
                "--log",
                "--log-prefix",
                &prefix,
                &database,
            ],
        )?;
        let mut all = Vec::new();
        for entry in fs::read_dir(folder.path()).context("looking for pgbench's log")? {
            let path = entry.context("looking for pgbench's log")?.path();
            if !path.to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let log =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            for line in log.lines() {
                let done = Done::read(line);
                all.push(done.with_context(|| format!("pgbench logged: {line}"))?);
            }
        }
        ensure!(
            settled(&all).1.next().is_some(),
            "pgbench logged no transaction, or none of a session that had settled"
        );
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_read() {
        let done = Done::read("0 199 2241 0 1175850568 995598").unwrap();
        assert_eq!(done.at, 1_175_850_568.995_598);
        assert_eq!(done.took, 0.002_241);
        assert!(Done::read("0 200 failed 0 1175850568 995598").is_none());
        assert!(Done::read("0 199 2241 0 1175850568").is_none());
    }

    #[test]
    fn what_a_new_session_does_is_not_measured() {
        let done = |at: f64, took: f64| Done { at, took };
        // One slow transaction while the session is new, then one every tenth of a second.
        let mut all = vec![done(100.4, 0.4)];
        all.extend((6..=15).map(|tenths| done(100.0 + f64::from(tenths) / 10.0, 0.1)));
        assert!(
            (per_second(&all) - 10.0).abs() < 0.01,
            "{}",
            per_second(&all)
        );
        assert_eq!(settled(&all).1.count(), 10);
    }
}

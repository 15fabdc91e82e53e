//! Runs pgbench, PostgreSQL's own load generator: prepared statements, scripts of ours.

use std::fs;
use std::io::Write;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::rounds::percentile;
use crate::server::Server;

/// A pgbench expression for a new message id: 19 digits. One that occurs twice in a whole run is
/// less likely than one in a million.
pub(crate) const NEW_ID: &str = "random(1000000000000000000, 8999999999999999999)";

/// One side of a comparison, as pgbench runs it.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// The database it runs in.
    pub(crate) database: &'static str,
    /// The script; running through it once is one transaction to pgbench.
    pub(crate) script: String,
    /// How many messages one pass through the script takes.
    pub(crate) messages: u32,
    /// How many sessions run the script at the same time.
    pub(crate) clients: u32,
}

/// What a run came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput {
    /// Messages a second over the whole run, connecting left out.
    pub(crate) messages_per_second: f64,
    /// Messages in all.
    pub(crate) messages: u64,
}

impl Load {
    /// Runs for a number of seconds and measures the throughput.
    pub(crate) fn throughput(&self, server: &Server, seconds: u32) -> anyhow::Result<Throughput> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let output = self.run(server, seconds, &folder, &[])?;
        let per_second = number_after(&output, "tps = ")?;
        let transactions = number_after(&output, "number of transactions actually processed: ")?;
        Ok(Throughput {
            messages_per_second: per_second * f64::from(self.messages),
            messages: transactions as u64 * u64::from(self.messages),
        })
    }

    /// Runs for a number of seconds and gives the latency, in milliseconds, that 95 % of the
    /// transactions do not exceed.
    pub(crate) fn p95_ms(&self, server: &Server, seconds: u32) -> anyhow::Result<f64> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let prefix = folder.path().join("transactions").display().to_string();
        self.run(
            server,
            seconds,
            &folder,
            &["--log", "--log-prefix", &prefix],
        )?;
        let mut latencies = Vec::new();
        for entry in fs::read_dir(folder.path()).context("looking for pgbench's log")? {
            let path = entry.context("looking for pgbench's log")?.path();
            if !path.to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let log =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            for line in log.lines() {
                // client_id transaction_no time …: the time is in microseconds.
                let time = line
                    .split(' ')
                    .nth(2)
                    .and_then(|time| time.parse::<f64>().ok());
                latencies.push(
                    time.with_context(|| format!("pgbench logged without a time: {line}"))? / 1e3,
                );
            }
        }
        ensure!(!latencies.is_empty(), "pgbench logged no transaction");
        Ok(percentile(&latencies, 0.95))
    }

    fn run(
        &self,
        server: &Server,
        seconds: u32,
        folder: &TempDir,
        more: &[&str],
    ) -> anyhow::Result<String> {
        let script = folder.path().join("script.sql");
        fs::File::create(&script)
            .and_then(|mut file| file.write_all(self.script.as_bytes()))
            .context("writing a script")?;
        let script = script.display().to_string();
        let seconds = seconds.to_string();
        let clients = self.clients.to_string();
        let mut arguments = vec!["--no-vacuum", "--protocol=prepared", "--time", &seconds];
        arguments.extend(["--client", &clients, "--jobs", &clients, "--file", &script]);
        arguments.extend(more);
        arguments.push(self.database);
        Ok(server.cluster.run("pgbench", arguments)?)
    }
}

/// The number that follows a label in pgbench's output.
fn number_after(output: &str, label: &str) -> anyhow::Result<f64> {
    output
        .split_once(label)
        .and_then(|(_, rest)| rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("pgbench said no \"{label}\":\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
transaction type: script.sql
number of transactions actually processed: 4711
number of failed transactions: 0 (0.000%)
latency average = 0.212 ms
tps = 942.353219 (without initial connection time)
";

    #[test]
    fn the_figures_are_found_in_the_output() {
        assert_eq!(number_after(OUTPUT, "tps = ").unwrap(), 942.353_219);
        let processed = "number of transactions actually processed: ";
        assert_eq!(number_after(OUTPUT, processed).unwrap(), 4711.0);
        assert!(number_after(OUTPUT, "no such label ").is_err());
    }
}

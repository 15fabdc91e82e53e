//! `chaos`: makes a run of the chaos test and tells what it found.
//!
//! Ends with 0 when nothing is wrong, with 1 when something is, and with 2 when the run could not be
//! made.

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::Parser;
use inbox_chaos::run::{Settings, run};
use tokio::signal::unix::{SignalKind, signal};

/// Kills consumers, sessions, servers and commits while messages are consumed, and checks afterwards
/// that each took effect once and in order.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// What everything follows from, but for the machine's own timing. Without it: any.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// For how long things are killed at least, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    duration: u64,

    /// How many consumer processes there are.
    #[arg(long, value_name = "N", default_value_t = 8)]
    consumers: usize,

    /// How many kills there are at least.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_kills: u64,

    /// How many deliveries there are at least.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_deliveries: u64,

    /// After how many seconds a run that has not reached these is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    limit: u64,

    /// With consumers that take messages without a claim: such a run must be found out.
    #[arg(long)]
    unclaimed: bool,
}

impl Arguments {
    fn settings(&self) -> Settings {
        Settings {
            seed: self
                .seed
                .unwrap_or_else(|| u64::from(rand::random::<u32>())),
            duration: Duration::from_secs(self.duration),
            consumers: self.consumers.max(1),
            min_kills: self.min_kills,
            min_deliveries: self.min_deliveries,
            limit: Duration::from_secs(self.limit.max(self.duration + 60)),
            is_unclaimed: self.unclaimed,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Arguments::parse().settings();
    println!(
        "seed {}: {} consumer processes, {} s of chaos at least",
        settings.seed,
        settings.consumers,
        settings.duration.as_secs()
    );
    let seed = settings.seed;
    let result = tokio::select! {
        result = run(settings) => result,
        result = interrupted() => match result {
            Ok(()) => Err(anyhow::anyhow!("interrupted")),
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(report) => {
            println!("{report}");
            if report.is_good() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("error: {error:#}\nseed {seed}");
            ExitCode::from(2)
        }
    }
}

/// Returns when somebody wants the run to end; everything is then removed.
async fn interrupted() -> Result<()> {
    let mut wishes = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let [interrupt, terminate, hangup] = &mut wishes;
    let wish = tokio::select! {
        wish = interrupt.recv() => wish,
        wish = terminate.recv() => wish,
        wish = hangup.recv() => wish,
    };
    if wish.is_none() {
        bail!("signals cannot be received");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}

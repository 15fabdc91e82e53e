//! What the caller can choose, and how large the measurements are.

use std::path::PathBuf;

use clap::Parser;

/// Measures sequential_inbox against hand-written SQL on a throwaway PostgreSQL server.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Measure only these rows, for example P1,P4
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// How many rounds each comparison has; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=101))]
    pub(crate) rounds: u32,

    /// How long one side of one round runs, in seconds: half of it before, half after the others
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) seconds: u32,

    /// Over how many connections the order workload at an offered rate is consumed
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=80))]
    pub(crate) connections: u32,

    /// Where the result is written
    #[arg(long, value_name = "PATH", default_value = "target/bench.json")]
    pub(crate) json: PathBuf,

    /// Where the result is written as the tables of the documentation
    #[arg(long, value_name = "PATH", default_value = "target/bench.md")]
    pub(crate) markdown: PathBuf,

    /// Where the picture of latency over offered rate is written
    #[arg(long, value_name = "PATH", default_value = "target/latency.svg")]
    pub(crate) svg: PathBuf,

    /// Put the figures and the picture into README.md and docs/, too
    #[arg(long, conflicts_with_all = ["only", "quick", "no_fsync"])]
    pub(crate) document: bool,

    /// Try everything out in short: one round of two seconds each and a hundredth of the stored
    /// rows. The figures say little
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    pub(crate) quick: bool,

    /// Do not wait for the disk at commit, so that the processor's part of the cost stands out.
    /// The targets are meant with it
    #[arg(long)]
    pub(crate) no_fsync: bool,
}

impl Options {
    /// How many rounds each comparison has.
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// How many seconds one side of one round runs.
    pub(crate) fn seconds(&self) -> u32 {
        if self.quick { 2 } else { self.seconds }
    }

    /// How many seconds one side runs at a time, twice in a round.
    pub(crate) fn slice_seconds(&self) -> u32 {
        self.seconds().div_ceil(2)
    }

    /// A number of stored rows, made smaller for a quick run.
    pub(crate) fn rows(&self, full: u64) -> u64 {
        if self.quick { full / 100 } else { full }
    }
}

//! `make bench`: measures the extension against hand-written SQL, on a throwaway server with fsync
//! on.
//!
//! Every comparison runs both sides on the same server in the same run, in rounds that alternate
//! which side goes first, and judges the median of the rounds' ratios: a machine that slows down
//! for a while slows both. The absolute figures are for orientation only.
//!
//! A missed target is told in the table and does not change the exit status: a busy machine is no
//! defect. What fails is a measurement that did not do what it claims to have measured.

mod machine;
mod options;
mod pgbench;
mod report;
mod rounds;
mod rows;
mod server;

use anyhow::Context;
use clap::Parser;

use crate::options::Options;
use crate::report::Report;
use crate::server::Server;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let chosen = rows::chosen(&options.only)?;
    let busy = machine::busy_share();
    let server = Server::start(&options)?;
    let mut report = Report::new(&server, busy)?;
    for benchmark in chosen {
        let rows = (benchmark.run)(&server)
            .with_context(|| format!("{} ({})", benchmark.id, benchmark.what))?;
        for row in rows {
            server.progress.say(&row.to_string());
            report.rows.push(row);
        }
    }
    server.progress.finish();
    println!("{report}");
    report.write(&options.json)?;
    println!("Every round of it: {}", options.json.display());
    Ok(())
}

//! `make bench`: measures the extension against hand-written SQL, on a throwaway server with fsync
//! on.
//!
//! Every comparison runs both sides on the same server in the same run, in rounds that alternate
//! which side goes first, and judges the median of the rounds' ratios: a machine that slows down
//! for a while slows both. The absolute figures are for orientation only.
//!
//! A missed target is told in the table and does not change the exit status: a busy machine is no
//! defect. What fails is a measurement that did not do what it claims to have measured; the other
//! rows are measured and written all the same.

mod document;
mod machine;
mod open_loop;
mod options;
mod orders;
mod pgbench;
mod picture;
mod report;
mod rounds;
mod rows;
mod server;

use std::path::Path;

use anyhow::ensure;
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
    let mut failed = Vec::new();
    for benchmark in chosen {
        match (benchmark.run)(&server) {
            Ok(rows) => {
                for row in rows {
                    server.progress.say(&row.to_string());
                    report.rows.push(row);
                }
            }
            Err(error) => {
                let failure = format!("{} ({}): {error:#}", benchmark.id, benchmark.what);
                server.progress.say(&failure);
                failed.push(failure);
            }
        }
    }
    server.progress.finish();
    println!("{report}");
    report.write(&options.json)?;
    document::write(&report, &options.markdown)?;
    println!(
        "Every round of it: {}; as tables: {}",
        options.json.display(),
        options.markdown.display()
    );
    ensure!(failed.is_empty(), "not measured: {}", failed.join("; "));
    if options.document {
        document::update(&report, &options.svg, Path::new("."))?;
    }
    Ok(())
}

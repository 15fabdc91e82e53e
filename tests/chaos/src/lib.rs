//! The chaos test: real consumer processes between a real broker and a real server, all of which are
//! killed again and again, and a check of every single message afterwards (G1, G3, G4, G6, G7, G8).
//! What is done and what is checked: docs/chaos.md.

pub mod checker;
pub mod consumer;
pub mod crew;
pub mod figures;
pub mod ledger;
pub mod plan;
pub mod publisher;
pub mod run;
pub mod tally;
pub mod workload;

use std::time::Duration;

/// How long claims and instances are kept: longer than any run, so that no copy is ever a new
/// message.
pub const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

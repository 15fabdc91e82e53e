//! Claims of both kinds where it takes real sessions, many of them, or a look from outside: G1 to
//! G4, G10, G11. What can be stepped through is in `isolation/specs`.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "claims/batch.rs"]
mod batch;
#[path = "claims/errors.rs"]
mod errors;
#[path = "claims/never_waiting.rs"]
mod never_waiting;
#[path = "claims/storm.rs"]
mod storm;
#[path = "claims/takeover.rs"]
mod takeover;

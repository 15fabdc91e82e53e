//! What survives the server: its crashes, a dump and its restore, a standby and its promotion (G3,
//! G11, G13), and what its environment must not change.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "server/backtrace.rs"]
mod backtrace;
#[path = "server/crash.rs"]
mod crash;
#[path = "server/dump.rs"]
mod dump;
#[path = "server/standby.rs"]
mod standby;

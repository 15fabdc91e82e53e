//! Years of operation in minutes: dumps in every format, failover under load, logical replication,
//! crashes, installing and dropping, and what a session's memory does meanwhile (G3, G8, G9, G13).
//! What docs/replication.md tells is done here as it tells it.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "operation/backend.rs"]
mod backend;
#[path = "operation/crash.rs"]
mod crash;
#[path = "operation/dump.rs"]
mod dump;
#[path = "operation/lifecycle.rs"]
mod lifecycle;
#[path = "operation/load.rs"]
mod load;
#[path = "operation/logical.rs"]
mod logical;
#[path = "operation/memory.rs"]
mod memory;
#[path = "operation/standby.rs"]
mod standby;

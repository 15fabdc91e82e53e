//! The ring of claim tables against a real server: rotations between duplicates, the gate, old
//! snapshots, and what a dump, a crash and a failover leave of it (G3, G9, G10, G13).
//!
//! The protocol itself is checked in every schedule by `tests/model`; here is that the extension
//! takes its steps with the locks and snapshots of a real server.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "ring/gate.rs"]
mod gate;
#[path = "ring/rotation.rs"]
mod rotation;
#[path = "ring/snapshots.rs"]
mod snapshots;
#[path = "ring/survival.rs"]
mod survival;

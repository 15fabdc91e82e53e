//! The consumer against a real RabbitMQ and a real PostgreSQL: when it acknowledges (G1, G4), what
//! becomes of what always fails (G5, G8), servers that go away (G3), shutdown, and order (G6, G7).
//!
//! Every test has a queue and a database of its own, on servers of the whole program.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test may fail by panicking, its helpers too"
)]

mod failing;
mod program;
mod refused;
mod servers;
mod setting;
mod stopping;
mod streams;

//! Level 2: a consumer that does what correct use asks for, around a handler (G1 to G8).
//!
//! What is decided stands in pure modules (`settings`, `batch`, `error`, `delivery`); the course
//! of a message is written once, in `methods`, for both drivers.

pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod delivery;
pub(crate) mod error;
pub(crate) mod methods;
pub(crate) mod outcome;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod telemetry;

#[cfg(feature = "sync")]
pub(crate) mod blocking;
#[cfg(feature = "tokio")]
pub(crate) mod nonblocking;

//! A complete consumer of RabbitMQ: every message takes effect once, and in order where it belongs
//! to a sequence (G1, G3, G4, G6, G8). Run it, or copy it into a service.
//!
//! [`run`] owns one connection to the broker and one session of the database, and does what a
//! consumer has to do around a handler:
//!
//! - It takes up to [`Options::prefetch`] deliveries at a time and handles one after the other.
//!   For more at once, run several.
//! - It acknowledges a delivery after the commit and never before. A crash in between costs a
//!   redelivery, which the inbox answers as a duplicate.
//! - Whatever failed, or is not known to be committed, it gives back after a pause, and the broker
//!   delivers it again.
//! - A message whose handler fails at its [`Options::give_up_after`]th delivery is recorded with
//!   `inbox_fail` and then acknowledged: a dead letter of the inbox, with its payload and its error,
//!   which `inbox_retry` brings back.
//! - What the inbox hands out later (messages that had to wait, that failed and are due again, that
//!   an operator retries) it handles too.
//! - It connects again to whichever of the two went away, with growing pauses.
//! - At a shutdown it finishes the message in hand; the broker delivers the rest to somebody else.
//!
//! ```no_run
//! use rabbitmq_consumer::{Options, run};
//! use sequential_inbox_client::{Consumer, Shutdown};
//!
//! # async fn example() -> Result<(), rabbitmq_consumer::Error> {
//! let options = Options::new("amqp://localhost/%2f", "orders", "host=/var/run/postgresql");
//! let shutdown = Shutdown::new();
//! let tally = run(options, Consumer::sequence("orders"), shutdown, async |transaction, delivery| {
//!     let sql = "INSERT INTO shipment (message_id) VALUES ($1)";
//!     transaction.execute(sql, &[&delivery.message.idempotence_id]).await?;
//!     Ok(())
//! })
//! .await?;
//! println!("{} messages applied", tally.applied);
//! # Ok(())
//! # }
//! ```
//!
//! # Who counts the deliveries
//!
//! RabbitMQ's flag `redelivered` says that there was a delivery before, not how many. A quorum queue
//! counts them in the header `x-delivery-count`, for all consumers together and whatever becomes of
//! them, so [`declare`] makes one. It counts every return: also that of a message that lay prefetched
//! in a consumer that stopped. Nobody gives up a message for that alone: its handler has to fail as
//! well.
//!
//! The queue has a limit of its own, [`Options::delivery_limit`], far above. Beyond it the broker
//! itself puts the message into the queue `NAME.dead`. That is for what no consumer can record: a
//! message that kills each process that handles it. Messages that the inbox cannot take, without an
//! id or a type say, go there at once.

mod broker;
mod database;
mod error;
mod message;
mod options;
mod run;
mod tally;

pub use broker::{dead_queue, declare};
pub use error::Error;
pub use lapin;
pub use message::{Unreadable, properties, read};
pub use options::Options;
pub use run::run;
pub use tally::Tally;

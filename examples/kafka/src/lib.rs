//! A complete consumer of Kafka: every message takes effect once, and in order where it belongs to a
//! sequence (G1, G3, G4, G6, G8). Copy it into a service.
//!
//! Kafka acknowledges no single message. A group commits, for each partition, the offset up to which
//! it is done, and after a crash or a rebalance everything from there on comes again. [`run`]
//! therefore
//!
//! - stores an offset after the commit of the database and never before, and commits the stored
//!   offsets now and then: what comes again in between is answered by the inbox as a duplicate;
//! - handles the messages of a partition in their order. One that fails stops its partition, and no
//!   other: the partition is paused, moved back to the message, and goes on after a while;
//! - gives a message up after [`Options::give_up_after`] failures, so that its partition goes on: a
//!   dead letter of the inbox, with its payload and its error, which `inbox_retry` brings back;
//! - handles what the inbox hands out later;
//! - opens the session of the database anew when it is lost; librdkafka looks after the brokers;
//! - finishes the message in hand at a shutdown, and commits the offsets.
//!
//! ```no_run
//! use kafka_consumer::{Options, run};
//! use sequential_inbox_client::{Consumer, Shutdown};
//!
//! # async fn example() -> Result<(), kafka_consumer::Error> {
//! let options = Options::new("localhost:9092", "billing", ["orders"], "host=/var/run/postgresql");
//! let shutdown = Shutdown::new();
//! let tally = run(options, Consumer::plain("billing"), shutdown, async |transaction, delivery| {
//!     let sql = "UPDATE account SET balance = balance - 10 WHERE id = $1";
//!     transaction.execute(sql, &[&delivery.message.context_id]).await?;
//!     Ok(())
//! })
//! .await?;
//! println!("{} messages applied", tally.applied);
//! # Ok(())
//! # }
//! ```
//!
//! # Who counts the failures
//!
//! Kafka counts no deliveries. [`run`] counts the failures of the message at which a partition
//! stands, in memory: after a restart or a rebalance the count begins again. Where that is not
//! enough, let the consumer record each failure at once
//! ([`Consumer::reschedule_failures`](sequential_inbox_client::Consumer::reschedule_failures)): the
//! inbox then counts, and the partition goes on at once.

mod database;
mod error;
mod message;
mod offsets;
mod options;
mod run;
mod tally;

pub use error::Error;
pub use message::{Unreadable, read};
pub use options::Options;
pub use rdkafka;
pub use run::run;
pub use tally::Tally;

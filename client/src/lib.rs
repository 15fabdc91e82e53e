//! Consume at-least-once messages so that each takes effect exactly once, and in order where that
//! is asked for: the client of the PostgreSQL extension `sequential_inbox`.
//!
//! The claim, the order and your own writes share one transaction: yours. This crate is thin. It
//! calls the extension's functions inside the transaction that you opened, on the connection that
//! you chose, and owns neither connections nor threads.
//!
//! # A consumer
//!
//! [`Consumer`] does all that correct use asks for around a handler: the transaction, the claim,
//! the order, the commit, retries, what was released, and failures.
//!
//! ```no_run
//! use sequential_inbox_client::{Consumer, Message, Outcome};
//!
//! # async fn handle(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let consumer = Consumer::sequence("orders");
//! let message = Message::new("order.shipped", "evt-9").context("order-4711").payload(b"{}".as_slice());
//!
//! let outcome = consumer
//!     .process(&mut client, &message, async |transaction, delivery| {
//!         let sql = "INSERT INTO shipment (message_id) VALUES ($1)";
//!         transaction.execute(sql, &[&delivery.message.idempotence_id]).await?;
//!         Ok(())
//!     })
//!     .await?; // An error: do not acknowledge, the broker redelivers.
//! match outcome {
//!     Outcome::Direct => println!("not sequenced: handle it here, then acknowledge"),
//!     outcome => println!("{}: acknowledge", outcome.as_str()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The rest of this page is about the level below it, the functions themselves.
//!
//! # A message once
//!
//! ```no_run
//! use sequential_inbox_client::InboxExt;
//!
//! # async fn handle(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! if transaction.inbox().claim("billing", "evt-7").await?.is_claimed() {
//!     let sql = "UPDATE account SET balance = balance - 10 WHERE id = 1";
//!     transaction.execute(sql, &[]).await?;
//! }
//! transaction.commit().await?; // Acknowledge to the broker only after this.
//! # Ok(())
//! # }
//! ```
//!
//! A second delivery of `evt-7`, at the same moment or a week later, gets [`Claim::Duplicate`]:
//! it waits while the first is in flight and never does the work twice. When the first rolls back
//! or its process dies, the second wins.
//!
//! # Messages in order
//!
//! ```no_run
//! use sequential_inbox_client::{Decision, InboxExt, Message};
//!
//! # async fn handle(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let message = Message::new("order.shipped", "evt-9").context("order-4711").payload(b"{}".as_slice());
//!
//! let transaction = client.transaction().await?;
//! let received = transaction.inbox().receive(&message).await?;
//! if received.decision == Decision::Process {
//!     // Do the work with `transaction`.
//! }
//! transaction.commit().await?; // Acknowledge to the broker only after this.
//!
//! // What had to wait for this message can be handled now, one transaction a message.
//! while received.decision == Decision::Process {
//!     let transaction = client.transaction().await?;
//!     let Some(released) = transaction.inbox().next(received.sequence_instance_id).await? else {
//!         break;
//!     };
//!     // Do the work of `released` with `transaction`.
//!     transaction.commit().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Only inside a transaction
//!
//! The methods are on a transaction and not on a connection, since a claim that commits by itself
//! before the work is done would turn a crash into a lost message. Answers that stop short of an
//! error ([`Claim::Duplicate`], [`Decision::Buffered`] and so on) leave the transaction usable.
//!
//! # The extension's schema
//!
//! By default the functions are found through the session's `search_path`. With
//! [`Inbox::in_schema`] every call names the schema; do that where other roles can create objects
//! in a schema of that `search_path`.
//!
//! # One round trip, and PgBouncer
//!
//! Each call is one round trip: an unnamed statement whose parameter types travel with it. Nothing
//! is prepared by name and nothing outlives the transaction, so that a connection pool in
//! transaction mode, such as PgBouncer of any version, can stand in between.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `tokio` (default) | [`Consumer`], [`Inbox`] and [`InboxExt`], on tokio-postgres |
//! | `sync` | the module `sync`: the same on the blocking `postgres` crate |
//! | `uuid` | message ids as `uuid::Uuid` |
//! | `metrics` | counters and a histogram of what consumers do, through the crate `metrics` |

#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(any(feature = "tokio", feature = "sync")))]
compile_error!("enable the feature `tokio`, `sync` or both: without a driver there is no client");

mod claim;
mod consumer;
mod declaration;
mod error;
mod failure;
mod message;
mod methods;
mod param;
mod payload;
mod record;
mod schema;
mod statement;
mod text_enum;

#[cfg(feature = "tokio")]
mod nonblocking;

#[cfg(feature = "sync")]
#[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
pub mod sync;

pub use crate::{
    claim::{Claim, TryClaim},
    consumer::{
        delivery::Delivery,
        error::{HandlerError, ProcessError},
        outcome::{BatchOutcomes, Outcome, Swept},
        shutdown::Shutdown,
    },
    declaration::{Condition, MessageType, OnFailure, Ordering, Sequence},
    error::Error,
    failure::Failure,
    message::{Decision, Message, Received, Released},
    payload::Json,
    record::{Access, Housekeeping, Kind, MessageState, Record},
    schema::Schema,
    text_enum::UnknownWord,
};
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub use crate::{
    consumer::nonblocking::{Consumer, Wakeups},
    nonblocking::{Inbox, InboxExt},
};

/// SQLSTATE codes, as [`Error::sqlstate`] gives them.
pub use tokio_postgres::error::SqlState;

/// Isolation levels, as `Consumer::isolation_level` takes them.
pub use tokio_postgres::IsolationLevel;

/// The examples of the README, compiled with the doc tests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;

//! What the inbox knows of a message, and what a round of housekeeping did (G8, G9).

use std::time::SystemTime;

use serde_json::Value;

use crate::text_enum::text_enum;

text_enum! {
    /// Which of the two claim spaces a record is of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Kind {
        /// A plain consumer and a message id.
        Consumer = "consumer",
        /// A message type and an idempotence id of a sequence.
        Sequence = "sequence",
    }
}

text_enum! {
    /// The state of a recorded message.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum MessageState {
        /// Its release condition does not hold yet.
        Waiting = "WAITING",
        /// It may be handled now: [`Inbox::next`](crate::Inbox::next) hands it out.
        Ready = "READY",
        /// It was handled and the transaction committed.
        Processed = "PROCESSED",
        /// It failed; a dead letter unless it is due to be tried again.
        Failed = "FAILED",
        /// An operator gave it up; it counts as processed.
        Skipped = "SKIPPED",
    }
}

/// What the inbox knows of one message, from [`Inbox::lookup`](crate::Inbox::lookup).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The claim space.
    pub kind: Kind,
    /// When it was claimed, by the database's clock; `None` when there is no claim.
    pub claimed_at: Option<SystemTime>,
    /// What was added with [`Inbox::annotate`](crate::Inbox::annotate).
    pub attributes: Option<Value>,
    /// The sequence instance it belongs to.
    pub sequence_instance_id: Option<i64>,
    /// The message's record, where there is one.
    pub message_id: Option<i64>,
    /// The state of the message's record.
    pub state: Option<MessageState>,
    /// How often it failed.
    pub attempts: Option<i32>,
    /// The error of the last failure.
    pub last_error: Option<String>,
}

/// What one batch of [`Inbox::housekeeping`](crate::Inbox::housekeeping) did.
#[must_use = "more says whether to call again"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Housekeeping {
    /// Complete instances that were closed.
    pub closed: i64,
    /// Unfinished instances past their retention that were expired.
    pub expired: i64,
    /// Closed and expired instances that were removed.
    pub removed: i64,
    /// Whether the ring of plain claims moved on.
    pub rotated: bool,
    /// Whether there is more to do: call again in a new transaction.
    pub more: bool,
}

text_enum! {
    /// What [`Inbox::grant`](crate::Inbox::grant) lets a role do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Access {
        /// Claim, receive, next, fail, annotate, look up, and the instance function.
        Consumer = "consumer",
        /// All of that, and declaring, dropping, releasing, the operator's calls and housekeeping.
        Operator = "operator",
        /// Reading the views, lookup and statistics.
        Monitor = "monitor",
    }
}

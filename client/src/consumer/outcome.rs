//! What became of a message, told only after the commit (G4).

use std::time::Duration;

use crate::ProcessError;

/// What became of a message. It is told after the commit and never before, so every outcome means:
/// acknowledge the message to the broker.
///
/// Only [`Direct`](Self::Direct) asks for something first.
#[must_use = "the outcome says what to do with the message"]
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The handler ran and its transaction is committed: what the handler returned.
    Applied(T),
    /// It took effect earlier, or another session was faster. The handler's writes of this
    /// delivery, if there were any, are rolled back.
    Duplicate,
    /// It has to wait for others. Its payload is stored, and it will be handed out when its time
    /// has come: by a drain or by a sweep.
    Buffered,
    /// It can never be handled and is recorded as failed.
    #[non_exhaustive]
    Rejected {
        /// Why.
        reason: Option<String>,
    },
    /// It has no context id and so no place in the sequence. Nothing is recorded and the handler
    /// did not run: handle it outside of the inbox, then acknowledge.
    Direct,
    /// The handler failed. All it wrote is rolled back, the failure is recorded, and a sweep will
    /// hand the message out again after that time.
    #[non_exhaustive]
    Rescheduled {
        /// How long until it is due, counted from the recording, by the database's clock.
        after: Duration,
        /// What went wrong.
        error: ProcessError,
    },
    /// The handler failed and the message is given up. All it wrote is rolled back, and the
    /// failure is recorded: a dead letter, until an operator retries it or somebody resends it.
    #[non_exhaustive]
    DeadLettered {
        /// What went wrong.
        error: ProcessError,
    },
}

impl<T> Outcome<T> {
    /// What the handler returned, if it was applied.
    pub fn applied(self) -> Option<T> {
        match self {
            Self::Applied(value) => Some(value),
            _ => None,
        }
    }

    /// Whether the handler ran for this delivery and was committed.
    #[must_use]
    pub const fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_))
    }

    /// The outcome in one word, as it stands in events and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Applied(_) => "applied",
            Self::Duplicate => "duplicate",
            Self::Buffered => "buffered",
            Self::Direct => "direct",
            Self::Rescheduled { .. } => "retryable_failure",
            Self::Rejected { .. } | Self::DeadLettered { .. } => "terminal_failure",
        }
    }
}

/// The outcomes of a batch, in the order of its messages.
pub type BatchOutcomes<T> = Vec<Result<Outcome<T>, ProcessError>>;

/// What a drain or a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Messages that were handled and committed.
    pub applied: u64,
    /// Failures that were recorded: each message is due again later, or a dead letter.
    pub failed: u64,
}

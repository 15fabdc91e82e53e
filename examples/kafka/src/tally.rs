//! What a consumer did, counted.

use sequential_inbox_client::{Outcome, Swept};

/// What became of the deliveries of one [`run`](crate::run).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Deliveries that came in.
    pub deliveries: u64,
    /// Handled and committed.
    pub applied: u64,
    /// Committed by an earlier delivery, or by another session.
    pub duplicates: u64,
    /// Stored until their turn comes.
    pub buffered: u64,
    /// Recorded as failed, since they can never be handled.
    pub rejected: u64,
    /// Failed, and due again by themselves.
    pub rescheduled: u64,
    /// Failed and given up.
    pub dead_lettered: u64,
    /// Not committed: their partition was moved back to them.
    pub moved_back: u64,
    /// Recorded as dead letters of their topic, since the inbox cannot take them as messages.
    pub unreadable: u64,
    /// Handed out by the inbox beside the deliveries, handled and committed.
    pub swept: u64,
    /// Handed out by the inbox beside the deliveries, and failed.
    pub swept_failed: u64,
    /// Sessions of the database, the first included.
    pub database_sessions: u64,
}

impl Tally {
    /// Counts what was committed.
    pub(crate) fn count<T>(&mut self, outcome: &Outcome<T>) {
        let count = match outcome {
            Outcome::Applied(_) => &mut self.applied,
            Outcome::Duplicate => &mut self.duplicates,
            Outcome::Buffered => &mut self.buffered,
            Outcome::Rescheduled { .. } => &mut self.rescheduled,
            Outcome::DeadLettered { .. } => &mut self.dead_lettered,
            _ => &mut self.rejected,
        };
        *count += 1;
    }

    /// Counts what a sweep did.
    pub(crate) fn count_sweep(&mut self, swept: &Swept) {
        self.swept += swept.applied;
        self.swept_failed += swept.failed;
    }
}

//! What the consumers count while they work.

use std::sync::{Mutex, PoisonError};

/// The counts of one replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handlers whose transaction committed.
    pub applied: u64,
    /// Deliveries that were answered with `duplicate` (or `false`), and committed without effect.
    pub duplicates: u64,
    /// Deliveries whose call was seen waiting for a lock, by the session that had got the same
    /// message, while that session's transaction was still open.
    pub waited: u64,
    /// Deliveries that waited for the same message in another session and got it themselves, since
    /// that session's handler failed.
    pub took_over: u64,
    /// Handlers that failed on their first try, lost connections included.
    pub failed: u64,
    /// Connections that were terminated in the middle of a transaction.
    pub killed: u64,
    /// Messages that were stored until their turn came.
    pub buffered: u64,
    /// Messages that were stored, handed out in their turn, and handled.
    pub released: u64,
    /// Messages that are stored now, or wait to be tried again.
    pub waiting: u64,
    /// The most that ever were.
    pub most_waiting: u64,
}

/// Counts that several tasks add to.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Counts>);

impl Tally {
    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A message was stored.
    pub fn buffered(&self) {
        self.count(|counts| {
            counts.buffered += 1;
            counts.waiting += 1;
            counts.most_waiting = counts.most_waiting.max(counts.waiting);
        });
    }

    /// A stored message waits no more. Another session may have seen it released before the one
    /// that stored it heard of its own commit: hence no number below zero.
    pub fn unbuffered(&self) {
        self.count(|counts| counts.waiting = counts.waiting.saturating_sub(1));
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_ever_waited_is_kept() {
        let tally = Tally::default();
        for _ in 0..3 {
            tally.buffered();
        }
        tally.unbuffered();
        tally.buffered();
        tally.unbuffered();
        let counts = tally.counts();
        assert_eq!(
            (counts.buffered, counts.waiting, counts.most_waiting),
            (4, 2, 3)
        );
    }
}

//! What consumer processes have done, counted so that SIGKILL takes nothing back: each process
//! appends one byte an event to a file of its own, outside of any transaction, at the moment of the
//! event.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Something that a consumer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Deed {
    /// The broker's delivery was taken up, the first of its message as far as the broker knows.
    Delivered = b'd',
    /// The broker's delivery was taken up, and the broker says that it has delivered the message
    /// before.
    Redelivered = b'r',
    /// The handler was given a message that the inbox handed out.
    HandedOut = b'h',
    /// A message was applied.
    Applied = b'a',
    /// A message was a duplicate.
    Duplicate = b'u',
    /// A message was stored until its turn.
    Buffered = b'b',
    /// A transaction failed, or it is not known whether it was committed.
    Failed = b'f',
    /// A message was given up or rejected.
    GivenUp = b'g',
}

impl Deed {
    fn of_outcome(outcome: &str) -> Option<Self> {
        Some(match outcome {
            "applied" => Self::Applied,
            "duplicate" => Self::Duplicate,
            "buffered" => Self::Buffered,
            "retryable_failure" => Self::Failed,
            "terminal_failure" => Self::GivenUp,
            _ => return None,
        })
    }
}

/// The file of one process.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Opens the file, which is made if need be.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Notes a deed; once this returns it survives the process.
    pub fn note(&self, deed: Deed) {
        // A process that cannot count goes on consuming: the run then misses its number of
        // deliveries, and that is told.
        let _ = (&self.0).write_all(&[deed as u8]);
    }
}

/// Notes what the client and the consumer tell in their events.
#[derive(Debug)]
pub struct Listener(pub &'static Journal);

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Notes(self.0));
    }
}

struct Notes<'a>(&'a Journal);

impl Visit for Notes<'_> {
    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "redelivered" {
            self.0.note(if value {
                Deed::Redelivered
            } else {
                Deed::Delivered
            });
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "outcome"
            && let Some(deed) = Deed::of_outcome(value)
        {
            self.0.note(deed);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

/// The deeds of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Deliveries of the broker that were taken up.
    pub deliveries: u64,
    /// Those of them that the broker had delivered before.
    pub redelivered: u64,
    /// Messages that the inbox handed out to a handler.
    pub handed_out: u64,
    /// Messages that a process knows to be applied; one that died at the commit does not.
    pub applied: u64,
    /// Answers `duplicate`.
    pub duplicates: u64,
    /// Messages that were stored.
    pub buffered: u64,
    /// Failed transactions.
    pub failures: u64,
    /// Messages that were given up.
    pub given_up: u64,
}

impl Tally {
    /// Counts what is in the folder's files.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut tally = Self::default();
        for entry in fs::read_dir(folder)? {
            for byte in fs::read(entry?.path())? {
                tally.count(byte);
            }
        }
        Ok(tally)
    }

    fn count(&mut self, byte: u8) {
        let deed = |deed: Deed| deed as u8 == byte;
        self.redelivered += u64::from(deed(Deed::Redelivered));
        self.deliveries += u64::from(deed(Deed::Delivered) || deed(Deed::Redelivered));
        self.handed_out += u64::from(deed(Deed::HandedOut));
        self.applied += u64::from(deed(Deed::Applied));
        self.duplicates += u64::from(deed(Deed::Duplicate));
        self.buffered += u64::from(deed(Deed::Buffered));
        self.failures += u64::from(deed(Deed::Failed));
        self.given_up += u64::from(deed(Deed::GivenUp));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn deeds_of_all_processes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for process in ["1", "2"] {
            let journal = Journal::open(&folder.path().join(process)).unwrap();
            for deed in [
                Deed::Delivered,
                Deed::Redelivered,
                Deed::HandedOut,
                Deed::Applied,
                Deed::Duplicate,
                Deed::Buffered,
                Deed::Failed,
                Deed::GivenUp,
            ] {
                journal.note(deed);
            }
        }
        let expected = Tally {
            deliveries: 4,
            redelivered: 2,
            handed_out: 2,
            applied: 2,
            duplicates: 2,
            buffered: 2,
            failures: 2,
            given_up: 2,
        };
        assert_eq!(Tally::read(folder.path()).unwrap(), expected);
    }

    #[test]
    fn events_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(&folder.path().join("1")).unwrap();
        let journal: &'static Journal = Box::leak(Box::new(journal));
        let subscriber = tracing_subscriber::registry().with(Listener(journal));
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(redelivered = false, "taken up");
            tracing::debug!(redelivered = true, "taken up");
            tracing::warn!(outcome = "retryable_failure", "failed");
            tracing::debug!(outcome = "applied", "done");
            tracing::debug!(outcome = "direct", "not counted");
        });
        let tally = Tally::read(folder.path()).unwrap();
        assert_eq!((tally.deliveries, tally.redelivered), (2, 1));
        assert_eq!((tally.failures, tally.applied), (1, 1));
    }
}

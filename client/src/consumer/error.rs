//! Why a message was not taken care of, and what that says about its transaction (G3, G4).

use std::{any::Any, error, fmt, time::Duration};

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::{Error, error::is_retryable_code};

/// What a handler may fail with: `?` turns any error into it.
pub type HandlerError = Box<dyn error::Error + Send + Sync>;

/// Why a message was not taken care of. Every error means: do not acknowledge the message.
///
/// Of every variant but [`CommitUnknown`](Self::CommitUnknown), nothing is committed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProcessError {
    /// The transaction could not be opened or the message not be taken: the handler did not run.
    /// The connection was lost, a wait timed out, or the call itself is wrong.
    Inbox(Error),
    /// The handler returned an error.
    Handler(HandlerError),
    /// The handler panicked, with that text.
    Panicked(String),
    /// The handler took longer than it may.
    TimedOut(Duration),
    /// The server refused to commit what the handler wrote: a deferred constraint, a serialization
    /// failure, or a failed statement whose error the handler did not return.
    Commit(Error),
    /// The connection was lost at the commit. Whether it was committed is not known, and only the
    /// redelivery can tell: it is a duplicate, or it is applied. Do not acknowledge, and record
    /// nothing.
    CommitUnknown(Error),
}

impl ProcessError {
    /// What a failed COMMIT means. An ERROR of the server: it has rolled back. Anything else, such
    /// as a lost connection or a server that ends the session, says nothing about the commit.
    pub(crate) fn at_commit(source: tokio_postgres::Error) -> Self {
        let is_refusal = source.as_db_error().is_some_and(|report| {
            report.parsed_severity() == Some(Severity::Error) && !ends_session(report.code())
        });
        let error = Error::database("COMMIT", source);
        if is_refusal {
            Self::Commit(error)
        } else {
            Self::CommitUnknown(error)
        }
    }

    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Panicked(text.unwrap_or_else(|| "a panic without text".to_owned()))
    }

    /// The SQLSTATE that the server reported: of the inbox's calls, of the commit, or in the chain
    /// of causes of the handler's error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Inbox(error) | Self::Commit(error) | Self::CommitUnknown(error) => {
                error.sqlstate()
            }
            Self::Handler(error) => report_of(&**error).map(DbError::code),
            Self::Panicked(_) | Self::TimedOut(_) => None,
        }
    }

    /// Whether it is a serialization failure (40001) or a deadlock (40P01), wherever it occurred.
    /// A consumer that returns it has used up its retries; a redelivery can still succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        !self.is_unknown() && self.sqlstate().is_some_and(is_retryable_code)
    }

    /// Whether it is not known if the transaction was committed.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::CommitUnknown(_))
    }

    /// Whether it is the message's own failure: its handler ran, in vain.
    pub(crate) const fn is_of_message(&self) -> bool {
        !matches!(self, Self::Inbox(_) | Self::CommitUnknown(_))
    }

    /// Whether the connection is at fault, so that the next message would fare no better.
    pub(crate) fn is_of_connection(&self) -> bool {
        match self {
            Self::CommitUnknown(_) => true,
            Self::Inbox(Error::Database { source, .. }) => source
                .code()
                .map_or_else(|| source.is_closed() || is_io(source), ends_session),
            _ => false,
        }
    }

    /// The kind in one word, for events.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Inbox(_) => "inbox",
            Self::Handler(_) => "handler",
            Self::Panicked(_) => "panic",
            Self::TimedOut(_) => "timeout",
            Self::Commit(_) => "commit",
            Self::CommitUnknown(_) => "commit_unknown",
        }
    }
}

/// Whether the server says by this that the session is over or was never there: class 08, and the
/// administrator's or a crash's 57P01 to 57P05.
fn ends_session(code: &SqlState) -> bool {
    code.code().starts_with("08") || code.code().starts_with("57P")
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>())
}

/// The server's report in a chain of causes.
fn report_of<'e>(error: &'e (dyn error::Error + 'static)) -> Option<&'e DbError> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<DbError>())
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inbox(error) | Self::Commit(error) => error.fmt(f),
            Self::Handler(error) => {
                write!(f, "the handler failed: {error}")?;
                let mut cause = error.source();
                while let Some(error) = cause {
                    write!(f, ": {error}")?;
                    cause = error.source();
                }
                Ok(())
            }
            Self::Panicked(text) => write!(f, "the handler panicked: {text}"),
            Self::TimedOut(limit) => write!(f, "the handler took longer than {limit:?}"),
            Self::CommitUnknown(error) => {
                write!(f, "it is not known whether the commit took place: {error}")
            }
        }
    }
}

impl error::Error for ProcessError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Inbox(error) | Self::Commit(error) | Self::CommitUnknown(error) => Some(error),
            Self::Handler(error) => Some(&**error),
            Self::Panicked(_) | Self::TimedOut(_) => None,
        }
    }
}

impl From<Error> for ProcessError {
    fn from(error: Error) -> Self {
        Self::Inbox(error)
    }
}

/// The handler ran statements that ended its own transaction.
#[derive(Debug)]
pub(crate) struct TransactionEnded;

impl fmt::Display for TransactionEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the handler ended the transaction that it was given")
    }
}

impl error::Error for TransactionEnded {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_can_cross_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<ProcessError>();
    }

    #[test]
    fn the_causes_of_a_handler_are_told() {
        #[derive(Debug)]
        struct Outer(fmt::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl error::Error for Outer {
            fn source(&self) -> Option<&(dyn error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = ProcessError::Handler(Box::new(Outer(fmt::Error)));
        let text = error.to_string();
        assert!(
            text.starts_with("the handler failed: outer: an error occurred"),
            "{text}"
        );
        assert!(error.sqlstate().is_none() && error.is_of_message());
        assert!(!error.is_retryable() && !error.is_of_connection());
    }

    #[test]
    fn a_panic_gives_its_text() {
        let told = |panic: Box<dyn Any + Send>| ProcessError::panicked(&*panic).to_string();
        assert_eq!(told(Box::new("boom")), "the handler panicked: boom");
        assert_eq!(
            told(Box::new("boom 7".to_owned())),
            "the handler panicked: boom 7"
        );
        assert_eq!(
            told(Box::new(7)),
            "the handler panicked: a panic without text"
        );
    }

    #[test]
    fn a_session_that_ends_is_not_the_message_s_fault() {
        for code in ["08006", "08P01", "57P01", "57P03"] {
            assert!(ends_session(&SqlState::from_code(code)), "{code}");
        }
        for code in ["57014", "40001", "23505", "25P02"] {
            assert!(!ends_session(&SqlState::from_code(code)), "{code}");
        }
    }
}

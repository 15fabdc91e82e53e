//! The one error type: what went wrong, in which function of the extension, with the SQLSTATE at
//! hand (G11).

use std::{error, fmt};

use tokio_postgres::error::SqlState;

/// Why a call failed.
///
/// After an error of the server ([`Error::sqlstate`] is `Some`) the transaction is aborted, as
/// after any failed statement: roll it back, or roll back to a savepoint taken before the call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server or the driver reported an error.
    #[non_exhaustive]
    Database {
        /// The function of the extension that was called; `BEGIN`, `SET LOCAL` or `COMMIT` in a
        /// consumer's own transaction.
        function: &'static str,
        /// The driver's error, with the server's report where there is one.
        source: tokio_postgres::Error,
    },
    /// The extension answered with something that this library does not know. The extension is
    /// newer than the library: update the library.
    #[non_exhaustive]
    UnknownAnswer {
        /// The function of the extension that was called.
        function: &'static str,
        /// The unexpected answer.
        answer: String,
    },
    /// A payload could not be written as JSON, or is not JSON of the expected form.
    Json(serde_json::Error),
    /// The message was stored without a payload.
    MissingPayload,
}

impl Error {
    pub(crate) const fn database(function: &'static str, source: tokio_postgres::Error) -> Self {
        Self::Database { function, source }
    }

    pub(crate) fn unknown_answer(function: &'static str, answer: impl Into<String>) -> Self {
        Self::UnknownAnswer {
            function,
            answer: answer.into(),
        }
    }

    /// The SQLSTATE that the server reported, or `None` when the error is not the server's: a
    /// lost connection, a value that cannot be sent or read.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database { source, .. } => source.code(),
            _ => None,
        }
    }

    /// Whether the whole transaction, run again from its start, can succeed: a serialization
    /// failure (40001) or a deadlock (40P01). Nothing of the failed attempt was applied. Retry it
    /// with the same message id, a bounded number of times, with a growing pause.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.sqlstate().is_some_and(is_retryable_code)
    }
}

/// Whether the code is that of a serialization failure or a deadlock.
pub(crate) fn is_retryable_code(code: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
    ]
    .contains(code)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database { function, source } => {
                write!(f, "{function}: ")?;
                let Some(report) = source.as_db_error() else {
                    return write_chain(f, source);
                };
                let (code, message) = (report.code(), report.message());
                write!(f, "{message} (SQLSTATE {})", code.code())?;
                if let Some(detail) = report.detail() {
                    write!(f, "; detail: {detail}")?;
                }
                if is_missing_function(code) {
                    // The server's own hint speaks of type casts, which are never the reason here.
                    write!(
                        f,
                        "; hint: create the extension sequential_inbox in this database, or \
                         update it, and name its schema with Inbox::in_schema"
                    )
                } else if let Some(hint) = report.hint() {
                    write!(f, "; hint: {hint}")
                } else {
                    Ok(())
                }
            }
            Self::UnknownAnswer { function, answer } => write!(
                f,
                "{function}: unknown answer {answer}; hint: the extension is newer than this \
                 library, update the library"
            ),
            Self::Json(source) => write!(f, "the payload and its JSON type do not fit: {source}"),
            Self::MissingPayload => f.write_str("the message was stored without a payload"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Database { source, .. } => Some(source),
            Self::Json(source) => Some(source),
            Self::UnknownAnswer { .. } | Self::MissingPayload => None,
        }
    }
}

/// Whether the function (42883) or the schema it was looked for in (3F000) is not there.
fn is_missing_function(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME].contains(code)
}

/// Writes an error and its causes: the driver's own text names only the step that failed.
fn write_chain(f: &mut fmt::Formatter<'_>, error: &dyn error::Error) -> fmt::Result {
    write!(f, "{error}")?;
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(f, ": {error}")?;
        cause = error.source();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_answer_names_the_answer_and_the_way_out() {
        let error = Error::unknown_answer("inbox_receive", "decision \"postponed\"");
        assert_eq!(
            error.to_string(),
            "inbox_receive: unknown answer decision \"postponed\"; hint: the extension is newer \
             than this library, update the library"
        );
        assert!(error.sqlstate().is_none());
        assert!(!error.is_retryable());
    }

    #[test]
    fn a_json_error_keeps_its_source() {
        let source = serde_json::from_str::<u32>("\"x\"").unwrap_err();
        let error = Error::Json(source);
        assert!(error.to_string().contains("expected u32"), "{error}");
        assert!(error::Error::source(&error).is_some());
    }

    #[test]
    fn errors_can_cross_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
    }
}

//! The one error type of the extension (guarantee G11).
//!
//! Every mistake of a caller is an error with a built-in SQLSTATE, a message that
//! shows the offending value, and, where they help, a DETAIL and a HINT. An
//! expected outcome (a duplicate, a message that waits) is a result, never an error.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name};

/// How many characters of an offending value an error message shows.
const SHOWN_CHARS: usize = 100;

/// A mistake that is reported to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxError {
    code: PgSqlErrorCode,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

/// What a function of the extension gives back before it is reported to Postgres.
pub type Result<T> = std::result::Result<T, InboxError>;

impl InboxError {
    /// An error with this SQLSTATE and message, as yet without detail and hint.
    pub fn new(code: PgSqlErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: None,
            hint: None,
        }
    }

    /// Adds the DETAIL.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the HINT.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// 22004: an argument that must have a value is NULL.
    pub fn null(argument: &str) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            format!("{argument} must not be null"),
        )
        .detail("A NULL is a mistake of the caller; it is never taken for a duplicate.")
        .hint(format!("Pass a value for {argument}."))
    }

    /// 22023: an argument that must not be empty is empty.
    pub fn empty(argument: &str) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("{argument} must not be empty"),
        )
        .detail("An empty name or id would make different messages look like one.")
        .hint("Pass the name or id that stays the same on every redelivery.")
    }

    /// 22001: a name or id is longer than the index can hold.
    pub fn too_long(argument: &str, value: &str, limit: usize) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            format!("{argument} is too long: \"{}\"", shown(value)),
        )
        .detail(format!(
            "It has {} bytes; at most {limit} are allowed.",
            value.len()
        ))
        .hint("Use the producer's event id, or a digest of it, not the message itself.")
    }

    /// 22023: an argument has a value outside of its domain.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message)
    }

    /// 23503: the sequence instance is not there, or not any more.
    pub fn no_instance(id: i64) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_FOREIGN_KEY_VIOLATION,
            format!("sequence instance {id} does not exist"),
        )
        .detail("It was never created, or its retention is over and it was removed.")
        .hint(
            "Call inbox_sequence(sequence_name, context_id) again and use the id that it returns.",
        )
    }

    /// 42704: nobody declared a sequence of this name.
    pub fn no_sequence(name: &str) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!("sequence \"{}\" is not declared", shown(name)),
        )
        .hint("Declare it with inbox_declare_sequence(sequence_name, retention, messages).")
    }

    /// 42704: no declared sequence has this message type.
    pub fn no_message_type(message_type: &str) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!(
                "message type \"{}\" belongs to no declared sequence",
                shown(message_type)
            ),
        )
        .hint(
            "Declare its sequence with inbox_declare_sequence(sequence_name, retention, messages).",
        )
    }

    /// 40001: what must be decided by was committed after this transaction's snapshot. The
    /// words are those of Postgres for the same case.
    pub fn serialization() -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            "could not serialize access due to concurrent update",
        )
        .hint("Retry the whole transaction.")
    }

    /// 25006: the call would write, and this transaction may not.
    pub fn read_only(function: &str, in_recovery: bool) -> Self {
        let error = Self::new(
            PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION,
            format!("cannot execute {function}() in a read-only transaction"),
        );
        if in_recovery {
            error
                .detail("This server is a standby.")
                .hint("Connect to the primary, for example with target_session_attrs=read-write.")
        } else {
            error.hint("Start the transaction with READ WRITE.")
        }
    }

    /// 55000: the installed extension's schema lacks what this library needs.
    pub fn outdated_schema(reason: &str) -> Self {
        Self::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "the installed extension sequential_inbox lacks what its library needs",
        )
        .detail(format!(
            "The library is version {}; its statement failed: {reason}.",
            crate::version::LIBRARY
        ))
        .hint("Run ALTER EXTENSION sequential_inbox UPDATE in this database.")
    }

    /// The SQLSTATE, for tests of the pure modules.
    #[cfg(test)]
    pub fn code(&self) -> PgSqlErrorCode {
        self.code
    }

    /// The primary message.
    #[cfg(test)]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Raises the error in Postgres; does not return.
    pub fn raise(self) -> ! {
        let mut report = ErrorReport::new(self.code, self.message, function_name!());
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(PgLogLevel::ERROR);
        unreachable!("an error report does not return")
    }
}

/// The first characters of a value, for error messages and log lines.
pub fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// Gives the value or raises the error; the last step of every SQL function.
pub fn or_raise<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => error.raise(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_value_is_cut_at_a_character_not_at_a_byte() {
        assert_eq!(shown("short"), "short");
        let long = "é".repeat(101);
        assert_eq!(shown(&long), format!("{}...", "é".repeat(100)));
        assert_eq!(shown(&"é".repeat(100)), "é".repeat(100));
    }
}

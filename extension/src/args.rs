//! Checks of arguments (guarantee G11: no silent skip).
//!
//! Names and ids are keys of btree indexes, whose entries hold at most a third of a
//! page; the limits leave room for two keys and are checked before anything is
//! written, in bytes, whether or not a value would compress.

use crate::errors::{InboxError, Result};

/// Longest consumer, message type or sequence name, in bytes.
pub const NAME_BYTES: usize = 512;

/// Longest message id, idempotence id or context id, in bytes.
pub const ID_BYTES: usize = 1024;

/// The value of an argument that must not be NULL.
pub fn required<T>(argument: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| InboxError::null(argument))
}

/// A consumer, message type or sequence name: present, not empty, not too long.
pub fn name<'a>(argument: &str, value: Option<&'a str>) -> Result<&'a str> {
    bounded(argument, required(argument, value)?, NAME_BYTES)
}

/// A message id, idempotence id or context id: present, not empty, not too long.
pub fn id<'a>(argument: &str, value: Option<&'a str>) -> Result<&'a str> {
    bounded(argument, required(argument, value)?, ID_BYTES)
}

/// A text that is neither empty nor longer than `limit` bytes.
pub fn bounded<'a>(argument: &str, value: &'a str, limit: usize) -> Result<&'a str> {
    if value.is_empty() {
        return Err(InboxError::empty(argument));
    }
    if value.len() > limit {
        return Err(InboxError::too_long(argument, value, limit));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgrx::PgSqlErrorCode;

    #[test]
    fn g11_limits_are_inclusive_and_counted_in_bytes() {
        let at_limit = "x".repeat(NAME_BYTES);
        assert_eq!(name("consumer", Some(&at_limit)), Ok(at_limit.as_str()));
        let over = "é".repeat(NAME_BYTES / 2 + 1);
        let error = name("consumer", Some(&over)).unwrap_err();
        assert_eq!(
            error.code(),
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION
        );
        let id_over = "x".repeat(ID_BYTES + 1);
        assert!(id("message_id", Some(&id_over)).is_err());
    }

    #[test]
    fn g11_null_and_empty_are_different_errors() {
        let null = name("consumer", None).unwrap_err();
        assert_eq!(null.code(), PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED);
        assert_eq!(null.message(), "consumer must not be null");
        let empty = name("consumer", Some("")).unwrap_err();
        assert_eq!(
            empty.code(),
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE
        );
    }
}

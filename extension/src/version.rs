//! The library's version against the extension's (G13).
//!
//! A library that is newer than the installed extension works with what that has; a
//! statement that lacks something says so ([`InboxError::outdated_schema`]). A library that
//! is older cannot know what it would get wrong, and does nothing.

use std::cell::Cell;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys;

use crate::errors::InboxError;

/// The library's own version.
pub const LIBRARY: &str = env!("CARGO_PKG_VERSION");

thread_local! {
    /// The schema whose extension this session has compared.
    static COMPARED: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
}

/// Compares at the first call in a session, and again when the extension moves to another
/// schema. `installed` asks the catalog.
pub fn compare_once(namespace: pg_sys::Oid, installed: impl FnOnce() -> Option<String>) {
    if COMPARED.get() == namespace {
        return;
    }
    if let Some(installed) = installed()
        && is_newer(&installed, LIBRARY)
    {
        outdated_library(&installed).raise();
    }
    COMPARED.set(namespace);
}

/// 55000: the extension in this database is of a newer version than the library.
fn outdated_library(installed: &str) -> InboxError {
    InboxError::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "the library of sequential_inbox is older than the installed extension",
    )
    .detail(format!(
        "The library is version {LIBRARY}, the extension in this database {installed}."
    ))
    .hint(
        "Install the newer package on this server, reconnect, and restart the server where the library is in shared_preload_libraries.",
    )
}

/// Whether one version comes after the other, by the numbers in them.
fn is_newer(version: &str, than: &str) -> bool {
    numbers(version) > numbers(than)
}

fn numbers(version: &str) -> Vec<u64> {
    version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(is_newer("0.10.0", "0.9.9"));
        assert!(is_newer("1.0.0", "0.10.0"));
        assert!(!is_newer("0.2.0", "0.2.0"));
        assert!(!is_newer("0.1.9", "0.2.0"));
    }
}

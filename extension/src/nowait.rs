//! Runs a piece of work that must not wait for other transactions, or not for long.
//!
//! The work runs in a subtransaction with a `lock_timeout` of its own. Where it would
//! have to wait longer, everything it did is rolled back and the answer is `None`:
//! nothing is left behind. Work that must not wait at all gets the shortest time-out
//! that Postgres has; its callers look with [`crate::probe`] first, so that the
//! time-out is only met in the instant between the look and the deed.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};

use crate::spi::set_lock_timeout;

/// The work's result, or `None` where it would have had to wait for a lock.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> Option<T> {
    within(Duration::ZERO, || Some(work()))
}

/// The work's result, or `None` where one of its locks was not to be had in this time.
/// Work that gives `None` itself is rolled back too, and with it the locks it took. Any
/// other error ends the subtransaction and is raised again outside of it.
pub fn within<T>(lock_timeout: Duration, work: impl FnOnce() -> Option<T>) -> Option<T> {
    // SAFETY: the same order as PL/pgSQL's exception blocks. Context and owner are put
    // back on every path, because starting and ending a subtransaction changes them.
    unsafe {
        let memory_context = pg_sys::CurrentMemoryContext;
        let resource_owner = pg_sys::CurrentResourceOwner;
        let outside = move || {
            pg_sys::MemoryContextSwitchTo(memory_context);
            pg_sys::CurrentResourceOwner = resource_owner;
        };
        let roll_back = move || {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            outside();
        };
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(memory_context);
        let work = AssertUnwindSafe(work);
        PgTryBuilder::new(AssertUnwindSafe(move || {
            let setting_level = pg_sys::NewGUCNestLevel();
            set_lock_timeout(lock_timeout);
            let result = { work }.0();
            pg_sys::AtEOXact_GUC(true, setting_level);
            if result.is_some() {
                pg_sys::ReleaseCurrentSubTransaction();
                outside();
            } else {
                roll_back();
            }
            result
        }))
        .catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, move |_| {
            roll_back();
            None
        })
        .catch_others(move |error| {
            roll_back();
            error.rethrow()
        })
        .catch_rust_panic(move |error| {
            roll_back();
            error.rethrow()
        })
        .execute()
    }
}

//! Sessions of the driver under test.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicU32, Ordering},
    thread::{Scope, ScopedJoinHandle},
};

use inbox_test_support::Database;
use sequential_inbox_client::{Error, SqlState};

use super::{Client, Transaction, connect_to};

/// A session in that database.
pub(super) fn connect(database: &Database) -> Client {
    connect_to(database.dsn())
}

/// The id of the server process that runs the transaction.
pub(super) fn pid(transaction: &mut Transaction<'_>) -> i32 {
    wait!(transaction.query_one("SELECT pg_backend_pid()", &[]))
        .unwrap()
        .get(0)
}

/// Runs `work` in a transaction and commits it.
pub(super) fn commit<T>(client: &mut Client, work: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
    let mut transaction = wait!(client.transaction()).unwrap();
    let answer = work(&mut transaction);
    wait!(transaction.commit()).unwrap();
    answer
}

/// Writes what stands for a handler's effect.
pub(super) fn write(transaction: &mut Transaction<'_>, entry: &str) {
    wait!(transaction.execute("INSERT INTO ledger VALUES ($1)", &[&entry])).unwrap();
}

/// Starts `work` in a session of its own and returns once that session waits for a lock.
pub(super) fn blocked<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    database: &Database,
    work: impl FnOnce(&mut Client) -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let name = format!("waiter-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut client = connect_to(&format!("{} application_name={name}", database.dsn()));
    let handle = scope.spawn(move || work(&mut client));
    database.wait_until_client_is_blocked(&name, || handle.is_finished());
    handle
}

/// The error of a call that must fail with that SQLSTATE.
#[track_caller]
pub(super) fn failed<T: Debug>(answer: Result<T, Error>, state: &SqlState) -> Error {
    let error = answer.expect_err("the call fails");
    assert_eq!(error.sqlstate(), Some(state), "{error}");
    error
}

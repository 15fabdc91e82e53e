//! RUST_BACKTRACE in the server's environment is for developers of other programs: what callers get
//! is the same with and without it.

use std::{env, process::Command};

use inbox_test_support::{
    Database,
    inbox::{Session, server_error},
    start_cluster,
};

/// Set where this program runs itself with RUST_BACKTRACE, which a process cannot safely set for
/// itself and its threads.
const MARK: &str = "INBOX_TEST_WITH_BACKTRACE";

#[test]
fn an_error_carries_no_backtrace() {
    if env::var_os(MARK).is_some() {
        return look_at_errors();
    }
    let output = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "backtrace::an_error_carries_no_backtrace"])
        .env(MARK, "1")
        .env("RUST_BACKTRACE", "full")
        .output()
        .expect("it is run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// Errors of the extension's own, of Postgres' that pass through it, and one that it replaces.
fn look_at_errors() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    // The server got the variable from this process.
    session.run("CREATE TABLE environment (line text)");
    session.run("COPY environment FROM PROGRAM 'echo $RUST_BACKTRACE'");
    let value: String = session.value("SELECT line FROM environment", &[]);
    assert_eq!(value, "full");

    session.run("SELECT inbox_claim('billing', 'evt-1'); CREATE ROLE nobody");
    let mut holder = Session::new(&database);
    holder.begin();
    holder.run("SELECT inbox_claim('billing', 'held')");
    for (call, code, detail) in [
        (
            "SELECT inbox_claim('billing', '')",
            "22023",
            Some("An empty name or id would make different messages look like one."),
        ),
        ("SELECT inbox_sequence('undeclared', 'x')", "42704", None),
        (
            "SELECT inbox_claim('placed', 'evt-1', 77)",
            "23503",
            Some("It was never created, or its retention is over and it was removed."),
        ),
        (
            "SELECT inbox_try_claim('placed', 'evt-1', 77)",
            "23503",
            Some("It was never created, or its retention is over and it was removed."),
        ),
        (
            "SET LOCAL lock_timeout = '10ms'; SELECT inbox_claim('billing', 'held')",
            "55P03",
            None,
        ),
        (
            "SET LOCAL ROLE nobody; SELECT inbox_claim('billing', 'evt-2')",
            "42501",
            None,
        ),
        (
            "ALTER TABLE sequenced_message RENAME rejected TO x; SELECT inbox_fail('billing', 'x')",
            "55000",
            None,
        ),
    ] {
        session.begin();
        let error = session.client().batch_execute(call).expect_err(call);
        session.rollback();
        let said = server_error(&error);
        assert_eq!(said.code().code(), code, "{call}: {said:?}");
        if code != "55000" {
            assert_eq!(said.detail(), detail, "{call}");
        }
        for text in [
            Some(said.message()),
            said.detail(),
            said.hint(),
            said.where_(),
        ]
        .into_iter()
        .flatten()
        {
            assert!(
                !text.contains("backtrace") && !text.contains(".rs:"),
                "{call}: {text}"
            );
        }
    }
    let log = std::fs::read_to_string(cluster.log_path()).expect("the log");
    assert!(log.contains("undeclared"), "it has the errors");
    assert!(!log.contains("backtrace"), "{log}");
}

//! Sequences by release conditions: buffering, release, completion, failures and what comes back
//! (G1, G5 to G8, G11), through the SQL functions alone.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "sequences/behaviour.rs"]
mod behaviour;
#[path = "sequences/declaration.rs"]
mod declaration;
#[path = "sequences/errors.rs"]
mod errors;
#[path = "sequences/failures.rs"]
mod failures;
#[path = "sequences/views.rs"]
mod views;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
};

/// A chain `a`, `b`, `c`, each after the one before.
const CHAIN: &str = r#"[{"type": "a"},
    {"type": "b", "releaseCondition": {"predecessor": "a"}},
    {"type": "c", "releaseCondition": {"predecessor": "b"}}]"#;

/// A database in which the sequence `s` has these message types, and a session in it.
fn declared(messages: &str) -> (Database, Session) {
    let database = Database::new();
    let mut session = Session::new(&database);
    declare(&mut session, messages);
    (database, session)
}

/// Declares the sequence `s`.
#[track_caller]
fn declare(session: &mut Session, messages: &str) {
    session.run(&format!(
        "SELECT inbox_declare_sequence('s', '1 day', '{messages}')"
    ));
}

/// Receives the one message of each of these types, whose id is the type, and checks the decision.
#[track_caller]
fn all_decided(session: &mut Session, decision: &str, types: &[&str]) -> i64 {
    let mut instance = None;
    for message_type in types {
        let received = session.decided(decision, &Arrival::new(message_type, message_type));
        instance = received.instance;
    }
    instance.expect("an instance")
}

/// The number of rows in a table or view.
#[track_caller]
fn count(session: &mut Session, relation: &str) -> i64 {
    session.value(&format!("SELECT count(*) FROM {relation}"), &[])
}

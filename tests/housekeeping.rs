//! `inbox_housekeeping` against a real server: what it closes, expires and removes, what it must
//! never touch, beside consumers and other housekeepers (G6, G8, G9, G10), and what `inbox_settings`
//! shows.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "housekeeping/commit_time.rs"]
mod commit_time;
#[path = "housekeeping/crowd.rs"]
mod crowd;
#[path = "housekeeping/dead_letters.rs"]
mod dead_letters;
#[path = "housekeeping/in_flight.rs"]
mod in_flight;
#[path = "housekeeping/leftovers.rs"]
mod leftovers;
#[path = "housekeeping/lifecycle.rs"]
mod lifecycle;
#[path = "housekeeping/plain.rs"]
mod plain;
#[path = "housekeeping/settings.rs"]
mod settings;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
};

/// `a` and, after it, `b`: an instance is complete when both are processed. Kept for a day.
const PAIR: &str = r#"[{"type": "a"}, {"type": "b", "releaseCondition": {"predecessor": "a"}}]"#;

/// A database in which the sequence `s` is declared as [`PAIR`], and a session in it.
fn declared() -> (Database, Session) {
    let database = Database::new();
    let mut session = Session::new(&database);
    declare(&mut session, "1 day", PAIR);
    (database, session)
}

/// Declares the sequence `s`.
#[track_caller]
fn declare(session: &mut Session, retention: &str, messages: &str) {
    session.run(&format!(
        "SELECT inbox_declare_sequence('s', '{retention}', '{messages}')"
    ));
}

/// A complete instance: `a` and `b` of that context are processed. Their ids are the type and the
/// context.
#[track_caller]
fn completed(session: &mut Session, context: &str) -> i64 {
    let received =
        [("a", format!("a {context}")), ("b", format!("b {context}"))].map(|(message_type, id)| {
            session.decided("process", &Arrival::new(message_type, &id).of(context))
        });
    let instance = received[1].instance();
    assert_eq!(session.state_of_instance(instance), "CLOSED");
    instance
}

/// Whether the instance is still there.
#[track_caller]
fn is_there(session: &mut Session, instance: i64) -> bool {
    session.value(
        "SELECT EXISTS (SELECT FROM sequence_instance WHERE id = $1)",
        &[&instance],
    )
}

/// The number of rows in a table or view.
#[track_caller]
fn count(session: &mut Session, relation: &str) -> i64 {
    session.value(&format!("SELECT count(*) FROM {relation}"), &[])
}

/// Claims bound to an instance; `inbox_claim` with three arguments.
#[track_caller]
fn claim_in(session: &mut Session, message_type: &str, id: &str, instance: i64) -> bool {
    session.value(
        "SELECT inbox_claim($1, $2, $3::bigint)",
        &[&message_type, &id, &instance],
    )
}

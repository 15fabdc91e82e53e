//! The operator's hand: what each function does, what it answers when it is too late, and that it
//! is safe beside consumers (G1, G6, G8).

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "operator/functions.rs"]
mod functions;
#[path = "operator/races.rs"]
mod races;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
};

/// A database with two sequences, and a session in it: `conditions`, in which `second` comes after
/// `first` and `third` after `second`, and `position`, with the types `step` and, closing, `last`.
fn declared() -> (Database, Session) {
    let database = Database::new();
    let mut session = Session::new(&database);
    session.run(
        r#"SELECT inbox_declare_sequence('conditions', '1 day', '[{"type": "first"},
               {"type": "second", "releaseCondition": {"predecessor": "first"}},
               {"type": "third", "releaseCondition": {"predecessor": "second"}}]');
           SELECT inbox_declare_sequence('position', '1 day',
               '[{"type": "step"}, {"type": "last", "final": true}]', ordering => 'position')"#,
    );
    (database, session)
}

/// A message of each type of `conditions` whose id is the type, received in that order; the
/// record's ids.
fn received(session: &mut Session, types: &[&str]) -> Vec<i64> {
    types
        .iter()
        .map(|name| session.receive(&Arrival::new(name, name)).message())
        .collect()
}

/// The instance of the conditions that [`received`] uses.
fn instance(session: &mut Session) -> i64 {
    session.value("SELECT inbox_sequence('conditions', 'context-1')", &[])
}

fn attempts(session: &mut Session, message: i64) -> i32 {
    session.value(
        "SELECT attempts FROM sequenced_message WHERE id = $1",
        &[&message],
    )
}

/// What each dead letter's error says, by message.
fn dead_letters(session: &mut Session) -> Vec<String> {
    let sql = "SELECT idempotence_id || ': ' || coalesce(last_error, '-') FROM inbox_dead_letters
               ORDER BY id";
    let rows = session.query(sql, &[]).expect(sql);
    rows.iter().map(|row| row.get(0)).collect()
}

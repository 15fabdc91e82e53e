//! Order under concurrency: positions, wake-ups, one handler at a time, not waiting (G2, G3, G6, G7,
//! G10).

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "order/exclusion.rs"]
mod exclusion;
#[path = "order/nowait.rs"]
mod nowait;
#[path = "order/position.rs"]
mod position;
#[path = "order/wakeup.rs"]
mod wakeup;

use inbox_test_support::{Database, inbox::Session};

/// A database with two sequences, and a session in it: `conditions`, in which `second` comes after
/// `first` and `other` after nothing, and `position`, with the types `step` and, closing, `last`.
fn declared() -> (Database, Session) {
    let database = Database::new();
    let mut session = Session::new(&database);
    declare(&mut session);
    (database, session)
}

fn declare(session: &mut Session) {
    session.run(
        r#"SELECT inbox_declare_sequence('conditions', '1 day', '[{"type": "first"},
               {"type": "second", "releaseCondition": {"predecessor": "first"}},
               {"type": "other", "optional": true}]');"#,
    );
    declare_position(session, "block");
}

fn declare_position(session: &mut Session, on_failure: &str) {
    session.run(&format!(
        r#"SELECT inbox_declare_sequence('position', '1 day',
               '[{{"type": "step"}}, {{"type": "last", "final": true}}]',
               ordering => 'position', on_failure => '{on_failure}')"#,
    ));
}

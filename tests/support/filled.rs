//! An inbox in the middle of its life, for tests that move it somewhere else: by a dump, by
//! replication, to another major (G8, G13). Every table is filled, what each holds can be compared,
//! and [`goes_on`] tells whether the moved one does all that the first would have done.

use std::collections::BTreeMap;

use crate::{
    inbox::{Arrival, Session},
    retention::{self, rotate},
};

/// The role that [`fill`] expects to be there, which may consume and no more.
pub const CONSUMER_ROLE: &str = "inbox_consumer";

/// Fills every table: claims of both kinds, in each table of the ring; messages in every state, with
/// payloads; declarations; what [`CONSUMER_ROLE`], which must be there, may do.
pub fn fill(session: &mut Session) {
    session.run(&format!(
        "SELECT inbox_grant('{CONSUMER_ROLE}', 'consumer')"
    ));
    for consumer in ["first", "second"] {
        assert!(retention::claim(session, consumer));
        rotate(session);
    }
    assert!(retention::claim(session, "third"));
    session.run(
        "SELECT inbox_annotate('billing', 'second', '{\"trace\": 1.50, \"é\": \"🙈\"}');
         SELECT inbox_fail('billing', 'dead', error => 'it''s \"broken\"
 for good');
         SELECT inbox_fail('billing', 'scheduled', NULL, 'later', '1 hour', '\\x00ff', '\\x01', '{\"a\": []}');
         SELECT inbox_declare_sequence('orders', '14 days', '[{\"type\": \"placed\"},
             {\"type\": \"paid\", \"releaseCondition\": {\"predecessor\": \"placed\"}},
             {\"type\": \"noted\", \"optional\": true}]', recording_until => '2020-01-01', expiry_grace => '1 day');
         SELECT inbox_declare_sequence('steps', '1 mon 2 days', '[{\"type\": \"step\", \"final\": true}]',
             ordering => 'position', on_failure => 'skip')",
    );
    session.decided("process", &Arrival::new("placed", "done").of("done"));
    session.decided("process", &Arrival::new("paid", "done").of("done"));
    session.decided("buffered", &Arrival::new("paid", "waiting").of("waiting"));
    session.decided("buffered", &Arrival::new("paid", "ready").of("ready"));
    session.decided("process", &Arrival::new("placed", "ready").of("ready"));
    let skipped = session
        .decided("buffered", &Arrival::new("paid", "skipped").of("skipped"))
        .message();
    assert!(session.operate("inbox_skip", skipped));
    session.run(
        "SELECT inbox_fail('noted', 'failed', inbox_sequence('orders', 'failed'), 'broken', payload => '\\x02');
         SELECT inbox_claim('other', 'claimed', inbox_sequence('orders', 'claimed'))",
    );
    session.decided("process", &Arrival::at("step", "step", 1).of("steps"));
}

/// What each table and sequence of the extension holds, as text. Of an inbox that [`fill`] has
/// filled, none is empty: what is empty would not be compared.
#[track_caller]
pub fn contents(session: &mut Session) -> BTreeMap<String, String> {
    let mut held = tables(session);
    for sequence in marked(session, 'S') {
        let last: i64 = session.value(&format!("SELECT last_value FROM {sequence}"), &[]);
        held.insert(sequence, last.to_string());
    }
    for (relation, text) in &held {
        assert_ne!(text, "", "{relation} is empty");
    }
    held
}

/// What each table of the extension holds, as text.
pub fn tables(session: &mut Session) -> BTreeMap<String, String> {
    marked(session, 'r')
        .into_iter()
        .map(|table| {
            let text = session.value(
                &format!(
                    "SELECT coalesce(string_agg(t::text, E'\n' ORDER BY t::text COLLATE \"C\"), '')
                     FROM {table} t"
                ),
                &[],
            );
            (table, text)
        })
        .collect()
}

/// The relations of that kind that belong into a dump.
fn marked(session: &mut Session, kind: char) -> Vec<String> {
    session.value(
        "SELECT array_agg(c.oid::regclass::text) FROM pg_extension e
         CROSS JOIN unnest(extconfig) r JOIN pg_class c ON c.oid = r
         WHERE extname = 'sequential_inbox' AND relkind::text = $1::text",
        &[&kind.to_string()],
    )
}

/// The inbox that [`fill`] has filled goes on, wherever it is now: duplicates are refused, ids go on,
/// what waited is released, the ring moves on.
pub fn goes_on(session: &mut Session) {
    for id in ["first", "second", "third"] {
        assert!(!retention::claim(session, id), "{id}");
    }
    assert_eq!(retention::ring(session), (2, 2));
    for (message_type, id, context) in [
        ("placed", "done", "done"),
        ("paid", "waiting", "waiting"),
        ("paid", "skipped", "skipped"),
    ] {
        session.decided("duplicate", &Arrival::new(message_type, id).of(context));
    }
    // Ids go on after those that were given.
    let highest: i64 = session.value("SELECT max(id) FROM sequence_instance", &[]);
    let next: i64 = session.value("SELECT inbox_sequence('orders', 'new')", &[]);
    assert_eq!(next, highest + 1);
    let highest: i64 = session.value("SELECT max(id) FROM sequenced_message", &[]);
    let received = session.decided("process", &Arrival::new("placed", "new").of("new"));
    assert_eq!(received.message(), highest + 1);
    // What waited is released, what was ready is handed out, with its payload.
    session.decided("process", &Arrival::new("placed", "waiting").of("waiting"));
    let mut released: Vec<_> = std::iter::from_fn(|| session.next(None))
        .map(|released| (released.id, released.payload))
        .collect();
    released.sort();
    assert_eq!(
        released,
        ["ready", "waiting"].map(|id| (id.to_owned(), Some(id.as_bytes().to_vec())))
    );
    session.decided(
        "process",
        &Arrival::at("step", "step 2", 2)
            .of("other steps")
            .of("steps"),
    );
    // Declarations can be replaced, and the ring moves on.
    session.run("SELECT inbox_declare_sequence('steps', '1 day', '[{\"type\": \"step\"}]', ordering => 'position')");
    rotate(session);
    assert!(!retention::claim(session, "third"));
    // Who might consume still may, and no more.
    session.run(&format!("SET ROLE {CONSUMER_ROLE}"));
    assert!(retention::claim(session, "by the consumer"));
    session
        .query("SELECT inbox_release('billing', 'third')", &[])
        .expect_err("a consumer must not");
    session.run("RESET ROLE");
}

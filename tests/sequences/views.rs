//! What an operator sees: how far an instance is, what it is blocked on, what is dead (G8).

use inbox_test_support::inbox::{Arrival, Session};

use super::{CHAIN, all_decided, count, declared};

/// One instance as `inbox_sequences` shows it: state, waiting, ready, failed, processed,
/// next_position, blocked_on.
fn shown(session: &mut Session, instance: i64) -> String {
    session.value(
        "SELECT concat_ws(' ', state, waiting, ready, failed, processed,
                coalesce(next_position::text, '-'), coalesce(blocked_on, '-'))
         FROM inbox_sequences WHERE id = $1",
        &[&instance],
    )
}

#[test]
fn an_instance_shows_its_counts_and_what_it_is_blocked_on() {
    let (_database, mut session) = declared(
        r#"[{"type": "a"}, {"type": "x"}, {"type": "y"},
            {"type": "b", "releaseCondition": {"and": [{"predecessor": "a"},
                {"or": [{"predecessor": "x"}, {"predecessor": "y"}]}]}},
            {"type": "c", "releaseCondition": {"predecessor": "b"}}]"#,
    );
    let instance = all_decided(&mut session, "buffered", &["b", "c"]);
    assert_eq!(shown(&mut session, instance), "OPEN 2 0 0 0 - a, b, x, y");
    all_decided(&mut session, "process", &["a"]);
    assert_eq!(shown(&mut session, instance), "OPEN 2 0 0 1 - b, x, y");
    all_decided(&mut session, "process", &["x"]);
    assert_eq!(shown(&mut session, instance), "OPEN 1 1 0 2 - b");
    session.begin();
    let b = session.next(instance).expect("b");
    session.rollback();
    session.fail(b.message, "broken", None);
    assert_eq!(shown(&mut session, instance), "OPEN 1 0 1 2 - b");
    session.decided("process", &Arrival::new("b", "b"));
    assert_eq!(session.drain(instance), ["c"]);
    assert_eq!(shown(&mut session, instance), "OPEN 0 0 0 4 - -");
    all_decided(&mut session, "process", &["y"]);
    assert_eq!(shown(&mut session, instance), "CLOSED 0 0 0 5 - -");
}

#[test]
fn an_instance_shows_its_next_position() {
    let (_database, mut session) = declared(CHAIN);
    session.run(
        r#"SELECT inbox_declare_sequence('p', '1 day', '[{"type": "p"}]', ordering => 'position')"#,
    );
    let third = session.decided("buffered", &Arrival::at("p", "3", 3));
    assert_eq!(
        shown(&mut session, third.instance()),
        "OPEN 1 0 0 0 1 position 1"
    );
    session.decided("process", &Arrival::at("p", "1", 1));
    assert_eq!(
        shown(&mut session, third.instance()),
        "OPEN 1 0 0 1 2 position 2"
    );
    session.decided("process", &Arrival::at("p", "2", 2));
    assert_eq!(shown(&mut session, third.instance()), "OPEN 0 1 0 2 3 -");
    assert_eq!(session.drain(third.instance()), ["3"]);
    assert_eq!(shown(&mut session, third.instance()), "OPEN 0 0 0 3 4 -");
}

#[test]
fn what_a_skipped_failure_no_longer_blocks_is_not_shown_as_blocked_on_it() {
    let (_database, mut session) = declared(CHAIN);
    session.run(
        r#"SELECT inbox_declare_sequence('s', '1 day', '[{"type": "a"}, {"type": "b"},
            {"type": "c", "releaseCondition": {"and": [{"predecessor": "a"}, {"predecessor": "b"}]}}]',
            on_failure => 'skip')"#,
    );
    let instance = all_decided(&mut session, "buffered", &["c"]);
    session.run(&format!(
        "SELECT inbox_fail('a', 'a', {instance}, 'broken')"
    ));
    assert_eq!(shown(&mut session, instance), "OPEN 1 0 1 0 - b");
}

#[test]
fn the_oldest_wait_and_a_near_expiry_are_shown() {
    let (_database, mut session) = declared(CHAIN);
    let first = session.decided("buffered", &Arrival::new("b", "b"));
    session.decided("buffered", &Arrival::new("c", "c"));
    let instance = first.instance();
    let oldest = "SELECT v.oldest_waiting_at = (SELECT state_changed_at FROM sequenced_message
                      WHERE sequence_instance_id = v.id AND message_type = $2)
                  FROM inbox_sequences v WHERE v.id = $1";
    assert!(session.value::<bool>(oldest, &[&instance, &"b"]));
    assert!(session.operate("inbox_skip", first.message()));
    // b was the oldest, c goes now.
    let waits: bool = session.value(
        "SELECT oldest_waiting_at IS NOT NULL FROM inbox_sequences WHERE id = $1",
        &[&instance],
    );
    assert!(!waits);
    let soon = "SELECT expiring_soon FROM inbox_sequences WHERE id = $1";
    // The retention is a day: three quarters of it are eighteen hours.
    for (age, expected) in [("17:59", false), ("18:01", true), ("25:00", true)] {
        session.run(&format!(
            "UPDATE sequence_instance SET created_at = clock_timestamp() - interval '{age}',
                    retain_until = clock_timestamp() - interval '{age}' + interval '1 day'"
        ));
        assert_eq!(session.value::<bool>(soon, &[&instance]), expected, "{age}");
    }
    assert!(session.operate("inbox_close", instance));
    assert!(!session.value::<bool>(soon, &[&instance]), "it is closed");
}

#[test]
fn a_dead_letter_shows_where_it_belongs_and_its_size() {
    let (_database, mut session) = declared(CHAIN);
    let b = session.decided("buffered", &Arrival::new("b", "bbbb"));
    session.fail(b.message(), "out of stock", None);
    // A plain consumer's failure has no sequence, and no payload is stored with it.
    session.run("SELECT inbox_fail('billing', 'evt-1', error => 'no such customer')");
    let dead = |session: &mut Session| -> Vec<String> {
        let sql = "SELECT concat_ws(' ', message_type, idempotence_id, state, attempts, last_error,
                       coalesce(sequence_name, '-'), coalesce(context_id, '-'),
                       coalesce(payload_size::text, '-'))
                   FROM inbox_dead_letters ORDER BY id";
        let rows = session.query(sql, &[]).expect(sql);
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(
        dead(&mut session),
        [
            "b bbbb FAILED 1 out of stock s context-1 4",
            "billing evt-1 FAILED 1 no such customer - - -"
        ]
    );
    // What will be retried by itself is not dead, nor is what an operator has set going.
    session.fail(b.message(), "503", Some("1 hour"));
    assert_eq!(count(&mut session, "inbox_dead_letters"), 1);
    session.fail(b.message(), "gone", None);
    assert_eq!(count(&mut session, "inbox_dead_letters"), 2);
    assert!(session.operate("inbox_retry", b.message()));
    assert_eq!(count(&mut session, "inbox_dead_letters"), 1);
    // A resend that was claimed without the inbox's record has resolved it.
    session.run("SELECT inbox_claim('billing', 'evt-1')");
    assert_eq!(count(&mut session, "inbox_dead_letters"), 0);
}

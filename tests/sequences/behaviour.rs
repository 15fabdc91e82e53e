//! What is handled at once, what waits, what releases it, and when an instance is complete.

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{Arrival, CONTEXT, Session},
};

use super::{CHAIN, all_decided, count, declare, declared};

#[test]
fn g6_without_a_predecessor_a_message_is_processed_at_once() {
    let (_database, mut session) = declared(CHAIN);
    let received = session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(received.reason, None);
    assert!(received.message.is_some() && received.instance.is_some());
    assert_eq!(session.state_of("a").as_deref(), Some("PROCESSED"));
    assert_eq!(
        count(&mut session, "buffered_message"),
        0,
        "no payload stays"
    );
    assert_eq!(session.next(received.instance), None);
}

#[test]
fn g6_without_its_predecessor_a_message_is_buffered_and_not_handed_out() {
    let (_database, mut session) = declared(CHAIN);
    let received = session.decided("buffered", &Arrival::new("b", "b"));
    assert_eq!(received.reason.as_deref(), Some("waits for a"));
    assert_eq!(session.state_of("b").as_deref(), Some("WAITING"));
    assert_eq!(session.next(received.instance), None);
    assert_eq!(session.next(None), None);
    assert_eq!(session.state_of("b").as_deref(), Some("WAITING"));
}

#[test]
fn g7_the_predecessor_releases_it() {
    let (_database, mut session) = declared(CHAIN);
    let buffered = session.decided("buffered", &Arrival::new("b", "b"));
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.state_of("b").as_deref(), Some("READY"));
    let released = session.next(buffered.instance).expect("b");
    assert_eq!(released.message, buffered.message());
    assert_eq!((&*released.message_type, &*released.id), ("b", "b"));
    assert_eq!(session.state_of("b").as_deref(), Some("PROCESSED"));
    assert_eq!(session.next(buffered.instance), None);
}

#[test]
fn g6_a_chain_received_backwards_is_handled_forwards() {
    let (_database, mut session) = declared(CHAIN);
    let instance = all_decided(&mut session, "buffered", &["c", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.drain(instance), ["b", "c"]);
}

#[test]
fn g6_a_link_that_is_released_does_not_yet_release_the_next() {
    let (_database, mut session) = declared(CHAIN);
    all_decided(&mut session, "buffered", &["c", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    // b is ready, not processed: c must wait until b's transaction commits.
    assert_eq!(session.state_of("c").as_deref(), Some("WAITING"));
    session.begin();
    assert_eq!(session.next_id(None), "b");
    session.rollback();
    assert_eq!(session.state_of("c").as_deref(), Some("WAITING"));
    assert_eq!(session.state_of("b").as_deref(), Some("READY"));
    assert_eq!(session.next_id(None), "b");
    assert_eq!(session.next_id(None), "c");
}

#[test]
fn g7_two_successors_of_one_predecessor_are_both_released() {
    let (_database, mut session) = declared(
        r#"[{"type": "a"}, {"type": "b", "releaseCondition": {"predecessor": "a"}},
            {"type": "c", "releaseCondition": {"predecessor": "a"}}]"#,
    );
    let instance = all_decided(&mut session, "buffered", &["c", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.drain(instance), ["c", "b"], "oldest first");
}

#[test]
fn g7_ten_successors_are_all_released() {
    let successors: Vec<String> = (0..10).map(|n| format!("b{n}")).collect();
    let types: Vec<String> = successors
        .iter()
        .map(|name| format!(r#"{{"type": "{name}", "releaseCondition": {{"predecessor": "a"}}}}"#))
        .collect();
    let (_database, mut session) = declared(&format!(r#"[{{"type": "a"}}, {}]"#, types.join(",")));
    let types: Vec<&str> = successors.iter().map(String::as_str).collect();
    let instance = all_decided(&mut session, "buffered", &types);
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.drain(instance), successors);
}

#[test]
fn g6_or_is_released_by_either() {
    let either = r#"[{"type": "a"}, {"type": "b"},
        {"type": "c", "releaseCondition": {"or": [{"predecessor": "a"}, {"predecessor": "b"}]}}]"#;
    for one in ["a", "b"] {
        let (_database, mut session) = declared(either);
        let received = session.decided("buffered", &Arrival::new("c", "c"));
        assert_eq!(received.reason.as_deref(), Some("waits for a, b"));
        session.decided("process", &Arrival::new(one, one));
        assert_eq!(session.drain(received.instance()), ["c"], "after {one}");
        // And one that comes later goes at once.
        session.decided("process", &Arrival::new("c", "c-2"));
    }
}

#[test]
fn g6_and_is_released_only_by_all() {
    let all = r#"[{"type": "a"}, {"type": "b"},
        {"type": "c", "releaseCondition": {"and": [{"predecessor": "a"}, {"predecessor": "b"}]}}]"#;
    for (first, last) in [("a", "b"), ("b", "a")] {
        let (_database, mut session) = declared(all);
        let received = session.decided("buffered", &Arrival::new("c", "c"));
        session.decided("process", &Arrival::new(first, first));
        assert_eq!(session.next(received.instance), None, "{last} is missing");
        let second = session.decided("buffered", &Arrival::new("c", "c-2"));
        assert_eq!(second.reason, Some(format!("waits for {last}")));
        session.decided("process", &Arrival::new(last, last));
        assert_eq!(session.drain(received.instance()), ["c", "c-2"]);
    }
}

#[test]
fn g6_and_and_or_nest() {
    // d after a and (b or c).
    let nested = r#"[{"type": "a"}, {"type": "b"}, {"type": "c"},
        {"type": "d", "releaseCondition": {"and": [{"predecessor": "a"},
            {"or": [{"predecessor": "b"}, {"predecessor": "c"}]}]}}]"#;
    for (arrivals, released) in [
        (&["b", "c"][..], false),
        (&["a"][..], false),
        (&["a", "b"][..], true),
        (&["c", "a"][..], true),
    ] {
        let (_database, mut session) = declared(nested);
        let instance = all_decided(&mut session, "buffered", &["d"]);
        all_decided(&mut session, "process", arrivals);
        let expected: &[&str] = if released { &["d"] } else { &[] };
        assert_eq!(session.drain(instance), expected, "after {arrivals:?}");
    }
}

#[test]
fn g8_the_same_type_twice_in_one_instance_is_handled_twice() {
    let (_database, mut session) = declared(CHAIN);
    let instance = all_decided(&mut session, "buffered", &["b"]);
    session.decided("buffered", &Arrival::new("b", "b-2"));
    session.decided("process", &Arrival::new("a", "a"));
    session.decided("process", &Arrival::new("a", "a-2"));
    assert_eq!(session.drain(instance), ["b", "b-2"]);
}

#[test]
fn g1_a_duplicate_of_a_waiting_message_adds_no_row() {
    let (_database, mut session) = declared(CHAIN);
    let first = session.decided("buffered", &Arrival::new("b", "b"));
    let mut again = Arrival::new("b", "b");
    again.payload = Some(b"another payload");
    let second = session.decided("duplicate", &again);
    assert_eq!(second.message, first.message);
    assert_eq!(second.instance, first.instance);
    assert_eq!(count(&mut session, "sequenced_message"), 1);
    assert_eq!(count(&mut session, "sequential_inbox_idempotence"), 1);
    session.decided("process", &Arrival::new("a", "a"));
    let released = session.next(first.instance).expect("b");
    assert_eq!(released.payload.as_deref(), Some(b"b".as_slice()));
    assert_eq!(session.next(first.instance), None);
}

#[test]
fn g1_a_duplicate_of_a_processed_message_changes_nothing() {
    let (_database, mut session) = declared(CHAIN);
    let first = session.decided("process", &Arrival::new("a", "a"));
    let again = session.decided("duplicate", &Arrival::new("a", "a"));
    assert_eq!(
        (again.message, again.instance),
        (first.message, first.instance)
    );
    // A context that is new makes it no other message.
    let elsewhere = session.decided("duplicate", &Arrival::new("a", "a").of("context-2"));
    assert_eq!(elsewhere.instance, first.instance);
    // Nor does a predecessor that comes late.
    session.decided("buffered", &Arrival::new("c", "c"));
    session.decided("process", &Arrival::new("b", "b"));
    session.decided("duplicate", &Arrival::new("b", "b"));
    assert_eq!(session.drain(first.instance()), ["c"]);
    session.decided("duplicate", &Arrival::new("c", "c"));
    assert_eq!(count(&mut session, "sequenced_message"), 3);
    assert_eq!(count(&mut session, "sequence_instance"), 1);
}

#[test]
fn g12_one_id_under_two_types_is_two_messages() {
    let (_database, mut session) = declared(CHAIN);
    session.decided("process", &Arrival::new("a", "evt-1"));
    session.decided("process", &Arrival::new("b", "evt-1"));
    session.decided("duplicate", &Arrival::new("b", "evt-1"));
}

#[test]
fn without_a_context_a_message_is_direct_and_nothing_is_stored() {
    let (_database, mut session) = declared(CHAIN);
    let mut arrival = Arrival::new("c", "c");
    arrival.context = None;
    for wait in [true, false] {
        arrival.wait = wait;
        let received = session.decided("direct", &arrival);
        assert_eq!((received.instance, received.message), (None, None));
    }
    for table in [
        "sequence_instance",
        "sequenced_message",
        "buffered_message",
        "sequential_inbox_idempotence",
    ] {
        assert_eq!(count(&mut session, table), 0, "{table}");
    }
}

#[test]
fn a_sequence_of_one_type_handles_each_message_at_once() {
    let (_database, mut session) = declared(r#"[{"type": "only"}]"#);
    let received = session.decided("process", &Arrival::new("only", "1"));
    assert_eq!(session.state_of_instance(received.instance()), "CLOSED");
    session.decided("process", &Arrival::new("only", "2"));
    session.decided("duplicate", &Arrival::new("only", "1"));
}

#[test]
fn instances_of_different_contexts_do_not_release_each_other() {
    let (_database, mut session) = declared(CHAIN);
    let first = session.decided("buffered", &Arrival::new("b", "b-1"));
    let second = session.decided("buffered", &Arrival::new("b", "b-2").of("context-2"));
    assert_ne!(first.instance, second.instance);
    session.decided("process", &Arrival::new("a", "a-2").of("context-2"));
    assert_eq!(session.next(first.instance), None);
    assert_eq!(session.next_id(second.instance), "b-2");
    assert_eq!(session.state_of("b-1").as_deref(), Some("WAITING"));
}

#[test]
fn completion_closes_an_instance() {
    let (_database, mut session) = declared(
        r#"[{"type": "a"}, {"type": "b", "releaseCondition": {"predecessor": "a"}},
            {"type": "extra", "optional": true, "releaseCondition": {"predecessor": "a"}}]"#,
    );
    // The last one is handed out.
    let instance = all_decided(&mut session, "buffered", &["extra", "b"]);
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.next_id(instance), "extra");
    assert_eq!(session.state_of_instance(instance), "OPEN", "b is ready");
    assert_eq!(session.next_id(instance), "b");
    assert_eq!(session.state_of_instance(instance), "CLOSED");
    let closed_at: bool = session.value(
        "SELECT closed_at IS NOT NULL AND NOT closed_by_operator FROM sequence_instance WHERE id = $1",
        &[&instance],
    );
    assert!(closed_at);
    // The last one is received, and the optional one never comes.
    session.decided("process", &Arrival::new("a", "a-2").of("context-2"));
    let second = session.decided("process", &Arrival::new("b", "b-2").of("context-2"));
    assert_eq!(session.state_of_instance(second.instance()), "CLOSED");
}

#[test]
fn an_instance_in_which_something_waits_is_not_complete() {
    let (_database, mut session) = declared(
        r#"[{"type": "a"}, {"type": "x", "optional": true},
            {"type": "extra", "optional": true, "releaseCondition": {"predecessor": "x"}}]"#,
    );
    let instance = all_decided(&mut session, "buffered", &["extra"]);
    session.decided("process", &Arrival::new("a", "a"));
    assert_eq!(session.state_of_instance(instance), "OPEN");
    session.decided("process", &Arrival::new("x", "x"));
    assert_eq!(
        session.state_of_instance(instance),
        "OPEN",
        "extra is ready"
    );
    assert_eq!(session.drain(instance), ["extra"]);
    assert_eq!(session.state_of_instance(instance), "CLOSED");
}

#[test]
fn a_further_message_of_a_closed_complete_instance_is_handled() {
    let (_database, mut session) = declared(
        r#"[{"type": "a"}, {"type": "x", "optional": true},
            {"type": "y", "optional": true, "releaseCondition": {"predecessor": "x"}}]"#,
    );
    let first = session.decided("process", &Arrival::new("a", "a"));
    let instance = first.instance();
    assert_eq!(session.state_of_instance(instance), "CLOSED");
    let more = session.decided("process", &Arrival::new("a", "a-2"));
    assert_eq!(more.instance, first.instance);
    assert_eq!(session.state_of_instance(instance), "CLOSED");
    // One that must wait is not lost: the instance is open again until it is handled.
    session.decided("buffered", &Arrival::new("y", "y"));
    assert_eq!(session.state_of_instance(instance), "OPEN");
    session.decided("process", &Arrival::new("x", "x"));
    assert_eq!(session.drain(instance), ["y"]);
    assert_eq!(session.state_of_instance(instance), "CLOSED");
}

#[test]
fn while_recording_messages_are_handled_at_once_and_count_afterwards() {
    let (_database, mut session) = declared(CHAIN);
    let recording = |until: &str| {
        format!(
            "SELECT inbox_declare_sequence('s', '1 day', '{CHAIN}',
                 recording_until => clock_timestamp() + interval '{until}')"
        )
    };
    let waiting = session.decided("buffered", &Arrival::new("b", "b-0"));
    session.run(&recording("1 hour"));
    // What waited is let go with all others.
    assert_eq!(session.drain(waiting.instance()), ["b-0"]);
    let second = session.decided("process", &Arrival::new("c", "c").of("context-2"));
    session.decided("duplicate", &Arrival::new("c", "c").of("context-2"));
    session.decided("process", &Arrival::new("b", "b").of("context-2"));
    session.run(&recording("-1 second"));
    // From now on the order counts, and so does what was recorded.
    session.decided("process", &Arrival::new("c", "c-2").of("context-2"));
    session.decided("buffered", &Arrival::new("b", "b-2").of("context-2"));
    session.decided("process", &Arrival::new("a", "a").of("context-2"));
    assert_eq!(session.drain(second.instance()), ["b-2"]);
    session.decided("buffered", &Arrival::new("c", "c-3").of("context-3"));
}

#[test]
fn concurrent_first_messages_of_a_context_share_one_instance() {
    const SESSIONS: usize = 8;
    let database = Database::new();
    declare(&mut Session::new(&database), CHAIN);
    let mut sessions: Vec<Session> = (0..SESSIONS).map(|_| Session::new(&database)).collect();
    let mut first = sessions.remove(0);
    // The first creates the instance and does not commit until all others wait for it.
    first.begin();
    first.decided("buffered", &Arrival::new("b", "b-0"));
    let instances: Vec<Option<i64>> = thread::scope(|scope| {
        let others: Vec<_> = sessions
            .iter_mut()
            .enumerate()
            .map(|(n, session)| {
                let pid = session.pid();
                let handle = scope.spawn(move || {
                    let id = format!("b-{}", n + 1);
                    session
                        .decided("buffered", &Arrival::new("b", &id))
                        .instance
                });
                database.wait_until_blocked(pid, || handle.is_finished());
                handle
            })
            .collect();
        first.commit();
        others.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let known: i64 = first.value("SELECT inbox_sequence('s', $1)", &[&CONTEXT]);
    assert_eq!(instances, [Some(known); SESSIONS - 1]);
    assert_eq!(count(&mut first, "sequence_instance"), 1);
    first.decided("process", &Arrival::new("a", "a"));
    assert_eq!(first.drain(known).len(), SESSIONS);
}

#[test]
fn the_creator_of_an_instance_may_roll_back() {
    let database = Database::new();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    declare(&mut first, CHAIN);
    first.begin();
    let gone: i64 = first.value("SELECT inbox_sequence('s', $1)", &[&CONTEXT]);
    let instance = thread::scope(|scope| {
        let waiter = inbox_test_support::inbox::blocked(scope, &database, &mut second, |session| {
            session
                .decided("process", &Arrival::new("a", "a"))
                .instance()
        });
        first.rollback();
        waiter.join().unwrap()
    });
    assert_ne!(instance, gone);
    assert_eq!(count(&mut first, "sequence_instance"), 1);
    let again: i64 = first.value("SELECT inbox_sequence('s', $1)", &[&CONTEXT]);
    assert_eq!(again, instance);
}

#[test]
fn g8_payload_key_and_headers_come_back_byte_for_byte() {
    let (_database, mut session) = declared(CHAIN);
    let all_bytes: Vec<u8> = (0..=255).collect();
    let headers = r#"{"n": [1, null, 2.50, 12345678901234567890123], "trace": "é\u0001"}"#;
    // Id, payload, key, headers.
    type Case<'a> = (&'a str, Option<&'a [u8]>, Option<&'a [u8]>, Option<&'a str>);
    let cases: [Case<'_>; 5] = [
        ("all", Some(&all_bytes), Some(&all_bytes), Some(headers)),
        ("empty", Some(b""), Some(b""), Some("{}")),
        ("none", None, None, None),
        ("zeros", Some(&[0; 3]), None, Some("null")),
        ("key", None, Some(b"\0"), None),
    ];
    for (id, payload, key, headers) in cases {
        let mut arrival = Arrival::new("b", id);
        (arrival.payload, arrival.key, arrival.headers) = (payload, key, headers);
        session.decided("buffered", &arrival);
    }
    let instance = session
        .decided("process", &Arrival::new("a", "a"))
        .instance();
    for (id, payload, key, headers) in cases {
        // A hand-out that is rolled back takes nothing with it.
        session.begin();
        let first = session.next(instance).expect(id);
        session.rollback();
        let released = session.next(instance).expect(id);
        assert_eq!(released, first);
        assert_eq!((&*released.id, released.payload.as_deref()), (id, payload));
        assert_eq!(released.key.as_deref(), key, "{id}");
        let printed: Option<String> = session.value("SELECT $1::text::jsonb::text", &[&headers]);
        assert_eq!(released.headers, printed, "{id}");
        assert_eq!(released.instance, Some(instance));
        assert_eq!(released.sequence.as_deref(), Some("s"));
        assert_eq!(released.context.as_deref(), Some(CONTEXT));
        assert_eq!((released.position, released.attempts), (None, 0));
        assert!(released.has_buffered_at);
    }
    assert_eq!(count(&mut session, "buffered_message"), 0);
}

#[test]
fn g8_a_payload_of_64_mebibytes_comes_back_after_a_failure_too() {
    let (_database, mut session) = declared(CHAIN);
    // Incompressible, so that it is stored at its full size.
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let payload: Vec<u8> = std::iter::repeat_with(|| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    })
    .take(8 << 20)
    .flatten()
    .collect();
    assert_eq!(payload.len(), 64 << 20);
    let mut arrival = Arrival::new("b", "b");
    arrival.payload = Some(&payload);
    let buffered = session.decided("buffered", &arrival);
    session.decided("process", &Arrival::new("a", "a"));
    session.fail(buffered.message(), "once", Some("0"));
    let released = session.next(buffered.instance).expect("b");
    // Not `assert_eq!`, which would print them.
    assert!(
        released.payload.as_deref() == Some(&*payload),
        "64 MiB are not what they were"
    );
    assert_eq!(released.attempts, 1);
    assert_eq!(count(&mut session, "buffered_message"), 0);
}

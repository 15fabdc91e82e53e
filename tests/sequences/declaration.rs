//! Declaring, replacing and dropping a sequence, and what that does to what waits (G6, G7, G10).

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{Arrival, ISOLATION_LEVELS, Session, blocked, server_error, sqlstate},
};

use super::{CHAIN, all_decided, count, declare, declared};

/// Calls a function with text arguments that must fail: SQLSTATE, message and detail.
#[track_caller]
fn refused(session: &mut Session, sql: &str) -> (String, String) {
    let error = session.query(sql, &[]).expect_err(sql);
    let said = server_error(&error);
    assert!(said.hint().is_some(), "{said:?}");
    (
        said.code().code().to_owned(),
        format!("{} {}", said.message(), said.detail().unwrap_or_default()),
    )
}

#[test]
fn a_declaration_is_refused_with_its_culprit_named() {
    let (_database, mut session) = declared(CHAIN);
    session.decided("buffered", &Arrival::new("c", "c"));
    let failed = session.decided("process", &Arrival::new("a", "a").of("context-2"));
    session.run("SELECT inbox_declare_sequence('taken', '1 day', '[{\"type\": \"other\"}]')");
    let cases = [
        // A type that another sequence has.
        (
            "42710",
            "\"other\" already belongs to sequence \"taken\"",
            r#"[{"type": "other"}]"#,
        ),
        // A type twice.
        (
            "22023",
            "\"x\" is declared twice",
            r#"[{"type": "x"}, {"type": "y"}, {"type": "x"}]"#,
        ),
        // An unknown predecessor, however deep.
        (
            "22023",
            "\"x\" names the unknown predecessor \"nobody\"",
            r#"[{"type": "x", "releaseCondition": {"and": [{"or": [{"predecessor": "nobody"}]}]}}]"#,
        ),
        // One of another sequence is unknown here.
        (
            "22023",
            "names the unknown predecessor \"other\"",
            r#"[{"type": "x", "releaseCondition": {"predecessor": "other"}}]"#,
        ),
        // A cycle, with its path and without what only leads to it.
        (
            "22023",
            "y waits for z waits for y",
            r#"[{"type": "x", "releaseCondition": {"predecessor": "y"}},
                {"type": "y", "releaseCondition": {"and": [{"predecessor": "z"}]}},
                {"type": "z", "releaseCondition": {"or": [{"predecessor": "y"}]}}]"#,
        ),
        (
            "22023",
            "x waits for x",
            r#"[{"type": "x", "releaseCondition": {"predecessor": "x"}}]"#,
        ),
        // An empty and, an empty or.
        (
            "22023",
            "\"x\" has an empty \"and\"",
            r#"[{"type": "x", "releaseCondition": {"and": []}}]"#,
        ),
        (
            "22023",
            "\"x\" has an empty \"or\"",
            r#"[{"type": "x", "releaseCondition": {"or": []}}]"#,
        ),
        // An empty name.
        (
            "22023",
            "number 2 has an empty name",
            r#"[{"type": "x"}, {"type": ""}]"#,
        ),
        // What is not a declaration.
        (
            "22023",
            "unknown field `retries`",
            r#"[{"type": "x", "retries": 3}]"#,
        ),
        ("22023", "missing field `type`", r#"[{"optional": true}]"#),
        (
            "22023",
            "unknown variant `xor`",
            r#"[{"type": "x", "releaseCondition": {"xor": []}}]"#,
        ),
        ("22023", "invalid type", r#"[{"type": 7}]"#),
        (
            "22023",
            "invalid type",
            r#"[{"type": "x", "final": "yes"}]"#,
        ),
        ("22023", "invalid type", r#"{"type": "x"}"#),
        (
            "22023",
            "not a valid array",
            r#"[{"type": "x", "releaseCondition": {"predecessor": "x", "and": []}}]"#,
        ),
    ];
    let before: String = session.value("SELECT string_agg(t::text, ' ') FROM sequence_type t", &[]);
    for (state, culprit, messages) in cases {
        let sql = format!("SELECT inbox_declare_sequence('new', '1 day', '{messages}')");
        let (code, said) = refused(&mut session, &sql);
        assert_eq!(code, state, "{messages}: {said}");
        assert!(said.contains(culprit), "{culprit} is not in: {said}");
    }
    // A type that still has unfinished messages, waiting or failed.
    let (code, said) = refused(
        &mut session,
        r#"SELECT inbox_declare_sequence('s', '1 day', '[{"type": "a"}, {"type": "b"}]')"#,
    );
    assert_eq!((&*code, said.contains("\"c\"")), ("55006", true), "{said}");
    session.run("SELECT inbox_skip(id) FROM sequenced_message WHERE message_type = 'c'");
    session.run(&format!(
        "SELECT inbox_fail('b', 'b', {}, 'broken')",
        failed.instance()
    ));
    let (code, said) = refused(
        &mut session,
        r#"SELECT inbox_declare_sequence('s', '1 day', '[{"type": "a"}]')"#,
    );
    assert_eq!((&*code, said.contains("\"b\"")), ("55006", true), "{said}");
    let after: String = session.value("SELECT string_agg(t::text, ' ') FROM sequence_type t", &[]);
    assert_eq!(after, before, "a refused declaration leaves nothing behind");
    assert_eq!(count(&mut session, "sequence_message_type"), 4);
}

#[test]
fn a_type_whose_messages_are_all_done_can_be_dropped_and_move_to_another_sequence() {
    let (_database, mut session) = declared(CHAIN);
    all_decided(&mut session, "process", &["a", "b"]);
    let skipped = session.decided("buffered", &Arrival::new("c", "c").of("context-2"));
    assert!(session.operate("inbox_skip", skipped.message()));
    declare(&mut session, r#"[{"type": "a"}]"#);
    assert_eq!(
        sqlstate(session.try_receive(&Arrival::new("b", "b-2"))),
        "42704"
    );
    session.run("SELECT inbox_declare_sequence('t', '1 day', '[{\"type\": \"b\"}]')");
    let moved = session.decided("process", &Arrival::new("b", "b-2"));
    let name: String = session.value(
        "SELECT name FROM sequence_instance WHERE id = $1",
        &[&moved.instance()],
    );
    assert_eq!(name, "t");
    // What was taken stays taken, whatever the type belongs to.
    session.decided("duplicate", &Arrival::new("b", "b"));
}

#[test]
fn another_session_uses_a_new_declaration_at_once() {
    let (database, mut session) = declared(r#"[{"type": "a"}, {"type": "b"}]"#);
    let mut other = Session::new(&database);
    // Both have seen the first declaration.
    other.decided("process", &Arrival::new("b", "b-1"));
    declare(&mut session, CHAIN);
    other.decided("buffered", &Arrival::new("b", "b-2"));
    // One that is rolled back was never there.
    session.begin();
    declare(&mut session, r#"[{"type": "b"}]"#);
    session.decided("process", &Arrival::new("b", "b-3"));
    session.rollback();
    session.decided("buffered", &Arrival::new("b", "b-3"));
    other.decided("buffered", &Arrival::new("b", "b-4"));
    // Nor one that only its savepoint is rolled back of.
    session.begin();
    session.run("SAVEPOINT before");
    declare(&mut session, r#"[{"type": "b"}]"#);
    session.decided("process", &Arrival::new("b", "b-5"));
    session.run("ROLLBACK TO before");
    session.decided("buffered", &Arrival::new("b", "b-5"));
    session.commit();
}

#[test]
fn g7_a_redeclaration_makes_ready_what_now_may_go_and_takes_back_what_may_not() {
    let (_database, mut session) = declared(CHAIN);
    let instance = all_decided(&mut session, "buffered", &["b", "c"]);
    declare(
        &mut session,
        r#"[{"type": "a"}, {"type": "b"}, {"type": "c", "releaseCondition": {"predecessor": "b"}}]"#,
    );
    assert_eq!(session.state_of("b").as_deref(), Some("READY"));
    assert_eq!(session.state_of("c").as_deref(), Some("WAITING"));
    // The first declaration is put back before anybody takes it: the order counts again.
    declare(&mut session, CHAIN);
    assert_eq!(session.state_of("b").as_deref(), Some("WAITING"));
    assert_eq!(session.next(instance), None);
    // What an operator has forced stays so.
    let forced: i64 = session.value(
        "SELECT id FROM sequenced_message WHERE message_type = 'c'",
        &[],
    );
    assert!(session.operate("inbox_force", forced));
    declare(
        &mut session,
        r#"[{"type": "b"}, {"type": "a", "releaseCondition": {"predecessor": "b"}},
            {"type": "c", "releaseCondition": {"predecessor": "a"}}]"#,
    );
    assert_eq!(session.drain(instance), ["b", "c"]);
}

#[test]
fn g7_a_redeclaration_that_completes_an_instance_closes_it() {
    let (_database, mut session) = declared(CHAIN);
    let first = session.decided("buffered", &Arrival::new("b", "b"));
    declare(&mut session, r#"[{"type": "b"}]"#);
    assert_eq!(session.drain(first.instance()), ["b"]);
    assert_eq!(session.state_of_instance(first.instance()), "CLOSED");
    // One without anything waiting is closed by housekeeping.
    declare(&mut session, CHAIN);
    let second = session.decided("process", &Arrival::new("a", "a").of("context-2"));
    declare(&mut session, r#"[{"type": "a"}]"#);
    assert_eq!(session.state_of_instance(second.instance()), "OPEN");
    session.run("SELECT * FROM inbox_housekeeping()");
    assert_eq!(session.state_of_instance(second.instance()), "CLOSED");
}

#[test]
fn g7_a_redeclaration_waits_for_handlers_and_judges_what_they_leave() {
    for level in ISOLATION_LEVELS {
        let (database, mut session) = declared(CHAIN);
        let mut other = Session::new(&database);
        // b is being buffered while the declaration changes.
        session.begin();
        session.decided("buffered", &Arrival::new("b", "b"));
        let answer = thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut other, |other| {
                other.begin_at(level);
                let sql = r#"SELECT inbox_declare_sequence('s', '1 day', '[{"type": "b"}]')"#;
                let answer = other.query(sql, &[]).map(drop);
                other.run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" });
                answer
            });
            session.commit();
            waiter.join().unwrap()
        });
        if let Err(error) = answer {
            assert_eq!(server_error(&error).code().code(), "40001", "{level:?}");
            declare(&mut other, r#"[{"type": "b"}]"#);
        }
        assert_eq!(session.next_id(None), "b", "{level:?}");
    }
}

#[test]
fn g7_g10_a_redeclaration_with_an_old_snapshot_misses_nothing_that_waits() {
    let eased = r#"[{"type": "a"}, {"type": "b"}]"#;
    for level in ISOLATION_LEVELS {
        let (database, mut session) = declared(CHAIN);
        let mut other = Session::new(&database);
        other.begin_at(level);
        let buffered = session.decided("buffered", &Arrival::new("b", "b"));
        let sql = format!("SELECT inbox_declare_sequence('s', '1 day', '{eased}')");
        let answer = other.query(&sql, &[]).map(drop);
        other.run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" });
        if let Err(error) = answer {
            assert_eq!(server_error(&error).code().code(), "40001", "{level:?}");
            declare(&mut other, eased);
        }
        assert_eq!(session.drain(buffered.instance()), ["b"], "{level:?}");
        // The same for a type that is dropped under a message it has not seen.
        other.begin_at(level);
        session.decided("process", &Arrival::new("b", "b-2"));
        session.fail(buffered.message(), "too late", None);
        session.run(&format!(
            "SELECT inbox_fail('b', 'b-3', {}, 'broken')",
            buffered.instance()
        ));
        let sql = r#"SELECT inbox_declare_sequence('s', '1 day', '[{"type": "a"}]')"#;
        let code = sqlstate(other.query(sql, &[]).map(drop));
        assert!(["55006", "40001"].contains(&&*code), "{level:?}: {code}");
        other.rollback();
    }
}

#[test]
fn the_same_declaration_again_neither_waits_nor_makes_wait() {
    let (database, mut session) = declared(CHAIN);
    let mut other = Session::new(&database);
    session.begin();
    session.decided("process", &Arrival::new("a", "a"));
    other.run("SET lock_timeout = '5s'");
    declare(&mut other, CHAIN);
    other.begin();
    declare(&mut other, CHAIN);
    session.decided("process", &Arrival::new("b", "b"));
    session.commit();
    other.commit();
    // A different one waits for the handler.
    session.begin();
    session.decided("process", &Arrival::new("c", "c"));
    other.run("SET lock_timeout = '20ms'");
    let different = r#"SELECT inbox_declare_sequence('s', '2 days', '[{"type": "a"}]')"#;
    assert_eq!(sqlstate(other.query(different, &[]).map(drop)), "55P03");
}

#[test]
fn concurrent_declarations_of_a_new_sequence_agree() {
    let database = Database::new();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    for same in [true, false] {
        let name = if same { "same" } else { "different" };
        let declare =
            |types: &str| format!("SELECT inbox_declare_sequence('{name}', '1 day', '{types}')");
        let one = format!(r#"[{{"type": "{name}.a"}}]"#);
        let other = format!(r#"[{{"type": "{name}.a"}}, {{"type": "{name}.b"}}]"#);
        first.begin();
        first.run(&declare(&one));
        let sql = declare(if same { &one } else { &other });
        thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut second, |second| second.run(&sql));
            first.commit();
            waiter.join().unwrap();
        });
        let types: i64 = first.value(
            "SELECT count(*) FROM sequence_message_type WHERE sequence_name = $1",
            &[&name],
        );
        assert_eq!(types, if same { 1 } else { 2 }, "the later one counts");
    }
    // Two sequences that both want a type: one of them is refused.
    first.begin();
    first.run(r#"SELECT inbox_declare_sequence('x', '1 day', '[{"type": "wanted"}]')"#);
    let answer = thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut second, |second| {
            let sql = r#"SELECT inbox_declare_sequence('y', '1 day', '[{"type": "wanted"}]')"#;
            second.query(sql, &[]).map(drop)
        });
        first.commit();
        waiter.join().unwrap()
    });
    assert_eq!(sqlstate(answer), "42710");
    assert_eq!(count(&mut first, "sequence_type WHERE name = 'y'"), 0);
}

#[test]
fn a_new_retention_counts_for_the_instances_that_are_there() {
    let (_database, mut session) = declared(CHAIN);
    let received = session.decided("process", &Arrival::new("a", "a"));
    session.run(&format!(
        "SELECT inbox_declare_sequence('s', '3 days', '{CHAIN}')"
    ));
    let kept: bool = session.value(
        "SELECT retain_until = created_at + interval '3 days' FROM sequence_instance WHERE id = $1",
        &[&received.instance()],
    );
    assert!(kept);
}

#[test]
fn the_ordering_cannot_change_under_unfinished_messages() {
    let (_database, mut session) = declared(CHAIN);
    let position =
        format!("SELECT inbox_declare_sequence('s', '1 day', '{CHAIN}', ordering => 'position')");
    let waiting = session.decided("buffered", &Arrival::new("b", "b"));
    let (code, said) = refused(&mut session, &position);
    assert_eq!((&*code, said.contains("\"s\"")), ("55006", true), "{said}");
    assert!(session.operate("inbox_skip", waiting.message()));
    session.run(&position);
    session.decided("process", &Arrival::at("b", "b-2", 1));
}

#[test]
fn a_sequence_is_dropped_only_without_instances() {
    let (_database, mut session) = declared(CHAIN);
    let received = session.decided("process", &Arrival::new("a", "a"));
    let (code, said) = refused(&mut session, "SELECT inbox_drop_sequence('s')");
    let named = said.contains("\"s\"") && said.contains(&received.instance().to_string());
    assert_eq!((&*code, named), ("2BP01", true), "{said}");
    session.run("DELETE FROM sequence_instance");
    session.run("SELECT inbox_drop_sequence('s')");
    for table in ["sequence_type", "sequence_message_type"] {
        assert_eq!(count(&mut session, table), 0, "{table}");
    }
    assert_eq!(
        sqlstate(session.try_receive(&Arrival::new("a", "a"))),
        "42704"
    );
    // And it can be declared anew.
    declare(&mut session, CHAIN);
    session.decided("process", &Arrival::new("a", "a"));
}

#[test]
fn a_drop_and_a_first_message_exclude_each_other() {
    let (database, mut session) = declared(CHAIN);
    let mut other = Session::new(&database);
    session.begin();
    session.decided("process", &Arrival::new("a", "a"));
    let answer = thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut other, |other| {
            other
                .query("SELECT inbox_drop_sequence('s')", &[])
                .map(drop)
        });
        session.commit();
        waiter.join().unwrap()
    });
    assert_eq!(sqlstate(answer), "2BP01");
    session.run("DELETE FROM sequence_instance");
    other.begin();
    other.run("SELECT inbox_drop_sequence('s')");
    let answer = thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut session, |session| {
            session.try_receive(&Arrival::new("a", "a-2"))
        });
        other.commit();
        waiter.join().unwrap()
    });
    assert_eq!(sqlstate(answer), "42704");
    assert_eq!(count(&mut other, "sequence_instance"), 0);
}

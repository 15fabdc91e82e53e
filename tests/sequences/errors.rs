//! The design's errors for every argument of every function of sequences (G11): no NULL, no empty
//! key and no unknown thing is ever taken for a duplicate or for "nothing to do".

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, server_error},
    start_cluster, wait_for,
};

use super::declared;

const NULL: &str = "22004";
const INVALID: &str = "22023";
const TOO_LONG: &str = "22001";
const UNDECLARED: &str = "42704";
const NO_INSTANCE: &str = "23503";
const READ_ONLY: &str = "25006";

/// One call of each function of sequences that would succeed, but for what it works on.
const CALLS: [&str; 12] = [
    "inbox_declare_sequence('new', '1 day', '[{\"type\": \"n\"}]')",
    "inbox_drop_sequence('s')",
    "inbox_sequence('s', 'c')",
    "inbox_receive('a', '1', 'c')",
    "inbox_next()",
    "inbox_fail('a', '1', 1)",
    "inbox_fail_message(1)",
    "inbox_retry(1)",
    "inbox_force(1)",
    "inbox_skip(1)",
    "inbox_force_all(1)",
    "inbox_close(1)",
];

/// Sequence `s` by conditions with type `a`, sequence `p` by position with type `p`.
fn setup() -> (Database, Session) {
    let (database, mut session) = declared(r#"[{"type": "a"}]"#);
    session.run(
        r#"SELECT inbox_declare_sequence('p', '1 day', '[{"type": "p"}]', ordering => 'position')"#,
    );
    (database, session)
}

/// Each call must fail with that SQLSTATE, name what is wrong, and say what to do.
#[track_caller]
fn all_refused(session: &mut Session, cases: &[(&str, &str, &str)]) {
    for (call, code, said) in cases {
        let sql = format!("SELECT * FROM {call}");
        let error = session.client().simple_query(&sql).expect_err(&sql);
        let error = server_error(&error);
        assert_eq!(error.code().code(), *code, "{call}: {error}");
        assert!(
            error.message().contains(said),
            "{call}: {said} is not in: {error}"
        );
        assert!(error.hint().is_some(), "{call}: no hint: {error:?}");
    }
    let rows: i64 = session.value(
        "SELECT (SELECT count(*) FROM sequence_instance) + (SELECT count(*) FROM sequenced_message)
              + (SELECT count(*) FROM sequential_inbox_idempotence)",
        &[],
    );
    assert_eq!(rows, 0, "a refused call leaves nothing behind");
}

#[test]
fn g11_inbox_declare_sequence_checks_every_argument() {
    let (_database, mut session) = setup();
    let long = "repeat('é', 257)";
    all_refused(
        &mut session,
        &[
            (
                "inbox_declare_sequence(NULL, '1 day')",
                NULL,
                "sequence_name",
            ),
            (
                "inbox_declare_sequence('', '1 day')",
                INVALID,
                "sequence_name",
            ),
            (
                &format!("inbox_declare_sequence({long}, '1 day')"),
                TOO_LONG,
                "sequence_name",
            ),
            ("inbox_declare_sequence('n', NULL)", NULL, "retention"),
            ("inbox_declare_sequence('n', '0')", INVALID, "retention"),
            ("inbox_declare_sequence('n', '-1 day')", INVALID, "-1 days"),
            (
                "inbox_declare_sequence('n', '1 day', NULL)",
                NULL,
                "messages",
            ),
            (
                "inbox_declare_sequence('n', '1 day', 'null')",
                INVALID,
                "messages",
            ),
            (
                &format!(
                    "inbox_declare_sequence('n', '1 day',
                         jsonb_build_array(jsonb_build_object('type', {long})))"
                ),
                TOO_LONG,
                "message type",
            ),
            (
                "inbox_declare_sequence('n', '1 day', ordering => NULL)",
                NULL,
                "ordering",
            ),
            (
                "inbox_declare_sequence('n', '1 day', ordering => 'random')",
                INVALID,
                "random",
            ),
            (
                "inbox_declare_sequence('n', '1 day', ordering => 'POSITION')",
                INVALID,
                "POSITION",
            ),
            (
                "inbox_declare_sequence('n', '1 day', on_failure => NULL)",
                NULL,
                "on_failure",
            ),
            (
                "inbox_declare_sequence('n', '1 day', on_failure => 'explode')",
                INVALID,
                "explode",
            ),
            (
                "inbox_declare_sequence('n', '1 day', expiry_grace => NULL)",
                NULL,
                "expiry_grace",
            ),
            (
                "inbox_declare_sequence('n', '1 day', expiry_grace => '-1s')",
                INVALID,
                "-00:00:01",
            ),
        ],
    );
    // recording_until may be NULL, or over.
    session.run("SELECT inbox_declare_sequence('n', '1 day', recording_until => NULL)");
    session.run("SELECT inbox_declare_sequence('n', '1 day', recording_until => '-infinity')");
    session.run("SELECT inbox_declare_sequence('n', '1 day', recording_until => 'infinity')");
}

#[test]
fn g11_inbox_drop_sequence_checks_its_argument() {
    let (_database, mut session) = setup();
    all_refused(
        &mut session,
        &[
            ("inbox_drop_sequence(NULL)", NULL, "sequence_name"),
            ("inbox_drop_sequence('')", INVALID, "sequence_name"),
            (
                "inbox_drop_sequence(repeat('n', 513))",
                TOO_LONG,
                "sequence_name",
            ),
            ("inbox_drop_sequence('nobody')", UNDECLARED, "nobody"),
        ],
    );
}

#[test]
fn g11_inbox_sequence_checks_every_argument() {
    let (_database, mut session) = setup();
    all_refused(
        &mut session,
        &[
            ("inbox_sequence(NULL, 'c')", NULL, "sequence_name"),
            ("inbox_sequence('', 'c')", INVALID, "sequence_name"),
            (
                "inbox_sequence(repeat('n', 513), 'c')",
                TOO_LONG,
                "sequence_name",
            ),
            ("inbox_sequence('nobody', 'c')", UNDECLARED, "nobody"),
            ("inbox_sequence('s', NULL)", NULL, "context_id"),
            ("inbox_sequence('s', '')", INVALID, "context_id"),
            (
                "inbox_sequence('s', repeat('c', 1025))",
                TOO_LONG,
                "context_id",
            ),
        ],
    );
}

#[test]
fn g11_inbox_receive_checks_every_argument() {
    let (_database, mut session) = setup();
    all_refused(
        &mut session,
        &[
            ("inbox_receive(NULL, '1', 'c')", NULL, "message_type"),
            ("inbox_receive('', '1', 'c')", INVALID, "message_type"),
            (
                "inbox_receive(repeat('t', 513), '1', 'c')",
                TOO_LONG,
                "message_type",
            ),
            ("inbox_receive('nobody', '1', 'c')", UNDECLARED, "nobody"),
            ("inbox_receive('nobody', '1', NULL)", UNDECLARED, "nobody"),
            ("inbox_receive('a', NULL, 'c')", NULL, "idempotence_id"),
            ("inbox_receive('a', NULL, NULL)", NULL, "idempotence_id"),
            ("inbox_receive('a', '', 'c')", INVALID, "idempotence_id"),
            (
                "inbox_receive('a', repeat('i', 1025), 'c')",
                TOO_LONG,
                "idempotence_id",
            ),
            // It would compress, and is refused all the same.
            (
                "inbox_receive('a', repeat('i', 100000), 'c')",
                TOO_LONG,
                "idempotence_id",
            ),
            ("inbox_receive('a', '1', '')", INVALID, "context_id"),
            (
                "inbox_receive('a', '1', repeat('c', 1025))",
                TOO_LONG,
                "context_id",
            ),
            ("inbox_receive('a', '1', 'c', wait => NULL)", NULL, "wait"),
            (
                "inbox_receive('a', '1', 'c', \"position\" => 0)",
                INVALID,
                "0",
            ),
            ("inbox_receive('p', '1', 'c')", NULL, "position"),
            (
                "inbox_receive('p', '1', 'c', \"position\" => 0)",
                INVALID,
                "0",
            ),
            (
                "inbox_receive('p', '1', 'c', \"position\" => -3)",
                INVALID,
                "-3",
            ),
            (
                "inbox_receive('p', '1', 'c', wait => false)",
                NULL,
                "position",
            ),
        ],
    );
    // The longest that are allowed are.
    let longest = "i".repeat(1024);
    session.decided("process", &Arrival::new("a", &longest).of(&longest));
    session.decided("duplicate", &Arrival::new("a", &longest).of(&longest));
    session.decided("process", &Arrival::at("p", "1", 1));
}

#[test]
fn g11_inbox_next_knows_no_instance_that_is_not_there() {
    let (_database, mut session) = setup();
    all_refused(&mut session, &[("inbox_next(4711)", NO_INSTANCE, "4711")]);
    let instance: i64 = session.value("SELECT inbox_sequence('s', 'c')", &[]);
    assert_eq!(session.next(instance), None);
    session.run("DELETE FROM sequence_instance");
    all_refused(
        &mut session,
        &[(
            &format!("inbox_next({instance})"),
            NO_INSTANCE,
            &instance.to_string(),
        )],
    );
}

#[test]
fn g11_inbox_fail_and_inbox_fail_message_check_every_argument() {
    let (_database, mut session) = setup();
    all_refused(
        &mut session,
        &[
            ("inbox_fail(NULL, '1', 1)", NULL, "message_type"),
            ("inbox_fail('', '1', 1)", INVALID, "message_type"),
            (
                "inbox_fail(repeat('t', 513), '1', 1)",
                TOO_LONG,
                "message_type",
            ),
            ("inbox_fail('a', NULL, 1)", NULL, "idempotence_id"),
            ("inbox_fail('a', '', 1)", INVALID, "idempotence_id"),
            (
                "inbox_fail('a', repeat('i', 1025), 1)",
                TOO_LONG,
                "idempotence_id",
            ),
            ("inbox_fail('a', '1', 4711)", NO_INSTANCE, "4711"),
            (
                "inbox_fail('a', '1', 4711, 'e', '-1s', 'p')",
                INVALID,
                "-00:00:01",
            ),
            ("inbox_fail('a', '1', NULL, 'e', '1s')", NULL, "payload"),
            ("inbox_fail_message(NULL)", NULL, "message_id"),
            ("inbox_fail_message(4711, 'e', '-1s')", INVALID, "-00:00:01"),
        ],
    );
    // A message that is not there is an answer, not an error.
    assert!(!session.fail(4711, "e", None));
    assert!(!session.fail(4711, "e", Some("1s")));
}

#[test]
fn g11_the_operator_functions_check_their_argument() {
    let (_database, mut session) = setup();
    for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
        all_refused(
            &mut session,
            &[(&format!("{function}(NULL)"), NULL, "message_id")],
        );
        assert!(!session.operate(function, 4711), "{function}");
    }
    for function in ["inbox_skip_gap", "inbox_force_all", "inbox_close"] {
        all_refused(
            &mut session,
            &[
                (&format!("{function}(NULL)"), NULL, "sequence_instance_id"),
                (&format!("{function}(4711)"), NO_INSTANCE, "4711"),
            ],
        );
    }
    let instance: i64 = session.value("SELECT inbox_sequence('s', 'c')", &[]);
    let error = session.try_operate("inbox_skip_gap", instance).unwrap_err();
    let said = server_error(&error);
    assert_eq!(
        (said.code().code(), said.message().contains("\"s\"")),
        (INVALID, true),
        "{said}"
    );
}

#[test]
fn g11_an_offending_value_is_cut_at_100_characters() {
    let (_database, mut session) = setup();
    for (sql, shown) in [
        ("SELECT inbox_drop_sequence(repeat('é', 200))", 'é'),
        (
            "SELECT * FROM inbox_receive(repeat('t', 500), '1', 'c')",
            't',
        ),
        (
            "SELECT * FROM inbox_receive('a', repeat('i', 9000), 'c')",
            'i',
        ),
        (
            "SELECT inbox_declare_sequence('n', '1 day', ordering => repeat('x', 5000))",
            'x',
        ),
    ] {
        let error = session.client().simple_query(sql).expect_err(sql);
        let said = server_error(&error).message();
        let cut: String = std::iter::repeat_n(shown, 100).collect();
        assert!(said.contains(&format!("\"{cut}...\"")), "{said}");
        assert!(!said.contains(&format!("{cut}{shown}")), "{said}");
    }
}

#[test]
fn g11_every_function_refuses_a_read_only_transaction() {
    let (_database, mut session) = setup();
    for call in CALLS
        .into_iter()
        .chain(["inbox_skip_gap(1)", "inbox_next(1)"])
    {
        session.run("BEGIN READ ONLY");
        let sql = format!("SELECT * FROM {call}");
        let error = session.client().simple_query(&sql).expect_err(&sql);
        let said = server_error(&error);
        let function = &call[..call.find('(').expect("a call") + 1];
        assert_eq!(said.code().code(), READ_ONLY, "{call}: {said}");
        assert!(said.message().contains(function), "{call}: {said}");
        assert!(
            said.hint().is_some_and(|hint| hint.contains("READ WRITE")),
            "{said:?}"
        );
        session.rollback();
    }
}

#[test]
fn g11_every_function_refuses_a_standby_and_the_views_do_not() {
    let primary = start_cluster();
    let database = Database::on(&primary);
    let mut session = Session::new(&database);
    super::declare(&mut session, super::CHAIN);
    session.decided("buffered", &Arrival::new("b", "b"));
    let standby = primary.standby().expect("a standby");
    let mut there = Session::with(standby.dsn_of(database.name()).parse().expect("a dsn"));
    for call in CALLS {
        let sql = format!("SELECT * FROM {call}");
        let error = there.client().simple_query(&sql).expect_err(&sql);
        let said = server_error(&error);
        assert_eq!(said.code().code(), READ_ONLY, "{call}: {said}");
        assert!(
            said.detail().is_some_and(|it| it.contains("standby")),
            "{said:?}"
        );
        assert!(
            said.hint().is_some_and(|it| it.contains("primary")),
            "{said:?}"
        );
    }
    wait_for("the standby to show the instance", || {
        let waiting: i64 = there.value(
            "SELECT coalesce(sum(waiting), 0)::bigint FROM inbox_sequences",
            &[],
        );
        (waiting == 1).then_some(())
    });
}

#[test]
fn g11_a_library_that_is_newer_than_the_schema_says_so() {
    let (database, mut session) = setup();
    session.decided("process", &Arrival::new("a", "a"));
    // A column that an older version of the extension would not have.
    session.run("ALTER TABLE sequence_instance RENAME COLUMN revision TO older");
    let mut fresh = Session::new(&database);
    for call in [
        "inbox_receive('a', '2', 'context-1')",
        "inbox_close(1)",
        "inbox_retry(1)",
    ] {
        let sql = format!("SELECT * FROM {call}");
        let error = fresh.client().simple_query(&sql).expect_err(&sql);
        let said = server_error(&error);
        assert_eq!(said.code().code(), "55000", "{said}");
        let hint = said.hint().unwrap_or_default();
        assert!(
            hint.contains("ALTER EXTENSION sequential_inbox UPDATE"),
            "{said:?}"
        );
    }
}

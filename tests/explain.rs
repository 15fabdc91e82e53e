//! The plans of the statements on a message's way, with a million messages stored: by index, never
//! by scanning a table, whatever the planner was told of the tables' sizes (G7, and the speed that
//! does not fall with what is stored).
//!
//! `auto_explain` sends the plan of each statement inside of the functions to the client as a
//! notice.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
};
use postgres::Config;

/// Two sequences, one of each ordering. No vacuum and no analyze comes in between.
const DECLARE: &str = r#"
    SELECT inbox_declare_sequence('conditions', '1 year', '[{"type": "first"},
        {"type": "second", "releaseCondition": {"predecessor": "first"}},
        {"type": "third", "optional": true, "releaseCondition": {"and": [{"predecessor": "first"},
            {"or": [{"predecessor": "second"}, {"predecessor": "fourth"}]}]}},
        {"type": "fourth", "optional": true}]');
    SELECT inbox_declare_sequence('position', '1 year',
        '[{"type": "step"}, {"type": "last", "final": true}]', ordering => 'position');
    ALTER TABLE sequence_instance SET (autovacuum_enabled = off);
    ALTER TABLE sequenced_message SET (autovacuum_enabled = off);
    ALTER TABLE sequential_inbox_idempotence SET (autovacuum_enabled = off);
    ALTER TABLE buffered_message SET (autovacuum_enabled = off);
"#;

/// A million processed messages with their claims in a thousand instances, half of them by
/// position, and ten thousand that wait, are ready or have failed, with their payloads. Foreign
/// keys are not checked one by one here.
const FILL: &str = r#"
    SET auto_explain.log_min_duration = -1;
    SET session_replication_role = replica;
    INSERT INTO sequence_instance (name, context_id, retain_until, next_position)
        SELECT name, 'stored ' || n, clock_timestamp() + interval '1 year', 1001
        FROM (VALUES ('conditions'), ('position')) AS s (name), generate_series(1, 500) AS n;
    CREATE TEMPORARY TABLE instance AS
        SELECT id, name, row_number() OVER (ORDER BY id) AS number FROM sequence_instance
        WHERE context_id LIKE 'stored %';
    INSERT INTO sequenced_message (message_type, idempotence_id, sequence_instance_id,
                                   "position", state, next_attempt_at)
        SELECT CASE WHEN i.name = 'position' THEN 'step' WHEN n % 2 = 0 THEN 'first' ELSE 'second' END,
               i.number || '/' || n, i.id, CASE WHEN i.name = 'position' THEN n END,
               CASE WHEN n <= 1000 THEN 'PROCESSED' WHEN n % 5 = 0 THEN 'READY'
                    WHEN n % 5 < 3 THEN 'WAITING' ELSE 'FAILED' END,
               CASE WHEN n > 1000 AND n % 5 = 4
                    THEN clock_timestamp() + interval '1 day' END
        FROM instance i, generate_series(1, 1010) AS n;
    INSERT INTO sequential_inbox_idempotence (message_type, idempotence_id, sequence_instance_id)
        SELECT message_type, idempotence_id, sequence_instance_id FROM sequenced_message
        WHERE state <> 'FAILED' AND sequence_instance_id IN (SELECT id FROM instance);
    INSERT INTO buffered_message (message_id, payload)
        SELECT id, 'payload' FROM sequenced_message WHERE state NOT IN ('PROCESSED', 'SKIPPED')
            AND sequence_instance_id IN (SELECT id FROM instance);
    RESET session_replication_role;
    SET auto_explain.log_min_duration = 0;
"#;

/// What makes every nested statement's plan a notice. Sequential scans stay allowed: the planner
/// must not want one.
const WATCH: &str = "LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0;
    SET auto_explain.log_nested_statements = on;
    SET auto_explain.log_analyze = on;
    SET auto_explain.log_timing = off;
    SET auto_explain.log_level = notice;
    SET client_min_messages = notice";

/// How many rows a statement may look at, where each instance has a thousand messages and ten that
/// are not done.
const MOST_ROWS: u64 = 20;

/// The tables that grow with the messages.
const TABLES: [&str; 4] = [
    "sequenced_message",
    "sequence_instance",
    "sequential_inbox_idempotence",
    "buffered_message",
];

/// The plans that a session was sent.
type Plans = Arc<Mutex<Vec<String>>>;

/// A session that keeps the plans of all that it runs.
fn explained(database: &Database) -> (Session, Plans) {
    let plans = Plans::default();
    let kept = Arc::clone(&plans);
    let mut config: Config = database.dsn().parse().expect("a connection string");
    config.notice_callback(move |notice| kept.lock().unwrap().push(notice.message().to_owned()));
    let mut session = Session::with(config);
    session.run(WATCH);
    (session, plans)
}

/// The lines of a plan that read one of the tables from its beginning to its end.
fn scans(plan: &str) -> Vec<&str> {
    plan.lines()
        .filter(|line| line.contains("Seq Scan on"))
        .filter(|line| TABLES.iter().any(|table| line.contains(table)))
        .collect()
}

/// The largest number of rows that a node of the plan read or threw away.
fn most_rows(plan: &str) -> u64 {
    let number = |line: &str, before: &str| -> Option<u64> {
        let rest = &line[line.find(before)? + before.len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    let rows = |line| number(line, "(actual rows=").max(number(line, "Rows Removed by Filter: "));
    plan.lines().filter_map(rows).max().unwrap_or(0)
}

/// Takes messages along every way through the inbox, in these contexts and in one that is new.
/// `tour` makes the ids its own.
fn tour(session: &mut Session, tour: &str, contexts: &[&str]) {
    let new = format!("new in {tour}");
    for context in contexts.iter().copied().chain([&*new]) {
        let id = |name: &str| format!("{name} of {context} in {tour}");
        let by_condition = |name: &'static str| (name, id(name));
        let receive =
            |session: &mut Session, (name, id): &(&str, String), position: Option<i64>| {
                let mut arrival = Arrival::new(name, id).of(context);
                arrival.position = position;
                session.receive(&arrival)
            };
        // By conditions: one that waits or goes, what it waits for, duplicates of both.
        let second = receive(session, &by_condition("second"), None);
        let third = receive(session, &by_condition("third"), None);
        receive(session, &by_condition("first"), None);
        receive(session, &by_condition("first"), None);
        receive(session, &by_condition("second"), None);
        // A handler fails: for good, and until it is due; a resend; the operator's hand.
        session.begin();
        let released = session.next(second.instance);
        session.rollback();
        if let Some(released) = released {
            session.fail(released.message, "broken", Some("0"));
        }
        while session.next(second.instance).is_some() {}
        for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
            session.operate(function, third.message());
        }
        // By position: a gap, one that fills it, one that is taken, one that comes too late.
        let next: i64 = session.value(
            "SELECT coalesce(max(next_position), 1) FROM sequence_instance
             WHERE name = 'position' AND context_id = $1",
            &[&context],
        );
        let step = |n: i64| ("step", id(&format!("step {n}")));
        let waiting = receive(session, &step(2), Some(next + 2));
        receive(session, &step(0), Some(next));
        receive(session, &step(3), Some(next + 2));
        session.fail(waiting.message(), "broken", None);
        receive(session, &step(2), Some(next + 2));
        session.operate("inbox_skip_gap", waiting.instance());
        receive(session, &step(1), Some(next + 1));
        while session.next(waiting.instance).is_some() {}
        // A message whose record went with the rollback, and direct claims.
        for sql in [
            "SELECT inbox_fail('step', $1 || ' failed', $2, 'broken', '0', 'payload')::text",
            "SELECT inbox_claim('step', $1 || ' claimed', $2)::text",
            "SELECT inbox_try_claim('step', $1 || ' claimed', $2)",
            "SELECT inbox_fail('step', $1 || ' claimed', $2)::text",
            "SELECT count(*)::text FROM inbox_lookup('step', $1) WHERE $2::bigint IS NOT NULL",
        ] {
            session.value::<String>(sql, &[&id("step"), &waiting.instance]);
        }
    }
    // The sweeper.
    for _ in 0..5 {
        session.begin();
        let released = session.next(None);
        session.rollback();
        if let Some(released) = released {
            session.fail(released.message, "broken", Some("0"));
        }
        session.next(None);
    }
}

/// Fails when a plan reads a table as a whole, or when what should have been planned was not.
#[track_caller]
fn by_index_alone(case: &str, plans: &Plans) {
    let plans = plans.lock().unwrap();
    let scanning: Vec<&String> = plans
        .iter()
        .filter(|plan| !scans(plan).is_empty())
        .collect();
    assert!(
        scanning.is_empty(),
        "{case}: {} of {} plans read a table as a whole: {scanning:#?}",
        scanning.len(),
        plans.len()
    );
    // An index that is read from one end to the other is no better.
    let greedy: Vec<&String> = plans
        .iter()
        .filter(|plan| most_rows(plan) > MOST_ROWS)
        .collect();
    assert!(
        greedy.is_empty(),
        "{case}: too many rows are read: {greedy:#?}"
    );
    for table in TABLES {
        // An index scan names the table, a bitmap scan its index, which begins with the same name.
        let reads = |line: &str| line.contains("Index") && line.contains(&format!(" on {table}"));
        assert!(
            plans.iter().any(|plan| plan.lines().any(reads)),
            "{case}: no plan of {} reads {table} by index",
            plans.len()
        );
    }
}

/// `make test` leaves these out, and says so, where Postgres comes without `auto_explain`.
mod needs_auto_explain {
    use super::*;

    #[test]
    fn a_sequential_scan_would_be_seen() {
        let database = Database::new();
        let (mut session, plans) = explained(&database);
        session.run("SELECT count(*) FROM sequenced_message WHERE last_error = 'x'");
        let plans = plans.lock().unwrap();
        assert!(
            plans.iter().any(|plan| !scans(plan).is_empty()),
            "{plans:#?}"
        );
    }

    #[test]
    fn with_a_million_messages_no_statement_on_a_messages_way_scans_a_table() {
        let database = Database::new();
        // What a session has planned while the tables were empty it keeps.
        let (mut early, of_early) = explained(&database);
        early.run(DECLARE);
        tour(&mut early, "the empty database", &[]);
        early.run(FILL);
        tour(&mut early, "an old session", &["stored 1"]);
        by_index_alone("planned while the tables were empty", &of_early);
        // Right after a restore, say, nothing is known of the tables.
        let (mut session, plans) = explained(&database);
        tour(&mut session, "without statistics", &["stored 2"]);
        by_index_alone("without statistics", &plans);
        database.execute("ANALYZE");
        let (mut session, plans) = explained(&database);
        tour(&mut session, "with statistics", &["stored 3"]);
        by_index_alone("with statistics", &plans);
        // And with thousands of failures that are due again.
        database.execute(
            "UPDATE sequenced_message SET next_attempt_at = next_attempt_at - interval '2 days'
             WHERE next_attempt_at > clock_timestamp()",
        );
        database.execute("ANALYZE");
        let (mut session, plans) = explained(&database);
        tour(&mut session, "with failures that are due", &["stored 4"]);
        by_index_alone("with failures that are due", &plans);
        let stored: i64 = session.value("SELECT count(*) FROM sequenced_message", &[]);
        assert!(stored > 1_000_000, "{stored}");
    }
}

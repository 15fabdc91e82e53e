//! CREATE EXTENSION and DROP EXTENSION, over and over: whole, in a schema, with CASCADE, rolled back,
//! failing in the middle. Nothing is left in the catalogs, and the session that does it grows by no
//! more than Postgres lets it (G13).

use std::collections::BTreeMap;

use inbox_test_support::{
    Database,
    inbox::{Session, sqlstate},
};

use crate::backend::{Held, largest_contexts};

/// How many times a round of [`every_way`] installs it.
const INSTALLATIONS: usize = 6;

/// How many rounds there are until the session's caches have their size.
const WARM_UP: usize = 6;

/// By how much what a session uses may grow with each installation after that, in kilobytes. Postgres
/// itself remembers of each table that was dropped that it is not there: a loop over twelve plain
/// tables keeps 14 kB a round, one over this extension 18, with or without its use.
const GROWTH_KB_EACH: i64 = 30;

/// The same for what it has from the system. Postgres doubles the blocks of its caches and returns
/// none.
const PRIVATE_GROWTH_KB: i64 = 16 * 1024;

/// How many sessions take turns, and how many installations each makes.
const SESSIONS: usize = 4;
const EACH: usize = 25;

/// How many rows each system catalog has that are this database's, but for statistics, which ANALYZE
/// writes when it likes.
fn catalogs(session: &mut Session) -> BTreeMap<String, i64> {
    let query: String = session.value(
        "SELECT string_agg(format('SELECT %L::text, count(*) FROM %s', relname, oid::regclass),
            ' UNION ALL ' ORDER BY relname)
            || ' UNION ALL SELECT ''pg_shdepend'', count(*) FROM pg_shdepend
                WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())'
         FROM pg_class
         WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
           AND NOT relisshared AND relname NOT LIKE 'pg_statistic%'",
        &[],
    );
    let rows = session.query(&query, &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Calls of plain consumers, which need no foreign key.
const PLAIN: &str = "
    SELECT inbox_claim('billing', 'evt-1'), inbox_try_claim('billing', 'evt-2');
    SELECT inbox_claim_batch('billing', '{a,b,a}');
    SELECT inbox_annotate('billing', 'a', '{}'), inbox_release('billing', 'b');
    SELECT inbox_lookup('billing', 'a');
    SELECT * FROM inbox_settings";

/// A call of every part that keeps something for the session.
const ALL: &str = r#"
    SELECT inbox_claim('billing', 'evt-1'), inbox_try_claim('billing', 'evt-2');
    SELECT inbox_declare_sequence('s', '1 day', '[{"type": "a"}]');
    SELECT inbox_receive('a', '1', 'context', '\x00');
    SELECT inbox_next();
    SELECT inbox_fail('a', '2', inbox_sequence('s', 'context'), 'broken');
    SELECT inbox_lookup('a', '1');
    SELECT inbox_housekeeping()"#;

/// Installs it and drops it in each of the ways there are, using it meanwhile.
fn every_way(session: &mut Session, usage: &str) {
    session.run("CREATE EXTENSION sequential_inbox");
    session.run(usage);
    session.run("DROP EXTENSION sequential_inbox");

    // In a schema of its own, which takes it along; a view of somebody's goes with it.
    session.run(
        "CREATE SCHEMA box; CREATE EXTENSION sequential_inbox SCHEMA box; SET search_path = box, public",
    );
    session.run(usage);
    session.run("CREATE VIEW public.waiting AS SELECT * FROM box.inbox_sequences");
    let depended = session
        .client()
        .batch_execute("DROP EXTENSION sequential_inbox");
    assert_eq!(sqlstate(depended), "2BP01");
    session.run("DROP EXTENSION sequential_inbox CASCADE; RESET search_path; DROP SCHEMA box");
    session.run(
        "CREATE SCHEMA box; CREATE EXTENSION sequential_inbox SCHEMA box; DROP SCHEMA box CASCADE",
    );

    // Not at all: rolled back before, after and between its use.
    session.run("BEGIN; CREATE EXTENSION sequential_inbox");
    session.run(usage);
    session.run("ROLLBACK");
    session.run("CREATE EXTENSION sequential_inbox");
    session.run("BEGIN; DROP EXTENSION sequential_inbox; ROLLBACK");
    session.run(usage);
    session.run("DROP EXTENSION sequential_inbox");

    // Failing in the middle of its script: somebody has a table of the name of one that comes late.
    session.run("CREATE TABLE inbox_worker_status ()");
    let refused = session
        .client()
        .batch_execute("CREATE EXTENSION sequential_inbox");
    assert_eq!(sqlstate(refused), "42P07");
    session.run("DROP TABLE inbox_worker_status");
}

#[test]
fn g13_installing_and_dropping_leaves_nothing_in_the_catalogs() {
    let database = Database::bare();
    let mut session = Session::new(&database);
    let before = catalogs(&mut session);
    every_way(&mut session, ALL);
    let kept = own_plans(&mut session);
    assert!(kept > 5, "{kept} plans");
    for _ in 0..5 {
        every_way(&mut session, ALL);
    }
    assert_eq!(catalogs(&mut session), before);
    assert_eq!(own_plans(&mut session), kept);
}

/// The plans that the session keeps, but for those of foreign keys: Postgres never forgets one of a
/// key that was dropped, whoever's it was.
fn own_plans(session: &mut Session) -> i64 {
    session.value(
        "SELECT count(*) FROM pg_backend_memory_contexts
         WHERE name = 'CachedPlanSource' AND ident !~ '^(SELECT 1|DELETE) FROM ONLY '",
        &[],
    )
}

#[test]
fn g13_a_session_that_installs_and_drops_it_keeps_nothing_of_it() {
    let database = Database::bare();
    let mut session = Session::new(&database);
    // What Postgres compiles of a query it never returns to the system.
    session.run("SET jit = off");
    for _ in 0..WARM_UP {
        every_way(&mut session, PLAIN);
    }
    let warm = Held::by(&mut session);
    let rounds = 200_usize.div_ceil(INSTALLATIONS) - WARM_UP;
    for _ in 0..rounds {
        every_way(&mut session, PLAIN);
    }
    let after = Held::by(&mut session);
    let limit = GROWTH_KB_EACH * i64::try_from(rounds * INSTALLATIONS).unwrap();
    assert!(
        after.private_kb - warm.private_kb < PRIVATE_GROWTH_KB
            && after.contexts_kb - warm.contexts_kb < limit,
        "{warm:?}, then {after:?}\n{}",
        largest_contexts(&mut session)
    );
    assert!(after.files <= warm.files + 10, "{warm:?}, then {after:?}");
    assert!(
        after.deleted_files <= warm.deleted_files + 2,
        "{warm:?}, then {after:?}"
    );
}

/// Several sessions use it by turns while it comes and goes: each finds it as it is now.
#[test]
fn g13_several_sessions_follow_it_as_it_comes_and_goes() {
    let database = Database::bare();
    let mut observer = Session::new(&database);
    let before = catalogs(&mut observer);
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| Session::new(&database)).collect();
    for round in 0..SESSIONS * EACH {
        sessions[round % SESSIONS].run("CREATE EXTENSION sequential_inbox");
        // The one that made it, one that has seen an earlier one, and one that is new to it.
        for user in [round, round + 1, round + 2] {
            sessions[user % SESSIONS].run(&format!(
                "SELECT inbox_claim('billing', 'evt-{user}');
                 SELECT inbox_declare_sequence('s', '1 day', '[{{\"type\": \"a\"}}]');
                 SELECT inbox_receive('a', '{user}', 'context')"
            ));
        }
        let counted: (i64, i64) = (
            observer
                .client()
                .query_one("SELECT count(*) FROM inbox_claims", &[])
                .unwrap()
                .get(0),
            observer
                .client()
                .query_one("SELECT count(*) FROM sequence_instance", &[])
                .unwrap()
                .get(0),
        );
        assert_eq!(counted, (6, 1));
        sessions[(round + 3) % SESSIONS].run("DROP EXTENSION sequential_inbox");
    }
    assert_eq!(catalogs(&mut observer), before);
}

//! What is left of the extension after it was dropped: nothing (G13, G14).

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, sqlstate},
    retention::{CONSUMER, claim, housekeep, rotate, try_claim},
};

use super::{PAIR, declare};

/// How many rows each catalog has of this database, so that what is left behind shows.
#[track_caller]
fn catalogs(session: &mut Session) -> Vec<String> {
    // One statement, so one snapshot.
    let counts: String = session.value(
        "SELECT string_agg(format('SELECT %L, count(*) FROM pg_catalog.%I', relname, relname),
                           ' UNION ALL ' ORDER BY relname)
         FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
           AND NOT relisshared AND relname <> 'pg_statistic'",
        &[],
    );
    // A role's right to use the schema is the schema's, not the extension's.
    session.value(
        &format!(
            "SELECT array_agg(format('%s: %s', catalog, n) ORDER BY catalog) FROM (
                {counts}
                UNION ALL
                SELECT 'shared dependencies', count(*) FROM pg_shdepend
                WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND classid <> 'pg_namespace'::regclass
             ) AS each (catalog, n)"
        ),
        &[],
    )
}

/// Uses every part of the extension.
fn use_all(session: &mut Session, role: &str) {
    for access in ["consumer", "operator", "monitor"] {
        session.run(&format!("SELECT inbox_grant('{role}', '{access}')"));
    }
    declare(session, "1 day", PAIR);
    session.decided("buffered", &Arrival::new("b", "b"));
    assert!(claim(session, "m"));
    assert!(session.value::<bool>("SELECT inbox_fail($1, 'n')", &[&CONSUMER]));
    for _ in 0..3 {
        rotate(session);
    }
}

#[test]
fn g13_drop_extension_cascade_leaves_nothing_behind() {
    let database = Database::bare();
    let mut session = Session::new(&database);
    let role = format!("{}_role", database.name());
    session.run(&format!("CREATE ROLE {role}; CREATE SCHEMA mine"));
    let before = catalogs(&mut session);
    for schema in ["public", "mine"] {
        session.run(&format!(
            "CREATE EXTENSION sequential_inbox SCHEMA {schema}; SET search_path = {schema}"
        ));
        assert_ne!(catalogs(&mut session), before);
        use_all(&mut session, &role);
        // What others have built on it goes too, and nothing else of theirs.
        session.run(
            "CREATE VIEW public.report AS SELECT count(*) FROM inbox_claims;
             CREATE TABLE public.copied AS SELECT * FROM inbox_claims;
             DROP EXTENSION sequential_inbox CASCADE",
        );
        let copied: i64 = session.value("SELECT count(*) FROM public.copied", &[]);
        assert_eq!(copied, 1);
        session.run("DROP TABLE public.copied");
        assert_eq!(catalogs(&mut session), before, "in schema {schema}");
        let locks: i64 = session.value(
            "SELECT count(*) FROM pg_locks
             WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND pid <> pg_backend_pid()",
            &[],
        );
        assert_eq!(locks, 0);
    }
    session.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// Settings and what a session has cached do not stand in the way of a new start.
#[test]
fn g13_a_session_outlives_drop_and_create() {
    let database = Database::new();
    let mut session = Session::new(&database);
    let role = format!("{}_role", database.name());
    session.run(&format!("CREATE ROLE {role}"));
    use_all(&mut session, &role);
    session.run("DROP EXTENSION sequential_inbox CASCADE");
    assert_eq!(sqlstate(try_claim(&mut session, "m")), "42883");
    for schema in ["public", "elsewhere"] {
        session.run(&format!(
            "CREATE SCHEMA IF NOT EXISTS {schema};
             CREATE EXTENSION sequential_inbox SCHEMA {schema};
             SET search_path = {schema}, public"
        ));
        // The driver's statements are prepared anew; the extension's own see to themselves.
        session.run("DEALLOCATE ALL");
        let fresh: bool = session
            .client()
            .query_one("SELECT inbox_claim('billing', 'm')", &[])
            .unwrap()
            .get(0);
        assert!(fresh, "in {schema}");
        let rotated: bool = session
            .client()
            .query_one("SELECT rotated FROM inbox_housekeeping()", &[])
            .unwrap()
            .get(0);
        assert!(rotated);
        declare(&mut session, "1 day", PAIR);
        let decision: String = session
            .client()
            .query_one(
                "SELECT decision FROM inbox_receive('b', 'b', 'context')",
                &[],
            )
            .unwrap()
            .get(0);
        assert_eq!(decision, "buffered");
        session.run("DROP EXTENSION sequential_inbox CASCADE");
    }
    session.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// Dropping waits for the housekeeping that runs, and housekeeping for a drop: no half of either.
#[test]
fn g13_drop_extension_waits_for_housekeeping_in_progress() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    let mut administrator = Session::new(&database);
    keeper.begin();
    assert!(housekeep(&mut keeper).rotated);
    std::thread::scope(|scope| {
        let dropped =
            inbox_test_support::inbox::blocked(scope, &database, &mut administrator, |it| {
                it.run("DROP EXTENSION sequential_inbox CASCADE");
            });
        keeper.commit();
        dropped.join().unwrap();
    });
    assert_eq!(sqlstate(try_claim(&mut administrator, "m")), "42883");
}

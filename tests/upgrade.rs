//! From one version of the extension to the next (G13): with data, while claims go on, and to the
//! same result as a fresh installation; and a library of another version than the extension.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use inbox_test_support::{
    Database,
    filled::{CONSUMER_ROLE, contents, fill, goes_on},
    inbox::{Arrival, Session},
    wait_for,
};

/// The first version; its script is kept under sql/released.
const FIRST: &str = "0.1.0";

/// A database with a version of the extension.
fn with_version(version: &str) -> (Database, Session) {
    let database = Database::bare();
    let mut session = Session::new(&database);
    session.run(&format!(
        "CREATE EXTENSION sequential_inbox VERSION '{version}'"
    ));
    (database, session)
}

/// Every version that was ever released, from its script.
fn released() -> Vec<String> {
    let scripts =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/released")).unwrap();
    let versions: Vec<String> = scripts
        .filter_map(|script| {
            let name = script.unwrap().file_name().into_string().unwrap();
            let version = name
                .strip_prefix("sequential_inbox--")?
                .strip_suffix(".sql")?;
            (!version.contains("--")).then(|| version.to_owned())
        })
        .collect();
    assert!(
        versions.iter().any(|version| version == FIRST),
        "{versions:?}"
    );
    versions
}

/// The catalog's description of every object of the extension: definition, owner, grants, comment,
/// and whether and how it is dumped. Nothing in it depends on the order of creation.
fn catalog(session: &mut Session) -> BTreeSet<String> {
    let query = "
        WITH member AS (
            SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'sequential_inbox'),
        relation AS (SELECT c.* FROM member m JOIN pg_class c ON c.oid = m.objid WHERE m.classid = 'pg_class'::regclass)
        SELECT concat_ws(' ', 'member', type, identity, obj_description(objid, classid::regclass::name))
            FROM member, pg_identify_object(classid, objid, 0)
        UNION ALL SELECT concat_ws(' ', 'function', pg_get_functiondef(p.oid), p.proacl, p.proowner::regrole)
            FROM member m JOIN pg_proc p ON p.oid = m.objid WHERE m.classid = 'pg_proc'::regclass
        UNION ALL SELECT concat_ws(' ', 'relation', relname, relkind, relpersistence, reloptions, relacl, relowner::regrole,
                CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END)
            FROM relation
        UNION ALL SELECT concat_ws(' ', 'column', r.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
                a.attcollation::regcollation, a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid), a.attacl,
                col_description(r.oid, a.attnum))
            FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
            LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum WHERE r.relkind IN ('r', 'v')
        UNION ALL SELECT concat_ws(' ', 'constraint', r.relname, c.conname, pg_get_constraintdef(c.oid), obj_description(c.oid, 'pg_constraint'))
            FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
        UNION ALL SELECT concat_ws(' ', 'index', pg_get_indexdef(i.indexrelid), obj_description(i.indexrelid, 'pg_class'))
            FROM relation r JOIN pg_index i ON i.indrelid = r.oid
        UNION ALL SELECT concat_ws(' ', 'sequence', s.seqrelid::regclass, s.seqstart, s.seqincrement, s.seqmax, s.seqcycle)
            FROM relation r JOIN pg_sequence s ON s.seqrelid = r.oid
        UNION ALL SELECT concat_ws(' ', 'dumped', c::regclass, condition)
            FROM pg_extension, unnest(extconfig, extcondition) AS d (c, condition) WHERE extname = 'sequential_inbox'
        UNION ALL SELECT concat_ws(' ', 'initial privileges', i.objoid::regclass, i.initprivs)
            FROM relation r JOIN pg_init_privs i ON i.objoid = r.oid AND i.classoid = 'pg_class'::regclass
        UNION ALL SELECT concat_ws(' ', 'initial privileges', i.objoid::regprocedure, i.initprivs)
            FROM member m JOIN pg_init_privs i ON i.objoid = m.objid AND i.classoid = 'pg_proc'::regclass
            WHERE m.classid = 'pg_proc'::regclass
        UNION ALL SELECT concat_ws(' ', 'extension', extversion, extrelocatable, obj_description(oid, 'pg_extension'))
            FROM pg_extension WHERE extname = 'sequential_inbox'";
    let rows = session.query(query, &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// What one has and the other has not.
fn assert_same(upgraded: &BTreeSet<String>, fresh: &BTreeSet<String>) {
    let differences: Vec<_> = upgraded.symmetric_difference(fresh).collect();
    assert!(fresh.len() > 200, "{}", fresh.len());
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Object by object, from each released version.
#[test]
fn g13_an_upgraded_extension_is_a_fresh_one() {
    let fresh = Database::bare();
    let mut fresh = Session::new(&fresh);
    fresh.run("CREATE EXTENSION sequential_inbox");
    let fresh = catalog(&mut fresh);
    for version in released() {
        let (_database, mut session) = with_version(&version);
        let old = catalog(&mut session);
        assert_ne!(old, fresh, "{version}");
        session.run("ALTER EXTENSION sequential_inbox UPDATE");
        assert_same(&catalog(&mut session), &fresh);
    }
}

/// In another schema than public, too, and with a hostile search_path.
#[test]
fn g14_the_upgrade_stays_in_its_schema() {
    let database = Database::bare();
    let mut session = Session::new(&database);
    // Objects that would be found first stand in the schema of the extension itself, too.
    session.run(&format!(
        "CREATE SCHEMA \"my inbox\"; CREATE EXTENSION sequential_inbox SCHEMA \"my inbox\" VERSION '{FIRST}';
         CREATE SCHEMA evil;
         CREATE FUNCTION evil.lies(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
         CREATE OPERATOR evil.= (leftarg = text, rightarg = text, function = evil.lies);
         CREATE OPERATOR \"my inbox\".= (leftarg = text, rightarg = text, function = evil.lies);
         CREATE TABLE evil.pg_class (); CREATE TABLE evil.sequence_instance ();
         SET search_path = evil, pg_catalog;
         ALTER EXTENSION sequential_inbox UPDATE"
    ));
    session.run("SET search_path = pg_catalog");
    let elsewhere: Vec<String> = session.value(
        "SELECT COALESCE(array_agg(i.identity), '{}')
         FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid,
              pg_identify_object(d.classid, d.objid, 0) i
         WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
           AND e.extname = 'sequential_inbox' AND i.identity NOT LIKE '%\"my inbox\".%'",
        &[],
    );
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    let metrics: i64 = session.value(
        "SELECT pg_catalog.count(*) FROM \"my inbox\".inbox_metrics()",
        &[],
    );
    assert!(metrics > 10);
}

/// Nothing that is stored changes, what was granted stays, and everything goes on.
#[test]
fn g13_an_upgrade_keeps_every_claim_message_and_setting() {
    for version in released() {
        let (_database, mut session) = with_version(&version);
        session.run(&format!(
            "DO $$ BEGIN CREATE ROLE {CONSUMER_ROLE}; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        ));
        fill(&mut session);
        let before = contents(&mut session);
        session.run("ALTER EXTENSION sequential_inbox UPDATE");
        assert_eq!(contents(&mut session), before);
        goes_on(&mut session);
        session.run(&format!("DROP OWNED BY {CONSUMER_ROLE}"));
    }
}

/// Consumers claim and receive before, during and after the update, in sessions of their own: no
/// error, and every message once.
#[test]
fn g13_claims_go_on_during_an_upgrade() {
    let (database, mut session) = with_version(FIRST);
    session.run(
        "CREATE TABLE ledger (entry text);
         SELECT inbox_declare_sequence('steps', '1 day', '[{\"type\": \"step\"}]', ordering => 'position')",
    );
    // A transaction with a claim is open when the update begins, and ends after it.
    let mut open = Session::new(&database);
    open.begin();
    assert!(open.value::<bool>("SELECT inbox_claim('billing', 'open')", &[]));

    let stop = AtomicBool::new(false);
    let done = [const { AtomicUsize::new(0) }; 3];
    thread::scope(|scope| {
        for (number, done) in done.iter().enumerate() {
            let (database, stop) = (&database, &stop);
            scope.spawn(move || {
                let mut session = Session::new(database);
                let context = format!("context {number}");
                while !stop.load(Ordering::Relaxed) {
                    let next = done.load(Ordering::Relaxed) + 1;
                    let id = format!("{number} {next}");
                    session.begin();
                    assert!(
                        session.value::<bool>("SELECT inbox_claim('billing', $1::text)", &[&id])
                    );
                    session.decided(
                        "process",
                        &Arrival::at("step", &id, next as i64).of(&context),
                    );
                    session
                        .query("INSERT INTO ledger VALUES ($1)", &[&id])
                        .unwrap();
                    session.commit();
                    done.store(next, Ordering::Relaxed);
                }
            });
        }
        let each_does_more = || {
            let before: Vec<_> = done
                .iter()
                .map(|done| done.load(Ordering::Relaxed))
                .collect();
            wait_for("each consumer to go on", || {
                done.iter()
                    .zip(&before)
                    .all(|(done, before)| done.load(Ordering::Relaxed) > before + 5)
                    .then_some(())
            });
        };
        each_does_more();
        session.run("ALTER EXTENSION sequential_inbox UPDATE");
        each_does_more();
        stop.store(true, Ordering::Relaxed);
    });
    open.commit();
    let total: usize = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    assert_eq!(database.ledger().len(), total);
    let claims: i64 = session.value("SELECT count(*) FROM inbox_claims", &[]);
    assert_eq!(claims as usize, 2 * total + 1);
    assert!(!session.value::<bool>("SELECT inbox_claim('billing', 'open')", &[]));
}

/// A newer library does what the older extension has, and says what that lacks.
#[test]
fn g13_a_newer_library_says_what_an_older_extension_lacks() {
    let (_database, mut session) = with_version(FIRST);
    assert!(session.value::<bool>("SELECT inbox_claim('billing', 'a')", &[]));
    let outdated = |session: &mut Session, statement: &str| {
        let error = session.query(statement, &[]).expect_err(statement);
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "55000", "{error:?}");
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("ALTER EXTENSION sequential_inbox UPDATE"),
            "{hint}"
        );
    };
    outdated(&mut session, "SELECT inbox_grant(current_user, 'monitor')");
    session.run("ALTER EXTENSION sequential_inbox UPDATE");
    session.run("SELECT inbox_grant(current_user, 'monitor')");
}

/// An older library does nothing at all, and the update that would lead there is refused.
#[test]
fn g13_an_older_library_does_nothing() {
    let (database, mut session) = with_version(FIRST);
    session
        .run("UPDATE pg_extension SET extversion = '999.0.0' WHERE extname = 'sequential_inbox'");
    // Compared once a session.
    let mut session = Session::new(&database);
    for statement in [
        "SELECT inbox_claim('billing', 'a')",
        "SELECT inbox_next()",
        "SELECT inbox_lookup('billing', 'a')",
    ] {
        let error = session.query(statement, &[]).expect_err(statement);
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "55000", "{error:?}");
        assert!(error.detail().unwrap().contains("999.0.0"), "{error:?}");
        assert!(
            error.hint().unwrap().contains("Install the newer package"),
            "{error:?}"
        );
    }
    session.run("UPDATE pg_extension SET extversion = '0.1.0' WHERE extname = 'sequential_inbox'");
    assert!(session.value::<bool>("SELECT inbox_claim('billing', 'a')", &[]));
}

/// The newest version is what CREATE EXTENSION creates, and the library's own.
#[test]
fn versions_agree() {
    let database = Database::bare();
    let mut session = Session::new(&database);
    session.run("CREATE EXTENSION sequential_inbox");
    let versions: Vec<String> = session.value(
        "SELECT ARRAY[extversion, current_setting('sequential_inbox.version'), default_version]
         FROM inbox_status(), pg_extension, pg_available_extensions
         WHERE extname = 'sequential_inbox' AND name = 'sequential_inbox'",
        &[],
    );
    assert_eq!(versions, [env!("CARGO_PKG_VERSION"); 3]);
}

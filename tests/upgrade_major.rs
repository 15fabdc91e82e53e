//! `pg_upgrade` to a later major with everything in it: what was stored is there, what was refused is
//! refused, what waited is released, the ring goes on, and the worker stays out of it meanwhile (G8,
//! G9, G13).
//!
//! Needs the extension installed in two majors, so it is no part of `make test`; `make
//! check-upgrade-major` sees to both. PG_CONFIG names the old one, INBOX_NEW_PG_CONFIG the new one.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{env, fs, process::Command};

use inbox_test_support::{
    Database,
    filled::{CONSUMER_ROLE, contents, fill, goes_on},
    inbox::Session,
    retention::{HALF_A_RETENTION, age_ring, ring},
    wait_for,
};
use throwaway_cluster::{Builder, Cluster};

/// A schema that is in nobody's search_path and whose name needs quotes.
const SCHEMA: &str = "\"Inbox of {s}\"";

/// How both majors are configured: with a worker that begins a round at every opportunity.
fn preloaded() -> Builder {
    Cluster::builder()
        .fsync(false)
        .preload("sequential_inbox")
        .setting("sequential_inbox.housekeeping_interval", "100ms")
        .setting("log_line_prefix", "%m [%p] %b: ")
}

/// The major of a server.
fn major(session: &mut Session) -> i32 {
    session.value(
        "SELECT current_setting('server_version_num')::int / 10000",
        &[],
    )
}

/// A database with a filled inbox in that schema.
fn filled(cluster: &Cluster, schema: &str) -> (Database, Session) {
    let database = Database::bare_on(cluster);
    let name = database.name();
    database.execute(&format!(
        "CREATE TABLE ledger (entry text);
         ALTER DATABASE {name} SET sequential_inbox.rotation_lock_timeout = '77ms';
         ALTER DATABASE {name} SET search_path = {schema}, public;
         CREATE SCHEMA IF NOT EXISTS {schema};
         CREATE EXTENSION sequential_inbox SCHEMA {schema}"
    ));
    let mut session = Session::new(&database);
    fill(&mut session);
    // Nothing keeps the worker from this database, and there is something for it to do.
    session.run("UPDATE inbox_worker_status SET installed_at = '-infinity'");
    (database, session)
}

/// Switches housekeeping on or off for a server.
fn switch_worker(cluster: &Cluster, to: &str) {
    let change = format!("SET sequential_inbox.housekeeping = {to}");
    for sql in [&format!("ALTER SYSTEM {change}"), "SELECT pg_reload_conf()"] {
        cluster.sql("postgres", sql).unwrap();
    }
}

/// The new cluster. From the moment the old one is stopped its worker would begin a round at every
/// start, and the ring is due: whoever starts the old server must not let it.
fn upgraded(old: &Cluster, databases: &[&str], builder: &Builder) -> Cluster {
    old.stop_fast().unwrap();
    let auto_conf = old.data_dir().join("postgresql.auto.conf");
    let quiet = fs::read(&auto_conf).unwrap();
    fs::write(&auto_conf, "").unwrap();
    match builder.clone().start_upgraded_from(old) {
        Ok(new) => new,
        // The security releases of November 2026 stamp every column with an option of their own,
        // which no earlier minor of a later major takes. Tables of before have none.
        Err(error) if error.to_string().contains("pg_attver") => {
            fs::write(&auto_conf, quiet).unwrap();
            old.start().unwrap();
            for database in databases {
                old.sql(
                    database,
                    "UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%'",
                )
                .unwrap();
            }
            old.stop_fast().unwrap();
            fs::write(&auto_conf, "").unwrap();
            builder.clone().start_upgraded_from(old).unwrap()
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn g8_g9_g13_pg_upgrade_keeps_everything() {
    let new_pg_config = env::var_os("INBOX_NEW_PG_CONFIG").expect("run make check-upgrade-major");
    let old = preloaded().start().unwrap();
    old.sql("postgres", &format!("CREATE ROLE {CONSUMER_ROLE}"))
        .unwrap();
    // Off while it is filled, so that what it holds is known.
    switch_worker(&old, "off");
    let mut places = Vec::new();
    for schema in ["public", SCHEMA] {
        let (database, mut session) = filled(&old, schema);
        let held = contents(&mut session);
        age_ring(&mut session, HALF_A_RETENTION);
        let aged = contents(&mut session);
        assert_ne!(held, aged);
        let version: String = session.value(
            "SELECT extversion FROM pg_extension WHERE extname = 'sequential_inbox'",
            &[],
        );
        places.push((database, aged, version, major(&mut session)));
    }
    let mut builder = preloaded().pg_config(&new_pg_config);
    // From 18 on initdb switches checksums on, and pg_upgrade wants both alike.
    let said = Command::new(&new_pg_config)
        .arg("--version")
        .output()
        .unwrap();
    let new_major: i32 = String::from_utf8(said.stdout)
        .unwrap()
        .trim_start_matches("PostgreSQL ")
        .split(|it: char| !it.is_ascii_digit())
        .next()
        .and_then(|it| it.parse().ok())
        .expect("a version");
    if new_major >= 18 {
        builder = builder.initdb_option("--no-data-checksums");
    }
    let builder = builder.setting("sequential_inbox.housekeeping", "off");
    let names: Vec<_> = places.iter().map(|it| it.0.name()).collect();
    let new = upgraded(&old, &names, &builder);

    for (database, held, version, old_major) in places {
        let there = database.moved_to(&new);
        let mut session = Session::new(&there);
        assert_eq!(major(&mut session), new_major);
        assert!(new_major > old_major, "from {old_major} to {new_major}");
        assert_eq!(
            contents(&mut session),
            held,
            "the worker has stayed out of it"
        );
        let now: String = session.value(
            "SELECT extversion FROM pg_extension WHERE extname = 'sequential_inbox'",
            &[],
        );
        assert_eq!(now, version);
        let setting: String = session.value(
            "SELECT rotation_lock_timeout::text FROM inbox_settings",
            &[],
        );
        assert_eq!(setting, "00:00:00.077");
        // There is nothing to update, and saying so is no error.
        session.run("ALTER EXTENSION sequential_inbox UPDATE");
        goes_on(&mut session);
    }

    new.run(
        "pg_amcheck",
        ["--all", "--install-missing", "--heapallindexed"],
    )
    .unwrap();

    // The worker does housekeeping in the new major.
    switch_worker(&new, "on");
    let name = new
        .sql(
            "postgres",
            "SELECT min(datname) FROM pg_database WHERE datname LIKE 'test%'",
        )
        .unwrap();
    let mut session = Session::new(&Database::named(&new, &name));
    let (_, rotations) = ring(&mut session);
    age_ring(&mut session, HALF_A_RETENTION);
    wait_for("the worker to move the ring on", || {
        (ring(&mut session).1 > rotations).then_some(())
    });
}

//! What goes away and comes back: the extension, a database, the launcher, the server, the primary.

use inbox_test_support::{Database, inbox::Session, retention::age_sequences, wait_for};

use super::{
    alter_system, complaints, give_work, has_work, launcher, preloaded, processes, start_at_once,
    wait_for_rounds, wait_until_done, with_extension,
};

#[test]
fn g8_it_goes_quiet_when_the_extension_is_dropped_and_wakes_when_it_is_created_again() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    let (_other, mut other) = with_extension(&cluster);
    for _ in 0..3 {
        give_work(&mut session, "1");
        wait_until_done(&mut session);
        session.run("DROP EXTENSION sequential_inbox CASCADE");
        // It comes by and finds nothing.
        wait_for_rounds(&mut other, 3);
        let left: i64 = session.value(
            "SELECT count(*) FROM pg_class
             WHERE relnamespace = 'public'::regnamespace",
            &[],
        );
        assert_eq!(left, 0);
        let held: i64 = session.value(
            "SELECT count(*) FROM pg_locks
             WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND relation >= 16384",
            &[],
        );
        assert_eq!(held, 0, "nobody holds a lock on what is gone");
        session.run("CREATE EXTENSION sequential_inbox");
        start_at_once(&mut session);
        wait_for_rounds(&mut session, 1);
    }
    assert_eq!(complaints(&cluster), [""; 0]);
}

/// Dropped and created as fast as it goes, whatever the worker is in the middle of.
#[test]
fn g8_dropping_in_the_middle_of_a_round_is_no_error() {
    let cluster = preloaded()
        .setting("sequential_inbox.housekeeping_interval", "10ms")
        .start()
        .unwrap();
    let (_database, mut session) = with_extension(&cluster);
    for _ in 0..25 {
        wait_for_rounds(&mut session, 0);
        session.run("DROP EXTENSION sequential_inbox CASCADE; CREATE EXTENSION sequential_inbox");
        start_at_once(&mut session);
    }
    wait_for_rounds(&mut session, 1);
    assert_eq!(complaints(&cluster), [""; 0]);
}

#[test]
fn g8_it_survives_drop_database_and_stands_in_nobodys_way() {
    let cluster = preloaded().start().unwrap();
    let (_other, mut other) = with_extension(&cluster);
    let before = launcher(&mut other);
    for _ in 0..5 {
        let (database, mut session) = with_extension(&cluster);
        wait_for_rounds(&mut session, 1);
        drop(session);
        cluster
            .sql("postgres", &format!("DROP DATABASE {}", database.name()))
            .unwrap();
        wait_for_rounds(&mut other, 2);
    }
    // A database that is a template, or is copied from one that the worker visits, is none either.
    let (database, session) = with_extension(&cluster);
    drop(session);
    let name = database.name();
    cluster
        .sql(
            "postgres",
            &format!("CREATE DATABASE copied TEMPLATE {name}"),
        )
        .unwrap();
    let mut copied = Session::new(&Database::named(&cluster, "copied"));
    wait_for_rounds(&mut copied, 1);
    // Nor one that takes no connections.
    let closed = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false");
    cluster.sql("postgres", &closed).unwrap();
    wait_for_rounds(&mut other, 2);
    assert_eq!(
        launcher(&mut other),
        before,
        "it has been there all the time"
    );
}

/// Terminated by hand, the launcher is started again by the postmaster.
#[test]
fn g8_a_terminated_launcher_comes_back() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    wait_for_rounds(&mut session, 1);
    let first = launcher(&mut session);
    session
        .query("SELECT pg_terminate_backend($1)", &[&first])
        .unwrap();
    wait_for("another launcher", || {
        (launcher(&mut session) != first).then_some(())
    });
    wait_for_rounds(&mut session, 1);
}

/// `stop_fast` gives a server a minute; one that does not heed the signal would not end at all.
#[test]
fn g8_it_leaves_when_the_server_stops() {
    let cluster = preloaded().start().unwrap();
    let (database, mut session) = with_extension(&cluster);
    wait_for_rounds(&mut session, 1);

    // In a pause that is far from over.
    alter_system(
        &cluster,
        "SET sequential_inbox.housekeeping_interval = '1d'",
    );
    launcher(&mut session);
    drop(session);
    cluster.restart().unwrap();

    // In the middle of a round, in which the worker waits for a lock that nobody will release: its
    // holder is prepared.
    alter_system(
        &cluster,
        "SET sequential_inbox.housekeeping_interval = '200ms'",
    );
    let mut session = Session::new(&database);
    session.run("BEGIN; LOCK TABLE sequence_type; PREPARE TRANSACTION 'holder'");
    wait_for("the worker to wait for the lock", || {
        let waiting: i64 = session.value(
            "SELECT count(*) FROM pg_stat_activity
             WHERE backend_type = 'sequential_inbox worker' AND wait_event_type = 'Lock'",
            &[],
        );
        (waiting > 0).then_some(())
    });
    drop(session);
    cluster.restart().unwrap();

    // It is back, and goes on when it can.
    let mut session = Session::new(&database);
    session.run("ROLLBACK PREPARED 'holder'");
    give_work(&mut session, "1");
    wait_until_done(&mut session);
}

#[test]
fn g13_it_comes_back_after_a_crash_of_the_server() {
    let cluster = preloaded().start().unwrap();
    let (database, mut session) = with_extension(&cluster);
    wait_for_rounds(&mut session, 1);
    drop(session);
    cluster.kill_postmaster().unwrap();
    cluster.start().unwrap();
    let mut session = Session::new(&database);
    give_work(&mut session, "1");
    wait_until_done(&mut session);
}

#[test]
fn g13_on_a_standby_it_does_nothing_and_starts_at_the_promotion() {
    let primary = preloaded().start().unwrap();
    let (database, mut session) = with_extension(&primary);
    wait_for_rounds(&mut session, 1);
    let standby = primary.standby().unwrap();
    let promoted = database.moved_to(&standby);
    let mut there = Session::new(&promoted);
    // The primary's worker is at work; the standby has neither a launcher nor a worker.
    for _ in 0..3 {
        wait_for_rounds(&mut session, 1);
        assert_eq!(processes(&mut there, None), [0; 0]);
    }
    // Work that the primary does not get to.
    alter_system(&primary, "SET sequential_inbox.housekeeping = off");
    wait_for("the primary's worker to leave", || {
        processes(&mut session, Some("sequential_inbox worker"))
            .is_empty()
            .then_some(())
    });
    give_work(&mut session, "1");
    age_sequences(&mut session, "1 day");
    standby.catch_up(&primary).unwrap();
    assert!(has_work(&mut there));
    assert_eq!(processes(&mut there, None), [0; 0]);
    primary.stop_immediate().unwrap();
    standby.promote().unwrap();
    wait_until_done(&mut there);
    launcher(&mut there);
    assert_eq!(complaints(&standby), [""; 0]);
}

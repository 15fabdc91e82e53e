//! Where the worker runs and which settings it follows.

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
    retention::{HALF_A_RETENTION, age_ring, age_sequences, claim, ring},
    wait_for,
};

use super::{
    alter_system, complaints, give_work, has_work, last_run, launcher, preloaded, processes, quiet,
    quiet_beside, start_at_once, wait_for_rounds, wait_until_done, with_extension,
};

#[test]
fn g8_g9_it_does_housekeeping_in_each_database_that_has_the_extension() {
    let cluster = preloaded().start().unwrap();
    let (_one, mut one) = with_extension(&cluster);
    let other = Database::bare_on(&cluster);
    let mut two = Session::new(&other);
    two.run(
        "CREATE SCHEMA \"In Box\"; SET search_path = \"In Box\";
         CREATE EXTENSION sequential_inbox SCHEMA \"In Box\"",
    );
    start_at_once(&mut two);
    // And one without it, which it leaves as it is.
    let bare = Database::bare_on(&cluster);
    for session in [&mut one, &mut two] {
        assert!(claim(session, "m"));
        give_work(session, "1");
        wait_until_done(session);
        wait_for("the ring to move on", || {
            (ring(session).1 > 0).then_some(())
        });
        let (_, rotations) = ring(session);
        age_ring(session, HALF_A_RETENTION);
        wait_for("the ring to move on again", || {
            (ring(session).1 > rotations).then_some(())
        });
        assert!(!claim(session, "m"));
        let status: bool = session.value(
            "SELECT preloaded AND housekeeping AND last_run_at IS NOT NULL
                AND last_error IS NULL AND last_error_at IS NULL AND failures = 0
                AND next_run_at IS NULL AND next_rotation_at > now() FROM inbox_settings",
            &[],
        );
        assert!(status);
    }
    let tables: i64 = bare.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'inbox%'");
    assert_eq!(tables, 0);
    assert_eq!(complaints(&cluster), [""; 0]);
}

/// What does not fit in one batch is done in the same round.
#[test]
fn g8_it_goes_on_while_there_is_more() {
    let cluster = preloaded().start().unwrap();
    let (database, mut session) = with_extension(&cluster);
    session.run(&format!(
        "ALTER DATABASE {} SET sequential_inbox.housekeeping_batch_size = 2;
         SELECT inbox_declare_sequence('s', '1 day', '[{{\"type\": \"a\"}}]')",
        database.name()
    ));
    // A round that began before sees none of it.
    session.begin();
    for number in 0..9 {
        let context = number.to_string();
        session.decided("process", &Arrival::new("a", &context).of(&context));
    }
    age_sequences(&mut session, "25 hours");
    session.commit();
    wait_for("the worker to remove all nine", || {
        let left: i64 = session.value("SELECT count(*) FROM sequence_instance", &[]);
        (left == 0).then_some(())
    });
    assert_eq!(complaints(&cluster), [""; 0]);
}

#[test]
fn g8_it_follows_a_reload() {
    let cluster = preloaded().start().unwrap();
    let (one, mut first) = with_extension(&cluster);
    let (two, mut second) = with_extension(&cluster);
    wait_for_rounds(&mut first, 1);
    wait_for_rounds(&mut second, 1);

    // Only in the listed ones; a name that there is not is no error.
    let list = format!("'no_such_database, {}'", two.name());
    alter_system(
        &cluster,
        &format!("SET sequential_inbox.housekeeping_databases = {list}"),
    );
    quiet_beside(&mut first, &mut second);
    alter_system(&cluster, "RESET sequential_inbox.housekeeping_databases");
    wait_for_rounds(&mut first, 1);

    // Off for the whole server.
    alter_system(&cluster, "SET sequential_inbox.housekeeping = off");
    quiet(&mut first);
    quiet(&mut second);
    give_work(&mut first, "1");
    quiet(&mut first);
    assert!(has_work(&mut first));
    alter_system(&cluster, "SET sequential_inbox.housekeeping = on");
    wait_until_done(&mut first);
    wait_for_rounds(&mut second, 1);

    // Off for one database.
    let name = one.name();
    first.run(&format!(
        "ALTER DATABASE {name} SET sequential_inbox.housekeeping = off"
    ));
    quiet_beside(&mut first, &mut second);
    first.run(&format!(
        "ALTER DATABASE {name} RESET sequential_inbox.housekeeping"
    ));
    wait_for_rounds(&mut first, 1);
    assert_eq!(complaints(&cluster), [""; 0]);
}

/// A reload also ends a pause that is longer than the one that is set now.
#[test]
fn g8_a_shorter_interval_counts_at_once() {
    let cluster = preloaded()
        .setting("sequential_inbox.housekeeping_interval", "1d")
        .start()
        .unwrap();
    let (_database, mut session) = with_extension(&cluster);
    launcher(&mut session);
    quiet(&mut session);
    alter_system(
        &cluster,
        "SET sequential_inbox.housekeeping_interval = '200ms'",
    );
    wait_for_rounds(&mut session, 2);
}

/// The settings of the database are those in force there, for the worker too.
#[test]
fn g9_it_follows_the_settings_of_each_database() {
    let cluster = preloaded().start().unwrap();
    let (database, mut short) = with_extension(&cluster);
    let (_other, mut long) = with_extension(&cluster);
    for session in [&mut short, &mut long] {
        assert!(claim(session, "m"));
    }
    short.run(&format!(
        "ALTER DATABASE {} SET sequential_inbox.claim_retention = '1s'",
        database.name()
    ));
    wait_for("three rotations", || {
        (ring(&mut short).1 >= 4).then_some(())
    });
    assert!(claim(&mut short, "m"), "its second is over");
    assert!(!claim(&mut long, "m"));
    assert!(ring(&mut long).1 <= 1, "by the default it is not due again");
}

/// In a database that has just got the extension it waits a while, so that a dump can be restored.
#[test]
fn g13_it_leaves_a_new_installation_alone_at_first() {
    let cluster = preloaded()
        .setting("sequential_inbox.housekeeping_interval", "3s")
        .start()
        .unwrap();
    let database = Database::bare_on(&cluster);
    let mut session = Session::new(&database);
    session.run("CREATE EXTENSION sequential_inbox");
    let (_other, mut other) = with_extension(&cluster);
    // Somewhere else it has come by in the meantime.
    wait_for_rounds(&mut other, 1);
    assert_eq!(last_run(&mut session), None);
    assert_eq!(ring(&mut session), (0, 0));
    start_at_once(&mut session);
    wait_for_rounds(&mut session, 0);
    assert_eq!(ring(&mut session), (1, 1));
}

/// It holds no snapshot and no transaction while it waits, and no session between two rounds.
#[test]
fn g8_it_is_never_idle_in_a_transaction() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    launcher(&mut session);
    let open = "SELECT count(*) FROM pg_stat_activity
                WHERE backend_type LIKE 'sequential_inbox%'
                  AND (state LIKE 'idle in transaction%'
                       OR (backend_type LIKE '%launcher' AND wait_event_type = 'Extension'
                           AND (backend_xmin IS NOT NULL OR xact_start IS NOT NULL)))";
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE backend_type LIKE '%launcher' AND wait_event_type = 'Extension'";
    let mut looked_at_a_pause = 0_i64;
    for _ in 0..10 {
        let before = last_run(&mut session);
        wait_for("a round of the worker", || {
            assert_eq!(session.value::<i64>(open, &[]), 0);
            looked_at_a_pause += session.value::<i64>(waiting, &[]);
            (last_run(&mut session) != before).then_some(())
        });
    }
    assert!(looked_at_a_pause > 0, "the launcher's pauses were seen");
    let idle: f64 = session.value(
        "SELECT sum(idle_in_transaction_time) FROM pg_stat_database
         WHERE datname <> current_database() OR datname IS NULL",
        &[],
    );
    assert_eq!(idle, 0.0);
    // A worker comes and goes: at some time there is none.
    wait_for("the worker to leave", || {
        processes(&mut session, Some("sequential_inbox worker"))
            .is_empty()
            .then_some(())
    });
}

/// Without preloading there is neither, and nothing misses them.
#[test]
fn g8_without_preloading_there_is_no_worker() {
    let database = Database::new();
    let mut session = Session::new(&database);
    assert_eq!(processes(&mut session, None), [0; 0]);
    let preloaded: bool = session.value("SELECT preloaded FROM inbox_settings", &[]);
    assert!(!preloaded);
}

//! What a dump, a crash and a failover leave of the ring (G3, G9, G13).

use inbox_test_support::{
    Database,
    inbox::{Session, blocked},
    retention::{
        CONSUMER, HALF_A_RETENTION, age_ring, claim, housekeep, ring, rotate, table_of,
        try_housekeep,
    },
    start_cluster,
};
use throwaway_cluster::Cluster;

/// Three tables with a claim each, after two rotations.
fn after_two_rotations(session: &mut Session) {
    for key in ["first", "second"] {
        assert!(claim(session, key));
        rotate(session);
    }
    assert!(claim(session, "third"));
    assert_eq!(ring(session), (2, 2));
}

/// The three claims are there, and the ring goes on from where it was: what comes next frees the
/// first of them and no other.
#[track_caller]
fn goes_on_after_two_rotations(session: &mut Session) {
    assert_eq!(ring(session), (2, 2));
    assert!(!housekeep(session).rotated, "not due");
    for key in ["first", "second", "third"] {
        assert!(!claim(session, key), "{key} is kept");
    }
    rotate(session);
    assert_eq!(ring(session), (0, 3));
    for key in ["second", "third"] {
        assert!(!claim(session, key), "{key} is kept");
    }
    assert!(claim(session, "first"), "its retention is over");
}

/// Everything that is stored of claims and the ring, as text.
fn stored(database: &Database) -> String {
    database.value(
        "SELECT (SELECT string_agg(c::text, ';' ORDER BY c::text) FROM inbox_claims c)
             || (SELECT string_agg(r::text, ';') FROM inbox_claim_ring r)
             || (SELECT string_agg(c::text, ';') FROM inbox_claim_1 c)",
    )
}

#[test]
fn g13_a_dump_after_two_rotations_restores_claims_and_ring() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    after_two_rotations(&mut session);
    session.run("SELECT inbox_annotate('billing', 'second', '{\"trace\": 7}')");
    let dumped = stored(&database);
    let dump = cluster.socket_dir().join("dump");
    let dump = dump.to_str().expect("a path in UTF-8");
    let name = database.name().to_owned();
    cluster
        .run("pg_dump", ["-Fc", "-f", dump, "-d", &name])
        .expect("a dump");
    // The ring of a new installation has no row that the restored one could collide with.
    let restored = Database::bare_on(&cluster);
    cluster
        .run(
            "pg_restore",
            ["--exit-on-error", "-d", restored.name(), dump],
        )
        .expect("a restore");
    assert_eq!(stored(&restored), dumped);
    goes_on_after_two_rotations(&mut Session::new(&restored));
    // The same for the one that was dumped: dumping has changed nothing.
    goes_on_after_two_rotations(&mut session);
}

#[test]
fn g13_a_dump_of_a_ring_that_never_moved_restores() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    assert!(claim(&mut session, "m"));
    let dump = cluster
        .run("pg_dump", ["-d", database.name()])
        .expect("a dump");
    let restored = Database::bare_on(&cluster);
    let script = cluster.socket_dir().join("dump.sql");
    std::fs::write(&script, dump).expect("a file");
    cluster
        .run(
            "psql",
            [
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                restored.name(),
                "-f",
                script.to_str().expect("a path in UTF-8"),
            ],
        )
        .expect("a restore");
    let mut session = Session::new(&restored);
    assert!(!claim(&mut session, "m"));
    rotate(&mut session);
    assert!(!claim(&mut session, "m"));
}

/// The ring's row is lost, or not restored yet: what is in a table of which nobody knows when it was
/// sealed is kept for a whole retention from then on.
#[test]
fn g9_g13_without_the_rings_row_no_claim_ends_early() {
    let database = Database::new();
    let mut session = Session::new(&database);
    after_two_rotations(&mut session);
    let keys = ["first", "second", "third"];
    session.run("DELETE FROM inbox_claim_ring");
    assert!(!housekeep(&mut session).rotated, "table 1 is not empty");
    for key in keys {
        assert!(!claim(&mut session, key), "{key} is kept");
    }
    age_ring(&mut session, "13 days 23:59");
    assert!(!housekeep(&mut session).rotated, "a retention is not over");
    age_ring(&mut session, "1 minute");
    assert!(housekeep(&mut session).rotated);
    assert_eq!(ring(&mut session), (1, 1));
    assert!(claim(&mut session, "second"), "more than a retention old");
    // The same for the other table of which nothing is known; the one that was current then has its
    // time from its seal.
    age_ring(&mut session, HALF_A_RETENTION);
    assert!(!housekeep(&mut session).rotated, "table 2 is not empty");
    for key in keys {
        assert!(!claim(&mut session, key), "{key} is kept");
    }
    age_ring(&mut session, "14 days");
    assert!(housekeep(&mut session).rotated);
    assert_eq!(ring(&mut session), (2, 2));
    assert!(claim(&mut session, "third"));
    assert!(!claim(&mut session, "second"));
}

/// A rotation is running when the server is killed: it has not happened, and can happen again.
#[test]
fn g3_g13_a_server_killed_in_the_middle_of_a_rotation_keeps_claims_and_ring() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    after_two_rotations(&mut session);
    session.begin();
    // It has emptied the table of "first", which a crash must bring back.
    rotate(&mut session);
    force_wal_out(&cluster);
    cluster.kill_postmaster().expect("it is killed");
    drop(session);
    cluster.start().expect("it recovers");
    goes_on_after_two_rotations(&mut Session::new(&database));
}

/// A prepared claim outlives the server, and so does its hold on the gate.
#[test]
fn g9_g13_a_prepared_claim_keeps_the_gate_over_a_crash() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    session.begin();
    assert!(claim(&mut session, "m"));
    session.run("PREPARE TRANSACTION 'claim'");
    drop(session);
    cluster.kill_postmaster().expect("it is killed");
    cluster.start().expect("it recovers");
    let mut session = Session::new(&database);
    let mut duplicate = Session::new(&database);
    assert!(!housekeep(&mut session).rotated, "the claim is in flight");
    std::thread::scope(|scope| {
        let claimed = blocked(scope, &database, &mut duplicate, |it| claim(it, "m"));
        session.run("COMMIT PREPARED 'claim'");
        assert!(!claimed.join().unwrap());
    });
    assert!(housekeep(&mut session).rotated);
    assert!(!claim(&mut session, "m"));
}

/// An owner that is killed takes its hold on the gate with it.
#[test]
fn g3_a_killed_owner_lets_the_rotation_by() {
    let database = Database::new();
    let mut owner = Session::new(&database);
    let mut keeper = Session::new(&database);
    owner.begin();
    assert!(claim(&mut owner, "m"));
    assert!(!housekeep(&mut keeper).rotated);
    database.terminate(owner.pid());
    assert!(housekeep(&mut keeper).rotated);
    assert!(claim(&mut keeper, "m"));
}

#[test]
fn g13_a_standby_promoted_in_the_middle_of_a_rotation_keeps_claims_and_ring() {
    let primary = start_cluster();
    let database = Database::on(&primary);
    let mut session = Session::new(&database);
    after_two_rotations(&mut session);
    let standby = primary.standby().expect("a standby");
    session.begin();
    rotate(&mut session);
    // What the rotation has written so far, the lock of its TRUNCATE included, is on the standby.
    force_wal_out(&primary);
    standby.catch_up(&primary).expect("it catches up");
    let promoted = database.moved_to(&standby);
    let locked: i64 = promoted.value(
        "SELECT count(*) FROM pg_locks
         WHERE relation = 'inbox_claim_0'::regclass AND mode = 'AccessExclusiveLock' AND granted",
    );
    assert_eq!(locked, 1, "the rotation has got to the standby");
    primary.kill_postmaster().expect("it is killed");
    standby.promote().expect("it is promoted");
    goes_on_after_two_rotations(&mut Session::new(&promoted));
}

#[test]
fn g13_on_a_standby_housekeeping_does_nothing_and_the_promoted_one_goes_on() {
    let primary = start_cluster();
    let database = Database::on(&primary);
    let mut session = Session::new(&database);
    after_two_rotations(&mut session);
    let standby = primary.standby().expect("a standby");
    standby.catch_up(&primary).expect("it catches up");
    let promoted = database.moved_to(&standby);
    let mut there = Session::new(&promoted);
    for batch_size in [1, 1000] {
        let batch = try_housekeep(&mut there, Some(batch_size)).expect("a no-op");
        assert_eq!(batch, Default::default());
    }
    // What only reads, reads.
    assert_eq!(table_of(&mut there, "third"), Some(2));
    let known: i64 = there.value(
        "SELECT count(*) FROM inbox_lookup($1, 'first')",
        &[&CONSUMER],
    );
    assert_eq!(known, 1);
    let next: bool = there.value(
        "SELECT next_rotation_at > now() AND current_table = 2 FROM inbox_settings",
        &[],
    );
    assert!(next);
    drop(session);
    primary.stop_fast().expect("it stops");
    standby.promote().expect("it is promoted");
    goes_on_after_two_rotations(&mut Session::new(&promoted));
}

/// Gets everything that was written so far onto the disk and to the standby, open transactions
/// included: the next commit does.
fn force_wal_out(cluster: &Cluster) {
    cluster
        .sql("postgres", "CREATE TABLE IF NOT EXISTS flushed ()")
        .and_then(|_| cluster.sql("postgres", "CHECKPOINT"))
        .expect("a commit");
}

//! A failover under load: the primary is killed in the middle of it and a synchronous standby
//! promoted. Consumers that acknowledge after the commit lose nothing, and what is redelivered has
//! its effect once and in order (G1, G4, G6, G8, G9, G13).

use inbox_test_support::{
    Database,
    inbox::Session,
    retention::{HALF_A_RETENTION, age_ring, claim, housekeep, ring, rotate},
    wait_for,
};
use throwaway_cluster::Cluster;

use crate::load::{Load, look_for_torn_ones};

/// How many messages are acknowledged before the primary is killed.
const ENOUGH: usize = 300;

/// What both are started with; the standby copies it.
fn primary() -> Cluster {
    Cluster::builder()
        .fsync(false)
        .preload("sequential_inbox")
        .setting("sequential_inbox.housekeeping_interval", "200ms")
        .start()
        .unwrap()
}

/// A database with the extension, a load for it, and a worker that does nothing until it is asked to.
fn database(cluster: &Cluster) -> (Database, Session) {
    let database = Database::bare_on(cluster);
    database.execute(&format!(
        "CREATE EXTENSION sequential_inbox;
         UPDATE inbox_worker_status SET installed_at = '-infinity';
         ALTER DATABASE {} SET sequential_inbox.housekeeping = off",
        database.name()
    ));
    let mut session = Session::new(&database);
    Load::set_up(&mut session);
    (database, session)
}

/// From now on a commit returns when that standby has it.
fn wait_for_the_standby_at_each_commit(primary: &Cluster) {
    for sql in [
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "SELECT pg_reload_conf()",
    ] {
        primary.sql("postgres", sql).unwrap();
    }
    wait_for("the standby to be synchronous", || {
        let state = primary
            .sql("postgres", "SELECT sync_state FROM pg_stat_replication")
            .unwrap();
        (state == "sync").then_some(())
    });
}

/// How many processes of the extension's worker the server has.
fn workers(session: &mut Session) -> i64 {
    session.value(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'sequential_inbox%'",
        &[],
    )
}

#[test]
fn g1_g4_g6_g8_g13_a_standby_promoted_under_load_loses_nothing_and_repeats_nothing() {
    let primary = primary();
    let (at_first, mut session) = database(&primary);
    let standby = primary.standby().unwrap();
    wait_for_the_standby_at_each_commit(&primary);
    let later = at_first.moved_to(&standby);
    let mut there = Session::new(&later);
    assert!(workers(&mut session) > 0);

    let load = Load::default();
    load.until_it_is_gone(&at_first, || {
        // The ring moves on under the load, on both, and forgets nothing of it: that would be the
        // third time.
        session.run("SET sequential_inbox.rotation_lock_timeout = '20s'");
        for enough in [ENOUGH / 3, 2 * ENOUGH / 3] {
            enough_is_acknowledged(&load, enough, &mut there);
            rotate(&mut session);
        }
        enough_is_acknowledged(&load, ENOUGH, &mut there);
        // There is nothing to be done on a standby, and nobody tries.
        assert_eq!(housekeep(&mut there), Default::default());
        assert_eq!(workers(&mut there), 0);
        primary.kill_postmaster().unwrap();
    });
    standby.promote().unwrap();
    load.nothing_acknowledged_is_lost(&mut there);
    load.again_until_all_is_done(&later);
    assert_eq!(ring(&mut there), (2, 2));

    // The worker has started with the promotion, and does what housekeeping there is.
    there.run(&format!(
        "ALTER DATABASE {} RESET sequential_inbox.housekeeping",
        later.name()
    ));
    assert!(claim(&mut there, "after the promotion"));
    age_ring(&mut there, HALF_A_RETENTION);
    wait_for("the worker to move the ring on", || {
        (ring(&mut there) == (0, 3)).then_some(())
    });
    assert!(workers(&mut there) > 0);
    assert!(!claim(&mut there, "after the promotion"));
}

/// Looks at the standby until the load has got that far: what is seen there is whole at any moment.
fn enough_is_acknowledged(load: &Load, enough: usize, standby: &mut Session) {
    wait_for("the load to get on", || {
        look_for_torn_ones(standby);
        (load.acknowledged() >= enough).then_some(())
    });
}

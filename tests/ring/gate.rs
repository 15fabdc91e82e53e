//! The gate between claims and rotations: who waits for whom, how long, and when it opens (G3, G9).

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{Session, blocked, sqlstate},
    retention::{
        CONSUMER, HALF_A_RETENTION, age_ring, claim, claim_without_waiting, gate_modes, housekeep,
        ring, rotate, table_of, try_claim,
    },
};

/// Long enough for a test to look at the rotation while it waits. How long it takes exactly does
/// not matter: what is tested is that it ends by itself.
const OBSERVABLE_TIMEOUT: &str = "SET sequential_inbox.rotation_lock_timeout = '2s'";

/// Far above any rotation's time-out: what runs into this has waited for something else.
const BOUND: &str = "SET lock_timeout = '25s'";

#[test]
fn g9_a_claim_held_open_over_the_due_time_makes_the_rotation_busy_until_it_ends() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    for ending in ["COMMIT", "ROLLBACK"] {
        let mut owner = Session::new(&database);
        owner.begin();
        assert!(claim(&mut owner, ending));
        age_ring(&mut keeper, HALF_A_RETENTION);
        let before = ring(&mut keeper);
        for _ in 0..3 {
            let batch = housekeep(&mut keeper);
            assert!(!batch.rotated && !batch.more, "{batch:?}");
        }
        assert_eq!(ring(&mut keeper), before);
        owner.run(ending);
        assert!(housekeep(&mut keeper).rotated, "after {ending}");
        assert_eq!(claim(&mut owner, ending), ending == "ROLLBACK");
    }
}

/// Claims queue behind a rotation that queues behind a claim; they go on when it gives up.
#[test]
fn g9_a_claim_waits_for_a_queued_rotation_only_until_that_gives_up() {
    let database = Database::new();
    let mut owner = Session::new(&database);
    let mut keeper = Session::new(&database);
    let mut next = Session::new(&database);
    keeper.run(OBSERVABLE_TIMEOUT);
    next.run(BOUND);
    owner.begin();
    assert!(claim(&mut owner, "m"));
    let keeper_pid = keeper.pid();
    let next_pid = next.pid();
    thread::scope(|scope| {
        let rotation = blocked(scope, &database, &mut keeper, |keeper| housekeep(keeper));
        let claimed = blocked(scope, &database, &mut next, |next| claim(next, "n"));
        // The owner holds the gate to the end of this: only the rotation's time-out lets it by.
        let blockers = database.wait_until_blocked(next_pid, || claimed.is_finished());
        assert_eq!(blockers, [keeper_pid]);
        assert!(claimed.join().unwrap());
        assert!(!rotation.join().unwrap().rotated);
    });
    owner.commit();
}

/// A reader of the table that would be emptied, pg_dump say, is not waited for: nobody would get at
/// the table, or through the gate, meanwhile.
#[test]
fn g9_a_reader_of_the_oldest_table_makes_the_rotation_give_up_and_claims_go_on() {
    let database = Database::new();
    let mut reader = Session::new(&database);
    let mut keeper = Session::new(&database);
    let mut consumer = Session::new(&database);
    // Not to be waited out.
    keeper.run("SET sequential_inbox.rotation_lock_timeout = '60s'");
    keeper.run("SET statement_timeout = '25s'");
    reader.begin();
    let claims: i64 = reader.value("SELECT count(*) FROM inbox_claims", &[]);
    assert_eq!(claims, 0);
    keeper.begin();
    assert!(!housekeep(&mut keeper).rotated);
    // Neither lock is kept: a claim goes on, and so does a dump that asks for its table once more.
    consumer.run("SET lock_timeout = '1ms'");
    assert!(claim(&mut consumer, "m"));
    consumer.run("BEGIN; LOCK TABLE inbox_claim_1 IN ACCESS SHARE MODE NOWAIT; COMMIT");
    keeper.commit();
    reader.commit();
    assert_eq!(ring(&mut keeper), (0, 0));
    assert!(housekeep(&mut keeper).rotated);
    assert!(!claim(&mut consumer, "m"));
}

/// The caller's own `lock_timeout` is neither used by the rotation nor changed by it.
#[test]
fn g9_a_rotation_leaves_the_callers_lock_timeout_alone() {
    let database = Database::new();
    let mut owner = Session::new(&database);
    let mut keeper = Session::new(&database);
    keeper.run("SET lock_timeout = '25s'");
    owner.begin();
    assert!(claim(&mut owner, "m"));
    keeper.begin();
    assert!(!housekeep(&mut keeper).rotated);
    let timeout = "SELECT current_setting('lock_timeout')";
    assert_eq!(keeper.value::<String>(timeout, &[]), "25s");
    owner.commit();
    assert!(housekeep(&mut keeper).rotated);
    assert_eq!(keeper.value::<String>(timeout, &[]), "25s");
    keeper.commit();
    assert_eq!(keeper.value::<String>(timeout, &[]), "25s");
}

/// A rotation that gave up has undone all it did, its locks included, though the caller's transaction
/// goes on.
#[test]
fn g9_a_rotation_that_gave_up_holds_nothing() {
    let database = Database::new();
    let mut reader = Session::new(&database);
    let mut keeper = Session::new(&database);
    let mut consumer = Session::new(&database);
    consumer.run("SET lock_timeout = '1ms'");
    reader.begin();
    reader.run("SELECT FROM inbox_claim_1");
    keeper.begin();
    assert!(!housekeep(&mut keeper).rotated);
    let keeper_pid = keeper.pid();
    assert_eq!(gate_modes(&mut reader, keeper_pid), [""; 0]);
    assert!(claim(&mut consumer, "m"));
    keeper.run("INSERT INTO ledger VALUES ('kept')");
    keeper.commit();
    assert_eq!(database.ledger(), ["kept"]);
}

/// The same where the ring turns out not to be due once the gate is held: another session was first.
#[test]
fn g9_two_rotations_at_once_are_one() {
    let database = Database::new();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    let mut consumer = Session::new(&database);
    second.run("SET sequential_inbox.rotation_lock_timeout = '60s'");
    consumer.run("SET lock_timeout = '1ms'");
    assert!(claim(&mut first, "m"));
    first.begin();
    assert!(housekeep(&mut first).rotated);
    let second_pid = second.pid();
    thread::scope(|scope| {
        let other = blocked(scope, &database, &mut second, |second| {
            second.begin();
            housekeep(second)
        });
        first.commit();
        assert!(!other.join().unwrap().rotated, "it has just moved on");
    });
    // Its transaction is still open, and it holds no gate.
    assert_eq!(gate_modes(&mut first, second_pid), [""; 0]);
    assert!(claim(&mut consumer, "n"));
    second.commit();
    assert_eq!(ring(&mut first), (1, 1));
    assert!(!claim(&mut first, "m"));
}

#[test]
fn g3_g9_a_rollback_to_a_savepoint_releases_the_gate() {
    let database = Database::new();
    let mut owner = Session::new(&database);
    let mut keeper = Session::new(&database);
    let pid = owner.pid();
    owner.begin();
    owner.run("SAVEPOINT before");
    assert!(claim(&mut owner, "m"));
    assert_eq!(gate_modes(&mut keeper, pid), ["RowShareLock"]);
    assert!(!housekeep(&mut keeper).rotated);
    owner.run("ROLLBACK TO before");
    assert_eq!(gate_modes(&mut keeper, pid), [""; 0]);
    assert!(housekeep(&mut keeper).rotated, "no claim is in flight");

    // The gate is taken anew, and where it leads is read anew.
    assert!(claim(&mut owner, "m"));
    assert_eq!(gate_modes(&mut keeper, pid), ["RowShareLock"]);
    assert_eq!(table_of(&mut owner, "m"), Some(1));
    age_ring(&mut keeper, HALF_A_RETENTION);
    assert!(!housekeep(&mut keeper).rotated);
    owner.commit();
    assert!(!claim(&mut keeper, "m"));
    assert!(housekeep(&mut keeper).rotated);
}

#[test]
fn g9_a_released_savepoint_keeps_the_gate() {
    let database = Database::new();
    let mut owner = Session::new(&database);
    let mut keeper = Session::new(&database);
    owner.begin();
    owner.run("SAVEPOINT s");
    assert!(claim(&mut owner, "m"));
    owner.run("RELEASE s");
    assert!(!housekeep(&mut keeper).rotated);
    owner.commit();
    assert!(housekeep(&mut keeper).rotated);
}

/// A duplicate holds the gate too: what it was told must stay true to its end.
#[test]
fn g9_a_duplicate_and_a_failed_claim_hold_the_gate_as_long_as_their_transaction_says() {
    let database = Database::new();
    let mut consumer = Session::new(&database);
    let mut keeper = Session::new(&database);
    assert!(claim(&mut consumer, "m"));
    consumer.begin();
    assert!(!claim(&mut consumer, "m"));
    assert!(!housekeep(&mut keeper).rotated);
    consumer.rollback();

    // An error ends the transaction, and with it the gate, before anybody says ROLLBACK.
    let pid = consumer.pid();
    consumer.begin();
    assert!(claim(&mut consumer, "n"));
    assert_eq!(sqlstate(try_claim(&mut consumer, "")), "22023");
    assert_eq!(gate_modes(&mut keeper, pid), [""; 0]);
    assert!(housekeep(&mut keeper).rotated);
    consumer.rollback();
    assert!(claim(&mut consumer, "n"));
}

/// Every way of claiming, and every change of a claim, keeps a rotation away.
#[test]
fn g9_each_function_that_touches_plain_claims_holds_the_gate() {
    let database = Database::new();
    let mut consumer = Session::new(&database);
    let mut keeper = Session::new(&database);
    let pid = consumer.pid();
    assert!(claim(&mut consumer, "m"));
    for call in [
        "inbox_claim('billing', 'n')",
        "inbox_claim('billing', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid)",
        "inbox_try_claim('billing', 'n')",
        "inbox_try_claim('billing', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid)",
        "inbox_claim_batch('billing', ARRAY['n'])",
        "inbox_fail('billing', 'n')",
        "inbox_annotate('billing', 'm', '{}')",
        "inbox_release('billing', 'm')",
    ] {
        consumer.begin();
        consumer.run(&format!("SELECT {call}"));
        let modes = gate_modes(&mut keeper, pid);
        assert_eq!(modes, ["RowShareLock"], "{call}");
        assert!(!housekeep(&mut keeper).rotated, "{call}");
        consumer.rollback();
    }
    assert!(housekeep(&mut keeper).rotated);
}

#[test]
fn g9_a_transaction_with_a_claim_of_its_own_does_not_rotate() {
    let database = Database::new();
    let mut session = Session::new(&database);
    session.begin();
    assert!(claim(&mut session, "m"));
    assert!(!housekeep(&mut session).rotated);
    assert!(!claim(&mut session, "m"), "it does not win twice");
    session.commit();
    assert!(housekeep(&mut session).rotated);

    // A claim that was undone is none.
    age_ring(&mut session, HALF_A_RETENTION);
    session.begin();
    session.run("SAVEPOINT s");
    assert!(claim(&mut session, "n"));
    session.run("ROLLBACK TO s");
    assert!(housekeep(&mut session).rotated);
    // What comes after the rotation goes to the new table.
    assert!(claim(&mut session, "n"));
    assert_eq!(table_of(&mut session, "n"), Some(2));
    assert!(!claim(&mut session, "m"));
    session.commit();
    assert!(!claim(&mut session, "n"));
}

#[test]
fn g9_a_rotation_that_is_rolled_back_has_not_happened() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for (key, table) in [("m", 0), ("n", 1)] {
        assert!(claim(&mut session, key));
        assert_eq!(table_of(&mut session, key), Some(table));
        session.begin();
        rotate(&mut session);
        session.rollback();
        assert!(!claim(&mut session, key));
        rotate(&mut session);
    }
    // The one that would empty m's table.
    session.begin();
    rotate(&mut session);
    assert!(claim(&mut session, "m"));
    session.rollback();
    assert!(!claim(&mut session, "m"));
}

#[test]
fn g2_try_claim_beside_an_open_rotation_answers_in_flight_at_once() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    let mut consumer = Session::new(&database);
    assert!(claim(&mut consumer, "sealed"));
    keeper.begin();
    assert!(housekeep(&mut keeper).rotated);
    // Nothing ends the rotation while this test waits for the answers: a call that waited would
    // run into this.
    consumer.run("SET statement_timeout = '25s'");
    for key in ["sealed", "new"] {
        assert_eq!(claim_without_waiting(&mut consumer, key), "in_flight");
    }
    let uuid: String = consumer.value(
        "SELECT inbox_try_claim($1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid)",
        &[&CONSUMER],
    );
    assert_eq!(uuid, "in_flight");
    // In a transaction nothing of it is left behind, and the transaction goes on.
    consumer.begin();
    assert_eq!(claim_without_waiting(&mut consumer, "new"), "in_flight");
    consumer.run("INSERT INTO ledger VALUES ('kept')");
    consumer.commit();
    assert_eq!(database.ledger(), ["kept"]);
    keeper.commit();
    assert_eq!(claim_without_waiting(&mut consumer, "sealed"), "duplicate");
    assert_eq!(claim_without_waiting(&mut consumer, "new"), "claimed");
}

/// What a session has learnt must not outlive the rotation: each claim reads the ring anew.
#[test]
fn g9_a_long_lived_session_follows_the_ring() {
    let database = Database::new();
    let mut consumer = Session::new(&database);
    let mut keeper = Session::new(&database);
    for round in 0..7 {
        let key = format!("m{round}");
        assert!(claim(&mut consumer, &key));
        assert_eq!(table_of(&mut consumer, &key), Some(round % 3));
        assert!(!claim(&mut consumer, &key));
        rotate(&mut keeper);
        assert!(!claim(&mut consumer, &key));
    }
}

/// A view of the claims is a reader: it neither stops claims nor is stopped by the gate.
#[test]
fn g9_the_views_can_be_read_while_a_rotation_waits_at_the_gate() {
    let database = Database::new();
    let mut owner = Session::new(&database);
    let mut keeper = Session::new(&database);
    let mut monitor = Session::new(&database);
    monitor.run("SET lock_timeout = '1ms'");
    keeper.run(OBSERVABLE_TIMEOUT);
    owner.begin();
    assert!(claim(&mut owner, "m"));
    thread::scope(|scope| {
        let rotation = blocked(scope, &database, &mut keeper, |keeper| housekeep(keeper));
        monitor.run("SELECT * FROM inbox_claims; SELECT * FROM inbox_settings");
        assert!(!rotation.join().unwrap().rotated);
    });
    owner.commit();
}

//! What breaks under the worker: it backs off, tells, and goes on when the cause is mended.

use inbox_test_support::{inbox::Session, wait_for};

use super::{
    complaints, give_work, has_work, preloaded, processes, quiet_beside, wait_for_rounds,
    wait_until_done, with_extension,
};

/// How many rounds have failed in a row.
fn failures(session: &mut Session) -> i32 {
    session.value("SELECT failures FROM inbox_settings", &[])
}

/// Waits until that many rounds have failed in a row; the error that is shown then.
fn wait_for_failures(session: &mut Session, number: i32) -> String {
    wait_for("rounds to fail", || {
        (failures(session) >= number).then_some(())
    });
    session.value("SELECT last_error FROM inbox_settings", &[])
}

/// Waits until a round succeeds again, and checks that the old error can still be read.
fn wait_until_recovered(session: &mut Session) {
    wait_for("a round to succeed", || {
        (failures(session) == 0).then_some(())
    });
    let kept: bool = session.value(
        "SELECT last_error IS NOT NULL AND last_error_at < last_run_at AND next_run_at IS NULL
         FROM inbox_settings",
        &[],
    );
    assert!(kept);
}

#[test]
fn g8_it_backs_off_from_a_broken_function_and_recovers() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    let (_other, mut other) = with_extension(&cluster);
    session.run(
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RAISE EXCEPTION 'out of order' USING DETAIL = 'by design'; END$$;
         CREATE TRIGGER broken BEFORE DELETE ON sequence_instance
            FOR EACH ROW EXECUTE FUNCTION broken()",
    );
    give_work(&mut session, "1");
    let error = wait_for_failures(&mut session, 3);
    assert!(error.contains("out of order"), "{error}");
    assert!(error.contains("by design"), "{error}");

    // Each pause is twice as long as the one before, counted from the failure. Read in one look.
    let doubled: bool = session.value(
        "SELECT next_run_at >= last_error_at + housekeeping_interval * 2 ^ (failures - 1)
            AND next_run_at < last_error_at + housekeeping_interval * (2 ^ (failures - 1) + 1)
         FROM inbox_settings",
        &[],
    );
    assert!(doubled);
    // What the failed rounds had done is undone; elsewhere nobody noticed.
    assert!(has_work(&mut session));
    wait_for_rounds(&mut other, 1);
    assert_eq!(failures(&mut other), 0);

    // It keeps to the pause.
    session.run("UPDATE inbox_worker_status SET next_run_at = now() + interval '1 hour'");
    let before = failures(&mut session);
    quiet_beside(&mut session, &mut other);
    assert_eq!(failures(&mut session), before);

    session.run(
        "DROP TRIGGER broken ON sequence_instance;
         UPDATE inbox_worker_status SET next_run_at = now()",
    );
    wait_until_done(&mut session);
    wait_until_recovered(&mut session);
}

#[test]
fn g8_it_backs_off_from_a_missing_table_and_recovers() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    give_work(&mut session, "1");
    wait_until_done(&mut session);
    session.run("ALTER TABLE sequence_instance RENAME TO hidden");
    let error = wait_for_failures(&mut session, 2);
    assert!(error.contains("sequence_instance"), "{error}");
    session.run(
        "ALTER TABLE hidden RENAME TO sequence_instance;
         UPDATE inbox_worker_status SET next_run_at = now()",
    );
    wait_until_recovered(&mut session);
    assert!(!complaints(&cluster).is_empty(), "the log has it too");
}

/// Where not even the error can be stored, the log has it, and nothing worse happens.
#[test]
fn g8_it_survives_the_loss_of_its_own_table() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    let (_other, mut other) = with_extension(&cluster);
    wait_for_rounds(&mut session, 1);
    session.run("ALTER TABLE inbox_worker_status RENAME TO hidden");
    wait_for("complaints in the log", || {
        let complaints = complaints(&cluster);
        complaints
            .iter()
            .any(|line| line.contains("could not be noted"))
            .then_some(())
    });
    wait_for_rounds(&mut other, 1);
    session.run("ALTER TABLE hidden RENAME TO inbox_worker_status");
    wait_for_rounds(&mut session, 1);
}

/// A worker that is stopped by hand costs its database a round and the others nothing.
#[test]
fn g8_a_terminated_worker_costs_one_round() {
    let cluster = preloaded().start().unwrap();
    let (_database, mut session) = with_extension(&cluster);
    let (_other, mut other) = with_extension(&cluster);
    wait_for_rounds(&mut session, 1);
    // It waits for this lock, so that there is something to stop.
    session.run("BEGIN; LOCK TABLE sequence_type");
    let mut waiting = || -> i32 {
        wait_for("the worker to wait", || {
            let found = other.query(
                "SELECT pid FROM pg_stat_activity
                 WHERE backend_type = 'sequential_inbox worker' AND wait_event_type = 'Lock'",
                &[],
            );
            found.unwrap().first().map(|row| row.get(0))
        })
    };
    let first = waiting();
    session
        .query("SELECT pg_terminate_backend($1)", &[&first])
        .unwrap();
    wait_for("another round to come to the lock", || {
        (waiting() != first).then_some(())
    });
    session.rollback();
    wait_for_rounds(&mut session, 1);
    wait_for_rounds(&mut other, 1);
    assert_eq!(
        processes(&mut session, Some("sequential_inbox launcher")).len(),
        1
    );
}

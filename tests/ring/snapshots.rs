//! Transactions whose snapshot is older than a rotation (G10): TRUNCATE is not MVCC-safe, so an old
//! snapshot shows neither the rows that were there nor those that came since.

use inbox_test_support::{
    Database,
    inbox::{Session, sqlstate},
    retention::{CONSUMER, claim, housekeep, ring, rotate, table_of, try_claim},
};
use postgres::{Error, IsolationLevel};

const OLD_SNAPSHOT_LEVELS: [IsolationLevel; 2] =
    [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Each way to claim a key, as a query that tells whether it was won.
const WAYS: [&str; 3] = [
    "SELECT inbox_claim($1::text, $2::text)",
    "SELECT inbox_try_claim($1::text, $2::text) = 'claimed'",
    "SELECT (inbox_claim_batch($1::text, ARRAY[$2::text]))[1]",
];

/// What another session does with a key before and after the snapshot.
type Step = fn(&mut Session, &str);

/// Claims a key in each way at each level, in a transaction that began between `before` and
/// `meanwhile`, and hands each answer to `check`.
fn claimed_with_an_old_snapshot(
    before: Step,
    meanwhile: Step,
    check: impl Fn(Result<bool, Error>, &str),
) {
    let database = Database::new();
    let mut other = Session::new(&database);
    let mut session = Session::new(&database);
    for (number, level) in OLD_SNAPSHOT_LEVELS.into_iter().enumerate() {
        for way in WAYS {
            let key = format!("{way} {number}");
            before(&mut other, &key);
            session.begin_at(level);
            meanwhile(&mut other, &key);
            let answer = session
                .query(way, &[&CONSUMER, &key])
                .map(|rows| rows[0].get(0));
            session.run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" });
            check(answer, &key);
        }
    }
}

/// Does nothing.
fn nothing(_: &mut Session, _: &str) {}

/// Claims the key and commits.
fn won(session: &mut Session, key: &str) {
    assert!(claim(session, key));
}

/// Whatever was done, the snapshot is too old for it.
fn refused(answer: Result<bool, Error>, key: &str) {
    assert_eq!(sqlstate(answer), "40001", "{key}");
}

#[test]
fn g10_an_old_snapshot_never_wins_a_key_that_was_committed_and_sealed_since() {
    let meanwhile: Step = |other, key| {
        won(other, key);
        rotate(other);
    };
    claimed_with_an_old_snapshot(nothing, meanwhile, refused);
}

#[test]
fn g10_an_old_snapshot_never_wins_a_key_that_was_committed_in_the_new_table() {
    let meanwhile: Step = |other, key| {
        rotate(other);
        won(other, key);
    };
    claimed_with_an_old_snapshot(nothing, meanwhile, refused);
}

#[test]
fn g10_an_old_snapshot_never_wins_a_key_from_two_rotations_ago() {
    let meanwhile: Step = |other, key| {
        won(other, key);
        rotate(other);
        rotate(other);
    };
    claimed_with_an_old_snapshot(nothing, meanwhile, refused);
}

/// What the snapshot shows is no conflict, wherever the row is by now.
#[test]
fn g10_a_key_committed_before_the_snapshot_is_a_duplicate_whatever_rotated_since() {
    let rotations: [Step; 3] = [
        nothing,
        |other, _| rotate(other),
        |other, _| {
            rotate(other);
            rotate(other);
        },
    ];
    for meanwhile in rotations {
        claimed_with_an_old_snapshot(won, meanwhile, |answer, key| {
            assert!(!answer.unwrap(), "{key}");
        });
    }
}

/// A rotation is no conflict for a transaction whose keys nobody else has, and what it wins lasts.
#[test]
fn g10_a_free_key_is_won_with_an_old_snapshot_and_stays_won() {
    let database = Database::new();
    let mut other = Session::new(&database);
    let mut session = Session::new(&database);
    for (number, level) in OLD_SNAPSHOT_LEVELS.into_iter().enumerate() {
        for way in WAYS {
            let key = format!("{way} {number}");
            session.begin_at(level);
            rotate(&mut other);
            let won: bool = session.value(way, &[&CONSUMER, &key]);
            assert!(won, "{key}");
            session.commit();
            let (current, _) = ring(&mut other);
            assert_eq!(table_of(&mut other, &key), Some(current), "{key}");
            assert!(!claim(&mut other, &key), "{key}");
            rotate(&mut other);
            assert!(!claim(&mut other, &key), "{key}");
        }
    }
}

/// A key whose retention is over is free for an old snapshot too: the emptied table is not asked
/// through the snapshot that still knows the claim.
#[test]
fn g10_a_key_whose_table_was_emptied_since_can_be_won() {
    let meanwhile: Step = |other, _| {
        for _ in 0..3 {
            rotate(other);
        }
    };
    claimed_with_an_old_snapshot(won, meanwhile, |answer, key| {
        assert!(answer.unwrap(), "{key}");
    });
}

/// In a long READ COMMITTED transaction each call sees what was committed before it.
#[test]
fn g10_read_committed_sees_every_rotation_between_two_of_its_statements() {
    let database = Database::new();
    let mut other = Session::new(&database);
    let mut session = Session::new(&database);
    session.begin();
    session.run("SELECT count(*) FROM inbox_claim_ring; SAVEPOINT s");
    assert!(claim(&mut other, "m"));
    // The lock of the reader above is on the ring alone, which a rotation lets pass.
    rotate(&mut other);
    assert!(!claim(&mut session, "m"));
    session.run("ROLLBACK TO s");
    rotate(&mut other);
    assert!(!claim(&mut session, "m"));
    session.commit();
}

/// Two transactions with old snapshots, one key, a rotation between the two claims: one wins.
#[test]
fn g1_g10_of_two_old_snapshots_around_a_rotation_one_wins() {
    for level in OLD_SNAPSHOT_LEVELS {
        let database = Database::new();
        let mut keeper = Session::new(&database);
        let mut one = Session::new(&database);
        let mut two = Session::new(&database);
        one.begin_at(level);
        two.begin_at(level);
        assert!(claim(&mut one, "m"));
        assert!(!housekeep(&mut keeper).rotated);
        one.commit();
        assert!(housekeep(&mut keeper).rotated);
        assert_eq!(sqlstate(try_claim(&mut two, "m")), "40001");
        two.rollback();
        assert!(!claim(&mut two, "m"));
    }
}

/// Housekeeping itself may be called with an old snapshot: it judges by the ring as it is.
#[test]
fn g9_g10_housekeeping_with_an_old_snapshot_never_rotates_too_early() {
    for level in OLD_SNAPSHOT_LEVELS {
        let database = Database::new();
        let mut other = Session::new(&database);
        let mut keeper = Session::new(&database);
        keeper.begin_at(level);
        // By the keeper's snapshot the ring has never moved and is due.
        assert!(claim(&mut other, "m"));
        rotate(&mut other);
        assert!(claim(&mut other, "n"));
        assert!(!housekeep(&mut keeper).rotated, "not due by now");
        keeper.commit();
        for key in ["m", "n"] {
            assert!(!claim(&mut other, key), "{key}");
        }
    }
}

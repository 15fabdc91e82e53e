//! When the ring moves on, and that no rotation lets a protected duplicate win (G9, G10).

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{ISOLATION_LEVELS, Session, blocked, sqlstate},
    retention::{
        CONSUMER, HALF_A_RETENTION, age_ring, claim, claim_without_waiting, end, housekeep, ring,
        rotate, table_of, try_claim_at,
    },
};
use postgres::{Error, IsolationLevel};

/// What the winner of a key is doing while a rotation is tried the first time.
#[derive(Debug, Clone, Copy)]
enum Winner {
    InFlight,
    Prepared,
    Committed,
}

const WINNERS: [Winner; 3] = [Winner::InFlight, Winner::Prepared, Winner::Committed];

/// How a duplicate was told that it is one. Anything else, above all a win, fails the test.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// `false`.
    Duplicate,
    /// 40001: the winner committed after the duplicate's snapshot.
    Serialization,
}

/// Reads an answer to a duplicate.
#[track_caller]
fn refused(answer: Result<bool, Error>) -> Refusal {
    match answer {
        Ok(false) => Refusal::Duplicate,
        Ok(true) => panic!("a protected duplicate has won"),
        Err(error) => {
            assert_eq!(sqlstate::<bool>(Err(error)), "40001");
            Refusal::Serialization
        }
    }
}

/// What a duplicate must be told whose snapshot is older than the winner's commit.
fn told_to_older_snapshots(level: IsolationLevel) -> Refusal {
    match level {
        IsolationLevel::ReadCommitted => Refusal::Duplicate,
        _ => Refusal::Serialization,
    }
}

/// A transaction of that level in a session of its own, its snapshot taken.
fn begun(database: &Database, level: IsolationLevel) -> Session {
    let mut session = Session::new(database);
    session.begin_at(level);
    session
}

/// A key is won while `duplicate`, whose transaction has begun, claims it too and a rotation is
/// tried: the duplicate waits for the winner, and the rotation is not done.
fn win(
    database: &Database,
    keeper: &mut Session,
    winner: Winner,
    key: &str,
    duplicate: &mut Session,
) -> Refusal {
    let mut owner = Session::new(database);
    let commit = match winner {
        Winner::Committed => {
            assert!(claim(&mut owner, key));
            return refused(end(duplicate, key));
        }
        Winner::InFlight => {
            owner.begin();
            assert!(claim(&mut owner, key));
            "COMMIT".to_owned()
        }
        Winner::Prepared => {
            owner.begin();
            assert!(claim(&mut owner, key));
            // Named after the database: prepared transactions are the server's.
            let name = format!("{}-{key}", database.name());
            owner.run(&format!("PREPARE TRANSACTION '{name}'"));
            format!("COMMIT PREPARED '{name}'")
        }
    };
    thread::scope(|scope| {
        let waiting = blocked(scope, database, duplicate, |duplicate| end(duplicate, key));
        let (_, rotations) = ring(keeper);
        assert!(!housekeep(keeper).rotated, "a claim is in flight");
        assert_eq!(ring(keeper).1, rotations);
        owner.run(&commit);
        refused(waiting.join().unwrap())
    })
}

/// In front of, during and behind each of three rotations, duplicates of all keys that are still
/// protected: those won since the last rotation but one.
fn around_three_rotations(level: IsolationLevel, winner: Winner) {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    let mut fresh = Session::new(&database);
    let old_answer = told_to_older_snapshots(level);
    let keys = ["first", "second", "third"];
    for (round, key) in keys.into_iter().enumerate() {
        let earlier = round.checked_sub(1).map(|previous| keys[previous]);
        age_ring(&mut keeper, HALF_A_RETENTION);

        // Before it. The snapshots of these two do not have the winner's claim.
        let mut waiting = begun(&database, level);
        let older = begun(&database, level);
        let answer = win(&database, &mut keeper, winner, key, &mut waiting);
        assert_eq!(answer, old_answer, "{winner:?} {key}");
        let protected: Vec<&str> = earlier.into_iter().chain([key]).collect();
        for key in &protected {
            let answer = refused(try_claim_at(&mut fresh, level, key));
            assert_eq!(answer, Refusal::Duplicate, "{key} before rotation {round}");
        }

        // During it: each waits at the gate. The snapshots of the others do have the claim.
        let mut during: Vec<(Session, &str, &Refusal)> = vec![(older, key, &old_answer)];
        for key in &protected {
            during.push((begun(&database, level), key, &Refusal::Duplicate));
        }
        keeper.begin();
        assert!(housekeep(&mut keeper).rotated, "rotation {round} is due");
        for key in &protected {
            during.push((begun(&database, level), key, &Refusal::Duplicate));
            assert_eq!(claim_without_waiting(&mut fresh, key), "in_flight");
        }
        thread::scope(|scope| {
            let answers: Vec<_> = during
                .iter_mut()
                .map(|(session, key, expected)| {
                    let (key, expected) = (*key, *expected);
                    let claimed = blocked(scope, &database, session, move |it| end(it, key));
                    (claimed, key, expected)
                })
                .collect();
            keeper.commit();
            for (claimed, key, expected) in answers {
                let answer = refused(claimed.join().unwrap());
                assert_eq!(&answer, expected, "{key} during rotation {round}");
            }
        });

        // After it.
        for key in &protected {
            let answer = refused(try_claim_at(&mut fresh, level, key));
            assert_eq!(answer, Refusal::Duplicate, "{key} after rotation {round}");
            assert_eq!(claim_without_waiting(&mut fresh, key), "duplicate");
        }
    }
    assert_eq!(ring(&mut keeper), (0, 3));

    // One and a half retentions are over for the first key, and only for it.
    assert!(try_claim_at(&mut fresh, level, "first").unwrap());
    for key in ["first", "second", "third"] {
        assert_eq!(
            refused(try_claim_at(&mut fresh, level, key)),
            Refusal::Duplicate
        );
    }
}

#[test]
fn g9_a_duplicate_around_three_rotations_is_false_at_read_committed() {
    for winner in WINNERS {
        around_three_rotations(IsolationLevel::ReadCommitted, winner);
    }
}

#[test]
fn g9_g10_a_duplicate_around_three_rotations_never_wins_at_repeatable_read() {
    for winner in WINNERS {
        around_three_rotations(IsolationLevel::RepeatableRead, winner);
    }
}

#[test]
fn g9_g10_a_duplicate_around_three_rotations_never_wins_at_serializable() {
    for winner in WINNERS {
        around_three_rotations(IsolationLevel::Serializable, winner);
    }
}

/// A claim that met the rotation at the gate goes where the rotation has led, in whatever way it is
/// made and however old its snapshot is: in the table that was current before, which is sealed now, it
/// would be dated wrongly and could be overlooked.
#[test]
fn g9_g10_what_is_claimed_during_a_rotation_lands_in_the_new_table() {
    let ways = [
        "SELECT inbox_claim($1::text, $2::text)",
        "SELECT (inbox_claim_batch($1::text, ARRAY[$2::text]))[1]",
    ];
    let database = Database::new();
    let mut keeper = Session::new(&database);
    for level in ISOLATION_LEVELS {
        age_ring(&mut keeper, HALF_A_RETENTION);
        let mut claims: Vec<_> = ways
            .into_iter()
            .map(|way| (begun(&database, level), way, format!("{level:?} {way}")))
            .collect();
        keeper.begin();
        assert!(housekeep(&mut keeper).rotated);
        thread::scope(|scope| {
            let waiting: Vec<_> = claims
                .iter_mut()
                .map(|(session, way, key)| {
                    let (way, key) = (*way, key.clone());
                    blocked(scope, &database, session, move |session| {
                        let won: bool = session.value(way, &[&CONSUMER, &key]);
                        session.commit();
                        won
                    })
                })
                .collect();
            keeper.commit();
            for claimed in waiting {
                assert!(claimed.join().unwrap());
            }
        });
        let (current, _) = ring(&mut keeper);
        for (_, _, key) in &claims {
            assert_eq!(table_of(&mut keeper, key), Some(current), "{key}");
        }
    }
}

/// A prepared winner may also be rolled back while the duplicate waits: no rotation got between.
#[test]
fn g3_a_prepared_winner_rolled_back_around_a_rotation_is_taken_over() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    let mut owner = Session::new(&database);
    let mut heir = Session::new(&database);
    owner.begin();
    assert!(claim(&mut owner, "m"));
    let name = database.name();
    owner.run(&format!("PREPARE TRANSACTION '{name}'"));
    thread::scope(|scope| {
        let taken_over = blocked(scope, &database, &mut heir, |heir| claim(heir, "m"));
        assert!(!housekeep(&mut keeper).rotated, "a claim is prepared");
        owner.run(&format!("ROLLBACK PREPARED '{name}'"));
        assert!(taken_over.join().unwrap());
    });
    rotate(&mut keeper);
    assert!(!claim(&mut heir, "m"));
}

#[test]
fn g9_the_ring_moves_on_every_half_retention_and_not_before() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    assert!(claim(&mut keeper, "m"));
    let mut rotations = 0;
    for _ in 0..4 {
        rotate(&mut keeper);
        rotations += 1;
        assert!(!housekeep(&mut keeper).rotated, "it has just moved on");
        age_ring(&mut keeper, "6 days 23:59");
        assert!(
            !housekeep(&mut keeper).rotated,
            "half a retention is not over"
        );
        assert_eq!(ring(&mut keeper).1, rotations);
        // Back to where `rotate` moves on from.
        age_ring(&mut keeper, "-6 days -23:59");
    }
}

/// Housekeeping that stayed away for half a retention too long must not make the next rotation come
/// early: the table that it empties was sealed late.
#[test]
fn g9_a_table_is_emptied_only_a_whole_retention_after_it_was_sealed() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    assert!(claim(&mut keeper, "m"));
    rotate(&mut keeper);
    age_ring(&mut keeper, "10 days");
    assert!(housekeep(&mut keeper).rotated);
    // A retention since the seal is over then; it is the pace that still holds it back.
    age_ring(&mut keeper, "6 days 23:00");
    assert!(!housekeep(&mut keeper).rotated);
    assert!(!claim(&mut keeper, "m"));
    age_ring(&mut keeper, "2 hours");
    assert!(housekeep(&mut keeper).rotated);
    assert!(claim(&mut keeper, "m"), "17 days are more than a retention");

    // The other way round: two rotations close together, as a short retention that was set for
    // a while makes them. The pace no longer holds it back, the retention does.
    keeper.run("SET sequential_inbox.claim_retention = '1s'");
    for _ in 0..2 {
        age_ring(&mut keeper, "1 second");
        assert!(housekeep(&mut keeper).rotated);
    }
    keeper.run("RESET sequential_inbox.claim_retention");
    age_ring(&mut keeper, "13 days 23:59");
    assert!(!housekeep(&mut keeper).rotated);
    assert!(!claim(&mut keeper, "m"));
    age_ring(&mut keeper, "1 minute");
    assert!(housekeep(&mut keeper).rotated);
    assert!(claim(&mut keeper, "m"));
}

#[test]
fn g9_the_retention_in_force_decides() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    assert!(claim(&mut keeper, "m"));
    rotate(&mut keeper);
    rotate(&mut keeper);
    // Fourteen days after the seal by the default; a longer retention holds the table back.
    age_ring(&mut keeper, HALF_A_RETENTION);
    keeper.run("SET sequential_inbox.claim_retention = '15d'");
    assert!(!housekeep(&mut keeper).rotated);
    assert!(!claim(&mut keeper, "m"));
    keeper.run("SET sequential_inbox.claim_retention = '14d'");
    assert!(housekeep(&mut keeper).rotated);
    assert!(claim(&mut keeper, "m"));
}

/// TRUNCATE gives the space back, however much it was.
#[test]
fn g9_a_rotation_leaves_nothing_of_the_emptied_table() {
    let database = Database::new();
    let mut keeper = Session::new(&database);
    let won: i64 = keeper.value(
        "SELECT count(*) FILTER (WHERE won) FROM unnest(inbox_claim_batch('billing', ARRAY(
             SELECT 'm' || n FROM generate_series(1, 2000) n))) AS w (won)",
        &[],
    );
    assert_eq!(won, 2000);
    let size = "SELECT pg_total_relation_size('inbox_claim_0')";
    assert!(keeper.value::<i64>(size, &[]) > 100_000);
    for _ in 0..3 {
        rotate(&mut keeper);
    }
    let empty: i64 = keeper.value("SELECT pg_total_relation_size('inbox_claim_2')", &[]);
    assert_eq!(
        keeper.value::<i64>(size, &[]),
        empty,
        "back to an empty table's size"
    );
    assert_eq!(
        keeper.value::<i64>("SELECT count(*) FROM inbox_claims", &[]),
        0
    );
}

/// What is known of a claim stays known in a sealed table, and can be changed there.
#[test]
fn g9_a_sealed_claim_can_be_annotated_looked_up_failed_and_released() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for id in ["released", "failed"] {
        assert!(claim(&mut session, id));
    }
    rotate(&mut session);
    let annotated: bool = session.value(
        "SELECT inbox_annotate($1, 'released', '{\"trace\": 7}')",
        &[&CONSUMER],
    );
    assert!(annotated);
    let attributes: String = session.value(
        "SELECT attributes::text FROM inbox_lookup($1, 'released')",
        &[&CONSUMER],
    );
    assert_eq!(attributes, "{\"trace\": 7}");
    assert_eq!(table_of(&mut session, "released"), Some(0));
    let released = "SELECT inbox_release($1, 'released')";
    assert!(session.value::<bool>(released, &[&CONSUMER]));
    assert!(!session.value::<bool>(released, &[&CONSUMER]));
    assert!(session.value::<bool>("SELECT inbox_fail($1, 'failed')", &[&CONSUMER]));
    for id in ["released", "failed"] {
        assert!(claim(&mut session, id), "{id} is free again");
        assert_eq!(table_of(&mut session, id), Some(1));
    }
}

/// The release of a sealed claim is waited for like its taking: by what it commits.
#[test]
fn g2_a_claim_waits_for_a_release_of_the_sealed_claim() {
    let database = Database::new();
    let mut operator = Session::new(&database);
    let mut consumer = Session::new(&database);
    assert!(claim(&mut operator, "m"));
    rotate(&mut operator);
    for (ending, won) in [("ROLLBACK", false), ("COMMIT", true)] {
        operator.begin();
        let released: bool = operator.value("SELECT inbox_release($1, 'm')", &[&CONSUMER]);
        assert!(released);
        assert_eq!(claim_without_waiting(&mut consumer, "m"), "in_flight");
        thread::scope(|scope| {
            let claimed = blocked(scope, &database, &mut consumer, |it| claim(it, "m"));
            operator.run(ending);
            assert_eq!(claimed.join().unwrap(), won, "{ending}");
        });
    }
    assert_eq!(table_of(&mut consumer, "m"), Some(1));
}

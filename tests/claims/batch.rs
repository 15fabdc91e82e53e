//! `inbox_claim_batch` beside itself (G1, G2).

use std::{sync::Barrier, thread};

use inbox_test_support::{inbox::Session, kinds::Kind};

/// In the order in which they were given, two batches like these deadlock within a few rounds.
#[test]
fn g1_two_batches_in_opposite_order_never_deadlock() {
    const ROUNDS: usize = 200;
    const IDS: usize = 20;
    let database = Kind::Plain.database();
    let start = Barrier::new(2);
    let answers: Vec<Vec<Vec<bool>>> = thread::scope(|scope| {
        let sessions: Vec<_> = [false, true]
            .into_iter()
            .map(|reversed| {
                let (database, start) = (&database, &start);
                scope.spawn(move || {
                    let mut session = Session::new(database);
                    (0..ROUNDS)
                        .map(|round| {
                            let mut ids: Vec<_> =
                                (0..IDS).map(|id| format!("{round}-{id:02}")).collect();
                            if reversed {
                                ids.reverse();
                            }
                            start.wait();
                            session.begin();
                            // An error, 40P01 among them, fails the test.
                            let mut won: Vec<bool> =
                                session.value("SELECT inbox_claim_batch('billing', $1)", &[&ids]);
                            session.commit();
                            if reversed {
                                won.reverse();
                            }
                            won
                        })
                        .collect()
                })
            })
            .collect();
        sessions
            .into_iter()
            .map(|session| session.join().unwrap())
            .collect()
    });
    for (round, (one, two)) in answers[0].iter().zip(&answers[1]).enumerate() {
        for (id, (one, two)) in one.iter().zip(two).enumerate() {
            assert!(one != two, "round {round}, id {id}: {one} and {two}");
        }
    }
    let stored: i64 = database.value("SELECT count(*) FROM inbox_claims");
    assert_eq!(stored, i64::try_from(ROUNDS * IDS).unwrap());
}

//! Many sessions at the same keys (G1, G3, G4).

use std::thread;

use inbox_test_support::{Database, inbox::Session, kinds::Kind, over_both_kinds};

const SESSIONS: usize = 16;
const KEYS: usize = 500;

over_both_kinds! {
    g1_of_sixteen_sessions_one_wins_each_of_five_hundred_keys,
}

/// Every session takes every key, each in an order of its own, in every way in which one can be
/// taken. Every fifth that wins fails and rolls back, the first time. Taken out, any of these would
/// show as a key with two effects or with none: the unique key, the probe of the sealed tables, the
/// gate that is taken anew after a savepoint.
fn g1_of_sixteen_sessions_one_wins_each_of_five_hundred_keys(kind: Kind) {
    let database = kind.database();
    let won: usize = thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|number| {
                let database = &database;
                scope.spawn(move || take_all(database, kind, number))
            })
            .collect();
        sessions
            .into_iter()
            .map(|session| session.join().unwrap())
            .sum()
    });
    assert_eq!(won, KEYS, "each key was won once");
    let expected: Vec<_> = (0..KEYS).map(key).collect();
    assert_eq!(database.ledger(), expected, "each key has one effect");
    let stored: i64 = database.value("SELECT count(*) FROM inbox_claims");
    assert_eq!(stored, i64::try_from(KEYS).unwrap());
}

fn key(number: usize) -> String {
    format!("evt-{number:03}")
}

/// Takes all keys; how many of them this session won.
fn take_all(database: &Database, kind: Kind, number: usize) -> usize {
    // Odd and not divisible by 5, and so without a common divisor with 500: every key comes once.
    const STRIDES: [usize; 4] = [1, 499, 77, 213];
    let mut session = Session::new(database);
    let mut won = 0;
    for step in 0..KEYS {
        let id = key((number * 31 + step * STRIDES[number % STRIDES.len()]) % KEYS);
        let must_fail = (number + step).is_multiple_of(5);
        if take(&mut session, kind, &id, number, must_fail)
            || must_fail && take(&mut session, kind, &id, number, false)
        {
            won += 1;
        }
    }
    won
}

/// One delivery of a message: whether it was handled and committed here.
fn take(session: &mut Session, kind: Kind, id: &str, number: usize, must_fail: bool) -> bool {
    session.begin();
    let won = match number % 4 {
        0 => kind.claim(session, id),
        1 => {
            session.run("SAVEPOINT first");
            // Given back, and then taken for good, unless somebody was faster.
            kind.claim(session, id);
            session.run("ROLLBACK TO SAVEPOINT first");
            kind.claim(session, id)
        }
        2 => {
            // The holder's end decides, so it is asked again after that.
            match &*kind.try_claim(session, id) {
                "in_flight" => kind.claim(session, id),
                answer => answer == "claimed",
            }
        }
        _ if kind == Kind::Plain => {
            let ids = [id, id];
            let answers: Vec<bool> =
                session.value("SELECT inbox_claim_batch('billing', $1)", &[&&ids[..]]);
            assert!(!answers[1], "a repeat");
            answers[0]
        }
        _ => {
            session.run("SAVEPOINT around");
            let won = kind.claim(session, id);
            session.run("RELEASE SAVEPOINT around");
            won
        }
    };
    if won {
        session.write(id);
    }
    if won && must_fail {
        session.rollback();
        return false;
    }
    session.commit();
    won
}

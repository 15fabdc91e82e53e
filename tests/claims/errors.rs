//! The server's own errors reach the caller with their SQLSTATEs unchanged: 40001, 40P01, 55P03,
//! 57014 (G10, G11). The specs of isolationtester show the same cases, by their messages.

use std::thread;

use inbox_test_support::{
    inbox::{Session, blocked, sqlstate},
    kinds::Kind,
    over_both_kinds,
};
use postgres::IsolationLevel;

over_both_kinds! {
    g10_an_old_snapshot_is_a_serialization_failure,
    a_wait_ends_with_the_code_of_its_timeout,
    a_deadlock_keeps_its_code,
}

fn g10_an_old_snapshot_is_a_serialization_failure(kind: Kind) {
    let database = kind.database();
    let mut winner = Session::new(&database);
    let mut session = Session::new(&database);
    let mut calls = vec![kind.claim_of("$1::text"), kind.try_claim_of("$1::text")];
    if kind == Kind::Plain {
        calls.push("SELECT inbox_claim_batch('billing', ARRAY[$1::text])".to_owned());
    }
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        for (number, call) in calls.iter().enumerate() {
            let id = format!("{level:?}-{number}");
            session.begin_at(level);
            assert!(kind.claim(&mut winner, &id));
            assert_eq!(sqlstate(session.query(call, &[&id])), "40001", "{call}");
            session.rollback();
            session.begin_at(level);
            assert!(!kind.claim(&mut session, &id), "{call}");
            session.commit();
        }
        // A failure changes what its snapshot does not show.
        let id = format!("{level:?}-failed");
        session.begin_at(level);
        assert!(kind.claim(&mut winner, &id));
        winner.run(&kind.fail_of(&format!("'{id}'")));
        let fail = session.query(&kind.fail_of("$1::text"), &[&id]);
        assert_eq!(sqlstate(fail), "40001");
        session.rollback();
    }
}

fn a_wait_ends_with_the_code_of_its_timeout(kind: Kind) {
    let database = kind.database();
    let mut winner = Session::new(&database);
    let mut waiter = Session::new(&database);
    winner.begin();
    assert!(kind.claim(&mut winner, "evt-1"));
    for (setting, code) in [("lock_timeout", "55P03"), ("statement_timeout", "57014")] {
        for call in [kind.claim_of("$1::text"), kind.fail_of("$1::text")] {
            waiter.begin();
            waiter.run(&format!("SET LOCAL {setting} = '30ms'"));
            assert_eq!(sqlstate(waiter.query(&call, &[&"evt-1"])), code, "{call}");
            waiter.rollback();
        }
    }
    // The winner has not noticed.
    winner.commit();
    assert!(!kind.claim(&mut waiter, "evt-1"));
}

fn a_deadlock_keeps_its_code(kind: Kind) {
    let database = kind.database();
    let mut one = Session::new(&database);
    let mut two = Session::new(&database);
    one.run("SET deadlock_timeout = '10min'");
    two.run("SET deadlock_timeout = '10ms'");
    one.begin();
    two.begin();
    assert!(kind.claim(&mut one, "k1"));
    assert!(kind.claim(&mut two, "k2"));
    thread::scope(|scope| {
        let won = blocked(scope, &database, &mut one, |it| {
            let won = kind.claim(it, "k2");
            it.commit();
            won
        });
        let call = kind.claim_of("$1::text");
        assert_eq!(sqlstate(two.query(&call, &[&"k1"])), "40P01");
        two.rollback();
        assert!(won.join().unwrap());
    });
    assert!(!kind.claim(&mut two, "k1") && !kind.claim(&mut two, "k2"));
}

//! Who takes over, and when, where no session is there to be stepped: a backend that is terminated,
//! a prepared transaction (G2, G3).

use std::thread;

use inbox_test_support::{
    inbox::{Session, blocked},
    kinds::Kind,
    over_both_kinds,
};

over_both_kinds! {
    g3_a_waiter_wins_when_the_winners_backend_is_terminated,
    g2_a_waiter_skips_when_a_prepared_claim_is_committed,
    g3_a_waiter_wins_when_a_prepared_claim_is_rolled_back,
}

fn g3_a_waiter_wins_when_the_winners_backend_is_terminated(kind: Kind) {
    let database = kind.database();
    let mut winner = Session::new(&database);
    let mut waiter = Session::new(&database);
    winner.begin();
    assert!(kind.claim(&mut winner, "evt-1"));
    winner.write("winner");
    thread::scope(|scope| {
        let won = blocked(scope, &database, &mut waiter, |it| {
            it.begin();
            let won = kind.claim(it, "evt-1");
            it.write("waiter");
            it.commit();
            won
        });
        database.terminate(winner.pid());
        assert!(won.join().unwrap());
    });
    assert_eq!(database.ledger(), ["waiter"]);
    assert!(!kind.claim(&mut Session::new(&database), "evt-1"));
}

/// The claim of a prepared transaction, and a session that waits for it until `end`: whether that
/// one won.
fn waited_for(kind: Kind, end: &str) -> bool {
    let database = kind.database();
    // Its name is unique on the server, on which other tests run.
    let name = database.name();
    let mut winner = Session::new(&database);
    winner.begin();
    assert!(kind.claim(&mut winner, "evt-1"));
    winner.run(&format!("PREPARE TRANSACTION '{name}'"));
    // Whoever prepared it is gone.
    drop(winner);
    let mut waiter = Session::new(&database);
    let won = thread::scope(|scope| {
        let won = blocked(scope, &database, &mut waiter, |it| kind.claim(it, "evt-1"));
        database.execute(&format!("{end} PREPARED '{name}'"));
        won.join().unwrap()
    });
    assert_eq!(kind.stored(&mut waiter, "evt-1"), 1);
    won
}

fn g2_a_waiter_skips_when_a_prepared_claim_is_committed(kind: Kind) {
    assert!(!waited_for(kind, "COMMIT"));
}

fn g3_a_waiter_wins_when_a_prepared_claim_is_rolled_back(kind: Kind) {
    assert!(waited_for(kind, "ROLLBACK"));
}

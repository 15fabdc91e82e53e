//! The winner's backend or the whole server is gone: no claim of a transaction that had not
//! committed is left, and every one that had is (G3, G13).

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{Session, blocked},
    kinds::Kind,
    start_cluster, wait_for,
};
use postgres::{Client, NoTls};
use throwaway_cluster::Cluster;

/// Claims of both kinds, committed, in flight and waiting; then `strike` hits the server, given the
/// process id of the one backend. When it takes connections again, what was committed is a
/// duplicate, and what was not is won by the next delivery. There is nothing to clean up.
fn survives(strike: impl FnOnce(&Cluster, i32)) {
    let cluster = start_cluster();
    let places = [Kind::Plain, Kind::Sequenced].map(|kind| {
        let database = Database::on(&cluster);
        kind.set_up(&database);
        (kind, database)
    });
    let mut winners = Vec::new();
    for (kind, database) in &places {
        let mut winner = Session::new(database);
        assert!(kind.claim(&mut winner, "committed"));
        winner.begin();
        assert!(kind.claim(&mut winner, "in flight"));
        winner.write("in flight");
        winners.push(winner);
    }
    let mut waiters: Vec<_> = places.iter().map(|(_, at)| Session::new(at)).collect();
    thread::scope(|scope| {
        let waiting: Vec<_> = places
            .iter()
            .zip(&mut waiters)
            .map(|((kind, database), waiter)| {
                blocked(scope, database, waiter, |it| {
                    it.query(&kind.claim_of("'in flight'"), &[]).map(drop)
                })
            })
            .collect();
        strike(&cluster, winners[0].pid());
        for waiter in waiting {
            waiter.join().unwrap().expect_err("its session is gone");
        }
    });
    for winner in &mut winners {
        winner
            .query("COMMIT", &[])
            .expect_err("its session is gone");
    }
    wait_for("the server to take connections", || {
        Client::connect(&cluster.dsn(), NoTls).ok().map(drop)
    });
    for (kind, database) in &places {
        assert_eq!(database.ledger(), [""; 0], "{kind:?}");
        let mut later = Session::new(database);
        assert!(!kind.claim(&mut later, "committed"), "{kind:?}");
        assert_eq!(kind.try_claim(&mut later, "in flight"), "claimed");
        assert!(!kind.claim(&mut later, "in flight"), "{kind:?}");
    }
}

#[test]
fn g3_g13_a_server_that_is_stopped_at_once() {
    survives(|cluster, _| {
        cluster.stop_immediate().unwrap();
        cluster.start().unwrap();
    });
}

#[test]
fn g3_g13_a_postmaster_that_is_killed() {
    survives(|cluster, _| {
        cluster.kill_postmaster().unwrap();
        cluster.start().unwrap();
    });
}

/// SIGKILL leaves the backend no time to abort; the server ends all others and recovers by itself.
#[test]
fn g3_g13_a_backend_that_is_killed() {
    survives(|cluster, backend| cluster.kill_backend(backend).unwrap());
}

/// A prepared transaction is no open one: it outlives the crash, and so does its claim, undecided.
#[test]
fn g13_a_prepared_claim_is_still_held_after_a_crash() {
    let cluster = start_cluster();
    for kind in [Kind::Plain, Kind::Sequenced] {
        let database = Database::on(&cluster);
        kind.set_up(&database);
        let mut session = Session::new(&database);
        for id in ["first", "second"] {
            session.begin();
            assert!(kind.claim(&mut session, id));
            session.run(&format!("PREPARE TRANSACTION '{id}'"));
        }
        drop(session);
        cluster.kill_postmaster().unwrap();
        cluster.start().unwrap();
        let mut session = Session::new(&database);
        for id in ["first", "second"] {
            assert_eq!(kind.try_claim(&mut session, id), "in_flight");
        }
        session.run("COMMIT PREPARED 'first'");
        session.run("ROLLBACK PREPARED 'second'");
        assert_eq!(kind.try_claim(&mut session, "first"), "duplicate");
        assert_eq!(kind.try_claim(&mut session, "second"), "claimed");
    }
}

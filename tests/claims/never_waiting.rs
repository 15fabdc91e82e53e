//! `inbox_try_claim` never waits for another transaction, and says `in_flight` of nothing else.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use inbox_test_support::{inbox::Session, kinds::Kind, over_both_kinds};

over_both_kinds! {
    a_try_is_never_seen_waiting,
    a_try_meets_no_other_key,
    a_try_meets_no_key_with_the_same_hash,
}

/// Two thousand tries while another transaction holds the key, watched as fast as possible. Were
/// each to wait for a lock with the shortest time-out that there is, 1 ms, the session would spend
/// most of its time waiting, and the watcher would see it.
fn a_try_is_never_seen_waiting(kind: Kind) {
    const TRIES: usize = 2000;
    let database = kind.database();
    let mut holder = Session::new(&database);
    holder.begin();
    assert!(kind.claim(&mut holder, "evt-1"));
    let mut session = Session::new(&database);
    let pid = session.pid();
    let mut watcher = Session::new(&database);
    let done = AtomicBool::new(false);
    let (looks, seen) = thread::scope(|scope| {
        let tries = scope.spawn(|| {
            for _ in 0..TRIES {
                assert_eq!(kind.try_claim(&mut session, "evt-1"), "in_flight");
            }
            done.store(true, Ordering::Relaxed);
        });
        let (mut looks, mut seen) = (0, 0);
        while !done.load(Ordering::Relaxed) && !tries.is_finished() {
            let waits: i64 = watcher.value(
                "SELECT (SELECT count(*) FROM pg_stat_activity
                         WHERE pid = $1 AND wait_event_type = 'Lock')
                      + (SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted)",
                &[&pid],
            );
            looks += 1;
            seen += waits;
        }
        tries.join().unwrap();
        (looks, seen)
    });
    assert!(looks > 20, "{looks} looks are not enough to see anything");
    assert_eq!(seen, 0, "of {looks} looks");
    // The holder is open all the while.
    assert!(!kind.claim(&mut holder, "evt-1"));
    holder.commit();
    assert_eq!(kind.try_claim(&mut session, "evt-1"), "duplicate");
}

/// Thousands of keys in flight, and thousands of others are free.
fn a_try_meets_no_other_key(kind: Kind) {
    let database = kind.database();
    let mut holder = Session::new(&database);
    holder.begin();
    let held: i64 = holder.value(
        &format!(
            "SELECT count(*) FROM generate_series(1, 5000) n WHERE ({})",
            kind.claim_of("'held-' || n")
        ),
        &[],
    );
    assert_eq!(held, 5000);
    let mut session = Session::new(&database);
    let words: Vec<String> = session.value(
        &format!(
            "SELECT array_agg(DISTINCT word) FROM generate_series(1, 5000) n, LATERAL ({}) t(word)",
            kind.try_claim_of("'free-' || n")
        ),
        &[],
    );
    assert_eq!(words, ["claimed"]);
    let words: Vec<String> = session.value(
        &format!(
            "SELECT array_agg(DISTINCT word) FROM generate_series(1, 5000) n, LATERAL ({}) t(word)",
            kind.try_claim_of("'held-' || n")
        ),
        &[],
    );
    assert_eq!(words, ["in_flight"]);
    holder.rollback();
}

/// Pairs of keys that collide under the server's own hash functions: of 200,000 ids there are a few
/// for each. A lock on such a hash would take one of a pair for the other.
fn a_try_meets_no_key_with_the_same_hash(kind: Kind) {
    let database = kind.database();
    let mut session = Session::new(&database);
    let pairs = session
        .query(
            "WITH id AS (SELECT 'evt-' || n AS id FROM generate_series(1, 200000) n)
             SELECT min(id), max(id) FROM id GROUP BY hashtext(id) HAVING count(*) > 1
             UNION
             SELECT min(id), max(id) FROM id GROUP BY hashtext($1 || id) HAVING count(*) > 1
             UNION
             SELECT min(id), max(id) FROM id GROUP BY hashtextextended(id, 0)::bit(32)
                HAVING count(*) > 1",
            &[&kind.name()],
        )
        .unwrap();
    assert!(pairs.len() >= 3, "{} pairs", pairs.len());
    let mut holder = Session::new(&database);
    for pair in pairs {
        let (one, other): (&str, &str) = (pair.get(0), pair.get(1));
        holder.begin();
        assert!(kind.claim(&mut holder, one));
        session.begin();
        assert_eq!(
            kind.try_claim(&mut session, other),
            "claimed",
            "{one} is held"
        );
        session.rollback();
        holder.rollback();
    }
}

/// What it cannot do without waiting, it does not do: the key is free, but not to be had now. The
/// locks are those of a rotation and of the removal of an instance.
#[test]
fn a_try_waits_for_no_lock_in_the_way() {
    for (kind, lock) in [
        (Kind::Plain, "LOCK TABLE inbox_claim_ring IN EXCLUSIVE MODE"),
        (Kind::Plain, "TRUNCATE inbox_claim_1"),
        (Kind::Sequenced, "DELETE FROM sequence_instance"),
    ] {
        let database = kind.database();
        let mut holder = Session::new(&database);
        holder.begin();
        holder.run(lock);
        let mut session = Session::new(&database);
        session.begin();
        session.run("SET LOCAL lock_timeout = '10min'");
        assert_eq!(kind.try_claim(&mut session, "evt-1"), "in_flight", "{lock}");
        // Its transaction goes on as it was, the time-out included.
        let timeout: String = session.value("SELECT current_setting('lock_timeout')", &[]);
        assert_eq!(timeout, "10min");
        session.write(lock);
        session.commit();
        holder.rollback();
        assert_eq!(kind.stored(&mut session, "evt-1"), 0);
        assert_eq!(kind.try_claim(&mut session, "evt-1"), "claimed", "{lock}");
        assert_eq!(database.ledger(), [lock]);
    }
}

//! Many expired instances, several housekeepers, live consumers and an old snapshot, all at once
//! (G8, G9): no deadlock, no unexpired row touched, nothing that was claimed meanwhile lost.
//!
//! `INBOX_BIG=1` makes it ten times as many instances, a minute's work.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, sqlstate},
    retention::{Batch, claim, housekeep_by},
    wait_for,
};
use postgres::IsolationLevel;

use super::declared;

const HOUSEKEEPERS: usize = 4;
const CONSUMERS: usize = 3;
const BATCH_SIZE: i32 = 500;

/// How many instances are past their retention; a tenth as many are not.
fn expired() -> usize {
    if std::env::var_os("INBOX_BIG").is_some_and(|value| value == "1") {
        200_000
    } else {
        20_000
    }
}

/// Of each hundred expired instances five are open and wait for something, five are open and
/// incomplete, one has an unresolved dead letter, the others are complete.
fn fill(session: &mut Session, expired: usize) {
    session.run(&format!(
        "CREATE TABLE made AS
            SELECT n, 'expired ' || n AS context, interval '3 days' AS age,
                   CASE WHEN n % 20 = 0 THEN 'waiting' WHEN n % 20 = 10 THEN 'incomplete'
                        WHEN n % 100 = 1 THEN 'dead' ELSE 'complete' END AS kind
            FROM generate_series(1, {expired}) n
            UNION ALL
            SELECT n, 'young ' || n, interval '12 hours', 'complete'
            FROM generate_series(1, {expired} / 10) n;
         INSERT INTO sequence_instance
                (name, context_id, state, created_at, closed_at, retain_until)
            SELECT 's', context, CASE WHEN kind IN ('waiting', 'incomplete') THEN 'OPEN' ELSE 'CLOSED' END,
                   now() - age, CASE WHEN kind IN ('complete', 'dead') THEN now() - age END,
                   now() - age + interval '1 day'
            FROM made;
         INSERT INTO sequential_inbox_idempotence
                (message_type, idempotence_id, sequence_instance_id, created_at)
            SELECT t, t || ' ' || m.context, i.id, now() - m.age
            FROM made m JOIN sequence_instance i ON i.context_id = m.context,
                 unnest(CASE m.kind WHEN 'waiting' THEN '{{b}}' WHEN 'complete' THEN '{{a,b}}'
                        ELSE '{{a}}'::text[] END) t;
         INSERT INTO sequenced_message
                (message_type, idempotence_id, sequence_instance_id, state, created_at, state_changed_at)
            SELECT t, t || ' ' || m.context, i.id,
                   CASE WHEN m.kind = 'waiting' THEN 'WAITING'
                        WHEN m.kind = 'dead' AND t = 'b' THEN 'FAILED' ELSE 'PROCESSED' END,
                   now() - m.age, now() - m.age
            FROM made m JOIN sequence_instance i ON i.context_id = m.context,
                 unnest(CASE m.kind WHEN 'waiting' THEN '{{b}}' WHEN 'incomplete' THEN '{{a}}'
                        ELSE '{{a,b}}'::text[] END) t;
         INSERT INTO buffered_message (message_id, payload, buffered_at)
            SELECT id, '\\x00', created_at FROM sequenced_message WHERE state IN ('WAITING', 'FAILED');
         ANALYZE"
    ));
}

/// Where each row lies, who wrote it, and what it says, of all that no one may touch: instances
/// within their retention, and those that a dead letter holds back.
#[track_caller]
fn untouchable(session: &mut Session) -> Vec<String> {
    let of_instances = |table: &str, instance: &str, more: &str| {
        format!(
            "SELECT '{table} ' || t.ctid || ' ' || t.xmin || ' ' || t::text AS line
             FROM {table} t JOIN sequence_instance i ON i.id = {instance} {more}
             WHERE i.context_id LIKE 'young %' OR i.context_id IN
                (SELECT context FROM made WHERE kind = 'dead')"
        )
    };
    let lines = [
        of_instances("sequence_instance", "t.id", ""),
        of_instances("sequential_inbox_idempotence", "t.sequence_instance_id", ""),
        of_instances("sequenced_message", "t.sequence_instance_id", ""),
    ]
    .join(" UNION ALL ");
    let rows = session
        .query(&format!("SELECT line FROM ({lines}) l ORDER BY line"), &[])
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// One housekeeper: batches until the consumers are done and nothing is left.
fn housekeeper(database: &Database, start: &Barrier, consumers_are_done: &AtomicBool) -> Batch {
    let mut session = Session::new(database);
    let mut total = Batch::default();
    start.wait();
    loop {
        // Read first: what the consumers have left is then looked at once more.
        let last = consumers_are_done.load(Ordering::SeqCst);
        let batch = housekeep_by(&mut session, BATCH_SIZE);
        total.closed += batch.closed;
        total.expired += batch.expired;
        total.removed += batch.removed;
        if last && !batch.more {
            return total;
        }
    }
}

/// One consumer: new messages for expired and for new contexts, claims in expired instances, and
/// redeliveries. Returns the type and the id of all that it was told to process.
fn consumer(
    database: &Database,
    start: &Barrier,
    number: usize,
    expired: usize,
) -> Vec<(&'static str, String)> {
    let mut session = Session::new(database);
    let mut taken = Vec::new();
    start.wait();
    for step in 0..expired / 40 {
        // Spread over all instances, another one at each step.
        let n = without_dead_letter((step * 7_919 + number * 6_007) % expired + 1);
        let context = format!("expired {n}");
        let id = format!("new {number} {step}");
        match step % 6 {
            0 => {
                session.decided("process", &Arrival::new("a", &id).of(&context));
                taken.push(("a", id));
            }
            1 => {
                if claimed_in(&mut session, &context, &id) {
                    taken.push(("b", id));
                }
            }
            2 => {
                let young = n % (expired / 10) + 1;
                let context = format!("young {young}");
                let id = format!("a {context}");
                session.decided("duplicate", &Arrival::new("a", &id).of(&context));
            }
            3 => {
                let context = format!("new {number} {step}");
                session.decided("process", &Arrival::new("a", &id).of(&context));
                taken.push(("a", id));
            }
            4 => assert!(claim(&mut session, &id), "{id}"),
            _ => {
                // Two instances in one transaction, in the order that all keep to.
                let mut numbers = [n, without_dead_letter((n + 1) % expired + 1)];
                numbers.sort_unstable();
                session.begin();
                for n in numbers {
                    let id = format!("{id} {n}");
                    let context = format!("expired {n}");
                    session.decided("process", &Arrival::new("a", &id).of(&context));
                    taken.push(("a", id));
                }
                session.commit();
            }
        }
    }
    taken
}

/// The instance of that number, or the next where a dead letter holds it back: those stay untouched.
fn without_dead_letter(n: usize) -> usize {
    if n % 100 == 1 { n + 1 } else { n }
}

/// Claims in the instance of that context, if there still is one.
fn claimed_in(session: &mut Session, context: &str, id: &str) -> bool {
    let answer = session.query(
        "SELECT inbox_claim('b', $2, (SELECT i.id FROM sequence_instance i
            WHERE i.name = 's' AND i.context_id = $1))
         FROM sequence_instance WHERE name = 's' AND context_id = $1",
        &[&context, &id],
    );
    match answer {
        Ok(rows) => rows.first().is_some_and(|row| row.get(0)),
        // Removed between the look and the claim.
        Err(error) => {
            assert_eq!(sqlstate::<()>(Err(error)), "23503");
            false
        }
    }
}

#[test]
fn g8_g9_housekeepers_among_consumers_touch_nothing_that_is_protected() {
    let expired = expired();
    let (database, mut session) = declared();
    fill(&mut session, expired);
    let kept = untouchable(&mut session);
    assert!(kept.len() > expired / 2);
    let mut old = Session::new(&database);
    old.begin_at(IsolationLevel::RepeatableRead);
    let all = "SELECT count(*) FROM sequence_instance";
    let there_were: i64 = old.value(all, &[]);

    let start = Barrier::new(HOUSEKEEPERS + CONSUMERS);
    let consumers_are_done = AtomicBool::new(false);
    let (taken, total) = thread::scope(|scope| {
        let housekeepers: Vec<_> = (0..HOUSEKEEPERS)
            .map(|_| scope.spawn(|| housekeeper(&database, &start, &consumers_are_done)))
            .collect();
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|number| {
                let (database, start) = (&database, &start);
                scope.spawn(move || consumer(database, start, number, expired))
            })
            .collect();
        let taken: Vec<_> = consumers.into_iter().map(|it| it.join()).collect();
        // Also when one has failed, or the others would never end.
        consumers_are_done.store(true, Ordering::SeqCst);
        let taken: Vec<_> = taken.into_iter().flat_map(|it| it.unwrap()).collect();
        let mut total = Batch::default();
        for it in housekeepers {
            let batch = it.join().unwrap();
            total.expired += batch.expired;
            total.removed += batch.removed;
        }
        (taken, total)
    });

    // The old snapshot has seen nothing of it.
    assert_eq!(old.value::<i64>(all, &[]), there_were);
    old.commit();
    let still = untouchable(&mut session);
    let changed = kept.iter().zip(&still).find(|(was, is)| was != is);
    assert_eq!((still.len(), changed), (kept.len(), None));

    // What was taken meanwhile is protected, wherever it belongs.
    let (types, ids): (Vec<&str>, Vec<String>) = taken.into_iter().unzip();
    let unprotected: i64 = session.value(
        "SELECT count(*) FROM unnest($1::text[], $2::text[]) AS t (message_type, idempotence_id)
         WHERE NOT EXISTS (SELECT FROM sequential_inbox_idempotence c
            WHERE (c.message_type, c.idempotence_id) = (t.message_type, t.idempotence_id))",
        &[&types, &ids],
    );
    assert_eq!(unprotected, 0, "of {}", ids.len());

    // What nothing protected is gone, and each message that waited is a dead letter.
    let left_over: i64 = session.value(
        "SELECT count(*) FROM sequence_instance i
         WHERE i.created_at < now() - interval '1 day'
           AND NOT EXISTS (SELECT FROM sequential_inbox_idempotence c
                WHERE c.sequence_instance_id = i.id AND c.created_at > now() - interval '1 day')
           AND NOT EXISTS (SELECT FROM sequenced_message m
                WHERE m.sequence_instance_id = i.id AND m.state = 'FAILED')",
        &[],
    );
    assert_eq!(left_over, 0);
    let dead_letters: i64 = session.value(
        "SELECT count(*) FROM inbox_dead_letters d JOIN made m ON m.context = d.context_id
         WHERE m.kind IN ('waiting', 'dead') AND d.payload_size = 1",
        &[],
    );
    let waiting = expired / 20;
    let dead = expired / 100;
    assert_eq!(dead_letters, i64::try_from(waiting + dead).unwrap());
    // Most of the work was there to be shared; the consumers have revived some of it.
    let (expiries, removals) = (total.expired as usize, total.removed as usize);
    assert!(
        expiries > expired / 10 / 2 && expiries <= expired / 10,
        "{total:?}"
    );
    assert!(removals > expired / 2, "{total:?}");

    // Counted once all who could have met one are gone.
    wait_for("the other sessions to end", || {
        let others: i64 = session.value(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND pid <> ALL ($1)",
            &[&vec![old.pid()]],
        );
        (others == 0).then_some(())
    });
    let deadlocks: i64 = session.value(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
        &[],
    );
    assert_eq!(deadlocks, 0);
}

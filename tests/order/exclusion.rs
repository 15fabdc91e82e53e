//! Two messages of one instance are never handled at the same time; those of different instances
//! are (G2, G3, G6).

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, blocked, sqlstate},
    wait_for,
};

use super::declared;

/// Where handlers write when they began and ended, by the server's clock.
const HANDLED: &str = "CREATE TABLE handled (
    instance bigint NOT NULL, position bigint, id text NOT NULL, pid int NOT NULL DEFAULT pg_backend_pid(),
    began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)";

/// A handler: notes its beginning, takes a while, notes its end, all in its own transaction.
fn handle(session: &mut Session, instance: i64, id: &str) {
    session
        .query(
            "INSERT INTO handled (instance, id, position) VALUES ($1, $2,
                 (SELECT \"position\" FROM sequenced_message WHERE idempotence_id = $2))",
            &[&instance, &id],
        )
        .expect("a beginning");
    session.run("SELECT pg_sleep(0.002)");
    session
        .query(
            "UPDATE handled SET ended = clock_timestamp() WHERE id = $1",
            &[&id],
        )
        .expect("an end");
}

/// Receives one message as a consumer does, and then drains its instance.
fn consume(session: &mut Session, arrival: &Arrival<'_>) {
    session.begin();
    let received = session.receive(arrival);
    if received.decision == "process" {
        handle(session, received.instance(), arrival.id);
    }
    session.commit();
    if received.decision != "process" {
        return;
    }
    loop {
        session.begin();
        let released = session.next(received.instance);
        if let Some(released) = &released {
            handle(session, received.instance(), &released.id);
        }
        session.commit();
        if released.is_none() {
            return;
        }
    }
}

#[test]
fn g6_eight_sessions_on_one_instance_never_overlap() {
    const SESSIONS: usize = 8;
    const EACH: i64 = 120;
    /// Within each eight positions, so that some wait and some go at once.
    const ORDER: [i64; 8] = [3, 1, 0, 2, 7, 4, 6, 5];
    let (database, mut observer) = declared();
    observer.run(HANDLED);
    // Two instances: one by position, and one without any order.
    let messages: Vec<(String, Option<i64>)> = (0..EACH)
        .flat_map(|n| {
            let position = n - n % 8 + ORDER[(n % 8) as usize] + 1;
            [
                (format!("other {n}"), None),
                (format!("step {position}"), Some(position)),
            ]
        })
        .collect();
    let taken = AtomicUsize::new(0);
    let mut sessions: Vec<Session> = (0..SESSIONS).map(|_| Session::new(&database)).collect();
    thread::scope(|scope| {
        for session in &mut sessions {
            scope.spawn(|| {
                while let Some((id, position)) = messages.get(taken.fetch_add(1, Ordering::Relaxed))
                {
                    let message_type = if position.is_some() { "step" } else { "other" };
                    let mut arrival = Arrival::new(message_type, id);
                    arrival.position = *position;
                    consume(session, &arrival);
                }
            });
        }
    });
    let rows: i64 = observer.value("SELECT count(DISTINCT id) FROM handled", &[]);
    let all: i64 = observer.value("SELECT count(*) FROM handled", &[]);
    assert_eq!((rows, all), (2 * EACH, 2 * EACH), "each once");
    let overlaps: i64 = observer.value(
        "SELECT count(*) FROM handled a JOIN handled b
         ON a.instance = b.instance AND a.id <> b.id AND a.began <= b.began AND b.began < a.ended",
        &[],
    );
    assert_eq!(overlaps, 0, "two handlers of one instance overlapped");
    let handled: Vec<i64> = observer.value(
        "SELECT array_agg(position ORDER BY began) FROM handled WHERE position IS NOT NULL",
        &[],
    );
    assert_eq!(
        handled,
        (1..=EACH).collect::<Vec<_>>(),
        "positions are handled in order"
    );
    // Otherwise the sessions would never have met.
    let busy: i64 = observer.value("SELECT count(DISTINCT pid) FROM handled", &[]);
    assert!(busy > 1, "only {busy} session handled anything");
}

#[test]
fn g6_handlers_of_different_instances_run_at_the_same_time() {
    let (database, mut observer) = declared();
    // Handlers stop at this lock; both being seen there, both are open.
    observer.run("SELECT pg_advisory_lock(1)");
    let mut sessions = [Session::new(&database), Session::new(&database)];
    let pids: Vec<i32> = sessions.iter().map(Session::pid).collect();
    thread::scope(|scope| {
        for (session, context) in sessions.iter_mut().zip(["context-1", "context-2"]) {
            scope.spawn(move || {
                session.begin();
                session.decided("process", &Arrival::new("first", context).of(context));
                session.run("SELECT pg_advisory_xact_lock_shared(1) /* the handler */");
                session.commit();
            });
        }
        wait_for("both handlers to be open", || {
            let open: i64 = observer.value(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE pid = ANY ($1) AND state = 'active' AND query LIKE '%/* the handler */'
                   AND wait_event = 'advisory' AND xact_start IS NOT NULL",
                &[&pids],
            );
            (open == 2).then_some(())
        });
        observer.run("SELECT pg_advisory_unlock(1)");
    });
}

#[test]
fn g6_a_second_message_of_an_instance_does_not_begin_before_the_first_has_ended() {
    let (database, mut first) = declared();
    let mut second = Session::new(&database);
    first.begin();
    first.decided("process", &Arrival::new("other", "1"));
    first.write("first begins");
    thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut second, |session| {
            session.begin();
            session.decided("process", &Arrival::new("other", "2"));
            let seen: i64 = session.value("SELECT count(*) FROM ledger", &[]);
            session.commit();
            seen
        });
        first.write("first ends");
        first.commit();
        assert_eq!(
            waiter.join().unwrap(),
            2,
            "the second sees all of the first"
        );
    });
}

#[test]
fn g2_a_concurrent_duplicate_waits_and_its_transaction_stays_usable() {
    let (database, mut first) = declared();
    let mut second = Session::new(&database);
    first.begin();
    first.decided("process", &Arrival::new("first", "1"));
    thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut second, |session| {
            session.begin();
            session.write("before");
            session.decided("duplicate", &Arrival::new("first", "1"));
            session.write("after");
            session.commit();
        });
        first.commit();
        waiter.join().unwrap();
    });
    assert_eq!(database.ledger(), ["after", "before"]);
}

#[test]
fn g3_a_waiting_duplicate_takes_over_when_the_winner_dies() {
    let (database, mut observer) = declared();
    let mut second = Session::new(&database);
    // By rollback, by a rollback to a savepoint, by the end of its backend.
    for (case, id) in ["rollback", "savepoint", "terminate"]
        .into_iter()
        .enumerate()
    {
        let mut winner = Session::new(&database);
        winner.run("BEGIN; SAVEPOINT before");
        winner.decided("process", &Arrival::new("other", id));
        thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut second, |session| {
                session.decided("process", &Arrival::new("other", id));
            });
            match case {
                0 => winner.rollback(),
                1 => winner.run("ROLLBACK TO before"),
                _ => database.terminate(winner.pid()),
            }
            waiter.join().unwrap();
        });
        observer.decided("duplicate", &Arrival::new("other", id));
    }
}

#[test]
fn g3_a_prepared_transaction_holds_its_message_and_its_instance() {
    let (database, mut first) = declared();
    let mut second = Session::new(&database);
    for (gid, end, decisions) in [
        ("kept", "COMMIT PREPARED", ["duplicate", "process"]),
        ("undone", "ROLLBACK PREPARED", ["process", "process"]),
    ] {
        first.begin();
        first.decided("process", &Arrival::new("other", gid));
        first.run(&format!("PREPARE TRANSACTION '{gid}'"));
        let another = format!("another, {gid}");
        for (id, decision) in [gid, &another].into_iter().zip(decisions) {
            let not_now = first.receive(&Arrival::new("other", id).without_waiting());
            assert_eq!(not_now.decision, "in_flight", "{id}");
            if id != another {
                continue;
            }
            thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut second, |session| {
                    session.receive(&Arrival::new("other", id)).decision
                });
                first.run(&format!("{end} '{gid}'"));
                assert_eq!(waiter.join().unwrap(), decision, "{id}");
            });
        }
        first.decided(decisions[0], &Arrival::new("other", gid));
    }
}

#[test]
fn time_outs_and_deadlocks_keep_their_codes() {
    let (database, mut first) = declared();
    let mut second = Session::new(&database);
    let in_context = |n: i32| format!("context-{n}");
    let [one, two] = [1, 2].map(in_context);
    first.decided("process", &Arrival::new("other", "0").of(&one));
    first.decided("process", &Arrival::new("other", "00").of(&two));
    let instance: i64 = first.value("SELECT inbox_sequence('conditions', $1)", &[&one]);
    first.begin();
    first.decided("process", &Arrival::new("other", "1").of(&one));
    for (setting, code) in [("lock_timeout", "55P03"), ("statement_timeout", "57014")] {
        second.run(&format!("SET {setting} = '50ms'"));
        let arrival = Arrival::new("other", "2").of(&one);
        assert_eq!(
            sqlstate(second.try_receive(&arrival)),
            code,
            "inbox_receive"
        );
        assert_eq!(
            sqlstate(second.try_next(Some(instance))),
            code,
            "inbox_next"
        );
        for function in ["inbox_close", "inbox_force_all"] {
            assert_eq!(
                sqlstate(second.try_operate(function, instance)),
                code,
                "{function}"
            );
        }
        let sql = "SELECT inbox_fail('other', '2', $1, 'e')";
        assert_eq!(
            sqlstate(second.query(sql, &[&instance])),
            code,
            "inbox_fail"
        );
        second.run(&format!("RESET {setting}"));
    }
    // Two sessions take two instances crosswise: one of them is told so.
    second.begin();
    second.decided("process", &Arrival::new("other", "2").of(&two));
    let answers = thread::scope(|scope| {
        let waiter = blocked(scope, &database, &mut second, |session| {
            let answer = session.try_receive(&Arrival::new("other", "3").of(&one));
            session.run("ROLLBACK");
            answer.map(|received| received.decision)
        });
        let answer = first.try_receive(&Arrival::new("other", "4").of(&two));
        first.run("ROLLBACK");
        [
            answer.map(|received| received.decision),
            waiter.join().unwrap(),
        ]
    });
    let mut said: Vec<String> = answers
        .into_iter()
        .map(|answer| match answer {
            Ok(decision) => decision,
            Err(error) => sqlstate::<()>(Err(error)),
        })
        .collect();
    said.sort();
    assert_eq!(said, ["40P01", "process"]);
}

#[test]
fn g4_receiving_and_the_handlers_writes_vanish_together() {
    let database = Database::new();
    let mut session = Session::new(&database);
    super::declare(&mut session);
    let buffered = session.decided("buffered", &Arrival::new("second", "2"));
    session.begin();
    session.decided("process", &Arrival::new("first", "1"));
    session.write("first");
    assert_eq!(
        session.next_id(buffered.instance),
        "2",
        "released in this same transaction"
    );
    session.write("second");
    session.rollback();
    assert_eq!(database.ledger(), Vec::<String>::new());
    assert_eq!(session.state_of("2").as_deref(), Some("WAITING"));
    assert_eq!(session.state_of("1"), None);
    session.begin();
    session.decided("process", &Arrival::new("first", "1"));
    session.write("first");
    assert_eq!(session.next_id(buffered.instance), "2");
    session.write("second");
    session.commit();
    assert_eq!(database.ledger(), ["first", "second"]);
}

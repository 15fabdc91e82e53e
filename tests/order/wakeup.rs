//! No lost wake-up: whatever the interleaving, the isolation level and the moment of a crash, what
//! a predecessor releases can be had (G7, G10).

use std::{iter, thread};

use inbox_test_support::{
    Database,
    inbox::{Arrival, ISOLATION_LEVELS, Received, Session, blocked, server_error, sqlstate},
    start_cluster, wait_for,
};
use postgres::{IsolationLevel, fallible_iterator::FallibleIterator};

use super::{declare, declared};

/// How a transaction ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Commit,
    Rollback,
}

impl End {
    fn of(self, session: &mut Session) {
        match self {
            Self::Commit => session.commit(),
            Self::Rollback => session.rollback(),
        }
    }
}

const ENDS: [End; 2] = [End::Commit, End::Rollback];

/// A predecessor and its successor, in a context of their own.
struct Pair<'a> {
    predecessor: Arrival<'a>,
    successor: Arrival<'a>,
}

impl Pair<'_> {
    /// Runs `test` with a pair of each ordering, once with an instance that is there already and
    /// once with one that is not; `test` is told which.
    fn each(session: &mut Session, mut test: impl FnMut(&mut Session, &Pair<'_>, &str)) {
        for (ordering, types, positions) in [
            ("conditions", ["first", "second"], [None, None]),
            ("position", ["step", "step"], [Some(1), Some(2)]),
        ] {
            for is_there in [false, true] {
                let number: i64 = session.value("SELECT count(*) FROM sequence_instance", &[]);
                let context = format!("{ordering}, instance {number}, there before: {is_there}");
                if is_there {
                    let sql = "SELECT inbox_sequence($1, $2)";
                    session.value::<i64>(sql, &[&ordering, &context]);
                }
                let ids = [1, 2].map(|n| format!("{n} in {context}"));
                let arrival = |n: usize| Arrival {
                    position: positions[n],
                    ..Arrival::new(types[n], &ids[n]).of(&context)
                };
                let pair = Pair {
                    predecessor: arrival(0),
                    successor: arrival(1),
                };
                test(session, &pair, &context);
            }
        }
    }
}

/// Receives in a transaction of that level and commits; what fails with 40001 is done again, which
/// READ COMMITTED never needs.
fn settled(session: &mut Session, level: IsolationLevel, arrival: &Arrival<'_>) -> Received {
    loop {
        session.begin_at(level);
        match session.try_receive(arrival) {
            Ok(received) => {
                session.commit();
                return received;
            }
            Err(error) => {
                let said = server_error(&error);
                assert_eq!(said.code().code(), "40001", "{said}");
                assert!(!is_read_committed(level), "{said}");
                session.rollback();
            }
        }
    }
}

/// All that anybody can be handed out, by a sweeper.
fn swept(session: &mut Session) -> Vec<String> {
    iter::from_fn(|| session.next(None))
        .map(|it| it.id)
        .collect()
}

#[test]
fn g7_a_successor_that_arrives_while_its_predecessor_is_in_flight() {
    let (database, mut observer) = declared();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    for (of_first, of_second) in pairs_of_levels() {
        for end in ENDS {
            Pair::each(&mut observer, |observer, pair, case| {
                let case = format!("{of_first:?}, {of_second:?}, {end:?}, {case}");
                first.begin_at(of_first);
                first.decided("process", &pair.predecessor);
                let decision = thread::scope(|scope| {
                    let waiter = blocked(scope, &database, &mut second, |session| {
                        settled(session, of_second, &pair.successor).decision
                    });
                    end.of(&mut first);
                    waiter.join().unwrap()
                });
                match end {
                    End::Commit => assert_eq!(decision, "process", "{case}"),
                    End::Rollback => {
                        assert_eq!(decision, "buffered", "{case}");
                        assert_eq!(observer.next(None), None, "{case}");
                        let again = settled(&mut first, of_first, &pair.predecessor);
                        assert_eq!(again.decision, "process", "{case}");
                        assert_eq!(swept(observer), [pair.successor.id], "{case}");
                    }
                }
                assert_eq!(observer.next(None), None, "{case}");
            });
        }
    }
}

#[test]
fn g7_a_predecessor_that_arrives_while_its_successor_is_in_flight() {
    let (database, mut observer) = declared();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    for (of_first, of_second) in pairs_of_levels() {
        for end in ENDS {
            Pair::each(&mut observer, |observer, pair, case| {
                let case = format!("{of_first:?}, {of_second:?}, {end:?}, {case}");
                second.begin_at(of_second);
                second.decided("buffered", &pair.successor);
                let decision = thread::scope(|scope| {
                    let waiter = blocked(scope, &database, &mut first, |session| {
                        settled(session, of_first, &pair.predecessor).decision
                    });
                    end.of(&mut second);
                    waiter.join().unwrap()
                });
                assert_eq!(decision, "process", "{case}");
                match end {
                    End::Commit => assert_eq!(swept(observer), [pair.successor.id], "{case}"),
                    End::Rollback => {
                        assert_eq!(observer.next(None), None, "{case}");
                        let again = settled(&mut second, of_second, &pair.successor);
                        assert_eq!(again.decision, "process", "{case}");
                    }
                }
            });
        }
    }
}

#[test]
fn g7_g10_a_snapshot_from_before_the_other_commit_never_decides() {
    let (database, mut observer) = declared();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    let judge = |session: &mut Session, level, arrival: &Arrival<'_>, case: &str| {
        let answer = session.try_receive(arrival);
        if is_read_committed(level) {
            session.commit();
            return answer.expect(case).decision;
        }
        assert_eq!(sqlstate(answer), "40001", "{case}");
        session.rollback();
        settled(session, level, arrival).decision
    };
    for level in ISOLATION_LEVELS {
        Pair::each(&mut observer, |_, pair, case| {
            let case = format!("{level:?}, {case}");
            second.begin_at(level);
            first.decided("process", &pair.predecessor);
            assert_eq!(
                judge(&mut second, level, &pair.successor, &case),
                "process",
                "{case}"
            );
        });
        Pair::each(&mut observer, |observer, pair, case| {
            let case = format!("{level:?}, {case}");
            first.begin_at(level);
            second.decided("buffered", &pair.successor);
            assert_eq!(
                judge(&mut first, level, &pair.predecessor, &case),
                "process",
                "{case}"
            );
            assert_eq!(swept(observer), [pair.successor.id], "{case}");
        });
    }
}

#[test]
fn g7_g10_a_hand_out_with_an_old_snapshot_is_not_taken_for_the_end() {
    let (database, mut observer) = declared();
    let mut drainer = Session::new(&database);
    for level in ISOLATION_LEVELS {
        Pair::each(&mut observer, |observer, pair, case| {
            let instance = observer.decided("buffered", &pair.successor).instance();
            drainer.begin_at(level);
            observer.decided("process", &pair.predecessor);
            let answer = drainer.try_next(Some(instance));
            if is_read_committed(level) {
                let released = answer.expect(case).expect(case);
                assert_eq!(released.id, pair.successor.id, "{case}");
                drainer.commit();
            } else {
                assert_eq!(sqlstate(answer), "40001", "{level:?}, {case}");
                drainer.rollback();
                drainer.begin_at(level);
                assert_eq!(drainer.next_id(instance), pair.successor.id, "{case}");
                drainer.commit();
            }
        });
    }
}

#[test]
fn g7_a_predecessor_that_is_handed_out_is_waited_for_like_one_that_arrives() {
    let (database, mut observer) = declared();
    let mut first = Session::new(&database);
    let mut second = Session::new(&database);
    for level in ISOLATION_LEVELS {
        for end in ENDS {
            let case = format!("{level:?}, {end:?}");
            let [one, two, three] = [1, 2, 3].map(|n| format!("{n} of {case}"));
            let at = |id, position| Arrival::at("step", id, position).of(&case);
            let instance = observer.decided("buffered", &at(&two, 2)).instance();
            observer.decided("process", &at(&one, 1));
            first.begin_at(level);
            assert_eq!(first.next_id(instance), two, "{case}");
            let decision = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut second, |session| {
                    settled(session, level, &at(&three, 3)).decision
                });
                end.of(&mut first);
                waiter.join().unwrap()
            });
            match end {
                End::Commit => {
                    assert_eq!(decision, "process", "{case}");
                    assert_eq!(observer.next(instance), None, "{case}");
                }
                End::Rollback => {
                    assert_eq!(decision, "buffered", "{case}");
                    assert_eq!(swept(&mut observer), [two, three], "{case}");
                }
            }
        }
    }
}

#[test]
fn g7_a_hand_out_waits_for_the_predecessor_in_flight_and_gets_what_it_releases() {
    let (database, mut observer) = declared();
    let mut first = Session::new(&database);
    let mut drainer = Session::new(&database);
    for end in ENDS {
        Pair::each(&mut observer, |observer, pair, case| {
            let instance = observer.decided("buffered", &pair.successor).instance();
            first.begin();
            first.decided("process", &pair.predecessor);
            let released = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut drainer, |session| {
                    session.next(instance).map(|released| released.id)
                });
                end.of(&mut first);
                waiter.join().unwrap()
            });
            match end {
                End::Commit => assert_eq!(released.as_deref(), Some(pair.successor.id), "{case}"),
                End::Rollback => {
                    assert_eq!(released, None, "{case}");
                    first.decided("process", &pair.predecessor);
                    assert_eq!(observer.drain(instance), [pair.successor.id], "{case}");
                }
            }
        });
    }
}

#[test]
fn g7_when_the_process_dies_before_draining_another_sessions_sweep_finds_the_successor() {
    let (database, mut observer) = declared();
    Pair::each(&mut observer, |observer, pair, case| {
        let instance = observer.decided("buffered", &pair.successor).instance();
        // It dies before its commit: as if it had never been.
        let mut dying = Session::new(&database);
        dying.begin();
        dying.decided("process", &pair.predecessor);
        database.terminate(dying.pid());
        assert_eq!(observer.next(None), None, "{case}");
        // It dies right after its commit.
        let mut dying = Session::new(&database);
        dying.begin();
        dying.decided("process", &pair.predecessor);
        dying.commit();
        database.terminate(dying.pid());
        // The next one dies while it handles the successor.
        let mut dying = Session::new(&database);
        dying.begin();
        assert_eq!(dying.next_id(None), pair.successor.id, "{case}");
        database.terminate(dying.pid());
        assert_eq!(swept(observer), [pair.successor.id], "{case}");
        assert_eq!(observer.next(instance), None, "{case}");
    });
}

#[test]
fn g7_a_crash_of_the_server_before_draining_loses_no_successor() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    declare(&mut session);
    for context in ["context-1", "context-2"] {
        let ids = ["second", "first"].map(|it| format!("{it} in {context}"));
        session.decided("buffered", &Arrival::new("second", &ids[0]).of(context));
        session.decided("process", &Arrival::new("first", &ids[1]).of(context));
    }
    // One of the two is being handled when the server goes down.
    session.begin();
    assert_eq!(session.next_id(None), "second in context-1");
    cluster.kill_postmaster().expect("a crash");
    cluster.start().expect("the server recovers");
    let mut session = Session::new(&database);
    assert_eq!(
        swept(&mut session),
        ["second in context-1", "second in context-2"]
    );
    session.decided("duplicate", &Arrival::new("second", "second in context-1"));
}

#[test]
fn g7_a_sweep_passes_over_what_others_hold_and_misses_nothing() {
    const CONTEXTS: usize = 5;
    let (database, mut observer) = declared();
    for n in 0..CONTEXTS {
        let context = format!("context-{n}");
        let ids = [1, 2].map(|position| format!("{position} in {context}"));
        observer.decided("buffered", &Arrival::at("step", &ids[1], 2).of(&context));
        observer.decided("process", &Arrival::at("step", &ids[0], 1).of(&context));
    }
    // As many sweepers as there are instances, all at work at once.
    let mut sweepers: Vec<Session> = (0..CONTEXTS).map(|_| Session::new(&database)).collect();
    let mut held: Vec<String> = sweepers
        .iter_mut()
        .map(|sweeper| {
            sweeper.run("SET lock_timeout = '5s'");
            sweeper.begin();
            sweeper.next_id(None)
        })
        .collect();
    held.sort();
    let expected: Vec<String> = (0..CONTEXTS).map(|n| format!("2 in context-{n}")).collect();
    assert_eq!(held, expected);
    assert_eq!(observer.next(None), None, "all are held");
    sweepers[0].rollback();
    sweepers[1].commit();
    assert_eq!(swept(&mut observer).len(), 1);
    for sweeper in &mut sweepers[2..] {
        sweeper.commit();
    }
    assert_eq!(observer.next(None), None);
    let processed: i64 = observer.value(
        "SELECT count(*) FROM sequenced_message WHERE state = 'PROCESSED'",
        &[],
    );
    assert_eq!(processed, 2 * CONTEXTS as i64);
}

#[test]
fn g7_what_becomes_ready_is_announced_when_that_is_switched_on() {
    let (database, mut session) = declared();
    let mut listener = Session::new(&database);
    listener.run("LISTEN sequential_inbox");
    let heard = |listener: &mut Session| -> Vec<String> {
        // What was announced before this answer was sent has arrived with it.
        listener.run("SELECT 1");
        let mut notifications = listener.client().notifications();
        notifications
            .iter()
            .map(|it| Ok(it.payload().to_owned()))
            .collect()
            .expect("notifications")
    };
    let release = |session: &mut Session, context: &str| {
        let ids = ["second", "first"].map(|it| format!("{it} in {context}"));
        let second = Arrival::new("second", &ids[0]);
        let instance = session.decided("buffered", &second.of(context)).instance();
        session.decided("process", &Arrival::new("first", &ids[1]).of(context));
        instance
    };
    release(&mut session, "silent");
    assert_eq!(heard(&mut listener), Vec::<String>::new(), "it is off");
    session.run("SET sequential_inbox.notify = on");
    let instance = release(&mut session, "loud");
    let said = wait_for("the announcement", || {
        Some(heard(&mut listener)).filter(|said| !said.is_empty())
    });
    assert_eq!(said, [instance.to_string()]);
    // With nothing released nothing is said.
    session.decided("process", &Arrival::new("other", "other").of("loud"));
    let third = Arrival::at("step", "3", 3);
    let position = session.decided("buffered", &third).instance();
    session.decided("process", &Arrival::at("step", "1", 1));
    session.decided("process", &Arrival::at("step", "2", 2));
    let said = wait_for("the announcement", || {
        Some(heard(&mut listener)).filter(|said| !said.is_empty())
    });
    assert_eq!(said, [position.to_string()]);
}

fn pairs_of_levels() -> impl Iterator<Item = (IsolationLevel, IsolationLevel)> {
    ISOLATION_LEVELS
        .into_iter()
        .flat_map(|first| ISOLATION_LEVELS.map(|second| (first, second)))
}

fn is_read_committed(level: IsolationLevel) -> bool {
    matches!(level, IsolationLevel::ReadCommitted)
}

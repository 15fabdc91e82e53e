//! Operator functions beside consumers: never a message handled twice, never one lost, and false
//! for the one who comes too late (G1, G6, G8).

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, blocked},
};

use super::declared;

/// How the first of the two transactions ends.
const ENDS: [&str; 2] = ["COMMIT", "ROLLBACK"];

/// Two sessions, and a message of type `second` whose state is READY or FAILED; its record's id.
fn race(state: &str) -> (Database, Session, Session, i64) {
    let (database, mut consumer) = declared();
    let message = consumer
        .decided("buffered", &Arrival::new("second", "2"))
        .message();
    consumer.decided("process", &Arrival::new("first", "1"));
    if state == "FAILED" {
        assert!(consumer.fail(message, "broken", None));
    }
    let operator = Session::new(&database);
    (database, consumer, operator, message)
}

#[test]
fn g6_an_operator_waits_for_the_consumer_that_was_handed_the_message() {
    for function in ["inbox_skip", "inbox_retry", "inbox_force"] {
        for end in ENDS {
            let case = format!("{function}, {end}");
            let (database, mut consumer, mut operator, message) = race("READY");
            consumer.begin();
            assert_eq!(consumer.next_id(None), "2");
            consumer.write("2");
            let answer = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut operator, |operator| {
                    operator.operate(function, message)
                });
                consumer.run(end);
                waiter.join().unwrap()
            });
            // Only skipping has anything to do with a message that is ready again.
            let still_possible = end == "ROLLBACK" && function == "inbox_skip";
            assert_eq!(answer, still_possible, "{case}");
            let handled = consumer.drain(super::instance(&mut operator));
            let expected: &[&str] = match (end, function) {
                ("COMMIT", _) | (_, "inbox_skip") => &[],
                _ => &["2"],
            };
            assert_eq!(handled, expected, "{case}");
        }
    }
}

#[test]
fn g6_a_consumer_waits_for_the_operator_and_gets_what_is_left() {
    // A failed message that is set going or skipped, while a consumer asks for the next one.
    for (function, left) in [
        ("inbox_retry", true),
        ("inbox_force", true),
        ("inbox_skip", false),
    ] {
        for end in ENDS {
            let case = format!("{function}, {end}");
            let (database, mut consumer, mut operator, message) = race("FAILED");
            let instance = super::instance(&mut operator);
            operator.begin();
            assert!(operator.operate(function, message), "{case}");
            let released = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut consumer, |consumer| {
                    consumer.next(instance).map(|released| released.id)
                });
                operator.run(end);
                waiter.join().unwrap()
            });
            let expected = (left && end == "COMMIT").then_some("2");
            assert_eq!(released.as_deref(), expected, "{case}");
        }
    }
}

#[test]
fn g1_a_resend_and_an_operator_never_both_set_a_failed_message_going() {
    for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
        for end in ENDS {
            // The resend is first.
            let case = format!("resend first, {function}, {end}");
            let (database, mut consumer, mut operator, message) = race("FAILED");
            consumer.begin();
            consumer.decided("process", &Arrival::new("second", "2"));
            let answer = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut operator, |operator| {
                    operator.operate(function, message)
                });
                consumer.run(end);
                waiter.join().unwrap()
            });
            assert_eq!(answer, end == "ROLLBACK", "{case}");
            let handed_out = operator.next(None).is_some();
            assert_eq!(handed_out, answer && function != "inbox_skip", "{case}");
            // The operator is first.
            let case = format!("operator first, {function}, {end}");
            let (database, mut consumer, mut operator, message) = race("FAILED");
            operator.begin();
            assert!(operator.operate(function, message), "{case}");
            let decision = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut consumer, |consumer| {
                    consumer.receive(&Arrival::new("second", "2")).decision
                });
                operator.run(end);
                waiter.join().unwrap()
            });
            let expected = if end == "COMMIT" {
                "duplicate"
            } else {
                "process"
            };
            assert_eq!(decision, expected, "{case}");
            let handed_out = operator.next(None).is_some();
            assert_eq!(
                handed_out,
                end == "COMMIT" && function != "inbox_skip",
                "{case}"
            );
        }
    }
}

#[test]
fn g8_a_close_and_a_message_that_begins_to_wait_exclude_each_other() {
    for end in ENDS {
        // The message is first: the close sees it and makes it a dead letter.
        let (database, mut consumer) = declared();
        let mut operator = Session::new(&database);
        let instance = super::instance(&mut operator);
        consumer.begin();
        consumer.decided("buffered", &Arrival::new("second", "2"));
        let closed = thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut operator, |operator| {
                operator.operate("inbox_close", instance)
            });
            consumer.run(end);
            waiter.join().unwrap()
        });
        assert!(closed);
        let dead = super::dead_letters(&mut operator).len();
        assert_eq!(dead, usize::from(end == "COMMIT"), "{end}");
        // The close is first: the message sees it and is rejected.
        let (database, mut consumer) = declared();
        let mut operator = Session::new(&database);
        let instance = super::instance(&mut operator);
        operator.begin();
        assert!(operator.operate("inbox_close", instance));
        let decision = thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut consumer, |consumer| {
                consumer.receive(&Arrival::new("second", "2")).decision
            });
            operator.run(end);
            waiter.join().unwrap()
        });
        let expected = if end == "COMMIT" {
            "rejected"
        } else {
            "buffered"
        };
        assert_eq!(decision, expected, "{end}");
        let waiting =
            operator.value::<i64>("SELECT sum(waiting)::bigint FROM inbox_sequences", &[]);
        assert_eq!(waiting, i64::from(end == "ROLLBACK"), "{end}");
    }
}

#[test]
fn g8_a_gap_is_given_up_or_filled_never_both() {
    for end in ENDS {
        // The missing message is first.
        let (database, mut consumer) = declared();
        let mut operator = Session::new(&database);
        let third = consumer.decided("buffered", &Arrival::at("step", "2", 2));
        let instance = third.instance();
        consumer.begin();
        consumer.decided("process", &Arrival::at("step", "1", 1));
        let skipped = thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut operator, |operator| {
                operator.operate("inbox_skip_gap", instance)
            });
            consumer.run(end);
            waiter.join().unwrap()
        });
        assert_eq!(skipped, end == "ROLLBACK", "{end}");
        assert_eq!(consumer.drain(instance), ["2"], "{end}");
        let late = if end == "COMMIT" {
            "duplicate"
        } else {
            "rejected"
        };
        consumer.decided(late, &Arrival::at("step", "1", 1));
        // The operator is first.
        let (database, mut consumer) = declared();
        let mut operator = Session::new(&database);
        let third = consumer.decided("buffered", &Arrival::at("step", "2", 2));
        let instance = third.instance();
        operator.begin();
        assert!(operator.operate("inbox_skip_gap", instance));
        let decision = thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut consumer, |consumer| {
                consumer.receive(&Arrival::at("step", "1", 1)).decision
            });
            operator.run(end);
            waiter.join().unwrap()
        });
        let expected = if end == "COMMIT" {
            "rejected"
        } else {
            "process"
        };
        assert_eq!(decision, expected, "{end}");
        assert_eq!(consumer.drain(instance), ["2"], "{end}");
    }
}

#[test]
fn g8_force_all_and_a_hand_out_meet_at_the_instance() {
    for end in ENDS {
        let (database, mut consumer, mut operator, _) = race("READY");
        let instance = super::instance(&mut operator);
        consumer.decided("buffered", &Arrival::new("third", "3"));
        consumer.begin();
        assert_eq!(consumer.next_id(None), "2");
        let forced = thread::scope(|scope| {
            let waiter = blocked(scope, &database, &mut operator, |operator| {
                operator.operate("inbox_force_all", instance)
            });
            consumer.run(end);
            waiter.join().unwrap()
        });
        // With 2 processed, 3 is ready anyway.
        assert_eq!(forced, end == "ROLLBACK", "{end}");
        let rest: &[&str] = if forced { &["2", "3"] } else { &["3"] };
        assert_eq!(consumer.drain(instance), rest, "{end}");
    }
}

/// A small generator of its own for each thread; the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn g1_g8_operators_and_consumers_at_random_handle_nothing_twice_and_lose_nothing() {
    const CONTEXTS: usize = 4;
    const MESSAGES: usize = 60;
    const CONSUMERS: u64 = 4;
    const OPERATORS: u64 = 2;
    let (database, mut session) = declared();
    let mut ids: Vec<String> = Vec::new();
    // Everything waits: the first of each context never comes.
    for context in 0..CONTEXTS {
        let name = format!("context-{context}");
        for n in 0..MESSAGES {
            let id = format!("{context}/{n}");
            let arrival = if context % 2 == 0 {
                Arrival::new(if n % 2 == 0 { "second" } else { "third" }, &id)
            } else {
                Arrival::at("step", &id, n as i64 + 2)
            };
            session.decided("buffered", &arrival.of(&name));
            ids.push(id);
        }
    }
    let instances: Vec<i64> = session.value(
        "SELECT array_agg(id ORDER BY id) FROM sequence_instance",
        &[],
    );
    let messages: Vec<i64> = session.value(
        "SELECT array_agg(id ORDER BY id) FROM sequenced_message",
        &[],
    );
    let operators_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|seed| {
                let (database, done) = (&database, &operators_done);
                scope.spawn(move || {
                    let mut session = Session::new(database);
                    let mut dice = Dice(seed);
                    // One more sweep after the operators' end, until nothing is left.
                    loop {
                        let ended = done.load(Ordering::Acquire);
                        let handled = consume(&mut session, &mut dice);
                        if ended && !handled {
                            return;
                        }
                        if !handled {
                            // The processors are the operators'.
                            thread::sleep(Duration::from_millis(2));
                        }
                    }
                })
            })
            .collect();
        let operators: Vec<_> = (0..OPERATORS)
            .map(|seed| {
                let (database, instances, messages) = (&database, &instances, &messages);
                scope.spawn(move || {
                    let mut session = Session::new(database);
                    let mut dice = Dice(seed + 100);
                    let mut done: BTreeMap<&str, usize> = BTreeMap::new();
                    for _ in 0..400 {
                        let message = messages[dice.below(messages.len())];
                        let function = match dice.below(20) {
                            0..8 => "inbox_retry",
                            8..14 => "inbox_force",
                            14..16 => "inbox_skip",
                            16..18 => "inbox_fail_message",
                            _ => "inbox_skip_gap",
                        };
                        let answer = match function {
                            "inbox_fail_message" => session.fail(message, "by hand", None),
                            // Only by position there are gaps.
                            "inbox_skip_gap" => {
                                let instance = instances[1 + 2 * dice.below(CONTEXTS / 2)];
                                session.operate(function, instance)
                            }
                            _ => session.operate(function, message),
                        };
                        if answer {
                            *done.entry(function).or_default() += 1;
                        }
                    }
                    done
                })
            })
            .collect();
        // Otherwise nothing was tried.
        for operator in operators {
            let done = operator.join().unwrap();
            for function in [
                "inbox_retry",
                "inbox_force",
                "inbox_skip",
                "inbox_fail_message",
            ] {
                assert!(
                    done.contains_key(function),
                    "{function} did nothing: {done:?}"
                );
            }
        }
        operators_done.store(true, Ordering::Release);
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
    // In the end everything that is not done is forced, and handled.
    for instance in instances {
        session.operate("inbox_force_all", instance);
    }
    while consume(&mut session, &mut Dice(7)) {
        for message in &messages {
            session.operate("inbox_force", *message);
        }
    }
    let wrong: i64 = session.value(
        "SELECT count(*) FROM sequenced_message m
         WHERE (SELECT count(*) FROM ledger WHERE entry = m.idempotence_id)
               <> CASE m.state WHEN 'PROCESSED' THEN 1 WHEN 'SKIPPED' THEN 0 ELSE -1 END",
        &[],
    );
    assert_eq!(
        wrong, 0,
        "a message was handled twice, or not at all, or is not done"
    );
    let rows: i64 = session.value("SELECT count(*) FROM sequenced_message", &[]);
    assert_eq!(rows, ids.len() as i64, "one row a message");
    let unclaimed: i64 = session.value(
        "SELECT count(*) FROM sequenced_message m WHERE NOT EXISTS (SELECT FROM
             sequential_inbox_idempotence c WHERE c.message_type = m.message_type
             AND c.idempotence_id = m.idempotence_id)",
        &[],
    );
    assert_eq!(unclaimed, 0);
    let handled: i64 = session.value("SELECT count(*) FROM ledger", &[]);
    assert!(handled > 0);
}

/// Takes one message as a sweeper does and handles it; every fourth handler fails. False when there
/// was nothing.
fn consume(session: &mut Session, dice: &mut Dice) -> bool {
    session.begin();
    let Some(released) = session.next(None) else {
        session.commit();
        return false;
    };
    session.write(&released.id);
    if dice.below(4) > 0 {
        session.commit();
        return true;
    }
    session.rollback();
    let retry_after = (dice.below(2) == 0).then_some("0");
    session.fail(released.message, "at random", retry_after);
    true
}

/// A plain consumer's dead letter, redelivered to a consumer that has claimed it, and an operator.
fn redelivered(retry_after: &str) -> (Database, Session, Session, i64) {
    let database = Database::new();
    let mut consumer = Session::new(&database);
    let operator = Session::new(&database);
    consumer.run(&format!(
        "SELECT inbox_fail('billing', id, NULL, 'broken', {retry_after}, '\\x00')
         FROM unnest('{{claimed,free}}'::text[]) id"
    ));
    let message = consumer.value(
        "SELECT id FROM sequenced_message WHERE idempotence_id = 'claimed'",
        &[],
    );
    consumer.begin();
    assert!(consumer.value::<bool>("SELECT inbox_claim('billing', 'claimed')", &[]));
    (database, consumer, operator, message)
}

/// The key comes before the record in every hand: a consumer that claims a message and fails it
/// again, and an operator who is after the same message, do not wait for each other crosswise.
#[test]
fn g5_an_operator_waits_for_a_claim_without_holding_the_record() {
    for function in ["inbox_retry", "inbox_force", "inbox_skip"] {
        for end in ["fail it again", "process it"] {
            let (database, mut consumer, mut operator, message) = redelivered("NULL");
            let changed = thread::scope(|scope| {
                let waiter = blocked(scope, &database, &mut operator, |operator| {
                    operator.operate(function, message)
                });
                if end == "fail it again" {
                    let fail = "SELECT inbox_fail('billing', 'claimed', error => 'again')";
                    assert!(consumer.value::<bool>(fail, &[]), "{function}");
                }
                consumer.commit();
                waiter.join().unwrap()
            });
            assert_eq!(changed, end == "fail it again", "{function}, {end}");
        }
    }
}

/// A sweep takes what nobody has claimed, and waits for no claim.
#[test]
fn g7_a_sweep_passes_over_a_plain_message_that_is_claimed() {
    let (database, mut consumer, mut sweeper, _) = redelivered("'0'");
    sweeper.run("SET statement_timeout = '25s'");
    sweeper.begin();
    assert_eq!(sweeper.next_id(None), "free");
    assert_eq!(sweeper.next(None), None);
    // The consumer fails the message again, as soon as the sweep has let go of its record.
    thread::scope(|scope| {
        let failing = blocked(scope, &database, &mut consumer, |consumer| {
            consumer.value::<bool>(
                "SELECT inbox_fail('billing', 'claimed', NULL, 'again', '0')",
                &[],
            )
        });
        sweeper.commit();
        assert!(failing.join().unwrap());
    });
    consumer.commit();
    assert_eq!(sweeper.next_id(None), "claimed");
}

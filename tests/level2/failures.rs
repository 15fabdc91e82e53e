//! Handlers that fail: nothing of them is committed, and no message loses its trace (G3, G4, G5,
//! G8).

use std::{cell::Cell, time::Duration};

use sequential_inbox_client::{Message, Outcome, ProcessError, SqlState};

use super::{
    Consumer,
    setting::{
        ORDERS, PAYLOAD, beside, both_modes, connect, database, dead_letters, make_due, message,
        retry_dead_letters, state_of, without_pauses,
    },
};

#[test]
fn g4_nothing_of_a_failed_handler_is_committed() {
    // What makes it fail, and how that is told.
    type Told = fn(&ProcessError) -> bool;
    let ways: [(&str, Told); 6] = [
        ("error", |error| matches!(error, ProcessError::Handler(_))),
        (
            "panic",
            |error| matches!(error, ProcessError::Panicked(text) if text == "boom 7"),
        ),
        ("late", |error| matches!(error, ProcessError::TimedOut(_))),
        ("hanging statement", |error| {
            matches!(error, ProcessError::TimedOut(_))
        }),
        ("swallowed error", |error| {
            matches!(error, ProcessError::Commit(_))
                && error.sqlstate() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
        }),
        ("deferred constraint", |error| {
            matches!(error, ProcessError::Commit(_))
                && error.sqlstate() == Some(&SqlState::UNIQUE_VIOLATION)
        }),
    ];
    for consumer in both_modes() {
        let database = database();
        database.execute(
            "CREATE TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO once VALUES (1)",
        );
        let mut client = connect(&database);
        for (way, is_told) in ways {
            let hasty = consumer.clone().handler_timeout(Duration::from_millis(100));
            let failing = match way {
                "late" | "hanging statement" => &hasty,
                _ => &consumer,
            };
            let message = message("order.placed", way).context(way);
            let outcome: Result<Outcome<()>, _> = wait!(failing.process(
                &mut client,
                &message,
                handler!(|tx, _delivery| {
                    done!(tx.execute("INSERT INTO ledger VALUES ('half')", &[]))?;
                    match way {
                        "error" => return Err("no".into()),
                        "panic" => panic!("boom {}", 7),
                        "late" => std::thread::sleep(Duration::from_millis(150)),
                        "hanging statement" => {
                            done!(tx.execute("SELECT pg_sleep(600)", &[]))?;
                        }
                        "swallowed error" => {
                            assert!(done!(tx.execute("SELECT 1 / 0", &[])).is_err());
                        }
                        _ => {
                            done!(tx.execute("INSERT INTO once VALUES (1)", &[]))?;
                        }
                    }
                    Ok(())
                }),
            ));
            let error = outcome.expect_err(way);
            assert!(is_told(&error), "{way}: {error:?}");
            if client.is_closed() {
                // The server ended the session of a handler that left it idle for too long.
                client = connect(&database);
            }
            let outcome = wait!(consumer.process(
                &mut client,
                &message,
                handler!(|tx, _delivery| {
                    done!(tx.execute("INSERT INTO ledger VALUES ('whole')", &[]))?;
                    Ok(())
                }),
            ));
            assert!(outcome.unwrap().is_applied(), "{way}: G3");
        }
        assert_eq!(database.ledger(), ["whole"; 6]);
    }
}

#[test]
fn a_handler_that_ends_its_transaction_is_no_success() {
    for consumer in both_modes() {
        let database = database();
        let outcome: Result<Outcome<()>, _> = wait!(consumer.process(
            &mut connect(&database),
            &message("order.placed", "evt-1"),
            handler!(|tx, _delivery| {
                done!(tx.batch_execute("ROLLBACK"))?;
                Ok(())
            }),
        ));
        let error = outcome.expect_err("nothing was applied");
        assert!(
            error.to_string().contains("ended the transaction"),
            "{error}"
        );
    }
}

#[test]
fn g1_g5_a_message_that_always_fails_becomes_a_dead_letter_that_can_be_retried() {
    for consumer in both_modes() {
        let database = database();
        let mut client = connect(&database);
        let consumer = consumer.give_up_after(5);
        let mut handled = 0;
        let mut deliver = |delivery: u32| {
            let message = message("order.placed", "evt-1").delivery(delivery);
            wait!(consumer.process::<(), _>(
                &mut client,
                &message,
                handler!(|tx, delivery| {
                    handled += 1;
                    let id = &*delivery.message.idempotence_id;
                    done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                    Err("card refused".into())
                }),
            ))
        };
        for delivery in 1..5 {
            let error = deliver(delivery).expect_err("the broker redelivers");
            assert!(matches!(error, ProcessError::Handler(_)), "{error:?}");
        }
        let outcome = deliver(5).expect("it can be acknowledged");
        assert!(
            matches!(outcome, Outcome::DeadLettered { .. }),
            "{outcome:?}"
        );
        assert_eq!(handled, 5);
        assert!(database.ledger().is_empty());
        let dead = dead_letters(&database);
        assert_eq!(dead.len(), 1);
        assert_eq!((&*dead[0].1, dead[0].2), ("evt-1", 1));
        assert_eq!(dead[0].3, "at delivery 5: the handler failed: card refused");

        retry_dead_letters(&database);
        let mut seen = Vec::new();
        let swept = wait!(consumer.sweep(
            &mut client,
            handler!(|tx, delivery| {
                assert!(delivery.is_released && delivery.failures == 1);
                seen.push(format!(
                    "{} {}",
                    delivery.consumer, delivery.message.message_type
                ));
                let mut back = message("order.placed", "evt-1");
                back.position = delivery.message.position;
                assert_eq!(*delivery.message, back, "as it was received");
                let id = &*delivery.message.idempotence_id;
                done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                Ok(())
            }),
        ))
        .unwrap();
        assert_eq!((swept.applied, swept.failed), (1, 0));
        assert!(
            seen == ["billing order.placed"] || seen == ["orders order.placed"],
            "{seen:?}"
        );
        assert_eq!(database.ledger(), ["evt-1"]);
        assert!(dead_letters(&database).is_empty());
        let again = wait!(consumer.process(
            &mut client,
            &message("order.placed", "evt-1"),
            handler!(|_tx, _delivery| { Ok(()) }),
        ));
        assert!(matches!(again, Ok(Outcome::Duplicate)), "{again:?}");
    }
}

#[test]
fn g5_rescheduled_failures_are_counted_until_they_are_given_up() {
    for consumer in both_modes() {
        let database = database();
        let mut client = connect(&database);
        let consumer = consumer
            .reschedule_failures(true)
            .give_up_after(3)
            .retry_after(Duration::from_secs(60));
        let failures = Cell::new(0);
        let outcome: Outcome<()> = wait!(consumer.process(
            &mut client,
            &message("order.placed", "evt-1"),
            handler!(|_tx, _delivery| {
                failures.set(failures.get() + 1);
                Err("not yet".into())
            }),
        ))
        .expect("it can be acknowledged");
        assert!(
            matches!(outcome, Outcome::Rescheduled { after, .. } if after.as_secs() == 60),
            "{outcome:?}"
        );
        assert!(
            dead_letters(&database).is_empty(),
            "it comes back by itself"
        );
        let mut sweep = || {
            wait!(consumer.sweep::<(), _>(
                &mut client,
                handler!(|_tx, delivery| {
                    assert_eq!(delivery.failures, failures.get());
                    failures.set(failures.get() + 1);
                    Err("not yet".into())
                }),
            ))
            .unwrap()
        };
        assert_eq!(sweep().failed, 0, "not due");
        for _ in 0..2 {
            make_due(&database);
            assert_eq!(sweep().failed, 1);
        }
        assert_eq!(failures.get(), 3);
        let dead = dead_letters(&database);
        assert_eq!((&*dead[0].1, dead[0].2), ("evt-1", 3));
        assert_eq!(dead[0].3, "the handler failed: not yet");
    }
}

#[test]
fn without_a_payload_a_failure_goes_back_to_the_broker() {
    for consumer in both_modes() {
        let database = database();
        let outcome: Result<Outcome<()>, _> = wait!(consumer.reschedule_failures(true).process(
            &mut connect(&database),
            &Message::new("order.placed", "evt-1").context("order-1"),
            handler!(|_tx, _delivery| { Err("not yet".into()) }),
        ));
        assert!(
            matches!(outcome, Err(ProcessError::Handler(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn g5_giving_up_never_takes_a_success_back() {
    for consumer in both_modes() {
        let database = database();
        let mut client = connect(&database);
        let message = message("order.placed", "evt-1");
        let given_up = wait!(consumer.give_up(&mut client, &message, "bad\0data")).unwrap();
        assert!(given_up);
        assert_eq!(dead_letters(&database)[0].3, "bad\u{fffd}data");
        // A resend wins.
        let outcome =
            wait!(consumer.process(&mut client, &message, handler!(|_tx, _delivery| { Ok(()) }),));
        assert!(outcome.unwrap().is_applied());
        let given_up = wait!(consumer.give_up(&mut client, &message, "too late")).unwrap();
        assert!(!given_up);
        assert!(dead_letters(&database).is_empty());
        let again =
            wait!(consumer.process(&mut client, &message, handler!(|_tx, _delivery| { Ok(()) }),));
        assert!(matches!(again, Ok(Outcome::Duplicate)), "{again:?}");
    }
}

#[test]
fn g1_a_handler_that_was_overtaken_gets_a_duplicate() {
    let overtaking = [
        "SELECT inbox_claim('billing'::text, 'evt-1'::text)",
        "SELECT inbox_receive('order.placed', 'evt-1', 'order-1')",
    ];
    for (consumer, overtaking) in both_modes().into_iter().zip(overtaking) {
        let database = database();
        let consumer = consumer.give_up_after(1);
        let mut client = connect(&database);
        let message = message("order.placed", "evt-1");
        let outcome: Outcome<()> = wait!(consumer.process(
            &mut client,
            &message,
            handler!(|tx, _delivery| {
                // The claim is lost with the transaction, and another delivery is faster.
                done!(tx.batch_execute("ROLLBACK"))?;
                beside(|| database.execute(overtaking));
                Err("too slow".into())
            }),
        ))
        .unwrap();
        assert!(matches!(outcome, Outcome::Duplicate), "{outcome:?}");
        assert!(dead_letters(&database).is_empty());
    }
}

#[test]
fn g8_a_released_message_that_fails_is_recorded() {
    let database = database();
    let mut client = connect(&database);
    let (consumer, _) = without_pauses(Consumer::sequence(ORDERS).give_up_after(2));
    let mut deliver = |message_type: &str, id: &str, panics: bool| {
        wait!(consumer.process(
            &mut client,
            &message(message_type, id),
            handler!(|tx, delivery| {
                let id = &*delivery.message.idempotence_id;
                done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                if delivery.is_released {
                    assert!(!panics, "boom");
                    return Err("stock is empty".into());
                }
                Ok(())
            }),
        ))
    };
    assert!(matches!(
        deliver("order.paid", "evt-2", false),
        Ok(Outcome::Buffered)
    ));
    assert!(
        deliver("order.placed", "evt-1", false)
            .unwrap()
            .is_applied()
    );
    assert_eq!(database.ledger(), ["evt-1"]);
    assert_eq!(state_of(&database, "evt-2"), "FAILED");
    assert!(dead_letters(&database).is_empty(), "due again by itself");

    make_due(&database);
    let swept = wait!(consumer.sweep::<(), _>(
        &mut client,
        handler!(|_tx, delivery| {
            assert_eq!(delivery.message.payload.as_deref(), Some(PAYLOAD));
            panic!("boom")
        }),
    ))
    .unwrap();
    assert_eq!((swept.applied, swept.failed), (0, 1));
    let dead = dead_letters(&database);
    assert_eq!((&*dead[0].1, dead[0].2), ("evt-2", 2));
    assert_eq!(dead[0].3, "the handler panicked: boom");
}

#[test]
fn g7_what_a_failure_releases_is_drained() {
    let database = database();
    database.execute(
        r#"SELECT inbox_declare_sequence('steps', '1 day', '[{"type": "first"},
             {"type": "second", "releaseCondition": {"predecessor": "first"}}]',
             on_failure => 'skip')"#,
    );
    let mut client = connect(&database);
    let consumer = Consumer::sequence("steps").give_up_after(1);
    let mut deliver = |message_type: &str, id: &str| {
        wait!(consumer.process(
            &mut client,
            &message(message_type, id),
            handler!(|tx, delivery| {
                let id = &*delivery.message.idempotence_id;
                done!(tx.execute("INSERT INTO ledger VALUES ($1)", &[&id]))?;
                if id == "evt-1" {
                    return Err("no".into());
                }
                Ok(())
            }),
        ))
        .unwrap()
    };
    assert!(matches!(deliver("second", "evt-2"), Outcome::Buffered));
    assert!(matches!(
        deliver("first", "evt-1"),
        Outcome::DeadLettered { .. }
    ));
    assert_eq!(database.ledger(), ["evt-2"]);
}

#[test]
fn a_call_that_is_wrong_is_an_error_and_records_nothing() {
    let database = database();
    let consumer = Consumer::sequence(ORDERS).give_up_after(1);
    let mut handled = 0;
    let outcome: Result<Outcome<()>, _> = wait!(consumer.process(
        &mut connect(&database),
        &message("unheard.of", "evt-1"),
        handler!(|_tx, _delivery| {
            handled += 1;
            Ok(())
        }),
    ));
    let error = outcome.expect_err("G11");
    assert!(matches!(error, ProcessError::Inbox(_)), "{error:?}");
    assert_eq!(error.sqlstate(), Some(&SqlState::UNDEFINED_OBJECT));
    assert_eq!(handled, 0);
    assert!(dead_letters(&database).is_empty());
}

//! What is told of messages: who, what and how it ended, and never what it held.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sequential_inbox_client::{Message, Outcome};

use super::{
    Consumer,
    setting::{
        BILLING, ORDERS, connect, database, make_due, message, retry_dead_letters, without_pauses,
    },
};
use crate::log;

/// Sends messages through all that can happen to them. Every error quotes the payload.
fn everything() {
    let database = database();
    let mut client = connect(&database);
    let (plain, _) = without_pauses(Consumer::plain(BILLING).retries(1).give_up_after(2));
    let (sequenced, _) = without_pauses(Consumer::sequence(ORDERS).retries(1).give_up_after(2));
    for consumer in [&plain, &sequenced] {
        for way in [
            "error",
            "conflict",
            "panic",
            "database",
            "swallowed",
            "good",
            "good",
        ] {
            let message = message("order.placed", "evt-1");
            let outcome = wait!(consumer.process(
                &mut client,
                &message,
                handler!(|tx, delivery| {
                    let payload =
                        String::from_utf8(delivery.message.payload.clone().unwrap().into())?;
                    let raise = |code: &str| {
                        format!(
                            "DO $$ BEGIN RAISE EXCEPTION '{payload}' \
                             USING ERRCODE = '{code}', DETAIL = '{payload}'; END $$"
                        )
                    };
                    match way {
                        "error" => return Err(payload.into()),
                        "panic" => std::panic::panic_any(payload),
                        // The driver itself logs the text of simple queries.
                        "conflict" => done!(tx.execute(&raise("40001"), &[])).map(drop)?,
                        "database" => done!(tx.execute(&raise("23505"), &[])).map(drop)?,
                        "swallowed" => drop(done!(tx.execute(&raise("23505"), &[]))),
                        _ => {}
                    }
                    Ok(())
                }),
            ));
            assert_eq!(outcome.is_ok(), way == "good", "{outcome:?}");
        }
        // Given up, retried by an operator, failing again, due again.
        let poison = message("order.placed", "evt-2")
            .context("order-2")
            .delivery(2);
        let outcome: Outcome<()> = wait!(consumer.process(
            &mut client,
            &poison,
            handler!(|_tx, delivery| { Err(format!("{:?}", delivery.message.payload).into()) }),
        ))
        .unwrap();
        assert!(
            matches!(outcome, Outcome::DeadLettered { .. }),
            "{outcome:?}"
        );
        retry_dead_letters(&database);
        wait!(consumer.sweep::<(), _>(
            &mut client,
            handler!(|_tx, _delivery| { Err("SECRET-payload".into()) }),
        ))
        .unwrap();
        retry_dead_letters(&database);
        wait!(consumer.sweep(&mut client, handler!(|_tx, _delivery| { Ok(()) }))).unwrap();
        let batch = [
            message("order.placed", "evt-3").context("order-3"),
            message("order.placed", "evt-4").context("order-4"),
        ];
        for _ in 0..2 {
            let outcomes = wait!(consumer.process_batch(
                &mut client,
                &batch,
                handler!(|_tx, delivery| {
                    if delivery.message.idempotence_id == "evt-4" {
                        return Err("SECRET-payload".into());
                    }
                    Ok(())
                }),
            ))
            .unwrap();
            assert!(outcomes[0].is_ok() && outcomes[1].is_err());
        }
    }
    // Buffered, released, failing, rescheduled; outside of the sequence.
    let patient = sequenced
        .clone()
        .reschedule_failures(true)
        .give_up_after(None);
    for (message_type, id) in [("order.paid", "evt-6"), ("order.placed", "evt-5")] {
        let message = message(message_type, id).context("order-5");
        let outcome = wait!(patient.process(
            &mut client,
            &message,
            handler!(|_tx, delivery| {
                if delivery.is_released {
                    return Err("SECRET-payload".into());
                }
                Ok(())
            }),
        ));
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    make_due(&database);
    let slow = patient.clone().handler_timeout(Duration::from_millis(100));
    wait!(slow.sweep(
        &mut client,
        handler!(|_tx, _delivery| {
            std::thread::sleep(Duration::from_millis(120));
            Ok(())
        }),
    ))
    .unwrap();
    let direct = Message::new("order.placed", "evt-7").payload(b"SECRET-payload".as_slice());
    let outcome =
        wait!(patient.process(&mut client, &direct, handler!(|_tx, _delivery| { Ok(()) }),));
    assert!(matches!(outcome, Ok(Outcome::Direct)), "{outcome:?}");
}

#[test]
fn no_payload_is_in_any_log_line() {
    let text = log::of(everything);
    for line in text.lines() {
        // What a handler sends to the server is its own to log, through the driver.
        let is_own = !line.contains("tokio_postgres") && !line.contains("postgres_protocol");
        assert!(!is_own || !line.contains("SECRET"), "{line}");
    }
    for told in [
        "consumer=\"billing\"",
        "consumer=\"orders\"",
        "message_type=\"order.placed\"",
        "message_id=\"evt-1\"",
        "outcome=\"applied\"",
        "outcome=\"duplicate\"",
        "outcome=\"buffered\"",
        "outcome=\"direct\"",
        "outcome=\"retryable_failure\"",
        "outcome=\"terminal_failure\"",
        "sqlstate=\"40001\"",
        "error_kind=\"panic\"",
        "error_kind=\"timeout\"",
        "error_kind=\"commit\"",
        "inbox_message{",
    ] {
        assert!(text.contains(told), "{told} is not told:\n{text}");
    }
}

#[test]
fn outcomes_are_counted_by_consumer_and_type() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, everything);
    let mut counted = Vec::new();
    let mut timed = 0;
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let mut labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
        labels.sort_unstable();
        match value {
            DebugValue::Counter(count) => {
                assert_eq!(key.name(), "sequential_inbox_messages_total");
                assert!(count > 0);
                counted.push(labels.join(" "));
            }
            DebugValue::Histogram(values) => {
                assert_eq!(key.name(), "sequential_inbox_transaction_seconds");
                assert!(values.iter().all(|value| value.into_inner() > 0.0));
                timed += values.len();
            }
            DebugValue::Gauge(_) => panic!("{key}"),
        }
    }
    for consumer in [BILLING, ORDERS] {
        for outcome in [
            "applied",
            "duplicate",
            "retryable_failure",
            "terminal_failure",
        ] {
            let mut labels = [consumer, outcome, "order.placed"];
            labels.sort_unstable();
            let labels = labels.join(" ");
            assert!(counted.contains(&labels), "{labels} is not in {counted:?}");
        }
    }
    assert!(timed > 0);
}

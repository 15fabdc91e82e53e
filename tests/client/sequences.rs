//! Sequenced messages through the client: every decision, every hand-out, every hand of the
//! operator (G1, G2, G5 to G8).

use std::time::{Duration, SystemTime};

use inbox_test_support::Database;
use sequential_inbox_client::{
    Condition, Decision, Error, Failure, Message, MessageState, MessageType, OnFailure, Ordering,
    Received, Released, Sequence, SqlState,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::IsolationLevel;

use super::{
    Client, InboxExt, connect_to,
    session::{blocked, commit, connect, failed, write},
};

const HOUR: Duration = Duration::from_secs(3600);

/// `order.created`, then `order.paid` and `order.packed` in any order, then `order.shipped`.
fn orders() -> Sequence {
    Sequence::new("orders", HOUR)
        .message(MessageType::new("order.created"))
        .message(MessageType::new("order.paid").after("order.created"))
        .message(
            MessageType::new("order.packed")
                .after("order.created")
                .optional(),
        )
        .message(
            MessageType::new("order.shipped").after(Condition::and(["order.paid", "order.packed"])),
        )
}

/// Steps in the order of their positions.
fn steps(on_failure: OnFailure) -> Sequence {
    Sequence::new("steps", HOUR)
        .message(MessageType::new("step"))
        .message(MessageType::new("last").completing())
        .ordering(Ordering::Position)
        .on_failure(on_failure)
}

fn setup(sequence: &Sequence) -> (Database, Client) {
    let database = Database::new();
    let mut client = connect(&database);
    commit(&mut client, |tx| {
        wait!(tx.inbox().declare_sequence(sequence)).unwrap()
    });
    (database, client)
}

/// A message of order 1 whose id is its type.
fn order(message_type: &str) -> Message<'_> {
    Message::new(message_type, message_type)
        .context("order-1")
        .payload(message_type.as_bytes())
}

/// A message of run 1 at that position.
fn step(position: i64) -> Message<'static> {
    let id = format!("step-{position}");
    Message::new("step", id.clone())
        .context("run-1")
        .position(position)
        .payload(id.into_bytes())
}

/// Receives and commits.
fn receive(client: &mut Client, message: &Message<'_>) -> Received {
    commit(client, |tx| wait!(tx.inbox().receive(message)).unwrap())
}

/// Receives, commits, and checks the decision.
#[track_caller]
fn decided(client: &mut Client, message: &Message<'_>, decision: Decision) {
    assert_eq!(receive(client, message).decision, decision, "{message:?}");
}

/// Like [`decided`], with the whole answer.
#[track_caller]
fn received(client: &mut Client, message: &Message<'_>, decision: Decision) -> Received {
    let received = receive(client, message);
    assert_eq!(received.decision, decision, "{message:?}: {received:?}");
    received
}

/// Takes the next message of an instance and commits.
fn next(client: &mut Client, instance: i64) -> Option<Released> {
    commit(client, |tx| wait!(tx.inbox().next(instance)).unwrap())
}

/// The ids of all that an instance hands out, one transaction a message.
fn drain(client: &mut Client, instance: i64) -> Vec<String> {
    std::iter::from_fn(|| next(client, instance))
        .map(|released| released.idempotence_id)
        .collect()
}

fn state(client: &mut Client, message: &Message<'_>) -> Option<MessageState> {
    let records = commit(client, |tx| {
        wait!(
            tx.inbox()
                .lookup(&message.message_type, &message.idempotence_id)
        )
        .unwrap()
    });
    assert!(records.len() <= 1, "{records:?}");
    records.first().and_then(|record| record.state)
}

#[test]
fn g6_messages_received_backwards_are_handled_in_order() {
    let (_database, mut client) = setup(&orders());
    let shipped = received(&mut client, &order("order.shipped"), Decision::Buffered);
    let instance = shipped.sequence_instance_id.expect("an instance");
    assert!(shipped.message_id.is_some());
    decided(&mut client, &order("order.paid"), Decision::Buffered);
    decided(&mut client, &order("order.packed"), Decision::Buffered);
    assert_eq!(
        next(&mut client, instance),
        None,
        "nothing may be handled yet"
    );

    let created = received(&mut client, &order("order.created"), Decision::Process);
    assert_eq!(created.sequence_instance_id, Some(instance));
    assert_eq!(
        state(&mut client, &order("order.created")),
        Some(MessageState::Processed)
    );
    assert_eq!(
        state(&mut client, &order("order.shipped")),
        Some(MessageState::Waiting)
    );
    let handled = drain(&mut client, instance);
    assert_eq!(handled.len(), 3, "{handled:?}");
    assert_eq!(handled[2], "order.shipped", "{handled:?}");
    assert_eq!(
        state(&mut client, &order("order.shipped")),
        Some(MessageState::Processed)
    );
}

#[test]
fn g1_a_resend_of_a_processed_and_of_a_waiting_message_is_a_duplicate() {
    let (database, mut client) = setup(&orders());
    decided(&mut client, &order("order.created"), Decision::Process);
    decided(&mut client, &order("order.created"), Decision::Duplicate);
    decided(&mut client, &order("order.shipped"), Decision::Buffered);
    decided(&mut client, &order("order.shipped"), Decision::Duplicate);
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM sequenced_message"),
        2
    );
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM buffered_message"),
        1
    );
}

#[test]
fn a_message_without_a_context_is_handled_outside() {
    let (database, mut client) = setup(&orders());
    let message = Message::new("order.created", "evt-1");
    let received = received(&mut client, &message, Decision::Direct);
    assert_eq!(
        (received.sequence_instance_id, received.message_id),
        (None, None)
    );
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM sequenced_message"),
        0
    );
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM sequence_instance"),
        0
    );
}

#[test]
fn g2_a_concurrent_duplicate_waits_and_is_told() {
    let (database, mut client) = setup(&orders());
    let mut tx = wait!(client.transaction()).unwrap();
    let message = order("order.created");
    let first = wait!(tx.inbox().receive(&message)).unwrap();
    assert_eq!(first.decision, Decision::Process);
    write(&mut tx, "first");
    std::thread::scope(|scope| {
        let second = blocked(scope, &database, |client| {
            commit(client, |tx| {
                let received = wait!(tx.inbox().receive(&message)).unwrap();
                write(tx, "second goes on");
                received.decision
            })
        });
        wait!(tx.commit()).unwrap();
        assert_eq!(second.join().unwrap(), Decision::Duplicate);
    });
    assert_eq!(database.ledger(), ["first", "second goes on"]);
}

#[test]
fn try_receive_answers_at_once_and_leaves_nothing_behind() {
    let (database, mut client) = setup(&orders());
    let mut other = connect(&database);
    decided(&mut client, &order("order.created"), Decision::Process);
    let mut tx = wait!(client.transaction()).unwrap();
    let message = order("order.paid");
    let held = wait!(tx.inbox().receive(&message)).unwrap();
    assert_eq!(held.decision, Decision::Process);
    for message in [order("order.paid"), order("order.packed")] {
        commit(&mut other, |tx| {
            // A call that waits would run into this.
            wait!(tx.batch_execute("SET LOCAL lock_timeout = '5s'")).unwrap();
            let received = wait!(tx.inbox().try_receive(&message)).unwrap();
            assert_eq!(received.decision, Decision::InFlight, "{message:?}");
        });
    }
    wait!(tx.rollback()).unwrap();
    assert_eq!(state(&mut client, &order("order.packed")), None);
    for message in [order("order.paid"), order("order.packed")] {
        let received = commit(&mut other, |tx| {
            wait!(tx.inbox().try_receive(&message)).unwrap()
        });
        assert_eq!(received.decision, Decision::Process, "{message:?}");
    }
}

#[test]
fn g8_payload_key_and_headers_come_back_byte_for_byte() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        number: u32,
        note: String,
    }

    let (_database, mut client) = setup(&orders());
    let value = Order {
        number: 7,
        note: "it's \u{1f980}".into(),
    };
    let all_bytes: Vec<u8> = (0..=255).collect();
    let headers = serde_json::json!({"trace": "abc", "n": [1, null, 2.5]});
    let json = order("order.paid").json(&value).unwrap();
    let raw = order("order.packed")
        .payload(all_bytes.clone())
        .key(all_bytes.as_slice())
        .headers(headers.clone());
    let empty = Message::new("order.shipped", "order.shipped")
        .context("order-1")
        .payload(b"".as_slice());
    for message in [&json, &raw, &empty] {
        decided(&mut client, message, Decision::Buffered);
    }
    let created = received(&mut client, &order("order.created"), Decision::Process);
    let instance = created.sequence_instance_id.unwrap();
    for _ in 0..2 {
        let released = next(&mut client, instance).unwrap();
        assert_eq!(released.sequence_instance_id, Some(instance));
        assert_eq!(released.sequence_name.as_deref(), Some("orders"));
        assert_eq!(released.context_id.as_deref(), Some("order-1"));
        assert_eq!((released.attempts, released.position), (0, None));
        assert!(released.buffered_at.is_some());
        if released.message_type == "order.paid" {
            assert_eq!(released.json::<Order>().unwrap(), value);
            assert_eq!((released.key, released.headers), (None, None));
        } else {
            assert_eq!(released.payload, Some(all_bytes.clone()));
            assert_eq!(released.key, Some(all_bytes.clone()));
            assert_eq!(released.headers, Some(headers.clone()));
        }
    }
    let released = next(&mut client, instance).unwrap();
    assert_eq!(released.payload.as_deref(), Some(b"".as_slice()));
    assert_eq!(next(&mut client, instance), None);
}

#[test]
fn g7_a_sweeper_finds_what_a_crashed_process_left_released() {
    let (database, mut client) = setup(&orders());
    decided(&mut client, &order("order.paid"), Decision::Buffered);
    decided(&mut client, &order("order.created"), Decision::Process);
    drop(client);
    let mut sweeper = connect_to(database.dsn());
    let released = commit(&mut sweeper, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_eq!(
        released.expect("a released message").idempotence_id,
        "order.paid"
    );
    let rest = commit(&mut sweeper, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_eq!(rest, None);
}

#[test]
fn g7_a_sweeper_passes_over_an_instance_that_is_held() {
    let (database, mut client) = setup(&orders());
    for context in ["order-1", "order-2"] {
        for message_type in ["order.paid", "order.created"] {
            let id = format!("{message_type} of {context}");
            let _ = receive(
                &mut client,
                &Message::new(message_type, id).context(context),
            );
        }
    }
    let mut tx = wait!(client.transaction()).unwrap();
    let held = wait!(tx.inbox().next(None)).unwrap().expect("the first");
    let mut sweeper = connect(&database);
    let other = commit(&mut sweeper, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_ne!(other.expect("the other").context_id, held.context_id);
    let nothing = commit(&mut sweeper, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_eq!(nothing, None, "the first is held");
    wait!(tx.rollback()).unwrap();
    let again = commit(&mut sweeper, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_eq!(again.expect("the first").message_id, held.message_id);
}

#[test]
fn g6_two_messages_of_one_instance_take_turns() {
    let (database, mut client) = setup(&orders());
    let mut tx = wait!(client.transaction()).unwrap();
    let created = wait!(tx.inbox().receive(&order("order.created"))).unwrap();
    assert_eq!(created.decision, Decision::Process);
    std::thread::scope(|scope| {
        let paid = blocked(scope, &database, |client| {
            receive(client, &order("order.paid"))
        });
        wait!(tx.commit()).unwrap();
        // It waited for the instance and then saw its predecessor processed.
        assert_eq!(paid.join().unwrap().decision, Decision::Process);
    });
}

#[test]
fn g7_a_successor_is_buffered_when_its_predecessor_rolls_back() {
    let (database, mut client) = setup(&orders());
    let instance = commit(&mut client, |tx| {
        wait!(tx.inbox().sequence("orders", "order-1"))
    });
    let mut tx = wait!(client.transaction()).unwrap();
    let created = wait!(tx.inbox().receive(&order("order.created"))).unwrap();
    assert_eq!(created.decision, Decision::Process);
    std::thread::scope(|scope| {
        let paid = blocked(scope, &database, |client| {
            receive(client, &order("order.paid"))
        });
        wait!(tx.rollback()).unwrap();
        assert_eq!(paid.join().unwrap().decision, Decision::Buffered);
    });
    decided(&mut client, &order("order.created"), Decision::Process);
    assert_eq!(drain(&mut client, instance.unwrap()), ["order.paid"]);
}

#[test]
fn g10_a_snapshot_older_than_the_predecessors_commit_never_loses_a_wake_up() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let (database, mut client) = setup(&orders());
        let mut late = connect(&database);
        let instance = commit(&mut client, |tx| {
            wait!(tx.inbox().sequence("orders", "order-1"))
        });
        let mut tx = wait!(late.build_transaction().isolation_level(level).start()).unwrap();
        wait!(tx.query("SELECT count(*) FROM ledger", &[])).unwrap();
        decided(&mut client, &order("order.created"), Decision::Process);
        // To judge by the old snapshot would buffer what nothing releases any more.
        let answer = wait!(tx.inbox().receive(&order("order.paid")));
        let error = failed(answer, &SqlState::T_R_SERIALIZATION_FAILURE);
        assert!(error.is_retryable());
        wait!(tx.rollback()).unwrap();
        decided(&mut late, &order("order.paid"), Decision::Process);
        assert_eq!(next(&mut client, instance.unwrap()), None);
    }
}

#[test]
fn while_recording_messages_are_handled_at_once() {
    let tomorrow = SystemTime::now() + 24 * HOUR;
    let (_database, mut client) = setup(&orders().recording_until(tomorrow));
    decided(&mut client, &order("order.shipped"), Decision::Process);
    decided(&mut client, &order("order.shipped"), Decision::Duplicate);
    assert_eq!(
        state(&mut client, &order("order.shipped")),
        Some(MessageState::Processed)
    );
}

#[test]
fn a_retry_is_not_due_before_its_time() {
    let (database, mut client) = setup(&orders());
    let created = order("order.created");
    let instance = commit(&mut client, |tx| {
        wait!(tx.inbox().sequence("orders", "order-1"))
    });
    let failure = Failure::of(&created)
        .instance(instance.unwrap())
        .retry_after(HOUR);
    commit(&mut client, |tx| {
        assert!(wait!(tx.inbox().fail(&failure)).unwrap())
    });
    let early = commit(&mut client, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_eq!(early, None);
    database
        .execute("UPDATE sequenced_message SET next_attempt_at = next_attempt_at - interval '1h'");
    let due = commit(&mut client, |tx| wait!(tx.inbox().next(None)).unwrap());
    assert_eq!(due.expect("it is due").idempotence_id, "order.created");
}

#[test]
fn g8_a_payload_of_64_mebibytes_comes_back() {
    let (_database, mut client) = setup(&orders());
    let payload: Vec<u8> = (0..64 << 20)
        .map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    decided(
        &mut client,
        &order("order.paid").payload(payload.as_slice()),
        Decision::Buffered,
    );
    let created = received(&mut client, &order("order.created"), Decision::Process);
    let released = next(&mut client, created.sequence_instance_id.unwrap()).unwrap();
    // Not `assert_eq!`, which would print them.
    assert!(
        released.payload.as_deref() == Some(&*payload),
        "64 MiB are not what they were"
    );
}

#[test]
fn a_message_without_a_payload_says_so() {
    let (_database, mut client) = setup(&orders());
    let message = Message::new("order.paid", "evt-1").context("order-1");
    decided(&mut client, &message, Decision::Buffered);
    let created = received(&mut client, &order("order.created"), Decision::Process);
    let released = next(&mut client, created.sequence_instance_id.unwrap()).unwrap();
    assert_eq!(
        (&released.payload, &released.key, &released.headers),
        (&None, &None, &None)
    );
    assert!(matches!(
        released.json::<String>(),
        Err(Error::MissingPayload)
    ));
}

#[test]
fn g5_a_failed_message_holds_back_its_successors_until_its_resend() {
    let (_database, mut client) = setup(&orders());
    decided(&mut client, &order("order.created"), Decision::Process);
    // The handler of an immediate message failed for good: its transaction was rolled back, and
    // the failure is recorded with what is needed to try again.
    let message = order("order.paid");
    let mut tx = wait!(client.transaction()).unwrap();
    let held = wait!(tx.inbox().receive(&message)).unwrap();
    wait!(tx.rollback()).unwrap();
    let instance = held.sequence_instance_id.unwrap();
    let failure = Failure::of(&message)
        .instance(instance)
        .error("no such card");
    commit(&mut client, |tx| {
        assert!(wait!(tx.inbox().fail(&failure)).unwrap())
    });
    assert_eq!(state(&mut client, &message), Some(MessageState::Failed));

    decided(&mut client, &order("order.packed"), Decision::Process);
    decided(&mut client, &order("order.shipped"), Decision::Buffered);
    assert_eq!(next(&mut client, instance), None);

    let resent = received(&mut client, &message, Decision::Process);
    assert!(resent.message_id.is_some());
    assert_eq!(drain(&mut client, instance), ["order.shipped"]);
    // A processed message stays processed.
    commit(&mut client, |tx| {
        assert!(!wait!(tx.inbox().fail(&failure)).unwrap())
    });
    assert_eq!(state(&mut client, &message), Some(MessageState::Processed));
}

#[test]
fn g5_a_released_message_that_fails_is_tried_again_or_left_to_the_operator() {
    let (_database, mut client) = setup(&orders());
    decided(&mut client, &order("order.paid"), Decision::Buffered);
    let created = received(&mut client, &order("order.created"), Decision::Process);
    let instance = created.sequence_instance_id.unwrap();
    // The handler fails: roll back, then record it.
    let mut tx = wait!(client.transaction()).unwrap();
    let released = wait!(tx.inbox().next(instance)).unwrap().unwrap();
    wait!(tx.rollback()).unwrap();
    let id = released.message_id;
    commit(&mut client, |tx| {
        let again = wait!(
            tx.inbox()
                .fail_message(id, Some("503"), Some(Duration::ZERO))
        );
        assert!(again.unwrap());
    });
    let again = next(&mut client, instance).expect("it is due at once");
    assert_eq!((again.message_id, again.attempts), (id, 1));
    assert_eq!(again.payload, released.payload);
    commit(&mut client, |tx| {
        let too_late = wait!(tx.inbox().fail_message(id, Some("503"), None)).unwrap();
        assert!(!too_late, "it is processed");
    });
}

#[test]
fn the_operator_retries_forces_and_skips() {
    let (_database, mut client) = setup(&orders());
    let shipped = received(&mut client, &order("order.shipped"), Decision::Buffered);
    let paid = received(&mut client, &order("order.paid"), Decision::Buffered);
    let instance = shipped.sequence_instance_id.unwrap();
    let (shipped, paid) = (shipped.message_id.unwrap(), paid.message_id.unwrap());
    commit(&mut client, |tx| {
        assert!(!wait!(tx.inbox().retry(paid)).unwrap(), "it has not failed");
        assert!(wait!(tx.inbox().fail_message(paid, Some("by hand"), None)).unwrap());
        assert!(wait!(tx.inbox().retry(paid)).unwrap());
    });
    assert_eq!(
        state(&mut client, &order("order.paid")),
        Some(MessageState::Waiting)
    );
    commit(&mut client, |tx| {
        assert!(wait!(tx.inbox().skip(paid)).unwrap());
        assert!(!wait!(tx.inbox().skip(paid)).unwrap(), "already skipped");
        assert!(wait!(tx.inbox().force(shipped)).unwrap());
    });
    assert_eq!(
        state(&mut client, &order("order.paid")),
        Some(MessageState::Skipped)
    );
    assert_eq!(drain(&mut client, instance), ["order.shipped"]);
    commit(&mut client, |tx| {
        assert!(
            !wait!(tx.inbox().force(shipped)).unwrap(),
            "it is processed"
        );
        assert!(
            !wait!(tx.inbox().retry(shipped)).unwrap(),
            "it is processed"
        );
        assert!(
            !wait!(tx.inbox().force_all(instance)).unwrap(),
            "nothing waits"
        );
    });
}

#[test]
fn the_operator_forces_all_and_closes() {
    let (_database, mut client) = setup(&orders());
    let paid = received(&mut client, &order("order.paid"), Decision::Buffered);
    decided(&mut client, &order("order.shipped"), Decision::Buffered);
    let instance = paid.sequence_instance_id.unwrap();
    commit(&mut client, |tx| {
        assert!(wait!(tx.inbox().force_all(instance)).unwrap())
    });
    let mut handled = drain(&mut client, instance);
    handled.sort();
    assert_eq!(handled, ["order.paid", "order.shipped"]);
    commit(&mut client, |tx| {
        assert!(wait!(tx.inbox().close(instance)).unwrap());
        assert!(
            !wait!(tx.inbox().close(instance)).unwrap(),
            "already closed"
        );
    });
}

#[test]
fn g6_positions_are_handled_strictly_in_order() {
    let (_database, mut client) = setup(&steps(OnFailure::Block));
    let third = received(&mut client, &step(3), Decision::Buffered);
    let instance = third.sequence_instance_id.unwrap();
    decided(&mut client, &step(1), Decision::Process);
    assert_eq!(next(&mut client, instance), None);
    decided(&mut client, &step(2), Decision::Process);
    let released = next(&mut client, instance).expect("the third");
    assert_eq!(
        (released.position, &*released.idempotence_id),
        (Some(3), "step-3")
    );
}

#[test]
fn g8_a_position_that_is_taken_is_rejected_and_a_gap_is_given_up() {
    let (_database, mut client) = setup(&steps(OnFailure::Block));
    decided(&mut client, &step(1), Decision::Process);
    let mut twice = step(1);
    twice.idempotence_id = "another".into();
    let rejected = received(&mut client, &twice, Decision::Rejected);
    assert!(rejected.reason.is_some(), "{rejected:?}");
    assert_eq!(state(&mut client, &twice), Some(MessageState::Failed));

    let fourth = received(&mut client, &step(4), Decision::Buffered);
    let instance = fourth.sequence_instance_id.unwrap();
    commit(&mut client, |tx| {
        assert!(wait!(tx.inbox().skip_gap(instance)).unwrap());
        assert!(
            !wait!(tx.inbox().skip_gap(instance)).unwrap(),
            "no gap is left"
        );
    });
    assert_eq!(drain(&mut client, instance), ["step-4"]);
    let late = received(&mut client, &step(2), Decision::Rejected);
    assert!(late.reason.is_some(), "{late:?}");
}

#[test]
fn a_failed_position_blocks_or_is_skipped_as_declared() {
    for (on_failure, expected) in [(OnFailure::Block, None), (OnFailure::Skip, Some("step-3"))] {
        let (_database, mut client) = setup(&steps(on_failure));
        decided(&mut client, &step(3), Decision::Buffered);
        decided(&mut client, &step(2), Decision::Buffered);
        let first = received(&mut client, &step(1), Decision::Process);
        let instance = first.sequence_instance_id.unwrap();
        let mut tx = wait!(client.transaction()).unwrap();
        let second = wait!(tx.inbox().next(instance)).unwrap().unwrap();
        assert_eq!(second.idempotence_id, "step-2");
        wait!(tx.rollback()).unwrap();
        commit(&mut client, |tx| {
            let id = second.message_id;
            assert!(wait!(tx.inbox().fail_message(id, Some("poison"), None)).unwrap());
        });
        let handed_out = next(&mut client, instance).map(|released| released.idempotence_id);
        assert_eq!(handed_out.as_deref(), expected, "{on_failure}");
    }
}

#[test]
fn a_declaration_is_refused_with_the_culprit_named() {
    let (_database, mut client) = setup(&orders());
    decided(&mut client, &order("order.shipped"), Decision::Buffered);
    let other = |messages: Vec<MessageType>| Sequence::new("other", HOUR).messages(messages);
    let of = MessageType::new;
    let invalid = &SqlState::INVALID_PARAMETER_VALUE;
    for (culprit, state, declaration) in [
        (
            "order.paid",
            &SqlState::DUPLICATE_OBJECT,
            other(vec![of("order.paid")]),
        ),
        ("twice", invalid, other(vec![of("twice"), of("twice")])),
        ("nowhere", invalid, other(vec![of("a").after("nowhere")])),
        (
            "way.a",
            invalid,
            other(vec![of("way.a").after("way.b"), of("way.b").after("way.a")]),
        ),
        (
            "hollow",
            invalid,
            other(vec![of("hollow").after(Condition::Or(Vec::new()))]),
        ),
        (
            "hollow",
            invalid,
            other(vec![of("hollow").after(Condition::And(Vec::new()))]),
        ),
        // A waiting message still needs its type.
        (
            "order.shipped",
            &SqlState::OBJECT_IN_USE,
            Sequence::new("orders", HOUR),
        ),
    ] {
        let mut tx = wait!(client.transaction()).unwrap();
        let error = failed(wait!(tx.inbox().declare_sequence(&declaration)), state);
        assert!(error.to_string().contains(culprit), "{culprit}: {error}");
        wait!(tx.rollback()).unwrap();
    }
}

#[test]
fn g7_a_new_declaration_releases_what_waits() {
    let (_database, mut client) = setup(&orders());
    let shipped = received(&mut client, &order("order.shipped"), Decision::Buffered);
    let instance = shipped.sequence_instance_id.unwrap();
    let eased = Sequence::new("orders", HOUR).message(MessageType::new("order.shipped"));
    commit(&mut client, |tx| {
        wait!(tx.inbox().declare_sequence(&eased)).unwrap()
    });
    assert_eq!(drain(&mut client, instance), ["order.shipped"]);
}

#[test]
fn g11_a_position_is_needed_and_counted_from_one() {
    let (_database, mut client) = setup(&steps(OnFailure::Block));
    let mut without = step(1);
    without.position = None;
    for (message, state) in [
        (without, &SqlState::NULL_VALUE_NOT_ALLOWED),
        (step(0), &SqlState::INVALID_PARAMETER_VALUE),
        (step(-1), &SqlState::INVALID_PARAMETER_VALUE),
    ] {
        let mut tx = wait!(client.transaction()).unwrap();
        failed(wait!(tx.inbox().receive(&message)), state);
        wait!(tx.rollback()).unwrap();
    }
    let mut tx = wait!(client.transaction()).unwrap();
    failed(
        wait!(tx.inbox().next(4711)),
        &SqlState::FOREIGN_KEY_VIOLATION,
    );
}

#[test]
fn a_sequence_is_dropped_only_without_instances() {
    let (database, mut client) = setup(&orders());
    let instance = commit(&mut client, |tx| {
        wait!(tx.inbox().sequence("orders", "order-1"))
    });
    let instance = instance.unwrap();
    let mut tx = wait!(client.transaction()).unwrap();
    let error = wait!(tx.inbox().drop_sequence("orders")).unwrap_err();
    assert!(
        error.sqlstate().is_some() && error.to_string().contains("orders"),
        "{error}"
    );
    wait!(tx.rollback()).unwrap();
    database.execute(&format!(
        "DELETE FROM sequence_instance WHERE id = {instance}"
    ));
    commit(&mut client, |tx| {
        wait!(tx.inbox().drop_sequence("orders")).unwrap()
    });
    let mut tx = wait!(client.transaction()).unwrap();
    let answer = wait!(tx.inbox().sequence("orders", "order-1"));
    failed(answer, &SqlState::UNDEFINED_OBJECT);
}

#[test]
fn concurrent_first_messages_of_a_context_share_one_instance() {
    const SESSIONS: usize = 8;
    let (database, _client) = setup(&orders());
    let start = std::sync::Barrier::new(SESSIONS);
    let instances: Vec<i64> = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = connect(&database);
                    start.wait();
                    commit(&mut client, |tx| {
                        wait!(tx.inbox().sequence("orders", "order-1")).unwrap()
                    })
                })
            })
            .collect();
        sessions
            .into_iter()
            .map(|session| session.join().unwrap())
            .collect()
    });
    assert!(
        instances.iter().all(|instance| *instance == instances[0]),
        "{instances:?}"
    );
    assert_eq!(
        database.value::<i64>("SELECT count(*) FROM sequence_instance"),
        1
    );
    let other = commit(&mut connect(&database), |tx| {
        wait!(tx.inbox().sequence("orders", "order-2")).unwrap()
    });
    assert_ne!(other, instances[0]);
}

//! The SQLSTATEs of the design's error table, as the client sees them (G11).

use std::time::{Duration, SystemTime};

use inbox_test_support::Database;
use sequential_inbox_client::{Error, Failure, Message, MessageType, Sequence, SqlState};

use super::{
    Client, InboxExt, Transaction,
    session::{blocked, commit, connect, failed, write},
};

/// A session, and an instance of the sequence `orders`, whose one type is `order.placed`.
fn setup() -> (Database, Client, i64) {
    let database = Database::new();
    let mut client = connect(&database);
    let instance = commit(&mut client, |tx| {
        let orders = Sequence::new("orders", Duration::from_secs(3600))
            .message(MessageType::new("order.placed"));
        wait!(tx.inbox().declare_sequence(&orders)).unwrap();
        wait!(tx.inbox().sequence("orders", "order-1")).unwrap()
    });
    (database, client, instance)
}

/// Runs a call that must fail in a transaction of its own, and shows that nothing is left of it.
#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(
    client: &mut Client,
    state: &SqlState,
    call: impl FnOnce(&mut Transaction<'_>) -> Result<T, Error>,
) -> Error {
    let mut tx = wait!(client.transaction()).unwrap();
    let error = failed(call(&mut tx), state);
    wait!(tx.rollback()).unwrap();
    assert!(!error.is_retryable(), "{error}");
    error
}

#[test]
fn g11_empty_and_overlong_keys_are_refused_by_every_claim() {
    let (_database, mut client, instance) = setup();
    let name_513 = "n".repeat(513);
    let id_1025 = "i".repeat(1025);
    // Compressible, so that it would fit into an index by its size on disk.
    let id_8000 = "i".repeat(8000);
    let empty = &SqlState::INVALID_PARAMETER_VALUE;
    let too_long = &SqlState::STRING_DATA_RIGHT_TRUNCATION;
    for (name, id, state) in [
        ("", "evt-1", empty),
        ("order.placed", "", empty),
        (&*name_513, "evt-1", too_long),
        ("order.placed", &*id_1025, too_long),
        ("order.placed", &*id_8000, too_long),
    ] {
        let client = &mut client;
        refused(client, state, |tx| wait!(tx.inbox().claim(name, id)));
        refused(client, state, |tx| wait!(tx.inbox().try_claim(name, id)));
        refused(client, state, |tx| {
            wait!(tx.inbox().claim_sequenced(name, id, instance))
        });
        refused(client, state, |tx| {
            wait!(tx.inbox().try_claim_sequenced(name, id, instance))
        });
        refused(client, state, |tx| {
            wait!(tx.inbox().claim_batch(name, &["evt-2", id]))
        });
        refused(client, state, |tx| {
            wait!(tx.inbox().annotate(name, id, &serde_json::json!({})))
        });
        refused(client, state, |tx| wait!(tx.inbox().release(name, id)));
        refused(client, state, |tx| {
            wait!(tx.inbox().fail(&Failure::new(name, id)))
        });
        refused(client, state, |tx| {
            wait!(
                tx.inbox()
                    .receive(&Message::new(name, id).context("order-1"))
            )
        });
    }
    let left = commit(&mut client, |tx| {
        wait!(tx.inbox().lookup("order.placed", "evt-2"))
    });
    assert_eq!(left.unwrap(), [], "a batch with a bad id claims nothing");
}

#[test]
fn g11_empty_and_overlong_names_are_refused_by_sequences() {
    let (_database, mut client, _) = setup();
    let id_1025 = "i".repeat(1025);
    let empty = &SqlState::INVALID_PARAMETER_VALUE;
    refused(&mut client, empty, |tx| {
        wait!(tx.inbox().sequence("", "order-1"))
    });
    refused(&mut client, empty, |tx| {
        wait!(tx.inbox().sequence("orders", ""))
    });
    refused(&mut client, &SqlState::STRING_DATA_RIGHT_TRUNCATION, |tx| {
        wait!(tx.inbox().sequence("orders", &id_1025))
    });
    for declaration in [
        Sequence::new("", Duration::from_secs(1)),
        Sequence::new("payments", Duration::ZERO),
        Sequence::new("payments", Duration::from_secs(1)).message(MessageType::new("")),
    ] {
        refused(&mut client, empty, |tx| {
            wait!(tx.inbox().declare_sequence(&declaration))
        });
    }
}

#[test]
fn g11_a_null_is_an_error_and_never_a_duplicate() {
    // The typed client cannot send one, other languages can.
    let (_database, mut client, _) = setup();
    for call in [
        "inbox_claim(NULL::text, 'evt-1')",
        "inbox_claim('billing', NULL::text)",
        "inbox_claim('order.placed', NULL, 1)",
        "inbox_claim('order.placed', 'evt-1', NULL)",
        "inbox_try_claim('order.placed', 'evt-1', NULL)",
        "inbox_sequence('orders', NULL)",
        "inbox_fail(NULL, 'evt-1')",
    ] {
        let error = wait!(client.batch_execute(&format!("SELECT {call}"))).expect_err(call);
        assert_eq!(
            error.code(),
            Some(&SqlState::NULL_VALUE_NOT_ALLOWED),
            "{call}: {error:?}"
        );
    }
}

#[test]
fn g11_an_undeclared_sequence_is_named_with_the_way_out() {
    let (_database, mut client, _) = setup();
    let undefined = &SqlState::UNDEFINED_OBJECT;
    let error = refused(&mut client, undefined, |tx| {
        wait!(tx.inbox().sequence("payments", "payment-1"))
    });
    let shown = error.to_string();
    assert!(shown.starts_with("inbox_sequence: "), "{shown}");
    assert!(
        shown.contains("payments") && shown.contains("SQLSTATE 42704"),
        "{shown}"
    );
    assert!(
        shown.contains("; hint: ") && shown.contains("inbox_declare_sequence"),
        "{shown}"
    );
    let error = refused(&mut client, undefined, |tx| {
        wait!(
            tx.inbox()
                .receive(&Message::new("payment.made", "evt-1").context("payment-1"))
        )
    });
    assert!(error.to_string().contains("payment.made"), "{error}");
}

#[test]
fn an_instance_that_is_not_there_any_more_is_a_foreign_key_violation() {
    let (database, mut client, instance) = setup();
    let gone = &SqlState::FOREIGN_KEY_VIOLATION;
    commit(&mut client, |tx| {
        let answer = wait!(
            tx.inbox()
                .claim_sequenced("order.placed", "evt-1", instance)
        )
        .unwrap();
        assert!(answer.is_claimed());
    });
    database.execute(&format!(
        "DELETE FROM sequence_instance WHERE id = {instance}"
    ));
    let left = commit(&mut client, |tx| {
        wait!(tx.inbox().lookup("order.placed", "evt-1"))
    });
    assert_eq!(left.unwrap(), [], "the instance took its claims with it");
    for unknown in [instance, 0, -1, i64::MAX] {
        let error = refused(&mut client, gone, |tx| {
            wait!(tx.inbox().claim_sequenced("order.placed", "evt-1", unknown))
        });
        assert!(error.to_string().contains("inbox_sequence"), "{error}");
        refused(&mut client, gone, |tx| {
            wait!(
                tx.inbox()
                    .try_claim_sequenced("order.placed", "evt-1", unknown)
            )
        });
        let failure = Failure::new("order.placed", "evt-1").instance(unknown);
        refused(&mut client, gone, |tx| wait!(tx.inbox().fail(&failure)));
    }
    let again = commit(&mut client, |tx| {
        wait!(tx.inbox().sequence("orders", "order-1"))
    });
    assert_ne!(again.unwrap(), instance);
}

#[test]
fn a_read_only_transaction_refuses_what_writes() {
    let (_database, mut client, instance) = setup();
    let message = Message::new("order.placed", "evt-1").context("order-1");
    let failure = Failure::new("billing", "evt-1");
    type Call<'a> = &'a dyn Fn(&mut Transaction<'_>) -> Option<Error>;
    let calls: [Call<'_>; 7] = [
        &|tx| wait!(tx.inbox().claim("billing", "evt-1")).err(),
        &|tx| wait!(tx.inbox().try_claim("billing", "evt-1")).err(),
        &|tx| {
            wait!(
                tx.inbox()
                    .claim_sequenced("order.placed", "evt-1", instance)
            )
            .err()
        },
        &|tx| wait!(tx.inbox().sequence("orders", "order-2")).err(),
        &|tx| wait!(tx.inbox().fail(&failure)).err(),
        &|tx| wait!(tx.inbox().receive(&message)).err(),
        &|tx| wait!(tx.inbox().next(None)).err(),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let mut tx = wait!(client.build_transaction().read_only(true).start()).unwrap();
        let error = call(&mut tx).unwrap_or_else(|| panic!("call {number} writes"));
        let state = Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
        assert_eq!(error.sqlstate(), state, "call {number}: {error}");
    }
}

#[test]
fn waiting_obeys_lock_timeout_and_statement_timeout() {
    let (database, mut client, instance) = setup();
    let mut other = connect(&database);
    let mut winner = wait!(client.transaction()).unwrap();
    let claim = |tx: &mut Transaction<'_>| {
        wait!(
            tx.inbox()
                .claim_sequenced("order.placed", "evt-1", instance)
        )
    };
    assert!(claim(&mut winner).unwrap().is_claimed());
    for (setting, state) in [
        ("lock_timeout", &SqlState::LOCK_NOT_AVAILABLE),
        ("statement_timeout", &SqlState::QUERY_CANCELED),
    ] {
        refused(&mut other, state, |tx| {
            wait!(tx.batch_execute(&format!("SET LOCAL {setting} = '50ms'"))).unwrap();
            claim(tx)
        });
    }
}

#[test]
fn after_an_error_a_savepoint_brings_the_transaction_back() {
    let (database, mut client, _) = setup();
    commit(&mut client, |tx| {
        write(tx, "before");
        let mut savepoint = wait!(tx.savepoint("try")).unwrap();
        let claim = wait!(savepoint.inbox().claim("", "evt-1"));
        failed(claim, &SqlState::INVALID_PARAMETER_VALUE);
        wait!(savepoint.rollback()).unwrap();
        assert!(
            wait!(tx.inbox().claim("billing", "evt-1"))
                .unwrap()
                .is_claimed()
        );
    });
    assert_eq!(database.ledger(), ["before"]);
}

#[test]
fn a_cancelled_wait_is_the_servers_error_with_its_source() {
    let (database, mut client, instance) = setup();
    let mut winner = wait!(client.transaction()).unwrap();
    let claim = |tx: &mut Transaction<'_>| {
        wait!(
            tx.inbox()
                .claim_sequenced("order.placed", "evt-1", instance)
        )
    };
    assert!(claim(&mut winner).unwrap().is_claimed());
    std::thread::scope(|scope| {
        let waiter = blocked(scope, &database, |client| {
            let mut tx = wait!(client.transaction()).unwrap();
            claim(&mut tx).unwrap_err()
        });
        database.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        let error = waiter.join().unwrap();
        assert_eq!(error.sqlstate(), Some(&SqlState::QUERY_CANCELED), "{error}");
        let source = std::error::Error::source(&error).expect("the driver's error");
        assert!(source.is::<tokio_postgres::Error>());
    });
}

#[test]
fn what_cannot_be_sent_is_an_error_that_says_so() {
    let (_database, mut client, _) = setup();
    let failure = Failure::new("billing", "evt-1").retry_after(Duration::MAX);
    let mut tx = wait!(client.transaction()).unwrap();
    let error = wait!(tx.inbox().fail(&failure)).unwrap_err();
    assert!(error.sqlstate().is_none());
    assert!(
        error.to_string().contains("longer than an interval"),
        "{error}"
    );
    // Nothing was sent: the transaction is as it was.
    assert!(
        wait!(tx.inbox().claim("billing", "evt-1"))
            .unwrap()
            .is_claimed()
    );
    wait!(tx.commit()).unwrap();
}

#[test]
fn without_the_extension_the_error_says_what_is_missing() {
    let database = Database::bare();
    let error = refused(
        &mut connect(&database),
        &SqlState::UNDEFINED_FUNCTION,
        |tx| wait!(tx.inbox().claim("billing", "evt-1")),
    );
    assert!(
        error
            .to_string()
            .contains("create the extension sequential_inbox"),
        "{error}"
    );
    assert!(!error.to_string().contains("type casts"), "{error}");
}

#[test]
fn a_time_is_sent_as_it_is() {
    let (database, mut client, _) = setup();
    let until = SystemTime::UNIX_EPOCH + Duration::from_micros(4_102_444_800_123_456);
    let sequence = Sequence::new("live", Duration::from_micros(86_400_000_001))
        .message(MessageType::new("live.event"))
        .recording_until(until)
        .expiry_grace(Duration::from_secs(7));
    commit(&mut client, |tx| {
        wait!(tx.inbox().declare_sequence(&sequence)).unwrap()
    });
    let stored = |column: &str| -> SystemTime {
        database.value(&format!(
            "SELECT {column} FROM sequence_type WHERE name = 'live'"
        ))
    };
    assert_eq!(stored("recording_until"), until);
    let epoch = SystemTime::UNIX_EPOCH;
    assert_eq!(
        stored("timestamptz 'epoch' + retention"),
        epoch + Duration::from_micros(86_400_000_001)
    );
    assert_eq!(
        stored("timestamptz 'epoch' + expiry_grace"),
        epoch + Duration::from_secs(7)
    );
}

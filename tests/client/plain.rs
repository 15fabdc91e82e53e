//! What only plain consumers have: batches, uuids, attributes, release, and retries from a stored
//! payload (G4, G8, G11).

use std::time::Duration;

use inbox_test_support::Database;
use sequential_inbox_client::{Claim, Failure, MessageState, SqlState, TryClaim};
use uuid::Uuid;

use super::{
    InboxExt,
    session::{blocked, commit, connect, failed},
};

use Claim::{Claimed, Duplicate};

#[test]
fn g12_two_consumers_of_one_message_each_see_it_once() {
    let database = Database::new();
    let mut client = connect(&database);
    commit(&mut client, |tx| {
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Claimed
        );
        assert_eq!(
            wait!(tx.inbox().claim("shipping", "evt-1")).unwrap(),
            Claimed
        );
    });
    let released = commit(&mut client, |tx| {
        wait!(tx.inbox().release("billing", "evt-1"))
    });
    assert!(released.unwrap());
    commit(&mut client, |tx| {
        assert!(
            !wait!(tx.inbox().release("billing", "evt-1")).unwrap(),
            "already released"
        );
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Claimed
        );
        assert_eq!(
            wait!(tx.inbox().claim("shipping", "evt-1")).unwrap(),
            Duplicate
        );
    });
}

#[test]
fn a_uuid_is_its_canonical_text() {
    let database = Database::new();
    let id = Uuid::parse_str("{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}").unwrap();
    commit(&mut connect(&database), |tx| {
        assert_eq!(
            wait!(tx.inbox().claim_uuid("billing", id)).unwrap(),
            Claimed
        );
        assert_eq!(
            wait!(tx.inbox().try_claim_uuid("billing", id)).unwrap(),
            TryClaim::Duplicate
        );
        let text = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        assert_eq!(id.hyphenated().to_string(), text);
        assert_eq!(wait!(tx.inbox().claim("billing", text)).unwrap(), Duplicate);
        let records = wait!(tx.inbox().lookup("billing", text)).unwrap();
        assert_eq!(records.len(), 1);
    });
}

#[test]
fn a_batch_answers_in_the_order_of_its_ids() {
    let database = Database::new();
    let mut client = connect(&database);
    commit(&mut client, |tx| {
        assert_eq!(
            wait!(tx.inbox().claim("billing", "known")).unwrap(),
            Claimed
        );
    });
    commit(&mut client, |tx| {
        let ids = ["z", "b1", "known", "b1", "a"];
        let answers = wait!(tx.inbox().claim_batch("billing", &ids)).unwrap();
        assert_eq!(answers, [Claimed, Claimed, Duplicate, Duplicate, Claimed]);
        let none: [String; 0] = [];
        assert_eq!(wait!(tx.inbox().claim_batch("billing", &none)).unwrap(), []);
        let many: Vec<String> = (0..10_000).map(|number| format!("many-{number}")).collect();
        let answers = wait!(tx.inbox().claim_batch("billing", &many)).unwrap();
        assert_eq!(answers, vec![Claimed; 10_000]);
    });
}

#[test]
fn overlapping_batches_in_opposite_order_do_not_deadlock() {
    let database = Database::new();
    let mut client = connect(&database);
    let mut tx = wait!(client.transaction()).unwrap();
    let forward = wait!(tx.inbox().claim_batch("billing", &["a", "b", "c"])).unwrap();
    assert_eq!(forward, [Claimed; 3]);
    std::thread::scope(|scope| {
        let backward = blocked(scope, &database, |client| {
            commit(client, |tx| {
                wait!(tx.inbox().claim_batch("billing", &["d", "c", "b", "a"])).unwrap()
            })
        });
        wait!(tx.commit()).unwrap();
        assert_eq!(
            backward.join().unwrap(),
            [Claimed, Duplicate, Duplicate, Duplicate]
        );
    });
}

#[test]
fn attributes_are_merged_into_the_claim() {
    let database = Database::new();
    let mut client = connect(&database);
    let mut annotate = |id: &str, attributes: serde_json::Value| {
        commit(&mut client, |tx| {
            wait!(tx.inbox().annotate("billing", id, &attributes)).unwrap()
        })
    };
    assert!(
        !annotate("evt-1", serde_json::json!({"trace": "abc"})),
        "no such claim"
    );
    commit(&mut connect(&database), |tx| {
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Claimed
        );
    });
    assert!(annotate(
        "evt-1",
        serde_json::json!({"trace": "abc", "source": "shop"})
    ));
    assert!(annotate(
        "evt-1",
        serde_json::json!({"trace": "def", "amount": 12.5})
    ));
    let records = commit(&mut client, |tx| {
        wait!(tx.inbox().lookup("billing", "evt-1"))
    })
    .unwrap();
    assert_eq!(
        records[0].attributes,
        Some(serde_json::json!({"trace": "def", "source": "shop", "amount": 12.5}))
    );
}

#[test]
fn a_failed_message_comes_back_from_its_stored_payload() {
    let database = Database::new();
    let mut client = connect(&database);
    let headers = serde_json::json!({"trace": "abc"});
    commit(&mut client, |tx| {
        let failure = Failure::new("billing", "evt-1")
            .error("card service: 503")
            .retry_after(Duration::ZERO)
            .payload(b"\x00\xff payload".as_slice())
            .key(b"\x00key".as_slice())
            .headers(headers.clone());
        assert!(wait!(tx.inbox().fail(&failure)).unwrap());
    });
    let released = commit(&mut client, |tx| {
        wait!(tx.inbox().next(None)).unwrap().expect("it is due")
    });
    assert_eq!(
        (&*released.message_type, &*released.idempotence_id),
        ("billing", "evt-1")
    );
    assert_eq!(released.attempts, 1);
    assert_eq!(
        released.payload.as_deref(),
        Some(b"\x00\xff payload".as_slice())
    );
    assert_eq!(released.key.as_deref(), Some(b"\x00key".as_slice()));
    assert_eq!(released.headers, Some(headers));
    assert_eq!(released.sequence_instance_id, None);
    assert_eq!(released.sequence_name, None);
    commit(&mut client, |tx| {
        assert_eq!(
            wait!(tx.inbox().next(None)).unwrap(),
            None,
            "handed out once"
        );
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Duplicate
        );
        let records = wait!(tx.inbox().lookup("billing", "evt-1")).unwrap();
        assert_eq!(records[0].state, Some(MessageState::Processed));
    });
}

#[test]
fn a_retry_by_itself_needs_a_payload() {
    let database = Database::new();
    let mut tx_client = connect(&database);
    let mut tx = wait!(tx_client.transaction()).unwrap();
    let failure = Failure::new("billing", "evt-1").retry_after(Duration::from_secs(1));
    failed(
        wait!(tx.inbox().fail(&failure)),
        &SqlState::NULL_VALUE_NOT_ALLOWED,
    );
}

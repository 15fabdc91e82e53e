//! What only the asynchronous API promises.

use inbox_test_support::Database;
use sequential_inbox_client::Claim;

use super::{InboxExt, runtime, session::connect};

#[test]
fn a_handler_can_be_spawned() {
    let database = Database::new();
    let mut client = connect(&database);
    // A future that is not `Send` would not compile here.
    let handler = runtime().spawn(async move {
        let tx = client.transaction().await.unwrap();
        let answer = tx.inbox().claim("billing", "evt-1").await.unwrap();
        tx.commit().await.unwrap();
        answer
    });
    assert_eq!(wait!(handler).unwrap(), Claim::Claimed);
}

#[test]
fn calls_of_one_transaction_can_be_pipelined() {
    let database = Database::new();
    let mut client = connect(&database);
    wait!(async {
        let tx = client.transaction().await.unwrap();
        let (first, second) = tokio::join!(
            tx.inbox().claim("billing", "evt-1"),
            tx.inbox().claim("billing", "evt-1"),
        );
        assert_eq!(first.unwrap(), Claim::Claimed);
        assert_eq!(second.unwrap(), Claim::Duplicate);
        tx.commit().await.unwrap();
    });
}

//! How often the server commits for a batch (G4). A session tells of its commits when it is asked to
//! and does not keep them to itself, which takes one that keeps its process: this is left out of the
//! suite's run through PgBouncer.

use inbox_test_support::Database;
use sequential_inbox_client::Outcome;

use super::{
    Client,
    batch::{ids, messages, process_batch, written},
    setting::{both_modes, connect, database, message},
};

/// How many commits the server has counted in the session's database, those of this session
/// included. Others that have ended may be told of later, so that it is an upper bound.
fn commits(client: &mut Client) -> i64 {
    wait!(client.batch_execute("SELECT pg_stat_force_next_flush()")).unwrap();
    let query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    wait!(client.query_one(query, &[])).unwrap().get(0)
}

/// The transactions that have written what is in the ledger.
fn transactions(database: &Database) -> i64 {
    database.value("SELECT count(DISTINCT xmin::text) FROM ledger")
}

#[test]
fn g4_a_hundred_messages_are_one_commit() {
    for consumer in both_modes() {
        let database = database();
        let ids = ids(100);
        let mut client = connect(&database);
        // The driver asks for types once, in a transaction of its own.
        process_batch(
            &consumer,
            &mut client,
            &[message("order.placed", "first")],
            None,
        );
        assert_eq!(transactions(&database), 1);
        let before = commits(&mut client);
        let outcomes = process_batch(&consumer, &mut client, &messages(&ids), None);
        let counted = commits(&mut client) - before;
        // One is the batch's. The rest are those of asking, and of who has worked here before.
        assert!((1..=10).contains(&counted), "{counted} commits");
        assert_eq!(transactions(&database), 2);
        for (outcome, (id, _)) in outcomes.into_iter().zip(&ids) {
            assert_eq!(
                outcome.unwrap().applied().as_ref(),
                Some(id),
                "in input order"
            );
        }
        assert_eq!(written(&database).len(), 101);
        let outcomes = process_batch(&consumer, &mut client, &messages(&ids), None);
        assert!(
            outcomes
                .iter()
                .all(|outcome| matches!(outcome, Ok(Outcome::Duplicate)))
        );
    }
}

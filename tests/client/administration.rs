//! Roles, schemas and housekeeping through the client (G9, G14).

use std::time::Duration;

use inbox_test_support::Database;
use sequential_inbox_client::{Access, Claim, Failure, Message, Schema, Sequence, SqlState};

use super::{
    Client, InboxExt, connect_to,
    session::{commit, connect, failed},
};

/// A database of the test, and a role that no other test has.
fn role(database: &Database, access: &str) -> String {
    let role = format!("{}_{access}", database.name());
    database.execute(&format!("CREATE ROLE {role} LOGIN"));
    role
}

#[test]
fn g14_a_role_without_a_grant_can_do_nothing() {
    let database = Database::new();
    let mut client = connect_to(&database.dsn_as(&role(&database, "stranger")));
    let denied = &SqlState::INSUFFICIENT_PRIVILEGE;
    let mut tx = wait!(client.transaction()).unwrap();
    failed(wait!(tx.inbox().claim("billing", "evt-1")), denied);
    wait!(tx.rollback()).unwrap();
    let mut tx = wait!(client.transaction()).unwrap();
    failed(wait!(tx.inbox().lookup("billing", "evt-1")), denied);
    wait!(tx.rollback()).unwrap();
    let mut tx = wait!(client.transaction()).unwrap();
    let stranger = role(&database, "other");
    failed(wait!(tx.inbox().grant(&stranger, Access::Operator)), denied);
}

#[test]
fn g14_each_access_can_do_its_part_and_no_more() {
    let database = Database::new();
    let mut owner = connect(&database);
    let mut granted = |name: &str, access: Access| -> Client {
        let role = role(&database, name);
        commit(&mut owner, |tx| {
            wait!(tx.inbox().grant(&role, access)).unwrap()
        });
        connect_to(&database.dsn_as(&role))
    };
    let mut consumer = granted("consumer", Access::Consumer);
    let mut operator = granted("operator", Access::Operator);
    let mut monitor = granted("monitor", Access::Monitor);
    let denied = &SqlState::INSUFFICIENT_PRIVILEGE;
    let orders = Sequence::new("orders", Duration::from_secs(3600));

    let mut tx = wait!(consumer.transaction()).unwrap();
    failed(wait!(tx.inbox().declare_sequence(&orders)), denied);
    wait!(tx.rollback()).unwrap();
    commit(&mut operator, |tx| {
        wait!(tx.inbox().declare_sequence(&orders)).unwrap();
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Claim::Claimed
        );
        assert!(wait!(tx.inbox().release("billing", "evt-1")).unwrap());
        let _ = wait!(tx.inbox().housekeeping(None)).unwrap();
    });
    commit(&mut consumer, |tx| {
        let instance = wait!(tx.inbox().sequence("orders", "order-1")).unwrap();
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Claim::Claimed
        );
        let claim = wait!(
            tx.inbox()
                .claim_sequenced("order.placed", "evt-1", instance)
        );
        assert_eq!(claim.unwrap(), Claim::Claimed);
        let failure = Failure::new("order.placed", "evt-1").instance(instance);
        assert!(wait!(tx.inbox().fail(&failure)).unwrap());
        assert_eq!(
            wait!(tx.inbox().lookup("billing", "evt-1")).unwrap().len(),
            1
        );
    });
    let mut tx = wait!(consumer.transaction()).unwrap();
    failed(wait!(tx.inbox().release("billing", "evt-1")), denied);
    wait!(tx.rollback()).unwrap();
    commit(&mut monitor, |tx| {
        assert_eq!(
            wait!(tx.inbox().lookup("billing", "evt-1")).unwrap().len(),
            1
        );
    });
    let mut tx = wait!(monitor.transaction()).unwrap();
    failed(wait!(tx.inbox().claim("billing", "evt-2")), denied);
}

#[test]
fn g14_in_its_schema_the_inbox_needs_no_search_path() {
    let database = Database::bare();
    // PostgreSQL refuses quotes, $ and backslashes in an extension's schema, and nothing else.
    let schema = Schema::new("My.Inbox; été");
    database.execute(&format!(
        "CREATE SCHEMA {schema}; CREATE EXTENSION sequential_inbox SCHEMA {schema}"
    ));
    let mut client = connect(&database);
    let mut tx = wait!(client.transaction()).unwrap();
    failed(
        wait!(tx.inbox().claim("billing", "evt-1")),
        &SqlState::UNDEFINED_FUNCTION,
    );
    wait!(tx.rollback()).unwrap();
    commit(&mut client, |tx| {
        let claim = wait!(tx.inbox().in_schema(&schema).claim("billing", "evt-1"));
        assert_eq!(claim.unwrap(), Claim::Claimed);
        let records = wait!(tx.inbox().in_schema(&schema).lookup("billing", "evt-1"));
        assert_eq!(records.unwrap().len(), 1);
    });
    let mut tx = wait!(client.transaction()).unwrap();
    let elsewhere = Schema::new("elsewhere");
    let error = failed(
        wait!(tx.inbox().in_schema(&elsewhere).claim("billing", "evt-2")),
        &SqlState::INVALID_SCHEMA_NAME,
    );
    assert!(error.to_string().contains("Inbox::in_schema"), "{error}");
}

#[test]
fn g14_a_qualified_call_is_not_taken_over_by_another_function() {
    let database = Database::new();
    database.execute(
        "CREATE SCHEMA hostile;
         CREATE FUNCTION hostile.inbox_claim(text, text) RETURNS boolean
             LANGUAGE sql AS 'SELECT false'",
    );
    let mut client = connect(&database);
    let public = Schema::new("public");
    commit(&mut client, |tx| {
        wait!(tx.batch_execute("SET LOCAL search_path = hostile, public")).unwrap();
        let hijacked = wait!(tx.inbox().claim("billing", "evt-1")).unwrap();
        assert_eq!(
            hijacked,
            Claim::Duplicate,
            "unqualified, the search_path decides"
        );
        let claim = wait!(tx.inbox().in_schema(&public).claim("billing", "evt-1")).unwrap();
        assert_eq!(claim, Claim::Claimed);
    });
}

#[test]
fn nothing_is_prepared_by_name() {
    // What a connection pool in transaction mode needs.
    let database = Database::new();
    commit(&mut connect(&database), |tx| {
        assert_eq!(
            wait!(tx.inbox().claim("billing", "evt-1")).unwrap(),
            Claim::Claimed
        );
        assert_eq!(
            wait!(tx.inbox().lookup("billing", "evt-1")).unwrap().len(),
            1
        );
        let query = "SELECT count(*) FROM pg_prepared_statements";
        let rows = wait!(tx.query_typed(query, &[])).unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), 0);
    });
}

#[test]
fn housekeeping_reports_what_it_did() {
    let database = Database::new();
    let mut client = connect(&database);
    let orders = Sequence::new("orders", Duration::from_secs(3600))
        .message(sequential_inbox_client::MessageType::new("order.placed"));
    let instance = commit(&mut client, |tx| {
        wait!(tx.inbox().declare_sequence(&orders)).unwrap();
        let message = Message::new("order.placed", "evt-1").context("order-1");
        wait!(tx.inbox().receive(&message))
            .unwrap()
            .sequence_instance_id
            .unwrap()
    });
    let done = commit(&mut client, |tx| {
        wait!(tx.inbox().housekeeping(10)).unwrap()
    });
    assert!(!done.more, "{done:?}");
    assert_eq!((done.expired, done.removed), (0, 0), "{done:?}");
    let state: String = database.value(&format!(
        "SELECT state FROM sequence_instance WHERE id = {instance}"
    ));
    assert_eq!(state, "CLOSED");
    let mut tx = wait!(client.transaction()).unwrap();
    failed(
        wait!(tx.inbox().housekeeping(0)),
        &SqlState::INVALID_PARAMETER_VALUE,
    );
}

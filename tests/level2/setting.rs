//! The setting of every test: a sequence of orders, its messages, sessions, and what is recorded.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use inbox_test_support::Database;
use sequential_inbox_client::Message;

use super::{Client, Consumer, connect_to};

/// The consumer that tests are about.
pub(super) const BILLING: &str = "billing";

/// The sequence that tests are about.
pub(super) const ORDERS: &str = "orders";

/// What every message carries, and no log may show.
pub(super) const PAYLOAD: &[u8] = br#"{"amount": "SECRET-payload"}"#;

/// A fresh database with the sequence placed, then paid, then shipped.
pub(super) fn database() -> Database {
    let database = Database::new();
    database.execute(&format!(
        r#"SELECT inbox_declare_sequence('{ORDERS}', '30 days', '[
            {{"type": "order.placed"}},
            {{"type": "order.paid", "releaseCondition": {{"predecessor": "order.placed"}}}},
            {{"type": "order.shipped", "releaseCondition": {{"predecessor": "order.paid"}}}}]')"#
    ));
    database
}

/// A session of the driver under test.
pub(super) fn connect(database: &Database) -> Client {
    connect_to(database.dsn())
}

/// A connection string for a session in that database through a proxy.
pub(super) fn dsn_through(database: &Database, proxy: SocketAddr) -> String {
    let config: postgres::Config = database.dsn().parse().unwrap();
    format!(
        "host={} port={} user={} dbname={}",
        proxy.ip(),
        proxy.port(),
        config.get_user().unwrap(),
        database.name(),
    )
}

/// A message of the order `order-1`, with that type and id.
pub(super) fn message<'a>(message_type: &'a str, id: &'a str) -> Message<'a> {
    Message::new(message_type, id)
        .context("order-1")
        .payload(PAYLOAD)
        .key(b"SECRET-key".as_slice())
        .headers(serde_json::json!({"authorization": "SECRET-header"}))
}

/// Both modes, each with a message that its consumer may handle at once.
pub(super) fn both_modes() -> [Consumer; 2] {
    [Consumer::plain(BILLING), Consumer::sequence(ORDERS)]
}

/// The pauses that a consumer planned.
pub(super) type Pauses = Arc<Mutex<Vec<Duration>>>;

/// Runs what a blocking driver does beside a handler, which may be a future: no runtime blocks
/// within another.
pub(super) fn beside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// The consumer, noting the pauses instead of making them.
pub(super) fn without_pauses(consumer: Consumer) -> (Consumer, Pauses) {
    let pauses = Pauses::default();
    let noted = Arc::clone(&pauses);
    let consumer = consumer.on_pause(move |pause| {
        noted.lock().unwrap().push(pause);
        Duration::ZERO
    });
    (consumer, pauses)
}

/// The dead letters: type or consumer, id, attempts and error.
pub(super) fn dead_letters(database: &Database) -> Vec<(String, String, i32, String)> {
    let query = "SELECT message_type, idempotence_id, attempts, last_error
                 FROM inbox_dead_letters ORDER BY id";
    let rows = database.observer().query(query, &[]).unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect()
}

/// The state of the record of the message with that idempotence id.
pub(super) fn state_of(database: &Database, id: &str) -> String {
    database.value(&format!(
        "SELECT state FROM sequenced_message WHERE idempotence_id = '{id}'"
    ))
}

/// Makes what is due later due now.
pub(super) fn make_due(database: &Database) {
    database.execute(
        "UPDATE sequenced_message SET next_attempt_at = clock_timestamp()
         WHERE next_attempt_at IS NOT NULL",
    );
}

/// Has an operator retry every dead letter.
pub(super) fn retry_dead_letters(database: &Database) {
    let retried: Vec<bool> = database.value(
        "SELECT array_agg(inbox_retry(id)) FROM (SELECT id FROM inbox_dead_letters) AS dead",
    );
    assert!(!retried.is_empty() && retried.iter().all(|retried| *retried));
}

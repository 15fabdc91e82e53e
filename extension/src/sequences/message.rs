//! The record of one message, and the payload of a message that is not done (G8).
//!
//! All functions are called under the lock of the message's instance, or, for a
//! plain consumer's message, under the lock of its record or claim.

use pgrx::JsonB;
use pgrx::datum::Interval;
use pgrx::pg_sys::BuiltinOid::{BOOLOID, BYTEAOID, INT8OID, INTERVALOID, JSONBOID, TEXTOID};

use crate::claims::MessageKey;
use crate::errors::InboxError;
use crate::probe::{Holder, IndexProbe, Key};
use crate::spi::{Db, Rows, Statement, arg, uses_transaction_snapshot};

/// A message's state as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Waiting,
    Ready,
    Processed,
    Failed,
    Skipped,
}

impl State {
    /// The stored word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Ready => "READY",
            Self::Processed => "PROCESSED",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIPPED",
        }
    }

    /// The state that a stored word stands for; the table's check allows no other.
    pub fn from_word(word: &str) -> Self {
        match word {
            "WAITING" => Self::Waiting,
            "READY" => Self::Ready,
            "PROCESSED" => Self::Processed,
            "SKIPPED" => Self::Skipped,
            _ => Self::Failed,
        }
    }
}

/// A stored message.
#[derive(Debug, Clone)]
pub struct Message {
    pub id: i64,
    pub message_type: String,
    pub idempotence_id: String,
    pub instance: Option<i64>,
    pub position: Option<i64>,
    pub state: State,
    /// It was rejected and does not hold its position.
    pub rejected: bool,
}

impl Message {
    /// The message's key.
    pub fn key(&self) -> MessageKey<'_> {
        MessageKey {
            message_type: &self.message_type,
            idempotence_id: &self.idempotence_id,
        }
    }

    /// The message in a row of `MESSAGE_COLUMNS`.
    pub fn from_row(rows: &Rows, row: usize) -> Option<Self> {
        Some(Self {
            id: rows.get(row, 0)?,
            message_type: rows.get(row, 1)?,
            idempotence_id: rows.get(row, 2)?,
            instance: rows.get(row, 3),
            position: rows.get(row, 4),
            state: State::from_word(rows.get(row, 5)?),
            rejected: rows.get(row, 6)?,
        })
    }
}

/// What comes with a message besides its identity.
#[derive(Debug, Default)]
pub struct Content {
    pub payload: Option<Vec<u8>>,
    pub message_key: Option<Vec<u8>>,
    pub headers: Option<JsonB>,
}

impl Content {
    /// Whether there is anything to store.
    pub fn is_empty(&self) -> bool {
        self.payload.is_none() && self.message_key.is_none() && self.headers.is_none()
    }
}

static BY_ID: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message WHERE id {=} $1",
    &[INT8OID],
);
static BY_ID_LOCKED: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message WHERE id {=} $1 FOR NO KEY UPDATE",
    &[INT8OID],
);
/// The newest record of a sequenced message.
static SEQUENCED_BY_KEY: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message \
     WHERE message_type {=} $1 AND idempotence_id {=} $2 AND sequence_instance_id IS NOT NULL \
     ORDER BY id DESC LIMIT 1",
    &[TEXTOID, TEXTOID],
);
/// The newest record of a plain consumer's message.
static PLAIN_BY_KEY: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message \
     WHERE message_type {=} $1 AND idempotence_id {=} $2 AND sequence_instance_id IS NULL \
     ORDER BY id DESC LIMIT 1",
    &[TEXTOID, TEXTOID],
);
static INSERT: Statement = Statement::new(
    "INSERT INTO {s}sequenced_message AS m \
     (message_type, idempotence_id, sequence_instance_id, \"position\", state, last_error, rejected) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING m.id",
    &[
        TEXTOID, TEXTOID, INT8OID, INT8OID, TEXTOID, TEXTOID, BOOLOID,
    ],
);
static REUSE: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET sequence_instance_id = $2, \"position\" = $3, state = $4, \
            last_error = COALESCE($5, last_error), rejected = $6, forced = false, \
            next_attempt_at = NULL, state_changed_at = pg_catalog.clock_timestamp() \
     WHERE id {=} $1",
    &[INT8OID, INT8OID, INT8OID, TEXTOID, TEXTOID, BOOLOID],
);
static SET_STATE: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET state = $2, forced = $3, rejected = $4, \
            next_attempt_at = NULL, state_changed_at = pg_catalog.clock_timestamp() \
     WHERE id {=} $1",
    &[INT8OID, TEXTOID, BOOLOID, BOOLOID],
);
static SET_FAILED: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET state = 'FAILED', attempts = attempts {+} 1, \
            last_error = $2, next_attempt_at = pg_catalog.clock_timestamp() {+} $3, \
            forced = false, state_changed_at = pg_catalog.clock_timestamp() \
     WHERE id {=} $1",
    &[INT8OID, TEXTOID, INTERVALOID],
);
static STOP_RETRYING: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET next_attempt_at = NULL WHERE id {=} $1",
    &[INT8OID],
);
static STORE_CONTENT: Statement = Statement::new(
    "INSERT INTO {s}buffered_message AS b (message_id, payload, message_key, headers) \
     VALUES ($1, $2, $3, $4) \
     ON CONFLICT (message_id) DO UPDATE SET \
        payload = COALESCE(EXCLUDED.payload, b.payload), \
        message_key = COALESCE(EXCLUDED.message_key, b.message_key), \
        headers = COALESCE(EXCLUDED.headers, b.headers)",
    &[INT8OID, BYTEAOID, BYTEAOID, JSONBOID],
);
static HAS_CONTENT: Statement = Statement::new(
    "SELECT message_id FROM {s}buffered_message WHERE message_id {=} $1",
    &[INT8OID],
);
static DROP_CONTENT: Statement = Statement::new(
    "DELETE FROM {s}buffered_message WHERE message_id {=} $1",
    &[INT8OID],
);

/// The message of this id.
pub fn by_id(db: &Db, id: i64) -> Option<Message> {
    Message::from_row(&db.write(&BY_ID, &[arg(id)]), 0)
}

/// The message of this id, its record locked until the transaction ends.
pub fn by_id_locked(db: &Db, id: i64) -> Option<Message> {
    Message::from_row(&db.write(&BY_ID_LOCKED, &[arg(id)]), 0)
}

/// The record of a sequenced message, in whatever instance. The caller holds its claim.
pub fn sequenced(db: &Db, key: MessageKey<'_>) -> Option<Message> {
    // Most messages come for the first time: a look into the index is far cheaper than
    // a statement.
    let index = IndexProbe::open(db, "sequenced_message", "sequenced_message_key");
    let probed = [Key::Text(key.message_type), Key::Text(key.idempotence_id)];
    if index.holder(&probed) == Holder::Nobody {
        return None;
    }
    Message::from_row(
        &db.write(
            &SEQUENCED_BY_KEY,
            &[arg(key.message_type), arg(key.idempotence_id)],
        ),
        0,
    )
}

/// The record of a plain consumer's message. Its claim is no lock that an older snapshot
/// would notice, so there a record that it does not show is a 40001 (G10).
pub fn plain(db: &Db, key: MessageKey<'_>) -> Option<Message> {
    let key = [arg(key.message_type), arg(key.idempotence_id)];
    let latest = Message::from_row(&db.read_latest(&PLAIN_BY_KEY, &key), 0);
    if uses_transaction_snapshot() {
        let shown = Message::from_row(&db.write(&PLAIN_BY_KEY, &key), 0);
        if shown.map(|shown| shown.id) != latest.as_ref().map(|latest| latest.id) {
            InboxError::serialization().raise();
        }
    }
    latest
}

/// What a record says of a message when it is received.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    pub key: MessageKey<'a>,
    pub instance: Option<i64>,
    pub position: Option<i64>,
    pub state: State,
    /// Why it was rejected.
    pub rejection: Option<&'a str>,
}

/// Writes the record, anew or over the one of an earlier failure; gives its id.
pub fn record(db: &Db, earlier: Option<i64>, record: Record<'_>) -> i64 {
    let rejected = record.rejection.is_some();
    match earlier {
        Some(id) => {
            db.write(
                &REUSE,
                &[
                    arg(id),
                    arg(record.instance),
                    arg(record.position),
                    arg(record.state.word()),
                    arg(record.rejection),
                    arg(rejected),
                ],
            );
            id
        }
        None => db
            .write(
                &INSERT,
                &[
                    arg(record.key.message_type),
                    arg(record.key.idempotence_id),
                    arg(record.instance),
                    arg(record.position),
                    arg(record.state.word()),
                    arg(record.rejection),
                    arg(rejected),
                ],
            )
            .get(0, 0)
            .unwrap_or_default(),
    }
}

/// Gives the message another state; nothing is due by itself any more. `rejected`:
/// whether it still does not hold its position.
pub fn set_state(db: &Db, id: i64, state: State, rejected: bool) {
    db.write(
        &SET_STATE,
        &[arg(id), arg(state.word()), arg(false), arg(rejected)],
    );
}

/// Makes the message READY by an operator's word.
pub fn set_forced(db: &Db, id: i64, rejected: bool) {
    db.write(
        &SET_STATE,
        &[arg(id), arg(State::Ready.word()), arg(true), arg(rejected)],
    );
}

/// Makes the message FAILED and counts the attempt; due again after the interval.
pub fn set_failed(db: &Db, id: i64, error: Option<&str>, retry_after: Option<Interval>) {
    db.write(&SET_FAILED, &[arg(id), arg(error), arg(retry_after)]);
}

/// Leaves a failed message to an operator: it is not due by itself any more.
pub fn stop_retrying(db: &Db, id: i64) {
    db.write(&STOP_RETRYING, &[arg(id)]);
}

/// Stores payload, key and headers; what is not given keeps what was stored.
pub fn store_content(db: &Db, id: i64, content: Content) {
    db.write(
        &STORE_CONTENT,
        &[
            arg(id),
            arg(content.payload),
            arg(content.message_key),
            arg(content.headers),
        ],
    );
}

/// Whether payload, key and headers of the message are stored, be they NULL.
pub fn has_content(db: &Db, id: i64) -> bool {
    !db.write(&HAS_CONTENT, &[arg(id)]).is_empty()
}

/// Forgets payload, key and headers of a message that is done.
pub fn drop_content(db: &Db, id: i64) {
    db.write(&DROP_CONTENT, &[arg(id)]);
}

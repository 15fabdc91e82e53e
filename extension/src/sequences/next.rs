//! `inbox_next`: hands out the next message that may be handled now (G6, G7).
//!
//! With an instance it waits for the instance's lock, so that what the holder
//! releases is seen. Without one it is the sweeper's call: it walks over what is
//! ready by index, from instance to instance, and passes over those that others hold.
//! Either way the message is recorded as PROCESSED in the caller's transaction.

use std::rc::Rc;

use pgrx::JsonB;
use pgrx::datum::clock_timestamp;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::BuiltinOid::{INT8ARRAYOID, INT8OID, TIMESTAMPTZOID};
use pgrx::prelude::*;

use super::declaration::{self, Declaration};
use super::instance::{self, Instance};
use super::message::{self, Message};
use super::operator;
use super::receive;
use super::release::Passage;
use crate::claims;
use crate::errors::{InboxError, Result, or_raise};
use crate::probe::{Holder, IndexProbe, Key};
use crate::ring;
use crate::spi::{self, Db, Statement, arg};
use crate::statistics::{self, Counter, Kind};

/// The first message of an instance that is ready, or failed and due again.
static READY_IN_INSTANCE: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message \
     WHERE sequence_instance_id {=} $1 AND state {=} 'READY' ORDER BY \"position\", id LIMIT 1",
    &[INT8OID],
);
/// What failed in the instance first, then what of it is due: the index in order of time
/// is for the whole database.
static DUE_IN_INSTANCE: Statement = Statement::new(
    "WITH failed AS MATERIALIZED (SELECT m.id, m.message_type, m.idempotence_id, \
            m.sequence_instance_id, m.\"position\", m.state, m.rejected, m.next_attempt_at \
        FROM {s}sequenced_message m WHERE m.sequence_instance_id {=} $1 AND m.state {=} 'FAILED') \
     SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM failed WHERE next_attempt_at {<=} $2 ORDER BY next_attempt_at, id LIMIT 1",
    &[INT8OID, TIMESTAMPTZOID],
);
/// The next instance after this one that has something ready.
static INSTANCE_WITH_READY: Statement = Statement::new(
    "SELECT sequence_instance_id FROM {s}sequenced_message \
     WHERE state {=} 'READY' AND sequence_instance_id {>} $1 \
     ORDER BY sequence_instance_id LIMIT 1",
    &[INT8OID],
);
/// Failed messages of sequences that are due, oldest first, after this one.
static DUE: Statement = Statement::new(
    "SELECT id, sequence_instance_id, next_attempt_at FROM {s}sequenced_message \
     WHERE state {=} 'FAILED' AND next_attempt_at {<=} $1 AND next_attempt_at {>=} $2 \
       AND (next_attempt_at {>} $2 OR id {>} $3) AND sequence_instance_id IS NOT NULL \
     ORDER BY next_attempt_at, id LIMIT 1",
    &[TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID],
);
static PLAIN_READY: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message \
     WHERE sequence_instance_id IS NULL AND state {=} 'READY' AND id {<>} ALL ($1) \
     ORDER BY \"position\", id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED",
    &[INT8ARRAYOID],
);
static PLAIN_DUE: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected \
     FROM {s}sequenced_message \
     WHERE sequence_instance_id IS NULL AND state {=} 'FAILED' AND next_attempt_at {<=} $1 \
       AND id {<>} ALL ($2) \
     ORDER BY next_attempt_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED",
    &[TIMESTAMPTZOID, INT8ARRAYOID],
);
static ANYTHING_TO_DO: Statement = Statement::new(
    "SELECT EXISTS (SELECT FROM {s}sequenced_message WHERE state {=} 'READY') \
         OR EXISTS (SELECT FROM {s}sequenced_message \
                    WHERE state {=} 'FAILED' AND next_attempt_at {<=} $1)",
    &[TIMESTAMPTZOID],
);
static HANDED_OUT: Statement = Statement::new(
    "SELECT m.attempts, b.payload, b.message_key, b.headers, b.buffered_at \
     FROM {s}sequenced_message m LEFT JOIN {s}buffered_message b ON b.message_id {=} m.id \
     WHERE m.id {=} $1",
    &[INT8OID],
);

/// A message that is handed to the caller.
struct Released {
    message: Message,
    sequence_name: Option<String>,
    context_id: Option<String>,
    attempts: i32,
    payload: Option<Vec<u8>>,
    message_key: Option<Vec<u8>>,
    headers: Option<JsonB>,
    buffered_at: Option<TimestampWithTimeZone>,
}

impl Released {
    /// Counts it: as handed out, and as handed out anew if it has failed before.
    fn count(&self) {
        let kind = match self.message.instance {
            Some(_) => Kind::Sequence,
            None => Kind::Consumer,
        };
        let again = u64::from(self.attempts > 0);
        let counts = [(Counter::Released, 1), (Counter::Retried, again)];
        statistics::count(kind, &self.message.message_type, &counts);
    }
}

/// Records the message as processed and forgets its payload.
fn settle(db: &Db, message: &Message) {
    message::set_state(db, message.id, message::State::Processed, message.rejected);
    message::drop_content(db, message.id);
}

/// Records the message as processed and gives what was stored with it.
fn hand_out(db: &Db, message: Message, origin: Option<&Instance>) -> Released {
    let stored = db.write(&HANDED_OUT, &[arg(message.id)]);
    let released = Released {
        sequence_name: origin.map(|instance| instance.name.clone()),
        context_id: origin.map(|instance| instance.context_id.clone()),
        attempts: stored.get(0, 0).unwrap_or_default(),
        payload: stored.get(0, 1),
        message_key: stored.get(0, 2),
        headers: stored.get(0, 3),
        buffered_at: stored.get(0, 4),
        message,
    };
    settle(db, &released.message);
    released
}

/// Hands out a message of an instance whose lock is held, if there is one.
fn from_locked(
    db: &Db,
    declaration: &Declaration,
    instance: &mut Instance,
    now: TimestampWithTimeZone,
) -> Option<Released> {
    let ready = db.write(&READY_IN_INSTANCE, &[arg(instance.id)]);
    let message = match Message::from_row(&ready, 0) {
        Some(message) => message,
        None => due_in(db, declaration, instance, now)?,
    };
    let message_type = message.message_type.clone();
    let passage = Passage::before(db, declaration, instance.id, &message_type);
    let released = hand_out(db, message, Some(instance));
    passage.done(instance, released.message.position, true);
    Some(released)
}

/// A failed message of the instance whose time has come and whose turn it still is.
fn due_in(
    db: &Db,
    declaration: &Declaration,
    instance: &mut Instance,
    now: TimestampWithTimeZone,
) -> Option<Message> {
    loop {
        let rows = db.write(&DUE_IN_INSTANCE, &[arg(instance.id), arg(now)]);
        let mut due = Message::from_row(&rows, 0)?;
        if !claims::claim(db, due.key(), instance.id) {
            // A resend was claimed directly meanwhile: the failure is resolved.
            let passage = Passage::before(db, declaration, instance.id, &due.message_type);
            settle(db, &due);
            passage.done(instance, due.position, true);
            continue;
        }
        if operator::has_lost_its_place(db, declaration, instance, &due) {
            // It can never go: a dead letter again, for an operator to decide.
            claims::delete(db, due.key());
            message::stop_retrying(db, due.id);
            continue;
        }
        // One that was rejected for another reason takes its place now.
        due.rejected = false;
        if receive::may_go(db, declaration, instance, &due) {
            return Some(due);
        }
        message::set_state(db, due.id, message::State::Waiting, false);
        instance.reopen(db);
    }
}

/// The next message of this instance; waits for its lock.
fn of_instance(db: &Db, id: i64) -> Result<Option<Released>> {
    if nothing_to_wait_for(db, id)? {
        return Ok(None);
    }
    match instance::lock_with_declaration(db, id)? {
        Some((declaration, mut instance)) => Ok(from_locked(
            db,
            &declaration,
            &mut instance,
            clock_timestamp(),
        )),
        None => Err(InboxError::no_instance(id)),
    }
}

/// Whether the instance is neither held by anyone nor has anything to hand out. The
/// usual end of a drain, which so writes nothing. An older snapshot cannot tell.
fn nothing_to_wait_for(db: &Db, id: i64) -> Result<bool> {
    if spi::uses_transaction_snapshot() {
        return Ok(false);
    }
    let holder = IndexProbe::open(db, "sequence_instance", "sequence_instance_pkey")
        .holder(&[Key::Bigint(id)]);
    match holder {
        Holder::Nobody => Err(InboxError::no_instance(id)),
        Holder::InFlight(_) => Ok(false),
        Holder::Settled { .. } => Ok(db.write(&READY_IN_INSTANCE, &[arg(id)]).is_empty()
            && db
                .write(&DUE_IN_INSTANCE, &[arg(id), arg(clock_timestamp())])
                .is_empty()),
    }
}

/// The next message of any instance that nobody holds, or of a plain consumer.
fn of_any(db: &Db) -> Result<Option<Released>> {
    let now = clock_timestamp();
    if db.write(&ANYTHING_TO_DO, &[arg(now)]).get::<bool>(0, 0) != Some(true) {
        return Ok(None);
    }
    let mut after = i64::MIN;
    while let Some(id) = db
        .write(&INSTANCE_WITH_READY, &[arg(after)])
        .get::<i64>(0, 0)
    {
        if let Some(released) = of_unheld(db, id, now)? {
            return Ok(Some(released));
        }
        after = id;
    }
    let mut after = (TimestampWithTimeZone::negative_infinity(), i64::MIN);
    loop {
        let due = db.write(&DUE, &[arg(now), arg(after.0), arg(after.1)]);
        let (Some(message), Some(id), Some(at)) =
            (due.get::<i64>(0, 0), due.get::<i64>(0, 1), due.get(0, 2))
        else {
            break;
        };
        if let Some(released) = of_unheld(db, id, now)? {
            return Ok(Some(released));
        }
        after = (at, message);
    }
    Ok(of_plain_consumers(db, now))
}

/// The same as `of_instance`, passing over an instance that another session holds.
fn of_unheld(db: &Db, id: i64, now: TimestampWithTimeZone) -> Result<Option<Released>> {
    let Some(name) = Instance::sequence_name(db, id) else {
        return Ok(None);
    };
    let declaration: Rc<Declaration> = declaration::of_name(db, &name)?;
    Ok(Instance::try_lock(db, id)
        .and_then(|mut instance| from_locked(db, &declaration, &mut instance, now)))
}

/// A plain consumer's failed message that is due, or that an operator retries, and that
/// nobody holds.
fn of_plain_consumers(db: &Db, now: TimestampWithTimeZone) -> Option<Released> {
    // Those that another transaction has claimed. To wait for it with the record locked would
    // be a deadlock where it is a consumer that claims a message first and then fails it.
    let mut held: Vec<i64> = Vec::new();
    loop {
        let passed = || arg(held.clone());
        let message = Message::from_row(&db.write(&PLAIN_READY, &[passed()]), 0)
            .or_else(|| Message::from_row(&db.write(&PLAIN_DUE, &[arg(now), passed()]), 0))?;
        if ring::holder(db, &message.message_type, &message.idempotence_id).is_in_flight() {
            held.push(message.id);
            continue;
        }
        if ring::claim(db, &message.message_type, &message.idempotence_id) {
            return Some(hand_out(db, message, None));
        }
        // A resend was processed meanwhile: the failure is resolved.
        settle(db, &message);
    }
}

/// `inbox_next(instance)`
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn inbox_next(
    instance: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(message_id, i64),
        name!(sequence_instance_id, Option<i64>),
        name!(sequence_name, Option<String>),
        name!(context_id, Option<String>),
        name!(message_type, String),
        name!(idempotence_id, String),
        name!(position, Option<i64>),
        name!(attempts, i32),
        name!(payload, Option<Vec<u8>>),
        name!(message_key, Option<Vec<u8>>),
        name!(headers, Option<JsonB>),
        name!(buffered_at, Option<TimestampWithTimeZone>),
    ),
> {
    let released = or_raise((|| {
        let db = Db::read_write(fcinfo, "inbox_next")?;
        match instance {
            Some(id) => of_instance(&db, id),
            None => of_any(&db),
        }
    })());
    if let Some(released) = &released {
        released.count();
    }
    TableIterator::new(released.into_iter().map(|released| {
        (
            released.message.id,
            released.message.instance,
            released.sequence_name,
            released.context_id,
            released.message.message_type,
            released.message.idempotence_id,
            released.message.position,
            released.attempts,
            released.payload,
            released.message_key,
            released.headers,
            released.buffered_at,
        )
    }))
}

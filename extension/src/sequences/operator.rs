//! The operator's hand: retry, force, skip, skip gaps, close (guarantees G6, G8).
//!
//! Each takes the same locks as a consumer, in the same order, and judges the message
//! again under them, so it is safe beside consumers. Each answers false, and changes
//! nothing, where the state no longer allows it.

use pgrx::pg_sys::BuiltinOid::{BOOLOID, INT8OID, TEXTOID};
use pgrx::prelude::*;

use super::declaration::{Declaration, Ordering};
use super::instance::{self, Instance};
use super::message::{self, Message, State};
use super::receive;
use super::release::{self, Passage};
use crate::args;
use crate::claims;
use crate::errors::{InboxError, Result, or_raise};
use crate::ring;
use crate::spi::{Db, Statement, arg};

/// Ends what waits in an instance that will not go on: it becomes a dead letter, and
/// its claim goes, so that a resend is judged anew.
static FAIL_UNFINISHED: Statement = Statement::new(
    "WITH failed AS (UPDATE {s}sequenced_message \
        SET state = 'FAILED', last_error = $2, forced = false, next_attempt_at = NULL, \
            state_changed_at = pg_catalog.clock_timestamp() \
        WHERE sequence_instance_id {=} $1 \
          AND state {=} ANY (ARRAY['WAITING', 'READY']::pg_catalog.text[]) \
        RETURNING message_type, idempotence_id) \
     DELETE FROM {s}sequential_inbox_idempotence c USING failed f \
     WHERE c.message_type {=} f.message_type AND c.idempotence_id {=} f.idempotence_id",
    &[INT8OID, TEXTOID],
);
/// What was to be retried by itself waits for an operator instead; its error stays.
static STOP_RETRIES: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET next_attempt_at = NULL \
     WHERE sequence_instance_id {=} $1 AND state {=} 'FAILED' AND next_attempt_at IS NOT NULL",
    &[INT8OID],
);
static END_INSTANCE: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET state = $2, closed_by_operator = $3, \
            closed_at = pg_catalog.clock_timestamp() \
     WHERE id {=} $1",
    &[INT8OID, TEXTOID, BOOLOID],
);
/// The first stored message behind the gap.
static BEHIND_GAP: Statement = Statement::new(
    "SELECT \"position\" FROM {s}sequenced_message \
     WHERE sequence_instance_id {=} $1 AND \"position\" {>=} $2 AND NOT rejected \
     ORDER BY \"position\" LIMIT 1",
    &[INT8OID, INT8OID],
);
static FORCIBLE: Statement = Statement::new(
    "SELECT id FROM {s}sequenced_message \
     WHERE sequence_instance_id {=} $1 AND NOT rejected \
       AND state {=} ANY (ARRAY['WAITING', 'FAILED']::pg_catalog.text[]) \
     ORDER BY \"position\", id",
    &[INT8OID],
);

/// Ends an instance, EXPIRED or CLOSED by an operator, and everything that waits in it.
pub fn end_instance(db: &Db, instance: i64, state: &str, by_operator: bool, reason: &str) {
    db.write(&FAIL_UNFINISHED, &[arg(instance), arg(reason)]);
    db.write(&STOP_RETRIES, &[arg(instance)]);
    db.write(
        &END_INSTANCE,
        &[arg(instance), arg(state), arg(by_operator)],
    );
}

/// A message that an operator changes.
enum Found {
    /// Under the locks that let one change it.
    Sequenced(std::rc::Rc<Declaration>, Instance, Message),
    /// As it was when it was looked up: see [`change_plain`].
    Plain(Message),
}

/// Finds the message of this id; none if it is gone.
fn find(db: &Db, id: i64) -> Result<Option<Found>> {
    let Some(stored) = message::by_id(db, id) else {
        return Ok(None);
    };
    let Some(of) = stored.instance else {
        return Ok(Some(Found::Plain(stored)));
    };
    let Some((declaration, instance)) = instance::lock_with_declaration(db, of)? else {
        return Ok(None);
    };
    Ok(message::by_id(db, id).map(|stored| Found::Sequenced(declaration, instance, stored)))
}

/// What becomes of a plain consumer's claim when an operator has changed its message.
#[derive(PartialEq, Eq)]
enum Claim {
    Kept,
    Released,
}

/// Changes a plain consumer's message with its claim held; false where somebody else has
/// claimed it, or where `change` finds nothing to do. The key first and then the record:
/// so does a consumer that claims a message and fails it.
fn change_plain(db: &Db, found: &Message, change: impl FnOnce(&Message) -> Option<Claim>) -> bool {
    if !ring::claim(db, &found.message_type, &found.idempotence_id) {
        return false;
    }
    let changed = message::by_id_locked(db, found.id).and_then(|stored| change(&stored));
    if changed != Some(Claim::Kept) {
        ring::delete(db, &found.message_type, &found.idempotence_id);
    }
    changed.is_some()
}

/// Makes a plain consumer's failed message READY; its claim is taken again when it is
/// handed out.
fn retry_plain(db: &Db, found: &Message) -> bool {
    change_plain(db, found, |stored| {
        (stored.state == State::Failed).then(|| {
            message::set_state(db, stored.id, State::Ready, false);
            Claim::Released
        })
    })
}

fn retry(db: &Db, id: i64) -> Result<bool> {
    let (declaration, mut instance, stored) = match find(db, id)? {
        None => return Ok(false),
        Some(Found::Plain(found)) => return Ok(retry_plain(db, &found)),
        Some(Found::Sequenced(declaration, instance, stored)) => (declaration, instance, stored),
    };
    if stored.state != State::Failed
        || has_lost_its_place(db, &declaration, &instance, &stored)
        || !claims::claim(db, stored.key(), instance.id)
    {
        return Ok(false);
    }
    let state = if receive::may_go(db, &declaration, &instance, &stored) {
        State::Ready
    } else {
        State::Waiting
    };
    message::set_state(db, stored.id, state, false);
    if state == State::Ready {
        release::announce(db, instance.id);
    }
    instance.reopen(db);
    Ok(true)
}

/// Whether a rejected message could never go again: its position was given up, or
/// another message has it.
pub fn has_lost_its_place(
    db: &Db,
    declaration: &Declaration,
    instance: &Instance,
    stored: &Message,
) -> bool {
    let Some(position) = stored.position else {
        return false;
    };
    declaration.ordering == Ordering::Position
        && stored.rejected
        && (position < instance.next_position
            || release::at_position(db, instance.id, position).is_some())
}

fn force(db: &Db, id: i64) -> Result<bool> {
    let (declaration, mut instance, stored) = match find(db, id)? {
        None => return Ok(false),
        Some(Found::Plain(found)) => return Ok(retry_plain(db, &found)),
        Some(Found::Sequenced(declaration, instance, stored)) => (declaration, instance, stored),
    };
    let claimed = match stored.state {
        State::Failed => claims::claim(db, stored.key(), instance.id),
        State::Waiting => true,
        _ => false,
    };
    if !claimed {
        return Ok(false);
    }
    let rejected = has_lost_its_place(db, &declaration, &instance, &stored);
    message::set_forced(db, id, rejected);
    release::announce(db, instance.id);
    instance.reopen(db);
    Ok(true)
}

fn skip(db: &Db, id: i64) -> Result<bool> {
    let (declaration, mut instance, stored) = match find(db, id)? {
        None => return Ok(false),
        Some(Found::Plain(found)) => return Ok(skip_plain(db, &found)),
        Some(Found::Sequenced(declaration, instance, stored)) => (declaration, instance, stored),
    };
    let claimed = match stored.state {
        State::Waiting | State::Ready => true,
        State::Failed => claims::claim(db, stored.key(), instance.id),
        State::Processed | State::Skipped => false,
    };
    if !claimed {
        return Ok(false);
    }
    let rejected = has_lost_its_place(db, &declaration, &instance, &stored);
    let passage = Passage::before(db, &declaration, instance.id, &stored.message_type);
    end_skipped(db, id, rejected);
    passage.done(&mut instance, stored.position, true);
    Ok(true)
}

/// The claim of a message that counts as processed stays.
fn skip_plain(db: &Db, found: &Message) -> bool {
    change_plain(db, found, |stored| {
        matches!(stored.state, State::Ready | State::Failed).then(|| {
            end_skipped(db, stored.id, false);
            Claim::Kept
        })
    })
}

fn end_skipped(db: &Db, id: i64, rejected: bool) {
    message::set_state(db, id, State::Skipped, rejected);
    message::drop_content(db, id);
}

/// Gives up the missing positions in front of the first stored message.
fn skip_gap(db: &Db, id: i64) -> Result<bool> {
    let (declaration, mut instance) = locked_instance(db, id)?;
    if declaration.ordering != Ordering::Position {
        return Err(InboxError::invalid(format!(
            "sequence \"{}\" is not ordered by position and has no gaps",
            declaration.name
        ))
        .hint("Use inbox_force() or inbox_skip() for single messages."));
    }
    let behind: Option<i64> = db
        .write(
            &BEHIND_GAP,
            &[arg(instance.id), arg(instance.next_position)],
        )
        .get(0, 0);
    match behind.filter(|behind| *behind > instance.next_position) {
        None => Ok(false),
        Some(behind) => {
            instance.set_next_position(db, behind);
            release::advance(db, &declaration, &mut instance);
            Ok(true)
        }
    }
}

fn force_all(db: &Db, id: i64) -> Result<bool> {
    locked_instance(db, id)?;
    let messages = db.write(&FORCIBLE, &[arg(id)]);
    let mut any = false;
    for row in 0..messages.len() {
        if let Some(message) = messages.get(row, 0) {
            any |= force(db, message)?;
        }
    }
    Ok(any)
}

fn close(db: &Db, id: i64) -> Result<bool> {
    let (_, instance) = locked_instance(db, id)?;
    if instance.state != instance::State::Open {
        return Ok(false);
    }
    end_instance(
        db,
        id,
        "CLOSED",
        true,
        "the sequence instance was closed by an operator",
    );
    Ok(true)
}

fn locked_instance(db: &Db, id: i64) -> Result<(std::rc::Rc<Declaration>, Instance)> {
    instance::lock_with_declaration(db, id)?.ok_or_else(|| InboxError::no_instance(id))
}

macro_rules! operator_function {
    ($name:ident, $argument:ident, $does:path) => {
        #[doc = concat!("`", stringify!($name), "(", stringify!($argument), ")`")]
        #[pg_extern(sql = false)]
        fn $name($argument: Option<i64>, fcinfo: pg_sys::FunctionCallInfo) -> bool {
            or_raise((|| {
                let id = args::required(stringify!($argument), $argument)?;
                let db = Db::read_write(fcinfo, stringify!($name))?;
                $does(&db, id)
            })())
        }
    };
}

operator_function!(inbox_retry, message_id, retry);
operator_function!(inbox_force, message_id, force);
operator_function!(inbox_skip, message_id, skip);
operator_function!(inbox_skip_gap, sequence_instance_id, skip_gap);
operator_function!(inbox_force_all, sequence_instance_id, force_all);
operator_function!(inbox_close, sequence_instance_id, close);

//! What may be handled next in an instance, and when it is complete (G6, G7).
//!
//! Whoever makes a message count as passed, by processing, skipping or a failure
//! that does not block, makes READY in the same transaction whatever that releases.
//! So a released message is found by an index and never by judging instances, and
//! no wake-up depends on the releaser staying alive.

use std::collections::HashSet;

use pgrx::pg_sys::BuiltinOid::{INT8OID, TEXTARRAYOID, TEXTOID};

use super::declaration::{Declaration, Ordering};
use super::instance::{Instance, State};
use super::message;
use crate::probe::{IndexProbe, Key};
use crate::settings;
use crate::spi::{Db, Statement, arg};

/// The types of $2 of which a message stands in one of these states in instance $1. One
/// index probe a type, however many messages it has.
macro_rules! types_with_a_message {
    ($condition:literal) => {
        concat!(
            "SELECT t.name FROM pg_catalog.unnest($2) AS t (name) \
             CROSS JOIN LATERAL (SELECT FROM {s}sequenced_message m \
                WHERE m.sequence_instance_id {=} $1 AND m.message_type {=} t.name AND ",
            $condition,
            " LIMIT 1) found"
        )
    };
}
static PASSED: Statement = Statement::new(
    types_with_a_message!("m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])"),
    &[INT8OID, TEXTARRAYOID],
);
/// The same where a message that failed for good counts too.
static PASSED_OR_FAILED: Statement = Statement::new(
    types_with_a_message!(
        "m.state {=} ANY (ARRAY['FAILED', 'PROCESSED', 'SKIPPED']::pg_catalog.text[]) \
         AND (m.state {<>} 'FAILED' OR (m.next_attempt_at IS NULL AND NOT m.rejected))"
    ),
    &[INT8OID, TEXTARRAYOID],
);
static MAKE_READY: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET state = 'READY', \
            state_changed_at = pg_catalog.clock_timestamp() \
     WHERE sequence_instance_id {=} $1 AND state {=} 'WAITING' \
       AND message_type {=} ANY ($2)",
    &[INT8OID, TEXTARRAYOID],
);
/// Takes back what an operator has not forced and the declaration no longer allows.
static MAKE_WAIT: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET state = 'WAITING', \
            state_changed_at = pg_catalog.clock_timestamp() \
     WHERE sequence_instance_id {=} $1 AND state {=} 'READY' AND NOT forced \
       AND message_type {=} ANY ($2)",
    &[INT8OID, TEXTARRAYOID],
);
/// The same with position ordering: what recording had let go out of turn.
static MAKE_LATER_WAIT: Statement = Statement::new(
    "UPDATE {s}sequenced_message SET state = 'WAITING', \
            state_changed_at = pg_catalog.clock_timestamp() \
     WHERE sequence_instance_id {=} $1 AND state {=} 'READY' AND NOT forced \
       AND \"position\" {>} $2",
    &[INT8OID, INT8OID],
);
static NOTIFY: Statement = Statement::new(
    "SELECT pg_catalog.pg_notify('sequential_inbox', $1)",
    &[TEXTOID],
);
static AT_POSITION: Statement = Statement::new(
    "SELECT id, message_type, idempotence_id, sequence_instance_id, \"position\", state, rejected, \
            next_attempt_at IS NOT NULL \
     FROM {s}sequenced_message \
     WHERE sequence_instance_id {=} $1 AND \"position\" {=} $2 AND NOT rejected \
     ORDER BY id LIMIT 1",
    &[INT8OID, INT8OID],
);
/// Nothing waits, is ready or is due again in instance $1. One look at what is unfinished
/// there: the index of failed messages is for the whole database.
macro_rules! nothing_left {
    () => {
        "NOT EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} $1 \
              AND m.state {=} ANY (ARRAY['WAITING', 'READY', 'FAILED']::pg_catalog.text[]) \
              AND (m.state {<>} 'FAILED' OR m.next_attempt_at IS NOT NULL))"
    };
}
/// Something was processed, every required type was, and nothing is left to do.
static IS_COMPLETE: Statement = Statement::new(
    concat!(
        "SELECT EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} $1 \
              AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])) \
         AND NOT EXISTS (SELECT FROM pg_catalog.unnest($2) AS t (name) \
            WHERE NOT EXISTS (SELECT FROM {s}sequenced_message m \
                WHERE m.sequence_instance_id {=} $1 AND m.message_type {=} t.name \
                  AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[]))) \
         AND ",
        nothing_left!()
    ),
    &[INT8OID, TEXTARRAYOID],
);
/// A final message was processed, and nothing is left to do.
static IS_COMPLETE_BY_POSITION: Statement = Statement::new(
    concat!(
        "SELECT EXISTS (SELECT FROM {s}sequence_message_type t \
            JOIN {s}sequenced_message m ON m.message_type {=} t.message_type \
            WHERE t.sequence_name {=} $2 AND t.final AND m.sequence_instance_id {=} $1 \
              AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])) AND ",
        nothing_left!()
    ),
    &[INT8OID, TEXTOID],
);

/// A message on its way through its instance: whether it may go, what it releases and
/// whether the instance is complete with it. The instance's lock is held, so nobody else
/// changes what the looks into the indexes find.
pub struct Passage<'a> {
    db: &'a Db,
    declaration: &'a Declaration,
    instance: i64,
    message_type: &'a str,
    index: IndexProbe,
    /// Fetched beforehand where failures count as passed, which no index tells alone.
    prefetched: Option<HashSet<String>>,
}

impl<'a> Passage<'a> {
    /// The state of things before the message is recorded.
    pub fn before(
        db: &'a Db,
        declaration: &'a Declaration,
        instance: i64,
        message_type: &'a str,
    ) -> Self {
        let by_conditions = declaration.ordering == Ordering::Conditions;
        let prefetched = (by_conditions && declaration.skips_failures())
            .then(|| passed(db, declaration, instance, declaration.around(message_type)));
        Self {
            db,
            declaration,
            instance,
            message_type,
            index: IndexProbe::open(db, "sequenced_message", "sequenced_message_instance"),
            prefetched,
        }
    }

    /// Whether a message of this type counts as passed. A look into the index costs a
    /// fraction of a statement, and most questions need few.
    fn has_passed(&self, name: &str) -> bool {
        match &self.prefetched {
            Some(passed) => passed.contains(name),
            None => ["PROCESSED", "SKIPPED"].into_iter().any(|state| {
                let key = [
                    Key::Bigint(self.instance),
                    Key::Text(name),
                    Key::Text(state),
                ];
                self.index.has(&key)
            }),
        }
    }

    /// Which predecessors are missing; none: the message may be handled now.
    pub fn missing(&self) -> Option<Vec<String>> {
        let declared = self.declaration.message_type(self.message_type)?;
        if declared.may_go(&|name| self.has_passed(name)) {
            return None;
        }
        let predecessors = declared.predecessors().into_iter();
        Some(
            predecessors
                .filter(|name| !self.has_passed(name))
                .map(str::to_owned)
                .collect(),
        )
    }

    /// The message is recorded as processed or skipped: makes READY what it released and
    /// closes the instance if that completes it. `was_stored`: it came out of the inbox.
    pub fn done(self, instance: &mut Instance, position: Option<i64>, was_stored: bool) {
        match self.declaration.ordering {
            Ordering::Conditions => {
                self.release();
                if instance.state == State::Open && self.may_be_complete() {
                    close_if_complete(self.db, self.declaration, instance);
                }
            }
            Ordering::Position => {
                // While recording, messages come in the topic's own order: what was seen
                // counts.
                if let Some(position) = position
                    && position > instance.next_position
                    && self.declaration.is_recording()
                {
                    instance.set_next_position(self.db, position);
                }
                advance(self.db, self.declaration, instance);
                // A message that goes at once completes nothing unless it is final; one
                // that waited may have been the last that a final one left.
                let declared = self.declaration.message_type(self.message_type);
                if was_stored || declared.is_some_and(|declared| declared.is_final) {
                    close_if_complete(self.db, self.declaration, instance);
                }
            }
        }
    }

    /// The message failed for good where that counts as passed.
    pub fn failed(self, instance: &mut Instance) {
        match self.declaration.ordering {
            Ordering::Conditions => self.release(),
            Ordering::Position => advance(self.db, self.declaration, instance),
        }
    }

    /// Whether every required type has passed, this one's included. The last declared are
    /// asked for first: they are usually the ones that are missing.
    fn may_be_complete(&self) -> bool {
        let mut required = self.declaration.required_types().iter().rev();
        required.all(|name| self.is_passed_now(name))
    }

    fn is_passed_now(&self, name: &str) -> bool {
        name == self.message_type || self.has_passed(name)
    }

    /// Makes READY the waiting messages whose condition holds with the message.
    fn release(&self) {
        let successors = self.declaration.successors(self.message_type);
        if successors.is_empty() {
            return;
        }
        let unfinished =
            IndexProbe::open(self.db, "sequenced_message", "sequenced_message_unfinished");
        let waits = |name: &str| {
            let key = [
                Key::Bigint(self.instance),
                Key::Text("WAITING"),
                Key::Text(name),
            ];
            unfinished.has(&key)
        };
        let released: Vec<String> = successors
            .iter()
            .filter(|name| waits(name))
            .filter(|name| {
                let declared = self.declaration.message_type(name);
                declared.is_some_and(|declared| declared.may_go(&|name| self.is_passed_now(name)))
            })
            .cloned()
            .collect();
        if !released.is_empty() {
            make_ready(self.db, self.instance, released);
        }
    }
}

/// Which of these types count as passed in the instance.
fn passed(db: &Db, declaration: &Declaration, instance: i64, types: &[String]) -> HashSet<String> {
    if types.is_empty() {
        return HashSet::new();
    }
    let statement = if declaration.skips_failures() {
        &PASSED_OR_FAILED
    } else {
        &PASSED
    };
    let rows = db.write(statement, &[arg(instance), arg(types.to_vec())]);
    (0..rows.len()).filter_map(|row| rows.get(row, 0)).collect()
}

/// Closes the instance if it is open and complete.
pub fn close_if_complete(db: &Db, declaration: &Declaration, instance: &mut Instance) -> bool {
    if instance.state != State::Open || !is_complete(db, declaration, instance.id) {
        return false;
    }
    instance.complete(db);
    true
}

fn is_complete(db: &Db, declaration: &Declaration, instance: i64) -> bool {
    let answer = match declaration.ordering {
        Ordering::Conditions => db.write(
            &IS_COMPLETE,
            &[arg(instance), arg(declaration.required_types().to_vec())],
        ),
        Ordering::Position => db.write(
            &IS_COMPLETE_BY_POSITION,
            &[arg(instance), arg(declaration.name.as_str())],
        ),
    };
    answer.get(0, 0) == Some(true)
}

/// Makes the waiting messages of these types READY, and announces that if asked to.
fn make_ready(db: &Db, instance: i64, types: Vec<String>) {
    if !db
        .write(&MAKE_READY, &[arg(instance), arg(types)])
        .is_empty()
    {
        announce(db, instance);
    }
}

/// Tells listeners, if so set, that something is READY in this instance.
pub fn announce(db: &Db, instance: i64) {
    if settings::notify() {
        db.write(&NOTIFY, &[arg(instance.to_string())]);
    }
}

/// The message that holds a position, and whether it is due again by itself.
pub fn at_position(db: &Db, instance: i64, position: i64) -> Option<(message::Message, bool)> {
    let rows = db.write(&AT_POSITION, &[arg(instance), arg(position)]);
    Some((message::Message::from_row(&rows, 0)?, rows.get(0, 7)?))
}

/// Moves the instance past every position that is done and makes the message at the
/// next one READY if it is there.
pub fn advance(db: &Db, declaration: &Declaration, instance: &mut Instance) {
    let mut next = instance.next_position;
    while let Some((at, scheduled)) = at_position(db, instance.id, next) {
        match at.state {
            message::State::Processed | message::State::Skipped => next += 1,
            message::State::Failed if declaration.skips_failures() && !scheduled => next += 1,
            message::State::Waiting => {
                message::set_state(db, at.id, message::State::Ready, false);
                announce(db, instance.id);
                break;
            }
            message::State::Failed | message::State::Ready => break,
        }
    }
    instance.set_next_position(db, next);
}

/// Judges everything that waits or is ready in the instance by a changed declaration.
pub fn judge_again(db: &Db, declaration: &Declaration, instance: i64) {
    let Some(mut instance) = Instance::lock(db, instance) else {
        return;
    };
    match declaration.ordering {
        // While recording nothing waits.
        _ if declaration.is_recording() => make_ready(db, instance.id, declaration.all_types()),
        Ordering::Conditions => {
            let types = declaration.all_types();
            let passed = passed(db, declaration, instance.id, &types);
            let (released, held_back) = types.into_iter().partition(|name| {
                declaration
                    .message_type(name)
                    .is_some_and(|declared| declared.may_go(&|name| passed.contains(name)))
            });
            make_ready(db, instance.id, released);
            db.write(&MAKE_WAIT, &[arg(instance.id), arg(held_back)]);
        }
        Ordering::Position => {
            let next = instance.next_position;
            db.write(&MAKE_LATER_WAIT, &[arg(instance.id), arg(next)]);
            advance(db, declaration, &mut instance);
        }
    }
    close_if_complete(db, declaration, &mut instance);
}

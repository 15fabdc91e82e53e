//! What may be handled next in an instance, and when it is complete (G6, G7).
//!
//! Whoever makes a message count as passed, by processing, skipping or a failure
//! that does not block, makes READY in the same transaction whatever that releases.
//! So a released message is found by an index and never by judging instances, and
//! no wake-up depends on the releaser staying alive.

use std::collections::{BTreeSet, HashSet};

use pgrx::pg_sys::BuiltinOid::{BOOLOID, INT8OID, TEXTARRAYOID, TEXTOID};

use super::declaration::{Declaration, Ordering};
use super::instance::{Instance, State};
use super::message;
use crate::settings;
use crate::spi::{Db, Rows, Statement, arg};

static PASSED: Statement = Statement::new(
    "SELECT t.name FROM pg_catalog.unnest($2) AS t (name) \
     WHERE EXISTS (SELECT FROM {s}sequenced_message m \
        WHERE m.sequence_instance_id {=} $1 AND m.message_type {=} t.name \
          AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])) \
        OR ($3 AND EXISTS (SELECT FROM {s}sequenced_message m \
        WHERE m.sequence_instance_id {=} $1 AND m.message_type {=} t.name \
          AND m.state {=} 'FAILED' AND m.next_attempt_at IS NULL AND NOT m.rejected))",
    &[INT8OID, TEXTARRAYOID, BOOLOID],
);
static WAITING_TYPES: Statement = Statement::new(
    "SELECT t.name FROM pg_catalog.unnest($2) AS t (name) \
     WHERE EXISTS (SELECT FROM {s}sequenced_message m \
        WHERE m.sequence_instance_id {=} $1 AND m.state {=} 'WAITING' \
          AND m.message_type {=} t.name)",
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
/// Nothing waits, is ready or is due again in instance $1.
macro_rules! nothing_left {
    () => {
        "NOT EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} $1 \
              AND m.state {=} ANY (ARRAY['WAITING', 'READY']::pg_catalog.text[])) \
         AND NOT EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} $1 AND m.state {=} 'FAILED' \
              AND m.next_attempt_at IS NOT NULL)"
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

/// Which of these types count as passed in the instance.
pub fn passed(
    db: &Db,
    declaration: &Declaration,
    instance: i64,
    types: &BTreeSet<&str>,
) -> HashSet<String> {
    if types.is_empty() {
        return HashSet::new();
    }
    let names: Vec<&str> = types.iter().copied().collect();
    texts(&db.write(
        &PASSED,
        &[arg(instance), arg(names), arg(declaration.skips_failures())],
    ))
    .into_iter()
    .collect()
}

fn texts(rows: &Rows) -> Vec<String> {
    (0..rows.len()).filter_map(|row| rows.get(row, 0)).collect()
}

/// Whether a message of this type may be handled now, and if not, what is missing.
pub fn missing_predecessors(
    db: &Db,
    declaration: &Declaration,
    instance: i64,
    message_type: &str,
) -> Option<Vec<String>> {
    let declared = declaration.message_type(message_type)?;
    let predecessors = declared.predecessors();
    let passed = passed(db, declaration, instance, &predecessors);
    if declared.may_go(&|name| passed.contains(name)) {
        return None;
    }
    Some(
        predecessors
            .into_iter()
            .filter(|name| !passed.contains(*name))
            .map(str::to_owned)
            .collect(),
    )
}

/// Makes READY what a message of this type (and position) no longer holds back, and
/// closes the instance if it is complete. The message is recorded already.
pub fn after_passing(
    db: &Db,
    declaration: &Declaration,
    instance: &mut Instance,
    message_type: &str,
) {
    match declaration.ordering {
        Ordering::Conditions => {
            release_types(
                db,
                declaration,
                instance.id,
                declaration.successors(message_type),
            );
        }
        Ordering::Position => advance(db, declaration, instance),
    }
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
            &[arg(instance), arg(declaration.required_types())],
        ),
        Ordering::Position => db.write(
            &IS_COMPLETE_BY_POSITION,
            &[arg(instance), arg(declaration.name.as_str())],
        ),
    };
    answer.get(0, 0) == Some(true)
}

/// Makes the waiting messages of those of these types READY whose condition holds.
fn release_types(db: &Db, declaration: &Declaration, instance: i64, types: &[String]) {
    if types.is_empty() {
        return;
    }
    let waiting = texts(&db.write(&WAITING_TYPES, &[arg(instance), arg(types.to_vec())]));
    let (released, _) = judged(db, declaration, instance, waiting);
    if !released.is_empty() {
        make_ready(db, instance, released);
    }
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

/// Parts the types by whether their condition holds in the instance.
fn judged(
    db: &Db,
    declaration: &Declaration,
    instance: i64,
    types: Vec<String>,
) -> (Vec<String>, Vec<String>) {
    let declared: Vec<_> = types
        .iter()
        .filter_map(|name| declaration.message_type(name))
        .collect();
    let predecessors = declared
        .iter()
        .flat_map(|declared| declared.predecessors())
        .collect();
    let passed = passed(db, declaration, instance, &predecessors);
    types.into_iter().partition(|name| {
        declaration
            .message_type(name)
            .is_some_and(|declared| declared.may_go(&|name| passed.contains(name)))
    })
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
            let (released, held_back) =
                judged(db, declaration, instance.id, declaration.all_types());
            make_ready(db, instance.id, released);
            db.write(&MAKE_WAIT, &[arg(instance.id), arg(held_back)]);
        }
        Ordering::Position => advance(db, declaration, &mut instance),
    }
    close_if_complete(db, declaration, &mut instance);
}

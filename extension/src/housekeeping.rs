//! `inbox_housekeeping`: closes, expires and removes sequence instances and moves the
//! ring on, one bounded batch in the caller's transaction (guarantees G8, G9).
//!
//! Instances are taken with SKIP LOCKED and judged again under their lock: one with a
//! claim or a message in flight is left alone, and any number of sessions may do
//! housekeeping at once.

use std::time::Duration;

use pgrx::datum::clock_timestamp;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::BuiltinOid::{INT4OID, INT8ARRAYOID, TEXTOID, TIMESTAMPTZOID};
use pgrx::prelude::*;

use crate::args;
use crate::claim_age;
use crate::errors::{InboxError, or_raise};
use crate::ring;
use crate::sequences::declaration;
use crate::sequences::instance::Instance;
use crate::sequences::operator::end_instance;
use crate::sequences::release;
use crate::settings;
use crate::spi::{Db, Rows, Statement, arg};

static SEQUENCES: Statement =
    Statement::new("SELECT t.name FROM {s}sequence_type t ORDER BY t.name", &[]);
/// Among the instances that expire first: those that are complete and still open. A
/// message that completes its instance closes it too; what is left for housekeeping is
/// what became complete by another declaration, and it gets here before it expires.
static COMPLETE_BUT_OPEN: Statement = Statement::new(
    "SELECT i.id FROM (SELECT o.id FROM {s}sequence_instance o \
            WHERE o.name {=} $1 AND o.state {=} 'OPEN' ORDER BY o.retain_until LIMIT $2) i \
     WHERE EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} i.id \
              AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])) \
       AND CASE WHEN (SELECT t.ordering FROM {s}sequence_type t WHERE t.name {=} $1) \
                {=} 'position' THEN EXISTS (SELECT FROM {s}sequence_message_type t \
                JOIN {s}sequenced_message m ON m.message_type {=} t.message_type \
                WHERE t.sequence_name {=} $1 AND t.final AND m.sequence_instance_id {=} i.id \
                  AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[])) \
           ELSE NOT EXISTS (SELECT FROM {s}sequence_message_type t \
                WHERE t.sequence_name {=} $1 AND NOT t.optional \
                  AND NOT EXISTS (SELECT FROM {s}sequenced_message m \
                    WHERE m.sequence_instance_id {=} i.id AND m.message_type {=} t.message_type \
                      AND m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[]))) \
           END",
    &[TEXTOID, INT4OID],
);
static EXPIRED: Statement = Statement::new(
    "SELECT i.id FROM {s}sequence_instance i \
     WHERE i.name {=} $1 AND i.state {=} 'OPEN' AND i.retain_until {<} ($2 {-} \
        (SELECT t.expiry_grace FROM {s}sequence_type t WHERE t.name {=} $1)) \
     ORDER BY i.retain_until LIMIT $3 FOR UPDATE SKIP LOCKED",
    &[TEXTOID, TIMESTAMPTZOID, INT4OID],
);

/// What holds an ended instance back: anything newer than the retention, anything that
/// still waits, a dead letter that is unresolved and not old enough.
macro_rules! removable {
    () => {
        "NOT EXISTS (SELECT FROM {s}sequential_inbox_idempotence c \
            WHERE c.sequence_instance_id {=} i.id AND c.created_at {>} ($2 {-} t.retention)) \
         AND NOT EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} i.id AND m.state_changed_at {>} ($2 {-} t.retention)) \
         AND NOT EXISTS (SELECT FROM {s}sequenced_message m \
            WHERE m.sequence_instance_id {=} i.id \
              AND (m.state {=} ANY (ARRAY['WAITING', 'READY']::pg_catalog.text[]) \
                   OR (m.state {=} 'FAILED' \
                       AND (m.next_attempt_at IS NOT NULL OR m.state_changed_at {>} $3) \
                       AND NOT EXISTS (SELECT FROM {s}sequential_inbox_idempotence c \
                            WHERE c.message_type {=} m.message_type \
                              AND c.idempotence_id {=} m.idempotence_id))))"
    };
}
static REMOVABLE_BY_RETENTION: Statement = Statement::new(
    concat!(
        "SELECT i.id FROM {s}sequence_instance i, {s}sequence_type t \
         WHERE t.name {=} $1 AND i.name {=} $1 AND i.state {<>} 'OPEN' \
           AND i.retain_until {<} $2 AND ",
        removable!(),
        " ORDER BY i.retain_until LIMIT $4 FOR UPDATE OF i SKIP LOCKED"
    ),
    &[TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID],
);
static REMOVABLE_BY_END: Statement = Statement::new(
    concat!(
        "SELECT i.id FROM {s}sequence_instance i, {s}sequence_type t \
         WHERE t.name {=} $1 AND i.name {=} $1 AND i.state {<>} 'OPEN' \
           AND i.closed_at {<} ($2 {-} (SELECT r.retention FROM {s}sequence_type r WHERE r.name {=} $1)) \
           AND ",
        removable!(),
        " ORDER BY i.closed_at LIMIT $4 FOR UPDATE OF i SKIP LOCKED"
    ),
    &[TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID],
);
/// The second look, under the locks and with a newer snapshot.
static REMOVE: Statement = Statement::new(
    concat!(
        "DELETE FROM {s}sequence_instance i USING {s}sequence_type t \
         WHERE i.id {=} ANY ($4) AND t.name {=} $1 AND i.name {=} $1 AND i.state {<>} 'OPEN' AND ",
        removable!()
    ),
    &[TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8ARRAYOID],
);
/// Plain consumers' failures that are done or given up for good.
static REMOVE_PLAIN: Statement = Statement::new(
    "DELETE FROM {s}sequenced_message WHERE id {=} ANY (ARRAY( \
        SELECT m.id FROM {s}sequenced_message m WHERE m.sequence_instance_id IS NULL \
          AND ((m.state {=} ANY (ARRAY['PROCESSED', 'SKIPPED']::pg_catalog.text[]) \
                AND m.state_changed_at {<} $1) \
               OR (m.state {=} 'FAILED' AND m.next_attempt_at IS NULL \
                   AND m.state_changed_at {<} $2)) \
        LIMIT $3 FOR UPDATE SKIP LOCKED))",
    &[TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID],
);
/// What one batch did.
#[derive(Debug, Default)]
pub struct Batch {
    closed: i64,
    expired: i64,
    removed: i64,
    rotated: bool,
    /// Some batch was full: call again.
    pub more: bool,
}

/// One batch of at most `size` instances of each kind.
pub fn one_batch(db: &Db, size: i32) -> Batch {
    let now = clock_timestamp();
    let sequences = db.write(&SEQUENCES, &[]);
    let mut batch = Batch::default();
    for name in (0..sequences.len()).filter_map(|row| sequences.get::<String>(row, 0)) {
        batch.closed += close_complete(db, &name, size - batch.closed as i32);
        batch.expired += expire(db, &name, now, size - batch.expired as i32);
        batch.removed += remove(db, &name, now, size - batch.removed as i32);
    }
    let plain = remove_plain(db, now, size);
    let size = i64::from(size);
    batch.more = [batch.closed, batch.expired, batch.removed, plain].contains(&size);
    // Last, because claims wait from here to the commit.
    batch.rotated = ring::rotate_if_due(db);
    batch
}

fn ids(rows: &Rows) -> Vec<i64> {
    (0..rows.len()).filter_map(|row| rows.get(row, 0)).collect()
}

fn close_complete(db: &Db, name: &str, size: i32) -> i64 {
    let candidates = ids(&db.write(&COMPLETE_BUT_OPEN, &[arg(name), arg(size)]));
    if candidates.is_empty() {
        return 0;
    }
    // Rows of other sequences are locked already: waiting for a declarer, who may be
    // waiting for them, would be a deadlock.
    let Some(declaration) = declaration::of_name_unless_changing(db, name) else {
        return 0;
    };
    let mut closed = 0;
    for id in candidates {
        if let Some(mut instance) = Instance::try_lock(db, id)
            && release::close_if_complete(db, &declaration, &mut instance)
        {
            closed += 1;
        }
    }
    closed
}

fn expire(db: &Db, name: &str, now: TimestampWithTimeZone, size: i32) -> i64 {
    let expired = ids(&db.write(&EXPIRED, &[arg(name), arg(now), arg(size)]));
    for id in &expired {
        end_instance(
            db,
            *id,
            "EXPIRED",
            false,
            "the sequence instance expired while it waited",
        );
    }
    expired.len() as i64
}

fn remove(db: &Db, name: &str, now: TimestampWithTimeZone, size: i32) -> i64 {
    let dead_letters = ago(now, settings::dead_letter_retention());
    // A claim may have become visible so much later than it is dated.
    let now = ago(now, claim_age::TOLERANCE);
    let mut removed = 0;
    for candidates in [&REMOVABLE_BY_RETENTION, &REMOVABLE_BY_END] {
        let left = size - removed as i32;
        let found = ids(&db.write(
            candidates,
            &[arg(name), arg(now), arg(dead_letters), arg(left)],
        ));
        if !found.is_empty() {
            removed += db
                .write(
                    &REMOVE,
                    &[arg(name), arg(now), arg(dead_letters), arg(found)],
                )
                .len() as i64;
        }
    }
    removed
}

fn remove_plain(db: &Db, now: TimestampWithTimeZone, size: i32) -> i64 {
    let done = ago(now, settings::claim_retention());
    let dead_letters = ago(now, settings::dead_letter_retention());
    db.write(&REMOVE_PLAIN, &[arg(done), arg(dead_letters), arg(size)])
        .len() as i64
}

/// The time before which something must have happened to be older than the span.
fn ago(now: TimestampWithTimeZone, span: Duration) -> TimestampWithTimeZone {
    let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    TimestampWithTimeZone::try_from(i64::from(now).saturating_sub(span))
        .unwrap_or_else(|_| TimestampWithTimeZone::negative_infinity())
}

/// `inbox_housekeeping(batch_size)`
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn inbox_housekeeping(
    batch_size: Option<i32>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(closed, i64),
        name!(expired, i64),
        name!(removed, i64),
        name!(rotated, bool),
        name!(more, bool),
    ),
> {
    let batch = or_raise((|| {
        let size = args::required("batch_size", batch_size)?;
        if size < 1 {
            return Err(
                InboxError::invalid(format!("batch_size must be at least 1: {size}"))
                    .hint("Leave it out for the default of 1000."),
            );
        }
        // SAFETY: reads this backend's state.
        if unsafe { pg_sys::RecoveryInProgress() } {
            return Ok(Batch::default());
        }
        Ok(one_batch(
            &Db::read_write(fcinfo, "inbox_housekeeping")?,
            size,
        ))
    })());
    TableIterator::once((
        batch.closed,
        batch.expired,
        batch.removed,
        batch.rotated,
        batch.more,
    ))
}

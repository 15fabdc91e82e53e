//! `inbox_lookup`: all that the inbox knows of a message (G8, G12).

use pgrx::JsonB;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::BuiltinOid::TEXTOID;
use pgrx::prelude::*;

use crate::args;
use crate::errors::or_raise;
use crate::spi::{Db, Statement, arg};

/// One row for each claim space that knows the message. A failed message that was
/// claimed again since, without the inbox's record, counts as processed.
static LOOKUP: Statement = Statement::new(
    "SELECT 'consumer', c.claimed_at, c.attributes, NULL::bigint, m.id, \
            CASE WHEN m.state {=} 'FAILED' AND c.claimed_at IS NOT NULL THEN 'PROCESSED' \
                 ELSE m.state END, m.attempts, m.last_error \
     FROM (SELECT claimed_at, attributes FROM {s}inbox_claim_0 \
              WHERE consumer {=} $1 AND message_id {=} $2 \
           UNION ALL SELECT claimed_at, attributes FROM {s}inbox_claim_1 \
              WHERE consumer {=} $1 AND message_id {=} $2 \
           UNION ALL SELECT claimed_at, attributes FROM {s}inbox_claim_2 \
              WHERE consumer {=} $1 AND message_id {=} $2) c \
     FULL JOIN (SELECT id, state, attempts, last_error FROM {s}sequenced_message \
              WHERE message_type {=} $1 AND idempotence_id {=} $2 \
                AND sequence_instance_id IS NULL) m ON true \
     UNION ALL \
     SELECT 'sequence', c.created_at, NULL, \
            COALESCE(m.sequence_instance_id, c.sequence_instance_id), m.id, \
            CASE WHEN m.state {=} 'FAILED' AND c.created_at IS NOT NULL THEN 'PROCESSED' \
                 ELSE m.state END, m.attempts, m.last_error \
     FROM (SELECT created_at, sequence_instance_id FROM {s}sequential_inbox_idempotence \
              WHERE message_type {=} $1 AND idempotence_id {=} $2) c \
     FULL JOIN (SELECT id, sequence_instance_id, state, attempts, last_error \
              FROM {s}sequenced_message \
              WHERE message_type {=} $1 AND idempotence_id {=} $2 \
                AND sequence_instance_id IS NOT NULL) m ON true",
    &[TEXTOID, TEXTOID],
);

/// `inbox_lookup(id1, id2)`
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn inbox_lookup(
    id1: Option<&str>,
    id2: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(kind, String),
        name!(claimed_at, Option<TimestampWithTimeZone>),
        name!(attributes, Option<JsonB>),
        name!(sequence_instance_id, Option<i64>),
        name!(message_id, Option<i64>),
        name!(state, Option<String>),
        name!(attempts, Option<i32>),
        name!(last_error, Option<String>),
    ),
> {
    let found = or_raise((|| {
        let id1 = args::name("id1", id1)?;
        let id2 = args::id("id2", id2)?;
        let db = Db::read_only(fcinfo);
        let rows = db.read(&LOOKUP, &[arg(id1), arg(id2)]);
        Ok((0..rows.len())
            .map(|row| {
                (
                    rows.get(row, 0).unwrap_or_default(),
                    rows.get(row, 1),
                    rows.get(row, 2),
                    rows.get(row, 3),
                    rows.get(row, 4),
                    rows.get(row, 5),
                    rows.get(row, 6),
                    rows.get(row, 7),
                )
            })
            .collect::<Vec<_>>())
    })());
    TableIterator::new(found)
}

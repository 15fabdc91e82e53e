//! A sequenced claim's retention counts from its commit, not from its insert (G9).
//!
//! The claim's `created_at` is written when the claim is made; the transaction may
//! commit much later. What took longer than a moment is dated anew just before the
//! commit, so that a claim never ends earlier than one retention after it became
//! visible. Plain claims need none of this: their tables are sealed with the gate
//! closed. For a prepared transaction the time of PREPARE counts.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use pgrx::callbacks::{PgXactCallbackEvent, register_xact_callback};
use pgrx::datum::clock_timestamp;
use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{TEXTARRAYOID, TIMESTAMPTZOID};
use pgrx::prelude::TimestampWithTimeZone;

use crate::claims::MessageKey;
use crate::spi::{Db, Statement, arg};

/// A transaction that commits within this time after its first claim leaves the claims
/// dated as they are; housekeeping adds the same time to every retention. Short beside
/// any retention, long beside the usual transaction, which so writes each claim once.
pub const TOLERANCE: Duration = Duration::from_millis(50);

/// When a claim began to be made, on both clocks.
#[derive(Clone, Copy)]
pub struct Moment {
    elapsed: Instant,
    dated: TimestampWithTimeZone,
}

impl Moment {
    /// This moment.
    pub fn now() -> Self {
        Self {
            elapsed: Instant::now(),
            dated: clock_timestamp(),
        }
    }
}

/// The claims of the running transaction.
struct Open {
    first: Moment,
    namespace: pg_sys::Oid,
    message_types: Vec<String>,
    idempotence_ids: Vec<String>,
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

static DATE_ANEW: Statement = Statement::new(
    "UPDATE {s}sequential_inbox_idempotence c SET created_at = pg_catalog.clock_timestamp() \
     FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) \
        AS k (message_type, idempotence_id) \
     WHERE c.message_type {=} k.message_type AND c.idempotence_id {=} k.idempotence_id \
       AND c.created_at {>=} $3",
    &[TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPTZOID],
);

/// Remembers a claim that was won until its transaction ends. A duplicate is not
/// remembered: the row is somebody else's.
pub fn remember(db: &Db, key: MessageKey<'_>, began: Moment) {
    OPEN.with_borrow_mut(|open| {
        let open = open.get_or_insert_with(|| {
            watch_transaction();
            Open {
                first: began,
                namespace: db.namespace(),
                message_types: Vec::new(),
                idempotence_ids: Vec::new(),
            }
        });
        open.message_types.push(key.message_type.to_owned());
        open.idempotence_ids.push(key.idempotence_id.to_owned());
    });
}

fn watch_transaction() {
    register_xact_callback(PgXactCallbackEvent::PreCommit, date_if_late);
    register_xact_callback(PgXactCallbackEvent::PrePrepare, date_if_late);
    register_xact_callback(PgXactCallbackEvent::Abort, || OPEN.set(None));
}

/// Dates the transaction's claims anew if it took longer than a moment.
fn date_if_late() {
    let Some(open) = OPEN.take() else {
        return;
    };
    if open.first.elapsed.elapsed() <= TOLERANCE {
        return;
    }
    // SAFETY: the transaction is still whole; an error aborts it, and that puts role and
    // snapshots back. As a foreign key's check does, it runs as the table's owner: the
    // commit may come under another role than the claim, or after SET TRANSACTION READ ONLY.
    unsafe {
        let table =
            pg_sys::get_relname_relid(c"sequential_inbox_idempotence".as_ptr(), open.namespace);
        let Some(owner) = owner_of(table) else {
            return;
        };
        let (mut role, mut context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut role, &mut context);
        let read_only = pg_sys::XactReadOnly;
        pg_sys::SetUserIdAndSecContext(
            owner,
            context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32,
        );
        pg_sys::XactReadOnly = false;
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        Db::connect(open.namespace).write(
            &DATE_ANEW,
            &[
                arg(open.message_types),
                arg(open.idempotence_ids),
                arg(open.first.dated),
            ],
        );
        pg_sys::PopActiveSnapshot();
        pg_sys::XactReadOnly = read_only;
        pg_sys::SetUserIdAndSecContext(role, context);
    }
}

/// Who owns the table; none where it was dropped in this transaction.
fn owner_of(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    if table == pg_sys::InvalidOid {
        return None;
    }
    // SAFETY: the table is open, and so its row of pg_class is valid, while it is read.
    unsafe {
        let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(table, mode);
        let owner = (*(*relation).rd_rel).relowner;
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        Some(owner)
    }
}

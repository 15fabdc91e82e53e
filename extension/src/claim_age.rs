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

/// The claims of the running transaction.
struct Open {
    began: Instant,
    dated: TimestampWithTimeZone,
    namespace: pg_sys::Oid,
    /// Whose rights made them; the commit may come under another role.
    role: pg_sys::Oid,
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

/// Remembers a claim that is about to be made until its transaction ends.
pub fn remember(db: &Db, key: MessageKey<'_>) {
    OPEN.with_borrow_mut(|open| {
        let open = open.get_or_insert_with(|| {
            watch_transaction();
            Open {
                began: Instant::now(),
                dated: clock_timestamp(),
                namespace: db.namespace(),
                // SAFETY: reads this backend's state.
                role: unsafe { pg_sys::GetUserId() },
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
    if open.began.elapsed() <= TOLERANCE {
        return;
    }
    // SAFETY: the transaction is still whole; an error aborts it, and that puts role and
    // snapshots back.
    unsafe {
        let mut role = pg_sys::InvalidOid;
        let mut context = 0;
        pg_sys::GetUserIdAndSecContext(&mut role, &mut context);
        pg_sys::SetUserIdAndSecContext(
            open.role,
            context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32,
        );
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        Db::connect(open.namespace).write(
            &DATE_ANEW,
            &[
                arg(open.message_types),
                arg(open.idempotence_ids),
                arg(open.dated),
            ],
        );
        pg_sys::PopActiveSnapshot();
        pg_sys::SetUserIdAndSecContext(role, context);
    }
}

//! What the tests of retention share: a batch of housekeeping, plain claims, a look at the ring and
//! at who holds its gate, and the one place in which time is moved (G9). Nobody waits for days: what
//! is stored of the past is moved further back.

use postgres::{Error, IsolationLevel};

use crate::inbox::Session;

/// The consumer whose claims the tests make.
pub const CONSUMER: &str = "billing";

/// Half of `sequential_inbox.claim_retention` as it is set by default: after this long the ring is
/// due to move on.
pub const HALF_A_RETENTION: &str = "7 days";

/// What one call of `inbox_housekeeping` did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// How many instances it closed.
    pub closed: i64,
    /// How many it expired.
    pub expired: i64,
    /// How many it removed.
    pub removed: i64,
    /// Whether the ring moved on.
    pub rotated: bool,
    /// Whether there may be more to do.
    pub more: bool,
}

/// `inbox_housekeeping` with that batch size.
///
/// # Errors
///
/// Those of the server.
pub fn try_housekeep(session: &mut Session, batch_size: Option<i32>) -> Result<Batch, Error> {
    let rows = session.query(
        "SELECT closed, expired, removed, rotated, more FROM inbox_housekeeping($1)",
        &[&batch_size],
    )?;
    assert_eq!(rows.len(), 1, "inbox_housekeeping gives one row");
    Ok(Batch {
        closed: rows[0].get(0),
        expired: rows[0].get(1),
        removed: rows[0].get(2),
        rotated: rows[0].get(3),
        more: rows[0].get(4),
    })
}

/// The same, which must succeed and keep to the batch size.
#[track_caller]
pub fn housekeep_by(session: &mut Session, batch_size: i32) -> Batch {
    match try_housekeep(session, Some(batch_size)) {
        Ok(batch) => {
            let largest = batch.closed.max(batch.expired).max(batch.removed);
            assert!(largest <= i64::from(batch_size), "{batch:?}");
            batch
        }
        Err(error) => panic!("inbox_housekeeping({batch_size}): {error:?}"),
    }
}

/// The same with the default batch size.
#[track_caller]
pub fn housekeep(session: &mut Session) -> Batch {
    housekeep_by(session, 1000)
}

/// Moves time on for the ring: all that happened to it is that much longer ago.
#[track_caller]
pub fn age_ring(session: &mut Session, by: &str) {
    session.run(&format!(
        "UPDATE inbox_claim_ring SET current_since = current_since - interval '{by}',
            sealed_at_0 = sealed_at_0 - interval '{by}',
            sealed_at_1 = sealed_at_1 - interval '{by}',
            sealed_at_2 = sealed_at_2 - interval '{by}'"
    ));
}

/// Moves time on for sequences and for plain consumers' failures: all that is recorded of them is
/// that much longer ago.
#[track_caller]
pub fn age_sequences(session: &mut Session, by: &str) {
    session.run(&format!(
        "UPDATE sequence_instance SET created_at = created_at - interval '{by}',
            closed_at = closed_at - interval '{by}', retain_until = retain_until - interval '{by}';
         UPDATE sequential_inbox_idempotence SET created_at = created_at - interval '{by}';
         UPDATE sequenced_message SET created_at = created_at - interval '{by}',
            state_changed_at = state_changed_at - interval '{by}',
            next_attempt_at = next_attempt_at - interval '{by}';
         UPDATE buffered_message SET buffered_at = buffered_at - interval '{by}'"
    ));
}

/// Makes the ring due and moves it on, in a transaction that the caller ends or in one of its own.
#[track_caller]
pub fn rotate(session: &mut Session) {
    age_ring(session, HALF_A_RETENTION);
    assert!(housekeep(session).rotated, "the ring moves on");
}

/// `inbox_claim` of [`CONSUMER`].
///
/// # Errors
///
/// Those of the server.
pub fn try_claim(session: &mut Session, message_id: &str) -> Result<bool, Error> {
    let rows = session.query(
        "SELECT inbox_claim($1::text, $2::text)",
        &[&CONSUMER, &message_id],
    )?;
    Ok(rows[0].get(0))
}

/// The same, which must succeed.
#[track_caller]
pub fn claim(session: &mut Session, message_id: &str) -> bool {
    match try_claim(session, message_id) {
        Ok(answer) => answer,
        Err(error) => panic!("inbox_claim({message_id}): {error:?}"),
    }
}

/// The same in a transaction of its own, at that isolation level.
///
/// # Errors
///
/// Those of the server; the transaction is rolled back then.
pub fn try_claim_at(
    session: &mut Session,
    level: IsolationLevel,
    message_id: &str,
) -> Result<bool, Error> {
    session.begin_at(level);
    end(session, message_id)
}

/// Claims in the transaction that is open and ends it: with COMMIT, or with ROLLBACK after an error.
///
/// # Errors
///
/// Those of the server.
pub fn end(session: &mut Session, message_id: &str) -> Result<bool, Error> {
    let answer =
        try_claim(session, message_id).and_then(|won| session.query("COMMIT", &[]).map(|_| won));
    if answer.is_err() {
        session.rollback();
    }
    answer
}

/// `inbox_try_claim` of [`CONSUMER`].
#[track_caller]
pub fn claim_without_waiting(session: &mut Session, message_id: &str) -> String {
    session.value(
        "SELECT inbox_try_claim($1::text, $2::text)",
        &[&CONSUMER, &message_id],
    )
}

/// Which table is current and how often the ring has moved on.
#[track_caller]
pub fn ring(session: &mut Session) -> (i32, i64) {
    let rows = session
        .query("SELECT current_table, rotations FROM inbox_claim_ring", &[])
        .unwrap_or_else(|error| panic!("the ring: {error:?}"));
    rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)))
}

/// The number of the table in which each claim of [`CONSUMER`] is, by the claims' message ids.
#[track_caller]
pub fn table_of(session: &mut Session, message_id: &str) -> Option<i32> {
    let rows = session
        .query(
            "SELECT 0 FROM inbox_claim_0 WHERE (consumer, message_id) = ($1, $2)
             UNION ALL SELECT 1 FROM inbox_claim_1 WHERE (consumer, message_id) = ($1, $2)
             UNION ALL SELECT 2 FROM inbox_claim_2 WHERE (consumer, message_id) = ($1, $2)",
            &[&CONSUMER, &message_id],
        )
        .unwrap_or_else(|error| panic!("the claim {message_id}: {error:?}"));
    assert!(rows.len() <= 1, "{message_id} is claimed twice");
    rows.first().map(|row| row.get(0))
}

/// The modes in which the session of that process id holds a lock on the ring, ACCESS SHARE of its
/// own reads left out.
#[track_caller]
pub fn gate_modes(session: &mut Session, pid: i32) -> Vec<String> {
    session.value(
        "SELECT coalesce(array_agg(mode ORDER BY mode), '{}') FROM pg_locks
         WHERE pid = $1 AND relation = 'inbox_claim_ring'::regclass AND granted
           AND mode <> 'AccessShareLock'
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        &[&pid],
    )
}

//! Claims of sequenced messages: one row under a unique key (G1 to G4, G10, G12).
//!
//! The insert is the claim. A concurrent duplicate waits in the primary key's index
//! until the winner's transaction ends, whichever way it ends, and then either finds
//! the committed row or inserts its own. At REPEATABLE READ and SERIALIZABLE the
//! same insert raises 40001 where the winner committed after the snapshot.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pgrx::pg_sys::BuiltinOid::{INT8OID, TEXTOID};
use pgrx::prelude::*;

use crate::args;
use crate::claim_age::{self, Moment};
use crate::errors::{InboxError, Result, or_raise};
use crate::nowait::within;
use crate::probe::{Holder, IndexProbe, Key};
use crate::spi::{Db, Statement, arg};
use crate::statistics::{self, Counter, Kind, Wait};

static INSERT_CLAIM: Statement = Statement::new(
    "INSERT INTO {s}sequential_inbox_idempotence \
     (message_type, idempotence_id, sequence_instance_id, created_at) \
     VALUES ($1, $2, $3, pg_catalog.clock_timestamp()) \
     ON CONFLICT (message_type, idempotence_id) DO NOTHING",
    &[TEXTOID, TEXTOID, INT8OID],
);

static DELETE_CLAIM: Statement = Statement::new(
    "DELETE FROM {s}sequential_inbox_idempotence \
     WHERE message_type {=} $1 AND idempotence_id {=} $2",
    &[TEXTOID, TEXTOID],
);

/// The identity of a sequenced message.
#[derive(Debug, Clone, Copy)]
pub struct MessageKey<'a> {
    pub message_type: &'a str,
    pub idempotence_id: &'a str,
}

impl<'a> MessageKey<'a> {
    /// Checks both parts (22004, 22023, 22001).
    pub fn checked(message_type: Option<&'a str>, idempotence_id: Option<&'a str>) -> Result<Self> {
        Ok(Self {
            message_type: args::name("message_type", message_type)?,
            idempotence_id: args::id("idempotence_id", idempotence_id)?,
        })
    }
}

/// What `inbox_try_claim` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryClaim {
    Claimed,
    Duplicate,
    InFlight,
}

impl TryClaim {
    /// The word that SQL callers get.
    pub fn word(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Duplicate => "duplicate",
            Self::InFlight => "in_flight",
        }
    }

    /// What statistics count it as.
    pub fn counter(self) -> Counter {
        match self {
            Self::Claimed => Counter::Claimed,
            Self::Duplicate => Counter::Duplicate,
            Self::InFlight => Counter::InFlight,
        }
    }

    /// Looks who holds the claim and makes it if nobody is in the way; never waits.
    pub fn attempt(holder: impl FnOnce() -> Holder, claim: impl FnOnce() -> bool) -> Self {
        // The look is inside too: opening a table can wait for whoever empties it.
        let attempt = within(Duration::ZERO, || match holder() {
            Holder::InFlight(_) => None,
            Holder::Nobody | Holder::Settled { .. } => Some(claim()),
        });
        match attempt {
            Some(true) => Self::Claimed,
            Some(false) => Self::Duplicate,
            None => Self::InFlight,
        }
    }
}

/// Claims the message for this transaction; waits while another holds it.
pub fn claim(db: &Db, key: MessageKey<'_>, instance: i64) -> bool {
    let began = Moment::now();
    let won = PgTryBuilder::new(AssertUnwindSafe(|| {
        let claim = [
            arg(key.message_type),
            arg(key.idempotence_id),
            arg(instance),
        ];
        !db.write(&INSERT_CLAIM, &claim).is_empty()
    }))
    // The one foreign key is the instance's. The error is raised anew, with a hint,
    // and ends the transaction as the original would.
    .catch_when(PgSqlErrorCode::ERRCODE_FOREIGN_KEY_VIOLATION, |_| {
        InboxError::no_instance(instance).raise()
    })
    .execute();
    if won {
        claim_age::remember(db, key, began);
    }
    won
}

/// Gives the claim back, so that the message can be claimed again after the commit.
pub fn delete(db: &Db, key: MessageKey<'_>) {
    db.write(
        &DELETE_CLAIM,
        &[arg(key.message_type), arg(key.idempotence_id)],
    );
}

/// Who holds the message's claim right now.
pub fn holder(db: &Db, key: MessageKey<'_>) -> Holder {
    IndexProbe::open(
        db,
        "sequential_inbox_idempotence",
        "sequential_inbox_idempotence_pkey",
    )
    .holder(&[Key::Text(key.message_type), Key::Text(key.idempotence_id)])
}

/// `inbox_claim(message_type, idempotence_id, sequence_instance_id)`
#[pg_extern(sql = false)]
fn inbox_claim_sequenced(
    message_type: Option<&str>,
    idempotence_id: Option<&str>,
    sequence_instance_id: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    or_raise((|| {
        let key = MessageKey::checked(message_type, idempotence_id)?;
        let instance = args::required("sequence_instance_id", sequence_instance_id)?;
        let db = Db::read_write(fcinfo, "inbox_claim")?;
        let wait = Wait::begin_if(Kind::Sequence, key.message_type, || {
            holder(&db, key).is_in_flight()
        });
        let won = claim(&db, key, instance);
        drop(wait);
        statistics::count_one(Kind::Sequence, key.message_type, Counter::of_claim(won));
        Ok(won)
    })())
}

/// `inbox_try_claim(message_type, idempotence_id, sequence_instance_id)`
#[pg_extern(sql = false)]
fn inbox_try_claim_sequenced(
    message_type: Option<&str>,
    idempotence_id: Option<&str>,
    sequence_instance_id: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> &'static str {
    or_raise((|| {
        let key = MessageKey::checked(message_type, idempotence_id)?;
        let instance = args::required("sequence_instance_id", sequence_instance_id)?;
        let db = Db::read_write(fcinfo, "inbox_try_claim")?;
        let answer = TryClaim::attempt(|| holder(&db, key), || claim(&db, key, instance));
        statistics::count_one(Kind::Sequence, key.message_type, answer.counter());
        Ok(answer.word())
    })())
}

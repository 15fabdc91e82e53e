//! Sequence instances: `inbox_sequence` and the lock of an instance (G6, G7, G10).
//!
//! Whoever receives or hands out a message updates the instance's row first and
//! holds its lock to the end of the transaction. So two messages of one instance
//! are never handled at the same time, every decision sees what the one before
//! committed, and an older snapshot gets 40001 instead of deciding.

use pgrx::pg_sys::BuiltinOid::{INT8OID, TEXTOID};
use pgrx::prelude::*;

use super::declaration::{self, Declaration};
use crate::args;
use crate::errors::{InboxError, Result, or_raise};
use crate::probe::{IndexProbe, Key};
use crate::spi::{Db, Rows, Statement, arg};

static FIND: Statement = Statement::new(
    "SELECT id FROM {s}sequence_instance WHERE name {=} $1 AND context_id {=} $2",
    &[TEXTOID, TEXTOID],
);
static CREATE: Statement = Statement::new(
    "INSERT INTO {s}sequence_instance AS i (name, context_id, retain_until) \
     SELECT t.name, $2, pg_catalog.clock_timestamp() {+} t.retention \
     FROM {s}sequence_type t WHERE t.name {=} $1 \
     ON CONFLICT (name, context_id) DO NOTHING \
     RETURNING i.id, i.name, i.context_id, i.state, i.closed_by_operator, i.next_position",
    &[TEXTOID, TEXTOID],
);
static LOCK_BY_CONTEXT: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET revision = revision {+} 1 \
     WHERE name {=} $1 AND context_id {=} $2 \
     RETURNING id, name, context_id, state, closed_by_operator, next_position",
    &[TEXTOID, TEXTOID],
);
static LOCK_BY_ID: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET revision = revision {+} 1 WHERE id {=} $1 \
     RETURNING id, name, context_id, state, closed_by_operator, next_position",
    &[INT8OID],
);
static TRY_LOCK_BY_ID: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET revision = revision {+} 1 \
     WHERE id {=} (SELECT i.id FROM {s}sequence_instance i WHERE i.id {=} $1 \
                   FOR NO KEY UPDATE SKIP LOCKED) \
     RETURNING id, name, context_id, state, closed_by_operator, next_position",
    &[INT8OID],
);
static NAME_OF: Statement = Statement::new(
    "SELECT name FROM {s}sequence_instance WHERE id {=} $1",
    &[INT8OID],
);
/// An instance whose time was over gets a whole retention again.
static REOPEN: Statement = Statement::new(
    "UPDATE {s}sequence_instance i SET state = 'OPEN', closed_by_operator = false, \
            closed_at = NULL, \
            retain_until = CASE WHEN i.retain_until {<} pg_catalog.clock_timestamp() \
                THEN pg_catalog.clock_timestamp() {+} \
                    (SELECT t.retention FROM {s}sequence_type t WHERE t.name {=} i.name) \
                ELSE i.retain_until END \
     WHERE i.id {=} $1",
    &[INT8OID],
);
static COMPLETE: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET state = 'CLOSED', closed_by_operator = false, \
            closed_at = pg_catalog.clock_timestamp() \
     WHERE id {=} $1",
    &[INT8OID],
);
static SET_NEXT_POSITION: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET next_position = $2 WHERE id {=} $1",
    &[INT8OID, INT8OID],
);

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    /// Complete.
    Complete,
    /// Closed with `inbox_close`.
    ClosedByOperator,
    Expired,
}

/// A sequence instance whose row this transaction has locked.
#[derive(Debug)]
pub struct Instance {
    pub id: i64,
    pub name: String,
    pub context_id: String,
    pub state: State,
    pub next_position: i64,
}

impl Instance {
    fn from_row(rows: &Rows) -> Option<Self> {
        let closed_by_operator: bool = rows.get(0, 4)?;
        let state = match rows.get::<&str>(0, 3)? {
            "OPEN" => State::Open,
            "EXPIRED" => State::Expired,
            _ if closed_by_operator => State::ClosedByOperator,
            _ => State::Complete,
        };
        Some(Self {
            id: rows.get(0, 0)?,
            name: rows.get(0, 1)?,
            context_id: rows.get(0, 2)?,
            state,
            next_position: rows.get(0, 5)?,
        })
    }

    /// Locks the instance of this context, which is created if need be.
    pub fn lock_or_create(db: &Db, sequence: &str, context_id: &str) -> Self {
        let key = [arg(sequence), arg(context_id)];
        // Until one of the two finds the row: it may be created or removed meanwhile.
        loop {
            if let Some(instance) = Self::from_row(&db.write(&LOCK_BY_CONTEXT, &key)) {
                return instance;
            }
            if let Some(instance) = Self::from_row(&db.write(&CREATE, &key)) {
                return instance;
            }
        }
    }

    /// Whether another transaction holds the instance of this context, or is making it.
    pub fn is_held(db: &Db, sequence: &str, context_id: &str) -> bool {
        IndexProbe::open(
            db,
            "sequence_instance",
            "sequence_instance_name_context_id_key",
        )
        .holder(&[Key::Text(sequence), Key::Text(context_id)])
        .is_in_flight()
    }

    /// Locks the instance of this id; none if it is gone. One that was created after the
    /// transaction's snapshot is not gone: 40001.
    pub fn lock(db: &Db, id: i64) -> Option<Self> {
        let locked = Self::from_row(&db.write(&LOCK_BY_ID, &[arg(id)]));
        if locked.is_none() && Self::sequence_name(db, id).is_some() {
            InboxError::serialization().raise();
        }
        locked
    }

    /// The same, but none too where another transaction holds it.
    pub fn try_lock(db: &Db, id: i64) -> Option<Self> {
        Self::from_row(&db.write(&TRY_LOCK_BY_ID, &[arg(id)]))
    }

    /// The name of the instance's sequence, which never changes; none if it is gone.
    pub fn sequence_name(db: &Db, id: i64) -> Option<String> {
        db.read_latest(&NAME_OF, &[arg(id)]).get(0, 0)
    }

    /// Opens the instance again, so that something may wait in it.
    pub fn reopen(&mut self, db: &Db) {
        if self.state != State::Open {
            db.write(&REOPEN, &[arg(self.id)]);
            self.state = State::Open;
        }
    }

    /// Closes the instance because it is complete.
    pub fn complete(&mut self, db: &Db) {
        db.write(&COMPLETE, &[arg(self.id)]);
        self.state = State::Complete;
    }

    /// Moves on to another position.
    pub fn set_next_position(&mut self, db: &Db, position: i64) {
        if self.next_position != position {
            db.write(&SET_NEXT_POSITION, &[arg(self.id), arg(position)]);
            self.next_position = position;
        }
    }
}

/// Locks an instance and holds its declaration: first the declaration, then the row,
/// in the same order everywhere.
pub fn lock_with_declaration(
    db: &Db,
    id: i64,
) -> Result<Option<(std::rc::Rc<Declaration>, Instance)>> {
    let Some(name) = Instance::sequence_name(db, id) else {
        return Ok(None);
    };
    let declaration = declaration::of_name(db, &name)?;
    Ok(Instance::lock(db, id).map(|instance| (declaration, instance)))
}

/// `inbox_sequence(sequence_name, context_id)`
#[pg_extern(sql = false)]
fn inbox_sequence(
    sequence_name: Option<&str>,
    context_id: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> i64 {
    or_raise((|| {
        let name = args::name("sequence_name", sequence_name)?;
        let context_id = args::id("context_id", context_id)?;
        let db = Db::read_write(fcinfo, "inbox_sequence")?;
        let declaration = declaration::of_name(&db, name)?;
        let key = [arg(declaration.name.as_str()), arg(context_id)];
        loop {
            if let Some(id) = db.write(&FIND, &key).get(0, 0) {
                return Ok(id);
            }
            if let Some(id) = db.write(&CREATE, &key).get(0, 0) {
                return Ok(id);
            }
        }
    })())
}

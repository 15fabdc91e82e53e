//! What the database and its transactions look like at one moment.
//!
//! Times are ages in ticks, counted up to a limit (see the crate's opening). A row
//! is identified by its table and its key; a row of a transaction in progress is
//! kept with that transaction, a committed one in [`State::committed`], and an
//! aborted one is gone, since nobody can see it.

/// Tables in the ring.
pub const TABLES: u8 = 3;

/// Most keys a model can have.
pub const MAX_KEYS: usize = 2;

/// Most transactions in progress or prepared that a model can have at once.
pub const MAX_SESSIONS: usize = 3;

/// One of the three tables of the ring: 0, 1 or 2.
pub type Table = u8;

/// One message of one consumer: 0 or 1.
pub type Key = u8;

/// Ticks since something happened, counted up to a limit.
pub type Age = u8;

/// The table after `table` in the ring.
pub fn next(table: Table) -> Table {
    (table + 1) % TABLES
}

/// The table before `table` in the ring.
pub fn previous(table: Table) -> Table {
    (table + TABLES - 1) % TABLES
}

/// The two tables of the ring other than `table`.
pub fn others(table: Table) -> [Table; 2] {
    [next(table), previous(table)]
}

/// A set of rows, one bit a table and key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rows(u8);

impl Rows {
    fn bit(table: Table, key: Key) -> u8 {
        1 << (table * MAX_KEYS as u8 + key)
    }

    /// Whether the row of `key` in `table` is in the set.
    pub fn has(self, table: Table, key: Key) -> bool {
        self.0 & Self::bit(table, key) != 0
    }

    /// Whether `key` has a row in any table.
    pub fn has_key(self, key: Key) -> bool {
        self.tables_of(key).count() > 0
    }

    /// The tables in which `key` has a row.
    pub fn tables_of(self, key: Key) -> impl Iterator<Item = Table> {
        (0..TABLES).filter(move |&table| self.has(table, key))
    }

    /// Adds the row of `key` in `table`.
    pub fn add(&mut self, table: Table, key: Key) {
        self.0 |= Self::bit(table, key);
    }

    /// The rows of both sets.
    pub fn with(self, other: Rows) -> Rows {
        Rows(self.0 | other.0)
    }

    /// The set without the rows of `table`.
    pub fn without(self, table: Table) -> Rows {
        let all = (1 << MAX_KEYS) - 1;
        Rows(self.0 & !(all << (table * MAX_KEYS as u8)))
    }

    /// Whether there is a row outside `table`.
    pub fn any_outside(self, table: Table) -> bool {
        self.without(table).0 != 0
    }

    /// The same rows with tables and keys renamed.
    pub fn renamed(self, table: impl Fn(Table) -> Table, key: impl Fn(Key) -> Key) -> Rows {
        let mut renamed = Rows::default();
        for t in 0..TABLES {
            for k in 0..MAX_KEYS as Key {
                if self.has(t, k) {
                    renamed.add(table(t), key(k));
                }
            }
        }
        renamed
    }
}

/// A set of tables, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tables(u8);

impl Tables {
    /// All three.
    pub const ALL: Tables = Tables((1 << TABLES) - 1);

    /// Whether `table` is in the set.
    pub fn has(self, table: Table) -> bool {
        self.0 & (1 << table) != 0
    }

    /// Adds `table`.
    pub fn add(&mut self, table: Table) {
        self.0 |= 1 << table;
    }

    /// The tables of both sets.
    pub fn with(self, other: Tables) -> Tables {
        Tables(self.0 | other.0)
    }

    /// The same set with tables renamed.
    pub fn renamed(self, table: impl Fn(Table) -> Table) -> Tables {
        let mut renamed = Tables::default();
        for t in 0..TABLES {
            if self.has(t) {
                renamed.add(table(t));
            }
        }
        renamed
    }
}

/// The row of `inbox_claim_ring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ring {
    /// The table that new claims go into.
    pub current: Table,
    /// Per table, how long ago it was sealed. A table that never was is as free
    /// to be emptied as one that was sealed long ago, and reads so.
    pub sealed: [Age; TABLES as usize],
}

/// Isolation level of a transaction. SERIALIZABLE adds only aborts to REPEATABLE
/// READ, and any transaction of the model may abort at any step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isolation {
    /// Each statement sees what was committed when it started.
    #[default]
    ReadCommitted,
    /// Each statement sees what was committed when the first one started.
    RepeatableRead,
}

/// What a snapshot shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// The committed rows it sees. TRUNCATE takes rows from old snapshots too.
    pub rows: Rows,
    /// The current table according to the ring row it sees; none in a protocol that
    /// never asks an old snapshot for it.
    pub current: Option<Table>,
}

/// What a transaction holds, and loses when it ends or rolls back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holdings {
    /// The weak lock on the ring: a claim's gate.
    pub gate: bool,
    /// Claim tables read or written, and so locked against TRUNCATE.
    pub touched: Tables,
    /// Rows inserted: claims won but not committed.
    pub rows: Rows,
}

impl Holdings {
    /// Both together.
    pub fn with(self, other: Holdings) -> Holdings {
        Holdings {
            gate: self.gate || other.gate,
            touched: self.touched.with(other.touched),
            rows: self.rows.with(other.rows),
        }
    }
}

/// The rotation that a transaction is doing or has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rotation {
    /// The strong lock on the ring: the rotation's gate.
    pub gate: bool,
    /// The current table as it read it: the one it seals.
    pub from: Option<Table>,
    /// How long ago it read the clock: the seal time it records.
    pub clock: Option<Age>,
    /// It has emptied the next table and changed the ring row.
    pub done: bool,
}

/// Steps of a claim, each atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimStep {
    /// Take the weak lock on the ring.
    Gate,
    /// Read which table is current.
    ReadRing,
    /// Look for the key in the two sealed tables.
    Probe,
    /// Insert into the current table under its primary key.
    Insert,
}

/// Steps of a rotation, each atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RotateStep {
    /// Take the strong lock on the ring, waiting no longer than the timeout.
    Gate,
    /// Read the clock and the ring, and judge whether the next table may go.
    ReadRing,
    /// Empty the next table and change the ring row.
    Truncate,
}

/// What a transaction is in the middle of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Nothing: the application has its turn.
    #[default]
    Ready,
    /// `inbox_claim`.
    Claim {
        /// The key it claims.
        key: Key,
        /// The step to take next.
        step: ClaimStep,
        /// The current table as it read it.
        current: Option<Table>,
    },
    /// `inbox_housekeeping`, where it rotates.
    Rotate(RotateStep),
}

/// A transaction in progress or prepared. The default value is none at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Its isolation level.
    pub isolation: Isolation,
    /// PREPARE TRANSACTION was done: it outlives backend and server.
    pub prepared: bool,
    /// A savepoint is set.
    pub savepoint: bool,
    /// What it holds since before the savepoint, and since then.
    pub held: [Holdings; 2],
    /// Its snapshot. At READ COMMITTED: that of the running statement, and only
    /// in a protocol that uses it.
    pub snapshot: Option<Snapshot>,
    /// It believes it holds the gate, and asks no more. Only a broken protocol
    /// remembers that.
    pub remembers_gate: bool,
    /// Its rotation.
    pub rotation: Rotation,
    /// What it is in the middle of.
    pub phase: Phase,
}

impl Session {
    /// Whether there is no transaction.
    pub fn is_idle(&self) -> bool {
        *self == Session::default()
    }

    /// All that the transaction holds.
    pub fn holds(&self) -> Holdings {
        self.held[0].with(self.held[1])
    }

    /// The holdings that a step taken now adds to.
    pub fn innermost(&mut self) -> &mut Holdings {
        &mut self.held[usize::from(self.savepoint)]
    }

    /// The table that the transaction's own uncommitted rotation emptied.
    pub fn emptied(&self) -> Option<Table> {
        self.rotation.from.filter(|_| self.rotation.done).map(next)
    }
}

/// One moment of the database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// The committed ring row; none before the first rotation.
    pub ring: Option<Ring>,
    /// The committed claims.
    pub committed: Rows,
    /// Per key, how long ago a claim of it was committed; none when never, or so
    /// long ago that nothing depends on it. Observer, no part of the protocol.
    pub won: [Option<Age>; MAX_KEYS],
    /// Two claims of one key have won inside one retention. Observer.
    pub two_winners: bool,
    /// How far the watched story has come. Observer, see [`crate::Witness`].
    pub story: u8,
    /// The transactions in progress and prepared.
    pub sessions: [Session; MAX_SESSIONS],
}

//! Claims of plain consumers in a ring of three tables (G1 to G4, G9, G10, G12).
//!
//! `docs/ring.md` tells the protocol and why each step is there; `tests/model` checks
//! it exhaustively. In short, a claim
//! 1. takes the gate, a weak lock on `inbox_claim_ring`, to the end of the
//!    transaction, and anew each time: rolling back to a savepoint releases it;
//! 2. reads which table is current with a snapshot taken after that;
//! 3. looks into the two sealed tables as they are now, not as an older snapshot
//!    shows them;
//! 4. inserts into the current table under its unique key.
//!
//! A rotation takes the gate strongly, so no claim is in flight while it moves on.

use pgrx::datum::clock_timestamp;
use pgrx::pg_sys::BuiltinOid::{INT4OID, INT8OID, JSONBOID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use pgrx::{JsonB, Uuid};

use crate::args;
use crate::claims::TryClaim;
use crate::errors::{InboxError, Result, or_raise};
use crate::nowait::within;
use crate::probe::{Holder, IndexProbe, Key, integer_of_one_row};
use crate::rotation::{Plan, Ring, TABLES};
use crate::settings;
use crate::spi::{self, Db, Statement, arg, quote_identifier};
use crate::statistics::{self, Counter, Kind, Wait};

/// Held by every claim to the end of its transaction. It conflicts with a rotation and
/// with nothing else that reads or writes the table, and it is one of the modes that a
/// backend can take without the shared lock table.
const GATE: u32 = pg_sys::RowShareLock;

/// Taken by a rotation: waits for claims, lets readers of the ring's row go on.
const CLOSED_GATE: u32 = pg_sys::ExclusiveLock;

/// The number of the column that names the current table.
const CURRENT_TABLE: usize = 2;

macro_rules! on_each_table {
    ($name:ident, $before:literal, $after:literal, $args:expr) => {
        static $name: [Statement; TABLES] = [
            Statement::new(concat!($before, "{s}inbox_claim_0", $after), $args),
            Statement::new(concat!($before, "{s}inbox_claim_1", $after), $args),
            Statement::new(concat!($before, "{s}inbox_claim_2", $after), $args),
        ];
    };
}

on_each_table!(
    INSERT,
    "INSERT INTO ",
    " (consumer, message_id, claimed_at) VALUES ($1, $2, pg_catalog.clock_timestamp()) \
      ON CONFLICT (consumer, message_id) DO NOTHING",
    &[TEXTOID, TEXTOID]
);
on_each_table!(
    INSERT_BATCH,
    "INSERT INTO ",
    " AS c (consumer, message_id, claimed_at) \
      SELECT $1, u.message_id, pg_catalog.clock_timestamp() \
      FROM pg_catalog.unnest($2) WITH ORDINALITY AS u (message_id, place) ORDER BY u.place \
      ON CONFLICT (consumer, message_id) DO NOTHING RETURNING c.message_id",
    &[TEXTOID, TEXTARRAYOID]
);
on_each_table!(
    ANNOTATE,
    "UPDATE ",
    " SET attributes = COALESCE(attributes, '{}'::pg_catalog.jsonb) {||} $3 \
      WHERE consumer {=} $1 AND message_id {=} $2",
    &[TEXTOID, TEXTOID, JSONBOID]
);
on_each_table!(
    DELETE,
    "DELETE FROM ",
    " WHERE consumer {=} $1 AND message_id {=} $2",
    &[TEXTOID, TEXTOID]
);
static FORGET_RECORD: Statement = Statement::new(
    "DELETE FROM {s}sequenced_message \
     WHERE message_type {=} $1 AND idempotence_id {=} $2 AND sequence_instance_id IS NULL \
       AND state {<>} 'READY'",
    &[TEXTOID, TEXTOID],
);

static READ_RING: Statement = Statement::new(
    "SELECT current_table, current_since, sealed_at_0, sealed_at_1, sealed_at_2 \
     FROM {s}inbox_claim_ring",
    &[],
);
static STORE_RING: Statement = Statement::new(
    "INSERT INTO {s}inbox_claim_ring AS r \
     (current_table, current_since, sealed_at_0, sealed_at_1, sealed_at_2, rotations) \
     VALUES ($1, $2, $3, $4, $5, $6) \
     ON CONFLICT (singleton) DO UPDATE SET current_table = EXCLUDED.current_table, \
        current_since = EXCLUDED.current_since, sealed_at_0 = EXCLUDED.sealed_at_0, \
        sealed_at_1 = EXCLUDED.sealed_at_1, sealed_at_2 = EXCLUDED.sealed_at_2, \
        rotations = r.rotations {+} EXCLUDED.rotations",
    &[
        INT4OID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        INT8OID,
    ],
);
on_each_table!(HAS_ROWS, "SELECT EXISTS (SELECT FROM ", ")", &[]);

/// The ring with the gate held: which table is current cannot change any more.
struct Gate {
    current: usize,
}

impl Gate {
    /// Takes the gate and reads, after that, which table is current.
    fn enter(db: &Db) -> Self {
        db.lock_relation("inbox_claim_ring", GATE);
        let current = integer_of_one_row(db, "inbox_claim_ring", CURRENT_TABLE);
        Self {
            current: current
                .and_then(|table| usize::try_from(table).ok())
                .unwrap_or(0),
        }
    }

    /// The current table and then the sealed ones.
    fn tables(&self) -> [usize; TABLES] {
        [
            self.current,
            (self.current + 1) % TABLES,
            (self.current + 2) % TABLES,
        ]
    }

    /// The two sealed tables, open for probes.
    fn sealed(&self, db: &Db) -> [IndexProbe; 2] {
        let [_, one, two] = self.tables();
        [open(db, one), open(db, two)]
    }
}

const TABLE_NAMES: [&str; TABLES] = ["inbox_claim_0", "inbox_claim_1", "inbox_claim_2"];
const INDEX_NAMES: [&str; TABLES] = [
    "inbox_claim_0_pkey",
    "inbox_claim_1_pkey",
    "inbox_claim_2_pkey",
];

fn open(db: &Db, table: usize) -> IndexProbe {
    IndexProbe::open(db, TABLE_NAMES[table], INDEX_NAMES[table])
}

/// Whether a sealed table has the claim. Nobody inserts there, but a release or a
/// failure may be deleting the row: its outcome is waited for.
fn is_sealed(index: &IndexProbe, consumer: &str, message_id: &str) -> bool {
    loop {
        match index.holder(&[Key::Text(consumer), Key::Text(message_id)]) {
            Holder::Nobody => return false,
            Holder::Settled {
                after_snapshot: false,
            } => return true,
            // What an insert into the table itself would have reported.
            Holder::Settled {
                after_snapshot: true,
            } => InboxError::serialization().raise(),
            Holder::InFlight(holder) => spi::wait_for_transaction(holder),
        }
    }
}

/// Claims the message for this transaction; waits while another holds it.
pub fn claim(db: &Db, consumer: &str, message_id: &str) -> bool {
    claim_with(db, consumer, message_id, |_| None)
}

/// The same for a caller: its answer, and the wait for it, are counted.
fn counted_claim(db: &Db, consumer: &str, message_id: &str) -> bool {
    let key = [Key::Text(consumer), Key::Text(message_id)];
    let won = claim_with(db, consumer, message_id, |current| {
        Wait::begin_if(Kind::Consumer, consumer, || {
            open(db, current).holder(&key).is_in_flight()
        })
    });
    statistics::count_one(Kind::Consumer, consumer, Counter::of_claim(won));
    won
}

/// Claims; `waits` is told the table in which a duplicate would wait, before it does.
fn claim_with<'a>(
    db: &Db,
    consumer: &str,
    message_id: &str,
    waits: impl FnOnce(usize) -> Option<Wait<'a>>,
) -> bool {
    let gate = Gate::enter(db);
    if gate
        .sealed(db)
        .iter()
        .any(|sealed| is_sealed(sealed, consumer, message_id))
    {
        return false;
    }
    let _wait = waits(gate.current);
    !db.write(&INSERT[gate.current], &[arg(consumer), arg(message_id)])
        .is_empty()
}

/// Who holds the message's claim right now, in any of the tables.
pub fn holder(db: &Db, consumer: &str, message_id: &str) -> Holder {
    (0..TABLES)
        .map(|table| open(db, table).holder(&[Key::Text(consumer), Key::Text(message_id)]))
        .find(|holder| *holder != Holder::Nobody)
        .unwrap_or(Holder::Nobody)
}

/// Gives the claim back; tells whether there was one. Waits for whoever deletes it too.
pub fn delete(db: &Db, consumer: &str, message_id: &str) -> bool {
    Gate::enter(db).tables().into_iter().any(|table| {
        !db.write(&DELETE[table], &[arg(consumer), arg(message_id)])
            .is_empty()
    })
}

fn try_claim(db: &Db, consumer: &str, message_id: &str) -> TryClaim {
    let answer = TryClaim::attempt(
        || holder(db, consumer, message_id),
        || claim(db, consumer, message_id),
    );
    statistics::count_one(Kind::Consumer, consumer, answer.counter());
    answer
}

/// Claims many messages; answers in their order, a repeat is false.
fn claim_batch(db: &Db, consumer: &str, message_ids: &[&str]) -> Vec<bool> {
    let gate = Gate::enter(db);
    // The same order in every session: two batches never wait for each other crosswise.
    let mut keys = message_ids.to_vec();
    keys.sort_unstable();
    keys.dedup();
    for sealed in gate.sealed(db) {
        keys.retain(|message_id| !is_sealed(&sealed, consumer, message_id));
    }
    let wait = Wait::begin(Kind::Consumer, consumer, || {
        let current = open(db, gate.current);
        keys.iter()
            .filter(|message_id| {
                let key = [Key::Text(consumer), Key::Text(message_id)];
                current.holder(&key).is_in_flight()
            })
            .count()
    });
    let won = db.write(&INSERT_BATCH[gate.current], &[arg(consumer), arg(keys)]);
    drop(wait);
    let claimed = won.len() as u64;
    let counts = [
        (Counter::Claimed, claimed),
        (Counter::Duplicate, message_ids.len() as u64 - claimed),
    ];
    statistics::count(Kind::Consumer, consumer, &counts);
    let mut unanswered: std::collections::HashSet<String> =
        (0..won.len()).filter_map(|row| won.get(row, 0)).collect();
    message_ids
        .iter()
        .map(|message_id| unanswered.remove(*message_id))
        .collect()
}

/// Moves the ring on if that is due; tells whether it did. Where claims are in flight, or
/// something reads the table that would be emptied, it gives up and is tried again later.
/// The gate stays closed until the transaction ends, but only if the ring was changed.
pub fn rotate_if_due(db: &Db) -> bool {
    let looks_due = matches!(
        planned_at(&read_ring(db), i64::from(clock_timestamp())),
        Plan::MoveTo(_)
    );
    // A claim of this very transaction would be sealed before it commits.
    if !looks_due || db.holds_relation_lock("inbox_claim_ring", GATE) {
        return false;
    }
    within(settings::rotation_lock_timeout(), || {
        db.lock_relation("inbox_claim_ring", CLOSED_GATE);
        move_on(db)
    })
    .unwrap_or(false)
}

/// Empties the oldest table and makes it current, with the gate closed. False: another
/// change of the ring had to come first; none: it is not due, or somebody reads the table.
fn move_on(db: &Db) -> Option<bool> {
    // The row and the clock are read after the gate was closed: another session may
    // have rotated meanwhile, and no claim can commit after the time that is recorded.
    let now = i64::from(clock_timestamp());
    let ring = read_ring(db);
    let Plan::MoveTo(next) = planned_at(&ring, now) else {
        return None;
    };
    if ring.sealed_at[next].is_none() && has_rows(db, next) {
        // The ring's row was lost, or a dump is being restored: forget nothing whose age
        // is not known.
        store_ring(db, &ring.sealed(next, now), 0);
        return Some(false);
    }
    // Without waiting: claims queue behind the gate already, and behind whoever waits for this
    // lock a parallel pg_dump, which has the table and asks for it again, would fail.
    if !db.try_lock_relation(TABLE_NAMES[next], pg_sys::AccessExclusiveLock) {
        return None;
    }
    let truncate = format!(
        "TRUNCATE {}.{}",
        quote_identifier(db.schema()),
        quote_identifier(TABLE_NAMES[next])
    );
    or_raise(db.utility(&truncate));
    store_ring(db, &ring.moved(now), 1);
    Some(true)
}

fn has_rows(db: &Db, table: usize) -> bool {
    db.read_latest(&HAS_ROWS[table], &[]).get::<bool>(0, 0) == Some(true)
}

fn store_ring(db: &Db, ring: &Ring, rotations: i64) {
    let [zero, one, two] = ring.sealed_at.map(|at| at.and_then(timestamp));
    db.write(
        &STORE_RING,
        &[
            arg(ring.current as i32),
            arg(timestamp(ring.current_since)),
            arg(zero),
            arg(one),
            arg(two),
            arg(rotations),
        ],
    );
}

fn planned_at(ring: &Ring, now: i64) -> Plan {
    let retention = i64::try_from(settings::claim_retention().as_micros()).unwrap_or(i64::MAX);
    ring.plan(now, retention)
}

/// The stored form of a time; the one before all times is -infinity in both.
fn timestamp(at: i64) -> Option<TimestampWithTimeZone> {
    if at == i64::MIN {
        return Some(TimestampWithTimeZone::negative_infinity());
    }
    TimestampWithTimeZone::try_from(at).ok()
}

/// When the ring is due to move on at the earliest; none: it has never moved and is due.
pub fn next_rotation(db: &Db) -> Option<TimestampWithTimeZone> {
    match planned_at(&read_ring(db), i64::MIN) {
        Plan::NotBefore(due_at) => timestamp(due_at),
        Plan::MoveTo(_) => None,
    }
}

/// The ring as it is now; without a row it is as CREATE EXTENSION left it.
fn read_ring(db: &Db) -> Ring {
    let row = db.read_latest(&READ_RING, &[]);
    let at = |column| row.get::<TimestampWithTimeZone>(0, column).map(i64::from);
    match (
        row.get::<i32>(0, 0)
            .and_then(|table| usize::try_from(table).ok()),
        at(1),
    ) {
        (Some(current), Some(current_since)) => Ring {
            current,
            current_since,
            sealed_at: [at(2), at(3), at(4)],
        },
        _ => Ring::INITIAL,
    }
}

/// Runs `work` on a plain consumer's checked key, for a function that writes.
fn on_key<T>(
    fcinfo: pg_sys::FunctionCallInfo,
    function: &str,
    consumer: Option<&str>,
    message_id: Option<&str>,
    work: impl FnOnce(&Db, &str, &str) -> T,
) -> T {
    or_raise((|| {
        let consumer = args::name("consumer", consumer)?;
        let message_id = args::id("message_id", message_id)?;
        Ok(work(
            &Db::read_write(fcinfo, function)?,
            consumer,
            message_id,
        ))
    })())
}

/// `inbox_claim(consumer, message_id)`
#[pg_extern(sql = false)]
fn inbox_claim_plain(
    consumer: Option<&str>,
    message_id: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    on_key(fcinfo, "inbox_claim", consumer, message_id, counted_claim)
}

/// `inbox_claim(consumer, message_id uuid)`
#[pg_extern(sql = false)]
fn inbox_claim_uuid(
    consumer: Option<&str>,
    message_id: Option<Uuid>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    let message_id = message_id.map(|uuid| uuid.to_string());
    on_key(
        fcinfo,
        "inbox_claim",
        consumer,
        message_id.as_deref(),
        counted_claim,
    )
}

/// `inbox_try_claim(consumer, message_id)`
#[pg_extern(sql = false)]
fn inbox_try_claim_plain(
    consumer: Option<&str>,
    message_id: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> &'static str {
    on_key(fcinfo, "inbox_try_claim", consumer, message_id, try_claim).word()
}

/// `inbox_try_claim(consumer, message_id uuid)`
#[pg_extern(sql = false)]
fn inbox_try_claim_uuid(
    consumer: Option<&str>,
    message_id: Option<Uuid>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> &'static str {
    let message_id = message_id.map(|uuid| uuid.to_string());
    on_key(
        fcinfo,
        "inbox_try_claim",
        consumer,
        message_id.as_deref(),
        try_claim,
    )
    .word()
}

/// `inbox_claim_batch(consumer, message_ids)`
#[pg_extern(sql = false)]
fn inbox_claim_batch(
    consumer: Option<&str>,
    message_ids: Option<Array<&str>>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Vec<bool> {
    or_raise((|| {
        let consumer = args::name("consumer", consumer)?;
        let message_ids = args::required("message_ids", message_ids)?;
        let message_ids = message_ids
            .iter()
            .map(|message_id| {
                let message_id = message_id.ok_or_else(|| {
                    InboxError::null("an element of message_ids")
                        .hint("Pass an array without NULLs; nothing was claimed.")
                })?;
                args::bounded("an element of message_ids", message_id, args::ID_BYTES)
            })
            .collect::<Result<Vec<&str>>>()?;
        let db = Db::read_write(fcinfo, "inbox_claim_batch")?;
        Ok(claim_batch(&db, consumer, &message_ids))
    })())
}

/// `inbox_annotate(consumer, message_id, attributes)`
#[pg_extern(sql = false)]
fn inbox_annotate(
    consumer: Option<&str>,
    message_id: Option<&str>,
    attributes: Option<JsonB>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    let attributes = or_raise(args::required("attributes", attributes));
    if !attributes.0.is_object() {
        InboxError::invalid("attributes must be a JSON object")
            .hint("Pass for example '{\"source\": \"orders\"}'.")
            .raise();
    }
    on_key(
        fcinfo,
        "inbox_annotate",
        consumer,
        message_id,
        |db, consumer, message_id| {
            Gate::enter(db).tables().into_iter().any(|table| {
                let merged = JsonB(attributes.0.clone());
                let key = [arg(consumer), arg(message_id), arg(merged)];
                !db.write(&ANNOTATE[table], &key).is_empty()
            })
        },
    )
}

/// `inbox_release(consumer, message_id)`
#[pg_extern(sql = false)]
fn inbox_release(
    consumer: Option<&str>,
    message_id: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    on_key(
        fcinfo,
        "inbox_release",
        consumer,
        message_id,
        |db, consumer, message_id| {
            let released = delete(db, consumer, message_id);
            if released {
                // The replay starts from nothing, also for a later inbox_fail().
                db.write(&FORGET_RECORD, &[arg(consumer), arg(message_id)]);
            }
            released
        },
    )
}

//! What was claimed, received, handed out and failed since the server started: counters in
//! shared memory, one entry a consumer or message type.
//!
//! They count what callers were told, so a rollback does not take it back: a rate of retries
//! or of deadlocks shows. Memory is bounded: who comes when every entry is taken is counted in
//! one row for all of those. Counters exist only where the library is preloaded; elsewhere
//! they cost a look at a flag.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pgrx::iter::TableIterator;
use pgrx::prelude::*;
use pgrx::shmem::AssertPGRXSharedMemory;
use pgrx::{PgLwLock, pg_shmem_init};

use crate::args;
use crate::counters::Table;
pub use crate::counters::{Counter, Kind};
use crate::errors::{InboxError, or_raise};
use crate::settings;

/// So many consumers and message types are told apart, over all databases. With room for
/// the longest names that makes some 640 kB.
const ENTRIES: usize = 1_000;

/// The counters of all databases.
type Counters = AssertPGRXSharedMemory<Table<ENTRIES>>;

// SAFETY: the name is this extension's alone.
static TABLE: PgLwLock<Counters> = unsafe { PgLwLock::new(c"sequential_inbox_statistics") };

/// Set in the postmaster, and so in each of its children.
static HAS_TABLE: AtomicBool = AtomicBool::new(false);

/// Where this session's names have their entries.
#[derive(Default)]
struct Places {
    generation: u64,
    consumers: HashMap<String, usize>,
    message_types: HashMap<String, usize>,
}

impl Places {
    fn of(&mut self, kind: Kind) -> &mut HashMap<String, usize> {
        match kind {
            Kind::Consumer => &mut self.consumers,
            Kind::Sequence => &mut self.message_types,
        }
    }
}

thread_local! {
    static PLACES: RefCell<Places> = RefCell::default();
}

/// Asks for the shared memory; only while the postmaster loads the library.
#[allow(
    unexpected_cfgs,
    reason = "the macro asks for versions of Postgres that this crate does not have"
)]
pub fn register() {
    // SAFETY: reads a flag of the postmaster.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        return;
    }
    pg_shmem_init!(TABLE = shareable(Table::empty(now())));
    HAS_TABLE.store(true, Ordering::Relaxed);
}

fn shareable(table: Table<ENTRIES>) -> Counters {
    // SAFETY: no pointer is in it, and what is changed with the lock in shared mode is atomic.
    unsafe { Counters::new(table) }
}

/// The server's clock, in microseconds of its own epoch.
fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// This session's database.
fn database() -> u32 {
    // SAFETY: reads what a backend has from its start.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// Whether this session counts.
pub fn is_on() -> bool {
    HAS_TABLE.load(Ordering::Relaxed) && settings::track()
}

/// Counts for a consumer or message type of this database.
pub fn count(kind: Kind, name: &str, counts: &[(Counter, u64)]) {
    if !is_on() {
        return;
    }
    let database = database();
    PLACES.with_borrow_mut(|places| {
        {
            let table = TABLE.share();
            if places.generation != table.generation() {
                *places = Places {
                    generation: table.generation(),
                    ..Places::default()
                };
            }
            let known = places.of(kind).get(name).copied();
            let place = known.or_else(|| {
                let found = table.find(database, kind, name)?;
                // There is no end of names that have no entry of their own.
                if table.is_own(found) {
                    places.of(kind).insert(name.to_owned(), found);
                }
                Some(found)
            });
            if let Some(place) = place {
                table.entry(place).add(counts);
                return;
            }
        }
        // Once a name: the next time it is found.
        let mut table = TABLE.exclusive();
        let place = table.find_or_take(database, kind, name, now());
        table.entry(place).add(counts);
    });
}

/// Counts one event.
pub fn count_one(kind: Kind, name: &str, counter: Counter) {
    count(kind, name, &[(counter, 1)]);
}

/// A wait for other transactions, counted when it begins; its time when it ends, whichever
/// way it ends.
#[must_use = "the wait ends when this is dropped"]
pub struct Wait<'a> {
    kind: Kind,
    name: &'a str,
    began: Instant,
}

impl<'a> Wait<'a> {
    /// Begins a wait for the messages that others hold; none: there are none. How many those
    /// are is asked only where it counts.
    pub fn begin(kind: Kind, name: &'a str, held: impl FnOnce() -> usize) -> Option<Self> {
        if !is_on() {
            return None;
        }
        let held = held();
        if held == 0 {
            return None;
        }
        count(kind, name, &[(Counter::Waited, held as u64)]);
        Some(Self {
            kind,
            name,
            began: Instant::now(),
        })
    }

    /// The same for one message.
    pub fn begin_if(kind: Kind, name: &'a str, is_held: impl FnOnce() -> bool) -> Option<Self> {
        Self::begin(kind, name, || usize::from(is_held()))
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        count(self.kind, self.name, &[(Counter::WaitMicros, micros)]);
    }
}

/// 55000: nothing is counted in this server.
fn not_preloaded() -> InboxError {
    InboxError::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "sequential_inbox must be loaded via shared_preload_libraries to keep statistics",
    )
    .detail("Claims, order and housekeeping work without; only the counters are missing.")
    .hint("Add sequential_inbox to shared_preload_libraries and restart the server.")
}

/// `inbox_stat_counters(missing_ok)`
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn inbox_stat_counters(
    missing_ok: Option<bool>,
) -> TableIterator<
    'static,
    (
        name!(kind, &'static str),
        name!(name, Option<String>),
        name!(claimed, i64),
        name!(duplicate, i64),
        name!(in_flight, i64),
        name!(waited, i64),
        name!(wait_time, f64),
        name!(received_process, i64),
        name!(received_buffered, i64),
        name!(received_duplicate, i64),
        name!(received_direct, i64),
        name!(received_rejected, i64),
        name!(received_in_flight, i64),
        name!(released, i64),
        name!(retried, i64),
        name!(failed, i64),
        name!(stats_since, TimestampWithTimeZone),
    ),
> {
    let missing_ok = or_raise(args::required("missing_ok", missing_ok));
    if !HAS_TABLE.load(Ordering::Relaxed) {
        if !missing_ok {
            not_preloaded().raise();
        }
        return TableIterator::new(std::iter::empty());
    }
    let database = database();
    let mut rows = Vec::new();
    let table = TABLE.share();
    for entry in table.of_database(database) {
        let [
            claimed,
            duplicate,
            in_flight,
            waited,
            wait_micros,
            process,
            buffered,
            received_duplicate,
            direct,
            rejected,
            received_in_flight,
            released,
            retried,
            failed,
        ] = entry.values();
        rows.push((
            entry.kind(),
            entry.name(),
            claimed,
            duplicate,
            in_flight,
            waited,
            // Milliseconds, as other views of statistics have them.
            wait_micros as f64 / 1000.0,
            process,
            buffered,
            received_duplicate,
            direct,
            rejected,
            received_in_flight,
            released,
            retried,
            failed,
            TimestampWithTimeZone::try_from(entry.since())
                .unwrap_or_else(|_| TimestampWithTimeZone::negative_infinity()),
        ));
    }
    drop(table);
    TableIterator::new(rows)
}

/// `inbox_stat_reset(all_databases)`
#[pg_extern(sql = false)]
fn inbox_stat_reset(all_databases: Option<bool>) {
    let all = or_raise(args::required("all_databases", all_databases));
    if !HAS_TABLE.load(Ordering::Relaxed) {
        not_preloaded().raise();
    }
    let database = database();
    TABLE
        .exclusive()
        .give_back((!all).then_some(database), now());
}

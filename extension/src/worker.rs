//! The background worker: housekeeping without a scheduler (guarantees G8, G9).
//!
//! With `shared_preload_libraries = 'sequential_inbox'` a launcher wakes up every
//! `housekeeping_interval` and starts one short-lived worker a database. A worker does
//! batches, each in its own transaction, until nothing is left, and exits: between two
//! rounds no session is connected, so DROP DATABASE and DROP EXTENSION find nobody in
//! their way and an idle server stays idle. The launcher runs only after recovery: on a
//! standby it starts at the promotion.

use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, DynamicBackgroundWorker,
    SignalWakeFlags,
};
use pgrx::pg_sys::BuiltinOid::{INT8OID, TEXTOID};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;

use crate::housekeeping;
use crate::retry_pause::pause_after;
use crate::settings;
use crate::spi::{Db, Statement, arg};

/// After a crash of the launcher the postmaster starts it again this much later.
const RESTART: Duration = Duration::from_secs(10);

/// How long the launcher waits at most before it looks again whether a worker has ended;
/// the end itself wakes it up.
const POLL: Duration = Duration::from_secs(1);

/// So many rounds pass before the first one in a database that has just got the
/// extension: a dump that is being restored comes table by table, and what is there
/// already must not be judged without the rest.
const ROUNDS_OF_GRACE: u32 = 3;

/// At most this much of an error message is kept in the status row.
const ERROR_CHARS: usize = 2_000;

static NAMESPACE: Statement = Statement::new(
    "SELECT e.extnamespace FROM pg_catalog.pg_extension e WHERE e.extname {=} 'sequential_inbox'",
    &[],
);
static MAY_RUN: Statement = Statement::new(
    "SELECT pg_catalog.clock_timestamp() {>=} GREATEST(w.next_run_at, w.installed_at \
        {+} pg_catalog.make_interval(secs => $1::double precision {/} 1000)) \
     FROM {s}inbox_worker_status w",
    &[INT8OID],
);
static FAILURES: Statement = Statement::new("SELECT failures FROM {s}inbox_worker_status", &[]);
static NOTE_SUCCESS: Statement = Statement::new(
    "UPDATE {s}inbox_worker_status \
     SET last_run_at = pg_catalog.clock_timestamp(), failures = 0, next_run_at = NULL",
    &[],
);
static NOTE_FAILURE: Statement = Statement::new(
    "UPDATE {s}inbox_worker_status \
     SET last_run_at = pg_catalog.clock_timestamp(), last_error = $1, \
         last_error_at = pg_catalog.clock_timestamp(), failures = failures {+} 1, \
         next_run_at = pg_catalog.clock_timestamp() \
            {+} pg_catalog.make_interval(secs => $2::double precision {/} 1000)",
    &[TEXTOID, INT8OID],
);

/// Registers the launcher; only while the postmaster loads the library.
pub fn register() {
    // SAFETY: reads flags of the postmaster.
    let (preloading, upgrading) = unsafe {
        (
            pg_sys::process_shared_preload_libraries_in_progress,
            pg_sys::IsBinaryUpgrade,
        )
    };
    // pg_upgrade's servers hold databases that are being dumped, or are half restored.
    if !preloading || upgrading {
        return;
    }
    BackgroundWorkerBuilder::new("sequential_inbox launcher")
        .set_type("sequential_inbox launcher")
        .set_library("sequential_inbox")
        .set_function("sequential_inbox_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(RESTART))
        .load();
}

/// The launcher's main function.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sequential_inbox_launcher_main(_arg: pg_sys::Datum) {
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP | SignalWakeFlags::SIGTERM);
    // No database: the shared catalogs are enough to list them.
    BackgroundWorker::connect_worker_to_spi(None, None);
    loop {
        reload_if_asked();
        if settings::housekeeping() && !run_round() {
            break;
        }
        // Once more: what was asked for during the round has woken nobody up for the pause.
        reload_if_asked();
        if !BackgroundWorker::wait_latch(Some(settings::housekeeping_interval())) {
            break;
        }
    }
    // Not 0: after that the postmaster would not start the launcher again when only it
    // was terminated. At a shutdown nothing is started anyway.
    // SAFETY: ends this process, running its exit callbacks.
    unsafe { pg_sys::proc_exit(1) }
}

/// A worker processes its reloads itself.
fn reload_if_asked() {
    if BackgroundWorker::sighup_received() {
        // SAFETY: outside of transactions, as the function asks for.
        unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
    }
}

/// One worker for each database, one after the other; false when asked to stop. One at
/// a time leaves the other worker slots to those who need them.
fn run_round() -> bool {
    for database in databases() {
        let started = BackgroundWorkerBuilder::new("sequential_inbox worker")
            .set_type("sequential_inbox worker")
            .set_library("sequential_inbox")
            .set_function("sequential_inbox_worker_main")
            .enable_spi_access()
            .set_argument(database.into_datum())
            // SAFETY: reads this process's id.
            .set_notify_pid(unsafe { pg_sys::MyProcPid })
            .load_dynamic();
        // Without a free slot this round passes the database over.
        if let Ok(worker) = started
            && !wait_for(worker)
        {
            return false;
        }
    }
    true
}

/// Waits until the worker has ended; false when asked to stop meanwhile.
fn wait_for(worker: DynamicBackgroundWorker) -> bool {
    loop {
        match worker.pid() {
            Ok(_) | Err(pgrx::bgworkers::BackgroundWorkerStatus::NotYetStarted) => {}
            Err(_) => return true,
        }
        if !BackgroundWorker::wait_latch(Some(POLL)) {
            return false;
        }
    }
}

/// The databases that housekeeping is wanted in and that can be connected to.
fn databases() -> Vec<pg_sys::Oid> {
    let wanted = settings::housekeeping_databases();
    BackgroundWorker::transaction(|| {
        let mut found = Vec::new();
        // SAFETY: a scan of a shared catalog in a transaction; a tuple's fixed part is
        // valid until the next one is fetched.
        unsafe {
            let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            let catalog = pg_sys::table_open(pg_sys::DatabaseRelationId, mode);
            let scan = pg_sys::table_beginscan_catalog(catalog, 0, std::ptr::null_mut());
            loop {
                let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tuple.is_null() {
                    break;
                }
                let row: *const pg_sys::FormData_pg_database = (*tuple)
                    .t_data
                    .cast::<u8>()
                    .add(usize::from((*(*tuple).t_data).t_hoff))
                    .cast();
                let name = CStr::from_ptr((*row).datname.data.as_ptr()).to_string_lossy();
                let is_wanted = if wanted.is_empty() {
                    !(*row).datistemplate
                } else {
                    wanted.iter().any(|wanted| *wanted == name)
                };
                if is_wanted && (*row).datallowconn && (*row).datconnlimit != INVALID_DATABASE {
                    found.push((*row).oid);
                }
            }
            pg_sys::table_endscan(scan);
            pg_sys::table_close(catalog, mode);
        }
        found
    })
}

/// `datconnlimit` of a database whose DROP was interrupted; nobody can connect to it.
const INVALID_DATABASE: i32 = -2;

unsafe extern "C-unwind" {
    /// Postgres's own handler of SIGTERM, without pgrx's guard: inside of a signal handler
    /// nothing but its flags may be touched.
    fn die(signal: std::ffi::c_int);
}

/// The main function of a worker; the argument is the database's oid.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sequential_inbox_worker_main(database: pg_sys::Datum) {
    // SAFETY: as every backend: a termination is noticed at the next interrupt check,
    // also while it waits for a lock.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(die));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(pg_sys::SIGTERM as i32, Some(die));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
    let database = pg_sys::Oid::from(database.value() as u32);
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(database), None);
    while let Some(true) = run_batch() {}
}

/// One batch in its own transaction. `Some(true)`: there is more to do.
fn run_batch() -> Option<bool> {
    let batch = in_transaction(|| {
        let db = connect()?;
        let grace =
            i64::try_from((settings::housekeeping_interval() * ROUNDS_OF_GRACE).as_millis());
        let status = db.write(&MAY_RUN, &[arg(grace.unwrap_or(i64::MAX))]);
        if !settings::housekeeping() || status.get::<bool>(0, 0) != Some(true) {
            return None;
        }
        let batch = housekeeping::one_batch(&db, settings::housekeeping_batch_size());
        if !batch.more {
            db.write(&NOTE_SUCCESS, &[]);
        }
        Some(batch.more)
    });
    match batch {
        Ok(more) => more,
        Err(message) => {
            note_failure(&message);
            None
        }
    }
}

/// Connects to the extension of this database, if it has one, and keeps it from being
/// dropped until the transaction ends.
fn connect() -> Option<Db> {
    // SAFETY: looks the extension up by name; the lock is the one that DROP EXTENSION
    // takes too.
    let extension = unsafe {
        let extension = pg_sys::get_extension_oid(c"sequential_inbox".as_ptr(), true);
        if extension == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::LockDatabaseObject(
            pg_sys::ExtensionRelationId,
            extension,
            0,
            pg_sys::AccessShareLock as pg_sys::LOCKMODE,
        );
        pg_sys::get_extension_oid(c"sequential_inbox".as_ptr(), true)
    };
    if extension == pg_sys::InvalidOid {
        return None;
    }
    let catalog = Db::connect(pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE));
    let namespace = catalog.write(&NAMESPACE, &[]).get(0, 0)?;
    drop(catalog);
    Some(Db::connect(namespace))
}

/// Stores the error and when to try again; if not even that works, the log has it.
fn note_failure(message: &str) {
    warning!("housekeeping of sequential_inbox failed: {message}");
    let kept: String = message.chars().take(ERROR_CHARS).collect();
    let noted = in_transaction(|| {
        let Some(db) = connect() else {
            return;
        };
        let failures: i32 = db.write(&FAILURES, &[]).get(0, 0).unwrap_or_default();
        let pause = pause_after(
            failures.unsigned_abs() + 1,
            settings::housekeeping_interval(),
        );
        let millis = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        db.write(&NOTE_FAILURE, &[arg(kept.as_str()), arg(millis)]);
    });
    if let Err(message) = noted {
        warning!("the failure of housekeeping could not be noted: {message}");
    }
}

/// Runs the work in a transaction of its own; an error's message if it failed.
fn in_transaction<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // SAFETY: the frame of a background worker's transaction; an error ends it, and
    // everything it held, with AbortCurrentTransaction.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::pgstat_report_activity(
            pg_sys::BackendState::STATE_RUNNING,
            c"inbox_housekeeping".as_ptr(),
        );
        let work = AssertUnwindSafe(work);
        let result = PgTryBuilder::new(AssertUnwindSafe(move || {
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let result = { work }.0();
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            Ok(result)
        }))
        .catch_others(|error| {
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic {
                ereport: report, ..
            }) = &error;
            Err(match report.detail() {
                Some(detail) => format!("{} ({detail})", report.message()),
                None => report.message().to_owned(),
            })
        })
        .catch_rust_panic(|error| error.rethrow())
        .execute();
        if result.is_err() {
            pg_sys::AbortCurrentTransaction();
        }
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
        result
    }
}

//! The extension's settings, `sequential_inbox.*`.
//!
//! A superuser can SET each in a session; ALTER DATABASE and ALTER SYSTEM set them
//! for good. Functions and the worker follow the setting in force where they run.

use std::ffi::{CStr, CString};
use std::time::Duration;

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::pg_sys;

const DAY_SECONDS: i32 = 24 * 60 * 60;

static CLAIM_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(14 * DAY_SECONDS);
static DEAD_LETTER_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(30 * DAY_SECONDS);
static HOUSEKEEPING: GucSetting<bool> = GucSetting::<bool>::new(true);
static HOUSEKEEPING_BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(1000);
static HOUSEKEEPING_DATABASES: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c""));
static HOUSEKEEPING_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(60_000);
static NOTIFY: GucSetting<bool> = GucSetting::<bool>::new(false);
static ROTATION_LOCK_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(100);
static TRACK: GucSetting<bool> = GucSetting::<bool>::new(true);
static VERSION: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(LIBRARY));

/// The library's version, as `SHOW` gives it.
const LIBRARY: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// How long a plain consumer's claim protects at least.
pub fn claim_retention() -> Duration {
    seconds(&CLAIM_RETENTION)
}

/// How long an unresolved dead letter holds its instance back from removal.
pub fn dead_letter_retention() -> Duration {
    seconds(&DEAD_LETTER_RETENTION)
}

/// Whether the background worker does housekeeping.
pub fn housekeeping() -> bool {
    HOUSEKEEPING.get()
}

/// How many sequence instances the worker handles in one transaction.
pub fn housekeeping_batch_size() -> i32 {
    HOUSEKEEPING_BATCH_SIZE.get()
}

/// The databases in which the worker does housekeeping; none: each with the extension.
pub fn housekeeping_databases() -> Vec<String> {
    HOUSEKEEPING_DATABASES
        .get()
        .map(|list| list.to_string_lossy().into_owned())
        .unwrap_or_default()
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// How long the worker pauses between two rounds.
pub fn housekeeping_interval() -> Duration {
    Duration::from_millis(u64::from(HOUSEKEEPING_INTERVAL.get().unsigned_abs()))
}

/// Whether a READY message is announced with NOTIFY.
pub fn notify() -> bool {
    NOTIFY.get()
}

/// How long a rotation waits for claims in flight, and so claims for a rotation.
pub fn rotation_lock_timeout() -> Duration {
    Duration::from_millis(u64::from(ROTATION_LOCK_TIMEOUT.get().unsigned_abs()))
}

/// Whether a session counts what it does, where there are counters.
pub fn track() -> bool {
    TRACK.get()
}

fn seconds(setting: &GucSetting<i32>) -> Duration {
    Duration::from_secs(u64::from(setting.get().unsigned_abs()))
}

/// Defines the settings; called once, when the library is loaded.
pub fn define() {
    GucRegistry::define_int_guc(
        c"sequential_inbox.claim_retention",
        c"How long a plain consumer's claim protects at least.",
        c"With a rotation every half retention a claim protects for at most one and a half.",
        &CLAIM_RETENTION,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"sequential_inbox.dead_letter_retention",
        c"How long an unresolved dead letter is kept at least.",
        c"It holds back the removal of its sequence instance.",
        &DEAD_LETTER_RETENTION,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_bool_guc(
        c"sequential_inbox.housekeeping",
        c"Whether the background worker does housekeeping.",
        c"inbox_housekeeping() can be called either way.",
        &HOUSEKEEPING,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"sequential_inbox.housekeeping_batch_size",
        c"How many sequence instances the background worker handles in one transaction.",
        c"Smaller batches hold row locks for a shorter time.",
        &HOUSEKEEPING_BATCH_SIZE,
        1,
        1_000_000,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"sequential_inbox.housekeeping_databases",
        c"The databases in which the background worker does housekeeping.",
        c"A comma-separated list; empty means each database that has the extension.",
        &HOUSEKEEPING_DATABASES,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"sequential_inbox.housekeeping_interval",
        c"How long the background worker pauses between two rounds.",
        c"A rotation that is due happens at most this much later.",
        &HOUSEKEEPING_INTERVAL,
        10,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_bool_guc(
        c"sequential_inbox.notify",
        c"Whether a message that becomes READY is announced on channel sequential_inbox.",
        c"The payload is the id of the sequence instance. NOTIFY takes a lock that \
          serialises commits, hence off.",
        &NOTIFY,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"sequential_inbox.rotation_lock_timeout",
        c"How long a rotation waits for claims in flight before it gives up and tries later.",
        c"No claim waits longer than this for a rotation.",
        &ROTATION_LOCK_TIMEOUT,
        1,
        60_000,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_bool_guc(
        c"sequential_inbox.track",
        c"Whether claims, receipts and failures are counted in inbox_stat.",
        c"Only where the library is in shared_preload_libraries.",
        &TRACK,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"sequential_inbox.version",
        c"The version of the library that this session has loaded.",
        c"The version of the extension is in pg_extension.",
        &VERSION,
        GucContext::Internal,
        GucFlags::DISALLOW_IN_FILE,
    );
    // SAFETY: a NUL-terminated literal; called while the library is loaded.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"sequential_inbox".as_ptr()) };
}

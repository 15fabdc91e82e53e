//! The only module that runs SQL.
//!
//! Statements are prepared once a session and kept. Their text names every object
//! with its schema and every operator with `pg_catalog`, so that nothing in the
//! caller's search_path or temporary schema can take part (guarantee G14): `{s}`
//! stands for the extension's schema and a dot, and an operator in braces, `{=}`,
//! for `OPERATOR(pg_catalog.=)`. Empty braces stay as they are (an empty object).
//!
//! Reads and writes are kept apart. A read uses the snapshot of the calling query
//! and works on a standby. A write uses a new snapshot at READ COMMITTED and sees
//! all that is committed, which every decision under a lock needs (G7). Neither
//! assigns a transaction id by itself: a duplicate stays a read for the server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::time::Duration;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{FromDatum, IntoDatum, PgSqlErrorCode, PgTryBuilder, pg_sys};

use crate::errors::{InboxError, Result};
use crate::version;

/// A statement of the extension. Make each one a `static`: its address is its name
/// in the session's cache.
pub struct Statement {
    sql: &'static str,
    args: &'static [pg_sys::BuiltinOid],
}

impl Statement {
    /// A statement with its text and the types of its parameters.
    pub const fn new(sql: &'static str, args: &'static [pg_sys::BuiltinOid]) -> Self {
        Self { sql, args }
    }
}

/// A parameter's value; `None` is NULL.
pub type Arg = Option<pg_sys::Datum>;

/// Turns a value into a parameter.
pub fn arg<T: IntoDatum>(value: T) -> Arg {
    value.into_datum()
}

static INSTALLED: Statement = Statement::new(
    "SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname {=} 'sequential_inbox'",
    &[],
);

/// The session's prepared statements, valid for one schema name.
struct Plans {
    schema: String,
    plans: HashMap<usize, NonNull<pg_sys::_SPI_plan>>,
}

thread_local! {
    /// A backend has one thread, so this is the session's cache. Plans notice by
    /// themselves when a table changes or is made anew; a renamed schema empties it.
    static PLANS: RefCell<Plans> =
        RefCell::new(Plans { schema: String::new(), plans: HashMap::new() });
}

/// A connection to SPI for the length of one function call.
pub struct Db {
    namespace: pg_sys::Oid,
    schema: String,
}

impl Db {
    /// Connects for a function that only reads.
    pub fn read_only(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self::connect(namespace_of(fcinfo))
    }

    /// Connects for a function that writes; 25006 where the transaction may not.
    pub fn read_write(fcinfo: pg_sys::FunctionCallInfo, function: &str) -> Result<Self> {
        // SAFETY: both only read this backend's state.
        let (read_only, in_recovery) =
            unsafe { (pg_sys::XactReadOnly, pg_sys::RecoveryInProgress()) };
        if read_only || in_recovery {
            return Err(InboxError::read_only(function, in_recovery));
        }
        Ok(Self::connect(namespace_of(fcinfo)))
    }

    /// Connects for the extension that lives in this schema.
    pub fn connect(namespace: pg_sys::Oid) -> Self {
        let schema = schema_name(namespace);
        // SAFETY: called inside of a transaction, undone by SPI_finish in Drop.
        // SPI_connect reports a failure as an error since Postgres 10.
        unsafe { pg_sys::SPI_connect() };
        let db = Self { namespace, schema };
        version::compare_once(namespace, || db.read(&INSTALLED, &[]).get(0, 0));
        db
    }

    /// The name of the extension's schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The oid of the extension's schema.
    pub fn namespace(&self) -> pg_sys::Oid {
        self.namespace
    }

    /// The oid of a table or index of the extension, for use without SQL.
    pub fn relation(&self, name: &str) -> pg_sys::Oid {
        let relation = c_text(name).ok().map_or(pg_sys::InvalidOid, |name| {
            // SAFETY: a look into the system cache with a NUL-terminated name.
            unsafe { pg_sys::get_relname_relid(name.as_ptr(), self.namespace) }
        });
        if relation == pg_sys::InvalidOid {
            InboxError::outdated_schema(&format!("relation \"{name}\" does not exist")).raise();
        }
        relation
    }

    /// Locks a table of the extension until the transaction ends.
    pub fn lock_relation(&self, name: &str, mode: u32) {
        let relation = self.relation(name);
        // SAFETY: takes a heavyweight lock; waiting obeys the caller's time-outs.
        unsafe { pg_sys::LockRelationOid(relation, mode as pg_sys::LOCKMODE) };
    }

    /// The same without waiting; false where another transaction is in the way.
    pub fn try_lock_relation(&self, name: &str, mode: u32) -> bool {
        let relation = self.relation(name);
        // SAFETY: takes a heavyweight lock if nobody is in the way.
        unsafe { pg_sys::ConditionalLockRelationOid(relation, mode as pg_sys::LOCKMODE) }
    }

    /// Whether this transaction holds such a lock already.
    pub fn holds_relation_lock(&self, name: &str, mode: u32) -> bool {
        let relation = self.relation(name);
        // SAFETY: the relation is open while it is asked for.
        unsafe {
            let opened = pg_sys::table_open(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let held = pg_sys::CheckRelationLockedByMe(opened, mode as pg_sys::LOCKMODE, false);
            pg_sys::table_close(opened, pg_sys::NoLock as pg_sys::LOCKMODE);
            held
        }
    }

    /// Locks an object that a row of one of the extension's tables stands for, until
    /// the transaction ends. `pg_locks` shows it as an object of that table.
    pub fn lock_object(&self, table: &str, id: i32, mode: u32) {
        let table = self.relation(table);
        // SAFETY: takes a heavyweight lock; waiting obeys the caller's time-outs.
        unsafe {
            pg_sys::LockDatabaseObject(
                table,
                pg_sys::Oid::from(id.unsigned_abs()),
                0,
                mode as pg_sys::LOCKMODE,
            );
        }
    }

    /// The same without waiting; false where another transaction is in the way.
    pub fn try_lock_object(&self, table: &str, id: i32, mode: u32) -> bool {
        let table = self.relation(table);
        // SAFETY: takes a heavyweight lock if nobody is in the way.
        unsafe {
            pg_sys::ConditionalLockDatabaseObject(
                table,
                pg_sys::Oid::from(id.unsigned_abs()),
                0,
                mode as pg_sys::LOCKMODE,
            )
        }
    }

    /// Runs a statement with the snapshot of the calling query; changes nothing.
    pub fn read(&self, statement: &'static Statement, args: &[Arg]) -> Rows {
        self.execute(statement, args, true)
    }

    /// Runs a statement with a new snapshot (READ COMMITTED) or the transaction's.
    pub fn write(&self, statement: &'static Statement, args: &[Arg]) -> Rows {
        self.execute(statement, args, false)
    }

    /// Reads with a snapshot taken now, at every isolation level. For what must be
    /// read after a heavyweight lock was taken (G9, G10).
    pub fn read_latest(&self, statement: &'static Statement, args: &[Arg]) -> Rows {
        let plan = self.plan(statement);
        let (mut values, nulls) = datums(statement, args);
        // SAFETY: the plan is kept, the arrays have one element a parameter, and SPI
        // copies and pops the snapshot itself.
        unsafe {
            pg_sys::SPI_tuptable = std::ptr::null_mut();
            let status = pg_sys::SPI_execute_snapshot(
                plan.as_ptr(),
                values.as_mut_ptr(),
                nulls.as_ptr(),
                pg_sys::GetLatestSnapshot(),
                std::ptr::null_mut(),
                true,
                false,
                0,
            );
            Rows::take(status)
        }
    }

    /// Runs a utility statement, `GRANT` say, whose text the caller has quoted.
    pub fn utility(&self, sql: &str) -> Result<()> {
        let sql = c_text(sql)?;
        or_outdated(|| {
            // SAFETY: the text is NUL-terminated and outlives the call.
            checked(unsafe { pg_sys::SPI_execute(sql.as_ptr(), false, 0) });
        });
        Ok(())
    }

    fn execute(&self, statement: &'static Statement, args: &[Arg], read_only: bool) -> Rows {
        let plan = self.plan(statement);
        let (mut values, nulls) = datums(statement, args);
        // SAFETY: the plan is kept and the arrays have one element a parameter.
        unsafe {
            pg_sys::SPI_tuptable = std::ptr::null_mut();
            let status = pg_sys::SPI_execute_plan(
                plan.as_ptr(),
                values.as_mut_ptr(),
                nulls.as_ptr(),
                read_only,
                0,
            );
            Rows::take(status)
        }
    }

    /// The statement's plan, prepared at its first use in this session.
    fn plan(&self, statement: &'static Statement) -> NonNull<pg_sys::_SPI_plan> {
        let key = std::ptr::from_ref(statement) as usize;
        let cached = PLANS.with_borrow(|plans| {
            if plans.schema == self.schema {
                plans.plans.get(&key).copied()
            } else {
                None
            }
        });
        if let Some(plan) = cached {
            return plan;
        }
        let plan = self.prepare(statement);
        PLANS.with_borrow_mut(|plans| {
            if plans.schema != self.schema {
                for stale in plans.plans.drain() {
                    // SAFETY: the plan was kept by `prepare` and is forgotten here.
                    unsafe { pg_sys::SPI_freeplan(stale.1.as_ptr()) };
                }
                plans.schema.clone_from(&self.schema);
            }
            plans.plans.insert(key, plan);
        });
        plan
    }

    fn prepare(&self, statement: &'static Statement) -> NonNull<pg_sys::_SPI_plan> {
        let text = match c_text(&qualified(statement.sql, &self.schema)) {
            Ok(text) => text,
            Err(error) => error.raise(),
        };
        let args = statement.args;
        or_outdated(|| {
            let mut types: Vec<pg_sys::Oid> =
                args.iter().map(|oid| pg_sys::Oid::from(*oid)).collect();
            // SAFETY: the text is NUL-terminated, the types have one element a
            // parameter; SPI copies both. A plan that is kept lives until freed.
            unsafe {
                // A generic plan from the start: the same for every call, and never made
                // anew because an array or an EXISTS looks dearer in general.
                let plan = pg_sys::SPI_prepare_cursor(
                    text.as_ptr(),
                    types.len() as i32,
                    types.as_mut_ptr(),
                    pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
                );
                pg_sys::SPI_keepplan(plan);
                NonNull::new_unchecked(plan)
            }
        })
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: ends the connection that `connect` began, on errors too.
        unsafe { pg_sys::SPI_finish() };
    }
}

/// Runs the work; what the installed extension lacks for it is reported as that (55000).
fn or_outdated<T>(work: impl FnOnce() -> T) -> T {
    let work = AssertUnwindSafe(work);
    PgTryBuilder::new(AssertUnwindSafe(move || { work }.0()))
        .catch_others(|error| match undefined_object(&error) {
            Some(reason) => InboxError::outdated_schema(&reason).raise(),
            None => error.rethrow(),
        })
        .execute()
}

/// The message of an error that says: a table, column or function is missing.
fn undefined_object(error: &CaughtError) -> Option<String> {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic {
        ereport: report, ..
    }) = error;
    matches!(
        report.sql_error_code(),
        PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE
            | PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN
            | PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION
    )
    .then(|| report.message().to_owned())
}

/// The rows that a statement returned; valid until its `Db` ends.
pub struct Rows {
    table: Option<NonNull<pg_sys::SPITupleTable>>,
    processed: u64,
}

impl Rows {
    fn take(status: i32) -> Self {
        checked(status);
        // SAFETY: reads the globals that SPI has just set for this backend.
        unsafe {
            Self {
                table: NonNull::new(pg_sys::SPI_tuptable),
                processed: pg_sys::SPI_processed,
            }
        }
    }

    /// How many rows were returned, or changed where nothing is returned.
    pub fn len(&self) -> usize {
        self.processed as usize
    }

    /// Whether no row was returned or changed.
    pub fn is_empty(&self) -> bool {
        self.processed == 0
    }

    /// The value in a row and a column, both from 0; `None` is NULL or no such row.
    pub fn get<T: FromDatum>(&self, row: usize, column: usize) -> Option<T> {
        let table = self.table?;
        if row >= self.len() {
            return None;
        }
        // SAFETY: the table has `processed` rows; SPI_getbinval checks the column and
        // answers NULL for one that is not there. The value is copied by FromDatum
        // where T owns it, and lives as long as the tuple table where T borrows it.
        unsafe {
            let table = table.as_ref();
            let mut is_null = false;
            let datum = pg_sys::SPI_getbinval(
                *table.vals.add(row),
                table.tupdesc,
                column as i32 + 1,
                &mut is_null,
            );
            T::from_polymorphic_datum(
                datum,
                is_null,
                pg_sys::SPI_gettypeid(table.tupdesc, column as i32 + 1),
            )
        }
    }
}

/// Raises what SPI reports by a negative status: a statement that it cannot run.
fn checked(status: i32) {
    if status < 0 {
        InboxError::new(
            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
            format!("a statement of the extension could not be run: SPI status {status}"),
        )
        .raise();
    }
}

fn datums(statement: &Statement, args: &[Arg]) -> (Vec<pg_sys::Datum>, Vec<std::ffi::c_char>) {
    debug_assert_eq!(statement.args.len(), args.len(), "{}", statement.sql);
    args.iter()
        .map(|arg| match arg {
            Some(datum) => (*datum, b' ' as std::ffi::c_char),
            None => (pg_sys::Datum::from(0_usize), b'n' as std::ffi::c_char),
        })
        .unzip()
}

/// Sets `lock_timeout` for the nest level of settings that the caller has opened; a
/// function's or a subtransaction's end puts the old value back.
pub fn set_lock_timeout(timeout: Duration) {
    // At least 1 ms, the shortest there is: 0 would mean to wait for ever.
    let value = CString::new(timeout.as_millis().max(1).to_string()).unwrap_or_default();
    // SAFETY: NUL-terminated texts; a setting that every user may change.
    unsafe {
        pg_sys::set_config_option(
            c"lock_timeout".as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}

/// Waits until another transaction has ended, as a unique index does.
pub fn wait_for_transaction(transaction: pg_sys::TransactionId) {
    // SAFETY: waits for a lock; no tuple is named, so the error context is empty.
    unsafe {
        pg_sys::XactLockTableWait(
            transaction,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            pg_sys::XLTW_Oper::XLTW_None,
        );
    }
}

/// Whether the postmaster loaded this library, so that the background worker runs.
pub fn is_preloaded() -> bool {
    // SAFETY: reads a setting's text; NULL or NUL-terminated.
    let list = unsafe {
        let list = pg_sys::shared_preload_libraries_string;
        if list.is_null() {
            String::new()
        } else {
            CStr::from_ptr(list).to_string_lossy().into_owned()
        }
    };
    list.split(',')
        .any(|library| library.trim().trim_matches('"') == "sequential_inbox")
}

/// Whether this transaction keeps one snapshot (REPEATABLE READ and above).
pub fn uses_transaction_snapshot() -> bool {
    // SAFETY: reads this backend's state.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// The schema of the function that is being called, which is the extension's.
fn namespace_of(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Oid {
    // SAFETY: Postgres passes a valid call with its function.
    unsafe { pg_sys::get_func_namespace((*(*fcinfo).flinfo).fn_oid) }
}

fn schema_name(namespace: pg_sys::Oid) -> String {
    // SAFETY: the name is NULL or a palloc'd, NUL-terminated string.
    unsafe {
        let name = pg_sys::get_namespace_name(namespace);
        if name.is_null() {
            InboxError::new(
                PgSqlErrorCode::ERRCODE_INVALID_SCHEMA_NAME,
                "the schema of the extension sequential_inbox does not exist any more",
            )
            .raise();
        }
        let schema = CStr::from_ptr(name).to_string_lossy().into_owned();
        pg_sys::pfree(name.cast());
        schema
    }
}

/// A statement's text with the schema and the operators written out.
fn qualified(sql: &str, schema: &str) -> String {
    let prefix = format!("{}.", quote_identifier(schema));
    let mut text = String::with_capacity(sql.len() * 2);
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let Some((token, tail)) = after.split_once('}') else {
            text.push('{');
            rest = after;
            continue;
        };
        if token.is_empty() {
            text.push_str("{}");
        } else if token == "s" {
            text.push_str(&prefix);
        } else {
            text.push_str("OPERATOR(pg_catalog.");
            text.push_str(token);
            text.push(')');
        }
        rest = tail;
    }
    text.push_str(rest);
    text
}

/// An identifier in double quotes, always: the shortest form that is right for all.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| InboxError::invalid("a statement's text must not hold a zero byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g14_names_and_operators_are_written_out() {
        assert_eq!(
            qualified(
                "SELECT 1 FROM {s}t WHERE a {=} $1 AND b {<=} 2",
                "my schema"
            ),
            "SELECT 1 FROM \"my schema\".t WHERE a OPERATOR(pg_catalog.=) $1 \
             AND b OPERATOR(pg_catalog.<=) 2"
        );
        assert_eq!(quote_identifier("a\"b"), "\"a\"\"b\"");
    }
}

//! What the integration tests share: one server for a test program, a fresh database for each
//! test, and waiting for another session to reach a state instead of sleeping and hoping.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod filled;
pub mod inbox;
pub mod kinds;
pub mod pgbouncer;
pub mod retention;
pub mod servers;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use postgres::{Client, NoTls};
use throwaway_cluster::Cluster;

/// How long another session may take to reach an expected state. Only a failing test waits it out.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long between two looks at another session.
const POLL: Duration = Duration::from_millis(5);

/// The database that each test's own is copied from.
const TEMPLATE: &str = "inbox_template";

/// The server of this test program, started at the first call and gone with the program.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(start_cluster)
}

/// A server of the caller's own, for tests that stop or kill it, with the template database.
pub fn start_cluster() -> Cluster {
    let cluster = Cluster::builder()
        .fsync(false)
        // PgBouncer keeps its connections for a moment, those of every test.
        .setting("max_connections", "300")
        .start()
        .expect("a server starts");
    cluster.createdb(TEMPLATE).expect("a database is created");
    cluster
        .sql(
            TEMPLATE,
            "CREATE EXTENSION sequential_inbox; CREATE TABLE ledger (entry text)",
        )
        .expect("the extension is installed in this server's folders: run `make install` first");
    cluster
}

/// A database of one test, with the extension and an empty table `ledger (entry text)`, which
/// stands for what a handler writes.
#[derive(Debug)]
pub struct Database {
    name: String,
    dsn: String,
}

impl Database {
    /// A fresh database on the program's server.
    pub fn new() -> Self {
        Self::on(cluster())
    }

    /// A fresh database on that server.
    pub fn on(cluster: &Cluster) -> Self {
        Self::copy(cluster, TEMPLATE)
    }

    /// A fresh database without the extension and without the ledger.
    pub fn bare() -> Self {
        Self::copy(cluster(), "template1")
    }

    fn copy(cluster: &Cluster, template: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
        cluster
            .sql("postgres", &create)
            .expect("a database is created");
        let dsn = cluster.dsn_of(&name);
        Self { name, dsn }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A libpq connection string for a superuser's session.
    pub fn dsn(&self) -> &str {
        &self.dsn
    }

    /// A libpq connection string for a role's session.
    pub fn dsn_as(&self, role: &str) -> String {
        format!("{} user={role}", self.dsn)
    }

    /// A session beside those that are tested.
    pub fn observer(&self) -> Client {
        Client::connect(&self.dsn, NoTls).expect("a session")
    }

    /// Runs statements, each committed by itself.
    pub fn execute(&self, sql: &str) {
        self.observer().batch_execute(sql).expect(sql);
    }

    /// The first column of the one row that a query gives.
    pub fn value<T>(&self, query: &str) -> T
    where
        T: for<'r> postgres::types::FromSql<'r>,
    {
        self.observer().query_one(query, &[]).expect(query).get(0)
    }

    /// What is written in the ledger, sorted.
    pub fn ledger(&self) -> Vec<String> {
        self.value(
            "SELECT coalesce(array_agg(entry ORDER BY entry COLLATE \"C\"), '{}') FROM ledger",
        )
    }

    /// Returns when the session of that process id waits for a lock (a row's, a transaction's or a
    /// table's): the ids of the processes it waits for, 0 for a prepared transaction.
    ///
    /// # Panics
    ///
    /// When `ended` says that the session's work is over: it did not wait.
    pub fn wait_until_blocked(&self, pid: i32, ended: impl Fn() -> bool) -> Vec<i32> {
        self.wait_until_lock(&format!("pid = {pid}"), ended)
    }

    /// The same for the session of that `application_name`. PgBouncer passes a client's name on to
    /// whatever server process it gives it.
    ///
    /// # Panics
    ///
    /// When `ended` says that the session's work is over: it did not wait.
    pub fn wait_until_client_is_blocked(&self, application_name: &str, ended: impl Fn() -> bool) {
        self.wait_until_lock(&format!("application_name = '{application_name}'"), ended);
    }

    fn wait_until_lock(&self, whose: &str, ended: impl Fn() -> bool) -> Vec<i32> {
        let mut observer = self.observer();
        let query = format!(
            "SELECT pg_blocking_pids(pid) FROM pg_stat_activity
             WHERE {whose} AND wait_event_type = 'Lock'"
        );
        wait_for(
            &format!("the session with {whose} to wait for a lock"),
            || {
                assert!(
                    !ended(),
                    "the session with {whose} ended its work without waiting for a lock"
                );
                let row = observer.query_opt(&query, &[]).expect(&query)?;
                // Empty when the lock was granted between the two looks.
                Some(row.get::<_, Vec<i32>>(0)).filter(|blockers| !blockers.is_empty())
            },
        )
    }

    /// Ends the session of that process id, as an administrator does, and returns when it is gone.
    pub fn terminate(&self, pid: i32) {
        let mut observer = self.observer();
        observer
            .execute("SELECT pg_terminate_backend($1)", &[&pid])
            .expect("a signal");
        wait_for(&format!("session {pid} to end"), || {
            let query = "SELECT FROM pg_stat_activity WHERE pid = $1";
            observer
                .query_opt(query, &[&pid])
                .expect(query)
                .is_none()
                .then_some(())
        });
    }
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

/// Looks until there is an answer.
///
/// # Panics
///
/// When there is none in time; `what` says what was waited for.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain for {what}"
        );
        thread::sleep(POLL);
    }
}

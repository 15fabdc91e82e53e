//! The server that everything is measured on, and what is stored in it beforehand.

use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use postgres::{Client, NoTls};
use throwaway_cluster::{Builder, Cluster};

use crate::options::Options;

/// What a small production server has; autovacuum and everything else is as it comes.
///
/// Log files are kept for reuse: making a new one takes tens of milliseconds, and those would hit
/// whichever side happens to fill the last.
const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("min_wal_size", "2GB"),
    ("checkpoint_timeout", "30min"),
];

/// A throwaway server and how it is to be measured.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) cluster: Cluster,
    pub(crate) options: Options,
    pub(crate) progress: Progress,
}

impl Server {
    /// Starts a server in a folder on disk.
    pub(crate) fn start(options: &Options) -> anyhow::Result<Self> {
        Self::with(Cluster::builder(), options, Progress::new())
    }

    /// Starts another one, which has preloaded the library, with everything else the same. Its
    /// worker does nothing.
    pub(crate) fn preloaded(&self) -> anyhow::Result<Self> {
        let builder = Cluster::builder()
            .preload("sequential_inbox")
            .setting("sequential_inbox.housekeeping", "off");
        Self::with(builder, &self.options, self.progress.clone())
    }

    fn with(mut builder: Builder, options: &Options, progress: Progress) -> anyhow::Result<Self> {
        builder = builder.fsync(!options.no_fsync);
        for (name, value) in SETTINGS {
            builder = builder.setting(name, value);
        }
        Ok(Self {
            cluster: builder.start()?,
            options: options.clone(),
            progress,
        })
    }

    /// Makes a database with the extension in it; gone when the handle is.
    pub(crate) fn database(&self, name: &'static str) -> anyhow::Result<Database<'_>> {
        self.cluster.createdb(name)?;
        let database = Database { server: self, name };
        database
            .session()?
            .batch_execute("CREATE EXTENSION sequential_inbox")
            .context("the extension is not installed in this server's folders: make install")?;
        Ok(database)
    }

    /// The settings that are not the server's defaults.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fsync = if self.options.no_fsync { "off" } else { "on" };
        SETTINGS
            .into_iter()
            .chain([("fsync", fsync)])
            .map(|(name, value)| (name, value.to_owned()))
    }
}

/// A database of one benchmark, dropped with its handle: ten million claims are to be out of the
/// way of the next one.
#[derive(Debug)]
pub(crate) struct Database<'a> {
    server: &'a Server,
    pub(crate) name: &'static str,
}

impl Database<'_> {
    /// A session of the superuser.
    pub(crate) fn session(&self) -> anyhow::Result<Client> {
        Client::connect(&self.server.cluster.dsn_of(self.name), NoTls)
            .with_context(|| format!("connecting to {}", self.name))
    }

    /// Runs statements, each committed by itself.
    pub(crate) fn execute(&self, statements: &[&str]) -> anyhow::Result<()> {
        let mut session = self.session()?;
        for statement in statements {
            session
                .batch_execute(statement)
                .with_context(|| (*statement).to_owned())?;
        }
        Ok(())
    }

    /// The one number that a query gives.
    pub(crate) fn number(&self, query: &str) -> anyhow::Result<i64> {
        let row = self.session()?.query_one(query, &[]);
        Ok(row.with_context(|| query.to_owned())?.get(0))
    }

    /// Leaves the database as a server is between two bursts: statistics known, nothing to
    /// vacuum, everything written.
    pub(crate) fn settle(&self) -> anyhow::Result<()> {
        self.execute(&["VACUUM (ANALYZE)", "CHECKPOINT"])
    }

    /// Declares a sequence without message types and makes this many instances of it, with ids
    /// from 1.
    pub(crate) fn make_instances(&self, instances: u64) -> anyhow::Result<()> {
        self.execute(&[
            "SELECT inbox_declare_sequence('orders', '30 days')",
            &format!(
                "INSERT INTO sequence_instance (name, context_id, retain_until)
                 SELECT 'orders', 'order-' || g, now() + interval '30 days'
                 FROM generate_series(1, {instances}) g"
            ),
        ])
    }

    /// Stores this many sequenced claims, spread over that many instances.
    pub(crate) fn store_sequenced_claims(&self, claims: u64, instances: u64) -> anyhow::Result<()> {
        let mut session = self.session()?;
        // The instances are there; not looking each of them up takes a third of the time.
        session.batch_execute("SET session_replication_role = replica")?;
        session.batch_execute(&format!(
            "INSERT INTO sequential_inbox_idempotence
                 (message_type, idempotence_id, sequence_instance_id)
             SELECT 'order.placed', {id}, 1 + g * {instances} / {claims}
             FROM generate_series(0, {claims}::bigint - 1) g",
            id = spread_id(claims),
        ))?;
        Ok(())
    }

    /// Moves the ring on until each of its tables was in use, then stores this many plain claims
    /// in them, a third in each.
    pub(crate) fn store_plain_claims(&self, claims: u64) -> anyhow::Result<()> {
        let mut session = self.session()?;
        session.batch_execute("SET sequential_inbox.claim_retention = '1s'")?;
        for _ in 0..3 {
            rotate(&mut session)?;
        }
        for table in 0..3 {
            session.batch_execute(&format!(
                "INSERT INTO inbox_claim_{table} (consumer, message_id)
                 SELECT 'billing', {id} FROM generate_series({table}, {claims}::bigint - 1, 3) g",
                id = spread_id(claims),
            ))?;
        }
        Ok(())
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // The whole cluster goes soon; a destructor has nobody to tell.
        let _ = self
            .server
            .cluster
            .run("dropdb", ["--force", "--", self.name]);
    }
}

/// The SQL expression for the id of stored claim number `g` of `claims`: ids lie evenly among
/// those that [`pgbench::NEW_ID`](crate::pgbench::NEW_ID) makes, and come in order, which an
/// index takes in quickest.
pub(crate) fn spread_id(claims: u64) -> String {
    let step = 8_000_000_000_000_000_000 / claims;
    format!("(1000000000000000000 + g::bigint * {step})::text")
}

/// Moves the ring of this session's database on by one table, as soon as the session's
/// `claim_retention` allows it.
pub(crate) fn rotate(session: &mut Client) -> anyhow::Result<()> {
    for _ in 0..1000 {
        let done = session.query_one("SELECT rotated FROM inbox_housekeeping()", &[])?;
        if done.get(0) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    ensure!(false, "the ring did not move on within ten seconds");
    Ok(())
}

/// What is being measured, shown on a terminal while it lasts.
#[derive(Debug, Clone)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Tells what is being done.
    pub(crate) fn doing(&self, what: String) {
        self.0.set_message(what);
    }

    /// Leaves a line on standard error, terminal or not.
    pub(crate) fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    /// Takes the line away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

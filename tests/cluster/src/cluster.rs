//! Making, starting, stopping and copying clusters.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{env, fs, iter, thread};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::Error;
use crate::home::{CLIENT_VARIABLES, Home, PATIENCE, POLL, send, wait_for_end};
use crate::installation::Installation;

/// The superuser of every cluster.
pub(crate) const SUPERUSER: &str = "postgres";

/// The database that every cluster has from the start.
const DATABASE: &str = "postgres";

/// Servers listen here and nowhere else.
pub(crate) const HOST: &str = "127.0.0.1";

/// Ports come from below Linux's ephemeral range (from 32768), so that no outgoing connection
/// takes a stopped cluster's port before it starts again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How many ports are tried before giving up.
pub(crate) const PORT_ATTEMPTS: usize = 20;

/// Describes a cluster before it is made; from [`Cluster::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    pg_config: Option<PathBuf>,
    base_dir: Option<PathBuf>,
    fsync: bool,
    preload: Vec<String>,
    settings: Vec<(String, String)>,
    initdb_options: Vec<String>,
}

impl Builder {
    /// Uses the installation of this `pg_config` instead of the one of the environment.
    pub fn pg_config(mut self, path: impl Into<PathBuf>) -> Self {
        self.pg_config = Some(path.into());
        self
    }

    /// Makes the cluster's folder in this one, which the server's user must be able to write to.
    /// Without it: in `TMPDIR`, `/var/tmp` or `/tmp`.
    pub fn base_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.base_dir = Some(path.into());
        self
    }

    /// `false` trades durability against a crash of the operating system for speed. A crash of
    /// the server loses nothing either way. Default: `true`.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// Adds a library to `shared_preload_libraries`.
    pub fn preload(mut self, library: impl Into<String>) -> Self {
        self.preload.push(library.into());
        self
    }

    /// Sets a line of postgresql.conf; the last one of a name counts. The value is the bare
    /// value, it is quoted here.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Passes one more option to initdb.
    pub fn initdb_option(mut self, option: impl Into<String>) -> Self {
        self.initdb_options.push(option.into());
        self
    }

    /// Makes the cluster, starts it and returns when it takes connections.
    ///
    /// # Errors
    ///
    /// When PostgreSQL is not installed, its user cannot reach it, or it does not start; the
    /// message says which.
    pub fn start(self) -> Result<Cluster, Error> {
        let home = self.init()?;
        Cluster::first_start(home, self.base_dir)
    }

    /// The same with all that another cluster holds, taken over with `pg_upgrade` by this
    /// builder's installation, which may be of a later major. The other one must be stopped, and
    /// stays as it is: its files are copied.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start), and when `pg_upgrade` refuses.
    pub fn start_upgraded_from(self, old: &Cluster) -> Result<Cluster, Error> {
        let home = self.init()?;
        let mut upgrade = home.server_program("pg_upgrade");
        upgrade
            .stdin(home.held_by_janitor()?)
            .arg("--old-bindir")
            .arg(old.bindir())
            .arg("--new-bindir")
            .arg(home.installation().bindir())
            .arg("--old-datadir")
            .arg(old.data_dir())
            .arg("--new-datadir")
            .arg(home.data())
            // Both servers run by turns, on a socket in a folder of their own and nowhere else.
            .arg("--socketdir")
            .arg(home.folder())
            .args(["--username", SUPERUSER]);
        home.output(&mut upgrade).map_err(|error| match error {
            Error::Program {
                program,
                status,
                output,
                ..
            } => Error::Program {
                program,
                status,
                output,
                log: home.upgrade_log(),
            },
            other => other,
        })?;
        Cluster::first_start(home, self.base_dir)
    }

    /// Makes a data folder, configured but for its addresses.
    fn init(&self) -> Result<Home, Error> {
        let installation = Installation::find(self.pg_config.as_deref())?;
        let home = Home::make(installation, self.base_dir.as_deref())?;
        home.output(
            home.server_program("initdb")
                .stdin(home.held_by_janitor()?)
                .arg("--pgdata")
                .arg(home.data())
                .args(["--username", SUPERUSER, "--auth=trust"])
                .args(["--encoding=UTF8", "--no-locale", "--no-sync"])
                .args(&self.initdb_options),
        )?;
        let mut settings = vec![
            (
                "fsync".to_owned(),
                if self.fsync { "on" } else { "off" }.to_owned(),
            ),
            ("max_connections".to_owned(), "100".to_owned()),
            ("max_prepared_transactions".to_owned(), "20".to_owned()),
            ("log_line_prefix".to_owned(), "%m [%p] %q%a ".to_owned()),
        ];
        if !self.preload.is_empty() {
            settings.push((
                "shared_preload_libraries".to_owned(),
                self.preload.join(","),
            ));
        }
        settings.extend(self.settings.iter().cloned());
        home.configure(&settings)?;
        Ok(home)
    }
}

/// A running or stopped PostgreSQL cluster; stopped and removed when dropped.
///
/// Methods take `&self`, so that threads can share a cluster while one of them stops it.
#[derive(Debug)]
pub struct Cluster {
    port: u16,
    base_dir: Option<PathBuf>,
    postmaster: Mutex<Option<Child>>,
    home: Home,
}

impl Cluster {
    /// A cluster with default settings: fsync on, 100 connections, 20 prepared transactions.
    pub fn builder() -> Builder {
        Builder {
            pg_config: None,
            base_dir: None,
            fsync: true,
            preload: Vec::new(),
            settings: Vec::new(),
            initdb_options: Vec::new(),
        }
    }

    /// Starts a newly made data folder on the first port that is free.
    fn first_start(home: Home, base_dir: Option<PathBuf>) -> Result<Self, Error> {
        let mut tried = 0;
        loop {
            tried += 1;
            let port = free_port()?;
            home.configure(&[
                ("listen_addresses".to_owned(), HOST.to_owned()),
                ("port".to_owned(), port.to_string()),
                (
                    "unix_socket_directories".to_owned(),
                    home.folder().display().to_string(),
                ),
            ])?;
            match home.launch() {
                Ok(child) => {
                    return Ok(Self {
                        port,
                        base_dir,
                        postmaster: Mutex::new(Some(child)),
                        home,
                    });
                }
                // Somebody was faster: a free port can only be asked for, not reserved.
                Err(Error::Exited { log, .. })
                    if log.contains("Address already in use") && tried < PORT_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The address the server listens on: the loopback interface.
    pub fn host(&self) -> &str {
        HOST
    }

    /// The TCP port; the same for the cluster's whole life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser's name.
    pub fn user(&self) -> &str {
        SUPERUSER
    }

    /// The folder of the Unix socket; usable as a `host` by libpq and by tokio-postgres.
    pub fn socket_dir(&self) -> &Path {
        self.home.folder()
    }

    /// The data folder (PGDATA).
    pub fn data_dir(&self) -> PathBuf {
        self.home.data()
    }

    /// The server's log.
    pub fn log_path(&self) -> PathBuf {
        self.home.log()
    }

    /// The folder of the installation's programs.
    pub fn bindir(&self) -> &Path {
        self.home.installation().bindir()
    }

    /// A libpq connection string for the database `postgres`.
    pub fn dsn(&self) -> String {
        self.dsn_of(DATABASE)
    }

    /// A libpq connection string for a database.
    pub fn dsn_of(&self, database: &str) -> String {
        let quoted = database.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "host={HOST} port={} user={SUPERUSER} dbname='{quoted}'",
            self.port
        )
    }

    /// A connection URL for the database `postgres`.
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// A connection URL for a database.
    pub fn url_of(&self, database: &str) -> String {
        let mut escaped = String::new();
        for byte in database.bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
                escaped.push(char::from(byte));
            } else {
                escaped.push_str(&format!("%{byte:02X}"));
            }
        }
        format!("postgresql://{SUPERUSER}@{HOST}:{}/{escaped}", self.port)
    }

    /// A program that finds this cluster through the PG* variables, connected to the database
    /// `postgres`. It runs as the current user; a program of this installation is preferred to one
    /// of the same name elsewhere.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let program = program.as_ref();
        let own = self.bindir().join(program);
        let mut command = Command::new(if own.is_file() {
            own.as_os_str()
        } else {
            program
        });
        for variable in CLIENT_VARIABLES {
            command.env_remove(variable);
        }
        command
            .env("PGHOST", HOST)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", SUPERUSER)
            .env("PGDATABASE", DATABASE)
            .env("THROWAWAY_CLUSTER_LOG", self.log_path());
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = iter::once(self.bindir().to_owned()).chain(env::split_paths(&inherited));
        // A PATH that cannot be joined has a colon in the installation's own folder; the child
        // then finds programs where this process finds them.
        if let Ok(path) = env::join_paths(folders) {
            command.env("PATH", path);
        }
        command
    }

    /// Runs a client program (psql, pg_dump, pgbench …) to its end; what it wrote to standard
    /// output.
    ///
    /// # Errors
    ///
    /// When it cannot be run or does not end with success; with what it wrote to standard error.
    pub fn run<I, S>(&self, program: &str, arguments: I) -> Result<String, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.home.output(self.command(program).args(arguments))
    }

    /// Runs SQL in a database with psql, stopping at the first error; the rows as text, columns
    /// separated by `|`, without the last newline.
    ///
    /// # Errors
    ///
    /// When a statement fails.
    pub fn sql(&self, database: &str, sql: &str) -> Result<String, Error> {
        let output = self.run(
            "psql",
            [
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                database,
                "-c",
                sql,
            ],
        )?;
        Ok(output.trim_end_matches('\n').to_owned())
    }

    /// Creates a database.
    ///
    /// # Errors
    ///
    /// When there is one of this name, or the server is not running.
    pub fn createdb(&self, database: &str) -> Result<(), Error> {
        self.run("createdb", ["--", database]).map(drop)
    }

    /// Whether the postmaster is alive.
    pub fn is_running(&self) -> bool {
        self.postmaster()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Starts a stopped cluster again, on the same port. Does nothing when it is running.
    ///
    /// # Errors
    ///
    /// When it does not start, with the end of its log.
    pub fn start(&self) -> Result<(), Error> {
        if self.is_running() {
            return Ok(());
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.home.launch() {
                Ok(child) => {
                    *self.postmaster() = Some(child);
                    return Ok(());
                }
                // After SIGKILL the postmaster's children need a moment to notice and to leave
                // the shared memory.
                Err(Error::Exited { log, .. })
                    if log.contains("is still in use") && Instant::now() < deadline =>
                {
                    thread::sleep(POLL * 10);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops the server in order: transactions are rolled back, a checkpoint is written.
    ///
    /// # Errors
    ///
    /// When it does not end in time; it is then killed.
    pub fn stop_fast(&self) -> Result<(), Error> {
        self.stop(Signal::SIGINT)
    }

    /// Stops the server at once, without a checkpoint: the next start recovers from the log as
    /// after a crash.
    ///
    /// # Errors
    ///
    /// When it does not end in time; it is then killed.
    pub fn stop_immediate(&self) -> Result<(), Error> {
        self.stop(Signal::SIGQUIT)
    }

    /// Kills the postmaster with SIGKILL: the harshest crash short of pulling the plug.
    ///
    /// # Errors
    ///
    /// When the operating system does not let it.
    pub fn kill_postmaster(&self) -> Result<(), Error> {
        self.stop(Signal::SIGKILL)
    }

    /// Kills one of the server's processes, as the out-of-memory killer does. The server then ends
    /// all sessions, recovers by itself and goes on.
    ///
    /// # Errors
    ///
    /// When there is no such process.
    pub fn kill_backend(&self, pid: i32) -> Result<(), Error> {
        // To kill, 0 and what is negative mean groups of processes.
        let result = if pid > 1 {
            kill(Pid::from_raw(pid), Signal::SIGKILL)
        } else {
            Err(Errno::ESRCH)
        };
        result.map_err(|errno| Error::io(format!("killing backend {pid}"))(errno.into()))
    }

    /// [`stop_fast`](Self::stop_fast), then [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// Those of the two.
    pub fn restart(&self) -> Result<(), Error> {
        self.stop_fast()?;
        self.start()
    }

    /// Makes a physical standby with `pg_basebackup`: it streams from this cluster, has the same
    /// settings, its own port and its own folder, and takes read-only connections.
    ///
    /// # Errors
    ///
    /// When the copy fails or the standby does not start.
    pub fn standby(&self) -> Result<Self, Error> {
        let home = Home::make(self.home.installation().clone(), self.base_dir.as_deref())?;
        home.output(
            home.server_program("pg_basebackup")
                .stdin(home.held_by_janitor()?)
                .args([
                    "--host",
                    HOST,
                    "--port",
                    &self.port.to_string(),
                    "--username",
                    SUPERUSER,
                ])
                .arg("--pgdata")
                .arg(home.data())
                .args([
                    "--wal-method=stream",
                    "--checkpoint=fast",
                    "--write-recovery-conf",
                ])
                .arg("--no-sync"),
        )?;
        Self::first_start(home, self.base_dir.clone())
    }

    /// Waits until this standby has replayed all that `primary` has written so far.
    ///
    /// # Errors
    ///
    /// When it does not get there in time.
    pub fn catch_up(&self, primary: &Self) -> Result<(), Error> {
        let target = primary.sql(DATABASE, "SELECT pg_catalog.pg_current_wal_lsn()")?;
        let reached = format!("SELECT pg_catalog.pg_last_wal_replay_lsn() >= '{target}'::pg_lsn");
        let deadline = Instant::now() + PATIENCE;
        while self.sql(DATABASE, &reached)? != "t" {
            if Instant::now() > deadline {
                return Err(self.home.timeout(format!("replaying up to {target}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Makes this standby a primary; returns when it takes writes.
    ///
    /// # Errors
    ///
    /// When it is not a standby, or does not get there in time.
    pub fn promote(&self) -> Result<(), Error> {
        self.home
            .output(
                self.home
                    .server_program("pg_ctl")
                    .args(["promote", "-w", "-t", &PATIENCE.as_secs().to_string(), "-D"])
                    .arg(self.data_dir()),
            )
            .map(drop)
    }

    /// The postmaster, if there is one; a panicked thread does not make it unusable.
    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal and waits for the end. Does nothing when there is no server.
    fn stop(&self, signal: Signal) -> Result<(), Error> {
        let mut postmaster = self.postmaster();
        let Some(mut child) = postmaster.take() else {
            return Ok(());
        };
        send(&child, signal)?;
        if wait_for_end(&mut child)?.is_none() {
            send(&child, Signal::SIGKILL)?;
            child.wait().map_err(Error::io("waiting for the server"))?;
            return Err(self.home.timeout(format!("stopping with {signal}")));
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The janitor behind `home` tries again, and a destructor has nobody to tell.
        if self.stop_immediate().is_ok() {
            // A killed postmaster leaves the file behind, and the janitor must not signal
            // whoever has its number now.
            let _ = fs::remove_file(self.home.data().join("postmaster.pid"));
        }
    }
}

/// A port that nobody listens on right now.
pub(crate) fn free_port() -> Result<u16, Error> {
    let mut last = None;
    for _ in 0..PORT_ATTEMPTS {
        match TcpListener::bind((HOST, fastrand::u16(PORTS))).and_then(|it| it.local_addr()) {
            Ok(address) => return Ok(address.port()),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(Error::Io {
        what: format!("looking for a free port on {HOST}"),
        source,
    })
}

//! A throwaway PgBouncer in transaction mode: a pool that stands between clients and a cluster and
//! gives each transaction whatever server process is free.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::cluster::{Cluster, HOST, PORT_ATTEMPTS, SUPERUSER, free_port};
use crate::error::Error;
use crate::home::{PATIENCE, POLL, default_base_dir};
use crate::server_user::ServerUser;

/// Where Debian installs it, which is in the PATH of root alone.
const DEBIAN_FOLDER: &str = "/usr/sbin";

/// The first version that can carry prepared statements from one server process to another.
const CARRIES_STATEMENTS: (u32, u32) = (1, 21);

/// Runs the pool and outlives its owner just long enough to clean up: when the owner lets go of
/// standard input, or dies, `read` ends. `$1` is the program, `$2` the folder. The pool has nothing
/// to save, and the kernel closes its connections; a killed one may write for no moment longer.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
"$1" "$2/pgbouncer.ini" </dev/null >"$2/pgbouncer.log" 2>&1 &
while read -r _; do :; done
kill -KILL "$!"
wait "$!"
rm -rf "$2"
"#;

/// A running PgBouncer in front of a [`Cluster`]; stopped and removed when dropped, and when its
/// owner dies.
///
/// Whoever may connect to the cluster may connect through it, as any role and to any database. The
/// superuser may also look at its console, [`console_dsn`](Self::console_dsn).
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    folder: PathBuf,
    shell: Child,
}

impl PgBouncer {
    /// Starts one in front of that cluster and returns when it takes connections.
    ///
    /// # Errors
    ///
    /// When PgBouncer is not installed or does not start; the message says which.
    pub fn in_front_of(cluster: &Cluster) -> Result<Self, Error> {
        let program = find()?;
        let mut tried = 0;
        loop {
            tried += 1;
            match Self::start(&program, cluster, free_port()?) {
                // Somebody was faster: a free port can only be asked for, not reserved.
                Err(Error::NoPool { log })
                    if log.contains("Address already in use") && tried < PORT_ATTEMPTS => {}
                result => return result,
            }
        }
    }

    fn start(program: &Path, cluster: &Cluster, port: u16) -> Result<Self, Error> {
        let user = ServerUser::find()?;
        let base_dir = default_base_dir(&user);
        let folder = tempfile::Builder::new()
            .prefix("pgbouncer-")
            .tempdir_in(&base_dir)
            .map_err(Error::io(format!(
                "making a folder in {}",
                base_dir.display()
            )))?;
        user.own(folder.path())?;
        let settings = settings(cluster, port, folder.path(), version(program)?);
        write(&folder.path().join("pgbouncer.ini"), &settings)?;
        write(
            &folder.path().join("users"),
            &format!("\"{SUPERUSER}\" \"\"\n"),
        )?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "throwaway-pgbouncer"])
            .args([program, folder.path()])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // PgBouncer refuses to run as root, as PostgreSQL does.
        user.apply(&mut command);
        let shell = command.spawn().map_err(Error::io("starting /bin/sh"))?;
        // Dropped on the way out, it is stopped.
        let pool = Self {
            port,
            folder: folder.keep(),
            shell,
        };
        pool.wait_until_ready()?;
        Ok(pool)
    }

    /// Waits for the line of the log that says that this very process listens on the port.
    fn wait_until_ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        let is_listening = format!("listening on {HOST}:{}", self.port);
        loop {
            let log = self.log();
            if log.contains(&is_listening) {
                return Ok(());
            }
            // It is written when it ends before it listens.
            if log.contains("FATAL") {
                return Err(Error::NoPool { log });
            }
            if Instant::now() > deadline {
                return Err(Error::Timeout {
                    what: "starting pgbouncer".to_owned(),
                    seconds: PATIENCE.as_secs(),
                    log,
                });
            }
            thread::sleep(POLL);
        }
    }

    /// What it has logged; empty before it has begun to.
    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("pgbouncer.log")).unwrap_or_default()
    }

    /// The address it listens on: the loopback interface.
    pub fn host(&self) -> &str {
        HOST
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with its configuration and its log, gone when it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A libpq connection string for its console, where `SHOW SERVERS` and the like are answered,
    /// as simple queries.
    pub fn console_dsn(&self) -> String {
        format!(
            "host={HOST} port={} user={SUPERUSER} dbname=pgbouncer",
            self.port
        )
    }
}

impl Drop for PgBouncer {
    /// Lets go of the pipe and waits until the folder is gone.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing can be done about a shell that cannot be waited for, and a destructor has
        // nobody to tell.
        let _ = self.shell.wait();
    }
}

/// Its configuration.
fn settings(cluster: &Cluster, port: u16, folder: &Path, version: (u32, u32)) -> String {
    let folder = folder.display();
    let mut settings = format!(
        "[databases]\n\
         * = host={HOST} port={}\n\
         [pgbouncer]\n\
         listen_addr = {HOST}\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         pool_mode = transaction\n\
         auth_type = trust\n\
         auth_file = {folder}/users\n\
         auth_user = {SUPERUSER}\n\
         admin_users = {SUPERUSER}\n\
         max_client_conn = 500\n\
         default_pool_size = 20\n\
         server_idle_timeout = 1\n\
         server_login_retry = 1\n\
         query_wait_timeout = {}\n",
        cluster.port(),
        PATIENCE.as_secs(),
    );
    if version >= CARRIES_STATEMENTS {
        // What is tested must not hang on it.
        settings.push_str("max_prepared_statements = 0\n");
    }
    settings
}

/// The program, from the PATH or from where Debian installs it.
fn find() -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from(DEBIAN_FOLDER)])
        .map(|folder| folder.join("pgbouncer"))
        .find(|program| program.is_file())
        .ok_or(Error::NoPgBouncer)
}

/// The version, of a first line like "PgBouncer 1.18.0".
fn version(program: &Path) -> Result<(u32, u32), Error> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(Error::io(format!("running {}", program.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed = text.split_whitespace().nth(1).and_then(|version| {
        let mut parts = version.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    });
    parsed.ok_or_else(|| Error::Program {
        program: program.display().to_string(),
        status: output.status,
        output: text.into_owned(),
        log: String::new(),
    })
}

/// Writes a file that the pool's user can read.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::io(format!("writing {}", path.display())))
}

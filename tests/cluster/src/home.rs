//! The folder of a cluster, and what is done with the installation's programs in it.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::Error;
use crate::installation::Installation;
use crate::janitor::Janitor;
use crate::server_user::ServerUser;

/// How long a server may take to start, stop, promote or catch up. Generous: a loaded machine
/// that recovers from a crash must not fail a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a state is looked at while waiting for it.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// How much of the server's log an error shows.
const LOG_TAIL_BYTES: u64 = 4096;

/// What a client's environment must not decide about a connection to a throwaway cluster.
pub(crate) const CLIENT_VARIABLES: [&str; 12] = [
    "PGAPPNAME",
    "PGCLIENTENCODING",
    "PGDATABASE",
    "PGDATA",
    "PGHOST",
    "PGHOSTADDR",
    "PGOPTIONS",
    "PGPASSWORD",
    "PGPORT",
    "PGSERVICE",
    "PGSSLMODE",
    "PGUSER",
];

/// A cluster's folder, with the data, the log and the socket in it, and the janitor that
/// removes it.
#[derive(Debug)]
pub(crate) struct Home {
    folder: PathBuf,
    installation: Installation,
    user: ServerUser,
    janitor: Janitor,
}

impl Home {
    /// Makes an empty folder that the server's user owns, and has it watched.
    pub(crate) fn make(installation: Installation, base_dir: Option<&Path>) -> Result<Self, Error> {
        let user = ServerUser::find()?;
        user.check_reach(&installation.program("postgres"))?;
        let base_dir = match base_dir {
            Some(path) => path.to_owned(),
            None => default_base_dir(&user),
        };
        user.check_writable(&base_dir)?;
        // Short, because the path of a Unix socket ends at 107 bytes.
        let folder = tempfile::Builder::new()
            .prefix("pg-")
            .tempdir_in(&base_dir)
            .map_err(Error::io(format!(
                "making a folder in {}",
                base_dir.display()
            )))?;
        user.own(folder.path())?;
        let janitor = Janitor::hire(&user, &installation.program("pg_ctl"), folder.path())?;
        Ok(Self {
            folder: folder.keep(),
            installation,
            user,
            janitor,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn installation(&self) -> &Installation {
        &self.installation
    }

    /// A standard input for programs that write into the folder: the janitor lets them end first.
    pub(crate) fn held_by_janitor(&self) -> Result<Stdio, Error> {
        self.janitor.wait_for()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// One of the installation's programs, to be run as the server's user in a clean environment.
    pub(crate) fn server_program(&self, name: &str) -> Command {
        let mut command = Command::new(self.installation.program(name));
        for variable in CLIENT_VARIABLES {
            command.env_remove(variable);
        }
        command.current_dir(&self.folder).stdin(Stdio::null());
        self.user.apply(&mut command);
        command
    }

    /// Appends to postgresql.conf.
    pub(crate) fn configure(&self, settings: &[(String, String)]) -> Result<(), Error> {
        let path = self.data().join("postgresql.conf");
        let lines = settings.iter().map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('\'', "''");
            format!("{name} = '{value}'\n")
        });
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(lines.collect::<String>().as_bytes()))
            .map_err(Error::io(format!("writing {}", path.display())))
    }

    /// Starts the postmaster and waits until it takes connections.
    pub(crate) fn launch(&self) -> Result<Child, Error> {
        let path = self.log();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::io(format!("opening {}", path.display())))?;
        let start = log
            .metadata()
            .map_err(Error::io("looking at the log"))?
            .len();
        let errors = log.try_clone().map_err(Error::io("opening the log"))?;
        // A child of this process, not a daemon of pg_ctl's: its end is then known at once. In a
        // process group of its own, so that Ctrl-C does not stop it under the tests' feet.
        let mut child = self
            .server_program("postgres")
            .arg("-D")
            .arg(self.data())
            .process_group(0)
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(Error::io("starting postgres"))?;
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready(child.id()) {
            if let Some(status) = child
                .try_wait()
                .map_err(Error::io("waiting for the server"))?
            {
                return Err(Error::Exited {
                    status,
                    log: self.log_tail(start),
                });
            }
            if Instant::now() > deadline {
                send(&child, Signal::SIGKILL)?;
                child.wait().map_err(Error::io("waiting for the server"))?;
                return Err(self.timeout("starting the server".to_owned()));
            }
            thread::sleep(POLL);
        }
        Ok(child)
    }

    /// Whether this very postmaster says in its PID file that it takes connections: its number in
    /// the first line, its state in the eighth, as pg_ctl reads them.
    fn is_ready(&self, pid: u32) -> bool {
        let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) else {
            return false;
        };
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.first() == Some(&pid.to_string().as_str()) && lines.get(7) == Some(&"ready")
    }

    /// Runs a program to its end and returns its standard output.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String, Error> {
        let program = PathBuf::from(command.get_program());
        let name = program
            .file_name()
            .unwrap_or(program.as_os_str())
            .to_string_lossy()
            .into_owned();
        let output = command
            .output()
            .map_err(Error::io(format!("running {name}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = if output.stderr.is_empty() {
            &output.stdout
        } else {
            &output.stderr
        };
        Err(Error::Program {
            program: name,
            status: output.status,
            output: String::from_utf8_lossy(said).into_owned(),
            log: self.log_tail(0),
        })
    }

    /// The ends of the logs that a failed pg_upgrade has left in the new data folder.
    pub(crate) fn upgrade_log(&self) -> String {
        let runs = fs::read_dir(self.data().join("pg_upgrade_output.d"));
        let logs = runs
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|run| fs::read_dir(run.path().join("log")))
            .flatten()
            .flatten();
        logs.map(|log| tail_of(&log.path(), 0))
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub(crate) fn timeout(&self, what: String) -> Error {
        Error::Timeout {
            what,
            seconds: PATIENCE.as_secs(),
            log: self.log_tail(0),
        }
    }

    /// The end of the log, from byte `start` at the earliest, under a heading; empty when there
    /// is no log yet.
    fn log_tail(&self, start: u64) -> String {
        tail_of(&self.log(), start)
    }
}

/// The end of a file, from byte `start` at the earliest, under a heading; empty when there is
/// nothing.
fn tail_of(path: &Path, start: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(
            start.max(end.saturating_sub(LOG_TAIL_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if !bytes.is_empty() => {
            let text = String::from_utf8_lossy(&bytes);
            format!("--- the end of {}:\n{}", path.display(), text.trim_end())
        }
        _ => String::new(),
    }
}

/// The first of the usual folders that the server's user may work in. `/var/tmp` comes before
/// `/tmp`, which may be memory: fsync should cost what it costs in production.
pub(crate) fn default_base_dir(user: &ServerUser) -> PathBuf {
    let named = env::var_os("TMPDIR").map(PathBuf::from);
    named
        .into_iter()
        .chain([PathBuf::from("/var/tmp")])
        .find(|folder| user.check_writable(folder).is_ok())
        .unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Sends a signal to a child that was not waited for yet, so that its number is still its own.
pub(crate) fn send(child: &Child, signal: Signal) -> Result<(), Error> {
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, signal).map_err(|errno| Error::io(format!("sending {signal}"))(errno.into()))
}

/// Waits for a child's end; `None` when it does not come in time.
pub(crate) fn wait_for_end(child: &mut Child) -> Result<Option<ExitStatus>, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = child
            .try_wait()
            .map_err(Error::io("waiting for the server"))?;
        if status.is_some() || Instant::now() > deadline {
            return Ok(status);
        }
        thread::sleep(POLL);
    }
}

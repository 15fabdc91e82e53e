//! `throwaway-cluster run -- CMD ARGS…`: runs a command against a PostgreSQL cluster that exists
//! only for it.

use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, process, thread};

use std::os::unix::process::ExitStatusExt;

use clap::{Parser, Subcommand};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use throwaway_cluster::{Cluster, PgBouncer};

/// What `run` ends with when there is no cluster to run the command against; other than what a
/// test runner ends with, so that scripts can tell the two apart.
const NO_CLUSTER: u8 = 125;

/// What `run` ends with when the command cannot be started, as a shell does.
const NO_COMMAND: u8 = 127;

/// What a shell adds to the number of the signal that ended a command.
const ENDED_BY_SIGNAL: i32 = 128;

/// How often the command is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Throwaway PostgreSQL clusters.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes a cluster, runs a command with PGHOST, PGPORT, PGUSER and PGDATABASE set, and
    /// removes the cluster when the command ends
    ///
    /// Ends with the command's exit code; with 125 when the cluster cannot be made, with 127 when
    /// the command cannot be started. The installation is that of the variable PG_CONFIG, else of
    /// pg_config in the PATH.
    Run {
        /// Put a library into shared_preload_libraries
        #[arg(
            long,
            value_name = "LIBRARY",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "sequential_inbox"
        )]
        preload: Vec<String>,

        /// Set a parameter of postgresql.conf
        #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
        conf: Vec<(String, String)>,

        /// Do not wait for the disk: faster, and safe unless the operating system crashes
        #[arg(long)]
        no_fsync: bool,

        /// Put a PgBouncer in transaction mode in front; its port is in PGBOUNCER_PORT
        #[arg(long)]
        pgbouncer: bool,

        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn main() -> ExitCode {
    let Action::Run {
        preload,
        conf,
        no_fsync,
        pgbouncer,
        command,
    } = Arguments::parse().action;
    let running = match Running::forward_signals() {
        Ok(running) => running,
        Err(error) => return fail(NO_CLUSTER, format_args!("cannot handle signals: {error}")),
    };
    let mut builder = Cluster::builder().fsync(!no_fsync);
    for library in preload {
        builder = builder.preload(library);
    }
    for (name, value) in conf {
        builder = builder.setting(name, value);
    }
    let cluster = match builder.start() {
        Ok(cluster) => cluster,
        Err(error) => return fail(NO_CLUSTER, format_args!("{error}")),
    };
    let pool = match pgbouncer
        .then(|| PgBouncer::in_front_of(&cluster))
        .transpose()
    {
        Ok(pool) => pool,
        Err(error) => return fail(NO_CLUSTER, format_args!("{error}")),
    };
    let Some((program, arguments)) = command.split_first() else {
        return fail(NO_COMMAND, format_args!("no command"));
    };
    let mut command = cluster.command(program);
    command.args(arguments);
    if let Some(pool) = &pool {
        command.env("PGBOUNCER_PORT", pool.port().to_string());
    }
    match running.run(&mut command) {
        Ok(status) => exit_code(status),
        Err(error) => fail(NO_COMMAND, format_args!("cannot run {program}: {error}")),
    }
}

fn fail(code: u8, message: std::fmt::Arguments<'_>) -> ExitCode {
    eprintln!("throwaway-cluster: {message}");
    ExitCode::from(code)
}

/// The code a shell would end with.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|number| ENDED_BY_SIGNAL + number));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// The command while it runs. Signals that ask this process to end are the command's to answer;
/// when there is no command, this process ends, and the cluster's janitor cleans up.
#[derive(Debug, Clone, Default)]
struct Running(Arc<Mutex<Option<Child>>>);

impl Running {
    /// From now on, hands SIGINT, SIGTERM and SIGHUP to the command.
    fn forward_signals() -> io::Result<Self> {
        let running = Self::default();
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let shared = running.clone();
        thread::spawn(move || {
            for number in signals.forever() {
                shared.pass_on(number);
            }
        });
        Ok(running)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self, number: i32) {
        match (&*self.child(), Signal::try_from(number)) {
            (Some(child), Ok(signal)) => {
                // It fails only for a command that has just ended, and then there is nobody to
                // tell.
                let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
            }
            _ => process::exit(ENDED_BY_SIGNAL + number),
        }
    }

    /// Runs a command to its end.
    fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        // Locked until the child is known, so that no signal falls in between.
        let mut slot = self.child();
        *slot = Some(command.spawn()?);
        drop(slot);
        loop {
            // Looked at instead of waited for: once waited for, the number that signals are sent
            // to could be somebody else's.
            let mut slot = self.child();
            if let Some(status) = slot.as_mut().map(Child::try_wait).transpose()?.flatten() {
                *slot = None;
                return Ok(status);
            }
            drop(slot);
            thread::sleep(POLL);
        }
    }
}

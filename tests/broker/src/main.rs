//! `throwaway-broker run -- CMD ARGS…`: runs a command against a RabbitMQ node that exists only for
//! it.

use std::io;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use std::os::unix::process::ExitStatusExt;

use clap::{Parser, Subcommand};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use throwaway_broker::Broker;

/// What `run` ends with when there is no broker to run the command against; other than what a test
/// runner ends with, so that scripts can tell the two apart.
const NO_BROKER: u8 = 125;

/// What `run` ends with when the command cannot be started, as a shell does.
const NO_COMMAND: u8 = 127;

/// What a shell adds to the number of the signal that ended a command.
const ENDED_BY_SIGNAL: i32 = 128;

/// How often the command is looked at.
const POLL: Duration = Duration::from_millis(10);

/// What asks a process to end.
const REQUESTS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Throwaway RabbitMQ nodes.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Starts a node, runs a command with AMQP_URL set, and removes the node when the command ends
    ///
    /// Ends with the command's exit code; with 125 when there is no node, with 127 when the command
    /// cannot be started. The node's program is that of the variable RABBITMQ_SERVER, else Debian's,
    /// else rabbitmq-server in the PATH.
    Run {
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let Action::Run { command } = Arguments::parse().action;
    let mut requests = match Requests::heed() {
        Ok(requests) => requests,
        Err(error) => return fail(NO_BROKER, format_args!("cannot handle signals: {error}")),
    };
    let broker = match Broker::start() {
        Ok(broker) => broker,
        Err(error) => return fail(NO_BROKER, format_args!("{error}")),
    };
    let Some((program, arguments)) = command.split_first() else {
        return fail(NO_COMMAND, format_args!("no command"));
    };
    match requests.run(broker.command(program).args(arguments)) {
        Ok(status) => exit_code(status),
        Err(error) => fail(NO_COMMAND, format_args!("cannot run {program}: {error}")),
    }
}

fn fail(code: u8, message: std::fmt::Arguments<'_>) -> ExitCode {
    eprintln!("throwaway-broker: {message}");
    ExitCode::from(code)
}

/// The code a shell would end with.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|number| ENDED_BY_SIGNAL + number));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Signals that ask this process to end. Before there is a command they do end it, and the broker's
/// janitor cleans up; from then on they are the command's to answer.
struct Requests {
    end_this_process: Arc<AtomicBool>,
    signals: Signals,
}

impl Requests {
    fn heed() -> io::Result<Self> {
        let end_this_process = Arc::new(AtomicBool::new(true));
        for number in REQUESTS {
            flag::register_conditional_default(number, Arc::clone(&end_this_process))?;
        }
        let signals = Signals::new(REQUESTS)?;
        Ok(Self {
            end_this_process,
            signals,
        })
    }

    /// Runs a command to its end, handing signals on to it.
    fn run(&mut self, command: &mut Command) -> io::Result<ExitStatus> {
        self.end_this_process.store(false, Ordering::Release);
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed());
        loop {
            // Before it is waited for: afterwards the number could be somebody else's.
            for number in self.signals.pending() {
                // It fails only for a command that has just ended, and then there is nobody to
                // tell.
                let _ = Signal::try_from(number).and_then(|signal| kill(pid, signal));
            }
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }
}

//! The command `throwaway-cluster run`: the environment, exit codes and, however it ends, the
//! cleaning up.

#![allow(
    clippy::expect_used,
    reason = "a test may fail by panicking, its helpers too"
)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throwaway-cluster"));
    command.arg("run").args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    run(arguments).output().expect("the command runs")
}

#[test]
fn the_command_finds_the_cluster() {
    let output = output(&[
        "--no-fsync",
        "--conf",
        "work_mem=77MB",
        "--",
        "psql",
        "-XAtqc",
        "SELECT current_database() || current_user || current_setting('fsync') \
         || current_setting('work_mem')",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(text.trim_end(), "postgrespostgresoff77MB");
}

#[test]
fn the_exit_code_is_the_commands() {
    assert_eq!(
        output(&["--no-fsync", "--", "sh", "-c", "exit 7"])
            .status
            .code(),
        Some(7)
    );
    assert_eq!(
        output(&["--no-fsync", "--", "sh", "-c", "kill -9 $$"])
            .status
            .code(),
        Some(137)
    );
    assert_eq!(
        output(&["--no-fsync", "--", "/no/such/command"])
            .status
            .code(),
        Some(127)
    );
}

#[test]
fn a_cluster_that_does_not_start_is_125() {
    let output = output(&["--conf", "no_such_parameter=1", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no_such_parameter"), "{text}");
}

#[test]
fn nothing_is_left_after_sigterm_sigint_and_sigkill() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let mut session = Session::start();
        let pid = Pid::from_raw(session.child.id().cast_signed());
        kill(pid, signal).expect("kill");
        let status = session.child.wait().expect("wait");
        let ended_by = status.signal().or(status.code().map(|code| code - 128));
        assert_eq!(ended_by, Some(signal as i32), "{status}");
        session.assert_clean(signal);
    }
}

#[test]
fn nothing_is_left_when_killed_while_the_cluster_is_made() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let open_to_all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(base.path(), open_to_all).expect("chmod");
    let entries = || std::fs::read_dir(base.path()).expect("the folder").count();

    let mut owner = run(&["--", "true"])
        .env("TMPDIR", base.path())
        .spawn()
        .expect("it starts");
    wait_until("a cluster is begun", || entries() > 0);
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    wait_until("the cluster is gone", || entries() == 0);
}

/// Waits for what happens by itself, with a bound.
fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "not after a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// `throwaway-cluster run` with a command that tells where the cluster is and then waits for
/// ever.
struct Session {
    child: Child,
    /// Kept open, so that the command does not end by itself.
    _stdin: ChildStdin,
    folder: String,
    port: u16,
}

impl Session {
    fn start() -> Self {
        let script = "dirname \"$THROWAWAY_CLUSTER_LOG\"; echo $PGPORT; read -r _";
        let mut child = run(&["--no-fsync", "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let (folder, port) = (line(), line().parse().expect("a port"));
        assert!(Path::new(&folder).is_dir());
        TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        Self {
            _stdin: child.stdin.take().expect("stdin"),
            child,
            folder,
            port,
        }
    }

    /// The janitor works on after its owner, so what it does is waited for.
    fn assert_clean(&self, signal: Signal) {
        wait_until(&format!("{} is gone after {signal}", self.folder), || {
            !Path::new(&self.folder).exists()
        });
        TcpStream::connect(("127.0.0.1", self.port)).expect_err("nobody listens");
    }
}

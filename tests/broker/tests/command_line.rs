//! The command `throwaway-broker run`: the environment, exit codes and, however it ends, the
//! cleaning up.

#![allow(
    clippy::expect_used,
    reason = "a test may fail by panicking, its helpers too"
)]

mod processes;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use processes::{in_folder, wait_until};

fn run(command: &[&str]) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_throwaway-broker"));
    run.args(["run", "--"]).args(command);
    run
}

#[test]
fn the_command_finds_the_broker_and_its_exit_code_is_passed_on() {
    let output = run(&["sh", "-c", "echo $AMQP_URL; kill -9 $$"])
        .output()
        .expect("the command runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{errors}");
    assert!(
        text.starts_with("amqp://guest:guest@127.0.0.1:"),
        "{text}{errors}"
    );
}

#[test]
fn without_rabbitmq_it_is_125_and_says_what_to_install() {
    let output = run(&["true"])
        .env("RABBITMQ_SERVER", "/no/such/rabbitmq-server")
        .output()
        .expect("the command runs");
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("/no/such/rabbitmq-server") && text.contains("install"),
        "{text}"
    );
}

#[test]
fn a_node_that_does_not_start_is_125_and_shows_its_log() {
    let output = run(&["true"])
        .env("RABBITMQ_SERVER", "/bin/false")
        .output()
        .expect("the command runs");
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("ended with exit status: 1"), "{text}");
}

#[test]
fn nothing_is_left_after_sigterm_and_sigkill() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
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
fn nothing_is_left_when_killed_while_the_node_starts() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let open_to_all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(base.path(), open_to_all).expect("chmod");
    let entries = || std::fs::read_dir(base.path()).expect("the folder").count();

    for enough in [1, 3] {
        let mut owner = run(&["true"])
            .env("TMPDIR", base.path())
            .spawn()
            .expect("it starts");
        wait_until("the node starts", || in_folder(base.path()) >= enough);
        owner.kill().expect("kill");
        owner.wait().expect("wait");
        wait_until("its folder is gone", || entries() == 0);
        wait_until("its processes are gone", || in_folder(base.path()) == 0);
    }
}

/// `throwaway-broker run` with a command that tells where the node is and then waits for ever.
struct Session {
    child: Child,
    /// Kept open, so that the command does not end by itself.
    _stdin: ChildStdin,
    folder: PathBuf,
    port: u16,
}

impl Session {
    fn start() -> Self {
        let script = "dirname \"$THROWAWAY_BROKER_LOG\"; echo $AMQP_URL; read -r _";
        let mut child = run(&["sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let (folder, url) = (PathBuf::from(line()), line());
        let port = url
            .trim_end_matches("/%2f")
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        assert!(Path::new(&folder).is_dir());
        TcpStream::connect(("127.0.0.1", port)).expect("the node listens");
        Self {
            _stdin: child.stdin.take().expect("stdin"),
            child,
            folder,
            port,
        }
    }

    /// The janitor works on after its owner, so what it does is waited for.
    fn assert_clean(&self, signal: Signal) {
        let folder = &self.folder;
        wait_until(
            &format!("{} is gone after {signal}", folder.display()),
            || !folder.exists(),
        );
        wait_until("its processes are gone", || in_folder(folder) == 0);
        TcpStream::connect(("127.0.0.1", self.port)).expect_err("nobody listens");
    }
}

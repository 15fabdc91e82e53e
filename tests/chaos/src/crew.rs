//! The consumer processes: started, killed, and started again at once.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, ChildStdin, Command},
    time::timeout,
};

/// How long a consumer may take to finish what it has in hand.
const GOODBYE: Duration = Duration::from_secs(30);

/// How much of what the consumers have said is told when one ends unexpectedly, in bytes.
const TAIL: usize = 2_000;

/// What the processes are told, and where they live.
#[derive(Debug, Clone)]
pub struct Orders {
    /// Their program.
    pub program: PathBuf,
    /// The broker.
    pub amqp_url: String,
    /// The database.
    pub dsn: String,
    /// What the faults of their handlers follow from.
    pub seed: u64,
    /// The folder of their journals.
    pub journals: PathBuf,
    /// The file for what they say on standard error.
    pub log: PathBuf,
}

/// How processes have ended.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// By a strike.
    pub killed: u64,
    /// By a handler that aborts.
    pub aborted: u64,
    /// In any other way; this must not happen.
    pub unexpected: Vec<String>,
}

/// The consumer processes of a run; killed when it is dropped.
#[derive(Debug)]
pub struct Crew {
    orders: Orders,
    members: Vec<Member>,
    started: i32,
    ends: Ends,
    is_calm: bool,
}

#[derive(Debug)]
struct Member {
    process: i32,
    child: Child,
    /// The process ends when this does. Apart from the child, which would close it to wait for it.
    _lifeline: Option<ChildStdin>,
}

impl Crew {
    /// Nobody yet.
    pub fn new(orders: Orders) -> Self {
        Self {
            orders,
            members: Vec::new(),
            started: 0,
            ends: Ends::default(),
            is_calm: false,
        }
    }

    /// Starts that many.
    ///
    /// # Errors
    ///
    /// When a process cannot be started.
    pub fn start(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let member = self.spawn()?;
            self.members.push(member);
        }
        Ok(())
    }

    /// From now on, no handler of a process that is started goes wrong by itself.
    pub fn calm(&mut self) {
        self.is_calm = true;
    }

    /// How processes have ended so far.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// How many processes there have been.
    pub fn started(&self) -> i32 {
        self.started
    }

    /// Kills one with SIGKILL and starts another in its place.
    ///
    /// # Errors
    ///
    /// When it cannot be killed, or the other not be started.
    pub async fn strike(&mut self, pick: usize) -> Result<()> {
        let place = pick.checked_rem(self.members.len());
        let Some(member) = place.and_then(|place| self.members.get_mut(place)) else {
            return Ok(());
        };
        member.child.start_kill()?;
        let (process, status) = (member.process, member.child.wait().await?);
        if status.signal() == Some(Signal::SIGKILL as i32) {
            self.ends.killed += 1;
        } else {
            // It was faster.
            self.note_end(process, status);
        }
        let successor = self.spawn()?;
        if let Some(member) = place.and_then(|place| self.members.get_mut(place)) {
            *member = successor;
        }
        Ok(())
    }

    /// Starts others in the place of those that have ended.
    ///
    /// # Errors
    ///
    /// When a process cannot be started.
    pub fn look_after(&mut self) -> Result<()> {
        for place in 0..self.members.len() {
            let member = &mut self.members[place];
            let process = member.process;
            if let Some(status) = member.child.try_wait()? {
                self.note_end(process, status);
                self.members[place] = self.spawn()?;
            }
        }
        Ok(())
    }

    /// Asks all to finish what they have in hand and waits until they have ended.
    ///
    /// # Errors
    ///
    /// When one cannot be asked or killed.
    pub async fn stop(&mut self) -> Result<()> {
        for member in &self.members {
            if let Some(pid) = member.child.id() {
                kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)?;
            }
        }
        for mut member in std::mem::take(&mut self.members) {
            match timeout(GOODBYE, member.child.wait()).await {
                Ok(status) => {
                    let status = status?;
                    if !status.success() {
                        self.note_end(member.process, status);
                    }
                }
                Err(_) => {
                    member.child.kill().await?;
                    let process = member.process;
                    self.ends
                        .unexpected
                        .push(format!("process {process} did not end within {GOODBYE:?}"));
                }
            }
        }
        Ok(())
    }

    fn note_end(&mut self, process: i32, status: ExitStatus) {
        if status.signal() == Some(Signal::SIGABRT as i32) {
            self.ends.aborted += 1;
        } else {
            let said = tail(&self.orders.log);
            self.ends
                .unexpected
                .push(format!("process {process} ended with {status}; {said}"));
        }
    }

    fn spawn(&mut self) -> Result<Member> {
        self.started += 1;
        let process = self.started;
        let orders = &self.orders;
        let mut command = Command::new(&orders.program);
        command
            .args(["--amqp-url", &orders.amqp_url])
            .args(["--dsn", &orders.dsn])
            .args(["--process", &process.to_string()])
            .args(["--seed", &orders.seed.to_string()])
            .arg("--journal")
            .arg(orders.journals.join(process.to_string()))
            // It ends when this process does, and its end of the pipe with it.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(appending(&orders.log)?)
            // What a terminal sends to everybody is not for it.
            .process_group(0)
            .kill_on_drop(true);
        if self.is_calm {
            command.arg("--calm");
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", orders.program.display()))?;
        let lifeline = child.stdin.take();
        Ok(Member {
            process,
            child,
            _lifeline: lifeline,
        })
    }
}

fn appending(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).append(true).open(path)?)
}

/// The end of what the processes have said.
fn tail(log: &Path) -> String {
    let said = fs::read(log).unwrap_or_default();
    let tail = &said[said.len().saturating_sub(TAIL)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}

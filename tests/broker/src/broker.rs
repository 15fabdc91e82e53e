//! Starting, killing and starting again.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::node::{HOST, Node, Ports};

/// The user and the password that every new RabbitMQ has, for connections from the same machine.
const USER: &str = "guest";

/// The variable in which a command finds the broker.
const URL_VARIABLE: &str = "AMQP_URL";

/// A node writes the register of its quorum queues to disk when nothing was declared for half a
/// second. Killed before that it would know a new queue by its name, and never find its messages.
const REGISTERED: Duration = Duration::from_secs(2);

/// How often a start is tried when somebody else was faster to take a port.
const START_ATTEMPTS: usize = 5;

/// A RabbitMQ node, running or killed; removed when dropped.
///
/// Methods take `&self`, so that threads can share a broker while one of them kills it.
#[derive(Debug)]
pub struct Broker {
    ports: Ports,
    running: Mutex<Option<Child>>,
    node: Node,
}

impl Broker {
    /// Makes a node, starts it and returns when it takes AMQP connections.
    ///
    /// # Errors
    ///
    /// When RabbitMQ is not installed or does not start; the message says which.
    pub fn start() -> Result<Self, Error> {
        let node = Node::make()?;
        let mut tried = 0;
        loop {
            tried += 1;
            let ports = Ports::free()?;
            match node.launch(ports) {
                Ok(child) => {
                    return Ok(Self {
                        ports,
                        running: Mutex::new(Some(child)),
                        node,
                    });
                }
                // Somebody was faster: a free port can only be asked for, not reserved. The node
                // and its port mapper each have their own words for it.
                Err(Error::Exited { log, .. })
                    if ["eaddrinuse", "in use"].iter().any(|it| log.contains(it))
                        && tried < START_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The address to connect to, with user, password and virtual host; the same for the broker's
    /// whole life.
    pub fn amqp_url(&self) -> String {
        format!("amqp://{USER}:{USER}@{HOST}:{}/%2f", self.ports.amqp)
    }

    /// The AMQP port on 127.0.0.1; the same for the broker's whole life.
    pub fn port(&self) -> u16 {
        self.ports.amqp
    }

    /// The node's log.
    pub fn log_path(&self) -> PathBuf {
        self.node.log()
    }

    /// A program that finds this broker in the variable `AMQP_URL`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env(URL_VARIABLE, self.amqp_url())
            .env("THROWAWAY_BROKER_LOG", self.log_path());
        command
    }

    /// Whether the node is alive.
    pub fn is_running(&self) -> bool {
        self.running()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills the node with SIGKILL, as soon as it has written down what was declared: connections break, and what is durable is there again after
    /// [`start_again`](Self::start_again). Does nothing when it is killed already.
    ///
    /// # Errors
    ///
    /// When the operating system does not let it.
    pub fn kill(&self) -> Result<(), Error> {
        if self.is_running() {
            thread::sleep(REGISTERED);
        }
        let child = self.running().take();
        child.map_or(Ok(()), |child| self.node.kill(child))
    }

    /// Starts a killed node again, on the same data and the same ports; returns when it takes AMQP
    /// connections. Does nothing when it is running.
    ///
    /// # Errors
    ///
    /// When it does not start, with the end of its log.
    pub fn start_again(&self) -> Result<(), Error> {
        if self.is_running() {
            return Ok(());
        }
        self.kill()?;
        let child = self.node.launch(self.ports)?;
        *self.running() = Some(child);
        Ok(())
    }

    /// The node's process, if there is one; a panicked thread does not make it unusable.
    fn running(&self) -> MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The janitor tries again, and a destructor has nobody to tell.
        let _ = self.kill();
    }
}

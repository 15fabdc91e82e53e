//! What can go wrong with a throwaway broker, said so that the reader knows what to install or
//! where to look: the end of the node's log comes with every failure of the node itself.

use std::io;
use std::process::ExitStatus;

/// A broker could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No RabbitMQ was found.
    #[error(
        "no rabbitmq-server (tried: {tried}): install the package rabbitmq-server, or set \
         RABBITMQ_SERVER to the path of another one"
    )]
    NoServer {
        /// What was tried, separated by commas.
        tried: String,
    },

    /// Started by root, and the user that should run the node does not exist.
    #[error(
        "there is no user \"{user}\" to run RabbitMQ as: install the package rabbitmq-server, or \
         do not start it as root"
    )]
    NoServerUser {
        /// The name looked for.
        user: String,
    },

    /// There is no folder in which the node's user may make files.
    #[error("the node's user may write to none of: {tried}")]
    NoFolder {
        /// What was tried, separated by commas.
        tried: String,
    },

    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },

    /// The node ended while it was starting.
    #[error("RabbitMQ ended with {status} while starting\n{log}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The end of the node's log.
        log: String,
    },

    /// The node did not start in time.
    #[error("starting RabbitMQ took longer than {seconds} s\n{log}")]
    Timeout {
        /// How long it was waited for.
        seconds: u64,
        /// The end of the node's log.
        log: String,
    },
}

impl Error {
    /// Wraps an operating system error with what was attempted; for `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

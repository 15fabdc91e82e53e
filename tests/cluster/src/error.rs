//! What can go wrong with a throwaway cluster, said so that the reader knows what to install or
//! where to look: the end of the server's log comes with every failure of the server itself.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// A cluster could not be made, started, stopped or spoken to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No PostgreSQL installation was found at all.
    #[error(
        "no usable pg_config (tried: {tried}): install postgresql-15, or set PG_CONFIG to the \
         pg_config of another installation"
    )]
    NoPgConfig {
        /// What was tried, separated by commas.
        tried: String,
    },

    /// The installation lacks one of the server's programs.
    #[error("no {program} in {}: install postgresql-{major}", bindir.display())]
    NoServer {
        /// The missing program, `initdb` say.
        program: String,
        /// The installation's `pg_config --bindir`.
        bindir: PathBuf,
        /// The installation's major version.
        major: String,
    },

    /// PgBouncer is not installed.
    #[error("no pgbouncer in the PATH or in /usr/sbin: install pgbouncer")]
    NoPgBouncer,

    /// PgBouncer ended while it was starting.
    #[error("pgbouncer did not start\n{log}")]
    NoPool {
        /// Its log.
        log: String,
    },

    /// Started by root, and the user that should run the server does not exist.
    #[error(
        "PostgreSQL refuses to run as root, and there is no user \"{user}\" to run it as: install \
         postgresql-15, or create the user"
    )]
    NoServerUser {
        /// The name looked for.
        user: String,
    },

    /// Started by root, and the user that should run the server may not use a file or folder.
    #[error(
        "user \"{user}\" cannot work with {}: {} is closed to it",
        path.display(),
        closed.display()
    )]
    Unreachable {
        /// The user that runs the server.
        user: String,
        /// What it has to work with.
        path: PathBuf,
        /// The folder that it may not enter, or not write to.
        closed: PathBuf,
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

    /// A program ended with a failure.
    #[error("{program} ended with {status}\n{output}{log}")]
    Program {
        /// The program, without its arguments.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to standard error, or to standard output when that was empty.
        output: String,
        /// The end of the server's log, or nothing when there is no log yet.
        log: String,
    },

    /// The server ended while it was starting.
    #[error("the server ended with {status} while starting\n{log}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The end of the server's log.
        log: String,
    },

    /// Something did not happen in time.
    #[error("{what} took longer than {seconds} s\n{log}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// The end of the server's log.
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

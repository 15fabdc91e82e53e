//! Cleans up after a cluster whatever way its owner ends: by dropping it, a panic, Ctrl-C, abort
//! or SIGKILL.
//!
//! A destructor alone cannot promise that, so each cluster has a janitor: a shell that sleeps in
//! a `read` on a pipe whose other end the owner holds. When the owner lets go or dies, the kernel
//! closes that end, and the janitor stops what still runs and removes the folder. Every way out
//! takes this one path.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::Error;
use crate::server_user::ServerUser;

/// `$1` is pg_ctl, `$2` the cluster's folder. Signals that a terminal sends to everybody must not
/// end it early. A killed postmaster's children may still write for a moment, hence the loop.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
while read -r _; do :; done
if [ -e "$2/data/postmaster.pid" ]; then
    "$1" stop -D "$2/data" -m immediate -w -t 30
fi
for _ in 1 2 3 4 5; do
    rm -rf "$2" && break
    sleep 1
done
"#;

/// The process that outlives the owner just long enough to clean up.
#[derive(Debug)]
pub(crate) struct Janitor {
    shell: Child,
}

impl Janitor {
    /// Starts to watch over `folder`.
    ///
    /// It runs as the server's user, so that the worst it can stop or remove is that user's.
    pub(crate) fn hire(user: &ServerUser, pg_ctl: &Path, folder: &Path) -> Result<Self, Error> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "throwaway-cluster-janitor"])
            .args([pg_ctl, folder])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        user.apply(&mut command);
        let shell = command.spawn().map_err(Error::io("starting /bin/sh"))?;
        Ok(Self { shell })
    }

    /// A standard input for a program that makes the cluster: as long as the program runs, the
    /// janitor waits, even when the owner is gone. initdb, left alone, would otherwise make again
    /// what was just removed.
    pub(crate) fn wait_for(&self) -> Result<Stdio, Error> {
        let owners_end = self
            .shell
            .stdin
            .as_ref()
            .map(|pipe| pipe.as_fd().try_clone_to_owned());
        match owners_end
            .transpose()
            .map_err(Error::io("sharing the janitor's pipe"))?
        {
            Some(pipe) => Ok(Stdio::from(pipe)),
            None => Ok(Stdio::null()),
        }
    }
}

impl Drop for Janitor {
    /// Lets go of the pipe and waits until the folder is gone.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing can be done about a janitor that cannot be waited for, and a destructor has
        // nobody to tell.
        let _ = self.shell.wait();
    }
}

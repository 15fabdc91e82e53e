//! Cleans up after a broker whatever way its owner ends: by dropping it, a panic, Ctrl-C, abort or
//! SIGKILL.
//!
//! A destructor alone cannot promise that, so each broker has a janitor: a shell that sleeps in a
//! `read` on a pipe whose other end the owner holds. When the owner lets go or dies, the kernel
//! closes that end, and the janitor kills what still runs and removes the folder. Every way out
//! takes this one path.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::error::Error;
use crate::node::GROUP_FILE;
use crate::server_user::ServerUser;

/// `$1` is the node's folder, `$2` the file in it that names the process group to kill. Signals
/// that a terminal sends to everybody must not end it early. A killed node's helpers may still
/// write for a moment, hence the loop.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
while read -r _; do :; done
if [ -e "$1/$2" ]; then
    kill -s KILL -- "-$(cat "$1/$2")"
fi
for _ in 1 2 3 4 5; do
    rm -rf "$1" && break
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
    /// It runs as the node's user, so that the worst it can kill or remove is that user's.
    pub(crate) fn hire(user: &ServerUser, folder: &Path) -> Result<Self, Error> {
        let shell = user
            .shell(SCRIPT)
            .arg(folder)
            .arg(GROUP_FILE)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::io("starting /bin/sh"))?;
        Ok(Self { shell })
    }

    /// A standard input for a program: as long as it holds that open, the janitor waits, even when
    /// the owner is gone. A node that has not yet said what to kill would otherwise be missed.
    pub(crate) fn wait_for(&self) -> Result<Stdio, Error> {
        let owners_end = self
            .shell
            .stdin
            .as_ref()
            .map(|pipe| pipe.as_fd().try_clone_to_owned());
        let shared = owners_end
            .transpose()
            .map_err(Error::io("sharing the janitor's pipe"))?;
        Ok(shared.map_or_else(Stdio::null, Stdio::from))
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

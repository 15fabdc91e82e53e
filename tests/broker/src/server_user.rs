//! The operating system user that runs the node: whoever runs this process, and `rabbitmq` when
//! that is root, since a broker needs none of root's rights.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::{Gid, Uid, User, chown, geteuid};

use crate::error::Error;

/// Who runs the node when root asks for it; the package makes this user.
const UNPRIVILEGED: &str = "rabbitmq";

/// The user that owns the node's folder and runs its programs.
#[derive(Debug, Clone)]
pub(crate) struct ServerUser {
    /// `None`: the user of this process.
    switch_to: Option<(Uid, Gid)>,
}

impl ServerUser {
    /// Decides who runs the node.
    pub(crate) fn find() -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Ok(Self { switch_to: None });
        }
        let user = User::from_name(UNPRIVILEGED)
            .map_err(|errno| Error::io("looking up the node's user")(errno.into()))?
            .ok_or_else(|| Error::NoServerUser {
                user: UNPRIVILEGED.to_owned(),
            })?;
        Ok(Self {
            switch_to: Some((user.uid, user.gid)),
        })
    }

    /// A shell script to be run as this user.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "throwaway-broker"]);
        if let Some((uid, gid)) = self.switch_to {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }

    /// Hands a folder to this user.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Error> {
        let Some((uid, gid)) = self.switch_to else {
            return Ok(());
        };
        chown(path, Some(uid), Some(gid))
            .map_err(|errno| Error::io(format!("giving away {}", path.display()))(errno.into()))
    }

    /// Whether this user may make files in a folder. Asked of the operating system in this user's
    /// name: it knows of every reason against it.
    pub(crate) fn may_write_to(&self, folder: &Path) -> bool {
        self.shell(r#"test -w "$1""#)
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

//! The operating system user that runs the server: whoever runs this process, and `postgres`
//! when that is root, because PostgreSQL refuses to run as root.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Gid, Uid, User, chown, geteuid};

use crate::error::Error;

/// Who runs the server when root asks for it.
const UNPRIVILEGED: &str = "postgres";

/// The permission to enter a folder and the one to change it, as the last three bits of a mode
/// have them.
const ENTER: u32 = 0o1;
const WRITE: u32 = 0o2;

/// The user that owns the data and runs the server programs.
#[derive(Debug, Clone)]
pub(crate) struct ServerUser {
    /// `None`: the user of this process.
    switch_to: Option<(Uid, Gid)>,
}

impl ServerUser {
    /// Decides who runs the server.
    pub(crate) fn find() -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Ok(Self { switch_to: None });
        }
        let user = User::from_name(UNPRIVILEGED)
            .map_err(|errno| Error::io("looking up the server's user")(errno.into()))?
            .ok_or_else(|| Error::NoServerUser {
                user: UNPRIVILEGED.to_owned(),
            })?;
        Ok(Self {
            switch_to: Some((user.uid, user.gid)),
        })
    }

    /// Makes a command run as this user.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Some((uid, gid)) = self.switch_to {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
    }

    /// Hands a file or folder to this user.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Error> {
        let Some((uid, gid)) = self.switch_to else {
            return Ok(());
        };
        chown(path, Some(uid), Some(gid))
            .map_err(|errno| Error::io(format!("giving away {}", path.display()))(errno.into()))
    }

    /// Fails, naming the obstacle, when this user may not enter a folder on the way to a file.
    pub(crate) fn check_reach(&self, file: &Path) -> Result<(), Error> {
        self.check(file, false)
    }

    /// Fails, naming the obstacle, when this user may not make files in a folder.
    pub(crate) fn check_writable(&self, folder: &Path) -> Result<(), Error> {
        self.check(folder, true)
    }

    fn check(&self, path: &Path, write: bool) -> Result<(), Error> {
        let full = path
            .canonicalize()
            .map_err(Error::io(format!("looking for {}", path.display())))?;
        let Some((uid, gid)) = self.switch_to else {
            return Ok(());
        };
        for folder in full.ancestors().filter(|ancestor| ancestor.is_dir()) {
            let meta = folder
                .metadata()
                .map_err(Error::io(format!("looking at {}", folder.display())))?;
            let class = if meta.uid() == uid.as_raw() {
                6
            } else if meta.gid() == gid.as_raw() {
                3
            } else {
                0
            };
            let needed = if write && folder == full {
                WRITE | ENTER
            } else {
                ENTER
            };
            if (meta.mode() >> class) & needed != needed {
                return Err(Error::Unreachable {
                    user: UNPRIVILEGED.to_owned(),
                    path: full.clone(),
                    closed: folder.to_owned(),
                });
            }
        }
        Ok(())
    }
}

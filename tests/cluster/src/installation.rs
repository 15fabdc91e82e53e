//! Finds the PostgreSQL installation whose programs make and run the cluster.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;

/// The server programs without which a cluster cannot be made.
const REQUIRED: [&str; 4] = ["initdb", "postgres", "pg_ctl", "pg_basebackup"];

/// Where Debian puts a server that is not in the `PATH`.
const DEBIAN_PG_CONFIG: &str = "/usr/lib/postgresql/15/bin/pg_config";

/// An installation that has every program of [`REQUIRED`].
#[derive(Debug, Clone)]
pub(crate) struct Installation {
    bindir: PathBuf,
}

impl Installation {
    /// The installation of the given `pg_config`, or the first one that is found.
    pub(crate) fn find(pg_config: Option<&Path>) -> Result<Self, Error> {
        let candidates = match pg_config {
            Some(path) => vec![path.to_owned()],
            None => match env::var_os("PG_CONFIG").filter(|value| !value.is_empty()) {
                Some(path) => vec![PathBuf::from(path)],
                None => vec![PathBuf::from("pg_config"), PathBuf::from(DEBIAN_PG_CONFIG)],
            },
        };
        let mut lacking = None;
        for candidate in &candidates {
            let Some(bindir) = ask(candidate, "--bindir").map(PathBuf::from) else {
                continue;
            };
            match REQUIRED
                .iter()
                .find(|program| !bindir.join(program).is_file())
            {
                None => return Ok(Self { bindir }),
                Some(program) => {
                    lacking.get_or_insert(Error::NoServer {
                        program: (*program).to_owned(),
                        bindir,
                        major: major(candidate),
                    });
                }
            }
        }
        Err(lacking.unwrap_or_else(|| Error::NoPgConfig {
            tried: candidates
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        }))
    }

    /// The folder of the installation's programs.
    pub(crate) fn bindir(&self) -> &Path {
        &self.bindir
    }

    /// The full path of one of the installation's programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bindir.join(name)
    }
}

/// One answer of `pg_config`, or nothing when it cannot be run or does not know.
fn ask(pg_config: &Path, what: &str) -> Option<String> {
    let output = Command::new(pg_config).arg(what).output().ok()?;
    let answer = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !answer.is_empty()).then_some(answer)
}

/// The major version that `pg_config --version` ("PostgreSQL 15.20 …") speaks of.
fn major(pg_config: &Path) -> String {
    ask(pg_config, "--version")
        .and_then(|version| {
            let digits = version.split_whitespace().nth(1)?;
            digits
                .split(|c: char| !c.is_ascii_digit())
                .next()
                .map(str::to_owned)
        })
        .unwrap_or_else(|| "15".to_owned())
}

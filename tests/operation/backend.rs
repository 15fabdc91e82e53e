//! What a server process holds: its memory by the system's word and by Postgres', and its open
//! files.

use std::fs;

use inbox_test_support::inbox::Session;

/// What one backend holds at one moment.
#[derive(Debug, Clone)]
pub struct Held {
    /// Private memory by the system's word, in kilobytes: what the library allocates by itself is
    /// in it, shared buffers are not.
    pub private_kb: i64,
    /// What is in use in Postgres' memory contexts, in kilobytes.
    pub contexts_kb: i64,
    /// Open files.
    pub files: i64,
    /// Open files that were deleted meanwhile.
    pub deleted_files: i64,
}

impl Held {
    /// By that session's backend, which runs on this machine.
    pub fn by(session: &mut Session) -> Self {
        let contexts_kb = session.value(
            "SELECT (sum(used_bytes) / 1024)::bigint FROM pg_backend_memory_contexts",
            &[],
        );
        let pid = session.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let private_kb = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok())
            .expect("RssAnon");
        let files: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("the process' open files: as the server's user or root")
            // One may be closed between the two looks.
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .collect();
        let is_deleted = |it: &&std::path::PathBuf| it.to_string_lossy().ends_with("(deleted)");
        Self {
            private_kb,
            contexts_kb,
            files: i64::try_from(files.len()).unwrap(),
            deleted_files: i64::try_from(files.iter().filter(is_deleted).count()).unwrap(),
        }
    }
}

/// The largest contexts of that session's backend, for a test that fails.
pub fn largest_contexts(session: &mut Session) -> String {
    session.value(
        "SELECT string_agg(line, E'\\n') FROM (
            SELECT format('%s kB in %s of %s %s', sum(used_bytes) / 1024, count(*), name, parent) AS line
            FROM pg_backend_memory_contexts GROUP BY name, parent ORDER BY sum(used_bytes) DESC LIMIT 12) l",
        &[],
    )
}

//! What the tests look for: processes that work in a node's folder.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// How many living processes have their working directory in a folder. All that is started for a
/// node has; a process that has ended and that nobody has waited for has none.
pub fn in_folder(folder: &Path) -> usize {
    let processes = fs::read_dir("/proc").expect("/proc");
    processes
        .filter_map(Result::ok)
        .filter_map(|process| fs::read_link(process.path().join("cwd")).ok())
        // What has been removed is shown with a note behind its name.
        .filter(|cwd| {
            cwd.as_os_str()
                .to_string_lossy()
                .starts_with(&*folder.to_string_lossy())
        })
        .count()
}

/// Waits for what happens by itself, with a bound.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "not after a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

//! The background worker in preloaded servers (G8, G9, G13): where it runs, what it follows, what it
//! survives, and that it is in nobody's way.
//!
//! Nothing here looks at how fast it is. That something happens is waited for; that something no
//! longer happens is measured in rounds that the worker does elsewhere, or, where it does none at
//! all, by its standing still for many times its interval.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "worker/failure.rs"]
mod failure;
#[path = "worker/going_away.rs"]
mod going_away;
#[path = "worker/restore.rs"]
mod restore;
#[path = "worker/rounds.rs"]
mod rounds;

use std::{thread, time::Duration};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
    retention::age_sequences,
    wait_for,
};
use throwaway_cluster::{Builder, Cluster};

/// How long the worker pauses between two rounds in these tests.
const INTERVAL: Duration = Duration::from_millis(200);

/// The same for the configuration.
const INTERVAL_SETTING: &str = "200ms";

/// A server that loads the library at its start, with short rounds.
fn preloaded() -> Builder {
    Cluster::builder()
        .fsync(false)
        .preload("sequential_inbox")
        .setting("sequential_inbox.housekeeping_interval", INTERVAL_SETTING)
        // Each line says whose it is.
        .setting("log_line_prefix", "%m [%p] %b: ")
}

/// A database with the extension in which the worker starts at once: it leaves one that has just got
/// the extension alone for a while.
fn with_extension(cluster: &Cluster) -> (Database, Session) {
    let database = Database::bare_on(cluster);
    let mut session = Session::new(&database);
    session.run("CREATE EXTENSION sequential_inbox");
    start_at_once(&mut session);
    (database, session)
}

/// Makes it so that the extension has been installed long ago.
fn start_at_once(session: &mut Session) {
    session.run("UPDATE inbox_worker_status SET installed_at = '-infinity'");
}

/// When the worker has last finished a round in the session's database, in seconds.
fn last_run(session: &mut Session) -> Option<f64> {
    session.value(
        "SELECT EXTRACT(epoch FROM last_run_at)::float8 FROM inbox_settings",
        &[],
    )
}

/// Waits until the worker has begun and finished that many more rounds in the session's database.
fn wait_for_rounds(session: &mut Session, rounds: usize) {
    // The one that may be running has begun before.
    for _ in 0..=rounds {
        let before = last_run(session);
        wait_for("a round of the worker", || {
            (last_run(session) != before).then_some(())
        });
    }
}

/// Waits until the worker does nothing more in the session's database, while it does rounds in
/// another.
fn quiet_beside(session: &mut Session, elsewhere: &mut Session) {
    // One round there may still have come after one here.
    wait_for_rounds(elsewhere, 1);
    let before = last_run(session);
    wait_for_rounds(elsewhere, 3);
    assert_eq!(last_run(session), before);
}

/// Waits until the worker does nothing more anywhere: until many intervals pass without a round. A
/// machine under load could make that come true too early, and never false.
fn quiet(session: &mut Session) {
    wait_for("the worker to do nothing", || {
        let before = last_run(session);
        thread::sleep(8 * INTERVAL);
        (last_run(session) == before).then_some(())
    });
}

/// Declares a sequence and gives it an instance that is past its retention.
fn give_work(session: &mut Session, context: &str) {
    session.run("SELECT inbox_declare_sequence('s', '1 day', '[{\"type\": \"a\"}]')");
    session.decided("process", &Arrival::new("a", context).of(context));
    age_sequences(session, "25 hours");
}

/// Whether there is work left.
fn has_work(session: &mut Session) -> bool {
    session.value("SELECT EXISTS (SELECT FROM sequence_instance)", &[])
}

/// Waits until the worker has done its work.
fn wait_until_done(session: &mut Session) {
    wait_for("the worker to remove the expired instance", || {
        (!has_work(session)).then_some(())
    });
}

/// Changes a setting for the whole server and has it read.
fn alter_system(cluster: &Cluster, change: &str) {
    cluster
        .sql("postgres", &format!("ALTER SYSTEM {change}"))
        .and_then(|_| cluster.sql("postgres", "SELECT pg_reload_conf()"))
        .unwrap();
}

/// The process ids of what runs under that name; `None` is any of the extension's.
fn processes(session: &mut Session, name: Option<&str>) -> Vec<i32> {
    session.value(
        "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
         WHERE backend_type = $1 OR ($1 IS NULL AND backend_type LIKE 'sequential_inbox%')",
        &[&name],
    )
}

/// The launcher's process id, once it runs.
fn launcher(session: &mut Session) -> i32 {
    wait_for("the launcher to run", || {
        processes(session, Some("sequential_inbox launcher"))
            .first()
            .copied()
    })
}

/// What the worker and the launcher have complained about in the server's log.
fn complaints(cluster: &Cluster) -> Vec<String> {
    let log = std::fs::read_to_string(cluster.log_path()).unwrap();
    log.lines()
        .filter(|line| {
            let ours = ["worker", "launcher"].map(|name| format!("] sequential_inbox {name}: "));
            let message = ours.iter().find_map(|it| line.split_once(it.as_str()));
            message.is_some_and(|(_, message)| {
                ["WARNING:", "ERROR:", "FATAL:", "PANIC:"]
                    .iter()
                    .any(|level| message.starts_with(level))
            })
        })
        .map(str::to_owned)
        .collect()
}

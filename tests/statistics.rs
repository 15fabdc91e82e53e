//! Statistics and metrics, on a server that has the library preloaded: what is counted, that it
//! survives a rollback, that memory is bounded, and who sees what (G8, G14).

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "statistics/counters.rs"]
mod counters;
#[path = "statistics/metrics.rs"]
mod metrics;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use inbox_test_support::{Database, inbox::Session};
use throwaway_cluster::Cluster;

/// Counters are the whole server's. A test that fills them up, or resets all, has the server alone.
static SERVER: Mutex<()> = Mutex::new(());

/// The server of these tests. The worker does nothing by itself: its rounds would be counted.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        Cluster::builder()
            .fsync(false)
            .preload("sequential_inbox")
            .setting("sequential_inbox.housekeeping", "off")
            .start()
            .expect("a server starts")
    })
}

/// A database of the preloaded server, and a session in it; others wait until it is let go.
fn preloaded() -> (MutexGuard<'static, ()>, Database, Session) {
    let alone = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let database = Database::bare_on(cluster());
    let mut session = Session::new(&database);
    session.run("CREATE EXTENSION sequential_inbox; CREATE TABLE ledger (entry text)");
    (alone, database, session)
}

/// The counters of one name that are not zero, as `column=number`, without times.
fn counted(session: &mut Session, kind: &str, name: &str) -> String {
    session.value(
        "SELECT coalesce(string_agg(key || '=' || value, ' ' ORDER BY place), '')
         FROM inbox_stat s, json_each_text(row_to_json(s)) WITH ORDINALITY j(key, value, place)
         WHERE s.kind = $1 AND s.name = $2
           AND key NOT IN ('kind', 'name', 'wait_time', 'stats_since') AND value <> '0'",
        &[&kind, &name],
    )
}

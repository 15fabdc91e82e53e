//! A dump that is restored into a server whose worker runs (G9, G13). The restore commits table by
//! table: what is there already must not be judged without the rest.

use std::process::Command;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
    retention::{age_sequences, claim, ring, rotate},
};

use super::{preloaded, start_at_once, wait_for_rounds, wait_until_done, with_extension};

/// Restores a part of the dump.
fn restore(cluster: &throwaway_cluster::Cluster, database: &Database, dump: &str, part: &str) {
    let mut command: Command = cluster.command("pg_restore");
    let done = command
        .args(["--exit-on-error", "--section", part])
        .args(["-d", database.name(), dump])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{part}: {said}");
}

#[test]
fn g9_g13_a_restore_beside_the_worker_keeps_claims_ring_and_dead_letters() {
    let cluster = preloaded()
        .setting("sequential_inbox.housekeeping_interval", "3s")
        .start()
        .unwrap();
    let (source, mut session) = with_extension(&cluster);
    session.run(&format!(
        "ALTER DATABASE {} SET sequential_inbox.housekeeping = off",
        source.name()
    ));
    // The ring in the middle of its way, and an instance that only its dead letter holds back:
    // without the messages it would be removed.
    for key in ["first", "second"] {
        assert!(claim(&mut session, key));
        rotate(&mut session);
    }
    assert!(claim(&mut session, "third"));
    session.run(
        "SELECT inbox_declare_sequence('s', '1 day', '[{\"type\": \"a\"},
            {\"type\": \"b\", \"releaseCondition\": {\"predecessor\": \"a\"}}]')",
    );
    let held = session.decided("buffered", &Arrival::new("b", "b").of("1"));
    assert!(session.operate("inbox_close", held.instance()));
    session.decided("process", &Arrival::new("a", "done").of("2"));
    age_sequences(&mut session, "2 days");
    let moved = ring(&mut session);
    let dump = cluster.socket_dir().join("dump");
    let dump = dump.to_str().unwrap();
    cluster
        .run("pg_dump", ["-Fc", "-f", dump, "-d", source.name()])
        .unwrap();

    let restored = Database::bare_on(&cluster);
    let (_clock, mut clock) = with_extension(&cluster);
    restore(&cluster, &restored, dump, "pre-data");
    // A round between two steps of the restore, seen where the worker is not new.
    wait_for_rounds(&mut clock, 1);
    restore(&cluster, &restored, dump, "data");
    restore(&cluster, &restored, dump, "post-data");

    let mut session = Session::new(&restored);
    assert_eq!(ring(&mut session), moved);
    for key in ["first", "second", "third"] {
        assert!(!claim(&mut session, key), "{key}");
    }
    // Now it is the worker's: what is over goes, what is held back stays.
    start_at_once(&mut session);
    wait_for_rounds(&mut session, 0);
    assert_eq!(ring(&mut session), moved, "not due");
    let letters: i64 = session.value("SELECT count(*) FROM inbox_dead_letters", &[]);
    assert_eq!(letters, 1);
    assert!(session.operate("inbox_skip", held.message()));
    age_sequences(&mut session, "2 days");
    wait_until_done(&mut session);
}

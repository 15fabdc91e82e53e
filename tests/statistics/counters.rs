//! `inbox_stat`.

use std::thread;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session, blocked},
};

use crate::{cluster, counted, preloaded};

fn claim(session: &mut Session, id: &str) -> bool {
    session.value("SELECT inbox_claim('billing', $1::text)", &[&id])
}

fn declare(session: &mut Session) {
    session.run(
        "SELECT inbox_declare_sequence('order', '1 day', '[{\"type\": \"placed\"},
             {\"type\": \"paid\", \"releaseCondition\": {\"predecessor\": \"placed\"}}]')",
    );
}

#[test]
fn each_answer_to_a_plain_consumer_is_counted() {
    let (_alone, _, mut session) = preloaded();
    assert!(claim(&mut session, "a"));
    assert!(!claim(&mut session, "a"));
    session.run(
        "SELECT inbox_claim('billing', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid);
         SELECT inbox_try_claim('billing', 'b');
         SELECT inbox_try_claim('billing', 'b');
         SELECT inbox_claim_batch('billing', '{c,d,c,a}');
         SELECT inbox_fail('billing', 'e', NULL, 'broken', '0', '\\x00');
         SELECT inbox_claim('shipping', 'a')",
    );
    assert_eq!(session.next_id(None), "e");
    assert_eq!(
        counted(&mut session, "consumer", "billing"),
        "claimed=5 duplicate=4 released=1 retried=1 failed=1"
    );
    assert_eq!(counted(&mut session, "consumer", "shipping"), "claimed=1");
}

#[test]
fn each_answer_to_a_sequence_is_counted() {
    let (_alone, database, mut session) = preloaded();
    declare(&mut session);
    session.decided("buffered", &Arrival::new("paid", "2"));
    session.decided("duplicate", &Arrival::new("paid", "2"));
    let received = session.decided("process", &Arrival::new("placed", "1"));
    assert_eq!(session.drain(received.instance()), ["2"]);
    let mut direct = Arrival::new("paid", "3");
    direct.context = None;
    session.decided("direct", &direct);
    session.run(
        "SELECT inbox_claim('placed', '4', inbox_sequence('order', 'other'));
        SELECT inbox_claim('placed', '4', inbox_sequence('order', 'other'));
        SELECT inbox_try_claim('placed', '4', inbox_sequence('order', 'other'));
        SELECT inbox_fail('paid', '5', inbox_sequence('order', 'other'), 'broken')",
    );
    assert_eq!(
        counted(&mut session, "sequence", "placed"),
        "claimed=1 duplicate=2 received_process=1"
    );
    assert_eq!(
        counted(&mut session, "sequence", "paid"),
        "received_buffered=1 received_duplicate=1 received_direct=1 released=1 failed=1"
    );

    // What another transaction holds: at once, without waiting.
    let mut other = Session::new(&database);
    other.begin();
    other.decided("process", &Arrival::new("placed", "6").of("held"));
    session.decided(
        "in_flight",
        &Arrival::new("placed", "6").of("held").without_waiting(),
    );
    session.decided(
        "in_flight",
        &Arrival::new("paid", "7").of("held").without_waiting(),
    );
    session.run("SELECT inbox_try_claim('placed', '6', inbox_sequence('order', 'other'))");
    assert_eq!(
        counted(&mut session, "sequence", "placed"),
        "claimed=1 duplicate=2 in_flight=1 received_process=2 received_in_flight=1"
    );
    other.rollback();

    // Closed by an operator, and never released: rejected.
    let instance = session
        .decided("buffered", &Arrival::new("paid", "8").of("closed"))
        .instance();
    assert!(session.operate("inbox_close", instance));
    session.decided("rejected", &Arrival::new("paid", "9").of("closed"));
    assert_eq!(
        counted(&mut session, "sequence", "paid"),
        "received_buffered=2 received_duplicate=1 received_direct=1 received_rejected=1 \
         received_in_flight=1 released=1 failed=1"
    );
}

#[test]
fn counters_survive_a_rollback() {
    let (_alone, _, mut session) = preloaded();
    for _ in 0..3 {
        session.begin();
        assert!(claim(&mut session, "a"));
        session.rollback();
    }
    assert_eq!(counted(&mut session, "consumer", "billing"), "claimed=3");
    let claims: i64 = session.value("SELECT count(*) FROM inbox_claims", &[]);
    assert_eq!(claims, 0);
}

/// A wait is counted while it goes on, its time when it has ended.
#[test]
fn who_waits_is_counted() {
    let (_alone, database, mut winner) = preloaded();
    declare(&mut winner);
    let mut waiter = Session::new(&database);
    let mut observer = Session::new(&database);
    let calls = [
        ("consumer", "billing", "SELECT inbox_claim('billing', 'a')"),
        (
            "consumer",
            "batched",
            "SELECT inbox_claim_batch('batched', '{x,a,b}')",
        ),
        (
            "sequence",
            "placed",
            "SELECT decision FROM inbox_receive('placed', 'a', 'context')",
        ),
        (
            "sequence",
            "claimed",
            "SELECT inbox_claim('claimed', 'a', inbox_sequence('order', 'context'))",
        ),
    ];
    let wait_time = |observer: &mut Session, name: &str| -> f64 {
        observer.value("SELECT wait_time FROM inbox_stat WHERE name = $1", &[&name])
    };
    for (kind, name, call) in calls {
        winner.begin();
        winner.run(&call.replace("{x,", "{"));
        let waited = counted(&mut observer, kind, name);
        assert!(!waited.contains("waited"), "{waited}");
        thread::scope(|scope| {
            let handle = blocked(scope, &database, &mut waiter, move |waiter| {
                waiter.run(call)
            });
            let waited = counted(&mut observer, kind, name);
            let expected = if name == "batched" {
                "waited=2"
            } else {
                "waited=1"
            };
            assert!(waited.contains(expected), "{name}: {waited}");
            assert_eq!(wait_time(&mut observer, name), 0.0, "{name}");
            winner.commit();
            handle.join().unwrap();
        });
        assert!(wait_time(&mut observer, name) > 0.0, "{name}");
    }
    // Another message of a held instance waits for the instance.
    winner.begin();
    winner.decided("process", &Arrival::new("placed", "b").of("context"));
    thread::scope(|scope| {
        let handle = blocked(scope, &database, &mut waiter, |waiter| {
            waiter.decided("process", &Arrival::new("paid", "c").of("context"))
        });
        assert_eq!(counted(&mut observer, "sequence", "paid"), "waited=1");
        winner.commit();
        handle.join().unwrap();
    });
    // A wait that ends with an error has taken its time, too.
    winner.begin();
    assert!(claim(&mut winner, "timeout"));
    let before = wait_time(&mut observer, "billing");
    waiter.run("SET lock_timeout = '10ms'");
    waiter
        .query("SELECT inbox_claim('billing', 'timeout')", &[])
        .expect_err("the winner is in the way");
    assert!(wait_time(&mut observer, "billing") >= before + 10.0);
    assert_eq!(
        counted(&mut observer, "consumer", "billing"),
        "claimed=2 duplicate=1 waited=2"
    );
}

#[test]
fn who_switches_tracking_off_is_not_counted() {
    let (_alone, _, mut session) = preloaded();
    session.run("SET sequential_inbox.track = off");
    assert!(claim(&mut session, "a"));
    session.run("RESET sequential_inbox.track");
    assert!(claim(&mut session, "b"));
    assert_eq!(counted(&mut session, "consumer", "billing"), "claimed=1");
}

/// Memory is bounded: whoever comes too late is counted in one row, and nothing is lost.
#[test]
fn names_without_room_are_counted_together() {
    let (_alone, _, mut session) = preloaded();
    session.run("SELECT inbox_stat_reset(all_databases => true)");
    session.run(
        "SELECT inbox_claim('consumer ' || n, 'a') FROM generate_series(1, 1003) n;
                 SELECT inbox_claim('consumer ' || n, 'a') FROM generate_series(1, 1003) n",
    );
    let rows: i64 = session.value(
        "SELECT count(*) FROM inbox_stat WHERE kind = 'consumer'",
        &[],
    );
    assert_eq!(rows, 1000);
    let others: String = session.value(
        "SELECT concat_ws(' ', count(*), min(name), sum(claimed), sum(duplicate)) FROM inbox_stat
         WHERE kind = 'others'",
        &[],
    );
    assert_eq!(others, "1 3 3");
    let sums: String = session.value(
        "SELECT concat_ws(' ', sum(claimed), sum(duplicate)) FROM inbox_stat",
        &[],
    );
    assert_eq!(sums, "1003 1003");
    // Once there is room again, it is used.
    session.run("SELECT inbox_stat_reset()");
    assert!(claim(&mut session, "a"));
    let rows: i64 = session.value("SELECT count(*) FROM inbox_stat", &[]);
    assert_eq!(rows, 1);
}

/// G14: a session sees its own database, and resets no other's by default.
#[test]
fn g14_databases_are_kept_apart() {
    let (_alone, _, mut here) = preloaded();
    let there = Database::bare_on(cluster());
    let mut there = Session::new(&there);
    there.run("CREATE EXTENSION sequential_inbox");
    assert!(claim(&mut here, "a"));
    assert!(claim(&mut there, "a"));
    assert!(!claim(&mut there, "a"));
    assert_eq!(counted(&mut here, "consumer", "billing"), "claimed=1");
    here.run("SELECT inbox_stat_reset()");
    assert_eq!(counted(&mut here, "consumer", "billing"), "");
    assert_eq!(
        counted(&mut there, "consumer", "billing"),
        "claimed=1 duplicate=1"
    );
    // The other session's entry has moved to another place: it is found there.
    assert!(!claim(&mut there, "a"));
    assert!(!claim(&mut here, "a"));
    assert_eq!(
        counted(&mut there, "consumer", "billing"),
        "claimed=1 duplicate=2"
    );
    assert_eq!(counted(&mut here, "consumer", "billing"), "duplicate=1");
    here.run("SELECT inbox_stat_reset(all_databases => true)");
    assert_eq!(counted(&mut there, "consumer", "billing"), "");
}

/// G14: a monitor sees statistics and metrics and changes nothing; who was granted nothing sees
/// nothing.
#[test]
fn g14_only_who_is_granted_it_sees_statistics() {
    let (_alone, database, mut session) = preloaded();
    session.run("DROP ROLE IF EXISTS inbox_watcher; CREATE ROLE inbox_watcher LOGIN");
    assert!(claim(&mut session, "a"));
    let mut watcher = Session::with(database.dsn_as("inbox_watcher").parse().unwrap());
    let reads = [
        "SELECT FROM inbox_stat",
        "SELECT FROM inbox_stat_counters()",
        "SELECT FROM inbox_metrics()",
    ];
    let writes = [
        "SELECT inbox_stat_reset()",
        "SET sequential_inbox.track = off",
    ];
    let refused = |watcher: &mut Session, statement: &str| {
        let error = watcher.query(statement, &[]).expect_err(statement);
        assert_eq!(error.code().unwrap().code(), "42501", "{statement}");
    };
    for statement in reads.iter().chain(&writes) {
        refused(&mut watcher, statement);
    }
    session.run("SELECT inbox_grant('inbox_watcher', 'monitor')");
    for statement in reads {
        watcher.query(statement, &[]).expect(statement);
    }
    for statement in writes {
        refused(&mut watcher, statement);
    }
    session.run("GRANT EXECUTE ON FUNCTION inbox_stat_reset TO inbox_watcher");
    watcher
        .query("SELECT inbox_stat_reset()", &[])
        .expect("a granted reset");
    assert_eq!(counted(&mut session, "consumer", "billing"), "");
    session.run("DROP OWNED BY inbox_watcher");
}

/// Counters start from nothing with the server, and everything counts again.
#[test]
fn counters_start_anew_with_the_server() {
    let cluster = throwaway_cluster::Cluster::builder()
        .fsync(false)
        .preload("sequential_inbox")
        .start()
        .expect("a server starts");
    let database = Database::bare_on(&cluster);
    let mut session = Session::new(&database);
    session.run("CREATE EXTENSION sequential_inbox");
    assert!(claim(&mut session, "a"));
    // A crash empties shared memory.
    cluster.stop_immediate().expect("the server stops");
    cluster.start().expect("the server starts again");
    let mut session = Session::new(&database);
    assert_eq!(counted(&mut session, "consumer", "billing"), "");
    assert!(!claim(&mut session, "a"));
    assert_eq!(counted(&mut session, "consumer", "billing"), "duplicate=1");
}

/// Without preloading the view says what is missing, and everything else works.
#[test]
fn without_preloading_the_view_says_so() {
    let database = Database::new();
    let mut session = Session::new(&database);
    assert!(claim(&mut session, "a"));
    for statement in ["SELECT FROM inbox_stat", "SELECT inbox_stat_reset()"] {
        let error = session.query(statement, &[]).expect_err(statement);
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), "55000");
        assert!(
            error.message().contains("shared_preload_libraries"),
            "{error:?}"
        );
        assert!(
            error.hint().is_some_and(|hint| hint.contains("restart")),
            "{error:?}"
        );
    }
    let preloaded: f64 = session.value(
        "SELECT value FROM inbox_metrics() WHERE name = 'sequential_inbox_library_preloaded'",
        &[],
    );
    assert_eq!(preloaded, 0.0);
}

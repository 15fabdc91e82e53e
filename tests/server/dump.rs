//! A dump holds all that is stored, and what is restored from it goes on as if nothing had been
//! (G13).

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
    retention::{self, rotate},
    start_cluster,
};
use throwaway_cluster::Cluster;

/// A schema that is in nobody's search_path and whose name needs quotes.
const SCHEMA: &str = "\"Inbox of {s}\"";

/// Fills every table: claims of both kinds, in each table of the ring; messages in every state, with
/// payloads; declarations; a role that may consume.
fn fill(session: &mut Session) {
    for consumer in ["first", "second"] {
        assert!(retention::claim(session, consumer));
        rotate(session);
    }
    assert!(retention::claim(session, "third"));
    session.run(
        "SELECT inbox_annotate('billing', 'second', '{\"trace\": 1.50, \"é\": \"🙈\"}');
         SELECT inbox_fail('billing', 'dead', error => 'it''s \"broken\"
 for good');
         SELECT inbox_fail('billing', 'scheduled', NULL, 'later', '1 hour', '\\x00ff', '\\x01', '{\"a\": []}');
         SELECT inbox_declare_sequence('orders', '14 days', '[{\"type\": \"placed\"},
             {\"type\": \"paid\", \"releaseCondition\": {\"predecessor\": \"placed\"}},
             {\"type\": \"noted\", \"optional\": true}]', recording_until => '2020-01-01', expiry_grace => '1 day');
         SELECT inbox_declare_sequence('steps', '1 mon 2 days', '[{\"type\": \"step\", \"final\": true}]',
             ordering => 'position', on_failure => 'skip')",
    );
    session.decided("process", &Arrival::new("placed", "done").of("done"));
    session.decided("process", &Arrival::new("paid", "done").of("done"));
    session.decided("buffered", &Arrival::new("paid", "waiting").of("waiting"));
    session.decided("buffered", &Arrival::new("paid", "ready").of("ready"));
    session.decided("process", &Arrival::new("placed", "ready").of("ready"));
    let skipped = session
        .decided("buffered", &Arrival::new("paid", "skipped").of("skipped"))
        .message();
    assert!(session.operate("inbox_skip", skipped));
    session.run(
        "SELECT inbox_fail('noted', 'failed', inbox_sequence('orders', 'failed'), 'broken', payload => '\\x02');
         SELECT inbox_claim('other', 'claimed', inbox_sequence('orders', 'claimed'))",
    );
    session.decided("process", &Arrival::at("step", "step", 1).of("steps"));
}

/// What each table and sequence of the extension holds, as text.
fn contents(session: &mut Session) -> BTreeMap<String, String> {
    let relations = session
        .query(
            "SELECT c.oid::regclass::text, c.relkind = 'S' FROM pg_extension e
             CROSS JOIN unnest(extconfig) r JOIN pg_class c ON c.oid = r
             WHERE extname = 'sequential_inbox'",
            &[],
        )
        .unwrap();
    relations
        .iter()
        .map(|row| {
            let (relation, is_sequence): (String, bool) = (row.get(0), row.get(1));
            let what = if is_sequence {
                format!("SELECT last_value::text FROM {relation}")
            } else {
                format!("SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM {relation} t")
            };
            let text: String = session.value(&what, &[]);
            assert_ne!(text, "", "{relation} is empty, so its dump is not tested");
            (relation, text)
        })
        .collect()
}

/// The restored inbox does all that the dumped one would have done.
fn goes_on(session: &mut Session) {
    for id in ["first", "second", "third"] {
        assert!(!retention::claim(session, id), "{id}");
    }
    assert_eq!(retention::ring(session), (2, 2));
    for (message_type, id, context) in [
        ("placed", "done", "done"),
        ("paid", "waiting", "waiting"),
        ("paid", "skipped", "skipped"),
    ] {
        session.decided("duplicate", &Arrival::new(message_type, id).of(context));
    }
    // Ids go on after those that were given.
    let highest: i64 = session.value("SELECT max(id) FROM sequence_instance", &[]);
    let next: i64 = session.value("SELECT inbox_sequence('orders', 'new')", &[]);
    assert_eq!(next, highest + 1);
    let highest: i64 = session.value("SELECT max(id) FROM sequenced_message", &[]);
    let received = session.decided("process", &Arrival::new("placed", "new").of("new"));
    assert_eq!(received.message(), highest + 1);
    // What waited is released, what was ready is handed out, with its payload.
    session.decided("process", &Arrival::new("placed", "waiting").of("waiting"));
    let mut released: Vec<_> = std::iter::from_fn(|| session.next(None))
        .map(|released| (released.id, released.payload))
        .collect();
    released.sort();
    assert_eq!(
        released,
        ["ready", "waiting"].map(|id| (id.to_owned(), Some(id.as_bytes().to_vec())))
    );
    session.decided(
        "process",
        &Arrival::at("step", "step 2", 2)
            .of("other steps")
            .of("steps"),
    );
    // Declarations can be replaced, and the ring moves on.
    session.run("SELECT inbox_declare_sequence('steps', '1 day', '[{\"type\": \"step\"}]', ordering => 'position')");
    rotate(session);
    assert!(!retention::claim(session, "third"));
    // Who might consume still may, and no more.
    session.run("SET ROLE inbox_consumer");
    assert!(retention::claim(session, "by the consumer"));
    session
        .query("SELECT inbox_release('billing', 'third')", &[])
        .expect_err("a consumer must not");
    session.run("RESET ROLE");
}

/// Runs both programs, the first one's output being the second one's input.
fn pipe(mut from: Command, mut to: Command) {
    let mut dump = from.stdout(Stdio::piped()).spawn().expect("pg_dump is run");
    let output = dump.stdout.take().expect("a pipe");
    let restored = to
        .stdin(output)
        .stdout(Stdio::null())
        .output()
        .expect("it is run");
    let said = String::from_utf8_lossy(&restored.stderr);
    assert!(restored.status.success(), "{said}");
    assert!(dump.wait().expect("pg_dump ends").success());
}

fn psql(cluster: &Cluster, database: &str) -> Command {
    let mut psql = cluster.command("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database]);
    psql
}

#[test]
fn g13_pg_dump_into_psql_keeps_everything() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    session.run("CREATE ROLE inbox_consumer; SELECT inbox_grant('inbox_consumer', 'consumer')");
    fill(&mut session);
    let dumped = contents(&mut session);
    let restored = Database::bare_on(&cluster);
    let mut dump = cluster.command("pg_dump");
    dump.args(["-d", database.name()]);
    pipe(dump, psql(&cluster, restored.name()));
    let mut there = Session::new(&restored);
    assert_eq!(contents(&mut there), dumped);
    goes_on(&mut there);
    // Dumping has changed nothing.
    assert_eq!(contents(&mut session), dumped);
    goes_on(&mut session);
}

/// The same in another format, out of a schema of its own, into another server, settings included.
#[test]
fn g13_pg_dump_into_pg_restore_on_another_server_keeps_everything() {
    let cluster = start_cluster();
    let database = Database::bare_on(&cluster);
    let name = database.name();
    database.execute(&format!(
        "CREATE TABLE ledger (entry text);
         CREATE SCHEMA {SCHEMA};
         CREATE EXTENSION sequential_inbox SCHEMA {SCHEMA};
         ALTER DATABASE {name} SET search_path = {SCHEMA}, public;
         ALTER DATABASE {name} SET sequential_inbox.rotation_lock_timeout = '77ms'"
    ));
    let mut session = Session::new(&database);
    session.run("CREATE ROLE inbox_consumer; SELECT inbox_grant('inbox_consumer', 'consumer')");
    fill(&mut session);
    let dumped = contents(&mut session);
    let other = start_cluster();
    // Roles belong to the server, and are in no database's dump.
    other.sql("postgres", "CREATE ROLE inbox_consumer").unwrap();
    let mut dump = cluster.command("pg_dump");
    dump.args(["-Fc", "-d", name]);
    let mut restore = other.command("pg_restore");
    restore.args(["--exit-on-error", "--create", "-d", "postgres"]);
    pipe(dump, restore);
    let mut there = Session::new(&Database::named(&other, name));
    let setting: String = there.value(
        "SELECT rotation_lock_timeout::text FROM inbox_settings",
        &[],
    );
    assert_eq!(setting, "00:00:00.077");
    assert_eq!(contents(&mut there), dumped);
    goes_on(&mut there);
}

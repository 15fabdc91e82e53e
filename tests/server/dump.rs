//! A dump holds all that is stored, and what is restored from it goes on as if nothing had been
//! (G13).

use std::process::{Command, Stdio};

use inbox_test_support::{
    Database,
    filled::{contents, fill, goes_on},
    inbox::Session,
    start_cluster,
};
use throwaway_cluster::Cluster;

/// A schema that is in nobody's search_path and whose name needs quotes.
const SCHEMA: &str = "\"Inbox of {s}\"";

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
    session.run("CREATE ROLE inbox_consumer");
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
    session.run("CREATE ROLE inbox_consumer");
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

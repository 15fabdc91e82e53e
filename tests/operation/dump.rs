//! Every format of pg_dump, in series and in parallel, as docs/replication.md tells to use them
//! (G8, G13): all that is stored is in it, and what is restored goes on as if nothing had been.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use inbox_test_support::{
    Database, cluster,
    filled::{CONSUMER_ROLE, contents, fill, goes_on},
    inbox::Session,
    retention::{HALF_A_RETENTION, age_ring, claim, housekeep, ring},
};

/// How many messages, claims and payloads there are besides those of [`fill`], so that the jobs of
/// a parallel dump or restore meet.
const MANY: i32 = 2000;

/// A filled database, and what it holds. Nobody changes it: one serves all tests.
struct Source {
    database: Database,
    held: BTreeMap<String, String>,
}

/// The one database that is dumped, filled at the first call.
fn source() -> &'static Source {
    static SOURCE: OnceLock<Source> = OnceLock::new();
    SOURCE.get_or_init(|| {
        let database = Database::new();
        let mut session = Session::new(&database);
        session.run(&format!("CREATE ROLE {CONSUMER_ROLE}"));
        fill(&mut session);
        session.run(&format!(
            "SELECT count(*) FROM generate_series(1, {MANY}) n, inbox_receive('paid', 'many-' || n,
                'many-' || n, convert_to(repeat('payload ', n % 400), 'UTF8'));
             SELECT count(inbox_claim('shipping', 'many-' || n)) FROM generate_series(1, {MANY}) n;
             INSERT INTO ledger SELECT 'handled ' || n FROM generate_series(1, {MANY}) n"
        ));
        let held = contents(&mut session);
        Source { database, held }
    })
}

impl Source {
    /// Dumps into a file or a folder of that name; its path.
    fn dump(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = cluster().socket_dir().join(name);
        let mut dump = cluster().command("pg_dump");
        dump.arg("-f").arg(&path).args(options);
        succeeds(dump.args(["-d", self.database.name()]));
        path
    }

    /// Fails unless the restored database holds the same, and goes on.
    #[track_caller]
    fn is_restored_in(&self, restored: &Database, how: &str) {
        let mut there = Session::new(restored);
        assert_eq!(contents(&mut there), self.held, "{how}");
        assert_eq!(restored.ledger(), self.database.ledger(), "{how}");
        goes_on(&mut there);
    }
}

/// Runs a program, which must succeed and have nothing to complain of.
#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{command:?}: {said}"
    );
}

/// pg_restore into a database.
fn restore(into: &Database, dump: &Path, options: &[&str]) -> Command {
    let mut restore = cluster().command("pg_restore");
    restore.args(["--exit-on-error", "-d", into.name()]);
    restore.args(options).arg(dump);
    restore
}

#[test]
fn g13_a_plain_dump_keeps_everything() {
    let source = source();
    let script = source.dump("plain", &["-Fp"]);
    let restored = Database::bare();
    let mut psql = cluster().command("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", restored.name()]);
    succeeds(psql.args(["-o", "/dev/null", "-f"]).arg(script));
    source.is_restored_in(&restored, "plain");
}

#[test]
fn g13_every_archive_format_keeps_everything() {
    let source = source();
    for (format, options) in [
        ("custom", &["-Fc"][..]),
        ("directory", &["-Fd"]),
        ("tar", &["-Ft"]),
    ] {
        let dump = source.dump(format, options);
        let restored = Database::bare();
        succeeds(&mut restore(&restored, &dump, &[]));
        source.is_restored_in(&restored, format);
    }
}

/// The three ways of the documentation to restore with several jobs, the first of them with both
/// formats that can be; one was written by several jobs, too.
#[test]
fn g13_a_parallel_restore_keeps_everything() {
    let source = source();
    let custom = source.dump("parallel", &["-Fc"]);
    let directory = source.dump("parallel-directory", &["-Fd", "-j4"]);
    for dump in [&custom, &directory] {
        let restored = Database::bare();
        let mut by_four = restore(&restored, dump, &["-j4"]);
        succeeds(by_four.env("PGOPTIONS", "-c session_replication_role=replica"));
        source.is_restored_in(&restored, "without the checks of the foreign keys");
    }
    for (how, steps) in [
        (
            "the data in series, the rest in parallel",
            [
                &["--section=pre-data", "--section=data"][..],
                &["--section=post-data", "-j4"],
            ],
        ),
        (
            "the schema first, then the data without triggers",
            [
                &["--schema-only", "-j4"],
                &["--data-only", "--disable-triggers", "-j4"],
            ],
        ),
    ] {
        let restored = Database::bare();
        for step in steps {
            succeeds(&mut restore(&restored, &custom, step));
        }
        source.is_restored_in(&restored, how);
    }
}

/// Without one of these ways a parallel restore may come to a table before the one that it refers
/// to: it then fails and says so. It never leaves something out in silence.
#[test]
fn g13_a_parallel_restore_with_foreign_keys_is_whole_or_fails() {
    let source = source();
    let dump = source.dump("checked", &["-Fc"]);
    let restored = Database::bare();
    let output = restore(&restored, &dump, &["-j4"]).output().unwrap();
    if output.status.success() {
        source.is_restored_in(&restored, "it happened to take them in order");
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("violates foreign key constraint"), "{said}");
    }
}

#[test]
fn g13_a_dump_of_the_schema_has_the_extension_with_empty_tables() {
    let source = source();
    let dump = source.dump("schema", &["-Fc", "--schema-only"]);
    let restored = Database::bare();
    succeeds(&mut restore(&restored, &dump, &[]));
    let mut session = Session::new(&restored);
    for relation in source.held.keys().filter(|it| !it.ends_with("_seq")) {
        let rows: i64 = session.value(&format!("SELECT count(*) FROM {relation}"), &[]);
        assert_eq!(rows, 0, "{relation}");
    }
    assert_eq!(ring(&mut session), (0, 0));
    // The grants are part of the schema.
    session.run(&format!(
        "SET ROLE {CONSUMER_ROLE}; SELECT inbox_claim('billing', 'first')"
    ));
}

/// A dump reads the claim tables for as long as it runs. Meanwhile the ring stands still, which only
/// makes claims protect for longer, and claims go on.
#[test]
fn g9_g13_while_a_dump_runs_the_ring_stands_still_and_claims_go_on() {
    let database = Database::new();
    let mut session = Session::new(&database);
    let mut dump = Session::new(&database);
    assert!(housekeep(&mut session).rotated);
    age_ring(&mut session, HALF_A_RETENTION);
    let before = ring(&mut session);
    // What pg_dump does first of all.
    dump.run(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
         LOCK TABLE inbox_claim_0, inbox_claim_1, inbox_claim_2, inbox_claim_ring IN ACCESS SHARE MODE",
    );
    assert!(!housekeep(&mut session).rotated, "the dump reads the table");
    assert_eq!(ring(&mut session), before);
    session.run("SET lock_timeout = '1s'");
    assert!(claim(&mut session, "m"));
    dump.commit();
    assert!(housekeep(&mut session).rotated);
    assert!(!claim(&mut session, "m"));
}

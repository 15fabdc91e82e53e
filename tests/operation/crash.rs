//! A server that is killed under load, again and again: what it recovers is whole by the word of
//! `pg_amcheck`, nothing acknowledged is missing, what is redelivered has its effect once and in
//! order, and prepared transactions are still undecided (G1, G3, G4, G6, G8, G13).

use inbox_test_support::{Database, inbox::Session, retention::rotate, start_cluster, wait_for};
use throwaway_cluster::Cluster;

use crate::load::Load;

/// How often the server is killed.
const ROUNDS: usize = 4;

/// How many messages are acknowledged in a round.
const ENOUGH: usize = 150;

/// Compares every index with its table and every table with itself, system catalogs included;
/// `options` ask for more.
#[track_caller]
fn check_storage(cluster: &Cluster, database: &Database, options: &[&str]) {
    let available: bool = database
        .value("SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'amcheck')");
    if !available {
        return compare_indexes(&mut Session::new(database));
    }
    let mut arguments = vec!["--install-missing", "--heapallindexed"];
    arguments.extend(options);
    arguments.extend(["-d", database.name()]);
    cluster.run("pg_amcheck", arguments).unwrap();
}

/// The next best where the installation has no amcheck (a wheel's may not): every table is read
/// whole, and its primary key finds as many rows as there are.
#[track_caller]
fn compare_indexes(session: &mut Session) {
    let tables: Vec<String> = session.value(
        "SELECT array_agg(r::regclass::text) FROM pg_extension, unnest(extconfig) r
         JOIN pg_class c ON c.oid = r WHERE extname = 'sequential_inbox' AND relkind = 'r'",
        &[],
    );
    for table in tables {
        let counted = ["enable_seqscan", "enable_indexonlyscan"].map(|off| {
            session.run(&format!("SET {off} = off"));
            let rows: i64 = session.value(&format!("SELECT count(t) FROM {table} t"), &[]);
            session.run(&format!("RESET {off}"));
            rows
        });
        assert_eq!(counted[0], counted[1], "{table}");
    }
}

/// Claims of both kinds in a transaction that is prepared under that name.
fn prepare(session: &mut Session, name: &str) {
    session.run(&format!(
        "BEGIN; SELECT inbox_claim('shipping', '{name}');
         SELECT inbox_claim('parcel', '{name}', inbox_sequence('steps', '{name}'));
         PREPARE TRANSACTION '{name}'"
    ));
}

/// What both claims of that name are, for another transaction.
fn prepared_claims(session: &mut Session, name: &str) -> String {
    session.value(
        "SELECT inbox_try_claim('shipping', $1::text) || ' ' ||
            inbox_try_claim('parcel', $1::text, (SELECT min(id) FROM sequence_instance))",
        &[&name],
    )
}

#[test]
fn g1_g3_g4_g6_g8_g13_a_server_killed_under_load_recovers_whole_every_time() {
    let cluster = start_cluster();
    let database = Database::on(&cluster);
    let mut session = Session::new(&database);
    Load::set_up(&mut session);
    let load = Load::default();
    session.run("SET sequential_inbox.rotation_lock_timeout = '20s'");
    for round in 1..=ROUNDS {
        load.until_it_is_gone(&database, || {
            let begun = load.acknowledged();
            let enough = |part: usize| {
                wait_for("the load to get on", || {
                    (load.acknowledged() >= begun + ENOUGH * part / 2).then_some(())
                });
            };
            enough(1);
            // Recovery begins at different points of what the load does.
            if round % 2 == 0 {
                session.run("CHECKPOINT");
            }
            if round == 2 {
                // Before the prepared ones, which hold the gate for the rest of the test.
                rotate(&mut session);
                for name in ["to be committed", "to be rolled back"] {
                    prepare(&mut session, name);
                }
            }
            enough(2);
            cluster.kill_postmaster().unwrap();
        });
        cluster.start().unwrap();
        session = Session::new(&database);
        check_storage(&cluster, &database, &[]);
        load.nothing_acknowledged_is_lost(&mut session);
    }
    load.again_until_all_is_done(&database);
    for (name, end, then) in [
        ("to be committed", "COMMIT", "duplicate duplicate"),
        ("to be rolled back", "ROLLBACK", "claimed claimed"),
    ] {
        assert_eq!(prepared_claims(&mut session, name), "in_flight in_flight");
        session.run(&format!("{end} PREPARED '{name}'"));
        assert_eq!(prepared_claims(&mut session, name), then);
    }
    rotate(&mut session);
    // This one waits for whoever writes, and so for prepared transactions.
    check_storage(&cluster, &database, &["--parent-check", "--rootdescend"]);
}

//! Logical replication as docs/replication.md tells it, with the statements that stand there: what
//! reaches the subscriber, what does not, what stops it, and how consumers move over (G1, G4, G6, G8,
//! G9, G13).

use std::{fs, sync::OnceLock};

use inbox_test_support::{
    Database,
    filled::{CONSUMER_ROLE, contents, fill, goes_on, tables},
    inbox::{Arrival, Session, sqlstate},
    retention::{age_sequences, claim, housekeep, ring, rotate},
    wait_for,
};
use throwaway_cluster::Cluster;

use crate::load::{Load, look_for_torn_ones};

/// The page whose statements are run.
const PAGE: &str = include_str!("../../docs/replication.md");

/// The page's statement that begins with these words.
fn of_the_page(beginning: &str) -> &'static str {
    let at = PAGE.find(beginning).expect("the page has it");
    let end = PAGE[at..].find(';').expect("its end");
    &PAGE[at..at + end]
}

/// The page's statements that set the identity columns.
fn set_the_identity_columns(session: &mut Session) {
    let statements: Vec<_> = PAGE
        .lines()
        .filter(|line| line.starts_with("SELECT setval("))
        .collect();
    assert_eq!(statements.len(), 3);
    session.run(&statements.join("\n"));
}

/// A server that can publish, and one that subscribes.
struct Servers {
    publisher: Cluster,
    subscriber: Cluster,
}

impl Servers {
    fn start() -> Self {
        let [publisher, subscriber] = [
            [("wal_level", "logical"), ("max_replication_slots", "40")],
            [
                ("max_logical_replication_workers", "20"),
                // How soon the next table is copied, and how soon a failed apply begins again.
                ("wal_retrieve_retry_interval", "100ms"),
            ],
        ]
        .map(|settings| {
            let both = [("max_wal_senders", "40"), ("max_worker_processes", "40")];
            let cluster = settings
                .into_iter()
                .chain(both)
                .fold(Cluster::builder().fsync(false), |builder, (name, value)| {
                    builder.setting(name, value)
                })
                .start()
                .unwrap();
            let role = format!("CREATE ROLE {CONSUMER_ROLE}");
            cluster.sql("postgres", &role).unwrap();
            cluster
        });
        Self {
            publisher,
            subscriber,
        }
    }

    /// Those of the tests that leave them running.
    fn shared() -> &'static Self {
        static SERVERS: OnceLock<Servers> = OnceLock::new();
        SERVERS.get_or_init(Self::start)
    }
}

/// A database with the extension and a table of effects on the publisher, and one with both, empty,
/// on the subscriber.
struct Pair<'a> {
    servers: &'a Servers,
    from: Database,
    to: Database,
}

impl<'a> Pair<'a> {
    fn on(servers: &'a Servers) -> Self {
        let [from, to] = [&servers.publisher, &servers.subscriber].map(|cluster| {
            let database = Database::bare_on(cluster);
            database.execute("CREATE EXTENSION sequential_inbox; CREATE TABLE ledger (entry text)");
            Load::set_up_effects(&mut Session::new(&database));
            database
        });
        from.execute(of_the_page("CREATE PUBLICATION inbox"));
        from.execute("CREATE PUBLICATION effects FOR TABLE effect");
        Self { servers, from, to }
    }

    /// The subscription's name, and so its slot's on the publisher.
    fn name(&self) -> &str {
        self.from.name()
    }

    /// Subscribes; returns when the tables are copied.
    fn subscribe(&self) {
        self.to.execute(&format!(
            "CREATE SUBSCRIPTION {} CONNECTION '{}' PUBLICATION inbox, effects",
            self.name(),
            self.servers
                .publisher
                .dsn_of(self.from.name())
                .replace('\'', "''")
        ));
        wait_for("the initial copy", || {
            let copied = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
            self.to.value::<bool>(copied).then_some(())
        });
    }

    /// Returns when the subscriber has all that was committed so far.
    fn catch_up(&self) {
        let now: String = self.from.value("SELECT pg_current_wal_lsn()::text");
        let caught_up = format!(
            "SELECT bool_and(confirmed_flush_lsn >= '{now}') FROM pg_replication_slots
             WHERE slot_name = '{}'",
            self.name()
        );
        wait_for("the subscriber to catch up", || {
            self.from.value::<bool>(&caught_up).then_some(())
        });
    }
}

/// Every table that is dumped is published, and has a primary key as its replica identity.
#[test]
fn g13_the_pages_publication_has_every_table() {
    let database = Database::new();
    database.execute(of_the_page("CREATE PUBLICATION inbox"));
    let [published, marked] = [
        "SELECT array_agg(tablename::text ORDER BY tablename::text) FROM pg_publication_tables",
        "SELECT array_agg(relname::text ORDER BY relname::text) FROM pg_extension e
         CROSS JOIN unnest(extconfig) r JOIN pg_class c ON c.oid = r
         WHERE extname = 'sequential_inbox' AND relkind = 'r' AND relreplident = 'd'
           AND EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)",
    ]
    .map(|sql| database.value::<Vec<String>>(sql));
    assert_eq!(published, marked);
}

#[test]
fn g8_g9_g13_the_copy_and_every_change_reach_the_subscriber() {
    let pair = Pair::on(Servers::shared());
    let mut here = Session::new(&pair.from);
    fill(&mut here);
    pair.subscribe();
    let mut there = Session::new(&pair.to);
    assert_eq!(tables(&mut there), tables(&mut here), "the initial copy");

    // Updates and deletes of every kind, and the TRUNCATE of a rotation.
    here.run("SELECT inbox_annotate('billing', 'third', '{\"trace\": 2}'), inbox_release('billing', 'second')");
    here.decided("process", &Arrival::new("placed", "waiting").of("waiting"));
    assert!(here.next(None).is_some());
    here.run("SELECT inbox_fail('placed', 'new', inbox_sequence('orders', 'new'), 'broken', '1 hour', '\\x00')");
    here.run("SELECT inbox_declare_sequence('more', '1 day', '[{\"type\": \"m\"}]'), inbox_drop_sequence('more')");
    rotate(&mut here);
    pair.catch_up();
    assert_eq!(tables(&mut there), tables(&mut here), "changes");
    assert_eq!(ring(&mut there), (0, 3));
    assert!(
        tables(&mut there)["inbox_claim_0"].is_empty(),
        "it was emptied"
    );

    // Instances are removed, and with them what refers to them.
    age_sequences(&mut here, "100 days");
    while housekeep(&mut here).more {}
    age_sequences(&mut here, "100 days");
    while housekeep(&mut here).more {}
    pair.catch_up();
    let left = tables(&mut here);
    assert!(left["sequential_inbox_idempotence"].is_empty());
    assert_eq!(tables(&mut there), left, "what housekeeping removes");
}

/// What the subscriber has is an inbox that goes on, once its identity columns are set.
#[test]
fn g8_g13_consumers_move_over_once_the_identity_columns_are_set() {
    let pair = Pair::on(Servers::shared());
    pair.subscribe();
    let mut here = Session::new(&pair.from);
    fill(&mut here);
    let held = contents(&mut here);
    pair.catch_up();
    pair.to
        .execute(&format!("DROP SUBSCRIPTION {}", pair.name()));
    let mut there = Session::new(&pair.to);
    // Grants are of the schema, and do not come along.
    there.run(&format!(
        "SELECT inbox_grant('{CONSUMER_ROLE}', 'consumer')"
    ));

    // Without that it fails, loudly, and nothing is changed.
    let before = tables(&mut there);
    let forgotten = there.query("SELECT inbox_sequence('orders', 'new')", &[]);
    assert_eq!(sqlstate(forgotten), "23505");
    assert_eq!(tables(&mut there), before);

    set_the_identity_columns(&mut there);
    for (relation, text) in tables(&mut there) {
        assert_eq!(text, held[&relation], "{relation}");
    }
    goes_on(&mut there);
}

/// A claim that somebody made at the subscriber stands in the way of the publisher's: replication
/// stops there, and says so, until it is taken away. Neither is overwritten.
#[test]
fn g13_a_claim_at_the_subscriber_stops_the_publishers() {
    let pair = Pair::on(Servers::shared());
    pair.subscribe();
    let mut here = Session::new(&pair.from);
    let mut there = Session::new(&pair.to);
    assert!(claim(&mut there, "on both"));
    assert!(claim(&mut here, "on both"), "two inboxes");
    assert!(claim(&mut here, "after it"));
    wait_for("the conflict to be told", || {
        let log = fs::read_to_string(pair.servers.subscriber.log_path()).unwrap();
        let told = log.contains("conflict") || log.contains("duplicate key value");
        (told && log.contains("inbox_claim_0_pkey")).then_some(())
    });
    let known = "SELECT array_agg(id2 ORDER BY id2) FROM inbox_claims";
    assert_eq!(there.value::<Vec<String>>(known, &[]), ["on both"]);
    there.run("SELECT inbox_release('billing', 'on both')");
    pair.catch_up();
    assert_eq!(
        there.value::<Vec<String>>(known, &[]),
        ["after it", "on both"]
    );
}

/// The whole of it under load: claims and effects arrive together, and when the publisher is stopped
/// and everything is redelivered to the other, nothing is lost and nothing happens twice.
#[test]
fn g1_g4_g6_g8_g13_a_move_under_load_loses_nothing_and_repeats_nothing() {
    let servers = Servers::start();
    let pair = Pair::on(&servers);
    pair.subscribe();
    let mut here = Session::new(&pair.from);
    Load::declare(&mut here);
    let mut there = Session::new(&pair.to);
    let load = Load::default();
    load.until_it_is_gone(&pair.from, || {
        here.run("SET sequential_inbox.rotation_lock_timeout = '20s'");
        for enough in [100, 200] {
            wait_for("the load to get on", || {
                look_for_torn_ones(&mut there);
                (load.acknowledged() >= enough).then_some(())
            });
            rotate(&mut here);
        }
        // In order, so that it sends the subscriber all that there is before it ends.
        servers.publisher.stop_fast().unwrap();
    });
    // The slot is on a server that is not there any more.
    pair.to.execute(&format!(
        "ALTER SUBSCRIPTION {0} DISABLE; ALTER SUBSCRIPTION {0} SET (slot_name = NONE);
         DROP SUBSCRIPTION {0}",
        pair.name()
    ));
    set_the_identity_columns(&mut there);
    there.run("SELECT setval(pg_get_serial_sequence('effect', 'number'), max(number)) FROM effect");
    assert_eq!(ring(&mut there), (2, 2));
    load.nothing_acknowledged_is_lost(&mut there);
    load.again_until_all_is_done(&pair.to);
}

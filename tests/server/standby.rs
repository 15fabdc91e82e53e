//! A standby, made with pg_basebackup: it refuses what writes (G11), shows what is known, and knows
//! every claim when it is promoted (G13).

use inbox_test_support::{
    Database,
    inbox::{Session, server_error},
    kinds::Kind,
    start_cluster,
};

/// Functions with a call that would be right on a primary, as the catalog lists them.
const CALLS: &str = "
    SELECT p.proname::text, format('SELECT * FROM %s(%s)', p.oid::regproc,
        (SELECT string_agg(format('%s::%s', CASE type
                WHEN 'text'::regtype THEN '''monitor''' WHEN 'name'::regtype THEN 'current_user'
                WHEN 'text[]'::regtype THEN 'ARRAY[''monitor'']' WHEN 'jsonb'::regtype THEN '''{}'''
                WHEN 'interval'::regtype THEN '''1 day'''
                WHEN 'uuid'::regtype THEN '''a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11''' ELSE '1' END,
             format_type(type, NULL)), ', ' ORDER BY n)
         FROM unnest(p.proargtypes) WITH ORDINALITY a(type, n)
         WHERE n <= p.pronargs - p.pronargdefaults))
    FROM pg_extension e JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass
        AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
    JOIN pg_proc p ON p.oid = d.objid
    WHERE extname = 'sequential_inbox' ORDER BY p.oid";

#[test]
fn g11_a_standby_refuses_every_function_that_writes() {
    let primary = start_cluster();
    let database = Database::on(&primary);
    let mut session = Session::new(&database);
    session.run(
        "SELECT inbox_claim('billing', 'evt-1');
         SELECT inbox_declare_sequence('orders', '1 day', '[{\"type\": \"placed\"}]');
         SELECT inbox_receive('placed', 'evt-1', 'order-1');
         SELECT inbox_fail('placed', 'evt-2', 1, 'broken')",
    );
    let standby = primary.standby().unwrap();
    standby.catch_up(&primary).unwrap();
    let mut there = Session::new(&database.moved_to(&standby));
    let calls = there.query(CALLS, &[]).unwrap();
    let (mut answered, mut of_memory) = (Vec::new(), Vec::new());
    for row in &calls {
        let (function, call): (String, String) = (row.get(0), row.get(1));
        match there.client().simple_query(&call) {
            Ok(_) => answered.push(function),
            Err(error) => {
                let said = server_error(&error);
                if said.message().contains("shared_preload_libraries") {
                    of_memory.push(function);
                    continue;
                }
                assert_eq!(said.code().code(), "25006", "{call}: {said:?}");
                let message = format!("cannot execute {function}() in a read-only transaction");
                assert_eq!(said.message(), message);
                assert_eq!(said.detail(), Some("This server is a standby."));
                let hint = said.hint().unwrap_or_default();
                assert!(hint.contains("primary"), "{hint}");
            }
        }
    }
    // What reads, and housekeeping, which finds nothing to do there.
    answered.sort();
    assert_eq!(
        answered,
        [
            "inbox_housekeeping",
            "inbox_lookup",
            "inbox_metrics",
            "inbox_status"
        ]
    );
    // What changes memory only may be called there as well; this server has none to change.
    of_memory.sort();
    assert_eq!(of_memory, ["inbox_stat_counters", "inbox_stat_reset"]);
    assert!(calls.len() > 20, "{} functions", calls.len());
    let row = &there
        .query("SELECT * FROM inbox_housekeeping()", &[])
        .unwrap()[0];
    assert_eq!(
        (0..3).map(|column| row.get(column)).collect::<Vec<i64>>(),
        [0; 3]
    );
    assert_eq!([3, 4].map(|column| row.get::<_, bool>(column)), [false; 2]);

    // What is known is known there, too.
    let known: String = there.value(
        "SELECT string_agg(concat_ws(' ', kind, state), ', ')
         FROM (VALUES ('billing', 'evt-1'), ('placed', 'evt-1'), ('placed', 'evt-2')) k(id1, id2),
             inbox_lookup(id1, id2)",
        &[],
    );
    assert_eq!(known, "consumer, sequence PROCESSED, sequence FAILED");
    let shown: i64 = there.value(
        "SELECT (SELECT count(*) FROM inbox_claims) + (SELECT count(*) FROM inbox_sequences)
              + (SELECT count(*) FROM inbox_dead_letters) + (SELECT count(*) FROM inbox_settings)",
        &[],
    );
    assert_eq!(shown, 2 + 1 + 1 + 1);
}

#[test]
fn g13_a_promoted_standby_knows_every_claim() {
    let primary = start_cluster();
    let places = [Kind::Plain, Kind::Sequenced].map(|kind| {
        let database = Database::on(&primary);
        kind.set_up(&database);
        (kind, database)
    });
    let mut in_flight = Vec::new();
    for (kind, database) in &places {
        let mut session = Session::new(database);
        assert!(kind.claim(&mut session, "before the copy"));
        session.begin();
        assert!(kind.claim(&mut session, "in flight"));
        in_flight.push(session);
    }
    let standby = primary.standby().unwrap();
    for (kind, database) in &places {
        let mut session = Session::new(database);
        assert!(kind.claim(&mut session, "after the copy"));
        session.begin();
        assert!(kind.claim(&mut session, "prepared"));
        session.run(&format!("PREPARE TRANSACTION '{}'", database.name()));
    }
    standby.catch_up(&primary).unwrap();
    primary.stop_immediate().unwrap();
    standby.promote().unwrap();
    for (kind, database) in &places {
        let mut session = Session::new(&database.moved_to(&standby));
        for id in ["before the copy", "after the copy"] {
            assert!(!kind.claim(&mut session, id), "{kind:?}, {id}");
        }
        assert!(kind.claim(&mut session, "in flight"), "{kind:?}");
        assert_eq!(kind.try_claim(&mut session, "prepared"), "in_flight");
        session.run(&format!("COMMIT PREPARED '{}'", database.name()));
        assert!(!kind.claim(&mut session, "prepared"), "{kind:?}");
        // Ids go on, with a gap at most.
        if kind == &Kind::Sequenced {
            let ids = session
                .query(
                    "SELECT inbox_sequence('orders', o) FROM unnest('{order-1,order-2}'::text[]) o",
                    &[],
                )
                .unwrap();
            assert!(ids[0].get::<_, i64>(0) < ids[1].get::<_, i64>(0));
        }
    }
}

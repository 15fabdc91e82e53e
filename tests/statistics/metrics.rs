//! `inbox_metrics`.

use std::collections::BTreeSet;

use inbox_test_support::{
    Database,
    inbox::{Arrival, Session},
    retention::{age_sequences, rotate},
};

use crate::preloaded;

/// The samples of one metric, `labels value`, sorted.
fn samples(session: &mut Session, name: &str) -> Vec<String> {
    session.value(
        "SELECT coalesce(array_agg(concat_ws(' ', nullif(labels::text, '{}'), value) ORDER BY labels), '{}')
         FROM inbox_metrics() WHERE name = 'sequential_inbox_' || $1",
        &[&name],
    )
}

/// The value of a metric without labels.
fn value(session: &mut Session, name: &str) -> f64 {
    session.value(
        "SELECT value FROM inbox_metrics() WHERE name = 'sequential_inbox_' || $1",
        &[&name],
    )
}

/// An inbox in which every metric has something to tell.
fn busy(session: &mut Session) {
    session.run(
        "SELECT inbox_declare_sequence('order', '100 days', '[{\"type\": \"placed\"},
             {\"type\": \"paid\", \"releaseCondition\": {\"predecessor\": \"placed\"}}]')",
    );
    // Expired, with a dead letter; then expiring; then open.
    session.decided("buffered", &Arrival::new("paid", "1").of("expired"));
    age_sequences(session, "101 days");
    session.run("SELECT inbox_housekeeping()");
    session.decided("buffered", &Arrival::new("paid", "2").of("expiring"));
    age_sequences(session, "80 days");
    session.decided("buffered", &Arrival::new("paid", "3").of("open"));
    session.decided("buffered", &Arrival::new("paid", "4").of("ready"));
    session.decided("process", &Arrival::new("placed", "5").of("ready"));
    session.run(
        "SELECT inbox_fail('billing', 'dead', error => 'broken');
         SELECT inbox_fail('billing', 'later', NULL, 'broken', '1 hour', '\\x00');
         SELECT inbox_claim('billing', 'a')",
    );
}

#[test]
fn g8_metrics_tell_what_is_unfinished() {
    let (_alone, _, mut session) = preloaded();
    busy(&mut session);
    let label = |state: &str, of: &str, number: u8| {
        format!(r#"{{"state": "{state}", "sequence": "order", "message_type": "{of}"}} {number}"#)
    };
    assert_eq!(
        samples(&mut session, "messages"),
        [
            label("ready", "paid", 1),
            label("ready", "placed", 0),
            label("waiting", "paid", 2),
            label("waiting", "placed", 0),
        ]
    );
    for (metric, expected) in [
        ("instances_open", r#"{"sequence": "order"} 3"#),
        ("instances_expiring", r#"{"sequence": "order"} 1"#),
        ("instances_expired", r#"{"sequence": "order"} 1"#),
        ("scheduled_retries", r#"{"consumer": "billing"} 1"#),
    ] {
        assert_eq!(samples(&mut session, metric), [expected], "{metric}");
    }
    assert_eq!(
        samples(&mut session, "dead_letters"),
        [
            r#"{"consumer": "billing"} 1"#,
            r#"{"sequence": "order", "message_type": "paid"} 1"#
        ]
    );
    // The oldest has waited for 80 days, and what is ready for no time at all.
    let day = 86_400.0;
    let age = "SELECT value FROM inbox_metrics() WHERE name = 'sequential_inbox_oldest_' || $1 || '_seconds'";
    let waiting: f64 = session.value(age, &[&"waiting"]);
    assert!((80.0 * day..80.1 * day).contains(&waiting), "{waiting}");
    let ready: f64 = session.value(age, &[&"ready"]);
    assert!((0.0..3600.0).contains(&ready), "{ready}");
    // Resolved: nothing of it is left.
    let dead: i64 = session.value(
        "SELECT id FROM inbox_dead_letters WHERE message_type = 'billing'",
        &[],
    );
    assert!(session.operate("inbox_skip", dead));
    assert_eq!(samples(&mut session, "dead_letters").len(), 1);
}

#[test]
fn metrics_tell_of_ring_and_housekeeping() {
    let (_alone, _, mut session) = preloaded();
    assert_eq!(value(&mut session, "library_preloaded"), 1.0);
    assert_eq!(value(&mut session, "rotations_total"), 0.0);
    rotate(&mut session);
    assert_eq!(value(&mut session, "rotations_total"), 1.0);
    // Half of the retention of 14 days.
    let next = value(&mut session, "next_rotation_seconds");
    assert!((604_000.0..=604_800.0).contains(&next), "{next}");
    let table = |metric: &str| {
        format!(
            "SELECT value FROM inbox_metrics()
             WHERE name = 'sequential_inbox_{metric}' AND labels = '{{\"table\": \"inbox_claim_1\"}}'"
        )
    };
    let before: f64 = session.value(&table("claim_table_bytes"), &[]);
    session.run(
        "SELECT inbox_claim('billing', n::text) FROM generate_series(1, 1000) n;
         SELECT pg_stat_force_next_flush()",
    );
    let after: f64 = session.value(&table("claim_table_bytes"), &[]);
    assert!(after > before, "{before} {after}");
    let claims: f64 = session.value(&table("claim_table_rows"), &[]);
    assert_eq!(claims, 1000.0);
    session.run(
        "UPDATE inbox_worker_status SET last_run_at = to_timestamp(1000), failures = 3,
             last_error_at = to_timestamp(2000)",
    );
    for (metric, expected) in [
        ("housekeeping_last_run_timestamp_seconds", 1000.0),
        ("housekeeping_last_error_timestamp_seconds", 2000.0),
        ("housekeeping_failures", 3.0),
    ] {
        assert_eq!(value(&mut session, metric), expected, "{metric}");
    }
}

/// The counters are those of `inbox_stat`, each once.
#[test]
fn counters_are_among_the_metrics() {
    let (_alone, _, mut session) = preloaded();
    busy(&mut session);
    let sum = |session: &mut Session, filter: &str| -> f64 {
        session.value(
            &format!("SELECT sum(value) FROM inbox_metrics() WHERE type = 'counter' AND {filter}"),
            &[],
        )
    };
    let all =
        "name NOT IN ('sequential_inbox_rotations_total', 'sequential_inbox_wait_seconds_total')";
    let of_view: f64 = session.value(
        "SELECT sum(value::float8) FROM inbox_stat s, json_each_text(row_to_json(s))
         WHERE key NOT IN ('kind', 'name', 'wait_time', 'stats_since')",
        &[],
    );
    assert!(of_view > 0.0);
    assert_eq!(sum(&mut session, all), of_view);
    assert_eq!(
        sum(
            &mut session,
            r#"labels = '{"answer": "claimed", "consumer": "billing"}'"#
        ),
        1.0
    );
    assert_eq!(
        sum(
            &mut session,
            r#"labels = '{"decision": "buffered", "message_type": "paid"}'"#
        ),
        4.0
    );
    assert_eq!(
        sum(&mut session, "name = 'sequential_inbox_failures_total'"),
        2.0
    );
}

/// What OpenMetrics asks of names, and what a scraper stumbles over: a sample twice.
#[test]
fn names_and_labels_keep_to_openmetrics() {
    let (_alone, _, mut session) = preloaded();
    busy(&mut session);
    let rows = session
        .query(
            "SELECT name, type, unit, help, labels::text, value FROM inbox_metrics()",
            &[],
        )
        .unwrap();
    assert!(rows.len() > 30);
    let mut seen = BTreeSet::new();
    for row in rows {
        let [name, kind, unit, help, labels]: [String; 5] =
            std::array::from_fn(|column| row.get(column));
        let value: f64 = row.get(5);
        assert!(name.starts_with("sequential_inbox_"), "{name}");
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        assert!(
            ["gauge", "counter", "info"].contains(&kind.as_str()),
            "{name}: {kind}"
        );
        assert_eq!(
            name.ends_with("_total"),
            kind == "counter",
            "{name}: {kind}"
        );
        assert_eq!(name.ends_with("_info"), kind == "info", "{name}: {kind}");
        let base = name.strip_suffix("_total").unwrap_or(&name);
        assert!(
            unit.is_empty() || base.ends_with(&format!("_{unit}")),
            "{name}: {unit}"
        );
        assert!(help.ends_with('.'), "{name}: {help}");
        assert!(value.is_finite(), "{name}: {value}");
        assert!(seen.insert((name, labels.clone())), "twice: {labels}");
        let keys: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&labels).unwrap();
        for (key, value) in keys {
            assert!(
                key.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{key}"
            );
            assert!(value.is_string(), "{key}: {value}");
        }
    }
}

/// A standby is scraped like its primary, and a server without preloading tells all but counters.
#[test]
fn without_preloading_only_counters_are_missing() {
    let database = Database::new();
    let mut session = Session::new(&database);
    busy(&mut session);
    session.begin();
    session.run("SET TRANSACTION READ ONLY");
    assert_eq!(value(&mut session, "library_preloaded"), 0.0);
    assert_eq!(
        samples(&mut session, "instances_open"),
        [r#"{"sequence": "order"} 3"#]
    );
    let counters: i64 = session.value(
        "SELECT count(DISTINCT name) FROM inbox_metrics() WHERE type = 'counter'",
        &[],
    );
    assert_eq!(counters, 1, "rotations are stored");
    session.commit();
}

/// What reads may be asked together with anything, in a parallel plan too.
#[test]
fn what_reads_fits_into_every_plan() {
    let (_alone, _, mut session) = preloaded();
    let version: i32 = session.value("SELECT current_setting('server_version_num')::int", &[]);
    let setting = if version < 160_000 {
        "force_parallel_mode"
    } else {
        "debug_parallel_query"
    };
    session.run(&format!(
        "SET {setting} = on; SET parallel_setup_cost = 0; SET min_parallel_table_scan_size = 0"
    ));
    for query in [
        "TABLE inbox_settings",
        "TABLE inbox_stat",
        "SELECT * FROM inbox_status()",
        "SELECT * FROM inbox_lookup('billing', 'a')",
        "SELECT * FROM inbox_metrics()",
        "SELECT * FROM inbox_sequences, inbox_claims, inbox_dead_letters, inbox_metrics()",
    ] {
        session.query(query, &[]).expect(query);
    }
}

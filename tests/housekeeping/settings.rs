//! `inbox_settings`: what is in force where one looks, and when the ring moves on next (G9).

use inbox_test_support::{
    Database,
    inbox::{Session, sqlstate},
    retention::{HALF_A_RETENTION, age_ring, housekeep, rotate},
};

/// One column of the view, as text.
#[track_caller]
fn setting(session: &mut Session, column: &str) -> Option<String> {
    session.value(&format!("SELECT {column}::text FROM inbox_settings"), &[])
}

/// Each setting: its column, its default as the view shows it, another value as it is set, and how
/// that is shown.
const SETTINGS: [(&str, &str, &str, &str); 8] = [
    ("claim_retention", "14 days", "36h", "1 day 12:00:00"),
    ("dead_letter_retention", "30 days", "0", "00:00:00"),
    ("housekeeping", "true", "off", "false"),
    ("housekeeping_batch_size", "1000", "1", "1"),
    ("housekeeping_databases", "{}", "'one, two'", "{one,two}"),
    ("housekeeping_interval", "00:01:00", "250ms", "00:00:00.25"),
    ("notify", "false", "on", "true"),
    ("rotation_lock_timeout", "00:00:00.1", "2s", "00:00:02"),
];

#[test]
fn g9_the_defaults_are_those_of_the_design() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for (name, default, _, _) in SETTINGS {
        assert_eq!(
            setting(&mut session, name).as_deref(),
            Some(default),
            "{name}"
        );
    }
    assert_eq!(setting(&mut session, "preloaded").as_deref(), Some("false"));
}

#[test]
fn g9_the_view_shows_what_is_in_force_in_the_session() {
    let database = Database::new();
    let mut session = Session::new(&database);
    for (name, default, value, shown) in SETTINGS {
        let quoted = if value.starts_with('\'') {
            value.to_owned()
        } else {
            format!("'{value}'")
        };
        session.run(&format!("SET sequential_inbox.{name} = {quoted}"));
        assert_eq!(
            setting(&mut session, name).as_deref(),
            Some(shown),
            "{name}"
        );
        session.run(&format!(
            "RESET sequential_inbox.{name};
             ALTER DATABASE {} SET sequential_inbox.{name} = {quoted}",
            database.name()
        ));
        assert_eq!(
            setting(&mut session, name).as_deref(),
            Some(default),
            "{name}: for sessions from now on"
        );
    }
    let mut later = Session::new(&database);
    for (name, _, _, shown) in SETTINGS {
        assert_eq!(setting(&mut later, name).as_deref(), Some(shown), "{name}");
    }
    // And it is what counts there.
    assert!(housekeep(&mut later).rotated);
    age_ring(&mut later, "18 hours");
    assert!(housekeep(&mut later).rotated, "half of 36 hours are over");
}

#[test]
fn g14_only_a_superuser_may_change_a_setting() {
    let database = Database::new();
    let mut superuser = Session::new(&database);
    let role = format!("{}_service", database.name());
    superuser.run(&format!(
        "CREATE ROLE {role} LOGIN; SELECT inbox_grant('{role}', 'operator');
         SELECT inbox_grant('{role}', 'monitor')"
    ));
    let mut session = Session::with(database.dsn_as(&role).parse().unwrap());
    // Only a loaded library's settings are protected: a call loads it.
    session.run("SELECT * FROM inbox_settings");
    for (name, _, value, _) in SETTINGS {
        let value = value.trim_matches('\'');
        let answer = session.query(&format!("SET sequential_inbox.{name} = '{value}'"), &[]);
        assert_eq!(sqlstate(answer), "42501", "{name}");
    }
    // A retention of nothing would let every duplicate win.
    let answer = superuser.query("SET sequential_inbox.claim_retention = 0", &[]);
    assert_eq!(sqlstate(answer), "22023");
    // Nor can a new one be made up under the extension's name.
    let answer = superuser.query("SET sequential_inbox.unknown = 1", &[]);
    assert_eq!(sqlstate(answer), "42602");
    drop(session);
    superuser.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn g9_the_next_rotation_is_told() {
    let database = Database::new();
    let mut session = Session::new(&database);
    let next = "SELECT next_rotation_at - $1::text::interval = current_since FROM inbox_settings";
    assert_eq!(setting(&mut session, "current_table").as_deref(), Some("0"));
    assert_eq!(setting(&mut session, "rotations").as_deref(), Some("0"));
    assert_eq!(setting(&mut session, "current_since"), None);
    assert_eq!(setting(&mut session, "next_rotation_at"), None, "it is due");

    // Paced by half a retention …
    rotate(&mut session);
    assert_eq!(setting(&mut session, "current_table").as_deref(), Some("1"));
    assert_eq!(setting(&mut session, "rotations").as_deref(), Some("1"));
    assert!(session.value::<bool>(next, &[&HALF_A_RETENTION]));
    session.run("SET sequential_inbox.claim_retention = '2d'");
    assert!(session.value::<bool>(next, &[&"1 day"]));
    session.run("RESET sequential_inbox.claim_retention");

    // … or by the whole retention of what would be emptied.
    session.run("SET sequential_inbox.claim_retention = '1s'");
    age_ring(&mut session, "1 second");
    assert!(housekeep(&mut session).rotated);
    session.run("RESET sequential_inbox.claim_retention");
    let by_seal: bool = session.value(
        "SELECT s.next_rotation_at = r.sealed_at_0 + interval '14 days'
         FROM inbox_settings s, inbox_claim_ring r",
        &[],
    );
    assert!(by_seal);

    // What is told is what happens: not a second before, and then.
    let until = "SELECT EXTRACT(epoch FROM next_rotation_at - clock_timestamp())::float8
                 FROM inbox_settings";
    let seconds: f64 = session.value(until, &[]);
    age_ring(&mut session, &format!("{} seconds", seconds - 60.0));
    assert!(!housekeep(&mut session).rotated);
    age_ring(&mut session, "60 seconds");
    assert!(housekeep(&mut session).rotated);
}

#[test]
fn g9_the_view_can_be_read_where_nothing_may_be_written() {
    let database = Database::new();
    let mut session = Session::new(&database);
    session.run("BEGIN READ ONLY");
    assert_eq!(setting(&mut session, "failures").as_deref(), Some("0"));
    assert_eq!(
        setting(&mut session, "last_run_at"),
        None,
        "there is no worker"
    );
    session.commit();
}

//! The library: every way to start, stop, copy and remove a cluster.

#![allow(
    clippy::expect_used,
    reason = "a test may fail by panicking, its helpers too"
)]

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use throwaway_cluster::{Cluster, Error};

type Stop = fn(&Cluster) -> Result<(), Error>;

fn small() -> Cluster {
    Cluster::builder()
        .fsync(false)
        .setting("shared_buffers", "8MB")
        .start()
        .expect("a cluster starts")
}

fn answers(cluster: &Cluster) -> bool {
    cluster
        .sql("postgres", "SELECT 1")
        .is_ok_and(|answer| answer == "1")
}

#[test]
fn starts_with_the_settings_asked_for() {
    let cluster = Cluster::builder()
        .fsync(false)
        .setting("application_name", r"it's a \ test")
        .setting("max_connections", "17")
        .start()
        .expect("a cluster starts");
    let show = |name: &str| {
        cluster
            .sql("postgres", &format!("SHOW {name}"))
            .expect("SHOW")
    };
    assert_eq!(show("fsync"), "off");
    assert_eq!(show("max_prepared_transactions"), "20");
    assert_eq!(show("max_connections"), "17");
    assert_eq!(show("listen_addresses"), "127.0.0.1");
    assert_eq!(show("port"), cluster.port().to_string());
    let from_file = "SELECT setting FROM pg_file_settings WHERE name = 'application_name'";
    assert_eq!(
        cluster.sql("postgres", from_file).expect("settings"),
        r"it's a \ test"
    );
}

#[test]
fn fsync_is_on_unless_switched_off() {
    let cluster = Cluster::builder().start().expect("a cluster starts");
    assert_eq!(cluster.sql("postgres", "SHOW fsync").expect("SHOW"), "on");
}

#[test]
fn tcp_socket_dsn_and_url_lead_to_the_same_server() {
    let cluster = small();
    cluster.createdb("it's odd").expect("createdb");
    let ask = "SELECT current_database() || ' ' || current_user";
    let socket = cluster.socket_dir().display().to_string();
    for target in [
        cluster.dsn_of("it's odd"),
        cluster.url_of("it's odd"),
        format!("host={socket} dbname='it\\'s odd'"),
    ] {
        let answer = cluster
            .run("psql", ["-XAtq", "-d", &target, "-c", ask])
            .expect("psql");
        assert_eq!(answer.trim_end(), "it's odd postgres", "{target}");
    }
    assert_eq!(
        cluster
            .run("psql", ["-XAtq", "-d", &cluster.dsn(), "-c", "SELECT 1"])
            .unwrap(),
        "1\n"
    );
    assert_eq!(
        cluster
            .run("psql", ["-XAtq", "-d", &cluster.url(), "-c", "SELECT 1"])
            .unwrap(),
        "1\n"
    );
}

#[test]
fn data_survives_every_kind_of_stop() {
    let cluster = small();
    let port = cluster.port();
    cluster
        .sql("postgres", "CREATE TABLE t (i int)")
        .expect("CREATE TABLE");
    let stops: [(&str, Stop); 3] = [
        ("fast", Cluster::stop_fast),
        ("immediate", Cluster::stop_immediate),
        ("SIGKILL", Cluster::kill_postmaster),
    ];
    for (rows, (name, stop)) in (1..).zip(stops) {
        cluster
            .sql("postgres", "INSERT INTO t VALUES (1)")
            .expect("INSERT");
        stop(&cluster).expect(name);
        assert!(!cluster.is_running(), "{name}");
        assert!(!answers(&cluster), "{name}");
        cluster.start().expect(name);
        assert!(cluster.is_running(), "{name}");
        assert_eq!(cluster.port(), port, "{name}");
        let count = cluster
            .sql("postgres", "SELECT count(*) FROM t")
            .expect("count");
        assert_eq!(count, rows.to_string(), "{name}");
    }
    cluster.restart().expect("restart");
    assert!(answers(&cluster));
}

#[test]
fn a_server_recovers_from_a_killed_backend() {
    let cluster = small();
    let walwriter = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    let before = cluster.sql("postgres", walwriter).expect("a process");
    cluster
        .kill_backend(before.parse().expect("a number"))
        .expect("kill");
    // Until it has noticed, and while it recovers, it answers as before or not at all.
    let deadline = Instant::now() + Duration::from_secs(60);
    while cluster
        .sql("postgres", walwriter)
        .map_or(true, |now| now.is_empty() || now == before)
    {
        assert!(Instant::now() < deadline, "the server does not come back");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(cluster.is_running());
    for nobody in [0, -1] {
        cluster
            .kill_backend(nobody)
            .expect_err("no backend has this number");
    }
}

#[test]
fn stopping_and_starting_twice_is_harmless() {
    let cluster = small();
    cluster.start().expect("already running");
    cluster.stop_fast().expect("stop");
    cluster.stop_fast().expect("already stopped");
    cluster.start().expect("start");
    assert!(answers(&cluster));
}

#[test]
fn a_standby_replays_refuses_writes_and_can_be_promoted() {
    let primary = small();
    primary
        .sql("postgres", "CREATE TABLE t AS SELECT 7 AS i")
        .expect("CREATE TABLE");
    let standby = primary.standby().expect("a standby starts");
    primary
        .sql("postgres", "UPDATE t SET i = 8")
        .expect("UPDATE");
    standby.catch_up(&primary).expect("the standby catches up");
    assert_eq!(
        standby.sql("postgres", "SELECT i FROM t").expect("SELECT"),
        "8"
    );
    let refused = standby
        .sql("postgres", "UPDATE t SET i = 9")
        .expect_err("a standby writes");
    assert!(
        refused.to_string().contains("read-only transaction"),
        "{refused}"
    );

    primary.stop_immediate().expect("the primary stops");
    standby.promote().expect("the standby is promoted");
    standby
        .sql("postgres", "UPDATE t SET i = 9")
        .expect("UPDATE");
    assert_eq!(
        standby.sql("postgres", "SELECT i FROM t").expect("SELECT"),
        "9"
    );
}

#[test]
fn a_dropped_cluster_leaves_nothing_behind() {
    for stop in [None, Some(Cluster::kill_postmaster as Stop)] {
        let cluster = small();
        let folder = cluster.socket_dir().to_owned();
        let port = cluster.port();
        assert!(folder.exists());
        if let Some(stop) = stop {
            stop(&cluster).expect("stop");
        }
        drop(cluster);
        assert!(!folder.exists());
        TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
    }
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let error = Cluster::builder()
        .fsync(false)
        .setting("no_such_parameter", "1")
        .start()
        .expect_err("the server does not start");
    assert!(matches!(error, Error::Exited { .. }), "{error:?}");
    assert!(error.to_string().contains("no_such_parameter"), "{error}");
}

#[test]
fn a_failing_client_shows_what_it_said() {
    let cluster = small();
    let error = cluster
        .sql("postgres", "SELECT no_such_column")
        .expect_err("the statement fails");
    assert!(
        matches!(&error, Error::Program { program, .. } if program == "psql"),
        "{error:?}"
    );
    assert!(error.to_string().contains("no_such_column"), "{error}");
}

#[test]
fn a_missing_installation_is_named() {
    let error = Cluster::builder()
        .pg_config("/nowhere/pg_config")
        .start()
        .expect_err("no server");
    assert!(matches!(error, Error::NoPgConfig { .. }), "{error:?}");
    assert!(
        error.to_string().contains("install postgresql-15"),
        "{error}"
    );
    assert!(error.to_string().contains("/nowhere/pg_config"), "{error}");
}

#[test]
fn an_installation_without_a_server_is_told_what_to_install() {
    let folder = tempfile::tempdir().expect("a folder");
    let pg_config = fake_pg_config(folder.path());
    let error = Cluster::builder()
        .pg_config(pg_config)
        .start()
        .expect_err("no server");
    assert!(
        matches!(&error, Error::NoServer { program, major, .. } if program == "initdb" && major == "16"),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("install postgresql-16"),
        "{error}"
    );
}

#[test]
fn a_folder_closed_to_the_server_is_named() {
    let base = tempfile::tempdir().expect("a folder");
    let result = Cluster::builder()
        .fsync(false)
        .base_dir(base.path())
        .start();
    if nix::unistd::geteuid().is_root() {
        // The folder is root's alone, and root does not run the server.
        let error = result.expect_err("the server's user may not enter");
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let closed = base.path().display().to_string();
        assert!(error.to_string().contains(&closed), "{error}");
    } else {
        assert!(answers(&result.expect("one's own folder is good enough")));
    }
}

/// A `pg_config` as libpq's development package brings it: it answers, and there is no server.
fn fake_pg_config(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("pg_config");
    let script = "#!/bin/sh\n[ $1 = --version ] && echo PostgreSQL 16.1 || dirname \"$0\"\n";
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    path
}

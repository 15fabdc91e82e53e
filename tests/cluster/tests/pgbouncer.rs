//! A PgBouncer in front of a cluster: who can connect through it, and that nothing is left of it.

#![allow(
    clippy::expect_used,
    reason = "a test may fail by panicking, its helpers too"
)]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use throwaway_cluster::{Cluster, PgBouncer};

fn cluster() -> Cluster {
    Cluster::builder()
        .fsync(false)
        .setting("shared_buffers", "8MB")
        .start()
        .expect("a cluster starts")
}

/// The answer to a query that is sent through that connection string.
fn ask(cluster: &Cluster, dsn: &str, query: &str) -> String {
    cluster
        .run("psql", ["-XAtq", "-d", dsn, "-c", query])
        .expect("psql")
        .trim_end()
        .to_owned()
}

#[test]
fn every_role_reaches_every_database_in_transaction_mode() {
    let cluster = cluster();
    let pool = PgBouncer::in_front_of(&cluster).expect("a PgBouncer starts");
    // Made after it, and unknown to its configuration.
    cluster.createdb("shop").expect("a database");
    cluster
        .sql("postgres", "CREATE ROLE clerk LOGIN")
        .expect("a role");
    let dsn = format!(
        "host={} port={} user=clerk dbname=shop",
        pool.host(),
        pool.port()
    );
    let query = "SELECT current_user || ' ' || current_database()";
    assert_eq!(ask(&cluster, &dsn, query), "clerk shop");
    let pools = ask(&cluster, &pool.console_dsn(), "SHOW POOLS");
    let of_shop = pools
        .lines()
        .find(|line| line.starts_with("shop|clerk|"))
        .expect("its pool");
    assert!(of_shop.ends_with("|transaction"), "{of_shop}");
}

#[test]
fn a_dropped_one_leaves_nothing_behind() {
    let cluster = cluster();
    let pool = PgBouncer::in_front_of(&cluster).expect("a PgBouncer starts");
    let (folder, port) = (pool.folder().to_owned(), pool.port());
    assert!(folder.exists());
    drop(pool);
    assert!(!folder.exists());
    TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
}

#[test]
fn nothing_is_left_when_its_owner_is_killed() {
    let base = tempfile::tempdir_in("/var/tmp").expect("a folder");
    fs::set_permissions(base.path(), Permissions::from_mode(0o777)).expect("chmod");
    let mut owner = Command::new(env!("CARGO_BIN_EXE_throwaway-cluster"))
        .args(["run", "--no-fsync", "--pgbouncer", "--"])
        .args(["sh", "-c", "echo \"$PGBOUNCER_PORT\"; read -r _"])
        .env("TMPDIR", base.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(owner.stdout.take().expect("its output"))
        .read_line(&mut line)
        .expect("a line");
    let port: u16 = line.trim_end().parse().expect("a port");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

    owner.kill().expect("kill");
    owner.wait().expect("wait");
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(base.path()).expect("the folder").count() > 0 {
        assert!(Instant::now() < deadline, "not gone after a minute");
        thread::sleep(Duration::from_millis(20));
    }
    TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens");
}

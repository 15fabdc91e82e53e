//! PgBouncer in front of the program's server, for suites that are run through it as well.

use std::sync::OnceLock;

use postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};
use throwaway_cluster::PgBouncer;

use crate::{Database, cluster};

/// The PgBouncer of this test program, started at the first call and gone with the program.
pub fn pgbouncer() -> &'static PgBouncer {
    static POOL: OnceLock<PgBouncer> = OnceLock::new();
    POOL.get_or_init(|| PgBouncer::in_front_of(cluster()).expect("a PgBouncer starts"))
}

/// The same connection string, through PgBouncer.
///
/// # Panics
///
/// When it leads to another server than the program's own, which has none in front.
pub fn through(dsn: &str) -> String {
    let port = |port: u16| format!(" port={port} ");
    let direct = port(cluster().port());
    assert!(dsn.contains(&direct), "not the program's server: {dsn}");
    dsn.replacen(&direct, &port(pgbouncer().port()), 1)
}

/// What PgBouncer's console answers to that question about a database, as the values of a column.
pub fn console(question: &str, database: &Database, column: &str) -> Vec<String> {
    let mut console = Client::connect(&pgbouncer().console_dsn(), NoTls).expect("the console");
    let answer = console.simple_query(question).expect(question);
    answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })
        .filter(|row: &&SimpleQueryRow| row.get("database") == Some(database.name()))
        .map(|row| row.get(column).expect(column).to_owned())
        .collect()
}

//! sequential_inbox: every at-least-once message takes effect exactly once and, where
//! asked, in order, inside of the transaction of the service that consumes it.
//!
//! - `ring`, `rotation`: claims of plain consumers in a ring of three tables
//! - `claims`, `claim_age`: claims of sequenced messages
//! - `sequences`: declared order: receive, next, release, the operator's hand
//! - `failures`: FAILED and the claim's end in one step
//! - `housekeeping`, `worker`, `retry_pause`: retention, and who sees to it
//! - `statistics`, `counters`: what happened since the server started
//! - `lookup`, `roles`: what is known of a message, who may do what
//! - `settings`, `status`: how it is set, what is in force
//! - `probe`, `nowait`: the look at a key that SQL does not have, and not waiting
//! - `spi`: the only module that runs SQL
//! - `args`, `errors`: bad input and what is said of it

use pgrx::prelude::*;

mod args;
mod claim_age;
mod claims;
mod counters;
mod errors;
mod failures;
mod housekeeping;
mod lookup;
mod nowait;
#[cfg(any(test, feature = "pg_test"))]
mod pg_tests;
mod probe;
mod retry_pause;
mod ring;
mod roles;
mod rotation;
mod sequences;
mod settings;
mod spi;
mod statistics;
mod status;
mod version;
mod worker;

pg_module_magic!(name, version);

extension_sql_file!("../../sql/sequences.sql", name = "sequences");
extension_sql_file!(
    "../../sql/claims.sql",
    name = "claims",
    requires = ["sequences"]
);
extension_sql_file!(
    "../../sql/messages.sql",
    name = "messages",
    requires = ["sequences"]
);
extension_sql_file!("../../sql/ring.sql", name = "ring");
extension_sql_file!(
    "../../sql/housekeeping.sql",
    name = "housekeeping",
    requires = ["ring"]
);
extension_sql_file!("../../sql/operator.sql", name = "operator");
extension_sql_file!(
    "../../sql/views.sql",
    name = "views",
    requires = ["sequences", "claims", "messages", "ring"]
);
extension_sql_file!("../../sql/statistics.sql", name = "statistics");
extension_sql_file!(
    "../../sql/metrics.sql",
    name = "metrics",
    requires = [
        "sequences",
        "claims",
        "messages",
        "ring",
        "housekeeping",
        "views",
        "statistics"
    ]
);
extension_sql_file!("../../sql/roles.sql", name = "roles");
extension_sql_file!(
    "../../sql/finish.sql",
    name = "finish",
    requires = [
        "sequences",
        "claims",
        "messages",
        "ring",
        "operator",
        "views",
        "statistics",
        "metrics",
        "roles"
    ]
);

/// Called by Postgres when the library is loaded.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // An error of Postgres that passes through Rust would otherwise carry a backtrace in its
    // DETAIL wherever RUST_BACKTRACE is set for the server.
    if std::env::var_os("RUST_LIB_BACKTRACE").is_none() {
        // SAFETY: a backend and the postmaster have one thread.
        unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    }
    settings::define();
    statistics::register();
    worker::register();
}

/// What `cargo pgrx test` needs to set its server up.
#[cfg(test)]
pub mod pg_test {
    /// Called once before the tests; nothing is to be done.
    pub fn setup(_options: Vec<&str>) {}

    /// Settings of the tests' server: none.
    #[must_use]
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        Vec::new()
    }
}

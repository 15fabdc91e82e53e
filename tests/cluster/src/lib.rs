//! Throwaway PostgreSQL clusters: real servers, started in a temporary folder, gone with the
//! process that asked for them.
//!
//! What is tested here is concurrency, crashes and replication, so nothing is simulated: a
//! [`Cluster`] is `initdb` and a postmaster, it can be stopped fast, stopped immediately, killed
//! with SIGKILL and started again on the same data and the same port, and
//! [`Cluster::standby`] makes a physical standby with `pg_basebackup`. Tests of G3, G7, G11 and
//! G13 stand on these.
//!
//! ```no_run
//! use throwaway_cluster::Cluster;
//!
//! let cluster = Cluster::builder().fsync(false).start()?;
//! cluster.createdb("shop")?;
//! assert_eq!(cluster.sql("shop", "SELECT 1")?, "1");
//! # Ok::<(), throwaway_cluster::Error>(())
//! ```
//!
//! Which PostgreSQL: the one of the environment variable `PG_CONFIG`, else `pg_config` in the
//! `PATH`, else Debian's folder. Root cannot run a server; when started by root, every server
//! program runs as the user `postgres`.
//!
//! A [`PgBouncer`] can be put in front of a cluster.
//!
//! Every local connection is trusted. That suits a development machine and nothing else.

mod cluster;
mod error;
mod home;
mod installation;
mod janitor;
mod pgbouncer;
mod server_user;

pub use cluster::{Builder, Cluster};
pub use error::Error;
pub use pgbouncer::PgBouncer;

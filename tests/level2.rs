//! The client crate, level 2, against a real server: one suite, run over both drivers, straight to
//! the server and through PgBouncer in transaction mode.
//!
//! Each file under `level2/` is compiled once a driver and way. What differs they take from the
//! module around them: the types, `connect_to`, `server`, and three macros. `wait!` runs a future
//! to its end, `done!` awaits one within a handler, and `handler!` makes a closure a handler; over
//! the blocking driver they do nothing.
//!
//! One file, `backend`, is left out through PgBouncer, and says why. That sessions do go through it
//! is shown by the suite `client`.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// One suite, two drivers, two ways.
#![allow(clippy::duplicate_mod)]

#[path = "level2/log.rs"]
mod log;

/// Over tokio-postgres.
#[path = "level2"]
mod tokio_driver {
    use std::sync::OnceLock;

    use sequential_inbox_client::Consumer;
    use tokio::runtime::Runtime;
    use tokio_postgres::{Client, NoTls, Transaction};

    /// Where futures run; the tests themselves are threads.
    fn runtime() -> &'static Runtime {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
    }

    /// Runs a future to its end.
    macro_rules! wait {
        ($future:expr) => {
            $crate::tokio_driver::runtime().block_on($future)
        };
    }

    /// Awaits a future.
    macro_rules! done {
        ($future:expr) => {
            $future.await
        };
    }

    /// A handler.
    macro_rules! handler {
        (|$transaction:ident, $delivery:ident| $body:block) => {
            async |$transaction: &mut $crate::tokio_driver::Transaction<'_>,
                   $delivery: &sequential_inbox_client::Delivery<'_>|
                   -> Result<_, sequential_inbox_client::HandlerError> { $body }
        };
    }

    fn open(dsn: &str) -> Client {
        let (client, connection) =
            wait!(tokio_postgres::connect(dsn, NoTls)).expect("a session is opened");
        // The connection's own error is also that of every call on the client.
        runtime().spawn(connection);
        client
    }

    #[path = "."]
    mod direct {
        use std::net::SocketAddr;

        use inbox_test_support::cluster;

        use super::{Client, Consumer, open, open as connect_to, runtime};

        /// Where sessions connect to.
        fn server() -> SocketAddr {
            let address = format!("{}:{}", cluster().host(), cluster().port());
            address.parse().unwrap()
        }

        mod backend;
        mod batch;
        mod commit;
        mod conflicts;
        mod failures;
        mod futures;
        mod release;
        mod setting;
        mod telemetry;
    }

    #[path = "."]
    mod through_pgbouncer {
        use std::net::SocketAddr;

        use inbox_test_support::pgbouncer::{pgbouncer, through};

        use super::{Client, Consumer, open, runtime};

        /// Where sessions connect to.
        fn server() -> SocketAddr {
            let address = format!("{}:{}", pgbouncer().host(), pgbouncer().port());
            address.parse().unwrap()
        }

        fn connect_to(dsn: &str) -> Client {
            open(&through(dsn))
        }

        mod batch;
        mod commit;
        mod conflicts;
        mod failures;
        mod futures;
        mod release;
        mod setting;
        mod telemetry;
    }
}

/// Over the blocking `postgres` crate.
#[path = "level2"]
mod sync_driver {
    use postgres::{Client, NoTls, Transaction};
    use sequential_inbox_client::sync::Consumer;

    /// There is nothing to wait for.
    macro_rules! wait {
        ($answer:expr) => {
            $answer
        };
    }

    /// There is nothing to await.
    macro_rules! done {
        ($answer:expr) => {
            $answer
        };
    }

    /// A handler.
    macro_rules! handler {
        (|$transaction:ident, $delivery:ident| $body:block) => {
            |$transaction: &mut $crate::sync_driver::Transaction<'_>,
             $delivery: &sequential_inbox_client::Delivery<'_>|
             -> Result<_, sequential_inbox_client::HandlerError> { $body }
        };
    }

    fn open(dsn: &str) -> Client {
        Client::connect(dsn, NoTls).expect("a session is opened")
    }

    #[path = "."]
    mod direct {
        use std::net::SocketAddr;

        use inbox_test_support::cluster;

        use super::{Client, Consumer, open, open as connect_to};

        /// Where sessions connect to.
        fn server() -> SocketAddr {
            let address = format!("{}:{}", cluster().host(), cluster().port());
            address.parse().unwrap()
        }

        mod backend;
        mod batch;
        mod commit;
        mod conflicts;
        mod failures;
        mod release;
        mod setting;
        mod telemetry;
    }

    #[path = "."]
    mod through_pgbouncer {
        use std::net::SocketAddr;

        use inbox_test_support::pgbouncer::{pgbouncer, through};

        use super::{Client, Consumer, open};

        /// Where sessions connect to.
        fn server() -> SocketAddr {
            let address = format!("{}:{}", pgbouncer().host(), pgbouncer().port());
            address.parse().unwrap()
        }

        fn connect_to(dsn: &str) -> Client {
            open(&through(dsn))
        }

        mod batch;
        mod commit;
        mod conflicts;
        mod failures;
        mod release;
        mod setting;
        mod telemetry;
    }
}

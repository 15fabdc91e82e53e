//! The client crate, level 1, against a real server: one suite, run over both drivers, straight to
//! the server and through PgBouncer in transaction mode.
//!
//! Each file under `client/` is compiled once a driver and way. What differs they take from the
//! module around them: the types, `connect_to`, and the macro `wait!`, which runs a future to its
//! end or is nothing at all.
//!
//! Two files belong to one way. `servers` is left out through PgBouncer, and says why; `pooling`
//! shows that those sessions do go through it.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// One suite, two drivers, two ways.
#![allow(clippy::duplicate_mod)]

/// Over tokio-postgres.
#[path = "client"]
// The blocking driver needs `mut` where this one does not.
#[allow(unused_mut)]
mod tokio_driver {
    use std::sync::OnceLock;

    use sequential_inbox_client::InboxExt;
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

    fn open(dsn: &str) -> Client {
        let (client, connection) =
            wait!(tokio_postgres::connect(dsn, NoTls)).expect("a session is opened");
        // The connection's own error is also that of every call on the client.
        runtime().spawn(connection);
        client
    }

    #[path = "."]
    mod direct {
        use super::{Client, InboxExt, Transaction, open as connect_to, runtime};

        mod administration;
        mod claims;
        mod errors;
        mod futures;
        mod plain;
        mod sequences;
        mod servers;
        mod session;
    }

    #[path = "."]
    mod through_pgbouncer {
        use inbox_test_support::pgbouncer::through;

        use super::{Client, InboxExt, Transaction, open, runtime};

        fn connect_to(dsn: &str) -> Client {
            open(&through(dsn))
        }

        mod administration;
        mod claims;
        mod errors;
        mod futures;
        mod plain;
        mod pooling;
        mod sequences;
        mod session;
    }
}

/// Over the blocking `postgres` crate.
#[path = "client"]
mod sync_driver {
    use postgres::{Client, NoTls, Transaction};
    use sequential_inbox_client::sync::InboxExt;

    /// There is nothing to wait for.
    macro_rules! wait {
        ($answer:expr) => {
            $answer
        };
    }

    fn open(dsn: &str) -> Client {
        Client::connect(dsn, NoTls).expect("a session is opened")
    }

    #[path = "."]
    mod direct {
        use super::{Client, InboxExt, Transaction, open as connect_to};

        mod administration;
        mod claims;
        mod errors;
        mod plain;
        mod sequences;
        mod servers;
        mod session;
    }

    #[path = "."]
    mod through_pgbouncer {
        use inbox_test_support::pgbouncer::through;

        use super::{Client, InboxExt, Transaction, open};

        fn connect_to(dsn: &str) -> Client {
            open(&through(dsn))
        }

        mod administration;
        mod claims;
        mod errors;
        mod plain;
        mod pooling;
        mod sequences;
        mod session;
    }
}

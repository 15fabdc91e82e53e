//! One consumer's connection, which may be terminated in the middle of a transaction and is then
//! opened anew (G3).

use anyhow::{Context, Result};
use tokio_postgres::{Client, NoTls};

use crate::ledger::Ledger;

/// Long enough for any wait of a demo that works; one that does not must end, not hang.
const TIMEOUTS: &str = "SET lock_timeout = '60s'; SET statement_timeout = '120s'";

/// Opens a connection; it closes when the client is dropped.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn connect(dsn: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls)
        .await
        .context("cannot connect to the demo's server")?;
    // Its error is also that of every call on the client.
    tokio::spawn(connection);
    client.batch_execute(TIMEOUTS).await?;
    Ok(client)
}

/// A consumer's connection and what is prepared on it.
#[derive(Debug)]
pub struct Session {
    dsn: String,
    consumer: String,
    /// The connection.
    pub client: Client,
    /// The server's process id of the connection.
    pub pid: i32,
    /// The handler.
    pub ledger: Ledger,
}

impl Session {
    /// Connects a consumer.
    ///
    /// # Errors
    ///
    /// Those of the server and the network.
    pub async fn connect(dsn: &str, consumer: &str) -> Result<Self> {
        let client = connect(dsn).await?;
        let pid = client
            .query_one("SELECT pg_catalog.pg_backend_pid()", &[])
            .await?
            .try_get(0)?;
        let ledger = Ledger::prepare(&client, consumer).await?;
        Ok(Self {
            dsn: dsn.to_owned(),
            consumer: consumer.to_owned(),
            client,
            pid,
            ledger,
        })
    }

    /// Connects again after the connection was lost.
    ///
    /// # Errors
    ///
    /// Those of [`Session::connect`].
    pub async fn reconnect(&mut self) -> Result<()> {
        *self = Self::connect(&self.dsn, &self.consumer).await?;
        Ok(())
    }
}

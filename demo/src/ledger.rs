//! The handler's work, the same in every part: an entry in a ledger and the balance of an account,
//! written in the transaction that has the claim (G4).
//!
//! Nothing here is unique, so that an effect that came twice would be there twice.

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::{Client, GenericClient, Statement, Transaction, error::SqlState};

use crate::{
    stream::{Event, Stream},
    verify::{Account, Entry},
};

const TABLES: &str = "
    CREATE TABLE account (
        consumer text NOT NULL,
        context_id text NOT NULL,
        effects bigint NOT NULL DEFAULT 0,
        balance bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (consumer, context_id)
    );
    CREATE TABLE entry (
        consumer text NOT NULL,
        context_id text NOT NULL,
        event_id text NOT NULL,
        amount bigint NOT NULL,
        ordinal bigint NOT NULL
    )";

/// The account's row lock gives the entries of a case the order of their commits.
const WRITE: &str = "
    WITH account AS (
        UPDATE account SET effects = effects + 1, balance = balance + $4
        WHERE consumer = $1 AND context_id = $2
        RETURNING effects
    )
    INSERT INTO entry (consumer, context_id, event_id, amount, ordinal)
    SELECT $1, $2, $3, $4, effects FROM account";

const LOCK: &str = "
    SELECT FROM account WHERE consumer = $1 AND context_id = $2 FOR UPDATE NOWAIT";

/// Makes the tables, and an account for each case of the stream.
///
/// # Errors
///
/// Those of the server.
pub async fn create(client: &Client, consumers: &[&str], stream: &Stream) -> Result<()> {
    client.batch_execute(TABLES).await?;
    let cases: Vec<&str> = stream.cases().into_iter().collect();
    client
        .execute(
            "INSERT INTO account (consumer, context_id)
             SELECT * FROM unnest($1::text[]) AS consumer, unnest($2::text[]) AS context_id",
            &[&consumers, &cases],
        )
        .await?;
    Ok(())
}

/// The entries of a consumer.
///
/// # Errors
///
/// Those of the server.
pub async fn entries(client: &Client, consumer: &str) -> Result<Vec<Entry>> {
    let rows = client
        .query(
            "SELECT event_id, context_id, ordinal FROM entry WHERE consumer = $1",
            &[&consumer],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Entry {
                event_id: row.try_get(0)?,
                context_id: row.try_get(1)?,
                ordinal: row.try_get(2)?,
            })
        })
        .collect()
}

/// The accounts of a consumer.
///
/// # Errors
///
/// Those of the server.
pub async fn accounts(client: &Client, consumer: &str) -> Result<Vec<Account>> {
    let rows = client
        .query(
            "SELECT context_id, effects, balance FROM account WHERE consumer = $1",
            &[&consumer],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Account {
                context_id: row.try_get(0)?,
                effects: row.try_get(1)?,
                balance: row.try_get(2)?,
            })
        })
        .collect()
}

/// The handler of one session.
#[derive(Debug, Clone)]
pub struct Ledger {
    consumer: String,
    write: Statement,
    lock: Statement,
}

impl Ledger {
    /// Prepares the handler for a session, or for one transaction.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub async fn prepare(client: &(impl GenericClient + Sync), consumer: &str) -> Result<Self> {
        Ok(Self {
            consumer: consumer.to_owned(),
            write: client.prepare(WRITE).await?,
            lock: client.prepare(LOCK).await?,
        })
    }

    /// Does the event's work in the caller's transaction.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub async fn write(&self, transaction: &Transaction<'_>, event: &Event) -> Result<()> {
        let amount = event.amount();
        let written = transaction
            .execute(
                &self.write,
                &[&self.consumer, &event.context_id, &event.event_id, &amount],
            )
            .await
            .with_context(|| format!("the handler of \"{}\"", event.event_id))?;
        ensure!(written == 1, "case \"{}\" has no account", event.context_id);
        Ok(())
    }

    /// The same, where no two events of a case may be handled at the same time (G6).
    ///
    /// # Errors
    ///
    /// When another transaction handles an event of the same case, and those of the server.
    pub async fn write_alone(&self, transaction: &Transaction<'_>, event: &Event) -> Result<()> {
        let locked = transaction
            .execute(&self.lock, &[&self.consumer, &event.context_id])
            .await;
        match locked {
            Ok(_) => self.write(transaction, event).await,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => bail!(
                "two events of case \"{}\" were handled at the same time, one of them \"{}\"",
                event.context_id,
                event.event_id
            ),
            Err(error) => Err(error.into()),
        }
    }
}

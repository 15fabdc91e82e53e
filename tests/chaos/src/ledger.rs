//! The database of a run: the ledger that handlers write their effects to, in the transaction that
//! has the claim, and all that is read of it afterwards.
//!
//! Nothing in the ledger is unique: an effect that came twice would be there twice. Nor does it lock
//! anything that two messages share: two that were handled at the same time would show it.

use anyhow::{Context, Result, bail};
use sequential_inbox_client::{Access, InboxExt};
use tokio_postgres::{Client, Row, Transaction, types::Type};

use crate::{
    checker::{Effect, Evidence, Key, Record, State},
    workload::Traffic,
};

/// The database of a run.
pub const DATABASE: &str = "chaos";

/// The role of the consumers, which may do no more than a consumer has to.
pub const ROLE: &str = "chaos_consumer";

/// The schema in which everything is taken without a claim.
pub const UNCLAIMED: &str = "unclaimed";

/// `tick` is the clock of the ledger: what it gives to a transaction that commits is larger than all
/// it gave before, a crash of the server in between or not.
///
/// The role's limits are those that docs/connections.md asks of a consumer: whoever vanishes or
/// hangs does not hold anything for ever.
const TABLES: &str = "
    CREATE TABLE ledger (
        traffic text NOT NULL,
        context_id text NOT NULL,
        message_type text NOT NULL,
        message_id text NOT NULL,
        \"position\" bigint,
        started bigint NOT NULL,
        ended bigint NOT NULL,
        process int NOT NULL,
        is_skip boolean NOT NULL DEFAULT false
    );
    CREATE SEQUENCE tick;
    CREATE TABLE operator (is_done boolean NOT NULL);
    INSERT INTO operator VALUES (false);
    CREATE ROLE chaos_consumer LOGIN;
    ALTER ROLE chaos_consumer SET lock_timeout = '20s';
    ALTER ROLE chaos_consumer SET idle_in_transaction_session_timeout = '20s';
    GRANT INSERT ON ledger TO chaos_consumer;
    GRANT USAGE ON SEQUENCE tick TO chaos_consumer;
    GRANT SELECT ON operator TO chaos_consumer";

/// Stand-ins for the calls that take a message: whoever asks gets it.
const WITHOUT_CLAIMS: &str = "
    CREATE SCHEMA unclaimed;
    GRANT USAGE ON SCHEMA unclaimed TO chaos_consumer;
    CREATE FUNCTION unclaimed.inbox_claim(text, text) RETURNS boolean
        LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION unclaimed.inbox_receive(
        text, text, text, bytea, bytea, jsonb, bigint, boolean,
        OUT decision text, OUT reason text, OUT sequence_instance_id bigint, OUT message_id bigint)
        LANGUAGE sql AS 'SELECT ''process'', NULL::text, NULL::bigint, NULL::bigint';
    CREATE FUNCTION unclaimed.inbox_next(bigint) RETURNS TABLE (
        message_id bigint, sequence_instance_id bigint, sequence_name text, context_id text,
        message_type text, idempotence_id text, \"position\" bigint, attempts int,
        payload bytea, message_key bytea, headers jsonb, buffered_at timestamptz)
        LANGUAGE sql AS 'SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text,
            NULL::text, NULL::bigint, NULL::int, NULL::bytea, NULL::bytea, NULL::jsonb,
            NULL::timestamptz WHERE false'";

/// Makes the extension, the sequences, the ledger and the consumers' role.
///
/// # Errors
///
/// Those of the server; the extension must be installed.
pub async fn prepare(client: &mut Client) -> Result<()> {
    client
        .batch_execute("CREATE EXTENSION sequential_inbox")
        .await
        .context("the extension is not installed into this PostgreSQL: run make install")?;
    client.batch_execute(TABLES).await?;
    client.batch_execute(WITHOUT_CLAIMS).await?;
    let transaction = client.transaction().await?;
    for sequence in Traffic::ALL.into_iter().filter_map(Traffic::declaration) {
        transaction.inbox().declare_sequence(&sequence).await?;
    }
    transaction.inbox().grant(ROLE, Access::Consumer).await?;
    transaction.commit().await?;
    Ok(())
}

/// What a handler learns when it begins.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    /// The clock.
    pub started: i64,
    /// Whether the operator has mended what can be mended.
    pub is_mended: bool,
}

/// A handler begins.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn begin(transaction: &Transaction<'_>) -> Result<Begun, tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.nextval('public.tick'), is_done FROM public.operator";
    let row = transaction.query_typed_one(sql, &[]).await?;
    Ok(Begun {
        started: row.try_get(0)?,
        is_mended: row.try_get(1)?,
    })
}

/// A handler writes its effect.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn write(
    transaction: &Transaction<'_>,
    traffic: Traffic,
    message: &sequential_inbox_client::Message<'_>,
    begun: Begun,
    process: i32,
) -> Result<(), tokio_postgres::Error> {
    let sql = "INSERT INTO public.ledger
               VALUES ($1, $2, $3, $4, $5, $6, pg_catalog.nextval('public.tick'), $7)";
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 7] = [
        (&traffic.name(), Type::TEXT),
        (&message.context_id, Type::TEXT),
        (&message.message_type, Type::TEXT),
        (&message.idempotence_id, Type::TEXT),
        (&message.position, Type::INT8),
        (&begun.started, Type::INT8),
        (&process, Type::INT4),
    ];
    transaction.execute_typed(sql, &parameters).await?;
    Ok(())
}

/// How far a run is, in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Messages with an effect.
    pub applied: u64,
    /// Dead letters.
    pub dead: u64,
    /// Messages that wait for others.
    pub waiting: u64,
    /// Messages that the operator skipped.
    pub skipped: u64,
}

impl Progress {
    /// Reads how far a run is.
    ///
    /// # Errors
    ///
    /// Those of the server and the network.
    pub async fn read(client: &Client) -> Result<Self> {
        let sql = "
            SELECT (SELECT count(*) FROM (SELECT DISTINCT traffic, message_type, message_id
                                          FROM ledger WHERE NOT is_skip) AS distinct_effects),
                   (SELECT count(*) FROM inbox_dead_letters),
                   (SELECT count(*) FROM sequenced_message WHERE state = 'WAITING'),
                   (SELECT count(*) FROM ledger WHERE is_skip)";
        let row = client.query_one(sql, &[]).await?;
        Ok(Self {
            applied: count(&row, 0)?,
            dead: count(&row, 1)?,
            waiting: count(&row, 2)?,
            skipped: count(&row, 3)?,
        })
    }
}

fn count(row: &Row, column: usize) -> Result<u64> {
    Ok(u64::try_from(row.try_get::<_, i64>(column)?)?)
}

/// The operator: mends what can be mended.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn mend(client: &Client) -> Result<()> {
    client
        .batch_execute("UPDATE operator SET is_done = true")
        .await?;
    Ok(())
}

/// The dead letters: their ids.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn dead_letters(client: &Client) -> Result<Vec<(i64, Key)>> {
    let sql = "SELECT id, sequence_name, message_type, idempotence_id FROM inbox_dead_letters
               ORDER BY id";
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| {
            let key = record_key(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)?;
            Ok((row.try_get(0)?, key))
        })
        .collect()
}

/// The operator: has a dead letter retried; whether its state allowed it.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn retry(client: &Client, id: i64) -> Result<bool> {
    let row = client.query_one("SELECT inbox_retry($1)", &[&id]).await?;
    Ok(row.try_get(0)?)
}

/// The operator: skips a dead letter, with an entry in the ledger in the same transaction; whether
/// its state allowed it. The clock is read under the lock of the instance.
///
/// # Errors
///
/// Those of the server and the network.
pub async fn skip(client: &mut Client, id: i64) -> Result<bool> {
    let transaction = client.transaction().await?;
    let row = transaction
        .query_one("SELECT inbox_skip($1)", &[&id])
        .await?;
    let is_skipped = row.try_get(0)?;
    if is_skipped {
        let sql = "INSERT INTO ledger
            SELECT i.name, i.context_id, m.message_type, m.idempotence_id, m.\"position\",
                   nextval('tick'), nextval('tick'), 0, true
            FROM sequenced_message m JOIN sequence_instance i ON i.id = m.sequence_instance_id
            WHERE m.id = $1";
        transaction.execute(sql, &[&id]).await?;
    }
    transaction.commit().await?;
    Ok(is_skipped)
}

/// Reads what the database holds of a run: effects, records and claims.
///
/// # Errors
///
/// Those of the server and the network, and what belongs to no traffic.
pub async fn read(client: &Client) -> Result<Evidence> {
    let effects = client.query("SELECT * FROM ledger", &[]).await?;
    let sql = "SELECT i.name, m.message_type, m.idempotence_id, i.context_id, m.state,
                      m.next_attempt_at IS NOT NULL, m.attempts, m.last_error
               FROM sequenced_message m
               LEFT JOIN sequence_instance i ON i.id = m.sequence_instance_id";
    let records = client.query(sql, &[]).await?;
    let sql = "SELECT CASE WHEN c.kind = 'sequence' THEN i.name END, c.id1, c.id2
               FROM inbox_claims c
               LEFT JOIN sequence_instance i ON i.id = c.sequence_instance_id";
    let claims = client.query(sql, &[]).await?;
    Ok(Evidence {
        effects: effects.iter().map(effect).collect::<Result<_>>()?,
        records: records.iter().map(record).collect::<Result<_>>()?,
        claims: claims
            .iter()
            .map(|row| record_key(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
            .collect::<Result<_>>()?,
        ..Evidence::default()
    })
}

/// The key of what stands under a message type in a sequence, or under a plain consumer's name.
fn record_key(sequence: Option<&str>, id1: &str, id: &str) -> Result<Key> {
    let traffic = traffic(sequence.unwrap_or(id1))?;
    let message_type = match (sequence, traffic.types()) {
        (None, [only]) => only.name,
        _ => id1,
    };
    Ok(Key {
        traffic,
        message_type: message_type.to_owned(),
        id: id.to_owned(),
    })
}

fn traffic(name: &str) -> Result<Traffic> {
    Traffic::of_name(name).with_context(|| format!("\"{name}\" is no traffic of this run"))
}

fn effect(row: &Row) -> Result<Effect> {
    Ok(Effect {
        key: Key {
            traffic: traffic(row.try_get("traffic")?)?,
            message_type: row.try_get("message_type")?,
            id: row.try_get("message_id")?,
        },
        context: row.try_get("context_id")?,
        position: row.try_get("position")?,
        started: row.try_get("started")?,
        ended: row.try_get("ended")?,
        process: row.try_get("process")?,
        is_skip: row.try_get("is_skip")?,
    })
}

fn record(row: &Row) -> Result<Record> {
    let is_due_again: bool = row.try_get(5)?;
    let state = match (row.try_get(4)?, is_due_again) {
        ("WAITING", _) => State::Waiting,
        ("READY", _) => State::Ready,
        ("PROCESSED", _) => State::Processed,
        ("FAILED", true) => State::Scheduled,
        ("FAILED", false) => State::Dead,
        ("SKIPPED", _) => State::Skipped,
        (other, _) => bail!("\"{other}\" is no state of a message"),
    };
    Ok(Record {
        key: record_key(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)?,
        context: row.try_get(3)?,
        state,
        attempts: row.try_get(6)?,
        last_error: row.try_get(7)?,
    })
}

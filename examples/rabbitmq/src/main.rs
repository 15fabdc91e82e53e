//! Consumes a queue into a database: each message becomes one row of the table `handled`.
//!
//! ```text
//! rabbitmq-consumer --queue orders --consumer billing
//! rabbitmq-consumer --queue orders --sequence orders
//! ```
//!
//! The table stands for whatever a service does with a message. Ctrl-C and SIGTERM end it once the
//! message in hand is finished.

use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgGroup, Parser};
use rabbitmq_consumer::{Options, Tally, run};
use sequential_inbox_client::{Consumer, Delivery, HandlerError, Shutdown};
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{NoTls, Transaction, types::ToSql};

/// What the handler writes to. Made here so that the example runs by itself.
const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS handled (
        number bigint GENERATED ALWAYS AS IDENTITY,
        consumer text NOT NULL,
        message_type text NOT NULL,
        message_id text NOT NULL,
        context_id text,
        payload bytea
    )";

const INSERT: &str = "
    INSERT INTO handled (consumer, message_type, message_id, context_id, payload)
    VALUES ($1, $2, $3, $4, $5)";

/// Consumes a queue of RabbitMQ into PostgreSQL, each message once.
#[derive(Debug, Parser)]
#[command(version, group(ArgGroup::new("whose").required(true)))]
struct Arguments {
    /// The broker
    #[arg(long, env = "AMQP_URL", default_value = "amqp://127.0.0.1:5672/%2f")]
    amqp_url: String,

    /// The database, as a connection string
    #[arg(long, env = "DATABASE_URL", default_value = "host=/var/run/postgresql")]
    dsn: String,

    /// The queue; it is declared if need be
    #[arg(long)]
    queue: String,

    /// Handle each message once, as the consumer of this name
    #[arg(long, value_name = "NAME", group = "whose")]
    consumer: Option<String>,

    /// Handle each message once and in order, as one of this declared sequence
    #[arg(long, value_name = "NAME", group = "whose")]
    sequence: Option<String>,

    /// How many deliveries the broker may be ahead
    #[arg(long, default_value_t = 20)]
    prefetch: u16,

    /// At which delivery a message whose handler fails becomes a dead letter
    #[arg(long, value_name = "N", default_value_t = 10)]
    give_up_after: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    match consume(Arguments::parse()).await {
        Ok(tally) => {
            println!("{tally:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn consume(arguments: Arguments) -> Result<Tally> {
    let consumer = match (&arguments.consumer, &arguments.sequence) {
        (Some(name), _) => Consumer::plain(name),
        (None, sequence) => Consumer::sequence(sequence.clone().unwrap_or_default()),
    };
    let mut options = Options::new(arguments.amqp_url, arguments.queue, arguments.dsn);
    options.prefetch = arguments.prefetch;
    options.give_up_after = arguments.give_up_after;
    make_table(&options.dsn).await?;

    let shutdown = Shutdown::new();
    request_at_signal(&shutdown)?;
    Ok(run(options, consumer, shutdown, handle).await?)
}

/// The handler: whatever it writes with the transaction is there once.
async fn handle(
    transaction: &mut Transaction<'_>,
    delivery: &Delivery<'_>,
) -> Result<(), HandlerError> {
    let message = delivery.message;
    let parameters: [&(dyn ToSql + Sync); 5] = [
        &delivery.consumer,
        &message.message_type,
        &message.idempotence_id,
        &message.context_id,
        &message.payload.as_deref(),
    ];
    transaction.execute(INSERT, &parameters).await?;
    Ok(())
}

async fn make_table(dsn: &str) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(TABLE).await?;
    drop(client);
    connection.await??;
    Ok(())
}

/// Lets Ctrl-C and SIGTERM request the shutdown.
fn request_at_signal(shutdown: &Shutdown) -> Result<()> {
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind)?;
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            signals.recv().await;
            shutdown.request();
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let arguments = |more: &[&str]| {
            Arguments::try_parse_from([&["rabbitmq-consumer", "--queue", "q"], more].concat())
        };
        assert!(arguments(&["--consumer", "billing"]).is_ok());
        assert!(arguments(&["--sequence", "orders"]).is_ok());
        assert!(arguments(&["--sequence", "orders", "--consumer", "billing"]).is_err());
        assert!(arguments(&[]).is_err());
    }
}

//! The connection to the broker, and the queues.

use std::time::Duration;

use futures_util::{FutureExt, future::BoxFuture};
use lapin::{
    Channel, Connection, ConnectionProperties, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use sequential_inbox_client::Shutdown;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::{Error, Options, error::is_refusal_of_broker};

/// How long the broker may take until deliveries can come in.
const GREETING: Duration = Duration::from_secs(10);

/// How long the broker may take to answer an orderly goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

/// The queue for what the inbox cannot take and for what was delivered too often.
#[must_use]
pub fn dead_queue(queue: &str) -> String {
    format!("{queue}.dead")
}

/// Declares the queue and its queue of dead letters; does nothing when both are there.
///
/// Both are quorum queues. A message leaves the first for the second only when the second has it,
/// which RabbitMQ does for queues that refuse what they have no room for, instead of dropping the
/// oldest.
///
/// # Errors
///
/// Those of the broker: with 406 when a queue of this name is there and was declared otherwise.
pub async fn declare(channel: &Channel, options: &Options) -> Result<(), Error> {
    let text = |text: &str| AMQPValue::LongString(text.as_bytes().into());
    let dead = dead_queue(&options.queue);
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    declare_one(channel, &dead, arguments.clone()).await?;
    let limit = AMQPValue::LongLongInt(options.delivery_limit.into());
    arguments.insert("x-delivery-limit".into(), limit);
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(&dead));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    declare_one(channel, &options.queue, arguments).await
}

async fn declare_one(channel: &Channel, name: &str, arguments: FieldTable) -> Result<(), Error> {
    let options = QueueDeclareOptions::durable();
    channel
        .queue_declare(short(name)?, options, arguments)
        .await?;
    Ok(())
}

fn short(name: &str) -> Result<ShortString, Error> {
    ShortString::try_new(name).map_err(|_| Error::TooLong(name.to_owned()))
}

/// A connection that deliveries come in on.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Connection,
    /// It closes when it is dropped.
    _channel: Channel,
    pub(crate) deliveries: Consumer,
}

impl Link {
    /// Connects, however long it takes; `None` when the shutdown comes first.
    ///
    /// Boxed, and so seen to be `Send` here: of a future that borrows, today's compiler does not see
    /// that in the generic consumer, which then could not be spawned.
    pub(crate) fn connect<'a>(
        options: &'a Options,
        shutdown: &'a Shutdown,
    ) -> BoxFuture<'a, Result<Option<Self>, Error>> {
        Self::connect_in_time(options, shutdown).boxed()
    }

    async fn connect_in_time(
        options: &Options,
        shutdown: &Shutdown,
    ) -> Result<Option<Self>, Error> {
        let mut pauses = options.connection_pauses();
        while !shutdown.is_requested() {
            // A broker that is being killed or started may take a connection and say nothing.
            let attempt = tokio::select! {
                () = shutdown.requested() => break,
                attempt = timeout(GREETING, Self::try_connect(options)) => attempt,
            };
            let error = match attempt {
                Ok(Ok(link)) => return Ok(Some(link)),
                Ok(Err(Error::Broker(error))) if !is_refusal_of_broker(&error) => error.to_string(),
                Ok(Err(error)) => return Err(error),
                Err(elapsed) => elapsed.to_string(),
            };
            let pause = pauses.next().unwrap_or_default();
            warn!(%error, pause_ms = pause.as_millis(), "the broker cannot be reached");
            tokio::select! {
                () = shutdown.requested() => break,
                () = sleep(pause) => {}
            }
        }
        Ok(None)
    }

    async fn try_connect(options: &Options) -> Result<Self, Error> {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&options.amqp_url, properties).await?;
        let channel = connection.create_channel().await?;
        declare(&channel, options).await?;
        channel
            .basic_qos(options.prefetch, BasicQosOptions::default())
            .await?;
        let deliveries = channel
            .basic_consume(
                short(&options.queue)?,
                // The broker makes up a name.
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        Ok(Self {
            connection,
            _channel: channel,
            deliveries,
        })
    }

    /// Says goodbye; the broker delivers anew what was not acknowledged.
    pub(crate) async fn close(self) {
        // Whether it answers or not, the connection is over.
        let _ = timeout(GOODBYE, self.connection.close(200, "goodbye".into())).await;
    }
}

/// The message is taken care of.
pub(crate) async fn acknowledge(delivery: &Delivery) -> Result<(), lapin::Error> {
    // `false`: the channel is closed, which the next delivery tells.
    delivery.ack(BasicAckOptions::default()).await.map(drop)
}

/// The message is to come again.
pub(crate) async fn give_back(delivery: &Delivery) -> Result<(), lapin::Error> {
    let options = BasicNackOptions {
        requeue: true,
        ..BasicNackOptions::default()
    };
    delivery.nack(options).await.map(drop)
}

/// The message is to go to the queue of dead letters.
pub(crate) async fn put_aside(delivery: &Delivery) -> Result<(), lapin::Error> {
    delivery.nack(BasicNackOptions::default()).await.map(drop)
}

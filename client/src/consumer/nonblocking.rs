//! Level 2 on tokio-postgres.

use std::{
    future::{Future, pending, poll_fn},
    mem,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{MaybeDone, maybe_done, select},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
};
use tokio_postgres::{AsyncMessage, Client, Connection, Transaction};
use tracing::{Instrument, Span};

use super::{
    batch, commit,
    delivery::{Delivery, Handed, sealed},
    error::{HandlerError, ProcessError},
    methods::{
        Done, Recorded, Step, as_received, consumer_methods, error_text, in_input_order,
        recordable, settled, without_value,
    },
    outcome::{BatchOutcomes, Outcome, Swept},
    settings::{Mode, Plan, Settings, builder_methods},
    telemetry::{self, Subject},
};
use crate::{Decision, Error, Failure, Inbox, Message, Received, Schema};

/// Takes care of messages around a handler: claims, order, commit, retries, what was released, and
/// failures.
///
/// It owns no connection and no thread. One consumer can be shared by any number of tasks, each
/// with a client of its own. A pool's object that dereferences to [`tokio_postgres::Client`] will
/// do.
///
/// ```no_run
/// use sequential_inbox_client::{Consumer, Message};
///
/// # async fn run(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let consumer = Consumer::plain("billing");
/// let message = Message::new("order.placed", "evt-7").payload(b"{\"amount\": 10}".as_slice());
///
/// let outcome = consumer
///     .process(&mut client, &message, async |transaction, delivery| {
///         let order: serde_json::Value = delivery.json()?;
///         let sql = "UPDATE account SET balance = balance - ($1::jsonb->>'amount')::int";
///         transaction.execute(sql, &[&order]).await?;
///         Ok(())
///     })
///     .await?; // An error: do not acknowledge.
/// println!("{}", outcome.as_str()); // Committed: acknowledge.
/// # Ok(())
/// # }
/// ```
///
/// # A task of one's own
///
/// The futures can be spawned when the handler's can. There the handler must own what it uses, as
/// `async move |…|` with a clone of an `Arc`, say: of a closure that borrows, today's compiler does
/// not see that it can be sent. The transaction of a future that is dropped half-way is rolled back.
#[derive(Debug, Clone)]
pub struct Consumer {
    settings: Settings,
}

/// Runs a future within a span.
macro_rules! instrumented {
    ($span:expr, $work:expr) => {
        $work.instrument($span.clone()).await
    };
}

impl Consumer {
    builder_methods!();

    consumer_methods!([async] [.await] [AsyncFnMut] [instrumented]);

    /// Sweeps again and again, until the shutdown that was given to
    /// [`shutdown`](Self::shutdown) is requested: whenever something is announced, and every
    /// [`poll_interval`](Self::poll_interval) in any case.
    ///
    /// # Errors
    ///
    /// Those of [`sweep`](Self::sweep). Connect anew and call it again; nothing is lost meanwhile.
    pub async fn sweep_until_shutdown<T, F>(
        &self,
        client: &mut Client,
        wakeups: Option<&Wakeups>,
        mut handler: F,
    ) -> Result<Swept, ProcessError>
    where
        F: AsyncFnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
    {
        let mut total = Swept::default();
        while !self.settings.shutdown.is_requested() {
            let swept = self.hand_out_all(client, None, &mut handler).await?;
            total.applied += swept.applied;
            total.failed += swept.failed;
            let announced = pin!(async {
                match wakeups {
                    Some(wakeups) => wakeups.announced.notified().await,
                    None => pending().await,
                }
            });
            let stopped = pin!(self.settings.shutdown.requested());
            let woken = select(announced, stopped);
            // Elapsed or woken, the next look is the same.
            let _ = tokio::time::timeout(self.settings.poll_interval, woken).await;
        }
        Ok(total)
    }

    async fn begin<'c>(&self, client: &'c mut Client) -> Result<Transaction<'c>, Error> {
        let mut builder = client.build_transaction();
        if let Some(level) = self.settings.isolation {
            builder = builder.isolation_level(level);
        }
        builder
            .start()
            .await
            .map_err(|source| Error::database("BEGIN", source))
    }

    /// Sets the server's share of the time limit.
    async fn limit(&self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        let Some(limit) = self.settings.handler_timeout else {
            return Ok(());
        };
        let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128);
        transaction
            .batch_execute(&format!("SET LOCAL statement_timeout = {milliseconds}"))
            .await
            .map_err(|source| Error::database("SET LOCAL", source))
    }

    /// Takes a whole batch, in that order. The answers are in the same order.
    async fn take_all(
        &self,
        transaction: &mut Transaction<'_>,
        messages: &[Message<'_>],
        order: &[usize],
    ) -> Result<Vec<Received>, Error> {
        let inbox = inbox(transaction, self.settings.schema.as_ref());
        match self.settings.mode {
            Mode::Plain => {
                let ids: Vec<&str> = order
                    .iter()
                    .map(|&place| &*messages[place].idempotence_id)
                    .collect();
                let claims = inbox.claim_batch(&self.settings.name, &ids).await?;
                Ok(claims.into_iter().map(as_received).collect())
            }
            Mode::Sequence => {
                let calls = order.iter().map(|&place| inbox.receive(&messages[place]));
                pipelined(calls).await
            }
        }
    }

    /// Runs the handler, within its time, and catches its panic.
    async fn guard<T, F>(
        &self,
        handler: &mut F,
        transaction: &mut Transaction<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<T, ProcessError>
    where
        F: AsyncFnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
    {
        // Whatever a panic leaves half-done is the handler's; its transaction is rolled back.
        let work = AssertUnwindSafe(async { handler(transaction, delivery).await }).catch_unwind();
        let answer = match self.settings.handler_timeout {
            None => work.await,
            Some(limit) => {
                let started = Instant::now();
                let answer = tokio::time::timeout(limit, work).await;
                // The server ends its statement at the same time, and may be the first.
                match answer {
                    Ok(answer) if started.elapsed() <= limit => answer,
                    _ => return Err(ProcessError::TimedOut(limit)),
                }
            }
        };
        match answer {
            Ok(answer) => answer.map_err(ProcessError::Handler),
            Err(panic) => Err(ProcessError::panicked(&*panic)),
        }
    }

    /// Commits: those of these instances in which something is ready.
    async fn commit(
        &self,
        transaction: Transaction<'_>,
        instances: &[i64],
        has_written: bool,
    ) -> Result<Vec<i64>, ProcessError> {
        let sql = commit::sql(self.settings.schema.as_ref(), instances);
        let answer = transaction.simple_query(&sql).await;
        if answer.is_ok() {
            // It is over. Dropping it would send a ROLLBACK; it holds nothing but references.
            mem::forget(transaction);
        }
        commit::read(answer, has_written)
    }

    async fn pause(&self, planned: Duration) {
        let actual = self.settings.actual_pause(planned);
        if !actual.is_zero() {
            tokio::time::sleep(actual).await;
        }
    }
}

fn inbox<'a>(transaction: &'a Transaction<'_>, schema: Option<&'a Schema>) -> Inbox<'a> {
    let inbox = Inbox::new(transaction);
    match schema {
        Some(schema) => inbox.in_schema(schema),
        None => inbox,
    }
}

/// What the extension announces: that a message has become ready.
///
/// It takes a session of its own, not through a pool in transaction mode, and the setting
/// `sequential_inbox.notify`. Without either, or when that session is lost, sweeping goes on by
/// polling.
///
/// ```no_run
/// use sequential_inbox_client::{Consumer, Shutdown, Wakeups};
///
/// # async fn run(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let (listener, connection) =
///     tokio_postgres::connect("host=/var/run/postgresql", tokio_postgres::NoTls).await?;
/// let wakeups = Wakeups::listen(listener, connection).await?;
///
/// let shutdown = Shutdown::new();
/// let consumer = Consumer::sequence("orders").shutdown(&shutdown);
/// consumer
///     .sweep_until_shutdown(&mut client, Some(&wakeups), async |transaction, delivery| {
///         let sql = "UPDATE shipment SET state = $1";
///         transaction.execute(sql, &[&delivery.message.message_type]).await?;
///         Ok(())
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Wakeups {
    announced: Arc<Notify>,
    /// The session ends with its client.
    client: Client,
}

impl Wakeups {
    /// Starts to listen. A task of its own drives the connection, until this is dropped.
    ///
    /// # Errors
    ///
    /// When the connection is lost.
    pub async fn listen<S, T>(
        client: Client,
        mut connection: Connection<S, T>,
    ) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let announced = Arc::new(Notify::new());
        let announcing = Arc::clone(&announced);
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    // One permit is kept: what comes during a sweep causes another.
                    announcing.notify_one();
                }
            }
        });
        client
            .batch_execute("LISTEN sequential_inbox")
            .await
            .map_err(|source| Error::database("LISTEN", source))?;
        Ok(Self { announced, client })
    }

    /// Whether the session is lost, so that nothing wakes a sweep but its polling.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// Sends calls one after the other without waiting for the answers between them.
///
/// A call is sent when it is polled first, and the server answers in the order of sending. So all
/// are polled once in order, and then the answers are awaited in order.
async fn pipelined<T, F>(calls: impl Iterator<Item = F>) -> Result<Vec<T>, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut calls: Vec<Pin<Box<MaybeDone<F>>>> =
        calls.map(|call| Box::pin(maybe_done(call))).collect();
    poll_fn(|cx| {
        for call in &mut calls {
            // Ready or pending, it is sent.
            let _ = call.as_mut().poll(cx);
        }
        Poll::Ready(())
    })
    .await;
    let mut answers = Vec::with_capacity(calls.len());
    for call in &mut calls {
        call.as_mut().await;
        answers.extend(call.as_mut().take_output().transpose()?);
    }
    Ok(answers)
}

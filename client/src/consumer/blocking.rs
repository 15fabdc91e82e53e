//! Level 2 on the blocking `postgres` crate.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use postgres::{Client, Transaction};
use tracing::Span;

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
use crate::{Decision, Error, Failure, Message, Received, Schema, sync::Inbox};

/// Takes care of messages around a handler: claims, order, commit, retries, what was released, and
/// failures.
///
/// It owns no connection and no thread. One consumer can be shared by any number of threads, each
/// with a client of its own.
///
/// ```no_run
/// use sequential_inbox_client::{Message, sync::Consumer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = postgres::Client::connect("host=/var/run/postgresql", postgres::NoTls)?;
/// let consumer = Consumer::plain("billing");
/// let message = Message::new("order.placed", "evt-7").payload(b"{\"amount\": 10}".as_slice());
///
/// let outcome = consumer.process(&mut client, &message, |transaction, delivery| {
///     let order: serde_json::Value = delivery.json()?;
///     let sql = "UPDATE account SET balance = balance - ($1::jsonb->>'amount')::int";
///     transaction.execute(sql, &[&order])?;
///     Ok(())
/// })?; // An error: do not acknowledge.
/// println!("{}", outcome.as_str()); // Committed: acknowledge.
/// # Ok(())
/// # }
/// ```
///
/// # Time limits
///
/// A blocking handler cannot be interrupted from outside. With
/// [`handler_timeout`](Self::handler_timeout) the server ends a statement that takes longer, and
/// the session of a handler that leaves it idle for twice as long, so that its claim is free again;
/// and a handler that returns too late is rolled back.
#[derive(Debug, Clone)]
pub struct Consumer {
    settings: Settings,
}

/// Runs work within a span.
macro_rules! spanned {
    ($span:expr, $work:expr) => {
        $span.in_scope(|| $work)
    };
}

impl Consumer {
    builder_methods!();

    consumer_methods!([] [] [FnMut] [spanned]);

    /// Sweeps again and again, every [`poll_interval`](Self::poll_interval), until the shutdown
    /// that was given to [`shutdown`](Self::shutdown) is requested.
    ///
    /// # Errors
    ///
    /// Those of [`sweep`](Self::sweep). Connect anew and call it again; nothing is lost meanwhile.
    pub fn sweep_until_shutdown<T, F>(
        &self,
        client: &mut Client,
        mut handler: F,
    ) -> Result<Swept, ProcessError>
    where
        F: FnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
    {
        let mut total = Swept::default();
        while !self.settings.shutdown.is_requested() {
            let swept = self.hand_out_all(client, None, &mut handler)?;
            total.applied += swept.applied;
            total.failed += swept.failed;
            self.settings.shutdown.wait_for(self.settings.poll_interval);
        }
        Ok(total)
    }

    fn begin<'c>(&self, client: &'c mut Client) -> Result<Transaction<'c>, Error> {
        let mut builder = client.build_transaction();
        if let Some(level) = self.settings.isolation {
            builder = builder.isolation_level(level);
        }
        builder
            .start()
            .map_err(|source| Error::database("BEGIN", source))
    }

    /// Sets the server's share of the time limit.
    fn limit(&self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        let Some(limit) = self.settings.handler_timeout else {
            return Ok(());
        };
        let milliseconds = |time: Duration| time.as_millis().clamp(1, i32::MAX as u128);
        transaction
            .batch_execute(&format!(
                "SET LOCAL statement_timeout = {}; \
                 SET LOCAL idle_in_transaction_session_timeout = {}",
                milliseconds(limit),
                // Whoever is only a little late keeps the session, and the failure is recorded.
                milliseconds(limit.saturating_mul(2)),
            ))
            .map_err(|source| Error::database("SET LOCAL", source))
    }

    /// Takes a whole batch, in that order. The answers are in the same order.
    fn take_all(
        &self,
        transaction: &mut Transaction<'_>,
        messages: &[Message<'_>],
        order: &[usize],
    ) -> Result<Vec<Received>, Error> {
        let mut inbox = inbox(transaction, self.settings.schema.as_ref());
        match self.settings.mode {
            Mode::Plain => {
                let ids: Vec<&str> = order
                    .iter()
                    .map(|&place| &*messages[place].idempotence_id)
                    .collect();
                let claims = inbox.claim_batch(&self.settings.name, &ids)?;
                Ok(claims.into_iter().map(as_received).collect())
            }
            Mode::Sequence => order
                .iter()
                .map(|&place| inbox.receive(&messages[place]))
                .collect(),
        }
    }

    /// Runs the handler, catches its panic, and refuses what came too late.
    fn guard<T, F>(
        &self,
        handler: &mut F,
        transaction: &mut Transaction<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<T, ProcessError>
    where
        F: FnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
    {
        let started = Instant::now();
        // Whatever a panic leaves half-done is the handler's; its transaction is rolled back.
        let answer = catch_unwind(AssertUnwindSafe(|| handler(transaction, delivery)));
        match self.settings.handler_timeout {
            Some(limit) if started.elapsed() > limit => Err(ProcessError::TimedOut(limit)),
            _ => match answer {
                Ok(answer) => answer.map_err(ProcessError::Handler),
                Err(panic) => Err(ProcessError::panicked(&*panic)),
            },
        }
    }

    /// Commits: those of these instances in which something is ready.
    fn commit(
        &self,
        mut transaction: Transaction<'_>,
        instances: &[i64],
        has_written: bool,
    ) -> Result<Vec<i64>, ProcessError> {
        let sql = commit::sql(self.settings.schema.as_ref(), instances);
        let answer = transaction.simple_query(&sql);
        if answer.is_ok() {
            // It is over. Dropping it would send a ROLLBACK; it holds nothing but references.
            mem::forget(transaction);
        }
        commit::read(answer, has_written)
    }

    fn pause(&self, planned: Duration) {
        thread::sleep(self.settings.actual_pause(planned));
    }
}

fn inbox<'a, 't>(
    transaction: &'a mut Transaction<'t>,
    schema: Option<&'a Schema>,
) -> Inbox<'a, 't> {
    let inbox = Inbox::new(transaction);
    match schema {
        Some(schema) => inbox.in_schema(schema),
        None => inbox,
    }
}

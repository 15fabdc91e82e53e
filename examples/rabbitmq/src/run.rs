//! The loop: deliveries in, outcomes back.

use std::{future::pending, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lapin::message::Delivery as Amqp;
use sequential_inbox_client::{Consumer, Delivery, HandlerError, Outcome, ProcessError, Shutdown};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::Transaction;
use tracing::{debug, warn};

use crate::{
    Error, Options, Tally,
    broker::{Link, acknowledge, give_back, put_aside},
    database::Session,
    message,
};

/// Consumes until the shutdown is requested; what was done, counted.
///
/// The consumer says whose messages they are and all else about their handling; its limit of
/// failures is [`Options::give_up_after`], and its shutdown the one given here.
///
/// The handler is cloned for each message. The future can be spawned when the handler owns what it
/// uses: `async move |…|` with an `Arc`, say.
///
/// # Errors
///
/// What waiting does not mend: the broker or the database refuses, instead of being away. Nothing is
/// lost; what was not acknowledged is delivered again.
pub async fn run<H>(
    options: Options,
    consumer: Consumer,
    shutdown: Shutdown,
    handler: H,
) -> Result<Tally, Error>
where
    H: AsyncFnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<(), HandlerError> + Clone,
{
    let consumer = consumer
        .give_up_after(options.give_up_after)
        .shutdown(&shutdown);
    let mut work = Work {
        options,
        consumer,
        shutdown,
        handler,
        session: Session::default(),
        tally: Tally::default(),
    };
    while let Some(mut link) = Link::connect(&work.options, &work.shutdown).await? {
        work.tally.broker_connections += 1;
        match work.consume(&mut link).await {
            Ok(()) => link.close().await,
            Err(Ended::LinkLost(error)) => {
                warn!(%error, "the connection to the broker is lost");
                // A broker that takes connections and ends them at once is not to be stormed.
                let (pause, _) = work.options.connection_pauses;
                tokio::select! {
                    () = work.shutdown.requested() => {}
                    () = sleep(pause) => {}
                }
            }
            Err(Ended::Refused(error)) => {
                link.close().await;
                return Err(error);
            }
        }
    }
    work.tally.database_sessions = work.session.opened;
    Ok(work.tally)
}

/// Why no more deliveries come in, other than a shutdown.
enum Ended {
    /// The connection to the broker is gone, and what was not acknowledged with it: it comes again.
    LinkLost(lapin::Error),
    Refused(Error),
}

impl From<lapin::Error> for Ended {
    fn from(error: lapin::Error) -> Self {
        Self::LinkLost(error)
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// What is to be done with a delivery once its transaction is over.
enum Verdict {
    Acknowledge,
    GiveBack {
        after: Duration,
    },
    PutAside,
    /// Nothing: the shutdown came before it could be handled.
    Leave,
}

struct Work<H> {
    options: Options,
    consumer: Consumer,
    shutdown: Shutdown,
    handler: H,
    session: Session,
    tally: Tally,
}

impl<H> Work<H>
where
    H: AsyncFnMut(&mut Transaction<'_>, &Delivery<'_>) -> Result<(), HandlerError> + Clone,
{
    /// Takes care of what comes in on one connection, until the shutdown.
    async fn consume(&mut self, link: &mut Link) -> Result<(), Ended> {
        // Deliveries that go back after a pause. They are kept here and not slept out, so that
        // others are handled meanwhile.
        let mut failed = FuturesUnordered::new();
        let mut sweeps = self.options.sweep_interval.map(|time| {
            let mut sweeps = interval(time);
            sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
            sweeps
        });
        let shutdown = self.shutdown.clone();
        let mut stopped = shutdown.requested().boxed();
        loop {
            let sweep_is_due = async {
                match &mut sweeps {
                    Some(sweeps) => {
                        sweeps.tick().await;
                    }
                    None => pending().await,
                }
            };
            // In this order, so that a full queue holds up neither an end nor a sweep.
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(()),
                Some(given_back) = failed.next() => given_back?,
                () = sweep_is_due => self.sweep().await?,
                delivery = link.deliveries.next() => {
                    // None: the broker has ended the consumption, because the queue was deleted say.
                    let Some(delivery) = delivery.transpose()? else {
                        return Err(Ended::LinkLost(lapin::ErrorKind::InvalidChannelState(
                            lapin::ChannelState::Closed,
                            "the broker has cancelled the consumer",
                        ).into()));
                    };
                    self.tally.deliveries += 1;
                    debug!(redelivered = delivery.redelivered, "a delivery is taken up");
                    match self.judge(&delivery).await? {
                        Verdict::Acknowledge => acknowledge(&delivery).await?,
                        Verdict::PutAside => put_aside(&delivery).await?,
                        Verdict::GiveBack { after } => failed.push(async move {
                            sleep(after).await;
                            give_back(&delivery).await
                        }),
                        Verdict::Leave => return Ok(()),
                    }
                }
            }
        }
    }

    /// Handles one delivery to the end of its transaction.
    async fn judge(&mut self, delivery: &Amqp) -> Result<Verdict, Error> {
        let message = match message::read(delivery) {
            Ok(message) => message,
            Err(reason) => {
                warn!(%reason, "a delivery is no message of the inbox and is put aside");
                self.tally.unreadable += 1;
                return Ok(Verdict::PutAside);
            }
        };
        let session = self.session.client(&self.options, &self.shutdown).await?;
        let Some(client) = session else {
            return Ok(Verdict::Leave);
        };
        let outcome = self
            .consumer
            .process(client, &message, self.handler.clone())
            .await;
        match outcome {
            // It has no context id, and this queue is one of a sequence.
            Ok(Outcome::Direct) => {
                self.tally.unreadable += 1;
                Ok(Verdict::PutAside)
            }
            Ok(outcome) => {
                self.tally.count(&outcome);
                Ok(Verdict::Acknowledge)
            }
            Err(error) if is_inadmissible(&error) => {
                self.tally.unreadable += 1;
                Ok(Verdict::PutAside)
            }
            // Rolled back, or not known to be committed: the redelivery decides. The client has
            // told of it already.
            Err(_) => {
                self.tally.returned += 1;
                let after = self
                    .options
                    .redelivery_pause(message.delivery.unwrap_or_default());
                Ok(Verdict::GiveBack { after })
            }
        }
    }

    /// Handles what the inbox has to hand out. What cannot be handled now stays for the next time.
    async fn sweep(&mut self) -> Result<(), Error> {
        let session = self.session.client(&self.options, &self.shutdown).await?;
        let Some(client) = session else {
            return Ok(());
        };
        match self.consumer.sweep(client, self.handler.clone()).await {
            Ok(swept) => self.tally.count_sweep(&swept),
            Err(error) => {
                let sqlstate = error.sqlstate().map(|state| state.code());
                warn!(sqlstate, "a sweep ended early");
            }
        }
        Ok(())
    }
}

/// Whether the inbox refuses the message for what it is: class 22, an id that is too long say.
/// Refusals of other classes can end, when a type is declared later for example.
fn is_inadmissible(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Inbox(_))
        && error
            .sqlstate()
            .is_some_and(|state| state.code().starts_with("22"))
}

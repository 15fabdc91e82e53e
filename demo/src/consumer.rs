//! A consumer: takes deliveries from the broker, claims or receives each in a transaction, does
//! the work in the same transaction and acknowledges after the commit (G1 to G8). Its handlers
//! fail where the schedule says so.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use sequential_inbox_client::{Claim, Decision, Failure, InboxExt, Message, Released};
use tokio::time::sleep;
use tokio_postgres::{Transaction, types::Type};

use crate::{
    broker::Delivery,
    replay::{Kind, Replay, SEQUENCE},
    schedule::Fault,
    session::Session,
    stream::Event,
};

/// What a failed handler leaves for the operator.
const ERROR: &str = "the handler failed on its first try, as the demo's schedule says";

/// When a message that was handed out and failed comes again by itself.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// How long a session that got a message looks for the other one to wait for it. Never waited out
/// while that one really waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long between two looks.
const POLL: Duration = Duration::from_millis(1);

/// What became of an attempt to handle what was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There is nothing to handle now.
    Nothing,
    /// A message was handled, or its failure recorded.
    Done,
    /// The connection was lost in the middle of it.
    ConnectionLost,
}

/// A consumer with a connection of its own.
#[derive(Debug)]
pub struct Consumer {
    replay: Arc<Replay>,
    session: Session,
}

impl Consumer {
    /// Connects a consumer to the replay's database.
    ///
    /// # Errors
    ///
    /// Those of the server and the network.
    pub async fn connect(replay: Arc<Replay>) -> Result<Self> {
        let session = Session::connect(&replay.dsn, replay.kind.consumer()).await?;
        Ok(Self { replay, session })
    }

    /// Handles deliveries until everything is acknowledged, then what was left released.
    ///
    /// # Errors
    ///
    /// Whatever the schedule did not ask for.
    pub async fn run(&mut self) -> Result<()> {
        let replay = Arc::clone(&self.replay);
        while let Some(delivery) = replay.broker.next().await {
            match &replay.kind {
                Kind::Ordered(_) => self.receive(delivery).await?,
                Kind::Plain(_) | Kind::Claims => self.claim(delivery).await?,
            }
        }
        if let Kind::Ordered(_) = replay.kind {
            while self.handle_next(None).await? != Step::Nothing {}
        }
        Ok(())
    }

    /// Claims a message, does its work, commits, acknowledges.
    async fn claim(&mut self, delivery: Delivery) -> Result<()> {
        let replay = Arc::clone(&self.replay);
        let event = replay.event(delivery.event)?;
        let session = &mut self.session;
        meet(&delivery, session).await?;
        let mut transaction = session.client.transaction().await?;
        let inbox = transaction.inbox();
        let (claim, failure) = match &replay.kind {
            Kind::Plain(consumer) => (
                inbox.claim(consumer, &event.event_id).await?,
                Failure::new(consumer, &event.event_id),
            ),
            _ => {
                let instance = inbox.sequence(SEQUENCE, &event.context_id).await?;
                let (message_type, id) = (&event.message_type, &event.event_id);
                (
                    inbox.claim_sequenced(message_type, id, instance).await?,
                    Failure::new(message_type, id).instance(instance),
                )
            }
        };
        if claim == Claim::Duplicate {
            transaction.commit().await?;
            replay.skipped(delivery);
            return Ok(());
        }
        match replay.fault_of_this_try(delivery.event) {
            None => {
                session.ledger.write(&transaction, event).await?;
                let_other_wait(&replay, &delivery, &transaction).await?;
                transaction.commit().await?;
                replay.applied(delivery.event);
                replay.broker.acknowledge(delivery);
            }
            Some(Fault::RolledBack) => {
                session.ledger.write(&transaction, event).await?;
                let_other_wait(&replay, &delivery, &transaction).await?;
                transaction.rollback().await?;
                replay.broker.give_back(delivery);
            }
            Some(Fault::Recorded) => {
                // Only the handler's work is undone. The claim is held until the failure is
                // committed in its place, so that nobody can win the message in between and have
                // a good claim deleted.
                let savepoint = transaction.savepoint("handler").await?;
                session.ledger.write(&savepoint, event).await?;
                savepoint.rollback().await?;
                let is_recorded = transaction.inbox().fail(&failure.error(ERROR)).await?;
                ensure!(
                    is_recorded,
                    "the failure of \"{}\", claimed by this transaction, was not recorded",
                    event.event_id
                );
                let_other_wait(&replay, &delivery, &transaction).await?;
                transaction.commit().await?;
                replay.broker.give_back(delivery);
            }
            Some(Fault::Killed) => {
                session.ledger.write(&transaction, event).await?;
                let_other_wait(&replay, &delivery, &transaction).await?;
                lose_connection(&replay, session.pid, transaction).await?;
                session.reconnect().await?;
                replay.broker.give_back(delivery);
            }
        }
        Ok(())
    }

    /// Receives a message of an ordered sequence, does its work when its turn is now, commits,
    /// acknowledges, and handles what it released.
    async fn receive(&mut self, delivery: Delivery) -> Result<()> {
        let replay = Arc::clone(&self.replay);
        let event = replay.event(delivery.event)?;
        let message = replay.message(event)?;
        let session = &mut self.session;
        meet(&delivery, session).await?;
        let transaction = session.client.transaction().await?;
        let received = transaction.inbox().receive(&message).await?;
        match received.decision {
            Decision::Process => {}
            Decision::Buffered => {
                let_other_wait(&replay, &delivery, &transaction).await?;
                transaction.commit().await?;
                replay.buffered(delivery);
                return Ok(());
            }
            Decision::Duplicate => {
                transaction.commit().await?;
                replay.skipped(delivery);
                return Ok(());
            }
            unexpected => bail!(
                "inbox_receive decided {unexpected} for \"{}\": {}",
                event.event_id,
                received.reason.as_deref().unwrap_or("no reason given")
            ),
        }
        session.ledger.write_alone(&transaction, event).await?;
        let_other_wait(&replay, &delivery, &transaction).await?;
        match replay.fault_of_this_try(delivery.event) {
            None => {
                transaction.commit().await?;
                replay.applied(delivery.event);
                replay.broker.acknowledge(delivery);
                if let Some(instance) = received.sequence_instance_id {
                    while self.handle_next(Some(instance)).await? == Step::Done {}
                }
            }
            Some(Fault::RolledBack) => {
                transaction.rollback().await?;
                replay.broker.give_back(delivery);
            }
            Some(Fault::Recorded) => {
                transaction.rollback().await?;
                self.record_failure(event, &message).await?;
                replay.broker.give_back(delivery);
            }
            Some(Fault::Killed) => {
                lose_connection(&replay, session.pid, transaction).await?;
                session.reconnect().await?;
                replay.broker.give_back(delivery);
            }
        }
        Ok(())
    }

    /// Records that a received message failed. Another session may have handled it meanwhile; the
    /// failure is then not recorded, which is as it should be.
    async fn record_failure(&mut self, event: &Event, message: &Message<'_>) -> Result<()> {
        let transaction = self.session.client.transaction().await?;
        let inbox = transaction.inbox();
        // The instance may have been rolled back with the message that made it.
        let instance = inbox.sequence(SEQUENCE, &event.context_id).await?;
        let failure = Failure::of(message).instance(instance).error(ERROR);
        inbox.fail(&failure).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Handles the next released message of an instance, or of any, in a transaction of its own.
    async fn handle_next(&mut self, instance: Option<i64>) -> Result<Step> {
        let replay = Arc::clone(&self.replay);
        let session = &mut self.session;
        let transaction = session.client.transaction().await?;
        let Some(released) = transaction.inbox().next(instance).await? else {
            transaction.commit().await?;
            return Ok(Step::Nothing);
        };
        let index = released_event(&replay, &released)?;
        let event = replay.event(index)?;
        session.ledger.write_alone(&transaction, event).await?;
        match replay.fault_of_this_try(index) {
            None => {
                transaction.commit().await?;
                replay.released(index);
            }
            // It is ready as before, and handed out again.
            Some(Fault::RolledBack) => transaction.rollback().await?,
            Some(Fault::Recorded) => {
                transaction.rollback().await?;
                // A second copy that waits in another session is taken for the resend of a message
                // that it finds failed, and a message is not to come again in two ways.
                let is_resent = replay.schedule.is_delivered_twice(index);
                let retry_after = (!is_resent).then_some(RETRY_AFTER);
                if self.fail_released(&released, retry_after).await? && is_resent {
                    replay.tally.unbuffered();
                    replay.broker.resend(index);
                }
            }
            Some(Fault::Killed) => {
                lose_connection(&replay, session.pid, transaction).await?;
                session.reconnect().await?;
                return Ok(Step::ConnectionLost);
            }
        }
        Ok(Step::Done)
    }

    /// Records that a message that was handed out failed. `false`: another session has handled it
    /// meanwhile.
    async fn fail_released(
        &mut self,
        released: &Released,
        retry_after: Option<Duration>,
    ) -> Result<bool> {
        let transaction = self.session.client.transaction().await?;
        let is_recorded = transaction
            .inbox()
            .fail_message(released.message_id, Some(ERROR), retry_after)
            .await?;
        transaction.commit().await?;
        Ok(is_recorded)
    }
}

/// Where a message is delivered to two sessions at the same moment: waits until both have it.
async fn meet(delivery: &Delivery, session: &Session) -> Result<()> {
    match &delivery.seat {
        Some(seat) => seat.meet(session.pid).await,
        None => Ok(()),
    }
}

/// Where another session has the same message: keeps the transaction open until that session is
/// seen waiting for a lock, and counts that. Every such wait is for this transaction in the end,
/// since the other's call cannot return before it.
async fn let_other_wait(
    replay: &Replay,
    delivery: &Delivery,
    transaction: &Transaction<'_>,
) -> Result<()> {
    let Some(seat) = &delivery.seat else {
        return Ok(());
    };
    let Some(other) = seat.first_holder_learns_other() else {
        replay.tally.count(|counts| counts.took_over += 1);
        return Ok(());
    };
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let blockers = transaction
            .query_typed(
                "SELECT pg_catalog.pg_blocking_pids($1)",
                &[(&other, Type::INT4)],
            )
            .await?;
        let row = blockers.first().context("a query without a row")?;
        if !row.try_get::<_, Vec<i32>>(0)?.is_empty() {
            replay.tally.count(|counts| counts.waited += 1);
            break;
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Terminates the session in the middle of the transaction.
async fn lose_connection(replay: &Replay, pid: i32, transaction: Transaction<'_>) -> Result<()> {
    replay.terminate(pid).await?;
    ensure!(
        transaction.commit().await.is_err(),
        "a transaction committed although its session was terminated before"
    );
    Ok(())
}

/// The event of a message that was handed out; its content must have come back as it was given.
fn released_event(replay: &Replay, released: &Released) -> Result<usize> {
    let id = &released.idempotence_id;
    let index = replay
        .stream
        .index_of(id)
        .with_context(|| format!("\"{id}\" was handed out and never received"))?;
    let event: Event = released
        .json()
        .with_context(|| format!("the payload of \"{id}\""))?;
    ensure!(
        event == *replay.event(index)?
            && released.message_type == event.message_type
            && released.context_id.as_ref() == Some(&event.context_id)
            && released.key.as_deref() == Some(event.context_id.as_bytes()),
        "\"{id}\" was handed out with other content than it was received with"
    );
    Ok(index)
}

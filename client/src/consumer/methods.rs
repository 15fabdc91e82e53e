//! The course of a message, written once: the two drivers differ in `async` and `.await`, in the
//! handler's trait, and in how a transaction is opened, committed, limited and spanned, which
//! their modules bring.

use std::convert::Infallible;

use crate::{Decision, Error, Message, Outcome, ProcessError, Received};

/// What one committed transaction of a message gave.
pub(crate) struct Done<T> {
    pub(crate) outcome: Outcome<T>,
    /// The instances in which something is ready now.
    pub(crate) ready: Vec<i64>,
}

/// What the recording of a failure gave.
pub(crate) struct Recorded {
    /// `false`: somebody else has taken care of the message.
    pub(crate) is_recorded: bool,
    /// The instances in which something is ready now.
    pub(crate) ready: Vec<i64>,
}

/// What one step of a drain or a sweep did.
pub(crate) enum Step {
    /// A message was handled; in these instances something is ready.
    Applied(Vec<i64>),
    /// A message failed, and that is recorded.
    Failed,
    /// There is nothing to hand out.
    Empty,
}

/// What a decision comes to without a handler: `None` when the handler has to run.
///
/// # Errors
///
/// A decision that a call which waits does not make.
pub(crate) fn settled(received: &mut Received) -> Result<Option<Outcome<Infallible>>, Error> {
    Ok(Some(match received.decision {
        Decision::Process => return Ok(None),
        Decision::Buffered => Outcome::Buffered,
        Decision::Duplicate => Outcome::Duplicate,
        Decision::Direct => Outcome::Direct,
        Decision::Rejected => Outcome::Rejected {
            reason: received.reason.take(),
        },
        Decision::InFlight => {
            return Err(Error::unknown_answer(
                "inbox_receive",
                "decision \"in_flight\" of a call that waits",
            ));
        }
    }))
}

/// An outcome without a value as one of any handler.
pub(crate) fn without_value<T>(outcome: Outcome<Infallible>) -> Outcome<T> {
    match outcome {
        Outcome::Applied(never) => match never {},
        Outcome::Duplicate => Outcome::Duplicate,
        Outcome::Buffered => Outcome::Buffered,
        Outcome::Rejected { reason } => Outcome::Rejected { reason },
        Outcome::Direct => Outcome::Direct,
        Outcome::Rescheduled { after, error } => Outcome::Rescheduled { after, error },
        Outcome::DeadLettered { error } => Outcome::DeadLettered { error },
    }
}

/// The answer to a plain claim in the form of a sequence's.
pub(crate) const fn as_received(claim: crate::Claim) -> Received {
    Received {
        decision: if claim.is_claimed() {
            Decision::Process
        } else {
            Decision::Duplicate
        },
        reason: None,
        sequence_instance_id: None,
        message_id: None,
    }
}

/// The longest error text that is recorded; a handler may fail with a whole document.
const LONGEST_ERROR: usize = 8_000;

/// An error's text as it can be recorded: text of the server holds no zero byte.
pub(crate) fn recordable(text: &str) -> String {
    text.chars()
        .take(LONGEST_ERROR)
        .map(|character| {
            if character == '\0' {
                '\u{fffd}'
            } else {
                character
            }
        })
        .collect()
}

/// What is recorded of a failure. A broker's deliveries are told, since the inbox did not count
/// them.
pub(crate) fn error_text(error: &ProcessError, message: &Message<'_>) -> String {
    match message.delivery {
        Some(delivery) if delivery > 1 => recordable(&format!("at delivery {delivery}: {error}")),
        _ => recordable(&error.to_string()),
    }
}

/// Puts what was gathered in the order of taking back into the order of the input.
pub(crate) fn in_input_order<T>(order: &[usize], gathered: Vec<T>) -> Vec<T> {
    let mut placed: Vec<(usize, T)> = order.iter().copied().zip(gathered).collect();
    placed.sort_unstable_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, value)| value).collect()
}

/// Expands to the methods that handle messages. The arguments are `async` and `.await`, or nothing
/// in their place, the trait of handlers, and the macro that runs work within a span.
///
/// The type has `settings`, and the methods `begin`, `limit`, `take`, `take_all`, `guard`,
/// `commit` and `pause`.
macro_rules! consumer_methods {
    ([$($async:ident)?] [$($await:tt)*] [$handler:ident] [$within:ident]) => {
        /// Takes care of one message from the broker: begins a transaction, claims or receives the
        /// message, runs the handler in that transaction, commits, and handles what the message
        /// released.
        ///
        /// `Ok`: acknowledge the message; the outcome is told only after the commit. `Err`: do
        /// not, and let the broker redeliver it.
        ///
        /// The handler does its work with the transaction that it is given and with nothing else
        /// that must be undone: it may run more than once, since after a serialization failure or
        /// a deadlock the whole transaction is run again, and everything of a failed attempt is
        /// rolled back. So is what it wrote before it returned an error, panicked or ran out of
        /// time. A panic is caught and counts as a failure. The handler is also given the messages
        /// that this one released.
        ///
        /// A failed handler's message goes back to the broker, unless it is given up or failures
        /// are rescheduled: [`Outcome::Rescheduled`](crate::Outcome::Rescheduled),
        /// [`Outcome::DeadLettered`](crate::Outcome::DeadLettered). When draining fails, the
        /// message itself is committed all the same; what is ready is left to a sweep.
        ///
        /// # Errors
        ///
        /// See [`ProcessError`](crate::ProcessError).
        pub $($async)? fn process<T, F>(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            mut handler: F,
        ) -> Result<Outcome<T>, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            self.process_one(client, message, &mut handler)$($await)*
        }

        /// Takes care of a whole poll of messages in one transaction with one commit.
        ///
        /// The messages are taken by context, those of one context in the order given, so that
        /// two batches cannot deadlock each other over what they share in the inbox. When any
        /// message fails, everything is rolled back and the messages are taken care of one by one,
        /// as [`process`](Self::process) does: one that always fails costs its batch a second try
        /// and nothing else.
        ///
        /// The outcomes are in the order of the messages. Acknowledge each that is `Ok`.
        ///
        /// # Errors
        ///
        /// When the connection is lost: acknowledge none, the redelivery decides. Of single
        /// messages, see [`process`](Self::process).
        pub $($async)? fn process_batch<T, F>(
            &self,
            client: &mut Client,
            messages: &[Message<'_>],
            mut handler: F,
        ) -> Result<BatchOutcomes<T>, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            let order = batch::order(messages);
            let mut retries = self.settings.retries();
            let error = loop {
                match self
                    .attempt_batch(client, messages, &order, &mut handler)
                    $($await)*
                {
                    Ok((outcomes, ready)) => {
                        self.drain_ready(client, &ready, &mut handler)$($await)*;
                        return Ok(outcomes);
                    }
                    Err(error) => {
                        let pause = retries.after(&error);
                        telemetry::batch_failed(
                            &self.settings.name,
                            messages.len(),
                            &error,
                            pause,
                        );
                        match pause {
                            Some(pause) => self.pause(pause)$($await)*,
                            None => break error,
                        }
                    }
                }
            };
            if error.is_of_connection() {
                return Err(error);
            }
            let mut outcomes = Vec::with_capacity(messages.len());
            for &place in &order {
                let outcome = self
                    .process_one(client, &messages[place], &mut handler)
                    $($await)*;
                outcomes.push(outcome);
            }
            Ok(in_input_order(&order, outcomes))
        }

        /// Handles what is ready or due in that sequence instance, one transaction a message,
        /// until nothing is.
        ///
        /// [`process`](Self::process) does so itself unless [`drain`](Self::drain) is off.
        ///
        /// # Errors
        ///
        /// When the next message cannot be taken, or its failure not be recorded: what is ready
        /// stays ready.
        pub $($async)? fn drain_instance<T, F>(
            &self,
            client: &mut Client,
            sequence_instance_id: i64,
            mut handler: F,
        ) -> Result<Swept, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            self.hand_out_all(client, Some(sequence_instance_id), &mut handler)$($await)*
        }

        /// Handles whatever is ready or due in the database, one transaction a message, until
        /// nothing is: what a crashed process left released, what failed and is due again, what an
        /// operator retries. Passes over what other sessions hold.
        ///
        /// That may be messages of other consumers and sequences too: see
        /// [`Delivery::consumer`](crate::Delivery::consumer).
        ///
        /// # Errors
        ///
        /// When the next message cannot be taken, or its failure not be recorded: what is ready
        /// stays ready.
        pub $($async)? fn sweep<T, F>(
            &self,
            client: &mut Client,
            mut handler: F,
        ) -> Result<Swept, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            self.hand_out_all(client, None, &mut handler)$($await)*
        }

        /// Gives a message up: records its failure with its payload as a dead letter, in a
        /// transaction of its own. For consumers that count deliveries themselves; call it after
        /// [`process`](Self::process) has returned an error, and acknowledge the message then. What
        /// that releases, where a failure does not block, is left to a sweep.
        ///
        /// `false`: somebody else has taken care of the message meanwhile, and nothing was
        /// recorded. Acknowledge it all the same.
        ///
        /// # Errors
        ///
        /// When it could not be recorded: do not acknowledge.
        pub $($async)? fn give_up(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            error: &str,
        ) -> Result<bool, ProcessError> {
            let recorded = self
                .record(client, message, &recordable(error), None)
                $($await)*?;
            Ok(recorded.is_recorded)
        }

        $($async)? fn process_one<T, F>(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            handler: &mut F,
        ) -> Result<Outcome<T>, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let subject = self.subject(message);
            let span = subject.span();
            let applied = $within!(span, self.apply(client, message, handler));
            let settled = match applied {
                Ok(done) => Ok(done),
                Err(error) => self.after_failure(client, message, error)$($await)*,
            };
            let (result, ready) = match settled {
                Ok(done) => (Ok(done.outcome), done.ready),
                Err(error) => (Err(error), Vec::new()),
            };
            subject.ended(&result, &span);
            self.drain_ready(client, &ready, handler)$($await)*;
            result
        }

        /// Runs the message's transaction, again while it has to give way to another.
        $($async)? fn apply<T, F>(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            handler: &mut F,
        ) -> Result<Done<T>, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let mut retries = self.settings.retries();
            loop {
                let error = match self.attempt(client, message, handler)$($await)* {
                    Ok(done) => return Ok(done),
                    Err(error) => error,
                };
                let Some(pause) = retries.after(&error) else {
                    return Err(error);
                };
                self.subject(message).retried(&error, pause);
                self.pause(pause)$($await)*;
            }
        }

        /// One transaction of one message.
        $($async)? fn attempt<T, F>(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            handler: &mut F,
        ) -> Result<Done<T>, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let started = Instant::now();
            // Dropped on the way out, it is rolled back.
            let mut transaction = self.begin(client)$($await)*?;
            let mut received = self.take(&mut transaction, message)$($await)*?;
            let outcome = match settled(&mut received)? {
                Some(outcome) => without_value(outcome),
                None => {
                    self.limit(&mut transaction)$($await)*?;
                    let delivery = Delivery::received(&self.settings.name, message, &received);
                    Outcome::Applied(
                        self.guard(handler, &mut transaction, &delivery)$($await)*?,
                    )
                }
            };
            let instances = self.instances_to_drain(&[received]);
            let ready = self
                .commit(transaction, &instances, outcome.is_applied())
                $($await)*?;
            self.subject(message).committed(started);
            Ok(Done { outcome, ready })
        }

        /// One transaction of a whole batch: the outcomes in the order of the messages, and the
        /// instances in which something is ready.
        $($async)? fn attempt_batch<T, F>(
            &self,
            client: &mut Client,
            messages: &[Message<'_>],
            order: &[usize],
            handler: &mut F,
        ) -> Result<(BatchOutcomes<T>, Vec<i64>), ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let started = Instant::now();
            let mut transaction = self.begin(client)$($await)*?;
            let mut received = self.take_all(&mut transaction, messages, order)$($await)*?;
            self.limit(&mut transaction)$($await)*?;
            let mut outcomes = Vec::with_capacity(messages.len());
            let mut has_written = false;
            for (&place, received) in order.iter().zip(&mut received) {
                let message = &messages[place];
                let outcome = match settled(received)? {
                    Some(outcome) => without_value(outcome),
                    None => {
                        let subject = self.subject(message);
                        let span = subject.span();
                        let delivery =
                            Delivery::received(&self.settings.name, message, received);
                        has_written = true;
                        Outcome::Applied($within!(
                            span,
                            self.guard(handler, &mut transaction, &delivery)
                        )?)
                    }
                };
                outcomes.push(Ok(outcome));
            }
            let instances = self.instances_to_drain(&received);
            let ready = self
                .commit(transaction, &instances, has_written)
                $($await)*?;
            for (&place, outcome) in order.iter().zip(&outcomes) {
                let subject = self.subject(&messages[place]);
                subject.ended(outcome, &Span::none());
                subject.committed(started);
            }
            Ok((in_input_order(order, outcomes), ready))
        }

        /// What becomes of a message from the broker whose transaction is rolled back.
        $($async)? fn after_failure<T>(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            error: ProcessError,
        ) -> Result<Done<T>, ProcessError> {
            let failures = message.delivery.map_or(0, |number| number.saturating_sub(1));
            let has_payload = message.payload.is_some();
            let Plan::Record { retry_after } =
                self.settings.plan(&error, failures, false, has_payload)
            else {
                return Err(error);
            };
            let text = error_text(&error, message);
            let recorded = match self.record(client, message, &text, retry_after)$($await)* {
                Ok(recorded) => recorded,
                Err(problem) => {
                    self.subject(message).not_recorded(&problem);
                    return Err(error);
                }
            };
            let outcome = match (recorded.is_recorded, retry_after) {
                (false, _) => Outcome::Duplicate,
                (true, Some(after)) => Outcome::Rescheduled { after, error },
                (true, None) => Outcome::DeadLettered { error },
            };
            Ok(Done {
                outcome,
                ready: recorded.ready,
            })
        }

        /// Records the failure of a message from the broker.
        $($async)? fn record(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            error: &str,
            retry_after: Option<Duration>,
        ) -> Result<Recorded, ProcessError> {
            let mut retries = self.settings.retries();
            loop {
                let problem = match self
                    .try_record(client, message, error, retry_after)
                    $($await)*
                {
                    Ok(recorded) => return Ok(recorded),
                    Err(problem) => problem,
                };
                let Some(pause) = retries.after(&problem) else {
                    return Err(problem);
                };
                self.pause(pause)$($await)*;
            }
        }

        $($async)? fn try_record(
            &self,
            client: &mut Client,
            message: &Message<'_>,
            error: &str,
            retry_after: Option<Duration>,
        ) -> Result<Recorded, ProcessError> {
            let mut transaction = self.begin(client)$($await)*?;
            let schema = self.settings.schema.as_ref();
            let context = match self.settings.mode {
                Mode::Sequence => message.context_id.as_deref(),
                Mode::Plain => None,
            };
            let mut failure = match (self.settings.mode, context) {
                (Mode::Sequence, Some(context)) => {
                    // The instance was perhaps rolled back with the message that made it.
                    let instance = inbox(&mut transaction, schema)
                        .sequence(&self.settings.name, context)
                        $($await)*?;
                    Failure::of(message).instance(instance)
                }
                (Mode::Sequence, None) => Failure::of(message),
                (Mode::Plain, _) => sealed(&self.settings.name, message),
            };
            failure.error = Some(error.into());
            failure.retry_after = retry_after;
            // A bare claim looks the same whether its message succeeded or not. Whoever can
            // claim it now knows that nobody has succeeded.
            let is_free = failure.sequence_instance_id.is_some()
                || inbox(&mut transaction, schema)
                    .claim(&failure.message_type, &failure.idempotence_id)
                    $($await)*?
                    .is_claimed();
            let is_recorded =
                is_free && inbox(&mut transaction, schema).fail(&failure)$($await)*?;
            // Where a failure does not hold back what depends on it, it releases that.
            let instances: Vec<i64> = failure
                .sequence_instance_id
                .filter(|_| self.settings.drain)
                .into_iter()
                .collect();
            let ready = self.commit(transaction, &instances, false)$($await)*?;
            Ok(Recorded { is_recorded, ready })
        }

        /// Drains instances after a commit. The message itself is safe by now, so that a failure
        /// here is no failure of it.
        $($async)? fn drain_ready<T, F>(
            &self,
            client: &mut Client,
            instances: &[i64],
            handler: &mut F,
        )
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            for &instance in instances {
                if let Err(error) = self
                    .hand_out_all(client, Some(instance), handler)
                    $($await)*
                {
                    telemetry::drain_ended(&self.settings.name, instance, &error);
                    return;
                }
            }
        }

        /// Handles what the inbox hands out, of an instance or of any, until it hands out nothing.
        $($async)? fn hand_out_all<T, F>(
            &self,
            client: &mut Client,
            instance: Option<i64>,
            handler: &mut F,
        ) -> Result<Swept, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let mut swept = Swept::default();
            while !self.settings.shutdown.is_requested() {
                match self.hand_out(client, instance, handler)$($await)*? {
                    Step::Applied(ready) => {
                        swept.applied += 1;
                        if instance.is_some() && ready.is_empty() {
                            break;
                        }
                    }
                    Step::Failed => swept.failed += 1,
                    Step::Empty => break,
                }
            }
            Ok(swept)
        }

        /// Handles the next message that the inbox hands out, in a transaction of its own, which
        /// is run again while it has to give way to another.
        $($async)? fn hand_out<T, F>(
            &self,
            client: &mut Client,
            instance: Option<i64>,
            handler: &mut F,
        ) -> Result<Step, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let mut retries = self.settings.retries();
            loop {
                let mut handed = None;
                let error = match self
                    .attempt_next(client, instance, handler, &mut handed)
                    $($await)*
                {
                    Ok(step) => return Ok(step),
                    Err(error) => error,
                };
                let pause = retries.after(&error);
                match (handed, pause) {
                    (Some(handed), Some(pause)) => handed.subject().retried(&error, pause),
                    (None, Some(pause)) => {
                        telemetry::next_retried(&self.settings.name, &error, pause);
                    }
                    (Some(handed), None) => {
                        return self.after_handed_out(client, &handed, error)$($await)*;
                    }
                    (None, None) => return Err(error),
                }
                if let Some(pause) = pause {
                    self.pause(pause)$($await)*;
                }
            }
        }

        /// One transaction of one message that the inbox hands out, which is left in `handed`.
        $($async)? fn attempt_next<T, F>(
            &self,
            client: &mut Client,
            instance: Option<i64>,
            handler: &mut F,
            handed: &mut Option<Handed>,
        ) -> Result<Step, ProcessError>
        where
            F: $handler(&mut Transaction<'_>, &Delivery<'_>) -> Result<T, HandlerError>,
        {
            let started = Instant::now();
            let mut transaction = self.begin(client)$($await)*?;
            let schema = self.settings.schema.as_ref();
            let Some(released) = inbox(&mut transaction, schema).next(instance)$($await)*? else {
                self.commit(transaction, &[], false)$($await)*?;
                return Ok(Step::Empty);
            };
            let released = handed.insert(released.into());
            let subject = released.subject();
            let span = subject.span();
            self.limit(&mut transaction)$($await)*?;
            let delivery = released.delivery();
            let value = $within!(span, self.guard(handler, &mut transaction, &delivery))?;
            let instances: Vec<i64> = instance.into_iter().collect();
            let ready = self.commit(transaction, &instances, true)$($await)*?;
            let applied = Ok(Outcome::Applied(value));
            subject.ended(&applied, &span);
            subject.committed(started);
            Ok(Step::Applied(ready))
        }

        /// What becomes of a message that the inbox handed out and whose transaction is rolled
        /// back: nobody else will record its failure.
        $($async)? fn after_handed_out(
            &self,
            client: &mut Client,
            handed: &Handed,
            error: ProcessError,
        ) -> Result<Step, ProcessError> {
            let has_payload = handed.message.payload.is_some();
            let Plan::Record { retry_after } =
                self.settings.plan(&error, handed.failures, true, has_payload)
            else {
                return Err(error);
            };
            let text = recordable(&error.to_string());
            let result: Result<Outcome<()>, ProcessError> =
                match self.fail_handed_out(client, handed, &text, retry_after)$($await)* {
                    Ok(false) => Ok(Outcome::Duplicate),
                    Ok(true) => Ok(match retry_after {
                        Some(after) => Outcome::Rescheduled { after, error },
                        None => Outcome::DeadLettered { error },
                    }),
                    Err(problem) => Err(problem),
                };
            handed.subject().ended(&result, &Span::none());
            result.map(|_| Step::Failed)
        }

        /// Records that failure. `false`: the message is taken care of.
        $($async)? fn fail_handed_out(
            &self,
            client: &mut Client,
            handed: &Handed,
            error: &str,
            retry_after: Option<Duration>,
        ) -> Result<bool, ProcessError> {
            let mut retries = self.settings.retries();
            loop {
                let problem = match self
                    .try_fail_handed_out(client, handed, error, retry_after)
                    $($await)*
                {
                    Ok(is_recorded) => return Ok(is_recorded),
                    Err(problem) => problem,
                };
                let Some(pause) = retries.after(&problem) else {
                    return Err(problem);
                };
                self.pause(pause)$($await)*;
            }
        }

        $($async)? fn try_fail_handed_out(
            &self,
            client: &mut Client,
            handed: &Handed,
            error: &str,
            retry_after: Option<Duration>,
        ) -> Result<bool, ProcessError> {
            let mut transaction = self.begin(client)$($await)*?;
            let is_recorded = inbox(&mut transaction, self.settings.schema.as_ref())
                .fail_message(handed.record, Some(error), retry_after)
                $($await)*?;
            self.commit(transaction, &[], false)$($await)*?;
            Ok(is_recorded)
        }

        /// Claims or receives a message.
        $($async)? fn take(
            &self,
            transaction: &mut Transaction<'_>,
            message: &Message<'_>,
        ) -> Result<Received, Error> {
            let schema = self.settings.schema.as_ref();
            match self.settings.mode {
                Mode::Plain => inbox(transaction, schema)
                    .claim(&self.settings.name, &message.idempotence_id)
                    $($await)*
                    .map(as_received),
                Mode::Sequence => inbox(transaction, schema).receive(message)$($await)*,
            }
        }

        /// The instances in which something may be ready after these messages.
        ///
        /// A duplicate's too: the session that took it may have died before it drained.
        fn instances_to_drain(&self, received: &[Received]) -> Vec<i64> {
            if !self.settings.drain {
                return Vec::new();
            }
            let mut instances: Vec<i64> = received
                .iter()
                .filter(|received| {
                    matches!(
                        received.decision,
                        Decision::Process | Decision::Duplicate | Decision::Rejected
                    )
                })
                .filter_map(|received| received.sequence_instance_id)
                .collect();
            instances.sort_unstable();
            instances.dedup();
            instances
        }

        fn subject<'a>(&'a self, message: &'a Message<'_>) -> Subject<'a> {
            Subject {
                consumer: &self.settings.name,
                message,
            }
        }
    };
}
pub(crate) use consumer_methods;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_return_to_their_places() {
        assert_eq!(
            in_input_order(&[2, 0, 1], vec!['c', 'a', 'b']),
            ['a', 'b', 'c']
        );
    }

    #[test]
    fn an_error_can_be_recorded_whatever_it_holds() {
        assert_eq!(recordable("a\0b"), "a\u{fffd}b");
        let long = "\u{e9}".repeat(LONGEST_ERROR + 1);
        assert_eq!(recordable(&long).chars().count(), LONGEST_ERROR);
        let error = ProcessError::Handler("no".into());
        let message = Message::new("t", "i");
        assert_eq!(error_text(&error, &message), "the handler failed: no");
        assert_eq!(
            error_text(&error, &message.delivery(3)),
            "at delivery 3: the handler failed: no"
        );
    }

    #[test]
    fn g11_a_decision_that_cannot_be_is_an_error() {
        let mut received = as_received(crate::Claim::Claimed);
        assert!(matches!(settled(&mut received), Ok(None)));
        received.decision = Decision::InFlight;
        assert!(settled(&mut received).is_err());
    }
}

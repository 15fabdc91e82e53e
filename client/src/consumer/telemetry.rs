//! What is told of a message: spans and events, and metrics behind their feature. Names, ids and
//! outcomes; never a payload, and no error's text either, since a server's DETAIL and a handler's
//! message may quote one.

use std::time::Duration;

use tracing::Span;

use crate::{Message, Outcome, ProcessError};

/// Whose message is spoken of.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) message: &'a Message<'a>,
}

/// Emits an event of that level about a subject.
macro_rules! tell {
    ($level:ident, $subject:expr, $outcome:expr, $text:literal $(, $field:ident = $value:expr)*) => {
        tracing::$level!(
            consumer = $subject.consumer,
            message_type = &*$subject.message.message_type,
            message_id = &*$subject.message.idempotence_id,
            outcome = $outcome,
            $($field = $value,)*
            $text
        )
    };
}

impl Subject<'_> {
    /// The span in which a message is handled.
    pub(crate) fn span(self) -> Span {
        tracing::info_span!(
            "inbox_message",
            consumer = self.consumer,
            message_type = &*self.message.message_type,
            message_id = &*self.message.idempotence_id,
            outcome = tracing::field::Empty,
        )
    }

    /// Tells how a message ended.
    pub(crate) fn ended<T>(self, result: &Result<Outcome<T>, ProcessError>, span: &Span) {
        let outcome = match result {
            Ok(outcome) => outcome.as_str(),
            Err(_) => "retryable_failure",
        };
        span.record("outcome", outcome);
        self.count(outcome);
        match result {
            Err(error) => tell!(
                warn,
                self,
                outcome,
                "the message is left to a redelivery",
                error_kind = error.kind(),
                sqlstate = code(error)
            ),
            Ok(Outcome::Rescheduled { after, error }) => tell!(
                warn,
                self,
                outcome,
                "the handler failed, the message is due again later",
                retry_after_ms = milliseconds(*after),
                error_kind = error.kind(),
                sqlstate = code(error)
            ),
            Ok(Outcome::DeadLettered { error }) => tell!(
                error,
                self,
                outcome,
                "the handler failed, the message is a dead letter",
                error_kind = error.kind(),
                sqlstate = code(error)
            ),
            Ok(Outcome::Rejected { .. }) => {
                tell!(error, self, outcome, "the message is rejected");
            }
            Ok(_) => tell!(debug, self, outcome, "the message is taken care of"),
        }
    }

    /// Tells that a transaction is run again.
    pub(crate) fn retried(self, error: &ProcessError, pause: Duration) {
        self.count("retryable_failure");
        tell!(
            info,
            self,
            "retryable_failure",
            "the transaction is run again",
            pause_ms = milliseconds(pause),
            error_kind = error.kind(),
            sqlstate = code(error)
        );
    }

    /// Tells that a failure could not be recorded.
    pub(crate) fn not_recorded(self, error: &ProcessError) {
        tell!(
            warn,
            self,
            "retryable_failure",
            "the failure could not be recorded",
            error_kind = error.kind(),
            sqlstate = code(error)
        );
    }

    /// Counts an outcome.
    #[cfg(feature = "metrics")]
    fn count(self, outcome: &'static str) {
        metrics::counter!(
            "sequential_inbox_messages_total",
            "consumer" => self.consumer.to_owned(),
            "type" => self.message.message_type.to_string(),
            "outcome" => outcome,
        )
        .increment(1);
    }

    #[cfg(not(feature = "metrics"))]
    fn count(self, _: &'static str) {}

    /// Notes how long a transaction took, from its begin to its commit.
    #[cfg(feature = "metrics")]
    pub(crate) fn committed(self, started: std::time::Instant) {
        metrics::histogram!(
            "sequential_inbox_transaction_seconds",
            "consumer" => self.consumer.to_owned(),
            "type" => self.message.message_type.to_string(),
        )
        .record(started.elapsed().as_secs_f64());
    }

    #[cfg(not(feature = "metrics"))]
    pub(crate) fn committed(self, _: std::time::Instant) {}
}

/// Tells that a batch is rolled back, to be handled message by message or again as a whole.
pub(crate) fn batch_failed(
    consumer: &str,
    messages: usize,
    error: &ProcessError,
    pause: Option<Duration>,
) {
    tracing::info!(
        consumer,
        messages,
        pause_ms = pause.map(milliseconds),
        error_kind = error.kind(),
        sqlstate = code(error),
        "{}",
        if pause.is_some() {
            "the batch is run again"
        } else {
            "the batch is rolled back"
        }
    );
}

/// Tells that released messages are left to a sweep.
pub(crate) fn drain_ended(consumer: &str, instance: i64, error: &ProcessError) {
    tracing::warn!(
        consumer,
        sequence_instance_id = instance,
        error_kind = error.kind(),
        sqlstate = code(error),
        "the drain ended early, what is ready is left to a sweep"
    );
}

/// Tells that taking the next message is tried again.
pub(crate) fn next_retried(consumer: &str, error: &ProcessError, pause: Duration) {
    tracing::info!(
        consumer,
        pause_ms = milliseconds(pause),
        error_kind = error.kind(),
        sqlstate = code(error),
        "the transaction is run again"
    );
}

fn code(error: &ProcessError) -> Option<&str> {
    error.sqlstate().map(|state| state.code())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

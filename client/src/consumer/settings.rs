//! A consumer's name and limits, and what follows from them: pauses, and what to do with a failure
//! (G5). Pure: nothing here talks to a server.

use std::{fmt, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio_postgres::IsolationLevel;

use crate::{ProcessError, Schema, Shutdown};

/// No failed message waits longer until it is due again: an operator who mends the cause need not
/// wait for days.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60 * 60);

/// How messages are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Claimed for a plain consumer.
    Plain,
    /// Received into a sequence.
    Sequence,
}

type PauseHook = Arc<dyn Fn(Duration) -> Duration + Send + Sync>;

/// All that a builder sets.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) name: String,
    pub(crate) schema: Option<Schema>,
    pub(crate) isolation: Option<IsolationLevel>,
    pub(crate) retries: usize,
    pub(crate) first_pause: Duration,
    pub(crate) longest_pause: Duration,
    pub(crate) pause_hook: Option<PauseHook>,
    pub(crate) handler_timeout: Option<Duration>,
    pub(crate) drain: bool,
    pub(crate) reschedule: bool,
    pub(crate) retry_after: Duration,
    pub(crate) give_up_after: Option<u32>,
    pub(crate) poll_interval: Duration,
    pub(crate) shutdown: Shutdown,
}

/// What to do with a failure after the rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing is recorded: whoever delivered the message will deliver it again.
    Redeliver,
    /// It is recorded: due again after that time, or a dead letter.
    Record { retry_after: Option<Duration> },
}

impl Settings {
    pub(crate) fn new(mode: Mode, name: String) -> Self {
        Self {
            mode,
            name,
            schema: None,
            isolation: None,
            // With the pauses below, conflicts have about a second to end.
            retries: 6,
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_secs(1),
            pause_hook: None,
            handler_timeout: None,
            drain: true,
            reschedule: false,
            retry_after: Duration::from_secs(10),
            give_up_after: Some(10),
            // One indexed look a second is nothing to the server and little to wait for.
            poll_interval: Duration::from_secs(1),
            shutdown: Shutdown::new(),
        }
    }

    /// The pauses of one message's retries.
    pub(crate) fn retries(&self) -> Retries {
        // Beyond a day a retry makes no sense, and the arithmetic of durations has its limits.
        let longest = self.longest_pause.min(Duration::from_secs(24 * 60 * 60));
        let pauses = ExponentialBuilder::default()
            .with_min_delay(self.first_pause.min(longest))
            .with_max_delay(longest)
            .with_factor(2.0)
            .with_max_times(self.retries)
            .with_jitter()
            .build();
        Retries { pauses }
    }

    /// How long a pause is really made.
    pub(crate) fn actual_pause(&self, planned: Duration) -> Duration {
        self.pause_hook
            .as_ref()
            .map_or(planned, |hook| hook(planned))
    }

    /// What to do with a failure of a message that failed so many times before.
    pub(crate) fn plan(
        &self,
        error: &ProcessError,
        failures_before: u32,
        is_released: bool,
        has_payload: bool,
    ) -> Plan {
        if !error.is_of_message() {
            return Plan::Redeliver;
        }
        let failures = failures_before.saturating_add(1);
        if self.give_up_after.is_some_and(|limit| failures >= limit) {
            return Plan::Record { retry_after: None };
        }
        match (is_released, has_payload) {
            // Nobody else would ever hand it out again.
            (true, true) => Plan::Record {
                retry_after: Some(self.retry_after(failures)),
            },
            // Without a payload the inbox keeps it for an operator alone.
            (true, false) => Plan::Record { retry_after: None },
            (false, true) if self.reschedule => Plan::Record {
                retry_after: Some(self.retry_after(failures)),
            },
            (false, _) => Plan::Redeliver,
        }
    }

    /// How long a message stays away after its n-th failure, from 1.
    fn retry_after(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1).min(31));
        let longest = LONGEST_RETRY_AFTER.max(self.retry_after);
        self.retry_after.saturating_mul(factor).min(longest)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("mode", &self.mode)
            .field("name", &self.name)
            .field("schema", &self.schema)
            .field("isolation", &self.isolation)
            .field("retries", &self.retries)
            .field("first_pause", &self.first_pause)
            .field("longest_pause", &self.longest_pause)
            .field("handler_timeout", &self.handler_timeout)
            .field("drain", &self.drain)
            .field("reschedule", &self.reschedule)
            .field("retry_after", &self.retry_after)
            .field("give_up_after", &self.give_up_after)
            .field("poll_interval", &self.poll_interval)
            .finish_non_exhaustive()
    }
}

/// The retries that one message has left.
pub(crate) struct Retries {
    pauses: ExponentialBackoff,
}

impl Retries {
    /// The pause before the next attempt; `None` when the error is not retryable or the retries
    /// are used up.
    pub(crate) fn after(&mut self, error: &ProcessError) -> Option<Duration> {
        if error.is_retryable() {
            self.pauses.next()
        } else {
            None
        }
    }
}

/// Expands to the methods that build a consumer around its `settings`.
macro_rules! builder_methods {
    () => {
        /// A plain consumer: each message once, in the order of delivery.
        ///
        /// The name is the stable name of one handler, never a pod's, at most 512 bytes.
        #[must_use]
        pub fn plain(name: impl Into<String>) -> Self {
            Self {
                settings: $crate::consumer::settings::Settings::new(
                    $crate::consumer::settings::Mode::Plain,
                    name.into(),
                ),
            }
        }

        /// A consumer of the messages of a declared sequence: each once, and in order.
        #[must_use]
        pub fn sequence(sequence_name: impl Into<String>) -> Self {
            Self {
                settings: $crate::consumer::settings::Settings::new(
                    $crate::consumer::settings::Mode::Sequence,
                    sequence_name.into(),
                ),
            }
        }

        /// Calls the extension's functions in that schema, whatever the `search_path`.
        #[must_use]
        pub fn in_schema(mut self, schema: $crate::Schema) -> Self {
            self.settings.schema = Some(schema);
            self
        }

        /// Opens transactions at that isolation level. By default at the session's.
        #[must_use]
        pub fn isolation_level(mut self, level: $crate::IsolationLevel) -> Self {
            self.settings.isolation = Some(level);
            self
        }

        /// How often a whole transaction is run again after a serialization failure (40001) or a
        /// deadlock (40P01), wherever in it that occurred, the commit included. 6 by default.
        /// Other errors are never retried.
        #[must_use]
        pub fn retries(mut self, retries: usize) -> Self {
            self.settings.retries = retries;
            self
        }

        /// The pauses between these retries: the first, and how long they may grow. Each is twice
        /// the one before, and up to twice as long again at random, so that two consumers that
        /// met do not meet again. 10 ms and 1 s by default.
        #[must_use]
        pub fn pauses(
            mut self,
            first: ::std::time::Duration,
            longest: ::std::time::Duration,
        ) -> Self {
            self.settings.first_pause = first;
            self.settings.longest_pause = longest;
            self
        }

        /// Is asked before each of these pauses for the time to really wait. For tests, which
        /// need not wait at all, and for metrics.
        #[must_use]
        pub fn on_pause(
            mut self,
            hook: impl Fn(::std::time::Duration) -> ::std::time::Duration + Send + Sync + 'static,
        ) -> Self {
            self.settings.pause_hook = Some(::std::sync::Arc::new(hook));
            self
        }

        /// How long a handler may take for one message. No limit by default.
        ///
        /// What a handler wrote until then is rolled back. The limit is also set as the
        /// transaction's `statement_timeout`, so that a statement in which the handler hangs does
        /// not hang for longer than once more the limit; that costs one round trip a message.
        #[must_use]
        pub fn handler_timeout(mut self, limit: ::std::time::Duration) -> Self {
            self.settings.handler_timeout = Some(limit);
            self
        }

        /// Whether `process` and `process_batch` handle what a message released right after its
        /// commit, one transaction each. On by default; without it, leave that to a sweep.
        #[must_use]
        pub fn drain(mut self, drain: bool) -> Self {
            self.settings.drain = drain;
            self
        }

        /// Whether the failure of a message that the broker delivered is recorded at once, with
        /// its payload, so that the inbox hands it out again after
        /// [`retry_after`](Self::retry_after) and the broker can forget it. It needs somebody who
        /// sweeps, and a payload: without one the message goes back to the broker.
        ///
        /// Off by default: such a failure is returned as an error, and the broker redelivers.
        #[must_use]
        pub fn reschedule_failures(mut self, reschedule: bool) -> Self {
            self.settings.reschedule = reschedule;
            self
        }

        /// How long a message whose failure is recorded stays away: after the first failure, then
        /// twice as long each time, up to an hour. 10 s by default.
        ///
        /// One without a payload cannot come back by itself: a dead letter with its first failure.
        #[must_use]
        pub fn retry_after(mut self, pause: ::std::time::Duration) -> Self {
            self.settings.retry_after = pause;
            self
        }

        /// With which failure a message is given up and becomes a dead letter; `None`: never. 10
        /// by default.
        ///
        /// The inbox counts the failures that are recorded. Those of a message that comes from
        /// the broker are counted by the broker: set
        /// [`Message::delivery`](crate::Message::delivery), or call `give_up`.
        #[must_use]
        pub fn give_up_after(mut self, failures: impl Into<Option<u32>>) -> Self {
            self.settings.give_up_after = failures.into();
            self
        }

        /// How often `sweep_until_shutdown` looks for work when nothing wakes it. 1 s by default.
        #[must_use]
        pub fn poll_interval(mut self, interval: ::std::time::Duration) -> Self {
            self.settings.poll_interval = interval;
            self
        }

        /// Ends drains and sweeps, once it is requested, after the message in hand.
        #[must_use]
        pub fn shutdown(mut self, shutdown: &$crate::Shutdown) -> Self {
            self.settings.shutdown = shutdown.clone();
            self
        }
    };
}
pub(crate) use builder_methods;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(Mode::Plain, "billing".to_owned())
    }

    fn failed() -> ProcessError {
        ProcessError::Handler("no".into())
    }

    fn record(seconds: u64) -> Plan {
        Plan::Record {
            retry_after: Some(Duration::from_secs(seconds)),
        }
    }

    const DEAD: Plan = Plan::Record { retry_after: None };

    #[test]
    fn pauses_grow_and_end() {
        for _ in 0..100 {
            let mut settings = settings();
            settings.longest_pause = Duration::from_secs(3600);
            let pauses: Vec<_> = settings.retries().pauses.collect();
            assert_eq!(pauses.len(), settings.retries);
            assert!(pauses.is_sorted(), "{pauses:?}");
            assert!(pauses[0] >= settings.first_pause, "{pauses:?}");
            assert!(pauses[5] >= 32 * settings.first_pause, "{pauses:?}");
        }
    }

    #[test]
    fn only_conflicts_are_retried() {
        assert_eq!(settings().retries().after(&failed()), None);
        let timed_out = ProcessError::TimedOut(Duration::ZERO);
        assert_eq!(settings().retries().after(&timed_out), None);
    }

    #[test]
    fn a_broker_s_message_goes_back_until_it_is_given_up() {
        let mut settings = settings();
        settings.give_up_after = Some(3);
        assert_eq!(settings.plan(&failed(), 0, false, true), Plan::Redeliver);
        assert_eq!(settings.plan(&failed(), 1, false, true), Plan::Redeliver);
        assert_eq!(settings.plan(&failed(), 2, false, true), DEAD);
        settings.reschedule = true;
        assert_eq!(settings.plan(&failed(), 0, false, true), record(10));
        assert_eq!(settings.plan(&failed(), 1, false, true), record(20));
        assert_eq!(settings.plan(&failed(), 1, false, false), Plan::Redeliver);
        assert_eq!(settings.plan(&failed(), 2, false, false), DEAD);
    }

    #[test]
    fn a_released_message_is_always_recorded() {
        let mut settings = settings();
        settings.give_up_after = None;
        assert_eq!(settings.plan(&failed(), 0, true, true), record(10));
        assert_eq!(settings.plan(&failed(), 3, true, true), record(80));
        assert_eq!(settings.plan(&failed(), 100, true, true), record(3600));
        assert_eq!(settings.plan(&failed(), 0, true, false), DEAD);
        settings.retry_after = Duration::from_secs(86_400);
        assert_eq!(settings.plan(&failed(), 9, true, true), record(86_400));
    }
}

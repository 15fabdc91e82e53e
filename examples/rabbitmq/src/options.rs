//! What a consumer is told.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Where to consume from, where to record it, and the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The broker, as `amqp://user:password@host:port/vhost`; the virtual host `/` is written `%2f`.
    pub amqp_url: String,
    /// The queue; it is declared as a quorum queue.
    pub queue: String,
    /// How many deliveries the broker may be ahead of the acknowledgements. 20 by default: the next
    /// message is there when one is done, and few are held up when this consumer is slow.
    pub prefetch: u16,
    /// The database, as tokio-postgres takes it.
    pub dsn: String,
    /// At which delivery a message whose handler fails is given up. 10 by default.
    pub give_up_after: u32,
    /// After how many returns the broker puts a message aside by itself. 100 by default; all
    /// consumers and publishers that declare the queue must say the same.
    pub delivery_limit: u32,
    /// How long a delivery is kept before it is given back: the pause after the first delivery, which
    /// then doubles, and how long it may become. 100 ms and 10 s by default.
    pub redelivery_pauses: (Duration, Duration),
    /// The pauses between attempts to connect: the first, and how long they may become. 100 ms and
    /// 10 s by default.
    pub connection_pauses: (Duration, Duration),
    /// How often to look for what the inbox has to hand out beside the deliveries; `None`: never,
    /// since somebody else does. 1 s by default.
    pub sweep_interval: Option<Duration>,
}

impl Options {
    /// The defaults, for a broker, a queue of it, and a database.
    #[must_use]
    pub fn new(
        amqp_url: impl Into<String>,
        queue: impl Into<String>,
        dsn: impl Into<String>,
    ) -> Self {
        let pauses = (Duration::from_millis(100), Duration::from_secs(10));
        Self {
            amqp_url: amqp_url.into(),
            queue: queue.into(),
            prefetch: 20,
            dsn: dsn.into(),
            give_up_after: 10,
            delivery_limit: 100,
            redelivery_pauses: pauses,
            connection_pauses: pauses,
            sweep_interval: Some(Duration::from_secs(1)),
        }
    }

    /// How long the n-th delivery of a message, from 1, is kept before it is given back.
    pub(crate) fn redelivery_pause(&self, delivery: u32) -> Duration {
        let (first, longest) = self.redelivery_pauses;
        let doublings = delivery.saturating_sub(1).min(31);
        first.saturating_mul(2_u32.pow(doublings)).min(longest)
    }

    /// The pauses between attempts to connect, without end. With jitter, so that consumers that lost
    /// the same server do not all come back at once.
    pub(crate) fn connection_pauses(&self) -> ExponentialBackoff {
        let (first, longest) = self.connection_pauses;
        ExponentialBuilder::default()
            .with_min_delay(first.min(longest))
            .with_max_delay(longest)
            .with_factor(2.0)
            .without_max_times()
            .with_jitter()
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit() {
        let options = Options::new("", "", "");
        let millis: Vec<_> = [0, 1, 2, 3, 7, 8, 100, u32::MAX]
            .map(|delivery| options.redelivery_pause(delivery).as_millis())
            .into();
        assert_eq!(millis, [100, 100, 200, 400, 6400, 10_000, 10_000, 10_000]);
        let (first, longest) = options.connection_pauses;
        let pauses: Vec<_> = options.connection_pauses().take(100).collect();
        assert_eq!(pauses.len(), 100);
        assert!(pauses[0] >= first && pauses[0] <= 2 * first, "{pauses:?}");
        assert!(
            pauses[50] >= longest && pauses[99] <= 2 * longest,
            "{pauses:?}"
        );
    }
}

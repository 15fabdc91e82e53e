//! What a consumer is told.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use rdkafka::ClientConfig;

/// Where to consume from, where to record it, and the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Some of the brokers, as `host:port,host:port`.
    pub brokers: String,
    /// The consumer group, whose members share the partitions.
    pub group: String,
    /// The topics.
    pub topics: Vec<String>,
    /// The database, as tokio-postgres takes it.
    pub dsn: String,
    /// With which failure in a row a message is given up. 10 by default.
    pub give_up_after: u32,
    /// How often the offsets are committed. 1 s by default: a crash makes what was handled since
    /// come again.
    pub commit_interval: Duration,
    /// How long a partition rests at a message that failed: the pause after the first failure, which
    /// then doubles, and how long it may become. 100 ms and 10 s by default.
    pub redelivery_pauses: (Duration, Duration),
    /// The pauses between attempts to reach the database: the first, and how long they may become.
    /// 100 ms and 10 s by default.
    pub connection_pauses: (Duration, Duration),
    /// How often to look for what the inbox has to hand out beside the deliveries; `None`: never,
    /// since somebody else does. 1 s by default.
    pub sweep_interval: Option<Duration>,
    /// More settings of librdkafka. Those that decide about offsets are the consumer's own.
    pub settings: Vec<(String, String)>,
}

impl Options {
    /// The defaults, for brokers, a group, topics, and a database.
    #[must_use]
    pub fn new<T: Into<String>>(
        brokers: impl Into<String>,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
        dsn: impl Into<String>,
    ) -> Self {
        let pauses = (Duration::from_millis(100), Duration::from_secs(10));
        Self {
            brokers: brokers.into(),
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            dsn: dsn.into(),
            give_up_after: 10,
            commit_interval: Duration::from_secs(1),
            redelivery_pauses: pauses,
            connection_pauses: pauses,
            sweep_interval: Some(Duration::from_secs(1)),
            settings: Vec::new(),
        }
    }

    /// The settings of librdkafka. Offsets are stored and committed by the consumer alone, and a
    /// group without any begins with the first message that there is.
    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in &self.settings {
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest");
        config
    }

    /// How long a partition rests after the n-th failure in a row, from 1.
    pub(crate) fn redelivery_pause(&self, failures: u32) -> Duration {
        let (first, longest) = self.redelivery_pauses;
        let doublings = failures.saturating_sub(1).min(31);
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

    fn options() -> Options {
        Options::new("b:9092", "g", ["t"], "")
    }

    #[test]
    fn nothing_else_decides_about_offsets() {
        let mut options = options();
        for name in ["enable.auto.commit", "enable.auto.offset.store"] {
            options.settings.push((name.to_owned(), "true".to_owned()));
        }
        options
            .settings
            .push(("client.id".to_owned(), "me".to_owned()));
        let config = options.client_config();
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(config.get("enable.auto.offset.store"), Some("false"));
        assert_eq!(config.get("client.id"), Some("me"));
    }

    #[test]
    fn pauses_grow_to_their_limit() {
        let millis: Vec<_> = [1, 2, 3, 7, 8, u32::MAX]
            .map(|failures| options().redelivery_pause(failures).as_millis())
            .into();
        assert_eq!(millis, [100, 200, 400, 6400, 10_000, 10_000]);
        assert_eq!(options().connection_pauses().take(100).count(), 100);
    }
}

//! The wish to stop, shared by all that should obey it.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

/// Tells consumers to stop once what they have in hand is finished.
///
/// Clones are one and the same. Give it to [`Consumer::shutdown`](crate::Consumer::shutdown):
/// drains and sweeps then end after the message that is being handled, never in its middle.
///
/// ```
/// use sequential_inbox_client::Shutdown;
///
/// let shutdown = Shutdown::new();
/// let seen_by_the_consumer = shutdown.clone();
/// shutdown.request();
/// assert!(seen_by_the_consumer.is_requested());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    requested: Mutex<bool>,
    changed: Condvar,
    #[cfg(feature = "tokio")]
    token: tokio_util::sync::CancellationToken,
}

impl Shutdown {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everyone who shares this to stop. It cannot be taken back.
    pub fn request(&self) {
        *self
            .inner
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.changed.notify_all();
        #[cfg(feature = "tokio")]
        self.inner.token.cancel();
    }

    /// Whether somebody has asked.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self
            .inner
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when somebody asks, or after that time: whether somebody has asked.
    pub fn wait_for(&self, time: Duration) -> bool {
        let requested = self
            .inner
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (requested, _) = self
            .inner
            .changed
            .wait_timeout_while(requested, time, |requested| !*requested)
            .unwrap_or_else(PoisonError::into_inner);
        *requested
    }

    /// Returns when somebody asks.
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub async fn requested(&self) {
        self.inner.token.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_every_wait() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.wait_for(Duration::ZERO));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| shutdown.clone().wait_for(Duration::from_secs(3600)));
            shutdown.request();
            assert!(waiting.join().unwrap());
        });
        assert!(shutdown.is_requested());
    }
}

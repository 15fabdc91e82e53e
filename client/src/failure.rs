//! A failure to record (G5).

use std::{borrow::Cow, fmt, time::Duration};

use serde_json::Value;

use crate::Message;

/// What [`Inbox::fail`](crate::Inbox::fail) records: the message, and how it goes on.
///
/// ```
/// use std::time::Duration;
/// use sequential_inbox_client::Failure;
///
/// let failure = Failure::new("billing", "evt-7")
///     .error("card service: 503")
///     .payload(b"raw bytes".as_slice())
///     .retry_after(Duration::from_secs(60));
/// ```
///
/// `Debug` shows the sizes of payload and key, never their content, and no headers.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// The message type, or the consumer of a plain claim.
    pub message_type: Cow<'a, str>,
    /// The producer's event id.
    pub idempotence_id: Cow<'a, str>,
    /// The sequence instance; without it, the failure is a plain consumer's.
    pub sequence_instance_id: Option<i64>,
    /// What went wrong, for the operator.
    pub error: Option<Cow<'a, str>>,
    /// How long until the message becomes due again by itself. Needs a payload, here or stored
    /// before. Without it the message is a dead letter until it is resent or an operator acts.
    pub retry_after: Option<Duration>,
    /// The payload to store.
    pub payload: Option<Cow<'a, [u8]>>,
    /// The broker's message key to store.
    pub key: Option<Cow<'a, [u8]>>,
    /// The headers to store.
    pub headers: Option<Value>,
}

impl<'a> Failure<'a> {
    /// A failure of the message of that type (or consumer) and id.
    #[must_use]
    pub fn new(
        message_type: impl Into<Cow<'a, str>>,
        idempotence_id: impl Into<Cow<'a, str>>,
    ) -> Self {
        Self {
            message_type: message_type.into(),
            idempotence_id: idempotence_id.into(),
            sequence_instance_id: None,
            error: None,
            retry_after: None,
            payload: None,
            key: None,
            headers: None,
        }
    }

    /// A failure of a message as it was received, with its payload, key and headers, so that it
    /// can be tried again without the broker. The instance is not known to the message: add it
    /// with [`Failure::instance`].
    #[must_use]
    pub fn of(message: &'a Message<'_>) -> Self {
        let mut failure = Self::new(&*message.message_type, &*message.idempotence_id);
        failure.payload = message.payload.as_deref().map(Cow::Borrowed);
        failure.key = message.key.as_deref().map(Cow::Borrowed);
        failure.headers.clone_from(&message.headers);
        failure
    }

    /// Sets the sequence instance.
    #[must_use]
    pub const fn instance(mut self, sequence_instance_id: i64) -> Self {
        self.sequence_instance_id = Some(sequence_instance_id);
        self
    }

    /// Sets the error text.
    #[must_use]
    pub fn error(mut self, error: impl Into<Cow<'a, str>>) -> Self {
        self.error = Some(error.into());
        self
    }

    /// Makes the message due again by itself after that time.
    #[must_use]
    pub const fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Sets the payload as raw bytes.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Cow<'a, [u8]>>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Sets the broker's message key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Cow<'a, [u8]>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the headers.
    #[must_use]
    pub fn headers(mut self, headers: Value) -> Self {
        self.headers = Some(headers);
        self
    }
}

impl fmt::Debug for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("message_type", &self.message_type)
            .field("idempotence_id", &self.idempotence_id)
            .field("sequence_instance_id", &self.sequence_instance_id)
            .field("error", &self.error)
            .field("retry_after", &self.retry_after)
            .field("payload_bytes", &self.payload.as_deref().map(<[u8]>::len))
            .field("key_bytes", &self.key.as_deref().map(<[u8]>::len))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_a_message_carries_its_content() {
        let message = Message::new("t", "i")
            .payload(b"p".as_slice())
            .key(b"k".as_slice())
            .headers(serde_json::json!({"h": 1}));
        let failure = Failure::of(&message).instance(7);
        assert_eq!(
            (&*failure.message_type, &*failure.idempotence_id),
            ("t", "i")
        );
        assert_eq!(failure.sequence_instance_id, Some(7));
        assert_eq!(failure.payload.as_deref(), Some(b"p".as_slice()));
        assert_eq!(failure.key.as_deref(), Some(b"k".as_slice()));
        assert_eq!(failure.headers, message.headers);
    }

    #[test]
    fn debug_output_never_holds_the_content() {
        let shown = format!("{:?}", Failure::new("t", "i").payload(b"secret".as_slice()));
        assert!(
            shown.contains("payload_bytes: Some(6)") && !shown.contains("secret"),
            "{shown}"
        );
    }
}

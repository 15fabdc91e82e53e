//! Messages on their way through a sequence: what is received, what was decided, what is handed
//! out later (G6, G7, G8).

use std::{borrow::Cow, fmt, time::SystemTime};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, Json, text_enum::text_enum};

/// A message as it came from the broker, for [`Inbox::receive`](crate::Inbox::receive).
///
/// ```
/// use sequential_inbox_client::Message;
///
/// let message = Message::new("order.shipped", "evt-9")
///     .context("order-4711")
///     .payload(b"raw bytes".as_slice())
///     .headers(serde_json::json!({"trace": "abc"}));
/// ```
///
/// `Debug` shows the sizes of payload and key, never their content, and no headers.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Message<'a> {
    /// The qualified message type, at most 512 bytes.
    pub message_type: Cow<'a, str>,
    /// The producer's event id, the same on every redelivery, at most 1024 bytes.
    pub idempotence_id: Cow<'a, str>,
    /// What groups messages into one sequence instance, at most 1024 bytes. Without it the message
    /// is not sequenced and the decision is [`Decision::Direct`].
    pub context_id: Option<Cow<'a, str>>,
    /// The payload, stored only while the message has to wait or has failed.
    pub payload: Option<Cow<'a, [u8]>>,
    /// The broker's message key, stored and given back with the payload.
    pub key: Option<Cow<'a, [u8]>>,
    /// The headers as a JSON value, stored and given back with the payload.
    pub headers: Option<Value>,
    /// The place in the instance, counted from 1, for a sequence ordered by position.
    pub position: Option<i64>,
    /// Which delivery of the message this is, counted from 1 by the broker, where the broker
    /// counts. The extension is not told; a consumer decides by it when to give a message up.
    pub delivery: Option<u32>,
}

impl<'a> Message<'a> {
    /// A message of that type and id, with neither context nor content.
    #[must_use]
    pub fn new(
        message_type: impl Into<Cow<'a, str>>,
        idempotence_id: impl Into<Cow<'a, str>>,
    ) -> Self {
        Self {
            message_type: message_type.into(),
            idempotence_id: idempotence_id.into(),
            context_id: None,
            payload: None,
            key: None,
            headers: None,
            position: None,
            delivery: None,
        }
    }

    /// Sets the context id.
    #[must_use]
    pub fn context(mut self, context_id: impl Into<Cow<'a, str>>) -> Self {
        self.context_id = Some(context_id.into());
        self
    }

    /// Sets the payload as raw bytes.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Cow<'a, [u8]>>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Sets the payload to a value's JSON form.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] when the type refuses to be serialised.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Result<Self, Error> {
        Ok(self.payload(Json(value).encode()?))
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

    /// Sets the position, counted from 1.
    #[must_use]
    pub const fn position(mut self, position: i64) -> Self {
        self.position = Some(position);
        self
    }

    /// Sets which delivery this is, counted from 1.
    #[must_use]
    pub const fn delivery(mut self, delivery: u32) -> Self {
        self.delivery = Some(delivery);
        self
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("message_type", &self.message_type)
            .field("idempotence_id", &self.idempotence_id)
            .field("context_id", &self.context_id)
            .field("position", &self.position)
            .field("delivery", &self.delivery)
            .field("payload_bytes", &self.payload.as_deref().map(<[u8]>::len))
            .field("key_bytes", &self.key.as_deref().map(<[u8]>::len))
            .finish_non_exhaustive()
    }
}

text_enum! {
    /// What a received message calls for.
    #[must_use = "only a message to process may be handled"]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Decision {
        /// Recorded as processed in this transaction: run the handler here, commit, acknowledge,
        /// then call [`Inbox::next`](crate::Inbox::next) with the instance, one fresh transaction
        /// a message, until it is empty.
        Process = "process",
        /// Its release condition does not hold yet; the payload is stored. Commit, acknowledge.
        Buffered = "buffered",
        /// It was received before. Commit, acknowledge.
        Duplicate = "duplicate",
        /// It has no context id: nothing is recorded, handle it outside the inbox.
        Direct = "direct",
        /// It can never be handled and is recorded as failed, with [`Received::reason`]. Commit,
        /// acknowledge.
        Rejected = "rejected",
        /// Another transaction holds the message or its instance and nothing was recorded. Do not
        /// acknowledge; try again later. Only [`Inbox::try_receive`](crate::Inbox::try_receive)
        /// answers this.
        InFlight = "in_flight",
    }
}

/// The answer to a received message.
#[must_use = "the decision says whether the message may be handled"]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// What to do with the message.
    pub decision: Decision,
    /// Why, where the decision needs a reason.
    pub reason: Option<String>,
    /// The instance that the message belongs to, for [`Inbox::next`](crate::Inbox::next).
    pub sequence_instance_id: Option<i64>,
    /// The message's record, for [`Inbox::fail_message`](crate::Inbox::fail_message) and the
    /// operator's calls.
    pub message_id: Option<i64>,
}

/// A message that [`Inbox::next`](crate::Inbox::next) handed out. It is recorded as processed in
/// this transaction: run the handler here and commit.
///
/// When the handler fails, roll back and call
/// [`Inbox::fail_message`](crate::Inbox::fail_message) in a new transaction.
///
/// `Debug` shows the sizes of payload and key, never their content, and no headers.
#[must_use = "a message handed out and committed counts as processed"]
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Released {
    /// The message's record.
    pub message_id: i64,
    /// The instance it belongs to; `None` for a plain consumer's message that is tried again.
    pub sequence_instance_id: Option<i64>,
    /// The name of its sequence; `None` for a plain consumer's message.
    pub sequence_name: Option<String>,
    /// The context id of its instance; `None` for a plain consumer's message.
    pub context_id: Option<String>,
    /// The message type; for a plain consumer's message, the consumer.
    pub message_type: String,
    /// The producer's event id.
    pub idempotence_id: String,
    /// The place in the instance, where the sequence is ordered by position.
    pub position: Option<i64>,
    /// How often it failed before.
    pub attempts: i32,
    /// The payload as it was received, byte for byte.
    pub payload: Option<Vec<u8>>,
    /// The broker's message key as it was received, byte for byte.
    pub key: Option<Vec<u8>>,
    /// The headers.
    pub headers: Option<Value>,
    /// When the content was stored, by the database's clock.
    pub buffered_at: Option<SystemTime>,
}

impl Released {
    /// Reads the payload as JSON.
    ///
    /// # Errors
    ///
    /// [`Error::MissingPayload`] when none was stored, [`Error::Json`] when it is not JSON of that
    /// type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let payload = self.payload.as_deref().ok_or(Error::MissingPayload)?;
        Json::decode(payload).map(|Json(value)| value)
    }
}

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released")
            .field("message_id", &self.message_id)
            .field("sequence_instance_id", &self.sequence_instance_id)
            .field("sequence_name", &self.sequence_name)
            .field("context_id", &self.context_id)
            .field("message_type", &self.message_type)
            .field("idempotence_id", &self.idempotence_id)
            .field("position", &self.position)
            .field("attempts", &self.attempts)
            .field("payload_bytes", &self.payload.as_deref().map(<[u8]>::len))
            .field("key_bytes", &self.key.as_deref().map(<[u8]>::len))
            .field("buffered_at", &self.buffered_at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_never_holds_the_content() {
        let message = Message::new("order.placed", "evt-1")
            .context("order-1")
            .payload(b"secret payload".as_slice())
            .key(b"secret key".as_slice())
            .headers(serde_json::json!({"authorization": "secret header"}));
        let shown = format!("{message:?}");
        assert!(
            shown.contains("order.placed") && shown.contains("evt-1"),
            "{shown}"
        );
        assert!(shown.contains("payload_bytes: Some(14)"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_json_payload_is_plain_json() {
        let message = Message::new("t", "i")
            .json(&serde_json::json!({"a": 1}))
            .unwrap();
        assert_eq!(message.payload.as_deref(), Some(br#"{"a":1}"#.as_slice()));
    }

    #[test]
    fn decisions_are_read_by_their_words_alone() {
        assert_eq!("in_flight".parse(), Ok(Decision::InFlight));
        assert_eq!(Decision::Rejected.to_string(), "rejected");
        for word in ["", "Process", "process ", "postponed"] {
            let error = word.parse::<Decision>().unwrap_err();
            assert_eq!(error.to_string(), format!("unknown word \"{word}\""));
        }
    }
}

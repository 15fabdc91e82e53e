//! What a handler is given: a message, straight from the broker or handed out by the inbox.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{Error, Failure, Json, Message, Received, Released, consumer::telemetry::Subject};

/// The key in a plain consumer's stored headers under which the inbox keeps what only the message
/// knew: a plain failure is recorded by consumer and id alone.
const ENVELOPE: &str = "sequential_inbox";

/// A message and where it comes from, as a handler sees it.
///
/// `Debug` shows sizes, never the content.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Delivery<'a> {
    /// Whose message it is: the plain consumer, or the name of the sequence. A sweep hands out
    /// whatever is due in the database, so that a handler that is shared decides by this.
    pub consumer: &'a str,
    /// The message.
    pub message: &'a Message<'a>,
    /// Its sequence instance.
    pub sequence_instance_id: Option<i64>,
    /// Its record, for the operator's calls. A plain consumer's message has one only when it has
    /// failed before.
    pub message_id: Option<i64>,
    /// How often it failed before, as far as is known: what is recorded of a message that the
    /// inbox hands out; what the broker counted of one that it delivers.
    pub failures: u32,
    /// Whether the inbox hands it out. `false`: the broker delivers it just now.
    pub is_released: bool,
}

impl<'a> Delivery<'a> {
    /// A message from the broker.
    pub(crate) fn received(
        consumer: &'a str,
        message: &'a Message<'a>,
        received: &Received,
    ) -> Self {
        Self {
            consumer,
            message,
            sequence_instance_id: received.sequence_instance_id,
            message_id: received.message_id,
            failures: message
                .delivery
                .map_or(0, |number| number.saturating_sub(1)),
            is_released: false,
        }
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    ///
    /// [`Error::MissingPayload`] when there is none, [`Error::Json`] when it is not JSON of that
    /// type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let payload = self.message.payload.as_deref();
        Json::decode(payload.ok_or(Error::MissingPayload)?).map(|Json(value)| value)
    }
}

/// A message that the inbox handed out, in one form with those of the broker.
pub(crate) struct Handed {
    pub(crate) record: i64,
    pub(crate) failures: u32,
    consumer: String,
    instance: Option<i64>,
    pub(crate) message: Message<'static>,
}

impl Handed {
    pub(crate) fn delivery(&self) -> Delivery<'_> {
        Delivery {
            consumer: &self.consumer,
            message: &self.message,
            sequence_instance_id: self.instance,
            message_id: Some(self.record),
            failures: self.failures,
            is_released: true,
        }
    }

    /// Whose message it is, for events.
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            consumer: &self.consumer,
            message: &self.message,
        }
    }
}

impl From<Released> for Handed {
    fn from(released: Released) -> Self {
        let mut message = Message::new(released.message_type, released.idempotence_id);
        message.context_id = released.context_id.map(Into::into);
        message.position = released.position;
        message.payload = released.payload.map(Into::into);
        message.key = released.key.map(Into::into);
        message.headers = released.headers;
        let consumer = match released.sequence_name {
            Some(sequence) => sequence,
            None => {
                let consumer = message.message_type.clone().into_owned();
                unseal(&mut message);
                consumer
            }
        };
        Self {
            record: released.message_id,
            failures: u32::try_from(released.attempts).unwrap_or_default(),
            consumer,
            instance: released.sequence_instance_id,
            message,
        }
    }
}

/// A plain consumer's failure, with all that the message needs to be handled again as it was.
pub(crate) fn sealed<'a>(consumer: &'a str, message: &'a Message<'_>) -> Failure<'a> {
    let mut failure = Failure::of(message);
    failure.message_type = consumer.into();
    let mut envelope = json!({"type": message.message_type});
    if let Some(context_id) = &message.context_id {
        envelope["context"] = json!(context_id);
    }
    if let Some(position) = message.position {
        envelope["position"] = json!(position);
    }
    let mut headers = match failure.headers.take() {
        Some(Value::Object(fields)) => fields,
        other => {
            if let Some(value) = other {
                envelope["headers"] = value;
            }
            envelope["object"] = json!(false);
            Map::new()
        }
    };
    headers.insert(ENVELOPE.to_owned(), envelope);
    failure.headers = Some(Value::Object(headers));
    failure
}

/// Undoes [`sealed`]. What was recorded by other means stays as it is.
fn unseal(message: &mut Message<'static>) {
    let Some(Value::Object(headers)) = &mut message.headers else {
        return;
    };
    let Some(Value::Object(mut envelope)) = headers.remove(ENVELOPE) else {
        return;
    };
    if let Some(Value::String(message_type)) = envelope.remove("type") {
        message.message_type = message_type.into();
    }
    if let Some(Value::String(context_id)) = envelope.remove("context") {
        message.context_id = Some(context_id.into());
    }
    message.position = envelope.get("position").and_then(Value::as_i64);
    if envelope.contains_key("object") {
        message.headers = envelope.remove("headers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes back of a plain consumer's message that failed.
    fn returned(message: &Message<'_>) -> Handed {
        let failure = sealed("billing", message);
        assert_eq!(failure.message_type, "billing");
        let consumer = failure.message_type.clone().into_owned();
        let mut back = Message::new(
            consumer.clone(),
            message.idempotence_id.clone().into_owned(),
        );
        back.payload = failure.payload.map(|bytes| bytes.into_owned().into());
        back.key = failure.key.map(|bytes| bytes.into_owned().into());
        back.headers = failure.headers;
        unseal(&mut back);
        Handed {
            record: 1,
            failures: 1,
            consumer,
            instance: None,
            message: back,
        }
    }

    #[test]
    fn a_plain_message_comes_back_as_it_was() {
        for headers in [
            None,
            Some(json!(null)),
            Some(json!([1, "a"])),
            Some(json!({})),
            Some(json!({"trace": "abc", "type": 1})),
        ] {
            let mut message = Message::new("order.placed", "evt-1")
                .context("order-1")
                .position(7)
                .key(b"k".as_slice())
                .payload(b"p".as_slice());
            message.headers = headers;
            let handed = returned(&message);
            assert_eq!(handed.message, message);
            assert_eq!(handed.delivery().consumer, "billing");
        }
        let bare = Message::new("order.placed", "evt-1");
        assert_eq!(returned(&bare).message, bare);
    }

    #[test]
    fn headers_that_somebody_else_recorded_stay() {
        for headers in [json!({"a": 1}), json!([]), json!({"b": {"type": "x"}})] {
            let mut message = Message::new("billing", "evt-1").headers(headers.clone());
            unseal(&mut message);
            assert_eq!(message.message_type, "billing");
            assert_eq!(message.headers, Some(headers));
        }
    }

    #[test]
    fn a_delivery_counts_what_failed_before_it() {
        let received = Received {
            decision: crate::Decision::Process,
            reason: None,
            sequence_instance_id: Some(3),
            message_id: Some(4),
        };
        let message = Message::new("t", "i");
        assert_eq!(Delivery::received("c", &message, &received).failures, 0);
        let message = message.delivery(3);
        let delivery = Delivery::received("c", &message, &received);
        assert_eq!(delivery.failures, 2);
        assert!(matches!(delivery.json::<u32>(), Err(Error::MissingPayload)));
    }
}

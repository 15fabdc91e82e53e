//! A record of Kafka as a message of the inbox.
//!
//! | Kafka | message |
//! |---|---|
//! | header `id` | idempotence id |
//! | header `type`, else the topic | message type |
//! | key | context id, and key |
//! | header `position` | position |
//! | the other headers | headers, as JSON |
//! | value | payload |
//!
//! Topic, partition and offset name a place and no event: a producer that sends an event again gives
//! it another. They are no id.

use rdkafka::message::{Headers, Message as _, OwnedMessage};
use sequential_inbox_client::Message;
use serde_json::{Map, Value, json};

const ID: &str = "id";
const TYPE: &str = "type";
const POSITION: &str = "position";

/// Why the inbox cannot take a record, whatever happens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// Without an id, a repeated message cannot be told from another one.
    #[error("it has no header id")]
    NoId,
    /// A position is a whole number.
    #[error("its header position is no whole number")]
    Position,
}

/// Reads a record; the message borrows from it.
///
/// # Errors
///
/// When the inbox could not take such a message.
pub fn read(record: &OwnedMessage) -> Result<Message<'_>, Unreadable> {
    let (mut id, mut message_type, mut position) = (None, None, None);
    let mut others = Map::new();
    for header in record.headers().into_iter().flat_map(Headers::iter) {
        let text = header.value.and_then(|bytes| str::from_utf8(bytes).ok());
        let named = text.filter(|text| !text.is_empty());
        match header.key {
            ID => id = named,
            TYPE => message_type = named,
            POSITION => {
                let number = text.and_then(|text| text.parse().ok());
                position = Some(number.ok_or(Unreadable::Position)?);
            }
            name => {
                others.insert(name.to_owned(), json!(text));
            }
        }
    }
    let message_type = message_type.unwrap_or_else(|| record.topic());
    let mut message = Message::new(message_type, id.ok_or(Unreadable::NoId)?);
    message.position = position;
    message.payload = record.payload().map(Into::into);
    message.key = record.key().map(Into::into);
    message.context_id = record
        .key()
        .and_then(|key| str::from_utf8(key).ok())
        .map(Into::into);
    if !others.is_empty() {
        message.headers = Some(Value::Object(others));
    }
    Ok(message)
}

/// Where and when a record was written: what a dead letter is called that has no name of its own.
pub(crate) fn coordinates(record: &OwnedMessage) -> String {
    let (topic, partition, offset) = (record.topic(), record.partition(), record.offset());
    // A topic that is made anew begins at the same offsets.
    let written_at = record.timestamp().to_millis().unwrap_or_default();
    format!("{topic}/{partition}/{offset}/{written_at}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::{
        Timestamp,
        message::{Header, OwnedHeaders},
    };

    fn record(key: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]) -> OwnedMessage {
        let headers = headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, &(key, value)| {
                headers.insert(Header { key, value })
            });
        let payload = Some(b"p".to_vec());
        let key = key.map(<[u8]>::to_vec);
        let topic = "orders".to_owned();
        OwnedMessage::new(
            payload,
            key,
            topic,
            Timestamp::CreateTime(7),
            3,
            42,
            Some(headers),
        )
    }

    #[test]
    fn the_producer_names_its_messages() {
        let record = record(
            Some(b"order-1"),
            &[
                ("id", Some(b"evt-1")),
                ("type", Some(b"order.placed")),
                ("position", Some(b"7")),
                ("trace", Some(b"abc")),
                ("raw", Some(b"\xff")),
                ("none", None),
            ],
        );
        let expected = Message::new("order.placed", "evt-1")
            .context("order-1")
            .position(7)
            .key(b"order-1".as_slice())
            .payload(b"p".as_slice())
            .headers(json!({"trace": "abc", "raw": null, "none": null}));
        assert_eq!(read(&record), Ok(expected));
    }

    #[test]
    fn the_topic_is_a_type() {
        let record = record(Some(b"\xff"), &[("id", Some(b"evt-1")), ("type", None)]);
        let message = read(&record).unwrap();
        assert_eq!(message.message_type, "orders");
        assert_eq!(message.context_id, None, "text alone is a context");
        assert_eq!(message.key.as_deref(), Some(b"\xff".as_slice()));
    }

    #[test]
    fn g11_what_has_no_name_is_no_message() {
        for headers in [&[][..], &[("id", Some(b"".as_slice()))], &[("id", None)]] {
            let nameless = record(None, headers);
            assert_eq!(read(&nameless), Err(Unreadable::NoId));
            assert_eq!(coordinates(&nameless), "orders/3/42/7");
        }
        for value in [Some(b"first".as_slice()), None] {
            let misplaced = record(None, &[("id", Some(b"evt-1")), ("position", value)]);
            assert_eq!(read(&misplaced), Err(Unreadable::Position));
        }
    }
}

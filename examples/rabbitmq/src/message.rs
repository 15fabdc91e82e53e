//! A delivery of RabbitMQ as a message of the inbox, and the other way round.
//!
//! | AMQP | message |
//! |---|---|
//! | property `message_id` | idempotence id |
//! | property `type` | message type |
//! | header `context` | context id |
//! | header `position` | position |
//! | header `x-delivery-count` | which delivery this is, less one |
//! | the other headers | headers, as JSON |
//! | body | payload |

use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, ShortString},
};
use sequential_inbox_client::Message;
use serde_json::{Map, Value, json};

use crate::Error;

const CONTEXT: &str = "context";
const POSITION: &str = "position";

/// Where a quorum queue says how often it has got the message back.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// Why the inbox cannot take a delivery, whatever happens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// Without an id, a redelivery cannot be told from another message.
    #[error("it has no message_id")]
    NoId,
    /// A message needs a type.
    #[error("it has no type")]
    NoType,
    /// A context id is text.
    #[error("its header context is no text")]
    Context,
    /// A position is a whole number.
    #[error("its header position is no whole number")]
    Position,
}

/// Reads a delivery; the message borrows from it.
///
/// # Errors
///
/// When the inbox could not take such a message. It must not be made up: an id that the consumer
/// invents would be another one at the next delivery.
pub fn read(delivery: &Delivery) -> Result<Message<'_>, Unreadable> {
    let properties = &delivery.properties;
    let text = |value: &'_ Option<ShortString>| {
        let value = value.as_ref().filter(|value| !value.as_str().is_empty());
        value.map(|value| value.as_str().to_owned())
    };
    let id = text(properties.message_id()).ok_or(Unreadable::NoId)?;
    let message_type = text(properties.kind()).ok_or(Unreadable::NoType)?;
    let mut message = Message::new(message_type, id).payload(delivery.data.as_slice());

    let mut returns = 0;
    let mut others = Map::new();
    let headers = properties.headers().as_ref().map(FieldTable::inner);
    for (name, value) in headers.into_iter().flatten() {
        match name.as_str() {
            CONTEXT => message = message.context(as_text(value).ok_or(Unreadable::Context)?),
            POSITION => message = message.position(as_integer(value).ok_or(Unreadable::Position)?),
            DELIVERY_COUNT => returns = as_integer(value).unwrap_or_default(),
            // The broker's own, which change from delivery to delivery.
            name if name.starts_with("x-") => {}
            name => {
                others.insert(name.to_owned(), as_json(value));
            }
        }
    }
    if !others.is_empty() {
        message = message.headers(Value::Object(others));
    }
    let returns = u32::try_from(returns).unwrap_or_default();
    Ok(message.delivery(returns.saturating_add(1)))
}

/// The properties with which a message is published, so that [`read`] gives it back. The payload is
/// the body. Headers go along where they are text, whole numbers and truth values.
///
/// # Errors
///
/// When the id or the type is longer than AMQP's properties may be.
pub fn properties(message: &Message<'_>) -> Result<BasicProperties, Error> {
    let short = |text: &str| {
        ShortString::try_new(text).map_err(|_| Error::TooLong(text.chars().take(100).collect()))
    };
    let mut headers = FieldTable::default();
    if let Some(Value::Object(fields)) = &message.headers {
        for (name, value) in fields {
            let value = match value {
                Value::String(text) => AMQPValue::LongString(text.as_bytes().into()),
                Value::Bool(truth) => AMQPValue::Boolean(*truth),
                Value::Number(number) => match number.as_i64() {
                    Some(number) => AMQPValue::LongLongInt(number),
                    None => continue,
                },
                _ => continue,
            };
            headers.insert(short(name)?, value);
        }
    }
    if let Some(context) = &message.context_id {
        let value = AMQPValue::LongString(context.as_bytes().into());
        headers.insert(CONTEXT.into(), value);
    }
    if let Some(position) = message.position {
        headers.insert(POSITION.into(), AMQPValue::LongLongInt(position));
    }
    Ok(BasicProperties::default()
        .with_type(short(&message.message_type)?)
        .with_message_id(short(&message.idempotence_id)?)
        .with_headers(headers)
        .with_delivery_mode(PERSISTENT))
}

fn as_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

/// Publishers write whole numbers in whatever width their language has.
fn as_integer(value: &AMQPValue) -> Option<i64> {
    match *value {
        AMQPValue::ShortShortInt(number) => Some(number.into()),
        AMQPValue::ShortShortUInt(number) => Some(number.into()),
        AMQPValue::ShortInt(number) => Some(number.into()),
        AMQPValue::ShortUInt(number) => Some(number.into()),
        AMQPValue::LongInt(number) => Some(number.into()),
        AMQPValue::LongUInt(number) => Some(number.into()),
        AMQPValue::LongLongInt(number) => Some(number),
        _ => None,
    }
}

/// A header for the inbox to keep. What JSON has no word for is kept as `null`.
fn as_json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(truth) => json!(truth),
        AMQPValue::Float(number) => json!(number),
        AMQPValue::Double(number) => json!(number),
        AMQPValue::Timestamp(seconds) => json!(seconds),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(as_json).collect(),
        AMQPValue::FieldTable(fields) => {
            let fields = fields.inner().iter();
            fields
                .map(|(name, value)| (name.as_str().to_owned(), as_json(value)))
                .collect()
        }
        other => match (as_text(other), as_integer(other)) {
            (Some(text), _) => json!(text),
            (None, Some(number)) => json!(number),
            (None, None) => Value::Null,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(properties: BasicProperties, body: &[u8]) -> Delivery {
        let mut delivery = Delivery::mock(1, "".into(), "q".into(), false, body.to_vec());
        delivery.properties = properties;
        delivery
    }

    fn bare() -> BasicProperties {
        BasicProperties::default()
            .with_message_id("evt-1".into())
            .with_type("order.placed".into())
    }

    fn with_header(name: &str, value: AMQPValue) -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert(name.into(), value);
        bare().with_headers(headers)
    }

    #[test]
    fn what_is_published_is_read() {
        let message = Message::new("order.placed", "evt-1")
            .context("order-\u{fc}")
            .position(7)
            .headers(json!({"trace": "abc", "retry": true, "n": -3}))
            .payload(b"\0\xff".as_slice());
        let published = delivery(properties(&message).unwrap(), b"\0\xff");
        assert_eq!(read(&published), Ok(message.delivery(1)));
        let message = Message::new("order.placed", "evt-1").payload(b"".as_slice());
        let published = delivery(properties(&message).unwrap(), b"");
        assert_eq!(read(&published), Ok(message.delivery(1)));
    }

    #[test]
    fn g11_what_has_no_name_is_no_message() {
        let without = BasicProperties::default();
        assert_eq!(read(&delivery(without.clone(), b"")), Err(Unreadable::NoId));
        let without_type = without.with_message_id("evt-1".into());
        assert_eq!(read(&delivery(without_type, b"")), Err(Unreadable::NoType));
        let empty = bare().with_message_id("".into());
        assert_eq!(read(&delivery(empty, b"")), Err(Unreadable::NoId));
        let number = with_header(CONTEXT, AMQPValue::LongInt(4711));
        assert_eq!(read(&delivery(number, b"")), Err(Unreadable::Context));
        let text = with_header(POSITION, AMQPValue::LongString("7".into()));
        assert_eq!(read(&delivery(text, b"")), Err(Unreadable::Position));
    }

    #[test]
    fn a_quorum_queue_counts_the_returns() {
        for (value, expected) in [
            (AMQPValue::LongLongInt(3), 4),
            (AMQPValue::ShortShortUInt(1), 2),
            (AMQPValue::LongLongInt(i64::MAX), 1),
            (AMQPValue::Void, 1),
        ] {
            let counted = delivery(with_header(DELIVERY_COUNT, value), b"");
            let message = read(&counted).unwrap();
            assert_eq!(message.delivery, Some(expected));
            assert_eq!(message.headers, None);
        }
    }

    #[test]
    fn headers_are_kept_as_json() {
        let table: FieldTable = [("a".into(), AMQPValue::Double(0.5))]
            .into_iter()
            .collect::<std::collections::BTreeMap<_, _>>()
            .into();
        for (value, expected) in [
            (AMQPValue::LongString("text".into()), json!("text")),
            (AMQPValue::Timestamp(9), json!(9)),
            (AMQPValue::FieldTable(table), json!({"a": 0.5})),
            (
                AMQPValue::FieldArray(vec![AMQPValue::Boolean(true)].into()),
                json!([true]),
            ),
            (AMQPValue::Void, json!(null)),
        ] {
            let kept = delivery(with_header("h", value), b"");
            assert_eq!(read(&kept).unwrap().headers, Some(json!({"h": expected})));
        }
    }

    #[test]
    fn what_amqp_has_no_room_for_is_an_error() {
        let id = "x".repeat(256);
        let error = properties(&Message::new("t", id.as_str())).unwrap_err();
        assert!(error.to_string().starts_with("\"xxx"), "{error}");
        assert!(properties(&Message::new("t", &id[1..])).is_ok());
    }
}

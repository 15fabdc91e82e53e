//! Declared sequences: message types, release conditions, and their JSON form (G6).

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// A sequence as [`Inbox::declare_sequence`](crate::Inbox::declare_sequence) declares it.
///
/// ```
/// use std::time::Duration;
/// use sequential_inbox_client::{Condition, MessageType, Sequence};
///
/// let orders = Sequence::new("orders", Duration::from_secs(30 * 24 * 3600))
///     .message(MessageType::new("order.created"))
///     .message(MessageType::new("order.paid").after("order.created"))
///     .message(
///         MessageType::new("order.shipped")
///             .after(Condition::and(["order.paid", "stock.reserved"])),
///     )
///     .message(MessageType::new("stock.reserved").after("order.created").optional());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sequence {
    /// The sequence's name.
    pub name: String,
    /// How long a complete instance and its claims are kept. Sent to the microsecond.
    pub retention: Duration,
    /// The message types, in any order.
    pub messages: Vec<MessageType>,
    /// What decides the order.
    pub ordering: Ordering,
    /// What a failed message does to those after it.
    pub on_failure: OnFailure,
    /// Until when messages are handled at once and only recorded, so that the sequence can be
    /// introduced on a live topic.
    pub recording_until: Option<SystemTime>,
    /// How long an unfinished instance is kept beyond its retention before it expires.
    pub expiry_grace: Duration,
}

impl Sequence {
    /// A sequence without message types, ordered by conditions, in which a failure blocks what
    /// depends on it.
    #[must_use]
    pub fn new(name: impl Into<String>, retention: Duration) -> Self {
        Self {
            name: name.into(),
            retention,
            messages: Vec::new(),
            ordering: Ordering::Conditions,
            on_failure: OnFailure::Block,
            recording_until: None,
            expiry_grace: Duration::ZERO,
        }
    }

    /// Adds a message type.
    #[must_use]
    pub fn message(mut self, message: MessageType) -> Self {
        self.messages.push(message);
        self
    }

    /// Adds message types, such as a list read from a file with serde.
    #[must_use]
    pub fn messages(mut self, messages: impl IntoIterator<Item = MessageType>) -> Self {
        self.messages.extend(messages);
        self
    }

    /// Sets what decides the order.
    #[must_use]
    pub const fn ordering(mut self, ordering: Ordering) -> Self {
        self.ordering = ordering;
        self
    }

    /// Sets what a failed message does to those after it.
    #[must_use]
    pub const fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets until when messages are handled at once and only recorded.
    #[must_use]
    pub const fn recording_until(mut self, time: SystemTime) -> Self {
        self.recording_until = Some(time);
        self
    }

    /// Sets how long an unfinished instance is kept beyond its retention.
    #[must_use]
    pub const fn expiry_grace(mut self, grace: Duration) -> Self {
        self.expiry_grace = grace;
        self
    }
}

/// A message type of a sequence. Its serde form is an element of the `messages` that
/// `inbox_declare_sequence` takes.
///
/// ```
/// use sequential_inbox_client::MessageType;
///
/// let types: Vec<MessageType> = serde_json::from_str(
///     r#"[{"type": "a"}, {"type": "b", "releaseCondition": {"predecessor": "a"}}]"#,
/// )?;
/// assert_eq!(types[1], MessageType::new("b").after("a"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MessageType {
    /// The qualified type name, at most 512 bytes. A type belongs to at most one sequence.
    #[serde(rename = "type")]
    pub name: String,
    /// What must be processed first; nothing, when there is no condition.
    #[serde(
        rename = "releaseCondition",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub release_condition: Option<Condition>,
    /// Whether an instance can be complete without it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub optional: bool,
    /// Whether it completes an instance of a sequence ordered by position.
    #[serde(rename = "final", default, skip_serializing_if = "is_false")]
    pub is_final: bool,
}

impl MessageType {
    /// A message type that is required for completion and may come at any time.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            release_condition: None,
            optional: false,
            is_final: false,
        }
    }

    /// Sets what must be processed before: a [`Condition`], or the name of the one predecessor.
    #[must_use]
    pub fn after(mut self, condition: impl Into<Condition>) -> Self {
        self.release_condition = Some(condition.into());
        self
    }

    /// Lets an instance be complete without it.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Lets it complete an instance of a sequence ordered by position.
    #[must_use]
    pub const fn completing(mut self) -> Self {
        self.is_final = true;
        self
    }
}

/// serde's `skip_serializing_if` gives a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// A release condition over message types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Condition {
    /// A message of that type was processed.
    Predecessor(String),
    /// All of them hold. An empty list is refused by the extension.
    And(Vec<Self>),
    /// At least one of them holds. An empty list is refused by the extension.
    Or(Vec<Self>),
}

impl Condition {
    /// Holds when a message of that type was processed.
    #[must_use]
    pub fn predecessor(message_type: impl Into<String>) -> Self {
        Self::Predecessor(message_type.into())
    }

    /// Holds when all of them hold: conditions, or names of predecessors.
    #[must_use]
    pub fn and<C: Into<Self>>(conditions: impl IntoIterator<Item = C>) -> Self {
        Self::And(conditions.into_iter().map(Into::into).collect())
    }

    /// Holds when at least one of them holds: conditions, or names of predecessors.
    #[must_use]
    pub fn or<C: Into<Self>>(conditions: impl IntoIterator<Item = C>) -> Self {
        Self::Or(conditions.into_iter().map(Into::into).collect())
    }
}

impl From<&str> for Condition {
    fn from(message_type: &str) -> Self {
        Self::predecessor(message_type)
    }
}

impl From<String> for Condition {
    fn from(message_type: String) -> Self {
        Self::Predecessor(message_type)
    }
}

text_enum! {
    /// What decides the order within an instance.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[non_exhaustive]
    pub enum Ordering {
        /// The release conditions of the message types.
        #[default]
        Conditions = "conditions",
        /// The positions 1, 2, 3 … that the messages carry, without gaps.
        Position = "position",
    }
}

text_enum! {
    /// What a failed message does to those after it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[non_exhaustive]
    pub enum OnFailure {
        /// What depends on it waits until it is resent, retried or skipped.
        #[default]
        Block = "block",
        /// The next position may go on; its type counts as passed in release conditions.
        Skip = "skip",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_type_is_written_as_the_extension_reads_it() {
        let written = |message: &MessageType| serde_json::to_value(message).unwrap();
        assert_eq!(written(&MessageType::new("a")), json!({"type": "a"}));
        assert_eq!(
            written(&MessageType::new("b").after("a").optional().completing()),
            json!({
                "type": "b",
                "releaseCondition": {"predecessor": "a"},
                "optional": true,
                "final": true,
            })
        );
    }

    #[test]
    fn conditions_nest() {
        let condition = Condition::and([
            Condition::or(["a", "b"]),
            Condition::predecessor("c"),
            Condition::and(Vec::<Condition>::new()),
        ]);
        let written = serde_json::to_value(&condition).unwrap();
        assert_eq!(
            written,
            json!({"and": [
                {"or": [{"predecessor": "a"}, {"predecessor": "b"}]},
                {"predecessor": "c"},
                {"and": []},
            ]})
        );
        assert_eq!(
            serde_json::from_value::<Condition>(written).unwrap(),
            condition
        );
    }

    #[test]
    fn g11_an_unknown_field_is_refused() {
        for refused in [
            json!({"type": "a", "releasecondition": {"predecessor": "b"}}),
            json!({"type": "a", "releaseCondition": {"not": {"predecessor": "b"}}}),
            json!({"type": "a", "releaseCondition": {"predecessor": "b", "or": []}}),
            json!({"releaseCondition": {"predecessor": "b"}}),
        ] {
            assert!(
                serde_json::from_value::<MessageType>(refused.clone()).is_err(),
                "{refused}"
            );
        }
    }

    #[test]
    fn names_are_kept_as_they_are() {
        let name = "o'clock \"x\" \\ \u{1f980} %s\n";
        let message = MessageType::new(name).after(name);
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<MessageType>(&text).unwrap(), message);
    }
}

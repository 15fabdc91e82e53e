//! The stream that is replayed: events of cases, read from a CSV file or generated, each case's
//! events in their true order.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use sequential_inbox_client::{Condition, MessageType};
use serde::{Deserialize, Serialize};

/// How many orders the generated stream has.
const ORDERS: u32 = 200;

/// The day of the generated stream has this many seconds in which an order can be placed; what is
/// left of it is enough for the steps that follow.
const PLACING_SECONDS: u32 = 14 * 3600;

/// The longest pause between two steps of a generated order, in seconds.
const STEP_SECONDS: u32 = 3600;

/// One event: a row of the file, and as JSON the payload of its message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The context id: what the events of one case have in common.
    #[serde(rename = "case_id")]
    pub context_id: String,
    /// 1, 2, 3 … within the case.
    pub position: i64,
    /// The message type.
    #[serde(rename = "activity")]
    pub message_type: String,
    /// The idempotence id.
    pub event_id: String,
    /// When it happened, in the words of the source; nothing is decided by it.
    pub occurred_at: String,
    /// Who did it; nothing is decided by it.
    pub resource: String,
}

impl Event {
    /// What the event's effect adds to the balance of its case: a number that differs from event
    /// to event, so that one effect cannot stand in for another.
    pub fn amount(&self) -> i64 {
        i64::try_from(hash(0, &self.event_id) % 10_000).unwrap_or(0)
    }
}

/// A number that depends on nothing but its arguments (FNV-1a, with the bits mixed at the end), so
/// that what is chosen by it is the same in every run.
pub fn hash(seed: u64, text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ seed;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// The events of a stream, in the order in which they happened within each case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    events: Vec<Event>,
    by_id: HashMap<String, usize>,
}

impl Stream {
    /// Reads a CSV file with the columns `case_id`, `position`, `activity`, `event_id`,
    /// `occurred_at` and `resource`.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no stream: see [`Stream::new`].
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let mut reader =
            csv::Reader::from_path(path).with_context(|| format!("cannot open {shown}"))?;
        let events = reader
            .deserialize()
            .collect::<Result<Vec<Event>, _>>()
            .with_context(|| format!("{shown} is not a message stream"))?;
        Self::new(events).with_context(|| format!("{shown} is not a message stream"))
    }

    /// A stream of those events.
    ///
    /// # Errors
    ///
    /// When there are none, an event id comes twice, or the positions of a case are not 1, 2, 3 …
    /// in the order of the events.
    pub fn new(events: Vec<Event>) -> Result<Self> {
        ensure!(!events.is_empty(), "there are no events in it");
        let mut by_id = HashMap::with_capacity(events.len());
        let mut last = HashMap::new();
        for (index, event) in events.iter().enumerate() {
            ensure!(
                by_id.insert(event.event_id.clone(), index).is_none(),
                "the event id \"{}\" comes twice",
                event.event_id
            );
            let position = last.entry(&event.context_id).or_insert(0);
            *position += 1;
            ensure!(
                event.position == *position,
                "event \"{}\" has position {} where {position} is next in case \"{}\"",
                event.event_id,
                event.position,
                event.context_id
            );
        }
        Ok(Self { events, by_id })
    }

    /// A stream of orders, the same for the same seed: placed, paid and picked in either order,
    /// some reminded of the payment once or twice, shipped or collected, and completed, but for
    /// one in ten that is still on its way. Orders overlap, as they do in a real stream.
    ///
    /// # Errors
    ///
    /// None: what is generated is a stream.
    pub fn generate(seed: u64) -> Result<Self> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut dated = Vec::new();
        for order in 1..=ORDERS {
            let mut second = random.random_range(0..PLACING_SECONDS);
            for (message_type, resource) in steps(&mut random) {
                dated.push((second, order, message_type, resource));
                second += random.random_range(1..=STEP_SECONDS);
            }
        }
        // Stable: two events of one order never change places.
        dated.sort_by_key(|&(second, ..)| second);
        let mut positions = BTreeMap::new();
        let events = dated
            .into_iter()
            .enumerate()
            .map(|(index, (second, order, message_type, resource))| {
                let position = positions.entry(order).or_insert(0);
                *position += 1;
                let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
                Event {
                    context_id: format!("order-{order}"),
                    position: *position,
                    message_type: message_type.to_owned(),
                    event_id: format!("evt-{}", index + 1),
                    occurred_at: format!("2026-01-05T{hour:02}:{minute:02}:{second:02}Z"),
                    resource: resource.to_owned(),
                }
            })
            .collect();
        Self::new(events)
    }

    /// The events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The event of that index; `None` when there is none.
    pub fn event(&self, index: usize) -> Option<&Event> {
        self.events.get(index)
    }

    /// The index of the event with that id.
    pub fn index_of(&self, event_id: &str) -> Option<usize> {
        self.by_id.get(event_id).copied()
    }

    /// The context ids, sorted.
    pub fn cases(&self) -> BTreeSet<&str> {
        self.events
            .iter()
            .map(|event| event.context_id.as_str())
            .collect()
    }

    /// The message types, sorted.
    pub fn message_types(&self) -> BTreeSet<&str> {
        self.events
            .iter()
            .map(|event| event.message_type.as_str())
            .collect()
    }

    /// How many cases have an event of every one of those types.
    pub fn cases_with_all(&self, types: &HashSet<&str>) -> usize {
        let mut missing: HashMap<&str, HashSet<&str>> = self
            .cases()
            .into_iter()
            .map(|case| (case, types.clone()))
            .collect();
        for event in &self.events {
            if let Some(types) = missing.get_mut(event.context_id.as_str()) {
                types.remove(event.message_type.as_str());
            }
        }
        missing.values().filter(|types| types.is_empty()).count()
    }

    /// How many cases have an event of at least one of those types.
    pub fn cases_with_any(&self, types: &HashSet<&str>) -> usize {
        self.events
            .iter()
            .filter(|event| types.contains(event.message_type.as_str()))
            .map(|event| &event.context_id)
            .collect::<HashSet<_>>()
            .len()
    }
}

/// The steps of one generated order: message type and resource.
fn steps(random: &mut impl Rng) -> Vec<(&'static str, &'static str)> {
    let paid = ("order.paid", "bank");
    let picked = ("order.picked", "warehouse");
    let mut steps = vec![("order.placed", "shop")];
    if random.random_bool(0.3) {
        steps.push(picked);
    }
    if random.random_bool(0.25) {
        let reminders = random.random_range(1..=2);
        steps.extend((0..reminders).map(|_| ("order.reminded", "shop")));
    }
    steps.push(paid);
    if !steps.contains(&picked) {
        steps.push(picked);
    }
    steps.push(if random.random_bool(0.75) {
        ("order.shipped", "carrier")
    } else {
        ("order.collected", "customer")
    });
    if random.random_bool(0.9) {
        steps.push(("order.completed", "shop"));
    }
    steps
}

/// The message types of the generated stream, with release conditions that hold for every one of
/// its events in their true order.
pub fn generated_types() -> Vec<MessageType> {
    let ready = || Condition::and(["order.paid", "order.picked"]);
    vec![
        MessageType::new("order.placed"),
        MessageType::new("order.reminded")
            .after("order.placed")
            .optional(),
        MessageType::new("order.paid").after("order.placed"),
        MessageType::new("order.picked").after("order.placed"),
        MessageType::new("order.shipped").after(ready()).optional(),
        MessageType::new("order.collected")
            .after(ready())
            .optional(),
        MessageType::new("order.completed")
            .after(Condition::or(["order.shipped", "order.collected"]))
            .completing(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Entry, Rule, order_violations};

    fn event(context_id: &str, position: i64, event_id: &str) -> Event {
        Event {
            context_id: context_id.to_owned(),
            position,
            message_type: "t".to_owned(),
            event_id: event_id.to_owned(),
            occurred_at: String::new(),
            resource: String::new(),
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        let stream = Stream::generate(7).unwrap();
        assert_eq!(stream, Stream::generate(7).unwrap());
        assert_ne!(stream, Stream::generate(8).unwrap());
    }

    #[test]
    fn a_generated_stream_has_what_the_demo_shows() {
        let stream = Stream::generate(1).unwrap();
        assert_eq!(stream.cases().len(), ORDERS as usize);
        let types = generated_types();
        let declared: BTreeSet<&str> = types.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(stream.message_types(), declared);
        let completed = stream.cases_with_any(&HashSet::from(["order.completed"]));
        assert!(
            completed > 150 && completed < 200,
            "{completed} of 200 orders are completed"
        );
        let neighbours = stream.events().windows(2);
        assert!(
            neighbours
                .filter(|pair| pair[0].context_id != pair[1].context_id)
                .count()
                > stream.events().len() / 2,
            "orders overlap"
        );
    }

    #[test]
    fn a_generated_stream_fulfils_its_own_conditions() {
        let types = generated_types();
        for seed in 0..20 {
            let stream = Stream::generate(seed).unwrap();
            let entries: Vec<Entry> = stream
                .events()
                .iter()
                .map(|event| Entry {
                    event_id: event.event_id.clone(),
                    context_id: event.context_id.clone(),
                    ordinal: event.position,
                })
                .collect();
            let violations = order_violations(&stream, &entries, &Rule::Conditions(&types));
            assert_eq!(violations, Vec::<String>::new(), "seed {seed}");
        }
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        for (events, complaint) in [
            (vec![], "no events"),
            (
                vec![event("a", 1, "x"), event("b", 1, "x")],
                "\"x\" comes twice",
            ),
            (
                vec![event("a", 1, "x"), event("a", 3, "y")],
                "position 3 where 2 is next",
            ),
            (
                vec![event("a", 2, "x"), event("a", 1, "y")],
                "position 2 where 1 is next",
            ),
        ] {
            let error = Stream::new(events).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn cases_are_counted_by_the_types_they_have() {
        let mut events = vec![event("a", 1, "1"), event("a", 2, "2"), event("b", 1, "3")];
        events[1].message_type = "u".to_owned();
        let stream = Stream::new(events).unwrap();
        assert_eq!(stream.cases_with_all(&HashSet::from(["t", "u"])), 1);
        assert_eq!(stream.cases_with_all(&HashSet::from(["t"])), 2);
        assert_eq!(stream.cases_with_all(&HashSet::new()), 2);
        assert_eq!(stream.cases_with_any(&HashSet::from(["u"])), 1);
        assert_eq!(stream.cases_with_any(&HashSet::new()), 0);
    }

    #[test]
    fn hashes_spread_and_depend_on_the_seed() {
        let share = |seed| {
            (0..1000)
                .filter(|number| hash(seed, &format!("evt-{number}")) % 100 < 10)
                .count()
        };
        assert!((60..140).contains(&share(1)), "{}", share(1));
        assert_ne!(hash(1, "evt-1"), hash(2, "evt-1"));
    }
}

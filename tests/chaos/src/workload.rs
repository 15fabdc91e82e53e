//! What is published: contexts with several messages each, in three kinds of traffic, shuffled and
//! with copies, some of them poison. Everything follows from the seed.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use sequential_inbox_client::{Condition, MessageType, Ordering, Sequence};

use crate::RETENTION;

/// How many chains of messages are mixed with each other: messages of one context come in between
/// those of as many others.
const MIXED: usize = 150;

/// Of a hundred contexts, those whose messages come in order.
const ORDERLY_PERCENT: u32 = 40;

/// Of a hundred messages, those that come again a little later.
const COPIED_PERCENT: u32 = 30;

/// Of a hundred messages, those that come again at once, most likely to another consumer.
const DOUBLED_PERCENT: u32 = 10;

/// Of a hundred contexts, those with a poison message.
const POISONED_PERCENT: u32 = 4;

/// A kind of messages: each has its queue, its consumer and its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Traffic {
    /// A plain consumer's: each once, in no order.
    Payments,
    /// A sequence's that is ordered by conditions.
    Orders,
    /// A sequence's that is ordered by position.
    Accounts,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Payments, Self::Orders, Self::Accounts];

    /// The name of the consumer or the sequence, and of the queue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payments => "payments",
            Self::Orders => "orders",
            Self::Accounts => "accounts",
        }
    }

    /// The traffic of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|traffic| traffic.name() == name)
    }

    /// Whether its messages are ordered.
    pub const fn is_sequence(self) -> bool {
        !matches!(self, Self::Payments)
    }

    /// Its message types.
    pub const fn types(self) -> &'static [Type] {
        match self {
            Self::Payments => PAYMENT_TYPES,
            Self::Orders => ORDER_TYPES,
            Self::Accounts => ACCOUNT_TYPES,
        }
    }

    /// Its type of that name.
    pub fn type_of(self, name: &str) -> Option<&'static Type> {
        self.types().iter().find(|known| known.name == name)
    }

    /// Its declaration; `None` for a plain consumer's.
    pub fn declaration(self) -> Option<Sequence> {
        let ordering = match self {
            Self::Payments => return None,
            Self::Orders => Ordering::Conditions,
            Self::Accounts => Ordering::Position,
        };
        let types = self.types().iter().map(Type::declaration);
        let sequence = Sequence::new(self.name(), RETENTION).ordering(ordering);
        Some(sequence.messages(types))
    }
}

/// A message type and what must have been handled before it.
#[derive(Debug, Clone, Copy)]
pub struct Type {
    /// Its name.
    pub name: &'static str,
    /// Of each of these groups, one type at least.
    pub after: &'static [&'static [&'static str]],
    /// Whether an instance is complete without it.
    pub is_optional: bool,
    /// Whether it is the last one of an instance ordered by position.
    pub is_final: bool,
}

impl Type {
    const fn free(name: &'static str) -> Self {
        Self {
            name,
            after: &[],
            is_optional: false,
            is_final: false,
        }
    }

    fn declaration(&self) -> MessageType {
        let mut declared = MessageType::new(self.name);
        let groups = self.after.iter().map(|any| match any {
            [one] => Condition::from(*one),
            any => Condition::or(any.iter().copied()),
        });
        let mut groups: Vec<Condition> = groups.collect();
        match groups.len() {
            0 => {}
            1 => declared = declared.after(groups.remove(0)),
            _ => declared = declared.after(Condition::and(groups)),
        }
        if self.is_optional {
            declared = declared.optional();
        }
        if self.is_final {
            declared = declared.completing();
        }
        declared
    }
}

const PAYMENT_TYPES: &[Type] = &[Type::free("payment.made")];

const ACCOUNT_TYPES: &[Type] = &[
    Type::free("account.entry"),
    Type {
        is_final: true,
        ..Type::free("account.closed")
    },
];

const ORDER_TYPES: &[Type] = &[
    Type::free("order.placed"),
    Type {
        after: &[&["order.placed"]],
        ..Type::free("order.reserved")
    },
    Type {
        after: &[&["order.placed"]],
        is_optional: true,
        ..Type::free("order.paid")
    },
    Type {
        after: &[&["order.placed"]],
        is_optional: true,
        ..Type::free("order.credited")
    },
    Type {
        after: &[&["order.reserved"], &["order.paid", "order.credited"]],
        ..Type::free("order.shipped")
    },
    Type {
        after: &[&["order.shipped"]],
        is_optional: true,
        ..Type::free("order.rated")
    },
];

/// What is to become of a message in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Its handler succeeds, sooner or later.
    Applied,
    /// Its handler fails until the operator has mended the cause and has it retried.
    Mended,
    /// Its handler fails always, and the operator skips it.
    Skipped,
    /// Its handler fails always: a dead letter that stays one. Nothing depends on it.
    DeadLetter,
}

impl Fate {
    /// Whether its handler fails until the operator comes.
    pub const fn is_poison(self) -> bool {
        !matches!(self, Self::Applied)
    }

    /// Whether it takes effect in the end.
    pub const fn is_applied(self) -> bool {
        matches!(self, Self::Applied | Self::Mended)
    }
}

/// A message that is published, once or more often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Its kind.
    pub traffic: Traffic,
    /// Its context.
    pub context: String,
    /// Its type.
    pub message_type: &'static str,
    /// Its id; messages of different types share one.
    pub id: String,
    /// Its position, in an order by position.
    pub position: Option<i64>,
    /// What is to become of it.
    pub fate: Fate,
}

/// The messages of one traffic in the order in which they are published.
#[derive(Debug)]
pub struct Workload {
    traffic: Traffic,
    random: SmallRng,
    has_poison: bool,
    is_closed: bool,
    contexts: u64,
    messages: Vec<Planned>,
    /// Chains of messages; of each the first may be published now.
    chains: Vec<VecDeque<usize>>,
    /// What is published next whatever the chains say.
    at_once: Option<usize>,
}

impl Workload {
    /// The endless workload of that traffic, without or with poison messages.
    pub fn new(traffic: Traffic, seed: u64, has_poison: bool) -> Self {
        // Each traffic has a stream of its own.
        let stream = seed.wrapping_mul(3).wrapping_add(traffic as u64);
        Self {
            traffic,
            random: SmallRng::seed_from_u64(stream),
            has_poison,
            is_closed: false,
            contexts: 0,
            messages: Vec::new(),
            chains: Vec::new(),
            at_once: None,
        }
    }

    /// Whose messages they are.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Begins no more contexts; those that are begun are published to their end.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// All messages of the contexts that are begun.
    pub fn messages(&self) -> &[Planned] {
        &self.messages
    }

    /// Copies of messages that were published before, to be published long after them: those of
    /// dead letters, which a copy would bring back, are not among them.
    pub fn late_copies(&mut self, count: usize) -> Vec<usize> {
        let settled: Vec<usize> = (0..self.messages.len())
            .filter(|&index| self.messages[index].fate != Fate::DeadLetter)
            .collect();
        let amount = count.min(settled.len());
        rand::seq::index::sample(&mut self.random, settled.len(), amount)
            .into_iter()
            .map(|place| settled[place])
            .collect()
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    /// Begins a context: its messages, in one chain where they come in order, else in one each.
    fn begin_context(&mut self) {
        self.contexts += 1;
        let first = self.messages.len();
        let context = format!("{}-{}", self.traffic.name(), self.contexts);
        for (message_type, number) in self.types_of_context() {
            let id = match self.traffic {
                // One id under several types is several messages (G12).
                Traffic::Orders => context.clone(),
                Traffic::Payments | Traffic::Accounts => format!("{context}/{number}"),
            };
            self.messages.push(Planned {
                traffic: self.traffic,
                context: context.clone(),
                message_type,
                id,
                position: (self.traffic == Traffic::Accounts).then_some(number),
                fate: Fate::Applied,
            });
        }
        if self.has_poison && self.percent(POISONED_PERCENT) {
            self.poison(first);
        }
        let all = first..self.messages.len();
        if self.percent(ORDERLY_PERCENT) {
            self.chains.push(all.collect());
        } else {
            self.chains.extend(all.map(|index| VecDeque::from([index])));
        }
    }

    /// The types of one context, in an order in which they may be handled, numbered from 1.
    fn types_of_context(&mut self) -> Vec<(&'static str, i64)> {
        let types: Vec<&'static str> = match self.traffic {
            Traffic::Payments => vec!["payment.made"; self.random.random_range(2..=6)],
            Traffic::Orders => {
                let payment: &[&str] = match self.random.random_range(0..3) {
                    0 => &["order.paid"],
                    1 => &["order.credited"],
                    _ => &["order.paid", "order.credited"],
                };
                let rating: &[&str] = if self.percent(50) {
                    &["order.rated"]
                } else {
                    &[]
                };
                [
                    &["order.placed", "order.reserved"],
                    payment,
                    &["order.shipped"],
                    rating,
                ]
                .concat()
            }
            Traffic::Accounts => {
                let entries = self.random.random_range(2..=7);
                let mut types = vec!["account.entry"; entries];
                types.push("account.closed");
                types
            }
        };
        types.into_iter().zip(1..).collect()
    }

    /// Makes one message of the newest context, whose first message is `first`, poison. One that
    /// others may depend on is mended or skipped in the end.
    fn poison(&mut self, first: usize) {
        let index = self.random.random_range(first..self.messages.len());
        let is_last = index + 1 == self.messages.len();
        let is_leaf = !self.traffic.is_sequence() || is_last;
        // Skipping is a matter of sequences.
        self.messages[index].fate = match self.random.random_range(0..3) {
            0 if is_leaf => Fate::DeadLetter,
            1 if self.traffic.is_sequence() => Fate::Skipped,
            _ => Fate::Mended,
        };
    }
}

/// The messages in the order in which they are published, by their place in
/// [`messages`](Workload::messages). It ends once the workload is closed.
impl Iterator for Workload {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if let Some(index) = self.at_once.take() {
            return Some(index);
        }
        while !self.is_closed && self.chains.len() < MIXED {
            self.begin_context();
        }
        if self.chains.is_empty() {
            return None;
        }
        let place = self.random.random_range(0..self.chains.len());
        let index = self.chains[place].pop_front()?;
        if self.chains[place].is_empty() {
            self.chains.swap_remove(place);
        }
        if self.percent(DOUBLED_PERCENT) {
            self.at_once = Some(index);
        } else if self.percent(COPIED_PERCENT) {
            // A copy may be copied again.
            self.chains.push(VecDeque::from([index]));
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// What is published of a workload that is closed after a while.
    fn published(traffic: Traffic, seed: u64) -> (Workload, Vec<usize>) {
        let mut workload = Workload::new(traffic, seed, true);
        let mut published: Vec<usize> = workload.by_ref().take(2_000).collect();
        workload.close();
        published.extend(workload.by_ref());
        (workload, published)
    }

    #[test]
    fn the_same_seed_gives_the_same_workload() {
        for traffic in Traffic::ALL {
            let (one, first) = published(traffic, 7);
            let (other, second) = published(traffic, 7);
            assert_eq!((one.messages(), &first), (other.messages(), &second));
            assert_ne!(first, published(traffic, 8).1);
        }
    }

    #[test]
    fn every_message_is_published_and_some_more_than_once() {
        for traffic in Traffic::ALL {
            let (workload, published) = published(traffic, 1);
            let distinct: HashSet<usize> = published.iter().copied().collect();
            assert_eq!(distinct.len(), workload.messages().len());
            assert!(published.len() > distinct.len() * 5 / 4);
        }
    }

    #[test]
    fn messages_have_keys_of_their_own() {
        for traffic in Traffic::ALL {
            let (workload, _) = published(traffic, 1);
            let keys: HashSet<_> = workload
                .messages()
                .iter()
                .map(|message| (message.message_type, &message.id))
                .collect();
            assert_eq!(keys.len(), workload.messages().len());
        }
    }

    #[test]
    fn some_contexts_come_in_order_and_some_do_not() {
        let (workload, published) = published(Traffic::Accounts, 1);
        let mut positions: HashMap<&str, Vec<i64>> = HashMap::new();
        for index in published {
            let message = &workload.messages()[index];
            let seen = positions.entry(&message.context).or_default();
            let position = message.position.unwrap();
            if !seen.contains(&position) {
                seen.push(position);
            }
        }
        let orderly = positions.values().filter(|seen| seen.is_sorted()).count();
        assert!(orderly > positions.len() / 4);
        assert!(orderly < positions.len() * 3 / 4);
    }

    #[test]
    fn poison_is_there_and_blocks_nobody_for_ever() {
        for traffic in Traffic::ALL {
            let (workload, _) = published(traffic, 1);
            let mut fates: HashMap<Fate, usize> = HashMap::new();
            let mut messages = workload.messages().iter().peekable();
            while let Some(message) = messages.next() {
                *fates.entry(message.fate).or_default() += 1;
                let is_last = messages
                    .peek()
                    .is_none_or(|next| next.context != message.context);
                let is_leaf = is_last || !traffic.is_sequence();
                assert!(message.fate != Fate::DeadLetter || is_leaf, "{message:?}");
            }
            assert!(fates[&Fate::Mended] > 0);
            assert_eq!(fates.contains_key(&Fate::Skipped), traffic.is_sequence());
        }
    }

    #[test]
    fn a_context_can_be_handled_in_the_order_of_its_messages() {
        let (workload, _) = published(Traffic::Orders, 3);
        let mut handled: HashMap<&str, HashSet<&str>> = HashMap::new();
        for message in workload.messages() {
            let done = handled.entry(&message.context).or_default();
            let groups = Traffic::Orders.type_of(message.message_type).unwrap().after;
            assert!(
                groups
                    .iter()
                    .all(|any| any.iter().any(|it| done.contains(it))),
                "{message:?}"
            );
            done.insert(message.message_type);
        }
    }

    #[test]
    fn late_copies_are_of_what_is_settled() {
        let (mut workload, _) = published(Traffic::Payments, 1);
        let copies = workload.late_copies(100);
        assert_eq!(copies.len(), 100);
        for index in copies {
            assert_ne!(workload.messages()[index].fate, Fate::DeadLetter);
        }
    }
}

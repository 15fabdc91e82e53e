//! What the ledger must show in the end: every event's effect once (G1, G4, G8), and each case's
//! effects in an order that the declaration allows (G6). Pure: it is told what the ledger holds.

use std::collections::{BTreeMap, HashMap, HashSet};

use sequential_inbox_client::{Condition, MessageType};

use crate::stream::Stream;

/// One effect, as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The event that had the effect.
    pub event_id: String,
    /// Its case.
    pub context_id: String,
    /// 1, 2, 3 … in the order in which the case's effects were committed.
    pub ordinal: i64,
}

/// What a case's effects add up to, as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The case.
    pub context_id: String,
    /// How many effects it had.
    pub effects: i64,
    /// The sum of their amounts.
    pub balance: i64,
}

/// What decides whether an order is right.
#[derive(Debug)]
pub enum Rule<'a> {
    /// Each event's release condition holds over the events of its case before it.
    Conditions(&'a [MessageType]),
    /// Each case's events come in the order of the stream, none left out.
    Position,
}

/// What is wrong with the effects: events without one, events with more than one, entries that
/// belong to no event; one line each.
pub fn effect_errors(stream: &Stream, entries: &[Entry]) -> Vec<String> {
    let mut counts = vec![0_u32; stream.events().len()];
    let mut errors = Vec::new();
    for entry in entries {
        let count = stream
            .index_of(&entry.event_id)
            .filter(|&index| stream.events()[index].context_id == entry.context_id)
            .and_then(|index| counts.get_mut(index));
        match count {
            Some(count) => *count += 1,
            None => errors.push(format!(
                "an effect of \"{}\" in case \"{}\", which is no event of the stream",
                entry.event_id, entry.context_id
            )),
        }
    }
    for (event, count) in stream.events().iter().zip(counts) {
        match count {
            0 => errors.push(format!("event \"{}\" had no effect", event.event_id)),
            1 => {}
            _ => errors.push(format!("event \"{}\" had {count} effects", event.event_id)),
        }
    }
    errors
}

/// The accounts that do not hold what the stream's events add up to, one line each.
pub fn account_errors(stream: &Stream, accounts: &[Account]) -> Vec<String> {
    let mut expected = BTreeMap::<&str, (i64, i64)>::new();
    for event in stream.events() {
        let (effects, balance) = expected.entry(&event.context_id).or_default();
        *effects += 1;
        *balance += event.amount();
    }
    let mut errors = Vec::new();
    for account in accounts {
        let found = (account.effects, account.balance);
        let due = expected.remove(account.context_id.as_str());
        if due != Some(found) {
            let (effects, balance) = due.unwrap_or_default();
            errors.push(format!(
                "the account of case \"{}\" has {} effects and balance {}, expected {effects} and \
                 {balance}",
                account.context_id, account.effects, account.balance
            ));
        }
    }
    let missing = expected.into_keys();
    errors.extend(missing.map(|case| format!("case \"{case}\" has no account")));
    errors
}

/// The events that were handled before they might be, one line each.
pub fn order_violations(stream: &Stream, entries: &[Entry], rule: &Rule<'_>) -> Vec<String> {
    let mut cases = BTreeMap::<&str, Vec<&Entry>>::new();
    for entry in entries {
        cases.entry(&entry.context_id).or_default().push(entry);
    }
    let mut violations = Vec::new();
    for handled in cases.values_mut() {
        handled.sort_by_key(|entry| entry.ordinal);
        match rule {
            Rule::Conditions(types) => {
                violations.extend(condition_violations(stream, handled, types));
            }
            Rule::Position => violations.extend(position_violations(stream, handled)),
        }
    }
    violations
}

/// The events of one case whose condition did not hold over those before them.
fn condition_violations(stream: &Stream, handled: &[&Entry], types: &[MessageType]) -> Vec<String> {
    let conditions: HashMap<&str, Option<&Condition>> = types
        .iter()
        .map(|it| (it.name.as_str(), it.release_condition.as_ref()))
        .collect();
    let mut before = HashSet::new();
    let mut violations = Vec::new();
    for entry in handled {
        let Some(message_type) = message_type(stream, entry) else {
            continue;
        };
        let may_be_handled = match conditions.get(message_type) {
            Some(condition) => condition.is_none_or(|condition| holds(condition, &before)),
            None => false,
        };
        if !may_be_handled {
            violations.push(format!(
                "event \"{}\" ({message_type}) was handled as number {} of case \"{}\", before its \
                 release condition held",
                entry.event_id, entry.ordinal, entry.context_id
            ));
        }
        before.insert(message_type);
    }
    violations
}

/// The events of one case that were not handled in their place.
fn position_violations(stream: &Stream, handled: &[&Entry]) -> Vec<String> {
    let positions = handled.iter().map(|entry| {
        let event = stream.index_of(&entry.event_id)?;
        Some(stream.events()[event].position)
    });
    handled
        .iter()
        .zip(positions)
        .zip(1_i64..)
        .filter(|&((_, position), place)| position.is_some_and(|position| position != place))
        .map(|((entry, position), place)| {
            format!(
                "event \"{}\" of case \"{}\" was handled as number {place}, its position is {}",
                entry.event_id,
                entry.context_id,
                position.unwrap_or_default()
            )
        })
        .collect()
}

/// The type of the event; `None` for an entry that belongs to no event, which is an error of
/// [`effect_errors`].
fn message_type<'a>(stream: &'a Stream, entry: &Entry) -> Option<&'a str> {
    let event = stream.index_of(&entry.event_id)?;
    Some(&stream.events()[event].message_type)
}

/// Whether a release condition holds once messages of those types were handled.
fn holds(condition: &Condition, handled: &HashSet<&str>) -> bool {
    match condition {
        Condition::Predecessor(name) => handled.contains(name.as_str()),
        Condition::And(all) => all.iter().all(|condition| holds(condition, handled)),
        Condition::Or(any) => any.iter().any(|condition| holds(condition, handled)),
        // A kind of condition that this demo cannot judge counts as a violation, never as right.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Event;

    /// A stream of one case: an event a letter, its type and id.
    fn stream(letters: &str) -> Stream {
        let events = letters.chars().zip(1..).map(|(letter, position)| Event {
            context_id: "case".to_owned(),
            position,
            message_type: letter.to_string(),
            event_id: letter.to_string(),
            occurred_at: String::new(),
            resource: String::new(),
        });
        Stream::new(events.collect()).unwrap()
    }

    /// The ledger of one case in which those events were handled in that order.
    fn handled(letters: &str) -> Vec<Entry> {
        let entries = letters.chars().zip(1..).map(|(letter, ordinal)| Entry {
            event_id: letter.to_string(),
            context_id: "case".to_owned(),
            ordinal,
        });
        entries.collect()
    }

    #[test]
    fn each_event_once_is_right() {
        let stream = stream("abc");
        assert_eq!(
            effect_errors(&stream, &handled("cab")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn g1_a_double_effect_is_reported() {
        let errors = effect_errors(&stream("abc"), &handled("abcb"));
        assert_eq!(errors, ["event \"b\" had 2 effects"]);
    }

    #[test]
    fn g8_a_lost_effect_is_reported() {
        let errors = effect_errors(&stream("abc"), &handled("ac"));
        assert_eq!(errors, ["event \"b\" had no effect"]);
    }

    #[test]
    fn a_lost_effect_and_a_double_one_do_not_make_up_for_each_other() {
        assert_eq!(effect_errors(&stream("abc"), &handled("abb")).len(), 2);
    }

    #[test]
    fn a_foreign_effect_is_reported() {
        assert_eq!(effect_errors(&stream("ab"), &handled("abz")).len(), 1);
        let mut entries = handled("ab");
        entries[1].context_id = "elsewhere".to_owned();
        assert_eq!(effect_errors(&stream("ab"), &entries).len(), 2);
    }

    #[test]
    fn accounts_must_hold_the_amounts() {
        let stream = stream("abc");
        let balance = stream.events().iter().map(Event::amount).sum();
        let right = Account {
            context_id: "case".to_owned(),
            effects: 3,
            balance,
        };
        assert!(account_errors(&stream, std::slice::from_ref(&right)).is_empty());
        assert_eq!(account_errors(&stream, &[]).len(), 1);
        let wrong = [
            Account {
                balance: balance + 1,
                ..right.clone()
            },
            Account {
                effects: 2,
                ..right.clone()
            },
            Account {
                context_id: "elsewhere".to_owned(),
                ..right
            },
        ];
        for account in wrong {
            assert!(!account_errors(&stream, &[account]).is_empty());
        }
    }

    #[test]
    fn g6_positions_must_be_those_of_the_stream() {
        let stream = stream("abcd");
        let violations =
            |order: &str| order_violations(&stream, &handled(order), &Rule::Position).len();
        assert_eq!(violations("abcd"), 0);
        assert_eq!(violations("abdc"), 2);
        assert_eq!(violations("bcd"), 3, "a gap at the start");
        assert_eq!(violations("abd"), 1, "a gap in between");
        assert_eq!(violations("abc"), 0, "not all yet, and in order");
    }

    #[test]
    fn g6_a_condition_must_hold_before() {
        let types = [
            MessageType::new("a"),
            MessageType::new("b").after("a"),
            MessageType::new("c").after("a"),
            MessageType::new("d").after(Condition::and(["b", "c"])),
            MessageType::new("e").after(Condition::or(["b", "c"])),
        ];
        let stream = stream("abcde");
        let violations = |order: &str| {
            let rule = Rule::Conditions(&types);
            order_violations(&stream, &handled(order), &rule).len()
        };
        for right in ["abcde", "acebd", "abecd", "acbed", "a"] {
            assert_eq!(violations(right), 0, "{right}");
        }
        for (wrong, count) in [("bacde", 1), ("abdce", 1), ("aebcd", 1), ("edcba", 4)] {
            assert_eq!(violations(wrong), count, "{wrong}");
        }
    }

    #[test]
    fn g6_the_order_is_that_of_the_commits_and_not_of_the_rows() {
        let mut entries = handled("ba");
        entries.reverse();
        let types = [MessageType::new("a"), MessageType::new("b").after("a")];
        let violations = order_violations(&stream("ab"), &entries, &Rule::Conditions(&types));
        assert_eq!(violations.len(), 1);
        assert!(violations[0].contains("event \"b\""), "{violations:?}");
    }

    #[test]
    fn an_undeclared_type_is_no_right_order() {
        let rule = Rule::Conditions(&[]);
        assert_eq!(
            order_violations(&stream("a"), &handled("a"), &rule).len(),
            1
        );
    }

    #[test]
    fn cases_are_judged_by_themselves() {
        let mut events = stream("ab").events().to_vec();
        events[1].context_id = "other".to_owned();
        events[1].position = 1;
        let stream = Stream::new(events).unwrap();
        let mut entries = handled("ab");
        entries[1].context_id = "other".to_owned();
        entries[1].ordinal = 1;
        let types = [MessageType::new("a"), MessageType::new("b").after("a")];
        assert_eq!(
            order_violations(&stream, &entries, &Rule::Conditions(&types)).len(),
            1
        );
        assert_eq!(
            order_violations(&stream, &entries, &Rule::Position).len(),
            0
        );
    }
}

//! Message types of a sequence and their release conditions: the pure part of a
//! declaration (guarantee G6). Knows nothing of Postgres.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A message type as it is declared, in the JSON form of `inbox_declare_sequence`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageType {
    /// Qualified name of the type.
    #[serde(rename = "type")]
    pub name: String,
    /// What must be processed before it; none: nothing.
    #[serde(
        rename = "releaseCondition",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub release_condition: Option<Condition>,
    /// An instance is complete without it.
    #[serde(default)]
    pub optional: bool,
    /// Position ordering: processing it completes the instance.
    #[serde(rename = "final", default)]
    pub is_final: bool,
}

/// Which predecessor types must be processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Condition {
    /// One message of this type.
    Predecessor(String),
    /// All of them.
    And(Vec<Condition>),
    /// At least one of them.
    Or(Vec<Condition>),
}

/// Why a declaration is refused; names the culprit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The text is not an array of message types.
    Malformed(String),
    /// The n-th message type, from 1, has an empty name.
    EmptyName(usize),
    /// The type stands in the declaration twice.
    Twice(String),
    /// A condition of the first type names the second, which is not declared.
    UnknownPredecessor(String, String),
    /// A condition of the type has an empty `and` or `or`.
    EmptyList(String, &'static str),
    /// The types wait for each other; the first is also the last.
    Cycle(Vec<String>),
}

impl Condition {
    /// Whether the condition holds when `passed` answers for single types.
    pub fn holds(&self, passed: &impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Predecessor(name) => passed(name),
            Self::And(all) => all.iter().all(|part| part.holds(passed)),
            Self::Or(any) => any.iter().any(|part| part.holds(passed)),
        }
    }

    /// Every type that the condition names, once each.
    pub fn predecessors(&self) -> BTreeSet<&str> {
        match self {
            Self::Predecessor(name) => BTreeSet::from([name.as_str()]),
            Self::And(parts) | Self::Or(parts) => {
                parts.iter().flat_map(Self::predecessors).collect()
            }
        }
    }

    /// The word of an `and` or `or` in it that has no parts.
    fn empty_list(&self) -> Option<&'static str> {
        let (word, parts) = match self {
            Self::Predecessor(_) => return None,
            Self::And(parts) => ("and", parts),
            Self::Or(parts) => ("or", parts),
        };
        if parts.is_empty() {
            Some(word)
        } else {
            parts.iter().find_map(Self::empty_list)
        }
    }
}

impl MessageType {
    /// The types that its condition names.
    pub fn predecessors(&self) -> BTreeSet<&str> {
        self.release_condition
            .as_ref()
            .map(Condition::predecessors)
            .unwrap_or_default()
    }

    /// Whether a message of this type may be handled.
    pub fn may_go(&self, passed: &impl Fn(&str) -> bool) -> bool {
        self.release_condition
            .as_ref()
            .is_none_or(|condition| condition.holds(passed))
    }
}

/// Parses and checks the message types of a declaration.
pub fn parse(json: &str) -> Result<Vec<MessageType>, Refusal> {
    let types: Vec<MessageType> =
        serde_json::from_str(json).map_err(|error| Refusal::Malformed(error.to_string()))?;
    check(&types)?;
    Ok(types)
}

fn check(types: &[MessageType]) -> Result<(), Refusal> {
    let mut known = BTreeSet::new();
    for (ordinal, declared) in types.iter().enumerate() {
        if declared.name.is_empty() {
            return Err(Refusal::EmptyName(ordinal + 1));
        }
        if !known.insert(declared.name.as_str()) {
            return Err(Refusal::Twice(declared.name.clone()));
        }
    }
    for declared in types {
        if let Some(word) = declared
            .release_condition
            .as_ref()
            .and_then(Condition::empty_list)
        {
            return Err(Refusal::EmptyList(declared.name.clone(), word));
        }
        if let Some(unknown) = declared
            .predecessors()
            .into_iter()
            .find(|p| !known.contains(p))
        {
            return Err(Refusal::UnknownPredecessor(
                declared.name.clone(),
                unknown.to_owned(),
            ));
        }
    }
    match cycle(types) {
        Some(path) => Err(Refusal::Cycle(path)),
        None => Ok(()),
    }
}

/// A cycle among the types, each waiting for the next, closed with its first.
fn cycle(types: &[MessageType]) -> Option<Vec<String>> {
    let edges: BTreeMap<&str, Vec<&str>> = types
        .iter()
        .map(|declared| {
            (
                declared.name.as_str(),
                declared.predecessors().into_iter().collect(),
            )
        })
        .collect();
    let mut finished = BTreeSet::new();
    for start in types {
        // The path from `start` and, for each of its types, the next edge to follow.
        // No recursion: a declaration may be a chain of thousands.
        let mut path: Vec<(&str, usize)> = vec![(&start.name, 0)];
        while let Some((at, edge)) = path.last().copied() {
            let next = edges.get(at).and_then(|to| to.get(edge)).copied();
            match next {
                None => {
                    finished.insert(at);
                    path.pop();
                }
                Some(_) if finished.contains(at) => {
                    path.pop();
                }
                Some(next) => {
                    if let Some(top) = path.last_mut() {
                        top.1 += 1;
                    }
                    if let Some(begin) = path.iter().position(|(name, _)| *name == next) {
                        let mut names: Vec<String> = path[begin..]
                            .iter()
                            .map(|(name, _)| (*name).to_owned())
                            .collect();
                        names.push(next.to_owned());
                        return Some(names);
                    }
                    path.push((next, 0));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn types(json: &str) -> Vec<MessageType> {
        parse(json).unwrap()
    }

    fn refusal(json: &str) -> Refusal {
        parse(json).unwrap_err()
    }

    #[test]
    fn g6_conditions_are_and_or_and_predecessor() {
        let declared = types(
            r#"[{"type":"a"},{"type":"b"},{"type":"c","optional":true,"final":true,
                 "releaseCondition":{"and":[{"predecessor":"a"},{"or":[{"predecessor":"b"},{"predecessor":"a"}]}]}}]"#,
        );
        let c = &declared[2];
        assert!(c.optional && c.is_final);
        assert_eq!(c.predecessors(), BTreeSet::from(["a", "b"]));
        assert!(c.may_go(&|name| name == "a"));
        assert!(!c.may_go(&|name| name == "b"));
        assert!(declared[0].may_go(&|_| false));
    }

    #[test]
    fn every_refusal_names_its_culprit() {
        assert!(matches!(refusal("{}"), Refusal::Malformed(_)));
        assert!(
            matches!(refusal(r#"[{"type":"a","retries":3}]"#), Refusal::Malformed(m) if m.contains("retries"))
        );
        assert!(matches!(
            refusal(r#"[{"type":"a","releaseCondition":{"xor":[]}}]"#),
            Refusal::Malformed(m) if m.contains("xor")
        ));
        assert_eq!(
            refusal(r#"[{"type":"a"},{"type":""}]"#),
            Refusal::EmptyName(2)
        );
        assert_eq!(
            refusal(r#"[{"type":"a"},{"type":"a"}]"#),
            Refusal::Twice("a".into())
        );
        assert_eq!(
            refusal(r#"[{"type":"a","releaseCondition":{"predecessor":"z"}}]"#),
            Refusal::UnknownPredecessor("a".into(), "z".into())
        );
        assert_eq!(
            refusal(r#"[{"type":"a","releaseCondition":{"and":[{"or":[]}]}}]"#),
            Refusal::EmptyList("a".into(), "or")
        );
        assert_eq!(
            refusal(
                r#"[{"type":"a","releaseCondition":{"predecessor":"b"}},
                    {"type":"b","releaseCondition":{"predecessor":"c"}},
                    {"type":"c","releaseCondition":{"predecessor":"b"}}]"#
            ),
            Refusal::Cycle(vec!["b".into(), "c".into(), "b".into()])
        );
        assert_eq!(
            refusal(r#"[{"type":"a","releaseCondition":{"predecessor":"a"}}]"#),
            Refusal::Cycle(vec!["a".into(), "a".into()])
        );
    }

    #[test]
    fn a_long_chain_is_checked_without_recursion() {
        let chain: Vec<MessageType> = (0..20_000)
            .map(|n| MessageType {
                name: format!("t{n}"),
                release_condition: (n > 0).then(|| Condition::Predecessor(format!("t{}", n - 1))),
                optional: false,
                is_final: false,
            })
            .rev()
            .collect();
        assert_eq!(check(&chain), Ok(()));
    }

    /// Conditions over the types t0 .. t{n-1}.
    fn condition(n: usize) -> impl Strategy<Value = Condition> {
        let leaf = (0..n).prop_map(|k| Condition::Predecessor(format!("t{k}")));
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(Condition::And),
                prop::collection::vec(inner, 1..4).prop_map(Condition::Or),
            ]
        })
    }

    proptest! {
        #[test]
        fn g6_conditions_are_monotone(c in condition(5), passed in prop::collection::btree_set(0_usize..5, 0..5), more in 0_usize..5) {
            let before = c.holds(&|name| passed.iter().any(|k| format!("t{k}") == name));
            let after = c.holds(&|name| name == format!("t{more}") || passed.iter().any(|k| format!("t{k}") == name));
            prop_assert!(!before || after, "one more processed type must not take a release back");
        }

        #[test]
        fn json_round_trips(c in condition(5)) {
            let json = serde_json::to_string(&c).unwrap();
            prop_assert_eq!(serde_json::from_str::<Condition>(&json).unwrap(), c);
        }

        #[test]
        fn types_that_only_look_back_have_no_cycle(parts in prop::collection::vec(condition(5), 5)) {
            let declared: Vec<MessageType> = parts
                .into_iter()
                .enumerate()
                .map(|(n, c)| MessageType {
                    name: format!("t{n}"),
                    release_condition: c.predecessors().iter().all(|p| p[1..].parse::<usize>().unwrap() < n).then_some(c),
                    optional: false,
                    is_final: false,
                })
                .collect();
            prop_assert_eq!(check(&declared), Ok(()));
        }
    }
}

//! Judges what a run has left behind: the ledger, the inbox and the queues against what was
//! published. Pure: it is told everything, and its tests tell it what must never happen.
//!
//! What it can find out about, each by itself:
//!
//! - G1: a message with two effects
//! - G4: an effect without a claim or a record, a claim or a record without an effect
//! - G5: a poison message without its trace: attempts and error
//! - G6: an effect before its release condition held; two effects of one instance at the same time
//! - G7: a message that is waiting, ready or due for a retry when all is quiet
//! - G8: a message of which nothing is left, or more than one record; one that became a dead letter
//!   and was not meant to; one that is still in a queue

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use crate::workload::{Fate, Planned, Traffic};

/// What the record of every failure of a handler says: that it failed, panicked or took too long.
const TRACE: &str = "the handler ";

/// What tells messages from each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The kind.
    pub traffic: Traffic,
    /// The message type.
    pub message_type: String,
    /// The id.
    pub id: String,
}

impl Key {
    /// The key of a message that was published.
    pub fn of(message: &Planned) -> Self {
        Self {
            traffic: message.traffic,
            message_type: message.message_type.to_owned(),
            id: message.id.clone(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} \"{}\" of {}",
            self.message_type,
            self.id,
            self.traffic.name()
        )
    }
}

/// A committed row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Whose effect.
    pub key: Key,
    /// The context that the handler was told.
    pub context: String,
    /// The position that the handler was told.
    pub position: Option<i64>,
    /// When the handler began, in ticks of one clock for all. Of one instance the ticks are taken
    /// while it is locked.
    pub started: i64,
    /// When it was done.
    pub ended: i64,
    /// The process it ran in.
    pub process: i32,
    /// Written by the operator instead, when the message was skipped.
    pub is_skip: bool,
}

/// The states of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its release condition does not hold.
    Waiting,
    /// It may be handed out.
    Ready,
    /// It was handled.
    Processed,
    /// It failed and is due again by itself.
    Scheduled,
    /// It failed and nothing will retry it by itself.
    Dead,
    /// The operator skipped it.
    Skipped,
}

/// What the inbox has recorded of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which message.
    pub key: Key,
    /// Its context; `None` for a plain consumer's.
    pub context: Option<String>,
    /// Its state.
    pub state: State,
    /// How often it failed.
    pub attempts: i32,
    /// Its last failure.
    pub last_error: Option<String>,
}

/// All that a run has left behind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// What was published, each message once.
    pub messages: Vec<Planned>,
    /// The ledger.
    pub effects: Vec<Effect>,
    /// The inbox's records.
    pub records: Vec<Record>,
    /// The inbox's claims.
    pub claims: Vec<Key>,
    /// The queues that are not empty.
    pub queued: Vec<String>,
}

/// What must never happen, and happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// More than one effect.
    DoubleEffect,
    /// An effect of a message that was skipped or is a dead letter.
    WrongEffect,
    /// An effect, and no claim.
    EffectWithoutClaim,
    /// An effect in a sequence, and no record of success.
    EffectWithoutRecord,
    /// A claim or a record of success, and no effect.
    ClaimWithoutEffect,
    /// A poison message without attempts or error.
    NoTrace,
    /// Handled before it might be.
    OutOfOrder,
    /// Handled at the same time as another message of its instance.
    AtTheSameTime,
    /// Waiting, ready or due when all is quiet.
    Stuck,
    /// Neither handled nor recorded.
    Lost,
    /// Recorded more than once.
    TwoRecords,
    /// A dead letter that was not meant to be one.
    DeadLetter,
    /// It should be a dead letter or skipped and is not.
    NoDeadLetter,
    /// Recorded or applied, and never published, or in another context.
    Unknown,
    /// Left in a queue.
    Queued,
}

impl Kind {
    /// The guarantee that is broken, and how.
    pub const fn text(self) -> &'static str {
        match self {
            Self::DoubleEffect => "G1 more than one effect",
            Self::WrongEffect => "G4 an effect of a message that must have none",
            Self::EffectWithoutClaim => "G4 an effect without a claim",
            Self::EffectWithoutRecord => "G4 an effect without a record",
            Self::ClaimWithoutEffect => "G4 a claim or a record without an effect",
            Self::NoTrace => "G5 a failure without its trace",
            Self::OutOfOrder => "G6 out of order",
            Self::AtTheSameTime => "G6 two messages of one instance at the same time",
            Self::Stuck => "G7 stuck",
            Self::Lost => "G8 lost",
            Self::TwoRecords => "G8 in more than one state",
            Self::DeadLetter => "G8 a dead letter that was not meant to be one",
            Self::NoDeadLetter => "G8 no dead letter where one was meant to be",
            Self::Unknown => "G8 never published",
            Self::Queued => "G8 left in a queue",
        }
    }
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What kind.
    pub kind: Kind,
    /// Which message, and what is known of it.
    pub details: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.text(), self.details)
    }
}

/// How many violations there are of each kind.
pub fn by_kind(violations: &[Violation]) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    for violation in violations {
        *counts.entry(violation.kind).or_default() += 1;
    }
    counts
}

/// All that is wrong with what a run has left behind, once the operator is done and all is quiet.
pub fn judge(evidence: &Evidence) -> Vec<Violation> {
    let mut court = Court::new(evidence);
    for message in &evidence.messages {
        court.judge_message(message);
    }
    court.judge_unknown();
    court.judge_order();
    for queue in &evidence.queued {
        court.accuse(Kind::Queued, format!("the queue {queue} is not empty"));
    }
    court.violations
}

/// Whether every poison message has left its trace, before the operator comes (G5, G8).
pub fn judge_poison(evidence: &Evidence) -> Vec<Violation> {
    let mut court = Court::new(evidence);
    let poison = evidence.messages.iter().filter(|it| it.fate.is_poison());
    for message in poison {
        court.judge_dead_letter(&Key::of(message));
    }
    court.violations
}

struct Court<'a> {
    evidence: &'a Evidence,
    effects: HashMap<&'a Key, Vec<&'a Effect>>,
    records: HashMap<&'a Key, Vec<&'a Record>>,
    claims: HashSet<&'a Key>,
    violations: Vec<Violation>,
}

impl<'a> Court<'a> {
    fn new(evidence: &'a Evidence) -> Self {
        let mut effects: HashMap<_, Vec<_>> = HashMap::new();
        for effect in &evidence.effects {
            effects.entry(&effect.key).or_default().push(effect);
        }
        let mut records: HashMap<_, Vec<_>> = HashMap::new();
        for record in &evidence.records {
            records.entry(&record.key).or_default().push(record);
        }
        Self {
            evidence,
            effects,
            records,
            claims: evidence.claims.iter().collect(),
            violations: Vec::new(),
        }
    }

    fn accuse(&mut self, kind: Kind, details: String) {
        self.violations.push(Violation { kind, details });
    }

    /// Accuses with all that is known of a message.
    fn accuse_of(&mut self, kind: Kind, key: &Key) {
        let effects = self.effects_of(key).map(|effect| {
            let what = if effect.is_skip { "skipped" } else { "effect" };
            let Effect {
                started,
                ended,
                process,
                context,
                ..
            } = effect;
            format!("{what} in {context} at {started}..{ended} by process {process}")
        });
        let mut known: Vec<String> = effects.collect();
        for record in self.records.get(key).into_iter().flatten() {
            let Record {
                state,
                attempts,
                last_error,
                ..
            } = record;
            let error = last_error.as_deref().unwrap_or_default();
            known.push(format!(
                "record {state:?}, {attempts} attempts, \"{error}\""
            ));
        }
        if self.claims.contains(key) {
            known.push("a claim".to_owned());
        }
        if known.is_empty() {
            known.push("nothing is known of it".to_owned());
        }
        self.accuse(kind, format!("{key}: {}", known.join("; ")));
    }

    fn effects_of(&self, key: &Key) -> impl Iterator<Item = &'a Effect> + use<'a> {
        let effects = self.effects.get(key).cloned();
        effects.into_iter().flatten()
    }

    /// The one record of a message; more than one is a violation.
    fn record_of(&mut self, key: &Key) -> Option<&'a Record> {
        let records = self.records.get(key)?;
        let (first, count) = (records.first().copied(), records.len());
        if count > 1 {
            self.accuse_of(Kind::TwoRecords, key);
        }
        first
    }

    fn judge_message(&mut self, message: &Planned) {
        let key = Key::of(message);
        let effects = self.effects_of(&key).filter(|it| !it.is_skip).count();
        if effects > 1 {
            self.accuse_of(Kind::DoubleEffect, &key);
        }
        match message.fate {
            Fate::Applied | Fate::Mended => self.judge_applied(&key, effects),
            Fate::Skipped => {
                if effects > 0 {
                    self.accuse_of(Kind::WrongEffect, &key);
                }
                let record = self.record_of(&key);
                if record.is_none_or(|record| record.state != State::Skipped) {
                    self.accuse_of(Kind::NoDeadLetter, &key);
                }
            }
            Fate::DeadLetter => {
                if effects > 0 {
                    self.accuse_of(Kind::WrongEffect, &key);
                }
                self.judge_dead_letter(&key);
            }
        }
    }

    fn judge_applied(&mut self, key: &Key, effects: usize) {
        let is_claimed = self.claims.contains(key);
        let state = self.record_of(key).map(|record| record.state);
        if effects > 0 {
            if !is_claimed {
                self.accuse_of(Kind::EffectWithoutClaim, key);
            }
            // A plain consumer's success is its claim; a failure before it may still be on record.
            if key.traffic.is_sequence() && state != Some(State::Processed) {
                self.accuse_of(Kind::EffectWithoutRecord, key);
            }
            return;
        }
        let kind = match state {
            Some(State::Waiting | State::Ready) => Kind::Stuck,
            Some(State::Scheduled) if !is_claimed => Kind::Stuck,
            Some(State::Dead) if !is_claimed => Kind::DeadLetter,
            None if !is_claimed => Kind::Lost,
            Some(_) | None => Kind::ClaimWithoutEffect,
        };
        self.accuse_of(kind, key);
    }

    /// A message that must be a dead letter now.
    fn judge_dead_letter(&mut self, key: &Key) {
        let record = self.record_of(key);
        match record {
            Some(record) if record.state == State::Dead && !self.claims.contains(key) => {
                let error = record.last_error.as_deref();
                if record.attempts < 1 || error.is_none_or(|error| !error.contains(TRACE)) {
                    self.accuse_of(Kind::NoTrace, key);
                }
            }
            Some(Record {
                state: State::Waiting | State::Ready | State::Scheduled,
                ..
            }) => self.accuse_of(Kind::Stuck, key),
            None => self.accuse_of(Kind::Lost, key),
            Some(_) => self.accuse_of(Kind::NoDeadLetter, key),
        }
    }

    /// What belongs to no message that was published, or stands in a context or at a position that
    /// is not its own.
    fn judge_unknown(&mut self) {
        let known: HashMap<Key, &Planned> = self
            .evidence
            .messages
            .iter()
            .map(|message| (Key::of(message), message))
            .collect();
        let effects = self.evidence.effects.iter().filter(|effect| {
            known.get(&effect.key).is_none_or(|message| {
                message.context != effect.context || message.position != effect.position
            })
        });
        let records = self.evidence.records.iter().filter(|record| {
            known.get(&record.key).is_none_or(|message| {
                let context = record.context.as_ref();
                context.is_some_and(|context| *context != message.context)
            })
        });
        let claims = self.evidence.claims.iter();
        let claims = claims.filter(|claim| !known.contains_key(claim));
        let keys: Vec<&Key> = effects
            .map(|effect| &effect.key)
            .chain(records.map(|record| &record.key))
            .chain(claims)
            .collect();
        for key in keys {
            self.accuse_of(Kind::Unknown, key);
        }
    }

    /// The order of each instance, by the ticks of its effects (G6).
    fn judge_order(&mut self) {
        let mut instances: BTreeMap<(Traffic, &str), Vec<&Effect>> = BTreeMap::new();
        for effect in &self.evidence.effects {
            if effect.key.traffic.is_sequence() {
                let instance = (effect.key.traffic, effect.context.as_str());
                instances.entry(instance).or_default().push(effect);
            }
        }
        for ((traffic, _), effects) in &mut instances {
            effects.sort_by_key(|effect| effect.started);
            for pair in effects.windows(2) {
                if pair[1].started <= pair[0].ended {
                    self.accuse(
                        Kind::AtTheSameTime,
                        format!(
                            "{} at {}..{}, and {} at {}..{}",
                            pair[0].key,
                            pair[0].started,
                            pair[0].ended,
                            pair[1].key,
                            pair[1].started,
                            pair[1].ended
                        ),
                    );
                }
            }
            let mut seen = HashSet::new();
            let mut next_position = 1;
            for effect in &*effects {
                // Of a message with two effects, which is another violation, the first counts.
                if !seen.insert(&effect.key) {
                    continue;
                }
                let may_be_handled = match (traffic, effect.position) {
                    (Traffic::Accounts, position) => {
                        let is_next = position == Some(next_position);
                        next_position = position.map_or(next_position, |position| position + 1);
                        is_next
                    }
                    _ => is_released(effect, effects),
                };
                if !may_be_handled {
                    self.accuse_of(Kind::OutOfOrder, &effect.key);
                }
            }
        }
    }
}

/// Whether a message might be handled when it was: of each group of types that must come before its
/// own, one had been handled in its instance.
fn is_released(effect: &Effect, instance: &[&Effect]) -> bool {
    let Some(known) = effect.key.traffic.type_of(&effect.key.message_type) else {
        return false;
    };
    known.after.iter().all(|any| {
        instance.iter().any(|other| {
            any.contains(&other.key.message_type.as_str()) && other.ended < effect.started
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client records of a handler's error.
    const FAILED: &str = "at delivery 3: the handler failed: poison";

    /// A run of one instance of each traffic in which everything went well.
    fn good() -> Evidence {
        let mut evidence = Evidence::default();
        let orders = [
            "order.placed",
            "order.reserved",
            "order.paid",
            "order.shipped",
        ];
        for message_type in orders {
            add(
                &mut evidence,
                planned(Traffic::Orders, message_type, "orders-1", None),
            );
        }
        for position in 1..=3 {
            let id = format!("accounts-1/{position}");
            let message = planned(Traffic::Accounts, "account.entry", &id, Some(position));
            add(&mut evidence, message);
        }
        for number in 1..=3 {
            let id = format!("payments-1/{number}");
            add(
                &mut evidence,
                planned(Traffic::Payments, "payment.made", &id, None),
            );
        }
        evidence
    }

    fn planned(
        traffic: Traffic,
        message_type: &'static str,
        id: &str,
        position: Option<i64>,
    ) -> Planned {
        Planned {
            traffic,
            context: format!("{}-1", traffic.name()),
            message_type,
            id: id.to_owned(),
            position,
            fate: Fate::Applied,
        }
    }

    /// Publishes a message and has it applied.
    fn add(evidence: &mut Evidence, message: Planned) {
        let key = Key::of(&message);
        let started = i64::try_from(evidence.effects.len()).unwrap() * 10 + 1;
        evidence.effects.push(Effect {
            key: key.clone(),
            context: message.context.clone(),
            position: message.position,
            started,
            ended: started + 1,
            process: 1,
            is_skip: false,
        });
        if message.traffic.is_sequence() {
            evidence.records.push(Record {
                key: key.clone(),
                context: Some(message.context.clone()),
                state: State::Processed,
                attempts: 0,
                last_error: None,
            });
        }
        evidence.claims.push(key);
        evidence.messages.push(message);
    }

    fn key(message_type: &str, id: &str) -> Key {
        let traffic = Traffic::ALL
            .into_iter()
            .find(|it| it.type_of(message_type).is_some());
        Key {
            traffic: traffic.unwrap(),
            message_type: message_type.to_owned(),
            id: id.to_owned(),
        }
    }

    fn shipped() -> Key {
        key("order.shipped", "orders-1")
    }

    fn payment() -> Key {
        key("payment.made", "payments-1/2")
    }

    impl Evidence {
        fn without_effect(mut self, key: &Key) -> Self {
            self.effects.retain(|effect| effect.key != *key);
            self
        }

        fn without_claim(mut self, key: &Key) -> Self {
            self.claims.retain(|claim| claim != key);
            self
        }

        fn without_record(mut self, key: &Key) -> Self {
            self.records.retain(|record| record.key != *key);
            self
        }

        fn fated(mut self, key: &Key, fate: Fate) -> Self {
            let message = self.messages.iter_mut().find(|it| Key::of(it) == *key);
            message.unwrap().fate = fate;
            self
        }

        fn recorded(self, key: &Key, state: State, attempts: i32, error: Option<&str>) -> Self {
            let mut changed = self.without_record(key);
            changed.records.push(Record {
                key: key.clone(),
                context: None,
                state,
                attempts,
                last_error: error.map(str::to_owned),
            });
            changed
        }

        fn effect(&mut self, key: &Key) -> &mut Effect {
            self.effects.iter_mut().find(|it| it.key == *key).unwrap()
        }
    }

    /// The kinds of what is found.
    fn found(evidence: &Evidence) -> Vec<Kind> {
        judge(evidence).into_iter().map(|it| it.kind).collect()
    }

    #[test]
    fn a_good_run_is_good() {
        assert_eq!(judge(&good()), []);
        assert_eq!(judge_poison(&good()), []);
    }

    #[test]
    fn g1_a_second_effect() {
        for key in [payment(), key("account.entry", "accounts-1/2"), shipped()] {
            let mut evidence = good();
            let mut again = evidence.effect(&key).clone();
            (again.started, again.ended) = (1001, 1002);
            evidence.effects.push(again);
            assert_eq!(found(&evidence), [Kind::DoubleEffect]);
            let told = judge(&evidence)[0].to_string();
            assert!(
                told.contains(&key.id) && told.contains("1001..1002"),
                "{told}"
            );
        }
    }

    #[test]
    fn g4_an_effect_without_its_claim_or_record() {
        for key in [payment(), shipped()] {
            let evidence = good().without_claim(&key);
            assert_eq!(found(&evidence), [Kind::EffectWithoutClaim]);
        }
        let evidence = good().without_record(&shipped());
        assert_eq!(found(&evidence), [Kind::EffectWithoutRecord]);
        let evidence = good().recorded(&shipped(), State::Ready, 0, None);
        assert_eq!(found(&evidence), [Kind::EffectWithoutRecord]);
    }

    #[test]
    fn g4_a_claim_or_a_record_without_its_effect() {
        for key in [payment(), shipped()] {
            let evidence = good().without_effect(&key);
            assert_eq!(found(&evidence), [Kind::ClaimWithoutEffect]);
        }
        let evidence = good().without_effect(&shipped()).without_claim(&shipped());
        assert_eq!(found(&evidence), [Kind::ClaimWithoutEffect]);
    }

    #[test]
    fn g4_an_effect_of_a_dead_letter() {
        let evidence = good()
            .fated(&payment(), Fate::DeadLetter)
            .recorded(&payment(), State::Dead, 3, Some(FAILED))
            .without_claim(&payment());
        assert_eq!(found(&evidence), [Kind::WrongEffect]);
        let evidence = good().fated(&shipped(), Fate::Skipped).recorded(
            &shipped(),
            State::Skipped,
            3,
            Some(FAILED),
        );
        assert_eq!(found(&evidence), [Kind::WrongEffect]);
    }

    #[test]
    fn g5_a_dead_letter_without_its_trace() {
        for (attempts, error) in [(0, Some(FAILED)), (3, None), (3, Some("something else"))] {
            let evidence = good()
                .fated(&payment(), Fate::DeadLetter)
                .without_effect(&payment())
                .without_claim(&payment())
                .recorded(&payment(), State::Dead, attempts, error);
            assert_eq!(found(&evidence), [Kind::NoTrace]);
            assert_eq!(judge_poison(&evidence).len(), 1);
        }
    }

    #[test]
    fn g5_every_poison_message_is_a_dead_letter_before_the_operator_comes() {
        for fate in [Fate::Mended, Fate::Skipped, Fate::DeadLetter] {
            let evidence = good()
                .fated(&shipped(), fate)
                .without_effect(&shipped())
                .without_claim(&shipped());
            let dead = evidence
                .clone()
                .recorded(&shipped(), State::Dead, 2, Some(FAILED));
            assert_eq!(judge_poison(&dead), []);
            let due = evidence.recorded(&shipped(), State::Scheduled, 2, Some(FAILED));
            assert_eq!(judge_poison(&due)[0].kind, Kind::Stuck);
        }
    }

    #[test]
    fn g6_a_message_before_its_condition_held() {
        // Two of the three before it are there; it takes one of either group.
        let mut evidence = good();
        *evidence.effect(&shipped()) = Effect {
            started: 15,
            ended: 16,
            ..evidence.effect(&shipped()).clone()
        };
        assert_eq!(found(&evidence), [Kind::OutOfOrder]);
        let told = judge(&evidence)[0].to_string();
        assert!(told.contains("order.shipped"), "{told}");
        // The alternative will do.
        let mut evidence = good();
        evidence.effect(&key("order.paid", "orders-1")).started = 5;
        evidence.effect(&key("order.paid", "orders-1")).ended = 6;
        evidence.effect(&shipped()).started = 25;
        evidence.effect(&shipped()).ended = 26;
        assert_eq!(found(&evidence), []);
    }

    #[test]
    fn g6_a_position_before_the_one_in_front_of_it() {
        let mut evidence = good();
        evidence
            .effect(&key("account.entry", "accounts-1/3"))
            .started = 52;
        evidence.effect(&key("account.entry", "accounts-1/3")).ended = 53;
        evidence
            .effect(&key("account.entry", "accounts-1/2"))
            .started = 61;
        evidence.effect(&key("account.entry", "accounts-1/2")).ended = 62;
        assert!(found(&evidence).contains(&Kind::OutOfOrder));
    }

    #[test]
    fn g6_two_messages_of_one_instance_at_the_same_time() {
        let mut evidence = good();
        evidence.effect(&key("order.reserved", "orders-1")).ended = 22;
        assert_eq!(found(&evidence), [Kind::AtTheSameTime]);
        let mut evidence = good();
        // What has no order may.
        evidence.effect(&key("payment.made", "payments-1/1")).ended = 1000;
        assert_eq!(found(&evidence), []);
    }

    #[test]
    fn g7_a_message_that_is_stuck() {
        for state in [State::Waiting, State::Ready] {
            let evidence = good()
                .without_effect(&shipped())
                .recorded(&shipped(), state, 0, None);
            assert_eq!(found(&evidence), [Kind::Stuck]);
        }
        for key in [payment(), shipped()] {
            let evidence = good().without_effect(&key).without_claim(&key).recorded(
                &key,
                State::Scheduled,
                1,
                Some("no"),
            );
            assert_eq!(found(&evidence), [Kind::Stuck]);
        }
    }

    #[test]
    fn g8_a_message_of_which_nothing_is_left() {
        for key in [payment(), shipped()] {
            let evidence = good()
                .without_effect(&key)
                .without_claim(&key)
                .without_record(&key);
            assert_eq!(found(&evidence), [Kind::Lost]);
            assert!(judge(&evidence)[0].details.contains("nothing is known"));
        }
    }

    #[test]
    fn g8_a_dead_letter_that_was_not_meant_to_be_one_or_is_none() {
        let evidence = good()
            .without_effect(&payment())
            .without_claim(&payment())
            .recorded(&payment(), State::Dead, 3, Some("no"));
        assert_eq!(found(&evidence), [Kind::DeadLetter]);
        let evidence = good()
            .fated(&shipped(), Fate::Skipped)
            .without_effect(&shipped());
        assert_eq!(found(&evidence), [Kind::NoDeadLetter]);
    }

    #[test]
    fn g8_two_records_of_one_message() {
        let mut evidence = good();
        let record = evidence.records[0].clone();
        evidence.records.push(record);
        assert_eq!(found(&evidence), [Kind::TwoRecords]);
    }

    #[test]
    fn g8_what_nobody_published() {
        let mut evidence = good();
        evidence.messages.pop();
        // Its effect and its claim.
        assert_eq!(found(&evidence), [Kind::Unknown, Kind::Unknown]);
        let mut evidence = good();
        evidence.effect(&payment()).context = "elsewhere".to_owned();
        assert_eq!(found(&evidence), [Kind::Unknown]);
    }

    #[test]
    fn g8_what_is_left_in_a_queue() {
        let mut evidence = good();
        evidence.queued.push("orders".to_owned());
        assert_eq!(found(&evidence), [Kind::Queued]);
    }

    #[test]
    fn a_skip_is_in_its_place_and_no_effect() {
        let reserved = key("order.reserved", "orders-1");
        let mut evidence = good().fated(&reserved, Fate::Skipped).recorded(
            &reserved,
            State::Skipped,
            3,
            Some(FAILED),
        );
        evidence.effect(&reserved).is_skip = true;
        assert_eq!(judge(&evidence), []);
        // Skipped after what depends on it was handled.
        evidence.effect(&reserved).started = 1001;
        evidence.effect(&reserved).ended = 1002;
        assert_eq!(found(&evidence), [Kind::OutOfOrder]);
    }

    #[test]
    fn an_old_failure_of_a_plain_message_does_not_count_against_it() {
        for state in [State::Scheduled, State::Dead, State::Processed] {
            let evidence = good().recorded(&payment(), state, 1, Some("no"));
            assert_eq!(judge(&evidence), []);
        }
    }

    #[test]
    fn kinds_are_counted() {
        let key = payment();
        let evidence = good().without_effect(&key).without_claim(&shipped());
        let counts = by_kind(&judge(&evidence));
        assert_eq!(counts[&Kind::ClaimWithoutEffect], 1);
        assert_eq!(counts[&Kind::EffectWithoutClaim], 1);
        assert_eq!(counts.len(), 2);
    }
}

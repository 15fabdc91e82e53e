//! What a history is made of, and how random ones are drawn.

use std::{collections::BTreeMap, fmt};

use proptest::{collection::vec, option, prelude::*, strategy::Union};

/// How many sessions act.
pub const SESSIONS: usize = 3;

/// How many contexts there are.
pub const CONTEXTS: usize = 3;

/// How many message types there may be.
pub const TYPES: usize = 4;

/// How many messages there are in all contexts together.
pub const MESSAGES: usize = 14;

/// A message by its number. Its type and its usual context and position follow from it: the
/// messages of one context have the positions 1, 2, 3 … and all types in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub usize);

impl Key {
    /// The number of its type.
    pub fn message_type(self) -> usize {
        self.0 % TYPES
    }

    /// The context that it is usually sent with.
    pub fn context(self) -> usize {
        self.0 / TYPES % CONTEXTS
    }

    /// The position that it is usually sent with.
    pub fn position(self) -> i64 {
        let before = (0..self.0).filter(|n| Self(*n).context() == self.context());
        before.count() as i64 + 1
    }
}

/// Which predecessors must be processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// A message of this type.
    After(usize),
    /// All of them.
    All(Vec<Condition>),
    /// One of them.
    Any(Vec<Condition>),
}

/// A declared message type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// What comes before it.
    pub condition: Option<Condition>,
    /// An instance is complete without it.
    pub optional: bool,
    /// By position: it completes the instance.
    pub last: bool,
}

/// A declaration of the one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Its types.
    pub types: BTreeMap<usize, Type>,
    /// `ordering => 'position'`.
    pub by_position: bool,
    /// `on_failure => 'skip'`.
    pub skip: bool,
    /// Messages are only recorded.
    pub recording: bool,
}

/// When a failed message is due again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Never.
    Never,
    /// At once.
    Now,
    /// Not while this history lasts.
    Later,
}

/// A message as it is sent, where that is not as usual.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Which.
    pub key: Key,
    /// Its context.
    pub context: Option<usize>,
    /// Its position.
    pub position: Option<i64>,
    /// Whether it has a payload.
    pub payload: bool,
}

/// What a session does.
#[derive(Debug, Clone)]
pub enum Op {
    /// `inbox_receive(…, wait => false)`.
    Receive(Sent),
    /// Receives; the handler of what is to be processed fails: rollback, then `inbox_fail`.
    ReceiveAndFail(Sent, Again),
    /// `inbox_next()` or `inbox_next(instance)`.
    Next(Option<usize>),
    /// The same; the handler fails: rollback, then `inbox_fail_message`.
    NextAndFail(Option<usize>, Again),
    /// `inbox_try_claim` with the instance of that context.
    Claim(Key, usize),
    /// `inbox_fail_message`.
    Fail(Key, Again),
    /// `inbox_retry`.
    Retry(Key),
    /// `inbox_force`.
    Force(Key),
    /// `inbox_skip`.
    Skip(Key),
    /// `inbox_skip_gap`.
    SkipGap(usize),
    /// `inbox_force_all`.
    ForceAll(usize),
    /// `inbox_close`.
    Close(usize),
    /// `inbox_declare_sequence` with something else.
    Declare(Declaration),
    /// The same with other conditions alone.
    DeclareConditions(Vec<Option<Condition>>),
    /// The same with the other `on_failure`.
    DeclareOnFailure,
    /// The same with recording switched on or off.
    DeclareRecording,
    /// `BEGIN`.
    Begin,
    /// `COMMIT`.
    Commit,
    /// `ROLLBACK`.
    Rollback,
    /// The session's backend is terminated, as in a crash of its process.
    Crash,
    /// `inbox_housekeeping`.
    Housekeeping,
    /// The instance's time is over, and `inbox_housekeeping` sees it.
    Expire(usize),
}

/// One step of a history.
#[derive(Debug, Clone)]
pub struct Step {
    /// Who acts.
    pub session: usize,
    /// What it does.
    pub op: Op,
    /// Inside of a transaction: it is done in a savepoint that is rolled back to.
    pub undone: bool,
}

/// A declaration and what happens then.
#[derive(Clone)]
pub struct History {
    /// The first declaration.
    pub declaration: Declaration,
    /// What happens.
    pub steps: Vec<Step>,
}

/// One line a step, whatever is asked for: a history is read from top to bottom.
impl fmt::Debug for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\n{:?}", self.declaration)?;
        for (number, step) in self.steps.iter().enumerate() {
            let undone = if step.undone { " (undone)" } else { "" };
            write!(
                formatter,
                "\n{:3}: session {}: {:?}{undone}",
                number + 1,
                step.session,
                step.op
            )?;
        }
        Ok(())
    }
}

/// A condition on types before `n`, so that there is no cycle.
fn condition(n: usize) -> BoxedStrategy<Option<Condition>> {
    if n == 0 {
        return Just(None).boxed();
    }
    let leaf = (0..n).prop_map(Condition::After);
    let tree = leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..4).prop_map(Condition::All),
            vec(inner, 1..4).prop_map(Condition::Any),
        ]
    });
    option::weighted(0.8, tree).boxed()
}

fn conditions() -> impl Strategy<Value = Vec<Option<Condition>>> {
    (0..TYPES).map(condition).collect::<Vec<_>>()
}

fn declaration() -> impl Strategy<Value = Declaration> {
    (
        conditions(),
        vec(
            (
                prop::bool::weighted(0.9),
                prop::bool::weighted(0.3),
                prop::bool::weighted(0.3),
            ),
            TYPES,
        ),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(conditions, flags, by_position, skip, recording)| {
            let mut types: BTreeMap<usize, Type> = conditions
                .into_iter()
                .zip(flags)
                .enumerate()
                .filter(|(_, (_, (there, _, _)))| *there)
                .map(|(n, (condition, (_, optional, last)))| {
                    let declared = Type {
                        condition,
                        optional,
                        last,
                    };
                    (n, declared)
                })
                .collect();
            // Nothing may name a type that is not there.
            let there: Vec<usize> = types.keys().copied().collect();
            for declared in types.values_mut() {
                if declared
                    .condition
                    .as_ref()
                    .is_some_and(|it| !it.is_among(&there))
                {
                    declared.condition = None;
                }
            }
            Declaration {
                types,
                by_position,
                skip,
                recording,
            }
        })
}

impl Condition {
    /// Whether it names only these types.
    pub fn is_among(&self, types: &[usize]) -> bool {
        match self {
            Self::After(n) => types.contains(n),
            Self::All(parts) | Self::Any(parts) => parts.iter().all(|part| part.is_among(types)),
        }
    }
}

fn again() -> impl Strategy<Value = Again> {
    prop_oneof![3 => Just(Again::Never), 3 => Just(Again::Now), 1 => Just(Again::Later)]
}

fn op() -> impl Strategy<Value = Op> {
    let key = || (0..MESSAGES).prop_map(Key);
    let context = || 0..CONTEXTS;
    let sent = || {
        (
            key(),
            option::weighted(0.1, 0..CONTEXTS),
            option::weighted(0.15, 1_i64..7),
            prop::bool::weighted(0.9),
        )
            .prop_map(|(key, context, position, payload)| Sent {
                key,
                context,
                position,
                payload,
            })
    };
    let any_context = || option::of(context());
    let weighted: Vec<(u32, BoxedStrategy<Op>)> = vec![
        (34, sent().prop_map(Op::Receive).boxed()),
        (
            6,
            (sent(), again())
                .prop_map(|(sent, again)| Op::ReceiveAndFail(sent, again))
                .boxed(),
        ),
        (14, any_context().prop_map(Op::Next).boxed()),
        (
            6,
            (any_context(), again())
                .prop_map(|(of, again)| Op::NextAndFail(of, again))
                .boxed(),
        ),
        (
            1,
            (key(), context())
                .prop_map(|(key, of)| Op::Claim(key, of))
                .boxed(),
        ),
        (
            4,
            (key(), again())
                .prop_map(|(key, again)| Op::Fail(key, again))
                .boxed(),
        ),
        (5, key().prop_map(Op::Retry).boxed()),
        (4, key().prop_map(Op::Force).boxed()),
        (4, key().prop_map(Op::Skip).boxed()),
        (3, context().prop_map(Op::SkipGap).boxed()),
        (1, context().prop_map(Op::ForceAll).boxed()),
        (2, context().prop_map(Op::Close).boxed()),
        (1, declaration().prop_map(Op::Declare).boxed()),
        (2, conditions().prop_map(Op::DeclareConditions).boxed()),
        (3, Just(Op::DeclareOnFailure).boxed()),
        (2, Just(Op::DeclareRecording).boxed()),
        (12, Just(Op::Begin).boxed()),
        (9, Just(Op::Commit).boxed()),
        (4, Just(Op::Rollback).boxed()),
        (1, Just(Op::Crash).boxed()),
        (2, Just(Op::Housekeeping).boxed()),
        (1, context().prop_map(Op::Expire).boxed()),
    ];
    Union::new_weighted(weighted)
}

/// Random histories.
pub fn histories() -> impl Strategy<Value = History> {
    let step =
        (0..SESSIONS, op(), prop::bool::weighted(0.15)).prop_map(|(session, op, undone)| Step {
            session,
            op,
            undone,
        });
    (declaration(), vec(step, 1..70))
        .prop_map(|(declaration, steps)| History { declaration, steps })
}

//! What must hold in every state, and what must be reachable for that to mean
//! anything.

use std::array::from_fn;

use stateright::{Model, Property};

use crate::protocol::{Action, Answer, RingModel};
use crate::state::{ClaimStep, Key, MAX_SESSIONS, Phase, State};
use crate::symmetry;
use crate::variant::Promise;

/// G1, G9: of one key, no claim wins within a retention after one that committed.
pub const ONE_WINNER: &str = "one winner inside a retention";

/// Every wait of a claim ends, and none stands behind a rotation for longer than
/// its timeout.
pub const WAITS_END: &str = "waits end";

/// The reason behind the order of a claim's steps: rows of transactions in
/// progress are in the current table alone.
pub const SEALED_IS_FINISHED: &str = "sealed tables hold finished rows only";

/// With rotation on time, no claim outlives one and a half retentions.
pub const AT_MOST_ONE_AND_A_HALF: &str = "a claim protects at most one and a half retentions";

/// With rotation on time, a key can be free again after exactly one retention.
pub const FREE_AFTER_ONE: &str = "a key is free after one retention";

/// With rotation on time, a key can be protected for exactly one and a half.
pub const HELD_FOR_ONE_AND_A_HALF: &str = "a key is protected for one and a half retentions";

/// The watched story has been told to its end.
pub const TOLD: &str = "the watched story happens";

/// Something that must be able to happen, or the promises would hold for want of
/// anything to break them. Told by a model of one key without symmetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Witness {
    /// Three rotations, so that each table was emptied.
    RotatedThrice,
    /// A key wins again, a retention after its first win.
    WonAgain,
    /// G2: a duplicate waits, the winner commits, the duplicate is told `false`.
    WaitedThenSkipped,
    /// G3: a duplicate waits, the winner rolls back, the duplicate wins.
    TookOver,
    /// G10: a claim gets 40001.
    SerializationFailure,
    /// A prepared claim outlives a crash of the server and wins.
    PreparedOutlivesCrash,
    /// A rotation gives up because of a claim in flight.
    RotationGaveUp,
    /// A transaction rotates, claims in the table it emptied, and commits.
    ClaimedAfterOwnRotation,
}

impl Witness {
    /// All of them.
    pub const ALL: [Witness; 8] = [
        Witness::RotatedThrice,
        Witness::WonAgain,
        Witness::WaitedThenSkipped,
        Witness::TookOver,
        Witness::SerializationFailure,
        Witness::PreparedOutlivesCrash,
        Witness::RotationGaveUp,
        Witness::ClaimedAfterOwnRotation,
    ];

    /// The value of [`State::story`] when the story has been told.
    const END: u8 = u8::MAX;

    /// How far the story has come after `action`. A story about one transaction
    /// keeps its number, counted from 1, until that transaction ends it.
    fn story(self, model: &RingModel, before: &State, action: Action, after: &State) -> u8 {
        let story = before.story;
        if story == Self::END {
            return story;
        }
        let end_if = |told: bool| if told { Self::END } else { story };
        let won = |which: usize| before.sessions[which].holds().rows.has_key(0);
        let rotated = |which: usize| before.sessions[which].rotation.done;
        let hero = usize::from(story).checked_sub(1);
        match (self, action) {
            (Witness::RotatedThrice, Action::Commit(which)) if rotated(which) => {
                [1, 2, Self::END][usize::from(story)]
            }
            (Witness::WonAgain, Action::Commit(which)) if won(which) => {
                [1, Self::END][usize::from(story)]
            }
            (Witness::WaitedThenSkipped, Action::Commit(which)) if won(which) => {
                waiter_for(before, which).map_or(story, number)
            }
            (Witness::WaitedThenSkipped, Action::Step(which)) if hero == Some(which) => {
                end_if(model.answer(before, which) == Some(Answer::Duplicate))
            }
            (Witness::TookOver, Action::Abort(which) | Action::RollbackTo(which)) if won(which) => {
                waiter_for(before, which).map_or(story, number)
            }
            (Witness::TookOver, Action::Commit(which)) if hero == Some(which) => end_if(won(which)),
            (Witness::SerializationFailure, Action::Step(which)) => {
                end_if(model.answer(before, which) == Some(Answer::Serialization))
            }
            (Witness::PreparedOutlivesCrash, Action::ServerCrash) => (0..MAX_SESSIONS)
                .find(|&which| after.sessions[which].prepared && won(which))
                .map_or(story, number),
            (Witness::PreparedOutlivesCrash, Action::Commit(which)) if hero == Some(which) => {
                end_if(won(which))
            }
            (Witness::RotationGaveUp, Action::GiveUp(which)) => {
                let waits = model.waits_for(before, which);
                end_if((0..MAX_SESSIONS).any(|other| waits[other] && won(other)))
            }
            (Witness::ClaimedAfterOwnRotation, Action::Commit(which)) => {
                end_if(rotated(which) && won(which))
            }
            (Witness::RotatedThrice | Witness::WonAgain, _) => story,
            _ if hero.is_some_and(|which| after.sessions[which].is_idle()) => 0,
            _ => story,
        }
    }
}

/// The number in a story of the transaction at `which`.
fn number(which: usize) -> u8 {
    which as u8 + 1
}

/// A transaction that waits to insert the key that `holder` has in flight.
fn waiter_for(state: &State, holder: usize) -> Option<usize> {
    let rows = state.sessions[holder].holds().rows;
    (0..MAX_SESSIONS).find(|&which| match state.sessions[which].phase {
        Phase::Claim {
            key,
            step: ClaimStep::Insert,
            current: Some(current),
        } => which != holder && rows.has(current, key),
        _ => false,
    })
}

impl RingModel {
    fn keys(&self) -> impl Iterator<Item = Key> {
        0..self.scope.keys as Key
    }

    fn sealed_is_finished(&self, state: &State) -> bool {
        let current = self.ring(state).current;
        state
            .sessions
            .iter()
            .filter(|session| !session.rotation.done)
            .all(|session| !session.holds().rows.any_outside(current))
    }

    fn protects_at_most_one_and_a_half(&self, state: &State) -> bool {
        self.keys()
            .filter(|&key| state.committed.has_key(key))
            .all(|key| {
                state.won[usize::from(key)].is_some_and(|age| age <= self.longest_protection())
            })
    }

    /// Whether everybody who waits will be let go.
    ///
    /// A transaction moves on when nothing holds it up, when it gives up by
    /// itself, or when all that it waits for move on. Two transactions that claim
    /// the same two keys in opposite orders wait for each other whatever the
    /// protocol; there Postgres picks a victim. Beyond that, a rotation that a
    /// claim stands behind must either be at work or about to give up.
    fn waits_end(&self, state: &State) -> bool {
        let held_up: [_; MAX_SESSIONS] = from_fn(|which| self.held_up_by(state, which));
        if held_up == [[false; MAX_SESSIONS]; MAX_SESSIONS] {
            return true;
        }
        let gives_up: [bool; MAX_SESSIONS] = from_fn(|which| self.gives_up(&state.sessions[which]));
        let mut moves = gives_up;
        for _ in 0..MAX_SESSIONS {
            moves = from_fn(|which| {
                gives_up[which] || (0..MAX_SESSIONS).all(|o| !held_up[which][o] || moves[o])
            });
        }
        (0..MAX_SESSIONS).all(|which| {
            let bounded = !at(state, which, ClaimStep::Gate)
                || (0..MAX_SESSIONS).all(|rotator| {
                    !held_up[which][rotator]
                        || gives_up[rotator]
                        || !self.is_blocked(state, rotator)
                });
            bounded && (moves[which] || at(state, which, ClaimStep::Insert))
        })
    }

    /// What `which` waits for, the queue at the gate included: a claim that does
    /// not hold the gate yet stands behind a rotation that has asked for it.
    fn held_up_by(&self, state: &State, which: usize) -> [bool; MAX_SESSIONS] {
        let queues = at(state, which, ClaimStep::Gate) && !state.sessions[which].holds().gate;
        let mut held_up = self.waits_for(state, which);
        for (other, session) in state.sessions.iter().enumerate() {
            held_up[other] |= queues && matches!(session.phase, Phase::Rotate(_));
        }
        held_up
    }

    fn promises(&self) -> Vec<Property<Self>> {
        let one_winner = Property::<Self>::always(ONE_WINNER, |_, state| !state.two_winners);
        let waits_end = Property::<Self>::always(WAITS_END, Self::waits_end);
        let at_most = Property::always(
            AT_MOST_ONE_AND_A_HALF,
            Self::protects_at_most_one_and_a_half,
        );
        match self.variant.breaks() {
            Some(Promise::OneWinner) => vec![one_winner],
            Some(Promise::WaitsEnd) => vec![waits_end],
            Some(Promise::AtMostOneAndAHalf) => vec![at_most],
            None => {
                let finished = Property::always(SEALED_IS_FINISHED, Self::sealed_is_finished);
                let mut promises = vec![one_winner, waits_end, finished];
                if self.scope.on_time {
                    promises.push(at_most);
                    promises.extend(self.both_ends_of_the_range());
                }
                promises
            }
        }
    }

    fn both_ends_of_the_range(&self) -> [Property<Self>; 2] {
        [
            Property::sometimes(FREE_AFTER_ONE, |model: &Self, state: &State| {
                model.keys().any(|key| {
                    state.won[usize::from(key)] == Some(model.retention())
                        && !state.committed.has_key(key)
                })
            }),
            Property::sometimes(HELD_FOR_ONE_AND_A_HALF, |model: &Self, state: &State| {
                model.keys().any(|key| {
                    state.won[usize::from(key)] == Some(model.longest_protection())
                        && state.committed.has_key(key)
                })
            }),
        ]
    }
}

/// Whether the transaction at `which` is about to take `wanted`.
fn at(state: &State, which: usize, wanted: ClaimStep) -> bool {
    matches!(state.sessions[which].phase, Phase::Claim { step, .. } if step == wanted)
}

impl Model for RingModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut after = self.after(state, action);
        if let Some(witness) = self.scope.watch {
            after.story = witness.story(self, state, action, &after);
        }
        Some(if self.scope.symmetric {
            symmetry::representative(self, after)
        } else {
            after
        })
    }

    /// What is watched for, or else the promises. A broken protocol is asked only
    /// for the promise it breaks, so that the path found is the shortest.
    fn properties(&self) -> Vec<Property<Self>> {
        match self.scope.watch {
            Some(_) => vec![Property::sometimes(TOLD, |_, state: &State| {
                state.story == Witness::END
            })],
            None => self.promises(),
        }
    }
}

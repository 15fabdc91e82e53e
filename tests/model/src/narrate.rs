//! A path through the model told as a list of steps, for people.
//!
//! Transactions are numbered T1, T2, … in the order in which they begin; the
//! message claimed is `m`, a second one `n`; times count ticks from 0.

use crate::protocol::{Action, Answer, RingModel};
use crate::state::{
    ClaimStep, Isolation, Key, MAX_SESSIONS, Phase, RotateStep, Session, State, next, others,
};

/// The steps that `actions` take from the start, one line each, `time  who  what`,
/// and what is wrong or stuck at the end of them. None when they are not possible.
pub fn narrate(model: &RingModel, actions: &[Action]) -> Option<Vec<String>> {
    let states = replay(model, actions)?;
    let mut teller = Teller {
        model,
        now: 0,
        names: Default::default(),
        begun: 0,
    };
    let steps = states.iter().zip(states.iter().skip(1)).zip(actions);
    let mut lines: Vec<String> = steps
        .map(|((before, after), action)| teller.tell(before, *action, after))
        .collect();
    lines.extend(
        states
            .last()
            .into_iter()
            .flat_map(|last| teller.ending(last)),
    );
    Some(lines)
}

/// The same actions in an order that leads to the same end and interleaves no more
/// than it must: a step that need not be where it is moves on to its
/// transaction's next one.
pub fn tidied(model: &RingModel, actions: &[Action]) -> Vec<Action> {
    let end = |actions: &[Action]| replay(model, actions).and_then(|mut states| states.pop());
    let wanted = end(actions);
    let mut tidied = actions.to_vec();
    for first in (0..actions.len()).rev() {
        let moved = put_off(&tidied, first);
        if end(&moved) == wanted {
            tidied = moved;
        }
    }
    tidied
}

/// The states that `actions` lead through, the start included; none when one of
/// them is not possible where it stands.
pub fn replay(model: &RingModel, actions: &[Action]) -> Option<Vec<State>> {
    let mut states = vec![model.start()];
    let mut possible = Vec::new();
    for action in actions {
        let state = states.last()?;
        possible.clear();
        model.possible(state, &mut possible);
        if !possible.contains(action) {
            return None;
        }
        let after = model.after(state, *action);
        states.push(after);
    }
    Some(states)
}

/// `actions` with the one at `first` moved to just before the next one of the
/// same transaction.
fn put_off(actions: &[Action], first: usize) -> Vec<Action> {
    let mut moved = actions.to_vec();
    let who = actions[first].session();
    let next = actions[first + 1..]
        .iter()
        .position(|action| who.is_some() && action.session() == who);
    if let Some(distance) = next {
        moved[first..=first + distance].rotate_left(1);
    }
    moved
}

struct Teller<'a> {
    model: &'a RingModel,
    now: u32,
    /// The number of the transaction in each place of the state.
    names: [u32; MAX_SESSIONS],
    begun: u32,
}

impl Teller<'_> {
    fn tell(&mut self, before: &State, action: Action, after: &State) -> String {
        let (which, what) = match action {
            Action::Tick => {
                self.now += 1;
                return format!("{}  the clock moves on", self.now);
            }
            Action::ServerCrash => return format!("{}  the server is killed", self.now),
            Action::Begin {
                session,
                isolation,
                reads,
            } => (session, begins(isolation, reads)),
            Action::Claim {
                session,
                key,
                savepoint,
            } => (session, calls(key, savepoint)),
            Action::Rotate(which) => (which, "sets out to rotate".to_owned()),
            Action::Step(which) => (which, self.step(before, which, after)),
            Action::GiveUp(which) => (which, "gives up: busy".to_owned()),
            Action::RollbackTo(which) => (which, "ROLLBACK TO SAVEPOINT".to_owned()),
            Action::Release(which) => (which, "RELEASE SAVEPOINT".to_owned()),
            Action::Prepare(which) => (which, "PREPARE TRANSACTION".to_owned()),
            Action::Commit(which) if before.sessions[which].prepared => {
                (which, "COMMIT PREPARED".to_owned())
            }
            Action::Commit(which) => (which, "COMMIT".to_owned()),
            Action::Abort(which) => (which, "ROLLBACK".to_owned()),
        };
        if before.sessions[which].is_idle() {
            self.begun += 1;
            self.names[which] = self.begun;
        }
        format!("{}  T{}  {what}", self.now, self.names[which])
    }

    fn ending(&self, last: &State) -> Vec<String> {
        let mut lines = Vec::new();
        if last.two_winners {
            lines.push(format!(
                "{}  two claims of one message have won inside one retention",
                self.now
            ));
        }
        let outlived = |key: usize| {
            last.committed.has_key(key as Key)
                && last.won[key].is_some_and(|age| age > self.model.longest_protection())
        };
        if (0..last.won.len()).any(outlived) {
            lines.push(format!(
                "{}  a claim has protected for more than one and a half retentions",
                self.now
            ));
        }
        for (which, name) in self.names.iter().enumerate() {
            let waits = self.model.waits_for(last, which);
            for (holder, _) in self.names.iter().zip(waits).filter(|&(_, waits)| waits) {
                lines.push(format!("{}  T{name}  waits for T{holder}", self.now));
            }
        }
        lines
    }

    fn step(&self, before: &State, which: usize, after: &State) -> String {
        let session = &after.sessions[which];
        match before.sessions[which].phase {
            Phase::Ready => String::new(),
            Phase::Claim { key, step, current } => {
                let answer = self.model.answer(before, which);
                match (step, current) {
                    (ClaimStep::Gate, _) => "takes the weak lock".to_owned(),
                    (ClaimStep::ReadRing, _) => match session.phase {
                        Phase::Claim {
                            current: Some(read),
                            ..
                        } => format!("reads the ring: table {read} is current"),
                        _ => String::new(),
                    },
                    (ClaimStep::Probe, Some(current)) => {
                        let mut tables = others(current);
                        tables.sort_unstable();
                        let [a, b] = tables;
                        format!("probes tables {a} and {b}: {}", found(answer))
                    }
                    (ClaimStep::Insert, Some(current)) => {
                        format!(
                            "inserts {} into table {current}: {}",
                            message(key),
                            found(answer)
                        )
                    }
                    (ClaimStep::Probe | ClaimStep::Insert, None) => String::new(),
                }
            }
            Phase::Rotate(step) => self.rotate_step(step, session),
        }
    }

    fn rotate_step(&self, step: RotateStep, session: &Session) -> String {
        let rotation = session.rotation;
        match (step, rotation.from) {
            (RotateStep::Gate, _) => "takes the strong lock".to_owned(),
            (RotateStep::ReadRing, None) => "reads clock and ring: nothing is due".to_owned(),
            (RotateStep::ReadRing, Some(from)) => format!(
                "reads clock and ring: table {from} is current, table {} may be emptied",
                next(from)
            ),
            (RotateStep::Truncate, from) => {
                let (from, age) = (from.unwrap_or(0), rotation.clock.unwrap_or(0));
                format!(
                    "empties table {}, makes it current, seals table {from} as of {}",
                    next(from),
                    self.now - u32::from(age)
                )
            }
        }
    }
}

fn begins(isolation: Isolation, reads: bool) -> String {
    let level = match isolation {
        Isolation::ReadCommitted => "BEGIN",
        Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
    };
    let statement = if reads {
        "reads the claim tables"
    } else {
        "runs a first statement"
    };
    format!("{level}, {statement}")
}

fn calls(key: Key, savepoint: bool) -> String {
    let savepoint = if savepoint { "SAVEPOINT, " } else { "" };
    format!("{savepoint}calls inbox_claim for {}", message(key))
}

fn message(key: Key) -> char {
    char::from(b'm' + key)
}

fn found(answer: Option<Answer>) -> &'static str {
    match answer {
        None => "not there",
        Some(Answer::Won) => "true",
        Some(Answer::Duplicate) => "there, false",
        Some(Answer::Serialization) => "there but newer than the snapshot, 40001",
    }
}

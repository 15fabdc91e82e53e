//! The atomic steps, each as Postgres lets it happen.
//!
//! Claims, rotations and application statements of different transactions are
//! interleaved in every order; a step is possible only while Postgres would not
//! make it wait. Any transaction may do anything: claim, rotate, both. Where the
//! model and Postgres differ, the model allows more: a claim may overtake a
//! rotation that queues for the gate, a rotation in a REPEATABLE READ transaction
//! may change a ring row that its snapshot does not show, and locks are released
//! by any error, timeout or lost connection at any step ([`Action::Abort`]).

use crate::promises::Witness;
use crate::state::{
    Age, ClaimStep, Isolation, Key, MAX_KEYS, MAX_SESSIONS, Phase, Ring, RotateStep, Rotation,
    Rows, Session, Snapshot, State, TABLES, Table, Tables, next, others, previous,
};
use crate::variant::Variant;

/// What happens at once in a model. See the crate's opening for why this is
/// enough.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Transactions at once, prepared ones counted: 1 to [`MAX_SESSIONS`].
    pub sessions: usize,
    /// Keys: 1 to [`MAX_KEYS`].
    pub keys: usize,
    /// Half a retention, in ticks.
    pub half_retention: Age,
    /// Claims may be made inside a savepoint.
    pub savepoints: bool,
    /// There are REPEATABLE READ transactions.
    pub repeatable_read: bool,
    /// Transactions may be prepared.
    pub prepared: bool,
    /// Transactions may read the claim tables before they claim, as the
    /// `inbox_claims` view does: they then hold their locks without the gate.
    pub readers: bool,
    /// A transaction does one thing: it claims each key once, or it rotates. What
    /// the checker finds then reads as a story of several transactions. Otherwise
    /// a transaction claims and rotates in any order.
    pub one_job: bool,
    /// Rotation happens every half retention on time: no tick passes while one is
    /// due. Otherwise it happens at any time at which a table may be emptied.
    pub on_time: bool,
    /// States that differ only in names are taken as one.
    pub symmetric: bool,
    /// The story that is watched for.
    pub watch: Option<Witness>,
}

/// The ring with a protocol and a scope; what stateright explores.
#[derive(Clone, Copy, Debug)]
pub struct RingModel {
    /// The protocol followed.
    pub variant: Variant,
    /// What happens at once.
    pub scope: Scope,
}

/// One step of one transaction, by its place in [`State::sessions`], or of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The database's clock moves on by one tick.
    Tick,
    /// The server is killed and starts again: prepared transactions remain.
    ServerCrash,
    /// A transaction takes its snapshot with a statement other than a claim.
    Begin {
        /// Which.
        session: usize,
        /// Its isolation level.
        isolation: Isolation,
        /// The statement reads the claim tables.
        reads: bool,
    },
    /// `inbox_claim` is called.
    Claim {
        /// Which.
        session: usize,
        /// The key claimed.
        key: Key,
        /// SAVEPOINT comes first.
        savepoint: bool,
    },
    /// `inbox_housekeeping` is called, and sets out to rotate.
    Rotate(usize),
    /// The running claim or rotation takes its next step.
    Step(usize),
    /// The rotation's lock timeout is over: it reports busy.
    GiveUp(usize),
    /// ROLLBACK TO SAVEPOINT, after an error in the claim too.
    RollbackTo(usize),
    /// RELEASE SAVEPOINT.
    Release(usize),
    /// PREPARE TRANSACTION.
    Prepare(usize),
    /// COMMIT or COMMIT PREPARED.
    Commit(usize),
    /// ROLLBACK, ROLLBACK PREPARED, an error, a lost connection, a killed backend.
    Abort(usize),
}

impl Action {
    /// The transaction that takes the step; none for a step of all.
    pub fn session(self) -> Option<usize> {
        match self {
            Action::Tick | Action::ServerCrash => None,
            Action::Begin { session, .. } | Action::Claim { session, .. } => Some(session),
            Action::Rotate(session)
            | Action::Step(session)
            | Action::GiveUp(session)
            | Action::RollbackTo(session)
            | Action::Release(session)
            | Action::Prepare(session)
            | Action::Commit(session)
            | Action::Abort(session) => Some(session),
        }
    }
}

/// What a claim answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `true`.
    Won,
    /// `false`.
    Duplicate,
    /// SQLSTATE 40001: the claim that stands is newer than the snapshot.
    Serialization,
}

impl RingModel {
    /// One retention, in ticks.
    pub fn retention(&self) -> Age {
        2 * self.scope.half_retention
    }

    /// The longest that a claim may protect when rotation is on time, in ticks.
    pub fn longest_protection(&self) -> Age {
        3 * self.scope.half_retention
    }

    /// The state of a database in which the extension was just created.
    pub fn start(&self) -> State {
        State {
            ring: None,
            committed: Rows::default(),
            won: [None; MAX_KEYS],
            two_winners: false,
            story: 0,
            sessions: [Session::default(); MAX_SESSIONS],
        }
    }

    /// The ring as the committed row shows it: without a row, table 0 is current
    /// and the others were never sealed.
    pub fn ring(&self, state: &State) -> Ring {
        state.ring.unwrap_or(Ring {
            current: 0,
            sealed: [self.retention(); TABLES as usize],
        })
    }

    /// Whether the committed ring may move on.
    ///
    /// The table to be emptied must have been sealed a retention ago. With
    /// rotation on time, the current table must also have been current for half a
    /// retention, so that rotations keep their distance.
    pub fn is_due(&self, state: &State) -> bool {
        let ring = self.ring(state);
        let sealed = |table: Table| ring.sealed[usize::from(table)];
        let judged = match self.variant {
            // When the next table became current its predecessor was sealed, which
            // is the table that is current now.
            Variant::TruncateByWrongClock => sealed(ring.current),
            _ => sealed(next(ring.current)),
        };
        let paced = !self.scope.on_time
            || self.variant == Variant::RotationWithoutPacing
            || sealed(previous(ring.current)) >= self.scope.half_retention;
        judged >= self.retention() && paced
    }

    /// The current table as `session` reads it with a new snapshot: its own
    /// rotation included.
    fn current_for(&self, state: &State, session: &Session) -> Table {
        session.emptied().unwrap_or(self.ring(state).current)
    }

    /// The committed rows as `session` reads them with a new snapshot.
    fn rows_for(state: &State, session: &Session) -> Rows {
        match session.emptied() {
            Some(table) => state.committed.without(table),
            None => state.committed,
        }
    }

    /// A snapshot taken now. It shows the ring only to a protocol that looks there.
    fn snapshot(&self, state: &State, session: &Session) -> Snapshot {
        let shows_ring = self.variant == Variant::CurrentReadWithOldSnapshot;
        Snapshot {
            rows: Self::rows_for(state, session),
            current: shows_ring.then(|| self.current_for(state, session)),
        }
    }

    /// Which transactions keep the one at `which` from taking its next step.
    pub fn waits_for(&self, state: &State, which: usize) -> [bool; MAX_SESSIONS] {
        let mut waits = [false; MAX_SESSIONS];
        for (i, other) in state.sessions.iter().enumerate() {
            waits[i] = i != which && Self::makes_wait(other, &state.sessions[which]);
        }
        waits
    }

    /// Whether the transaction at `which` has to wait before its next step.
    pub fn is_blocked(&self, state: &State, which: usize) -> bool {
        self.waits_for(state, which).contains(&true)
    }

    /// Whether what `other` holds keeps `waiting` from its next step.
    fn makes_wait(other: &Session, waiting: &Session) -> bool {
        let locked = |table: Table| other.emptied() == Some(table);
        match waiting.phase {
            Phase::Ready | Phase::Rotate(RotateStep::ReadRing) => false,
            Phase::Claim { key, step, current } => match (step, current) {
                (ClaimStep::Gate, _) => other.rotation.gate,
                (ClaimStep::Probe, Some(current)) => others(current).into_iter().any(locked),
                (ClaimStep::Insert, Some(current)) => {
                    locked(current) || other.holds().rows.has(current, key)
                }
                _ => false,
            },
            Phase::Rotate(RotateStep::Gate) => other.holds().gate || other.rotation.gate,
            Phase::Rotate(RotateStep::Truncate) => waiting
                .rotation
                .from
                .is_some_and(|from| other.holds().touched.has(next(from)) || locked(next(from))),
        }
    }

    /// What the claim of `which` answers when it takes its next step; none when it
    /// has no answer yet.
    pub fn answer(&self, state: &State, which: usize) -> Option<Answer> {
        let session = &state.sessions[which];
        let Phase::Claim {
            key,
            step,
            current: Some(current),
        } = session.phase
        else {
            return None;
        };
        let newest = Self::rows_for(state, session);
        let asked = match (self.variant, session.snapshot) {
            (Variant::SealedProbedWithOldSnapshot, Some(old)) => old.rows,
            _ => newest,
        };
        let refused = |table: Table| match session.snapshot {
            Some(old)
                if session.isolation == Isolation::RepeatableRead && !old.rows.has(table, key) =>
            {
                Answer::Serialization
            }
            _ => Answer::Duplicate,
        };
        match step {
            ClaimStep::Gate | ClaimStep::ReadRing => None,
            ClaimStep::Probe => others(current)
                .into_iter()
                .find(|&table| asked.has(table, key))
                .map(refused),
            ClaimStep::Insert if session.holds().rows.has(current, key) => Some(Answer::Duplicate),
            ClaimStep::Insert if newest.has(current, key) => Some(refused(current)),
            ClaimStep::Insert => Some(Answer::Won),
        }
    }

    /// Adds what can happen next to `actions`.
    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        if !(self.scope.on_time && self.is_due(state)) {
            actions.push(Action::Tick);
        }
        // With one transaction, not prepared, a crash is a rollback.
        let sessions = &state.sessions;
        if sessions.iter().any(|s| s.prepared)
            || sessions.iter().filter(|s| !s.is_idle()).count() > 1
        {
            actions.push(Action::ServerCrash);
        }
        for which in 0..self.scope.sessions {
            let session = &state.sessions[which];
            if session.prepared {
                actions.extend([Action::Commit(which), Action::Abort(which)]);
                continue;
            }
            match session.phase {
                Phase::Ready => self.possible_when_ready(which, session, actions),
                Phase::Claim { .. } => {
                    if !self.is_blocked(state, which) {
                        actions.push(Action::Step(which));
                    }
                }
                Phase::Rotate(_) => {
                    if !self.is_blocked(state, which) {
                        actions.push(Action::Step(which));
                    } else if self.gives_up(session) {
                        actions.push(Action::GiveUp(which));
                    }
                }
            }
            if session.savepoint {
                actions.push(Action::RollbackTo(which));
            }
            if !session.is_idle() {
                actions.push(Action::Abort(which));
            }
        }
    }

    /// Whether a rotation that has to wait stops by itself.
    pub fn gives_up(&self, session: &Session) -> bool {
        matches!(session.phase, Phase::Rotate(_)) && self.variant != Variant::RotationWithoutTimeout
    }

    fn possible_when_ready(&self, which: usize, session: &Session, actions: &mut Vec<Action>) {
        let scope = &self.scope;
        if session.is_idle() {
            let begin = |isolation, reads| Action::Begin {
                session: which,
                isolation,
                reads,
            };
            if scope.repeatable_read {
                actions.push(begin(Isolation::RepeatableRead, false));
            }
            if scope.readers {
                actions.push(begin(Isolation::ReadCommitted, true));
            }
            if scope.readers && scope.repeatable_read {
                actions.push(begin(Isolation::RepeatableRead, true));
            }
        } else {
            actions.push(Action::Commit(which));
            if scope.prepared && (session.holds().gate || session.rotation.done) {
                actions.push(Action::Prepare(which));
            }
        }
        let held = session.holds();
        let rotates = session.rotation.done;
        for key in (0..scope.keys as Key)
            .filter(|&key| !scope.one_job || !(rotates || held.rows.has_key(key)))
        {
            let claim = |savepoint| Action::Claim {
                session: which,
                key,
                savepoint,
            };
            actions.push(claim(false));
            if scope.savepoints && !session.savepoint {
                actions.push(claim(true));
            }
        }
        if session.savepoint {
            actions.push(Action::Release(which));
        }
        // Rotating inside a savepoint and rolling back to it is rotating and
        // aborting; releasing it is rotating outside.
        let refuses = held.gate && self.variant != Variant::RotationOverOwnClaim;
        let claims = scope.one_job && held.touched != Tables::default();
        if !session.savepoint && !rotates && !refuses && !claims {
            actions.push(Action::Rotate(which));
        }
    }

    /// The state after `action`, which must be possible in `state`.
    pub fn after(&self, state: &State, action: Action) -> State {
        let mut after = state.clone();
        match action {
            Action::Tick => self.tick(&mut after),
            Action::ServerCrash => {
                for session in after.sessions.iter_mut().filter(|s| !s.prepared) {
                    *session = Session::default();
                }
            }
            Action::Begin {
                session,
                isolation,
                reads,
            } => {
                let snapshot = self.snapshot(state, &state.sessions[session]);
                let begun = &mut after.sessions[session];
                begun.isolation = isolation;
                if isolation == Isolation::RepeatableRead {
                    begun.snapshot = Some(snapshot);
                }
                if reads {
                    begun.held[0].touched = Tables::ALL;
                }
            }
            Action::Claim {
                session,
                key,
                savepoint,
            } => {
                let snapshot = self.snapshot(state, &state.sessions[session]);
                let claimer = &mut after.sessions[session];
                claimer.savepoint |= savepoint;
                claimer.phase = Phase::Claim {
                    key,
                    step: self.first_claim_step(claimer),
                    current: None,
                };
                if self.variant.uses_old_snapshot() {
                    claimer.snapshot.get_or_insert(snapshot);
                }
            }
            Action::Rotate(which) => {
                let rotator = &mut after.sessions[which];
                rotator.phase = Phase::Rotate(self.variant.rotate_steps()[0]);
                if self.variant == Variant::SealTimeFromTransactionStart {
                    rotator.rotation.clock = Some(0);
                }
            }
            Action::Step(which) => match state.sessions[which].phase {
                Phase::Ready => {}
                Phase::Claim { key, step, current } => {
                    self.claim_step(state, &mut after, which, key, step, current);
                }
                Phase::Rotate(step) => self.rotate_step(state, &mut after, which, step),
            },
            Action::GiveUp(which) => end_rotation(&mut after.sessions[which]),
            Action::RollbackTo(which) => self.roll_back_to(&mut after.sessions[which]),
            Action::Release(which) => release(&mut after.sessions[which]),
            Action::Prepare(which) => {
                let session = &mut after.sessions[which];
                *session = Session {
                    prepared: true,
                    held: [session.holds(), Default::default()],
                    rotation: session.rotation,
                    ..Session::default()
                };
            }
            Action::Commit(which) => self.commit(&mut after, which),
            Action::Abort(which) => after.sessions[which] = Session::default(),
        }
        after
    }

    /// Lets every age grow, each up to where nothing asks any more.
    fn tick(&self, state: &mut State) {
        let retention = self.retention();
        if let Some(ring) = &mut state.ring {
            for age in &mut ring.sealed {
                *age = (*age + 1).min(retention);
            }
        }
        for session in &mut state.sessions {
            session.rotation.clock = session.rotation.clock.map(|age| (age + 1).min(retention));
        }
        for age in &mut state.won {
            *age = age.map(|age| age + 1).and_then(|age| {
                if self.scope.on_time {
                    Some(age.min(self.longest_protection() + 1))
                } else {
                    Some(age).filter(|&age| age < retention)
                }
            });
        }
    }

    fn first_claim_step(&self, session: &Session) -> ClaimStep {
        let first = self.variant.claim_steps()[0];
        if first == ClaimStep::Gate && session.remembers_gate {
            self.claim_step_after(first)
        } else {
            first
        }
    }

    fn claim_step_after(&self, step: ClaimStep) -> ClaimStep {
        let mut steps = self.variant.claim_steps().iter().copied();
        steps.by_ref().find(|&s| s == step);
        // INSERT is the last step and always answers, so it is never asked for here.
        steps.next().unwrap_or(ClaimStep::Insert)
    }

    fn claim_step(
        &self,
        before: &State,
        state: &mut State,
        which: usize,
        key: Key,
        step: ClaimStep,
        mut current: Option<Table>,
    ) {
        let answer = self.answer(before, which);
        let session = &mut state.sessions[which];
        match (step, current) {
            (ClaimStep::Gate, _) => {
                session.innermost().gate = true;
                session.remembers_gate =
                    self.variant == Variant::GateForgottenAfterSavepointRollback;
            }
            (ClaimStep::ReadRing, _) => {
                let old = session.snapshot.and_then(|snapshot| snapshot.current);
                current = Some(old.unwrap_or(self.current_for(before, session)));
            }
            (ClaimStep::Probe, Some(current)) => {
                for table in others(current) {
                    session.innermost().touched.add(table);
                }
            }
            (ClaimStep::Insert, Some(current)) => {
                session.innermost().touched.add(current);
                if answer == Some(Answer::Won) {
                    session.innermost().rows.add(current, key);
                }
            }
            (ClaimStep::Probe | ClaimStep::Insert, None) => {}
        }
        match answer {
            None => {
                session.phase = Phase::Claim {
                    key,
                    step: self.claim_step_after(step),
                    current,
                };
            }
            Some(Answer::Won | Answer::Duplicate) => self.end_claim(session),
            // The error rolls back what came after the savepoint, or everything.
            Some(Answer::Serialization) if session.savepoint => self.roll_back_to(session),
            Some(Answer::Serialization) => *session = Session::default(),
        }
    }

    fn end_claim(&self, session: &mut Session) {
        session.phase = Phase::Ready;
        if session.isolation == Isolation::ReadCommitted {
            session.snapshot = None;
        }
        if self.variant == Variant::GateReleasedAfterClaim {
            session.innermost().gate = false;
        }
    }

    fn roll_back_to(&self, session: &mut Session) {
        session.savepoint = false;
        session.held[1] = Default::default();
        self.end_claim(session);
    }

    fn rotate_step(&self, before: &State, state: &mut State, which: usize, step: RotateStep) {
        let session = &mut state.sessions[which];
        let rotation = &mut session.rotation;
        match step {
            RotateStep::Gate => {
                rotation.gate = true;
                if self.variant == Variant::RotationReadsRingBeforeGate {
                    rotation.clock = Some(0);
                }
            }
            RotateStep::ReadRing => {
                if !self.is_due(before) {
                    return end_rotation(session);
                }
                rotation.from = Some(self.ring(before).current);
                rotation.clock.get_or_insert(0);
            }
            RotateStep::Truncate => rotation.done = true,
        }
        let mut steps = self.variant.rotate_steps().iter().copied();
        steps.by_ref().find(|&s| s == step);
        session.phase = steps.next().map_or(Phase::Ready, Phase::Rotate);
    }

    /// Ends a transaction and lets the others see what it did.
    fn commit(&self, state: &mut State, which: usize) {
        let session = std::mem::take(&mut state.sessions[which]);
        if let Rotation {
            done: true,
            from: Some(from),
            clock: Some(clock),
            ..
        } = session.rotation
        {
            self.commit_rotation(state, from, clock);
        }
        let rows = session.holds().rows;
        for key in 0..self.scope.keys as Key {
            let won = rows.tables_of(key).count();
            if won == 0 {
                continue;
            }
            let last = &mut state.won[usize::from(key)];
            state.two_winners |= won > 1 || last.is_some_and(|age| age < self.retention());
            *last = Some(0);
        }
        state.committed = state.committed.with(rows);
    }

    fn commit_rotation(&self, state: &mut State, from: Table, clock: Age) {
        let to = next(from);
        let mut ring = self.ring(state);
        ring.current = to;
        ring.sealed[usize::from(from)] = clock;
        if self.variant != Variant::TruncateByWrongClock {
            ring.sealed[usize::from(to)] = self.retention();
        }
        state.ring = Some(ring);
        state.committed = state.committed.without(to);
        for session in &mut state.sessions {
            if let Some(snapshot) = &mut session.snapshot {
                snapshot.rows = snapshot.rows.without(to);
            }
        }
    }
}

/// Leaves the rotation undone: its locks were taken in a subtransaction.
fn end_rotation(session: &mut Session) {
    session.rotation = Rotation::default();
    session.phase = Phase::Ready;
}

fn release(session: &mut Session) {
    session.savepoint = false;
    session.held = [session.holds(), Default::default()];
}

//! Several sessions with open transactions over one model: what each of them sees, what it holds,
//! and whether another one's call would have to wait for it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    history::{Declaration, Key, Op, SESSIONS, Sent},
    model::{Answer, Arrival, Inbox, Instance, Life, Message, State},
};

/// How a session holds the declaration until its transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Nothing,
    /// It has used it.
    Weak,
    /// It has changed it.
    Strong,
}

/// What a transaction has changed and what nobody else may touch before it ends.
#[derive(Debug, Clone)]
pub struct Transaction {
    declaration: Option<Declaration>,
    instances: BTreeMap<usize, Instance>,
    messages: BTreeMap<Key, Message>,
    claims: BTreeMap<Key, Option<usize>>,
    handled: BTreeMap<Key, usize>,
    contexts: BTreeSet<usize>,
    hold: Hold,
}

impl Default for Transaction {
    fn default() -> Self {
        Self {
            declaration: None,
            instances: BTreeMap::new(),
            messages: BTreeMap::new(),
            claims: BTreeMap::new(),
            handled: BTreeMap::new(),
            contexts: BTreeSet::new(),
            hold: Hold::Nothing,
        }
    }
}

/// What the model says of a step.
#[derive(Debug, Clone)]
pub enum Expected {
    /// It makes no sense here, or says nothing: leave it out.
    Nothing,
    /// Somebody holds what it needs: SQLSTATE 55P03 after the time-out.
    Blocked,
    /// It answers this, and its transaction is then this one.
    Answer(Answer, Box<Transaction>),
}

/// The model and the open transactions.
#[derive(Debug)]
pub struct Interleaving {
    /// What is committed.
    pub committed: Inbox,
    /// The open transactions.
    pub open: [Option<Transaction>; SESSIONS],
}

/// A message as it is sent at a step: what is not said is as usual.
pub fn arrival(sent: Sent, step: u64) -> Arrival {
    Arrival {
        key: sent.key,
        context: sent.context.unwrap_or_else(|| sent.key.context()),
        position: Some(sent.position.unwrap_or_else(|| sent.key.position())),
        payload: sent.payload.then(|| format!("payload of step {step}")),
    }
}

impl Interleaving {
    /// Nothing but a declaration.
    pub fn new(declaration: Declaration) -> Self {
        Self {
            committed: Inbox::new(declaration),
            open: Default::default(),
        }
    }

    /// All that a session sees.
    pub fn view(&self, session: usize) -> Inbox {
        let mut view = self.committed.clone();
        if let Some(own) = &self.open[session] {
            own.apply(&mut view);
        }
        view
    }

    /// Makes a transaction's changes everybody's.
    pub fn commit(&mut self, transaction: &Transaction) {
        transaction.apply(&mut self.committed);
    }

    fn others(&self, session: usize) -> impl Iterator<Item = &Transaction> {
        self.open
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != session)
            .filter_map(|(_, transaction)| transaction.as_ref())
    }

    /// Whether others have transactions open.
    pub fn has_others(&self, session: usize) -> bool {
        self.others(session).next().is_some()
    }

    /// Whether another one is changing the declaration.
    pub fn is_being_declared(&self, session: usize) -> bool {
        self.strongest(session) == Hold::Strong
    }

    /// The contexts whose instances others hold.
    pub fn held_contexts(&self, session: usize) -> BTreeSet<usize> {
        self.others(session)
            .flat_map(|other| other.contexts.iter().copied())
            .collect()
    }

    fn is_claim_in_flight(&self, session: usize, key: Key) -> bool {
        self.others(session)
            .any(|other| other.claims.contains_key(&key))
    }

    fn strongest(&self, session: usize) -> Hold {
        self.others(session)
            .map(|other| other.hold)
            .max()
            .unwrap_or(Hold::Nothing)
    }

    /// What a call of that session gives now.
    pub fn expect(&self, session: usize, op: &Op, step: u64) -> Expected {
        let view = self.view(session);
        if self.is_being_declared(session) {
            // Everything waits for a declaration that is being changed.
            return match op {
                Op::Receive(sent)
                    if view
                        .declaration
                        .types
                        .contains_key(&sent.key.message_type()) =>
                {
                    self.unchanged(session, Answer::Decided("in_flight"))
                }
                _ => Expected::Nothing,
            };
        }
        match op {
            Op::Receive(sent) => self.receive(session, view, &arrival(*sent, step), step),
            Op::Next(Some(context)) => self.next_of(session, view, *context),
            Op::Next(None) => self.next_of_any(session, view),
            Op::Claim(key, context) => self.claim(session, view, *key, *context),
            Op::Fail(key, again) => {
                self.message(session, view, *key, |view| view.fail(*key, *again, step))
            }
            Op::Retry(key) => self.message(session, view, *key, |view| view.retry(*key)),
            Op::Force(key) => self.message(session, view, *key, |view| view.force(*key)),
            Op::Skip(key) => self.message(session, view, *key, |view| view.skip(*key)),
            Op::SkipGap(context) => {
                self.instance(session, view, *context, |view| view.skip_gap(*context))
            }
            Op::ForceAll(context) => {
                self.instance(session, view, *context, |view| view.force_all(*context))
            }
            Op::Close(context) => {
                self.instance(session, view, *context, |view| view.close(*context))
            }
            _ => match wanted(&view.declaration, op) {
                Some(declaration) => self.declare(session, view, declaration),
                None => Expected::Nothing,
            },
        }
    }

    /// The session's transaction after its view has become this one.
    fn after(
        &self,
        session: usize,
        view: &Inbox,
        contexts: &[usize],
        hold: Hold,
    ) -> Box<Transaction> {
        let mut transaction = self.open[session].clone().unwrap_or_default();
        transaction.record(&self.view(session), view);
        transaction.contexts.extend(contexts);
        transaction.hold = transaction.hold.max(hold);
        Box::new(transaction)
    }

    fn unchanged(&self, session: usize, answer: Answer) -> Expected {
        Expected::Answer(
            answer,
            Box::new(self.open[session].clone().unwrap_or_default()),
        )
    }

    fn receive(&self, session: usize, mut view: Inbox, arrival: &Arrival, step: u64) -> Expected {
        let declared = view
            .declaration
            .types
            .contains_key(&arrival.key.message_type());
        let held = self.held_contexts(session);
        if declared && self.is_claim_in_flight(session, arrival.key) {
            // Told by a look that had the declaration.
            let after = self.after(session, &view, &[], Hold::Weak);
            return Expected::Answer(Answer::Decided("in_flight"), after);
        }
        if declared && !view.is_claimed(arrival.key) {
            let earlier = view.messages.get(&arrival.key).map(|it| it.context);
            if earlier.is_some_and(|it| it != arrival.context && held.contains(&it)) {
                return Expected::Nothing;
            }
            if held.contains(&arrival.context) {
                return self.unchanged(session, Answer::Decided("in_flight"));
            }
        }
        let mut contexts = vec![arrival.context];
        match view.receive(arrival, step) {
            Answer::Error(code) => return self.unchanged(session, Answer::Error(code)),
            Answer::Decided("duplicate") => contexts.clear(),
            _ => {}
        }
        let answer = self.view(session).receive(arrival, step);
        let mut after = self.after(session, &view, &contexts, Hold::Weak);
        if answer == Answer::Decided("rejected") {
            // Its claim was made and given back.
            after.claims.entry(arrival.key).or_insert(None);
        }
        Expected::Answer(answer, after)
    }

    fn next_of(&self, session: usize, mut view: Inbox, context: usize) -> Expected {
        let unclear = view
            .all_due()
            .any(|key| self.is_claim_in_flight(session, key));
        if unclear || !view.instances.contains_key(&context) {
            return Expected::Nothing;
        }
        if self.held_contexts(session).contains(&context) {
            return Expected::Blocked;
        }
        if !view.has_something(context) {
            return self.unchanged(session, Answer::Nothing);
        }
        let answer = view.next_of(context);
        Expected::Answer(answer, self.after(session, &view, &[context], Hold::Weak))
    }

    fn next_of_any(&self, session: usize, mut view: Inbox) -> Expected {
        if view
            .all_due()
            .any(|key| self.is_claim_in_flight(session, key))
        {
            return Expected::Nothing;
        }
        let before = view.clone();
        let held = self.held_contexts(session);
        let hold = match before.instances.keys().any(|it| before.has_something(*it)) {
            true => Hold::Weak,
            false => Hold::Nothing,
        };
        let answer = view.next_of_any(&held);
        let changed = |context: &usize| {
            let messages = |inbox: &Inbox| -> Vec<Message> {
                let of = inbox.messages.values().filter(|it| it.context == *context);
                of.cloned().collect()
            };
            messages(&before) != messages(&view)
        };
        let contexts: Vec<usize> = view.instances.keys().copied().filter(changed).collect();
        Expected::Answer(answer, self.after(session, &view, &contexts, hold))
    }

    fn claim(&self, session: usize, mut view: Inbox, key: Key, context: usize) -> Expected {
        if !view.instances.contains_key(&context) {
            return Expected::Nothing;
        }
        if self.is_claim_in_flight(session, key) {
            return self.unchanged(session, Answer::Claimed("in_flight"));
        }
        let answer = view.claim(key, context);
        Expected::Answer(answer, self.after(session, &view, &[], Hold::Nothing))
    }

    /// A function of a message's record.
    fn message(
        &self,
        session: usize,
        mut view: Inbox,
        key: Key,
        function: impl FnOnce(&mut Inbox) -> Answer,
    ) -> Expected {
        let Some(message) = view.messages.get(&key).cloned() else {
            return self.unchanged(session, Answer::Is(false));
        };
        if self.held_contexts(session).contains(&message.context) {
            return Expected::Blocked;
        }
        if self.is_claim_in_flight(session, key) {
            return Expected::Nothing;
        }
        let answer = function(&mut view);
        if let Answer::Error(_) = answer {
            return self.unchanged(session, answer);
        }
        let mut after = self.after(session, &view, &[message.context], Hold::Weak);
        if view.messages[&key].attempts > message.attempts {
            // A failure takes the claim before it gives it up.
            after.claims.insert(key, None);
        }
        Expected::Answer(answer, after)
    }

    /// A function of an instance.
    fn instance(
        &self,
        session: usize,
        mut view: Inbox,
        context: usize,
        function: impl FnOnce(&mut Inbox) -> Answer,
    ) -> Expected {
        let mut of = view.messages.iter().filter(|(_, it)| it.context == context);
        let unclear = of.any(|(key, _)| self.is_claim_in_flight(session, *key));
        if self.held_contexts(session).contains(&context) && view.instances.contains_key(&context) {
            return Expected::Blocked;
        }
        if unclear || !view.instances.contains_key(&context) {
            return Expected::Nothing;
        }
        match function(&mut view) {
            error @ Answer::Error(_) => self.unchanged(session, error),
            answer => Expected::Answer(answer, self.after(session, &view, &[context], Hold::Weak)),
        }
    }

    fn declare(&self, session: usize, mut view: Inbox, declaration: Declaration) -> Expected {
        if declaration == view.declaration {
            return self.unchanged(session, Answer::Done);
        }
        if self.strongest(session) > Hold::Nothing {
            return Expected::Blocked;
        }
        // A direct claim holds no declaration.
        if self.others(session).any(|other| !other.claims.is_empty()) {
            return Expected::Nothing;
        }
        match view.declare(&declaration) {
            error @ Answer::Error(_) => self.unchanged(session, error),
            answer => {
                let contexts: Vec<usize> = view.instances.keys().copied().collect();
                Expected::Answer(answer, self.after(session, &view, &contexts, Hold::Strong))
            }
        }
    }
}

/// What a session declares in place of this.
pub fn wanted(present: &Declaration, op: &Op) -> Option<Declaration> {
    let mut wanted = present.clone();
    match op {
        Op::Declare(declaration) => wanted = declaration.clone(),
        Op::DeclareOnFailure => wanted.skip = !wanted.skip,
        Op::DeclareRecording => wanted.recording = !wanted.recording,
        Op::DeclareConditions(conditions) => {
            let there: Vec<usize> = present.types.keys().copied().collect();
            for (n, declared) in &mut wanted.types {
                let condition = conditions.get(*n).cloned().flatten();
                declared.condition = condition.filter(|it| it.is_among(&there));
            }
        }
        _ => return None,
    }
    Some(wanted)
}

impl Transaction {
    /// Adds what has changed from one view to the next.
    fn record(&mut self, before: &Inbox, after: &Inbox) {
        if before.declaration != after.declaration {
            self.declaration = Some(after.declaration.clone());
        }
        changed(&before.instances, &after.instances, &mut self.instances);
        changed(&before.messages, &after.messages, &mut self.messages);
        changed(&before.handled, &after.handled, &mut self.handled);
        for key in before.claims.keys().chain(after.claims.keys()) {
            let claim = after.claims.get(key);
            if before.claims.get(key) != claim {
                self.claims.insert(*key, claim.copied());
            }
        }
    }

    fn apply(&self, inbox: &mut Inbox) {
        if let Some(declaration) = &self.declaration {
            inbox.declaration = declaration.clone();
        }
        inbox.instances.extend(self.instances.clone());
        inbox.messages.extend(self.messages.clone());
        inbox.handled.extend(self.handled.clone());
        for (key, claim) in &self.claims {
            match claim {
                Some(context) => inbox.claims.insert(*key, *context),
                None => inbox.claims.remove(key),
            };
        }
    }
}

/// Notes the entries that are new or different; none is ever removed.
fn changed<K: Ord + Copy, V: PartialEq + Clone>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
    into: &mut BTreeMap<K, V>,
) {
    for (key, value) in after {
        if before.get(key) != Some(value) {
            into.insert(*key, value.clone());
        }
    }
}

/// What the tables and views show of an inbox, one line a row, sorted.
pub fn lines(inbox: &Inbox) -> Vec<String> {
    let mut lines = Vec::new();
    let yes = |it: bool| if it { "t" } else { "f" };
    for (key, message) in &inbox.messages {
        let failed = message.state == State::Failed;
        let position = message
            .position
            .map_or_else(|| "-".to_owned(), |it| it.to_string());
        let content = match &message.content {
            None => "nothing".to_owned(),
            Some(None) => "NULL".to_owned(),
            Some(Some(payload)) => payload.clone(),
        };
        lines.push(format!(
            "message m{} in c{} at {position}: {} attempts {} due {} rejected {} forced {} stored {content}",
            key.0,
            message.context,
            format!("{:?}", message.state).to_uppercase(),
            message.attempts,
            yes(message.due.is_some()),
            yes(failed && message.rejected),
            yes(message.forced),
        ));
        if failed && message.due.is_none() && !inbox.is_claimed(*key) {
            lines.push(format!("dead letter m{}", key.0));
        }
    }
    for (key, context) in &inbox.claims {
        lines.push(format!("claim m{} in c{context}", key.0));
    }
    for (key, times) in &inbox.handled {
        lines.push(format!("handled m{}: {times}", key.0));
    }
    for (context, instance) in &inbox.instances {
        let state = match instance.life {
            Life::Open => "OPEN",
            Life::Complete => "CLOSED",
            Life::Closed => "CLOSED by operator",
            Life::Expired => "EXPIRED",
        };
        let count = |state: State| {
            let of = inbox.messages.iter();
            of.filter(|(key, it)| {
                // A failure that was claimed again is resolved.
                let resolved = state == State::Failed && inbox.is_claimed(**key);
                it.context == *context && it.state == state && !resolved
            })
            .count()
        };
        lines.push(format!(
            "instance c{context}: {state} waiting {} ready {} failed {} processed {}",
            count(State::Waiting),
            count(State::Ready),
            count(State::Failed),
            count(State::Processed),
        ));
    }
    lines.sort();
    lines
}

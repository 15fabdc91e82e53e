//! The design's rules in their plainest form, with which the extension is compared. It knows
//! nothing of SQL, of locks and of how the extension reaches its answers: what a message's state
//! is follows from the rules of the design's section 5 alone, judged anew after every change, and
//! for a whole instance at once.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Again, Condition, Declaration, Key};

/// A message's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its turn has not come.
    Waiting,
    /// It may be handed out.
    Ready,
    /// It was handled.
    Processed,
    /// Its handler failed, or it was rejected.
    Failed,
    /// An operator has ended it.
    Skipped,
}

/// The record of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which record was made before which.
    pub number: u64,
    /// Its context.
    pub context: usize,
    /// Its position.
    pub position: Option<i64>,
    /// Its state.
    pub state: State,
    /// How often it failed.
    pub attempts: i32,
    /// When it is due again by itself: never, at the n-th moment of the history, or later.
    pub due: Option<Due>,
    /// It was rejected, so it stands at no position and lets nothing pass.
    pub rejected: bool,
    /// READY by an operator's word.
    pub forced: bool,
    /// What is stored of it: nothing, or a payload that may be NULL.
    pub content: Option<Option<String>>,
}

/// When a failed message is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// Since that moment.
    Since(u64),
    /// Not soon.
    Later,
}

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It goes on.
    Open,
    /// It is complete.
    Complete,
    /// An operator has closed it.
    Closed,
    /// Its time was over.
    Expired,
}

/// A sequence instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Which instance was made before which.
    pub number: u64,
    /// Where it is.
    pub life: Life,
    /// By position: what comes next.
    pub next: i64,
}

/// All that is stored, as one session sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    /// What is declared.
    pub declaration: Declaration,
    /// The instances by their context.
    pub instances: BTreeMap<usize, Instance>,
    /// The messages.
    pub messages: BTreeMap<Key, Message>,
    /// The claims, with the context of their instance.
    pub claims: BTreeMap<Key, usize>,
    /// How often each message was handled.
    pub handled: BTreeMap<Key, usize>,
}

/// A message as it arrives.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Which.
    pub key: Key,
    /// Its context.
    pub context: usize,
    /// Its position.
    pub position: Option<i64>,
    /// Its payload.
    pub payload: Option<String>,
}

/// What a function answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `inbox_receive`'s decision.
    Decided(&'static str),
    /// `inbox_next` had nothing.
    Nothing,
    /// `inbox_next` handed this out, with so many attempts and this payload.
    Released(Key, i32, Option<String>),
    /// A yes or a no.
    Is(bool),
    /// `inbox_try_claim`'s word.
    Claimed(&'static str),
    /// It failed with this SQLSTATE.
    Error(&'static str),
    /// It gives nothing.
    Done,
}

impl Inbox {
    /// Nothing but a declaration.
    pub fn new(declaration: Declaration) -> Self {
        Self {
            declaration,
            instances: BTreeMap::new(),
            messages: BTreeMap::new(),
            claims: BTreeMap::new(),
            handled: BTreeMap::new(),
        }
    }

    /// The messages of a context.
    fn of(&self, context: usize) -> impl Iterator<Item = (Key, &Message)> {
        self.messages
            .iter()
            .filter(move |(_, message)| message.context == context)
            .map(|(key, message)| (*key, message))
    }

    /// Whether a message counts as passed for what depends on it.
    fn is_passed(&self, message: &Message) -> bool {
        match message.state {
            State::Processed | State::Skipped => true,
            State::Failed => self.declaration.skip && message.due.is_none() && !message.rejected,
            State::Waiting | State::Ready => false,
        }
    }

    fn holds(&self, context: usize, condition: &Condition) -> bool {
        match condition {
            Condition::After(n) => self
                .of(context)
                .any(|(key, message)| key.message_type() == *n && self.is_passed(message)),
            Condition::All(parts) => parts.iter().all(|part| self.holds(context, part)),
            Condition::Any(parts) => parts.iter().any(|part| self.holds(context, part)),
        }
    }

    /// Whether the turn of a message of this type, or at this position, has come.
    fn may_go(&self, key: Key, context: usize, position: Option<i64>) -> bool {
        if self.declaration.recording {
            return true;
        }
        if self.declaration.by_position {
            return position.is_none_or(|position| position <= self.next(context));
        }
        let declared = self.declaration.types.get(&key.message_type());
        declared
            .and_then(|declared| declared.condition.as_ref())
            .is_none_or(|condition| self.holds(context, condition))
    }

    /// The next position: behind all that were passed without a gap.
    fn next(&self, context: usize) -> i64 {
        let mut next = self.instances.get(&context).map_or(1, |it| it.next);
        while self
            .holder(context, next)
            .is_some_and(|key| self.is_passed(&self.messages[&key]))
        {
            next += 1;
        }
        next
    }

    /// The message that stands at a position; the older one where there are two, which happens
    /// while positions are only recorded.
    fn holder(&self, context: usize, position: i64) -> Option<Key> {
        self.of(context)
            .filter(|(_, message)| message.position == Some(position) && !message.rejected)
            .min_by_key(|(_, message)| message.number)
            .map(|(key, _)| key)
    }

    /// Moves an instance on and judges all that waits in it.
    fn settle(&mut self, context: usize) {
        if self.declaration.by_position {
            let next = self.next(context);
            if let Some(instance) = self.instances.get_mut(&context) {
                instance.next = next;
            }
        }
        self.release(context);
    }

    /// Judges all that waits in an instance.
    fn release(&mut self, context: usize) {
        let released: Vec<Key> = self
            .of(context)
            .filter(|(key, message)| {
                message.state == State::Waiting && self.may_go(*key, context, message.position)
            })
            .map(|(key, _)| key)
            .collect();
        for key in released {
            self.message(key).state = State::Ready;
        }
    }

    /// Whether an instance is complete.
    pub fn is_complete(&self, context: usize) -> bool {
        let done: BTreeSet<usize> = self
            .of(context)
            .filter(|(_, message)| matches!(message.state, State::Processed | State::Skipped))
            .map(|(key, _)| key.message_type())
            .collect();
        let waits = self.of(context).any(|(_, message)| match message.state {
            State::Waiting | State::Ready => true,
            State::Failed => message.due.is_some(),
            State::Processed | State::Skipped => false,
        });
        let mut types = self.declaration.types.iter();
        let enough = if self.declaration.by_position {
            types.any(|(n, declared)| declared.last && done.contains(n))
        } else {
            !done.is_empty() && types.all(|(n, declared)| declared.optional || done.contains(n))
        };
        enough && !waits
    }

    fn close_if_complete(&mut self, context: usize) {
        if self.is_complete(context)
            && let Some(instance) = self.instances.get_mut(&context)
            && instance.life == Life::Open
        {
            instance.life = Life::Complete;
        }
    }

    /// What follows when a message was processed or skipped, which `waited` in the inbox or came
    /// just now.
    fn after(&mut self, key: Key, waited: bool) {
        let Some(message) = self.messages.get(&key).cloned() else {
            return;
        };
        // What is recorded was seen, and what came before it will not come any more.
        if self.declaration.by_position
            && self.declaration.recording
            && let Some(instance) = self.instances.get_mut(&message.context)
        {
            instance.next = instance.next.max(message.position.unwrap_or(0));
        }
        self.settle(message.context);
        // By position, only a final message completes an instance, or the last one that waited.
        // What another declaration has made complete is left to housekeeping.
        let declared = self.declaration.types.get(&key.message_type());
        if waited || !self.declaration.by_position || declared.is_some_and(|it| it.last) {
            self.close_if_complete(message.context);
        }
    }

    fn message(&mut self, key: Key) -> &mut Message {
        self.messages.get_mut(&key).expect("a record")
    }

    fn reopen(&mut self, context: usize) {
        if let Some(instance) = self.instances.get_mut(&context) {
            instance.life = Life::Open;
        }
    }

    /// The instance of a context, made if need be.
    pub fn instance(&mut self, context: usize, number: u64) -> &Instance {
        self.instances.entry(context).or_insert(Instance {
            number,
            life: Life::Open,
            next: 1,
        })
    }

    /// Whether a failed message would be taken for a duplicate: somebody has claimed it.
    pub fn is_claimed(&self, key: Key) -> bool {
        self.claims.contains_key(&key)
    }

    /// `inbox_receive`. `number` tells new records and instances apart from older ones.
    pub fn receive(&mut self, arrival: &Arrival, number: u64) -> Answer {
        let Arrival {
            key,
            context,
            position,
            ..
        } = *arrival;
        if !self.declaration.types.contains_key(&key.message_type()) {
            return Answer::Error("42704");
        }
        if self.is_claimed(key) {
            return Answer::Decided("duplicate");
        }
        self.instance(context, number);
        let has_no_place = self.has_no_place(arrival);
        if !has_no_place && !self.declaration.recording {
            // What stands before it may count as passed since the last look, by its own record too.
            self.settle(context);
        }
        let decision = match self.instances[&context].life {
            _ if has_no_place => "rejected",
            _ if self.may_go(key, context, position) => "process",
            Life::Closed | Life::Expired => "rejected",
            Life::Open | Life::Complete => "buffered",
        };
        let earlier = self.messages.get(&key);
        let content = match decision {
            "process" => None,
            _ => Some(
                arrival
                    .payload
                    .clone()
                    .or(earlier.and_then(|it| it.content.clone().flatten())),
            ),
        };
        let state = match decision {
            "process" => State::Processed,
            "buffered" => State::Waiting,
            _ => State::Failed,
        };
        let (number, attempts) = earlier.map_or((number, 0), |it| (it.number, it.attempts));
        self.messages.insert(
            key,
            Message {
                number,
                context,
                position,
                state,
                attempts,
                due: None,
                rejected: decision == "rejected",
                forced: false,
                content,
            },
        );
        if decision != "rejected" {
            self.claims.insert(key, context);
        }
        match decision {
            "process" => {
                *self.handled.entry(key).or_default() += 1;
                self.after(key, false);
            }
            "buffered" => self.reopen(context),
            _ => {}
        }
        Answer::Decided(decision)
    }

    /// Whether another message has the position of an arriving one, or it was given up. A message
    /// that failed has its own.
    fn has_no_place(&self, arrival: &Arrival) -> bool {
        let Arrival { key, context, .. } = *arrival;
        let Some(position) = arrival.position else {
            return false;
        };
        if !self.declaration.by_position || self.declaration.recording {
            return false;
        }
        let own = self.messages.get(&key).is_some_and(|it| {
            it.context == context && it.position == Some(position) && !it.rejected
        });
        let taken = self.holder(context, position).is_some_and(|it| it != key);
        !own && (taken || position < self.next(context))
    }

    /// The failures of a context that are due, oldest first.
    fn due(&self, context: usize) -> Vec<Key> {
        let mut due: Vec<(Due, u64, Key)> = self
            .of(context)
            .filter(|(_, message)| message.state == State::Failed)
            .filter_map(|(key, message)| Some((message.due?, message.number, key)))
            .filter(|(due, _, _)| *due != Due::Later)
            .collect();
        due.sort();
        due.into_iter().map(|(_, _, key)| key).collect()
    }

    fn first_ready(&self, context: usize) -> Option<Key> {
        self.of(context)
            .filter(|(_, message)| message.state == State::Ready)
            .min_by_key(|(_, message)| {
                (message.position.is_none(), message.position, message.number)
            })
            .map(|(key, _)| key)
    }

    /// Whether there is anything to hand out in a context, now or after a look.
    pub fn has_something(&self, context: usize) -> bool {
        self.first_ready(context).is_some() || !self.due(context).is_empty()
    }

    /// The failures that are due in any context.
    pub fn all_due(&self) -> impl Iterator<Item = Key> {
        self.instances.keys().flat_map(|context| self.due(*context))
    }

    /// `inbox_next` with an instance.
    pub fn next_of(&mut self, context: usize) -> Answer {
        if let Some(key) = self.first_ready(context) {
            return self.handle(key);
        }
        for key in self.due(context) {
            if self.is_claimed(key) {
                // A resend was claimed directly: the failure is resolved, and nobody handles it.
                self.hand_out(key);
                continue;
            }
            if self.has_lost_its_place(key) {
                self.message(key).due = None;
                continue;
            }
            self.claims.insert(key, context);
            self.message(key).rejected = false;
            if self.may_go(key, context, self.messages[&key].position) {
                return self.handle(key);
            }
            let message = self.message(key);
            (message.state, message.due) = (State::Waiting, None);
            self.reopen(context);
        }
        Answer::Nothing
    }

    /// `inbox_next` without an instance, passing over these contexts.
    pub fn next_of_any(&mut self, held: &BTreeSet<usize>) -> Answer {
        let mut open: Vec<(u64, usize)> = self
            .instances
            .iter()
            .filter(|(context, _)| !held.contains(context))
            .map(|(context, instance)| (instance.number, *context))
            .collect();
        open.sort_unstable();
        for (_, context) in &open {
            if self.first_ready(*context).is_some() {
                return self.next_of(*context);
            }
        }
        let mut due: Vec<(Due, u64, usize)> = self
            .messages
            .values()
            .filter(|message| message.state == State::Failed && !held.contains(&message.context))
            .filter_map(|message| Some((message.due?, message.number, message.context)))
            .filter(|(due, _, _)| *due != Due::Later)
            .collect();
        due.sort();
        for (_, _, context) in due {
            let answer = self.next_of(context);
            if answer != Answer::Nothing {
                return answer;
            }
        }
        Answer::Nothing
    }

    fn handle(&mut self, key: Key) -> Answer {
        *self.handled.entry(key).or_default() += 1;
        self.hand_out(key)
    }

    fn hand_out(&mut self, key: Key) -> Answer {
        let message = self.message(key);
        let payload = message.content.take().flatten();
        let answer = Answer::Released(key, message.attempts, payload);
        (message.state, message.due, message.forced) = (State::Processed, None, false);
        self.after(key, true);
        answer
    }

    /// `inbox_try_claim` with the instance of a context.
    pub fn claim(&mut self, key: Key, context: usize) -> Answer {
        if self.is_claimed(key) {
            return Answer::Claimed("duplicate");
        }
        self.claims.insert(key, context);
        Answer::Claimed("claimed")
    }

    /// `inbox_fail` of a message that was handled at once and whose record went with the rollback.
    pub fn fail_immediate(&mut self, arrival: &Arrival, again: Again, number: u64) -> Answer {
        let context = arrival.context;
        self.instance(context, number);
        let by_position = self.declaration.by_position && !self.declaration.recording;
        let position = arrival.position.filter(|_| by_position);
        let message = self.messages.entry(arrival.key).or_insert(Message {
            number,
            context,
            position,
            state: State::Failed,
            attempts: 0,
            due: None,
            rejected: false,
            forced: false,
            content: None,
        });
        if message.context != context {
            (message.context, message.position, message.rejected) = (context, position, false);
        }
        if let Some(payload) = &arrival.payload {
            self.message(arrival.key).content = Some(Some(payload.clone()));
        }
        self.fail(arrival.key, again, number)
    }

    /// `inbox_fail_message`; `now` is the moment of the history.
    pub fn fail(&mut self, key: Key, again: Again, now: u64) -> Answer {
        let Some(message) = self.messages.get_mut(&key) else {
            return Answer::Is(false);
        };
        if matches!(message.state, State::Processed | State::Skipped) {
            return Answer::Is(false);
        }
        if again != Again::Never && message.content.is_none() {
            return Answer::Error("22004");
        }
        message.state = State::Failed;
        message.attempts += 1;
        message.forced = false;
        message.due = match again {
            Again::Never => None,
            Again::Now => Some(Due::Since(now)),
            Again::Later => Some(Due::Later),
        };
        let context = message.context;
        self.claims.remove(&key);
        if self.declaration.skip && again == Again::Never {
            self.settle(context);
        }
        Answer::Is(true)
    }

    /// Whether a rejected message could not have its position any more.
    fn has_lost_its_place(&self, key: Key) -> bool {
        let message = &self.messages[&key];
        let Some(position) = message.position else {
            return false;
        };
        self.declaration.by_position
            && message.rejected
            && (position < self.next(message.context)
                || self.holder(message.context, position).is_some())
    }

    /// `inbox_retry`.
    pub fn retry(&mut self, key: Key) -> Answer {
        let Some(message) = self.messages.get(&key).cloned() else {
            return Answer::Is(false);
        };
        if message.state != State::Failed || self.has_lost_its_place(key) || self.is_claimed(key) {
            return Answer::Is(false);
        }
        let ready = self.may_go(key, message.context, message.position);
        let message = self.message(key);
        message.state = if ready { State::Ready } else { State::Waiting };
        (message.due, message.rejected) = (None, false);
        let context = message.context;
        self.claims.insert(key, context);
        self.reopen(context);
        Answer::Is(true)
    }

    /// `inbox_force`.
    pub fn force(&mut self, key: Key) -> Answer {
        let Some(message) = self.messages.get(&key).cloned() else {
            return Answer::Is(false);
        };
        let possible = match message.state {
            State::Waiting => true,
            State::Failed => !self.is_claimed(key),
            _ => false,
        };
        if !possible {
            return Answer::Is(false);
        }
        let placeless = self.has_lost_its_place(key);
        let message = self.message(key);
        (message.state, message.forced) = (State::Ready, true);
        (message.due, message.rejected) = (None, placeless);
        let context = message.context;
        self.claims.insert(key, context);
        self.reopen(context);
        Answer::Is(true)
    }

    /// `inbox_skip`.
    pub fn skip(&mut self, key: Key) -> Answer {
        let Some(message) = self.messages.get(&key).cloned() else {
            return Answer::Is(false);
        };
        let possible = match message.state {
            State::Waiting | State::Ready => true,
            State::Failed => !self.is_claimed(key),
            _ => false,
        };
        if !possible {
            return Answer::Is(false);
        }
        let placeless =
            self.has_lost_its_place(key) || (message.rejected && message.state == State::Ready);
        let message = self.message(key);
        message.state = State::Skipped;
        (message.due, message.forced, message.rejected) = (None, false, placeless);
        message.content = None;
        let context = message.context;
        self.claims.insert(key, context);
        self.after(key, true);
        Answer::Is(true)
    }

    /// `inbox_skip_gap`.
    pub fn skip_gap(&mut self, context: usize) -> Answer {
        if !self.declaration.by_position {
            return Answer::Error("22023");
        }
        self.settle(context);
        let next = self.next(context);
        let behind = self
            .of(context)
            .filter(|(_, message)| !message.rejected)
            .filter_map(|(_, message)| message.position.filter(|position| *position >= next))
            .min();
        match behind {
            Some(behind) if behind > next => {
                if let Some(instance) = self.instances.get_mut(&context) {
                    instance.next = behind;
                }
                self.settle(context);
                Answer::Is(true)
            }
            _ => Answer::Is(false),
        }
    }

    /// `inbox_force_all`.
    pub fn force_all(&mut self, context: usize) -> Answer {
        let all: Vec<Key> = self
            .of(context)
            .filter(|(_, message)| !message.rejected)
            .map(|(key, _)| key)
            .collect();
        let mut any = false;
        for key in all {
            any |= self.force(key) == Answer::Is(true);
        }
        Answer::Is(any)
    }

    /// `inbox_close`.
    pub fn close(&mut self, context: usize) -> Answer {
        let is_open = self
            .instances
            .get(&context)
            .is_some_and(|it| it.life == Life::Open);
        if is_open {
            self.end(context, Life::Closed);
        }
        Answer::Is(is_open)
    }

    /// Ends an instance: what waits is a dead letter that may be resent.
    pub fn end(&mut self, context: usize, life: Life) {
        let all: Vec<Key> = self.of(context).map(|(key, _)| key).collect();
        for key in all {
            let message = self.message(key);
            message.due = None;
            if matches!(message.state, State::Waiting | State::Ready) {
                (message.state, message.forced) = (State::Failed, false);
                self.claims.remove(&key);
            }
        }
        if let Some(instance) = self.instances.get_mut(&context) {
            instance.life = life;
        }
    }

    /// `inbox_housekeeping`, passing over these contexts.
    pub fn housekeeping(&mut self, held: &BTreeSet<usize>) {
        let contexts: Vec<usize> = self.instances.keys().copied().collect();
        for context in contexts {
            if !held.contains(&context) {
                self.close_if_complete(context);
            }
        }
    }

    /// `inbox_declare_sequence`.
    pub fn declare(&mut self, declaration: &Declaration) -> Answer {
        if *declaration == self.declaration {
            return Answer::Done;
        }
        let unfinished = self.messages.iter().filter(|(_, message)| {
            matches!(message.state, State::Waiting | State::Ready | State::Failed)
        });
        let reorders = declaration.by_position != self.declaration.by_position;
        let is_stranded =
            |key: &Key| reorders || !declaration.types.contains_key(&key.message_type());
        if unfinished.into_iter().any(|(key, _)| is_stranded(key)) {
            return Answer::Error("55006");
        }
        self.declaration = declaration.clone();
        // Where nothing is unfinished there is nothing to judge.
        let contexts: BTreeSet<usize> = self
            .messages
            .values()
            .filter(|it| !matches!(it.state, State::Processed | State::Skipped))
            .map(|it| it.context)
            .collect();
        for context in contexts {
            let taken_back: Vec<Key> = self
                .of(context)
                .filter(|(key, message)| {
                    message.state == State::Ready
                        && !message.forced
                        && !self.may_go(*key, context, message.position)
                })
                .map(|(key, _)| key)
                .collect();
            for key in taken_back {
                self.message(key).state = State::Waiting;
            }
            if self.declaration.recording {
                // Where the positions go on is not known before recording ends.
                self.release(context);
            } else {
                self.settle(context);
            }
            self.close_if_complete(context);
        }
        Answer::Done
    }

    /// What must hold whatever happened (G7, G8); what does not.
    pub fn check(&self) -> Result<(), String> {
        for (key, message) in &self.messages {
            let done = matches!(message.state, State::Processed | State::Skipped);
            let wrong = if message.state != State::Failed && !self.is_claimed(*key) {
                "is not failed and has no claim"
            } else if message.state == State::Waiting
                && self.may_go(*key, message.context, message.position)
            {
                "waits, and its turn has come"
            } else if done && message.content.is_some() {
                "is done, and its payload is stored"
            } else {
                continue;
            };
            return Err(format!("{key:?} {wrong}"));
        }
        Ok(())
    }
}

//! `inbox_receive`: deduplication, order and buffering of one message in one call
//! (guarantees G1, G2, G6, G7, G8).
//!
//! The order of locks is the same everywhere: the declaration, the instance, the
//! claim. Two messages of one instance meet at the instance, so a transaction that
//! receives many of them, context by context, cannot deadlock with another.

use pgrx::JsonB;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::BuiltinOid::TEXTOID;
use pgrx::prelude::*;

use super::declaration::{self, Declaration, Ordering};
use super::instance::{Instance, State};
use super::message::{self, Content, Message, Record};
use super::release::{self, Passage};
use crate::args;
use crate::claims::{self, MessageKey};
use crate::errors::{InboxError, Result, or_raise};
use crate::nowait::without_waiting;
use crate::probe::Holder;
use crate::spi::{self, Db, Statement, arg};
use crate::statistics::{self, Counter, Kind, Wait};

/// What is known of a message that was taken before.
static TAKEN: Statement = Statement::new(
    "SELECT c.sequence_instance_id, (SELECT m.id FROM {s}sequenced_message m \
        WHERE m.message_type {=} $1 AND m.idempotence_id {=} $2 \
          AND m.sequence_instance_id IS NOT NULL ORDER BY m.id DESC LIMIT 1) \
     FROM {s}sequential_inbox_idempotence c \
     WHERE c.message_type {=} $1 AND c.idempotence_id {=} $2",
    &[TEXTOID, TEXTOID],
);

/// A message as it arrives.
struct Arrival<'a> {
    key: MessageKey<'a>,
    context_id: &'a str,
    position: Option<i64>,
    content: Content,
}

/// What the caller is told to do.
struct Answer {
    decision: &'static str,
    reason: Option<String>,
    instance: Option<i64>,
    message: Option<i64>,
}

impl Answer {
    fn without_record(decision: &'static str, reason: &str) -> Self {
        Self {
            decision,
            reason: Some(reason.to_owned()),
            instance: None,
            message: None,
        }
    }

    /// What statistics count it as.
    fn counter(&self) -> Counter {
        match self.decision {
            "process" => Counter::ReceivedProcess,
            "buffered" => Counter::ReceivedBuffered,
            "duplicate" => Counter::ReceivedDuplicate,
            "direct" => Counter::ReceivedDirect,
            "rejected" => Counter::ReceivedRejected,
            _ => Counter::ReceivedInFlight,
        }
    }

    fn duplicate(db: &Db, key: MessageKey<'_>) -> Self {
        let known = db.write(&TAKEN, &[arg(key.message_type), arg(key.idempotence_id)]);
        Self {
            decision: "duplicate",
            reason: Some("the message was taken before".to_owned()),
            instance: known.get(0, 0),
            message: known.get(0, 1),
        }
    }
}

/// What the order says of a message.
enum Verdict {
    Process,
    Wait(String),
    Reject(String),
}

/// Takes the message: finds or makes its instance, claims it, judges it, records it.
fn receive(
    db: &Db,
    declaration: &Declaration,
    arrival: Arrival<'_>,
    wait: Option<Wait<'_>>,
) -> Answer {
    let mut instance = Instance::lock_or_create(db, &declaration.name, arrival.context_id);
    if !claims::claim(db, arrival.key, instance.id) {
        return Answer::duplicate(db, arrival.key);
    }
    drop(wait);
    let earlier = message::sequenced(db, arrival.key);
    if earlier
        .as_ref()
        .is_some_and(|earlier| earlier.state != message::State::Failed)
    {
        // The record, not the claim, says that it was taken: somebody has deleted the
        // claim by hand. It stands again now.
        return Answer::duplicate(db, arrival.key);
    }
    let passage = Passage::before(db, declaration, instance.id, arrival.key.message_type);
    let verdict = judge(
        db,
        declaration,
        &mut instance,
        &arrival,
        earlier.as_ref(),
        &passage,
    );
    settle(db, passage, &mut instance, arrival, earlier, verdict)
}

fn judge(
    db: &Db,
    declaration: &Declaration,
    instance: &mut Instance,
    arrival: &Arrival<'_>,
    earlier: Option<&Message>,
    passage: &Passage<'_>,
) -> Verdict {
    if declaration.is_recording() {
        return Verdict::Process;
    }
    let reason = match (declaration.ordering, arrival.position) {
        (Ordering::Position, Some(position)) => {
            // Before it waits: a changed declaration or an operator may have made what
            // stands in front of it count as passed.
            if matches!(
                judge_position(db, instance, position, earlier),
                Verdict::Wait(_)
            ) {
                release::advance(db, declaration, instance);
            }
            match judge_position(db, instance, position, earlier) {
                Verdict::Wait(reason) => reason,
                decided => return decided,
            }
        }
        _ => match passage.missing() {
            Some(missing) => format!("waits for {}", missing.join(", ")),
            None => return Verdict::Process,
        },
    };
    match instance.state {
        State::Open | State::Complete => Verdict::Wait(reason),
        State::ClosedByOperator => Verdict::Reject(format!(
            "the sequence instance was closed by an operator; it {reason}"
        )),
        State::Expired => {
            Verdict::Reject(format!("the sequence instance has expired; it {reason}"))
        }
    }
}

/// Whether a stored message may be handled now.
pub fn may_go(db: &Db, declaration: &Declaration, instance: &Instance, stored: &Message) -> bool {
    if declaration.is_recording() {
        return true;
    }
    match (declaration.ordering, stored.position) {
        (Ordering::Position, Some(position)) => {
            let verdict = judge_position(db, instance, position, Some(stored));
            matches!(verdict, Verdict::Process)
        }
        // It failed at once while recording, and so never had a place to wait for.
        (Ordering::Position, None) => true,
        (Ordering::Conditions, _) => {
            Passage::before(db, declaration, instance.id, &stored.message_type)
                .missing()
                .is_none()
        }
    }
}

fn judge_position(
    db: &Db,
    instance: &Instance,
    position: i64,
    earlier: Option<&Message>,
) -> Verdict {
    let own_place = earlier.is_some_and(|earlier| {
        earlier.instance == Some(instance.id)
            && earlier.position == Some(position)
            && !earlier.rejected
    });
    if !own_place {
        if let Some((holder, _)) = release::at_position(db, instance.id, position)
            && earlier.is_none_or(|earlier| earlier.id != holder.id)
        {
            return Verdict::Reject(format!(
                "position {position} is taken by message {} ({})",
                holder.id, holder.idempotence_id
            ));
        }
        if position < instance.next_position {
            return Verdict::Reject(format!(
                "position {position} comes too late: it was given up, the next is {}",
                instance.next_position
            ));
        }
    }
    if position <= instance.next_position {
        Verdict::Process
    } else {
        Verdict::Wait(format!("waits for position {}", instance.next_position))
    }
}

/// Records what was decided.
fn settle(
    db: &Db,
    passage: Passage<'_>,
    instance: &mut Instance,
    arrival: Arrival<'_>,
    earlier: Option<Message>,
    verdict: Verdict,
) -> Answer {
    let (decision, state, reason) = match verdict {
        Verdict::Process => ("process", message::State::Processed, None),
        Verdict::Wait(reason) => ("buffered", message::State::Waiting, Some(reason)),
        Verdict::Reject(reason) => ("rejected", message::State::Failed, Some(reason)),
    };
    let earlier = earlier.map(|earlier| earlier.id);
    let id = message::record(
        db,
        earlier,
        Record {
            key: arrival.key,
            instance: Some(instance.id),
            position: arrival.position,
            state,
            rejection: reason
                .as_deref()
                .filter(|_| state == message::State::Failed),
        },
    );
    match state {
        message::State::Processed => {
            if earlier.is_some() {
                message::drop_content(db, id);
            }
            passage.done(instance, arrival.position, false);
        }
        message::State::Waiting => {
            message::store_content(db, id, arrival.content);
            instance.reopen(db);
        }
        _ => {
            // A rejected message is a dead letter: its payload is kept, its claim is
            // not, so that a resend is judged anew.
            message::store_content(db, id, arrival.content);
            claims::delete(db, arrival.key);
        }
    }
    Answer {
        decision,
        reason,
        instance: Some(instance.id),
        message: Some(id),
    }
}

/// Checks the position against the ordering (22004, 22023).
fn checked_position(declaration: &Declaration, position: Option<i64>) -> Result<Option<i64>> {
    match (declaration.ordering, position) {
        (Ordering::Position, None) => Err(InboxError::null("position").hint(format!(
            "Sequence \"{}\" is ordered by position: pass 1, 2, 3 ... for its messages.",
            declaration.name
        ))),
        (_, Some(position)) if position < 1 => Err(InboxError::invalid(format!(
            "position must be at least 1: {position}"
        ))
        .hint("Positions of one sequence instance are 1, 2, 3 ... without gaps.")),
        _ => Ok(position),
    }
}

/// Answers without a lock where the message's claim already tells.
fn known_before(db: &Db, key: MessageKey<'_>, holder: Holder, wait: bool) -> Option<Answer> {
    match holder {
        Holder::InFlight(_) if !wait => Some(Answer::without_record(
            "in_flight",
            "another transaction holds this message",
        )),
        // At REPEATABLE READ the claim's own insert decides between this and 40001.
        Holder::Settled { .. } if !spi::uses_transaction_snapshot() => {
            Some(Answer::duplicate(db, key))
        }
        _ => None,
    }
}

/// `inbox_receive(message_type, idempotence_id, context_id, payload, message_key,
/// headers, position, wait)`
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
fn inbox_receive(
    message_type: Option<&str>,
    idempotence_id: Option<&str>,
    context_id: Option<&str>,
    payload: Option<&[u8]>,
    message_key: Option<&[u8]>,
    headers: Option<JsonB>,
    position: Option<i64>,
    wait: Option<bool>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(decision, &'static str),
        name!(reason, Option<String>),
        name!(sequence_instance_id, Option<i64>),
        name!(message_id, Option<i64>),
    ),
> {
    let answer = or_raise((|| {
        let key = MessageKey::checked(message_type, idempotence_id)?;
        let wait = args::required("wait", wait)?;
        let context_id = context_id
            .map(|id| args::id("context_id", Some(id)))
            .transpose()?;
        let db = Db::read_write(fcinfo, "inbox_receive")?;
        let Some(context_id) = context_id else {
            declaration::of_message_type(&db, key.message_type)?;
            return Ok(Answer::without_record(
                "direct",
                "the message has no context id and is not sequenced",
            ));
        };
        let content = Content {
            payload: payload.map(<[u8]>::to_vec),
            message_key: message_key.map(<[u8]>::to_vec),
            headers,
        };
        let work = || -> Result<Answer> {
            let declaration = declaration::of_message_type(&db, key.message_type)?;
            let position = checked_position(&declaration, position)?;
            let holder = claims::holder(&db, key);
            if let Some(answer) = known_before(&db, key, holder, wait) {
                return Ok(answer);
            }
            let wait = Wait::begin_if(Kind::Sequence, key.message_type, || {
                wait && (holder.is_in_flight()
                    || Instance::is_held(&db, &declaration.name, context_id))
            });
            Ok(receive(
                &db,
                &declaration,
                Arrival {
                    key,
                    context_id,
                    position,
                    content,
                },
                wait,
            ))
        };
        if wait {
            return work();
        }
        without_waiting(work).unwrap_or_else(|| {
            Ok(Answer::without_record(
                "in_flight",
                "another transaction holds this message or its sequence instance",
            ))
        })
    })());
    if let Some(message_type) = message_type {
        statistics::count_one(Kind::Sequence, message_type, answer.counter());
    }
    TableIterator::once((
        answer.decision,
        answer.reason,
        answer.instance,
        answer.message,
    ))
}

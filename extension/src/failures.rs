//! Failures: `inbox_fail` and `inbox_fail_message` (guarantee G5).
//!
//! Writing FAILED and deleting the claim is one step of one transaction, so a resend
//! can win as soon as the failure is committed and not before. What is recorded as
//! PROCESSED or SKIPPED is never overwritten. A failure first waits for whoever holds
//! the message, and decides by what that one committed.

use pgrx::JsonB;
use pgrx::datum::Interval;
use pgrx::prelude::*;

use crate::args;
use crate::claims::{self, MessageKey};
use crate::errors::{InboxError, Result, or_raise};
use crate::ring;
use crate::sequences::declaration::{Declaration, Ordering, checked_interval};
use crate::sequences::instance::{Instance, lock_with_declaration};
use crate::sequences::message::{self, Content, Message, Record, State};
use crate::sequences::release::{self, Passage};
use crate::spi::Db;
use crate::statistics::{self, Counter, Kind};

/// What is told of a failure.
struct Failure<'a> {
    error: Option<&'a str>,
    retry_after: Option<Interval>,
    content: Content,
}

impl<'a> Failure<'a> {
    fn checked(
        db: &Db,
        error: Option<&'a str>,
        retry_after: Option<Interval>,
        content: Content,
    ) -> Result<Self> {
        let retry_after = retry_after
            .map(|interval| checked_interval(db, "retry_after", Some(interval), true))
            .transpose()?;
        Ok(Self {
            error,
            retry_after,
            content,
        })
    }

    /// Writes FAILED, over the earlier record or as a new one; the claim is held.
    fn write(
        self,
        db: &Db,
        key: MessageKey<'_>,
        place: Option<Place>,
        earlier: Option<&Message>,
    ) -> Result<()> {
        let stored = earlier.is_some_and(|earlier| message::has_content(db, earlier.id));
        if self.retry_after.is_some() && !stored && self.content.payload.is_none() {
            return Err(InboxError::null("payload")
                .detail("A message that is due again by itself is handed out from the inbox, which has no payload of it.")
                .hint("Pass the payload with retry_after, or leave retry_after out and let the broker redeliver."));
        }
        let id = match (earlier, place) {
            (Some(earlier), None) => earlier.id,
            (_, place) => {
                let Place { instance, position } = place.unwrap_or_default();
                let record = Record {
                    key,
                    instance,
                    position,
                    state: State::Failed,
                    rejection: None,
                };
                message::record(db, earlier.map(|earlier| earlier.id), record)
            }
        };
        if !self.content.is_empty() {
            message::store_content(db, id, self.content);
        }
        message::set_failed(db, id, self.error, self.retry_after);
        Ok(())
    }
}

/// Where a failed message without a record belongs.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    instance: Option<i64>,
    position: Option<i64>,
}

impl Place {
    /// A message that was handled at once had the next position: it was told `process`
    /// for no other reason, its record went with the rollback, and nobody has taken the
    /// position since.
    fn of_immediate(
        db: &Db,
        declaration: &Declaration,
        instance: &mut Instance,
        key: MessageKey<'_>,
    ) -> Self {
        let mut place = Self {
            instance: Some(instance.id),
            position: None,
        };
        if declaration.ordering == Ordering::Position
            && !declaration.is_recording()
            && declaration.message_type(key.message_type).is_some()
        {
            release::advance(db, declaration, instance);
            let is_free = release::at_position(db, instance.id, instance.next_position).is_none();
            place.position = is_free.then_some(instance.next_position);
        }
        place
    }
}

/// Whether nothing may change any more.
fn is_done(message: Option<&Message>) -> bool {
    message.is_some_and(|message| matches!(message.state, State::Processed | State::Skipped))
}

/// Fails a sequenced message under the lock of its instance.
fn fail_sequenced(
    db: &Db,
    declaration: &Declaration,
    instance: &mut Instance,
    key: MessageKey<'_>,
    failure: Failure<'_>,
) -> Result<bool> {
    let is_retried = failure.retry_after.is_some();
    // Either the claim is ours now, and nobody can take it before the commit, or it is
    // committed; whoever held it meanwhile has decided.
    let was_free = claims::claim(db, key, instance.id);
    let earlier = message::sequenced(db, key);
    if is_done(earlier.as_ref()) {
        if was_free {
            claims::delete(db, key);
        }
        return Ok(false);
    }
    let moved = earlier
        .as_ref()
        .is_some_and(|earlier| earlier.instance != Some(instance.id));
    if let Some(earlier) = earlier.as_ref().filter(|_| moved)
        && earlier.state != State::Failed
    {
        return Err(InboxError::invalid(format!(
            "the message belongs to sequence instance {}, not to {}",
            earlier.instance.unwrap_or_default(),
            instance.id
        ))
        .hint("Pass the sequence instance that inbox_receive() or inbox_next() returned."));
    }
    let passage = Passage::before(db, declaration, instance.id, key.message_type);
    // A failed message that was resent under another context fails where it was received.
    let place =
        (moved || earlier.is_none()).then(|| Place::of_immediate(db, declaration, instance, key));
    failure.write(db, key, place, earlier.as_ref())?;
    claims::delete(db, key);
    statistics::count_one(Kind::Sequence, key.message_type, Counter::Failed);
    if declaration.skips_failures() && !is_retried {
        passage.failed(instance);
    }
    Ok(true)
}

/// Fails a plain consumer's message.
fn fail_plain(db: &Db, key: MessageKey<'_>, failure: Failure<'_>) -> Result<bool> {
    loop {
        let was_free = ring::claim(db, key.message_type, key.idempotence_id);
        let earlier = message::plain(db, key);
        if is_done(earlier.as_ref()) {
            if was_free {
                ring::delete(db, key.message_type, key.idempotence_id);
            }
            return Ok(false);
        }
        // Deleting the claim is what two failures of one message meet at. Who deletes
        // nothing was not first: the claim is gone, and everything is asked again.
        if ring::delete(db, key.message_type, key.idempotence_id) {
            failure.write(db, key, None, earlier.as_ref())?;
            statistics::count_one(Kind::Consumer, key.message_type, Counter::Failed);
            return Ok(true);
        }
    }
}

/// Fails the message of this id, whoever it belongs to.
fn fail_message(db: &Db, id: i64, failure: Failure<'_>) -> Result<bool> {
    let Some(stored) = message::by_id(db, id) else {
        return Ok(false);
    };
    let Some(instance) = stored.instance else {
        return fail_plain(db, stored.key(), failure);
    };
    match lock_with_declaration(db, instance)? {
        Some((declaration, mut instance)) => {
            fail_sequenced(db, &declaration, &mut instance, stored.key(), failure)
        }
        None => Ok(false),
    }
}

/// `inbox_fail(message_type, idempotence_id, sequence_instance_id, error, retry_after,
/// payload, message_key, headers)`
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments)]
fn inbox_fail(
    message_type: Option<&str>,
    idempotence_id: Option<&str>,
    sequence_instance_id: Option<i64>,
    error: Option<&str>,
    retry_after: Option<Interval>,
    payload: Option<&[u8]>,
    message_key: Option<&[u8]>,
    headers: Option<JsonB>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    or_raise((|| {
        let key = MessageKey::checked(message_type, idempotence_id)?;
        let db = Db::read_write(fcinfo, "inbox_fail")?;
        let content = Content {
            payload: payload.map(<[u8]>::to_vec),
            message_key: message_key.map(<[u8]>::to_vec),
            headers,
        };
        let failure = Failure::checked(&db, error, retry_after, content)?;
        let Some(id) = sequence_instance_id else {
            return fail_plain(&db, key, failure);
        };
        let (declaration, mut instance) =
            lock_with_declaration(&db, id)?.ok_or_else(|| InboxError::no_instance(id))?;
        fail_sequenced(&db, &declaration, &mut instance, key, failure)
    })())
}

/// `inbox_fail_message(message_id, error, retry_after)`
#[pg_extern(sql = false)]
fn inbox_fail_message(
    message_id: Option<i64>,
    error: Option<&str>,
    retry_after: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    or_raise((|| {
        let id = args::required("message_id", message_id)?;
        let db = Db::read_write(fcinfo, "inbox_fail_message")?;
        let failure = Failure::checked(&db, error, retry_after, Content::default())?;
        fail_message(&db, id, failure)
    })())
}

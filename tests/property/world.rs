//! Steps through a history on a real server, several sessions with open transactions side by side,
//! and compares every answer and every state with the model's.

use std::collections::{BTreeMap, BTreeSet};

use inbox_test_support::{
    Database,
    inbox::{Arrival as Message, Session, server_error},
};
use serde_json::{Value, json};

use super::{
    history::{Again, Condition, Declaration, History, Key, Op, SESSIONS, Sent, Step},
    interleaving::{Expected, Interleaving, arrival, lines, wanted},
    model::{Answer, Arrival, Life},
};

/// What the tables and views show, in the words of `interleaving::lines`.
const SHOW: &str = "
    SELECT coalesce(array_agg(line ORDER BY line COLLATE \"C\"), '{}') FROM (
        SELECT format('message %s in %s at %s: %s attempts %s due %s rejected %s forced %s stored %s',
                   m.idempotence_id, i.context_id, coalesce(m.\"position\"::text, '-'), m.state,
                   m.attempts, m.next_attempt_at IS NOT NULL, m.state = 'FAILED' AND m.rejected,
                   m.forced,
                   CASE WHEN b.message_id IS NULL THEN 'nothing'
                        ELSE coalesce(convert_from(b.payload, 'UTF8'), 'NULL') END) AS line
        FROM sequenced_message m
        JOIN sequence_instance i ON i.id = m.sequence_instance_id
        LEFT JOIN buffered_message b ON b.message_id = m.id
        UNION ALL
        SELECT format('dead letter %s', idempotence_id) FROM inbox_dead_letters
        UNION ALL
        SELECT format('claim %s in %s', c.idempotence_id, i.context_id)
        FROM sequential_inbox_idempotence c
        JOIN sequence_instance i ON i.id = c.sequence_instance_id
        UNION ALL
        SELECT format('handled %s: %s', entry, count(*)) FROM ledger GROUP BY entry
        UNION ALL
        SELECT format('instance %s: %s waiting %s ready %s failed %s processed %s',
                   i.context_id,
                   i.state || CASE WHEN i.closed_by_operator THEN ' by operator' ELSE '' END,
                   v.waiting, v.ready, v.failed, v.processed)
        FROM inbox_sequences v JOIN sequence_instance i USING (id)
    ) AS rows (line)";

/// Everything of a history, but for the declaration, whose replacement drops what is left of it.
const FORGET: &str = "DELETE FROM sequence_instance; DELETE FROM ledger;
    DELETE FROM sequence_message_type; DELETE FROM sequence_type;";

/// What a session waits for a lock before the step counts as blocked. No step waits but for locks
/// that stay.
const LOCK_TIMEOUT: &str = "SET lock_timeout = '30ms'";

/// A database and the sessions that act in it.
pub struct World {
    database: Database,
    observer: Session,
    sessions: Vec<Session>,
    /// How often which call was given which answer.
    pub answers: BTreeMap<String, usize>,
}

/// How the extension differs from the model.
pub type Difference = String;

fn session(database: &Database) -> Session {
    let mut session = Session::new(database);
    session.run(LOCK_TIMEOUT);
    session
}

impl World {
    /// A world of its own.
    pub fn new() -> Self {
        let database = Database::new();
        let mut observer = Session::new(&database);
        // A vacuum's locks would look like another session's.
        for table in [
            "sequence_instance",
            "sequenced_message",
            "buffered_message",
            "sequential_inbox_idempotence",
            "sequence_type",
            "sequence_message_type",
        ] {
            observer.run(&format!(
                "ALTER TABLE {table} SET (autovacuum_enabled = off)"
            ));
        }
        let sessions = (0..SESSIONS).map(|_| session(&database)).collect();
        Self {
            database,
            observer,
            sessions,
            answers: BTreeMap::new(),
        }
    }

    /// Runs a history from its beginning; the first difference, if there is one.
    pub fn run(&mut self, history: &History) -> Result<(), Difference> {
        self.forget();
        let mut model = Interleaving::new(history.declaration.clone());
        self.observer.run(&declaring(&history.declaration));
        for (number, step) in history.steps.iter().enumerate() {
            let number = number as u64 + 1;
            self.step(&mut model, step, number)
                .and_then(|()| self.compare(&model, step.session))
                .map_err(|difference| format!("step {number}, {step:?}: {difference}"))?;
        }
        Ok(())
    }

    /// Forgets the history before, at whatever step it ended.
    fn forget(&mut self) {
        for acting in &mut self.sessions {
            if acting.client().batch_execute("ROLLBACK").is_err() {
                *acting = session(&self.database);
            }
        }
        self.observer.run(FORGET);
    }

    /// Frees what many histories have left behind.
    pub fn tidy(&mut self) {
        self.observer.run("VACUUM");
    }

    fn compare(&mut self, model: &Interleaving, session: usize) -> Result<(), Difference> {
        model.committed.check()?;
        same(
            &lines(&model.committed),
            &self.observer.value::<Vec<String>>(SHOW, &[]),
        )
        .map_err(|difference| format!("committed: {difference}"))?;
        if model.open[session].is_none() {
            return Ok(());
        }
        let view = model.view(session);
        view.check()?;
        same(
            &lines(&view),
            &self.sessions[session].value::<Vec<String>>(SHOW, &[]),
        )
        .map_err(|difference| format!("as the session sees it: {difference}"))
    }

    fn step(
        &mut self,
        model: &mut Interleaving,
        step: &Step,
        number: u64,
    ) -> Result<(), Difference> {
        let actor = step.session;
        let is_open = model.open[actor].is_some();
        match &step.op {
            Op::Begin if !is_open => {
                self.sessions[actor].begin();
                model.open[actor] = Some(Default::default());
            }
            Op::Commit => {
                if let Some(transaction) = model.open[actor].take() {
                    self.sessions[actor].commit();
                    model.commit(&transaction);
                }
            }
            Op::Rollback => {
                if model.open[actor].take().is_some() {
                    self.sessions[actor].rollback();
                }
            }
            Op::Crash => {
                model.open[actor] = None;
                self.database.terminate(self.sessions[actor].pid());
                self.sessions[actor] = session(&self.database);
            }
            Op::Housekeeping if !is_open => self.housekeeping(model, actor),
            Op::Expire(context) if !is_open => self.expire(model, actor, *context),
            Op::ReceiveAndFail(sent, again) if !is_open => {
                if *again == Again::Never || sent.payload {
                    return self.receive_and_fail(model, actor, (*sent, *again), number);
                }
            }
            Op::NextAndFail(context, again) if !is_open => {
                return self.next_and_fail(model, actor, (*context, *again), number);
            }
            _ => return self.call(model, step, number),
        }
        Ok(())
    }

    /// One call, in the session's transaction or in one of its own.
    fn call(
        &mut self,
        model: &mut Interleaving,
        step: &Step,
        number: u64,
    ) -> Result<(), Difference> {
        let actor = step.session;
        let (expected, after) = match model.expect(actor, &step.op, number) {
            Expected::Nothing => return Ok(()),
            Expected::Blocked => (Answer::Error("55P03"), None),
            Expected::Answer(answer, after) => (answer, Some(after)),
        };
        let is_open = model.open[actor].is_some();
        self.sessions[actor].run(if is_open { "SAVEPOINT before" } else { "BEGIN" });
        let answer = call(
            &mut self.sessions[actor],
            &model.view(actor).declaration,
            &step.op,
            number,
        )?;
        let failed = matches!(answer, Answer::Error(_));
        let undone = failed || (is_open && step.undone);
        let end = match (is_open, undone) {
            (true, false) => "RELEASE before",
            (true, true) => "ROLLBACK TO before; RELEASE before",
            (false, false) => "COMMIT",
            (false, true) => "ROLLBACK",
        };
        self.sessions[actor].run(end);
        if answer != expected {
            return Err(format!("expected {expected:?}, got {answer:?}"));
        }
        *self.answers.entry(tally(&step.op, &answer)).or_default() += 1;
        if let Some(after) = after.filter(|_| !undone) {
            if is_open {
                model.open[actor] = Some(*after);
            } else {
                model.commit(&after);
            }
        }
        Ok(())
    }

    /// A handler that fails: what it received is gone with the rollback, and the failure recorded.
    fn receive_and_fail(
        &mut self,
        model: &mut Interleaving,
        actor: usize,
        (sent, again): (Sent, Again),
        number: u64,
    ) -> Result<(), Difference> {
        let op = Op::Receive(sent);
        let Expected::Answer(expected, after) = model.expect(actor, &op, number) else {
            return Ok(());
        };
        let session = &mut self.sessions[actor];
        session.begin();
        let answer = call(session, &model.committed.declaration, &op, number)?;
        if answer != expected {
            return Err(format!("expected {expected:?}, got {answer:?}"));
        }
        if answer != Answer::Decided("process") {
            session.run(if matches!(answer, Answer::Error(_)) {
                "ROLLBACK"
            } else {
                "COMMIT"
            });
            model.commit(&after);
            return Ok(());
        }
        session.rollback();
        let arrival = arrival(sent, number);
        let mut view = model.committed.clone();
        let expected = view.fail_immediate(&arrival, again, number);
        let (message_type, id) = names(arrival.key);
        let sql =
            "SELECT inbox_fail($1, $2, inbox_sequence('s', $3), 'broken', $4::text::interval, $5)";
        let context = format!("c{}", arrival.context);
        let payload = arrival.payload.map(String::into_bytes);
        let rows = session.query(
            sql,
            &[&message_type, &id, &context, &interval(again), &payload],
        );
        let answer = yes_or_no(rows.map(|rows| rows[0].get(0)))?;
        if answer != expected {
            return Err(format!("inbox_fail: expected {expected:?}, got {answer:?}"));
        }
        model.committed = view;
        Ok(())
    }

    /// The same for a message that was handed out.
    fn next_and_fail(
        &mut self,
        model: &mut Interleaving,
        actor: usize,
        (context, again): (Option<usize>, Again),
        number: u64,
    ) -> Result<(), Difference> {
        let op = Op::Next(context);
        let Expected::Answer(expected, after) = model.expect(actor, &op, number) else {
            return Ok(());
        };
        let session = &mut self.sessions[actor];
        session.begin();
        let answer = call(session, &model.committed.declaration, &op, number)?;
        if answer != expected {
            return Err(format!("expected {expected:?}, got {answer:?}"));
        }
        let Answer::Released(key, _, _) = answer else {
            session.commit();
            model.commit(&after);
            return Ok(());
        };
        session.rollback();
        let expected = model.committed.fail(key, again, number);
        let answer = call(
            session,
            &model.committed.declaration,
            &Op::Fail(key, again),
            number,
        )?;
        if answer != expected {
            return Err(format!(
                "inbox_fail_message: expected {expected:?}, got {answer:?}"
            ));
        }
        Ok(())
    }

    fn housekeeping(&mut self, model: &mut Interleaving, actor: usize) {
        if !model.is_being_declared(actor) {
            self.sessions[actor].run("SELECT * FROM inbox_housekeeping()");
            let held = model.held_contexts(actor);
            model.committed.housekeeping(&held);
        }
    }

    /// Lets the time of an instance in which something happened be over.
    fn expire(&mut self, model: &mut Interleaving, actor: usize, context: usize) {
        let messages = model.committed.messages.values();
        if model.has_others(actor) || messages.filter(|it| it.context == context).count() == 0 {
            return;
        }
        for retain_until in ["-1 second", "1 day"] {
            self.sessions[actor].run(&format!(
                "UPDATE sequence_instance
                 SET retain_until = clock_timestamp() + interval '{retain_until}'
                 WHERE context_id = 'c{context}';
                 SELECT * FROM inbox_housekeeping()"
            ));
        }
        model.committed.housekeeping(&BTreeSet::new());
        if model.committed.instances[&context].life == Life::Open {
            model.committed.end(context, Life::Expired);
        }
    }
}

/// A call and its answer without what differs from history to history.
fn tally(op: &Op, answer: &Answer) -> String {
    let word =
        |text: String| -> String { text.chars().take_while(|c| c.is_alphanumeric()).collect() };
    let answer = match answer {
        Answer::Released(..) => "Released".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{} {answer}", word(format!("{op:?}")))
}

/// Makes one call and, where a message is to be handled, handles it.
fn call(
    session: &mut Session,
    present: &Declaration,
    op: &Op,
    number: u64,
) -> Result<Answer, Difference> {
    let of_message = |session: &mut Session, key: &Key| identity(session, RECORD, &names(*key).1);
    let of_context =
        |session: &mut Session, n: &usize| identity(session, INSTANCE, &format!("c{n}"));
    match op {
        Op::Receive(sent) => receive(session, &arrival(*sent, number)),
        Op::Next(context) => {
            let instance = context.map(|context| of_context(session, &context));
            next(session, instance)
        }
        Op::Claim(key, context) => {
            let (message_type, id) = names(*key);
            let instance = of_context(session, context);
            let sql = "SELECT inbox_try_claim($1, $2, $3)";
            match session.query(sql, &[&message_type, &id, &instance]) {
                Ok(rows) => Ok(Answer::Claimed(match rows[0].get(0) {
                    "claimed" => "claimed",
                    "duplicate" => "duplicate",
                    _ => "in_flight",
                })),
                Err(error) => refused(&error),
            }
        }
        Op::Fail(key, again) => {
            let message = of_message(session, key);
            yes_or_no(session.try_fail(message, "broken", interval(*again)))
        }
        Op::Retry(key) => operate(session, "inbox_retry", of_message, key),
        Op::Force(key) => operate(session, "inbox_force", of_message, key),
        Op::Skip(key) => operate(session, "inbox_skip", of_message, key),
        Op::SkipGap(context) => operate(session, "inbox_skip_gap", of_context, context),
        Op::ForceAll(context) => operate(session, "inbox_force_all", of_context, context),
        Op::Close(context) => operate(session, "inbox_close", of_context, context),
        _ => {
            let declaration = wanted(present, op).ok_or("not a call")?;
            match session.client().batch_execute(&declaring(&declaration)) {
                Ok(()) => Ok(Answer::Done),
                Err(error) => refused(&error),
            }
        }
    }
}

/// Where a session finds what has which identity; 0, which nothing has, where it sees nothing.
const RECORD: &str = "SELECT coalesce(max(id), 0) FROM sequenced_message WHERE idempotence_id = $1";
const INSTANCE: &str = "SELECT coalesce(max(id), 0) FROM sequence_instance WHERE context_id = $1";

fn identity(session: &mut Session, sql: &str, name: &str) -> i64 {
    session.value(sql, &[&name])
}

fn operate<T>(
    session: &mut Session,
    function: &str,
    identity: impl Fn(&mut Session, &T) -> i64,
    of: &T,
) -> Result<Answer, Difference> {
    let id = identity(session, of);
    yes_or_no(session.try_operate(function, id))
}

fn yes_or_no(answer: Result<bool, postgres::Error>) -> Result<Answer, Difference> {
    answer.map_or_else(|error| refused(&error), |yes| Ok(Answer::Is(yes)))
}

fn receive(session: &mut Session, arrival: &Arrival) -> Result<Answer, Difference> {
    let (message_type, id) = names(arrival.key);
    let context = format!("c{}", arrival.context);
    let message = Message {
        position: arrival.position,
        payload: arrival.payload.as_deref().map(str::as_bytes),
        ..Message::new(&message_type, &id)
            .of(&context)
            .without_waiting()
    };
    let received = match session.try_receive(&message) {
        Ok(received) => received,
        Err(error) => return refused(&error),
    };
    let decision = ["process", "buffered", "duplicate", "rejected", "in_flight"]
        .into_iter()
        .find(|it| *it == received.decision)
        .ok_or_else(|| format!("an unknown decision: {received:?}"))?;
    if ["process", "buffered", "rejected"].contains(&decision) {
        let told = (received.instance(), received.message());
        let stored = (
            identity(session, INSTANCE, &context),
            identity(session, RECORD, &id),
        );
        if told != stored {
            return Err(format!(
                "it told {told:?}, and what is stored is {stored:?}"
            ));
        }
    }
    if decision == "process" {
        session.write(&id);
    }
    Ok(Answer::Decided(decision))
}

fn next(session: &mut Session, instance: Option<i64>) -> Result<Answer, Difference> {
    let released = match session.try_next(instance) {
        Ok(Some(released)) => released,
        Ok(None) => return Ok(Answer::Nothing),
        Err(error) => return refused(&error),
    };
    if instance.is_some() && released.instance != instance {
        return Err(format!("{released:?} is not of instance {instance:?}"));
    }
    if released.message != identity(session, RECORD, &released.id) {
        return Err(format!("{released:?} has not the identity that is stored"));
    }
    let number = released.id[1..]
        .parse()
        .map_err(|_| format!("an unknown message: {released:?}"))?;
    session.write(&released.id);
    let payload = released
        .payload
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Answer::Released(Key(number), released.attempts, payload))
}

/// The type and the idempotence id of a message.
fn names(key: Key) -> (String, String) {
    (format!("t{}", key.message_type()), format!("m{}", key.0))
}

fn interval(again: Again) -> Option<&'static str> {
    match again {
        Again::Never => None,
        Again::Now => Some("0"),
        Again::Later => Some("1 hour"),
    }
}

/// An error as one of those that the model knows.
fn refused(error: &postgres::Error) -> Result<Answer, Difference> {
    let said = server_error(error);
    ["42704", "22004", "22023", "23503", "55006", "55P03"]
        .into_iter()
        .find(|code| *code == said.code().code())
        .map(Answer::Error)
        .ok_or_else(|| format!("an error that nothing here may raise: {said:?}"))
}

fn declaring(declaration: &Declaration) -> String {
    let types: Vec<Value> = declaration
        .types
        .iter()
        .map(|(n, declared)| {
            let mut json = json!({"type": format!("t{n}"), "optional": declared.optional,
                "final": declared.last});
            if let Some(condition) = &declared.condition {
                json["releaseCondition"] = as_json(condition);
            }
            json
        })
        .collect();
    format!(
        "SELECT inbox_declare_sequence('s', '1 day', '{}', '{}', '{}', {})",
        Value::Array(types),
        if declaration.by_position {
            "position"
        } else {
            "conditions"
        },
        if declaration.skip { "skip" } else { "block" },
        if declaration.recording {
            "'2200-01-01'"
        } else {
            "NULL"
        },
    )
}

fn as_json(condition: &Condition) -> Value {
    let all = |parts: &[Condition]| Value::Array(parts.iter().map(as_json).collect());
    match condition {
        Condition::After(n) => json!({"predecessor": format!("t{n}")}),
        Condition::All(parts) => json!({"and": all(parts)}),
        Condition::Any(parts) => json!({"or": all(parts)}),
    }
}

/// Whether both say the same; what only one of them says.
fn same(model: &[String], extension: &[String]) -> Result<(), Difference> {
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these
            .iter()
            .filter(|line| !those.contains(line))
            .cloned()
            .collect()
    };
    if model == extension {
        return Ok(());
    }
    Err(format!(
        "only the model has {:#?}, only the extension has {:#?}",
        only(model, extension),
        only(extension, model)
    ))
}

//! Declared sequences: `inbox_declare_sequence`, `inbox_drop_sequence`, and each
//! session's cache of what is declared (guarantees G6, G7).
//!
//! A declaration and the consumers of its sequence exclude each other through an
//! object lock on the sequence: whoever receives or hands out a message holds it
//! weakly to the end of the transaction, whoever changes the declaration holds it
//! strongly. So every message is judged by one declaration, and what waited under
//! the old one is judged again under the new one before anything else happens.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use pgrx::JsonB;
use pgrx::datum::{Interval, clock_timestamp};
use pgrx::pg_sys::BuiltinOid::{
    BOOLOID, INT4OID, INTERVALOID, JSONBOID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID,
};
use pgrx::prelude::*;

use super::condition::{self, MessageType, Refusal};
use super::release;
use crate::args;
use crate::errors::{InboxError, Result, or_raise, shown};
use crate::probe::{IndexProbe, Key};
use crate::spi::{Arg, Db, Statement, arg};

/// How the messages of one instance are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// By release conditions.
    Conditions,
    /// By position: 1, 2, 3 … without gaps.
    Position,
}

/// What a failed message does to those that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// They wait until it succeeds.
    Block,
    /// It counts as passed.
    Skip,
}

/// A declared sequence.
#[derive(Debug)]
pub struct Declaration {
    pub name: String,
    pub ordering: Ordering,
    pub on_failure: OnFailure,
    recording_until: Option<TimestampWithTimeZone>,
    version: i64,
    types: BTreeMap<String, MessageType>,
    /// For each type, those whose condition names it.
    successors: HashMap<String, Vec<String>>,
    required: Vec<String>,
    around: HashMap<String, Vec<String>>,
}

impl Declaration {
    /// The message type of this name.
    pub fn message_type(&self, name: &str) -> Option<&MessageType> {
        self.types.get(name)
    }

    /// The types whose release condition names this one.
    pub fn successors(&self, name: &str) -> &[String] {
        self.successors
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// The names of all types.
    pub fn all_types(&self) -> Vec<String> {
        self.types.keys().cloned().collect()
    }

    /// The types without which an instance is not complete.
    pub fn required_types(&self) -> &[String] {
        &self.required
    }

    /// What must be known to judge a message of this type and what follows from it: its
    /// predecessors, the type itself, its successors' predecessors and all required types.
    pub fn around(&self, name: &str) -> &[String] {
        self.around.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether messages are still handled at once and only recorded.
    pub fn is_recording(&self) -> bool {
        self.recording_until
            .is_some_and(|until| until > clock_timestamp())
    }

    /// Whether a message that failed for good counts as passed. One that is due again
    /// by itself has not failed for good and never counts.
    pub fn skips_failures(&self) -> bool {
        self.on_failure == OnFailure::Skip
    }
}

/// The session's parsed declarations; each is valid while its version is stored.
#[derive(Default)]
struct Cache {
    by_id: HashMap<i32, Rc<Declaration>>,
    id_of_type: HashMap<String, i32>,
    id_of_name: HashMap<String, i32>,
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

static SEQUENCE_OF_TYPE: Statement = Statement::new(
    "SELECT t.id FROM {s}sequence_message_type m \
     JOIN {s}sequence_type t ON t.name {=} m.sequence_name WHERE m.message_type {=} $1",
    &[TEXTOID],
);
static SEQUENCE_BY_NAME: Statement = Statement::new(
    "SELECT id FROM {s}sequence_type WHERE name {=} $1",
    &[TEXTOID],
);
/// The number of the column that holds a declaration's version.
const VERSION_COLUMN: usize = 8;
static LOAD: Statement = Statement::new(
    "SELECT version, name, ordering, on_failure, recording_until FROM {s}sequence_type WHERE id {=} $1",
    &[INT4OID],
);
static LOAD_TYPES: Statement = Statement::new(
    "SELECT message_type, release_condition, optional, final \
     FROM {s}sequence_message_type WHERE sequence_name {=} $1",
    &[TEXTOID],
);

/// The declaration that this message type belongs to, held against change until the
/// transaction ends.
pub fn of_message_type(db: &Db, message_type: &str) -> Result<Rc<Declaration>> {
    let cached = CACHE.with_borrow(|cache| cache.id_of_type.get(message_type).copied());
    let (id, declaration) = held_by(
        db,
        cached,
        || {
            db.read_latest(&SEQUENCE_OF_TYPE, &[arg(message_type)])
                .get(0, 0)
        },
        |declaration| declaration.types.contains_key(message_type),
    )
    .ok_or_else(|| InboxError::no_message_type(message_type))?;
    if cached != Some(id) {
        CACHE.with_borrow_mut(|cache| cache.id_of_type.insert(message_type.to_owned(), id));
    }
    Ok(declaration)
}

/// The declaration of this name, held against change until the transaction ends.
pub fn of_name(db: &Db, name: &str) -> Result<Rc<Declaration>> {
    let cached = CACHE.with_borrow(|cache| cache.id_of_name.get(name).copied());
    let (id, declaration) = held_by(
        db,
        cached,
        || db.read_latest(&SEQUENCE_BY_NAME, &[arg(name)]).get(0, 0),
        |declaration| declaration.name == name,
    )
    .ok_or_else(|| InboxError::no_sequence(name))?;
    if cached != Some(id) {
        CACHE.with_borrow_mut(|cache| cache.id_of_name.insert(name.to_owned(), id));
    }
    Ok(declaration)
}

/// Locks the sequence that is looked up, first in the cache; none where there is none.
/// Between the look and the lock the declaration may have changed: then it is looked up
/// again until what is locked is what was meant.
fn held_by(
    db: &Db,
    cached: Option<i32>,
    look_up: impl Fn() -> Option<i32>,
    is_meant: impl Fn(&Declaration) -> bool,
) -> Option<(i32, Rc<Declaration>)> {
    let mut id = match cached {
        Some(id) => id,
        None => look_up()?,
    };
    loop {
        if let Some(declaration) = held(db, id).filter(|declaration| is_meant(declaration)) {
            return Some((id, declaration));
        }
        id = look_up()?;
    }
}

/// The declaration of this name, but none where it is just being changed; never waits.
pub fn of_name_unless_changing(db: &Db, name: &str) -> Option<Rc<Declaration>> {
    let id: i32 = db.read_latest(&SEQUENCE_BY_NAME, &[arg(name)]).get(0, 0)?;
    if !db.try_lock_object("sequence_type", id, pg_sys::RowExclusiveLock) {
        return None;
    }
    present(db, id).filter(|declaration| declaration.name == name)
}

/// Locks the sequence weakly and gives its present declaration, if it still has one.
fn held(db: &Db, id: i32) -> Option<Rc<Declaration>> {
    db.lock_object("sequence_type", id, pg_sys::RowExclusiveLock);
    present(db, id)
}

/// The stored declaration, from the cache if that has it; the sequence is locked.
fn present(db: &Db, id: i32) -> Option<Rc<Declaration>> {
    let version = IndexProbe::open(db, "sequence_type", "sequence_type_id_key")
        .bigint(&[Key::Integer(id)], VERSION_COLUMN)?;
    let cached = CACHE.with_borrow(|cache| cache.by_id.get(&id).cloned());
    if let Some(declaration) = cached.filter(|declaration| declaration.version == version) {
        return Some(declaration);
    }
    let declaration = Rc::new(load(db, id)?);
    CACHE.with_borrow_mut(|cache| cache.by_id.insert(id, Rc::clone(&declaration)));
    Some(declaration)
}

/// Reads the stored declaration as it is now.
fn load(db: &Db, id: i32) -> Option<Declaration> {
    let head = db.read_latest(&LOAD, &[arg(id)]);
    let name: String = head.get(0, 1)?;
    let rows = db.read_latest(&LOAD_TYPES, &[arg(name.as_str())]);
    let mut types = BTreeMap::new();
    for row in 0..rows.len() {
        let type_name: String = rows.get(row, 0)?;
        let stored: Option<JsonB> = rows.get(row, 1);
        let release_condition = match stored
            .map(|json| serde_json::from_value(json.0))
            .transpose()
        {
            Ok(condition) => condition,
            Err(error) => InboxError::new(
                PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
                format!(
                    "the stored release condition of \"{}\" is not valid",
                    shown(&type_name)
                ),
            )
            .detail(error.to_string())
            .hint("Declare the sequence again with inbox_declare_sequence().")
            .raise(),
        };
        types.insert(
            type_name.clone(),
            MessageType {
                name: type_name,
                release_condition,
                optional: rows.get(row, 2)?,
                is_final: rows.get(row, 3)?,
            },
        );
    }
    let mut successors: HashMap<String, Vec<String>> = HashMap::new();
    for declared in types.values() {
        for predecessor in declared.predecessors() {
            successors
                .entry(predecessor.to_owned())
                .or_default()
                .push(declared.name.clone());
        }
    }
    let required: Vec<String> = types
        .values()
        .filter(|declared| !declared.optional)
        .map(|d| d.name.clone())
        .collect();
    let around = types
        .keys()
        .map(|name| {
            (
                name.clone(),
                types_around(name, &types, &successors, &required),
            )
        })
        .collect();
    Some(Declaration {
        required,
        around,
        name,
        recording_until: head.get(0, 4),
        version: head.get(0, 0)?,
        ordering: if head.get::<&str>(0, 2)? == "position" {
            Ordering::Position
        } else {
            Ordering::Conditions
        },
        on_failure: if head.get::<&str>(0, 3)? == "skip" {
            OnFailure::Skip
        } else {
            OnFailure::Block
        },
        types,
        successors,
    })
}

/// See [`Declaration::around`]; each type once.
fn types_around(
    name: &str,
    types: &BTreeMap<String, MessageType>,
    successors: &HashMap<String, Vec<String>>,
    required: &[String],
) -> Vec<String> {
    let successors = successors.get(name).map(Vec::as_slice).unwrap_or_default();
    let mut around: BTreeSet<&str> = required.iter().map(String::as_str).collect();
    around.insert(name);
    for judged in successors.iter().map(String::as_str).chain([name]) {
        around.extend(
            types
                .get(judged)
                .map(MessageType::predecessors)
                .unwrap_or_default(),
        );
    }
    around.into_iter().map(str::to_owned).collect()
}

/// The arguments of `inbox_declare_sequence`, checked as far as one can without a
/// look at what is stored.
struct Request<'a> {
    name: &'a str,
    retention: Interval,
    types: Vec<MessageType>,
    ordering: &'a str,
    on_failure: &'a str,
    recording_until: Option<TimestampWithTimeZone>,
    expiry_grace: Interval,
}

static POSITIVE_INTERVAL: Statement = Statement::new(
    "SELECT $1 {>} '0'::interval, $1 {>=} '0'::interval, $1::pg_catalog.text",
    &[INTERVALOID],
);
static INSERT_SEQUENCE: Statement = Statement::new(
    "INSERT INTO {s}sequence_type AS t (name, retention, ordering, on_failure, version) \
     VALUES ($1, '1 day', 'conditions', 'block', 0) ON CONFLICT (name) DO NOTHING RETURNING t.id",
    &[TEXTOID],
);
static UNCHANGED: Statement = Statement::new(
    "SELECT t.ordering, t.retention {=} $2 AND t.ordering {=} $3 AND t.on_failure {=} $4 \
            AND t.expiry_grace {=} $6 \
            AND (t.recording_until {=} $5 OR (t.recording_until IS NULL AND $5 IS NULL)) \
            AND t.version {<>} 0, \
            t.retention {=} $2 \
     FROM {s}sequence_type t WHERE t.id {=} $1",
    &[
        INT4OID,
        INTERVALOID,
        TEXTOID,
        TEXTOID,
        TIMESTAMPTZOID,
        INTERVALOID,
    ],
);
static UPDATE_SEQUENCE: Statement = Statement::new(
    "UPDATE {s}sequence_type SET retention = $2, ordering = $3, on_failure = $4, \
            recording_until = $5, expiry_grace = $6, \
            version = (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) {*} 1000000)::bigint, \
            declared_at = pg_catalog.clock_timestamp() \
     WHERE id {=} $1",
    &[
        INT4OID,
        INTERVALOID,
        TEXTOID,
        TEXTOID,
        TIMESTAMPTZOID,
        INTERVALOID,
    ],
);
static TAKEN_TYPE: Statement = Statement::new(
    "SELECT m.message_type, m.sequence_name FROM {s}sequence_message_type m \
     WHERE m.message_type {=} ANY ($1) AND m.sequence_name {<>} $2 LIMIT 1",
    &[TEXTARRAYOID, TEXTOID],
);
/// An unfinished message of a type that the declaration drops.
static UNFINISHED_DROPPED_TYPE: Statement = Statement::new(
    "SELECT m.message_type, m.id FROM {s}sequence_instance i \
     JOIN {s}sequenced_message m ON m.sequence_instance_id {=} i.id \
     WHERE i.name {=} $1 AND NOT (m.message_type {=} ANY ($2)) \
       AND m.state {=} ANY (ARRAY['WAITING', 'READY', 'FAILED']::pg_catalog.text[]) LIMIT 1",
    &[TEXTOID, TEXTARRAYOID],
);
/// A message that waits or may be handed out, whatever its type.
static UNFINISHED: Statement = Statement::new(
    "SELECT m.id FROM {s}sequence_instance i \
     JOIN {s}sequenced_message m ON m.sequence_instance_id {=} i.id \
     WHERE i.name {=} $1 \
       AND m.state {=} ANY (ARRAY['WAITING', 'READY', 'FAILED']::pg_catalog.text[]) LIMIT 1",
    &[TEXTOID],
);
static DELETE_DROPPED_TYPES: Statement = Statement::new(
    "DELETE FROM {s}sequence_message_type \
     WHERE sequence_name {=} $1 AND NOT (message_type {=} ANY ($2))",
    &[TEXTOID, TEXTARRAYOID],
);
static UPSERT_TYPE: Statement = Statement::new(
    "INSERT INTO {s}sequence_message_type AS m \
     (message_type, sequence_name, ordinal, release_condition, predecessors, optional, final) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) \
     ON CONFLICT (message_type) DO UPDATE SET ordinal = EXCLUDED.ordinal, \
        release_condition = EXCLUDED.release_condition, \
        predecessors = EXCLUDED.predecessors, optional = EXCLUDED.optional, final = EXCLUDED.final \
     WHERE m.sequence_name {=} EXCLUDED.sequence_name",
    &[
        TEXTOID,
        TEXTOID,
        INT4OID,
        JSONBOID,
        TEXTARRAYOID,
        BOOLOID,
        BOOLOID,
    ],
);
/// A new retention counts for the instances that are there, from their creation.
static UPDATE_RETAIN_UNTIL: Statement = Statement::new(
    "UPDATE {s}sequence_instance SET retain_until = created_at {+} $2 WHERE name {=} $1",
    &[TEXTOID, INTERVALOID],
);
static INSTANCES_WITH_UNFINISHED: Statement = Statement::new(
    "SELECT i.id FROM {s}sequence_instance i \
     WHERE i.name {=} $1 AND EXISTS (SELECT FROM {s}sequenced_message m \
        WHERE m.sequence_instance_id {=} i.id \
          AND m.state {=} ANY (ARRAY['WAITING', 'READY', 'FAILED']::pg_catalog.text[])) \
     ORDER BY i.id",
    &[TEXTOID],
);
static ANY_INSTANCE: Statement = Statement::new(
    "SELECT id FROM {s}sequence_instance WHERE name {=} $1 LIMIT 1",
    &[TEXTOID],
);
static DELETE_SEQUENCE: Statement =
    Statement::new("DELETE FROM {s}sequence_type WHERE id {=} $1", &[INT4OID]);

/// An interval argument that must be above zero, or at least zero.
pub fn checked_interval(
    db: &Db,
    argument: &str,
    value: Option<Interval>,
    zero_is_allowed: bool,
) -> Result<Interval> {
    let value = args::required(argument, value)?;
    let row = db.read(&POSITIVE_INTERVAL, &[arg(value)]);
    let column = usize::from(zero_is_allowed);
    if row.get::<bool>(0, column) == Some(true) {
        return Ok(value);
    }
    let rule = if zero_is_allowed {
        "negative"
    } else {
        "zero or negative"
    };
    Err(InboxError::invalid(format!(
        "{argument} must not be {rule}: \"{}\"",
        row.get::<String>(0, 2).unwrap_or_default()
    ))
    .hint("Give an interval such as '14 days'."))
}

fn one_of<'a>(argument: &str, value: Option<&'a str>, words: [&str; 2]) -> Result<&'a str> {
    let value = args::required(argument, value)?;
    if words.contains(&value) {
        return Ok(value);
    }
    Err(
        InboxError::invalid(format!("{argument} is not valid: \"{}\"", shown(value)))
            .hint(format!("Use '{}' or '{}'.", words[0], words[1])),
    )
}

fn checked_types(json: &str) -> Result<Vec<MessageType>> {
    let types = condition::parse(json).map_err(refused)?;
    for declared in &types {
        args::bounded("message type", &declared.name, args::NAME_BYTES)?;
    }
    Ok(types)
}

/// The error that a refused declaration is reported with.
fn refused(refusal: Refusal) -> InboxError {
    const SHAPE: &str = "Each element is {\"type\": ..., \"releaseCondition\": ..., \"optional\": ..., \"final\": ...}; \
         a condition is {\"predecessor\": type}, {\"and\": [...]} or {\"or\": [...]}.";
    match refusal {
        Refusal::Malformed(reason) => {
            InboxError::invalid("messages is not a valid array of message types")
                .detail(reason)
                .hint(SHAPE)
        }
        Refusal::EmptyName(ordinal) => {
            InboxError::invalid(format!("message type number {ordinal} has an empty name"))
                .hint("Give each message type its qualified name.")
        }
        Refusal::Twice(name) => InboxError::invalid(format!(
            "message type \"{}\" is declared twice",
            shown(&name)
        ))
        .hint("A type stands in a sequence once; its messages may come any number of times."),
        Refusal::UnknownPredecessor(of, name) => InboxError::invalid(format!(
            "the release condition of \"{}\" names the unknown predecessor \"{}\"",
            shown(&of),
            shown(&name)
        ))
        .hint("Declare the predecessor in the same sequence."),
        Refusal::EmptyList(of, word) => InboxError::invalid(format!(
            "the release condition of \"{}\" has an empty \"{word}\"",
            shown(&of)
        ))
        .hint("List at least one condition, or leave releaseCondition out."),
        Refusal::Cycle(path) => InboxError::invalid("the release conditions form a cycle")
            .detail(
                path.iter()
                    .map(|name| shown(name))
                    .collect::<Vec<_>>()
                    .join(" waits for "),
            )
            .hint("Remove one of these predecessors."),
    }
}

/// Stores the declaration and judges what waits by it; all or nothing.
fn declare(db: &Db, request: &Request<'_>) -> Result<()> {
    let names: Vec<String> = request
        .types
        .iter()
        .map(|declared| declared.name.clone())
        .collect();
    let (id, created) = find_or_create(db, request.name);
    let settings = [
        arg(id),
        arg(request.retention),
        arg(request.ordering),
        arg(request.on_failure),
        arg(request.recording_until),
        arg(request.expiry_grace),
    ];
    // A service declares at every start: the same declaration again must neither wait
    // for handlers nor make them wait.
    if !created && is_stored(db, request, id, &settings) {
        return Ok(());
    }
    db.lock_object("sequence_type", id, pg_sys::AccessExclusiveLock);
    // From here on what is committed counts, not what an older snapshot shows: a message
    // that was buffered since must be judged too (G7, G10).
    refuse_taken_types(db, request.name, &names)?;
    let before = db.read_latest(&UNCHANGED, &settings);
    if !created {
        refuse_stranded_messages(db, request, &names, before.get(0, 0))?;
    }
    let same_retention = before.get::<bool>(0, 2) == Some(true);
    db.write(&UPDATE_SEQUENCE, &settings);
    db.write(&DELETE_DROPPED_TYPES, &[arg(request.name), arg(names)]);
    for (ordinal, declared) in (1_i32..).zip(&request.types) {
        store_type(db, request.name, ordinal, declared)?;
    }
    if created {
        return Ok(());
    }
    if !same_retention {
        db.write(
            &UPDATE_RETAIN_UNTIL,
            &[arg(request.name), arg(request.retention)],
        );
    }
    let declaration = of_name(db, request.name)?;
    let waiting = db.read_latest(&INSTANCES_WITH_UNFINISHED, &[arg(request.name)]);
    for row in 0..waiting.len() {
        if let Some(instance) = waiting.get::<i64>(row, 0) {
            release::judge_again(db, &declaration, instance);
        }
    }
    Ok(())
}

/// The sequence's id, and whether it was created here; waits for a concurrent creator.
fn find_or_create(db: &Db, name: &str) -> (i32, bool) {
    loop {
        if let Some(id) = db.write(&SEQUENCE_BY_NAME, &[arg(name)]).get(0, 0) {
            return (id, false);
        }
        if let Some(id) = db.write(&INSERT_SEQUENCE, &[arg(name)]).get(0, 0) {
            return (id, true);
        }
    }
}

/// Whether exactly this is declared already.
fn is_stored(db: &Db, request: &Request<'_>, id: i32, settings: &[Arg]) -> bool {
    if db.read_latest(&UNCHANGED, settings).get::<bool>(0, 1) != Some(true) {
        return false;
    }
    let Some(stored) = load(db, id) else {
        return false;
    };
    stored.types.len() == request.types.len()
        && request
            .types
            .iter()
            .all(|declared| stored.types.get(&declared.name) == Some(declared))
}

/// Refuses types that another sequence has.
fn refuse_taken_types(db: &Db, sequence: &str, names: &[String]) -> Result<()> {
    let taken = db.read_latest(&TAKEN_TYPE, &[arg(names.to_vec()), arg(sequence)]);
    match (taken.get::<String>(0, 0), taken.get::<String>(0, 1)) {
        (Some(name), Some(owner)) => Err(InboxError::new(
            PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT,
            format!(
                "message type \"{}\" already belongs to sequence \"{}\"",
                shown(&name),
                shown(&owner)
            ),
        )
        .hint("A message type belongs to at most one sequence; qualify its name.")),
        _ => Ok(()),
    }
}

/// Refuses a declaration under which unfinished messages could never be handled.
fn refuse_stranded_messages(
    db: &Db,
    request: &Request<'_>,
    names: &[String],
    old_ordering: Option<String>,
) -> Result<()> {
    let dropped = db.write(
        &UNFINISHED_DROPPED_TYPE,
        &[arg(request.name), arg(names.to_vec())],
    );
    if let (Some(name), Some(message)) = (dropped.get::<String>(0, 0), dropped.get::<i64>(0, 1)) {
        return Err(InboxError::new(
            PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
            format!(
                "message type \"{}\" still has unfinished messages",
                shown(&name)
            ),
        )
        .detail(format!("One of them is message {message}."))
        .hint("Let them be handled, or end them with inbox_skip(), before the type is dropped."));
    }
    if old_ordering
        .as_deref()
        .is_none_or(|old| old == request.ordering)
    {
        return Ok(());
    }
    match db
        .read_latest(&UNFINISHED, &[arg(request.name)])
        .get::<i64>(0, 0)
    {
        None => Ok(()),
        Some(message) => Err(InboxError::new(
            PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
            format!(
                "the ordering of sequence \"{}\" cannot change while it has unfinished messages",
                shown(request.name)
            ),
        )
        .detail(format!("One of them is message {message}."))
        .hint("Let them be handled, or end them with inbox_skip(), first.")),
    }
}

fn store_type(db: &Db, sequence: &str, ordinal: i32, declared: &MessageType) -> Result<()> {
    let condition = declared
        .release_condition
        .as_ref()
        .map(serde_json::to_value)
        .transpose()
        .map_err(|error| {
            InboxError::invalid(format!("a release condition is not valid: {error}"))
        })?;
    let predecessors: Vec<&str> = declared.predecessors().into_iter().collect();
    let stored = db.write(
        &UPSERT_TYPE,
        &[
            arg(declared.name.as_str()),
            arg(sequence),
            arg(ordinal),
            arg(condition.map(JsonB)),
            arg(predecessors),
            arg(declared.optional),
            arg(declared.is_final),
        ],
    );
    if stored.is_empty() {
        // Another sequence took the type while this one waited for its declaration.
        return refuse_taken_types(db, sequence, std::slice::from_ref(&declared.name));
    }
    Ok(())
}

/// Tells a declarer what its ordering will not use.
fn notice_unused(types: &[MessageType], ordering: &str) {
    if ordering == "position"
        && types
            .iter()
            .any(|declared| declared.release_condition.is_some())
    {
        notice!("release conditions are stored but not used with ordering => 'position'");
    }
    if ordering == "conditions" && types.iter().any(|declared| declared.is_final) {
        notice!("\"final\" is stored but not used with ordering => 'conditions'");
    }
}

/// `inbox_declare_sequence(sequence_name, retention, messages, ordering, on_failure,
/// recording_until, expiry_grace)`
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments)]
fn inbox_declare_sequence(
    sequence_name: Option<&str>,
    retention: Option<Interval>,
    messages: Option<JsonB>,
    ordering: Option<&str>,
    on_failure: Option<&str>,
    recording_until: Option<TimestampWithTimeZone>,
    expiry_grace: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) {
    or_raise((|| {
        let name = args::name("sequence_name", sequence_name)?;
        let ordering = one_of("ordering", ordering, ["conditions", "position"])?;
        let on_failure = one_of("on_failure", on_failure, ["block", "skip"])?;
        let types = checked_types(&args::required("messages", messages)?.0.to_string())?;
        let db = Db::read_write(fcinfo, "inbox_declare_sequence")?;
        let request = Request {
            name,
            retention: checked_interval(&db, "retention", retention, false)?,
            types,
            ordering,
            on_failure,
            recording_until,
            expiry_grace: checked_interval(&db, "expiry_grace", expiry_grace, true)?,
        };
        declare(&db, &request)?;
        notice_unused(&request.types, ordering);
        Ok(())
    })())
}

/// `inbox_drop_sequence(sequence_name)`
#[pg_extern(sql = false)]
fn inbox_drop_sequence(sequence_name: Option<&str>, fcinfo: pg_sys::FunctionCallInfo) {
    or_raise((|| {
        let name = args::name("sequence_name", sequence_name)?;
        let db = Db::read_write(fcinfo, "inbox_drop_sequence")?;
        let id: i32 = db
            .write(&SEQUENCE_BY_NAME, &[arg(name)])
            .get(0, 0)
            .ok_or_else(|| InboxError::no_sequence(name))?;
        db.lock_object("sequence_type", id, pg_sys::AccessExclusiveLock);
        if let Some(instance) = db.read_latest(&ANY_INSTANCE, &[arg(name)]).get::<i64>(0, 0) {
            return Err(InboxError::new(
                PgSqlErrorCode::ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST,
                format!("sequence \"{}\" still has instances", shown(name)),
            )
            .detail(format!("One of them is sequence instance {instance}."))
            .hint(
                "Wait until housekeeping has removed them, or delete them from sequence_instance.",
            ));
        }
        db.write(&DELETE_SEQUENCE, &[arg(id)]);
        Ok(())
    })())
}

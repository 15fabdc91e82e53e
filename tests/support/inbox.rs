//! A session that calls the SQL functions of sequences by their names, as any language does, with
//! plain values for the answers. Transactions are opened and ended by statements, so that a test
//! can hold several at once, each in its session, and step through them in any order.

use std::{
    collections::HashMap,
    thread::{Scope, ScopedJoinHandle},
};

use postgres::{
    Client, Config, Error, IsolationLevel, NoTls, Row, Statement, error::DbError, types::ToSql,
};

use crate::Database;

/// All three that differ, the default first.
pub const ISOLATION_LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

/// The context of messages that are given none.
pub const CONTEXT: &str = "context-1";

const RECEIVE: &str = "SELECT decision, reason, sequence_instance_id, message_id
     FROM inbox_receive($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8)";

const NEXT: &str = "SELECT message_id, sequence_instance_id, sequence_name, context_id,
            message_type, idempotence_id, \"position\", attempts, payload, message_key,
            headers::text, buffered_at IS NOT NULL
     FROM inbox_next($1)";

/// A message as it arrives from a broker.
#[derive(Debug, Clone)]
pub struct Arrival<'a> {
    /// Its type.
    pub message_type: &'a str,
    /// Its idempotence id.
    pub id: &'a str,
    /// Its context id.
    pub context: Option<&'a str>,
    /// Its payload.
    pub payload: Option<&'a [u8]>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its headers, as JSON.
    pub headers: Option<&'a str>,
    /// Its position.
    pub position: Option<i64>,
    /// Whether the call may wait for other transactions.
    pub wait: bool,
}

impl<'a> Arrival<'a> {
    /// A message of [`CONTEXT`] whose payload is its id.
    pub fn new(message_type: &'a str, id: &'a str) -> Self {
        Self {
            message_type,
            id,
            context: Some(CONTEXT),
            payload: Some(id.as_bytes()),
            key: None,
            headers: None,
            position: None,
            wait: true,
        }
    }

    /// The same at a position.
    pub fn at(message_type: &'a str, id: &'a str, position: i64) -> Self {
        Self {
            position: Some(position),
            ..Self::new(message_type, id)
        }
    }

    /// The same in another context.
    pub fn of(self, context: &'a str) -> Self {
        Self {
            context: Some(context),
            ..self
        }
    }

    /// The same, received with `wait => false`.
    pub fn without_waiting(self) -> Self {
        Self {
            wait: false,
            ..self
        }
    }
}

/// What `inbox_receive` answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The decision's word.
    pub decision: String,
    /// Why.
    pub reason: Option<String>,
    /// The sequence instance.
    pub instance: Option<i64>,
    /// The message's record.
    pub message: Option<i64>,
}

impl Received {
    /// The sequence instance, which must be told.
    pub fn instance(&self) -> i64 {
        self.instance.expect("an instance")
    }

    /// The message's record, which must be told.
    pub fn message(&self) -> i64 {
        self.message.expect("a message id")
    }
}

/// What `inbox_next` handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The message's record.
    pub message: i64,
    /// Its instance; none for a plain consumer's message.
    pub instance: Option<i64>,
    /// The sequence.
    pub sequence: Option<String>,
    /// The context.
    pub context: Option<String>,
    /// The message's type.
    pub message_type: String,
    /// Its idempotence id.
    pub id: String,
    /// Its position.
    pub position: Option<i64>,
    /// How often it failed.
    pub attempts: i32,
    /// Its payload.
    pub payload: Option<Vec<u8>>,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its headers, as jsonb prints them.
    pub headers: Option<String>,
    /// Whether it is told since when it is stored.
    pub has_buffered_at: bool,
}

/// One session.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct Session {
    client: Client,
    pid: i32,
    statements: HashMap<String, Statement>,
}

impl Session {
    /// A superuser's session in that database.
    pub fn new(database: &Database) -> Self {
        Self::with(database.dsn().parse().expect("a connection string"))
    }

    /// A session as configured.
    pub fn with(config: Config) -> Self {
        let mut client = config.connect(NoTls).expect("a session");
        let pid = client
            .query_one("SELECT pg_backend_pid()", &[])
            .expect("a process id")
            .get(0);
        Self {
            client,
            pid,
            statements: HashMap::new(),
        }
    }

    /// The process id of its backend.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The driver's client.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs statements without parameters.
    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        if let Err(error) = self.client.batch_execute(sql) {
            panic!("{sql}: {error:?}");
        }
    }

    /// The rows of a query, which is prepared once.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn query(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let statement = match self.statements.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(sql)?;
                self.statements.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        self.client.query(&statement, parameters)
    }

    /// The first column of the one row that a query gives.
    #[track_caller]
    pub fn value<T>(&mut self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> T
    where
        T: for<'r> postgres::types::FromSql<'r>,
    {
        match self.query(sql, parameters) {
            Ok(rows) => {
                assert_eq!(rows.len(), 1, "{sql}");
                rows[0].get(0)
            }
            Err(error) => panic!("{sql}: {error:?}"),
        }
    }

    /// Opens a transaction.
    #[track_caller]
    pub fn begin(&mut self) {
        self.run("BEGIN");
    }

    /// Opens a transaction of that isolation level and takes its snapshot.
    #[track_caller]
    pub fn begin_at(&mut self, level: IsolationLevel) {
        let level = match level {
            IsolationLevel::RepeatableRead => "REPEATABLE READ",
            IsolationLevel::Serializable => "SERIALIZABLE",
            _ => "READ COMMITTED",
        };
        self.run(&format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM ledger"
        ));
    }

    /// Commits.
    #[track_caller]
    pub fn commit(&mut self) {
        self.run("COMMIT");
    }

    /// Rolls back.
    #[track_caller]
    pub fn rollback(&mut self) {
        self.run("ROLLBACK");
    }

    /// `inbox_receive`.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn try_receive(&mut self, arrival: &Arrival<'_>) -> Result<Received, Error> {
        let rows = self.query(
            RECEIVE,
            &[
                &arrival.message_type,
                &arrival.id,
                &arrival.context,
                &arrival.payload,
                &arrival.key,
                &arrival.headers,
                &arrival.position,
                &arrival.wait,
            ],
        )?;
        assert_eq!(rows.len(), 1, "inbox_receive gives one row");
        Ok(Received {
            decision: rows[0].get(0),
            reason: rows[0].get(1),
            instance: rows[0].get(2),
            message: rows[0].get(3),
        })
    }

    /// `inbox_receive`, which must succeed.
    #[track_caller]
    pub fn receive(&mut self, arrival: &Arrival<'_>) -> Received {
        match self.try_receive(arrival) {
            Ok(received) => received,
            Err(error) => panic!("{arrival:?}: {error:?}"),
        }
    }

    /// `inbox_receive`, which must give that decision.
    #[track_caller]
    pub fn decided(&mut self, decision: &str, arrival: &Arrival<'_>) -> Received {
        let received = self.receive(arrival);
        assert_eq!(received.decision, decision, "{arrival:?}: {received:?}");
        received
    }

    /// `inbox_next`.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn try_next(&mut self, instance: Option<i64>) -> Result<Option<Released>, Error> {
        let rows = self.query(NEXT, &[&instance])?;
        assert!(rows.len() <= 1, "inbox_next gives at most one row");
        Ok(rows.first().map(|row| Released {
            message: row.get(0),
            instance: row.get(1),
            sequence: row.get(2),
            context: row.get(3),
            message_type: row.get(4),
            id: row.get(5),
            position: row.get(6),
            attempts: row.get(7),
            payload: row.get(8),
            key: row.get(9),
            headers: row.get(10),
            has_buffered_at: row.get(11),
        }))
    }

    /// `inbox_next` of an instance, or of any, which must succeed.
    #[track_caller]
    pub fn next(&mut self, instance: impl Into<Option<i64>>) -> Option<Released> {
        match self.try_next(instance.into()) {
            Ok(released) => released,
            Err(error) => panic!("inbox_next: {error:?}"),
        }
    }

    /// `inbox_next` of an instance, or of any, which must have one: its idempotence id.
    #[track_caller]
    pub fn next_id(&mut self, instance: impl Into<Option<i64>>) -> String {
        self.next(instance).expect("a released message").id
    }

    /// The idempotence ids of all that an instance hands out, in order, each in a transaction.
    #[track_caller]
    pub fn drain(&mut self, instance: i64) -> Vec<String> {
        std::iter::from_fn(|| self.next(instance))
            .map(|released| released.id)
            .collect()
    }

    /// A function of one id that answers yes or no: `inbox_retry`, `inbox_close` …
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn try_operate(&mut self, function: &str, id: i64) -> Result<bool, Error> {
        let rows = self.query(&format!("SELECT {function}($1::bigint)"), &[&id])?;
        Ok(rows[0].get(0))
    }

    /// The same, which must succeed.
    #[track_caller]
    pub fn operate(&mut self, function: &str, id: i64) -> bool {
        match self.try_operate(function, id) {
            Ok(answer) => answer,
            Err(error) => panic!("{function}({id}): {error:?}"),
        }
    }

    /// `inbox_fail_message`, with the text of an interval.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn try_fail(
        &mut self,
        message: i64,
        error: &str,
        retry_after: Option<&str>,
    ) -> Result<bool, Error> {
        let rows = self.query(
            "SELECT inbox_fail_message($1, $2, $3::text::interval)",
            &[&message, &error, &retry_after],
        )?;
        Ok(rows[0].get(0))
    }

    /// The same, which must succeed.
    #[track_caller]
    pub fn fail(&mut self, message: i64, error: &str, retry_after: Option<&str>) -> bool {
        match self.try_fail(message, error, retry_after) {
            Ok(answer) => answer,
            Err(error) => panic!("inbox_fail_message({message}): {error:?}"),
        }
    }

    /// The state of the newest message with that idempotence id.
    #[track_caller]
    pub fn state_of(&mut self, id: &str) -> Option<String> {
        let rows = self.query(
            "SELECT state FROM sequenced_message WHERE idempotence_id = $1 ORDER BY id DESC LIMIT 1",
            &[&id],
        );
        match rows {
            Ok(rows) => rows.first().map(|row| row.get(0)),
            Err(error) => panic!("the state of {id}: {error:?}"),
        }
    }

    /// The state of an instance.
    #[track_caller]
    pub fn state_of_instance(&mut self, instance: i64) -> String {
        self.value(
            "SELECT state FROM sequence_instance WHERE id = $1",
            &[&instance],
        )
    }

    /// Writes what stands for a handler's effect.
    #[track_caller]
    pub fn write(&mut self, entry: &str) {
        self.query("INSERT INTO ledger VALUES ($1)", &[&entry])
            .expect("an entry");
    }
}

/// What the server said of a failed call.
///
/// # Panics
///
/// When the error is not the server's.
#[track_caller]
pub fn server_error(error: &Error) -> &DbError {
    match error.as_db_error() {
        Some(said) => said,
        None => panic!("not the server's error: {error:?}"),
    }
}

/// The SQLSTATE of a call that must fail.
///
/// # Panics
///
/// When it succeeds.
#[track_caller]
pub fn sqlstate<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(answer) => panic!("the call must fail: {answer:?}"),
        Err(error) => server_error(&error).code().code().to_owned(),
    }
}

/// Starts `work` in that session, on a thread, and returns once it waits for a lock.
///
/// # Panics
///
/// When it ends without having waited.
pub fn blocked<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    database: &Database,
    session: &'scope mut Session,
    work: impl FnOnce(&mut Session) -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let pid = session.pid();
    let handle = scope.spawn(move || work(session));
    database.wait_until_blocked(pid, || handle.is_finished());
    handle
}

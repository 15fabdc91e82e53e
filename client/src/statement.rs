//! Every call, described once for both drivers: the function, its parameters and how its answer
//! is read. The drivers only execute.

use std::{borrow::Cow, fmt::Write, str::FromStr, time::Duration};

use tokio_postgres::{
    Row,
    types::{FromSql, ToSql, Type},
};

use crate::{
    Access, Claim, Error, Failure, Housekeeping, Message, Received, Record, Released, Schema,
    Sequence, TryClaim, UnknownWord, param::Param,
};

/// One call of a function of the extension, with an answer of type `T`.
pub(crate) struct Statement<'a, T> {
    function: &'static str,
    /// The columns to select from a function that returns a table; empty for a plain value.
    columns: &'static str,
    params: Vec<Param<'a>>,
    read: fn(Answer<'_>) -> Result<T, Error>,
}

impl<'a, T> Statement<'a, T> {
    /// A call that answers with one value.
    fn value(
        function: &'static str,
        params: impl Into<Vec<Param<'a>>>,
        read: fn(Answer<'_>) -> Result<T, Error>,
    ) -> Self {
        Self {
            function,
            columns: "",
            params: params.into(),
            read,
        }
    }

    /// A call that answers with rows of these columns.
    fn table(
        function: &'static str,
        columns: &'static str,
        params: impl Into<Vec<Param<'a>>>,
        read: fn(Answer<'_>) -> Result<T, Error>,
    ) -> Self {
        Self {
            function,
            columns,
            params: params.into(),
            read,
        }
    }

    /// The text to send. The only thing in it that is not fixed is the quoted schema.
    pub(crate) fn sql(&self, schema: Option<&Schema>) -> String {
        let mut sql = String::with_capacity(128);
        sql.push_str("SELECT ");
        if !self.columns.is_empty() {
            sql.push_str(self.columns);
            sql.push_str(" FROM ");
        }
        // Writing into a String cannot fail.
        if let Some(schema) = schema {
            let _ = write!(sql, "{schema}.");
        }
        sql.push_str(self.function);
        for number in 1..=self.params.len() {
            let _ = write!(sql, "{}${number}", if number == 1 { "(" } else { ", " });
        }
        sql.push_str(if self.params.is_empty() { "()" } else { ")" });
        sql
    }

    /// The parameters as both drivers take them.
    pub(crate) fn params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.params
            .iter()
            .map(|param| (param as &(dyn ToSql + Sync), param.sql_type()))
            .collect()
    }

    /// Reads the driver's answer.
    pub(crate) fn read(&self, rows: Result<Vec<Row>, tokio_postgres::Error>) -> Result<T, Error> {
        let rows = rows.map_err(|source| Error::database(self.function, source))?;
        (self.read)(Answer {
            function: self.function,
            rows: &rows,
        })
    }
}

/// The rows that a function answered with.
struct Answer<'r> {
    function: &'static str,
    rows: &'r [Row],
}

impl<'r> Answer<'r> {
    fn each(&self) -> impl Iterator<Item = Fields<'r>> + use<'r> {
        let function = self.function;
        self.rows.iter().map(move |row| Fields {
            function,
            row,
            next: 0,
        })
    }

    fn at_most_one(&self) -> Result<Option<Fields<'r>>, Error> {
        if self.rows.len() > 1 {
            return Err(Error::unknown_answer(
                self.function,
                format!("{} rows", self.rows.len()),
            ));
        }
        Ok(self.each().next())
    }

    fn one(&self) -> Result<Fields<'r>, Error> {
        self.at_most_one()?
            .ok_or_else(|| Error::unknown_answer(self.function, "no row"))
    }

    /// The one value of a function that returns a value.
    fn value<T: FromSql<'r>>(&self) -> Result<T, Error> {
        self.one()?.take()
    }
}

/// The fields of one row, taken from left to right.
struct Fields<'r> {
    function: &'static str,
    row: &'r Row,
    next: usize,
}

impl<'r> Fields<'r> {
    fn take<T: FromSql<'r>>(&mut self) -> Result<T, Error> {
        let index = self.next;
        self.next += 1;
        self.row
            .try_get(index)
            .map_err(|source| Error::database(self.function, source))
    }

    /// Takes a word, which may be NULL, as a value of an enum.
    fn take_word_opt<T: FromStr<Err = UnknownWord>>(&mut self) -> Result<Option<T>, Error> {
        let index = self.next;
        self.take::<Option<&str>>()?
            .map(str::parse)
            .transpose()
            .map_err(|UnknownWord(word)| {
                let column = self
                    .row
                    .columns()
                    .get(index)
                    .map_or("value", |column| column.name());
                Error::unknown_answer(
                    self.function,
                    format!("{column} \"{}\"", word.escape_debug()),
                )
            })
    }

    fn take_word<T: FromStr<Err = UnknownWord>>(&mut self) -> Result<T, Error> {
        self.take_word_opt()?
            .ok_or_else(|| Error::unknown_answer(self.function, "NULL"))
    }
}

fn read_value<T: for<'r> FromSql<'r>>(answer: Answer<'_>) -> Result<T, Error> {
    answer.value()
}

fn read_nothing(_: Answer<'_>) -> Result<(), Error> {
    Ok(())
}

fn read_claim(answer: Answer<'_>) -> Result<Claim, Error> {
    answer.value::<bool>().map(Claim::from)
}

fn read_try_claim(answer: Answer<'_>) -> Result<TryClaim, Error> {
    answer.one()?.take_word()
}

pub(crate) fn claim<'a>(consumer: &'a str, message_id: &'a str) -> Statement<'a, Claim> {
    let params = [Param::text(consumer), Param::text(message_id)];
    Statement::value("inbox_claim", params, read_claim)
}

pub(crate) fn try_claim<'a>(consumer: &'a str, message_id: &'a str) -> Statement<'a, TryClaim> {
    let params = [Param::text(consumer), Param::text(message_id)];
    Statement::value("inbox_try_claim", params, read_try_claim)
}

#[cfg(feature = "uuid")]
pub(crate) fn claim_uuid(consumer: &str, message_id: uuid::Uuid) -> Statement<'_, Claim> {
    let params = [Param::text(consumer), Param::Uuid(message_id)];
    Statement::value("inbox_claim", params, read_claim)
}

#[cfg(feature = "uuid")]
pub(crate) fn try_claim_uuid(consumer: &str, message_id: uuid::Uuid) -> Statement<'_, TryClaim> {
    let params = [Param::text(consumer), Param::Uuid(message_id)];
    Statement::value("inbox_try_claim", params, read_try_claim)
}

fn sequenced_params<'a>(
    message_type: &'a str,
    idempotence_id: &'a str,
    sequence_instance_id: i64,
) -> [Param<'a>; 3] {
    [
        Param::text(message_type),
        Param::text(idempotence_id),
        Param::BigInt(Some(sequence_instance_id)),
    ]
}

pub(crate) fn claim_sequenced<'a>(
    message_type: &'a str,
    idempotence_id: &'a str,
    sequence_instance_id: i64,
) -> Statement<'a, Claim> {
    let params = sequenced_params(message_type, idempotence_id, sequence_instance_id);
    Statement::value("inbox_claim", params, read_claim)
}

pub(crate) fn try_claim_sequenced<'a>(
    message_type: &'a str,
    idempotence_id: &'a str,
    sequence_instance_id: i64,
) -> Statement<'a, TryClaim> {
    let params = sequenced_params(message_type, idempotence_id, sequence_instance_id);
    Statement::value("inbox_try_claim", params, read_try_claim)
}

pub(crate) fn claim_batch<'a, S: AsRef<str>>(
    consumer: &'a str,
    message_ids: &'a [S],
) -> Statement<'a, Vec<Claim>> {
    let message_ids = message_ids.iter().map(AsRef::as_ref).collect();
    let params = [Param::text(consumer), Param::TextArray(message_ids)];
    Statement::value("inbox_claim_batch", params, |answer| {
        Ok(answer
            .value::<Vec<bool>>()?
            .into_iter()
            .map(Claim::from)
            .collect())
    })
}

pub(crate) fn annotate<'a>(
    consumer: &'a str,
    message_id: &'a str,
    attributes: &'a serde_json::Value,
) -> Statement<'a, bool> {
    let params = [
        Param::text(consumer),
        Param::text(message_id),
        Param::Jsonb(Some(Cow::Borrowed(attributes))),
    ];
    Statement::value("inbox_annotate", params, read_value)
}

pub(crate) fn lookup<'a>(first_id: &'a str, second_id: &'a str) -> Statement<'a, Vec<Record>> {
    Statement::table(
        "inbox_lookup",
        "kind, claimed_at, attributes, sequence_instance_id, message_id, state, attempts, \
         last_error",
        [Param::text(first_id), Param::text(second_id)],
        |answer| {
            let record = |mut fields: Fields<'_>| {
                Ok(Record {
                    kind: fields.take_word()?,
                    claimed_at: fields.take()?,
                    attributes: fields.take()?,
                    sequence_instance_id: fields.take()?,
                    message_id: fields.take()?,
                    state: fields.take_word_opt()?,
                    attempts: fields.take()?,
                    last_error: fields.take()?,
                })
            };
            answer.each().map(record).collect()
        },
    )
}

pub(crate) fn release<'a>(consumer: &'a str, message_id: &'a str) -> Statement<'a, bool> {
    let params = [Param::text(consumer), Param::text(message_id)];
    Statement::value("inbox_release", params, read_value)
}

pub(crate) fn fail<'a>(failure: &'a Failure<'_>) -> Statement<'a, bool> {
    let params = [
        Param::text(&failure.message_type),
        Param::text(&failure.idempotence_id),
        Param::BigInt(failure.sequence_instance_id),
        Param::Text(failure.error.as_deref()),
        Param::Interval(failure.retry_after),
        Param::Bytes(failure.payload.as_deref()),
        Param::Bytes(failure.key.as_deref()),
        Param::Jsonb(failure.headers.as_ref().map(Cow::Borrowed)),
    ];
    Statement::value("inbox_fail", params, read_value)
}

pub(crate) fn fail_message(
    message_id: i64,
    error: Option<&str>,
    retry_after: Option<Duration>,
) -> Statement<'_, bool> {
    let params = [
        Param::BigInt(Some(message_id)),
        Param::Text(error),
        Param::Interval(retry_after),
    ];
    Statement::value("inbox_fail_message", params, read_value)
}

pub(crate) fn sequence<'a>(sequence_name: &'a str, context_id: &'a str) -> Statement<'a, i64> {
    let params = [Param::text(sequence_name), Param::text(context_id)];
    Statement::value("inbox_sequence", params, read_value)
}

pub(crate) fn receive<'a>(message: &'a Message<'_>, wait: bool) -> Statement<'a, Received> {
    Statement::table(
        "inbox_receive",
        "decision, reason, sequence_instance_id, message_id",
        [
            Param::text(&message.message_type),
            Param::text(&message.idempotence_id),
            Param::Text(message.context_id.as_deref()),
            Param::Bytes(message.payload.as_deref()),
            Param::Bytes(message.key.as_deref()),
            Param::Jsonb(message.headers.as_ref().map(Cow::Borrowed)),
            Param::BigInt(message.position),
            Param::Boolean(wait),
        ],
        |answer| {
            let mut fields = answer.one()?;
            Ok(Received {
                decision: fields.take_word()?,
                reason: fields.take()?,
                sequence_instance_id: fields.take()?,
                message_id: fields.take()?,
            })
        },
    )
}

pub(crate) fn next(sequence_instance_id: Option<i64>) -> Statement<'static, Option<Released>> {
    Statement::table(
        "inbox_next",
        "message_id, sequence_instance_id, sequence_name, context_id, message_type, \
         idempotence_id, \"position\", attempts, payload, message_key, headers, buffered_at",
        [Param::BigInt(sequence_instance_id)],
        |answer| {
            let released = |mut fields: Fields<'_>| {
                Ok(Released {
                    message_id: fields.take()?,
                    sequence_instance_id: fields.take()?,
                    sequence_name: fields.take()?,
                    context_id: fields.take()?,
                    message_type: fields.take()?,
                    idempotence_id: fields.take()?,
                    position: fields.take()?,
                    attempts: fields.take()?,
                    payload: fields.take()?,
                    key: fields.take()?,
                    headers: fields.take()?,
                    buffered_at: fields.take()?,
                })
            };
            answer.at_most_one()?.map(released).transpose()
        },
    )
}

pub(crate) fn declare_sequence(sequence: &Sequence) -> Result<Statement<'_, ()>, Error> {
    let messages = serde_json::to_value(&sequence.messages).map_err(Error::Json)?;
    let params = [
        Param::text(&sequence.name),
        Param::Interval(Some(sequence.retention)),
        Param::Jsonb(Some(Cow::Owned(messages))),
        Param::text(sequence.ordering.as_str()),
        Param::text(sequence.on_failure.as_str()),
        Param::Timestamp(sequence.recording_until),
        Param::Interval(Some(sequence.expiry_grace)),
    ];
    Ok(Statement::value(
        "inbox_declare_sequence",
        params,
        read_nothing,
    ))
}

pub(crate) fn drop_sequence(sequence_name: &str) -> Statement<'_, ()> {
    Statement::value(
        "inbox_drop_sequence",
        [Param::text(sequence_name)],
        read_nothing,
    )
}

/// An operator's call on one message.
pub(crate) fn on_message(function: &'static str, message_id: i64) -> Statement<'static, bool> {
    Statement::value(function, [Param::BigInt(Some(message_id))], read_value)
}

/// An operator's call on one sequence instance.
pub(crate) fn on_instance(
    function: &'static str,
    sequence_instance_id: i64,
) -> Statement<'static, bool> {
    Statement::value(
        function,
        [Param::BigInt(Some(sequence_instance_id))],
        read_value,
    )
}

pub(crate) fn housekeeping(batch_size: Option<i32>) -> Statement<'static, Housekeeping> {
    // Without a batch size the function's own default applies.
    let params: Vec<_> = batch_size.map(Param::Integer).into_iter().collect();
    Statement::table(
        "inbox_housekeeping",
        "closed, expired, removed, rotated, more",
        params,
        |answer| {
            let mut fields = answer.one()?;
            Ok(Housekeeping {
                closed: fields.take()?,
                expired: fields.take()?,
                removed: fields.take()?,
                rotated: fields.take()?,
                more: fields.take()?,
            })
        },
    )
}

pub(crate) fn grant(role_name: &str, access: Access) -> Statement<'_, ()> {
    let params = [Param::Name(role_name), Param::text(access.as_str())];
    Statement::value("inbox_grant", params, read_nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_qualified_only_when_a_schema_is_given() {
        let statement = claim("billing", "evt-7");
        assert_eq!(statement.sql(None), "SELECT inbox_claim($1, $2)");
        assert_eq!(
            statement.sql(Some(&Schema::new("my\"inbox"))),
            r#"SELECT "my""inbox".inbox_claim($1, $2)"#
        );
        assert_eq!(
            housekeeping(None).sql(None).split(" FROM ").nth(1),
            Some("inbox_housekeeping()")
        );
    }

    #[test]
    fn a_table_is_read_by_named_columns() {
        let message = Message::new("t", "i");
        assert_eq!(
            receive(&message, true).sql(None),
            "SELECT decision, reason, sequence_instance_id, message_id \
             FROM inbox_receive($1, $2, $3, $4, $5, $6, $7, $8)"
        );
    }

    #[test]
    fn parameters_choose_the_function_by_their_types() {
        let types = |params: Vec<(&(dyn ToSql + Sync), Type)>| {
            params
                .into_iter()
                .map(|(_, sql_type)| sql_type)
                .collect::<Vec<_>>()
        };
        assert_eq!(types(claim("c", "m").params()), [Type::TEXT, Type::TEXT]);
        assert_eq!(
            types(claim_sequenced("t", "i", 1).params()),
            [Type::TEXT, Type::TEXT, Type::INT8]
        );
        #[cfg(feature = "uuid")]
        assert_eq!(
            types(claim_uuid("c", uuid::Uuid::nil()).params()),
            [Type::TEXT, Type::UUID]
        );
    }
}

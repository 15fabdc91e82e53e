//! The commit, in one round trip with what has to be known of it (G4, G7).
//!
//! A bare COMMIT answers without an error when the transaction was aborted before, by a statement
//! whose error the handler swallowed: it rolls back and says so in its tag alone, which drivers do
//! not show. A statement in front of it fails then, and the COMMIT is not reached. That statement
//! also tells whether the claim is still in the transaction: not so when the handler ended it
//! itself. And where messages may have been released, a second one tells in which instances, so
//! that a drain is begun only where there is something to drain. The instance is locked until the
//! commit, hence the answer is exact.

use tokio_postgres::SimpleQueryMessage;

use crate::{ProcessError, Schema, consumer::error::TransactionEnded};

/// The statements to send.
pub(crate) fn sql(schema: Option<&Schema>, instances: &[i64]) -> String {
    let mut sql = "SELECT pg_catalog.pg_current_xact_id_if_assigned(); ".to_owned();
    if !instances.is_empty() {
        let qualifier = schema.map_or_else(String::new, |schema| format!("{schema}."));
        let ids: Vec<String> = instances.iter().map(i64::to_string).collect();
        sql.push_str(&format!(
            "SELECT DISTINCT sequence_instance_id FROM {qualifier}sequenced_message \
             WHERE state OPERATOR(pg_catalog.=) 'READY' AND sequence_instance_id \
             OPERATOR(pg_catalog.=) ANY ('{{{}}}'::pg_catalog.int8[]); ",
            ids.join(",")
        ));
    }
    sql.push_str("COMMIT");
    sql
}

/// Reads the answer: the instances in which something is ready.
///
/// `has_written`: the inbox has written in this transaction, so that it must have an id.
pub(crate) fn read(
    answer: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
    has_written: bool,
) -> Result<Vec<i64>, ProcessError> {
    let answer = answer.map_err(ProcessError::at_commit)?;
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0)),
        _ => None,
    });
    let transaction_id = rows.next().flatten();
    if has_written && transaction_id.is_none() {
        return Err(ProcessError::Handler(Box::new(TransactionEnded)));
    }
    Ok(rows.flatten().filter_map(|id| id.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_asks_only_for_instances_it_touched() {
        assert_eq!(
            sql(None, &[]),
            "SELECT pg_catalog.pg_current_xact_id_if_assigned(); COMMIT"
        );
        let asked = sql(Some(&Schema::new("my\"inbox")), &[3, -4]);
        assert!(
            asked.contains(r#"FROM "my""inbox".sequenced_message"#),
            "{asked}"
        );
        assert!(asked.contains("'{3,-4}'::pg_catalog.int8[]"), "{asked}");
        assert!(asked.ends_with("; COMMIT"), "{asked}");
    }
}

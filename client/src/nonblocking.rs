//! Level 1 on tokio-postgres.

use tokio_postgres::Transaction;

use crate::{Error, Schema, methods::inbox_methods, statement::Statement};

/// The inbox, inside one transaction.
///
/// Cheap to make: take a new one from the transaction wherever it is needed.
///
/// Dropping the future of a call does not end the call on the server: a claim that waits goes on
/// waiting, and the connection is busy until it is over. Bound the wait with `lock_timeout` or
/// `statement_timeout`, or cancel it with the transaction's
/// [`cancel_token`](tokio_postgres::Transaction::cancel_token).
#[derive(Clone, Copy)]
pub struct Inbox<'a> {
    transaction: &'a Transaction<'a>,
    schema: Option<&'a Schema>,
}

/// Gives a transaction its inbox.
///
/// A pool's transaction that dereferences to [`tokio_postgres::Transaction`] has it as well.
///
/// ```no_run
/// use sequential_inbox_client::{Error, InboxExt};
///
/// async fn is_new(transaction: &tokio_postgres::Transaction<'_>, id: &str) -> Result<bool, Error> {
///     Ok(transaction.inbox().claim("billing", id).await?.is_claimed())
/// }
/// ```
pub trait InboxExt {
    /// The inbox, inside this transaction.
    fn inbox(&self) -> Inbox<'_>;
}

impl InboxExt for Transaction<'_> {
    fn inbox(&self) -> Inbox<'_> {
        Inbox::new(self)
    }
}

impl<'a> Inbox<'a> {
    /// The inbox, inside that transaction. Functions are found through its `search_path`.
    #[must_use]
    pub const fn new(transaction: &'a Transaction<'a>) -> Self {
        Self {
            transaction,
            schema: None,
        }
    }

    /// Calls the functions in that schema, whatever the `search_path`.
    #[must_use]
    pub const fn in_schema(self, schema: &'a Schema) -> Self {
        Self {
            schema: Some(schema),
            ..self
        }
    }

    inbox_methods!([async] [.await] [self] self);

    async fn run<T>(self, statement: Statement<'_, T>) -> Result<T, Error> {
        // Typed parameters make this one round trip with an unnamed statement.
        let rows = self
            .transaction
            .query_typed(&statement.sql(self.schema), &statement.params())
            .await;
        statement.read(rows)
    }
}

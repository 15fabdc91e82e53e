//! Level 1 on the blocking `postgres` crate: the same methods with the same answers.
//!
//! ```no_run
//! use sequential_inbox_client::sync::InboxExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = postgres::Client::connect("host=/var/run/postgresql", postgres::NoTls)?;
//! let mut transaction = client.transaction()?;
//! if transaction.inbox().claim("billing", "evt-7")?.is_claimed() {
//!     transaction.execute("UPDATE account SET balance = balance - 10 WHERE id = 1", &[])?;
//! }
//! transaction.commit()?; // Acknowledge to the broker only after this.
//! # Ok(())
//! # }
//! ```

use postgres::Transaction;

pub use crate::consumer::blocking::Consumer;

use crate::{Error, Schema, methods::inbox_methods, statement::Statement};

/// The inbox, inside one transaction.
///
/// It borrows the transaction for as long as it lives: take a new one wherever it is needed.
pub struct Inbox<'a, 't> {
    transaction: &'a mut Transaction<'t>,
    schema: Option<&'a Schema>,
}

/// Gives a transaction its inbox.
pub trait InboxExt<'t> {
    /// The inbox, inside this transaction.
    fn inbox(&mut self) -> Inbox<'_, 't>;
}

impl<'t> InboxExt<'t> for Transaction<'t> {
    fn inbox(&mut self) -> Inbox<'_, 't> {
        Inbox::new(self)
    }
}

impl<'a, 't> Inbox<'a, 't> {
    /// The inbox, inside that transaction. Functions are found through its `search_path`.
    #[must_use]
    pub const fn new(transaction: &'a mut Transaction<'t>) -> Self {
        Self {
            transaction,
            schema: None,
        }
    }

    /// Calls the functions in that schema, whatever the `search_path`.
    #[must_use]
    pub const fn in_schema(self, schema: &'a Schema) -> Self {
        Self {
            transaction: self.transaction,
            schema: Some(schema),
        }
    }

    inbox_methods!([] [] [&mut self] self);

    fn run<T>(&mut self, statement: Statement<'_, T>) -> Result<T, Error> {
        // Typed parameters make this one round trip with an unnamed statement.
        let rows = self
            .transaction
            .query_typed(&statement.sql(self.schema), &statement.params());
        statement.read(rows)
    }
}

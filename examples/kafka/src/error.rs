//! Why a consumer ended: what waiting does not mend.

use rdkafka::error::KafkaError;
use tokio_postgres::error::SqlState;

/// Why a consumer ended by itself. A server that went away is no reason: the consumer waits for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// librdkafka refuses the settings, or says that it cannot go on.
    #[error("Kafka's client cannot go on")]
    Kafka(#[from] KafkaError),

    /// The database refuses the session: the password, the role, or a database that does not exist.
    #[error("the database refuses the session")]
    Database(#[from] tokio_postgres::Error),
}

/// Whether the database will say the same next time: class 28, the role or its password; class 3D,
/// the database's name; 42501, the right to connect.
pub(crate) fn is_refusal_of_database(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        code.code().starts_with("28")
            || *code == SqlState::INVALID_CATALOG_NAME
            || *code == SqlState::INSUFFICIENT_PRIVILEGE
    })
}

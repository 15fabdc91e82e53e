//! Why a consumer ended: what waiting does not mend.

use lapin::{
    ErrorKind,
    protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError},
};
use tokio_postgres::error::SqlState;

/// Why a consumer ended by itself. A server that went away is no reason: the consumer waits for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker refuses: access, the virtual host, or the queue, which is there already and is of
    /// another kind.
    #[error("the broker refuses")]
    Broker(#[from] lapin::Error),

    /// The database refuses the session: the password, the role, or a database that does not exist.
    #[error("the database refuses the session")]
    Database(#[from] tokio_postgres::Error),

    /// A name that AMQP has no room for: more than 255 bytes.
    #[error("\"{0}\" is longer than the 255 bytes that AMQP has for it")]
    TooLong(String),
}

/// Whether the broker will say the same next time.
pub(crate) fn is_refusal_of_broker(error: &lapin::Error) -> bool {
    match error.kind() {
        ErrorKind::ProtocolError(error) => matches!(
            error.kind(),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED | AMQPSoftError::PRECONDITIONFAILED)
                | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)
        ),
        ErrorKind::InvalidProtocolVersion(_)
        | ErrorKind::AuthProviderError(_)
        | ErrorKind::NoDefaultRuntime => true,
        _ => false,
    }
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

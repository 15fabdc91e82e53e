//! The session of the database, opened anew when it is lost (G3).

use futures_util::FutureExt;
use sequential_inbox_client::Shutdown;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};
use tracing::warn;

use crate::{Error, Options, error::is_refusal_of_database};

/// The one session of a consumer.
#[derive(Debug, Default)]
pub(crate) struct Session {
    client: Option<Client>,
    /// How often it was opened.
    pub(crate) opened: u64,
}

impl Session {
    /// The session, opened if need be, however long that takes; `None` when the shutdown comes
    /// first.
    pub(crate) async fn client(
        &mut self,
        options: &Options,
        shutdown: &Shutdown,
    ) -> Result<Option<&mut Client>, Error> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            // Boxed for the reason given at `Link::connect`.
            self.client = connect(options, shutdown).boxed().await?;
            self.opened += u64::from(self.client.is_some());
        }
        Ok(self.client.as_mut())
    }
}

async fn connect(options: &Options, shutdown: &Shutdown) -> Result<Option<Client>, Error> {
    let mut pauses = options.connection_pauses();
    while !shutdown.is_requested() {
        let error = match tokio_postgres::connect(&options.dsn, NoTls).await {
            Ok((client, connection)) => {
                // Its error is also that of every call on the client.
                tokio::spawn(connection);
                return Ok(Some(client));
            }
            Err(error) if is_refusal_of_database(&error) => return Err(error.into()),
            Err(error) => error,
        };
        let pause = pauses.next().unwrap_or_default();
        warn!(%error, pause_ms = pause.as_millis(), "the database cannot be reached");
        tokio::select! {
            () = shutdown.requested() => break,
            () = sleep(pause) => {}
        }
    }
    Ok(None)
}

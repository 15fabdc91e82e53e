//! What a thread logs. One subscriber serves the whole test program: those of single threads race
//! with the tests beside them for what tracing remembers of each place that logs.

use std::{cell::RefCell, io, sync::Once};

use tracing_subscriber::{
    Layer,
    filter::dynamic_filter_fn,
    fmt::{self, format::FmtSpan},
    layer::SubscriberExt,
};

thread_local! {
    /// What this thread has logged, if anybody wants to know.
    static LOGGED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes for the thread that logs.
struct OwnThread;

impl io::Write for OwnThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| {
            if let Some(logged) = logged {
                logged.extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All that this thread logs during the work, spans and the drivers' own lines included.
pub fn of(work: impl FnOnce()) -> String {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The drivers log through another facade.
        tracing_log::LogTracer::init().expect("no other logger");
        let layer = fmt::layer()
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(|| OwnThread)
            .with_filter(dynamic_filter_fn(|_, _| {
                LOGGED.with_borrow(Option::is_some)
            }));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber");
    });
    LOGGED.set(Some(Vec::new()));
    work();
    let logged = LOGGED.take().expect("what was logged");
    String::from_utf8(logged).expect("text")
}

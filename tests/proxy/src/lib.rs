//! A TCP proxy in front of a PostgreSQL server that cuts connections exactly at COMMIT: the one
//! moment at which a client cannot know what became of its transaction (G1, G3, G4).
//!
//! It understands as much of the protocol as that takes: where a message ends, which message
//! commits, and which answer is the commit's. Connections are not encrypted. Each costs two threads,
//! which end when either end closes; the other end then learns of it at once.
//!
//! ```no_run
//! use cutting_proxy::{Cut, Proxy};
//!
//! // Every commit takes place, and no client hears of it.
//! let proxy = Proxy::start("127.0.0.1:5432".parse()?, || Some(Cut::After))?;
//! println!("connect to {}", proxy.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// When the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The COMMIT never reaches the server.
    Before,
    /// The COMMIT reaches the server, and nobody waits for the answer.
    During,
    /// The server has committed and said so; the answer never reaches the client.
    After,
}

impl Cut {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Before, Self::During, Self::After];
}

/// How long the server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// No message that a test sends is larger; a length beyond it is no length.
const LARGEST_MESSAGE: u32 = 1 << 30;

/// Says of each COMMIT whether and when the connection is cut.
type Plan = Mutex<Box<dyn FnMut() -> Option<Cut> + Send>>;

/// The proxy; it takes no more connections when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `server`, on a port of its own. `plan` is asked at each COMMIT.
    ///
    /// The server need not be there: a client is then turned away, as by the server itself.
    ///
    /// # Errors
    ///
    /// When there is no port to listen on.
    pub fn start(
        server: SocketAddr,
        plan: impl FnMut() -> Option<Cut> + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let plan: Arc<Plan> = Arc::new(Mutex::new(Box::new(plan)));
        let listening = thread::spawn(move || {
            for client in listener.incoming() {
                if closed.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(client) = client {
                    let plan = Arc::clone(&plan);
                    thread::spawn(move || serve(&client, server, &plan));
                }
            }
        });
        Ok(Self {
            address,
            is_closed,
            listening: Some(listening),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        // Wakes the thread that waits for clients. When that is not possible, it ends with the
        // process.
        if TcpStream::connect(self.address).is_ok() {
            let _ = self.listening.take().map(JoinHandle::join);
        }
    }
}

/// Relays both directions until one of them ends.
fn serve(client: &TcpStream, server: SocketAddr, plan: &Plan) {
    let Ok(server) = TcpStream::connect_timeout(&server, CONNECT_TIMEOUT) else {
        // Nobody is there to be told why the client is turned away.
        let _ = client.shutdown(Shutdown::Both);
        return;
    };
    let server = &server;
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    // The exchange whose answer the client never sees; none so far.
    let cut_at = &AtomicU64::new(u64::MAX);
    let hang_up = || {
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            // Whichever end has closed, the other learns of it.
            let _ = relay_answers(server, client, cut_at);
            hang_up();
        });
        let _ = relay_requests(client, server, cut_at, plan);
        hang_up();
    });
}

/// Passes on what the client sends, up to the COMMIT at which the connection is cut.
fn relay_requests(
    client: &TcpStream,
    server: &TcpStream,
    cut_at: &AtomicU64,
    plan: &Plan,
) -> io::Result<()> {
    let mut from = BufReader::new(client);
    let mut to = BufWriter::new(server);
    // The start-up packet has no type.
    let start_up = read_body(&mut from)?;
    write_message(&mut to, None, &start_up)?;
    to.flush()?;
    let mut exchanges = 1;
    loop {
        let (kind, message) = read_message(&mut from)?;
        let is_commit = kind == b'Q' && message.ends_with(b"COMMIT\0");
        let cut = if is_commit {
            plan.lock().unwrap_or_else(PoisonError::into_inner)()
        } else {
            None
        };
        match cut {
            Some(Cut::Before) => return to.flush(),
            // Known before the server can answer.
            Some(Cut::During | Cut::After) => cut_at.store(exchanges, Ordering::Release),
            None => {}
        }
        write_message(&mut to, Some(kind), &message)?;
        if cut == Some(Cut::During) {
            return to.flush();
        }
        if from.buffer().is_empty() {
            to.flush()?;
        }
        // A simple query, a function call, or the end of extended messages: the server answers
        // and then says once that it is ready.
        if matches!(kind, b'Q' | b'F' | b'S') {
            exchanges += 1;
        }
    }
}

/// Passes on what the server sends, up to the answer that the client shall not see. That one is
/// read to its end, so that the server has committed.
fn relay_answers(server: &TcpStream, client: &TcpStream, cut_at: &AtomicU64) -> io::Result<()> {
    let mut from = BufReader::new(server);
    let mut to = BufWriter::new(client);
    let mut exchange = 0;
    loop {
        let (kind, message) = read_message(&mut from)?;
        let is_seen = exchange < cut_at.load(Ordering::Acquire);
        if is_seen {
            write_message(&mut to, Some(kind), &message)?;
        }
        if from.buffer().is_empty() {
            to.flush()?;
        }
        // Ready for the next query.
        if kind == b'Z' {
            if !is_seen {
                return Ok(());
            }
            exchange += 1;
        }
    }
}

fn read_message(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    Ok((kind[0], read_body(from)?))
}

fn read_body(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    // The length counts itself.
    let length = u32::from_be_bytes(length).saturating_sub(4);
    if length > LARGEST_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut body)?;
    Ok(body)
}

fn write_message(to: &mut impl Write, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
    if let Some(kind) = kind {
        to.write_all(&[kind])?;
    }
    to.write_all(&length.to_be_bytes())?;
    to.write_all(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// How long the other end may take; only a failing test waits it out.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A query and its COMMIT, sent through a proxy that cuts there, in one piece, as a driver that
    /// pipelines does: the kinds of what the client sees, and of what the server got.
    fn exchange(cut: Option<Cut>) -> (String, String) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = &stream;
            read_body(&mut stream).unwrap();
            // When the client has left, there is nobody to answer.
            let _ = write_message(&mut stream, Some(b'Z'), b"I");
            let mut got = String::new();
            while let Ok((kind, message)) = read_message(&mut stream) {
                got.push(char::from(kind));
                let _ = write_message(&mut stream, Some(b'C'), &message);
                let _ = write_message(&mut stream, Some(b'Z'), b"I");
                if message.ends_with(b"COMMIT\0") {
                    break;
                }
            }
            tell.send(got).unwrap();
        });
        let proxy = Proxy::start(address, move || cut).unwrap();
        let client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut sent = Vec::new();
        write_message(&mut sent, None, b"start").unwrap();
        write_message(&mut sent, Some(b'Q'), b"SELECT 'COMMIT'\0").unwrap();
        write_message(&mut sent, Some(b'Q'), b"SELECT 1; COMMIT\0").unwrap();
        (&client).write_all(&sent).unwrap();
        let mut seen = String::new();
        while let Ok((kind, _)) = read_message(&mut &client) {
            seen.push(char::from(kind));
        }
        (seen, told.recv_timeout(PATIENCE).unwrap())
    }

    #[test]
    fn what_is_not_cut_passes() {
        assert_eq!(exchange(None), ("ZCZCZ".to_owned(), "QQ".to_owned()));
    }

    #[test]
    fn before_it_reaches_the_server() {
        let (seen, got) = exchange(Some(Cut::Before));
        // The client is cut off at once, with or without the answer to its first query.
        assert!("ZCZ".starts_with(&seen), "{seen}");
        assert_eq!(got, "Q");
    }

    #[test]
    fn during_it() {
        let (seen, got) = exchange(Some(Cut::During));
        assert!("ZCZ".starts_with(&seen), "{seen}");
        assert_eq!(got, "QQ");
    }

    #[test]
    fn after_it_the_client_sees_all_but_its_answer() {
        assert_eq!(
            exchange(Some(Cut::After)),
            ("ZCZ".to_owned(), "QQ".to_owned())
        );
    }

    #[test]
    fn a_server_that_is_not_there_is_not_there() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let proxy = Proxy::start(address, || None).unwrap();
        let client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!((&client).read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn a_proxy_that_is_dropped_listens_no_more() {
        let proxy = Proxy::start(([127, 0, 0, 1], 1).into(), || None).unwrap();
        let address = proxy.address();
        drop(proxy);
        assert!(TcpStream::connect(address).is_err());
    }
}

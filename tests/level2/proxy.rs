//! A TCP proxy in front of the server that cuts the connection exactly at COMMIT.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

use inbox_test_support::cluster;

/// When the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The COMMIT never reaches the server.
    Before,
    /// The COMMIT reaches the server, and nobody waits for the answer.
    During,
    /// The server has committed and said so; the answer never reaches the client.
    After,
}

/// Starts a proxy for one connection: its address.
pub fn start(cut: Cut) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect((cluster().host(), cluster().port())).expect("a server");
        client.set_nodelay(true).expect("an option");
        server.set_nodelay(true).expect("an option");
        // Whichever end has closed, the other learns of it.
        let _ = serve(&client, &server, cut);
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    address
}

/// Relays one exchange at a time: all that the client sends until the server must answer, and all
/// of the answer.
fn serve(client: &TcpStream, server: &TcpStream, cut: Cut) -> io::Result<()> {
    let (mut client, mut server) = (client, server);
    // The start-up packet has no type.
    let start_up = body(&mut client)?;
    send(&mut server, None, &start_up)?;
    answer(&mut server, Some(&mut client))?;
    loop {
        let (kind, message) = tagged(&mut client)?;
        let is_commit = kind == b'Q' && message.ends_with(b"COMMIT\0");
        if is_commit && cut == Cut::Before {
            return Ok(());
        }
        send(&mut server, Some(kind), &message)?;
        match (is_commit, kind) {
            (true, _) if cut == Cut::During => return Ok(()),
            (true, _) => return answer(&mut server, None),
            // A simple query, or the Sync after an extended one.
            (false, b'Q' | b'S') => answer(&mut server, Some(&mut client))?,
            _ => {}
        }
    }
}

/// Reads messages of the server to the one that says it is ready, and passes them on.
fn answer(server: &mut &TcpStream, mut client: Option<&mut &TcpStream>) -> io::Result<()> {
    loop {
        let (kind, message) = tagged(server)?;
        if let Some(client) = &mut client {
            send(client, Some(kind), &message)?;
        }
        if kind == b'Z' {
            return Ok(());
        }
    }
}

fn tagged(from: &mut &TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    Ok((kind[0], body(from)?))
}

fn body(from: &mut &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    // The length counts itself.
    let length = u32::from_be_bytes(length).saturating_sub(4);
    let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut body)?;
    Ok(body)
}

fn send(to: &mut &TcpStream, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend(length.to_be_bytes());
    message.extend(body);
    to.write_all(&message)
}

//! One client that sets streams up and is gone, as fast as it can: by RTP in the RTSP connection, so that each visit is a connection, a
//! session and a place in an engine's table that have to be cleared.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long connecting and each reply may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest reply.
const REPLY_BYTES: usize = 4096;
/// One visit in `PLAYS` plays before it leaves, so that resources reserved by playing have to be
/// released as well.
const PLAYS: u64 = 8;
/// One visit in `CLOSES` leaves with FIN, the others with RST: a port closed with FIN is not free
/// for a minute, and a client has 28,000.
const CLOSES: u64 = 4;

/// What visits came to.
#[derive(Clone, Debug, Default)]
pub struct Visits {
    /// Streams that were set up, and left.
    pub set_up: u64,
    /// Of these, played to.
    pub played: u64,
    /// SETUPs and PLAYs that were refused.
    pub refused: u64,
    /// Connections that failed.
    pub failed: u64,
    /// The last thing that went wrong.
    pub why: Option<String>,
}

/// Visits a title of the server at `server` until `stop` is set.
pub fn visit(server: SocketAddr, url: &str, stop: &AtomicBool) -> Visits {
    let mut visits = Visits::default();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        match one(server, url, number) {
            Ok(Reply { is_ok: true, .. }) => {
                visits.set_up += 1;
                visits.played += u64::from(plays(number));
            }
            Ok(reply) => (visits.refused, visits.why) = (visits.refused + 1, Some(reply.status)),
            Err(error) => (visits.failed, visits.why) = (visits.failed + 1, Some(error.to_string())),
        }
        number += 1;
    }
    visits
}

fn plays(number: u64) -> bool {
    number % PLAYS == PLAYS - 1
}

/// The last reply of one visit.
fn one(server: SocketAddr, url: &str, number: u64) -> io::Result<Reply> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    let setup = format!("SETUP {url} RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;interleaved=0-1\r\n\r\n");
    stream.write_all(setup.as_bytes())?;
    let mut reply = Reply::read(&mut stream)?;
    if reply.is_ok && plays(number) {
        let play = format!("PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {}\r\n\r\n", reply.session);
        stream.write_all(play.as_bytes())?;
        reply = Reply::read(&mut stream)?;
    }
    if !number.is_multiple_of(CLOSES) {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    Ok(reply)
}

/// What matters of a reply.
struct Reply {
    is_ok: bool,
    status: String,
    session: String,
}

impl Reply {
    /// Reads to the end of the head; none of these replies has a body.
    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let (mut bytes, mut have) = ([0; REPLY_BYTES], 0);
        while !bytes[..have].windows(4).any(|end| end == b"\r\n\r\n") {
            let count = stream.read(&mut bytes[have..])?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no whole reply"));
            }
            have += count;
        }
        let text = String::from_utf8_lossy(&bytes[..have]);
        let status = text.lines().next().unwrap_or_default().to_owned();
        let session = text.lines().find_map(|line| line.strip_prefix("Session:")).unwrap_or_default();
        let session = session.split(';').next().unwrap_or_default().trim().to_owned();
        Ok(Self { is_ok: status.starts_with("RTSP/1.0 200"), status, session })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_to_their_end_and_no_further() {
        let read = |mut text: &[u8]| Reply::read(&mut text);
        let ok = read(b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nSession: abc;timeout=60\r\n\r\n$\0\0\x02xy").unwrap();
        assert_eq!((ok.is_ok, ok.session.as_str()), (true, "abc"));
        let full = read(b"RTSP/1.0 453 Not Enough Bandwidth\r\nCSeq: 1\r\n\r\n").unwrap();
        assert_eq!((full.is_ok, full.status.as_str()), (false, "RTSP/1.0 453 Not Enough Bandwidth"));
        assert!(read(b"RTSP/1.0 200 OK\r\n").is_err());
        assert!(read(&[b'x'; 2 * REPLY_BYTES]).is_err());
    }

    #[test]
    fn visit_to_server_closing_connection_counts_as_failed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, stop) = (listener.local_addr().unwrap(), AtomicBool::new(false));
        let visits = std::thread::scope(|scope| {
            let visiting = scope.spawn(|| visit(server, "rtsp://x/y", &stop));
            (0..3).for_each(|_| drop(listener.accept().unwrap()));
            stop.store(true, Ordering::Relaxed);
            // The one that is under way, if there is one.
            drop(listener);
            visiting.join().unwrap()
        });
        assert!(visits.failed >= 3 && visits.set_up == 0 && visits.why.is_some(), "{visits:?}");
    }
}

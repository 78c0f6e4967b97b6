//! An HTTP/2 client that sends frames as a test specifies them, and reads the replies.

#[path = "../../../lab/src/hostile/frames.rs"]
mod frames;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) use self::frames::*;

/// Settings (RFC 9113 section 6.5.2).
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// A bound, not a measure.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A connection.
pub(crate) struct H2 {
    stream: TcpStream,
}

impl H2 {
    /// Connects and sends the preface, with these settings.
    pub(crate) fn to(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        Self::on(TcpStream::connect(address).unwrap(), settings)
    }

    /// The same on a connection that is there.
    pub(crate) fn on(mut stream: TcpStream, settings: &[(u16, u32)]) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&hello(settings)).unwrap();
        Self { stream }
    }

    /// Sends; false: the server has closed the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        match self.stream.write_all(bytes) {
            Ok(()) => true,
            Err(error) => {
                let is_closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
                assert!(is_closed, "{error}");
                false
            }
        }
    }

    /// Sends as much as there is room for; false: the server has closed the connection, or reads no more of it.
    pub(crate) fn send_if_room(&mut self, mut bytes: &[u8]) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        // A server that reads has read within this; it is only a waste of time if it does not.
        for _ in 0..200 {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(_) => break,
            }
            if bytes.is_empty() {
                break;
            }
        }
        self.stream.set_nonblocking(false).unwrap();
        bytes.is_empty()
    }

    /// The next frame; `None`: the connection is over.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.read(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        self.read(&mut payload)?;
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    fn read(&mut self, out: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(out) {
            Ok(()) => Some(()),
            Err(error) => {
                let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!timed_out, "nothing has come for {TIMEOUT:?}");
                None
            }
        }
    }

    /// The next frame of this kind for `stream`.
    pub(crate) fn next_of(&mut self, kind: u8, stream: u32) -> Option<Frame> {
        loop {
            let frame = self.next()?;
            if (frame.kind, frame.stream) == (kind, stream) {
                return Some(frame);
            }
        }
    }

    /// Reads to the end of the connection; returns the error code that it ended with, if one was
    /// sent.
    pub(crate) fn last_words(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next() {
            if let (GOAWAY, Some(error)) = (frame.kind, frame.payload.get(4..8)) {
                code = error.try_into().ok().map(u32::from_be_bytes);
            }
        }
        code
    }

    /// Whether it is answered when it asks whether anybody is there.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.send(&frame(PING, 0, 0, b"anybody?"))
            && std::iter::from_fn(|| self.next()).any(|frame| (frame.kind, frame.flags) == (PING, 1))
    }
}

/// The status of a response whose field block begins with it, as it does from this server: one of the static table (RFC 7541
/// appendix A), or a literal with a name from there.
pub(crate) fn status(frame: &Frame) -> u16 {
    match *frame.payload {
        [indexed @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)],
        // Literal with indexing, name 8, three digits plain or Huffman coded.
        [0x48, 3, a, b, c, ..] => [a, b, c].iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')),
        [0x48, 0x82, a, b, ..] => huffman_digits(a, b),
        _ => panic!("{frame:?}"),
    }
}

/// Three digits in two bytes (RFC 7541 appendix B): 0, 1 and 2 have five bits, the others six.
fn huffman_digits(a: u8, b: u8) -> u16 {
    let bits = u16::from_be_bytes([a, b]);
    let (mut at, mut sum) = (16, 0);
    for _ in 0..3 {
        let five = bits >> (at - 5) & 0x1f;
        let digit = match five {
            0..=2 => {
                at -= 5;
                five
            }
            _ => {
                let six = bits >> (at - 6) & 0x3f;
                at -= 6;
                six - 0x19 + 3
            }
        };
        sum = sum * 10 + digit;
    }
    sum
}

//! One request and its response on a connection, without the connection.

use super::address::HttpUrl;
use super::body::BodyDecoder;
use super::head::{Head, HttpFault, parse_head};
use crate::limits::MAX_HTTP_HEAD_BYTES;

/// Which bytes of a resource are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteRange {
    /// All of it.
    #[default]
    Whole,
    /// From this byte to the end.
    From(u64),
    /// `len` bytes from this one; not 0.
    Part {
        /// The first.
        start: u64,
        /// How many.
        len: u64,
    },
}

/// The text of a GET request.
pub fn request(url: &HttpUrl, range: ByteRange, user_agent: &str) -> Vec<u8> {
    let range = match range {
        ByteRange::Whole => String::new(),
        ByteRange::From(start) => format!("Range: bytes={start}-\r\n"),
        ByteRange::Part { start, len } => {
            format!("Range: bytes={start}-{}\r\n", start.saturating_add(len.saturating_sub(1)))
        }
    };
    let (target, host) = (url.target(), url.authority());
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {user_agent}\r\nAccept: */*\r\n{range}\r\n")
        .into_bytes()
}

/// Meaning of the bytes taken from the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum ResponsePart<'a> {
    /// Of the head or the framing; more is needed.
    Frame,
    /// The head is whole.
    Head(Box<Head>),
    /// Payload of the body.
    Payload(&'a [u8]),
}

#[derive(Debug)]
enum ExchangeState {
    /// Head bytes that came before the rest of it.
    Head(Vec<u8>),
    Body(BodyDecoder),
}

/// Reads one response.
#[derive(Debug)]
pub struct Exchange {
    state: ExchangeState,
    keeps_alive: bool,
}

impl Default for Exchange {
    fn default() -> Self {
        Self { state: ExchangeState::Head(Vec::new()), keeps_alive: false }
    }
}

impl Exchange {
    /// Whether the response is over.
    pub fn is_done(&self) -> bool {
        matches!(&self.state, ExchangeState::Body(body) if body.is_done())
    }

    /// Whether the connection can carry another request when the response is over.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Whether no byte of it has come.
    pub fn is_untouched(&self) -> bool {
        matches!(&self.state, ExchangeState::Head(bytes) if bytes.is_empty())
    }

    /// Bytes to come that are payload, whatever they are ([`BodyDecoder::plain_bytes`]).
    pub fn plain_bytes(&self) -> u64 {
        match &self.state {
            ExchangeState::Head(_) => 0,
            ExchangeState::Body(body) => body.plain_bytes(),
        }
    }

    /// Skips some of them that came without inspection.
    pub fn pass(&mut self, bytes: u64) {
        if let ExchangeState::Body(body) = &mut self.state {
            body.pass(bytes);
        }
    }

    /// Takes bytes from the front of `bytes`; returns how many, and their meaning. The caller
    /// repeats this with the rest until it is empty or the response is over. Interim responses are
    /// skipped.
    ///
    /// # Errors
    /// What makes it unreadable; the connection is of no use then.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, ResponsePart<'a>), HttpFault> {
        let held = match &mut self.state {
            ExchangeState::Body(body) => {
                let (len, payload) = body.take(bytes)?;
                let part =
                    if payload.is_empty() { ResponsePart::Frame } else { ResponsePart::Payload(payload) };
                return Ok((len, part));
            }
            ExchangeState::Head(held) => held,
        };
        let before = held.len();
        let room = MAX_HTTP_HEAD_BYTES - before;
        held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let Some((head, len)) = parse_head(held)? else {
            return Ok((held.len() - before, ResponsePart::Frame));
        };
        // The bytes held were not a whole head, so this one ends behind them.
        let taken = len - before;
        if (100..200).contains(&head.status) {
            self.state = ExchangeState::Head(Vec::new());
            return Ok((taken, ResponsePart::Frame));
        }
        self.state = ExchangeState::Body(BodyDecoder::new(head.body));
        self.keeps_alive = head.keeps_alive;
        Ok((taken, ResponsePart::Head(Box::new(head))))
    }

    /// The server closed the connection.
    ///
    /// # Errors
    /// If the response was not over.
    pub fn close(&mut self) -> Result<(), HttpFault> {
        match &mut self.state {
            ExchangeState::Head(_) => Err(HttpFault::NoResponse),
            ExchangeState::Body(body) => body.close(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pieces: &[&[u8]]) -> (u16, Vec<u8>, usize, bool) {
        let (mut exchange, mut status, mut payload, mut left) = (Exchange::default(), 0, Vec::new(), 0);
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() && !exchange.is_done() {
                let (len, part) = exchange.take(&piece[at..]).unwrap();
                match part {
                    ResponsePart::Frame => {}
                    ResponsePart::Head(head) => status = head.status,
                    ResponsePart::Payload(bytes) => payload.extend_from_slice(bytes),
                }
                assert!(len > 0);
                at += len;
            }
            left += piece.len() - at;
        }
        assert_eq!(exchange.keeps_alive(), exchange.is_done());
        (status, payload, left, exchange.is_done())
    }

    #[test]
    fn exchange_parses_response_split_at_any_byte() {
        let whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nnext";
        let expected = (200, b"abcde".to_vec(), 4, true);
        for cut in 0..whole.len() {
            let (a, b) = whole.split_at(cut);
            assert_eq!(run(&[a, b]), expected, "{cut}");
        }
        assert_eq!(run(&whole.chunks(1).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn closing_is_an_end_or_a_loss() {
        let mut exchange = Exchange::default();
        assert!(exchange.is_untouched());
        assert_eq!(exchange.close(), Err(HttpFault::NoResponse));
        exchange.take(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        assert!(!exchange.is_untouched() && !exchange.is_done());
        assert_eq!(exchange.close(), Ok(()));
        let mut exchange = Exchange::default();
        exchange.take(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").unwrap();
        assert_eq!(exchange.close(), Err(HttpFault::CutShort));
    }

    #[test]
    fn endless_heads_end() {
        let mut exchange = Exchange::default();
        let mut fault = None;
        for _ in 0..=MAX_HTTP_HEAD_BYTES {
            match exchange.take(b"HTTP/1.1 200 OK\r\nX: y"[..1].as_ref()) {
                Ok((len, _)) => assert_eq!(len, 1),
                Err(found) => {
                    fault = Some(found);
                    break;
                }
            }
        }
        assert_eq!(fault, Some(HttpFault::NotHttp));
        let mut exchange = Exchange::default();
        exchange.take(b"HTTP/1.1 200 OK\r\nX: ").unwrap();
        let long = vec![b'y'; MAX_HTTP_HEAD_BYTES];
        assert_eq!(exchange.take(&long), Err(HttpFault::HeadTooLong));
    }

    #[test]
    fn requests_are_what_servers_expect() {
        let url = HttpUrl::parse("http://h:81/a?b").unwrap();
        let text = |range| String::from_utf8(request(&url, range, "x/1")).unwrap();
        assert_eq!(
            text(ByteRange::Whole),
            "GET /a?b HTTP/1.1\r\nHost: h:81\r\nUser-Agent: x/1\r\nAccept: */*\r\n\r\n"
        );
        assert!(text(ByteRange::From(188)).contains("\r\nRange: bytes=188-\r\n\r\n"));
        assert!(text(ByteRange::Part { start: 10, len: 5 }).contains("\r\nRange: bytes=10-14\r\n\r\n"));
        assert!(text(ByteRange::Part { start: u64::MAX, len: 5 }).contains("bytes="));
    }
}

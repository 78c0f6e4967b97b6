//! A hostile client: its connection, the responses it reads, its rounds.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// Limit for things that must happen by themselves, on a machine with other work.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest head of a response.
const HEAD_BYTES: usize = 16 << 10;

/// The server to attack, and the address to attack from.
#[derive(Clone, Debug)]
pub struct AttackTarget {
    /// The server's HTTP.
    pub web: SocketAddr,
    /// The address of this machine that it comes from.
    pub from: IpAddr,
    /// Path of a title as a file, at least 64 KiB long.
    pub title: String,
}

/// Something that a hostile client does, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// One round; how many requests that were.
    pub round: fn(&AttackTarget) -> anyhow::Result<u64>,
}

/// Result of an attack.
#[derive(Clone, Debug, Default)]
pub struct AttackResult {
    /// Rounds.
    pub rounds: u64,
    /// Requests, or input that the server may take for one.
    pub requests: u64,
    /// Rounds in which the server broke a rule.
    pub wrong: u64,
    /// The last of these.
    pub why: Option<String>,
}

impl AttackResult {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            requests: self.requests + other.requests,
            wrong: self.wrong + other.wrong,
            why: other.why.or(self.why),
        }
    }
}

impl Attack {
    /// Rounds until `stop` is set, `most` at most, with a pause behind each.
    pub fn run(&self, target: &AttackTarget, most: u64, pause: Duration, stop: &AtomicBool) -> AttackResult {
        rounds(most, pause, stop, || (self.round)(target))
    }
}

/// The same of anything that can be repeated.
pub fn rounds(
    most: u64,
    pause: Duration,
    stop: &AtomicBool,
    mut round: impl FnMut() -> anyhow::Result<u64>,
) -> AttackResult {
    let mut done = AttackResult::default();
    while !stop.load(Ordering::Relaxed) && done.rounds < most {
        match round() {
            Ok(requests) => done.requests += requests,
            Err(error) => (done.wrong, done.why) = (done.wrong + 1, Some(format!("{error:#}"))),
        }
        done.rounds += 1;
        std::thread::sleep(pause);
    }
    done
}

impl AttackTarget {
    /// Connects.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn dial(&self) -> anyhow::Result<TcpStream> {
        dial(self.from, self.web).with_context(|| format!("connect to {} from {}", self.web, self.from))
    }

    /// A GET of the title, with these further lines.
    pub fn request(&self, lines: &str) -> String {
        format!("GET {} HTTP/1.1\r\nHost: tv\r\n{lines}\r\n", self.title)
    }
}

fn dial(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(from, 0))?;
    connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its head.
    pub head: String,
}

impl Response {
    /// Reads one, and past its body; `None`: the server has closed the connection.
    ///
    /// # Errors
    /// It is no response, or does not come.
    pub fn read(from: &mut impl Read) -> anyhow::Result<Option<Self>> {
        let Some(head) = head_of(from)? else { return Ok(None) };
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no response: {head:?}"))?;
        let response = Self { status, head };
        let length = response.header("Content-Length").map_or(Ok(0), str::parse).context("the length")?;
        let passed = io::copy(&mut from.by_ref().take(length), &mut io::sink());
        match passed {
            Ok(count) if count == length => Ok(Some(response)),
            Ok(_) => Ok(None),
            Err(error) if is_closed(&error) => Ok(None),
            Err(error) => Err(error).context("a body that does not come"),
        }
    }

    /// A header field's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }
}

/// Returns whether an error means that the other side has closed the connection.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted | UnexpectedEof)
}

/// Writes; false: the server has closed the connection.
pub(super) fn sends(to: &mut impl Write, bytes: &[u8]) -> anyhow::Result<bool> {
    match to.write_all(bytes) {
        Ok(()) => Ok(true),
        Err(error) if is_closed(&error) => Ok(false),
        Err(error) => Err(error).context("the server reads nothing"),
    }
}

/// Connections that have asked once, and have nothing to say any more: `count` of them, each from one of these addresses in turn.
///
/// # Errors
/// One is not accepted, or not answered.
pub fn idle(target: &AttackTarget, from: &[IpAddr], count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let asked = format!("HEAD {} HTTP/1.1\r\nHost: tv\r\n\r\n", target.title);
    let one = |number: usize| {
        let from = from[number % from.len()];
        let mut client = AttackTarget { from, ..target.clone() }.dial()?;
        client.write_all(asked.as_bytes())?;
        // It gives the length of a body that does not come.
        let head = head_of(&mut client)?.context("an idle connection was closed")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Ok(client)
    };
    (0..count).map(one).collect()
}

/// The head of a response, and not a byte further; `None`: the server has closed the connection.
fn head_of(from: &mut impl Read) -> anyhow::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match from.read(&mut byte) {
            Ok(1..) => head.push(byte[0]),
            Ok(0) => return Ok(None),
            Err(error) if is_closed(&error) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("no response"),
        }
        ensure!(head.len() < HEAD_BYTES, "the head of a response does not end");
    }
    String::from_utf8(head).map(Some).context("the head of a response is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_to_the_end_of_their_body() {
        let mut text: &[u8] =
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\nHTTP/1.1 206 ";
        let mut next = || Response::read(&mut text).unwrap();
        let first = next().unwrap();
        assert_eq!((first.status, first.header("Content-Length")), (404, Some("3")));
        assert_eq!(next().unwrap().status, 200);
        assert_eq!(next(), None, "cut off");
        assert!(Response::read(&mut &b"SSH-2.0-OpenSSH\r\n\r\n"[..]).is_err());
        let endless = "x".repeat(2 * HEAD_BYTES);
        assert!(Response::read(&mut endless.as_bytes()).is_err());
    }

    #[test]
    fn rounds_that_go_wrong_are_counted_with_why() {
        let stop = AtomicBool::new(false);
        let mut number = 0;
        let done = rounds(5, Duration::ZERO, &stop, || {
            number += 1;
            ensure!(number != 3, "the third");
            Ok(10)
        });
        assert_eq!((done.rounds, done.requests, done.wrong), (5, 40, 1));
        assert_eq!(done.clone().and(AttackResult { wrong: 1, ..AttackResult::default() }).wrong, 2);
        assert_eq!(done.why.as_deref(), Some("the third"));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(rounds(5, Duration::ZERO, &stop, || Ok(1)).rounds, 0);
    }
}

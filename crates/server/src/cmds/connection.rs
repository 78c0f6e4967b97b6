//! A connection to a running server, in the clear or by TLS, for the commands that ask one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::HumanDuration;
use millrace_offload::clock::MonotonicClock;
use millrace_tls::{ClientStream, Trust};
use url::Url;

use crate::limits::control::{REMOTE_ANSWER, REMOTE_CONNECT, REMOTE_WAIT};

/// An open one.
pub(super) enum Connection {
    Plain(Timed),
    Tls(Box<ClientStream<Timed>>),
}

/// A stream with a timeout for each read and write and a deadline for all of them. Its errors name
/// the limit that was exceeded.
pub(super) struct Timed {
    stream: TcpStream,
    /// Timeout of one read or write.
    each: Duration,
    /// Deadline for all reads and writes. Without it, a server that sends a byte now and then would
    /// hold a command up indefinitely.
    until: Option<Instant>,
}

impl Connection {
    /// Connects to the host of a URL. With `https://` the certificate must be trusted: by the
    /// system, or by the user's own file.
    pub(super) fn open(url: &Url, ca: Option<&Path>) -> anyhow::Result<Self> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let trust = match url.scheme() {
            "https" => Some(Trust::read(ca, "--ca")?),
            _ => None,
        };
        let stream = connect(host, url.port_or_known_default().unwrap_or(80))?;
        let until = Some(MonotonicClock.now().plus_ns(REMOTE_ANSWER.as_nanos() as u64));
        let stream = Timed { stream, each: REMOTE_WAIT, until };
        Ok(match trust {
            Some(trust) => Self::Tls(Box::new(trust.connect(host, stream)?)),
            None => Self::Plain(stream),
        })
    }

    /// Sets the timeout of each read and write and removes the deadline, for uploads and events.
    pub(super) fn set_open_ended(&mut self, each: Duration) {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_mut(),
        };
        (stream.each, stream.until) = (each, None);
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Timed {
    /// Timeout of the next read or write.
    fn limit(&self) -> io::Result<Duration> {
        let Some(until) = self.until else { return Ok(self.each) };
        match until.ns_since(MonotonicClock.now()) {
            0 => {
                let limit = HumanDuration(REMOTE_ANSWER);
                let what = format!("the server has not answered completely within {limit}");
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            }
            left => Ok(self.each.min(Duration::from_nanos(left))),
        }
    }

    /// Replaces the error of an expired timeout, which the system reports as "resource temporarily
    /// unavailable", with one that names the limit.
    fn named(&self, error: io::Error, what: &str) -> io::Error {
        if error.kind() != io::ErrorKind::WouldBlock {
            return error;
        }
        self.limit().err().unwrap_or_else(|| {
            let limit = HumanDuration(self.each);
            io::Error::new(io::ErrorKind::TimedOut, format!("the server has {what} nothing for {limit}"))
        })
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.limit()?))?;
        self.stream.read(bytes).map_err(|error| self.named(error, "sent"))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.limit()?))?;
        self.stream.write(bytes).map_err(|error| self.named(error, "taken"))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn connect(host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let mut refused = None;
    for address in (host, port).to_socket_addrs()? {
        match open(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.context("the name leads to no address")?.into())
}

fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, REMOTE_CONNECT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A client of a listener with the deadline `all` from now, and the server's end of the
    /// connection.
    fn timed(listener: &TcpListener, all: Duration) -> (Timed, TcpStream) {
        let stream = open(listener.local_addr().unwrap()).unwrap();
        let until = Some(MonotonicClock.now().plus_ns(all.as_nanos() as u64));
        (Timed { stream, each: REMOTE_WAIT, until }, listener.accept().unwrap().0)
    }

    #[test]
    fn read_past_the_limit_of_the_whole_answer_is_an_error_though_bytes_come() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, mut server) = timed(&listener, Duration::from_millis(50));
        // The server keeps sending single bytes until the client has given up.
        let slow = std::thread::spawn(move || while server.write_all(b"x").is_ok() {});
        let error = std::iter::repeat_with(|| client.read(&mut [0])).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("not answered completely"), "{error}");
        // The client gives up on a silent server at the same deadline.
        let (mut client, _server) = timed(&listener, Duration::from_millis(50));
        assert!(client.read(&mut [0]).unwrap_err().to_string().contains("not answered completely"));
        drop(client);
        drop(listener);
        drop(slow);
    }
}

//! A connection to a running server, in the clear or by TLS, for the commands that ask one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use millrace_core::limits::control::{REMOTE_CONNECT, REMOTE_WAIT};
use millrace_core::units::HumanDuration;
use millrace_tls::{ClientStream, Trust};
use url::Url;

/// An open one.
pub(super) enum Connection {
    Plain(Timed),
    Tls(Box<ClientStream<Timed>>),
}

/// Reads and writes that take no longer than they may, and say so.
pub(super) struct Timed(TcpStream);

impl Connection {
    /// To where a URL says; by `https://` the certificate has to be trusted: by the system, or by a file of one's own.
    pub(super) fn open(url: &Url, ca: Option<&Path>) -> anyhow::Result<Self> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let trust = match url.scheme() {
            "https" => Some(Trust::read(ca, "--ca")?),
            _ => None,
        };
        let stream = Timed(connect(host, url.port_or_known_default().unwrap_or(80))?);
        Ok(match trust {
            Some(trust) => Self::Tls(Box::new(trust.connect(host, stream)?)),
            None => Self::Plain(stream),
        })
    }

    /// A read or a write takes so long at most from now on.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref(),
        };
        stream.0.set_read_timeout(Some(timeout))?;
        stream.0.set_write_timeout(Some(timeout))
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

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes).map_err(|error| timed(error, "sent"))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| timed(error, "taken"))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A time that is over, in words: the system says "resource temporarily unavailable".
fn timed(error: io::Error, what: &str) -> io::Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    let limit = HumanDuration(REMOTE_WAIT);
    io::Error::new(io::ErrorKind::TimedOut, format!("the server has {what} nothing for {limit}"))
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
    stream.set_read_timeout(Some(REMOTE_WAIT))?;
    stream.set_write_timeout(Some(REMOTE_WAIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

//! Clients that fetch files one after the other, each on a connection of its own, as fast as they
//! come. Received bytes are counted and thrown away in the kernel (`MSG_TRUNC`), so that one core
//! fetches more than one serves. With TLS they must be read and decrypted.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::net::RecvFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A client that gets nothing for this long gives up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes taken from a connection at once.
const READ_BYTES: usize = 1 << 20;
/// Longest head of a response.
const MAX_HEAD_BYTES: usize = 4096;

/// Where files are, and which.
#[derive(Clone, Debug)]
pub(super) struct Shop {
    pub(super) server: SocketAddr,
    /// How it is spoken to by TLS, if it is.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) paths: Vec<String>,
}

/// The totals fetched until now.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) bytes: AtomicU64,
    pub(super) files: AtomicU64,
}

impl Fetched {
    /// Bytes and files.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.files.load(Ordering::Relaxed))
    }
}

/// A connection that fetches one file after the other.
pub(super) struct FetchClient {
    stream: FetchStream,
    host: String,
    /// Bytes that were read and not used.
    read: Vec<u8>,
}

/// Its connection.
enum FetchStream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl FetchStream {
    /// Takes at most as many bytes as `room` holds and throws them away; returns their number.
    fn pass(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => match rustix::net::recv(&*stream, room, RecvFlags::TRUNC) {
                Ok((_, count)) => Ok(count),
                Err(error) => Err(error.into()),
            },
            Self::Tls(stream) => stream.read(room),
        }
    }
}

impl Read for FetchStream {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(room),
            Self::Tls(stream) => stream.read(room),
        }
    }
}

impl Write for FetchStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A client that trusts the certificate in a file.
pub(super) fn trusting(certificate: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

impl FetchClient {
    pub(super) fn to(server: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, TIMEOUT).with_context(|| format!("{server}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let stream = match tls {
            None => FetchStream::Plain(stream),
            Some(config) => {
                let session = ClientConnection::new(Arc::clone(config), ServerName::from(server.ip()))?;
                FetchStream::Tls(Box::new(StreamOwned::new(session, stream)))
            }
        };
        Ok(Self { stream, host: server.to_string(), read: Vec::with_capacity(MAX_HEAD_BYTES) })
    }

    /// Requests a file; returns the length of its data.
    fn ask(&mut self, path: &str) -> anyhow::Result<u64> {
        write!(self.stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host)?;
        let end = loop {
            if let Some(at) = self.read.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(self.read.len() < MAX_HEAD_BYTES, "{path}: the head of the response does not end");
            let mut room = [0; MAX_HEAD_BYTES];
            match self.stream.read(&mut room)? {
                0 => bail!("{path}: the server closed the connection"),
                count => self.read.extend_from_slice(&room[..count]),
            }
        };
        let head = String::from_utf8_lossy(&self.read[..end]).into_owned();
        self.read.drain(..end);
        ensure!(head.starts_with("HTTP/1.1 200 "), "{path}: {}", head.lines().next().unwrap_or_default());
        let length = head.lines().filter_map(|line| line.split_once(':'));
        let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.next().and_then(|(_, value)| value.trim().parse().ok());
        length.with_context(|| format!("{path}: no Content-Length"))
    }

    /// Fetches a file and keeps it.
    pub(super) fn get(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        let length = usize::try_from(self.ask(path)?)?;
        let mut file = std::mem::take(&mut self.read);
        ensure!(file.len() <= length, "{path}: more has come than was asked for");
        let from = file.len();
        file.resize(length, 0);
        self.stream.read_exact(&mut file[from..]).with_context(|| path.to_owned())?;
        Ok(file)
    }

    /// Fetches a file and throws it away.
    fn pass(&mut self, path: &str, room: &mut [u8], fetched: &Fetched) -> anyhow::Result<()> {
        let mut left = self.ask(path)?;
        let mut count = self.read.len() as u64;
        self.read.clear();
        loop {
            ensure!(count <= left, "{path}: more has come than was asked for");
            left -= count;
            fetched.bytes.fetch_add(count, Ordering::Relaxed);
            if left == 0 {
                fetched.files.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            let most = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            count = match self.stream.pass(&mut room[..most]) {
                Ok(0) => bail!("{path}: cut off with {left} bytes to come"),
                Ok(count) => count as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) => return Err(error).with_context(|| path.to_owned()),
            };
        }
    }
}

/// One client: fetches the shop's files from number `first` on, round and round, until `stop` is
/// set.
pub(super) fn run(shop: &Shop, first: usize, fetched: &Fetched, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut client = FetchClient::to(shop.server, shop.tls.as_ref())?;
    let mut room = vec![0; READ_BYTES];
    for path in shop.paths.iter().cycle().skip(first) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        client.pass(path, &mut room, fetched)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// Answers `times` requests on one connection with `response`.
    fn answers(response: &'static str, times: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            for _ in 0..times {
                lines.find(String::is_empty);
                (&stream).write_all(response.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn files_are_counted_whole_and_what_is_wrong_is_told() {
        let good = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        let mut client = FetchClient::to(answers(good, 3), None).unwrap();
        assert_eq!(client.get("/a").unwrap(), b"hello");
        let (fetched, mut room) = (Fetched::default(), vec![0; 3]);
        client.pass("/a", &mut room, &fetched).unwrap();
        client.pass("/b", &mut room, &fetched).unwrap();
        assert_eq!(fetched.counts(), (10, 2));
        for (bad, why) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
            ("HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "cut off"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhello", "more"),
        ] {
            let mut client = FetchClient::to(answers(bad, 1), None).unwrap();
            let error = client.pass("/a", &mut room, &Fetched::default()).unwrap_err();
            assert!(error.to_string().contains(why), "{error:#}: {why}");
        }
    }
}

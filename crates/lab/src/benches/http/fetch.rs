//! Clients that fetch files one after the other, each on a connection of its own, as fast as they come. What comes is counted and thrown away in the
//! kernel (`MSG_TRUNC`), so that one core fetches more than one serves.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::net::RecvFlags;

/// A client that gets nothing for this long gives up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// What is taken from a connection at once.
const READ_BYTES: usize = 1 << 20;
/// Longest head of a response.
const MAX_HEAD_BYTES: usize = 4096;

/// Where files are, and which.
#[derive(Clone, Debug)]
pub(super) struct Shop {
    pub(super) server: SocketAddr,
    pub(super) paths: Vec<String>,
}

/// What has been fetched so far.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) bytes: AtomicU64,
    pub(super) files: AtomicU64,
}

/// A connection by which one file after the other is fetched.
pub(super) struct Client {
    stream: TcpStream,
    host: String,
    /// What has been read and not used.
    read: Vec<u8>,
}

impl Client {
    pub(super) fn to(server: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, TIMEOUT).with_context(|| format!("{server}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: server.to_string(), read: Vec::with_capacity(MAX_HEAD_BYTES) })
    }

    /// Asks for a file; the length of what comes.
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
            count = match rustix::net::recv(&self.stream, &mut room[..most], RecvFlags::TRUNC) {
                Ok((_, 0)) => bail!("{path}: cut off with {left} bytes to come"),
                Ok((_, count)) => count as u64,
                Err(rustix::io::Errno::INTR) => 0,
                Err(error) => return Err(error).with_context(|| path.to_owned()),
            };
        }
    }
}

/// One client: fetches the shop's files from number `first` on, round and round, until it is told to stop.
pub(super) fn run(shop: &Shop, first: usize, fetched: &Fetched, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut client = Client::to(shop.server)?;
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

    /// Answers so many requests on one connection with `response`.
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
        let mut client = Client::to(answers(good, 3)).unwrap();
        assert_eq!(client.get("/a").unwrap(), b"hello");
        let (fetched, mut room) = (Fetched::default(), vec![0; 3]);
        client.pass("/a", &mut room, &fetched).unwrap();
        client.pass("/b", &mut room, &fetched).unwrap();
        let counted = |fetched: &Fetched| {
            (fetched.bytes.load(Ordering::Relaxed), fetched.files.load(Ordering::Relaxed))
        };
        assert_eq!(counted(&fetched), (10, 2));
        for (bad, why) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
            ("HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "cut off"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhello", "more"),
        ] {
            let mut client = Client::to(answers(bad, 1)).unwrap();
            let error = client.pass("/a", &mut room, &Fetched::default()).unwrap_err();
            assert!(error.to_string().contains(why), "{error:#}: {why}");
        }
    }
}

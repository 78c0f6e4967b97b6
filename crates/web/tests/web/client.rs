//! A client that sends whatever a test wants, and reads responses by their length.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketType};

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values =
            self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} comes twice");
        value
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::on(TcpStream::connect(address).unwrap())
    }

    /// Connects from another address of this machine.
    pub(crate) fn from(host: [u8; 4], address: SocketAddr) -> Self {
        Self::on(connect_from(host, address))
    }

    /// Uses an existing connection.
    pub(crate) fn on(stream: TcpStream) -> Self {
        // A bound, not a measurement: nothing here takes this long unless it hangs.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// The same to one that may have hung up.
    pub(crate) fn send_some(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.get_mut().write_all(bytes.as_ref());
    }

    /// Sends a request with these further lines, each with its CRLF.
    pub(crate) fn ask(&mut self, method: &str, path: &str, lines: &str) -> Response {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"));
        self.response(method == "HEAD")
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.ask("GET", path, "")
    }

    /// Requests a file with a body, which makes the connection go to hyper, and end.
    pub(crate) fn ask_by_hyper(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"));
    }

    /// The next response; `None`: the connection has ended.
    pub(crate) fn try_response(&mut self, is_head: bool) -> Option<Response> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        let status = line.strip_prefix("HTTP/1.1 ").unwrap().get(..3).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            let line = line.strip_suffix("\r\n").unwrap();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap();
            headers.push((name.to_owned(), value.to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        if response.header("transfer-encoding") == Some("chunked") && !is_head {
            response.body = self.chunk().expect("a chunk");
            return Some(response);
        }
        let length = match response.header("content-length") {
            _ if is_head || matches!(status, 100 | 204 | 304) => 0,
            Some(length) => length.parse().unwrap(),
            None if response.header("connection") == Some("close") => {
                response.body = self.rest();
                return Some(response);
            }
            None => panic!("no length: {response:?}"),
        };
        let count = self.stream.by_ref().take(length).read_to_end(&mut response.body).unwrap();
        assert_eq!(count as u64, length, "cut off: {status} {:?}", response.headers);
        Some(response)
    }

    /// Returns the next chunk of a response without a length; the first chunk came with its head.
    /// `None`: it has ended.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let mut chunk = vec![0; length + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    pub(crate) fn response(&mut self, is_head: bool) -> Response {
        self.try_response(is_head).expect("a response")
    }

    /// Reads to the end of the connection; returns the remaining bytes, or nothing if it was reset.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}

/// Connects from an address of this machine.
pub(crate) fn connect_from(host: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from((host, 0))).unwrap();
    net::connect(&socket, &address).unwrap();
    TcpStream::from(socket)
}

/// Runs curl; quiet, with a limit of time.
pub(crate) fn curl(args: &[&str]) -> Output {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"])
        .args(args)
        .stdin(Stdio::null())
        .output();
    output.unwrap_or_else(|error| panic!("curl: {error}; these tests need curl: apt-get install curl"))
}

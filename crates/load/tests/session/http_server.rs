//! A tiny HTTP server for tests: pages that are served in exactly known, also wrong, ways.
#![allow(unreachable_pub)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How one page is served.
#[derive(Clone, Default)]
pub struct Page {
    /// One after the other; the last again and again.
    bodies: Vec<Vec<u8>>,
    status: Option<&'static str>,
    location: Option<&'static str>,
    /// Sent as it is, instead of a response.
    raw: Option<Vec<u8>>,
    chunk_bytes: Option<usize>,
    is_until_close: bool,
    stall: Option<(usize, Duration)>,
    cut: Option<usize>,
    cut_first: Option<usize>,
    closes: bool,
    hangs: bool,
}

impl Page {
    pub fn file(bytes: &[u8]) -> Self {
        Self { bodies: vec![bytes.to_vec()], ..Self::default() }
    }

    pub fn in_turn(bodies: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { bodies: bodies.into_iter().collect(), ..Self::default() }
    }

    pub fn status(status: &'static str) -> Self {
        Self { bodies: vec![b"sorry".to_vec()], status: Some(status), ..Self::default() }
    }

    pub fn redirect(location: &'static str) -> Self {
        Self { location: Some(location), ..Self::status("302 Found") }
    }

    pub fn raw(bytes: &[u8]) -> Self {
        Self { raw: Some(bytes.to_vec()), ..Self::default() }
    }

    /// In chunks of this many bytes.
    pub fn chunked(self, bytes: usize) -> Self {
        Self { chunk_bytes: Some(bytes), ..self }
    }

    /// Without a length; the end of the connection ends it.
    pub fn until_close(self) -> Self {
        Self { is_until_close: true, ..self }
    }

    /// Nothing for `time` after this many bytes.
    pub fn stall_after(self, bytes: usize, time: Duration) -> Self {
        Self { stall: Some((bytes, time)), ..self }
    }

    /// Closes after this many bytes, although more were announced.
    pub fn cut_at(self, bytes: usize) -> Self {
        Self { cut: Some(bytes), ..self }
    }

    /// The same, the first time only.
    pub fn cut_first_at(self, bytes: usize) -> Self {
        Self { cut_first: Some(bytes), ..self }
    }

    /// Closes behind the response, without having announced it.
    pub fn then_close(self) -> Self {
        Self { closes: true, ..self }
    }

    /// Does not close after a raw response.
    pub fn hang(self) -> Self {
        Self { hangs: true, ..self }
    }
}

struct Shared {
    pages: Mutex<HashMap<String, (Page, usize)>>,
    requests: Mutex<Vec<String>>,
    is_over: AtomicBool,
    over: (Mutex<bool>, Condvar),
}

/// Runs until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub fn start<P: Into<String>>(pages: impl IntoIterator<Item = (P, Page)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pages = pages.into_iter().map(|(path, page)| (path.into(), (page, 0))).collect();
        let shared = Arc::new(Shared {
            pages: Mutex::new(pages),
            requests: Mutex::default(),
            is_over: AtomicBool::new(false),
            over: Default::default(),
        });
        let for_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if for_thread.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = for_thread.clone();
                // A viewer that goes away in the middle ends its thread and no more.
                std::thread::spawn(move || stream.and_then(|stream| serve(stream, &shared)));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        *self.shared.over.0.lock().unwrap() = true;
        self.shared.over.1.notify_all();
        drop(TcpStream::connect(self.address));
    }
}

/// `Range: bytes=a-b` or `a-`.
fn range_of(request: &str, len: usize) -> Option<(usize, usize)> {
    let (_, rest) = request.split_once("Range: bytes=")?;
    let (first, last) = rest.lines().next()?.split_once('-')?;
    let first = first.parse().ok()?;
    Some((first, last.parse().map_or(len, |last: usize| last + 1).min(len)))
}

/// Requests on one connection, until a page ends it.
fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
        }
        shared.requests.lock().unwrap().push(request.clone());
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let found = {
            let mut pages = shared.pages.lock().unwrap();
            pages.get_mut(&path).map(|(page, count)| {
                *count += 1;
                (page.clone(), *count - 1)
            })
        };
        let (page, turn) = found.unwrap_or_else(|| (Page::status("404 Not Found"), 0));
        if !respond(&mut stream, shared, &page, turn, &request)? {
            return Ok(());
        }
    }
}

/// One response; whether the connection goes on.
fn respond(
    stream: &mut TcpStream,
    shared: &Shared,
    page: &Page,
    turn: usize,
    request: &str,
) -> std::io::Result<bool> {
    if let Some(raw) = &page.raw {
        stream.write_all(raw)?;
        if page.hangs {
            let guard = shared.over.0.lock().unwrap();
            drop(shared.over.1.wait_while(guard, |is_over| !*is_over).unwrap());
        }
        return Ok(false);
    }
    let whole = &page.bodies[turn.min(page.bodies.len() - 1)];
    let range = range_of(request, whole.len());
    let (first, end) = range.unwrap_or((0, whole.len()));
    let body = &whole[first..end];
    let status = page.status.unwrap_or(if range.is_some() { "206 Partial Content" } else { "200 OK" });
    let mut head = format!("HTTP/1.1 {status}\r\nServer: test\r\n");
    if range.is_some() {
        head += &format!("Content-Range: bytes {first}-{}/{}\r\n", end - 1, whole.len());
    }
    if let Some(location) = page.location {
        head += &format!("Location: {location}\r\n");
    }
    match page.chunk_bytes {
        Some(_) => head += "Transfer-Encoding: chunked\r\n",
        None if page.is_until_close => {}
        None => head += &format!("Content-Length: {}\r\n", body.len()),
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let cut = page.cut.or(page.cut_first.filter(|_| turn == 0)).unwrap_or(body.len());
    let body = &body[..cut.min(body.len())];
    match page.chunk_bytes {
        Some(bytes) => {
            for chunk in body.chunks(bytes) {
                stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        }
        None => {
            let (before, after) =
                body.split_at(page.stall.map_or(body.len(), |(bytes, _)| bytes.min(body.len())));
            stream.write_all(before)?;
            // The stall is the subject of the test, not something that is waited for.
            page.stall.into_iter().for_each(|(_, time)| std::thread::sleep(time));
            stream.write_all(after)?;
        }
    }
    Ok(!page.is_until_close && !page.closes && page.cut.is_none() && page.cut_first.is_none_or(|_| turn > 0))
}

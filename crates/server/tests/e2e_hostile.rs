//! Hostile clients of a running server's HTTP: viewers who play by RTSP beside them miss nothing, and when the clients are gone the server holds
//! what it held before. Ten thousand who have nothing to say, too.

mod support;
#[path = "support/viewers.rs"]
mod viewers;
#[path = "../../web/tests/web/h2.rs"]
mod web_h2;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_lab::held::{Held, counters};
use millrace_lab::proc::resident_bytes;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Server, add, film, header, play, read_head};
use viewers::Load;
use viewers::Viewers::Steady;
use web_h2::{CONTINUATION, END_STREAM, H2, HEADERS, frame, get, get_fields, literal, reset};

/// For what must happen by itself, on a machine that has other things to do.
const TIMEOUT: Duration = Duration::from_secs(60);
const VIEWERS: u64 = 12;
const SECS: u64 = 5;
/// Between two rounds of a client: what is tested is not who gets the processor.
const PAUSE: Duration = Duration::from_millis(3);
/// Rounds of one client at most.
const ROUNDS: u64 = 3_000;
const FILM: &str = "/titles/film.ts";

/// A server with a film in a store of its own.
struct Site {
    server: Server,
    web: SocketAddr,
    stats: PathBuf,
    _dir: tempfile::TempDir,
}

impl Site {
    fn start(secs: u64, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, stats) = (dir.path().join("store"), dir.path().join("stats.json"));
        add(&film(dir.path(), "film.ts", secs), &store);
        let server = Server::start(&store, &[args, &["--stats", stats.to_str().unwrap()]].concat());
        let web = server.page();
        Self { server, web, stats, _dir: dir }
    }

    /// What it holds once it holds no more than `expected`.
    fn settled(&self, expected: Held) -> Held {
        Held::settle(self.server.child.id(), &self.stats, expected, TIMEOUT).expect("the server's counters")
    }

    fn web_counter(&self, name: &str) -> u64 {
        counters(&self.stats).unwrap()["web"][name].as_u64().unwrap()
    }

    fn memory(&self) -> u64 {
        resident_bytes(self.server.child.id()).unwrap()
    }
}

/// Connects from this address of the machine itself, as another client than the viewers.
fn from(ip: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(IpAddr::V4(ip), 0))?;
    connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// One round of what a hostile client does; a connection that the server has closed is as good an end as any.
type Attack = fn(&mut dyn FnMut() -> TcpStream);

fn request(lines: &str) -> String {
    format!("GET {FILM} HTTP/1.1\r\nHost: tv\r\n{lines}\r\n")
}

/// Streams that are reset with their request in one piece.
fn rapid_reset(dial: &mut dyn FnMut() -> TcpStream) {
    let mut flood = H2::on(dial(), &[]);
    let streams = (0..200).flat_map(|n| [get(2 * n + 1, FILM), reset(2 * n + 1)].concat());
    let _ = flood.send(&streams.collect::<Vec<u8>>()) && flood.is_alive();
}

/// Streams that are reset once they are orders.
fn patient_reset(dial: &mut dyn FnMut() -> TcpStream) {
    let mut flood = H2::on(dial(), &[]);
    for stream in (1..100).step_by(2) {
        if !flood.send(&get(stream, FILM)) || !flood.is_alive() || !flood.send(&reset(stream)) {
            break;
        }
    }
}

fn continuation(dial: &mut dyn FnMut() -> TcpStream) {
    let mut flood = H2::on(dial(), &[]);
    let more = frame(CONTINUATION, 0, 1, &literal("x", "y")).repeat(500);
    let _ = flood.send(&frame(HEADERS, END_STREAM, 1, &get_fields(FILM)));
    // More than there is room for on the way.
    let taken = (0..4_000).take_while(|_| flood.send(&more)).count();
    assert!(taken < 4_000, "two million frames of one head were taken");
}

/// Lists of ranges, and many single bytes asked for at once of which half is not read.
fn ranges(dial: &mut dyn FnMut() -> TcpStream) {
    let mut client = dial();
    let list = format!("Range: bytes={}0-\r\n", "5-6,".repeat(1_000));
    client.write_all(request(&list).as_bytes()).unwrap();
    assert!(read_response(&mut client).starts_with("HTTP/1.1 416 "));
    let bytes: String = (0..40).map(|n| request(&format!("Range: bytes={0}-{0}\r\n", n * 1000))).collect();
    let _ = client.write_all(bytes.as_bytes());
    for _ in 0..20 {
        assert!(matches!(&read_response(&mut client)[..13], "HTTP/1.1 206 " | "HTTP/1.1 503 "));
    }
}

/// The head; the body is read past.
fn read_response(client: &mut TcpStream) -> String {
    let head = read_head(client);
    let bytes = header(&head, "Content-Length").map_or(0, |bytes| bytes.parse().unwrap());
    client.read_exact(&mut vec![0; bytes]).unwrap();
    head
}

/// Heads of which a byte comes now and then.
fn slow_heads(dial: &mut dyn FnMut() -> TcpStream) {
    let mut all: Vec<TcpStream> = (0..30).map(|_| dial()).collect();
    for byte in request("X: y\r\n").as_bytes().iter().take(20) {
        all.retain_mut(|client| client.write_all(&[*byte]).is_ok());
        std::thread::sleep(PAUSE);
    }
}

/// Titles of which a byte is taken now and then.
fn slow_readers(dial: &mut dyn FnMut() -> TcpStream) {
    let mut all: Vec<TcpStream> = (0..10).map(|_| dial()).collect();
    all.iter_mut().for_each(|client| client.write_all(request("").as_bytes()).unwrap());
    for _ in 0..20 {
        all.retain_mut(|client| client.read_exact(&mut [0; 50]).is_ok());
        std::thread::sleep(PAUSE);
    }
}

/// Titles that are asked for by somebody who is gone then, with a reset.
fn hang_ups(dial: &mut dyn FnMut() -> TcpStream) {
    let mut client = dial();
    client.write_all(request("").as_bytes()).unwrap();
    let _ = client.read(&mut [0; 10]);
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
}

/// Requests in two versions, and paths to elsewhere.
fn lies(dial: &mut dyn FnMut() -> TcpStream) {
    for (text, status) in [
        (request("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"), "400"),
        (request("X: y\n"), "400"),
        (request("X: y\r\n folded\r\n"), "400"),
        (request("Host: b\r\n"), "400"),
        ("GET /titles/..%2f..%2fetc/passwd HTTP/1.1\r\nHost: tv\r\nConnection: close\r\n\r\n".into(), "404"),
        ("GET /../../etc/passwd HTTP/1.1\r\nHost: tv\r\nConnection: close\r\n\r\n".into(), "404"),
    ] {
        let mut client = dial();
        client.write_all(text.as_bytes()).unwrap();
        let head = read_response(&mut client);
        assert_eq!(&head[9..12], status, "{text:?}");
        assert_eq!(header(&head, "Connection"), Some("close"));
    }
}

const ATTACKS: [(&str, Attack); 8] = [
    ("rapid reset", rapid_reset),
    ("patient reset", patient_reset),
    ("continuation", continuation),
    ("ranges", ranges),
    ("slow heads", slow_heads),
    ("slow readers", slow_readers),
    ("hang-ups", hang_ups),
    ("lies", lies),
];

/// Tells all to stop when it is dropped, however that comes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn viewers_miss_nothing_beside_hostile_clients_and_everything_is_given_back() {
    let site = Site::start(SECS + 25, &["--max-connections-per-address", "4000"]);
    play(&[&site.server.title("film"), "-o", "null", "--duration", "1s"]);
    let before = site.settled(Held::nothing_but(u64::MAX));
    assert_eq!(before, Held::nothing_but(before.descriptors));
    let memory = site.memory();

    let load = Load::start(&site.server, &["film"], (VIEWERS, SECS), Steady, &[]);
    let (stop, web) = (AtomicBool::new(false), site.web);
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let stop = &stop;
        let clients = ATTACKS.iter().zip(2u8..).map(|((_, attack), last)| {
            scope.spawn(move || {
                let mut dial = || from(Ipv4Addr::new(127, 0, 0, last), web).expect("a connection");
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) && rounds < ROUNDS {
                    attack(&mut dial);
                    rounds += 1;
                    std::thread::sleep(PAUSE);
                }
                rounds
            })
        });
        let clients: Vec<_> = clients.collect();
        load.assert_nothing_missing();
        drop(stopping);
        clients.into_iter().map(|client| client.join().expect("a hostile client")).collect()
    });
    for ((name, _), rounds) in ATTACKS.iter().zip(&rounds) {
        assert!(*rounds > 0, "{name}: {rounds:?}");
    }
    let expected = Held::nothing_but(before.descriptors);
    let held = site.settled(expected);
    assert_eq!(held.beyond(expected), 0, "something is left after {rounds:?}: {held:?}");
    assert_eq!(site.web_counter("connections"), 0);
    let more = site.memory().saturating_sub(memory);
    assert!(more < 48 << 20, "{} MiB more than before", more >> 20);
    read_response_of(&site, "Range: bytes=0-187\r\n");
}

/// A part of the film is sent to somebody else.
fn read_response_of(site: &Site, lines: &str) {
    let mut client = from(Ipv4Addr::LOCALHOST, site.web).unwrap();
    client.write_all(request(lines).as_bytes()).unwrap();
    assert!(read_response(&mut client).starts_with("HTTP/1.1 206 "));
}

const IDLE: usize = 10_000;
/// Connections of one address: below the default bound.
const IDLE_PER_ADDRESS: usize = 1_000;
/// Memory of the program for one that is idle, at most; a debug build takes more than others.
const MOST_IDLE_BYTES: u64 = 4096;

/// Connections that have asked once, and have nothing to say any more.
fn idle(web: SocketAddr) -> Vec<TcpStream> {
    let one = |n: usize| {
        let ip = Ipv4Addr::new(127, 0, 1, 1 + (n / IDLE_PER_ADDRESS) as u8);
        let mut client = from(ip, web).expect("a connection");
        let asked = format!("HEAD {FILM} HTTP/1.1\r\nHost: tv\r\n\r\n");
        client.write_all(asked.as_bytes()).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        client
    };
    (0..IDLE).map(one).collect()
}

/// Room for both ends, if this machine gives that much.
fn has_descriptors() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    limit.maximum.is_none_or(|most| most >= IDLE as u64 + 1_000)
}

fn wait_until(site: &Site, name: &str, count: u64) {
    let end = Instant::now() + TIMEOUT;
    while site.web_counter(name) != count {
        assert!(Instant::now() < end, "{name}: {}, not {count}", site.web_counter(name));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_keep_nobody_out() {
    if !has_descriptors() {
        eprintln!("skipped: a process may not open {IDLE} files here (ulimit -Hn)");
        return;
    }
    let site = Site::start(20, &[]);
    // The cache's memory is present then, and what is made and opened once.
    play(&[&site.server.title("film"), "-o", "null", "--duration", "1s"]);
    read_response_of(&site, "Range: bytes=0-187\r\n");
    let descriptors = site.settled(Held::nothing_but(u64::MAX)).descriptors;
    let before = site.memory();
    let all = idle(site.web);
    wait_until(&site, "connections", IDLE as u64);
    let first = site.memory().saturating_sub(before);
    assert!(first < IDLE as u64 * MOST_IDLE_BYTES, "{} bytes for each", first / IDLE as u64);
    drop(all);
    wait_until(&site, "connections", 0);
    // Those who come next use what these have left.
    let before = site.memory();
    let all = idle(site.web);
    wait_until(&site, "connections", IDLE as u64);
    let more = site.memory().saturating_sub(before);
    assert!(more < first.max(8 << 20), "{more} bytes more with the next, {first} with the first");
    read_response_of(&site, "Range: bytes=0-187\r\n");
    let report = play(&[&site.server.title("film"), "-o", "null", "--duration", "2s"]);
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    drop(all);
    wait_until(&site, "connections", 0);
    let expected = Held::nothing_but(descriptors);
    let held = site.settled(expected);
    assert_eq!(held.beyond(expected), 0, "{held:?}");
}

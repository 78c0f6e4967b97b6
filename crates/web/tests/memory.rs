//! How much memory HTTP holds for clients that send requests and read no responses, over real
//! sockets. A separate program, because the test measures the memory of its process.
#![allow(dead_code, unreachable_pub)] // it uses a part of what is there

#[path = "web/client.rs"]
mod client;
#[path = "web/h2.rs"]
mod h2;
#[path = "web/site.rs"]
mod site;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Client;
use h2::{END_HEADERS, H2, HEADERS, INITIAL_WINDOW_SIZE, frame, get, hello, literal};
use millrace_core::limits::web::MAX_H2_STREAMS;
use millrace_rights::{Gate, Policy, RightsSnapshot};
use millrace_store::pictures::Pictures;
use millrace_tls::{Acceptor, Certificates, Trust};
use millrace_web::limits::MAX_WEB_CONNECTIONS_PER_ADDRESS;
use millrace_web::{Feed, PicturesState, Secure, Totals, TrustedProxies, WebConfig, WebHandle, WebLimits};
use rustix::process::Resource;
use site::{Film, MadeUp, Manner};

const MIB: usize = 1 << 20;
/// The budget for responses.
const BUDGET: usize = 64 * MIB;
/// Memory per TLS connection in addition to the budget, as documented in docs/ref/http.md.
const CONNECTION: usize = 160 * 1024;
/// Threads, titles and the test itself.
const REST: usize = 32 * MIB;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// Titles with long picture lists, which are made for each request.
fn site() -> Arc<MadeUp> {
    let mut films: Vec<_> =
        (0..500).map(|number| Film::pattern(&format!("film{number}"), 10, Manner::Sends)).collect();
    films.push(Film::pattern("film", 10_000, Manner::Sends));
    let mut site = MadeUp::with(films);
    let times = (0..4000).map(|number| number * 1000).collect();
    let sheet = vec![7; 400_000];
    let about = Pictures::new(times, 4_000_000, b"a poster".to_vec(), sheet.clone()).about;
    let made_up = Arc::get_mut(&mut site).unwrap();
    made_up.sheet = Some(sheet);
    *made_up.pictures.lock().unwrap() = Some(PicturesState::Made(Arc::new(about)));
    site
}

struct Served {
    _web: WebHandle,
    plain: SocketAddr,
    secure: SocketAddr,
    totals: Arc<Totals>,
    trust: Trust,
    _dir: tempfile::TempDir,
}

/// Serves plain HTTP and TLS with one budget.
fn serve(limits: WebLimits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Arc::new(millrace_tls::Totals::default());
    let certificates = Certificates::read(&certificate, &key, &tls).unwrap();
    let acceptor = Acceptor::new(&certificates, &millrace_web::PROTOCOLS, &tls).unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let totals = Arc::new(Totals::default());
    let config = WebConfig {
        listeners: vec![listen()],
        carrier: None,
        secure: Some(Secure { listeners: vec![listen()], acceptor }),
        limits,
        proxies: TrustedProxies::default(),
        gate: Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap()),
        feed: Feed::default(),
        totals: Arc::clone(&totals),
    };
    let web = millrace_web::start(config, site()).unwrap();
    let [plain, secure] = *web.addresses() else { panic!("two addresses") };
    let trust = Trust::read(Some(&certificate), "--ca").unwrap();
    Served { _web: web, plain, secure, totals, trust, _dir: dir }
}

/// Requests large responses on many streams.
fn streams() -> Vec<u8> {
    let paths = ["/titles/film/sprites.vtt", "/titles/film/sprites.jpg", "/api/v1/titles", "/hls.js"];
    (0..MAX_H2_STREAMS).flat_map(|number| get(2 * number + 1, paths[number as usize % paths.len()])).collect()
}

/// An HTTP/2 request whose body arrives only in part.
fn slow_body(stream: u32) -> Vec<u8> {
    let fields =
        [(":method", "POST"), (":scheme", "http"), (":authority", "tv"), (":path", "/"), ("host", "tv")];
    let fields = fields.map(|(name, value)| literal(name, value)).concat();
    [frame(HEADERS, END_HEADERS, stream, &fields), frame(0, 0, stream, &[7; 8_000])].concat()
}

/// Opens as many connections as one address may have, each using memory in another way.
fn hostile(served: &Served) -> Vec<Box<dyn Send>> {
    let (plain, secure) = (served.plain, served.secure);
    let mut all: Vec<Box<dyn Send>> = Vec::new();
    for number in 0..MAX_WEB_CONNECTIONS_PER_ADDRESS {
        match number % 8 {
            // Windows that are closed, and windows that admit one byte.
            0..3 => {
                let mut shut = H2::to(plain, &[(INITIAL_WINDOW_SIZE, (number % 8) as u32 % 2)]);
                shut.send(&streams());
                all.push(Box::new(shut));
            }
            3 => {
                let stream = TcpStream::connect(secure).unwrap();
                let mut stream = served.trust.connect("localhost", stream).unwrap();
                stream.write_all(&[hello(&[(INITIAL_WINDOW_SIZE, 0)]), streams()].concat()).unwrap();
                stream.flush().unwrap();
                all.push(Box::new(stream));
            }
            // A client that reads nothing.
            4 => {
                let mut client = Client::to(plain);
                client.send("GET /titles/film/sprites.vtt HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50));
                all.push(Box::new(client));
            }
            // A head that does not end.
            5 => {
                let mut client = Client::to(plain);
                client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(15_000)));
                all.push(Box::new(client));
            }
            // Bodies that never arrive.
            6 => {
                let mut client = Client::to(plain);
                client.send(format!(
                    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n{}",
                    "x".repeat(9_000)
                ));
                all.push(Box::new(client));
            }
            _ => {
                let mut slow = H2::to(plain, &[]);
                slow.send(
                    &(0..MAX_H2_STREAMS).flat_map(|number| slow_body(2 * number + 1)).collect::<Vec<_>>(),
                );
                all.push(Box::new(slow));
            }
        }
    }
    all
}

/// Waits for a condition that soon becomes true.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_take_nothing_hold_no_more_than_the_budget_and_others_are_served() {
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(Resource::Nofile, files).unwrap();
    let served = serve(WebLimits { memory: BUDGET, ..WebLimits::default() });
    let plain = served.plain;
    let mut other = Client::from([127, 0, 0, 2], plain);
    let paths = [
        "/healthz",
        "/titles/film/poster.jpg",
        "/titles/film/sprites.jpg",
        "/api/v1/titles",
        "/titles/film/sprites.vtt",
    ];
    let mut ask_all = || {
        for path in paths {
            let answer = other.get(path);
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.text().get(..100));
        }
        assert_eq!(other.get("/titles/film.ts").body.len(), 1_880_000);
    };
    ask_all();
    let before = resident();
    let hostile = hostile(&served);
    for _ in 0..20 {
        ask_all();
        assert!(served.totals.read().memory_held_bytes <= BUDGET as u64);
    }
    let (counted, grown) = (served.totals.read(), resident().saturating_sub(before));
    assert!(counted.memory_exhausted > 0, "they do not want enough: {counted:?}");
    assert!(counted.memory_held_bytes > BUDGET as u64 / 4, "{counted:?}");
    let most = BUDGET + MAX_WEB_CONNECTIONS_PER_ADDRESS * CONNECTION + REST;
    assert!(grown <= most, "{} MiB more in memory, {} MiB are allowed", grown / MIB, most / MIB);
    println!(
        "{} MiB more in memory, {} of {} MiB held",
        grown / MIB,
        counted.memory_held_bytes as usize / MIB,
        BUDGET / MIB
    );
    drop(hostile);
    wait_for("what they held is given back", || served.totals.read().connections == 1);
    // The list and a sheet stay cached.
    wait_for("their responses are gone", || served.totals.read().memory_held_bytes < 2 * MIB as u64);
    ask_all();
}

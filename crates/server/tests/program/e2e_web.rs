//! HTTP of a running server: titles as files from the engines, beside RTSP; HLS in FFmpeg; viewers who hang up, stop reading or come when all is full.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::http::{answer, frames, frames_by, get, range};
use crate::support::{Server, add, film, header, read_head};
use millrace_store::volume::Volume;
use millrace_testkit::titles::Film;
use serde_json::Value;

/// Long enough for any answer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// TS packets of the film: 2.2 s of 13.6 Mb/s.
const TS_PACKETS: usize = 20_000;

fn site(store: &Path, args: &[&str]) -> (Server, SocketAddr) {
    let server = Server::start(store, args);
    let page = server.page();
    (server, page)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

#[test]
fn http_serves_title_whole_and_in_ranges_on_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let film = Film::new(TS_PACKETS, 7);
    film.add(&Volume::open_or_create(dir.path()).unwrap(), "film");
    let (mut server, address) = site(dir.path(), &[]);
    let mut stream = connect(address);
    let (head, body) = get(&mut stream, "/titles/film.ts", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(header(&head, "Accept-Ranges"), Some("bytes"));
    assert!(body == film.bytes, "{} bytes of {}", body.len(), film.bytes.len());
    let end = film.bytes.len();
    for bytes in [0..1, 1315..1317, 196 * 1316 - 5..196 * 1316 + 5, 1_000_003..2_000_001, end - 1..end] {
        let (head, body) = get(&mut stream, "/titles/film.ts", &range(&bytes));
        assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
        assert!(body == film.bytes[bytes.clone()], "{bytes:?}");
    }
    // Two requests at once, and one of something else behind them.
    let (first, second) = (5..50_000, 70_000..70_001);
    let asked: String = [&first, &second]
        .map(|bytes| format!("GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n{}\r\n", range(bytes)))
        .concat();
    write!(stream, "{asked}GET /titles/none.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
    assert!(answer(&mut stream).1 == film.bytes[first]);
    assert!(answer(&mut stream).1 == film.bytes[second]);
    assert!(answer(&mut stream).0.starts_with("HTTP/1.1 404 "));
    assert!(server.interrupt());
}

/// Clients that do not speak plain HTTP/1.1 get the same bytes through a socket pair inside the
/// server.
#[test]
fn http2_and_reused_connections_deliver_identical_title_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let film = Film::new(TS_PACKETS, 8);
    film.add(&Volume::open_or_create(dir.path()).unwrap(), "film");
    let (mut server, address) = site(dir.path(), &[]);
    let mut stream = connect(address);
    assert!(get(&mut stream, "/", "").0.starts_with("HTTP/1.1 200 "));
    let (head, body) = get(&mut stream, "/titles/film.ts", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(body == film.bytes);
    let bytes = 196 * 1316 - 5..2_000_001;
    assert!(get(&mut stream, "/titles/film.ts", &range(&bytes)).1 == film.bytes[bytes]);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http2-prior-knowledge", "--max-time", "60"]);
    let done = curl.arg(format!("http://{address}/titles/film.ts")).output().expect("curl can be started");
    assert!(
        done.stdout == film.bytes,
        "{} bytes, {}",
        done.stdout.len(),
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(server.interrupt());
}

#[test]
fn http_viewers_that_abort_or_stall_leave_others_unaffected() {
    let dir = tempfile::tempdir().unwrap();
    let film = Film::new(TS_PACKETS, 9);
    film.add(&Volume::open_or_create(dir.path()).unwrap(), "film");
    let stats = dir.path().join("stats.json");
    let (mut server, address) = site(dir.path(), &["--stats", stats.to_str().unwrap()]);
    // One stands still, some go away in the middle, politely or not.
    let mut still = connect(address);
    write!(still, "GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
    let head = read_head(&mut still);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for number in 0..20 {
        let mut stream = connect(address);
        write!(stream, "GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
        stream.read_exact(&mut vec![0; 1 + number * 3000]).unwrap();
        if number % 2 == 0 {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    }
    let (_, body) = get(&mut connect(address), "/titles/film.ts", "");
    assert!(body == film.bytes);
    let count = |counter: &str| {
        let document: Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        document["sessions"][counter].as_u64().unwrap()
    };
    let end = Instant::now() + TIMEOUT;
    while count("deliveries_broken") < 20 || count("deliveries") < 1 {
        assert!(Instant::now() < end, "{} broken, {} whole", count("deliveries_broken"), count("deliveries"));
        std::thread::sleep(Duration::from_millis(100));
    }
    // It goes on where it stood.
    let mut rest = vec![0; film.bytes.len()];
    still.read_exact(&mut rest).unwrap();
    assert!(rest == film.bytes);
    assert!(server.interrupt(), "{:?}", server.log);
    assert_eq!(server.said("panicked"), [""; 0]);
}

#[test]
fn http_with_all_streams_in_use_returns_503_and_keeps_connection() {
    let dir = tempfile::tempdir().unwrap();
    let film = Film::new(10 * TS_PACKETS, 11);
    film.add(&Volume::open_or_create(dir.path()).unwrap(), "film");
    let (mut server, address) = site(dir.path(), &["--max-streams", "1"]);
    let mut first = connect(address);
    write!(first, "GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
    read_head(&mut first);
    let mut second = connect(address);
    let (head, body) = get(&mut second, "/titles/film.ts", &range(&(0..10)));
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(header(&head, "Retry-After").is_some(), "{head}");
    assert!(String::from_utf8_lossy(&body).contains("in use"), "{}", String::from_utf8_lossy(&body));
    let status = status(address);
    assert_eq!(status["room"][0], serde_json::json!({ "what": "streams", "used": 1, "of": 1 }));
    let why = status["refusals"][0]["what"].as_str().expect("a refusal");
    assert!(
        why.starts_with("film for 127.0.0.1:") && why.ends_with("all 1 streams are in use (--max-streams)"),
        "{why}"
    );
    drop(first);
    let end = Instant::now() + TIMEOUT;
    loop {
        let (head, body) = get(&mut second, "/titles/film.ts", &range(&(0..10)));
        if head.starts_with("HTTP/1.1 206 ") {
            assert_eq!(body, film.bytes[..10]);
            break;
        }
        assert!(Instant::now() < end, "{head}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.interrupt());
}

/// Returns the status for operators.
fn status(address: SocketAddr) -> Value {
    let (head, body) = get(&mut connect(address), "/api/v1/status", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    serde_json::from_slice(&body).expect("JSON")
}

#[test]
fn operators_see_who_is_watching_by_rtsp() {
    let dir = tempfile::tempdir().unwrap();
    Film::new(TS_PACKETS, 12).add(&Volume::open_or_create(dir.path()).unwrap(), "film");
    let (mut server, address) = site(dir.path(), &["--max-rate", "1Gb/s"]);
    let before = status(address);
    assert_eq!((&before["sessions"], &before["streams"]), (&serde_json::json!([]), &0.into()));
    let url = server.title("film");
    let rtsp: SocketAddr = url["rtsp://".len()..].split('/').next().unwrap().parse().expect("an address");
    let mut viewer = connect(rtsp);
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1";
    write!(viewer, "SETUP {url} RTSP/1.0\r\nCSeq: 1\r\n{transport}\r\n\r\n").unwrap();
    let head = read_head(&mut viewer);
    assert!(head.starts_with("RTSP/1.0 200 "), "{head}");
    let after = status(address);
    let session = &after["sessions"][0];
    assert_eq!((&session["title"], &session["transport"]), (&"film".into(), &"TCP".into()));
    assert_eq!(session["peer"], viewer.local_addr().unwrap().to_string());
    assert_eq!((&session["is_playing"], &session["lost"]), (&false.into(), &Value::Null));
    assert!(session["bits_per_s"].as_u64() > Some(1_000_000), "{session}");
    assert_eq!(
        after["room"][1],
        serde_json::json!({ "what": "bits a second", "used": 0, "of": 1_000_000_000 })
    );
    drop(viewer);
    assert!(server.interrupt());
}

#[test]
fn ffmpeg_sees_by_hls_and_by_http_what_the_source_shows() {
    let dir = tempfile::tempdir().unwrap();
    let source = film(dir.path(), "film.ts", 20);
    let store = dir.path().join("store");
    add(&source, &store);
    let (mut server, address) = site(&store, &[]);
    let expected = frames(source.to_str().unwrap());
    assert!(expected.len() >= 400, "{}", expected.len());
    for path in ["film/index.m3u8", "film.ts"] {
        let seen = frames(&format!("http://{address}/titles/{path}"));
        assert!(seen == expected, "{path}: {} pictures of {}", seen.len(), expected.len());
    }
    assert!(server.interrupt());
}

/// Players behind a firewall that passes only the page's port tunnel RTSP in HTTP there.
#[test]
fn rtsp_tunnelled_at_the_port_of_the_page_plays_in_ffmpeg() {
    let dir = tempfile::tempdir().unwrap();
    let source = film(dir.path(), "film.ts", 6);
    let store = dir.path().join("store");
    add(&source, &store);
    let (mut server, address) = site(&store, &[]);
    // Compared with RTSP without a tunnel, because FFmpeg 5.1 omits the last picture of either.
    let expected = frames_by("tcp", &server.title("film"));
    assert!(expected.len() >= 140, "{}", expected.len());
    let seen = frames_by("http", &format!("rtsp://{address}/film"));
    assert!(seen == expected, "{} pictures of {}", seen.len(), expected.len());
    let ended = server.said("ended: film for 127.0.0.1:");
    assert_eq!(ended.len(), 2, "both are viewers by RTSP: {ended:?}");
    assert!(server.interrupt());
}

//! Requests that lie: about their length, their lines, their path. Each is refused or answered as
//! one request, and the data behind it is never taken for another.

use std::time::Duration;

use millrace_core::limits::web::MAX_REQUEST_HEAD_BYTES;
use millrace_web::WebLimits;
use millrace_web::limits::HEAD_TIME;

use super::client::Client;
use super::site::{Film, MadeUp, Manner, serve};

fn start() -> (std::sync::Arc<MadeUp>, millrace_web::WebHandle, std::net::SocketAddr) {
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    let (web, address, _) = serve(&site, WebLimits::default());
    (site, web, address)
}

/// The request that must never be answered.
const HIDDEN: &str = "GET /titles/film.ts HTTP/1.1\r\nHost: hidden\r\n\r\n";

#[test]
fn ambiguous_request_closes_connection_with_400() {
    let (site, _web, address) = start();
    let refused = [
        format!("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {}\r\n\r\n0\r\n\r\n{HIDDEN}", 5),
        format!("Content-Length: 0\r\nContent-Length: {}\r\n\r\n{HIDDEN}", HIDDEN.len()),
        format!("Content-Length: 0, {}\r\n\r\n{HIDDEN}", HIDDEN.len()),
        format!("Content-Length : {}\r\n\r\n{HIDDEN}", HIDDEN.len()),
        format!("X: y\n\r\n{HIDDEN}"),
        format!("X: y\n\n{HIDDEN}"),
        format!("X: y\r\n\tContent-Length: {}\r\n\r\n{HIDDEN}", HIDDEN.len()),
        format!("X: y\0\r\n\r\n{HIDDEN}"),
        format!("Host: b\r\n\r\n{HIDDEN}"),
        format!("X: y\r\r\n\r\n{HIDDEN}"),
        format!("X: y\r\n \r\n\r\n{HIDDEN}"),
        format!("Content-Length: -1\r\n\r\n{HIDDEN}"),
        format!("Content-Length: 1e2\r\n\r\n{HIDDEN}"),
        format!("Content-Length: 0_0\r\n\r\n{HIDDEN}"),
        format!("Content-Length: 18446744073709551616\r\n\r\n{HIDDEN}"),
        format!("content-length: 0\r\nCONTENT-LENGTH: {}\r\n\r\n{HIDDEN}", HIDDEN.len()),
        format!("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("X\0: chunked\r\n\r\n{HIDDEN}"),
        format!("X Y: z\r\n\r\n{HIDDEN}"),
        format!("host: b\r\n\r\n{HIDDEN}"),
    ];
    // On a new connection, and on one that was answered already: by the front, by hyper.
    for (before, path) in [
        (None, "/titles/film.ts"),
        (None, "/nowhere"),
        (Some("/titles/none.ts"), "/nowhere"),
        (Some("/healthz"), "/titles/film.ts"),
        (Some("/healthz"), "/nowhere"),
        (Some("/titles/film/../film.ts"), "/healthz"),
    ] {
        for lines in &refused {
            let mut client = Client::to(address);
            if let Some(before) = before {
                client.get(before);
            }
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{lines}"));
            let answer = client.response(false);
            assert_eq!(
                (answer.status, answer.header("Connection")),
                (400, Some("close")),
                "{before:?} {path} {lines:?}"
            );
            assert!(client.rest().is_empty(), "{before:?} {path} {lines:?}");
        }
    }
    // Both at once: the data behind the first request is judged when the first has been answered.
    let mut client = Client::to(address);
    client
        .send(format!("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\nHost: a\n\n{HIDDEN}"));
    assert_eq!((client.response(false).status, client.response(false).status), (200, 400));
    assert!(client.rest().is_empty());
    assert!(site.orders().is_empty());
}

/// A request line has one spelling.
#[test]
fn request_lines_that_could_be_read_in_two_ways() {
    let (site, _web, address) = start();
    for line in [
        "GET /titles/film.ts HTTP/1.1\nHost: a\r\n\r\n",
        "GET  /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /titles/film.ts  HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET\t/titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /titles/film.ts\tHTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /titles/fi lm.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /titles/film.ts HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET /titles/film.ts\r\nHost: a\r\n\r\n",
        " GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "\nGET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "G\0T /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /titles/film.ts HTTP/1.1\r\n Host: a\r\n\r\n",
    ] {
        for before in [None, Some("/healthz")] {
            let mut client = Client::to(address);
            if let Some(before) = before {
                client.get(before);
            }
            client.send(format!("{line}{HIDDEN}"));
            let answer = client.response(false);
            assert!(matches!(answer.status, 400 | 505), "{}: {line:?}", answer.status);
            assert_eq!(answer.header("Connection"), Some("close"), "{line:?}");
            assert!(client.rest().is_empty(), "{line:?}");
        }
    }
    assert!(site.orders().is_empty());
}

/// Behind a body no request is looked for, so that it does not matter who counts how.
#[test]
fn request_body_closes_connection() {
    let (site, _web, address) = start();
    let chunk = format!("{:x}\r\n{HIDDEN}\r\n", HIDDEN.len());
    for body in [
        "0\r\n\r\n".to_owned(),
        "0;a=b\r\n\r\n".to_owned(),
        "0;a\n\r\n".to_owned(),
        format!("0;{}\r\n\r\n", "a".repeat(20_000)),
        format!("{}0\r\n\r\n", "1;a=b\r\nx\r\n".repeat(2_000)),
        "0\r\nContent-Length: 5\r\n\r\n".to_owned(),
        "0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "0\n\n".to_owned(),
        "0x0\r\n\r\n".to_owned(),
        "-1\r\n\r\n".to_owned(),
        "+0\r\n\r\n".to_owned(),
        "10000000000000000\r\n\r\n".to_owned(),
        "fffffffffffffffff\r\n\r\n".to_owned(),
        " 0\r\n\r\n".to_owned(),
        "\r\n0\r\n\r\n".to_owned(),
        "1\r\nxy\r\n0\r\n\r\n".to_owned(),
        chunk,
    ] {
        for coding in ["chunked", "Chunked", "gzip, chunked", "chunked, identity", "xchunked", "identity", ""]
        {
            for method in ["POST", "GET"] {
                let mut client = Client::to(address);
                client.send(format!(
                    "{method} /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {coding}\r\n\r\n{body}{HIDDEN}"
                ));
                // A connection may be reset because of unread data, and the answer lost with it.
                if let Some(answer) = client.try_response(false) {
                    assert!(
                        matches!(answer.status, 400 | 404 | 405),
                        "{}: {coding} {body:.40?}",
                        answer.status
                    );
                }
                assert!(client.rest().is_empty(), "{method} {coding} {body:.40?}");
            }
        }
    }
    assert!(site.orders().is_empty());
}

/// A body has its stated length, and its content is no request.
#[test]
fn bodies_are_not_requests() {
    let (site, _web, address) = start();
    let chunked = format!("{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len());
    for body in [
        format!("Content-Length: {}\r\n\r\n{HIDDEN}", HIDDEN.len()),
        format!("Transfer-Encoding: chunked\r\n\r\n{chunked}"),
    ] {
        let mut client = Client::to(address);
        client.send(format!("POST /titles/film.ts HTTP/1.1\r\nHost: localhost\r\n{body}"));
        assert_eq!(client.response(false).status, 405);
        client.send("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
        // Either the connection has ended with the first, or this is answered next.
        let next = client.try_response(false).map(|answer| answer.status);
        assert!(matches!(next, None | Some(404)), "{next:?}");
    }
    assert!(site.orders().is_empty());
}

#[test]
fn path_traversal_returns_error() {
    let (site, _web, address) = start();
    let long = "a".repeat(4_000);
    for path in [
        "/titles/../film.ts",
        "/titles/%2e%2e/film.ts",
        "/titles/%2e%2e%2ffilm.ts",
        "/titles/..%5cfilm.ts",
        "/titles/./film.ts",
        "/titles//film.ts",
        "//titles/film.ts",
        "/titles/film%00.ts",
        "/titles/film.ts%00",
        "/titles/film%252ets",
        "/titles/%2566ilm.ts",
        "/titles/.hidden.ts",
        "/../../etc/passwd",
        "/titles/film.ts/..",
        "/titles/film.ts/",
        &format!("/titles/{long}.ts"),
        &format!("/{}", "../".repeat(1_000)),
    ] {
        let answer = Client::to(address).get(path);
        assert!(matches!(answer.status, 404 | 400), "{path}: {}", answer.status);
    }
    assert!(site.orders().is_empty());
    // Two spellings of one resource, and one with another host.
    for path in ["http://elsewhere:81/titles/film.ts", "/titles/film.ts?token=x", "HTTP://a/titles/film.ts?"]
    {
        assert_eq!(Client::to(address).get(path).status, 200, "{path}");
    }
}

#[test]
fn heads_that_are_too_long_or_no_heads_at_all() {
    let (site, _web, address) = start();
    let field = format!("X: {}\r\n", "y".repeat(1000));
    for (text, status) in [
        (format!("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n{}\r\n", field.repeat(17)), 431),
        (format!("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(70)), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(MAX_REQUEST_HEAD_BYTES)), 414),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9_000)), 414),
        ("GET / HTTP/4.0\r\n\r\n".to_owned(), 505),
        ("\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n".to_owned(), 400),
        ("DESCRIBE rtsp://a/film RTSP/1.0\r\nCSeq: 1\r\n\r\n".to_owned(), 505),
    ] {
        let mut client = Client::to(address);
        client.send(&text);
        assert_eq!(client.response(false).status, status, "{text:.100}");
        assert!(client.rest().is_empty());
    }
    assert!(site.orders().is_empty());
}

/// An unfinished head is waited for no longer than [`HEAD_TIME`], however often a byte comes.
#[test]
fn unfinished_head_times_out_with_408() {
    let (_site, _web, address) = start();
    let mut client = Client::to(address);
    client.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nX: ");
    let began = std::time::Instant::now();
    let slow = std::thread::spawn({
        let mut client = std::net::TcpStream::connect(address).unwrap();
        move || {
            use std::io::Write;
            let text =
                "GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nX-Slow: ".bytes().chain(std::iter::repeat(b'y'));
            // The other end has closed it: the first write behind that may still be taken.
            text.take(2_000).all(|byte| {
                std::thread::sleep(Duration::from_millis(50));
                client.write_all(&[byte]).is_ok()
            })
        }
    });
    assert_eq!(client.response(false).status, 408);
    assert!(began.elapsed() >= HEAD_TIME - Duration::from_millis(100));
    assert!(!slow.join().unwrap(), "bytes were taken for 100 s");
}

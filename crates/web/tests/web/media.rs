//! A title as a file.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};

use millrace_web::{DeliveryRefusal, WebLimits};

use super::client::{Client, curl};
use super::connections::wait_for;
use super::site::{Film, MadeUp, Manner, serve};

const TAG: &str = "\"0123456789abcdef0123456789abcdef\"";
const MADE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn one_film() -> std::sync::Arc<MadeUp> {
    MadeUp::with(vec![Film::pattern("film", 4_000, Manner::Sends)])
}

#[test]
fn title_file_supports_range_requests() {
    let site = one_film();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let film = &site.films["film"].bytes;
    let len = film.len();
    let mut client = Client::to(address);

    let whole = client.ask("GET", "/titles/film.ts", "User-Agent: probe/1\r\n");
    assert_eq!((whole.status, whole.body == film[..]), (200, true));
    for (name, value) in [
        ("Content-Type", "video/mp2t"),
        ("Accept-Ranges", "bytes"),
        ("ETag", TAG),
        ("Last-Modified", MADE),
        ("Cache-Control", "no-cache"),
        ("Access-Control-Allow-Origin", "*"),
        ("X-Content-Type-Options", "nosniff"),
    ] {
        assert_eq!(whole.header(name), Some(value), "{name}");
    }
    assert!(whole.header("Access-Control-Expose-Headers").unwrap().contains("Content-Range"));
    assert!(whole.header("Date").is_some());

    for (asked, start, end) in [
        ("bytes=0-", 0, len),
        ("bytes=0-0", 0, 1),
        ("bytes=1000-1999", 1000, 2000),
        ("bytes=-188", len - 188, len),
        ("bytes=700000-99999999", 700_000, len),
    ] {
        let part = client.ask("GET", "/titles/film.ts", &format!("Range: {asked}\r\n"));
        assert_eq!((part.status, part.body == film[start..end]), (206, true), "{asked}");
        let place = format!("bytes {start}-{}/{len}", end - 1);
        assert_eq!(part.header("Content-Range"), Some(&place[..]));
    }

    let orders = site.orders();
    assert_eq!(orders.len(), 6);
    assert_eq!((orders[0].bytes.clone(), orders[0].agent.as_deref()), (0..len as u64, Some("probe/1")));
    assert!(
        orders.iter().all(|order| !order.is_inside && order.ahead_ms > 0 && order.peer.ip().is_loopback())
    );
    assert_eq!((&orders[0].label[..], &orders[5].label[..]), ("http-0.1", "http-0.6"));

    // Without its body nothing is ordered, and a range means nothing.
    let head = client.ask("HEAD", "/titles/film.ts", "Range: bytes=0-0\r\n");
    assert_eq!((head.status, head.header("Content-Length")), (200, Some(&len.to_string()[..])));
    for (asked, status) in [
        (format!("bytes={len}-"), 416),
        ("bytes=0-0,5-5".to_owned(), 416),
        ("bytes=5-4".to_owned(), 416),
        ("bytes=0-1\r\nRange: bytes=2-3".to_owned(), 416),
    ] {
        let refused = client.ask("GET", "/titles/film.ts", &format!("Range: {asked}\r\n"));
        assert_eq!(refused.status, status, "{asked}");
        assert_eq!(refused.header("Content-Range"), Some(&format!("bytes */{len}")[..]));
    }
    assert_eq!(client.get("/titles/other.ts").status, 404);
    assert_eq!(site.orders().len(), 6);
    let counted = totals.read();
    assert_eq!((counted.media_orders, counted.connections_accepted, counted.connections), (6, 1, 1));
    assert_eq!((counted.replies_ok, counted.replies_client_error), (7, 5));
}

#[test]
fn conditional_requests_avoid_resending_media() {
    let site = one_film();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let len = site.films["film"].bytes.len();
    for (lines, status, sent) in [
        (format!("If-None-Match: {TAG}\r\n"), 304, 0),
        (format!("If-None-Match: \"x\", W/{TAG}\r\n"), 304, 0),
        (format!("If-Modified-Since: {MADE}\r\n"), 304, 0),
        ("If-Match: \"x\"\r\n".to_owned(), 412, 0),
        (format!("Range: bytes=5-9\r\nIf-Range: {TAG}\r\n"), 206, 5),
        (format!("Range: bytes=5-9\r\nIf-Range: {MADE}\r\n"), 206, 5),
        ("Range: bytes=5-9\r\nIf-Range: \"x\"\r\n".to_owned(), 200, len),
        (format!("Range: bytes=5-9\r\nIf-Range: W/{TAG}\r\n"), 200, len),
        ("Range: pages=5-9\r\n".to_owned(), 200, len),
    ] {
        let answer = client.ask("GET", "/titles/film.ts", &lines);
        let body = if status >= 400 { 0 } else { answer.body.len() };
        assert_eq!((answer.status, body), (status, sent), "{lines}");
        if status == 304 {
            assert_eq!(answer.header("ETag"), Some(TAG));
        }
    }
}

#[test]
fn other_methods_and_pages_from_elsewhere() {
    let site = one_film();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let lines = "Origin: http://elsewhere\r\nAccess-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: range\r\n";
    let preflight = client.ask("OPTIONS", "/titles/film.ts", lines);
    assert_eq!((preflight.status, preflight.header("Access-Control-Allow-Origin")), (204, Some("*")));
    assert!(preflight.header("Access-Control-Allow-Headers").unwrap().contains("Range"));
    assert_eq!(preflight.header("Content-Length"), None);
    for method in ["POST", "DELETE", "PATCH", "TRACE", "BREW"] {
        let refused = Client::to(address).ask(method, "/titles/film.ts", "");
        let allowed = refused.header("Allow");
        assert_eq!((refused.status, allowed), (405, Some("GET, HEAD, OPTIONS, PUT")), "{method}");
        assert!(refused.text().contains("possible here"));
    }
    assert!(site.orders().is_empty());
}

#[test]
fn refusals_are_told_and_the_connection_goes_on() {
    let full = DeliveryRefusal::Full("all 100 places are taken".to_owned());
    let site = MadeUp::with(vec![
        Film::pattern("full", 10, Manner::Refuses(full)),
        Film::pattern("gone", 10, Manner::Refuses(DeliveryRefusal::Gone)),
        Film::pattern("damaged", 10, Manner::Refuses(DeliveryRefusal::Broken("the disk is away".to_owned()))),
        Film::pattern("film", 10, Manner::Sends),
    ]);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    // Once by the front on one connection, which hyper has answered before, once by hyper.
    for is_inside in [false, true] {
        let mut client = Client::to(address);
        assert_eq!(client.get("/nowhere").status, 404);
        let mut get = |name: &str| {
            let path = format!("/titles/{name}.ts");
            if !is_inside {
                return client.get(&path);
            }
            let mut client = Client::to(address);
            client.ask_by_hyper(&path);
            client.response(false)
        };
        let full = get("full");
        assert_eq!((full.status, full.header("Retry-After")), (503, Some("5")));
        assert!(full.text().contains("all 100 places are taken"), "{}", full.text());
        assert_eq!(full.header("Accept-Ranges"), None);
        assert_eq!(get("gone").status, 404);
        let damaged = get("damaged");
        assert_eq!((damaged.status, damaged.text().contains("the disk is away")), (500, true));
        let film = get("film");
        assert_eq!((film.status, film.body == site.films["film"].bytes[..]), (200, true));
        assert!(site.orders().iter().rev().take(4).all(|order| order.is_inside == is_inside));
    }
    assert_eq!(totals.read().media_refused, 6);
}

#[test]
fn broken_media_reply_never_looks_complete() {
    let site = MadeUp::with(vec![
        Film::pattern("film", 4_000, Manner::BreaksOff(100_000)),
        Film::pattern("none", 4_000, Manner::BreaksOff(0)),
        Film::pattern("forgotten", 10, Manner::Forgets),
    ]);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let url = format!("http://{address}/titles/film.ts");
    // 18: a part of the file only was transferred; 92: an error in a stream of HTTP/2.
    assert_eq!(curl(&["-o", "/dev/null", &url]).status.code(), Some(18));
    assert_eq!(curl(&["--http2-prior-knowledge", "-o", "/dev/null", &url]).status.code(), Some(92));
    for name in ["none", "forgotten"] {
        let mut client = Client::to(address);
        client.send(format!("GET /titles/{name}.ts HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(client.rest().is_empty(), "{name}");
        // Hyper has not sent anything yet when it learns of this.
        let mut client = Client::to(address);
        client.ask_by_hyper(&format!("/titles/{name}.ts"));
        assert_eq!(client.response(false).status, 500, "{name}");
    }
    // The last one is counted behind its answer.
    wait_for("six are counted", || totals.read().media_broken == 6);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let site =
        MadeUp::with(vec![Film::pattern("film", 400, Manner::Slowly(20_000, Duration::from_millis(1)))]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let film = &site.films["film"].bytes;
    let mut client = Client::to(address);
    let asks: Vec<_> = (0..20usize).map(|n| (n * 3000, n * 3000 + 2999)).collect();
    let text: String = asks
        .iter()
        .map(|(a, b)| format!("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nRange: bytes={a}-{b}\r\n\r\n"))
        .collect();
    // The first in two pieces, and the rest while it is answered: the engine finds some of it, the front the other.
    client.send(&text[..30]);
    client.send(&text[30..]);
    for (a, b) in asks {
        let part = client.response(false);
        assert_eq!((part.status, part.body == film[a..=b]), (206, true), "{a}");
    }
    client.send(
        "GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: bytes=0-9\r\n\r\nGET /more",
    );
    let last = client.response(false);
    assert_eq!((last.body.len(), last.header("Connection")), (10, Some("close")));
    assert!(client.rest().is_empty());
}

#[test]
fn old_clients_are_told_when_they_may_go_on() {
    let site = one_film();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    client.send("GET /titles/film.ts HTTP/1.0\r\nConnection: keep-alive\r\nRange: bytes=0-9\r\n\r\n");
    let kept = client.response(false);
    assert_eq!((kept.status, kept.header("Connection")), (206, Some("keep-alive")));
    client.send("GET /titles/film.ts HTTP/1.0\r\nRange: bytes=0-9\r\n\r\n");
    assert_eq!(client.response(false).header("Connection"), Some("close"));
    assert!(client.rest().is_empty());
}

#[test]
fn curl_takes_titles_by_both_protocols() {
    let site = one_film();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let film = &site.films["film"].bytes;
    let url = format!("http://{address}/titles/film.ts");
    for protocol in ["--http1.1", "--http2-prior-knowledge", "--http2", "--http1.0"] {
        assert!(curl(&[protocol, &url]).stdout == film[..], "{protocol}");
        assert!(curl(&[protocol, "-r", "1000-1999", &url]).stdout == film[1000..2000], "{protocol}");
        assert!(curl(&[protocol, "-r", "-10", &url]).stdout == film[film.len() - 10..], "{protocol}");
        let head = String::from_utf8(curl(&[protocol, "-I", &url]).stdout).unwrap().to_lowercase();
        assert!(
            head.contains("accept-ranges: bytes")
                && head.contains(&format!("content-length: {}", film.len()))
        );
    }
    // An interrupted transfer continues where it was.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("film.ts");
    std::fs::write(&copy, &film[..300_000]).unwrap();
    assert!(curl(&["-C", "-", "-o", copy.to_str().unwrap(), &url]).status.success());
    assert!(std::fs::read(&copy).unwrap() == film[..]);
    assert!(
        site.orders().iter().any(|order| order.is_inside)
            && site.orders().iter().any(|order| !order.is_inside)
    );
}

async fn body_of(mut response: hyper::Response<Incoming>) -> Vec<u8> {
    assert_eq!(response.status(), 200);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(response.body_mut()).poll_frame(cx)).await {
        bytes.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    bytes
}

/// Many titles in one connection of HTTP/2, and one that is not read does not stop the others.
#[test]
fn streams_of_http2_side_by_side() {
    let site = MadeUp::with(vec![Film::pattern("film", 16_000, Manner::Sends)]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let film = Arc::clone(&site.films["film"].bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = TokioIo::new(tokio::net::TcpStream::connect(address).await.unwrap());
        let (sender, conn) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(conn);
        let ask = || {
            let request =
                hyper::Request::get(format!("http://{address}/titles/film.ts")).body(String::new()).unwrap();
            sender.clone().send_request(request)
        };
        let not_read = ask().await.unwrap();
        // The others share the connection's window with it, so all of them must be read at once.
        let others: Vec<_> = (0..8)
            .map(|_| {
                let response = ask();
                tokio::spawn(async { body_of(response.await.unwrap()).await })
            })
            .collect();
        for other in others {
            assert!(other.await.unwrap() == film[..]);
        }
        // It was waited for, not thrown away.
        assert!(body_of(not_read).await == film[..]);
    });
}

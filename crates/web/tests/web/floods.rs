//! Clients that want to be a burden: HTTP/2 streams that are reset as soon as they are there, heads that never end, windows that stay shut. Each
//! is cut off or bounded, costs others nothing, and leaves nothing behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::limits::web::{MAX_H2_STREAMS, MAX_REQUEST_HEAD_BYTES, UNPROVEN_H2_STREAMS};
use millrace_web::{Totals, WebLimits};

use super::client::Client;
use super::connections::wait_for;
use super::h2::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, H2, HEADERS, INITIAL_WINDOW_SIZE,
    PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, get, get_fields, literal, reset, status,
};
use super::hls::films;
use super::site::{Film, MadeUp, Manner, serve};

const FILM: &str = "/titles/film.ts";

fn kept() -> Arc<MadeUp> {
    let of = |name, manner| Film::pattern(name, 10, manner);
    MadeUp::with(vec![of("film", Manner::Keeps), of("other", Manner::Sends)])
}

/// Another client is answered, and when `flood` has gone nothing is left of it.
fn nothing_is_left<T>(flood: T, address: std::net::SocketAddr, totals: &Totals) {
    let mut other = Client::to(address);
    assert_eq!(other.get("/titles/other.ts").status, 200);
    drop(flood);
    wait_for("its place is free", || totals.read().connections == 1);
    assert_eq!(other.get("/titles/other.ts").status, 200);
}

/// CVE-2023-44487: a stream that is reset no longer counts among those that a connection may have, its work does.
#[test]
fn streams_that_are_reset_at_once_end_the_connection() {
    let site = kept();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let mut flood = H2::to(address, &[]);
    let mut sent = 0;
    // Written in one piece, so that the server finds requests and resets together.
    for hundred in 0..100u32 {
        let piece = (0..100).flat_map(|n| {
            let stream = (hundred * 100 + n) * 2 + 1;
            [get(stream, FILM), reset(stream)].concat()
        });
        if !flood.send(&piece.collect::<Vec<u8>>()) {
            break;
        }
        sent += 100;
    }
    let code = flood.last_words();
    // The last frame may be lost in the data in flight.
    assert!(matches!(code, None | Some(ENHANCE_YOUR_CALM)), "{code:?}");
    assert!(site.orders().len() <= MAX_H2_STREAMS as usize, "{} orders of {sent}", site.orders().len());
    site.let_go();
    nothing_is_left(flood, address, &totals);
}

/// The same with time for each request to become an order: an order is over when an engine has noticed, and until then it counts.
#[test]
fn orders_of_streams_that_were_reset_count_until_they_are_over() {
    let site = kept();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let mut flood = H2::to(address, &[]);
    let most = MAX_H2_STREAMS as usize;
    for n in 0..3 * MAX_H2_STREAMS {
        let stream = 2 * n + 1;
        assert!(flood.send(&get(stream, FILM)));
        let expected = most.min(n as usize + 1);
        wait_for("it is ordered", || site.orders().len() >= expected);
        assert!(flood.send(&reset(stream)));
        // It has been read: a later request is answered.
        assert!(flood.is_alive());
    }
    assert_eq!(site.orders().len(), most);
    // A waiting request is answered when others are over.
    let last = 6 * MAX_H2_STREAMS + 1;
    assert!(flood.send(&get(last, "/titles/other.ts")));
    site.let_go();
    let answer = flood.next_of(HEADERS, last).unwrap();
    assert_eq!(status(&answer), 200);
    nothing_is_left(flood, address, &totals);
    assert_eq!(totals.read().media_broken, most as u64);
}

/// VU#421644: a head in any number of frames is bounded like one in a single frame.
#[test]
fn heads_that_go_on_for_ever_end_the_connection() {
    let site = kept();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let long = literal("x", &"y".repeat(8_000));
    for piece in [&long[..], &literal("x", "y"), &[]] {
        let mut flood = H2::to(address, &[]);
        assert!(flood.send(&frame(HEADERS, END_STREAM, 1, &get_fields(FILM))));
        let one = frame(CONTINUATION, 0, 1, piece);
        let more = one.repeat(65_536 / one.len());
        // Buffers on the way take some megabytes before anybody has looked at them, not this much.
        let taken = (0..400).take_while(|_| flood.send(&more)).count();
        assert!(taken < 400, "25 MB in frames of {} bytes were taken", piece.len());
        assert!(matches!(flood.last_words(), None | Some(ENHANCE_YOUR_CALM | 1)));
    }
    assert!(site.orders().is_empty());
    nothing_is_left((), address, &totals);
}

/// A kilobyte of indexes that stands for megabytes of fields (a decompression bomb) is a head that is too long.
#[test]
fn heads_that_unfold_are_refused() {
    let site = kept();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let mut flood = H2::to(address, &[]);
    // A literal with indexing (RFC 7541 section 6.2.1), and references to it: 62 is the newest.
    let mut head = get_fields(FILM);
    let mut field = literal("x", &"y".repeat(3_900));
    field[0] = 0x40;
    head.extend(field);
    head.extend([0x80 | 62; 4_000]);
    assert!(head.len() < MAX_REQUEST_HEAD_BYTES);
    assert!(flood.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)));
    // It ends the connection, or is refused as too long.
    let refused = flood.next_of(HEADERS, 1).map(|answer| status(&answer));
    assert!(matches!(refused, None | Some(431)), "{refused:?}");
    assert!(site.orders().is_empty());
    nothing_is_left(flood, address, &totals);
}

/// Frames that require an answer or work and yield nothing, from a client that reads nothing.
#[test]
fn frames_that_are_only_work_hurt_nobody() {
    let site = kept();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let empty = [get(1, "/titles/other.ts"), frame(DATA, 0, 1, &[]).repeat(9)].concat();
    for (what, piece) in [
        ("pings", frame(PING, 0, 0, b"anybody?")),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        ("windows", frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("no data", empty),
    ] {
        let mut flood = H2::to(address, &[]);
        let other = std::thread::spawn(move || {
            let mut other = Client::to(address);
            (0..50).all(|_| other.get("/titles/other.ts").status == 200)
        });
        // As much as the buffers on the path may hold if they are not read.
        let many = piece.repeat(1_000);
        let taken = (0..20).take_while(|_| flood.send_if_room(&many)).count();
        assert!(other.join().unwrap(), "{what}: {taken}");
        drop(flood);
        wait_for(what, || totals.read().connections == 0);
    }
    nothing_is_left((), address, &totals);
}

/// A client that reads nothing holds a few responses, and only the heads of its other requests.
#[test]
fn streams_of_a_client_that_takes_nothing_wait_after_the_first_few() {
    let (_web, address, totals) = serve(&films().site, WebLimits::default());
    let mut shut = H2::to(address, &[(INITIAL_WINDOW_SIZE, 0)]);
    for n in 0..MAX_H2_STREAMS {
        assert!(shut.send(&get(2 * n + 1, "/titles/film/media.m3u8")));
    }
    let heads = std::iter::from_fn(|| shut.next()).filter(|frame| frame.kind == HEADERS);
    let heads: Vec<u16> = heads.take(UNPROVEN_H2_STREAMS).map(|head| status(&head)).collect();
    assert_eq!(heads, [200; UNPROVEN_H2_STREAMS]);
    // One more is refused until another is over.
    let more = 2 * MAX_H2_STREAMS + 1;
    assert!(shut.send(&get(more, "/titles/film/media.m3u8")));
    assert_eq!(shut.next_of(RST_STREAM, more).unwrap().payload, 7u32.to_be_bytes());
    // The others are answered as soon as the client reads something.
    assert!(shut.send(&frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes())));
    assert!(shut.next_of(DATA, 1).is_some());
    assert!(shut.send(&frame(WINDOW_UPDATE, 0, 1, &0x00ff_ffffu32.to_be_bytes())));
    let mut waiting: BTreeSet<u32> =
        (UNPROVEN_H2_STREAMS as u32..MAX_H2_STREAMS).map(|n| 2 * n + 1).collect();
    while !waiting.is_empty() {
        let frame = shut.next().expect("all are answered");
        if frame.kind == HEADERS && waiting.remove(&frame.stream) {
            assert_eq!(status(&frame), 200);
        }
    }
    assert!(shut.is_alive());
    let mut other = Client::to(address);
    assert_eq!(other.get("/titles/film/media.m3u8").status, 200);
    drop(shut);
    wait_for("its place is free", || totals.read().connections == 1);
}

/// A response that is not read is reset after the time limit, whatever else happens on its
/// connection: the test keeps sending requests for heads, and pings. Both with nothing of it read,
/// and with one byte read.
#[test]
fn stream_that_is_not_taken_is_reset_while_its_connection_is_used() {
    let limits = WebLimits { reply_stall: Duration::from_millis(600), ..WebLimits::default() };
    let (_web, address, totals) = serve(&films().site, limits);
    let list = Client::to(address).get("/titles/film/media.m3u8");
    assert_eq!(list.status, 200);
    let head = [
        (":method", "HEAD"),
        (":scheme", "http"),
        (":authority", "tv"),
        (":path", "/healthz"),
        ("host", "tv"),
    ];
    let head = head.map(|(name, value)| literal(name, value)).concat();
    for (round, window) in [0, 1].into_iter().enumerate() {
        let mut shut = H2::to(address, &[(INITIAL_WINDOW_SIZE, window)]);
        assert!(shut.send(&get(1, "/titles/film/media.m3u8")));
        let (mut next, mut code) = (3, None);
        while code.is_none() {
            assert!(shut.send(&frame(HEADERS, END_HEADERS | END_STREAM, next, &head)));
            assert!(shut.send(&frame(PING, 0, 0, b"anybody?")));
            while let Some(frame) = shut.next() {
                match (frame.kind, frame.stream) {
                    (RST_STREAM, 1) => code = Some(frame.payload.clone()),
                    (PING, _) => break,
                    _ => {}
                }
            }
            next += 2;
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(code.unwrap(), CANCEL.to_be_bytes());
        assert_eq!(totals.read().streams_too_slow, round as u64 + 1);
        // The other streams of the connection continue, and a stream that is read is not reset.
        assert!(shut.is_alive());
        assert!(shut.send(&get(next, "/titles/film/media.m3u8")));
        assert!(shut.send(&frame(WINDOW_UPDATE, 0, next, &0x00ff_ffffu32.to_be_bytes())));
        let mut came = Vec::new();
        while came.len() < list.body.len() {
            came.extend(shut.next_of(DATA, next).unwrap().payload);
        }
        assert!(came == list.body);
    }
    wait_for("nothing is held", || totals.read().memory_held_bytes == 0);
}

/// Lists of ranges, overlapping or not, make no work, however they are written.
#[test]
fn lists_of_ranges_are_refused_whole() {
    let site = kept();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let all = (0..1_000).map(|n| format!("{n}-")).collect::<Vec<_>>().join(",");
    let lines = "Range: bytes=0-,5-\r\n".repeat(60);
    for ranges in [
        format!("Range: bytes={all}\r\n"),
        format!("Range: bytes={}\r\n", "0-0,".repeat(2_000)),
        format!("Range: bytes={}\r\n", "-1,".repeat(2_000)),
        format!("Range: bytes=,{}\r\n", ",".repeat(8_000)),
        lines,
        "Range: bytes=0-0\r\nRange: bytes=5-5\r\n".to_owned(),
    ] {
        for _ in 0..20 {
            let refused = client.ask("GET", FILM, &ranges);
            assert_eq!(refused.status, 416, "{ranges:.60}");
            assert!(refused.body.len() < 200);
        }
    }
    assert!(site.orders().is_empty());
    nothing_is_left(client, address, &totals);
}

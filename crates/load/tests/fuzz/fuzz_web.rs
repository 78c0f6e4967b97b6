//! Whatever an HTTP server sends, nothing panics, nothing is read twice and nothing is kept without bound.
//!
//! As in `fuzz.rs`: seeds (`__fuzz__/<target>/corpus`) and random input under plain `cargo test`, longer with
//! `cargo bolero test <target>`.

use bolero::check;
use millrace_client::listen::ListenUrl;
use millrace_core::time::Instant;
use millrace_load::limits::MAX_HTTP_HEAD_BYTES;
use millrace_load::web::address::HttpUrl;
use millrace_load::web::exchange::{ByteRange, Exchange, ResponsePart};
use millrace_load::web::head::{HttpFault, parse_head};
use millrace_load::web::hls::{Hls, Want};
use millrace_load::web::playlist::{Playlist, VariantChoice, parse_playlist};
use millrace_testkit::fuzz::edited;

const ITERATIONS: usize = 3000;

/// Files of a target's corpus.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    millrace_testkit::fuzz::seeds(env!("CARGO_MANIFEST_DIR"), target)
}

/// Status and payload of one response that comes in these pieces, whether it was over, or what made it unreadable.
fn respond<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<(u16, Vec<u8>, bool), HttpFault> {
    let (mut exchange, mut status, mut payload) = (Exchange::default(), 0, Vec::new());
    for piece in pieces {
        let mut at = 0;
        while at < piece.len() && !exchange.is_done() {
            let (len, part) = exchange.take(&piece[at..])?;
            assert!(len > 0 && at + len <= piece.len());
            match part {
                ResponsePart::Frame => {}
                ResponsePart::Head(head) => status = head.status,
                ResponsePart::Payload(bytes) => payload.extend_from_slice(bytes),
            }
            at += len;
        }
    }
    Ok((status, payload, exchange.is_done()))
}

#[test]
fn http_head() {
    check!(name = "http_head").with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        if let Ok(Some((head, len))) = parse_head(bytes) {
            assert!(len <= bytes.len().min(MAX_HTTP_HEAD_BYTES) && head.status < 1000);
        }
    });
}

#[test]
fn http_response() {
    check!(name = "http_response").with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        let _ = respond(std::iter::once(bytes));
    });
}

#[test]
fn http_response_edited() {
    let seeds = seeds("http_response");
    check!(name = "http_response_edited")
        .with_type::<(u8, Vec<(u8, u16, u8)>, u8)>()
        .with_iterations(ITERATIONS)
        .for_each(|(seed, edits, cut)| {
            let bytes = edited(&seeds[usize::from(*seed) % seeds.len()], edits);
            let whole = respond(std::iter::once(&bytes[..]));
            // However it is cut, it is the same response, and the same fault makes it unreadable.
            let pieces = respond(bytes.chunks(usize::from(*cut).max(1)));
            assert_eq!(pieces, whole, "{}", String::from_utf8_lossy(&bytes));
        });
}

/// Reads a playlist in every way and checks what holds for all.
fn read_playlist(bytes: &[u8]) {
    let base = HttpUrl::parse("http://h/a/b.m3u8").unwrap();
    for choice in [VariantChoice::Highest, VariantChoice::Lowest, VariantChoice::First] {
        match parse_playlist(bytes, &base, choice) {
            Ok(Playlist::Media(list)) => {
                for segment in &list.segments {
                    assert!(segment.media_ns <= 3_600_000_000_000 && segment.media_ns <= list.target_ns);
                    assert!(segment.map.is_none_or(|map| map < list.maps.len()));
                    if let ByteRange::Part { start, len } = segment.resource.range {
                        assert!(len > 0 && start.checked_add(len).is_some());
                    }
                }
            }
            Ok(Playlist::Master(url)) => assert!(HttpUrl::parse(&url.to_string()).is_ok()),
            Err(fault) => assert!(fault.to_string().starts_with("playlist: ")),
        }
    }
    let mut way = Hls::new(base.clone(), 0, VariantChoice::Highest);
    for _ in 0..3 {
        let _ = parse_playlist(bytes, &base, VariantChoice::Highest)
            .and_then(|list| way.playlist_came(Instant(0), list));
        for _ in 0..1000 {
            match way.want(Instant(0)) {
                Want::Segment(_) => way.segment_came(),
                Want::Section(section) => way.section_came(section),
                _ => break,
            }
        }
    }
}

#[test]
fn playlist() {
    check!(name = "playlist").with_iterations(ITERATIONS).for_each(|bytes: &[u8]| read_playlist(bytes));
}

#[test]
fn playlist_edited() {
    let seeds = seeds("playlist");
    check!(name = "playlist_edited")
        .with_type::<(u8, Vec<(u8, u16, u8)>)>()
        .with_iterations(ITERATIONS)
        .for_each(|(seed, edits)| {
            read_playlist(&edited(&seeds[usize::from(*seed) % seeds.len()], edits));
        });
}

#[test]
fn addresses() {
    fn all(text: &str) {
        let base = HttpUrl::parse("http://h:81/a/b?c").unwrap();
        for url in [HttpUrl::parse(text), base.join(text)].into_iter().flatten() {
            // The text put into a request is one word, and reads as itself.
            for part in [url.target(), url.authority()] {
                assert!(part.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{part:?}");
            }
            assert!(url.port() > 0 && !url.host().is_empty());
            assert_eq!(HttpUrl::parse(&url.to_string()).as_ref(), Ok(&url), "{text:?}");
        }
        if let Ok(url) = ListenUrl::parse(text) {
            assert!(url.port > 0 && url.step > 0 && url.place(0).is_ok());
        }
    }
    let seeds = [
        "http://u:p@[::1]:81/a b/../c?d#e",
        "//h/x",
        "../x",
        "udp://@239.1.1.1:5000?step=1&interface=lo",
        "rtp://[::]:1",
    ];
    check!(name = "addresses")
        .with_iterations(ITERATIONS)
        .for_each(|bytes: &[u8]| all(&String::from_utf8_lossy(bytes)));
    check!(name = "addresses").with_type::<(u8, Vec<(u8, u16, u8)>)>().with_iterations(ITERATIONS).for_each(
        |(seed, edits)| {
            let text = edited(seeds[usize::from(*seed) % seeds.len()].as_bytes(), edits);
            all(&String::from_utf8_lossy(&text));
        },
    );
}

#[test]
fn fuzz_seeds_are_valid_responses_and_playlists() {
    let responses = seeds("http_response");
    assert!(responses.len() >= 5);
    for seed in &responses {
        let (status, _, _) = respond(std::iter::once(&seed[..])).unwrap();
        assert!((200..500).contains(&status), "{}", String::from_utf8_lossy(seed));
    }
    let base = HttpUrl::parse("http://h/").unwrap();
    let lists = seeds("playlist");
    assert!(lists.len() >= 4);
    for seed in &lists {
        parse_playlist(seed, &base, VariantChoice::Highest).unwrap();
    }
}

//! Ways through titles on demand and live, on a virtual clock.

use super::super::playlist::parse_playlist;
use super::*;

const S: u64 = NS_PER_S;

/// The playlist `bytes` comes to `hls` from `url`.
fn come(hls: &mut Hls, now: Instant, url: HttpUrl, bytes: &[u8]) -> Result<(), PlaylistFault> {
    hls.playlist_came(now, parse_playlist(bytes, &url, VariantChoice::Highest)?)
}

fn url(text: &str) -> HttpUrl {
    HttpUrl::parse("http://h/a/").unwrap().join(text).unwrap()
}

/// Segments `from..to` of four seconds.
fn list(from: u64, to: u64, end: &str) -> String {
    let segments: String = (from..to).map(|n| format!("#EXTINF:4,\n{n}.ts\n")).collect();
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:{from}\n{segments}{end}")
}

fn started(text: &str, start_ns: u64) -> Hls {
    let mut hls = Hls::new(url("x.m3u8"), start_ns, VariantChoice::Highest);
    assert_eq!(hls.want(Instant(0)), Want::Playlist(url("x.m3u8")));
    come(&mut hls, Instant(0), url("x.m3u8"), text.as_bytes()).unwrap();
    hls
}

/// Fetches segments until something else is wanted.
fn fetch_all(hls: &mut Hls, now: Instant) -> (Vec<String>, Want) {
    let mut names = Vec::new();
    loop {
        match hls.want(now) {
            Want::Segment(segment) => {
                names.push(segment.url.target().to_owned());
                hls.segment_came();
            }
            Want::Section(section) => {
                names.push(section.url.target().to_owned());
                hls.section_came(section);
            }
            other => return (names, other),
        }
    }
}

#[test]
fn hls_on_demand_fetches_segments_from_start_or_seek() {
    let text = list(0, 5, "#EXT-X-ENDLIST\n");
    let mut hls = started(&text, 0);
    assert_eq!((hls.segment_ns(), hls.target_ns(), hls.media_ns()), (4 * S, 4 * S, Some(20 * S)));
    assert!(hls.is_plain_ts());
    let (names, last) = fetch_all(&mut hls, Instant(0));
    assert_eq!((names.len(), names[0].as_str(), last), (5, "/a/0.ts", Want::End));
    assert!(hls.seek(8 * S));
    assert_eq!(fetch_all(&mut hls, Instant(0)).0, ["/a/2.ts", "/a/3.ts", "/a/4.ts"]);
    let mut late = started(&text, 1000 * S);
    assert_eq!(fetch_all(&mut late, Instant(0)).0, ["/a/4.ts"]);
}

#[test]
fn hls_master_playlist_resolves_variant_after_redirect() {
    let mut hls = Hls::new(url("x.m3u8"), 0, VariantChoice::Highest);
    let master = b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nlow/v.m3u8\n";
    come(&mut hls, Instant(0), url("/elsewhere/x.m3u8"), master).unwrap();
    assert_eq!(hls.want(Instant(0)), Want::Playlist(url("/elsewhere/low/v.m3u8")));
    come(&mut hls, Instant(0), url("/third/v.m3u8"), list(0, 1, "").as_bytes()).unwrap();
    let Want::Segment(segment) = hls.want(Instant(0)) else { panic!("{:?}", hls.want(Instant(0))) };
    assert_eq!(segment.url, url("/third/0.ts"));
    let mut looped = Hls::new(url("x.m3u8"), 0, VariantChoice::Highest);
    let faults: Vec<_> = (0..3).map(|_| come(&mut looped, Instant(0), url("x.m3u8"), master)).collect();
    assert_eq!(faults, [Ok(()), Ok(()), Err(PlaylistFault::NoVariant)]);
}

#[test]
fn live_films_begin_near_their_end_and_are_loaded_again_in_time() {
    let mut hls = started(&list(100, 110, ""), 55 * S);
    let (names, last) = fetch_all(&mut hls, Instant(S));
    assert_eq!(
        (names, last),
        (vec!["/a/107.ts".into(), "/a/108.ts".into(), "/a/109.ts".into()], Want::Wait(Instant(4 * S)))
    );
    assert_eq!(hls.want(Instant(4 * S)), Want::Playlist(url("x.m3u8")));
    // Nothing new: half the time.
    come(&mut hls, Instant(4 * S), url("x.m3u8"), list(100, 110, "").as_bytes()).unwrap();
    assert_eq!(hls.want(Instant(5 * S)), Want::Wait(Instant(6 * S)));
    come(&mut hls, Instant(6 * S), url("x.m3u8"), list(101, 111, "").as_bytes()).unwrap();
    assert_eq!(fetch_all(&mut hls, Instant(6 * S)), (vec!["/a/110.ts".into()], Want::Wait(Instant(10 * S))));
    assert!(!hls.seek(0), "live");
    // Far behind: segments that are gone are skipped.
    come(&mut hls, Instant(60 * S), url("x.m3u8"), list(115, 118, "").as_bytes()).unwrap();
    assert_eq!((fetch_all(&mut hls, Instant(60 * S)).0.len(), hls.skipped()), (3, 4));
    // The server begins again.
    come(&mut hls, Instant(70 * S), url("x.m3u8"), list(0, 2, "#EXT-X-ENDLIST\n").as_bytes()).unwrap();
    assert_eq!(fetch_all(&mut hls, Instant(70 * S)), (vec!["/a/0.ts".into(), "/a/1.ts".into()], Want::End));
}

#[test]
fn hls_empty_playlist_waits_if_live_and_fails_if_complete() {
    let mut hls = started(&list(5, 5, ""), 0);
    assert_eq!(hls.want(Instant(0)), Want::Wait(Instant(2 * S)));
    come(&mut hls, Instant(2 * S), url("x.m3u8"), list(5, 6, "").as_bytes()).unwrap();
    assert_eq!(fetch_all(&mut hls, Instant(2 * S)).0, ["/a/5.ts"]);
    let mut empty = Hls::new(url("x.m3u8"), 0, VariantChoice::Highest);
    let got =
        come(&mut empty, Instant(0), url("x.m3u8"), b"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-ENDLIST\n");
    assert_eq!(got, Err(PlaylistFault::NoSegment));
}

#[test]
fn sections_come_once_before_the_segments_that_need_them() {
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MAP:URI=\"i.mp4\"\n#EXTINF:4,\n0.m4s\n#EXTINF:4,\n1.m4s\n\
        #EXT-X-MAP:URI=\"j.mp4\"\n#EXTINF:4,\n2.m4s\n#EXT-X-ENDLIST\n";
    let mut hls = started(text, 0);
    assert!(!hls.is_plain_ts());
    let (names, _) = fetch_all(&mut hls, Instant(0));
    assert_eq!(names, ["/a/i.mp4", "/a/0.m4s", "/a/1.m4s", "/a/j.mp4", "/a/2.m4s"]);
}

#[test]
fn hls_with_arbitrary_playlists_stays_bounded() {
    bolero::check!().with_type::<Vec<(u8, u8, bool)>>().with_iterations(1000).for_each(|lists| {
        let mut hls = Hls::new(url("x.m3u8"), 0, VariantChoice::Highest);
        let mut now = Instant(0);
        for (from, count, is_whole) in lists {
            let end = if *is_whole { "#EXT-X-ENDLIST\n" } else { "" };
            let text = list(u64::from(*from), u64::from(*from) + u64::from(count % 16), end);
            let _ = come(&mut hls, now, url("x.m3u8"), text.as_bytes());
            let (names, next) = fetch_all(&mut hls, now);
            assert!(names.len() <= 16);
            if let Want::Wait(at) = next {
                assert!(at > now);
                now = at;
            }
        }
    });
}

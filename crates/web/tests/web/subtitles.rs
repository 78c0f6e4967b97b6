//! Subtitles of a real title: the text of its teletext is in the segments that players get, at its
//! times.

use std::path::Path;

use m3u8_rs::AlternativeMediaType;
use millrace_web::WebLimits;

use super::client::{Client, Response};
use super::hls::{films, run};
use super::rights::rights;
use super::site::{Film, MadeUp, Manner, serve, serve_to};
use millrace_testkit::teletext::{HEARING_IMPAIRED, Named, SUBTITLES, mux, page};

/// Times of sending in seconds, and the lines; without any the page shows nothing.
pub(crate) type Sent = &'static [(f64, &'static [&'static str])];

/// ffmpeg's first time stamp.
pub(crate) const FIRST: u64 = 126_000;

/// For 25 s, whose segments begin each 6 s.
pub(crate) const FILM: Sent = &[
    (0.5, &["The first one"]),
    (1.5, &[]),
    // Across a cut, and from one to the next there.
    (5.0, &["On both sides", "of the cut"]),
    (7.0, &["without a pause"]),
    (8.04, &[]),
    (11.96, &["a --> b & <i>c</i>"]),
    (12.08, &["just behind a cut"]),
    (12.9, &[]),
    // Sent again and again.
    (15.0, &["sent again"]),
    (16.0, &["sent again"]),
    (17.0, &["sent again"]),
    (18.5, &["sent again"]),
    (19.0, &[]),
    // To the end.
    (20.0, &["the last one"]),
];
/// For 7 s.
pub(crate) const PART: Sent = &[(1.0, &["in each part"]), (5.0, &["to its end"])];

const PMT: u16 = 4096;
const PID: u16 = 0x150;
const NAMED: &[Named] = &[("deu", SUBTITLES, 888), ("eng", HEARING_IMPAIRED, 777), ("eng", 1, 100)];

/// Adds subtitles to a transport stream that ffmpeg has made, at seconds behind a time stamp.
pub(crate) fn add(path: &Path, first: u64, sent: Sent) {
    let sent: Vec<_> =
        sent.iter().map(|(seconds, lines)| (stamp(first, *seconds), page(888, 0, lines))).collect();
    let stream = std::fs::read(path).unwrap();
    std::fs::write(path, mux(&stream, PMT, PID, NAMED, &sent)).unwrap();
}

fn stamp(first: u64, seconds: f64) -> u64 {
    first + (seconds * 90_000.0).round() as u64
}

/// Start and end, in ticks of whatever clock, and lines.
type Cue = (u64, u64, Vec<String>);

/// The cues that were sent, by their time stamps; the last one to `end` seconds.
fn expected(first: u64, sent: Sent, end: f64) -> Vec<Cue> {
    let mut list: Vec<Cue> = Vec::new();
    let ends = sent.iter().skip(1).map(|(seconds, _)| *seconds).chain([end]);
    for ((start, lines), end) in sent.iter().zip(ends).filter(|((_, lines), _)| !lines.is_empty()) {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        add_cue(&mut list, (stamp(first, *start), stamp(first, end), lines));
    }
    list
}

/// Adds a cue that is not known yet; the same text once more, without a pause, goes on with the one before.
fn add_cue(list: &mut Vec<Cue>, cue: Cue) {
    if list.contains(&cue) {
        return;
    }
    match list.last_mut() {
        Some(last) if last.1 == cue.0 && last.2 == cue.2 => last.1 = cue.1,
        _ => list.push(cue),
    }
}

fn ms(text: &str) -> u64 {
    let parts: Vec<u64> = text.split([':', '.', ',']).map(|part| part.parse().unwrap()).collect();
    ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000 + parts[3]
}

/// Parses a segment of WebVTT: the values of `X-TIMESTAMP-MAP` (milliseconds, time stamp), and the
/// cues in milliseconds.
fn parse(text: &str) -> ((u64, u64), Vec<Cue>) {
    let mut blocks = text.split("\n\n");
    let head = blocks.next().unwrap().strip_prefix("WEBVTT\nX-TIMESTAMP-MAP=LOCAL:").unwrap();
    let (local, stamp) = head.split_once(",MPEGTS:").unwrap();
    let cue = |block: &str| {
        let mut lines = block.lines();
        let (start, end) = lines.next().unwrap().split_once(" --> ").unwrap();
        let plain = |line: &str| {
            assert!(!line.contains(['<', '>']), "{line}");
            line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        };
        (ms(start), ms(end), lines.map(plain).collect())
    };
    ((ms(local), stamp.trim().parse().unwrap()), blocks.filter(|block| !block.is_empty()).map(cue).collect())
}

/// A segment of a playlist.
struct Listed {
    start_ms: u64,
    end_ms: u64,
    is_discontinuous: bool,
    origin: (u64, u64),
    /// In milliseconds, and by time stamps.
    cues: Vec<Cue>,
    stamped: Vec<Cue>,
}

/// Everything that a playlist leads to.
fn fetched(client: &mut Client, playlist: &str) -> Vec<Listed> {
    let answer = client.get(playlist);
    assert_eq!((answer.status, answer.header("Cache-Control")), (200, Some("no-cache")), "{playlist}");
    let list = m3u8_rs::parse_media_playlist_res(&answer.body).unwrap();
    assert!(list.end_list && list.playlist_type == Some(m3u8_rs::MediaPlaylistType::Vod));
    let (folder, _) = playlist.rsplit_once('/').unwrap();
    let mut at = 0.0;
    let mut all = Vec::new();
    for segment in &list.segments {
        let answer = client.get(&format!("{folder}/{}", segment.uri));
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("text/vtt; charset=utf-8")));
        assert_eq!(answer.header("Cache-Control"), Some("public, max-age=31536000, immutable"));
        assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("*"));
        let (origin, cues) = parse(answer.text());
        let by_stamp = |ms: u64| (origin.1 + ms * 90 - origin.0 * 90) % (1 << 33);
        let stamped =
            cues.iter().map(|(start, end, lines)| (by_stamp(*start), by_stamp(*end), lines.clone()));
        let (start_ms, end_ms) = ((at * 1000.0) as u64, ((at + f64::from(segment.duration)) * 1000.0) as u64);
        at += f64::from(segment.duration);
        let (stamped, is_discontinuous) = (stamped.collect(), segment.discontinuity);
        all.push(Listed { start_ms, end_ms, is_discontinuous, origin, cues, stamped });
    }
    all
}

/// Each cue once.
fn all_cues<'a>(segments: impl IntoIterator<Item = &'a Listed>) -> Vec<Cue> {
    let mut list = Vec::new();
    segments.into_iter().flat_map(|one| one.stamped.clone()).for_each(|cue| add_cue(&mut list, cue));
    list
}

/// Whether cues are the same, to a millisecond.
fn check(found: &[Cue], expected: &[Cue], what: &str) {
    let is_near = |a: u64, b: u64| a.abs_diff(b) <= 90;
    let is_same = |(found, expected): (&Cue, &Cue)| {
        is_near(found.0, expected.0) && is_near(found.1, expected.1) && found.2 == expected.2
    };
    let are_same = found.len() == expected.len() && found.iter().zip(expected).all(is_same);
    assert!(are_same, "{what}: found {found:#?}, expected {expected:#?}");
}

#[test]
fn segments_have_the_cues_of_their_time() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let segments = fetched(&mut client, "/titles/film/subtitles/888.m3u8");
    let found = all_cues(&segments);
    let sent = expected(FIRST, FILM, 0.0);
    let (last, others) = found.split_last().unwrap();
    check(others, &sent[..sent.len() - 1], "cues of the film");
    // Text that is never erased is shown to the title's end, which is that of the last segment.
    assert_eq!((last.0, &last.2), (sent.last().unwrap().0, &sent.last().unwrap().2));
    let end = last.1 - FIRST;
    assert!(end.abs_diff(segments.last().unwrap().end_ms * 90) < 9_000, "{end}");
    // The same list of segments as that of the media.
    let listed = |client: &mut Client, path: &str| {
        let text = client.get(path).text().to_owned();
        text.lines().filter(|line| line.starts_with("#EXT")).map(str::to_owned).collect::<Vec<_>>()
    };
    let media = listed(&mut client, "/titles/film/media.m3u8");
    assert_eq!(listed(&mut client, "/titles/film/subtitles/888.m3u8"), media);
    for (number, one) in segments.iter().enumerate() {
        assert_eq!(one.origin, (0, FIRST), "the time stamp of the film's beginning");
        let of = |(start, end, _): &Cue| *start < one.end_ms && *end > one.start_ms;
        assert!(one.cues.iter().all(of), "segment {number} has cues of other times: {:?}", one.cues);
        let in_ms = |cue: &Cue| ((cue.0 - FIRST) / 90, (cue.1 - FIRST) / 90, cue.2.clone());
        let missing = found.iter().map(in_ms).find(|cue| {
            // Not those that are repeated: of these each part is a cue.
            of(cue) && cue.2 != ["sent again"] && !one.cues.iter().any(|own| own.2 == cue.2)
        });
        assert!(missing.is_none(), "segment {number} lacks {missing:?}");
    }
    assert!(segments[0].cues.iter().any(|cue| segments[1].cues.contains(cue)), "one is in two segments");
    // Nothing was ever sent on the other page.
    assert!(all_cues(&fetched(&mut client, "/titles/film/subtitles/777.m3u8")).is_empty());
}

/// A player that begins in the middle gets the same as one that has come from the beginning.
#[test]
fn subtitle_segment_is_independent_of_request_order() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let all = fetched(&mut client, "/titles/film/subtitles/888.m3u8");
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let list = client.get("/titles/film/subtitles/888.m3u8").text().to_owned();
    let uris: Vec<_> = list.lines().filter(|line| line.ends_with(".vtt")).collect();
    assert_eq!(uris.len(), all.len());
    for (uri, before) in uris.iter().zip(&all).rev() {
        let text = client.get(&format!("/titles/film/subtitles/{uri}")).text().to_owned();
        assert_eq!(parse(&text).1, before.cues, "{uri}");
    }
}

#[test]
fn ffmpeg_finds_the_same_cues_in_the_playlist() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let url = format!("http://{address}/titles/film/subtitles/888.m3u8");
    // It takes the segments for one file, whose times are those of `LOCAL`.
    let text = run("ffmpeg", &["-nostdin", "-v", "error", "-i", &url, "-f", "webvtt", "-"]);
    let text = String::from_utf8(text).unwrap();
    let mut found = Vec::new();
    for block in text.split("\n\n").filter(|block| block.contains(" --> ")) {
        let (times, lines) = block.split_once('\n').unwrap();
        let (start, end) = times.split_once(" --> ").unwrap();
        // It leaves hours out where there are none.
        let whole =
            |time: &str| if time.matches(':').count() == 1 { format!("00:{time}") } else { time.to_owned() };
        let lines = lines.lines().map(str::to_owned).collect();
        found.push((ms(&whole(start)), ms(&whole(end)), lines));
    }
    found.sort();
    found.dedup();
    let mut ours: Vec<Cue> = fetched(&mut Client::to(address), "/titles/film/subtitles/888.m3u8")
        .into_iter()
        .flat_map(|one| one.cues)
        .collect();
    ours.sort();
    ours.dedup();
    assert!(!found.is_empty());
    assert_eq!(found, ours);
}

/// First time stamp of the pictures, as ffprobe reads it.
fn first_picture(path: &Path) -> f64 {
    let args = ["-v", "error", "-select_streams", "v", "-show_entries", "packet=pts_time", "-of", "csv=p=0"];
    let text = run("ffprobe", &[&args[..], &["-read_intervals", "%+#1", path.to_str().unwrap()]].concat());
    String::from_utf8(text).unwrap().trim().trim_end_matches(',').parse().unwrap()
}

/// With fragmented MP4 time stamps are those of its samples.
#[test]
fn beside_fragmented_mp4_times_are_those_of_its_samples() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let segments = fetched(&mut client, "/titles/film/cmaf/subtitles/888.m3u8");
    let list = client.get("/titles/film/cmaf/256.m3u8");
    let list = m3u8_rs::parse_media_playlist_res(&list.body).unwrap();
    assert_eq!(list.segments.len(), segments.len());
    let init = &list.segments[0].map.as_ref().unwrap().uri;
    let mut made = client.get(&format!("/titles/film/cmaf/{init}")).body;
    made.extend(client.get(&format!("/titles/film/cmaf/{}", list.segments[0].uri)).body);
    let path = films().dir.path().join("subtitled.mp4");
    std::fs::write(&path, made).unwrap();
    let later = first_picture(&path) - first_picture(&films().dir.path().join("film.ts"));
    let sent: Vec<Cue> = expected(FIRST, FILM, 0.0)
        .into_iter()
        .map(|cue| {
            let moved = |stamp: u64| (stamp as f64 + later * 90_000.0).round() as u64;
            (moved(cue.0), moved(cue.1), cue.2)
        })
        .collect();
    let found = all_cues(&segments);
    check(&found[..found.len() - 1], &sent[..sent.len() - 1], "cues beside fragmented MP4");
    assert_eq!(found.len(), sent.len());
}

/// A jump of the clock is marked, and the cues of each part are at its own time stamps.
#[test]
fn joined_recordings_have_the_cues_of_both() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let segments = fetched(&mut client, "/titles/joined/subtitles/888.m3u8");
    let jump = segments.iter().position(|one| one.is_discontinuous).unwrap();
    let (first, second) = segments.split_at(jump);
    for (part, start) in [(first, FIRST), (second, FIRST + 5000 * 90_000)] {
        let found = all_cues(part);
        let sent = expected(start, PART, 7.0);
        check(&found[..1], &sent[..1], "the first of a part");
        assert_eq!((found.len(), &found[1].2), (2, &sent[1].2));
        assert!(found[1].0.abs_diff(sent[1].0) <= 90, "{found:?}");
        assert!(found[1].1.abs_diff(sent[1].1) < 90_000, "to the part's end: {found:?}");
    }
    // The second part's times go on from the first.
    assert!(second[0].cues[0].0 > first[0].cues[0].0 + 6_000);
    let made = fetched(&mut client, "/titles/joined/cmaf/subtitles/888.m3u8");
    assert!(made[jump].is_discontinuous);
    assert_eq!(all_cues(&made).len(), 4);
}

fn alternatives(answer: &Response) -> Vec<m3u8_rs::AlternativeMedia> {
    let list = m3u8_rs::parse_master_playlist_res(&answer.body).unwrap();
    let mut shown = list.variants.iter().filter(|variant| !variant.is_i_frame);
    assert!(shown.all(|variant| variant.subtitles.as_deref() == Some("subtitles")));
    let mut all = list.alternatives;
    all.retain(|one| one.media_type == AlternativeMediaType::Subtitles);
    all
}

#[test]
fn master_playlists_name_them() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    for (path, below) in [("index.m3u8", ""), ("cmaf.m3u8", "cmaf/")] {
        let list = alternatives(&client.get(&format!("/titles/film/{path}")));
        let told: Vec<_> = list
            .iter()
            .map(|one| {
                assert_eq!(
                    (one.default, one.autoselect, one.forced, &*one.group_id),
                    (false, true, false, "subtitles")
                );
                let is_for_hearing_impaired = one.characteristics.is_some();
                (&*one.name, one.language.as_deref(), one.uri.clone().unwrap(), is_for_hearing_impaired)
            })
            .collect();
        let expected = [
            ("German", Some("de"), format!("{below}subtitles/888.m3u8"), false),
            ("English (hearing impaired)", Some("en"), format!("{below}subtitles/777.m3u8"), true),
        ];
        assert_eq!(told, expected, "{path}");
    }
}

#[test]
fn subtitles_with_signed_link_are_accessible() {
    let rights = rights();
    let (_web, address, _) = serve_to(&films().site, WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    let link = rights.link("film", 600);
    let list = alternatives(&client.get(&format!("/titles/film/index.m3u8?{link}")));
    let playlist = client.get(&format!("/titles/film/{}", list[0].uri.as_ref().unwrap()));
    assert_eq!(playlist.status, 200);
    let uri = playlist.text().lines().find(|line| line.contains(".vtt")).unwrap().to_owned();
    let answer = client.get(&format!("/titles/film/subtitles/{uri}"));
    assert_eq!(
        (answer.status, answer.header("Cache-Control")),
        (200, Some("private, max-age=31536000, immutable"))
    );
    let (bare, _) = uri.split_once('?').unwrap();
    assert_eq!(client.get(&format!("/titles/film/subtitles/{bare}")).status, 401);
}

#[test]
fn subtitle_path_that_does_not_exist_returns_404() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let list = client.get("/titles/film/subtitles/888.m3u8").text().to_owned();
    let segment = list.lines().find(|line| line.ends_with(".vtt")).unwrap();
    let (version, _) = segment.split_once('/').unwrap();
    for path in [
        "/titles/film/subtitles/889.m3u8".to_owned(),
        "/titles/film/subtitles/100.m3u8".to_owned(),
        "/titles/film/subtitles/0888.m3u8".to_owned(),
        format!("/titles/film/subtitles/{version}/888/99.vtt"),
        format!("/titles/film/subtitles/{version}/889/0.vtt"),
        format!("/titles/film/cmaf/subtitles/{version}/888/0.vtt"),
        "/titles/film/subtitles/1.1-000000000000/888/0.vtt".to_owned(),
        "/titles/nothing/subtitles/888.m3u8".to_owned(),
    ] {
        let answer = client.get(&path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("\"error\""), "{path}");
    }
    let plain = MadeUp::with(vec![Film::pattern("plain", 100, Manner::Sends)]);
    let (_other, other, _) = serve(&plain, WebLimits::default());
    for path in ["/titles/plain/subtitles/888.m3u8", "/titles/plain/cmaf/subtitles/888.m3u8"] {
        let answer = Client::to(other).get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("no subtitles"), "{}", answer.text());
    }
    // A segment is available in parts, and is not sent again to a client that has it.
    let path = format!("/titles/film/subtitles/{segment}");
    let whole = client.get(&path);
    let part = client.ask("GET", &path, "Range: bytes=3-9\r\n");
    assert_eq!((part.status, &part.body[..]), (206, &whole.body[3..10]));
    let tag = whole.header("ETag").unwrap();
    assert_eq!(client.ask("GET", &path, &format!("If-None-Match: {tag}\r\n")).status, 304);
}

/// Stored text appears in the segments of its time, next to the teletext pages; replaced text gets
/// other addresses.
#[test]
fn text_that_is_kept_with_a_title_is_in_both_kinds_of_segments() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let list = alternatives(&client.get("/titles/texted/index.m3u8"));
    let text = list.iter().find(|one| one.uri.as_deref() == Some("subtitles/1000.m3u8")).expect("the track");
    assert_eq!((text.language.as_deref(), text.forced), (Some("de"), false));
    assert!(list.iter().any(|one| one.uri.as_deref() == Some("subtitles/888.m3u8")));
    let segments = fetched(&mut client, "/titles/texted/subtitles/1000.m3u8");
    let cue = |segment: &Listed| segment.cues.clone();
    let kept = vec![(5000, 7000, vec!["kept".to_owned()])];
    // The cue crosses the first cut.
    assert_eq!(segments.iter().map(cue).collect::<Vec<_>>(), [kept.clone(), kept, vec![], vec![], vec![]]);
    assert_eq!(segments[0].stamped[0].0, FIRST + 5 * 90_000);
    let made = all_cues(&fetched(&mut client, "/titles/texted/cmaf/subtitles/1000.m3u8"));
    assert_eq!(made.len(), 1);
    let version = client.get("/titles/texted/subtitles/1000.m3u8").text().to_owned();
    assert!(version.contains(".0123456789abcdef-"), "{version}");
    assert_eq!(client.get("/titles/texted/subtitles/1001.m3u8").status, 404);
    let whole = client.get("/titles/texted/subtitles/de.vtt");
    assert!(whole.text().starts_with("WEBVTT\n\n00:00:05.000"), "{}", whole.text());
    let tag = whole.header("ETag").unwrap().to_owned();
    let again = client.ask("GET", "/titles/texted/subtitles/de.vtt", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(again.status, 304);
}

/// Players of HLS, the page and programs read one list, with the rights that the title needs.
#[test]
fn chapters_of_a_title_are_listed_for_players_and_programs() {
    let site = &films().site;
    let end_s = (site.films["film"].info.duration.0 - 20 * 90_000) as f64 / 90_000.0;
    let rights = rights();
    let (_web, address, _) = serve_to(site, WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    let link = rights.link("film", 600);
    for master in ["index.m3u8", "cmaf.m3u8"] {
        let list = client.get(&format!("/titles/film/{master}?{link}"));
        let line = list.text().lines().find(|line| line.starts_with("#EXT-X-SESSION-DATA:")).unwrap();
        let uri = line.strip_prefix("#EXT-X-SESSION-DATA:DATA-ID=\"com.apple.hls.chapters\",URI=\"").unwrap();
        let answer = client.get(&format!("/titles/film/{}", uri.trim_end_matches('"')));
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("application/json")), "{uri}");
        let title = |text: &str| serde_json::json!([{ "language": "und", "title": text }]);
        let expected = serde_json::json!([
            { "chapter": 1, "start-time": 0.0, "duration": 10.0, "titles": title("Opening") },
            { "chapter": 2, "start-time": 10.0, "duration": 10.0, "titles": title("Chapter 2") },
            { "chapter": 3, "start-time": 20.0, "duration": end_s, "titles": title("\"The\" <end>") },
        ]);
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap(), expected);
    }
    assert_eq!(client.get("/titles/film/chapters.json").status, 401);
    let described = |client: &mut Client, name: &str| -> serde_json::Value {
        let path = format!("/api/v1/titles/{name}?{}", rights.link(name, 600));
        serde_json::from_slice(&client.get(&path).body).unwrap()
    };
    assert_eq!(described(&mut client, "film")["chapters"], "/titles/film/chapters.json");
    assert_eq!(described(&mut client, "joined")["chapters"], serde_json::Value::Null);
    let link = rights.link("joined", 600);
    let answer = client.get(&format!("/titles/joined/chapters.json?{link}"));
    assert_eq!(answer.status, 404, "{}", answer.text());
    assert!(!client.get(&format!("/titles/joined/index.m3u8?{link}")).text().contains("SESSION-DATA"));
}

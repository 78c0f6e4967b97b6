//! A real film as HLS: what players make of it, and whether it is the film.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use m3u8_rs::{MasterPlaylist, MediaPlaylist};
use millrace_core::time::MediaTicks;
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_store::volume::{Chapter, MediaReader, SubtitleTrack, Volume};
use millrace_web::WebLimits;
use tempfile::TempDir;

use super::client::Client;
use super::site::{Film, MadeUp, Manner, serve};
use super::subtitles::{self, FILM, FIRST, PART};

/// Runs ffmpeg or ffprobe, and returns its output.
pub(crate) fn run(program: &str, args: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(args).stdin(std::process::Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program}: {error}; these tests need ffmpeg: apt-get install ffmpeg")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.trim().is_empty(),
        "{program} {args:?}: {} {said}",
        output.status
    );
    output.stdout
}

/// Makes a transport stream of a moving picture and a tone.
fn make(path: &Path, seconds: u32, tone: u32, args: &[&str]) {
    let picture = format!("testsrc2=size=320x180:rate=25:duration={seconds}");
    let tone = format!("sine=frequency={tone}:duration={seconds}");
    let mut all =
        vec!["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &tone];
    all.extend(args);
    all.push(path.to_str().unwrap());
    run("ffmpeg", &all);
}

const H264: &[&str] = &[
    "-c:v",
    "libx264",
    "-preset",
    "ultrafast",
    "-pix_fmt",
    "yuv420p",
    "-g",
    "50",
    "-keyint_min",
    "50",
    "-sc_threshold",
    "0",
    "-c:a",
    "aac",
    "-ac",
    "2",
];

/// A title of the store, as the site has it.
pub(crate) fn taken_in(dir: &Path, path: &Path) -> Film {
    let volume = Volume::open_or_create(&dir.join("store")).unwrap();
    let info = ingest(&volume, path, &IngestOptions::default(), &mut |_| {}).unwrap();
    let mut media = MediaReader::open(&volume, info.id).unwrap();
    let mut bytes = vec![0; info.bytes as usize];
    media.read_exact(0, &mut bytes).unwrap();
    Film { info, index: Arc::clone(&media.files().index), bytes: bytes.into(), manner: Manner::Sends }
}

/// The same title with stored subtitles.
fn with_text(film: &Film) -> Film {
    let (mut info, index, bytes) = (film.info.clone(), Arc::clone(&film.index), Arc::clone(&film.bytes));
    info.name = "texted".to_owned();
    info.subtitles = vec![SubtitleTrack {
        label: "de".parse().unwrap(),
        name: None,
        file: "subtitles-de-0123456789abcdef.vtt".to_owned(),
        source: None,
        added_unix_s: 1,
    }];
    Film { info, index, bytes, manner: Manner::Sends }
}

pub(crate) struct Films {
    pub(crate) site: Arc<MadeUp>,
    pub(crate) dir: TempDir,
}

fn chapter(start_s: u64, title: &str) -> Chapter {
    Chapter { start: MediaTicks(start_s * 90_000), title: title.to_owned() }
}

/// `film` of 25 s; the same as `texted`, which is not listed; and `joined`, two recordings of 7 s
/// with unrelated clocks. All have subtitles.
pub(crate) fn films() -> &'static Films {
    static FILMS: OnceLock<Films> = OnceLock::new();
    FILMS.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        make(&path("film.ts"), 25, 440, H264);
        subtitles::add(&path("film.ts"), FIRST, FILM);
        make(&path("a.ts"), 7, 440, H264);
        subtitles::add(&path("a.ts"), FIRST, PART);
        let later = [H264, &["-output_ts_offset", "5000"]].concat();
        make(&path("b.ts"), 7, 660, &later);
        subtitles::add(&path("b.ts"), FIRST + 5000 * 90_000, PART);
        let both = [std::fs::read(path("a.ts")).unwrap(), std::fs::read(path("b.ts")).unwrap()].concat();
        std::fs::write(path("joined.ts"), both).unwrap();
        let mut film = taken_in(dir.path(), &path("film.ts"));
        let chapters = [(0, "Opening"), (10, ""), (20, "\"The\" <end>")];
        film.info.chapters = chapters.map(|(start_s, title)| chapter(start_s, title)).into();
        let texted = with_text(&film);
        let site = MadeUp::with(vec![film, texted, taken_in(dir.path(), &path("joined.ts"))]);
        site.hide("texted", true);
        Films { site, dir }
    })
}

fn master(client: &mut Client, path: &str) -> MasterPlaylist {
    let answer = client.get(path);
    assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("application/vnd.apple.mpegurl")));
    m3u8_rs::parse_master_playlist_res(&answer.body).unwrap()
}

fn media(client: &mut Client, path: &str) -> MediaPlaylist {
    let answer = client.get(path);
    assert_eq!((answer.status, answer.header("Cache-Control")), (200, Some("no-cache")));
    m3u8_rs::parse_media_playlist_res(&answer.body).unwrap()
}

#[test]
fn segments_are_the_stored_bytes_behind_tables() {
    let Films { site, .. } = films();
    let (_web, address, _) = serve(site, WebLimits::default());
    let mut client = Client::to(address);
    let list = master(&mut client, "/titles/film/index.m3u8");
    let [variant] = &list.variants[..] else { panic!("{list:?}") };
    assert!(list.independent_segments);
    assert_eq!(variant.codecs.as_deref(), Some("avc1.42c00c,mp4a.40.2"));
    assert_eq!(variant.resolution.map(|r| (r.width, r.height)), Some((320, 180)));
    assert_eq!(variant.frame_rate, Some(25.0));
    let list = media(&mut client, &format!("/titles/film/{}", variant.uri));
    assert!(list.end_list && list.playlist_type == Some(m3u8_rs::MediaPlaylistType::Vod));
    let rounded: Vec<_> = list.segments.iter().map(|segment| segment.duration.round() as u64).collect();
    assert_eq!((list.target_duration, rounded.len(), &rounded[..4]), (6, 5, &[6; 4][..]));
    let film = &site.films["film"].bytes;
    let mut whole = Vec::new();
    for segment in &list.segments {
        let path = format!("/titles/film/{}", segment.uri);
        let answer = client.get(&path);
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("video/mp2t")));
        assert_eq!(answer.header("Cache-Control"), Some("public, max-age=31536000, immutable"));
        let (tables, media) = answer.body.split_at(2 * 188);
        assert_eq!((&tables[..3], tables[188]), (&[0x47, 0x40, 0][..], 0x47));
        whole.extend_from_slice(media);
        // Each stands for itself: its first picture can be decoded.
        let one = films().dir.path().join(format!("one-{}.ts", whole.len()));
        std::fs::write(&one, &answer.body).unwrap();
        let first =
            ["-v", "error", "-select_streams", "v", "-show_entries", "packet=flags", "-of", "csv=p=0"];
        let flags =
            run("ffprobe", &[&first[..], &["-read_intervals", "%+#1", one.to_str().unwrap()]].concat());
        assert!(flags.starts_with(b"K"), "{}", String::from_utf8_lossy(&flags));

        // A part of it, across the seam.
        let part = client.ask("GET", &path, "Range: bytes=300-999\r\n");
        assert_eq!((part.status, part.body == answer.body[300..1000]), (206, true));
        let tables_only = client.ask("GET", &path, "Range: bytes=0-375\r\n");
        assert_eq!((tables_only.status, tables_only.body == answer.body[..376]), (206, true));
        assert_eq!(
            client.ask("HEAD", &path, "").header("Content-Length"),
            Some(&answer.body.len().to_string()[..])
        );
        let tag = answer.header("ETag").unwrap();
        assert_eq!(client.ask("GET", &path, &format!("If-None-Match: {tag}\r\n")).status, 304);
    }
    assert!(whole == film[..]);
    assert!(site.orders().iter().all(|order| !order.is_inside), "players' connections stay with the front");
    for path in [
        "/titles/film/hls/1-000000000000/0.ts",
        &format!("/titles/film/{}", list.segments[0].uri.replace("/0.ts", "/5.ts")),
        &format!("/titles/film/{}", list.segments[0].uri.replace("/0.ts", "/00.ts")),
        "/titles/nothing/index.m3u8",
        "/titles/nothing/media.m3u8",
        "/titles/film/other.m3u8",
    ] {
        assert_eq!(Client::to(address).get(path).status, 404, "{path}");
    }
    // A playlist that a viewer has is not sent again.
    let answer = client.get("/titles/film/media.m3u8");
    let tag = answer.header("ETag").unwrap();
    assert_eq!(
        client.ask("GET", "/titles/film/media.m3u8", &format!("If-None-Match: {tag}\r\n")).status,
        304
    );
}

/// Continuity counters of all PIDs run through the seams, but for duplicates, as ISO/IEC 13818-1 section 2.4.3.3 has them.
#[test]
fn counters_run_on_from_segment_to_segment() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let list = media(&mut client, "/titles/film/media.m3u8");
    let mut last = std::collections::HashMap::new();
    for segment in &list.segments {
        let body = client.get(&format!("/titles/film/{}", segment.uri)).body;
        for packet in body.chunks(188).filter(|packet| packet[3] & 0x10 != 0) {
            let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
            let before = last.insert(pid, packet.to_vec());
            let follows = before
                .is_none_or(|before| (before[3] + 1) & 0x0f == packet[3] & 0x0f || before[..] == packet[..]);
            assert!(follows || pid == 0x1fff, "PID {pid:#x} in {}", segment.uri);
        }
    }
}

fn pictures(url: &str) -> Vec<u8> {
    let args =
        ["-nostdin", "-v", "error", "-i", url, "-map", "0:v", "-vsync", "passthrough", "-f", "framemd5", "-"];
    let text = String::from_utf8(run("ffmpeg", &args)).unwrap();
    // The checksums alone: time stamps begin elsewhere.
    let sums =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit(", ").next().unwrap());
    sums.collect::<Vec<_>>().join("\n").into_bytes()
}

#[test]
fn ffmpeg_plays_every_picture_of_the_film() {
    let Films { site, dir } = films();
    let (_web, address, _) = serve(site, WebLimits::default());
    let source: PathBuf = dir.path().join("film.ts");
    let expected = pictures(source.to_str().unwrap());
    assert_eq!(expected.iter().filter(|&&b| b == b'\n').count(), 25 * 25 - 1);
    assert!(pictures(&format!("http://{address}/titles/film/index.m3u8")) == expected);
    assert!(pictures(&format!("http://{address}/titles/film.ts")) == expected);
    // And from the middle: the first picture behind the seek is the same.
    let url = format!("http://{address}/titles/film/index.m3u8");
    let frame = |input: &str| {
        let args = [
            "-nostdin",
            "-v",
            "error",
            "-ss",
            "14",
            "-i",
            input,
            "-map",
            "0:v",
            "-frames:v",
            "1",
            "-f",
            "rawvideo",
            "-",
        ];
        run("ffmpeg", &args)
    };
    assert!(frame(&url) == frame(source.to_str().unwrap()));
}

/// Where the clock jumps, the playlist marks it, and players play both parts.
#[test]
fn joined_recordings_have_a_discontinuity() {
    let Films { site, .. } = films();
    let (_web, address, _) = serve(site, WebLimits::default());
    let mut client = Client::to(address);
    let list = media(&mut client, "/titles/joined/media.m3u8");
    let marked: Vec<_> = list.segments.iter().map(|segment| segment.discontinuity).collect();
    assert_eq!(marked.iter().filter(|&&marked| marked).count(), 1, "{list:?}");
    let sum: f32 = list.segments.iter().map(|segment| segment.duration).sum();
    assert!((13.5..15.0).contains(&sum), "{sum}");
    let url = format!("http://{address}/titles/joined/index.m3u8");
    let args = [
        "-nostdin",
        "-v",
        "fatal",
        "-i",
        &url,
        "-map",
        "0:v",
        "-vsync",
        "passthrough",
        "-f",
        "framemd5",
        "-",
    ];
    let text = String::from_utf8(run("ffmpeg", &args)).unwrap();
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 2 * 7 * 25);
}

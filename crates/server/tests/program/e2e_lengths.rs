//! The length of a title as each face of the server gives it: `ls`, the API, the playlists of both kinds, and RTSP.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::http::{frames, get};
use crate::support::{Server, add, ok, read_message};
use serde_json::Value;

/// A picture of the films below.
const PICTURE_S: f64 = 0.04;
/// RTSP gives milliseconds, and playlists give six digits.
const ROUNDING_S: f64 = 0.001;

/// A film, and how far the sum of its samples may be from the length of its packets.
struct SourceFilm {
    name: &'static str,
    picture_s: u32,
    sound_s: u32,
    options: &'static [&'static str],
    samples_within_s: f64,
}

const FILMS: [SourceFilm; 4] = [
    SourceFilm {
        name: "plain.mp4",
        picture_s: 6,
        sound_s: 6,
        options: &["-bf", "0"],
        samples_within_s: PICTURE_S,
    },
    SourceFilm {
        name: "b-frames.mp4",
        picture_s: 6,
        sound_s: 6,
        options: &["-bf", "3"],
        samples_within_s: PICTURE_S,
    },
    // There is no PCR behind the last picture: the time of the packets that follow is known by their rate.
    SourceFilm {
        name: "long-sound.mp4",
        picture_s: 6,
        sound_s: 8,
        options: &["-bf", "3"],
        samples_within_s: 0.2,
    },
    // A decoder buffers 1.5 s. Sound ends with the frame that it began: two pictures.
    SourceFilm {
        name: "constant-rate.ts",
        picture_s: 6,
        sound_s: 6,
        options: &["-bf", "3", "-muxrate", "2M", "-muxdelay", "1.5", "-muxpreload", "1.5"],
        samples_within_s: 2.0 * PICTURE_S,
    },
];

impl SourceFilm {
    fn make(&self, path: &Path) {
        let picture = format!("testsrc2=size=160x90:rate=25:duration={}", self.picture_s);
        let sound = format!("sine=duration={}", self.sound_s);
        let done = Command::new("ffmpeg")
            .args([
                "-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &sound,
            ])
            .args(["-c:v", "libx264", "-preset", "veryfast", "-g", "50", "-c:a", "aac"])
            .args(self.options)
            .arg(path)
            .output()
            .expect("ffmpeg can be started");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

fn text(http: &mut TcpStream, path: &str) -> String {
    let (head, body) = get(http, path, "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
    String::from_utf8(body).unwrap()
}

/// Total length of a playlist's segments.
fn sum(playlist: &str) -> f64 {
    let lengths = playlist.lines().filter_map(|line| line.strip_prefix("#EXTINF:"));
    lengths.map(|length| length.trim_end_matches(',').parse::<f64>().unwrap()).sum()
}

/// Length of the longest track in fragmented MP4.
fn longest_track(http: &mut TcpStream, name: &str) -> f64 {
    let master = text(http, &format!("/titles/{name}/cmaf.m3u8"));
    let named = master.split('"').chain(master.lines());
    let tracks = named.filter(|part| part.starts_with("cmaf/") && part.contains(".m3u8"));
    let tracks: Vec<_> = tracks.filter(|track| !track.contains("stills")).map(str::to_owned).collect();
    assert!(tracks.len() >= 2, "{master}");
    tracks.iter().map(|track| sum(&text(http, &format!("/titles/{name}/{track}")))).fold(0.0, f64::max)
}

/// The end in `a=range`, to a player that ends by BYE.
fn announced_end(server: &Server, name: &str) -> f64 {
    let mut rtsp = TcpStream::connect(server.addr).unwrap();
    rtsp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let url = server.title(name);
    write!(rtsp, "DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\nUser-Agent: Lavf60.16.100\r\n\r\n").unwrap();
    let (_, sdp) = read_message(&mut rtsp);
    let range = sdp.lines().find_map(|line| line.strip_prefix("a=range:npt=0-")).expect("a range");
    range.trim().parse().unwrap()
}

/// How long FFmpeg takes a playlist for, and how much of it it shows from a second before its end on.
fn seen_by_ffmpeg(url: &str) -> (f64, usize) {
    let probe = Command::new("ffprobe")
        .args(["-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", url])
        .output()
        .expect("ffprobe can be started");
    let length: f64 = String::from_utf8_lossy(&probe.stdout).trim().parse().expect("a length");
    let from = format!("{}", length - 1.0);
    let end = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-ss", &from, "-i", url, "-map", "0:v", "-f", "framemd5", "-"])
        .output()
        .expect("ffmpeg can be started");
    let sums = String::from_utf8_lossy(&end.stdout).lines().filter(|line| !line.starts_with('#')).count();
    (length, sums)
}

#[test]
fn faces_give_one_length_of_title() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for film in &FILMS {
        let path = dir.path().join(film.name);
        film.make(&path);
        add(&path, &store);
    }
    let server = Server::start(&store, &["--http", "127.0.0.1:0", "--picture-space", "0B"]);
    let mut http = TcpStream::connect(server.page()).unwrap();
    http.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let listed: Value =
        serde_json::from_str(&ok(&["ls", "--json", "--store", store.to_str().unwrap()])).unwrap();
    let served: Value = serde_json::from_str(&text(&mut http, "/api/v1/titles")).unwrap();
    let length_in = |titles: &Value, name: &str| -> f64 {
        let title =
            titles.as_array().unwrap().iter().find(|title| title["name"] == name).expect("it is there");
        title["duration_s"].as_f64().unwrap()
    };
    for film in &FILMS {
        let name = Path::new(film.name).file_stem().unwrap().to_str().unwrap();
        let length = length_in(&listed, name);
        let longest = f64::from(film.picture_s.max(film.sound_s));
        assert!((length - longest).abs() <= film.samples_within_s, "{name}: {length} s");
        assert!((length_in(&served["titles"], name) - length).abs() <= ROUNDING_S, "{name}");

        let transport = sum(&text(&mut http, &format!("/titles/{name}/media.m3u8")));
        assert!(
            (transport - length).abs() <= ROUNDING_S,
            "{name}: {transport} s by HLS, {length} s in lists"
        );
        let fragmented = longest_track(&mut http, name);
        assert!((fragmented - length).abs() <= film.samples_within_s, "{name}: {fragmented} s of {length} s");

        // RTSP counts on the packets' clock: later by the decoder's delay, and never earlier.
        let end = announced_end(&server, name);
        assert!((length - ROUNDING_S..length + 2.0).contains(&end), "{name}: {end} s by RTSP, {length} s");

        let url = format!("http://{}/titles/{name}/media.m3u8", server.page());
        let pictures = usize::try_from(film.picture_s * 25).unwrap();
        assert_eq!(frames(&url).len(), pictures, "{name}");
        let (seen, at_end) = seen_by_ffmpeg(&url);
        assert!((seen - length).abs() <= ROUNDING_S + 1e-6, "{name}: {seen} s");
        // A second of pictures, or none where only sound is left; a seek begins at an access point.
        let expected = if film.sound_s > film.picture_s { 0..=50 } else { 24..=50 };
        assert!(expected.contains(&at_end), "{name}: {at_end} pictures");
    }
    fs::remove_dir_all(store).unwrap();
}

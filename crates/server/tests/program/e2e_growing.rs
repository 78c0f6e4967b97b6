//! Recordings are watched while they grow: from their beginning, by every protocol, with the bytes of the titles that they become.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::e2e_live::{DATAGRAM, Sender, Site, Viewer};
use crate::support::http::get;
use crate::support::real_disks::{Tmpfs, missing};
use crate::support::{Server, add, film, header, millrace, read_head, signal};

/// For things that must happen on their own within seconds, on a machine that has other things to do.
const TIMEOUT: Duration = Duration::from_secs(90);

/// ffmpeg as an encoder that sends a film by UDP, again and again; ended when dropped.
struct Encoder(Child);

impl Encoder {
    fn start(film: &PathBuf, site: &Site) -> Self {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i"]);
        ffmpeg.arg(film).args(["-c", "copy", "-f", "mpegts", &format!("udp://{}?pkt_size=1316", site.to)]);
        Self(ffmpeg.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(server: &Server, method: &str, path: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    read_head(&mut stream).split(' ').nth(1).unwrap().parse().unwrap()
}

fn record(server: &Server) {
    assert_eq!(ask(server, "PUT", "/live/news/recording", &json!({ "title": "News" }).to_string()), 201);
}

fn stop(server: &Server) {
    assert_eq!(ask(server, "DELETE", "/live/news/recording", ""), 200);
}

/// The title `news` in the list, if it is there.
fn title(server: &Server) -> Option<Value> {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (_, body) = get(&mut stream, "/api/v1/titles", "");
    let list: Value = serde_json::from_slice(&body).unwrap();
    list["titles"].as_array().unwrap().iter().find(|title| title["name"] == "news").cloned()
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the title is listed, and is or is not recorded any more.
fn until_listed(server: &Server, is_recording: bool) -> Value {
    until("the title is listed", || title(server).filter(|title| title["is_recording"] == is_recording))
}

fn file(server: &Server) -> Vec<u8> {
    get(&mut TcpStream::connect(server.page()).unwrap(), "/titles/news.ts", "").1
}

/// A viewer by HTTP that reads to the end.
fn http_viewer(server: &Server) -> JoinHandle<Vec<u8>> {
    let mut viewer = TcpStream::connect(server.page()).unwrap();
    viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(viewer, "GET /titles/news.ts HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let head = read_head(&mut viewer);
    assert!(head.starts_with("HTTP/1.1 200") && header(&head, "Content-Length").is_none(), "{head}");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        viewer.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// A viewer by RTSP that plays to the end.
struct RtspViewer {
    child: Child,
    file: PathBuf,
}

impl RtspViewer {
    fn start(site: &Site, transport: &str) -> Self {
        let file = site.dir.path().join(format!("{transport}.ts"));
        let mut play = millrace();
        play.args(["play", "--quiet", "--stats", "none", "--transport", transport, "--output"]).arg(&file);
        let child = play.arg(site.server.title("news")).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, file }
    }

    fn bytes(mut self) -> Vec<u8> {
        until("the viewer has ended", || self.child.try_wait().unwrap());
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(self.file).unwrap()
    }
}

/// Both are the same; a difference is named by its place.
fn assert_same(what: &str, found: &[u8], expected: &[u8]) {
    let place = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!((place, found.len()), (None, expected.len()), "{what}");
}

#[test]
fn recording_that_grows_is_watched_to_its_end_with_the_bytes_of_its_title() {
    let mut site = Site::start("udp");
    let film = site.film(10);
    let _encoder = Encoder::start(&film, &site);
    site.server.wait_for("media comes", TIMEOUT);
    record(&site.server);
    let growing = until_listed(&site.server, true);
    assert!(growing["began_unix_ms"].is_u64() && growing["cmaf"].is_null(), "{growing}");
    let viewers = [RtspViewer::start(&site, "udp"), RtspViewer::start(&site, "tcp")];
    let by_http = http_viewer(&site.server);
    // A viewer that seeks behind the end plays from the last access point there is.
    let mut sought = Viewer::of_title(&site, "news");
    let sdp = sought.describe();
    assert!(
        sdp.contains("a=range:npt=0-\r\n") && sdp.contains("a=x-millrace-recording:growing\r\n"),
        "{sdp}"
    );
    let (_, head) = sought.play("Range: npt=3600-\r\n");
    let range = header(&head, "Range").unwrap_or_else(|| panic!("{head}")).to_owned();
    assert!(range.starts_with("npt=") && range.ends_with('-'), "{range}");
    let sought = std::thread::spawn(move || sought.gets_bye());
    let began = title(&site.server).unwrap()["duration_s"].as_f64().unwrap();
    until("it grows", || {
        title(&site.server).filter(|title| title["duration_s"].as_f64().unwrap() > began + 8.0)
    });
    stop(&site.server);
    let stored = until_listed(&site.server, false);
    assert_eq!((&stored["id"], &stored["began_unix_ms"]), (&growing["id"], &growing["began_unix_ms"]));
    let bytes = file(&site.server);
    assert!(bytes.len() > 2_000_000, "{}", bytes.len());
    assert_same("by HTTP", &by_http.join().unwrap(), &bytes);
    for viewer in viewers {
        assert_same("by RTSP", &viewer.bytes(), &bytes);
    }
    assert!(sought.join().unwrap(), "BYE comes at the end");
}

/// Addresses of the segments in the playlist, and the playlist; `None` as long as there is none.
fn playlist(server: &Server) -> Option<(Vec<String>, String)> {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (head, body) = get(&mut stream, "/titles/news/media.m3u8", "");
    if head.starts_with("HTTP/1.1 503") {
        return None;
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let text = String::from_utf8(body).unwrap();
    // Each viewer has a session of its own behind its addresses.
    let text: String = text.lines().map(|line| format!("{}\n", line.split('?').next().unwrap())).collect();
    let segments = text.lines().filter(|line| line.ends_with(".ts")).map(str::to_owned).collect();
    Some((segments, text))
}

fn segment(server: &Server, address: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (head, body) = get(&mut stream, &format!("/titles/news/{address}"), "");
    assert!(head.starts_with("HTTP/1.1 200"), "{address}: {head}");
    body
}

#[test]
fn playlist_of_recording_that_grows_is_an_event_until_its_end() {
    let mut site = Site::start("udp");
    let film = site.film(30);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    record(&site.server);
    until_listed(&site.server, true);
    assert!(playlist(&site.server).is_none_or(|(segments, _)| !segments.is_empty()));
    let (segments, growing) = until("a segment", || playlist(&site.server));
    assert!(growing.contains("#EXT-X-PLAYLIST-TYPE:EVENT\n") && !growing.contains("ENDLIST"), "{growing}");
    assert!(growing.contains("#EXT-X-PROGRAM-DATE-TIME:20"), "{growing}");
    let before: Vec<_> = segments.iter().map(|address| segment(&site.server, address)).collect();
    // The one behind the list may become longer, so it is not given out.
    until("a segment that is not listed", || {
        let (listed, _) = playlist(&site.server)?;
        let folder = listed[0].rsplit_once('/').unwrap().0;
        let behind = format!("/titles/news/{folder}/{}.ts", listed.len());
        let mut stream = TcpStream::connect(site.server.page()).unwrap();
        let (head, _) = get(&mut stream, &behind, "");
        let (after, _) = playlist(&site.server)?;
        // The list did not become longer meanwhile.
        (after.len() == listed.len()).then(|| assert!(head.starts_with("HTTP/1.1 404"), "{behind}: {head}"))
    });
    let (more, longer) =
        until("another segment", || playlist(&site.server).filter(|(more, _)| more.len() > segments.len()));
    assert!(longer.starts_with(&growing), "{growing}{longer}");
    stop(&site.server);
    until_listed(&site.server, false);
    let (all, whole) = playlist(&site.server).unwrap();
    assert!(whole.ends_with("#EXT-X-ENDLIST\n") && all.starts_with(&more), "{longer}{whole}");
    let after: Vec<_> = segments.iter().map(|address| segment(&site.server, address)).collect();
    assert!(before == after, "the bytes of a segment have changed");
}

#[test]
fn viewer_of_recording_waits_while_its_source_is_silent() {
    let mut site = Site::start("udp");
    let film = site.film(20);
    let encoder = Encoder::start(&film, &site);
    site.server.wait_for("media comes", TIMEOUT);
    record(&site.server);
    until_listed(&site.server, true);
    let viewer = http_viewer(&site.server);
    signal(encoder.0.id(), "STOP");
    site.server.wait_for("silent: no media for 3 s", TIMEOUT);
    assert!(!viewer.is_finished(), "it waits");
    signal(encoder.0.id(), "CONT");
    let before = title(&site.server).unwrap()["bytes"].as_u64().unwrap();
    until("it grows", || {
        title(&site.server).filter(|title| title["bytes"].as_u64().unwrap() > before + 400_000)
    });
    assert!(!viewer.is_finished(), "it goes on");
    stop(&site.server);
    until_listed(&site.server, false);
    assert_same("by HTTP", &viewer.join().unwrap(), &file(&site.server));
}

#[test]
fn viewer_of_recording_that_is_removed_gets_what_there_was() {
    let mut site = Site::start("udp");
    let film = site.film(20);
    let _encoder = Encoder::start(&film, &site);
    site.server.wait_for("media comes", TIMEOUT);
    record(&site.server);
    until_listed(&site.server, true);
    let viewer = http_viewer(&site.server);
    assert_eq!(ask(&site.server, "DELETE", "/api/v1/titles/news", ""), 204);
    let bytes = viewer.join().unwrap();
    assert!(!bytes.is_empty() && bytes.len().is_multiple_of(DATAGRAM), "{}", bytes.len());
    assert!(bytes.chunks(188).all(|ts| ts[0] == 0x47));
    assert_eq!(title(&site.server), None);
    let tmp = site.dir.path().join("store/tmp");
    // From the answer on nothing is left that a crash could bring back.
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
    // The live title goes on, and can be recorded again.
    record(&site.server);
    until_listed(&site.server, true);
}

#[test]
fn removal_of_recording_leaves_another_title_of_its_name() {
    let mut site = Site::start("udp");
    let source = site.film(20);
    let _encoder = Encoder::start(&source, &site);
    site.server.wait_for("media comes", TIMEOUT);
    record(&site.server);
    let recorded = until_listed(&site.server, true)["id"].clone();
    // No stored title has the name yet, so one added by another program may.
    let copy = film(site.dir.path(), "news.ts", 6);
    add(&copy, &site.dir.path().join("store"));
    assert_eq!(ask(&site.server, "DELETE", "/api/v1/titles/news", ""), 204);
    assert_ne!(until_listed(&site.server, false)["id"], recorded);
}

#[test]
fn viewer_of_recording_that_fills_its_disk_gets_all_of_the_title() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&outside.path().join("disk"), "16m");
    let mut site = Site::in_dir(tempfile::tempdir_in(&disk.at).unwrap());
    let film = film(outside.path(), "film.ts", 20);
    let _encoder = Encoder::start(&film, &site);
    site.server.wait_for("media comes", TIMEOUT);
    std::fs::write(disk.at.join("filler"), vec![7; (11 << 20) + (512 << 10)]).unwrap();
    record(&site.server);
    until_listed(&site.server, true);
    let viewer = http_viewer(&site.server);
    site.server.wait_for("a recording ends: the disks are full", TIMEOUT);
    until_listed(&site.server, false);
    assert_same("by HTTP", &viewer.join().unwrap(), &file(&site.server));
}

//! Recordings of live titles: made by the API and the command, complete at their end, and not lost with the server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::http::get;
use crate::support::real_disks::{Tmpfs, missing};
use crate::support::{Server, film};

/// For things that must happen on their own within seconds, on a machine that has other things to do.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and a film that ffmpeg brings it as the live title `news` in its own time.
struct Site {
    server: Server,
    dir: tempfile::TempDir,
}

impl Site {
    fn start() -> Self {
        Self::on(tempfile::tempdir().unwrap())
    }

    fn on(dir: tempfile::TempDir) -> Self {
        let server = Server::start(&dir.path().join("store"), &[]);
        Self { server, dir }
    }

    /// The same store with another server; this one ends after a signal, or is killed.
    fn restarted(self, is_killed: bool) -> Self {
        let Self { mut server, dir } = self;
        if !is_killed {
            assert!(server.interrupt(), "it ends well");
            assert_eq!(
                std::fs::read_dir(dir.path().join("store/tmp")).unwrap().count(),
                0,
                "nothing is left to do"
            );
        }
        drop(server);
        let server = Server::start(&dir.path().join("store"), &[]);
        Self { server, dir }
    }

    fn api(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(self.server.page()).unwrap();
        let (_, body) = get(&mut stream, path, "");
        serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body:?}"))
    }

    /// A request with a body; returns status and answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.server.page()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        (status, serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}")))
    }

    fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < end, "{what}: {}", self.api("/api/v1/live"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this many bytes are recorded.
    fn until_recorded(&self, bytes: u64) {
        self.until("recorded", |site| {
            let live = site.api("/api/v1/live");
            live["live"][0]["recording"]["bytes"].as_u64().filter(|&found| found >= bytes)
        });
    }

    /// The bytes of the recorded title when it is listed.
    fn recorded(&self, title: &str) -> Vec<u8> {
        let name = self.until("a title", |site| {
            let titles = site.api("/api/v1/titles");
            let titles = titles["titles"].as_array().unwrap().clone();
            let is_it = |found: &Value| found["title"] == title && found["is_recording"] == false;
            let found = titles.into_iter().find(is_it)?;
            found["name"].as_str().map(str::to_owned)
        });
        let mut stream = TcpStream::connect(self.server.page()).unwrap();
        get(&mut stream, &format!("/titles/{name}.ts"), "").1
    }
}

/// ffmpeg as a client that brings a film in its own time, again and again; ended when dropped.
struct Encoder(std::process::Child);

impl Encoder {
    fn start(site: &Site) -> Self {
        Self::times(site, "-1")
    }

    /// The film once, and this often again.
    fn times(site: &Site, more: &str) -> Self {
        let film = film(site.dir.path(), "film.ts", 6);
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error", "-re", "-stream_loop", more, "-i"]);
        ffmpeg.arg(film).args(["-c", "copy", "-f", "mpegts"]);
        ffmpeg.arg(format!("http://{}/live/news", site.server.page()));
        let encoder = Self(ffmpeg.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        site.until("media", |site| (site.api("/api/v1/live")["live"][0]["state"] == "running").then_some(()));
        encoder
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pictures that ffmpeg decodes, and its complaints.
fn decoded(site: &Site, bytes: &[u8]) -> (usize, String) {
    let file = site.dir.path().join("recorded.ts");
    std::fs::write(&file, bytes).unwrap();
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error", "-i"]).arg(&file);
    let output = ffmpeg.args(["-map", "0:v", "-f", "framemd5", "-"]).output().unwrap();
    let frames =
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.starts_with('#')).count();
    (frames, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The first packet of a picture where decoding can start has the tables in front, and no packet is missing.
fn assert_whole(bytes: &[u8]) {
    let pid = |ts: &[u8]| u16::from_be_bytes([ts[1] & 0x1f, ts[2]]);
    assert_eq!(bytes.chunks(188).map(pid).take(3).collect::<Vec<_>>(), [0, 0x1000, 0x100]);
    let mut next = None;
    for packet in bytes.chunks(188).filter(|packet| pid(packet) == 0x100 && packet[3] & 0x10 != 0) {
        let counter = packet[3] & 0x0f;
        assert!(next.is_none_or(|next| next == counter), "a packet is missing");
        next = Some((counter + 1) & 0x0f);
    }
}

#[test]
fn planned_recording_is_made_when_its_source_comes_and_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    // Since an hour, so that it can begin as soon as there is a source; a day has only one such hour.
    let begun_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - 3600;
    let (hour, minute) = (begun_s / 3600 % 24, begun_s / 60 % 60);
    let plan = format!(
        "[[record]]\nlive = \"news\"\nat = \"{hour:02}:{minute:02}\"\nfor = \"2h\"\ntitle = \"Evening\"\nzone = \"UTC\"\n"
    );
    let config = dir.path().join("millrace.toml");
    std::fs::write(&config, plan).unwrap();
    let options = ["--config", config.to_str().unwrap()];
    let store = dir.path().join("store");
    let mut site = Site { server: Server::start(&store, &options), dir };
    let refused = "live source news: the planned recording cannot begin: no such live title";
    if site.server.said(refused).is_empty() {
        site.server.wait_for(refused, TIMEOUT);
    }
    let encoder = Encoder::start(&site);
    let ends = site.until("a recording", |site| {
        site.api("/api/v1/live")["live"][0]["recording"]["ends_unix_s"].as_u64()
    });
    assert!((7138..=7201).contains(&(ends - begun_s)), "{ends} is two hours after {begun_s}");
    site.until_recorded(500_000);
    let Site { mut server, dir } = site;
    assert!(server.interrupt());
    drop((server, encoder));
    let site = Site { server: Server::start(&store, &options), dir };
    let _encoder = Encoder::start(&site);
    site.until_recorded(1);
    let titles = site.api("/api/v1/titles");
    let names = titles["titles"].as_array().unwrap().iter().map(|title| title["title"].as_str().unwrap());
    let first = names.filter(|name| name.starts_with("Evening 20")).min_by_key(|name| name.len()).unwrap();
    assert!(site.recorded(first).len() >= 500_000, "{titles}");
    // Stopped by hand: the plan has had its recording.
    let (status, _) = site.ask("DELETE", "/live/news/recording", "");
    assert_eq!(status, 200);
    site.until("the second title", |site| {
        let titles = site.api("/api/v1/titles");
        let titles = titles["titles"].as_array().unwrap().clone();
        let whole = titles.iter().filter(|title| title["is_recording"] == false).count();
        (whole == 2).then_some(())
    });
    assert!(site.api("/api/v1/live")["live"][0]["recording"].is_null());
}

#[test]
fn recording_by_api_is_a_title_with_every_packet_when_it_is_stopped() {
    let site = Site::start();
    assert_eq!(site.ask("PUT", "/live/news/recording", "").0, 404, "there is no such source");
    let _encoder = Encoder::start(&site);
    let (status, begun) = site.ask("PUT", "/live/news/recording", &json!({ "title": "News" }).to_string());
    assert_eq!((status, &begun["title"]), (201, &json!("News")), "{begun}");
    assert_eq!(site.ask("PUT", "/live/news/recording", "").0, 409, "a second one");
    assert_eq!(site.ask("PUT", "/live/news/recording", "{\"for_s\": 0}").0, 400);
    site.until_recorded(600_000);
    assert_eq!(site.api("/live/news/recording")["title"], "News");
    let (status, ended) = site.ask("DELETE", "/live/news/recording", "");
    assert_eq!((status, &ended["lost_bytes"]), (200, &json!(0)), "{ended}");
    let bytes = site.recorded("News");
    assert!(bytes.len() as u64 >= 600_000, "{}", bytes.len());
    assert_whole(&bytes);
    let (frames, errors) = decoded(&site, &bytes);
    assert_eq!(errors, "");
    // The film has 25 pictures a second, in 2 Mb/s.
    let expected = bytes.len() * 8 * 25 / 2_000_000;
    assert!(frames.abs_diff(expected) < 50, "{frames} pictures in {} bytes", bytes.len());
    assert_eq!(site.ask("DELETE", "/live/news/recording", "").0, 404, "it has ended");
    // The live title went on.
    assert_eq!(site.api("/api/v1/live")["live"][0]["state"], "running");
}

#[test]
fn recording_by_command_ends_after_its_time_when_stopped_or_with_its_source() {
    let site = Site::start();
    let record = |args: &[&str]| {
        let mut millrace = Command::new(env!("CARGO_BIN_EXE_millrace"));
        millrace.args(["record", "--server", &format!("http://{}/", site.server.page()), "news"]).args(args);
        let output = millrace.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let encoder = Encoder::start(&site);
    let (is_good, text) = record(&["--for", "2s", "--title", "Two seconds"]);
    assert!(is_good && text.starts_with("Two seconds: recording begins"), "{text}");
    assert_whole(&site.recorded("Two seconds"));
    let (is_good, text) = record(&["--stop"]);
    assert!(!is_good && text.contains("not recorded"), "{text}");
    let (is_good, text) = record(&["--title", "Until stopped"]);
    assert!(is_good, "{text}");
    site.until_recorded(300_000);
    // Its connection is broken, and it is waited for.
    drop(encoder);
    let (is_good, text) = record(&["--stop"]);
    assert!(is_good && text.starts_with("Until stopped: "), "{text}");
    assert_whole(&site.recorded("Until stopped"));
    // This one ends in good order.
    let _encoder = Encoder::times(&site, "0");
    let (is_good, text) = record(&["--title", "Until the end"]);
    assert!(is_good, "{text}");
    assert_whole(&site.recorded("Until the end"));
}

#[test]
fn recording_of_a_killed_server_is_a_title_after_the_next_start() {
    let site = Site::start();
    let encoder = Encoder::start(&site);
    let (status, _) = site.ask("PUT", "/live/news/recording", &json!({ "title": "News" }).to_string());
    assert_eq!(status, 201);
    site.until_recorded(900_000);
    let site = site.restarted(true);
    drop(encoder);
    let bytes = site.recorded("News");
    // The media of the last second before the kill may be missing: 250 KB.
    assert!(bytes.len() >= 600_000, "{}", bytes.len());
    assert_whole(&bytes);
    let store = site.dir.path().join("store/tmp");
    site.until("the remains to go", |_| (std::fs::read_dir(&store).unwrap().count() == 0).then_some(()));
}

#[test]
fn recording_that_runs_when_the_server_ends_is_a_title() {
    let site = Site::start();
    let _encoder = Encoder::start(&site);
    assert_eq!(site.ask("PUT", "/live/news/recording", &json!({ "title": "News" }).to_string()).0, 201);
    site.until_recorded(300_000);
    let site = site.restarted(false);
    let bytes = site.recorded("News");
    assert!(bytes.len() >= 300_000, "{}", bytes.len());
    assert_whole(&bytes);
}

#[test]
fn recording_that_fills_its_disk_ends_as_a_title_and_the_live_title_goes_on() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&outside.path().join("disk"), "16m");
    let site = Site::on(tempfile::tempdir_in(&disk.at).unwrap());
    let _encoder = Encoder::start(&site);
    // The film has 1.5 MB, the reserve is a twentieth, and a recording leaves 2 MiB beside it: a mebibyte is left.
    std::fs::write(disk.at.join("filler"), vec![7; (10 << 20) + (512 << 10)]).unwrap();
    assert_eq!(site.ask("PUT", "/live/news/recording", &json!({ "title": "News" }).to_string()).0, 201);
    let bytes = site.recorded("News");
    assert!((256 << 10..4 << 20).contains(&bytes.len()), "{}", bytes.len());
    assert_whole(&bytes);
    assert_eq!(site.api("/api/v1/live")["live"][0]["state"], "running");
    let (status, answer) = site.ask("PUT", "/live/news/recording", "");
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(status == 507 && why.contains("disks are full"), "{status} {why}");
}

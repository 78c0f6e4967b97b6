//! Speeds that titles do not have are made because viewers ask for them, with a real server: the
//! next viewer has them, they go when their space is needed, and nothing is left of an unfinished
//! one, however it ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::support::{Server, add, film, millrace, ok, play, run, volume};
use millrace_make::trick::make_on_use;
use millrace_store::volume::Volume;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const PICTURES: &str = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=8";
const TONES: &str = "-f lavfi -i sine=frequency=440:duration=8";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A store with one title, `film`.
struct Site {
    dir: tempfile::TempDir,
    store: PathBuf,
}

impl Site {
    /// Of 16 s, `times` behind each other.
    fn new(times: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Self { store: dir.path().join("store"), dir };
        let source = film(site.dir.path(), "film.ts", 16);
        let bytes = fs::read(&source).unwrap();
        fs::write(&source, bytes.repeat(times)).unwrap();
        add(&source, &site.store);
        site
    }

    /// A transport stream that ffmpeg makes of these arguments.
    fn made_by_ffmpeg(&self, name: &str, arguments: &str) -> PathBuf {
        let file = self.dir.path().join(format!("{name}.ts"));
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error"]).args(arguments.split_whitespace()).arg(&file);
        let status = ffmpeg.status().expect("these tests need ffmpeg: apt-get install ffmpeg");
        assert!(status.success(), "ffmpeg {arguments}");
        file
    }

    fn stats(&self) -> PathBuf {
        self.dir.path().join("stats.json")
    }

    fn server(&self, more: &[&str]) -> Server {
        let stats = self.stats();
        Server::start(&self.store, &[&["--stats", text(&stats)], more].concat())
    }

    /// Waits until the counters are so.
    fn wait_for_counters(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + LIMIT;
        loop {
            let all: Value = serde_json::from_slice(&fs::read(self.stats()).unwrap()).unwrap();
            if is_so(&all["made_on_use"]) {
                return all["made_on_use"].clone();
            }
            assert!(Instant::now() < end, "{all}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All titles, as `ls` lists them.
    fn listed(&self) -> Vec<Value> {
        let list: Value =
            serde_json::from_str(&ok(&["ls", "--all", "--json", "--store", text(&self.store)])).unwrap();
        list.as_array().unwrap().clone()
    }

    fn names(&self) -> Vec<String> {
        self.listed().iter().map(|title| title["name"].as_str().unwrap().to_owned()).collect()
    }

    fn entries(&self, dir: &str) -> usize {
        fs::read_dir(self.store.join(dir)).unwrap().count()
    }

    /// Returns the most space that a speed may take, as calculated before it is written.
    fn most_bytes(&self, speed: &str) -> u64 {
        let volume = Volume::open(&self.store).unwrap();
        let parent = volume.find("film").unwrap().unwrap();
        let (cancel, mut most) = (AtomicBool::new(false), 0);
        let mut ask = |bytes| {
            most = bytes;
            false
        };
        make_on_use(&volume, &parent, speed.parse().unwrap(), &cancel, &mut |_| {}, &mut ask).unwrap_err();
        most
    }

    fn is_sound(&self) {
        assert!(ok(&["fsck", "--store", text(&self.store)]).contains("no problem"));
    }
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A player that plays on while the test goes on.
struct Viewer(Child);

impl Viewer {
    fn start(server: &Server, more: &[&str]) -> Self {
        let mut player = millrace();
        player.args(["play", &server.title("film"), "--transport", "tcp", "-o", "null"]).args(more);
        Self(player.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays for a moment at a speed; the one that it got, in hundredths.
fn speed(server: &Server, speed: &str) -> i64 {
    let report =
        play(&[&server.title("film"), "--start", "8s", "--scale", speed, "--duration", "1s", "-o", "null"]);
    report["place"]["scale_hundredths"].as_i64().unwrap_or_else(|| panic!("{report}"))
}

/// Waits until the server has made it.
fn made(server: &mut Server, speed: &str) {
    server.wait_for(&format!("film at speed {speed}: made in"), LIMIT);
}

#[test]
fn speed_request_makes_title_for_next_viewer() {
    let site = Site::new(1);
    ok(&["trick", "film", "--speeds=4", "--quiet", "--store", text(&site.store)]);
    let mut server = site.server(&[]);
    assert_eq!(speed(&server, "8"), 400, "the nearest there is");
    made(&mut server, "8");
    assert_eq!(speed(&server, "8"), 800);
    // 456 as long as there is nothing that goes backwards.
    let refused = run(&["play", &server.title("film"), "--start", "8s", "--scale", "-3", "--duration", "1s"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("456"), "{refused:?}");
    made(&mut server, "-4");
    assert_eq!(speed(&server, "-3"), -400, "a usual speed was made");
    let counters = site.wait_for_counters(|counters| counters["made"] == 2);
    assert_eq!(
        (&counters["wishes"], &counters["titles"], &counters["failed"]),
        (&2.into(), &2.into(), &0.into())
    );
    assert_eq!(counters["made_bytes"], counters["held_bytes"]);
    let of_viewers = |title: &Value| title["derived"]["on_use"] == true && title["last_used_unix_s"].is_u64();
    let (made, others): (Vec<_>, Vec<_>) = site.listed().into_iter().partition(of_viewers);
    let names = |titles: Vec<Value>| {
        titles.iter().map(|title| title["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names(made), names(others)),
        (vec!["film@-4".to_owned(), "film@8".to_owned()], vec!["film".to_owned(), "film@4".to_owned()])
    );
    assert_eq!(
        ok(&["ls", "--all", "--store", text(&site.store)]).matches("made on use, last watched").count(),
        2
    );
    assert!(server.interrupt(), "{:?}", server.log);
    assert!(
        server.said("being made").len() == 2 && server.said("cannot be made").is_empty(),
        "{:?}",
        server.log
    );
    site.is_sound();
    ok(&["rm", "film", "--quiet", "--store", text(&site.store)]);
    assert_eq!(site.entries("titles"), 0);
}

#[test]
fn trick_space_when_full_evicts_least_recently_watched() {
    let site = Site::new(1);
    ok(&["trick", "film", "--speeds=2", "--quiet", "--store", text(&site.store)]);
    let space = site.most_bytes("8").max(site.most_bytes("0.5"));
    let mut server = site.server(&["--trick-space", &format!("{space}B")]);
    assert_eq!(speed(&server, "8"), 200);
    made(&mut server, "8");
    assert_eq!(speed(&server, "8"), 800);
    assert_eq!(speed(&server, "0.5"), 100);
    server.wait_for("film@8: removed", LIMIT);
    made(&mut server, "0.5");
    assert_eq!(site.names(), ["film", "film@0.5", "film@2"], "what an operator has asked for stays");
    let counters = site.wait_for_counters(|counters| counters["evicted"] == 1 && counters["titles"] == 1);
    assert!(counters["held_bytes"].as_u64() <= Some(space), "{counters} {space}");
    // Its space is free: no process has its files open.
    let fds = format!("/proc/{}/fd", server.child.id());
    let deleted = || -> Vec<PathBuf> {
        let open = fs::read_dir(&fds).unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        open.filter(|path| path.starts_with(&site.store) && text(path).ends_with("(deleted)")).collect()
    };
    let end = Instant::now() + LIMIT;
    while !deleted().is_empty() {
        assert!(Instant::now() < end, "{:?}", deleted());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.interrupt(), "{:?}", server.log);
    site.is_sound();
}

#[test]
fn trick_space_when_full_keeps_titles_being_watched() {
    let site = Site::new(1);
    let space = site.most_bytes("0.25");
    let mut server = site.server(&["--trick-space", &format!("{space}B")]);
    assert_eq!(speed(&server, "0.25"), 100);
    made(&mut server, "0.25");
    let viewer = Viewer::start(&server, &["--scale", "0.25"]);
    server.wait_for("film from 0:00:00.000 at speed 0.25", LIMIT);
    assert_eq!(speed(&server, "0.5"), 25);
    server.wait_for("all that could be removed for it is being watched", LIMIT);
    drop(viewer);
    assert!(server.interrupt(), "{:?}", server.log);
    assert_eq!(site.names(), ["film", "film@0.25"]);
    // One that has no space at all is not begun again.
    let mut server = site.server(&["--trick-space", "1KiB"]);
    server.wait_for("film@0.25: removed", LIMIT);
    assert_eq!(speed(&server, "0.25"), 100);
    server.wait_for("raise --trick-space", LIMIT);
    assert_eq!(speed(&server, "0.25"), 100);
    site.wait_for_counters(|counters| counters["failed"] == 1 && counters["waiting"] == 0);
    assert!(server.interrupt(), "{:?}", server.log);
    assert_eq!(server.said("being made").len(), 1, "{:?}", server.log);
    // Nor is anything made, or removed, where none is allowed.
    let mut server = site.server(&["--trick-space", "0B"]);
    assert_eq!(speed(&server, "0.25"), 100);
    assert!(server.interrupt() && server.said("being made").is_empty(), "{:?}", server.log);
}

#[test]
fn speed_request_for_unsupported_codec_is_tried_once() {
    let site = Site::new(1);
    add(&site.made_by_ffmpeg("old", &format!("{PICTURES} -c:v mpeg4")), &site.store);
    let mut server = site.server(&[]);
    let ask = |server: &Server, speed: &str| {
        play(&[&server.title("old"), "--scale", speed, "--duration", "1s", "-o", "null"]);
    };
    ask(&server, "8");
    server.wait_for("old at speed 8: cannot be made: its pictures are MPEG-4 video", LIMIT);
    ask(&server, "8");
    ask(&server, "16");
    // Others are made all the same.
    speed(&server, "8");
    made(&mut server, "8");
    let counters = site.wait_for_counters(|counters| counters["made"] == 1);
    assert_eq!((&counters["wishes"], &counters["failed"]), (&2.into(), &1.into()), "{counters}");
    assert!(server.interrupt(), "{:?}", server.log);
    assert_eq!(server.said("cannot be made").len(), 1, "{:?}", server.log);
}

/// A viewer of a title in bad condition gets the nearest available speed, or a refusal if there is
/// none; the server reports the cause.
#[test]
fn speed_request_for_unusable_title_gets_nearest_speed_or_refusal() {
    let site = Site::new(1);
    let encoded = "-c:v libx264 -preset ultrafast -g 25 -c:a aac";
    add(&site.made_by_ffmpeg("radio", &format!("{TONES} -c:a aac")), &site.store);
    let hidden = site.made_by_ffmpeg("hidden", &format!("{PICTURES} {TONES} {encoded}"));
    let mut bytes = fs::read(&hidden).unwrap();
    let of_pictures = |packet: &&mut [u8]| packet[1] & 0x1f == 1 && packet[2] == 0;
    bytes.chunks_exact_mut(188).filter(of_pictures).for_each(|packet| packet[3] |= 0x80);
    fs::write(&hidden, bytes).unwrap();
    add(&hidden, &site.store);
    let worn = site.made_by_ffmpeg("worn", &format!("{PICTURES} {TONES} {encoded}"));
    add(&worn, &site.store);
    let is_worn = |title: &Value| title["name"] == "worn";
    let id = site.listed().into_iter().find(is_worn).unwrap()["id"].as_str().unwrap().to_owned();
    let data = site.store.join("titles").join(id).join("data.ts");
    let mut bytes = fs::read(&data).unwrap();
    let last = bytes.len() - 1000;
    bytes[last] ^= 1;
    fs::write(&data, bytes).unwrap();
    let two = "-map 0 -map 1 -map 2 -map 3 -program program_num=7:st=0:st=1 -program program_num=9:st=2:st=3";
    let pair = format!("{PICTURES} {TONES} {PICTURES} {TONES} {two} {encoded}");
    add(&site.made_by_ffmpeg("pair", &pair), &site.store);
    let mut server = site.server(&[]);
    let fast = |server: &Server, name: &str| {
        let report = play(&[
            &server.title(name),
            "--scale",
            "8",
            "--start",
            "1s",
            "--duration",
            "500ms",
            "-o",
            "null",
        ]);
        assert_eq!(report["sequence"]["lost"], 0, "{name}: {report}");
        report["place"]["scale_hundredths"].as_i64().unwrap_or_else(|| panic!("{name}: {report}"))
    };
    for (name, why) in [
        ("radio", "it has no video"),
        ("hidden", "its pictures are scrambled"),
        ("worn", "is not what was ingested; run millrace scrub"),
    ] {
        assert_eq!(fast(&server, name), 100, "{name}");
        let line = server.wait_for(&format!("{name} at speed 8: cannot be made"), LIMIT);
        assert!(line.contains(why), "{line}");
        assert_eq!(fast(&server, name), 100, "{name}");
        let refused = run(&["play", &server.title(name), "--scale=-8", "--duration", "1s", "-o", "null"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("456"), "{name}: {refused:?}");
    }
    assert_eq!(fast(&server, "pair"), 100);
    server.wait_for("pair at speed 8: made in", LIMIT);
    assert_eq!(fast(&server, "pair"), 800);
    assert!(server.interrupt(), "{:?}", server.log);
    assert_eq!(server.said("cannot be made").len(), 3, "{:?}", server.log);
}

#[test]
fn speed_request_with_missing_member_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let members: Vec<PathBuf> = (0..3).map(|i| dir.path().join(format!("disk-{i}"))).collect();
    volume(&members, 1);
    add(&film(dir.path(), "film.ts", 16), &members[0]);
    fs::rename(&members[2], dir.path().join("gone")).unwrap();
    let mut server = Server::start(&members[0], &[]);
    assert_eq!((speed(&server, "8"), speed(&server, "16")), (100, 100));
    server.wait_for("no titles are built for requested speeds", LIMIT);
    assert!(server.interrupt(), "{:?}", server.log);
    assert_eq!(server.said("no titles are built").len(), 1, "once: {:?}", server.log);
    assert!(server.said("being made").is_empty());
}

/// A server that is writing a title: there is a directory of it, and it will take seconds.
fn writing(site: &Site) -> (Server, Viewer) {
    let mut server = site.server(&[]);
    let viewer = Viewer::start(&server, &["--scale", "0.5"]);
    server.wait_for("film at speed 0.5: being made", LIMIT);
    until("nothing is written", || site.entries("tmp") > 0);
    (server, viewer)
}

#[test]
fn interrupted_speed_build_leaves_nothing_behind() {
    let site = Site::new(30);
    // The server ends.
    let (mut server, viewer) = writing(&site);
    assert!(server.interrupt(), "{:?}", server.log);
    drop(viewer);
    assert!(server.said("is blocked").is_empty() && server.said("made in").is_empty(), "{:?}", server.log);
    assert_eq!((site.entries("tmp"), site.names()), (0, vec!["film".to_owned()]));
    // It is killed.
    let (mut server, viewer) = writing(&site);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(viewer);
    assert!(site.entries("tmp") > 0 && server.said("made in").is_empty());
    assert_eq!(
        (site.names(), site.entries("tmp")),
        (vec!["film".to_owned()], 0),
        "the next look puts it in order"
    );
    site.is_sound();
    // The title goes.
    let (mut server, viewer) = writing(&site);
    ok(&["rm", "film", "--quiet", "--store", text(&site.store)]);
    until("what is made of a title that was removed is left", || site.entries("tmp") == 0);
    assert_eq!(site.entries("titles"), 0);
    drop(viewer);
    assert!(server.interrupt(), "{:?}", server.log);
    assert!(
        server.said("made in").is_empty() && server.said("cannot be made").is_empty(),
        "{:?}",
        server.log
    );
    site.is_sound();
}

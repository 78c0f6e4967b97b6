//! Other speeds with a real server, real sockets and our own receiver: what shows the title at another speed arrives byte for byte, and the
//! numbers of its packets go on from speed to speed.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_client::TransportChoice;
use millrace_client::load::{LoadOptions, load};
use millrace_store::format::manifest::Manifest;
use serde_json::Value;
use support::{Server, film, ok, play};

/// A store with one title, and what was made of it.
struct Site {
    dir: tempfile::TempDir,
    store: PathBuf,
}

impl Site {
    /// `film`, 16 s, at four times the speed in either direction.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Self { store: dir.path().join("store"), dir };
        let source = film(site.dir.path(), "film.ts", 16);
        ok(&["add", "--quiet", "--trick=4,-4", text(&source), "--store", text(&site.store)]);
        site
    }

    /// The file that holds what is sent of a title.
    fn data(&self, name: &str) -> String {
        let mut dirs = fs::read_dir(self.store.join("titles")).unwrap().map(|entry| entry.unwrap().path());
        let is_named = |dir: &PathBuf| {
            let manifest = Manifest::decode(&fs::read(dir.join("manifest.mrm")).unwrap()).unwrap();
            manifest.title.name == name
        };
        let dir = dirs.find(is_named).expect("a title of this name");
        text(&dir.join("data.ts")).to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_shows_the_title_faster_arrives_byte_for_byte() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    for (transport, scale, start, shown) in
        [("udp", "4", "0s", "film@4"), ("tcp", "4", "0s", "film@4"), ("udp", "-4", "16s", "film@-4")]
    {
        let (out, data) = (site.file("out.ts"), site.data(shown));
        let report = play(&[
            &server.title("film"),
            "--transport",
            transport,
            "--start",
            start,
            "--scale",
            scale,
            "-o",
            text(&out),
            "--verify",
            &data,
        ]);
        assert_eq!(fs::read(&out).unwrap(), fs::read(&data).unwrap(), "{transport} {scale}: {report}");
        assert_eq!(
            (&report["sequence"]["lost"], &report["rtp_info_exact"]),
            (&0.into(), &true.into()),
            "{report}"
        );
        // Backwards it stands at the beginning, and nobody says that it is over.
        assert_eq!(report["bye"].is_null(), scale == "-4", "{report}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn numbers_go_on_from_speed_to_speed() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    for transport in ["udp", "tcp"] {
        let script = "scale@1.5=4,scale@3=-4,pause@4,play@4.5,scale@5.5=1";
        let report =
            play(&[&server.title("film"), "--transport", transport, "--do", script, "--duration", "7s"]);
        assert_eq!(report["sequence"]["lost"], 0, "{transport}: {report}");
        assert_eq!(report["sequence"]["restarts"], 0, "{transport}: {report}");
        let plays = report["plays"].as_array().unwrap();
        assert_eq!(plays.len(), 5, "{report}");
        let number = |play: &Value, key: &str| play[key].as_u64().unwrap_or_else(|| panic!("{key}: {play}"));
        for pair in plays.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            assert_eq!(next["rtp_info_exact"], true, "{next}");
            let behind = number(one, "announced_sequence") + number(one, "packets");
            assert_eq!(behind % 65_536, number(next, "announced_sequence"), "{one} {next}");
            // As much as the packets took, and not a jump of a title's timeline.
            let passed = (number(next, "announced_timestamp") as u32)
                .wrapping_sub(number(one, "announced_timestamp") as u32);
            assert!((30_000..200_000).contains(&passed), "{passed} ticks: {one} {next}");
        }
        let ranges: Vec<_> = plays.iter().map(|play| play["range_answered"].as_str().unwrap()).collect();
        assert!(ranges[2].ends_with("-0.000") && ranges[3].ends_with("-0.000"), "{ranges:?}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    let speeds = server.said("at speed");
    assert_eq!(speeds.len(), 6, "{speeds:?}");
}

/// Viewers who change the speed over and over lose nothing by it, and each reply names the packet that follows.
#[test]
fn many_viewers_change_the_speed() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "2"]);
    for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
        let mut options = LoadOptions::new(vec![server.title("film")], 20);
        options.transport = transport;
        options.duration = Duration::from_secs(5);
        options.behaviour = "trick 700ms fixed at 4:2,trick 500ms fixed at -4".parse().unwrap();
        let report = load(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!((report.failed, report.lost, report.rtp_info_wrong), (0, 0, 0), "{transport:?}: {report}");
        assert!(report.tricks > 40 && report.packets > 1_000, "{transport:?}: {report}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn packets_come_as_fast_as_was_asked() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    for speed in ["2", "4"] {
        let data = site.data("film");
        let report =
            play(&[&server.title("film"), "--transport", "tcp", "--speed", speed, "--verify", &data]);
        assert_eq!(
            (&report["sequence"]["lost"], &report["byte_check"]["different_bytes"]),
            (&0.into(), &0.into())
        );
        assert_eq!(report["byte_check"]["checked_bytes"], fs::metadata(&data).unwrap().len());
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn what_was_made_of_a_title_cannot_be_played_by_name() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    let out = support::run(&["play", &server.title("film@4")]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("404"), "{said}");
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

/// GStreamer sends `Scale` for a rate in trick mode. It shows pictures at each speed, and goes on from a rewind.
#[test]
fn gstreamer_shows_pictures_at_each_speed() {
    // The interpreter that finds the bindings which the distribution installs.
    let python = || Command::new("/usr/bin/python3");
    if !python().args(["-c", "import gi"]).output().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: GStreamer's bindings for Python are not installed");
        return;
    }
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/interop/gst_play.py");
    let players = ["udp", "tcp"].map(|transport| {
        let player = python()
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .args([
                script,
                &server.title("film"),
                "--transport",
                transport,
                "--latency",
                "300",
                "--limit",
                "15",
            ])
            .args(["--step=3:seek=13", "--step=5:rate=-4", "--step=8:rate=4", "--step=11:rate=1"])
            .stdout(Stdio::piped())
            .spawn();
        (transport, player.expect("python can be started"))
    });
    for (transport, player) in players {
        let done = player.wait_with_output().expect("our child");
        let report: Value = serde_json::from_slice(&done.stdout).expect("gst_play.py prints JSON");
        assert_eq!(
            (&report["errors"], &report["hangs"]),
            (&Value::Array(vec![]), &false.into()),
            "{transport}"
        );
        let mut pictures: Vec<_> =
            report["rates"].as_array().unwrap().iter().map(|change| change[2].as_u64().unwrap()).collect();
        pictures.push(report["pictures"].as_array().unwrap().len() as u64);
        let shown: Vec<_> = pictures.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // At -4, at 4 and at normal speed again.
        assert!(shown.len() == 3 && shown.iter().all(|shown| *shown > 0), "{transport}: {pictures:?}");
        assert!(shown[2] > shown[0], "{transport}: {pictures:?}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    let said = |speed: &str, server: &mut Server| server.said(&format!("at speed {speed}")).len();
    assert_eq!([said("-4", &mut server), said("4", &mut server)], [2, 2], "{:?}", server.log);
}

//! Our own viewers repair packets lost by the network, and packets that a lost disk does not
//! deliver, from the parity that the server has stored.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Server, film, ok, play, run};
use millrace_lab::link_host::LinkSpec;
use millrace_lab::netns::{SERVER_IP, TwoHosts};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::Volume;
use serde_json::Value;

/// A volume with one film.
struct Stored {
    dir: tempfile::TempDir,
    members: Vec<PathBuf>,
    film: PathBuf,
    geometry: Geometry,
}

impl Stored {
    fn new(members: usize, tolerance: usize, network: usize, film_secs: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let members: Vec<_> = (0..members).map(|n| dir.path().join(format!("member{n}"))).collect();
        let geometry = Geometry::choose(members.len(), tolerance, network).unwrap();
        drop(Volume::create(&members, geometry).unwrap());
        let film = film(dir.path(), "film.ts", film_secs);
        ok(&["add", "--quiet", film.to_str().unwrap(), "--store", members[0].to_str().unwrap()]);
        Self { dir, members, film, geometry }
    }

    /// Returns the options that make `play` write the film here and compare it.
    fn recording(&self) -> [String; 4] {
        let out = self.dir.path().join("out.ts");
        ["-o".into(), out.to_str().unwrap().into(), "--verify".into(), self.film.to_str().unwrap().into()]
    }

    /// Returns whether the written file is the film.
    fn is_film(&self) -> bool {
        std::fs::read(self.dir.path().join("out.ts")).unwrap() == std::fs::read(&self.film).unwrap()
    }

    fn packets(&self) -> u64 {
        std::fs::metadata(&self.film).unwrap().len().div_ceil(1316)
    }

    /// Columns of all rows, which is the number of FEC packets of one parity.
    fn columns(&self) -> u64 {
        let (k, unit) = (u64::from(self.geometry.k), u64::from(self.geometry.unit_packets));
        let (rows, rest) = (self.packets() / (k * unit), self.packets() % (k * unit));
        rows * unit + rest.min(unit)
    }
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path}: {report}"))
}

fn numbers<const N: usize>(report: &Value, paths: [&str; N]) -> [u64; N] {
    paths.map(|path| number(report, path))
}

#[test]
fn play_with_fec_on_lossless_link_repairs_nothing() {
    let stored = Stored::new(1, 0, 3, 4);
    let server = Server::start(&stored.members[0], &[]);
    for (wish, parities) in [("xor", 1), ("all", 3)] {
        let url = server.title("film");
        let recording = stored.recording();
        let args: Vec<&str> =
            [url.as_str(), "--fec", wish].into_iter().chain(recording.iter().map(String::as_str)).collect();
        let report = play(&args);
        assert_eq!(report["fec"]["granted"], wish, "{report}");
        let came = stored.columns() * parities;
        let counts = numbers(
            &report,
            ["/fec/fec_packets", "/fec/useless", "/fec/unfit", "/fec/repaired", "/fec/lost"],
        );
        assert_eq!(counts, [came, came, 0, 0, 0], "{report}");
        assert_eq!(numbers(&report, ["/packets", "/sequence/lost"]), [stored.packets(), 0], "{report}");
        assert!(stored.is_film(), "{report}");
        assert_eq!(report["problems"], serde_json::json!([]), "{report}");
    }
    // A viewer that does not ask for FEC gets the film alone.
    let report = play(&[&server.title("film")]);
    assert_eq!((report["fec"].is_null(), number(&report, "/packets")), (true, stored.packets()), "{report}");
}

/// A disk is gone: the server leaves its packets out, the viewers put them together.
#[test]
fn play_with_fec_reconstructs_packets_of_lost_disk() {
    let stored = Stored::new(3, 1, 0, 4);
    std::fs::rename(&stored.members[1], stored.dir.path().join("gone")).unwrap();
    let server = Server::start(&stored.members[0], &[]);
    let url = server.title("film");
    let recording = stored.recording();
    let args: Vec<&str> =
        [url.as_str(), "--fec", "all"].into_iter().chain(recording.iter().map(String::as_str)).collect();
    let report = play(&args);
    let counts = numbers(&report, ["/fec/lost", "/fec/unsettled", "/fec/unfit", "/sequence/lost"]);
    assert_eq!(counts, [0; 4], "{report}");
    // A third of the units, data and parity, lies on each disk.
    let repaired = number(&report, "/fec/repaired");
    assert!((stored.packets() / 4..stored.packets() / 2).contains(&repaired), "{report}");
    assert_eq!(number(&report, "/packets") + repaired, stored.packets(), "{report}");
    assert!(stored.is_film(), "{report}");
    // And without FEC the server does it.
    let report = play(&[&url]);
    assert_eq!(numbers(&report, ["/packets", "/sequence/lost"]), [stored.packets(), 0], "{report}");
}

/// The row that a seek leads into has no FEC: there the server makes up for the disk.
#[test]
fn seek_into_mid_stripe_with_lost_disk_loses_no_packet() {
    let stored = Stored::new(3, 1, 0, 6);
    std::fs::rename(&stored.members[1], stored.dir.path().join("gone")).unwrap();
    let server = Server::start(&stored.members[0], &[]);
    let url = server.title("film");
    let report = play(&[&url, "--fec", "all", "--do", "seek@0.5=2.2,seek@1=1.3,seek@1.5=3.9,seek@2=2.7"]);
    let lost = numbers(&report, ["/fec/lost", "/sequence/lost", "/fec/unfit"]);
    assert_eq!(lost, [0; 3], "{report}");
    assert_eq!(report["plays"].as_array().unwrap().len(), 5, "{report}");
    assert!(number(&report, "/fec/repaired") > 0, "{report}");
}

#[test]
fn losses_of_a_bad_link_are_repaired() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: emulated links need root and /dev/net/tun");
        return;
    }
    let stored = Stored::new(1, 0, 4, 6);
    let link: LinkSpec = "burst-loss 3% x6, delay 10ms, jitter 2ms, seed 7; delay 10ms".parse().unwrap();
    let hosts = TwoHosts::with_link(link.there, link.back).unwrap();
    let mut command: Command = hosts.on_server(Path::new(env!("CARGO_BIN_EXE_millrace")));
    command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
    command.args(["serve", "--listen", &format!("{SERVER_IP}:8554"), "--cache", "32MiB", "--store"]);
    command.arg(&stored.members[0]);
    let server = Server::spawn(command);
    let url = server.title("film");
    let report_of = |args: &[&str]| -> Value {
        let done = hosts.on_client(|| run(args)).unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text} {}", String::from_utf8_lossy(&done.stderr)))
    };
    let recording = stored.recording();
    let mut args = vec!["play", &url, "--stats", "json", "--fec", "all", "--transport", "udp"];
    args.extend(recording.iter().map(String::as_str));
    let report = report_of(&args);
    // Now and then a burst is longer than the code can repair: then the missing packets are
    // reported, and nothing is wrong.
    let [repaired, lost] = numbers(&report, ["/fec/repaired", "/fec/lost"]);
    assert!(repaired > 10 && lost * 20 < repaired, "{report}");
    let clean = numbers(&report, ["/fec/unsettled", "/fec/unfit", "/byte_check/different_bytes"]);
    assert_eq!(clean, [0; 3], "{report}");
    assert_eq!(number(&report, "/sequence/lost"), lost, "{report}");
    let missing =
        std::fs::metadata(&stored.film).unwrap().len() - number(&report, "/byte_check/checked_bytes");
    assert_eq!(missing.div_ceil(1316), lost, "{report}");
    let load = [
        "load",
        &url,
        "--streams",
        "5",
        "--duration",
        "60s",
        "--fec",
        "all",
        "--inspect",
        "all",
        "--json",
        "--quiet",
    ];
    let report = report_of(&load);
    let counts = numbers(&report, ["/played", "/fec/granted", "/fec/unsettled", "/fec/unfit"]);
    assert_eq!(counts, [5, 5, 0, 0], "{report}");
    let [repaired, lost] = numbers(&report, ["/fec/repaired", "/fec/lost"]);
    assert!(repaired > 50 && lost * 20 < repaired, "{report}");
    assert_eq!(numbers(&report, ["/ts/continuity_errors", "/ts/sync_losses"]), [0, 0], "{report}");
    // Every viewer saw every packet except those that it reports as lost.
    let ts_packets = std::fs::metadata(&stored.film).unwrap().len() / 188;
    for viewer in report["per_stream"].as_array().unwrap() {
        let missing = ts_packets - number(viewer, "/ts/packets");
        assert_eq!(missing.div_ceil(7), number(viewer, "/lost"), "{viewer}");
    }
}

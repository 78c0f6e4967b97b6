//! Our own viewers repair what a lost disk does not deliver, from the parity that the server has stored.

mod support;

use std::path::PathBuf;

use millrace_store::format::superblock::Geometry;
use millrace_store::volume::Volume;
use serde_json::Value;
use support::{Server, film, ok, play};

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

    /// What `play` has to be told to write the film here and compare it.
    fn recording(&self) -> [String; 4] {
        let out = self.dir.path().join("out.ts");
        ["-o".into(), out.to_str().unwrap().into(), "--verify".into(), self.film.to_str().unwrap().into()]
    }

    /// Whether what was written is the film.
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
fn without_loss_fec_is_there_and_does_nothing() {
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
    // Who does not ask gets the film alone.
    let report = play(&[&server.title("film")]);
    assert_eq!((report["fec"].is_null(), number(&report, "/packets")), (true, stored.packets()), "{report}");
}

/// A disk is gone: the server leaves its packets out, the viewers put them together.
#[test]
fn what_a_lost_disk_does_not_deliver_comes_from_the_parity() {
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

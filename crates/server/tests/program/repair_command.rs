//! `millrace repair` and `millrace scrub` as people run them: killed and started again, exit codes, JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{fails, film, millrace, ok, run};
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::Volume;

/// A volume of three disks that tolerates the loss of one, with one film.
struct Disks {
    root: tempfile::TempDir,
    dirs: Vec<PathBuf>,
    geometry: Geometry,
}

impl Disks {
    fn new(secs: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> = (0..3).map(|i| root.path().join(format!("disk{i}"))).collect();
        let geometry = Geometry::choose(3, 1, 0).unwrap();
        drop(Volume::create(&dirs, geometry).unwrap());
        let source = film(root.path(), "film.ts", secs);
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", dirs[0].to_str().unwrap()]);
        Self { root, dirs, geometry }
    }

    fn store(&self) -> &str {
        self.dirs[0].to_str().unwrap()
    }

    /// The film's directory on a disk.
    fn title(&self, i: usize) -> PathBuf {
        let mut titles = fs::read_dir(self.dirs[i].join("titles")).unwrap();
        titles.next().unwrap().unwrap().path()
    }

    fn content(&self, i: usize) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found: Vec<_> = fs::read_dir(self.title(i))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (PathBuf::from(entry.file_name()), fs::read(entry.path()).unwrap()))
            .collect();
        found.sort();
        found
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 8;
    fs::write(path, bytes).unwrap();
}

fn json(output: &std::process::Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn repair_after_kill_resumes_where_it_stopped() {
    let disks = Disks::new(60);
    let before = disks.content(1);
    let out = disks.root.path().join("dead");
    fs::rename(&disks.dirs[1], &out).unwrap();
    let volume = Volume::open(&disks.dirs[0]).unwrap();
    volume.replace_member(1, &disks.dirs[1]).unwrap();
    drop(volume);
    let mut child =
        millrace().args(["repair", "--quiet", "--rate", "3MB/s", "--store", disks.store()]).spawn().unwrap();
    // Half way is when some units have been written.
    let made = || {
        let mut entries = fs::read_dir(disks.dirs[1].join("tmp")).ok()?.flatten();
        entries.find_map(|entry| {
            let file = entry.path().join("data.mru");
            file.metadata().ok().filter(|meta| meta.len() > 0).map(|meta| (file, meta.len()))
        })
    };
    let end = Instant::now() + Duration::from_secs(60);
    while made().is_none() {
        assert!(Instant::now() < end, "the repair never began to write");
        assert!(child.try_wait().unwrap().is_none(), "the repair has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (half, bytes) = made().expect("what was made stays");
    assert!(bytes < before.iter().find(|(name, _)| name.ends_with("data.mru")).unwrap().1.len() as u64);
    // Others open the volume meanwhile, and leave it alone.
    ok(&["ls", "--store", disks.store()]);
    assert!(half.exists());
    let output = run(&["repair", "--json", "--rate", "none", "--store", disks.store()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    assert_eq!(report["activated"], serde_json::json!([1]), "{report}");
    assert_eq!(report["found"][0]["fate"], "repaired", "{report}");
    let whole: usize = before.iter().map(|(_, bytes)| bytes.len()).sum();
    let written = report["bytes_written"].as_u64().unwrap();
    // The kill may have come in the middle of a stripe, which is then written once more.
    let Geometry { k, m, unit_packets, .. } = disks.geometry;
    let stripe = u64::from(k + m) * u64::from(unit_packets) * DEFAULT_PACKET_BYTES as u64;
    assert!(
        written + bytes <= whole as u64 + stripe,
        "{written} written, {bytes} were there, {whole} in all"
    );
    assert!(disks.content(1) == before);
    assert!(ok(&["repair", "--store", disks.store()]).contains("0 repaired, 0 lost"));
}

#[test]
fn scrub_says_what_it_found_by_its_exit_code() {
    let disks = Disks::new(10);
    let scrub = |args: &[&str]| run(&[&["scrub", "--store", disks.store()], args].concat());
    assert_eq!(scrub(&[]).status.code(), Some(0));
    let before = disks.content(2);
    flip(&disks.title(2).join("data.mru"), 1316 * 3 + 4);
    flip(&disks.title(2).join("parity.mru"), 1316 * 40 + 4);
    let looked = scrub(&["--check", "--json"]);
    assert_eq!(
        (looked.status.code(), &json(&looked)["verdict"]),
        (Some(1), &"repaired".into()),
        "{looked:?}"
    );
    assert!(json(&looked)["found"][0]["fate"] == "repairable" && disks.content(2) != before);
    let repaired = scrub(&[]);
    assert_eq!(repaired.status.code(), Some(1), "{repaired:?}");
    let text = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(text.contains("2 repaired, 0 lost") && text.contains("data.mru"), "{text}");
    assert!(disks.content(2) == before);
    assert_eq!(scrub(&["--json"]).status.code(), Some(0));
    // A bit in every packet of every disk: more than two of six cannot be made from the rest.
    for path in (0..3).flat_map(|i| ["data.mru", "parity.mru"].map(|name| disks.title(i).join(name))) {
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().step_by(1316).for_each(|byte| *byte ^= 1);
        fs::write(path, bytes).unwrap();
    }
    let before: Vec<_> = (0..3).map(|i| disks.content(i)).collect();
    let lost = scrub(&[]);
    assert_eq!(lost.status.code(), Some(4), "{lost:?}");
    assert!(String::from_utf8_lossy(&lost.stdout).contains("LOST: "), "{lost:?}");
    assert!((0..3).all(|i| disks.content(i) == before[i]), "nothing is touched");
}

#[test]
fn repair_and_scrub_without_volume_report_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().to_str().unwrap();
    for command in ["repair", "scrub"] {
        assert_eq!(run(&[command, "--store", store]).status.code(), Some(3));
        assert!(fails(&[command, "--store", store]).contains("volume.mrv"));
        assert!(fails(&[command, "--store", store, "--rate", "fast"]).contains("200MB/s"));
    }
}

//! The simulated disk that the crash tests use: the states that it may leave after a power cut, and
//! the operations that it refuses.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sim::*;

struct Scene {
    dir: tempfile::TempDir,
    sim: Arc<Sim>,
}

impl Scene {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), content).unwrap();
        }
        let sim = Sim::new(&[dir.path()]).unwrap();
        Self { dir, sim }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Every state that a power cut now may leave, as text.
    fn now(&self) -> HashSet<String> {
        let recording = self.sim.recording();
        let fates = Fate::PLAIN.into_iter().chain((0..60).map(Fate::Seeded));
        fates.map(|fate| text(&recording.state(recording.points() - 1, fate))).collect()
    }
}

fn text(state: &CrashState) -> String {
    let entry = |path: &Path| match state.content(0, path) {
        Some(bytes) => format!("{}={}", path.display(), String::from_utf8_lossy(bytes).replace('\0', ".")),
        None => format!("{}/", path.display()),
    };
    state.paths(0).map(entry).collect::<Vec<_>>().join(" ")
}

fn set(states: &[&str]) -> HashSet<String> {
    states.iter().map(|&state| state.to_owned()).collect()
}

#[test]
fn sim_file_survives_once_content_and_name_are_synced() {
    let scene = Scene::new(&[]);
    let disk = scene.sim.disk();
    let mut file = disk.create_new(&scene.path("f")).unwrap();
    file.write_all(b"abc").unwrap();
    assert_eq!(scene.now(), set(&["", "f=", "f=abc", "f=..."]));
    file.sync_all().unwrap();
    assert_eq!(scene.now(), set(&["", "f=abc"]), "syncing a file does not keep its name");
    disk.sync_dir(scene.dir.path()).unwrap();
    assert_eq!(scene.now(), set(&["f=abc"]));
}

#[test]
fn writes_are_lost_and_kept_in_any_order() {
    let scene = Scene::new(&[("f", "0000")]);
    let file = scene.sim.disk().open_or_create(&scene.path("f")).unwrap();
    file.write_all_at(b"1", 0).unwrap();
    file.write_all_at(b"2", 1).unwrap();
    assert_eq!(scene.now(), set(&["f=0000", "f=1000", "f=0200", "f=1200"]));
    file.set_len(1).unwrap();
    file.sync_all().unwrap();
    assert_eq!(scene.now(), set(&["f=1"]));
}

#[test]
fn sim_write_is_torn_at_sector_boundaries() {
    let scene = Scene::new(&[]);
    let disk = scene.sim.disk();
    let mut file = disk.create_new(&scene.path("f")).unwrap();
    file.write_all(&[b'x'; 1000]).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir(scene.dir.path()).unwrap();
    file.write_all_at(&[b'y'; 600], 300).unwrap();
    let (x, y) = (|n| "x".repeat(n), |n| "y".repeat(n));
    let all = [x(1000), x(300) + &y(600) + &x(100), x(300) + &y(212) + &x(488), x(512) + &y(388) + &x(100)];
    assert_eq!(scene.now(), all.map(|content| format!("f={content}")).into());
}

#[test]
fn sim_rename_is_atomic_and_durable_after_target_sync() {
    let scene = Scene::new(&[("a/f", "1"), ("b/g", "2")]);
    let disk = scene.sim.disk();
    disk.rename(&scene.path("a/f"), &scene.path("b/g")).unwrap();
    let (before, after) = ("a/ a/f=1 b/ b/g=2", "a/ b/ b/g=1");
    assert_eq!(scene.now(), set(&[before, after]));
    disk.sync_dir(&scene.path("a")).unwrap();
    assert_eq!(scene.now(), set(&[before, after]));
    disk.sync_dir(&scene.path("b")).unwrap();
    assert_eq!(scene.now(), set(&[after]));
    assert_eq!(fs::read(scene.path("b/g")).unwrap(), b"1");
}

#[test]
fn names_in_a_directory_are_kept_apart_from_the_directory() {
    let scene = Scene::new(&[]);
    let disk = scene.sim.disk();
    disk.create_dir(&scene.path("t")).unwrap();
    disk.create_new(&scene.path("t/f")).unwrap();
    disk.rename(&scene.path("t"), &scene.path("u")).unwrap();
    disk.sync_dir(scene.dir.path()).unwrap();
    assert_eq!(
        scene.now(),
        set(&["u/", "u/ u/f="]),
        "a synced rename does not keep what is in the directory"
    );
    disk.sync_dir(&scene.path("u")).unwrap();
    assert_eq!(scene.now(), set(&["u/ u/f="]));
    disk.remove_tree(&scene.path("u")).unwrap();
    assert_eq!(scene.now(), set(&["u/ u/f=", "u/", ""]));
}

#[test]
fn sim_after_failed_sync_may_lose_written_data() {
    let scene = Scene::new(&[("f", "0")]);
    let file = scene.sim.disk().open_or_create(&scene.path("f")).unwrap();
    file.write_all_at(b"1", 0).unwrap();
    scene.sim.order(Some(Order::Fail { op: scene.sim.operations(), errno: EIO }));
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(EIO));
    file.sync_all().unwrap();
    assert_eq!(scene.now(), set(&["f=0", "f=1"]));
}

#[test]
fn operations_fail_where_they_are_told_to() {
    let scene = Scene::new(&[]);
    let disk = scene.sim.disk();
    scene.sim.order(Some(Order::Full { bytes: 5 }));
    let mut file = disk.create_new(&scene.path("f")).unwrap();
    file.write_all(b"abc").unwrap();
    assert_eq!(file.write_all(b"def").unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read(scene.path("f")).unwrap(), b"abcde");
    scene.sim.order(Some(Order::Short { op: scene.sim.operations(), errno: EIO }));
    assert!(file.write_all_at(b"wxyz", 0).is_err());
    assert_eq!(fs::read(scene.path("f")).unwrap(), b"wxcde");
    file.sync_all().unwrap();
    scene.sim.order(Some(Order::FailFrom { op: scene.sim.operations(), errno: EIO }));
    assert!(disk.create_dir(&scene.path("d")).is_err() && file.sync_all().is_err());
    assert!(!scene.path("d").exists());
    scene.sim.order(None);
    disk.sync_dir(scene.dir.path()).unwrap();
    assert_eq!(scene.now(), set(&["f=wxcde"]), "short writes are in the recording as they were done");
}

#[test]
fn promises_are_known_from_the_point_where_they_were_given() {
    let scene = Scene::new(&[]);
    let disk = scene.sim.disk();
    disk.create_dir(&scene.path("a")).unwrap();
    scene.sim.mark("a is there");
    disk.create_dir(&scene.path("b")).unwrap();
    let recording = scene.sim.recording();
    let known: Vec<usize> = (0..recording.points()).map(|point| recording.marks(point).len()).collect();
    assert_eq!(known, [0, 0, 1, 1]);
    assert_eq!(recording.before(2), "promise a is there");
}

#[test]
fn sim_state_rebuild_restores_decided_state() {
    let scene = Scene::new(&[("a/f", "1"), ("catalogue.sqlite-wal", "not looked at")]);
    let disk = scene.sim.disk();
    disk.rename(&scene.path("a/f"), &scene.path("g")).unwrap();
    let recording = scene.sim.recording();
    let (lost, kept) = (recording.state(1, Fate::Lost), recording.state(1, Fate::Kept));
    assert_ne!(lost.digest(), kept.digest());
    let fresh = tempfile::tempdir().unwrap();
    kept.rebuild(&[fresh.path()]).unwrap();
    assert_eq!(fs::read(fresh.path().join("g")).unwrap(), b"1");
    assert_eq!(fs::read_dir(fresh.path().join("a")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(fresh.path()).unwrap().count(), 2);
}

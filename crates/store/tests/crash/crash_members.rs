//! Power cuts and failing disks under a volume of three members that tolerates the loss of one, and
//! one of five that tolerates the loss of two. Acknowledged data is there byte for byte, even when
//! that many members are lost with the power; unacknowledged data is whole or gone; a repair and a
//! scrub can be interrupted anywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::crash_support;
use crate::crash_support::{Left, Library, Older, each_state, scratch};
use crate::sim::{EIO, ENOSPC, Fate, Order, Recording, Sim};
use millrace_core::limits::REPAIR_ANSWER_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_store::StoreError;
use millrace_store::disk::ReadFaults;
use millrace_store::format::superblock::Geometry;
use millrace_store::members::MemberState;
use millrace_store::repair::{self, RepairOptions, RepairReport, RepairVerdict, Setting, Timekeeper};
use millrace_store::scrub::{ScrubOptions, scrub};
use millrace_store::volume::Volume;
use millrace_testkit::titles::{Film, SIZE};

const MEMBERS: usize = 3;
/// Four data and two parity units of two packets: each member has two units of a stripe, so any one may be lost.
const GEOMETRY: Geometry = Geometry { k: 4, m: 2, unit_packets: 2, members: MEMBERS as u16 };

/// Titles of five stripes and a bit, of less than a stripe, and of many stripes.
fn library() -> Library {
    Library::new([("a", Film::new(300, 1)), ("b", Film::new(40, 2)), ("c", Film::new(1_100, 3))])
}

/// Three data and two parity units, one of each stripe on each member, so any two may be lost.
const OF_FIVE: Geometry = Geometry { k: 3, m: 2, unit_packets: 2, members: 5 };

struct Scene {
    library: Library,
    /// Members that may be lost at once.
    may: usize,
    _dir: tempfile::TempDir,
    roots: Vec<PathBuf>,
    /// Expected result of the upgrade, if the titles are of an older version.
    older: Option<Older>,
}

impl Scene {
    /// Directories, and a volume with these titles unless there are none.
    fn new(titles: &[&str]) -> Self {
        Self::with(GEOMETRY, 1, titles)
    }

    /// The same with titles of an older version.
    fn older(titles: &[&str]) -> Self {
        let mut scene = Self::new(titles);
        scene.older = Some(Older::make(&scene.roots));
        scene
    }

    /// The same with a geometry that allows the loss of `may` members.
    fn with(geometry: Geometry, may: usize, titles: &[&str]) -> Self {
        let (library, dir) = (library(), scratch());
        let roots = (0..geometry.members).map(|i| dir.path().join(format!("m{i}")));
        let roots: Vec<PathBuf> = roots.collect();
        roots.iter().for_each(|root| fs::create_dir(root).unwrap());
        if !titles.is_empty() {
            let volume = Volume::create(&roots, geometry).unwrap();
            titles.iter().for_each(|name| drop(library.add(&volume, name, &[SIZE])));
        }
        Self { library, may, _dir: dir, roots, older: None }
    }

    /// Members that are lost with the power in a state of this number: none in one state of all, else as many as may be.
    fn lost(&self, number: u64) -> Vec<usize> {
        let (number, members) = (number as usize, self.roots.len());
        let first = number % (members + 1);
        let step = 1 + number / (members + 1) % (members - 1);
        let lost = (0..self.may).map(|which| (first + which * step) % members);
        if first == members { Vec::new() } else { lost.collect() }
    }

    /// Creates a simulation that starts with the current contents, which hold `titles`.
    fn sim(&self, titles: &[&str]) -> Arc<Sim> {
        let sim = Sim::new(&self.roots.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
        titles.iter().for_each(|name| sim.mark(&format!("added {name}")));
        sim
    }

    fn open(&self, sim: &Arc<Sim>) -> Result<Volume, StoreError> {
        Volume::open_members_on(&self.roots, sim.disk())
    }

    /// Returns the recorded operations. Moves the directories away, because the rebuilt ones name
    /// them as their locations.
    fn recording(&self, sim: &Sim) -> Recording {
        for root in &self.roots {
            fs::rename(root, root.with_extension("done")).unwrap();
        }
        sim.recording()
    }

    /// Every state that a power cut may leave opens and holds to the promises: with all members, without as many as may be lost,
    /// and after a repair.
    fn verify_power_cuts(&self, recording: &Recording, few: u64) -> usize {
        each_state(recording, self.roots.len(), few, |left| self.verify_left(left))
    }

    fn verify(&self, volume: &Volume, marks: &[&str], what: &str) {
        self.library.verify(volume, marks, what);
        self.older.iter().for_each(|older| older.verify(volume, marks, what));
    }

    fn verify_left(&self, left: &Left<'_>) {
        let lost = self.lost(left.number);
        if lost.is_empty() {
            let volume = open(left.roots, &left.what);
            self.verify(&volume, &left.marks, &left.what);
            return self.verify_whole(&volume, left);
        }
        let what = format!("{}; members {lost:?} lost too", left.what);
        let gone = |slot: usize| left.roots[slot].with_extension("gone");
        lost.iter().for_each(|&slot| fs::rename(&left.roots[slot], gone(slot)).unwrap());
        let volume = open(left.roots, &what);
        self.verify(&volume, &left.marks, &what);
        match left.number / (self.roots.len() as u64 + 1) % 3 {
            // Others take their places.
            0 => {
                for &slot in &lost {
                    let replaced = volume.replace_member(slot, &left.roots[slot]);
                    replaced.unwrap_or_else(|e| panic!("{what}: member {slot}: {e}"));
                }
                self.verify_whole(&volume, left);
            }
            // They come back as they were, and have missed nothing or the removal of a title.
            turn => {
                let mut marks = left.marks.clone();
                let titles = volume.titles().unwrap();
                let removed =
                    titles.first().filter(|_| turn == 2).map(|info| format!("removed {}", info.name));
                if let Some(removed) = &removed {
                    volume.remove(titles[0].id).unwrap_or_else(|e| panic!("{what}: {removed}: {e}"));
                    marks.push(removed);
                }
                drop(volume);
                lost.iter().for_each(|&slot| fs::rename(gone(slot), &left.roots[slot]).unwrap());
                let what = format!("{what}; {removed:?}; and back");
                let volume = open(left.roots, &what);
                self.verify(&volume, &marks, &what);
                self.verify_whole(&volume, &Left { roots: left.roots, marks, what, number: left.number });
            }
        }
    }

    /// After a repair all members are whole: a scrub finds nothing, and another title can be added.
    fn verify_whole(&self, volume: &Volume, left: &Left<'_>) {
        let what = &left.what;
        let report = mend(volume).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_ne!(report.verdict(), RepairVerdict::Lost, "{what}: {report:#?}");
        for slot in 0..self.roots.len() {
            assert!(volume.members().is_usable(slot), "{what}: member {slot} after the repair: {report:#?}");
        }
        self.verify(volume, &left.marks, &format!("{what}; repaired"));
        let report = look(volume, false);
        assert_eq!(report.verdict(), RepairVerdict::Healthy, "{what}; repaired: {report:#?}");
        if let Some(older) = &self.older {
            older.complete(volume, left.roots, what);
            self.verify(volume, &left.marks, &format!("{what}; upgraded"));
            assert_eq!(look(volume, false).verdict(), RepairVerdict::Healthy, "{what}; upgraded");
        }
        if left.number.is_multiple_of(5) {
            let info = Film::new(20, left.number).add(volume, "one more");
            assert_eq!(info.name, "one-more", "{what}");
        }
    }
}

fn open(roots: &[PathBuf], what: &str) -> Volume {
    Volume::open_members(roots).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// No bound on the rate, so no time either.
struct Timeless;

impl Clock for Timeless {
    fn now(&self) -> Instant {
        Instant(0)
    }
}

impl Timekeeper for Timeless {
    fn wait_ns(&self, _: u64) {}
}

fn setting<'a>(tell: &'a mut dyn FnMut(&repair::RepairProgress), stop: &'a AtomicBool) -> Setting<'a> {
    Setting { time: &Timeless, stop, tell, faults: ReadFaults::default(), answer_ns: REPAIR_ANSWER_NS }
}

fn mend(volume: &Volume) -> Result<RepairReport, repair::RepairError> {
    let options = RepairOptions { rate_bytes_per_s: 0 };
    repair::repair(volume, &options, setting(&mut |_| {}, &AtomicBool::new(false)))
}

fn look(volume: &Volume, mend: bool) -> RepairReport {
    let options = ScrubOptions { rate_bytes_per_s: 0, mend };
    scrub(volume, &options, setting(&mut |_| {}, &AtomicBool::new(false))).unwrap()
}

fn add(scene: &Scene, sim: &Sim, volume: &Volume, name: &str, sizes: &[u16]) -> Result<(), StoreError> {
    let film = &scene.library.0[name];
    sim.mark(&format!("adding {name}"));
    film.write(volume, sizes)?.commit(film.finish(name))?;
    sim.mark(&format!("added {name}"));
    Ok(())
}

fn remove(sim: &Sim, volume: &Volume, name: &str) -> Result<(), StoreError> {
    let id = volume.find(name)?.expect("there is such a title").id;
    sim.mark(&format!("removing {name}"));
    volume.remove(id)?;
    sim.mark(&format!("removed {name}"));
    Ok(())
}

fn prepare(sim: &Sim, volume: &Volume, name: &str, size: u16) -> Result<(), StoreError> {
    let id = volume.find(name)?.expect("there is such a title").id;
    volume.add_packet_size(id, usize::from(size))?;
    sim.mark(&format!("prepared {name} {size}"));
    Ok(())
}

fn ingest(scene: &Scene, sim: &Arc<Sim>) -> Result<(), StoreError> {
    let volume = scene.open(sim)?;
    add(scene, sim, &volume, "b", &[SIZE, 188])?;
    add(scene, sim, &volume, "c", &[SIZE])
}

fn removal(scene: &Scene, sim: &Arc<Sim>) -> Result<(), StoreError> {
    let volume = scene.open(sim)?;
    remove(sim, &volume, "a")?;
    add(scene, sim, &volume, "a", &[SIZE])
}

fn preparation(scene: &Scene, sim: &Arc<Sim>) -> Result<(), StoreError> {
    let volume = scene.open(sim)?;
    prepare(sim, &volume, "a", 188)
}

/// Range sums and CRCs for a title that has none.
fn upgrade(scene: &Scene, sim: &Arc<Sim>) -> Result<(), StoreError> {
    let volume = scene.open(sim)?;
    let id = volume.find("a")?.expect("there is such a title").id;
    volume.prepare(id, &[], &mut |_| ())?;
    sim.mark("upgraded a");
    Ok(())
}

/// A member is replaced by an empty one and filled.
fn rebuilding(scene: &Scene, sim: &Arc<Sim>) -> Result<(), StoreError> {
    let root = &scene.roots[1];
    for entry in ["members.mrm", "tmp", "titles", "volume.mrv"] {
        let path = root.join(entry);
        match path.is_dir() {
            true => sim.disk().remove_tree(&path),
            false => sim.disk().remove_file(&path),
        }
        .map_err(|error| StoreError::Io { action: "remove", path, error })?;
    }
    let volume = scene.open(sim)?;
    volume.replace_member(1, root)?;
    mend(&volume).map(drop).map_err(into_store)
}

/// A title that an active member has lost is made there again.
fn filling(scene: &Scene, sim: &Arc<Sim>) -> Result<(), StoreError> {
    let volume = scene.open(sim)?;
    let id = volume.find("a")?.expect("there is such a title").id;
    let path = scene.roots[1].join("titles").join(id.to_string());
    let removed = if path.is_dir() { sim.disk().remove_tree(&path) } else { Ok(()) };
    removed.map_err(|error| StoreError::Io { action: "remove", path, error })?;
    mend(&volume).map(drop).map_err(into_store)
}

fn into_store(error: repair::RepairError) -> StoreError {
    match error {
        repair::RepairError::Store(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn power_cut_while_a_volume_is_made() {
    let scene = Scene::new(&[]);
    let sim = scene.sim(&[]);
    let volume = Volume::create_on(&scene.roots, GEOMETRY, sim.disk()).unwrap();
    sim.mark("created");
    add(&scene, &sim, &volume, "b", &[SIZE]).unwrap();
    let mut refused = 0;
    each_state(&scene.recording(&sim), MEMBERS, 4, |left| match left.marks.is_empty() {
        // Nothing was promised: it is a volume, or it is refused with a reason.
        true => refused += usize::from(Volume::open_members(left.roots).is_err()),
        false => scene.verify_left(left),
    });
    assert!(refused > 0, "a volume that is not made yet cannot be opened");
}

#[test]
fn power_cut_while_titles_are_added() {
    let scene = Scene::new(&["a"]);
    let sim = scene.sim(&["a"]);
    ingest(&scene, &sim).unwrap();
    let states = scene.verify_power_cuts(&scene.recording(&sim), 2);
    assert!(states > 100, "{states} states");
}

/// Five members, and any two of them are lost with the power.
#[test]
fn power_cut_and_two_members_lost_while_titles_are_added_and_removed() {
    for (titles, work) in [(&["a"][..], ingest as Work), (&["a", "b"], removal)] {
        let scene = Scene::with(OF_FIVE, 2, titles);
        let pairs: std::collections::BTreeSet<_> = (0..200).map(|number| scene.lost(number)).collect();
        assert!(
            pairs.iter().all(|lost| lost.len() == 2 && lost[0] != lost[1] || lost.is_empty()),
            "{pairs:?}"
        );
        assert_eq!(pairs.len(), 1 + 5 * 4, "each ordered pair, and none");
        let sim = scene.sim(titles);
        work(&scene, &sim).unwrap();
        let states = scene.verify_power_cuts(&scene.recording(&sim), 1);
        assert!(states > 100, "{states} states");
    }
}

#[test]
fn power_cut_while_a_title_is_removed() {
    let scene = Scene::new(&["a", "b"]);
    let sim = scene.sim(&["a", "b"]);
    removal(&scene, &sim).unwrap();
    let states = scene.verify_power_cuts(&scene.recording(&sim), 2);
    assert!(states > 60, "{states} states");
}

#[test]
fn power_cut_while_a_packet_size_is_added() {
    let scene = Scene::new(&["a", "b"]);
    let sim = scene.sim(&["a", "b"]);
    preparation(&scene, &sim).unwrap();
    let states = scene.verify_power_cuts(&scene.recording(&sim), 4);
    assert!(states > 40, "{states} states");
}

#[test]
fn power_cut_while_a_title_of_an_older_version_is_upgraded() {
    let scene = Scene::older(&["a", "b"]);
    let sim = scene.sim(&["a", "b"]);
    upgrade(&scene, &sim).unwrap();
    let states = scene.verify_power_cuts(&scene.recording(&sim), 4);
    assert!(states > 40, "{states} states");
}

/// While a member is rebuilt no other one may be lost, so here none is.
#[test]
fn power_cut_while_a_member_is_rebuilt() {
    let scene = Scene::new(&["a", "b"]);
    let sim = scene.sim(&["a", "b"]);
    rebuilding(&scene, &sim).unwrap();
    let states = each_state(&scene.recording(&sim), MEMBERS, 2, |left| verify_rebuilt(&scene, left));
    assert!(states > 40, "{states} states");
}

/// A title that is rebuilt is on its member with all its files, or not to be seen there.
#[test]
fn power_cut_while_an_active_member_is_filled() {
    let scene = Scene::new(&["a", "b"]);
    let id = open(&scene.roots, "").find("a").unwrap().unwrap().id.to_string();
    fs::remove_dir_all(scene.roots[1].join("titles").join(&id)).unwrap();
    let sim = scene.sim(&["a", "b"]);
    filling(&scene, &sim).unwrap();
    let mut there = 0;
    let states = each_state(&scene.recording(&sim), MEMBERS, 6, |left| {
        drop(open(left.roots, &left.what));
        let title = left.roots[1].join("titles").join(&id);
        for name in ["data.mru", "parity.mru", "index.mri"].iter().filter(|_| title.is_dir()) {
            there += 1;
            assert!(title.join(name).exists(), "{}: the title came without {name}", left.what);
        }
        verify_rebuilt(&scene, left);
    });
    assert!(states > 20 && there > 0, "{states} states, {there} files");
}

/// A rebuild meets a failure and is run again, and then the power is cut: everything it reported as
/// durable is durable.
#[test]
fn power_cut_after_a_repair_that_was_run_again() {
    let total = operations(BOTH, rebuilding);
    let mut tried = 0;
    for op in (0..total).step_by(stride(2)) {
        let (scene, sim) = BOTH.begin();
        sim.order(Some(Order::Fail { op, errno: EIO }));
        let first = rebuilding(&scene, &sim);
        sim.order(None);
        let Some(volume) = scene.open(&sim).ok().filter(|volume| volume.members().is_present(1)) else {
            continue;
        };
        if first.is_ok() {
            continue;
        }
        tried += 1;
        mend(&volume).unwrap();
        drop(volume);
        let recording = scene.recording(&sim);
        for fate in Fate::PLAIN {
            let dir = scratch();
            let roots: Vec<PathBuf> = (0..MEMBERS).map(|root| dir.path().join(root.to_string())).collect();
            roots.iter().for_each(|root| fs::create_dir(root).unwrap());
            let last = recording.points() - 1;
            recording
                .state(last, fate)
                .rebuild(&roots.iter().map(PathBuf::as_path).collect::<Vec<_>>())
                .unwrap();
            let what = format!("operation {op} of {total} failed, repaired again, power cut, {fate:?}");
            // Number 0: the first member is lost too, so the one that was filled is needed.
            scene.verify_left(&Left { roots: &roots, marks: recording.marks(last), what, number: 0 });
        }
    }
    assert!(tried > 10, "{tried} failed and were tried again");
}

/// Opens without the loss of another member. A member whose replacement had not been recorded is
/// replaced again.
fn verify_rebuilt(scene: &Scene, left: &Left<'_>) {
    let volume = open(left.roots, &left.what);
    scene.library.verify(&volume, &left.marks, &left.what);
    let members = volume.members();
    if !members.is_usable(1) && members.state(1) == MemberState::Active {
        let other = left.roots[1].with_extension("new");
        volume.replace_member(1, &other).unwrap_or_else(|e| panic!("{}: {e}", left.what));
    }
    scene.verify_whole(&volume, left);
}

/// A member that goes missing may be the only one that knows of a change of the member list. The
/// others go on without it; when it is back, it does not restore titles that were removed
/// meanwhile.
#[test]
fn power_cut_while_the_members_change_and_the_one_that_knows_is_lost() {
    let scene = Scene::new(&["a", "b"]);
    let sim = scene.sim(&["a", "b"]);
    scene.open(&sim).unwrap().set_member_state(1, MemberState::Stale).unwrap();
    let (mut went_on, mut apart) = (0, 0);
    each_state(&scene.recording(&sim), MEMBERS, 6, |left| {
        let (what, roots) = (&left.what, left.roots);
        let gone = roots[0].with_extension("gone");
        fs::rename(&roots[0], &gone).unwrap();
        // The others cannot go on if they know that member 1 is stale.
        let Ok(volume) = Volume::open_members(roots) else { return };
        went_on += 1;
        let id = volume.find("b").unwrap().unwrap_or_else(|| panic!("{what}: b is lost")).id;
        volume.remove(id).unwrap_or_else(|e| panic!("{what}: {e}"));
        drop(volume);
        fs::rename(&gone, &roots[0]).unwrap();
        let marks = vec!["added a", "removed b"];
        match Volume::open_members(roots) {
            Ok(volume) => {
                scene.library.verify(&volume, &marks, what);
                scene.verify_whole(&volume, &Left { roots, marks, what: what.clone(), number: left.number });
            }
            // Refused by name: the operator must decide which of them are right.
            Err(StoreError::Apart { .. }) => {
                apart += 1;
                let volume = open(&roots[1..], what);
                scene.library.verify(&volume, &marks, what);
            }
            Err(error) => panic!("{what}: {error}"),
        }
    });
    assert!(went_on > 5, "{went_on} states, {apart} of them refused");
}

/// Damages one byte in a hundred thousand of a member's units, at least one in each file.
fn damage(root: &Path) {
    let mut files = 0;
    for title in fs::read_dir(root.join("titles")).unwrap() {
        for name in ["data.mru", "parity.mru", "index.mri"] {
            let path = title.as_ref().unwrap().path().join(name);
            let mut bytes = fs::read(&path).unwrap();
            let step = bytes.len().min(100_000);
            bytes.iter_mut().skip(step / 2).step_by(step).for_each(|byte| *byte ^= 0x10);
            fs::write(&path, bytes).unwrap();
            files += 1;
        }
    }
    assert!(files > 0);
}

#[test]
fn power_cut_while_a_scrub_repairs() {
    let scene = Scene::new(&["a", "b"]);
    damage(&scene.roots[2]);
    let sim = scene.sim(&["a", "b"]);
    let volume = scene.open(&sim).unwrap();
    let report = look(&volume, true);
    assert_eq!(report.verdict(), RepairVerdict::Repaired, "{report:#?}");
    sim.mark("scrubbed");
    let states = each_state(&scene.recording(&sim), MEMBERS, 2, |left| {
        let volume = open(left.roots, &left.what);
        scene.library.verify(&volume, &left.marks, &left.what);
        let report = look(&volume, true);
        match left.marks.contains(&"scrubbed") {
            true => assert_eq!(report.verdict(), RepairVerdict::Healthy, "{}: {report:#?}", left.what),
            false => assert_ne!(report.verdict(), RepairVerdict::Lost, "{}: {report:#?}", left.what),
        }
        scene.verify_whole(&volume, left);
    });
    assert!(states > 40, "{states} states");
}

type Work = fn(&Scene, &Arc<Sim>) -> Result<(), StoreError>;

/// Initial contents for a `Work`.
#[derive(Clone, Copy)]
struct Start {
    titles: &'static [&'static str],
    scene: fn(&[&str]) -> Scene,
}

const BOTH: Start = Start { titles: &["a", "b"], scene: Scene::new };

impl Start {
    fn begin(self) -> (Scene, Arc<Sim>) {
        let scene = (self.scene)(self.titles);
        let sim = scene.sim(self.titles);
        (scene, sim)
    }
}

const WORKS: [(&str, Start, Work); 6] = [
    ("ingest", Start { titles: &["a"], scene: Scene::new }, ingest),
    ("removal", BOTH, removal),
    ("preparation", BOTH, preparation),
    ("upgrade", Start { titles: &["a", "b"], scene: Scene::older }, upgrade),
    ("rebuilding", BOTH, rebuilding),
    ("filling", BOTH, filling),
];

/// Does the work with an order to fail; then the disks are well again. Returns whether it was called done.
fn fail(start: Start, work: Work, order: Order, what: &str) -> bool {
    let (scene, sim) = start.begin();
    sim.order(Some(order));
    let outcome = work(&scene, &sim);
    sim.order(None);
    let recording = sim.recording();
    let marks = recording.marks(recording.points() - 1);
    let left = Left { roots: &scene.roots, marks, what: what.to_owned(), number: 1 };
    verify_rebuilt(&scene, &left);
    outcome.is_ok()
}

fn operations(start: Start, work: Work) -> u64 {
    let (scene, sim) = start.begin();
    work(&scene, &sim).unwrap();
    sim.operations()
}

#[test]
fn operations_fail_once() {
    for (name, start, work) in WORKS {
        let total = operations(start, work);
        for op in (0..total).step_by(stride(3)) {
            let errno = if op.is_multiple_of(2) { EIO } else { ENOSPC };
            let order = match op % 5 {
                0 => Order::Short { op, errno },
                _ => Order::Fail { op, errno },
            };
            fail(start, work, order, &format!("{name}, {order:?} of {total}"));
        }
    }
}

#[test]
fn volume_after_simultaneous_disk_failure_is_consistent() {
    for (name, start, work) in WORKS {
        let total = operations(start, work);
        for op in (0..total).step_by(stride(5)) {
            let order = Order::FailFrom { op, errno: EIO };
            let done = fail(start, work, order, &format!("{name}, {order:?} of {total}"));
            assert!(
                !done || op > total / 2,
                "{name} was called done although the disks died at {op} of {total}"
            );
        }
    }
}

/// Every operation when all is wanted, else one in `few`.
fn stride(few: usize) -> usize {
    if crash_support::seeds(0) > 0 { 1 } else { few }
}

//! Power cuts and failing disks under a store of one member: whatever was acknowledged is there byte for byte, whatever was
//! not is whole or gone, and the store opens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::crash_support::{Left, Library, Older, assert_sound, each_state, scratch, spoil_catalogue};
use crate::sim::{EIO, ENOSPC, Fate, Order, Sim};
use millrace_store::StoreError;
use millrace_store::disk::{Disk, DiskInterceptor, Op};
use millrace_store::volume::Volume;
use millrace_testkit::titles::{Film, SIZE};

/// Three small titles; "c" needs more than one write of its data.
fn library() -> Library {
    Library::new([("a", Film::new(300, 1)), ("b", Film::new(40, 2)), ("c", Film::new(5_800, 3))])
}

/// A store with these titles, all of it durable, and a simulation that begins there.
struct Scene {
    library: Library,
    dir: tempfile::TempDir,
    /// Expected result of the upgrade, if the titles are of an older version.
    older: Option<Older>,
    sim: Arc<Sim>,
}

impl Scene {
    fn new(titles: &[&str]) -> Self {
        Self::of(titles, |_| None)
    }

    /// The same with titles of an older version.
    fn older(titles: &[&str]) -> Self {
        Self::of(titles, |root| Some(Older::make(&[root.to_path_buf()])))
    }

    fn of(titles: &[&str], age: fn(&Path) -> Option<Older>) -> Self {
        let (library, dir) = (library(), scratch());
        if !titles.is_empty() {
            let volume = Volume::open_or_create(dir.path()).unwrap();
            titles.iter().for_each(|name| drop(library.add(&volume, name, &[SIZE])));
        }
        let older = age(dir.path());
        let sim = Sim::new(&[dir.path()]).unwrap();
        titles.iter().for_each(|name| sim.mark(&format!("added {name}")));
        Self { library, dir, older, sim }
    }

    fn open(&self) -> Result<Volume, StoreError> {
        Volume::open_or_create_on(self.dir.path(), self.sim.disk())
    }

    /// The titles hold to the promises; those of an older version can be upgraded.
    fn verify(&self, volume: &Volume, root: &Path, marks: &[&str], what: &str) {
        self.library.verify(volume, marks, what);
        assert_sound(root, what);
        if let Some(older) = &self.older {
            older.verify(volume, marks, what);
            older.complete(volume, &[root.to_path_buf()], what);
            self.library.verify(volume, marks, what);
            assert_sound(root, what);
        }
    }

    /// Every state that a power cut may leave opens, holds to the promises, and takes another title.
    fn verify_power_cuts(&self, few: u64) -> usize {
        let recording = self.sim.recording();
        each_state(&recording, 1, few, |left| self.verify_left(left))
    }

    fn verify_left(&self, left: &Left<'_>) {
        let root = &left.roots[0];
        spoil_catalogue(root, self.dir.path(), left.number);
        let volume = Volume::open_or_create(root).unwrap_or_else(|e| panic!("{}: {e}", left.what));
        self.verify(&volume, root, &left.marks, &left.what);
        if left.number.is_multiple_of(8) {
            let film = Film::new(20, left.number);
            assert_eq!(film.add(&volume, "one more").name, "one-more", "{}", left.what);
        }
    }
}

fn upgrade(scene: &Scene, volume: &Volume, name: &str) -> Result<(), StoreError> {
    let id = volume.find(name)?.expect("there is such a title").id;
    volume.prepare(id, &[], &mut |_| ())?;
    scene.sim.mark(&format!("upgraded {name}"));
    Ok(())
}

fn add(scene: &Scene, volume: &Volume, name: &str, sizes: &[u16]) -> Result<(), StoreError> {
    let film = &scene.library.0[name];
    scene.sim.mark(&format!("adding {name}"));
    film.write(volume, sizes)?.commit(film.finish(name))?;
    scene.sim.mark(&format!("added {name}"));
    Ok(())
}

fn remove(scene: &Scene, volume: &Volume, name: &str) -> Result<(), StoreError> {
    let id = volume.find(name)?.expect("there is such a title").id;
    scene.sim.mark(&format!("removing {name}"));
    volume.remove(id)?;
    scene.sim.mark(&format!("removed {name}"));
    Ok(())
}

fn prepare(scene: &Scene, volume: &Volume, name: &str, size: u16) -> Result<(), StoreError> {
    let id = volume.find(name)?.expect("there is such a title").id;
    volume.add_packet_size(id, usize::from(size))?;
    scene.sim.mark(&format!("prepared {name} {size}"));
    Ok(())
}

/// Makes a store in a directory that is not there yet, and adds a title.
fn first_steps(scene: &Scene) -> Result<(), StoreError> {
    let volume = scene.open()?;
    add(scene, &volume, "b", &[SIZE])
}

fn ingest(scene: &Scene) -> Result<(), StoreError> {
    let volume = scene.open()?;
    add(scene, &volume, "b", &[SIZE, 188])?;
    add(scene, &volume, "c", &[SIZE])
}

fn removal(scene: &Scene) -> Result<(), StoreError> {
    let volume = scene.open()?;
    remove(scene, &volume, "a")?;
    add(scene, &volume, "a", &[SIZE])?;
    remove(scene, &volume, "b")
}

fn preparation(scene: &Scene) -> Result<(), StoreError> {
    let volume = scene.open()?;
    prepare(scene, &volume, "a", 188)?;
    prepare(scene, &volume, "b", 940)
}

/// Range sums and CRCs for titles that have none.
fn upgrades(scene: &Scene) -> Result<(), StoreError> {
    let volume = scene.open()?;
    upgrade(scene, &volume, "a")?;
    upgrade(scene, &volume, "c")
}

#[test]
fn power_cut_while_a_store_is_made() {
    let scene = Scene::new(&[]);
    first_steps(&scene).unwrap();
    let states = scene.verify_power_cuts(12);
    assert!(states > 40, "{states} states");
}

#[test]
fn store_in_new_directory_survives_power_cut() {
    let (library, dir) = (library(), scratch());
    let sim = Sim::new(&[dir.path()]).unwrap();
    let store = dir.path().join("new/store");
    let volume = Volume::open_or_create_on(&store, sim.disk()).unwrap();
    let film = &library.0["b"];
    film.write(&volume, &[SIZE]).unwrap().commit(film.finish("b")).unwrap();
    sim.mark("added b");
    each_state(&sim.recording(), 1, 12, |left| {
        let volume = Volume::open_or_create(&left.roots[0].join("new/store"));
        let volume = volume.unwrap_or_else(|e| panic!("{}: {e}", left.what));
        library.verify(&volume, &left.marks, &left.what);
    });
}

#[test]
fn power_cut_while_titles_are_added() {
    let scene = Scene::new(&["a"]);
    ingest(&scene).unwrap();
    let states = scene.verify_power_cuts(8);
    assert!(states > 80, "{states} states");
}

#[test]
fn power_cut_while_titles_are_removed() {
    let scene = Scene::new(&["a", "b"]);
    removal(&scene).unwrap();
    let states = scene.verify_power_cuts(12);
    assert!(states > 60, "{states} states");
}

#[test]
fn power_cut_while_packet_sizes_are_added() {
    let scene = Scene::new(&["a", "b"]);
    preparation(&scene).unwrap();
    let states = scene.verify_power_cuts(12);
    assert!(states > 40, "{states} states");
}

#[test]
fn power_cut_while_titles_of_an_older_version_are_upgraded() {
    let scene = Scene::older(&["a", "c"]);
    upgrades(&scene).unwrap();
    let states = scene.verify_power_cuts(12);
    assert!(states > 40, "{states} states");
}

/// The opening that repairs a store may lose power too, and so may the next one.
#[test]
fn power_cut_while_a_store_recovers() {
    let scene = Scene::new(&["a", "b"]);
    removal(&scene).unwrap();
    let mut second = 0;
    each_state(&scene.sim.recording(), 1, 1, |left| {
        let sim = Sim::new(&[&left.roots[0]]).unwrap();
        Volume::open_or_create_on(&left.roots[0], sim.disk()).unwrap();
        second += each_state(&sim.recording(), 1, 1, |again| {
            let what = format!("{}; opened; {}", left.what, again.what);
            let (roots, number) = (again.roots, again.number);
            scene.verify_left(&Left { roots, marks: left.marks.clone(), what, number });
        });
    });
    assert!(second > 200, "{second} states");
}

type Start = fn() -> Scene;
type Work = fn(&Scene) -> Result<(), StoreError>;

const WORKS: [(&str, Start, Work); 5] = [
    ("making a store", || Scene::new(&[]), first_steps),
    ("ingest", || Scene::new(&["a"]), ingest),
    ("removal", || Scene::new(&["a", "b"]), removal),
    ("preparation", || Scene::new(&["a", "b"]), preparation),
    ("upgrade", || Scene::older(&["a", "c"]), upgrades),
];

/// Does the work with an order to fail; then the disk is well again.
fn fail(start: Start, work: Work, order: Order, what: &str) -> bool {
    let scene = start();
    scene.sim.order(Some(order));
    let outcome = work(&scene);
    scene.sim.order(None);
    let recording = scene.sim.recording();
    let marks = recording.marks(recording.points() - 1);
    let volume = scene.open().unwrap_or_else(|e| panic!("{what}: {e}"));
    scene.verify(&volume, scene.dir.path(), &marks, what);
    let film = Film::new(20, 9);
    assert_eq!(film.add(&volume, "one more").name, "one-more", "{what}: the store does not work on");
    outcome.is_ok()
}

fn operations(start: Start, work: Work) -> u64 {
    let scene = start();
    work(&scene).unwrap();
    scene.sim.operations()
}

#[test]
fn store_after_single_failed_operation_is_consistent() {
    for (name, start, work) in WORKS {
        let total = operations(start, work);
        for op in 0..total {
            let errno = if op.is_multiple_of(2) { EIO } else { ENOSPC };
            let order = match op % 3 {
                0 => Order::Short { op, errno },
                _ => Order::Fail { op, errno },
            };
            fail(start, work, order, &format!("{name}, {order:?} of {total}"));
        }
    }
}

#[test]
fn store_after_disk_failure_at_any_operation_is_consistent() {
    for (name, start, work) in WORKS {
        let total = operations(start, work);
        for op in (0..total).rev() {
            let order = Order::FailFrom { op, errno: EIO };
            let done = fail(start, work, order, &format!("{name}, {order:?} of {total}"));
            assert!(!done || op > total / 2, "{name} was acknowledged although the disk died at {op}");
        }
    }
}

#[test]
fn store_after_full_disk_during_ingest_is_consistent() {
    let bytes = library().0["c"].bytes.len() as u64 + 40_000;
    for room in (0..bytes).step_by(bytes as usize / 24) {
        let order = Order::Full { bytes: room };
        fail(|| Scene::new(&["a"]), ingest, order, &format!("ingest, {order:?}"));
    }
}

/// After an operation failed, the power is cut too: everything acknowledged before is still there.
#[test]
fn power_cut_after_a_failure() {
    for (name, start, work) in WORKS {
        let total = operations(start, work);
        for op in (0..total).filter(|op| op % 4 == 1) {
            let scene = start();
            scene.sim.order(Some(Order::Fail { op, errno: EIO }));
            let _ = work(&scene);
            let recording = scene.sim.recording();
            let last = recording.points() - 1;
            for fate in Fate::PLAIN {
                let (dir, state) = (scratch(), recording.state(last, fate));
                state.rebuild(&[dir.path()]).unwrap();
                let roots: Vec<PathBuf> = vec![dir.path().to_path_buf()];
                let what = format!("{name}, operation {op} of {total} failed, then a power cut, {fate:?}");
                let marks = recording.marks(last);
                scene.verify_left(&Left { roots: &roots, marks, what, number: op });
            }
        }
    }
}

/// Purpose of the simulation: if the sync of a directory were forgotten, the loss of the titles
/// would be detected.
#[test]
fn sim_detects_forgotten_directory_sync() {
    #[derive(Debug)]
    struct Forgetful(Arc<Sim>);
    impl DiskInterceptor for Forgetful {
        fn run(&self, op: &Op<'_>, perform: &mut dyn FnMut(usize) -> io::Result<()>) -> io::Result<()> {
            match op {
                Op::SyncDir { .. } => Ok(()),
                op => self.0.run(op, perform),
            }
        }
    }
    let dir = scratch();
    let library = library();
    drop(Volume::open_or_create(dir.path()).unwrap());
    let sim = Sim::new(&[dir.path()]).unwrap();
    let disk = Disk::watched(Arc::new(Forgetful(sim.clone())));
    library.add(&Volume::open_or_create_on(dir.path(), disk).unwrap(), "b", &[SIZE]);
    sim.mark("added b");
    let recording = sim.recording();
    let state = recording.state(recording.points() - 1, Fate::Lost);
    assert!(state.paths(0).all(|path| path.parent() != Some(Path::new("titles"))), "the title is lost");
}

//! Power cuts and failing disks while a title takes the place of another: the old one is there or the new one, whole, and never both or
//! none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::crash_support::{each_state, scratch};
use crate::sim::{EIO, Order, Sim};
use millrace_core::scale::Scale;
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{Derived, FinishTitle, MediaReader, Naming, TitleInfo, Volume};
use millrace_testkit::titles::{Film, SIZE};

/// A volume with a title and one derived from it, and a simulation that begins there.
struct Scene {
    _dir: tempfile::TempDir,
    roots: Vec<PathBuf>,
    old: TitleInfo,
    sim: Arc<Sim>,
}

fn old_film() -> Film {
    Film::new(60, 1)
}

fn new_film() -> Film {
    Film::new(50, 2)
}

impl Scene {
    fn new(members: usize) -> Self {
        let dir = scratch();
        let roots: Vec<PathBuf> = (0..members).map(|i| dir.path().join(format!("m{i}"))).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let parity = usize::from(members > 1);
        let volume = Volume::create(&roots, Geometry::choose(members, parity, 0).unwrap()).unwrap();
        let old = old_film().add(&volume, "film");
        let derived = Some(Derived::at_speed(old.id, "4".parse::<Scale>().unwrap()));
        let fast = Film::new(20, 3);
        fast.write(&volume, &[SIZE]).unwrap().commit(FinishTitle { derived, ..fast.finish("") }).unwrap();
        drop(volume);
        let sim = Sim::new(&roots.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
        Self { _dir: dir, roots, old, sim }
    }

    fn replace(&self) -> Result<(), StoreError> {
        let volume = Volume::open_members_on(&self.roots, self.sim.disk())?;
        let film = new_film();
        let naming = Naming { replaces: Some(self.old.id), ..Naming::default() };
        let title =
            film.write(&volume, &[SIZE])?.commit(FinishTitle { naming, ..film.finish("other name") })?;
        assert_eq!(title.name, "film");
        self.sim.mark("replaced");
        Ok(())
    }
}

/// Whether the new title is there; else the old one is. Its bytes are read.
fn is_new(roots: &[PathBuf], what: &str) -> bool {
    let volume = Volume::open_members(roots).unwrap_or_else(|e| panic!("{what}: {e}"));
    let titles = volume.titles().unwrap();
    let named: Vec<&TitleInfo> = titles.iter().filter(|title| title.name == "film").collect();
    assert_eq!(named.len(), 1, "{what}: {titles:?}");
    let [old, new] = [old_film(), new_film()];
    let is_new = named[0].blake3 == blake3::hash(&new.bytes).to_hex().as_str();
    let expected = if is_new { new.bytes } else { old.bytes };
    let mut bytes = vec![0; expected.len()];
    MediaReader::open(&volume, named[0].id).and_then(|mut reader| reader.read_exact(0, &mut bytes)).unwrap();
    assert!(bytes == expected, "{what}: other bytes");
    let others: Vec<&str> =
        titles.iter().map(|title| title.name.as_str()).filter(|name| *name != "film").collect();
    assert!(if is_new { others.is_empty() } else { others == ["film@4"] }, "{what}: {others:?}");
    assert_eq!(volume.find("film").unwrap().unwrap().id, named[0].id, "{what}");
    drop(volume);
    let findings = |root: &Path| check_store(root, Depth::Full, &mut |_| {}).unwrap();
    assert_eq!(findings(&roots[0]), [], "{what}");
    is_new
}

#[test]
fn power_cut_while_replacing_leaves_the_old_title_or_the_new_one() {
    for members in [1, 3] {
        let scene = Scene::new(members);
        scene.replace().unwrap();
        // Those that are rebuilt name these as their places.
        scene.roots.iter().for_each(|root| std::fs::rename(root, root.with_extension("done")).unwrap());
        let (mut new, mut old) = (0, 0);
        each_state(&scene.sim.recording(), members, 4, |left| {
            let is_new = is_new(left.roots, &left.what);
            assert!(!left.marks.contains(&"replaced") || is_new, "{}: lost", left.what);
            *(if is_new { &mut new } else { &mut old }) += 1;
        });
        assert!(new > 1 && old > 20, "{members} members: {new} states with the new title, {old} without");
    }
}

#[test]
fn failed_operation_while_replacing_leaves_the_old_title_or_the_new_one() {
    for members in [1, 3] {
        let whole = Scene::new(members);
        whole.replace().unwrap();
        let operations = whole.sim.operations();
        let mut failed = 0;
        for op in (0..operations).step_by(7).chain(operations.saturating_sub(80)..operations) {
            let scene = Scene::new(members);
            scene.sim.order(Some(Order::Fail { op, errno: EIO }));
            let is_done = scene.replace().is_ok();
            scene.sim.order(None);
            failed += usize::from(!is_done);
            let is_new = is_new(&scene.roots, &format!("{members} members, operation {op} fails"));
            assert!(!is_done || is_new, "operation {op}");
        }
        assert!(failed > 10, "{failed} of {operations}");
    }
}

#[test]
fn replaced_title_in_an_open_volume_is_gone_at_once_with_what_was_derived_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let old = old_film().add(&volume, "film");
    let replace = |film: &Film, id| {
        let naming = Naming { replaces: Some(id), ..Naming::default() };
        film.write(&volume, &[SIZE]).unwrap().commit(FinishTitle { naming, ..film.finish("film") }).unwrap()
    };
    // The reader of the old one goes on.
    let mut reader = MediaReader::open(&volume, old.id).unwrap();
    let new = replace(&new_film(), old.id);
    let mut bytes = vec![0; old_film().bytes.len()];
    reader.read_exact(0, &mut bytes).unwrap();
    assert!(bytes == old_film().bytes);
    assert_eq!(volume.titles().unwrap().iter().map(|title| title.id).collect::<Vec<_>>(), [new.id]);
    // A second one that wanted to take the same place takes that of the first: it came from the same file.
    let last = replace(&Film::new(30, 9), old.id);
    assert_eq!(last.name, "film");
    assert_eq!(volume.titles().unwrap().iter().map(|title| title.id).collect::<Vec<_>>(), [last.id]);
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

//! Power cuts and failing disks while a title and its renditions become visible: all of them are there, or none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::crash_support::{each_state, scratch};
use crate::sim::{EIO, Order, Sim};
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{FinishTitle, TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE};

const NAMES: [&str; 3] = ["film", "film@240p", "film@480p"];

/// An empty volume of a given number of members, and a simulation that starts there.
struct Scene {
    _dir: tempfile::TempDir,
    roots: Vec<PathBuf>,
    sim: Arc<Sim>,
}

impl Scene {
    fn new(members: usize) -> Self {
        let dir = scratch();
        let roots: Vec<PathBuf> = (0..members).map(|i| dir.path().join(format!("m{i}"))).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let parity = usize::from(members > 1);
        drop(Volume::create(&roots, Geometry::choose(members, parity, 0).unwrap()).unwrap());
        let sim = Sim::new(&roots.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
        Self { _dir: dir, roots, sim }
    }

    fn add(&self) -> Result<(), StoreError> {
        let volume = Volume::open_members_on(&self.roots, self.sim.disk())?;
        let rung = |(name, seed): (&str, u64)| {
            let film = Film::new(60, seed);
            let finish = FinishTitle { rendition: Some(name.parse().unwrap()), ..film.finish("film") };
            Ok((film.write(&volume, &[SIZE])?, finish))
        };
        let rungs = [("1080p", 1), ("480p", 2), ("240p", 3)].into_iter().map(rung);
        TitleWriter::commit_ladder(rungs.collect::<Result<_, StoreError>>()?)?;
        self.sim.mark("added");
        Ok(())
    }
}

/// Returns the names of the titles present: all or none, and sound.
fn names(roots: &[PathBuf], what: &str) -> Vec<String> {
    let volume = Volume::open_members(roots).unwrap_or_else(|e| panic!("{what}: {e}"));
    let names: Vec<String> = volume.titles().unwrap().into_iter().map(|title| title.name).collect();
    assert!(names.is_empty() || names == NAMES, "{what}: {names:?}");
    let findings = |root: &Path| check_store(root, Depth::Full, &mut |_| {}).unwrap();
    assert_eq!(findings(&roots[0]), [], "{what}");
    names
}

#[test]
fn ladder_after_power_cut_has_all_renditions_or_none() {
    for members in [1, 3] {
        let scene = Scene::new(members);
        scene.add().unwrap();
        // Those that are rebuilt name these as their places.
        scene.roots.iter().for_each(|root| std::fs::rename(root, root.with_extension("done")).unwrap());
        let (mut all, mut none) = (0, 0);
        each_state(&scene.sim.recording(), members, 4, |left| {
            let there = names(left.roots, &left.what);
            assert!(!left.marks.contains(&"added") || !there.is_empty(), "{}: lost", left.what);
            *(if there.is_empty() { &mut none } else { &mut all }) += 1;
        });
        assert!(all > 1 && none > 20, "{members} members: {all} states with all, {none} without");
    }
}

#[test]
fn ladder_after_failed_operation_has_all_renditions_or_none() {
    for members in [1, 3] {
        let whole = Scene::new(members);
        whole.add().unwrap();
        let operations = whole.sim.operations();
        let mut failed = 0;
        // Nearly all of them write files, each of the many alike; what follows is the end.
        for op in (0..operations).step_by(7).chain(operations.saturating_sub(60)..operations) {
            let scene = Scene::new(members);
            scene.sim.order(Some(Order::Fail { op, errno: EIO }));
            let is_done = scene.add().is_ok();
            scene.sim.order(None);
            failed += usize::from(!is_done);
            let there = names(&scene.roots, &format!("{members} members, operation {op} fails"));
            assert!(!is_done || !there.is_empty(), "operation {op}");
        }
        assert!(failed > 30, "{failed} of {operations}");
    }
}

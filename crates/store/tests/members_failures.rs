//! A disk fails while the list of members is written: whoever missed the change is not believed, also if it is tried again.

mod common;
mod members_support;

use std::fs;
use std::path::PathBuf;

use common::Film;
use members_support::Disks;
use millrace_store::StoreError;
use millrace_store::disk::sim::{EIO, Order, Sim};
use millrace_store::volume::Volume;

/// The titles' names as a volume of these members has them; empty if it cannot be opened.
fn titles(roots: &[PathBuf]) -> Vec<String> {
    match Volume::open_members(roots) {
        Ok(volume) => volume.titles().unwrap().into_iter().map(|info| info.name).collect(),
        Err(StoreError::MembersLost { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// With every operation of a removal failing in its turn, tried again in the same process.
#[test]
fn a_removal_that_failed_is_done_whole_when_it_is_tried_again() {
    let mut failed = 0;
    for op in 0.. {
        let (disks, volume) = Disks::volume(3, 1, 0);
        let gone = Film::new(300, 1).add(&volume, "gone");
        Film::new(300, 2).add(&volume, "stays");
        drop(volume);
        disks.pull(0);
        let roots = disks.all();
        let sim = Sim::new(&roots[1..].iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
        let volume = Volume::open_members_on(&roots[1..], sim.disk()).unwrap();
        let before = sim.operations();
        sim.order(Some(Order::Fail { op: before + op, errno: EIO }));
        let first = volume.remove(gone.id);
        sim.order(None);
        let done = sim.operations() - before <= op;
        failed += u32::from(first.is_err());
        match volume.remove(gone.id) {
            Ok(()) | Err(StoreError::NoTitle { .. }) => {}
            Err(error) => panic!("operation {op}: {error}"),
        }
        drop(volume);
        let list = |i: usize| fs::read(roots[i].join("members.mrm")).unwrap();
        assert!(list(1) == list(2), "operation {op}: not all members know");
        disks.push(0);
        assert_eq!(titles(&roots), ["stays"], "operation {op}");
        for other in [1, 2] {
            let two = [roots[0].clone(), roots[other].clone()];
            assert_eq!(titles(&two), [""; 0], "operation {op}: with one that missed the removal");
        }
        if done {
            break;
        }
    }
    assert!(failed > 5, "{failed} operations failed");
}

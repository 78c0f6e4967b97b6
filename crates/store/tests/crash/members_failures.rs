//! Which members are trusted when a disk fails while the member list is written, and when members
//! change while others work.

use std::fs;
use std::path::PathBuf;

use crate::members_support::{Disks, media_of};
use crate::repair_support::{Counted, Members, content, flip};
use crate::sim::{EIO, Order, Sim};
use millrace_store::StoreError;
use millrace_store::check::{Depth, Severity, check_members};
use millrace_store::disk::ReadFaults;
use millrace_store::format::superblock::Geometry;
use millrace_store::members::MemberState;
use millrace_store::repair::{RepairOptions, RepairProgress, RepairVerdict, repair};
use millrace_store::volume::Volume;
use millrace_testkit::titles::Film;

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
fn remove_after_failed_operation_completes_on_retry() {
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

#[test]
fn member_replaced_during_repair_is_filled_before_activation() {
    let (world, volume) = Members::new(3, 1);
    Film::new(500, 1).add(&volume, "first");
    Film::new(500, 2).add(&volume, "second");
    let before = content(&world.dirs[2]);
    drop(volume);
    world.pull(2);
    let (volume, operator) = (world.open(), world.open());
    let (bad, good) = (world.root.path().join("bad"), world.root.path().join("good"));
    volume.replace_member(2, &bad).unwrap();
    let mut replaced = false;
    let mut seen = Vec::new();
    let tell = &mut |progress: &RepairProgress| {
        seen.push((progress.titles_done, progress.title.clone()));
        if progress.titles_done == 1 && !replaced {
            operator.replace_member(2, &good).unwrap();
            replaced = true;
        }
    };
    let time = Counted::new(u64::MAX);
    let options = RepairOptions { rate_bytes_per_s: 0 };
    let report = repair(&volume, &options, time.setting(tell, &ReadFaults::default())).unwrap();
    assert!(replaced);
    seen.dedup();
    let (first, second) = (seen[0].1.clone(), seen[1].1.clone());
    assert!(first != second && seen[1].0 == 1, "{seen:?}");
    assert!(
        seen.iter().all(|(done, title)| *title == if *done == 0 { &first } else { &second }[..]),
        "{seen:?}"
    );
    assert_eq!((report.verdict(), &report.activated[..]), (RepairVerdict::Repaired, &[2][..]), "{report:?}");
    volume.members().refresh();
    assert_eq!((volume.members().dir(2), volume.members().state(2)), (good.clone(), MemberState::Active));
    assert!(content(&good) == before);
}

/// With every operation failing in its turn.
#[test]
fn add_member_after_failed_operation_completes_on_retry() {
    let mut failed = 0;
    for op in 0.. {
        let (disks, volume) = Disks::volume(2, 1, 0);
        drop(volume);
        let (roots, new) = (disks.all(), disks.at(2));
        fs::create_dir(&new).unwrap();
        let sim = Sim::new(&[&roots[0], &roots[1], &new].map(PathBuf::as_path)).unwrap();
        let volume = Volume::open_on(&roots[0], sim.disk()).unwrap();
        let before = sim.operations();
        sim.order(Some(Order::Fail { op: before + op, errno: EIO }));
        let geometry = Geometry::choose(3, 1, 0).unwrap();
        let first = volume.add_member(&new, geometry);
        let done = sim.operations() - before <= op;
        sim.order(None);
        failed += u32::from(first.is_err());
        if first.is_err() {
            let again = volume.add_member(&new, geometry);
            // It may be a member already, if one of the others had heard of it.
            assert!(again.is_ok() || volume.members().len() == 3, "operation {op}: {again:?}");
        }
        drop(volume);
        // That brings the list to those that have not heard of it.
        drop(Volume::open(&roots[0]).unwrap());
        assert_eq!(Volume::open(&new).unwrap().members().usable(), [0, 1, 2], "operation {op}");
        if done {
            break;
        }
    }
    assert!(failed > 5, "{failed} operations failed");
}

#[test]
fn add_packet_size_skips_damaged_copy_of_sums() {
    let (world, volume) = Members::new(3, 1);
    let film = Film::new(20_000, 1);
    let info = film.add(&volume, "film");
    let path = |i: usize, name: &str| world.dirs[i].join(format!("titles/{}/{name}", info.id));
    for name in ["meta-1316.mrp", "parity.mrp"] {
        flip(&path(0, name), 4096 + 100);
    }
    flip(&path(1, "meta-1316.mrp"), 4096 * 2 + 100);
    flip(&path(2, "data.mru"), 100);
    volume.add_packet_size(info.id, 188).unwrap();
    assert!(media_of(&volume, info.id) == film.bytes);
    flip(&path(2, "meta-1316.mrp"), 4096 + 100);
    flip(&path(1, "meta-1316.mrp"), 4096 + 100);
    let error = volume.add_packet_size(info.id, 1880).unwrap_err().to_string();
    assert!(error.contains("meta-1316.mrp") && error.contains("millrace fsck"), "{error}");
}

#[test]
fn check_members_reports_missing_first_member_as_warning() {
    let (world, volume) = Members::new(3, 1);
    Film::new(100, 1).add(&volume, "film");
    drop(volume);
    world.pull(0);
    for _ in ["gone", "an empty place"] {
        let findings = check_members(&world.dirs, Depth::Full, &mut |_| {}).unwrap();
        let promises: Vec<_> = findings.iter().map(|found| (found.promise, found.severity)).collect();
        assert_eq!(promises[0], ("every_member_is_there", Severity::Warning), "{findings:#?}");
        assert!(promises.iter().all(|(_, severity)| *severity == Severity::Warning), "{findings:#?}");
        let _ = fs::create_dir(&world.dirs[0]);
    }
}

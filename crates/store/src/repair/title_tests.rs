//! Titles made by hand on some members: data that is lost, stale or damaged there comes back byte
//! for byte.

use std::fs;

use super::*;
use crate::format::superblock::Geometry;
use crate::repair::hand_made::{PACKET, RepairFixture, geometry};
use crate::repair::report::RepairReport;

fn whole(position: usize) -> MissingFiles {
    MissingFiles { position, whole: true, files: Vec::new() }
}

fn file(position: usize, name: &str) -> MissingFiles {
    MissingFiles { position, whole: false, files: vec![(name.to_owned(), "wrong".to_owned())] }
}

#[test]
fn members_that_were_lost_come_back_byte_for_byte() {
    for (members, tolerance) in [(2, 1), (3, 1), (4, 2), (5, 1), (5, 3)] {
        let world = RepairFixture::new(geometry(members, tolerance), 400);
        let before = world.tree();
        for first in 0..members {
            let lost: Vec<usize> = (0..tolerance).map(|i| (first + i * 2) % members).collect();
            lost.iter().for_each(|&i| fs::remove_dir_all(world.title(i)).unwrap());
            let mut lost: Vec<usize> = lost;
            lost.sort_unstable();
            lost.dedup();
            let report = world.mend(&lost.iter().map(|&i| whole(i)).collect::<Vec<_>>(), &[]);
            assert_eq!(report.count(RepairOutcome::Repaired), lost.len(), "{members} members, {report:?}");
            assert!(world.tree() == before, "{members} members, {lost:?} lost");
        }
    }
}

#[test]
fn repair_with_too_many_lost_members_reports_and_changes_nothing() {
    let world = RepairFixture::new(geometry(3, 1), 100);
    fs::remove_dir_all(world.title(0)).unwrap();
    fs::remove_dir_all(world.title(2)).unwrap();
    let before = world.tree();
    let report = world.mend(&[whole(0), whole(2)], &[]);
    assert_eq!(report.count(RepairOutcome::Lost), 2, "{report:?}");
    assert!(report.found[0].what.contains("stripe 0 of the title cannot be restored"), "{report:?}");
    assert!(world.tree() == before);
}

/// The repair of member 1, begun before, made to its end.
fn gone_on(world: &RepairFixture) -> RepairReport {
    loop {
        match world.mend_until(&[whole(1)], &[], 0, u64::MAX) {
            // A child that another test has just forked holds the lock until it runs its program.
            (_, _, Err(error)) if error.to_string().contains("another process is making it") => {
                std::thread::yield_now();
            }
            (report, _, result) => {
                result.unwrap();
                return report;
            }
        }
    }
}

#[test]
fn repair_after_stop_resumes_partial_file() {
    let world = RepairFixture::new(geometry(3, 1), 26_000);
    let before = world.tree();
    fs::remove_dir_all(world.title(1)).unwrap();
    let (_, _, result) = world.mend_until(&[whole(1)], &[], 100_000_000, 500_000_000);
    assert!(matches!(result, Err(RepairError::Stopped)));
    assert!(!world.title(1).exists());
    let half = world.dirs(1).tmp.join(world.manifest.title.id.to_string());
    let made = fs::metadata(half.join("data.mru")).unwrap().len();
    assert!(made > 4 << 20 && made < 10 << 20, "{made} bytes");
    // The last bytes written never came to the disk.
    let mut bytes = fs::read(half.join("data.mru")).unwrap();
    let end = bytes.len() - 5000;
    bytes[end..].fill(0);
    fs::write(half.join("data.mru"), bytes).unwrap();
    let report = gone_on(&world);
    assert_eq!(report.count(RepairOutcome::Repaired), 1, "{report:?}");
    assert!(world.tree() == before);
    let full = world.manifest.files_on(1).iter().map(|f| f.bytes).sum::<u64>();
    assert!(report.bytes_written < full - made / 2, "{} of {full} written again", report.bytes_written);
}

/// A batch is one write, and a process that is killed may leave any part of it.
#[test]
fn repair_after_partial_write_rewrites_at_most_one_stripe() {
    let world = RepairFixture::new(geometry(3, 1), 26_000);
    let before = world.tree();
    let file = world.title(1).join("data.mru");
    let whole_file = fs::read(&file).unwrap();
    fs::remove_dir_all(world.title(1)).unwrap();
    let half = world.dirs(1).tmp.join(world.manifest.title.id.to_string());
    let Geometry { k, m, unit_packets, .. } = geometry(3, 1);
    let stripe = usize::from(k + m) * unit_packets as usize * PACKET;
    let kept = whole_file.len() - stripe * 3 / 2;
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("data.mru"), &whole_file[..kept]).unwrap();
    let report = gone_on(&world);
    assert!(world.tree() == before);
    let full = world.manifest.files_on(1).iter().map(|f| f.bytes).sum::<u64>();
    let again = report.bytes_written - (full - kept as u64);
    assert!(again <= stripe as u64, "{again} bytes written again, {stripe} in a stripe");
}

#[test]
fn never_faster_than_the_bound() {
    let world = RepairFixture::new(geometry(3, 1), 3000);
    fs::remove_dir_all(world.title(1)).unwrap();
    let (report, ns, result) = world.mend_until(&[whole(1)], &[], 1_000_000, u64::MAX);
    result.unwrap();
    let moved = report.bytes_read + report.bytes_written;
    let allowed = (ns + 100_000_000) / 1000;
    assert!(moved > 5_000_000 && moved <= allowed, "{moved} bytes in {ns} ns");
    assert!(moved + moved / 10 > allowed - 100_000, "and not much slower: {moved} of {allowed}");
}

#[test]
fn files_are_repaired_one_by_one() {
    for name in ["data.mru", "parity.mru", "index.mri", "meta-1316.mrp", "parity.mrp", "manifest.mrm"] {
        let world = RepairFixture::new(geometry(3, 1), 500);
        let before = world.tree();
        world.flip(1, name, 3);
        world.flip(1, name, 0);
        let report = world.mend(&[file(1, name)], &[]);
        assert_eq!(report.count(RepairOutcome::Repaired), 1, "{name}: {report:?}");
        assert!(world.tree() == before, "{name}");
        fs::remove_file(world.title(1).join(name)).unwrap();
        world.mend(&[file(1, name)], &[]);
        assert!(world.tree() == before, "{name}");
    }
}

#[test]
fn parity_on_one_member_repairs_its_media() {
    let world = RepairFixture::new(Geometry::choose(1, 0, 2).unwrap(), 500);
    let before = world.tree();
    world.flip(0, "data.ts", 77);
    world.flip(0, "data.ts", 20 * PACKET * 7);
    world.flip(0, "parity.mru", 20 * PACKET * 2 + 5);
    let report = world.mend(&[file(0, "data.ts"), file(0, "parity.mru")], &[]);
    assert_eq!(report.count(RepairOutcome::Repaired), 2, "{report:?}");
    assert!(world.tree() == before);
}

#[test]
fn damage_that_the_sums_do_not_see_is_repaired_by_its_hash() {
    for (members, tolerance) in [(2, 1), (3, 1), (5, 1)] {
        let world = RepairFixture::new(geometry(members, tolerance), 500);
        let before = world.tree();
        let path = world.title(1).join("data.mru");
        let mut bytes = fs::read(&path).unwrap();
        bytes.swap(100, 102);
        bytes.swap(101, 103);
        fs::write(path, bytes).unwrap();
        let report = world.mend(&[file(1, "data.mru")], &[(1, Units::Data)]);
        assert_eq!(report.count(RepairOutcome::Repaired), 1, "{members} members: {report:?}");
        assert!(world.tree() == before, "{members} members");
    }
}

#[test]
fn copies_that_are_damaged_in_different_places_make_one_that_is_not() {
    let world = RepairFixture::new(geometry(2, 1), 3000);
    let before = world.tree();
    world.flip(0, "meta-1316.mrp", 4096 * 2 + 9);
    world.flip(1, "meta-1316.mrp", 4096 * 4 + 9);
    let report = world.mend(&[file(0, "meta-1316.mrp"), file(1, "meta-1316.mrp")], &[]);
    assert_eq!(report.count(RepairOutcome::Repaired), 2, "{report:?}");
    assert!(world.tree() == before);
    world.flip(0, "meta-1316.mrp", 4096 * 2 + 9);
    world.flip(1, "meta-1316.mrp", 4096 * 2 + 9);
    let before = world.tree();
    let report = world.mend(&[file(0, "meta-1316.mrp"), file(1, "data.mru")], &[]);
    assert_eq!(report.count(RepairOutcome::Lost), 2, "{report:?}");
    assert!(world.tree() == before);
}

#[test]
fn repair_of_removed_title_does_not_restore_it() {
    let world = RepairFixture::new(geometry(2, 1), 50);
    let set = world.set();
    (0..2).for_each(|i| fs::remove_dir_all(world.title(i)).unwrap());
    let (report, _, result) = world.work(0, u64::MAX, |work| mend(&set, &[whole(1)], &[], work));
    result.unwrap();
    assert_eq!(report.found, []);
    assert!(world.tree().is_empty());
}

#[test]
fn damage_of_the_members_that_are_read_is_told_of() {
    let world = RepairFixture::new(geometry(4, 2), 500);
    let before = world.tree();
    fs::remove_dir_all(world.title(1)).unwrap();
    world.flip(0, "data.mru", PACKET * 3 + 100);
    let report = world.mend(&[whole(1)], &[]);
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Repairable)),
        (1, 1),
        "{report:?}"
    );
    let told = report.found.iter().find(|found| found.fate == RepairOutcome::Repairable).unwrap();
    assert_eq!(told.path, world.title(0).join("data.mru"));
    assert!(told.what.contains("the first at byte 3948") && told.what.contains("millrace scrub"), "{told:?}");
    world.flip(0, "data.mru", PACKET * 3 + 100);
    assert!(world.tree() == before);
}

//! Sums that have no copy left.

use std::fs;

use crate::format::superblock::Geometry;
use crate::repair::hand_made::{PACKET, RepairFixture, geometry};
use crate::repair::{RepairOutcome, RepairReport};
use crate::scrub::title::scrub;

fn run(world: &RepairFixture, repairs: bool) -> RepairReport {
    let set = world.set();
    let (report, _, result) = world.work(0, u64::MAX, |work| scrub(&set, repairs, work));
    result.unwrap();
    report
}

/// Damages a file on all members, in one way or another.
fn damage_all(world: &RepairFixture, name: &str) {
    for i in 0..world.set().homes.len() {
        match i % 3 {
            0 => fs::remove_file(world.title(i).join(name)).unwrap(),
            1 => world.flip(i, name, 4096 + 40),
            _ => fs::write(world.title(i).join(name), b"short").unwrap(),
        }
    }
}

#[test]
fn lost_on_all_members_they_are_computed_from_media_and_parity() {
    let alone = Geometry::choose(1, 0, 2).unwrap();
    for (geometry, names) in [
        (geometry(3, 1), &["parity.mrp", "sums.mrr"][..]),
        (geometry(4, 2), &["parity.mrp"]),
        (alone, &["parity.mrp", "sums.mrr"]),
        (geometry(2, 0), &["sums.mrr"]),
        (Geometry::SINGLE, &["sums.mrr"]),
    ] {
        let world = RepairFixture::new(geometry, 700);
        let whole = world.tree();
        names.iter().for_each(|name| damage_all(&world, name));
        let count = names.len() * world.set().homes.len();
        let looked = run(&world, false);
        assert_eq!(
            (looked.found.len(), looked.count(RepairOutcome::Repairable)),
            (count, count),
            "{looked:?}"
        );
        let repaired = run(&world, true);
        assert_eq!(
            (repaired.found.len(), repaired.count(RepairOutcome::Repaired)),
            (count, count),
            "{repaired:?}"
        );
        assert!(world.tree() == whole);
    }
}

#[test]
fn beside_them_a_member_may_be_lost() {
    let world = RepairFixture::new(geometry(3, 1), 500);
    let whole = world.tree();
    damage_all(&world, "parity.mrp");
    damage_all(&world, "sums.mrr");
    fs::remove_dir_all(world.title(1)).unwrap();
    let report = run(&world, true);
    assert_eq!(report.count(RepairOutcome::Lost), 0, "{report:?}");
    assert!(world.tree() == whole);
}

#[test]
fn rebuild_sums_with_insufficient_data_reports_lost() {
    // One member is gone and a packet of another is wrong: without the sums it is unknown which
    // parity is correct.
    let world = RepairFixture::new(geometry(3, 1), 500);
    damage_all(&world, "parity.mrp");
    fs::remove_dir_all(world.title(1)).unwrap();
    let unit = world.set().stripes.unit_bytes();
    world.flip(0, "data.mru", 40);
    world.flip(0, "parity.mru", 40);
    world.flip(2, "data.mru", unit + 40);
    world.flip(2, "parity.mru", unit + 40 + PACKET);
    let before = world.tree();
    for repairs in [false, true] {
        let report = run(&world, repairs);
        let lost = |name: &str| {
            report.found.iter().any(|found| found.path.ends_with(name) && found.fate == RepairOutcome::Lost)
        };
        assert!(lost("parity.mrp"), "{report:?}");
        assert!(world.tree() == before);
    }
}

#[test]
fn other_bytes_than_those_of_the_ingest_are_not_taken() {
    // The title was changed in a way that its sums do not show, on a member without parity, and no member has its CRCs.
    let world = RepairFixture::new(geometry(2, 0), 300);
    damage_all(&world, "sums.mrr");
    damage_all(&world, "crcs.mrc");
    let path = world.title(1).join("data.mru");
    let mut bytes = fs::read(&path).unwrap();
    // Words of two grains change places: the packet's sum stays as it was.
    bytes.swap(50, 250);
    bytes.swap(51, 251);
    fs::write(&path, bytes).unwrap();
    let before = world.tree();
    let report = run(&world, true);
    assert_eq!(report.count(RepairOutcome::Repaired), 0, "{report:?}");
    assert!(report.found.iter().any(|found| found.what.contains("another BLAKE3")), "{report:?}");
    assert!(world.tree() == before);
}

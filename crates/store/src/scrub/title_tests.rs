//! silent corruption of titles made by hand: found, repaired if the code suffices, reported without a touch if not.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::format::superblock::Geometry;
use crate::repair::hand_made::{PACKET, RepairFixture, geometry};
use crate::repair::{RepairReport, RepairVerdict};

fn run(world: &RepairFixture, repairs: bool) -> RepairReport {
    let set = world.set();
    let (report, _, result) = world.work(0, u64::MAX, |work| scrub(&set, repairs, work));
    result.unwrap();
    report
}

#[test]
fn scrub_of_healthy_title_reads_all_and_finds_nothing() {
    let alone = Geometry::choose(1, 0, 2).unwrap();
    for geometry in [Geometry::SINGLE, alone, geometry(3, 1), geometry(2, 0)] {
        let world = RepairFixture::new(geometry, 700);
        let before = world.tree();
        let report = run(&world, true);
        assert_eq!(report.verdict(), RepairVerdict::Healthy, "{geometry:?}: {report:?}");
        let stored: usize = before.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(report.bytes_read as usize > stored - stored / 50, "{} of {stored}", report.bytes_read);
        assert_eq!(report.bytes_written, 0);
        assert!(world.tree() == before);
    }
}

/// Where bits are flipped: member, parity or data, byte.
fn flips(world: &RepairFixture, flips: &[(usize, bool, u32)]) {
    let mut seen = Vec::new();
    for &(member, parity, at) in flips {
        let member = member % world.set().homes.len();
        let name = if parity { "parity.mru" } else { "data.mru" };
        let len = fs::metadata(world.title(member).join(name)).unwrap().len();
        let at = (u64::from(at) % len) as usize;
        // Two flips in a packet may leave its sum as it was: that is another test.
        if !seen.contains(&(member, parity, at / PACKET)) {
            seen.push((member, parity, at / PACKET));
            world.flip(member, name, at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn scrub_without_repair_predicts_repair_outcome(
        members in 2usize..5,
        places in prop::collection::vec((0usize..5, any::<bool>(), any::<u32>()), 1..60),
    ) {
        let world = RepairFixture::new(geometry(members, 1), 300);
        let whole = world.tree();
        flips(&world, &places);
        let before = world.tree();
        let looked = run(&world, false);
        prop_assert!(world.tree() == before, "a look changes nothing");
        let repaired = run(&world, true);
        let after = world.tree();
        prop_assert_eq!(looked.found.len(), repaired.found.len());
        for (look, done) in looked.found.iter().zip(&repaired.found) {
            prop_assert_eq!(&look.path, &done.path);
            let is_lost = [look, done].map(|found| found.fate == RepairOutcome::Lost);
            prop_assert_eq!(is_lost[0], is_lost[1], "{:?} {:?}", look, done);
        }
        // Each file is as it was ingested or as it was found, never something else.
        for ((path, bytes), ((_, damaged), (_, good))) in after.iter().zip(before.iter().zip(&whole)) {
            let is_lost = |found: &RepairFinding| found.path == *path && found.fate == RepairOutcome::Lost;
            let lost = repaired.found.iter().any(is_lost);
            prop_assert!(bytes == if lost { damaged } else { good }, "{}", path.display());
        }
        let again = run(&world, true);
        prop_assert_eq!(again.count(RepairOutcome::Repaired), 0);
        prop_assert_eq!(again.count(RepairOutcome::Lost), repaired.count(RepairOutcome::Lost));
    }
}

#[test]
fn flipped_bits_on_up_to_m_units_of_each_row_are_repaired() {
    // 4 + 4 on two members: all four units of a stripe that a member has may be wrong in every codeword.
    let world = RepairFixture::new(geometry(2, 1), 500);
    let before = world.tree();
    for name in ["data.mru", "parity.mru"] {
        let len = fs::metadata(world.title(1).join(name)).unwrap().len() as usize;
        (0..len).step_by(PACKET).for_each(|at| world.flip(1, name, at));
    }
    let report = run(&world, true);
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
        (2, 0),
        "{report:?}"
    );
    assert!(
        report.found[0].what.contains("packets with a wrong checksum, the first at byte 0"),
        "{report:?}"
    );
    assert!(world.tree() == before);
}

#[test]
fn more_than_that_is_reported_and_not_touched() {
    let world = RepairFixture::new(geometry(2, 1), 500);
    let unit = world.set().stripes.unit_bytes();
    for member in 0..2 {
        for name in ["data.mru", "parity.mru"] {
            world.flip(member, name, 40);
            world.flip(member, name, unit + 40);
        }
    }
    let before = world.tree();
    let report = run(&world, true);
    assert!(report.count(RepairOutcome::Lost) >= 2, "{report:?}");
    assert_eq!(report.verdict(), RepairVerdict::Lost);
    let lost = report.found.iter().filter(|found| found.fate == RepairOutcome::Lost);
    for found in lost {
        let bytes = &before.iter().find(|(path, _)| *path == found.path).unwrap().1;
        assert!(fs::read(&found.path).unwrap() == *bytes, "{found:?}");
    }
}

#[test]
fn scrub_without_parity_reports_damage_as_lost() {
    let world = RepairFixture::new(Geometry::SINGLE, 100);
    world.flip(0, "data.ts", 1316 * 7);
    let before = world.tree();
    for repairs in [false, true] {
        let report = run(&world, repairs);
        assert_eq!(report.found.len(), 1, "{report:?}");
        assert_eq!(report.found[0].fate, RepairOutcome::Lost);
        assert!(report.found[0].what.contains("the first at byte 9212"), "{report:?}");
        assert!(world.tree() == before);
    }
}

#[test]
fn scrub_restores_missing_title_directory_and_files() {
    let world = RepairFixture::new(geometry(3, 1), 200);
    let before = world.tree();
    fs::remove_dir_all(world.title(2)).unwrap();
    let looked = run(&world, false);
    assert_eq!((looked.found.len(), looked.count(RepairOutcome::Repairable)), (1, 1), "{looked:?}");
    assert_eq!(run(&world, true).verdict(), RepairVerdict::Repaired);
    assert!(world.tree() == before);
    fs::remove_file(world.title(0).join("data.mru")).unwrap();
    fs::remove_file(world.title(0).join("manifest.mrm")).unwrap();
    assert_eq!(run(&world, true).count(RepairOutcome::Repaired), 2);
    assert!(world.tree() == before);
}

#[test]
fn scrub_repairs_damage_that_leaves_sums_unchanged() {
    let world = RepairFixture::new(geometry(3, 1), 300);
    let before = world.tree();
    let path = world.title(1).join("data.mru");
    let mut bytes = fs::read(&path).unwrap();
    bytes.swap(50, 52);
    bytes.swap(51, 53);
    bytes[PACKET * 3] ^= 1;
    fs::write(&path, bytes).unwrap();
    let report = run(&world, true);
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
        (1, 0),
        "{report:?}"
    );
    assert!(world.tree() == before);
}

#[test]
fn scrub_of_removed_title_reports_nothing() {
    let world = RepairFixture::new(geometry(2, 1), 50);
    let set = world.set();
    (0..2).for_each(|i| fs::remove_dir_all(world.title(i)).unwrap());
    let (report, _, result) = world.work(0, u64::MAX, |work| scrub(&set, false, work));
    result.unwrap();
    assert_eq!(report.found, []);
}

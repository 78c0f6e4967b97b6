//! Members that were lost, pulled or replaced have everything again after a repair, byte for byte.

use std::fs;

use crate::repair_support;
use crate::repair_support::{Members, content, flip, run_repair, run_repair_until};
use millrace_store::members::MemberState;
use millrace_store::repair::{RepairError, RepairOutcome, RepairVerdict};
use millrace_store::volume::Volume;
use millrace_testkit::titles::{Film, SIZE};

#[test]
fn repair_fills_replaced_member_byte_for_byte_and_activates_it() {
    for (members, tolerance) in [(2, 1), (3, 1), (4, 2)] {
        let (world, volume) = Members::new(members, tolerance);
        Film::new(4000, 1).add(&volume, "first");
        Film::new(777, 2).add_sizes(&volume, "second", &[188 * 3, SIZE]);
        let before = content(&world.dirs[1]);
        drop(volume);
        world.pull(1);
        let volume = world.open();
        let new = world.root.path().join("new");
        volume.replace_member(1, &new).unwrap();
        assert_ne!(volume.members().state(1), MemberState::Active);
        let generation = volume.members().generation();
        let report = run_repair(&volume);
        assert_eq!(report.verdict(), RepairVerdict::Repaired, "{report:?}");
        assert_eq!(
            (report.activated.as_slice(), report.count(RepairOutcome::Repaired)),
            (&[1][..], 2),
            "{report:?}"
        );
        assert!(content(&new) == before, "{members} members");
        assert_eq!(volume.members().state(1), MemberState::Active);
        assert!(volume.members().generation() > generation);
        assert_eq!(run_repair(&volume).verdict(), RepairVerdict::Healthy);
        drop(volume);
        // It really stands in for another one now.
        fs::remove_dir_all(&world.dirs[0]).unwrap();
        let titles = Volume::open(&new).unwrap().titles().unwrap();
        assert_eq!(titles.len(), 2, "{members} members");
    }
}

#[test]
fn repair_restores_as_many_members_as_may_be_lost() {
    let (world, volume) = Members::new(5, 2);
    Film::new(9000, 1).add(&volume, "film");
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    drop(volume);
    for i in [1, 4] {
        world.pull(i);
    }
    let volume = world.open();
    for i in [1, 4] {
        volume.replace_member(i, &world.dirs[i]).unwrap();
    }
    let report = run_repair(&volume);
    assert_eq!(report.activated, [1, 4], "{report:?}");
    for (dir, before) in world.dirs.iter().zip(before) {
        assert!(content(dir) == before, "{}", dir.display());
    }
}

#[test]
fn repair_of_stale_member_removes_and_updates_its_titles() {
    let (world, volume) = Members::new(3, 1);
    let kept = Film::new(2000, 1).add(&volume, "kept");
    let gone = Film::new(3000, 2).add(&volume, "gone");
    let sized = Film::new(1500, 3).add(&volume, "sized");
    drop(volume);
    world.pull(2);
    let volume = world.open();
    volume.remove(gone.id).unwrap();
    volume.add_packet_size(sized.id, 188 * 5).unwrap();
    assert_eq!(volume.members().state(2), MemberState::Stale);
    world.put_back(2);
    // Damage done to the member meanwhile is detected too, and the remains of a dead process there
    // are removed.
    flip(&world.dirs[2].join(format!("titles/{}/data.mru", kept.id)), 1316 * 5);
    fs::create_dir(world.dirs[2].join("tmp").join("cd".repeat(16))).unwrap();
    drop(volume);
    let volume = world.open();
    let report = run_repair(&volume);
    assert_eq!(report.activated, [2], "{report:?}");
    assert_eq!(report.count(RepairOutcome::Lost), 0, "{report:?}");
    assert!(!world.dirs[2].join(format!("titles/{}", gone.id)).exists());
    let names = |i: usize| content(&world.dirs[i]).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(2), names(0));
    for title in [&kept, &sized] {
        for file in ["manifest.mrm", "meta-1316.mrp", "parity.mrp"] {
            let read =
                |i: usize| fs::read(world.dirs[i].join(format!("titles/{}/{file}", title.id))).unwrap();
            assert!(read(2) == read(0), "{file} of {}", title.name);
        }
    }
    assert_eq!(run_repair(&volume).verdict(), RepairVerdict::Healthy);
    assert_eq!(
        repair_support::run_scrub(&volume, false, &Default::default()).verdict(),
        RepairVerdict::Healthy
    );
}

#[test]
fn repair_after_repeated_stops_resumes_and_completes() {
    let (world, volume) = Members::new(3, 1);
    let first = Film::new(20_000, 1).add(&volume, "first");
    let second = Film::new(150_000, 2).add(&volume, "second");
    let before = content(&world.dirs[1]);
    drop(volume);
    world.pull(1);
    let volume = world.open();
    volume.replace_member(1, &world.dirs[1]).unwrap();
    let mut written = 0;
    let mut stops = 0;
    // 60 MB must be read and written; each attempt gets half of it, and first rereads the output of
    // the last one.
    let report = loop {
        match run_repair_until(&volume, 30_000_000, 1_000_000_000) {
            Ok(report) => break report,
            Err(RepairError::Stopped) => stops += 1,
            Err(error) => panic!("{error}"),
        }
        let now: u64 = content(&world.dirs[1]).iter().map(|(_, bytes)| bytes.len() as u64).sum();
        assert!(now >= written, "what was made stays: {now} after {written}");
        written = now;
        assert!(stops < 40, "it comes to an end");
    };
    assert!(stops >= 2, "{stops}");
    assert_eq!(report.activated, [1], "{report:?}");
    assert!(content(&world.dirs[1]) == before, "{} {}", first.id, second.id);
}

#[test]
fn files_that_an_active_member_lacks_are_made_again() {
    let (world, volume) = Members::new(2, 1);
    let info = Film::new(2000, 1).add(&volume, "film");
    let before = content(&world.dirs[0]);
    let title = world.dirs[0].join(format!("titles/{}", info.id));
    fs::remove_file(title.join("data.mru")).unwrap();
    fs::remove_file(title.join("index.mri")).unwrap();
    fs::write(title.join("parity.mru"), b"short").unwrap();
    let report = run_repair(&volume);
    assert_eq!(report.count(RepairOutcome::Repaired), 3, "{report:?}");
    assert!(report.activated.is_empty());
    assert!(content(&world.dirs[0]) == before);
    fs::remove_dir_all(&title).unwrap();
    assert_eq!(run_repair(&volume).count(RepairOutcome::Repaired), 1);
    assert!(content(&world.dirs[0]) == before);
}

#[test]
fn repair_with_unrecoverable_title_names_it_and_repairs_others() {
    let (world, volume) = Members::new(2, 1);
    let lost = Film::new(500, 1).add(&volume, "lost");
    let good = Film::new(500, 2).add(&volume, "good");
    drop(volume);
    world.pull(1);
    let damaged = world.dirs[0].join(format!("titles/{}/data.mru", lost.id));
    flip(&damaged, 99);
    let before = fs::read(&damaged).unwrap();
    let volume = world.open();
    volume.replace_member(1, &world.dirs[1]).unwrap();
    let report = run_repair(&volume);
    assert_eq!(report.verdict(), RepairVerdict::Lost, "{report:?}");
    let found: Vec<_> = report.found.iter().map(|found| (found.name.as_str(), found.fate)).collect();
    assert!(
        found.contains(&("lost", RepairOutcome::Lost)) && found.contains(&("good", RepairOutcome::Repaired)),
        "{report:?}"
    );
    assert!(fs::read(&damaged).unwrap() == before, "nothing of it is touched");
    assert!(world.dirs[1].join(format!("titles/{}", good.id)).is_dir());
    assert!(!world.dirs[1].join(format!("titles/{}", lost.id)).exists());
}

#[test]
fn repair_with_missing_member_reports_it_absent() {
    let (world, volume) = Members::new(3, 1);
    Film::new(100, 1).add(&volume, "film");
    drop(volume);
    world.pull(0);
    let volume = world.open();
    let report = run_repair(&volume);
    assert_eq!(
        (report.absent.as_slice(), report.verdict()),
        (&[0][..], RepairVerdict::Repaired),
        "{report:?}"
    );
}

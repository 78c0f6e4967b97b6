//! silent corruption of a volume: found on any member, repaired as far as the code goes, left alone beyond that.

use std::fs;

use crate::repair_support::{Counted, Members, content, flip, run_scrub};
use millrace_store::check::{Depth, check_store};
use millrace_store::disk::{ReadFault, ReadFaults};
use millrace_store::repair::{RepairOutcome, RepairProgress, RepairVerdict};
use millrace_store::scrub::{ScrubOptions, scrub};
use millrace_testkit::titles::Film;

#[test]
fn flipped_bits_on_every_member_are_repaired_byte_for_byte() {
    let (world, volume) = Members::new(4, 2);
    let info = Film::new(20_000, 1).add(&volume, "film");
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    // Each in a row of its own.
    for (i, dir) in world.dirs.iter().enumerate() {
        let title = dir.join(format!("titles/{}", info.id));
        flip(&title.join("data.mru"), 1316 * 70 * (i + 1));
        flip(&title.join("parity.mru"), 1316 * 90 * (i + 1) + 100);
        flip(&title.join(["index.mri", "meta-1316.mrp", "parity.mrp", "sums.mrr"][i]), 200);
    }
    let looked = run_scrub(&volume, false, &ReadFaults::default());
    assert_eq!((looked.found.len(), looked.count(RepairOutcome::Repairable)), (12, 12), "{looked:?}");
    assert_eq!(looked.bytes_written, 0);
    let report = run_scrub(&volume, true, &ReadFaults::default());
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.verdict()),
        (12, RepairVerdict::Repaired),
        "{report:?}"
    );
    for (dir, before) in world.dirs.iter().zip(before) {
        assert!(content(dir) == before, "{}", dir.display());
    }
    assert_eq!(run_scrub(&volume, true, &ReadFaults::default()).verdict(), RepairVerdict::Healthy);
}

#[test]
fn scrub_with_unreadable_disk_rewrites_its_files() {
    let (world, volume) = Members::new(3, 1);
    Film::new(3000, 1).add(&volume, "film");
    let before = content(&world.dirs[1]);
    let faults = ReadFaults::settable();
    faults.set(1, ReadFault::Eio);
    let report = run_scrub(&volume, true, &faults);
    assert!(
        report.found.iter().all(|found| found.member == 1 && found.fate == RepairOutcome::Repaired),
        "{report:?}"
    );
    assert!(report.found.iter().any(|found| found.what.contains("cannot be read")), "{report:?}");
    assert!(content(&world.dirs[1]) == before);
    faults.set(1, ReadFault::Flip { seed: 7, one_in: 200 });
    let report = run_scrub(&volume, true, &faults);
    assert!(report.found.iter().any(|found| found.what.contains("with a wrong checksum")), "{report:?}");
    assert_eq!(report.count(RepairOutcome::Lost), 0, "{report:?}");
    assert!(content(&world.dirs[1]) == before, "what is written is right, however it is read");
}

#[test]
fn more_than_the_code_bears_is_lost_in_one_title_only() {
    let (world, volume) = Members::new(2, 1);
    let lost = Film::new(2000, 1).add(&volume, "lost");
    let good = Film::new(2000, 2).add(&volume, "good");
    for dir in &world.dirs {
        for (id, file) in [(lost.id, "data.mru"), (lost.id, "parity.mru")] {
            let path = dir.join(format!("titles/{id}/{file}"));
            let mut bytes = fs::read(&path).unwrap();
            bytes.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
            fs::write(path, bytes).unwrap();
        }
    }
    flip(&world.dirs[0].join(format!("titles/{}/data.mru", good.id)), 0);
    let of_lost = |dir| -> Vec<_> {
        content(dir).into_iter().filter(|(name, _)| name.contains(&lost.id.to_string())).collect()
    };
    let before: Vec<_> = world.dirs.iter().map(|dir| of_lost(dir)).collect();
    let report = run_scrub(&volume, true, &ReadFaults::default());
    assert_eq!(
        (report.count(RepairOutcome::Lost), report.count(RepairOutcome::Repaired)),
        (4, 1),
        "{report:?}"
    );
    assert_eq!(report.verdict(), RepairVerdict::Lost);
    for (dir, before) in world.dirs.iter().zip(before) {
        assert!(of_lost(dir) == before, "{} is touched", dir.display());
    }
}

#[test]
fn scrub_keeps_rate_limit_and_reports_full_progress() {
    let (_world, volume) = Members::new(3, 1);
    Film::new(30_000, 1).add(&volume, "film");
    Film::new(10_000, 1).add(&volume, "another");
    let time = Counted::new(u64::MAX);
    let mut told: Vec<RepairProgress> = Vec::new();
    let tell = &mut |progress: &RepairProgress| told.push(progress.clone());
    let options = ScrubOptions { rate_bytes_per_s: 1_000_000, mend: true };
    let report = scrub(&volume, &options, time.setting(tell, &ReadFaults::default())).unwrap();
    let film = 40_000 * 188;
    assert!(report.bytes_read > film * 3 / 2, "film and parity: {report:?}");
    // A megabyte a second: as many bytes as microseconds, and 100 ms at once.
    let allowed = (time.spent_ns() + 100_000_000) / 1000;
    assert!(report.bytes_read <= allowed && report.bytes_read > allowed * 9 / 10, "{report:?}, {allowed}");
    let last = told.last().unwrap();
    assert_eq!((last.bytes_done, last.bytes_total, last.titles_done), (film, film, 2));
    assert!(told.windows(2).all(|w| w[0].bytes_done <= w[1].bytes_done));
}

#[test]
fn members_that_are_not_there_are_said_and_the_others_are_read() {
    let (world, volume) = Members::new(3, 1);
    let info = Film::new(1000, 1).add(&volume, "film");
    drop(volume);
    world.pull(0);
    flip(&world.dirs[2].join(format!("titles/{}/index.mri", info.id)), 100);
    let volume = world.open();
    let report = run_scrub(&volume, true, &ReadFaults::default());
    assert_eq!(
        (report.absent.as_slice(), report.count(RepairOutcome::Repaired)),
        (&[0][..], 1),
        "{report:?}"
    );
}

#[test]
fn scrub_with_hung_disk_skips_it_and_checks_the_rest() {
    let (world, volume) = Members::new(4, 1);
    let first = Film::new(3000, 1).add(&volume, "first");
    let second = Film::new(3000, 2).add(&volume, "second");
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    for id in [first.id, second.id] {
        flip(&world.dirs[2].join(format!("titles/{id}/index.mri")), 100);
    }
    let faults = ReadFaults::settable();
    faults.set(1, ReadFault::Hang);
    let mut time = Counted::new(u64::MAX);
    time.answer_ns = 300_000_000;
    let options = ScrubOptions { rate_bytes_per_s: 0, mend: true };
    let report = scrub(&volume, &options, time.setting(&mut |_| (), &faults)).unwrap();
    assert_eq!((report.silent.as_slice(), report.absent.as_slice()), (&[1][..], &[1][..]), "{report:?}");
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
        (2, 0),
        "{report:?}"
    );
    assert_eq!(report.verdict(), RepairVerdict::Repaired);
    let repairable: Vec<_> =
        report.found.iter().filter(|found| found.fate == RepairOutcome::Repairable).collect();
    assert!(!repairable.is_empty(), "{report:?}");
    assert!(
        repairable.iter().all(|f| f.member == 1 && f.what.contains("not answered for 300ms")),
        "{report:?}"
    );
    // It comes back, and nothing had happened to it.
    faults.set(1, ReadFault::None);
    assert_eq!(run_scrub(&volume, true, &faults).verdict(), RepairVerdict::Healthy);
    for (dir, before) in world.dirs.iter().zip(before) {
        assert!(content(dir) == before, "{}", dir.display());
    }
}

#[test]
fn refresh_after_scrub_repair_reports_new_epoch() {
    let (world, volume) = Members::new(3, 1);
    let info = Film::new(3000, 1).add(&volume, "film");
    let server = world.open();
    let epoch = server.members().epoch(1);
    run_scrub(&volume, true, &ReadFaults::default());
    assert!(!server.members().refresh(), "nothing was repaired");
    flip(&world.dirs[1].join(format!("titles/{}/data.mru", info.id)), 5000);
    run_scrub(&volume, false, &ReadFaults::default());
    assert!(!server.members().refresh(), "a look repairs nothing");
    assert_eq!(run_scrub(&volume, true, &ReadFaults::default()).count(RepairOutcome::Repaired), 1);
    assert!(server.members().refresh());
    assert_ne!(server.members().epoch(1), epoch);
}

/// In the order of the titles' ids, but that those in which serving found damage come first; and they are listed until they are whole.
#[test]
fn listed_titles_come_first_and_leave_the_list_when_they_are_whole() {
    let (world, volume) = Members::new(3, 1);
    let mut titles: Vec<_> = (1..6).map(|n| Film::new(700, n).add(&volume, &format!("film{n}"))).collect();
    titles.sort_by_key(|title| title.id);
    let file = |member: usize, title: usize, name: &str| {
        world.dirs[member].join(format!("titles/{}/{name}", titles[title].id))
    };
    for title in [1, 3, 4] {
        volume.note_damaged(titles[title].id);
    }
    flip(&file(0, 3, "data.mru"), 100);
    // Beyond repair.
    (0..2).for_each(|member| fs::write(file(member, 4, "data.mru"), b"").unwrap());
    let scrubbed = |repairs: bool| {
        let mut names = Vec::new();
        let tell = &mut |progress: &RepairProgress| names.push(progress.title.clone());
        let options = ScrubOptions { rate_bytes_per_s: 0, mend: repairs };
        scrub(&volume, &options, Counted::new(u64::MAX).setting(tell, &ReadFaults::default())).unwrap();
        names.dedup();
        names
    };
    let names = |order: &[usize]| order.iter().map(|&at| titles[at].name.clone()).collect::<Vec<_>>();
    let listed = || volume.damaged_titles();
    let order = names(&[1, 3, 4, 0, 2]);
    assert_eq!(scrubbed(false).iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>(), order);
    assert_eq!(listed(), [1, 3, 4].map(|at| titles[at].id), "a look changes nothing");
    world.pull(2);
    volume.members().refresh();
    scrubbed(true);
    assert_eq!(
        listed(),
        [1, 3, 4].map(|at| titles[at].id),
        "what is damaged may be on the member that is missing"
    );
    world.put_back(2);
    volume.members().refresh();
    scrubbed(true);
    assert_eq!(listed(), [titles[4].id]);
    let findings = check_store(&world.dirs[1], Depth::Quick, &mut |_| ()).unwrap();
    assert!(findings.iter().all(|finding| finding.promise != "store_holds_only_its_files"), "{findings:?}");
    volume.remove(titles[4].id).unwrap();
    assert!(listed().is_empty());
    assert!(world.dirs.iter().all(|dir| !dir.join("damaged.txt").exists()));
}

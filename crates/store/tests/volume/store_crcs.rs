//! How the tools use CRCs: fsck and scrub find damage that sums do not detect, repair makes lost
//! files again, prepare makes them for titles that have none.

use std::fs;
use std::path::{Path, PathBuf};

use crate::crc_support::{strip_crcs, swap_words};
use crate::repair_support;
use crate::repair_support::{Members, content, run_repair, run_scrub};
use millrace_store::check::{Depth, Finding, check_members, check_store};
use millrace_store::disk::ReadFaults;
use millrace_store::format::meta::{META_BLOCK_BYTES, seal_block};
use millrace_store::repair::{RepairOutcome, RepairVerdict};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles::{Film, tree};

fn plain() -> (tempfile::TempDir, Volume, TitleInfo, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(20_000, 3).add(&volume, "film");
    let title = dir.path().join(format!("titles/{}", info.id));
    (dir, volume, info, title)
}

fn findings(dir: &Path) -> Vec<Finding> {
    check_store(dir, Depth::Full, &mut |_| {}).unwrap()
}

fn promises(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.promise).collect()
}

#[test]
fn fsck_says_where_words_have_changed_places() {
    let (dir, _volume, _, title) = plain();
    assert_eq!(findings(dir.path()), []);
    swap_words(&title.join("data.ts"), 1316 * 700 + 34);
    let found = findings(dir.path());
    assert_eq!(promises(&found), ["data_is_as_ingested"]);
    let place = format!("1 packet with a wrong CRC, the first at byte {}", 1316 * 700);
    assert!(found[0].what.contains(&place), "{found:?}");
}

#[test]
fn fsck_finds_damaged_and_wrong_crcs() {
    let (dir, _volume, _, title) = plain();
    let path = title.join("crcs.mrc");
    let good = fs::read(&path).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        findings(dir.path())
    };
    let found = with(&|bytes| bytes[META_BLOCK_BYTES + 40] ^= 1);
    assert_eq!(promises(&found), ["crc_blocks_are_whole", "index_and_meta_are_as_ingested"]);
    let found = with(&|bytes| bytes[20] ^= 1);
    assert_eq!(promises(&found), ["crcs_agree_with_manifest", "index_and_meta_are_as_ingested"]);
    let found = with(&|bytes| {
        let block: &mut [u8; META_BLOCK_BYTES] =
            (&mut bytes[META_BLOCK_BYTES..][..META_BLOCK_BYTES]).try_into().unwrap();
        block[4 * 9] ^= 1;
        seal_block(block, 0);
    });
    assert_eq!(promises(&found), ["crcs_are_of_the_data", "index_and_meta_are_as_ingested"]);
    assert!(found[0].what.contains("1 packet with a wrong CRC, the first is packet 9"), "{found:?}");
}

#[test]
fn scrub_finds_swapped_words_by_their_crcs_and_repairs_them() {
    let (world, volume) = Members::new(3, 1);
    let info = Film::new(20_000, 1).add(&volume, "film");
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    let file = |i: usize, name: &str| world.dirs[i].join(format!("titles/{}/{name}", info.id));
    swap_words(&file(0, "data.mru"), 1316 * 30 + 2);
    swap_words(&file(1, "data.mru"), 1316 * 130 + 2);
    swap_words(&file(2, "parity.mru"), 1316 * 230 + 2);
    let found = check_members(&world.dirs, Depth::Full, &mut |_| {}).unwrap();
    assert!(found.len() >= 3 && found.iter().all(|f| f.promise == "units_are_as_ingested"), "{found:?}");
    let looked = run_scrub(&volume, false, &ReadFaults::default());
    assert_eq!((looked.found.len(), looked.count(RepairOutcome::Repairable)), (3, 3), "{looked:?}");
    for found in &looked.found {
        assert!(found.what.contains("1 packet with a wrong checksum, the first at byte"), "{found:?}");
    }
    let report = run_scrub(&volume, true, &ReadFaults::default());
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.verdict()),
        (3, RepairVerdict::Repaired),
        "{report:?}"
    );
    for (dir, before) in world.dirs.iter().zip(before) {
        assert!(content(dir) == before, "{}", dir.display());
    }
}

#[test]
fn crcs_that_no_member_has_any_more_are_made_again() {
    let (world, volume) = Members::new(3, 1);
    let info = Film::new(5000, 1).add(&volume, "film");
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    for (i, dir) in world.dirs.iter().enumerate() {
        let title = dir.join(format!("titles/{}", info.id));
        fs::remove_file(title.join("crcs.mrc")).unwrap();
        match i {
            0 => fs::write(title.join("parity.mrc"), b"short").unwrap(),
            _ => fs::remove_file(title.join("parity.mrc")).unwrap(),
        }
    }
    let report = run_repair(&volume);
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
        (6, 0),
        "{report:?}"
    );
    for (dir, before) in world.dirs.iter().zip(&before) {
        assert!(content(dir) == *before, "{}", dir.display());
    }
    // No CRCs are made from media that has changed.
    let path = |i: usize, name: &str| world.dirs[i].join(format!("titles/{}/{name}", info.id));
    (0..3).for_each(|i| fs::remove_file(path(i, "crcs.mrc")).unwrap());
    swap_words(&path(1, "data.mru"), 1316 * 20);
    let report = run_repair(&volume);
    assert_eq!(report.count(RepairOutcome::Lost), 3, "{report:?}");
    assert!((0..3).all(|i| !path(i, "crcs.mrc").exists()));
}

#[test]
fn prepare_gives_older_titles_the_crcs_that_they_would_have_had() {
    let (dir, volume, info, title) = plain();
    let whole = fs::read(title.join("crcs.mrc")).unwrap();
    strip_crcs(&title);
    assert_eq!(findings(dir.path()), []);
    assert_eq!(volume.prepare(info.id, &[940], &mut |_| ()).unwrap(), ["crcs.mrc", "meta-940.mrp"]);
    assert!(fs::read(title.join("crcs.mrc")).unwrap() == whole);
    assert_eq!(volume.prepare(info.id, &[], &mut |_| ()).unwrap(), [""; 0]);
    assert_eq!(findings(dir.path()), []);

    let (world, volume) = Members::new(4, 1);
    let info = Film::new(9001, 4).add(&volume, "film");
    let titles: Vec<_> = world.dirs.iter().map(|dir| dir.join(format!("titles/{}", info.id))).collect();
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    titles.iter().for_each(|title| strip_crcs(title));
    assert_eq!(volume.prepare(info.id, &[], &mut |_| ()).unwrap(), ["crcs.mrc", "parity.mrc"]);
    for (dir, before) in world.dirs.iter().zip(&before) {
        assert!(content(dir) == *before, "{}", dir.display());
    }
}

#[test]
fn prepare_trusts_no_title_that_has_another_hash() {
    let (dir, volume, info, title) = plain();
    strip_crcs(&title);
    swap_words(&title.join("data.ts"), 1316 * 5);
    let error = volume.prepare(info.id, &[940], &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.contains("data.ts: does not have the BLAKE3") && error.contains("millrace scrub"),
        "{error}"
    );
    assert!(!title.join("crcs.mrc").exists());
    assert_eq!(tree(&dir.path().join("tmp")), [""; 0]);

    // On members the code and the hashes of the files find it: then it can be prepared.
    let (world, volume) = Members::new(3, 1);
    let info = Film::new(9001, 4).add(&volume, "film");
    let titles: Vec<_> = world.dirs.iter().map(|dir| dir.join(format!("titles/{}", info.id))).collect();
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    titles.iter().for_each(|title| strip_crcs(title));
    swap_words(&titles[1].join("data.mru"), 1316 * 40);
    let error = volume.prepare(info.id, &[], &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("does not have the BLAKE3"), "{error}");
    assert_eq!(run_scrub(&volume, true, &ReadFaults::default()).verdict(), RepairVerdict::Repaired);
    volume.prepare(info.id, &[], &mut |_| ()).unwrap();
    for (dir, before) in world.dirs.iter().zip(&before) {
        assert!(content(dir) == *before, "{}", dir.display());
    }
}

#[test]
fn scrub_makes_the_crcs_of_a_plain_store_again() {
    let (dir, volume, _, title) = plain();
    let path = title.join("crcs.mrc");
    let whole = fs::read(&path).unwrap();
    for damage in [true, false] {
        if damage {
            repair_support::flip(&path, META_BLOCK_BYTES + 8);
        } else {
            fs::remove_file(&path).unwrap();
        }
        let report = run_scrub(&volume, true, &ReadFaults::default());
        assert_eq!(
            (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
            (1, 0),
            "{report:?}"
        );
        assert!(fs::read(&path).unwrap() == whole);
        assert_eq!(findings(dir.path()), []);
    }
}

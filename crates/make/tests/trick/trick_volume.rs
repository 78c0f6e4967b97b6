//! Derived titles as titles of a volume: found with their parent, removed with it, checked and repaired like any other.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::members_support::{Disks, media_of};
use crate::repair_support::{Members, content, flip, run_repair, run_scrub};
use crate::trick_support::{Fixture, X264, add, film, make_of, numbers};
use millrace_core::scale::Scale;
use millrace_make::ingest::identify;
use millrace_make::trick::{TrickError, TrickProgress, make, make_on_use};
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::disk::ReadFaults;
use millrace_store::repair::{RepairOutcome, RepairVerdict};
use millrace_store::volume::{Derived, FinishTitle, TitleInfo, Volume};
use millrace_testkit::titles::Film;

fn scale(text: &str) -> Scale {
    text.parse().unwrap()
}

/// Adds a title without pictures that declares itself derived.
fn derive(volume: &Volume, parent: &TitleInfo, speed: &str) -> Result<TitleInfo, StoreError> {
    let film = Film::new(300, 3);
    let derived = Derived::at_speed(parent.id, scale(speed));
    film.write(volume, &[1316])?.commit(FinishTitle { derived: Some(derived), ..film.finish("") })
}

fn names(titles: &[TitleInfo]) -> Vec<&str> {
    titles.iter().map(|title| title.name.as_str()).collect()
}

#[test]
fn derived_titles_are_found_with_their_parent_and_go_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let (parent, other) = (Film::new(300, 1).add(&volume, "film"), Film::new(300, 2).add(&volume, "film-2"));
    let made: Vec<TitleInfo> =
        ["4", "-16", "0.5"].map(|speed| derive(&volume, &parent, speed).unwrap()).into();
    let kept = derive(&volume, &other, "4").unwrap();
    let found = volume.speeds_of(parent.id).unwrap();
    let expected = [("-16", &made[1]), ("0.5", &made[2]), ("4", &made[0])];
    assert_eq!(found, expected.map(|(speed, info)| (scale(speed), info.clone())));
    assert_eq!(volume.find("film@-16").unwrap().as_ref(), Some(&made[1]));
    assert!(derive(&volume, &parent, "4").unwrap_err().to_string().contains("film@4 is already there"));
    assert!(derive(&volume, &made[0], "4").is_err(), "nothing is derived from what is derived");
    // The file is known by its parent only.
    assert_eq!(volume.find_source(&parent.source).unwrap(), Some(parent.clone()));
    assert_eq!(made[0].derived.unwrap().parent, parent.id);
    drop(volume);
    let volume = Volume::open(dir.path()).unwrap();
    assert_eq!(volume.speeds_of(parent.id).unwrap().len(), 3, "also after the catalogue was read again");
    volume.remove(parent.id).unwrap();
    assert_eq!(names(&volume.titles().unwrap()), ["film-2", "film-2@4"]);
    assert!(matches!(derive(&volume, &parent, "8"), Err(StoreError::NoTitle { .. })), "the parent is gone");
    volume.remove(kept.id).unwrap();
    assert_eq!(names(&volume.titles().unwrap()), ["film-2"]);
}

#[test]
fn open_removes_derived_title_without_parent() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let parent = Film::new(300, 1).add(&volume, "film");
    let orphan = derive(&volume, &parent, "4").unwrap();
    drop(volume);
    // As a removal that was cut short behind the parent leaves it.
    (0..3).for_each(|i| fs::remove_dir_all(disks.title(i, parent.id)).unwrap());
    let found = check_store(&disks.at(0), Depth::Quick, &mut |_| {}).unwrap();
    assert!(found.iter().any(|finding| finding.promise == "derived_titles_have_a_parent"), "{found:?}");
    disks.pull(2);
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert_eq!(
        names(&volume.titles().unwrap()),
        ["film@4"],
        "the parent may lie on the member that is missing"
    );
    drop(volume);
    disks.push(2);
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert!(volume.titles().unwrap().is_empty());
    assert!((0..3).all(|i| !disks.title(i, orphan.id).exists()));
    assert_eq!(check_store(&disks.at(0), Depth::Full, &mut |_| {}).unwrap(), []);
}

#[test]
fn derived_titles_of_unreadable_parent_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let parent = Film::new(300, 1).add(&volume, "film");
    derive(&volume, &parent, "4").unwrap();
    drop(volume);
    fs::write(dir.path().join(format!("titles/{}/manifest.mrm", parent.id)), b"junk").unwrap();
    // Only the catalogue knows its name still.
    for log in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(dir.path().join(format!("catalogue.sqlite{log}")));
    }
    let volume = Volume::open(dir.path()).unwrap();
    assert_eq!(names(&volume.titles().unwrap()), ["film@4"]);
    volume.remove(parent.id).unwrap();
    assert!(volume.titles().unwrap().is_empty(), "it goes with a parent that has no name any more");
}

#[test]
fn derived_titles_are_intact_with_any_one_member_lost() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let file = disks.dir.path().join("film.ts");
    film(&file, 6, X264);
    let parent = add(&volume, &file);
    let made = make_of(&volume, &parent, "4,-4").unwrap();
    let infos: Vec<TitleInfo> = made.into_iter().map(|made| made.result.unwrap().unwrap()).collect();
    let media: Vec<Vec<u8>> = infos.iter().map(|info| media_of(&volume, info.id)).collect();
    assert_eq!(check_store(&disks.at(0), Depth::Full, &mut |_| {}).unwrap(), []);
    drop(volume);
    for lost in 0..3 {
        disks.pull(lost);
        let volume = Volume::open(&disks.at((lost + 1) % 3)).unwrap();
        for (info, media) in infos.iter().zip(&media) {
            assert!(media_of(&volume, info.id) == *media, "{} without member {lost}", info.name);
        }
        drop(volume);
        disks.push(lost);
    }
}

#[test]
fn scrub_and_repair_restore_derived_titles() {
    let (world, volume) = Members::new(3, 1);
    let file = world.root.path().join("film.ts");
    film(&file, 6, X264);
    let parent = add(&volume, &file);
    let info = make_of(&volume, &parent, "4").unwrap().remove(0).result.unwrap().unwrap();
    let before: Vec<_> = world.dirs.iter().map(|dir| content(dir)).collect();
    for (dir, name) in world.dirs.iter().zip(["data.mru", "parity.mru", "meta-1316.mrp"]) {
        flip(&dir.join(format!("titles/{}/{name}", info.id)), 1000);
    }
    let report = run_scrub(&volume, true, &ReadFaults::default());
    assert_eq!(
        (report.count(RepairOutcome::Repaired), report.verdict()),
        (3, RepairVerdict::Repaired),
        "{report:?}"
    );
    drop(volume);
    world.pull(1);
    let volume = world.open();
    volume.replace_member(1, &world.dirs[1]).unwrap();
    let report = run_repair(&volume);
    assert_eq!(
        (report.activated.as_slice(), report.count(RepairOutcome::Repaired)),
        (&[1][..], 2),
        "{report:?}"
    );
    for (dir, before) in world.dirs.iter().zip(before) {
        assert!(content(dir) == before, "{}", dir.display());
    }
    assert_eq!(check_store(&world.dirs[0], Depth::Full, &mut |_| {}).unwrap(), []);
    assert_eq!(volume.speeds_of(parent.id).unwrap(), [(scale("4"), info)]);
}

#[test]
fn damage_of_the_parent_is_restored_or_refused_but_never_copied() {
    // On three members a wrong byte is restored from the parity.
    let (disks, volume) = Disks::volume(3, 1, 0);
    let file = disks.dir.path().join("film.ts");
    film(&file, 6, X264);
    let parent = add(&volume, &file);
    let path = disks.title(1, parent.id).join("data.mru");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let info = make_of(&volume, &parent, "4").unwrap().remove(0).result.unwrap().unwrap();
    let out = disks.dir.path().join("out.ts");
    fs::write(&out, media_of(&volume, info.id)).unwrap();
    assert_eq!(numbers(&out), [0, 25, 50, 75, 100, 125]);
    // On one it is noticed.
    let film = Fixture::new(4, X264);
    let path = film.dir.path().join(format!("store/titles/{}/data.ts", film.parent.id));
    let mut bytes = fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = film.make("4").unwrap_err();
    assert!(
        matches!(&error, TrickError::Store(StoreError::Damaged { what, .. }) if what.contains("packet 3 ")),
        "{error}"
    );
    assert_eq!(film.volume.titles().unwrap(), [film.parent]);
}

#[test]
fn make_after_cancel_resumes_with_remaining_speeds() {
    let film = Fixture::new(4, X264);
    let cancel = AtomicBool::new(false);
    let speeds = ["4", "-4", "8"].map(scale);
    let made = make(&film.volume, &film.parent, &speeds, &cancel, &mut |progress| {
        if matches!(progress, TrickProgress::Writing(speed, 1, _) if speed == scale("-4")) {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    let made = made.unwrap();
    assert!(matches!(made[1].result, Err(TrickError::Cancelled)), "{made:?}");
    assert_eq!(names(&film.volume.titles().unwrap()), ["film", "film@4"]);
    assert_eq!(
        fs::read_dir(film.dir.path().join("store/tmp")).unwrap().count(),
        0,
        "nothing half done is left"
    );
    let made = film.make("4,-4,8").unwrap();
    let new: Vec<bool> = made.into_iter().map(|made| made.result.unwrap().is_some()).collect();
    assert_eq!(new, [false, true, true]);
    // The file is still known, by the title that was made of it.
    let source = identify(&film.dir.path().join("film.ts")).unwrap();
    assert_eq!(film.volume.find_source(&source).unwrap(), Some(film.parent.clone()));
    assert_eq!(check_store(film.volume.dir(), Depth::Full, &mut |_| {}).unwrap(), []);
}

/// Makes one speed as on use, if `room` permits the bytes that it may take; also returns that
/// number of bytes.
fn on_use(
    volume: &Volume,
    parent: &TitleInfo,
    speed: &str,
    room: bool,
) -> (Result<Option<TitleInfo>, TrickError>, Option<u64>) {
    let (cancel, mut asked) = (AtomicBool::new(false), None);
    let mut ask = |bytes| {
        asked = Some(bytes);
        room
    };
    let made = make_on_use(volume, parent, scale(speed), &cancel, &mut |_| {}, &mut ask);
    (made, asked)
}

#[test]
fn remove_made_on_use_deletes_only_titles_not_requested_to_stay() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let file = disks.dir.path().join("film.ts");
    film(&file, 6, X264);
    let parent = add(&volume, &file);
    for speed in ["4", "-4", "0.5"] {
        let (refused, most) = on_use(&volume, &parent, speed, false);
        assert!(matches!(refused, Err(TrickError::NoSpace(_))), "{refused:?}");
        assert!((0..3).all(|i| fs::read_dir(disks.at(i).join("tmp")).unwrap().count() == 0));
        let (made, again) = on_use(&volume, &parent, speed, true);
        let info = made.unwrap().unwrap();
        assert!(info.derived.unwrap().on_use && again == most);
        let stored = volume.stored_bytes(info.id).unwrap();
        let on_disks: u64 = (0..3)
            .flat_map(|i| fs::read_dir(disks.title(i, info.id)).unwrap())
            .map(|file| file.unwrap())
            .filter(|file| file.file_name() != "manifest.mrm")
            .map(|file| file.metadata().unwrap().len())
            .sum();
        assert_eq!(stored, on_disks);
        assert!(stored <= most.unwrap(), "{speed}: {stored} of {most:?}");
    }
    let id = |speed: &str| volume.find(&format!("film@{speed}")).unwrap().unwrap().id;
    // A use is remembered.
    let used = std::time::UNIX_EPOCH + std::time::Duration::from_secs(2_000_000_000);
    volume.note_use(id("4"), used);
    assert_eq!(volume.last_use(id("4")), Some(used));
    // Asked for by an operator it stays, on every member.
    assert!(make_of(&volume, &parent, "4").unwrap().remove(0).result.unwrap().is_none());
    drop(volume);
    let volume = Volume::open(&disks.at(1)).unwrap();
    let id = |speed: &str| volume.find(&format!("film@{speed}")).unwrap().unwrap().id;
    let (stays, goes) = (id("4"), id("-4"));
    assert!(!volume.remove_made_on_use(stays).unwrap() && !volume.remove_made_on_use(parent.id).unwrap());
    assert!(volume.remove_made_on_use(goes).unwrap());
    assert!(matches!(volume.remove_made_on_use(goes), Err(StoreError::NoTitle { .. })));
    assert_eq!(names(&volume.titles().unwrap()), ["film", "film@0.5", "film@4"]);
    assert_eq!(check_store(&disks.at(0), Depth::Full, &mut |_| {}).unwrap(), []);
    // Nothing is made while a member is missing, and that is known before anything is read.
    assert!(volume.can_take_titles().is_ok());
    disks.pull(2);
    assert!(matches!(volume.can_take_titles(), Err(StoreError::MemberNeeded { .. })));
}

//! A volume that lacks more members than its parity makes up for: its contents stay known, and are
//! available again when the members are.

use std::fs;

use crate::members_support::{Disks, media_of};
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{Listing, LostMembers, Volume};
use millrace_testkit::titles::{Film, SIZE};

fn film() -> Film {
    Film::new(40_000, 5)
}

/// Returns the names of the titles, with the losses of each.
fn listed(volume: &Volume) -> Vec<(String, Option<LostMembers>)> {
    let Listing { titles, unreadable, .. } = volume.listing().unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let members = volume.members();
    let one = |title: millrace_store::volume::ListedTitle| {
        (title.info.name.clone(), title.lost(|slot| members.is_usable(slot)))
    };
    titles.into_iter().map(one).collect()
}

fn lost(slots: &[usize], of: usize, may: usize) -> Option<LostMembers> {
    Some(LostMembers { slots: slots.to_vec(), of, may })
}

#[test]
fn open_any_with_too_few_members_lists_titles_and_recovers() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    drop(volume);
    disks.pull(0);
    disks.pull(2);
    assert!(matches!(Volume::open(&disks.at(1)), Err(StoreError::MembersLost { lost: 2, may: 1, .. })));
    let before = fs::read(disks.at(1).join("members.mrm")).unwrap();
    let volume = Volume::open_any(&disks.at(1)).unwrap();
    assert_eq!(listed(&volume), [("film".to_owned(), lost(&[0, 2], 3, 1))]);
    assert_eq!(volume.find("film").unwrap(), Some(info.clone()));
    assert!(matches!(
        volume.open_title(info.id, usize::from(SIZE)),
        Err(StoreError::MembersLost { lost: 2, .. })
    ));
    // Nothing is changed without the others.
    assert!(matches!(volume.remove(info.id), Err(StoreError::MembersLost { .. })));
    assert!(film().write(&volume, &[SIZE]).is_err());
    assert!(volume.replace_member(0, &disks.at(9)).is_err());
    assert_eq!(fs::read(disks.at(1).join("members.mrm")).unwrap(), before);
    disks.push(0);
    assert!(volume.members().refresh());
    assert_eq!(listed(&volume), [("film".to_owned(), None)]);
    assert!(media_of(&volume, info.id) == film().bytes);
    disks.push(2);
    assert!(volume.members().refresh());
    film().add(&volume, "second");
    assert_eq!(listed(&volume).len(), 2);
}

#[test]
fn refresh_with_enough_members_finishes_interrupted_add() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    drop(volume);
    // The machine stopped between the renames of a title that comes: one member has it in tmp.
    fs::rename(disks.title(0, info.id), disks.tmp(0, &info.id.to_string())).unwrap();
    disks.pull(1);
    disks.pull(2);
    let volume = Volume::open_any(&disks.at(0)).unwrap();
    assert_eq!(listed(&volume), []);
    assert_eq!(disks.left().len(), 1, "members that are missing decide what becomes of it");
    disks.push(1);
    disks.push(2);
    assert!(volume.members().refresh());
    assert_eq!(listed(&volume), [("film".to_owned(), None)]);
    assert_eq!(disks.left(), Vec::<std::path::PathBuf>::new());
    assert!(disks.title(0, info.id).is_dir());
}

#[test]
fn listing_keeps_title_whose_members_are_all_missing() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, away] = ["a", "b", "away"].map(|name| dir.path().join(name));
    let volume = Volume::open_or_create(&a).unwrap();
    let old = film().add(&volume, "old");
    volume.add_member(&b, Geometry::choose(2, 1, 0).unwrap()).unwrap();
    film().add(&volume, "new");
    let names = |old| [("new".to_owned(), None), ("old".to_owned(), old)];
    assert_eq!(listed(&volume), names(None));
    fs::rename(&a, &away).unwrap();
    assert!(volume.members().refresh());
    assert_eq!(listed(&volume), names(lost(&[0], 1, 0)));
    assert_eq!(volume.find("old").unwrap().map(|info| info.id), Some(old.id));
    assert!(matches!(volume.remove(old.id), Err(StoreError::NoTitle { .. })));
    drop(volume);
    // Also for one who opens the volume only now.
    let volume = Volume::open(&b).unwrap();
    assert_eq!(listed(&volume), names(lost(&[0], 1, 0)));
    let said = volume.listing().unwrap().titles[1].lost(|slot| slot == 1).unwrap().to_string();
    assert_eq!(said, "the only member that holds the title is lost (0)");
    let findings = check_store(&b, Depth::Quick, &mut |_| ()).unwrap();
    assert!(findings.iter().all(|finding| finding.promise != "catalogue_agrees"), "{findings:?}");
    fs::rename(&away, &a).unwrap();
    assert!(volume.members().refresh());
    assert_eq!(listed(&volume), names(None));
    assert!(media_of(&volume, old.id) == film().bytes);
    // Removed is removed, also for one who sees only the other member afterwards.
    volume.remove(old.id).unwrap();
    drop(volume);
    fs::rename(&a, &away).unwrap();
    assert_eq!(listed(&Volume::open(&b).unwrap()), names(None)[..1]);
}

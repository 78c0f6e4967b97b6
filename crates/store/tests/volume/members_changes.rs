//! Volumes of several members while they change: members go, come back, are added and replaced; crashes between two members.

use std::fs;
use std::path::PathBuf;

use crate::members_support::{Disks, copy_tree, media_of};
use millrace_store::StoreError;
use millrace_store::format::superblock::Geometry;
use millrace_store::members::MemberState;
use millrace_store::volume::{TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE};

fn film() -> Film {
    Film::new(2000, 3)
}

#[test]
fn open_from_any_member_works_and_directories_override_hints() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    for i in 0..3 {
        let volume = Volume::open(&disks.at(i)).unwrap();
        assert_eq!((volume.members().len(), volume.members().usable()), (3, vec![0, 1, 2]));
        assert_eq!(volume.find("film").unwrap(), Some(info.clone()));
    }
    // All disks are mounted elsewhere.
    let moved: Vec<PathBuf> = (0..3).map(|i| disks.dir.path().join(format!("elsewhere{i}"))).collect();
    (0..3).for_each(|i| fs::rename(disks.at(i), &moved[i]).unwrap());
    let error = Volume::open(&moved[0]).unwrap_err();
    assert!(matches!(error, StoreError::MembersLost { lost: 2, may: 1, .. }), "{error}");
    let [a, b, c] = [0, 1, 2].map(|i| moved[i].clone());
    let volume = Volume::open_members(&[c, a, b]).unwrap();
    assert_eq!(volume.members().generation(), 2, "where they are now is noted");
    assert!(media_of(&volume, info.id) == film().bytes);
    assert_eq!(Volume::open(&moved[2]).unwrap().members().usable(), [0, 1, 2]);
}

#[test]
fn ingest_with_missing_member_is_refused() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let began = film().write(&volume, &[SIZE]).unwrap();
    disks.pull(2);
    let error = TitleWriter::begin(&volume, &[SIZE]).unwrap_err();
    assert!(matches!(&error, StoreError::MemberNeeded { dir, .. } if *dir == disks.at(2)), "{error}");
    assert!(error.to_string().contains("adding a film needs every member"), "{error}");
    began.commit(film().finish("film")).unwrap_err();
    disks.push(2);
    assert!(volume.titles().unwrap().is_empty());
    drop(volume);
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert_eq!(disks.left(), [""; 0].map(PathBuf::from));
    film().add(&volume, "film");
}

#[test]
fn member_that_missed_removal_is_stale_on_return() {
    let (disks, volume) = Disks::volume(2, 1, 0);
    let (gone, stays) = (film().add(&volume, "gone"), film().add(&volume, "stays"));
    disks.pull(0);
    volume.remove(gone.id).unwrap();
    assert_eq!(volume.members().state(0), MemberState::Stale);
    disks.push(0);
    for volume in [volume, Volume::open(&disks.at(0)).unwrap(), Volume::open(&disks.at(1)).unwrap()] {
        volume.members().refresh();
        assert!(volume.members().is_present(0) && !volume.members().is_usable(0));
        assert_eq!(volume.titles().unwrap(), std::slice::from_ref(&stays));
        assert!(matches!(volume.open_title(gone.id, usize::from(SIZE)), Err(StoreError::NoTitle { .. })));
        assert!(media_of(&volume, stays.id) == film().bytes);
        let error = TitleWriter::begin(&volume, &[SIZE]).unwrap_err().to_string();
        assert!(error.contains("missed a change"), "{error}");
    }
}

#[test]
fn member_that_missed_packet_size_is_stale_on_return() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    disks.pull(1);
    volume.add_packet_size(info.id, 188).unwrap();
    assert_eq!(volume.members().state(1), MemberState::Stale);
    disks.push(1);
    let volume = Volume::open(&disks.at(1)).unwrap();
    assert_eq!(volume.members().usable(), [0, 2]);
    volume.open_title(info.id, 188).unwrap();
}

#[test]
fn member_absent_without_changes_is_used_on_return() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    drop(volume);
    disks.pull(1);
    let volume = Volume::open(&disks.at(2)).unwrap();
    assert!(media_of(&volume, info.id) == film().bytes);
    disks.push(1);
    assert!(volume.members().refresh());
    assert_eq!(volume.members().usable(), [0, 1, 2]);
    film().add(&volume, "another");
}

#[test]
fn replaced_member_is_not_used_until_filled() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    let new = disks.dir.path().join("new");
    disks.pull(1);
    volume.members().refresh();
    volume.replace_member(1, &new).unwrap();
    let members = volume.members();
    assert_eq!((members.dir(1), members.state(1)), (new.clone(), MemberState::Rebuilding));
    assert_eq!((members.is_present(1), members.usable()), (true, vec![0, 2]));
    assert!(media_of(&volume, info.id) == film().bytes);
    let error = TitleWriter::begin(&volume, &[SIZE]).unwrap_err().to_string();
    assert!(error.contains("is not complete yet"), "{error}");
    let error = volume.replace_member(0, &disks.dir.path().join("another")).unwrap_err().to_string();
    assert!(error.contains("1 other member missing"), "{error}");
    // The old member comes back and leads to the others, but is not trusted; nor is a volume made
    // from it alone.
    disks.push(1);
    let volume = Volume::open(&disks.at(1)).unwrap();
    assert_eq!(volume.members().dir(1), new);
    assert_eq!(volume.members().usable(), [0, 2]);
    // Removed while it is filled: gone there, too.
    copy_tree(&disks.title(1, info.id), &new.join("titles").join(info.id.to_string()));
    volume.set_member_state(1, MemberState::Active).unwrap();
    assert_eq!(Volume::open(&new).unwrap().members().usable(), [0, 1, 2]);
    let generation = volume.members().generation();
    volume.set_member_state(1, MemberState::Rebuilding).unwrap();
    assert_eq!(volume.members().generation(), generation + 1);
    volume.remove(info.id).unwrap();
    assert!(!new.join("titles").join(info.id.to_string()).exists());
    assert!(volume.set_member_state(3, MemberState::Active).unwrap_err().to_string().contains("no member 3"));
}

#[test]
fn add_member_to_single_store_keeps_older_titles() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    let volume = Volume::open_or_create(&a).unwrap();
    let old = film().add(&volume, "old");
    let plain = fs::read(a.join("titles").join(old.id.to_string()).join("manifest.mrm")).unwrap();
    volume.add_member(&b, Geometry::choose(2, 1, 0).unwrap()).unwrap();
    assert_eq!(volume.members().usable(), [0, 1]);
    let new = Film::new(1500, 9).add(&volume, "new");
    for start in [&a, &b] {
        let volume = Volume::open(start).unwrap();
        assert_eq!(volume.titles().unwrap(), [new.clone(), old.clone()]);
        assert!(media_of(&volume, new.id) == Film::new(1500, 9).bytes);
        assert!(media_of(&volume, old.id) == film().bytes);
        let files = volume.open_title(old.id, usize::from(SIZE)).unwrap();
        assert!(files.stripes.is_none() && files.slots[..] == [0]);
        assert!(volume.unreadable().unwrap().is_empty());
    }
    assert_eq!(fs::read(a.join("titles").join(old.id.to_string()).join("manifest.mrm")).unwrap(), plain);
    // A third, named explicitly from the start.
    let volume = Volume::open_members(&[a.clone(), b.clone()]).unwrap();
    volume.add_member(&dir.path().join("c"), Geometry::choose(3, 1, 0).unwrap()).unwrap();
    assert!(!volume.members().refresh());
    assert_eq!(volume.members().usable(), [0, 1, 2]);
    let third = Film::new(1500, 11).add(&volume, "third");
    volume.remove(old.id).unwrap();
    fs::rename(&a, dir.path().join("gone")).unwrap();
    let volume = Volume::open(&b).unwrap();
    assert!(media_of(&volume, new.id) == Film::new(1500, 9).bytes);
    assert!(media_of(&volume, third.id) == Film::new(1500, 11).bytes);
    let wrong = volume.add_member(&dir.path().join("d"), Geometry::choose(4, 1, 0).unwrap());
    assert!(matches!(wrong, Err(StoreError::MemberNeeded { .. })), "{wrong:?}");
}

#[test]
fn single_member_volume_with_network_parity_is_plain_store() {
    let (disks, volume) = Disks::volume(1, 0, 2);
    let info = film().add(&volume, "film");
    let data = fs::read(disks.title(0, info.id).join("data.ts")).unwrap();
    assert!(data == film().bytes, "the film is one plain file");
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert_eq!(volume.members().geometry(), Geometry::choose(1, 0, 2).unwrap());
    assert_eq!(volume.titles().unwrap(), [info]);
    let error = volume.replace_member(0, &disks.dir.path().join("new")).unwrap_err().to_string();
    assert!(error.contains("no parity: nothing else holds"), "{error}");
}

#[test]
fn open_completes_title_visible_on_some_members() {
    for visible in [vec![0], vec![2], vec![0, 1]] {
        let (disks, volume) = Disks::volume(3, 1, 0);
        let info = film().add(&volume, "film");
        drop(volume);
        // As a crash between the renames leaves it.
        for i in (0..3).filter(|i| !visible.contains(i)) {
            fs::rename(disks.title(i, info.id), disks.tmp(i, &info.id.to_string())).unwrap();
        }
        let volume = Volume::open(&disks.at(1)).unwrap();
        assert_eq!(volume.titles().unwrap(), std::slice::from_ref(&info));
        assert!((0..3).all(|i| disks.title(i, info.id).is_dir()));
        assert!(disks.left().is_empty());
        assert!(media_of(&volume, info.id) == film().bytes);
    }
}

#[test]
fn open_sweeps_invisible_title_once_all_members_are_present() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    drop(volume);
    (0..3).for_each(|i| fs::rename(disks.title(i, info.id), disks.tmp(i, &info.id.to_string())).unwrap());
    disks.pull(2);
    // It may be visible on the one that is missing.
    assert!(Volume::open(&disks.at(0)).unwrap().titles().unwrap().is_empty());
    assert_eq!(disks.left().len(), 2);
    disks.push(2);
    assert!(Volume::open(&disks.at(0)).unwrap().titles().unwrap().is_empty());
    assert!(disks.left().is_empty());
}

#[test]
fn open_leaves_incomplete_title_copy_to_repair() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    drop(volume);
    let half = disks.tmp(1, &info.id.to_string());
    fs::rename(disks.title(1, info.id), &half).unwrap();
    fs::remove_file(half.join("manifest.mrm")).unwrap();
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert!(media_of(&volume, info.id) == film().bytes, "one of three may be missing");
    assert_eq!(disks.left(), [half]);
}

#[test]
fn open_finishes_interrupted_removal_on_all_members() {
    for begun in 0..3 {
        let (disks, volume) = Disks::volume(3, 1, 0);
        let info = film().add(&volume, "film");
        drop(volume);
        fs::rename(disks.title(begun, info.id), disks.tmp(begun, &format!("{}.rm", info.id))).unwrap();
        let volume = Volume::open(&disks.at(0)).unwrap();
        assert!(volume.titles().unwrap().is_empty());
        assert!((0..3).all(|i| !disks.title(i, info.id).exists()) && disks.left().is_empty());
        assert_eq!(volume.members().usable(), [0, 1, 2]);
    }
}

#[test]
fn open_finishes_packet_size_prepared_on_one_member() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    let before: Vec<Vec<u8>> =
        (0..3).map(|i| fs::read(disks.title(i, info.id).join("manifest.mrm")).unwrap()).collect();
    volume.add_packet_size(info.id, 1880).unwrap();
    drop(volume);
    // Put back as it was between the renames of the manifest: the files are there, two manifests are not.
    let workspace = "0123456789abcdef0123456789abcdef";
    for (i, before) in before.iter().enumerate().skip(1) {
        fs::create_dir(disks.tmp(i, workspace)).unwrap();
        fs::write(disks.tmp(i, workspace).join("lock"), b"").unwrap();
        let manifest = disks.title(i, info.id).join("manifest.mrm");
        fs::rename(&manifest, disks.tmp(i, workspace).join("manifest.mrm")).unwrap();
        fs::write(&manifest, before).unwrap();
    }
    let volume = Volume::open(&disks.at(2)).unwrap();
    let manifest = |i: usize| fs::read(disks.title(i, info.id).join("manifest.mrm")).unwrap();
    assert!(manifest(1) == manifest(0) && manifest(2) == manifest(0) && manifest(0) != before[0]);
    assert!(disks.left().is_empty());
    volume.open_title(info.id, 1880).unwrap();
    drop(volume);
    // One that reached none is forgotten.
    for i in 0..3 {
        fs::create_dir(disks.tmp(i, workspace)).unwrap();
        fs::write(disks.tmp(i, workspace).join("manifest.mrm"), &before[0]).unwrap();
    }
    drop(Volume::open(&disks.at(2)).unwrap());
    assert!(disks.left().is_empty() && manifest(0) != before[0]);
}

#[test]
fn open_updates_member_with_older_members_record() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    drop(volume);
    let old = fs::read(disks.at(2).join("members.mrm")).unwrap();
    let volume = Volume::open(&disks.at(0)).unwrap();
    volume.set_member_state(1, MemberState::Active).unwrap();
    fs::write(disks.at(2).join("members.mrm"), old).unwrap();
    fs::write(disks.at(1).join("members.mrm"), b"torn").unwrap();
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert_eq!((volume.members().generation(), volume.members().usable()), (2, vec![0, 1, 2]));
    let newest = fs::read(disks.at(0).join("members.mrm")).unwrap();
    assert!((1..3).all(|i| fs::read(disks.at(i).join("members.mrm")).unwrap() == newest));
}

#[test]
fn titles_are_found_when_the_member_with_the_catalogue_goes_while_it_is_open() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    disks.pull(0);
    volume.members().refresh();
    assert_eq!(volume.find("film").unwrap(), Some(info.clone()));
    assert_eq!(volume.find_source(&info.source).unwrap(), Some(info.clone()));
    assert_eq!(volume.titles().unwrap(), std::slice::from_ref(&info));
    disks.push(0);
    volume.members().refresh();
    assert_eq!(volume.titles().unwrap(), [info]);
}

#[test]
fn open_finishes_interrupted_volume_creation() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    drop(volume);
    // As a power cut leaves it: the list is on all, two superblocks are not there yet, and nothing else.
    for i in 1..3 {
        fs::remove_file(disks.at(i).join("volume.mrv")).unwrap();
        fs::remove_dir(disks.at(i).join("tmp")).unwrap();
        fs::remove_dir(disks.at(i).join("titles")).unwrap();
    }
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert_eq!(volume.members().usable(), [0, 1, 2]);
    film().add(&volume, "film");
    // With a title there is nothing to finish: this member has lost its contents.
    for name in ["volume.mrv", "tmp", "titles"] {
        let path = disks.at(1).join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    assert_eq!(Volume::open(&disks.at(0)).unwrap().members().missing(), [1]);
}

#[test]
fn open_with_unusable_catalogue_path_uses_next_member() {
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film().add(&volume, "film");
    drop(volume);
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(disks.at(0).join(format!("catalogue.sqlite{suffix}")));
    }
    fs::create_dir(disks.at(0).join("catalogue.sqlite")).unwrap();
    let volume = Volume::open(&disks.at(0)).unwrap();
    assert_eq!(volume.find("film").unwrap(), Some(info));
    assert!(disks.at(1).join("catalogue.sqlite").is_file());
    assert!(disks.at(0).join("catalogue.sqlite").is_dir(), "nothing was set aside");
}

#[test]
fn open_with_lost_titles_directory_treats_member_as_missing() {
    for file in [false, true] {
        let (disks, volume) = Disks::volume(3, 1, 0);
        let info = film().add(&volume, "film");
        drop(volume);
        let (titles, kept) = (disks.at(1).join("titles"), disks.dir.path().join("kept"));
        fs::rename(&titles, &kept).unwrap();
        if file {
            fs::write(&titles, b"").unwrap();
        }
        for i in 0..3 {
            let volume = Volume::open(&disks.at(i)).unwrap();
            assert_eq!((volume.members().usable(), volume.members().missing()), (vec![0, 2], vec![1]));
            assert!(media_of(&volume, info.id) == film().bytes);
            let error = TitleWriter::begin(&volume, &[SIZE]).unwrap_err().to_string();
            assert!(error.contains("m1/titles"), "{error}");
        }
        assert_eq!(titles.exists(), file, "nothing is made in its place");
        let _ = fs::remove_file(&titles);
        fs::rename(&kept, &titles).unwrap();
        assert_eq!(Volume::open(&disks.at(0)).unwrap().members().usable(), [0, 1, 2]);
    }
}

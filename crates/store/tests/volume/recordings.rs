//! Recordings: written media is kept when their program dies, and only then.

use std::fs;
use std::io::Read;

use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::volume::{InterruptedRecording, RecordingNote, TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE, tree};

use crate::members_support::Disks;

fn note() -> RecordingNote {
    RecordingNote {
        name: "news".to_owned(),
        title: "News \"at\" 8".to_owned(),
        source: "live:news".into(),
        began_unix_s: 1_795_298_940,
    }
}

/// Long enough that a member's buffer is written once, and the last stripe is not full.
fn film() -> Film {
    Film::new(25_000, 5)
}

/// A volume with a recording whose program died after its media was brought to the disks.
fn interrupted(disks: &Disks, volume: Volume) -> Volume {
    let writer = TitleWriter::begin_recording(&volume, &[SIZE], &note()).unwrap();
    let mut writer = film().write_into(writer, &[SIZE]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    drop(volume);
    Volume::open_members(&disks.all()).unwrap()
}

fn media_of(recording: &InterruptedRecording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.media().unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn interrupted_recording_has_all_that_was_flushed_until_it_is_removed() {
    // Bytes of a stripe that was not full: those are not flushed.
    for (members, tolerance, network, unflushed) in [(1, 0, 0, 0), (1, 0, 2, 0), (4, 1, 0, 4 << 20)] {
        let (disks, volume) = Disks::volume(members, tolerance, network);
        let volume = interrupted(&disks, volume);
        let mut found = volume.interrupted_recordings().unwrap();
        assert_eq!(found.len(), 1);
        let recording = found.remove(0);
        assert_eq!(recording.note(), &note());
        let (media, film) = (media_of(&recording), film());
        assert!(film.bytes.starts_with(&media), "{members} members");
        assert!(media.len() + unflushed >= film.bytes.len(), "{members} members: {}", media.len());
        assert!(media.len() > film.bytes.len() / 2, "{members} members: {}", media.len());
        assert!(volume.interrupted_recordings().unwrap().is_empty(), "it is taken");
        for root in disks.all() {
            let findings = check_store(&root, Depth::Full, &mut |_| {}).unwrap();
            assert!(findings.is_empty(), "{findings:?}");
        }
        recording.remove().unwrap();
        assert_eq!(disks.left(), [""; 0].map(std::path::PathBuf::from));
    }
}

#[test]
fn recording_that_became_a_title_leaves_nothing_behind() {
    for (members, tolerance) in [(1, 0), (4, 1)] {
        let (disks, volume) = Disks::volume(members, tolerance, 0);
        let writer = TitleWriter::begin_recording(&volume, &[SIZE], &note()).unwrap();
        let mut writer = film().write_into(writer, &[SIZE]).unwrap();
        writer.flush().unwrap();
        let title = writer.commit(film().finish("news")).unwrap();
        assert_eq!(title.blake3, blake3::hash(&film().bytes).to_hex().as_str());
        assert!(disks.left().is_empty(), "{:?}", disks.left());
        drop(volume);
        let volume = Volume::open_members(&disks.all()).unwrap();
        assert!(volume.interrupted_recordings().unwrap().is_empty());
        assert_eq!(volume.titles().unwrap().len(), 1);
    }
}

#[test]
fn discarded_recording_and_note_without_directory_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    TitleWriter::begin_recording(&volume, &[SIZE], &note()).unwrap().discard();
    assert!(tree(&dir.path().join("tmp")).is_empty());
    let lost = dir.path().join("tmp").join(format!("{:032x}.recording", 7));
    fs::write(&lost, "{}").unwrap();
    drop(volume);
    Volume::open(dir.path()).unwrap();
    assert!(!lost.exists());
}

#[test]
fn media_of_recording_with_missing_member_is_refused_and_stays() {
    let (disks, volume) = Disks::volume(4, 1, 0);
    let volume = interrupted(&disks, volume);
    disks.pull(2);
    let found = volume.interrupted_recordings().unwrap();
    assert!(matches!(found[0].media(), Err(StoreError::MemberNeeded { .. })));
    drop((found, volume));
    disks.push(2);
    let volume = Volume::open_members(&disks.all()).unwrap();
    let found = volume.interrupted_recordings().unwrap();
    assert!(film().bytes.starts_with(&media_of(&found[0])));
}

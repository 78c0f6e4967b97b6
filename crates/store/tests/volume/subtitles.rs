//! Subtitles stored with a title: they are added, replaced and removed with it, and survive damage
//! and the loss of a member like its other records.

use std::fs;
use std::path::{Path, PathBuf};

use crate::repair_support::{Members, content, run_repair, run_scrub};
use millrace_store::check::{Depth, check_store};
use millrace_store::format::manifest::Manifest;
use millrace_store::inspect::inspect;
use millrace_store::repair::{RepairOutcome, RepairVerdict};
use millrace_store::volume::{NewSubtitles, TitleInfo, Volume};
use millrace_testkit::titles::{Film, tree};

fn track(label: &str, text: &str) -> NewSubtitles {
    let text = format!("WEBVTT\n\n00:00:01.000 --> 00:00:02.000\n{text}\n\n");
    NewSubtitles { label: label.parse().unwrap(), name: None, text, source: None }
}

fn labels(info: &TitleInfo) -> Vec<String> {
    info.subtitles.iter().map(|track| track.label.to_string()).collect()
}

/// The files of subtitles of a title on a member.
fn files(store: &Path, info: &TitleInfo) -> Vec<PathBuf> {
    let dir = store.join(format!("titles/{}", info.id));
    if !dir.exists() {
        return Vec::new();
    }
    tree(&dir).into_iter().filter(|name| name.ends_with(".vtt")).map(|name| dir.join(name)).collect()
}

fn text_of(volume: &Volume, info: &TitleInfo, label: &str) -> String {
    let info = volume.find(&info.name).unwrap().unwrap();
    let track = info.subtitles.iter().find(|track| track.label.to_string() == label).expect("the track");
    volume.read_subtitles(info.id, &track.file).unwrap()
}

fn assert_whole(store: &Path) {
    let findings = check_store(store, Depth::Full, &mut |_| {}).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn subtitles_of_a_title_are_added_replaced_and_removed_with_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(900, 1);
    let mut writer = film.write(&volume, &[1316]).unwrap();
    writer.add_subtitles(track("en", "with the film"));
    let info = writer.commit(film.finish("film")).unwrap();
    assert_eq!(labels(&info), ["en"]);
    assert!(!volume.put_subtitles(info.id, &track("de.forced", "later")).unwrap());
    assert!(volume.put_subtitles(info.id, &track("en", "in its place")).unwrap());
    assert!(volume.put_subtitles(info.id, &track("en", "in its place")).unwrap(), "the same once more");
    assert_eq!(labels(&volume.find("film").unwrap().unwrap()), ["de.forced", "en"]);
    assert_eq!(files(dir.path(), &info).len(), 2, "the old file is gone");
    assert!(text_of(&volume, &info, "en").contains("in its place"));
    assert_whole(dir.path());
    // Another process, and one that finds no catalogue.
    fs::remove_file(dir.path().join("catalogue.sqlite")).unwrap();
    let other = Volume::open(dir.path()).unwrap();
    assert!(text_of(&other, &info, "de.forced").contains("later"));
    let shown = inspect(&dir.path().join(format!("titles/{}", info.id)), None).unwrap().to_string();
    assert!(shown.contains("de.forced"), "{shown}");
    assert!(other.remove_subtitles(info.id, &"de.forced".parse().unwrap()).unwrap());
    assert!(!other.remove_subtitles(info.id, &"de.forced".parse().unwrap()).unwrap());
    assert_eq!(files(dir.path(), &info).len(), 1);
    other.add_packet_size(info.id, 188 * 3).unwrap();
    assert!(text_of(&other, &info, "en").contains("in its place"), "another change of the title keeps them");
    assert_whole(dir.path());
    other.remove(info.id).unwrap();
    assert!(files(dir.path(), &info).is_empty());
    assert_whole(dir.path());
}

#[test]
fn manifest_without_subtitles_is_written_for_older_programs() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(100, 1).add(&volume, "film");
    let version = || fs::read(dir.path().join(format!("titles/{}/manifest.mrm", info.id))).unwrap()[12];
    assert_eq!(version(), 4);
    volume.put_subtitles(info.id, &track("de", "x")).unwrap();
    assert_eq!(version(), 5);
    volume.remove_subtitles(info.id, &"de".parse().unwrap()).unwrap();
    assert_eq!(version(), 4);
}

#[test]
fn manifest_whose_subtitles_lead_elsewhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(100, 1).add(&volume, "film");
    volume.put_subtitles(info.id, &track("de", "x")).unwrap();
    let path = dir.path().join(format!("titles/{}/manifest.mrm", info.id));
    let good = Manifest::decode(&fs::read(path).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        Manifest::decode(&manifest.encode()).unwrap_err().to_string()
    };
    let elsewhere = with(&|manifest| {
        let file = "../../../etc/passwd".to_owned();
        manifest.files.iter_mut().filter(|f| f.name.ends_with(".vtt")).for_each(|f| f.name = file.clone());
        manifest.title.subtitles[0].file = file;
    });
    assert!(elsewhere.contains("file of subtitles"), "{elsewhere}");
    let twice = with(&|manifest| manifest.title.subtitles.push(manifest.title.subtitles[0].clone()));
    assert!(twice.contains("ascending order"), "{twice}");
    let unnamed = with(&|manifest| manifest.title.subtitles.clear());
    assert!(!unnamed.is_empty());
}

#[test]
fn damaged_subtitles_of_one_member_are_found_by_fsck_and_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(100, 1).add(&volume, "film");
    volume.put_subtitles(info.id, &track("de", "right")).unwrap();
    let file = files(dir.path(), &info).remove(0);
    let name = file.file_name().unwrap().to_str().unwrap();
    let text = fs::read_to_string(&file).unwrap().replace("right", "wrong");
    fs::write(&file, text).unwrap();
    let findings = check_store(dir.path(), Depth::Quick, &mut |_| {}).unwrap();
    assert_eq!(
        findings.iter().map(|f| f.promise).collect::<Vec<_>>(),
        ["subtitles_are_whole"],
        "{findings:?}"
    );
    assert!(volume.read_subtitles(info.id, name).unwrap_err().to_string().contains("BLAKE3"));
    // The same text once more is all that it takes.
    volume.put_subtitles(info.id, &track("de", "right")).unwrap();
    assert_whole(dir.path());
}

#[test]
fn subtitles_survive_a_lost_member_and_damage_on_another() {
    let (world, volume) = Members::new(3, 1);
    let info = Film::new(2000, 1).add(&volume, "film");
    volume.put_subtitles(info.id, &track("de", "kept")).unwrap();
    let before = content(&world.dirs[1]);
    for (at, dir) in world.dirs.iter().enumerate() {
        assert_eq!(files(dir, &info).len(), 1, "member {at}");
    }
    // Damage on one member: the others serve, a scrub repairs.
    let file = files(&world.dirs[1], &info).remove(0);
    fs::write(&file, "WEBVTT\n").unwrap();
    assert!(text_of(&volume, &info, "de").contains("kept"));
    let report = run_scrub(&volume, true, &Default::default());
    assert_eq!(
        (report.verdict(), report.count(RepairOutcome::Repaired)),
        (RepairVerdict::Repaired, 1),
        "{report:?}"
    );
    assert!(content(&world.dirs[1]) == before);
    // A member that is gone: subtitles change meanwhile, and it gets the new ones.
    drop(volume);
    world.pull(0);
    let volume = world.open();
    assert!(text_of(&volume, &info, "de").contains("kept"));
    volume.put_subtitles(info.id, &track("de", "changed meanwhile")).unwrap();
    volume.put_subtitles(info.id, &track("en", "new")).unwrap();
    drop(volume);
    world.put_back(0);
    let volume = world.open();
    let report = run_repair(&volume);
    assert_eq!(report.count(RepairOutcome::Lost), 0, "{report:?}");
    assert_eq!(files(&world.dirs[0], &info).len(), 2);
    drop(volume);
    fs::remove_dir_all(&world.dirs[1]).unwrap();
    let volume = world.open();
    assert!(text_of(&volume, &info, "de").contains("changed meanwhile"));
    assert!(text_of(&volume, &info, "en").contains("new"));
    volume.remove(info.id).unwrap();
}

use super::*;
use std::fs;

fn paths(files: Vec<FoundFile>) -> Vec<PathBuf> {
    files.into_iter().map(|file| file.path).collect()
}

/// Scans while no file is open for writing.
fn scan(watcher: &mut Watcher, now: SystemTime) -> Scan {
    watcher.scan(now, &|_| HashSet::new())
}

fn ready(watcher: &mut Watcher, now: SystemTime) -> Vec<PathBuf> {
    paths(scan(watcher, now).ready)
}

fn later(secs: u64) -> SystemTime {
    SystemTime::now() + Duration::from_secs(secs)
}

#[test]
fn watcher_reports_new_file_once_and_again_after_change() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let media = dir.path().join("sub/a.TS");
    fs::write(&media, b"1").unwrap();
    fs::write(dir.path().join("notes.txt"), b"1").unwrap();
    fs::write(dir.path().join(".hidden.ts"), b"1").unwrap();
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    assert_eq!(ready(&mut watcher, later(10)), std::slice::from_ref(&media));
    assert!(ready(&mut watcher, later(20)).is_empty());
    fs::write(&media, b"22").unwrap();
    // The file was seen to change, so it may change again.
    assert!(ready(&mut watcher, later(30)).is_empty());
    assert!(ready(&mut watcher, later(44)).is_empty());
    assert_eq!(ready(&mut watcher, later(45)), [media]);
}

#[test]
fn watcher_with_recently_modified_file_waits() {
    let dir = tempfile::tempdir().unwrap();
    let media = dir.path().join("a.mp4");
    fs::write(&media, b"1").unwrap();
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    assert!(ready(&mut watcher, SystemTime::now()).is_empty());
    assert_eq!(ready(&mut watcher, later(4)), [media]);
}

#[test]
fn watcher_accepts_file_from_future_after_two_equal_scans() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.mp4"), b"1").unwrap();
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    let past = SystemTime::now() - Duration::from_secs(3600);
    assert!(ready(&mut watcher, past).is_empty());
    assert_eq!(ready(&mut watcher, past).len(), 1);
}

#[test]
fn links_that_lead_out_of_the_folder_are_followed_only_if_that_is_asked_for() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("sub")).unwrap();
    fs::write(path("sub/inside.ts"), b"1").unwrap();
    fs::write(outside.path().join("film.ts"), b"22").unwrap();
    fs::create_dir(outside.path().join("more")).unwrap();
    fs::write(outside.path().join("more/b.ts"), b"333").unwrap();
    let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, path(name)).unwrap();
    link(&path("sub/inside.ts"), "within.ts");
    link(Path::new("sub/../sub/inside.ts"), "relative.ts");
    link(&outside.path().join("film.ts"), "out.ts");
    // The same through a second link.
    link(&path("out.ts"), "twice.ts");
    link(&outside.path().join("more"), "folder");
    link(dir.path(), "sub/up");
    link(Path::new("/nonexistent"), "dangling.ts");
    link(Path::new("/etc/passwd"), "notes.txt");

    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    let Scan { ready, errors, .. } = scan(&mut watcher, later(10));
    let ready = paths(ready);
    assert_eq!(ready, ["relative.ts", "sub/inside.ts", "within.ts"].map(path));
    let mut left_out: Vec<_> = errors.iter().map(|error| error.path.clone()).collect();
    left_out.sort();
    assert_eq!(left_out, ["folder", "out.ts", "sub/up", "twice.ts"].map(path));
    assert!(errors[0].to_string().contains("--follow-symlinks"), "{}", errors[0]);
    // Each link is reported once.
    assert!(scan(&mut watcher, later(20)).errors.is_empty());

    let mut watcher = Watcher::new(vec![dir.path().to_owned()]).following_symlinks(true);
    let Scan { ready, errors, .. } = scan(&mut watcher, later(10));
    let ready = paths(ready);
    let all = ["folder/b.ts", "out.ts", "relative.ts", "sub/inside.ts", "twice.ts", "within.ts"];
    assert_eq!(ready, all.map(path));
    assert!(errors.is_empty());
}

#[test]
fn watcher_with_symlinked_folder_scans_its_target() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a.ts"), b"1").unwrap();
    std::os::unix::fs::symlink(dir.path().join("a.ts"), dir.path().join("b.ts")).unwrap();
    let folder = other.path().join("films");
    std::os::unix::fs::symlink(dir.path(), &folder).unwrap();
    let Scan { ready, errors, .. } = scan(&mut Watcher::new(vec![folder.clone()]), later(10));
    let ready = paths(ready);
    assert_eq!(ready, [folder.join("a.ts"), folder.join("b.ts")]);
    assert!(errors.is_empty());
}

#[test]
fn stores_are_skipped_and_missing_folders_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("volume.mrv"), b"").unwrap();
    fs::write(store.join("data.ts"), b"1").unwrap();
    let missing = dir.path().join("nowhere");
    let mut watcher = Watcher::new(vec![dir.path().to_owned(), missing]);
    let Scan { ready, errors, .. } = scan(&mut watcher, later(10));
    let ready = paths(ready);
    assert!(ready.is_empty());
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("nowhere"));
}
#[test]
fn file_that_grows_with_pauses_is_handed_out_once_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let media = dir.path().join("a.ts");
    let start = SystemTime::now();
    let at = |secs: u64| start + Duration::from_secs(secs);
    let write = |bytes: usize, secs: u64| {
        fs::write(&media, vec![0; bytes]).unwrap();
        fs::File::options().write(true).open(&media).unwrap().set_modified(at(secs)).unwrap();
    };
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    write(1, 0);
    assert_eq!(scan(&mut watcher, at(1)).settling, 1);
    write(2, 2);
    assert!(ready(&mut watcher, at(3)).is_empty());
    // The file looks complete during a pause of ten seconds.
    assert!(ready(&mut watcher, at(12)).is_empty());
    write(3, 13);
    assert!(ready(&mut watcher, at(14)).is_empty());
    assert!(ready(&mut watcher, at(28)).is_empty());
    assert_eq!(ready(&mut watcher, at(29)), [media]);
}

#[test]
fn file_that_is_open_for_writing_waits_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let media = dir.path().join("a.ts");
    fs::write(&media, b"1").unwrap();
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    let written = |paths: &[PathBuf]| paths.iter().cloned().collect();
    let scan = watcher.scan(later(600), &written);
    assert!(scan.ready.is_empty() && scan.settling == 1);
    assert!(watcher.scan(later(1200), &written).ready.is_empty());
    assert!(ready(&mut watcher, later(1210)).is_empty());
    assert_eq!(ready(&mut watcher, later(1215)), [media]);
}

#[test]
fn failed_file_is_handed_out_again_after_longer_and_longer_waits() {
    let dir = tempfile::tempdir().unwrap();
    let media = dir.path().join("a.ts");
    fs::write(&media, b"1").unwrap();
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    let start = later(100);
    let mut tries = Vec::new();
    for secs in 0..2000 {
        let now = start + Duration::from_secs(secs);
        for path in ready(&mut watcher, now) {
            tries.push(secs);
            watcher.retry_later(&path, now);
        }
    }
    assert_eq!(tries, [0, 10, 30, 70, 150, 310, 630, 1230, 1830]);
    watcher.settle(&media);
    assert!(ready(&mut watcher, later(99_999)).is_empty());
    watcher.forget(&media);
    assert_eq!(ready(&mut watcher, later(100_000)), [media]);
}

#[test]
fn another_file_of_the_same_length_and_time_is_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let (media, other) = (dir.path().join("a.ts"), dir.path().join("b.part"));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for path in [&media, &other] {
        fs::write(path, b"1").unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
    assert_eq!(ready(&mut watcher, later(0)), std::slice::from_ref(&media));
    fs::rename(&other, &media).unwrap();
    assert!(ready(&mut watcher, later(1)).is_empty());
    assert_eq!(ready(&mut watcher, later(30)), [media]);
}

#[test]
fn files_are_found_by_name_or_left_to_their_content() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.mka", "b.264", "c.M2V", "recording", "d.xyz", "e.srt", "f.mkv.part", "g.nfo", "h.jpg"] {
        fs::write(dir.path().join(name), b"1").unwrap();
    }
    let scan = scan(&mut Watcher::new(vec![dir.path().to_owned()]), later(10));
    let found: Vec<_> = scan
        .ready
        .iter()
        .map(|file| (file.path.file_name().unwrap().to_str().unwrap(), file.is_unknown))
        .collect();
    let expected =
        [("a.mka", false), ("b.264", false), ("c.M2V", false), ("d.xyz", true), ("recording", true)];
    assert_eq!(found, expected);
    assert!(scan.ready.iter().all(|file| file.root == dir.path()));
}

//! Which files of a folder are films that are ready to be added.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file must not have changed for this long before it is taken: it may still be arriving.
pub const SETTLE: Duration = Duration::from_secs(3);
/// Folders below folders below folders.
const MAX_DEPTH: usize = 8;
/// Files looked at in one scan; more is a folder of something else.
const MAX_FILES: usize = 100_000;

/// File name endings that are tried. What a file really is, its content says.
const EXTENSIONS: &[&str] = &[
    "ts", "m2ts", "mts", "m2t", "trp", "tp", "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "vob",
    "flv", "wmv", "asf", "3gp", "ogv", "mxf", "mp3", "m4a", "aac", "ac3", "flac", "ogg", "opus", "wav",
];

/// What is known of a file between scans.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    modified: SystemTime,
}

/// Watches folders by looking: works on every file system, network mounts included.
pub struct Watcher {
    folders: Vec<PathBuf>,
    /// Files handed out, as they were then: each content is tried once.
    handed: HashMap<PathBuf, Seen>,
    /// Files that were still changing at the last scan.
    settling: HashMap<PathBuf, Seen>,
}

/// Why a folder could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct ScanError {
    /// The folder.
    pub path: PathBuf,
    /// What the system said.
    pub error: std::io::Error,
}

impl Watcher {
    /// Watches `folders` and what is below them.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders, handed: HashMap::new(), settling: HashMap::new() }
    }

    /// Films that have come to rest since the last scan, each content once, in order of their paths; and what could not
    /// be read.
    pub fn scan(&mut self, now: SystemTime) -> (Vec<PathBuf>, Vec<ScanError>) {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for folder in &self.folders {
            collect(folder, 0, &mut found, &mut errors);
        }
        found.sort();
        let mut ready = Vec::new();
        let mut settling = HashMap::new();
        for path in found {
            let Ok(data) = std::fs::metadata(&path) else { continue };
            let Ok(modified) = data.modified() else { continue };
            let seen = Seen { bytes: data.len(), modified };
            if self.handed.get(&path) == Some(&seen) {
                continue;
            }
            // A clock that runs back makes a file look new: it is then taken when two scans agree.
            let rests = now.duration_since(modified).is_ok_and(|age| age >= SETTLE);
            if rests || self.settling.get(&path).is_some_and(|&before| before == seen && modified > now) {
                self.handed.insert(path.clone(), seen);
                ready.push(path);
            } else {
                settling.insert(path, seen);
            }
        }
        self.settling = settling;
        (ready, errors)
    }
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>, errors: &mut Vec<ScanError>) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return errors.push(ScanError { path: folder.to_owned(), error }),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        // Hidden files are other programs' unfinished business (rsync, browsers) and our own store.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() {
            // A store within the folder of films holds films too; they are served already.
            if depth < MAX_DEPTH && !path.join("volume.mrv").exists() {
                collect(&path, depth + 1, found, errors);
            }
        } else if is_film_name(&path) && found.len() < MAX_FILES && (kind.is_file() || path.is_file()) {
            found.push(path);
        }
    }
}

fn is_film_name(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    extension.is_some_and(|e| EXTENSIONS.contains(&e.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn later(secs: u64) -> SystemTime {
        SystemTime::now() + Duration::from_secs(secs)
    }

    #[test]
    fn a_film_is_handed_out_once_and_again_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let film = dir.path().join("sub/a.TS");
        fs::write(&film, b"1").unwrap();
        fs::write(dir.path().join("notes.txt"), b"1").unwrap();
        fs::write(dir.path().join(".hidden.ts"), b"1").unwrap();
        let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
        assert_eq!(watcher.scan(later(10)).0, std::slice::from_ref(&film));
        assert!(watcher.scan(later(20)).0.is_empty());
        fs::write(&film, b"22").unwrap();
        assert_eq!(watcher.scan(later(30)).0, [film]);
    }

    #[test]
    fn a_file_that_is_still_arriving_waits() {
        let dir = tempfile::tempdir().unwrap();
        let film = dir.path().join("a.mp4");
        fs::write(&film, b"1").unwrap();
        let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
        assert!(watcher.scan(SystemTime::now()).0.is_empty());
        assert_eq!(watcher.scan(later(4)).0, [film]);
    }

    #[test]
    fn a_file_from_the_future_is_taken_when_two_scans_agree() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.mp4"), b"1").unwrap();
        let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
        let past = SystemTime::now() - Duration::from_secs(3600);
        assert!(watcher.scan(past).0.is_empty());
        assert_eq!(watcher.scan(past).0.len(), 1);
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
        let (ready, errors) = watcher.scan(later(10));
        assert!(ready.is_empty());
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("nowhere"));
    }
}

//! Which files of a folder are titles that are ready to be added.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use millrace_core::limits::control::{MAX_FOLDER_DEPTH, MAX_LIBRARY_FILES, SETTLE};

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
    links: Links,
}

/// What is done with symbolic links.
#[derive(Default)]
struct Links {
    /// Wherever they lead; else only those to files within the same folder.
    follow: bool,
    /// The folder that is looked through, without links.
    root: PathBuf,
    /// Directories that this scan has come to by a link: a link to its own parent is followed once.
    entered: HashSet<PathBuf>,
    /// Those that were left out, each of which is named once.
    left_out: HashSet<PathBuf>,
}

impl Links {
    /// Whether the link at `path` is followed; an error the first time that one is left out.
    fn may_follow(&mut self, path: &Path) -> Result<bool, ScanError> {
        // A link that leads nowhere is no title.
        let Ok(target) = std::fs::canonicalize(path) else { return Ok(false) };
        let is_dir = target.is_dir();
        if self.follow {
            return Ok(!is_dir || self.entered.insert(target));
        }
        if !is_dir && target.starts_with(&self.root) {
            return Ok(true);
        }
        if (is_dir || is_film_name(path)) && self.left_out.insert(path.to_owned()) {
            let why = "a symbolic link that leads to a directory or out of the folder is followed with --follow-symlinks only";
            return Err(ScanError { path: path.to_owned(), error: std::io::Error::other(why) });
        }
        Ok(false)
    }
}

/// Why a folder was not read, or a link not followed.
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
        Self { folders, handed: HashMap::new(), settling: HashMap::new(), links: Links::default() }
    }

    /// Follows symbolic links to wherever they lead, if `follow` says so.
    pub fn following_symlinks(mut self, follow: bool) -> Self {
        self.links.follow = follow;
        self
    }

    /// Titles that have come to rest since the last scan, each content once, in order of their paths; and what could not
    /// be read.
    pub fn scan(&mut self, now: SystemTime) -> (Vec<PathBuf>, Vec<ScanError>) {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for folder in &self.folders {
            // What cannot be resolved cannot be read either, and is named for that.
            self.links.root = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            self.links.entered = HashSet::from([self.links.root.clone()]);
            collect(folder, 0, &mut self.links, &mut found, &mut errors);
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

fn collect(
    folder: &Path,
    depth: usize,
    links: &mut Links,
    found: &mut Vec<PathBuf>,
    errors: &mut Vec<ScanError>,
) {
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
        if kind.is_symlink() {
            match links.may_follow(&path) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            }
        }
        if kind.is_dir() || kind.is_symlink() && path.is_dir() {
            // A store within the folder of titles holds titles too; they are served already.
            if depth < MAX_FOLDER_DEPTH && !path.join("volume.mrv").exists() {
                collect(&path, depth + 1, links, found, errors);
            }
        } else if is_film_name(&path) && found.len() < MAX_LIBRARY_FILES && (kind.is_file() || path.is_file())
        {
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
    use std::time::Duration;

    use super::*;
    use std::fs;

    fn later(secs: u64) -> SystemTime {
        SystemTime::now() + Duration::from_secs(secs)
    }

    #[test]
    fn a_film_is_handed_out_once_and_again_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let media = dir.path().join("sub/a.TS");
        fs::write(&media, b"1").unwrap();
        fs::write(dir.path().join("notes.txt"), b"1").unwrap();
        fs::write(dir.path().join(".hidden.ts"), b"1").unwrap();
        let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
        assert_eq!(watcher.scan(later(10)).0, std::slice::from_ref(&media));
        assert!(watcher.scan(later(20)).0.is_empty());
        fs::write(&media, b"22").unwrap();
        assert_eq!(watcher.scan(later(30)).0, [media]);
    }

    #[test]
    fn a_file_that_is_still_arriving_waits() {
        let dir = tempfile::tempdir().unwrap();
        let media = dir.path().join("a.mp4");
        fs::write(&media, b"1").unwrap();
        let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
        assert!(watcher.scan(SystemTime::now()).0.is_empty());
        assert_eq!(watcher.scan(later(4)).0, [media]);
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
        // By way of another link, too.
        link(&path("out.ts"), "twice.ts");
        link(&outside.path().join("more"), "folder");
        link(dir.path(), "sub/up");
        link(Path::new("/nonexistent"), "dangling.ts");
        link(Path::new("/etc/passwd"), "notes.txt");

        let mut watcher = Watcher::new(vec![dir.path().to_owned()]);
        let (ready, errors) = watcher.scan(later(10));
        assert_eq!(ready, ["relative.ts", "sub/inside.ts", "within.ts"].map(path));
        let mut left_out: Vec<_> = errors.iter().map(|error| error.path.clone()).collect();
        left_out.sort();
        assert_eq!(left_out, ["folder", "out.ts", "sub/up", "twice.ts"].map(path));
        assert!(errors[0].to_string().contains("--follow-symlinks"), "{}", errors[0]);
        // Each is named once.
        assert!(watcher.scan(later(20)).1.is_empty());

        let mut watcher = Watcher::new(vec![dir.path().to_owned()]).following_symlinks(true);
        let (ready, errors) = watcher.scan(later(10));
        let all = ["folder/b.ts", "out.ts", "relative.ts", "sub/inside.ts", "twice.ts", "within.ts"];
        assert_eq!(ready, all.map(path));
        assert!(errors.is_empty());
    }

    #[test]
    fn a_folder_that_is_itself_a_link_is_looked_through() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(dir.path().join("a.ts"), b"1").unwrap();
        std::os::unix::fs::symlink(dir.path().join("a.ts"), dir.path().join("b.ts")).unwrap();
        let folder = other.path().join("films");
        std::os::unix::fs::symlink(dir.path(), &folder).unwrap();
        let (ready, errors) = Watcher::new(vec![folder.clone()]).scan(later(10));
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
        let (ready, errors) = watcher.scan(later(10));
        assert!(ready.is_empty());
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("nowhere"));
    }
}

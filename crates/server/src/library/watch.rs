//! Which files of a folder are titles that are ready to be added.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use millrace_media::kinds::{NamedKind, kind_of_name};

use super::retry_timer::RetryTimer;
use crate::limits::control::{MAX_FOLDER_DEPTH, MAX_LIBRARY_FILES, SETTLE, SETTLE_GROWN};

/// State of a file between scans. A different inode means a different file, even of the same
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    modified: SystemTime,
    inode: u64,
}

/// A file that was handed out.
#[derive(Clone, Copy, Debug)]
struct Handed {
    seen: FileStamp,
    /// Set if the file could not be taken for a cause that may pass.
    retry: Option<RetryTimer<SystemTime>>,
}

/// A file that may still be arriving.
#[derive(Clone, Copy, Debug)]
struct Settling {
    seen: FileStamp,
    /// When a scan last saw it changed.
    changed: Option<SystemTime>,
}

/// A file that has come to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The watched folder that it lies in or below.
    pub root: PathBuf,
    /// Its name does not show whether it is a film.
    pub is_unknown: bool,
}

/// Result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Files to take, ordered by path.
    pub ready: Vec<FoundFile>,
    /// Files that are still arriving.
    pub settling: usize,
    /// All files that may be titles.
    pub present: HashSet<PathBuf>,
    /// Folders that could not be read, and links that were not followed.
    pub errors: Vec<ScanError>,
}

/// Returns the files among the given ones that are open for writing, as far as that is visible.
pub type LookForWriters<'a> = &'a dyn Fn(&[PathBuf]) -> HashSet<PathBuf>;

/// Watches folders by looking: works on every file system, network mounts included.
pub struct Watcher {
    folders: Vec<PathBuf>,
    /// How long a file must stay unchanged.
    rest: Duration,
    /// Files handed out, with their state at that time. Each content is tried once, unless it
    /// failed for a cause that may pass.
    handed: HashMap<PathBuf, Handed>,
    /// Files that were still changing at the last scan.
    settling: HashMap<PathBuf, Settling>,
    links: Links,
}

/// Treatment of symbolic links.
#[derive(Default)]
struct Links {
    /// Wherever they lead; else only those to files within the same folder.
    follow: bool,
    /// The folder that is looked through, without links.
    root: PathBuf,
    /// Directories that this scan has come to by a link: a link to its own parent is followed once.
    entered: HashSet<PathBuf>,
    /// Links that were left out; each is named once.
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
        if (is_dir || kind_of_name(path) == NamedKind::Film) && self.left_out.insert(path.to_owned()) {
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
    /// The system's error.
    pub error: std::io::Error,
}

impl Watcher {
    /// Watches `folders` and everything below them.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        let links = Links::default();
        Self { folders, rest: SETTLE, handed: HashMap::new(), settling: HashMap::new(), links }
    }

    /// Follows symbolic links to wherever they lead, if `follow` is true.
    pub fn following_symlinks(mut self, follow: bool) -> Self {
        self.links.follow = follow;
        self
    }

    /// Sets how long a file must stay unchanged before it is taken. A file that was seen to change
    /// must stay unchanged for [`SETTLE_GROWN`] times as long.
    pub fn resting(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// Scans the folders. A file that has come to rest is ready once per content.
    pub fn scan(&mut self, now: SystemTime, writers: LookForWriters<'_>) -> Scan {
        let mut scan = Scan::default();
        let mut found = Vec::new();
        for folder in &self.folders {
            // A folder that cannot be resolved cannot be read either, and is named then.
            self.links.root = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            self.links.entered = HashSet::from([self.links.root.clone()]);
            let first = found.len();
            collect(folder, 0, &mut self.links, &mut found, &mut scan.errors);
            found[first..].iter_mut().for_each(|file| file.root.clone_from(folder));
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found.dedup_by(|a, b| a.path == b.path);
        let mut settling = HashMap::new();
        let mut resting = Vec::new();
        for file in found {
            let Some(seen) = FileStamp::of(&file.path) else { continue };
            scan.present.insert(file.path.clone());
            match self.state(&file.path, seen, now) {
                FileState::Known => {}
                FileState::Rests => resting.push((file, seen)),
                FileState::Settles(state) => drop(settling.insert(file.path, state)),
            }
        }
        let paths: Vec<PathBuf> = resting.iter().map(|(file, _)| file.path.clone()).collect();
        let written = if paths.is_empty() { HashSet::new() } else { writers(&paths) };
        for (file, seen) in resting {
            if written.contains(&file.path) {
                settling.insert(file.path, Settling { seen, changed: Some(now) });
                continue;
            }
            let retry = self.handed.get(&file.path).filter(|handed| handed.seen == seen);
            let retry = retry.and_then(|handed| handed.retry);
            self.handed.insert(file.path.clone(), Handed { seen, retry });
            scan.ready.push(file);
        }
        self.handed.retain(|path, _| scan.present.contains(path));
        scan.settling = settling.len();
        self.settling = settling;
        scan
    }

    /// Decides how this scan treats a file.
    fn state(&self, path: &Path, seen: FileStamp, now: SystemTime) -> FileState {
        let handed = self.handed.get(path);
        if let Some(handed) = handed.filter(|handed| handed.seen == seen) {
            let is_due = handed.retry.is_some_and(|retry| retry.is_due(now));
            return if is_due { FileState::Rests } else { FileState::Known };
        }
        let before = self.settling.get(path);
        let has_changed = match before {
            Some(before) => before.seen != seen,
            None => handed.is_some(),
        };
        let changed = if has_changed { Some(now) } else { before.and_then(|before| before.changed) };
        // If the clock was set back, the change counts as new.
        let changed = changed.map(|at| at.min(now));
        let rest = if changed.is_some() { self.rest * SETTLE_GROWN } else { self.rest };
        let has_rested = |since: SystemTime| now.duration_since(since).is_ok_and(|age| age >= rest);
        // A file with a modification time in the future is taken when two scans agree.
        let is_old = has_rested(seen.modified)
            || seen.modified > now && before.is_some_and(|before| before.seen == seen);
        match is_old && changed.is_none_or(has_rested) {
            true => FileState::Rests,
            false => FileState::Settles(Settling { seen, changed }),
        }
    }

    /// Schedules another attempt for a file that could not be taken for a cause that may pass. The
    /// wait doubles each time, up to a maximum.
    pub fn retry_later(&mut self, path: &Path, now: SystemTime) {
        let Some(handed) = self.handed.get_mut(path) else { return };
        handed.retry = Some(RetryTimer::after_failure(handed.retry, now));
    }

    /// Ends the attempts for a file that was handed out, until it changes.
    pub fn settle(&mut self, path: &Path) {
        if let Some(handed) = self.handed.get_mut(path) {
            handed.retry = None;
        }
    }

    /// Hands a file out again although it has not changed.
    pub fn forget(&mut self, path: &Path) {
        self.handed.remove(path);
    }
}

/// How a scan treats a file.
enum FileState {
    /// It was handed out in this state.
    Known,
    /// It can be taken.
    Rests,
    /// It may still be arriving.
    Settles(Settling),
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let data = std::fs::metadata(path).ok()?;
        Some(Self { bytes: data.len(), modified: data.modified().ok()?, inode: data.ino() })
    }
}

fn collect(
    folder: &Path,
    depth: usize,
    links: &mut Links,
    found: &mut Vec<FoundFile>,
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
            continue;
        }
        let named = kind_of_name(&path);
        let is_wanted = named != NamedKind::Other && found.len() < MAX_LIBRARY_FILES;
        if is_wanted && (kind.is_file() || path.is_file()) {
            found.push(FoundFile { path, root: PathBuf::new(), is_unknown: named == NamedKind::Unknown });
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;

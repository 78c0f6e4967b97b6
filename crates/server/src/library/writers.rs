//! Finds files that are open for writing. `/proc` shows the open files of other programs: those of
//! the same user, or all for root; but none to a server in its sandbox. A lease shows the writers of any user, but only of files
//! that belong to the server's user.
//!
//! Other writers are invisible (on other machines, or programs of other users). For them, a file
//! has to stay unchanged for a while instead.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use millrace_offload::has_writer;

use crate::limits::control::MAX_OPEN_FILES_LOOKED_AT;

/// Returns the files among `paths` that a program has open for writing. Other programs' files are examined
/// through `/proc` alone, so those on a slow disk cause no wait.
pub fn open_for_writing(paths: &[PathBuf]) -> HashSet<PathBuf> {
    let mut written = look_in(Path::new("/proc"), paths);
    written.extend(paths.iter().filter(|path| is_written(path)).cloned());
    written
}

fn is_written(path: &Path) -> bool {
    File::open(path).and_then(has_writer).unwrap_or(false)
}

fn look_in(proc: &Path, paths: &[PathBuf]) -> HashSet<PathBuf> {
    // A program may have opened the file through other links than those in its path.
    let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let wanted: HashMap<PathBuf, &PathBuf> = paths.iter().map(|path| (real(path), path)).collect();
    let mut written = HashSet::new();
    let is_process = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let processes = processes.filter(|entry| is_process(&entry.file_name())).map(|entry| entry.path());
    let open_files = processes.flat_map(|process| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.map(move |file| (process.join("fdinfo").join(file.file_name()), file.path()))
    });
    for (info, file) in open_files.take(MAX_OPEN_FILES_LOOKED_AT) {
        let Ok(target) = fs::read_link(file) else { continue };
        if let Some(path) = wanted.get(&target).filter(|_| is_writable(&info)) {
            written.insert((*path).clone());
        }
    }
    written
}

/// Whether an open file can be written to (proc(5), fdinfo: the flags of open(2) in octal).
fn is_writable(info: &Path) -> bool {
    let text = fs::read_to_string(info).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_open_for_writing_is_seen_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let [written, read, link] = ["a.ts", "b.ts", "c.ts"].map(|name| dir.path().join(name));
        fs::write(&read, b"1").unwrap();
        let writer = fs::File::create(&written).unwrap();
        let _reader = fs::File::open(&read).unwrap();
        std::os::unix::fs::symlink(&written, &link).unwrap();
        let paths = [written.clone(), read, link];
        let found = open_for_writing(&paths);
        // Both names lead to it.
        assert_eq!(found, HashSet::from([written.clone(), paths[2].clone()]));
        // A server in its sandbox finds nothing below /proc.
        assert!(look_in(dir.path(), &paths).is_empty());
        assert!(is_written(&written) && !is_written(&paths[1]));
        drop(writer);
        assert!(open_for_writing(&paths).is_empty());
    }
}

//! Locks between processes: flock, which the kernel releases when its holder dies, however it dies.
//!
//! Every wait has a limit: a stopped process, or any user with read access to the file, could hold
//! a lock indefinitely.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::dirs::{Dirs, read_whole};
use crate::error::StoreError;
use crate::limits::volume::{LOCK_LOOK_EVERY, LOCK_WAIT, MAX_LOCKS_BYTES};
use crate::members::Members;

/// Held while names are decided and directories move: by one process and one thread at a time, for milliseconds.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _files: Vec<File>,
}

impl StoreLock {
    /// Waits for its turn at one member. Taken before the catalogue's mutex, never after it.
    pub(crate) fn take(dirs: &Dirs) -> Result<Self, StoreError> {
        let path = dirs.superblock();
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => StoreError::NotPermitted { path: path.clone(), error },
            _ => StoreError::io("open", &path)(error),
        })?;
        lock(&file, &path)?;
        Ok(Self { _files: vec![file] })
    }

    /// The same at all members that are present: in the order of their slots, so that no processes
    /// wait for each other. Also returns the paths of the usable members, as they are once the lock
    /// is held.
    pub(crate) fn take_all(
        members: &Members,
        on: &dyn Fn(usize) -> Dirs,
    ) -> Result<(Self, Vec<Dirs>), StoreError> {
        // By their directories too: a slot may have got another member while its old one was waited for.
        let those_there = || -> Vec<(usize, PathBuf)> {
            let there = (0..members.len()).filter(|&slot| members.is_present(slot));
            there.map(|slot| (slot, members.dir(slot))).collect()
        };
        loop {
            let there = those_there();
            let mut files = Vec::new();
            let mut taken = Ok(());
            for (slot, _) in &there {
                match Self::take(&on(*slot)) {
                    Ok(lock) => files.extend(lock._files),
                    // One wait is enough: a process that holds one member's lock until the timeout
                    // blocks the whole store.
                    Err(error @ StoreError::Locked { .. }) => return Err(error),
                    Err(error) => taken = taken.and(Err(error)),
                }
            }
            // The previous holder of the lock may have changed the members, and one that cannot be
            // opened may be missing.
            members.refresh();
            if there == those_there() {
                return taken
                    .map(|()| (Self { _files: files }, members.usable().into_iter().map(on).collect()));
            }
        }
    }
}

/// Locks a file. The wait ends after [`LOCK_WAIT`]; a signal does not end it.
pub(crate) fn lock(file: &File, path: &Path) -> Result<(), StoreError> {
    // The wait is counted in looks, as the store reads no clock.
    let looks = LOCK_WAIT.as_nanos() / LOCK_LOOK_EVERY.as_nanos();
    for _ in 0..looks {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_LOOK_EVERY),
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", path)(e)),
        }
    }
    let holder = holder_of(file).unwrap_or_else(|| "a process that /proc/locks does not show".to_owned());
    Err(StoreError::Locked { path: path.to_path_buf(), holder })
}

/// The process that has locked a file, as far as the kernel shows it to this user.
fn holder_of(file: &File) -> Option<String> {
    let inode = file.metadata().ok()?.ino();
    let locks = read_whole(Path::new("/proc/locks"), MAX_LOCKS_BYTES).ok()?;
    let pid = holder_in(&String::from_utf8_lossy(&locks), inode)?;
    let name = read_whole(Path::new(&format!("/proc/{pid}/comm")), 64).ok();
    Some(match name {
        Some(name) => format!("process {pid} ({})", String::from_utf8_lossy(&name).trim_end()),
        None => format!("process {pid}"),
    })
}

/// The process that holds a flock on the file of this inode, in the text of `/proc/locks` (proc_locks(5)). Devices are not
/// compared: Btrfs shows programs another device than the kernel's table has.
fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Requests that wait for a lock have an arrow in the second field.
        let &[_, "FLOCK", _, _, pid, file, ..] = fields.as_slice() else { return None };
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        // Processes of other namespaces have the number 0, or a negative one.
        pid.parse().ok().filter(|&pid| is_it && pid > 0)
    })
}

/// Returns whether a live process holds the lock of this file. No process holds the lock of a
/// missing file.
pub(crate) fn is_held(path: &Path) -> Result<bool, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(e) => return Err(StoreError::io("open", path)(e)),
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(StoreError::io("lock", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::format::superblock::Geometry;
    use crate::volume::Volume;

    #[test]
    fn lock_of_held_file_names_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let held = File::create(&path).unwrap();
        lock(&held, &path).unwrap();
        let error = lock(&File::open(&path).unwrap(), &path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: locked by ", path.display())), "{error}");
        let me = format!("process {} (", std::process::id());
        assert!(error.contains(&me) || error.contains("does not show"), "{error}");
        drop(held);
        lock(&File::open(&path).unwrap(), &path).unwrap();
    }

    #[test]
    fn holder_in_table_of_locks_is_the_one_of_the_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:01:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 fe:01:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fe:01:79 0 EOF\nx: FLOCK";
        assert_eq!([77, 78, 79, 80].map(|inode| holder_in(locks, inode)), [Some(14), Some(12), None, None]);
    }

    #[test]
    fn take_all_with_vanished_member_locks_the_others() {
        let root = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> = (0..3).map(|i| root.path().join(i.to_string())).collect();
        let volume = Volume::create(&dirs, Geometry::choose(3, 1, 0).unwrap()).unwrap();
        let on = |slot| volume.dirs_of(slot);
        let roots = |usable: &[Dirs]| usable.iter().map(|dirs| dirs.root.clone()).collect::<Vec<_>>();
        fs::rename(&dirs[1], root.path().join("gone")).unwrap();
        let (_lock, usable) = StoreLock::take_all(volume.members(), &on).unwrap();
        assert_eq!(roots(&usable), [dirs[0].clone(), dirs[2].clone()]);
    }
}

//! Locks between processes: flock, which the kernel lets go when its holder dies, however it dies.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::dirs::Dirs;
use crate::error::StoreError;
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
        let file = File::open(&path).map_err(StoreError::io("open", &path))?;
        lock(&file).map_err(StoreError::io("lock", &path))?;
        Ok(Self { _files: vec![file] })
    }

    /// The same at all members that are there: in the order of their slots, so that nobody waits for each other. Returns
    /// also the paths of those that can be used, as they are once the lock is held.
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
                    Err(error) => taken = taken.and(Err(error)),
                }
            }
            // Whoever had the lock before may have changed who the members are, and one that cannot be opened may be missing.
            members.refresh();
            if there == those_there() {
                return taken
                    .map(|()| (Self { _files: files }, members.usable().into_iter().map(on).collect()));
            }
        }
    }
}

/// Locks a file; a signal does not end the wait.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Whether somebody alive holds the lock of this file. A missing file is locked by nobody.
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
    fn a_member_that_has_gone_meanwhile_is_done_without() {
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

//! Keeps other users of the machine out of a store: they could read titles beside any rights, and hold its locks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::dirs::{Dirs, PICTURES_DIR};
use crate::format::members::MEMBERS_FILE;

/// Bits of a mode that let users in who are neither owner nor of the group.
const OTHERS: u32 = 0o007;

/// Removes the access of other users to files and directories that earlier versions created with
/// it, if this user owns them. The member's own directory may hold other things, so its mode is
/// left to the operator. If the disk refuses the change, the store is used unchanged.
pub(super) fn close_to_others(dirs: &Dirs) {
    let [members, pictures] = [MEMBERS_FILE, PICTURES_DIR].map(|name| dirs.root.join(name));
    for path in [&dirs.superblock(), &members, &dirs.catalogue(), &dirs.titles, &dirs.tmp, &pictures] {
        let _ = close(path);
    }
}

fn close(path: &Path) -> std::io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    let is_ours = meta.uid() == rustix::process::geteuid().as_raw();
    if is_ours && !meta.is_symlink() && meta.mode() & OTHERS != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() & 0o7777 & !OTHERS))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::Volume;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn store_of_an_earlier_version_is_closed_to_others_when_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        drop(Volume::open_or_create(&root).unwrap());
        assert_eq!(mode(&root), 0o750);
        let paths = ["volume.mrv", "catalogue.sqlite", "titles", "tmp"].map(|name| root.join(name));
        assert_eq!(paths.each_ref().map(|path| mode(path) & OTHERS), [0; 4]);
        for path in [&root].into_iter().chain(&paths) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode(path) | 0o005)).unwrap();
        }
        drop(Volume::open(&root).unwrap());
        assert_eq!(paths.each_ref().map(|path| mode(path) & OTHERS), [0; 4]);
        assert_eq!(mode(&root), 0o755, "the directory itself is the operator's");
    }
}

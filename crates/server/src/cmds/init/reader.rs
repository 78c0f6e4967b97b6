//! Whether the service's user has access to a path: by the permissions of the path and of each directory above it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::words::shell_word;
use crate::cmds::serve::user::UserIdentity;

/// Bits of a file's mode.
const READ: u32 = 4;
const WRITE: u32 = 2;
const ENTER: u32 = 1;

/// The access that the service needs to a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessNeed {
    /// Open the entries of a directory by their names, or run a program.
    Enter,
    /// List a directory too.
    List,
    /// Add and remove entries too.
    Change,
}

impl AccessNeed {
    fn bits(self) -> u32 {
        match self {
            Self::Enter => ENTER,
            Self::List => READ | ENTER,
            Self::Change => READ | WRITE | ENTER,
        }
    }
}

/// The user of the service; `None`: this one.
pub(super) struct ServiceReader<'a>(pub(super) Option<&'a UserIdentity>);

impl ServiceReader<'_> {
    /// Checks a directory: that it can be entered, and read too if it `is_folder` of films.
    ///
    /// # Errors
    /// The first directory without the permission, and the command that grants it.
    pub(super) fn check(&self, dir: &Path, is_folder: bool) -> Result<(), String> {
        let shown = dir.display();
        if self.0.is_none() {
            return match fs::read_dir(dir) {
                Err(error) if is_folder => {
                    Err(format!("{shown}: cannot be read: {error}; choose another folder"))
                }
                _ => Ok(()),
            };
        }
        let need = if is_folder { AccessNeed::List } else { AccessNeed::Enter };
        let closed = self
            .find_closed(dir, need)
            .map_err(|error| format!("{shown}: {error}; choose another folder"))?;
        let Some(closed) = closed else { return Ok(()) };
        let letters = if is_folder && is_same_dir(&closed, dir) { "rx" } else { "x" };
        Err(format!(
            "{shown}: the server's user cannot open {}; allow it (chmod o+{letters} {}, or a group of that user), or choose another folder",
            closed.display(),
            shell_word(&closed.display().to_string())
        ))
    }

    /// Finds the first path without the permission: this one, or a directory above it.
    ///
    /// # Errors
    /// If a path cannot be examined.
    pub(super) fn find_closed(&self, path: &Path, need: AccessNeed) -> io::Result<Option<PathBuf>> {
        let real = path.canonicalize()?;
        let Some(user) = self.0 else {
            // The kernel knows more about this user than the modes do: read-only file systems, access control lists.
            let is_open = need != AccessNeed::Change || can_create_in(&real);
            return Ok((!is_open).then_some(real));
        };
        for above in real.ancestors() {
            let wanted = if above == real { need.bits() } else { ENTER };
            if !may(user, &fs::metadata(above)?, wanted) {
                return Ok(Some(above.to_path_buf()));
            }
        }
        Ok(None)
    }
}

/// Whether this user can create entries in a directory.
pub(super) fn can_create_in(dir: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// The nearest directory, or file, above a path that exists; the path itself if it does.
pub(super) fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"))
}

fn is_same_dir(real: &Path, dir: &Path) -> bool {
    dir.canonicalize().is_ok_and(|dir| dir == real)
}

/// Whether the mode of a file allows it (path_resolution(7)); the first class that fits counts.
fn may(user: &UserIdentity, meta: &Metadata, wanted: u32) -> bool {
    let mode = meta.mode();
    let bits = match meta {
        _ if user.uid == 0 => return true,
        meta if meta.uid() == user.uid => mode >> 6,
        meta if user.groups.contains(&meta.gid()) => mode >> 3,
        _ => mode,
    };
    bits & wanted == wanted
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folder_of_others_is_read_by_its_mode_and_named_with_what_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("films");
        fs::create_dir(&folder).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let meta = folder.metadata().unwrap();
        let other = UserIdentity { uid: meta.uid() + 1, gid: 1, groups: vec![meta.gid() + 1] };
        let member = UserIdentity { groups: vec![meta.gid()], ..other.clone() };
        set(dir.path(), 0o711);
        for (mode, by_other, by_member) in
            [(0o755, true, true), (0o711, false, false), (0o750, false, true), (0o705, true, false)]
        {
            set(&folder, mode);
            let check = |user| ServiceReader(Some(user)).check(&folder, true);
            assert_eq!((check(&other).is_ok(), check(&member).is_ok()), (by_other, by_member), "{mode:o}");
        }
        set(&folder, 0o755);
        set(dir.path(), 0o700);
        let error = ServiceReader(Some(&other)).check(&folder, true).unwrap_err();
        let closed = dir.path().canonicalize().unwrap();
        assert!(error.contains(&format!("chmod o+x {}", closed.display())), "{error}");
    }

    #[test]
    fn directory_is_changed_only_by_users_with_write_permission() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let meta = dir.path().metadata().unwrap();
        let other = UserIdentity { uid: meta.uid() + 1, gid: 1, groups: Vec::new() };
        let reader = ServiceReader(Some(&other));
        let real = dir.path().canonicalize().unwrap();
        assert_eq!(reader.find_closed(dir.path(), AccessNeed::List).unwrap(), None);
        assert_eq!(reader.find_closed(dir.path(), AccessNeed::Change).unwrap(), Some(real));
        assert_eq!(ServiceReader(None).find_closed(dir.path(), AccessNeed::Change).unwrap(), None);
    }
}

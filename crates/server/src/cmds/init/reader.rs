//! Whether the server's user can read a folder: by the permissions of the folder and of each directory above it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cmds::serve::user::UserIdentity;

/// Bits of a directory's mode: its entries can be listed, and opened.
const READ: u32 = 4;
const ENTER: u32 = 1;

/// The user that reads; `None`: this one.
pub(super) struct FolderReader<'a>(pub(super) Option<&'a UserIdentity>);

impl FolderReader<'_> {
    /// Checks a directory: that it can be entered, and read too if it `is_folder` of films.
    ///
    /// # Errors
    /// The first directory without the permission, and the command that grants it.
    pub(super) fn check(&self, dir: &Path, is_folder: bool) -> Result<(), String> {
        let shown = dir.display();
        let Some(user) = self.0 else {
            return match fs::read_dir(dir) {
                Err(error) if is_folder => {
                    Err(format!("{shown}: cannot be read: {error}; choose another folder"))
                }
                _ => Ok(()),
            };
        };
        let real = dir.canonicalize().map_err(|error| format!("{shown}: {error}; choose another folder"))?;
        for above in real.ancestors() {
            let wanted = if above == real && is_folder { READ | ENTER } else { ENTER };
            let meta = fs::metadata(above)
                .map_err(|error| format!("{}: {error}; choose another folder", above.display()))?;
            if !may(user, &meta, wanted) {
                let (closed, letters) = (above.display(), if wanted == ENTER { "x" } else { "rx" });
                return Err(format!(
                    "{shown}: the server's user cannot open {closed}; allow it (chmod o+{letters} {closed}, or a group of that user), or choose another folder"
                ));
            }
        }
        Ok(())
    }
}

/// Whether the mode of a directory allows it (path_resolution(7)); the first class that fits counts.
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
            let check = |user| FolderReader(Some(user)).check(&folder, true);
            assert_eq!((check(&other).is_ok(), check(&member).is_ok()), (by_other, by_member), "{mode:o}");
        }
        set(&folder, 0o755);
        set(dir.path(), 0o700);
        let error = FolderReader(Some(&other)).check(&folder, true).unwrap_err();
        let closed = dir.path().canonicalize().unwrap();
        assert!(error.contains(&format!("chmod o+x {}", closed.display())), "{error}");
    }
}

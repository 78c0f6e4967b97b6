//! Changes on the disk that are undone unless all succeed: new directories and replaced files.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::cmds::serve::user::UserIdentity;
use crate::limits::control::MAX_BACKUPS;

/// The service's user reads the settings and the folder below directories that root makes, also if root's umask is 077.
const DIR_MODE: u32 = 0o755;

/// A file that was written.
#[derive(Serialize)]
pub(super) struct WrittenFile {
    pub(super) path: PathBuf,
    /// The file that it has replaced, under its new name.
    pub(super) backup: Option<PathBuf>,
}

/// A file that is replaced, or will be.
struct ReplacedFile {
    path: PathBuf,
    /// The old file under another name, if there was one.
    backup: Option<PathBuf>,
    is_persisted: bool,
}

/// Replaced files; the old ones are put back, unless all is done.
#[derive(Default)]
pub(super) struct Replacements(Vec<ReplacedFile>);

impl Replacements {
    /// Keeps the file that is replaced, under a name that is free.
    pub(super) fn back_up(&mut self, path: &Path) -> anyhow::Result<()> {
        let backup = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => Some(link_backup(path)?),
        };
        self.0.push(ReplacedFile { path: path.to_path_buf(), backup, is_persisted: false });
        Ok(())
    }

    /// Puts a prepared file in its place, which was backed up.
    pub(super) fn persist(&mut self, path: &Path, prepared: NamedTempFile) -> anyhow::Result<()> {
        let replaced = self.0.iter_mut().find(|replaced| replaced.path == path);
        let replaced = replaced.with_context(|| format!("{}: has no backup", path.display()))?;
        prepared.persist(path).map_err(|error| {
            anyhow!("{}: cannot be replaced: {}; choose another place", path.display(), error.error)
        })?;
        replaced.is_persisted = true;
        Ok(())
    }

    /// All is done: nothing is undone from now on.
    pub(super) fn keep(mut self) -> Vec<WrittenFile> {
        let replaced = std::mem::take(&mut self.0);
        replaced.into_iter().map(|file| WrittenFile { path: file.path, backup: file.backup }).collect()
    }
}

impl Drop for Replacements {
    fn drop(&mut self) {
        for ReplacedFile { path, backup, is_persisted } in self.0.iter().rev() {
            // Best effort: the error that led here is reported, and a backup that cannot be put back stays.
            let _ = match (backup, is_persisted) {
                (Some(backup), true) => fs::rename(backup, path),
                // Of a file that another program has replaced since, the backup is the last copy.
                (Some(backup), false) if is_same_file(backup, path) => fs::remove_file(backup),
                (None, true) => fs::remove_file(path),
                (_, false) => Ok(()),
            };
        }
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.symlink_metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    identity(one).is_some() && identity(one) == identity(other)
}

/// Links a file under the first backup name that is free.
fn link_backup(path: &Path) -> anyhow::Result<PathBuf> {
    let name = |number: usize| {
        let ending = if number == 0 { "bak".to_owned() } else { format!("bak.{number}") };
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{ending}"));
        PathBuf::from(name)
    };
    for backup in (0..MAX_BACKUPS).map(name) {
        match fs::hard_link(path, &backup) {
            Ok(()) => return Ok(backup),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(anyhow!(
                    "{}: cannot be kept as {}: {error}; move it yourself",
                    path.display(),
                    backup.display()
                ));
            }
        }
    }
    Err(anyhow!("{}: has {MAX_BACKUPS} backups; remove some", path.display()))
}

/// Directories that were made; removed again, if they are empty, unless all is done.
pub(super) struct NewDirs<'a> {
    /// The service's user, if it is not this one.
    user: Option<&'a UserIdentity>,
    /// The only directories that this user gets. One above them may hold the settings or files of others.
    folder: &'a Path,
    store: &'a Path,
    made: Vec<PathBuf>,
}

impl<'a> NewDirs<'a> {
    pub(super) fn new(user: Option<&'a UserIdentity>, [folder, store]: [&'a PathBuf; 2]) -> Self {
        Self { user, folder, store, made: Vec::new() }
    }

    /// Makes a directory, and those above it that are missing.
    pub(super) fn make(&mut self, dir: &Path) -> anyhow::Result<()> {
        let missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            let failed = |error: io::Error| {
                anyhow!("{}: cannot be made: {error}; make it, or choose another", dir.display())
            };
            fs::create_dir(dir).map_err(failed)?;
            self.made.push(dir.to_path_buf());
            self.prepare_for_service(dir).map_err(failed)?;
        }
        Ok(())
    }

    /// Sets mode and owner of a new directory. Without another user, the umask of this one is right for the service too.
    fn prepare_for_service(&self, dir: &Path) -> io::Result<()> {
        let Some(user) = self.user else { return Ok(()) };
        // The store keeps the mode that the umask gives it: only the service uses it.
        if dir != self.store {
            fs::set_permissions(dir, Permissions::from_mode(DIR_MODE))?;
        }
        if dir == self.store || dir == self.folder {
            lchown(dir, Some(user.uid), Some(user.gid))?;
        }
        Ok(())
    }

    /// All is done: nothing is removed from now on.
    pub(super) fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for NewDirs<'_> {
    fn drop(&mut self) {
        for dir in self.made.iter().rev() {
            // Not empty any more: it is in use.
            let _ = fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn prepared(dir: &Path, text: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new_in(dir).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn failed_replacement_puts_the_old_files_back() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, later] = ["old", "new", "later"].map(|name| dir.path().join(name));
        fs::write(&old, "mine").unwrap();
        fs::write(&later, "mine too").unwrap();
        let mut replacements = Replacements::default();
        for path in [&old, &new, &later] {
            replacements.back_up(path).unwrap();
        }
        replacements.persist(&old, prepared(dir.path(), "other")).unwrap();
        replacements.persist(&new, prepared(dir.path(), "other")).unwrap();
        // A directory took the place after the backup.
        fs::remove_file(&later).unwrap();
        fs::create_dir(&later).unwrap();
        let error = replacements.persist(&later, prepared(dir.path(), "other")).unwrap_err();
        assert!(error.to_string().contains("later: cannot be replaced: "), "{error}");
        drop(replacements);
        assert_eq!(names(dir.path()), ["later", "later.bak", "old"]);
        assert_eq!(fs::read_to_string(&old).unwrap(), "mine");
    }

    #[test]
    fn abandoned_replacement_removes_its_backup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "mine").unwrap();
        let mut replacements = Replacements::default();
        replacements.back_up(&path).unwrap();
        assert_eq!(names(dir.path()), ["a", "a.bak"]);
        drop(replacements);
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn completed_replacement_keeps_backups() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "mine").unwrap();
        let mut replacements = Replacements::default();
        replacements.back_up(&path).unwrap();
        replacements.persist(&path, prepared(dir.path(), "other")).unwrap();
        assert_eq!(replacements.keep()[0].backup, Some(dir.path().join("a.bak")));
        assert_eq!(names(dir.path()), ["a", "a.bak"]);
        assert_eq!(fs::read_to_string(dir.path().join("a.bak")).unwrap(), "mine");
    }
}

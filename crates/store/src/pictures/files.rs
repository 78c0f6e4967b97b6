//! Where pictures are kept: a file for each title, in a directory of the store that may be lost.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use super::title_pictures::{About, Pictures, RULE, hash};
use crate::dirs::{Dirs, PICTURES_DIR, read_superblock};
use crate::error::StoreError;
use crate::limits::pictures::{MAX_ABOUT_BYTES, MAX_JPEG_BYTES};

/// Ends the name of a title's file.
const ENDING: &str = ".pictures";
/// Ends the names of files that are being made.
const WORK: &str = ".part";

/// The directory. A file is a line of JSON ([`About`]), the poster, the sheet.
#[derive(Clone, Debug)]
pub struct PictureFiles {
    dir: PathBuf,
}

impl PictureFiles {
    /// That of the store in `store`.
    pub fn of(store: &Path) -> Self {
        Self { dir: store.join(PICTURES_DIR) }
    }

    fn path(&self, id: TitleId) -> PathBuf {
        self.dir.join(format!("{id}{ENDING}"))
    }

    /// Path of a temporary work file. Creates the directory if it is missing and the member is
    /// present.
    ///
    /// # Errors
    /// If the member or the directory is not there.
    pub fn work_file(&self, id: TitleId) -> Result<PathBuf, StoreError> {
        // Check before every file: the disk may have been unmounted since the last one, and the
        // mount point would accept files too.
        let member = Dirs::new(self.dir.parent().unwrap_or(Path::new("")));
        read_superblock(&member)?;
        match member.disk.create_dir(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::write("create", &self.dir, 0, 0, error));
            }
            _ => {}
        }
        Ok(self.dir.join(format!("{id}{WORK}")))
    }

    /// Returns the description of a title's pictures; `None` if there are none, or they were made
    /// by another rule.
    pub fn about(&self, id: TitleId) -> Option<About> {
        let file = BufReader::new(File::open(self.path(id)).ok()?);
        read_about(&mut file.take(MAX_ABOUT_BYTES))
    }

    /// A title's pictures, whole and as they were made.
    pub fn read(&self, id: TitleId) -> Option<Pictures> {
        let mut file = BufReader::new(File::open(self.path(id)).ok()?);
        let about = read_about(&mut file.by_ref().take(MAX_ABOUT_BYTES))?;
        let mut both = Vec::new();
        file.take(2 * MAX_JPEG_BYTES as u64 + 1).read_to_end(&mut both).ok()?;
        if about.poster_bytes.checked_add(about.sheet_bytes)? != both.len() {
            return None;
        }
        let sheet = both.split_off(about.poster_bytes);
        (about.blake3 == hash(&both, &sheet)).then_some(Pictures { about, poster: both, sheet })
    }

    /// Keeps a title's pictures; returns the space they take. A crash leaves them whole or not at
    /// all; the hash detects the remains of a power cut.
    ///
    /// # Errors
    /// If they cannot be written; then there are none.
    pub fn keep(&self, id: TitleId, pictures: &Pictures) -> Result<u64, StoreError> {
        let Pictures { about, poster, sheet } = pictures;
        // Names of fields and numbers: it can always be written.
        let mut bytes = serde_json::to_vec(about).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(poster);
        bytes.extend_from_slice(sheet);
        let work = self.work_file(id)?;
        let written = fs::write(&work, &bytes).and_then(|()| fs::rename(&work, self.path(id)));
        if let Err(error) = written {
            let _ = fs::remove_file(&work);
            return Err(StoreError::write("write", &work, 0, bytes.len() as u64, error));
        }
        Ok(bytes.len() as u64)
    }

    /// Removes a title's pictures.
    pub fn remove(&self, id: TitleId) {
        // If it stays, it is looked at again.
        let _ = fs::remove_file(self.path(id));
    }

    /// Returns the titles that have pictures, and the space they take. Removes files left by
    /// abandoned work.
    pub fn sweep(&self) -> Vec<(TitleId, u64)> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(WORK) {
                let _ = fs::remove_file(entry.path());
            } else if let Some(id) = name.strip_suffix(ENDING).and_then(|id| id.parse().ok()) {
                found.push((id, entry.metadata().map_or(0, |data| data.len())));
            }
        }
        found
    }
}

fn read_about(file: &mut impl BufRead) -> Option<About> {
    let mut line = Vec::new();
    file.read_until(b'\n', &mut line).ok()?;
    let about: About = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    let is_right = about.rule == RULE
        && about.columns > 0
        && about.tile.iter().all(|side| *side > 0)
        && !about.times_ms.is_empty()
        && about.times_ms.is_sorted();
    is_right.then_some(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_in_directory_of_missing_member_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = PictureFiles::of(dir.path());
        let pictures = Pictures::new(vec![0], 4000, b"poster".to_vec(), b"sheet".to_vec());
        let error = files.keep(TitleId([3; 16]), &pictures).unwrap_err();
        assert!(error.to_string().contains("volume.mrv"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn picture_files_read_returns_kept_pictures_and_rejects_damage() {
        let dir = tempfile::tempdir().unwrap();
        drop(crate::volume::Volume::open_or_create(dir.path()).unwrap());
        let files = PictureFiles::of(dir.path());
        let id = TitleId([3; 16]);
        assert_eq!((files.about(id), files.sweep()), (None, vec![]));
        let pictures = Pictures::new(vec![0, 2000], 4000, b"poster".to_vec(), b"sheet".to_vec());
        let bytes = files.keep(id, &pictures).unwrap();
        assert_eq!(files.about(id).as_ref(), Some(&pictures.about));
        assert_eq!(files.read(id), Some(pictures));
        fs::write(files.dir.join("0123.part"), b"x").unwrap();
        fs::write(files.dir.join("notes"), b"x").unwrap();
        assert_eq!(files.sweep(), [(id, bytes)]);
        assert!(!files.dir.join("0123.part").exists() && files.dir.join("notes").exists());
        let whole = fs::read(files.path(id)).unwrap();
        for at in 0..whole.len() {
            let mut spoiled = whole.clone();
            spoiled[at] ^= 0x20;
            fs::write(files.path(id), &spoiled).unwrap();
            // Times are the only thing that may be others and still make sense.
            let read = files.read(id);
            assert!(read.is_none_or(|read| read.poster == b"poster" && read.sheet == b"sheet"), "byte {at}");
            fs::write(files.path(id), &whole[..at]).unwrap();
            assert_eq!(files.read(id), None, "{at} bytes");
        }
        files.remove(id);
        assert_eq!(files.read(id), None);
    }
}

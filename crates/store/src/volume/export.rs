//! A title opened to be copied to another store: as plain files, whatever its volume looks like.

use std::fs::File;
use std::io::Seek;
use std::path::PathBuf;

use millrace_core::ids::TitleId;

use super::manifest_io::find_manifest;
use super::media::MediaReader;
use super::state::Volume;
use crate::dirs::hash;
use crate::error::StoreError;
use crate::format::manifest::{
    DATA_FILE, FileEntry, Manifest, PARITY_CRC_FILE, PARITY_META_FILE, PARITY_UNITS_FILE, Placement,
};
use crate::format::superblock::Geometry;

/// A title to be copied. Its manifest is that of the same title on one member without parity, so a copy of all files beside it is
/// the directory of a title in a store.
#[derive(Debug)]
pub struct TitleExport {
    manifest: Manifest,
    media: MediaReader,
}

impl TitleExport {
    /// Opens a title.
    ///
    /// # Errors
    /// As [`Volume::open_title`], and if the title has no CRCs or range sums: no copy could be verified piece by piece.
    pub fn open(volume: &Volume, id: TitleId) -> Result<Self, StoreError> {
        let media = MediaReader::open(volume, id)?;
        let manifest = find_manifest(volume.members(), id)?.1;
        if !manifest.has_crcs() || !manifest.has_sums() {
            return Err(StoreError::NoChecksums { id });
        }
        let manifest = as_plain_file(manifest);
        manifest.validate().map_err(|e| StoreError::BadTitle { id, what: e.to_string() })?;
        Ok(Self { manifest, media })
    }

    /// The manifest of the copy.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Opens a file of the title other than the media, on the first member whose copy has the right BLAKE3.
    ///
    /// # Errors
    /// If no member has such a copy.
    pub fn open_file(&self, entry: &FileEntry) -> Result<File, StoreError> {
        let mut first = None;
        for path in self.paths(&entry.name) {
            match open_verified(&path, entry) {
                Ok(file) => return Ok(file),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(StoreError::NoTitle { id: self.manifest.title.id }))
    }

    /// Reads media as [`MediaReader::read_exact`] does. The caller compares the whole with the BLAKE3 of the manifest.
    ///
    /// # Errors
    /// As there.
    pub fn read_media(&mut self, start: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.media.read_exact(start, out)
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        let files = self.media.files();
        let is_usable = |p: &usize| files.slot(*p).is_some_and(|slot| files.members.is_usable(slot));
        (0..files.slots.len()).filter(is_usable).filter_map(|p| Some(files.dir_on(p)?.join(name))).collect()
    }
}

/// The manifest that the title would have on one member without parity.
fn as_plain_file(manifest: Manifest) -> Manifest {
    let Manifest { mut title, placement, mut files } = manifest;
    // Of this store alone.
    title.origin.cached = None;
    files.retain(|file| {
        ![DATA_FILE, PARITY_META_FILE, PARITY_CRC_FILE, PARITY_UNITS_FILE].contains(&&*file.name)
    });
    files.push(FileEntry { name: DATA_FILE.to_owned(), bytes: title.bytes, blake3: title.blake3.clone() });
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let members: Vec<_> = placement.members.iter().take(1).map(|member| member.member).collect();
    let placement = Placement::new(placement.volume, &members, Geometry::SINGLE, title.bytes);
    Manifest { title, placement, files }
}

fn open_verified(path: &std::path::Path, entry: &FileEntry) -> Result<File, StoreError> {
    let mut file = File::open(path).map_err(StoreError::io("open", path))?;
    let hasher = hash(&file).map_err(StoreError::io("read", path))?;
    file.rewind().map_err(StoreError::io("read", path))?;
    if hasher.count() == entry.bytes && hasher.finalize().to_hex().as_str() == entry.blake3 {
        return Ok(file);
    }
    let what = "does not have the length and BLAKE3 that the manifest promises".to_owned();
    Err(StoreError::Damaged { path: path.to_path_buf(), what })
}

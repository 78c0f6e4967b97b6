//! Reads and replaces manifests.

use std::fs;
use std::io;
use std::path::Path;

use millrace_core::ids::TitleId;

use crate::blocking::Timeout;
use crate::dirs::{Dirs, read_whole};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::FormatError;
use crate::format::manifest::{Manifest, SUBTITLES_PREFIX, SUBTITLES_SUFFIX};
use crate::limits::MAX_MANIFEST_BYTES;
use crate::members::Members;

/// The manifest of title `id`, checked; [`StoreError::NoTitle`] if there is no such directory.
pub(crate) fn read_manifest(dirs: &Dirs, id: TitleId) -> Result<Manifest, StoreError> {
    read_manifest_file(dirs, id).map(|(manifest, _)| manifest)
}

/// The same with the bytes of its file.
pub(crate) fn read_manifest_file(dirs: &Dirs, id: TitleId) -> Result<(Manifest, Vec<u8>), StoreError> {
    let path = dirs.manifest(id);
    let bytes = match read_whole(&path, MAX_MANIFEST_BYTES) {
        Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            return Err(match dirs.title(id).is_dir() {
                true => StoreError::Damaged { path, what: "is missing".to_owned() },
                false => StoreError::NoTitle { id },
            });
        }
        result => result?,
    };
    let manifest = Manifest::decode(&bytes).map_err(StoreError::format(&path))?;
    if manifest.title.id != id {
        let error = FormatError::value(
            "manifest",
            "title id",
            manifest.title.id,
            format!("{id}, its directory's name"),
        );
        return Err(StoreError::Format { path, error });
    }
    Ok((manifest, bytes))
}

/// The manifest of title `id` on the first member that has a good one, and that member's slot.
///
/// # Errors
/// [`StoreError::NoTitle`] if no member has the title, otherwise the error of the first that has
/// it.
pub(super) fn find_manifest(members: &Members, id: TitleId) -> Result<(usize, Manifest), StoreError> {
    let mut first = None;
    for slot in members.usable() {
        let read = move |dir: &Path| read_manifest(&Dirs::new(dir), id);
        match members.ask(slot, Timeout::Call, read).and_then(|read| read) {
            Ok(manifest) => return Ok((slot, manifest)),
            Err(StoreError::NoTitle { .. }) => {}
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or(StoreError::NoTitle { id }))
}

/// Whether a member may have something of a title: by its manifest, if one can be read.
pub(super) fn lies_on(members: &Members, id: TitleId) -> impl Fn(usize) -> bool + use<> {
    let manifest = find_manifest(members, id).ok();
    let slots =
        manifest.map(|(_, manifest)| manifest.placement.members.iter().map(|m| m.index).collect::<Vec<_>>());
    move |slot| slots.as_ref().is_none_or(|slots| slots.iter().any(|&index| usize::from(index) == slot))
}

/// Removes the files of subtitles in a title's directory that its manifest does not name: those of tracks that were replaced or removed.
pub(crate) fn drop_unnamed(disk: &Disk, dir: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let name = entry.map_err(StoreError::io("list", dir))?.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_track = name.starts_with(SUBTITLES_PREFIX) && name.ends_with(SUBTITLES_SUFFIX);
        if is_track && manifest.file(name).is_none() {
            let path = dir.join(name);
            disk.remove_file(&path).map_err(StoreError::io("remove", &path))?;
        }
    }
    Ok(())
}

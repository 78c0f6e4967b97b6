//! Reads and replaces manifests.

use std::io;

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_MANIFEST_BYTES;

use super::dirs::{Dirs, read_whole};
use crate::error::StoreError;
use crate::format::FormatError;
use crate::format::manifest::Manifest;

/// The manifest of title `id`, checked; [`StoreError::NoTitle`] if there is no such directory.
pub(crate) fn read_manifest(dirs: &Dirs, id: TitleId) -> Result<Manifest, StoreError> {
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
    Ok(manifest)
}

//! Opens a title's files, each checked, and against each other.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_INDEX_BYTES;
use millrace_core::packet::WireLayout;

use super::dirs::{Dirs, read_whole};
use super::manifest_io::read_manifest;
use super::{TitleFiles, TitleInfo};
use crate::error::StoreError;
use crate::format::manifest::{DATA_FILE, INDEX_FILE, meta_file};
use crate::index::TitleIndex;
use crate::meta::MetaFile;

pub(super) fn open_title(dirs: &Dirs, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
    match try_open_title(dirs, id, packet_bytes) {
        // Removed between two of its files: that is no damage.
        Err(StoreError::Damaged { .. }) if !dirs.title(id).is_dir() => Err(StoreError::NoTitle { id }),
        result => result,
    }
}

fn try_open_title(dirs: &Dirs, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
    let layout = WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
    let manifest = read_manifest(dirs, id)?;
    manifest
        .placement
        .geometry()
        .check_supported("manifest")
        .map_err(StoreError::format(&dirs.manifest(id)))?;
    let info = manifest.title;
    let Some(&size) = info.packet_sizes.iter().find(|&&size| usize::from(size) == packet_bytes) else {
        return Err(StoreError::NoPacketSize { id, packet_bytes, has: info.packet_sizes });
    };
    let dir = dirs.title(id);
    let data_path = dir.join(DATA_FILE);
    let data = open_data(&data_path, info.bytes)?;
    let index = open_index(&dir.join(INDEX_FILE), &info)?;
    let meta = open_meta(&dir.join(meta_file(size)), &info, size)?;
    Ok(TitleFiles { info: Arc::new(info), layout, index: Arc::new(index), data, data_path, meta })
}

fn open_data(path: &Path, bytes: u64) -> Result<File, StoreError> {
    let file = File::open(path).map_err(missing_or_io("open", path))?;
    let found = file.metadata().map_err(StoreError::io("look at", path))?.len();
    if found == bytes {
        return Ok(file);
    }
    Err(damaged(path, format!("is {found} bytes long; the manifest promises {bytes}")))
}

/// The index of a title: readable, and of the same data and duration as the manifest says.
pub(crate) fn open_index(path: &Path, info: &TitleInfo) -> Result<TitleIndex, StoreError> {
    let bytes = match read_whole(path, MAX_INDEX_BYTES) {
        Err(StoreError::Io { error, action, .. }) => return Err(missing_or_io(action, path)(error)),
        result => result?,
    };
    let index = crate::format::index::decode(&bytes).map_err(StoreError::format(path))?;
    if index.data_bytes() != info.bytes || index.duration() != info.duration {
        let (bytes, duration) = (index.data_bytes(), index.duration());
        let what = format!(
            "is of {bytes} bytes and {duration}; the manifest promises {} and {}",
            info.bytes, info.duration
        );
        return Err(damaged(path, what));
    }
    Ok(index)
}

/// The meta-data file of a title: header and length right, and of the title, size and data that the manifest says.
pub(crate) fn open_meta(path: &Path, info: &TitleInfo, packet_bytes: u16) -> Result<MetaFile, StoreError> {
    let meta = match MetaFile::open(path) {
        Err(StoreError::Io { error, action, .. }) => return Err(missing_or_io(action, path)(error)),
        result => result?,
    };
    let header = meta.header();
    if (header.title, header.packet_bytes, header.data_bytes) != (info.id, packet_bytes, info.bytes) {
        let what = format!(
            "is of title {}, {} bytes in packets of {}; the manifest promises {}, {} and {packet_bytes}",
            header.title, header.data_bytes, header.packet_bytes, info.id, info.bytes
        );
        return Err(damaged(path, what));
    }
    Ok(meta)
}

fn damaged(path: &Path, what: String) -> StoreError {
    StoreError::Damaged { path: path.to_path_buf(), what }
}

/// A file of a title that is not there is damage, not trouble with the machine.
fn missing_or_io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => damaged(path, "is missing".to_owned()),
        _ => StoreError::io(action, path)(error),
    }
}

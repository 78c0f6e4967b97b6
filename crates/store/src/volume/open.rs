//! Opens a title's files, each checked, and against each other.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_INDEX_BYTES, MAX_TITLE_PACKETS};
use millrace_core::packet::WireLayout;

use super::dirs::{Dirs, read_whole};
use super::manifest_io::read_manifest;
use super::{DerivedFrom, TitleFiles, TitleInfo};
use crate::error::StoreError;
use crate::format::manifest::{DATA_FILE, INDEX_FILE, Manifest, SUMS_FILE, meta_file};
use crate::index::TitleIndex;
use crate::meta::MetaFile;
use crate::sums::{Derived, SumsFile};

/// `derive`: from the range sums, even if the size has a meta-data file of its own.
pub(super) fn open_title(
    dirs: &Dirs,
    id: TitleId,
    packet_bytes: usize,
    derive: bool,
) -> Result<TitleFiles, StoreError> {
    match try_open_title(dirs, id, packet_bytes, derive) {
        // Removed between two of its files: that is no damage.
        Err(StoreError::Damaged { .. }) if !dirs.title(id).is_dir() => Err(StoreError::NoTitle { id }),
        result => result,
    }
}

fn try_open_title(
    dirs: &Dirs,
    id: TitleId,
    packet_bytes: usize,
    derive: bool,
) -> Result<TitleFiles, StoreError> {
    let layout = WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
    let manifest = read_manifest(dirs, id)?;
    manifest
        .placement
        .geometry()
        .check_supported("manifest")
        .map_err(StoreError::format(&dirs.manifest(id)))?;
    let dir = dirs.title(id);
    let derived = form(&dir, &manifest, layout, derive)?;
    let size = if derived.is_some() { DEFAULT_PACKET_BYTES } else { packet_bytes } as u16;
    let info = manifest.title;
    let data_path = dir.join(DATA_FILE);
    let data = open_data(&data_path, info.bytes)?;
    let index = open_index(&dir.join(INDEX_FILE), &info)?;
    let meta = open_meta(&dir.join(meta_file(size)), &info, size)?;
    Ok(TitleFiles { info: Arc::new(info), layout, index: Arc::new(index), data, data_path, meta, derived })
}

/// How this packet size can be had: `None` from its own meta-data file, else derived from the range sums.
fn form(
    dir: &Path,
    manifest: &Manifest,
    layout: WireLayout,
    derive: bool,
) -> Result<Option<DerivedFrom>, StoreError> {
    let (info, packet_bytes) = (&manifest.title, layout.packet_bytes());
    if !derive && info.packet_sizes.iter().any(|&size| usize::from(size) == packet_bytes) {
        return Ok(None);
    }
    let none = || StoreError::NoPacketSize { id: info.id, packet_bytes, has: info.packet_sizes.clone() };
    if !manifest.has_sums() || info.bytes.div_ceil(packet_bytes as u64) > MAX_TITLE_PACKETS {
        return Err(none());
    }
    let sums = open_sums(&dir.join(SUMS_FILE), info)?;
    let rule = Derived::new(sums.header(), layout, info.duration).ok_or_else(none)?;
    Ok(Some(DerivedFrom { sums, rule }))
}

/// The range sums of a title: header and length right, and of the title and data that the manifest says.
pub(crate) fn open_sums(path: &Path, info: &TitleInfo) -> Result<SumsFile, StoreError> {
    let sums = match SumsFile::open(path) {
        Err(StoreError::Io { error, action, .. }) => return Err(missing_or_io(action, path)(error)),
        result => result?,
    };
    let header = sums.header();
    if (header.title, header.data_bytes) != (info.id, info.bytes) {
        let what = format!(
            "is of title {} and {} bytes; the manifest promises {} and {}",
            header.title, header.data_bytes, info.id, info.bytes
        );
        return Err(damaged(path, what));
    }
    Ok(sums)
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

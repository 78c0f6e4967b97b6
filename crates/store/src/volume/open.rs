//! Opens a title's files, each checked, and against each other. What members do not answer others are asked for: whoever opens a
//! title is not held by a disk that hangs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS};
use millrace_core::packet::WireLayout;

use super::catalogue::is_held_behind;
use super::manifest_io::find_manifest;
use super::title::{DerivedFrom, TitleFiles};
use crate::blocking::Timeout;
use crate::dirs::{Dirs, read_whole};
use crate::error::StoreError;
use crate::format::manifest::{
    CRC_FILE, DATA_FILE, DATA_UNITS_FILE, INDEX_FILE, Manifest, PARITY_META_FILE, PARITY_UNITS_FILE,
    SUMS_FILE, meta_file,
};
use crate::format::title_info::TitleInfo;
use crate::index::TitleIndex;
use crate::limits::MAX_INDEX_BYTES;
use crate::members::Members;
use crate::meta::{CrcFile, MetaFile, Record, RecordsFile};
use crate::stripes::StripeLayout;
use crate::sums::{Derived, SumsFile};

/// A title's manifest and where it lies: the first of its members whose small files are read.
struct LocatedTitle {
    manifest: Manifest,
    stripes: Option<StripeLayout>,
    slots: Arc<[u16]>,
    /// Positions whose member can be used and has the title.
    there: Vec<usize>,
}

impl LocatedTitle {
    /// Looks which of its members have the title, and whether these are enough.
    fn look(members: &Members, id: TitleId) -> Result<Self, StoreError> {
        let (slot, manifest) = find_manifest(members, id)?;
        let path = Dirs::new(&members.dir(slot)).manifest(id);
        let geometry = manifest.placement.geometry();
        geometry.check_supported("manifest").map_err(StoreError::format(&path))?;
        let slots: Arc<[u16]> = manifest.placement.members.iter().map(|member| member.index).collect();
        let is = |slot: usize, look: fn(&Dirs, TitleId) -> bool| {
            let look = move |dir: &Path| look(&Dirs::new(dir), id);
            members.is_usable(slot) && members.ask(slot, Timeout::Call, look).unwrap_or(false)
        };
        let has = |slot: usize| is(slot, |dirs, id| dirs.title(id).is_dir());
        let (there, lost): (Vec<usize>, Vec<usize>) =
            (0..slots.len()).partition(|&position| has(usize::from(slots[position])));
        let may = usize::from(geometry.tolerance());
        // Removed meanwhile, or just being: that is no damage.
        let goes = |slot: usize| is(slot, |dirs, id| dirs.removed(id).exists());
        if there.is_empty() || !lost.is_empty() && (0..members.len()).any(goes) {
            return Err(StoreError::NoTitle { id });
        }
        let is_held = |&&position: &&usize| is_held_behind(members, usize::from(slots[position]), id);
        if lost.len() > may && lost.len() - lost.iter().filter(is_held).count() > may {
            let names = lost.iter().map(|&p| members.dir(usize::from(slots[p])).display().to_string());
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(StoreError::MembersLost {
                what: format!("title {id}"),
                lost: lost.len(),
                may,
                names,
            });
        }
        Ok(Self { stripes: manifest.stripes(), manifest, slots, there })
    }

    /// Opens on the first member where it can be opened; the first error, if it cannot be anywhere.
    fn open<T: Send + 'static>(
        &self,
        members: &Members,
        open: impl Fn(Home, &Path) -> Result<T, StoreError> + Clone + Send + 'static,
    ) -> Result<T, StoreError> {
        let id = self.manifest.title.id;
        let mut first = None;
        for &position in &self.there {
            let home = Home { position, slot: usize::from(self.slots[position]) };
            let open = open.clone();
            let open = move |dir: &Path| {
                let dir = Dirs::new(dir).title(id);
                match open(home, &dir) {
                    // Removed between two of its files: that is no damage.
                    Err(StoreError::Damaged { .. }) if !dir.is_dir() => Err(StoreError::NoTitle { id }),
                    result => result,
                }
            };
            match members.ask(home.slot, Timeout::Call, open).and_then(|opened| opened) {
                Ok(opened) => return Ok(opened),
                Err(StoreError::NoTitle { .. }) => {}
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(StoreError::NoTitle { id }))
    }
}

/// The member whose small files are read.
#[derive(Clone, Copy)]
struct Home {
    position: usize,
    slot: usize,
}

/// `derive`: from the range sums, even if the size has a metadata file of its own.
pub(super) fn open_title(
    members: &Arc<Members>,
    id: TitleId,
    packet_bytes: usize,
    derive: bool,
) -> Result<TitleFiles, StoreError> {
    let layout = WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
    let found = LocatedTitle::look(members, id)?;
    let (manifest, stripes, slots) = (found.manifest.clone(), found.stripes, Arc::clone(&found.slots));
    let (info, volume) = (Arc::new(manifest.title.clone()), Arc::clone(members));
    found.open(members, move |Home { position, slot }, dir| {
        let derived = form(dir, &manifest, layout, derive)?;
        let size = if derived.is_some() { DEFAULT_PACKET_BYTES } else { packet_bytes } as u16;
        let (data_path, bytes) = match stripes {
            Some(stripes) if slots.len() > 1 => {
                (dir.join(DATA_UNITS_FILE), stripes.data_file_bytes(position))
            }
            _ => (dir.join(DATA_FILE), info.bytes),
        };
        let data = open_data(&data_path, bytes)?;
        let index = Arc::new(open_index(&dir.join(INDEX_FILE), &info)?);
        let meta = open_meta(&dir.join(meta_file(size)), &info, size)?;
        let (info, members, slots) = (Arc::clone(&info), Arc::clone(&volume), Arc::clone(&slots));
        // Only default-size packets come in whole stripes.
        let layout = stripes.map_or(layout, |stripes| stripes.layout(layout));
        let home = slot;
        let has_crcs = manifest.has_crcs();
        let crcs = has_crcs.then(|| open_crcs(&dir.join(CRC_FILE), &info, info.bytes).ok()).flatten();
        Ok(TitleFiles {
            info,
            layout,
            index,
            data,
            data_path,
            stripes,
            members,
            slots,
            home,
            meta,
            derived,
            has_crcs,
            crcs,
        })
    })
}

/// The files that a title's parity packets are made from.
#[derive(Debug)]
pub struct ParityFiles {
    /// Information about the title.
    pub info: Arc<TitleInfo>,
    /// 1: the first parity, plain XOR. 2: all others.
    pub track: u8,
    /// The stripes it lies in.
    pub stripes: StripeLayout,
    /// The members of its volume.
    pub members: Arc<Members>,
    /// By position in the stripes: the slot of the member.
    pub slots: Arc<[u16]>,
    /// Sums and times of all parity packets.
    pub parity_meta: MetaFile,
    /// Sums and times of the title's default-size packets.
    pub meta: MetaFile,
    /// The title's index.
    pub index: Arc<TitleIndex>,
    /// Whether the title has CRCs of its packets.
    pub has_crcs: bool,
}

impl ParityFiles {
    /// Parities of a stripe that this track carries.
    pub fn parities(&self) -> std::ops::Range<usize> {
        self.stripes.spread().parities(self.track)
    }

    /// Where the parity units of the member at a position are, as the volume knows it now.
    pub fn parity_on(&self, position: usize) -> Option<PathBuf> {
        let slot = usize::from(*self.slots.get(position)?);
        Some(Dirs::new(&self.members.dir(slot)).title(self.info.id).join(PARITY_UNITS_FILE))
    }
}

/// Opens one of a title's parity tracks.
pub(super) fn open_parity(members: &Arc<Members>, id: TitleId, track: u8) -> Result<ParityFiles, StoreError> {
    let found = LocatedTitle::look(members, id)?;
    let (stripes, slots) = (found.stripes, Arc::clone(&found.slots));
    let has = stripes.map_or(0, |stripes| stripes.m());
    let Some(stripes) = stripes.filter(|_| matches!((track, has), (1, 1..) | (2, 2..))) else {
        return Err(StoreError::NoParity { id, track, has });
    };
    let (info, volume) = (Arc::new(found.manifest.title.clone()), Arc::clone(members));
    let (size, has_crcs) = (DEFAULT_PACKET_BYTES as u16, found.manifest.has_crcs());
    found.open(members, move |_, dir| {
        let index = Arc::new(open_index(&dir.join(INDEX_FILE), &info)?);
        let meta = open_meta(&dir.join(meta_file(size)), &info, size)?;
        let parity_meta = open_parity_meta(&dir.join(PARITY_META_FILE), &info, &stripes)?;
        let (info, members, slots) = (Arc::clone(&info), Arc::clone(&volume), Arc::clone(&slots));
        Ok(ParityFiles { info, track, stripes, members, slots, parity_meta, meta, index, has_crcs })
    })
}

/// The sums and times of a title's parity: header and length right, and as many packets as its stripes have.
pub(crate) fn open_parity_meta(
    path: &Path,
    info: &TitleInfo,
    stripes: &StripeLayout,
) -> Result<MetaFile, StoreError> {
    let bytes = stripes.parity_packets() * DEFAULT_PACKET_BYTES as u64;
    open_records(path, info, DEFAULT_PACKET_BYTES as u16, bytes)
}

/// Opens the CRCs of a title's media or parity, which is `bytes` bytes long; header and length are
/// right.
pub(crate) fn open_crcs(path: &Path, info: &TitleInfo, bytes: u64) -> Result<CrcFile, StoreError> {
    open_records(path, info, DEFAULT_PACKET_BYTES as u16, bytes)
}

/// Determines how this packet size is available: `None` from its own metadata file, otherwise
/// derived from the range sums.
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

/// Opens the range sums of a title: header and length are right, and title and data match the
/// manifest.
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

/// Opens the index of a title: it is readable, and its data and duration match the manifest.
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

/// Opens the metadata file of a title: header and length are right, and title, size and data match
/// the manifest.
pub(crate) fn open_meta(path: &Path, info: &TitleInfo, packet_bytes: u16) -> Result<MetaFile, StoreError> {
    open_records(path, info, packet_bytes, info.bytes)
}

fn open_records<R: Record>(
    path: &Path,
    info: &TitleInfo,
    packet_bytes: u16,
    bytes: u64,
) -> Result<RecordsFile<R>, StoreError> {
    let meta = match RecordsFile::open(path) {
        Err(StoreError::Io { error, action, .. }) => return Err(missing_or_io(action, path)(error)),
        result => result?,
    };
    let header = meta.header();
    if (header.title, header.packet_bytes, header.data_bytes) != (info.id, packet_bytes, bytes) {
        let what = format!(
            "is of title {}, {} bytes in packets of {}; the manifest promises {}, {} and {packet_bytes}",
            header.title, header.data_bytes, header.packet_bytes, info.id, bytes
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

//! The bytes of a title, wherever they lie: from the one file, or from stripes on several members,
//! even if some of them are missing or wrong. For readers of a title from its beginning to its end;
//! the cache has its own method.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;

use super::open::{open_crcs, open_meta, open_parity_meta};
use super::state::Volume;
use super::title::TitleFiles;
use crate::error::StoreError;
use crate::format::manifest::{CRC_FILE, PARITY_CRC_FILE, PARITY_META_FILE, meta_file};
use crate::grid::Grid;
use crate::meta::{MetaFile, PacketCrc};
use crate::stripes::StripeLayout;

/// A title's media, opened to be read in order.
pub struct MediaReader {
    files: TitleFiles,
    stripes: Option<StripeReader>,
}

impl std::fmt::Debug for MediaReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MediaReader").field("files", &self.files).finish_non_exhaustive()
    }
}

impl MediaReader {
    /// Opens a title.
    ///
    /// # Errors
    /// As [`Volume::open_title`].
    pub fn open(volume: &Volume, id: TitleId) -> Result<Self, StoreError> {
        Self::new(volume.open_title(id, DEFAULT_PACKET_BYTES)?)
    }

    /// `files` are those of the default packet size.
    pub(super) fn new(files: TitleFiles) -> Result<Self, StoreError> {
        let stripes = match files.stripes {
            Some(stripes) if stripes.members() > 1 => Some(StripeReader::open(&files, stripes)?),
            _ => None,
        };
        Ok(Self { files, stripes })
    }

    /// The title's files.
    pub fn files(&self) -> &TitleFiles {
        &self.files
    }

    /// Reads bytes of the title from `start` on. In stripes, every packet is compared with its
    /// stored sum and CRC, and missing or wrong data is restored from the parity.
    ///
    /// # Errors
    /// If the title has no such bytes, or they are unavailable.
    pub fn read_exact(&mut self, start: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let Some(reader) = &mut self.stripes else {
            let files = &self.files;
            return files.data.read_exact_at(out, start).map_err(StoreError::io("read", &files.data_path));
        };
        let stripes = reader.shape;
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let (stripe, within) = ((at / stripes.stripe_bytes()) as u32, at % stripes.stripe_bytes());
            if stripe >= stripes.stripes() {
                let what = format!("has no bytes from {at} on");
                return Err(StoreError::Damaged { path: self.files.data_path.clone(), what });
            }
            reader.load(&self.files, stripe)?;
            let unit = (within / stripes.unit_bytes() as u64) as usize;
            let from = (within % stripes.unit_bytes() as u64) as usize;
            let bytes = &reader.grid.unit(stripe, unit)[from..];
            let (now, later) = rest.split_at_mut(bytes.len().min(rest.len()));
            now.copy_from_slice(&bytes[..now.len()]);
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }
}

/// One stripe at a time.
struct StripeReader {
    shape: StripeLayout,
    grid: Grid,
    /// By position: data and parity units, where they can be opened.
    data: Vec<Option<File>>,
    parity: Vec<Option<File>>,
    parity_meta: Option<MetaFile>,
    loaded: Option<u32>,
    buffer: Vec<u8>,
}

impl StripeReader {
    fn open(files: &TitleFiles, shape: StripeLayout) -> Result<Self, StoreError> {
        let damaged =
            |what: &str| StoreError::Damaged { path: files.data_path.clone(), what: what.to_owned() };
        let grid = Grid::new(shape).ok_or_else(|| damaged("has a stripe layout that is not supported"))?;
        let positions = 0..shape.members();
        let usable =
            |position: &usize| files.slot(*position).is_some_and(|slot| files.members.is_usable(slot));
        let open = |path: Option<std::path::PathBuf>| path.and_then(|path| File::open(path).ok());
        let data = positions.clone().map(|p| open(files.data_on(p).filter(|_| usable(&p)))).collect();
        let parity = positions.clone().map(|p| open(files.parity_on(p).filter(|_| usable(&p)))).collect();
        let mut parity_meta = None;
        if shape.m() > 0 {
            let mut failed = None;
            for dir in positions.filter(|p| usable(p)).filter_map(|p| files.dir_on(p)) {
                match open_parity_meta(&dir.join(PARITY_META_FILE), &files.info, &shape) {
                    Ok(meta) => {
                        parity_meta = Some(meta);
                        break;
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if let (None, Some(error)) = (&parity_meta, failed) {
                return Err(error);
            }
        }
        Ok(Self { shape, grid, data, parity, parity_meta, loaded: None, buffer: Vec::new() })
    }

    /// Has the stripe in memory, whole.
    fn load(&mut self, files: &TitleFiles, stripe: u32) -> Result<(), StoreError> {
        if self.loaded == Some(stripe) {
            return Ok(());
        }
        self.loaded = None;
        let shape = self.shape;
        let data_sums =
            data_sums(files, u64::from(stripe) * u64::from(shape.stripe_packets()), shape.stripe_packets())?;
        let parity_sums = match &self.parity_meta {
            Some(meta) => {
                let (first, count) =
                    (shape.parity_record(stripe, 0, 0), shape.m() as u32 * shape.unit_packets());
                let copy = |path: &Path| sums_of(&open_parity_meta(path, &files.info, &shape)?, first, count);
                sums_of(meta, first, count).or_else(|error| from_any(files, PARITY_META_FILE, error, copy))?
            }
            None => Vec::new(),
        };
        self.grid.begin(stripe, 1, &data_sums, &parity_sums);
        let (data_crcs, parity_crcs) = crcs_of(files, &shape, stripe);
        self.grid.know_crcs(&data_crcs, &parity_crcs);
        for position in 0..shape.members() {
            self.put(position, stripe, true);
        }
        if (0..shape.k()).any(|unit| !self.grid.is_whole(stripe, unit)) {
            for position in 0..shape.members() {
                self.put(position, stripe, false);
            }
            self.grid.solve(None);
        }
        if let Some(unit) = (0..shape.k()).find(|&unit| !self.grid.is_whole(stripe, unit)) {
            let what = format!(
                "unit {unit} of stripe {stripe} is missing or wrong, and too little is left to restore it"
            );
            return Err(StoreError::Damaged { path: files.data_path.clone(), what });
        }
        self.loaded = Some(stripe);
        Ok(())
    }

    /// Takes the readable part of a position's data of the stripe.
    fn put(&mut self, position: usize, stripe: u32, data: bool) {
        let shape = self.shape;
        let (file, range): (_, Range<u64>) = match data {
            true => (&self.data[position], shape.data_range(position, stripe..stripe + 1)),
            false => (&self.parity[position], shape.parity_range(position, stripe..stripe + 1)),
        };
        let Some(file) = file else { return };
        self.buffer.resize((range.end - range.start) as usize, 0);
        if file.read_exact_at(&mut self.buffer, range.start).is_err() {
            return;
        }
        let units = shape.units_on(position, stripe).filter(|&unit| (unit < shape.k()) == data);
        for (unit, bytes) in units.zip(self.buffer.chunks(shape.unit_bytes())) {
            self.grid.put(stripe, unit, bytes);
        }
    }
}

/// Records of default-size packets: of the copy that is open, and where that is damaged of another member's.
pub(super) fn read_metas(files: &TitleFiles, first: u32, out: &mut [PacketMeta]) -> Result<(), StoreError> {
    let Err(error) = files.meta.read(first, out) else { return Ok(()) };
    let size = DEFAULT_PACKET_BYTES as u16;
    let copy = |path: &Path| open_meta(path, &files.info, size)?.read(first, out);
    from_any(files, &meta_file(size), error, copy)
}

/// What `read` gets of the first member's copy of a file that has it; the error that there was before, if none has.
fn from_any<T>(
    files: &TitleFiles,
    name: &str,
    before: StoreError,
    mut read: impl FnMut(&Path) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let is_usable = |p: &usize| files.slot(*p).is_some_and(|slot| files.members.is_usable(slot));
    let copies = (0..files.slots.len()).filter(is_usable).filter_map(|p| Some(files.dir_on(p)?.join(name)));
    copies.map(|path| read(&path)).find_map(Result::ok).ok_or(before)
}

/// The sums of `count` packets from number `first` on, fewer at the end.
fn sums_of(meta: &MetaFile, first: u64, count: u32) -> Result<Vec<u16>, StoreError> {
    let first = first.min(u64::from(meta.packets())) as u32;
    let mut metas = vec![PacketMeta::default(); count.min(meta.packets() - first) as usize];
    meta.read(first, &mut metas)?;
    Ok(metas.into_iter().map(PacketMeta::sum).collect())
}

/// The CRCs of a stripe's packets, of media and parity, each from the first copy that can be read; none where there is no such copy:
/// the sums are still there.
fn crcs_of(files: &TitleFiles, shape: &StripeLayout, stripe: u32) -> (Vec<PacketCrc>, Vec<PacketCrc>) {
    let first = u64::from(stripe) * u64::from(shape.stripe_packets());
    let count = u64::from(shape.packets()).saturating_sub(first).min(u64::from(shape.stripe_packets()));
    let parity = (shape.parity_record(stripe, 0, 0), shape.m() as u64 * u64::from(shape.unit_packets()));
    let parity_bytes = shape.parity_packets() * DEFAULT_PACKET_BYTES as u64;
    let read = |name: &str, bytes: u64, (first, count): (u64, u64)| {
        let copy = |path: &Path| {
            let mut crcs = vec![PacketCrc::default(); count as usize];
            open_crcs(path, &files.info, bytes)?.read(first as u32, &mut crcs).map(|()| crcs)
        };
        let none = StoreError::NoTitle { id: files.info.id };
        let has_any = files.has_crcs && count > 0;
        has_any.then(|| from_any(files, name, none, copy).ok()).flatten().unwrap_or_default()
    };
    (read(CRC_FILE, files.info.bytes, (first, count)), read(PARITY_CRC_FILE, parity_bytes, parity))
}

/// The same of the title's packets.
fn data_sums(files: &TitleFiles, first: u64, count: u32) -> Result<Vec<u16>, StoreError> {
    let first = first.min(u64::from(files.meta.packets())) as u32;
    let mut metas = vec![PacketMeta::default(); count.min(files.meta.packets() - first) as usize];
    read_metas(files, first, &mut metas)?;
    Ok(metas.into_iter().map(PacketMeta::sum).collect())
}

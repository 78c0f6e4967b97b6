//! The open files of a title.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use crate::dirs::Dirs;
use crate::error::StoreError;
use crate::format::manifest::{DATA_FILE, DATA_UNITS_FILE, PARITY_UNITS_FILE};
use crate::format::title_info::TitleInfo;
use crate::index::TitleIndex;
use crate::limits::META_WINDOW_BYTES;
use crate::members::Members;
use crate::meta::{CrcFile, MetaError, MetaFile};
use crate::stripes::StripeLayout;
use crate::sums::{self, DeriveError, SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsFile};

/// Media whose records are derived at a time: its range sums fill a window but for two blocks that it does not begin or end
/// with, and its metadata less.
const WINDOW_MEDIA_BYTES: usize =
    (META_WINDOW_BYTES / SUMS_BLOCK_BYTES - 2) * SUMS_PER_BLOCK * TS_PACKET_BYTES;

/// A title's files, open and checked against each other.
#[derive(Debug)]
pub struct TitleFiles {
    /// Information about the title.
    pub info: Arc<TitleInfo>,
    /// How its packets lie in an extent.
    pub layout: WireLayout,
    /// Its index (in default-size packets).
    pub index: Arc<TitleIndex>,
    /// The data file; buffered, read only. Of a title on several members the data units of the first that is there.
    pub data: File,
    /// Where the data file is, for readers that want a descriptor of their own (O_DIRECT).
    pub data_path: PathBuf,
    /// The stripes it lies in; `None` if it is one plain file without parity.
    pub stripes: Option<StripeLayout>,
    /// The members of its volume.
    pub members: Arc<Members>,
    /// By position in the stripes: the slot of the member.
    pub slots: Arc<[u16]>,
    /// The slot of the member whose index, metadata and range sums are open here.
    pub home: usize,
    /// The metadata file of this packet size; of the default size, if the records of this size are `derived`.
    pub meta: MetaFile,
    /// How the records of this size are derived: it has no metadata file of its own.
    pub derived: Option<DerivedFrom>,
    /// Whether the title has CRCs of its packets.
    pub has_crcs: bool,
    /// These, of the title, if they can be opened: without them the sums are still there.
    pub crcs: Option<CrcFile>,
}

impl TitleFiles {
    /// The same title for receivers that take its transport stream in plain datagrams: without RTP headers in the cache. `None` unless its
    /// packets have the default size.
    pub fn raw(self) -> Option<Self> {
        Some(Self { layout: self.layout.raw()?, ..self })
    }
}

/// The range sums that the records of a packet size are derived from, together with the default-size metadata.
#[derive(Debug)]
pub struct DerivedFrom {
    /// The file.
    pub sums: SumsFile,
    /// The rule.
    pub rule: sums::Derived,
}

impl TitleFiles {
    /// The slot of the member at a position of the stripes; `None` beyond the positions.
    pub fn slot(&self, position: usize) -> Option<usize> {
        self.slots.get(position).map(|&slot| usize::from(slot))
    }

    /// The title's directory on the member at a position, as the volume knows it now.
    pub fn dir_on(&self, position: usize) -> Option<PathBuf> {
        let slot = self.slot(position)?;
        Some(Dirs::new(&self.members.dir(slot)).title(self.info.id))
    }

    /// Where the data units (or the title) of the member at a position are, as the volume knows it now.
    pub fn data_on(&self, position: usize) -> Option<PathBuf> {
        let name = if self.slots.len() > 1 { DATA_UNITS_FILE } else { DATA_FILE };
        self.dir_on(position).map(|dir| dir.join(name))
    }

    /// Where the parity units of the member at a position are; `None` without parity.
    pub fn parity_on(&self, position: usize) -> Option<PathBuf> {
        self.stripes.filter(|stripes| stripes.m() > 0)?;
        self.dir_on(position).map(|dir| dir.join(PARITY_UNITS_FILE))
    }

    /// Packets of this size.
    pub fn packets(&self) -> u32 {
        self.info.bytes.div_ceil(self.layout.packet_bytes() as u64) as u32
    }

    /// Cache extents that hold them.
    pub fn extents(&self) -> u32 {
        self.packets().div_ceil(self.layout.packets_per_extent())
    }

    /// Payload bytes of packet `packet`: short for the last one, 0 beyond the end.
    pub fn packet_bytes_at(&self, packet: u32) -> usize {
        let size = self.layout.packet_bytes();
        let start = u64::from(packet) * size as u64;
        self.info.bytes.saturating_sub(start).min(size as u64) as usize
    }

    /// The RTP timeline of this packet size.
    pub fn timeline(&self) -> Timeline {
        self.info.timeline_of(self.layout.packet_bytes())
    }

    /// Reads records `first..first + out.len()` of this size; every block touched is verified. At most
    /// [`META_WINDOW_BYTES`](crate::limits::META_WINDOW_BYTES) of each file are in memory at a time.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, or the title has no such packets.
    pub fn read_metas(&self, first: u32, out: &mut [PacketMeta]) -> Result<(), StoreError> {
        let Some(derived) = &self.derived else { return self.meta.read(first, out) };
        let end = u64::from(first) + out.len() as u64;
        if end > u64::from(self.packets()) {
            let count = u32::try_from(out.len()).unwrap_or(u32::MAX);
            let error = MetaError::OutOfRange { first, count, from: 0, to: self.packets() };
            return Err(StoreError::Meta { path: self.meta.path().to_path_buf(), error });
        }
        // The records of `WINDOW_MEDIA_BYTES` of media fill less than a window, whatever the packet
        // size.
        let step = (WINDOW_MEDIA_BYTES / self.layout.packet_bytes()).max(1);
        for (out, first) in out.chunks_mut(step).zip((first..).step_by(step)) {
            let count = out.len() as u32;
            let (meta_range, sums_range) =
                (derived.rule.meta_range(first, count), derived.rule.sums_range(first, count));
            let meta = read_range(self.meta.file(), self.meta.path(), &meta_range)?;
            let sums = read_range(derived.sums.file(), derived.sums.path(), &sums_range)?;
            derived.rule.derive(&meta, &sums, first, out).map_err(|error| match error {
                DeriveError::Meta(error) => StoreError::Meta { path: self.meta.path().to_path_buf(), error },
                DeriveError::Sums(error) => derived.sums.error(error),
            })?;
        }
        Ok(())
    }

    /// The packet that holds the first byte of default-size packet `packet`: where [`RandomAccessPoint::packet`] is
    /// in this size.
    ///
    /// [`RandomAccessPoint::packet`]: crate::index::RandomAccessPoint::packet
    pub fn packet_of_default(&self, packet: u32) -> u32 {
        // Never above u32::MAX: the title has fewer packets of this size than that.
        let byte = u64::from(packet) * DEFAULT_PACKET_BYTES as u64;
        (byte / self.layout.packet_bytes() as u64).min(u64::from(self.packets())) as u32
    }

    /// The first packet of this size with a media time of at least `t`; [`TitleFiles::packets`] if there is none.
    /// Exact: the index gives 256 default-size packets, the metadata the one among them.
    pub fn packet_at(&self, t: MediaTicks) -> Result<u32, StoreError> {
        let size = self.layout.packet_bytes() as u64;
        let window = self.index.window_of(t);
        // The default-size packet before the window is earlier than `t`, the one at its end is not; media time never
        // runs back, so the same holds for packets of this size at or before, at or behind these bytes.
        let from = u64::from(window.start.saturating_sub(1)) * DEFAULT_PACKET_BYTES as u64 / size;
        let to = (u64::from(window.end) * DEFAULT_PACKET_BYTES as u64)
            .div_ceil(size)
            .min(u64::from(self.packets()));
        let mut metas = vec![PacketMeta::default(); to.saturating_sub(from) as usize];
        self.read_metas(from as u32, &mut metas)?;
        Ok(from as u32 + metas.partition_point(|meta| meta.time() < t) as u32)
    }

    /// Media time of a packet by the index alone, whose lines it is on within a tick: for where its record is damaged.
    pub fn time_by_index(&self, packet: u32) -> MediaTicks {
        self.index.time_of(u64::from(packet) * self.layout.packet_bytes() as u64)
    }

    /// [`TitleFiles::packet_at`] by the index alone: for where records are damaged.
    pub fn packet_by_index(&self, t: MediaTicks) -> u32 {
        self.packet_of_default(self.index.packet_at(t))
    }
}

fn read_range(file: &File, path: &Path, range: &Range<u64>) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).map_err(StoreError::io("read", path))?;
    Ok(bytes)
}

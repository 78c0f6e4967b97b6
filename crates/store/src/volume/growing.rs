//! The media of a recording, readable while it is written.
//!
//! ```text
//!   TitleWriter ── flush ──► data, metadata (files) ─┐
//!        └─ mark, times, last block of records ──► GrowingMedia ──► cache, seeks, playlists
//! ```
//!
//! The mark counts the packets that have their bytes and their records; it rises by whole extents until the title is complete. The files stay
//! open, so the reader of a recording goes on with them when the title has been moved to its place, or was removed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use super::recording::UnitFiles;
use crate::bell::EventBell;
use crate::blocking::Timeout;
use crate::error::StoreError;
use crate::index::TIME_STEP_PACKETS;
use crate::members::Members;
use crate::meta::{META_BLOCK_BYTES, MetaError, MetaFile, RECORDS_PER_BLOCK};

/// The member on which a title's metadata is written first.
const META_SLOT: usize = 0;

/// How much of a growing title can be read, and whether more will come.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    packets: AtomicU32,
    is_over: AtomicBool,
    /// Something has changed since the cache looked last.
    news: AtomicBool,
    /// The bell of the cache in which the title is open.
    wake: OnceLock<Arc<EventBell>>,
}

impl std::fmt::Debug for EventBell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventBell").finish_non_exhaustive()
    }
}

impl Growth {
    /// Packets that can be read.
    pub(crate) fn packets(&self) -> u32 {
        self.packets.load(Ordering::Acquire)
    }

    /// Whether no more will come. Ask before [`Growth::packets`].
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Rings this bell whenever there is more.
    pub(crate) fn attach(&self, wake: &Arc<EventBell>) {
        // A title is opened in one cache, perhaps several times.
        let _ = self.wake.set(Arc::clone(wake));
    }

    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::AcqRel)
    }

    fn publish(&self, packets: u32, is_over: bool) {
        self.packets.fetch_max(packets, Ordering::Release);
        self.is_over.fetch_or(is_over, Ordering::Release);
        self.news.store(true, Ordering::Release);
        if let Some(wake) = self.wake.get() {
            wake.ring();
        }
    }
}

/// Records whose block is not full, and so not in the file, and times.
#[derive(Debug, Default)]
struct GrowingRecords {
    /// Blocks that are in the file.
    blocks: u32,
    /// The one behind them, sealed; empty: none.
    last: Vec<u8>,
    /// Media time of packets 0, 256, 512 ...
    times: Vec<MediaTicks>,
}

/// The result of a flush of the writer.
pub(crate) struct Grown<'a> {
    /// Bytes of media in the files.
    pub(super) bytes: u64,
    /// Records, and how many blocks of them are in the file.
    pub(super) records: u64,
    pub(super) blocks: u32,
    /// The block behind those.
    pub(super) last: Vec<u8>,
    pub(super) times: &'a [MediaTicks],
}

/// See the module.
#[derive(Debug)]
pub struct GrowingMedia {
    id: TitleId,
    timeline: Timeline,
    layout: WireLayout,
    pub(crate) units: UnitFiles,
    pub(crate) meta: Arc<File>,
    pub(crate) growth: Growth,
    records: Mutex<GrowingRecords>,
    members: Arc<Members>,
}

impl GrowingMedia {
    pub(super) fn new(
        id: TitleId,
        timeline: Timeline,
        units: UnitFiles,
        meta: &Path,
        members: Arc<Members>,
    ) -> Result<Self, StoreError> {
        let packet_bytes = DEFAULT_PACKET_BYTES;
        let layout = WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
        let meta = Arc::new(File::open(meta).map_err(StoreError::io("open", meta))?);
        let (growth, records) = (Growth::default(), Mutex::default());
        Ok(Self { id, timeline, layout, units, meta, growth, records, members })
    }

    /// The identity of the title that it becomes.
    pub fn id(&self) -> TitleId {
        self.id
    }

    /// The RTP timeline of the title that it becomes.
    pub fn timeline(&self) -> Timeline {
        self.timeline
    }

    /// How its packets lie in an extent.
    pub fn layout(&self) -> WireLayout {
        self.layout
    }

    /// Packets that can be read.
    pub fn packets(&self) -> u32 {
        self.growth.packets()
    }

    /// Whether no more will come.
    pub fn is_over(&self) -> bool {
        self.growth.is_over()
    }

    fn lock(&self) -> MutexGuard<'_, GrowingRecords> {
        // Each change is one assignment after the other, and readers check the block that they get.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is more to read.
    pub(super) fn grow(&self, grown: Grown<'_>) {
        let Grown { bytes, records, blocks, last, times } = grown;
        let mut known = self.lock();
        let before = known.times.len();
        known.times.extend(times.iter().skip(before));
        (known.blocks, known.last) = (blocks, last);
        drop(known);
        let packets = (bytes / self.layout.packet_bytes() as u64).min(records);
        let packets = u32::try_from(packets).unwrap_or(u32::MAX - 1);
        self.growth.publish(packets - packets % self.layout.packets_per_extent(), false);
    }

    /// The title is complete and has this many packets: its readers get them to the end.
    pub fn finish(&self, packets: u32) {
        let mut known = self.lock();
        (known.blocks, known.last) = (packets.div_ceil(RECORDS_PER_BLOCK), Vec::new());
        drop(known);
        self.growth.publish(packets, true);
    }

    /// No more will come: its readers end at the mark.
    pub fn abandon(&self) {
        self.growth.publish(0, true);
    }

    /// Bytes of the metadata file that hold these records, as far as they are in it.
    pub(crate) fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        let Range { start, end } = MetaFile::block_range(first, count);
        let in_file = (1 + u64::from(self.lock().blocks)) * META_BLOCK_BYTES as u64;
        start..end.min(in_file).max(start)
    }

    /// Records from the bytes of [`GrowingMedia::meta_range`] and those that were not in the file.
    ///
    /// # Errors
    /// They are damaged, or have gone to the file meanwhile: ask once more.
    pub(crate) fn records(&self, meta: &[u8], first: u32, out: &mut [PacketMeta]) -> Result<(), MetaError> {
        let base = MetaFile::block_of(first);
        let blocks = (meta.len() / META_BLOCK_BYTES) as u32;
        let in_file = (u64::from(base) + u64::from(blocks)) * u64::from(RECORDS_PER_BLOCK);
        let count = in_file.saturating_sub(first.into()).min(out.len() as u64) as usize;
        let (stored, rest) = out.split_at_mut(count);
        if !stored.is_empty() {
            MetaFile::decode(meta, base, first, stored)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let known = self.lock();
        MetaFile::decode(&known.last, known.blocks, first + count as u32, rest)
    }

    /// Media time of a packet within 256 packets, for deadlines.
    pub(crate) fn time_near(&self, packet: u32) -> MediaTicks {
        let known = self.lock();
        let at = (packet / TIME_STEP_PACKETS) as usize;
        known.times.get(at).or(known.times.last()).copied().unwrap_or_default()
    }

    /// The record of a packet.
    ///
    /// # Errors
    /// There is none yet, or it cannot be read.
    pub fn record(&self, packet: u32) -> io::Result<PacketMeta> {
        let mut record = [PacketMeta::default()];
        // The block may go to the file between the two looks.
        for _ in 0..2 {
            let range = self.meta_range(packet, 1);
            let mut block = vec![0; (range.end - range.start) as usize];
            self.meta.read_exact_at(&mut block, range.start)?;
            if self.records(&block, packet, &mut record).is_ok() {
                return Ok(record[0]);
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// The same for a caller that media waits for: a disk that does not answer is left alone.
    ///
    /// # Errors
    /// Also if the disk is not as fast as for a read of media.
    pub fn record_briefly(self: &Arc<Self>, packet: u32) -> Result<PacketMeta, StoreError> {
        let media = Arc::clone(self);
        self.members.ask(META_SLOT, Timeout::Brief, move |dir| {
            media.record(packet).map_err(StoreError::io("read", dir))
        })?
    }

    /// Bytes of the transport stream.
    ///
    /// # Errors
    /// There are no such bytes yet, or they cannot be read.
    pub fn read_at(&self, from: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        for (file, bytes) in self.units.pieces(from..from + out.len() as u64) {
            let length = (bytes.end - bytes.start) as usize;
            self.units.file(file).read_exact_at(&mut out[done..done + length], bytes.start)?;
            done += length;
        }
        Ok(())
    }
}

/// The block behind those that are full, sealed like them; empty if there is nothing in it.
pub(super) fn seal_last(records: &[u8], blocks: u32) -> Vec<u8> {
    if records.is_empty() {
        return Vec::new();
    }
    let mut block = Box::new([0; META_BLOCK_BYTES]);
    block[..records.len()].copy_from_slice(records);
    crate::format::meta::seal_block(&mut block, blocks);
    block.to_vec()
}

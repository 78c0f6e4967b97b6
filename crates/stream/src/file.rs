//! Files that are sent as they lie: transport streams, whose times are found by reading them once, and any bytes at a constant rate.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_PACKET_BYTES, MAX_TITLE_PACKETS, MIN_BLOCK_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_make::ingest::{Framing, IndexOptions, IndexSink, index_only};
use millrace_store::StoreError;
use millrace_store::cache::{PlainSource, ReadyTitle, SourceKind, TitleSource};
use millrace_store::index::TitleIndex;
use millrace_store::meta::MetaError;
use millrace_store::sums::DeriveError;
use millrace_store::transform::NamedTransform;

use crate::outcome::OpenError;
use crate::source::{Lies, PacketFraming, SourceParts, SourcePosition, Times};

/// How a file of any bytes is cut and paced: a block of fixed size leaves at each interval (Stream
/// Engine 2003, section 4.1: interval and block size).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPacing {
    block_bytes: usize,
    /// Media ticks of a block, as a fraction, so that nothing is rounded that adds up.
    ticks: (u64, u64),
}

impl BlockPacing {
    /// A block at each interval. `None` unless a block has [`MIN_BLOCK_BYTES`] to [`MAX_PACKET_BYTES`] and the interval is 1 µs to a minute.
    pub fn every(interval: Duration, block_bytes: usize) -> Option<Self> {
        let fits = (Duration::from_micros(1)..=Duration::from_secs(60)).contains(&interval);
        // 90 kHz: 9 ticks in 100,000 ns.
        let ticks = (interval.as_nanos() as u64 * 9, 100_000);
        (fits && is_block(block_bytes)).then_some(Self { block_bytes, ticks })
    }

    /// Blocks at this bit rate. `None` unless a block has [`MIN_BLOCK_BYTES`] to [`MAX_PACKET_BYTES`] and the rate is at least 1 kb/s.
    pub fn at_rate(rate: BitRate, block_bytes: usize) -> Option<Self> {
        let ticks = (block_bytes as u64 * 8 * millrace_core::time::MEDIA_HZ, rate.0);
        (rate.0 >= 1000 && is_block(block_bytes)).then_some(Self { block_bytes, ticks })
    }

    /// Its bit rate.
    pub fn rate(&self) -> BitRate {
        let bits = self.block_bytes as u128 * 8 * u128::from(millrace_core::time::MEDIA_HZ);
        BitRate((bits * u128::from(self.ticks.1) / u128::from(self.ticks.0.max(1))) as u64)
    }

    /// When a block leaves.
    pub(crate) fn time_of(&self, block: u32) -> MediaTicks {
        MediaTicks((u128::from(block) * u128::from(self.ticks.0) / u128::from(self.ticks.1)) as u64)
    }
}

fn is_block(bytes: usize) -> bool {
    (MIN_BLOCK_BYTES..=MAX_PACKET_BYTES).contains(&bytes)
}

impl Times for BlockPacing {
    fn packet_at(&self, time: MediaTicks) -> u32 {
        let blocks =
            (u128::from(time.0) * u128::from(self.ticks.1)).div_ceil(u128::from(self.ticks.0.max(1)));
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }
    fn access_before(&self, time: MediaTicks) -> u32 {
        let found = self.packet_at(time);
        if self.time_of(found) > time { found.saturating_sub(1) } else { found }
    }
    fn time_of(&self, packet: u32) -> MediaTicks {
        BlockPacing::time_of(self, packet)
    }
}

/// When the packets of a file leave.
#[derive(Clone)]
enum Records {
    /// As was found, with what their bytes add up to.
    Found(Arc<[PacketMeta]>),
    /// At a constant rate; nothing is known of the bytes.
    Paced(BlockPacing),
}

/// A file in one layout.
struct FileSource {
    id: TitleId,
    layout: WireLayout,
    timeline: Timeline,
    bytes: u64,
    records: Records,
    data: File,
    path: PathBuf,
}

impl TitleSource for FileSource {
    fn id(&self) -> TitleId {
        self.id
    }
    fn layout(&self) -> WireLayout {
        self.layout
    }
    fn timeline(&self) -> Timeline {
        self.timeline
    }
    fn packets(&self) -> u32 {
        self.bytes.div_ceil(self.layout.packet_bytes() as u64) as u32
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        let size = self.layout.packet_bytes() as u64;
        self.bytes.saturating_sub(u64::from(packet) * size).min(size) as usize
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        match &self.records {
            Records::Found(metas) => {
                metas.get(packet as usize).or(metas.last()).map_or(MediaTicks(0), |meta| meta.time())
            }
            Records::Paced(pace) => pace.time_of(packet),
        }
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Plain(self)
    }
    /// Nothing is read for them.
    fn meta_range(&self, _first: u32, _count: u32) -> std::ops::Range<u64> {
        0..0
    }
    fn has_sums(&self) -> bool {
        matches!(self.records, Records::Found(_))
    }
    fn records(
        &self,
        _meta: &[u8],
        _sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        match &self.records {
            Records::Found(metas) => {
                let found = metas.get(first as usize..).and_then(|metas| metas.get(..out.len()));
                let count = out.len() as u32;
                let missing = MetaError::OutOfRange { first, count, from: 0, to: metas.len() as u32 };
                out.copy_from_slice(found.ok_or(missing)?);
            }
            Records::Paced(pace) => {
                for (meta, packet) in out.iter_mut().zip(first..) {
                    *meta = PacketMeta::new(0, 0, pace.time_of(packet));
                }
            }
        }
        Ok(())
    }
}

impl PlainSource for FileSource {
    fn data(&self) -> &File {
        &self.data
    }
    fn data_path(&self) -> &Path {
        &self.path
    }
    fn meta(&self) -> &File {
        &self.data
    }
}

/// Identity of a file and its present state: streams that open the same file share the data read
/// from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    place: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file; write it into a buffer instead"));
        }
        Ok(Self {
            place: (meta.dev(), meta.ino()),
            bytes: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// A name for the cache, another one for each way of cutting and pacing it.
    fn id(&self, how: impl Hash) -> TitleId {
        let half = |which: u8| {
            let mut hasher = DefaultHasher::new();
            (which, self, &how).hash(&mut hasher);
            hasher.finish().to_le_bytes()
        };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&half(0));
        id[8..].copy_from_slice(&half(1));
        TitleId(id)
    }
}

/// A file that is about to be a source.
pub(crate) struct Opening {
    path: PathBuf,
    file: File,
    identity: Identity,
}

impl Opening {
    pub(crate) fn begin(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::File { path: path.display().to_string(), source };
        let file = File::open(path).map_err(failed)?;
        let identity = Identity::of(&file).map_err(failed)?;
        if identity.bytes == 0 {
            return Err(OpenError::NotSo { path: path.display().to_string(), what: "it is empty".into() });
        }
        Ok(Self { path: path.to_path_buf(), file, identity })
    }

    fn not_so(&self, what: impl Into<String>) -> OpenError {
        OpenError::NotSo { path: self.path.display().to_string(), what: what.into() }
    }

    /// Any bytes at a constant rate.
    pub(crate) fn plain(self, pace: BlockPacing) -> Result<SourceParts, OpenError> {
        let layout =
            WireLayout::blocks(pace.block_bytes).ok_or_else(|| self.not_so("blocks of no good size"))?;
        let parts =
            SourceParts { rate: pace.rate(), ..self.parts(layout, Records::Paced(pace), Box::new(pace))? };
        Ok(SourceParts { lies: only_raw(parts.lies), ..parts })
    }

    /// A transport stream, which is read once to find its times.
    pub(crate) fn transport_stream(self) -> Result<SourceParts, OpenError> {
        let mut metas = Metas::default();
        let options = IndexOptions::default();
        let passed = index_only(&mut &self.file, &options, &mut metas)
            .map_err(|error| self.not_so(format!("not a transport stream that can be sent: {error}")))?;
        let skipped = passed.skipped;
        let is_whole = passed.framing == Framing::Plain
            && skipped.before_bytes + skipped.bytes + skipped.tail_bytes == 0
            && passed.indexed.bytes == self.identity.bytes;
        if !is_whole {
            let what = "it has other bytes than transport packets of 188; add it to a volume instead";
            return Err(self.not_so(what));
        }
        if Identity::of(&self.file).ok() != Some(self.identity) {
            return Err(self.not_so("it was changed while it was read; open it again when it is complete"));
        }
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).ok_or_else(|| self.not_so("no packet size"))?;
        let metas: Arc<[PacketMeta]> = metas.0.into();
        let times = FoundTimes { metas: Arc::clone(&metas), index: passed.indexed.index };
        let parts = self.parts(layout, Records::Found(metas), Box::new(times))?;
        Ok(SourceParts { rate: passed.indexed.mean_rate, ..parts })
    }

    fn parts(
        self,
        layout: WireLayout,
        records: Records,
        times: Box<dyn Times>,
    ) -> Result<SourceParts, OpenError> {
        let bytes = self.identity.bytes;
        let packets = bytes.div_ceil(layout.packet_bytes() as u64);
        if packets > MAX_TITLE_PACKETS {
            return Err(
                self.not_so("it has more packets than can be numbered; cut it, or take larger blocks")
            );
        }
        let id = match &records {
            Records::Found(_) => self.identity.id("found"),
            Records::Paced(pace) => self.identity.id(pace.ticks),
        };
        let word = |at: usize| u32::from_le_bytes([id.0[at], id.0[at + 1], id.0[at + 2], id.0[at + 3]]);
        let timeline = Timeline { ssrc: word(0), timestamp_base: word(4) };
        let of_wire = move |wire: PacketFraming| match wire {
            _ if layout.is_raw() => Some(layout),
            PacketFraming::Rtp => Some(layout),
            PacketFraming::Raw => layout.raw(),
        };
        let Self { path, file, .. } = self;
        let reopen = move |wire: PacketFraming,
                           _: Option<&Arc<NamedTransform>>|
              -> Result<Option<ReadyTitle>, OpenError> {
            let Some(layout) = of_wire(wire) else { return Ok(None) };
            let data = file
                .try_clone()
                .map_err(|source| OpenError::File { path: path.display().to_string(), source })?;
            let (records, path) = (records.clone(), path.clone());
            let source = FileSource { id, layout, timeline, bytes, records, data, path };
            Ok(Some(ReadyTitle::of_source(Box::new(source))))
        };
        Ok(SourceParts {
            reopen: Some(Box::new(reopen)),
            lies: Box::new(move |wire| of_wire(wire).map(|layout| (layout, timeline, packets as u32))),
            times,
            rate: BitRate(0),
            bytes: Some(bytes),
            edge: None,
            begins_at: SourcePosition::START,
            transforms: None,
        })
    }
}

/// Restricts layouts to raw ones: a source without RTP headers has them in no layout.
fn only_raw(lies: Lies) -> Lies {
    Box::new(move |wire| lies(wire).filter(|_| wire == PacketFraming::Raw))
}

/// Where a transport stream's packets are in time.
struct FoundTimes {
    metas: Arc<[PacketMeta]>,
    index: TitleIndex,
}

impl Times for FoundTimes {
    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.metas.partition_point(|meta| meta.time() < time) as u32
    }
    fn access_before(&self, time: MediaTicks) -> u32 {
        self.index.access_at_or_before(time).packet
    }
    fn time_of(&self, packet: u32) -> MediaTicks {
        self.metas.get(packet as usize).map_or(self.index.duration(), |meta| meta.time())
    }
}

/// Keeps the records of the packets alone.
#[derive(Default)]
struct Metas(Vec<PacketMeta>);

impl IndexSink for Metas {
    const SUMS: bool = true;

    fn data(&mut self, _ts: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn meta(&mut self, _packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        self.0.push(meta);
        Ok(())
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

//! What the cache needs of a title, and where the bytes of one extent lie in its files.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::ids::TitleId;
use millrace_core::limits::{
    DEFAULT_PACKET_BYTES, EXTENT_BYTES, MAX_RUN_EXTENTS, RTP_HEADER_BYTES, TS_PACKET_BYTES,
};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::Timeline;

use super::crcs::{CRCS_STAGING_BYTES, packets_of, to_borders};
use super::handle::ReadFailure;
use super::order::{MemberView, Order, Role, SpanFile};
use super::playheads::Ns;
use super::stripes::{FileTable, MemberFiles, TitleFile, may_wait, needs};
use crate::blocking::{BlockingCalls, Timeout};
use crate::meta::{CrcFile, META_BLOCK_BYTES, MetaFile, RECORDS_PER_BLOCK};
use crate::stripes::StripeLayout;
use crate::sums::DeriveError;
use crate::volume::TitleFiles;

/// Alignment of direct reads, in memory, in the file and in length: the page size, at least every block size.
pub(super) const ALIGN: usize = 4096;
/// Room for the data of one extent, read to the borders of default-size packets, with what alignment adds at both ends.
pub(super) const DATA_STAGING_BYTES: usize =
    (EXTENT_BYTES + 2 * DEFAULT_PACKET_BYTES).next_multiple_of(ALIGN) + 2 * ALIGN;
/// Most packets an extent holds: packets of one TS packet.
const MAX_PACKETS_PER_EXTENT: usize = EXTENT_BYTES / (RTP_HEADER_BYTES + TS_PACKET_BYTES + PacketMeta::BYTES);
/// Room for the metadata blocks of one extent.
pub(super) const META_STAGING_BYTES: usize =
    (MAX_PACKETS_PER_EXTENT.div_ceil(RECORDS_PER_BLOCK as usize) + 1) * META_BLOCK_BYTES;

/// Room for the blocks of range sums of one extent.
pub(super) const SUMS_STAGING_BYTES: usize = crate::sums::DERIVED_SUMS_BYTES;

/// What the cache needs of a title. [`TitleFiles`] is one; tests have others.
pub trait TitleSource: Send + Sync {
    /// Its identity: the same title in the same layout is cached once, however often it is opened.
    fn id(&self) -> TitleId;
    /// How its packets lie in an extent.
    fn layout(&self) -> WireLayout;
    /// RTP timeline of its packets.
    fn timeline(&self) -> Timeline;
    /// Packets of this layout.
    fn packets(&self) -> u32;
    /// Payload bytes of a packet: short only for the last one.
    fn packet_bytes_at(&self, packet: u32) -> usize;
    /// Media time of a packet; may be off by a little, must not descend. For deadlines, and for packets whose records are damaged.
    fn media_time(&self, packet: u32) -> MediaTicks;
    /// The same of a default-size packet of the media, whatever the packets of this are.
    fn time_of_media(&self, packet: u32) -> MediaTicks {
        self.media_time(packet)
    }
    /// When the title ends; asked of parity tracks only.
    fn duration(&self) -> MediaTicks {
        MediaTicks(0)
    }
    /// 0: media. 1: the first parity of the title with this identity as ready FEC datagrams, 2: its other parities. The
    /// timeline of a track is that of the title.
    fn track(&self) -> u8 {
        0
    }
    /// Its stripes and where their units are, if it lies on several members or has parity. Then its files are opened by the paths
    /// given there, and [`TitleSource::data`] and the like are not read from.
    fn members(&self) -> Option<(StripeLayout, &dyn MemberFiles)> {
        None
    }
    /// Who is sent to its disk, if it has no members. By itself: nobody has been before.
    fn blocking(&self) -> BlockingCalls {
        BlockingCalls::default()
    }
    /// The data file, buffered.
    fn data(&self) -> &File;
    /// Where the data file is, to open it once more for direct reads, and for messages.
    fn data_path(&self) -> &Path;
    /// The metadata file, buffered.
    fn meta(&self) -> &File;
    /// Bytes of the metadata file that hold these records.
    fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        MetaFile::block_range(first, count)
    }
    /// The range sums, buffered, if the records are derived from them and the metadata of another size.
    fn sums(&self) -> Option<&File> {
        None
    }
    /// Bytes of the range sums that these records are derived from; empty if they are not.
    fn sums_range(&self, _first: u32, _count: u32) -> Range<u64> {
        0..0
    }
    /// Whether there are CRCs of its default-size packets, of media and parity.
    fn has_crcs(&self) -> bool {
        false
    }
    /// The CRCs of its title, buffered, if they can be read; asked only if it has no members.
    fn crcs(&self) -> Option<&File> {
        None
    }
    /// Records `first..first + out.len()` from the bytes of [`TitleSource::meta_range`] and of
    /// [`TitleSource::sums_range`], verified. Sums may have the other zero ([`crate::sums`]).
    ///
    /// # Errors
    /// When the bytes are damaged.
    fn records(
        &self,
        meta: &[u8],
        _sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        Ok(MetaFile::decode(meta, MetaFile::block_of(first), first, out)?)
    }
}

/// The title.
impl TitleSource for TitleFiles {
    fn members(&self) -> Option<(StripeLayout, &dyn MemberFiles)> {
        self.stripes.map(|stripes| (stripes, self as &dyn MemberFiles))
    }
    fn blocking(&self) -> BlockingCalls {
        self.members.blocking(self.home)
    }
    fn id(&self) -> TitleId {
        self.info.id
    }
    fn layout(&self) -> WireLayout {
        self.layout
    }
    fn timeline(&self) -> Timeline {
        TitleFiles::timeline(self)
    }
    fn packets(&self) -> u32 {
        TitleFiles::packets(self)
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        TitleFiles::packet_bytes_at(self, packet)
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.time_by_index(packet)
    }
    fn data(&self) -> &File {
        &self.data
    }
    fn data_path(&self) -> &Path {
        &self.data_path
    }
    fn meta(&self) -> &File {
        self.meta.file()
    }
    fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        match &self.derived {
            Some(derived) => derived.rule.meta_range(first, count),
            None => MetaFile::block_range(first, count),
        }
    }
    fn sums(&self) -> Option<&File> {
        self.derived.as_ref().map(|derived| derived.sums.file())
    }
    fn has_crcs(&self) -> bool {
        self.has_crcs
    }
    fn crcs(&self) -> Option<&File> {
        self.crcs.as_ref().map(CrcFile::file)
    }
    fn sums_range(&self, first: u32, count: u32) -> Range<u64> {
        self.derived.as_ref().map_or(0..0, |derived| derived.rule.sums_range(first, count))
    }
    fn records(
        &self,
        meta: &[u8],
        sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        match &self.derived {
            Some(derived) => derived.rule.derive(meta, sums, first, out),
            None => Ok(MetaFile::decode(meta, MetaFile::block_of(first), first, out)?),
        }
    }
}

/// Where the bytes of one extent lie in the title's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// First packet.
    pub(super) first_packet: u32,
    /// Packets.
    pub(super) packets: u32,
    /// Payload bytes of the last of them.
    pub(super) last_packet_bytes: u16,
    /// Their payload in the data file.
    pub(super) data: Range<u64>,
    /// What is read of it: the same, and of a title with CRCs up to the borders of default-size packets.
    pub(super) read: Range<u64>,
    /// Those default-size packets; none of a title without CRCs.
    pub(super) crc_packets: Range<u32>,
    /// Where their CRCs are in the file of them; empty if there are none.
    pub(super) crcs: Range<u64>,
    /// Their records in the metadata file.
    pub(super) meta: Range<u64>,
    /// What they are derived from in the range sums file; empty if they are not.
    pub(super) sums: Range<u64>,
}

/// A title that is open in the cache.
pub(super) struct OpenTitle {
    source: Box<dyn TitleSource>,
    /// The data file once more, for direct reads, where the file system has them.
    direct: Option<File>,
    /// [`may_wait`](super::stripes::may_wait) says so of its own files.
    may_wait: bool,
    /// A direct read was refused after all.
    direct_refused: AtomicBool,
    /// The files of the members, if there are members.
    files: FileTable,
    layout: WireLayout,
    packets: u32,
}

impl OpenTitle {
    /// Opens the data files for direct reads if that can be had: those of a title that is removed later can still be read.
    pub(super) fn new(source: Box<dyn TitleSource>) -> Self {
        let files = FileTable::default();
        let (direct, may_wait) = match source.members() {
            Some((stripes, members)) => {
                files.open_first(source.id(), &stripes, members, source.track() > 0);
                (None, true)
            }
            None => open_direct_of(&*source),
        };
        let (layout, packets) = (source.layout(), source.packets());
        let direct_refused = AtomicBool::new(false);
        Self { source, direct, may_wait, direct_refused, files, layout, packets }
    }

    pub(super) fn source(&self) -> &dyn TitleSource {
        &*self.source
    }

    pub(super) fn layout(&self) -> WireLayout {
        self.layout
    }

    /// Extents of the title.
    pub(super) fn extents(&self) -> u32 {
        self.packets.div_ceil(self.layout.packets_per_extent())
    }

    /// Extents that are read together where that can be, so that each member is asked for `read_bytes` at a time.
    pub(super) fn run_extents(&self, read_bytes: usize) -> usize {
        let members = self.source.members().map_or(1, |(stripes, _)| stripes.members());
        (members * read_bytes).div_ceil(EXTENT_BYTES).clamp(1, MAX_RUN_EXTENTS)
    }

    /// Media time at which an extent begins.
    pub(super) fn start_ns(&self, extent: u32) -> Ns {
        let packet = extent.saturating_mul(self.layout.packets_per_extent()).min(self.packets);
        Ns::try_from(self.source.media_time(packet).to_ns()).unwrap_or(Ns::MAX)
    }

    /// The packets of an extent; `None` if the title has no such extent.
    pub(super) fn packets_of(&self, extent: u32) -> Option<Range<u32>> {
        let first = extent.checked_mul(self.layout.packets_per_extent())?;
        let packets = self.packets.checked_sub(first)?.min(self.layout.packets_per_extent());
        (packets > 0).then_some(first..first + packets)
    }

    /// Where an extent's bytes lie; `None` if the title has no such extent, or its records would not fit the room
    /// for them (a source that contradicts itself).
    pub(super) fn geometry(&self, extent: u32) -> Option<Geometry> {
        let Range { start: first_packet, end } = self.packets_of(extent)?;
        let packets = end - first_packet;
        let last_packet_bytes = self.source.packet_bytes_at(end - 1);
        let size = self.layout.packet_bytes();
        let start = u64::from(first_packet) * size as u64;
        let end = start + (packets as usize - 1) as u64 * size as u64 + last_packet_bytes as u64;
        let meta = self.source.meta_range(first_packet, packets);
        let sums = self.source.sums_range(first_packet, packets);
        let fits = (1..=size).contains(&last_packet_bytes)
            && meta.end.checked_sub(meta.start)? <= META_STAGING_BYTES as u64
            && sums.end.checked_sub(sums.start)? <= SUMS_STAGING_BYTES as u64
            && (sums.is_empty() || self.source.sums().is_some() || self.source.members().is_some());
        let last_packet_bytes = u16::try_from(last_packet_bytes).ok()?;
        let data = start..end;
        let (mut read, mut crc_packets, mut crcs) = (data.clone(), 0..0, 0..0);
        if self.source.has_crcs() && self.source.track() == 0 {
            let last = self.packets - 1;
            let media_bytes = u64::from(last) * size as u64 + self.source.packet_bytes_at(last) as u64;
            read = to_borders(&data, media_bytes);
            crc_packets = packets_of(&data);
            crcs = CrcFile::block_range(crc_packets.start, crc_packets.len() as u32);
        }
        let fits = fits && crcs.end - crcs.start <= CRCS_STAGING_BYTES as u64;
        let geometry =
            Geometry { first_packet, packets, last_packet_bytes, data, read, crc_packets, crcs, meta, sums };
        fits.then_some(geometry)
    }

    /// What to read for an extent, for whoever can make do with `spare` missing packets in a codeword. `thorough`: what was
    /// read for it before was not good enough.
    ///
    /// # Errors
    /// [`ReadFailure::OutOfRange`]; [`ReadFailure::MembersLost`] if too few members may be asked.
    pub(super) fn order(
        self: &Arc<Self>,
        extent: u32,
        spare: u8,
        members: MemberView,
        thorough: bool,
    ) -> Result<Order, ReadFailure> {
        match self.source.members() {
            Some((stripes, files)) => {
                needs::order(self, (stripes, files, &self.files), (extent, spare), members, thorough)
            }
            None => needs::plain(self, (extent, spare), members.pieces != 0, thorough),
        }
    }

    /// The file of a member that a span of data or parity is read from, as it lies there now. `None`: it cannot be opened.
    pub(super) fn opened_again(&self, role: Role, now: Instant) -> Option<SpanFile> {
        let (_, members) = self.source.members()?;
        let (position, kind) = match role {
            Role::Data { position } => (usize::from(position), TitleFile::Data),
            Role::Parity { position } => (usize::from(position), TitleFile::Parity),
            _ => return None,
        };
        self.files.reopen(position, now);
        let open = self.files.get(members, position, (kind, self.may_direct()), now).ok()?;
        Some(SpanFile::own(open.file, open.may_wait))
    }

    /// Members, by slot in the volume, of which files could not be opened since this was asked last, and why.
    pub(super) fn take_refusals(&self) -> Vec<(u16, i32)> {
        self.files.take_refusals()
    }

    /// Members, by slot in the volume as bits, that did not answer when files were to be opened since this was asked last.
    pub(super) fn take_silent(&self) -> u32 {
        self.files.take_silent()
    }

    /// The data file to read from.
    pub(super) fn data(&self) -> &File {
        match &self.direct {
            Some(direct) if self.is_direct() => direct,
            _ => self.source.data(),
        }
    }

    /// Whether [`OpenTitle::data`] reads past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.direct_refused.load(Ordering::Relaxed)
    }

    /// Whether beginning to read from its own files may wait for their disk.
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Whether files of members may be opened for direct reads.
    pub(super) fn may_direct(&self) -> bool {
        !self.direct_refused.load(Ordering::Relaxed)
    }

    /// Direct reads do not work on this file although it could be opened for them: no more of them.
    pub(super) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }
}

/// The data file for direct reads; none also if the disk does not answer. And whether beginning to read may wait for it.
fn open_direct_of(source: &dyn TitleSource) -> (Option<File>, bool) {
    let Ok(buffered) = source.data().try_clone() else { return (None, true) };
    let path = source.data_path().to_path_buf();
    let open = move || (open_direct(&path, &buffered), may_wait(&buffered));
    source.blocking().send(Timeout::Call, open).unwrap_or((None, true))
}

/// The same file once more for direct reads. `None` where the file system has none (some network and memory file
/// systems answer `EINVAL`), or if the path leads to another file by now.
fn open_direct(path: &Path, buffered: &File) -> Option<File> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
    let (a, b) = (direct.metadata().ok()?, buffered.metadata().ok()?);
    (a.dev() == b.dev() && a.ino() == b.ino()).then_some(direct)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;

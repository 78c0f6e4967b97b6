//! The cache's requirements on a title, the differences between the kinds of titles
//! (`docs/design/0015-sources.md`), and the location of one extent's bytes in their files.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, RTP_HEADER_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::Timeline;

use super::aligned::ALIGN;
use super::builder::Builder;
use super::crcs::{CRCS_STAGING_BYTES, packets_of, to_borders};
use super::handle::ReadFailure;
use super::member_files::{FileTable, MemberFiles, TitleFile};
use super::order::{Built, ExtentQuery, MemberView, Order, Role, SpanFile, SpanResult};
use super::playheads::Ns;
use crate::blocking::BlockingCalls;
use crate::limits::MAX_RUN_EXTENTS;
use crate::member_set::MemberSet;
use crate::meta::{CrcFile, META_BLOCK_BYTES, MetaFile, RECORDS_PER_BLOCK};
use crate::stripes::StripeLayout;
use crate::sums::DeriveError;
use crate::transform::Derivation;
use crate::volume::growing::Growth;

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

/// What of a title a source is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrackId {
    /// The media.
    #[default]
    Media,
    /// Its parity as ready FEC datagrams. 1: the first parity; 2: the others.
    Parity(u8),
    /// The media while it is being written.
    Live,
    /// The media of a recording, read from its files while they grow.
    Growing,
    /// The media transformed when extents are filled, with the number of the transformation.
    Derived(u8),
}

/// The kinds of sources: each has its own way of reading an extent and putting it together.
pub enum SourceKind {
    /// Media that is whole in files of its own, without parity.
    Plain(Box<dyn PlainSource>),
    /// Media in stripes on several members, or with parity.
    Striped(StripeLayout, Box<dyn StripedSource>),
    /// A parity track of such media, with its number.
    Parity(StripeLayout, u8, Box<dyn ParitySource>),
    /// A live title, or another title transformed.
    Own(OwnKind),
}

/// A title that is its own kind.
pub struct OwnKind(Box<dyn TitleKind>);

impl OwnKind {
    pub(super) fn new(title: Box<dyn TitleKind>) -> Self {
        Self(title)
    }

    pub(super) fn into_kind(self) -> Box<dyn TitleKind> {
        self.0
    }
}

/// Media that is whole in files of its own.
pub trait PlainSource: TitleSource {
    /// Returns the blocking calls on its disk. The default is a new set without earlier calls.
    fn blocking(&self) -> BlockingCalls {
        BlockingCalls::default()
    }
    /// The data file, buffered.
    fn data(&self) -> &File;
    /// Where the data file is, to open it once more for direct reads, and for messages.
    fn data_path(&self) -> &Path;
    /// The metadata file, buffered.
    fn meta(&self) -> &File;
    /// The range sums, buffered, if the records are derived from them and the metadata of another size.
    fn sums(&self) -> Option<&File> {
        None
    }
    /// The CRCs of its title, buffered, if they can be read.
    fn crcs(&self) -> Option<&File> {
        None
    }
}

/// Media whose files lie on members.
pub trait StripedSource: TitleSource + MemberFiles {}

impl<T: TitleSource + MemberFiles> StripedSource for T {}

/// A parity track, whose files lie on members.
pub trait ParitySource: StripedSource {
    /// Media time of a default-size packet of the title.
    fn time_of_media(&self, packet: u32) -> MediaTicks;
    /// When the title ends.
    fn duration(&self) -> MediaTicks;
}

/// The cache's requirements on any title. [`TitleFiles`](crate::volume::TitleFiles) is one implementation; tests have others.
/// The layout of packets in an extent, as RTP datagrams or in another form, is the source's choice:
/// the cache moves them unchanged.
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
    /// What of the title with this identity it is. The timeline of a track is that of the title.
    fn track(&self) -> TrackId {
        TrackId::Media
    }
    /// Of which kind it is, with what that needs beside this.
    fn kind(self: Box<Self>) -> SourceKind;
    /// Bytes of the metadata file that hold these records.
    fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        MetaFile::block_range(first, count)
    }
    /// Bytes of the range sums that these records are derived from; empty if they are not.
    fn sums_range(&self, _first: u32, _count: u32) -> Range<u64> {
        0..0
    }
    /// Returns whether its records contain the sums of its bytes. Without them, bytes are accepted
    /// as read, and unreadable bytes are not made up for.
    fn has_sums(&self) -> bool {
        true
    }
    /// Whether there are CRCs of its default-size packets, of media and parity.
    fn has_crcs(&self) -> bool {
        false
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

/// The members that a title lies on.
#[derive(Clone, Copy)]
pub(super) struct TitleMembers<'a> {
    /// How its bytes lie on them.
    pub(super) stripes: StripeLayout,
    /// Where they are.
    pub(super) files: &'a dyn MemberFiles,
    /// Their files.
    pub(super) table: &'a FileTable,
}

/// The results of a read: one for each span of its order.
#[derive(Clone, Copy)]
pub(super) struct OrderResults<'a> {
    pub(super) reference: TitleRef,
    pub(super) title: &'a OpenTitle,
    pub(super) order: &'a Order,
    pub(super) spans: &'a [SpanResult<'a>],
}

/// How titles of one kind order the reads for an extent and assemble it.
pub(super) trait TitleKind: Send + Sync {
    /// Returns the properties that any title has.
    fn source(&self) -> &dyn TitleSource;

    /// Returns the order for an extent.
    ///
    /// # Errors
    /// [`ReadFailure::OutOfRange`]; [`ReadFailure::MembersLost`] if too few members may be asked.
    fn order(&self, title: &OpenTitle, query: ExtentQuery) -> Result<Order, ReadFailure>;

    /// Builds the extent of the order in `extent` from the results of its spans.
    fn assemble(&self, builder: &mut Builder, read: OrderResults<'_>, extent: &mut [u8]) -> Built;

    /// Its members; `None`: its files are all that there is of it.
    fn members(&self) -> Option<TitleMembers<'_>> {
        None
    }

    /// Its data file, for messages, if there is just one.
    fn data_path(&self) -> Option<&Path> {
        None
    }

    /// Whether its viewers miss what this order leaves out, though an extent can be made without.
    fn is_missed(&self, _order: &Order) -> bool {
        false
    }

    /// Returns the change made to an assembled extent before it is leased.
    fn derivation(&self) -> Option<&Derivation> {
        None
    }

    /// How far the title has grown, if its files grow; `None`: they are complete.
    fn growth(&self) -> Option<&Growth> {
        None
    }

    /// Whether packets that are marked as missing are lost for good: then they are reported and, some time later, read again.
    fn holes_are_damage(&self) -> bool {
        true
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
    /// The range read from the data file: the same range, extended to the boundaries of
    /// default-size packets if the title has CRCs.
    pub(super) read: Range<u64>,
    /// Those default-size packets; none of a title without CRCs.
    pub(super) crc_packets: Range<u32>,
    /// Where their CRCs are in the file of them; empty if there are none.
    pub(super) crcs: Range<u64>,
    /// Their records in the metadata file.
    pub(super) meta: Range<u64>,
    /// The part of the range sums file that they are derived from; empty if they are not derived.
    pub(super) sums: Range<u64>,
}

/// A title that is open in the cache.
pub(super) struct OpenTitle {
    kind: Box<dyn TitleKind>,
    layout: WireLayout,
    packets: u32,
    /// A direct read was refused although its file could be opened for it.
    direct_refused: AtomicBool,
}

impl OpenTitle {
    /// The title of this kind, whose files are open.
    pub(super) fn of_kind(kind: Box<dyn TitleKind>) -> Self {
        let (layout, packets) = (kind.source().layout(), kind.source().packets());
        Self { kind, layout, packets, direct_refused: AtomicBool::new(false) }
    }

    /// Whether data may be read past the page cache.
    pub(super) fn may_direct(&self) -> bool {
        !self.direct_refused.load(Ordering::Relaxed)
    }

    /// Direct reads do not work although files could be opened for them: no more of them.
    pub(super) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn kind(&self) -> &dyn TitleKind {
        &*self.kind
    }

    pub(super) fn source(&self) -> &dyn TitleSource {
        self.kind.source()
    }

    pub(super) fn layout(&self) -> WireLayout {
        self.layout
    }

    /// Packets that can be read.
    pub(super) fn packets(&self) -> u32 {
        self.kind.growth().map_or(self.packets, Growth::packets)
    }

    /// Extents of the title.
    pub(super) fn extents(&self) -> u32 {
        self.packets().div_ceil(self.layout.packets_per_extent())
    }

    /// Extents that are read together where that can be, so that each member is asked for `read_bytes` at a time.
    pub(super) fn run_extents(&self, read_bytes: usize) -> usize {
        let members = self.kind.members().map_or(1, |members| members.stripes.members());
        (members * read_bytes).div_ceil(EXTENT_BYTES).clamp(1, MAX_RUN_EXTENTS)
    }

    /// Media time at which an extent begins.
    pub(super) fn start_ns(&self, extent: u32) -> Ns {
        let packet = extent.saturating_mul(self.layout.packets_per_extent()).min(self.packets());
        Ns::try_from(self.source().media_time(packet).to_ns()).unwrap_or(Ns::MAX)
    }

    /// The packets of an extent; `None` if the title has no such extent.
    pub(super) fn packets_of(&self, extent: u32) -> Option<Range<u32>> {
        let first = extent.checked_mul(self.layout.packets_per_extent())?;
        let packets = self.packets().checked_sub(first)?.min(self.layout.packets_per_extent());
        (packets > 0).then_some(first..first + packets)
    }

    /// Where an extent's bytes lie; `None` if the title has no such extent, or its records would not fit the room
    /// for them (a source that contradicts itself).
    pub(super) fn geometry(&self, extent: u32) -> Option<Geometry> {
        let Range { start: first_packet, end } = self.packets_of(extent)?;
        let packets = end - first_packet;
        let last_packet_bytes = self.source().packet_bytes_at(end - 1);
        let size = self.layout.packet_bytes();
        let start = u64::from(first_packet) * size as u64;
        let end = start + (packets as usize - 1) as u64 * size as u64 + last_packet_bytes as u64;
        let meta = self.source().meta_range(first_packet, packets);
        let sums = self.source().sums_range(first_packet, packets);
        let fits = (1..=size).contains(&last_packet_bytes)
            && meta.end.checked_sub(meta.start)? <= META_STAGING_BYTES as u64
            && sums.end.checked_sub(sums.start)? <= SUMS_STAGING_BYTES as u64;
        let last_packet_bytes = u16::try_from(last_packet_bytes).ok()?;
        let data = start..end;
        let (mut read, mut crc_packets, mut crcs) = (data.clone(), 0..0, 0..0);
        if self.source().has_crcs() && matches!(self.source().track(), TrackId::Media | TrackId::Derived(_)) {
            let last = self.packets().saturating_sub(1);
            let media_bytes = u64::from(last) * size as u64 + self.source().packet_bytes_at(last) as u64;
            read = to_borders(&data, media_bytes);
            crc_packets = packets_of(&data);
            crcs = CrcFile::block_range(crc_packets.start, crc_packets.len() as u32);
        }
        let fits = fits && crcs.end - crcs.start <= CRCS_STAGING_BYTES as u64;
        let geometry =
            Geometry { first_packet, packets, last_packet_bytes, data, read, crc_packets, crcs, meta, sums };
        fits.then_some(geometry)
    }

    /// Returns the reads for an extent, for a viewer that can do without `spare` packets of a
    /// codeword. `thorough`: the data read for it before was not good enough.
    ///
    /// # Errors
    /// [`ReadFailure::OutOfRange`]; [`ReadFailure::MembersLost`] if too few members may be asked.
    pub(super) fn order(
        &self,
        extent: u32,
        spare: u8,
        view: MemberView,
        thorough: bool,
    ) -> Result<Order, ReadFailure> {
        self.kind.order(self, ExtentQuery { extent, spare, view, thorough })
    }

    /// The file of a member that a span of data or parity is read from, as it lies there now. `None`: it cannot be opened.
    pub(super) fn opened_again(&self, role: Role, now: Instant) -> Option<SpanFile> {
        let members = self.kind.members()?;
        let (position, kind) = match role {
            Role::Data { position } => (usize::from(position), TitleFile::Data),
            Role::Parity { position } => (usize::from(position), TitleFile::Parity),
            _ => return None,
        };
        members.table.reopen(position, now);
        let open = members.table.get(members.files, position, (kind, self.may_direct()), now).ok()?;
        Some(SpanFile::own(open.file, open.may_wait))
    }

    /// Returns the members, by slot in the volume, whose files could not be opened since the last
    /// call, each with the cause.
    pub(super) fn take_refusals(&self) -> Vec<(u16, i32)> {
        self.kind.members().map(|members| members.table.take_refusals()).unwrap_or_default()
    }

    /// Returns the members that did not answer when their files were opened since the last call.
    pub(super) fn take_silent(&self) -> MemberSet {
        self.kind.members().map(|members| members.table.take_silent()).unwrap_or_default()
    }

    /// Members that may be lost; 0 also if it has none.
    pub(super) fn tolerance(&self) -> usize {
        self.kind.members().map_or(0, |members| members.stripes.tolerance())
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;

//! Titles that are still being written: what there is to say of them, and the way in for whoever writes them.
//!
//! ```text
//!   whoever has media ── push, publish ──► Feeder ══ empty extents ◄══  manager ── grants ──► streams at the edge
//!                                            │       news, bell   ══►      │
//!                                            └─► arena, marks ◄── lends ───┘
//! ```
//!
//! The feeder writes packets into extents of the arena and raises their marks ([`millrace_core::pool::Growing`]); nothing is copied or sent to
//! the manager but a bell. `docs/design/0021-growing-extents.md`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use millrace_core::ids::TitleId;
use millrace_core::limits::FEEDER_EXTENTS;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Fill, Growing, Lease};
use millrace_core::seam::Doorbell;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::copy_sum16;
use millrace_core::wire::rtp::Timeline;
use rtrb::{Consumer, Producer, RingBuffer};

use super::builder::Builder;
use super::fill::write_header;
use super::handle::ReadFailure;
use super::order::{Built, ExtentQuery, Order};
use super::plan::{ExtentKey, Waiter};
use super::playheads::StreamKey;
use super::source::{OpenTitle, OrderResults, OwnKind, SourceKind, TitleKind, TitleSource, TrackId};
use crate::bell::EventBell;

/// A title that is still being written. All its packets have their full size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveTitle {
    /// Its identity.
    pub id: TitleId,
    /// How its packets lie in an extent.
    pub layout: WireLayout,
    /// RTP timeline of its packets.
    pub timeline: Timeline,
    /// Extents that are held, with those that the feeder has in hand: when another one is begun the oldest goes.
    /// [`MIN_LIVE_EXTENTS`](millrace_core::limits::MIN_LIVE_EXTENTS) to [`MAX_LIVE_EXTENTS`](millrace_core::limits::MAX_LIVE_EXTENTS).
    pub extents: usize,
    /// Which extents may go for it.
    pub keep: Keep,
}

/// What of a live title stays when all its extents are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The newest extents: the oldest one goes, even if it is needed ([`ReadFailure::Passed`]).
    #[default]
    Newest,
    /// What its viewers have not got: the feeder has no room ([`FeedError::NoRoom`]) until all streams that play have asked for the second extent behind the
    /// oldest one. A stream asks for the next one while it sends one, and may stop in that. While none plays nothing goes.
    Unread,
    /// All of it: behind its last extent the feeder has no room any more.
    All,
}

impl TitleSource for LiveTitle {
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
        u32::MAX
    }
    fn packet_bytes_at(&self, _packet: u32) -> usize {
        self.layout.packet_bytes()
    }
    /// The time is not known before the packet is written, and no code plans with it.
    fn media_time(&self, _packet: u32) -> MediaTicks {
        MediaTicks(0)
    }
    fn track(&self) -> TrackId {
        TrackId::Live
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Own(OwnKind::new(self))
    }
}

/// Nothing of it is ever read: wants wait for its feeder.
impl TitleKind for LiveTitle {
    fn source(&self) -> &dyn TitleSource {
        self
    }
    fn order(&self, _title: &OpenTitle, _query: ExtentQuery) -> Result<Order, ReadFailure> {
        Err(ReadFailure::OutOfRange)
    }
    fn assemble(&self, _builder: &mut Builder, _read: OrderResults<'_>, _extent: &mut [u8]) -> Built {
        Built::failed(ReadFailure::OutOfRange)
    }
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// The cache has not provided the next extent yet, or has no memory for it. The feeder's bell
    /// rings when it has; data that cannot wait is lost.
    #[error("live title: the cache has no memory for the next packet now; try again when the bell rings")]
    NoRoom,
    /// The title was closed.
    #[error("live title: it is closed; open another one")]
    Closed,
    /// Packets of a title are numbered with 32 bits.
    #[error("live title: it has as many packets as a title may have; open another one")]
    TooLong,
    /// A packet's size differs from the title's layout.
    #[error("live title: a packet of {0} bytes; pad it to the size of the title's packets")]
    Size(usize),
}

/// More may come.
const FEEDING: u8 = 0;
/// All has been written.
const FINISHED: u8 = 1;
/// The feeder was dropped before it was done.
const LOST: u8 = 2;

/// State that both ends of a feed share, beside the ring and the arena.
#[derive(Default)]
struct FeedState {
    /// Something was published, an extent was taken, or it is over.
    news: AtomicBool,
    /// [`FEEDING`], [`FINISHED`] or [`LOST`].
    end: AtomicU8,
}

/// The input for the media of one live title. Nothing here blocks or allocates. Dropped before
/// [`Feeder::finish`], it has failed: viewers get the published packets, and then the error.
pub struct Feeder {
    timeline: Timeline,
    layout: WireLayout,
    /// Number of the next packet.
    next: u32,
    current: Option<Growing>,
    /// Packets in it that have not been published.
    written: u32,
    extents: Consumer<Growing>,
    shared: Arc<FeedState>,
    wake: Arc<EventBell>,
}

impl Feeder {
    /// Number of the next packet.
    pub fn next_packet(&self) -> u32 {
        self.next
    }

    /// Adds a packet: it is copied behind its header and summed in the same pass. `flags` and
    /// `time` as in [`PacketMeta`]; `time` must not descend. The packet is not readable before
    /// [`Feeder::publish`], which happens by itself where an extent is full.
    ///
    /// # Errors
    /// [`FeedError`]; nothing has changed then.
    pub fn push(&mut self, payload: &[u8], flags: u8, time: MediaTicks) -> Result<(), FeedError> {
        let (layout, packet, written) = (self.layout, self.next, self.written as usize);
        if payload.len() != layout.packet_bytes() {
            return Err(FeedError::Size(payload.len()));
        }
        let next = packet.checked_add(1).ok_or(FeedError::TooLong)?;
        if self.current.is_none() {
            self.current = Some(self.take_extent()?);
        }
        let room = self.current.as_mut().map(Growing::room);
        let Some((slots, records)) = room else { return Err(FeedError::NoRoom) };
        let slot = &mut slots[written * layout.slot_bytes()..][..layout.slot_bytes()];
        let (header, bytes) = slot.split_at_mut(layout.header_bytes());
        write_header(header, &self.timeline, packet, time);
        let sum = copy_sum16(bytes, payload);
        records[written] = PacketMeta::new(sum, flags & !PacketMeta::MISSING, time).to_bytes();
        let is_full = written + 1 == records.len();
        (self.next, self.written) = (next, self.written + 1);
        if is_full {
            self.raise();
            self.current = None;
        }
        Ok(())
    }

    /// Makes all packets up to now available to viewers. Each call wakes the manager if it sleeps:
    /// worth it for some milliseconds of media, not for each packet of a fast title.
    ///
    /// # Errors
    /// [`FeedError::Closed`]
    pub fn publish(&mut self) -> Result<(), FeedError> {
        self.raise();
        if self.extents.is_abandoned() { Err(FeedError::Closed) } else { Ok(()) }
    }

    /// This was all: viewers get it to the end.
    pub fn finish(mut self) {
        self.raise();
        self.shared.end.store(FINISHED, Ordering::Release);
    }

    fn raise(&mut self) {
        if let Some(growing) = self.current.as_mut().filter(|_| self.written > 0) {
            growing.advance(self.written);
            self.written = 0;
            self.tell();
        }
    }

    fn take_extent(&mut self) -> Result<Growing, FeedError> {
        match self.extents.pop() {
            Ok(growing) => {
                // There is room for another one.
                self.tell();
                Ok(growing)
            }
            Err(_) if self.extents.is_abandoned() => Err(FeedError::Closed),
            Err(_) => Err(FeedError::NoRoom),
        }
    }

    fn tell(&self) {
        self.shared.news.store(true, Ordering::Release);
        self.wake.ring();
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        // Unless it has finished.
        let _ = self.shared.end.compare_exchange(FEEDING, LOST, Ordering::Release, Ordering::Relaxed);
        self.tell();
    }
}

/// The manager's end of a feed: the held part of the title, and the streams that wait for more.
pub(super) struct Feed {
    arena: Arc<ExtentArena>,
    title: LiveTitle,
    /// Number of the oldest extent that is held.
    first: u32,
    /// Where they lie, the oldest first. The feeder has not begun the last ones.
    slots: VecDeque<u32>,
    /// With [`Keep::Unread`]: where the streams that play are, by the extent that they asked for last.
    readers: HashMap<StreamKey, u32>,
    /// Streams that wait. Some may not wait any more.
    pub(super) waiters: Vec<(ExtentKey, Waiter)>,
    /// There was no memory for the feeder's next extent.
    pub(super) is_short: bool,
    to_feeder: Producer<Growing>,
    shared: Arc<FeedState>,
    /// The last field: dropped when the feeder can see that the feed is.
    bell: FeederBell,
}

/// Rung once more when it is dropped.
struct FeederBell(Arc<dyn Doorbell>);

impl Drop for FeederBell {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// A feed: the feeder's end and the manager's end. `bell` is rung when there is another extent for the feeder, and when the title is closed.
pub(super) fn pair(
    title: LiveTitle,
    arena: Arc<ExtentArena>,
    wake: Arc<EventBell>,
    bell: Arc<dyn Doorbell>,
) -> (Feeder, Feed) {
    let (to_feeder, extents) = RingBuffer::new(FEEDER_EXTENTS);
    let shared = Arc::new(FeedState::default());
    let feeder = Feeder {
        timeline: title.timeline,
        layout: title.layout,
        next: 0,
        current: None,
        written: 0,
        extents,
        shared: Arc::clone(&shared),
        wake,
    };
    let (slots, readers, waiters, bell) = (VecDeque::new(), HashMap::new(), Vec::new(), FeederBell(bell));
    (
        feeder,
        Feed { arena, title, first: 0, slots, readers, waiters, is_short: false, to_feeder, shared, bell },
    )
}

impl Feed {
    /// Extents that it holds at most.
    pub(super) fn most(&self) -> usize {
        self.title.extents
    }

    /// Whether something has happened since this was asked last.
    pub(super) fn take_news(&mut self) -> bool {
        self.shared.news.swap(false, Ordering::AcqRel)
    }

    /// The same without taking it.
    pub(super) fn has_news(&self) -> bool {
        self.shared.news.load(Ordering::Acquire)
    }

    /// Returns whether the feeder can take another extent, and the extent that it replaces may go.
    pub(super) fn has_room(&self) -> bool {
        let may_begin = self.slots.len() < self.most()
            || match self.title.keep {
                Keep::Newest => true,
                Keep::Unread => self.readers.values().min().is_some_and(|&extent| extent > self.first + 1),
                Keep::All => false,
            };
        may_begin && !self.to_feeder.is_full() && !self.to_feeder.is_abandoned()
    }

    /// Records that a stream has asked for an extent; `None`: it plays no more. Returns whether the
    /// feeder may have room as a result.
    pub(super) fn note_reader(&mut self, stream: StreamKey, extent: Option<u32>) -> bool {
        if self.title.keep != Keep::Unread {
            return false;
        }
        let before = match extent {
            Some(extent) => self.readers.insert(stream, extent),
            None => self.readers.remove(&stream),
        };
        before != extent
    }

    /// The oldest extent, where it lies, if it has to go before there is another one.
    pub(super) fn shed(&mut self) -> Option<u32> {
        if self.slots.len() < self.most() {
            return None;
        }
        self.first += 1;
        self.slots.pop_front()
    }

    /// Gives the feeder another extent, if [`Feed::has_room`].
    pub(super) fn give(&mut self, fill: Fill) {
        self.slots.push_back(fill.extent());
        // If the feeder is gone, the extent is never written, and it goes with the title.
        let _ = self.to_feeder.push(fill.grow(self.title.layout));
        self.bell.0.ring();
    }

    /// What there is for a stream that needs the packet at `place` of an extent; `None`: it has to wait.
    pub(super) fn look(&self, extent: u32, place: u16) -> Option<Result<(), ReadFailure>> {
        let Some(at) = extent.checked_sub(self.first) else {
            return Some(Err(ReadFailure::Passed { first: self.first }));
        };
        // Before the mark: whoever ended has raised it before.
        let end = self.shared.end.load(Ordering::Acquire);
        let slot = self.slots.get(at as usize);
        if slot.is_some_and(|&slot| self.arena.grown(slot) > u32::from(place)) {
            return Some(Ok(()));
        }
        let is_possible =
            at as usize <= self.slots.len() && u32::from(place) < self.title.layout.packets_per_extent();
        match end {
            _ if !is_possible => Some(Err(ReadFailure::OutOfRange)),
            FINISHED => Some(Err(ReadFailure::Ended)),
            LOST => Some(Err(ReadFailure::FeederLost)),
            _ => None,
        }
    }

    /// Leases the part of an extent that is readable now.
    pub(super) fn lend(&self, key: ExtentKey) -> Option<Lease> {
        let slot = *self.slots.get(key.extent.checked_sub(self.first)? as usize)?;
        let layout = self.title.layout;
        let packets = layout.packets_per_extent();
        self.arena.lend(
            slot,
            ExtentContent {
                title: key.title,
                number: key.extent,
                first_packet: key.extent * packets,
                packets,
                last_packet_bytes: layout.packet_bytes() as u16,
                layout,
                spare: 0,
            },
        )
    }

    /// Closes the title: returns the places of its extents, and the streams that still wait. The
    /// feeder's bell rings, and the feeder learns of it when it looks.
    pub(super) fn close(self) -> (VecDeque<u32>, Vec<(ExtentKey, Waiter)>) {
        (self.slots, self.waiters)
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;

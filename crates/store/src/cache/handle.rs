//! The way between one engine loop and the manager: two rings, two bells, nothing that blocks or allocates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::limits::RING_RECORDS;
use millrace_core::pool::Lease;
use millrace_core::seam::{Doorbell, Want};
use millrace_core::time::Instant;
use rtrb::{Consumer, Producer, RingBuffer};

use super::plan::ExtentKey;
use super::residents::ResidentExtents;
use crate::bell::EventBell;
use crate::limits::cache::TELL_NS;

/// Why an extent could not be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// Reading failed with this `errno`; `ENODATA` stands for a file that ends too early.
    Io(i32),
    /// Data or metadata do not match their stored checksums, twice in a row.
    Checksum,
    /// The title is not open, or was closed while the want waited.
    NoTitle,
    /// The title has no such extent, or the stream's index is beyond the limit of streams.
    OutOfRange,
    /// More members of the title are lost than its parity makes up for.
    MembersLost {
        /// Members that cannot be read.
        lost: u8,
        /// Members that may be lost.
        may: u8,
    },
    /// Of a live title this is not held any more.
    Passed {
        /// The oldest extent that is.
        first: u32,
    },
    /// A live title is over, and this is behind its end.
    Ended,
    /// Whoever wrote the live title has gone before it was done: there will be no more.
    FeederLost,
}

impl std::fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(errno) => write!(f, "read error: {}", std::io::Error::from_raw_os_error(*errno)),
            Self::Checksum => f.write_str("data and stored checksums do not match"),
            Self::NoTitle => f.write_str("the title is not open"),
            Self::OutOfRange => f.write_str("the title has no such extent"),
            Self::MembersLost { lost, may } => {
                write!(f, "{lost} of the title's members cannot be read; its parity makes up for {may}")
            }
            Self::Passed { first } => {
                write!(f, "the live title goes on: what is held of it begins with extent {first}")
            }
            Self::Ended => f.write_str("the live title is over"),
            Self::FeederLost => f.write_str("the source of the live title has failed"),
        }
    }
}

/// The answer to one [`Want`].
#[derive(Debug)]
pub struct Grant {
    /// Whose want.
    pub stream: StreamId,
    /// For which of the stream's runs.
    pub run: RunSerial,
    /// Of which title.
    pub title: TitleRef,
    /// Which extent of the title.
    pub extent: u32,
    /// The extent, or why not.
    pub lease: Result<Lease, ReadFailure>,
}

/// From an engine to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Want(Want),
    /// The engine has already leased the extent of this want.
    Took(Want),
    Leave(StreamId),
}

/// What both ends of a handle see beside the rings.
#[derive(Default)]
struct Flags {
    /// The manager holds back grants because their ring was full.
    grants_held: AtomicBool,
    /// The engine was refused because the ring of asks was full.
    ask_refused: AtomicBool,
    /// The engine's end is gone.
    gone: AtomicBool,
}

/// One engine's way to the cache. Nothing here blocks, allocates or frees (but for the leases that the engine drops).
pub struct CacheHandle {
    asks: Producer<Ask>,
    grants: Consumer<Grant>,
    flags: Arc<Flags>,
    wake: Arc<EventBell>,
    residents: Arc<ResidentExtents>,
    /// Time of the oldest ask since the manager was last woken.
    untold_since: Option<Instant>,
}

impl CacheHandle {
    /// Leases an extent at once if it is in memory and whole. The manager only has to know the stream's position, and learns of it
    /// within [`TELL_NS`] if the engine calls [`CacheHandle::tell`] in time.
    ///
    /// `None`: use [`CacheHandle::want`].
    pub fn lend(&mut self, now: Instant, want: &Want) -> Option<Lease> {
        if self.asks.is_full() {
            return None;
        }
        let lease = self.residents.lend(ExtentKey { title: want.title, extent: want.extent })?;
        // Behind the last packet of a recording there is nothing to lend.
        let lease = Some(lease).filter(|lease| lease.content().packets > want.place.into())?;
        let pushed = self.asks.push(Ask::Took(*want));
        debug_assert!(pushed.is_ok(), "there was room, and nobody else fills it");
        self.untold_since.get_or_insert(now);
        Some(lease)
    }

    /// When [`CacheHandle::tell`] must be called.
    pub fn tell_at(&self) -> Option<Instant> {
        self.untold_since.map(|since| since.plus_ns(TELL_NS))
    }

    /// Wakes the manager if the oldest unread ask is [`TELL_NS`] old, or if half of the ring is full.
    pub fn tell(&mut self, now: Instant) {
        let is_much = self.asks.slots() < RING_RECORDS / 2;
        if self.untold_since.is_some_and(|since| is_much || now.ns_since(since) >= TELL_NS) {
            self.ring();
        }
    }

    fn ring(&mut self) {
        self.untold_since = None;
        self.wake.ring();
    }

    /// Requests an extent; the answer comes as a [`Grant`]. Also reports the stream's position, so
    /// that the extents after this one are read ahead. A want for an extent that the run is already
    /// waiting for changes its deadline.
    ///
    /// `false`: the ring is full, ask again; the engine's bell rings when there is room.
    pub fn want(&mut self, want: &Want) -> bool {
        let taken = self.push(Ask::Want(*want));
        self.ring();
        taken
    }

    /// Reports that the stream needs nothing more (paused, ended, gone): its place is forgotten and
    /// the extents it waits for are not granted any more. Grants already under way may still
    /// arrive. The manager learns of it as of a lease by [`CacheHandle::lend`].
    ///
    /// `false`: the ring is full, say it again.
    pub fn leave(&mut self, now: Instant, stream: StreamId) -> bool {
        let taken = self.push(Ask::Leave(stream));
        if taken {
            self.untold_since.get_or_insert(now);
        } else {
            self.ring();
        }
        taken
    }

    /// The next answer.
    pub fn poll(&mut self) -> Option<Grant> {
        let grant = self.grants.pop().ok()?;
        // Pairs with the fence in `ManagerEnd::flush`: either the manager's second try finds the room just made, or we
        // see that it waits for room.
        fence(Ordering::SeqCst);
        if self.flags.grants_held.load(Ordering::Relaxed)
            && self.flags.grants_held.swap(false, Ordering::Relaxed)
        {
            self.wake.ring();
        }
        Some(grant)
    }

    /// Whether [`CacheHandle::poll`] has nothing now: the last look before the engine sleeps.
    pub fn is_quiet(&self) -> bool {
        self.grants.is_empty()
    }

    fn push(&mut self, ask: Ask) -> bool {
        let taken = self.asks.push(ask).is_ok();
        if !taken {
            self.flags.ask_refused.store(true, Ordering::Release);
        }
        taken
    }
}

impl Drop for CacheHandle {
    fn drop(&mut self) {
        self.flags.gone.store(true, Ordering::Release);
        self.wake.ring();
    }
}

/// The manager's end of a handle.
pub(super) struct ManagerEnd {
    asks: Consumer<Ask>,
    grants: Producer<Grant>,
    flags: Arc<Flags>,
    bell: Arc<dyn Doorbell>,
    /// Grants that did not fit into the ring. While there are any, no asks are taken, so their
    /// number is bounded by the wants that were waiting at that moment.
    held: VecDeque<Grant>,
    /// Whether something was done since the bell was last rung that the engine should see.
    news: bool,
}

/// A handle: the engine's end and the manager's end.
pub(super) fn pair(
    wake: Arc<EventBell>,
    bell: Arc<dyn Doorbell>,
    residents: &Arc<ResidentExtents>,
) -> (CacheHandle, ManagerEnd) {
    let (ask_in, asks) = RingBuffer::new(RING_RECORDS);
    let (grants, grant_out) = RingBuffer::new(RING_RECORDS);
    let flags = Arc::new(Flags::default());
    let handle = CacheHandle {
        asks: ask_in,
        grants: grant_out,
        flags: Arc::clone(&flags),
        wake,
        residents: Arc::clone(residents),
        untold_since: None,
    };
    (handle, ManagerEnd { asks, grants, flags, bell, held: VecDeque::new(), news: false })
}

impl ManagerEnd {
    /// The engine's next ask, unless it has to take its grants first.
    pub(super) fn take(&mut self) -> Option<Ask> {
        if self.held.is_empty() { self.asks.pop().ok() } else { None }
    }

    /// Whether [`ManagerEnd::take`] would give something, [`ManagerEnd::ring`] would ring, or the engine's end is gone.
    pub(super) fn has_work(&self) -> bool {
        self.is_gone() || self.held.is_empty() && !self.asks.is_empty() || self.owes_room()
    }

    /// The engine was refused and does not know yet that there is room again.
    fn owes_room(&self) -> bool {
        self.flags.ask_refused.load(Ordering::Acquire) && self.asks.slots() < RING_RECORDS
    }

    /// Returns whether the engine's end is gone: it sends no asks and takes no grants any more.
    pub(super) fn is_gone(&self) -> bool {
        self.flags.gone.load(Ordering::Acquire)
    }

    /// Sends a grant, now or as soon as the ring has room.
    pub(super) fn give(&mut self, grant: Grant) {
        self.held.push_back(grant);
        self.flush();
    }

    /// Moves held grants into the ring.
    pub(super) fn flush(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.push_held();
        if !self.held.is_empty() {
            self.flags.grants_held.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.push_held();
        }
    }

    fn push_held(&mut self) {
        while let Some(grant) = self.held.pop_front() {
            if let Err(rtrb::PushError::Full(grant)) = self.grants.push(grant) {
                return self.held.push_front(grant);
            }
            self.news = true;
        }
    }

    /// Rings the engine if there is something new for it: grants, or room after a refusal.
    pub(super) fn ring(&mut self) {
        if self.owes_room() {
            self.flags.ask_refused.store(false, Ordering::Relaxed);
            self.news = true;
        }
        if std::mem::take(&mut self.news) {
            self.bell.ring();
        }
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;

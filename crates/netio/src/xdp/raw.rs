//! Whole frames, out and in, by one queue of one interface: for a network stack of one's own.
//!
//! ```text
//!   send    ─► copied into a free frame ─► TX ring ─► driver ─► completion ring: the frame is free
//!   receive ◄─ lent where it lies       ◄─ RX ring ◄─ driver ◄─ fill ring: the frame may be written
//! ```
//!
//! One socket does both: the kernel gives a queue to one only. Frames to send and to receive lie in extents of their own, so whatever a
//! driver completes, nothing is written that it may be receiving into. Nothing in a frame is looked at.
//!
//! With a chained strategy the socket has the arena of the media for its memory, and frames in extents aside: then a payload that lies in
//! the arena is not copied ([`chain`](super::chain)).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use millrace_core::limits::{EXTENT_BYTES, RX_BATCH_PACKETS, XDP_RAW_FRAME_BYTES};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::time::Instant;

use super::chain::{Chains, Unchained};
use super::error::XdpError;
use super::memory::MemoryNic;
use super::output::{Far, MemoryBell};
use super::ring::{Consumer, Desc, Producer, Ring};
use super::socket::{Kick, SocketConfig, XdpSocket};
use super::strategy::{Abilities, Strategy};
use super::umem::{CHUNK_BYTES, FrameKind, Frames, is_on_huge_pages};
use crate::features::DeviceFeatures;
use crate::limits::{
    DEFAULT_XDP_RAW_FRAMES, MAX_XDP_RX_FRAMES, RX_LOOK_NS, XDP_CHAIN_DESCRIPTORS, XDP_RAW_FULL_QUEUES,
};

/// With unaligned chunks the upper bits of an address say where in its frame the packet begins (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
const OFFSET_SHIFT: u32 = 48;

/// The configuration of an [`XdpRaw`].
#[derive(Clone, Debug)]
pub struct XdpRawConfig {
    /// The interface, in the calling thread's network namespace.
    pub interface: String,
    /// Its queue. There is one socket for each queue at most.
    pub queue: u32,
    /// Frames of 4 KiB to receive into; rounded up to a power of two, at least a batch and at most [`MAX_XDP_RX_FRAMES`]. The kernel locks them all.
    pub frames: u32,
    /// The same to send from.
    pub send_frames: u32,
    /// How frames are handed over; `None`: chosen by the driver's abilities ([`XdpQueues`](super::XdpQueues)).
    pub strategy: Option<Strategy>,
    /// The arena that payload is sent from where it lies, by a chained strategy; with [`XdpRawConfig::aside_extents`] set aside. The kernel
    /// locks all of it.
    pub media: Option<Arc<ExtentArena>>,
}

impl XdpRawConfig {
    /// The first queue.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            queue: 0,
            frames: DEFAULT_XDP_RAW_FRAMES,
            send_frames: DEFAULT_XDP_RAW_FRAMES,
            strategy: None,
            media: None,
        }
    }

    /// Extents that [`XdpRawConfig::media`] has to have aside for the frames of one queue.
    pub fn aside_extents(&self) -> u32 {
        extents(self.receives()) + extents(self.sends()) + 1
    }

    /// Strategies worth trying at an interface of the calling thread's network namespace, best first. The last one copies.
    pub(super) fn candidates(&self) -> Vec<Strategy> {
        if let Some(strategy) = self.strategy {
            return vec![strategy];
        }
        let abilities = self.abilities();
        let has_media = self.media.is_some();
        let mut all: Vec<_> = abilities.candidates().filter(|one| has_media || !one.is_chained()).collect();
        if all.last() != Some(&Strategy::Staging) {
            all.push(Strategy::Staging);
        }
        all
    }

    fn abilities(&self) -> Abilities {
        let huge_pages = self.media.as_deref().is_some_and(is_on_huge_pages);
        Abilities::of(DeviceFeatures::of(&self.interface).ok().as_ref(), huge_pages)
    }

    /// The arena that frames are sent from without a copy.
    fn chained(&self, strategy: Strategy) -> Option<&Arc<ExtentArena>> {
        self.media.as_ref().filter(|_| strategy.is_chained())
    }

    /// Returns the share of each of `count` queues: a whole device's receive frames, or its part of
    /// those of [`XDP_RAW_FULL_QUEUES`]. Only the first one sends.
    pub(super) fn share_of(&self, count: u32, is_first: bool) -> Self {
        let send_frames = if is_first { self.send_frames } else { 0 };
        let frames = self.frames * XDP_RAW_FULL_QUEUES / count.max(XDP_RAW_FULL_QUEUES);
        let media = self.media.clone().filter(|_| is_first);
        Self { frames, send_frames, media, ..self.clone() }
    }

    /// Bytes of memory that the kernel locks for `count` queues.
    pub(super) fn locked_bytes(&self, count: u32, strategy: Strategy) -> usize {
        (0..count).map(|queue| self.share_of(count, queue == 0).memory_bytes(strategy)).sum()
    }

    /// The same for this queue alone: all of the media's arena, or frames of its own.
    pub(super) fn memory_bytes(&self, strategy: Strategy) -> usize {
        let own = (extents(self.receives()) + extents(self.sends())) as usize * EXTENT_BYTES;
        self.chained(strategy).map_or(own, |media| media.memory().1)
    }

    fn receives(&self) -> u32 {
        whole_ring(self.frames)
    }

    fn sends(&self) -> u32 {
        whole_ring(self.send_frames)
    }

    fn arena(&self) -> Arc<ExtentArena> {
        let extents = extents(self.receives()) + extents(self.sends());
        ExtentArena::with_aside(Box::new(HeapRegion::new(extents as usize)), extents)
    }
}

fn whole_ring(frames: u32) -> u32 {
    frames.clamp(RX_BATCH_PACKETS as u32, MAX_XDP_RX_FRAMES).next_power_of_two()
}

/// Places in the ring that is sent from: a frame for each, or a header and a payload.
fn tx_entries(config: &XdpRawConfig, is_chained: bool) -> u32 {
    config.sends() << u32::from(is_chained)
}

/// Returns the number of extents that `frames` frames take.
fn extents(frames: u32) -> u32 {
    frames.div_ceil((EXTENT_BYTES / CHUNK_BYTES) as u32)
}

millrace_core::counters! {
    /// Counts of an [`XdpRaw`].
    pub struct XdpRawCounters {
        /// Frames put into the ring.
        sum sent,
        /// Those of them with payload that is sent from where it lies.
        sum chained,
        /// Frames that were too long or empty: not sent.
        sum unfit,
        /// Frames that found no room.
        sum refused,
        /// Calls that made the kernel look at the ring.
        sum wakeups,
        /// Frames that came.
        sum received,
        /// Descriptors that were no whole frame of ours.
        sum malformed,
        /// Addresses that came back though nothing was out there.
        sum stray_completions,
        /// Extents that are held for the device now.
        gauge held_extents,
    }
}

/// Sends and receives whole frames. Nothing comes until a steering program knows its socket. Allocates in [`XdpRaw::open`] and not after.
pub struct XdpRaw {
    // In this order: the socket is closed before the memory is given back.
    far: Far,
    tx: Producer<Desc>,
    completion: Consumer<u64>,
    rx: Consumer<Desc>,
    fill: Producer<u64>,
    outgoing: Frames,
    incoming: Frames,
    /// Of a device that sends payload from where it lies.
    chains: Option<Chains>,
    config: XdpRawConfig,
    /// Frames after which the kernel is made to look.
    chunk: u32,
    /// Frames in the ring since it last was.
    waiting: u32,
    /// The last descriptor was a piece of a frame that goes on.
    goes_on: bool,
    looked: Instant,
    counters: XdpRawCounters,
}

/// The four rings of a device.
type Rings = (Producer<Desc>, Consumer<u64>, Consumer<Desc>, Producer<u64>);

impl XdpRaw {
    /// Opens a device that hands frames over by `strategy`; by a chained one only with [`XdpRawConfig::media`].
    ///
    /// # Errors
    /// Says which step failed and what to do about it.
    pub fn open(config: &XdpRawConfig, strategy: Strategy) -> Result<Self, XdpError> {
        let config = &XdpRawConfig { strategy: Some(strategy), ..config.clone() };
        let chained = config.chained(strategy);
        let arena = chained.cloned().unwrap_or_else(|| config.arena());
        let (socket, rings) = XdpSocket::open(&SocketConfig {
            interface: config.interface.clone(),
            queue: config.queue,
            arena: Arc::clone(&arena),
            zero_copy: strategy.is_zero_copy(),
            multi: chained.is_some(),
            tx_entries: tx_entries(config, chained.is_some()),
            rx_entries: config.receives(),
            tx_budget: config.sends(),
        })?;
        let Some(rx) = rings.rx else { unreachable!("the socket was made to receive") };
        let chunk = if socket.is_zero_copy() { config.sends() } else { socket.tx_budget() };
        let chains = chained.map(|arena| {
            let abilities = config.abilities();
            let segments = abilities.zero_copy_segments.filter(|_| strategy.is_zero_copy());
            let most = segments.map_or(XDP_CHAIN_DESCRIPTORS, |most| most as usize);
            Chains::new(arena, strategy.is_zero_copy() && !abilities.huge_pages, most)
        });
        let far = Far::Kernel(Box::new(socket));
        Self::build(config, &arena, far, (rings.tx, rings.completion, rx, rings.fill), chunk, chains)
    }

    /// The same over rings in memory: no privileges, no interface; the ends that a driver has. Without a strategy it copies.
    ///
    /// # Errors
    /// The media's arena has too few extents aside.
    pub fn over_memory(
        config: &XdpRawConfig,
    ) -> Result<(Self, MemoryNic, Producer<Desc>, Consumer<u64>), XdpError> {
        let strategy = config.strategy.unwrap_or(Strategy::Staging);
        let chained = config.chained(strategy);
        let arena = chained.cloned().unwrap_or_else(|| config.arena());
        let (receives, entries) = (config.receives(), tx_entries(config, chained.is_some()));
        let (tx, driver_tx) = Ring::heap(entries);
        let (driver_completion, completion) = Ring::heap(entries);
        let (driver_rx, rx) = Ring::heap(receives);
        let (fill, driver_fill) = Ring::heap(receives);
        let bell = Arc::new(MemoryBell::default());
        let nic = MemoryNic::new(driver_tx, driver_completion, Arc::clone(&arena), Arc::clone(&bell));
        let chains = chained.map(|arena| Chains::new(arena, strategy.is_zero_copy(), XDP_CHAIN_DESCRIPTORS));
        let rings = (tx, completion, rx, fill);
        let raw = Self::build(config, &arena, Far::Memory(bell), rings, config.sends(), chains)?;
        Ok((raw, nic, driver_rx, driver_fill))
    }

    fn build(
        config: &XdpRawConfig,
        arena: &Arc<ExtentArena>,
        far: Far,
        (tx, completion, rx, mut fill): Rings,
        chunk: u32,
        chains: Option<Chains>,
    ) -> Result<Self, XdpError> {
        let headers = chains.is_some();
        let needed = [extents(config.receives()), extents(config.sends()) + u32::from(headers)];
        let mut incoming = Frames::take_from(arena, needed[0], false, CHUNK_BYTES);
        let outgoing = Frames::take_from(arena, needed[1], headers, CHUNK_BYTES);
        if outgoing.extents() < needed[1] {
            let (interface, found) = (config.interface.clone(), incoming.extents() + outgoing.extents());
            return Err(XdpError::NoReceiveFrames { interface, needed: needed[0] + needed[1], found });
        }
        while fill.free(1) > 0
            && let Some(frame) = incoming.take(FrameKind::Full)
        {
            fill.push(frame);
        }
        fill.publish();
        let config = config.clone();
        let (waiting, goes_on, looked) = (0, false, Instant(0));
        let chunk = chunk.max(1);
        Ok(Self {
            far,
            tx,
            completion,
            rx,
            fill,
            outgoing,
            incoming,
            chains,
            config,
            chunk,
            waiting,
            goes_on,
            looked,
            counters: XdpRawCounters::default(),
        })
    }

    /// Puts a copy of a frame into the ring. False: there is no room now. It leaves with the next [`flush`](Self::flush) at the latest.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn send(&mut self, frame: &[u8]) -> Result<bool, XdpError> {
        self.gather(frame, &[])
    }

    /// Does the same with a frame in pieces, which are joined at their destination.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn gather(&mut self, head: &[u8], body: &[&[u8]]) -> Result<bool, XdpError> {
        let bytes = body.iter().fold(head.len(), |bytes, piece| bytes + piece.len());
        if bytes == 0 || bytes > XDP_RAW_FRAME_BYTES {
            self.counters.unfit += 1;
            return Ok(true);
        }
        if !self.try_put(head, body) {
            self.push_out()?;
            if !self.try_put(head, body) {
                self.counters.refused += 1;
                return Ok(false);
            }
        }
        self.counters.sent += 1;
        self.waiting += 1;
        if self.waiting >= self.chunk {
            self.push_out()?;
        }
        Ok(true)
    }

    /// A frame that fits, as the device takes it. False: there is no room.
    fn try_put(&mut self, head: &[u8], body: &[&[u8]]) -> bool {
        self.put_chained(head, body).unwrap_or_else(|| {
            self.tx.free(1) > 0 && self.outgoing.free(FrameKind::Full) > 0 && self.put(head, body)
        })
    }

    /// A frame with payload that is sent from where it lies; false: there is no room. `None`: it has to be copied.
    fn put_chained(&mut self, head: &[u8], body: &[&[u8]]) -> Option<bool> {
        let chains = self.chains.as_mut()?;
        let chain = match chains.build(&mut self.outgoing, head, body) {
            Ok(chain) => chain,
            Err(Unchained::Full) => return Some(false),
            Err(Unchained::Unfit) => return None,
        };
        let count = chain.descriptors().len() as u32;
        if self.tx.free(count) < count {
            chains.undo(&mut self.outgoing, &chain);
            return Some(false);
        }
        for desc in chain.descriptors() {
            self.tx.push(*desc);
        }
        self.counters.chained += 1;
        Some(true)
    }

    /// Copies pieces that fit a frame.
    fn put(&mut self, head: &[u8], body: &[&[u8]]) -> bool {
        let Some(address) = self.outgoing.take(FrameKind::Full) else { return false };
        let Some(frame) = self.outgoing.bytes_mut(address) else { return false };
        let mut end = head.len();
        frame[..end].copy_from_slice(head);
        for piece in body {
            frame[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        self.tx.push(Desc { address, len: end as u32, more: false })
    }

    /// Makes the kernel send the ring's contents, while that makes progress. False: some of it is
    /// still there, call again. Now and then the kernel is asked whether the interface is still
    /// there: a device that only waits would not learn it otherwise, not even by poll.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn flush(&mut self, now: Instant) -> Result<bool, XdpError> {
        if now.ns_since(self.looked) >= RX_LOOK_NS {
            self.looked = now;
            self.check()?;
        }
        self.push_out()
    }

    fn push_out(&mut self) -> Result<bool, XdpError> {
        self.waiting = 0;
        self.tx.publish();
        self.collect();
        let mut pending = self.tx.pending();
        while pending > 0 && self.tx.needs_wakeup(true) {
            self.counters.wakeups += 1;
            if let Kick::Dead(errno) = self.far.kick() {
                return Err(self.gone(errno));
            }
            self.collect();
            let left = self.tx.pending();
            if left >= pending {
                return Ok(false);
            }
            pending = left;
        }
        Ok(true)
    }

    /// Takes back everything the device has finished with.
    fn collect(&mut self) {
        let Self { completion, outgoing, chains, counters, .. } = self;
        while let Some(address) = completion.pop() {
            let is_ours = match chains {
                Some(chains) => chains.complete(outgoing, address),
                None => outgoing.complete(address),
            };
            counters.stray_completions += u64::from(!is_ours);
        }
        completion.release();
        if let Some(chains) = chains {
            counters.held_extents = chains.held();
        }
    }

    /// Lends the next frame to `take`; false: there is none now.
    pub fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> bool {
        let Some(desc) = self.rx.pop() else { return false };
        self.show(desc, take);
        self.rx.release();
        self.fill.publish();
        // Only a driver that writes the frames itself ever waits for them.
        if let Far::Kernel(socket) = &self.far
            && socket.is_zero_copy()
            && self.fill.needs_wakeup(true)
        {
            socket.wake_receiver();
        }
        true
    }

    fn show(&mut self, desc: Desc, take: &mut dyn FnMut(&[u8])) {
        let is_piece = std::mem::replace(&mut self.goes_on, desc.more) || desc.more;
        let address = desc.address & ((1 << OFFSET_SHIFT) - 1);
        let start = (desc.address >> OFFSET_SHIFT) as usize;
        let Some(bytes) = self.incoming.bytes_mut(address) else {
            // Not a frame of ours, so there is none to give back.
            self.counters.malformed += 1;
            return;
        };
        match bytes.get(start..start.saturating_add(desc.len as usize)).filter(|_| !is_piece) {
            Some(frame) => {
                self.counters.received += 1;
                take(frame);
            }
            None => self.counters.malformed += 1,
        }
        // There is a place for each frame.
        self.fill.push(address);
    }

    fn check(&self) -> Result<(), XdpError> {
        let Far::Kernel(socket) = &self.far else { return Ok(()) };
        // An interface that was only taken down leaves no error: a send call reports it.
        let gone = socket.pending_error().or(match socket.kick() {
            Kick::Dead(errno) => Some(errno),
            Kick::Done | Kick::Again => None,
        });
        gone.map_or(Ok(()), |errno| Err(self.gone(errno)))
    }

    fn gone(&self, errno: i32) -> XdpError {
        let source = std::io::Error::from_raw_os_error(errno);
        XdpError::Gone { interface: self.config.interface.clone(), queue: self.config.queue, source }
    }

    /// How frames are handed over.
    pub fn strategy(&self) -> Strategy {
        self.config.strategy.unwrap_or(Strategy::Staging)
    }

    /// Returns its counters.
    pub fn counters(&self) -> &XdpRawCounters {
        &self.counters
    }

    /// The socket, for [`Steering::set_socket`](super::steer::Steering::set_socket) and to wait at: readable when a frame waits.
    /// `None` over memory.
    pub fn socket_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.far {
            Far::Kernel(socket) => Some(socket.as_fd()),
            Far::Memory(_) => None,
        }
    }
}

#[cfg(test)]
#[path = "raw_tests.rs"]
mod tests;

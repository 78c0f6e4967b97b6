//! Datagrams into rings: a frame for the header, or for the whole datagram, descriptors, the call
//! that makes the kernel look, and the completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use millrace_core::limits::{EXTENT_BYTES, RTP_HEADER_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::{ExtentArena, Lease};
use millrace_core::prefetch::{CACHE_LINE_BYTES, prefetch};
use millrace_core::seam::{SendOutcome, TransmitBatch};
use millrace_core::shape::DatagramShape;
use millrace_core::wire::checksum::{copy_sum16, sum16};
use millrace_core::wire::frame::Template;

use super::ring::{Consumer, Desc, Producer};
use super::socket::{Kick, XdpSocket};
use super::strategy::Strategy;
use super::umem::{CHUNK_BYTES, FrameKind, Frames, HeldLeases, address_of};

/// Datagrams between the one that is copied and the one whose payload is asked for: a hot copy takes some 40 ns, a cache
/// line from memory some 100.
const PREFETCH_DATAGRAMS: usize = 4;
/// A page, across whose end a device may not be able to read in one go.
const PAGE_BYTES: u64 = 4096;

millrace_core::counters! {
    /// Counts of an [`XdpTx`](super::XdpTx) since it was created.
    pub struct XdpCounters {
        /// Batches with at least one entry.
        sum batches,
        /// Entries.
        sum entries,
        /// Datagrams put into the ring.
        sum datagrams,
        /// Their bytes, without headers below RTP.
        sum bytes,
        /// Those of them whose payload was copied.
        sum staged,
        /// Those of them whose payload is sent from where it lies.
        sum chained,
        /// Calls that made the kernel look at the ring.
        sum wakeups,
        /// Entries answered `Blocked`: the ring or the frames were all in use.
        sum ring_full,
        /// Entries answered `Unreachable`: no way by this interface, or too long for it.
        sum unreachable,
        /// Descriptors that came back.
        sum completions,
        /// Addresses that came back though nothing was out there.
        sum stray_completions,
        /// Descriptors that the kernel refused as invalid, when last asked.
        sum invalid_descriptors,
        /// Extents under lease for the device now.
        gauge held_leases,
        /// Most of them at once.
        highest held_leases_max,
        /// Headers of streams built again.
        sum rows_built,
        /// Headers of streams changed in place because their next hop changed.
        sum rows_patched,
    }
}

/// The other end of rings in memory: its answer when it is woken up.
#[derive(Debug, Default)]
pub(super) struct MemoryBell {
    pub(super) rings: AtomicU64,
    /// `errno` of the next calls; 0 for none.
    pub(super) errno: AtomicI32,
}

/// The other end of the rings.
pub(super) enum Far {
    Kernel(Box<XdpSocket>),
    Memory(Arc<MemoryBell>),
}

impl Far {
    pub(super) fn kick(&self) -> Kick {
        match self {
            Self::Kernel(socket) => socket.kick(),
            Self::Memory(bell) => {
                bell.rings.fetch_add(1, Ordering::SeqCst);
                Kick::of(match bell.errno.load(Ordering::SeqCst) {
                    0 => Ok(()),
                    errno => Err(errno),
                })
            }
        }
    }
}

/// The rings, and their other end.
pub(super) struct Port {
    // In this order: the socket is closed before memory is given back.
    pub(super) far: Far,
    pub(super) tx: Producer<Desc>,
    pub(super) completion: Consumer<u64>,
}

/// One entry on its egress path.
pub(super) struct FrameJob<'a> {
    pub(super) template: &'a Template,
    pub(super) shape: DatagramShape<'a>,
    /// Whether the datagrams begin with an RTP header, which the stored sums do not cover.
    pub(super) is_rtp: bool,
    /// Stored sums of the payloads, and the extent that they lie in.
    pub(super) source: Option<(&'a [[u8; PacketMeta::BYTES]], &'a Lease)>,
}

impl<'a> FrameJob<'a> {
    /// RTP header, if it has one, and payload of a datagram.
    fn parts(&self, index: usize) -> (Option<&'a [u8; RTP_HEADER_BYTES]>, &'a [u8]) {
        let (header, bytes) = self.shape.datagram(index);
        match header {
            Some(header) => (header.first_chunk(), bytes),
            None if self.is_rtp => match bytes.split_first_chunk() {
                Some((header, payload)) => (Some(header), payload),
                None => (None, bytes),
            },
            None => (None, bytes),
        }
    }

    /// Sum of a datagram's payload that was stored with it.
    fn stored_sum(&self, index: usize) -> Option<u16> {
        let (metas, _) = self.source?;
        Some(PacketMeta::from_bytes(*metas.get(index)?).sum())
    }
}

/// Runs ahead of the copying through a batch and asks for the payloads to come.
pub(super) struct Ahead<'a> {
    batch: &'a dyn TransmitBatch,
    entry: usize,
    at: Option<(DatagramShape<'a>, usize)>,
    is_on: bool,
}

impl<'a> Ahead<'a> {
    pub(super) fn of(batch: &'a dyn TransmitBatch, strategy: Strategy) -> Self {
        // Payloads that are not copied are not prefetched either.
        let mut ahead = Self { batch, entry: 0, at: None, is_on: !strategy.is_chained() };
        (0..PREFETCH_DATAGRAMS).for_each(|_| ahead.step());
        ahead
    }

    fn step(&mut self) {
        if !self.is_on {
            return;
        }
        loop {
            if let Some((shape, index)) = self.at.as_mut().filter(|(shape, index)| *index < shape.datagrams())
            {
                shape.datagram(*index).1.chunks(CACHE_LINE_BYTES).for_each(prefetch);
                *index += 1;
                return;
            }
            if self.entry == self.batch.len() {
                self.is_on = false;
                return;
            }
            self.at =
                self.batch.shape(self.entry, self.batch.get(self.entry).payload).ok().map(|shape| (shape, 0));
            self.entry += 1;
        }
    }
}

/// What became of one datagram.
enum Put {
    Done,
    Full,
    TooLong,
}

/// Everything behind the rows.
pub(super) struct Output {
    // In this order: the socket is closed before memory is given back.
    port: Port,
    frames: Frames,
    held: HeldLeases,
    arena: Arc<ExtentArena>,
    strategy: Strategy,
    pub(super) counters: XdpCounters,
    /// Identification of IPv4 packets. They are never cut, so that any value will do (RFC 6864).
    ip_id: u16,
    /// Bytes of the arena that hold titles; frames come behind.
    film_bytes: u64,
    /// Whether payloads are cut at the ends of pages.
    cut_at_pages: bool,
    /// Datagrams after which the kernel is made to look.
    chunk: u32,
    /// Datagrams in the ring since it last was.
    waiting: u32,
    /// Descriptors put into the ring.
    pushed: u64,
    /// Why nothing goes out any more.
    dead: Option<i32>,
}

impl Output {
    pub(super) fn new(
        port: Port,
        frames: Frames,
        arena: &Arc<ExtentArena>,
        strategy: Strategy,
        chunk: u32,
        cut_at_pages: bool,
    ) -> Self {
        Self {
            port,
            frames,
            held: HeldLeases::new(arena),
            arena: Arc::clone(arena),
            strategy,
            counters: XdpCounters::default(),
            ip_id: 0,
            film_bytes: u64::from(arena.extents()) * EXTENT_BYTES as u64,
            cut_at_pages,
            chunk: chunk.max(1),
            waiting: 0,
            pushed: 0,
            dead: None,
        }
    }

    pub(super) fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Length of a frame that a whole datagram has to fit into if its payload is copied.
    pub(super) fn frame_bytes(&self) -> usize {
        self.frames.full_bytes()
    }

    /// The errno of the call that showed that the interface has gone.
    pub(super) fn dead(&self) -> Option<i32> {
        self.dead
    }

    /// Puts all datagrams of an entry into the ring, as far as there is room.
    pub(super) fn put_all(&mut self, job: &FrameJob<'_>, ahead: &mut Ahead<'_>) -> SendOutcome {
        let lease = match job.source {
            Some((_, lease)) if self.strategy.is_chained() && Arc::ptr_eq(lease.arena(), &self.arena) => {
                Some(lease)
            }
            _ => None,
        };
        for index in 0..job.shape.datagrams() {
            ahead.step();
            let put = match (lease, job.parts(index)) {
                (Some(lease), (Some(rtp), payload)) => self.chain(job, index, lease, rtp, payload),
                (_, (rtp, payload)) => self.stage(job, index, rtp, payload),
            };
            match put {
                Put::Done => {}
                Put::Full => {
                    self.counters.ring_full += 1;
                    return SendOutcome::Blocked { taken: index as u16 };
                }
                Put::TooLong => return SendOutcome::Unreachable { errno: libc::EMSGSIZE },
            }
            self.counters.datagrams += 1;
            self.counters.bytes += job.shape.datagram_bytes(index) as u64;
            self.waiting += 1;
            if self.waiting >= self.chunk {
                self.flush();
            }
        }
        SendOutcome::Sent
    }

    fn next_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// Header and payload into one frame.
    fn stage(
        &mut self,
        job: &FrameJob<'_>,
        index: usize,
        rtp: Option<&[u8; RTP_HEADER_BYTES]>,
        payload: &[u8],
    ) -> Put {
        let head = job.template.header_bytes() + rtp.map_or(0, |rtp| rtp.len());
        if head + payload.len() > self.frames.full_bytes() {
            return Put::TooLong;
        }
        if !self.has_room(1, FrameKind::Full) {
            return Put::Full;
        }
        let id = self.next_id();
        let Some(address) = self.frames.take(FrameKind::Full) else { return Put::Full };
        let Some(frame) = self.frames.bytes_mut(address) else { return Put::Full };
        let body = &mut frame[head..head + payload.len()];
        let sum = match job.stored_sum(index).filter(|_| rtp.is_some()) {
            Some(sum) => {
                body.copy_from_slice(payload);
                sum
            }
            None => copy_sum16(body, payload),
        };
        let written = match rtp {
            Some(rtp) => job.template.emit(frame, rtp, sum, payload.len(), id),
            None => job.template.emit_raw(frame, sum, payload.len(), id),
        };
        if written == 0 {
            self.frames.complete(address);
            return Put::TooLong;
        }
        self.push(Desc { address, len: (head + payload.len()) as u32, more: false });
        self.counters.staged += 1;
        Put::Done
    }

    /// The header into a frame, the payload from where it lies.
    fn chain(
        &mut self,
        job: &FrameJob<'_>,
        index: usize,
        lease: &Lease,
        rtp: &[u8; RTP_HEADER_BYTES],
        payload: &[u8],
    ) -> Put {
        let start = address_of(&self.arena, payload);
        let Some(start) = start.filter(|start| is_within(lease, *start, payload.len())) else {
            // Not where its lease is: nothing would keep it as it is.
            return self.stage(job, index, Some(rtp), payload);
        };
        let pieces = Pieces { at: start, left: payload.len() as u64, cut_at_pages: self.cut_at_pages };
        let count = pieces.clone().count() as u32;
        if !self.has_room(1 + count, FrameKind::Header) {
            return Put::Full;
        }
        let id = self.next_id();
        let Some(address) = self.frames.take(FrameKind::Header) else { return Put::Full };
        let Some(frame) = self.frames.bytes_mut(address) else { return Put::Full };
        let sum = job.stored_sum(index).unwrap_or_else(|| sum16(payload));
        let written = job.template.emit(frame, rtp, sum, payload.len(), id);
        if written == 0 {
            self.frames.complete(address);
            return Put::TooLong;
        }
        self.push(Desc { address, len: written as u32, more: count > 0 });
        for desc in pieces {
            self.push(desc);
        }
        if count > 0 {
            self.held.hold(lease, count);
            self.note_held();
        }
        self.counters.chained += 1;
        Put::Done
    }

    /// Room was made before.
    fn push(&mut self, desc: Desc) {
        self.pushed += u64::from(self.port.tx.push(desc));
    }

    /// Descriptors that have not come back.
    pub(super) fn in_flight(&self) -> u64 {
        self.pushed.saturating_sub(self.counters.completions)
    }

    fn note_held(&mut self) {
        self.counters.held_leases = self.held.now();
        self.counters.held_leases_max = self.counters.held_leases_max.max(self.held.now());
    }

    /// Whether there are `descriptors` places in the ring and a frame of this kind, if need be after the kernel has been
    /// made to look. Every round but the last has moved something.
    fn has_room(&mut self, descriptors: u32, kind: FrameKind) -> bool {
        loop {
            let free = self.port.tx.free(descriptors);
            if free >= descriptors && self.frames.free(kind) > 0 {
                return true;
            }
            let before = (self.port.tx.free(u32::MAX), self.counters.completions);
            self.flush();
            if self.dead.is_some() || before == (self.port.tx.free(u32::MAX), self.counters.completions) {
                return false;
            }
        }
    }

    /// Shows the ring's contents to the kernel, makes it look while that makes progress, and takes
    /// back everything it has finished with.
    pub(super) fn flush(&mut self) {
        self.waiting = 0;
        self.port.tx.publish();
        self.collect();
        let mut pending = self.port.tx.pending();
        while pending > 0 && self.dead.is_none() && self.port.tx.needs_wakeup(true) {
            self.counters.wakeups += 1;
            if let Kick::Dead(errno) = self.port.far.kick() {
                self.dead = Some(errno);
            }
            self.collect();
            let now = self.port.tx.pending();
            if now >= pending {
                break;
            }
            pending = now;
        }
    }

    /// Takes back everything the device has finished with.
    pub(super) fn collect(&mut self) {
        while let Some(address) = self.port.completion.pop() {
            let is_ours = if address < self.film_bytes {
                self.held.complete(address)
            } else {
                self.frames.complete(address)
            };
            self.counters.completions += 1;
            self.counters.stray_completions += u64::from(!is_ours);
        }
        self.port.completion.release();
        self.note_held();
    }

    /// Asks the kernel whether the interface is still there and which descriptors it has refused.
    pub(super) fn check(&mut self) {
        let Far::Kernel(socket) = &self.port.far else { return };
        // A driver that polls the ring by itself is not called for sending, and an interface that
        // was only taken down leaves no error: a call reports it.
        let gone = socket.pending_error().or(match socket.kick() {
            Kick::Dead(errno) => Some(errno),
            Kick::Done | Kick::Again => None,
        });
        if gone.is_some() {
            self.dead = self.dead.or(gone);
        } else if let Ok(statistics) = socket.statistics() {
            self.counters.invalid_descriptors = statistics.tx_invalid_descs;
        }
    }

    /// Returns every frame and every lease: the device is dead. Any data it still had queued is
    /// lost; if one of these pages is rewritten before the queue is gone, the datagram's checksum
    /// no longer holds.
    pub(super) fn give_back(&mut self) {
        self.frames.give_back();
        self.held.give_back();
        self.note_held();
    }
}

/// Whether a range of the arena lies in the extent of this lease.
fn is_within(lease: &Lease, start: u64, len: usize) -> bool {
    let first = u64::from(lease.extent()) * EXTENT_BYTES as u64;
    (first..=first + (EXTENT_BYTES - len.min(EXTENT_BYTES)) as u64).contains(&start)
}

/// A payload as descriptors: none longer than a chunk, and none across the end of a page if the device cannot.
#[derive(Clone)]
pub(super) struct Pieces {
    pub(super) at: u64,
    pub(super) left: u64,
    pub(super) cut_at_pages: bool,
}

impl Iterator for Pieces {
    type Item = Desc;

    fn next(&mut self) -> Option<Desc> {
        if self.left == 0 {
            return None;
        }
        let to_page = PAGE_BYTES - self.at % PAGE_BYTES;
        let longest = if self.cut_at_pages { to_page } else { CHUNK_BYTES as u64 };
        let len = self.left.min(longest);
        let desc = Desc { address: self.at, len: len as u32, more: len < self.left };
        self.at += len;
        self.left -= len;
        Some(desc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_payload_and_no_more(at in 0u64..100_000, left in 0u64..20_000, cut_at_pages: bool) {
            let pieces: Vec<Desc> = Pieces { at, left, cut_at_pages }.collect();
            let mut next = at;
            for (n, piece) in pieces.iter().enumerate() {
                prop_assert_eq!(piece.address, next);
                prop_assert!((1..=CHUNK_BYTES as u32).contains(&piece.len));
                prop_assert_eq!(piece.more, n + 1 < pieces.len());
                next += u64::from(piece.len);
                let last = next - 1;
                prop_assert!(!cut_at_pages || piece.address / PAGE_BYTES == last / PAGE_BYTES);
            }
            prop_assert_eq!(next, at + left);
        }
    }
}

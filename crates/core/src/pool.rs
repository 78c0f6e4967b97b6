//! The extent arena: the one copy of every title in memory, filled once and lent to many.
//!
//! An extent is always in one of three states, held in one atomic word:
//!
//! ```text
//!            fill()                publish()             lend(): leases + 1
//!   FREE ------------> FILLING ---------------> READY(n leases) <------------+
//!    ^                    | drop                  | reclaim(), only at n = 0 |
//!    +--------------------+-----------------------+        Lease::drop: - 1 -+
//! ```
//!
//! While one [`Fill`] writes an extent, nothing reads it; while any number of [`Lease`]s read it,
//! nothing writes it. The types enforce this rule, so the users of this module need no `unsafe`.
//!
//! An extent *grows* ([`Fill::grow`]) if some of its packets are read while others are still to
//! come: it is READY, with a mark that counts the readable packets. The mark only rises. A lease
//! covers the packets below the mark at the time the lease was taken, and the [`Growing`] writes
//! those above it, so no byte is both written and read. The [`Growing`] counts as a lease itself:
//! until it is dropped, the extent is not reclaimed.
#![allow(unsafe_code)]

mod recall;

use std::ptr::NonNull;
use std::sync::Arc;

use self::recall::OpenTitles;
pub use self::recall::Recall;
use crate::ids::TitleRef;
use crate::limits::{EXTENT_BYTES, TS_PACKET_BYTES};
use crate::packet::{PacketMeta, WireLayout};
use crate::sync::{Access, AtomicBool, AtomicU32, Ordering};

/// Memory for an arena: huge pages, ordinary pages, heap.
///
/// # Safety
/// `base()..base()+len()` must be one readable and writable allocation that stays put and that
/// nothing else accesses for as long as the value lives; `base()` must be aligned to 4096 bytes.
pub unsafe trait Region: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is no memory at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What kind of memory this is, for people: "2 MiB huge pages", "ordinary pages".
    fn describe(&self) -> &'static str;
    /// Replaces the pages of `len` bytes from `at` on (both multiples of 4096) by new ones; the content is lost. References to
    /// the old pages outside of this process, such as those of a connection, stay valid. `false` if this memory cannot do
    /// that; nothing has changed then.
    fn renew(&self, _at: usize, _len: usize) -> bool {
        false
    }
}

/// Zeroed heap memory: for tests and tools.
pub struct HeapRegion {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl HeapRegion {
    /// Allocates `extents` extents.
    pub fn new(extents: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(extents.max(1) * EXTENT_BYTES, 4096)
            .expect("an arena's size fits the address space");
        // SAFETY: the layout has a non-zero size (at least one extent).
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Self { base, layout }
    }
}

impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: `base` came from alloc_zeroed with this very layout and is freed once, here.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the memory is plain bytes owned by this value; access is governed by the arena's states.
unsafe impl Send for HeapRegion {}
// SAFETY: as above; the value itself has no interior mutability.
unsafe impl Sync for HeapRegion {}
// SAFETY: one zeroed allocation of `layout.size()` bytes aligned to 4096, private to this value.
unsafe impl Region for HeapRegion {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
    fn describe(&self) -> &'static str {
        "heap"
    }
}

const FREE: u32 = 0;
const FILLING: u32 = u32::MAX;
/// READY with n leases is stored as READY + n.
const READY: u32 = 1;
/// Mark of an extent that does not grow: its content gives the readable packets. No layout has
/// these bits.
const WHOLE: u32 = u32::MAX;

/// Mark of an extent that grows: its layout, and how many packets can be read.
fn mark(layout: WireLayout, packets: u32) -> u32 {
    u32::from(layout.bits()) << 16 | packets
}

/// A fixed number of extents of [`EXTENT_BYTES`] each, in one region of memory.
pub struct ExtentArena {
    /// The region's first byte: leases need it for every packet.
    base: NonNull<u8>,
    region: Box<dyn Region>,
    states: Box<[AtomicU32]>,
    /// The readable part of each extent: [`WHOLE`] or a [`mark`]. Written by the filler of the
    /// extent, and only in ascending order once it is lent.
    marks: Box<[AtomicU32]>,
    /// Extents whose pages may still be referenced when no lease is left ([`Lease::refer`]).
    referred: Box<[AtomicBool]>,
    /// Whether such references are allowed: the memory can take new pages, and no device has the present ones registered.
    renews: AtomicBool,
    /// For the model of [`crate::sync`]; else of no size.
    access: Box<[Access]>,
    /// Extents at the end that are not for titles.
    aside: u32,
    /// Titles whose extents can be fetched again.
    titles: OpenTitles,
}

// SAFETY: `base` points into `region`, which may be sent and shared; access to the memory is governed by the states.
unsafe impl Send for ExtentArena {}
// SAFETY: as above.
unsafe impl Sync for ExtentArena {}

impl ExtentArena {
    /// As many whole extents as `region` holds.
    pub fn new(region: Box<dyn Region>) -> Arc<Self> {
        Self::with_aside(region, 0)
    }

    /// Creates as many whole extents as `region` holds. The last `aside` of them are not for media:
    /// a device takes them with [`ExtentArena::fill`] for the frames that it builds, so that these
    /// lie in the same memory.
    pub fn with_aside(region: Box<dyn Region>, aside: u32) -> Arc<Self> {
        let extents = region.len() / EXTENT_BYTES;
        let states: Box<[_]> = (0..extents).map(|_| AtomicU32::new(FREE)).collect();
        let marks = states.iter().map(|_| AtomicU32::new(WHOLE)).collect();
        let access = states.iter().map(|_| Access::default()).collect();
        let referred = states.iter().map(|_| AtomicBool::new(false)).collect();
        // This attempt loses no data, because the memory is still empty.
        let renews = AtomicBool::new(extents > 0 && region.renew(0, EXTENT_BYTES));
        let aside = aside.min(states.len() as u32);
        Arc::new(Self {
            base: region.base(),
            region,
            states,
            marks,
            referred,
            renews,
            access,
            aside,
            titles: OpenTitles::new(),
        })
    }

    /// Number of extents for media: they come first.
    pub fn extents(&self) -> u32 {
        self.states.len() as u32 - self.aside
    }

    /// Extents that are not for titles.
    pub fn aside(&self) -> std::ops::Range<u32> {
        self.extents()..self.states.len() as u32
    }

    /// All the memory, to be registered with a device: first byte and length in bytes. Registered pages must not be
    /// replaced, so [`Lease::refer`] always refuses from here on.
    pub fn registered(&self) -> (NonNull<u8>, usize) {
        self.renews.store(false, Ordering::Relaxed);
        self.memory()
    }

    /// All the memory: first byte and length in bytes. Code that reads or writes it through this pointer keeps to the
    /// states, as leases and fills do.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.base, self.region.len())
    }

    /// What kind of memory it is.
    pub fn describe(&self) -> &'static str {
        self.region.describe()
    }

    #[inline]
    fn start(&self, extent: u32) -> *mut u8 {
        assert!((extent as usize) < self.states.len(), "extent {extent} of {}", self.states.len());
        // SAFETY: extent < states.len() = region.len() / EXTENT_BYTES, so the offset is inside the region.
        unsafe { self.base.as_ptr().add(extent as usize * EXTENT_BYTES) }
    }

    /// Takes a free extent for writing; `None` if it is not free, or if it can never be written to again because the system
    /// cannot replace its pages although they may still be referenced.
    pub fn fill(self: &Arc<Self>, extent: u32) -> Option<Fill> {
        let index = extent as usize;
        self.states.get(index)?.compare_exchange(FREE, FILLING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        if self.referred[index].load(Ordering::Relaxed) {
            let renews = self.renews.load(Ordering::Relaxed);
            if !(renews && self.region.renew(index * EXTENT_BYTES, EXTENT_BYTES)) {
                return None;
            }
            self.referred[index].store(false, Ordering::Relaxed);
        }
        Some(Fill { arena: Arc::clone(self), extent, ends_as: FREE, mark: WHOLE })
    }

    /// Lends a filled extent; `None` if it is free or being filled. For one that grows, lends the
    /// part readable now; `None` if there is none, or if its layout is not the one in `content`.
    pub fn lend(self: &Arc<Self>, extent: u32, content: ExtentContent) -> Option<Lease> {
        let state = self.states.get(extent as usize)?;
        state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |s| {
                (READY..FILLING - 1).contains(&s).then_some(s.wrapping_add(1))
            })
            .ok()?;
        let mut lease = Lease {
            arena: Arc::clone(self),
            extent,
            title: content.title,
            number: content.number,
            first_packet: content.first_packet,
            // No extent has room for more.
            packets: content.packets.min(u32::from(u16::MAX)) as u16,
            last_packet_bytes: content.last_packet_bytes,
            layout: content.layout,
            spare: content.spare,
            grows: false,
        };
        // Pairs with Growing::advance: the packets below the mark have been written.
        let mark = self.marks[extent as usize].load(Ordering::Acquire);
        if mark != WHOLE {
            lease.grows = true;
            lease.packets = lease.packets.min(mark as u16);
            if lease.packets == 0 || mark >> 16 != u32::from(content.layout.bits()) {
                return None;
            }
        }
        Some(lease)
    }

    /// Packets that can be read of an extent that grows; 0 of any other.
    pub fn grown(&self, extent: u32) -> u32 {
        match self.marks.get(extent as usize).map(|mark| mark.load(Ordering::Acquire)) {
            None | Some(WHOLE) => 0,
            Some(mark) => mark & u32::from(u16::MAX),
        }
    }

    /// Frees a filled extent without leases; `false` (and no change) if it has any, or is not
    /// filled.
    pub fn reclaim(&self, extent: u32) -> bool {
        self.states
            .get(extent as usize)
            .is_some_and(|s| s.compare_exchange(READY, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Leases out on an extent now.
    pub fn leases(&self, extent: u32) -> u32 {
        match self.states.get(extent as usize).map(|s| s.load(Ordering::Relaxed)) {
            None | Some(FREE | FILLING) => 0,
            Some(n) => n - READY,
        }
    }
}

/// The right to write one extent. Dropped without [`Fill::publish`], the extent is free again.
#[must_use = "an extent that is not published is free again"]
pub struct Fill {
    arena: Arc<ExtentArena>,
    extent: u32,
    /// State that the extent takes when this value goes.
    ends_as: u32,
    /// Mark that it takes together with this state.
    mark: u32,
}

impl Fill {
    /// Which extent of the arena.
    pub fn extent(&self) -> u32 {
        self.extent
    }

    /// All its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.part_mut(0, EXTENT_BYTES)
    }

    /// `len` bytes from byte `at` on, and no reference to the others: a device may be writing those.
    ///
    /// # Panics
    /// If the extent does not have them.
    pub fn part_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= EXTENT_BYTES && len <= EXTENT_BYTES - at, "bytes {at}+{len} of an extent");
        self.arena.access[self.extent as usize].write(0);
        // SAFETY: the state is FILLING, which only one Fill at a time holds and in which no Lease exists; the range was
        // just checked to be inside the extent and so inside the region, which is initialised (regions are zeroed or were
        // filled) and lives as long as the arena.
        unsafe { std::slice::from_raw_parts_mut(self.arena.start(self.extent).add(at), len) }
    }

    /// Makes the written bytes readable by leases.
    pub fn publish(mut self) {
        self.ends_as = READY;
    }

    /// Goes on to fill it packet by packet while it is read.
    pub fn grow(mut self, layout: WireLayout) -> Growing {
        // With one lease, which is the writer's.
        (self.ends_as, self.mark) = (READY + 1, mark(layout, 0));
        Growing { arena: Arc::clone(&self.arena), extent: self.extent, layout, packets: 0 }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        // No thread reads the mark before the state shows that the extent is readable.
        self.arena.marks[self.extent as usize].store(self.mark, Ordering::Relaxed);
        self.arena.states[self.extent as usize].store(self.ends_as, Ordering::Release);
    }
}

/// The right to add packets to one extent, which may be lent meanwhile: each lease covers the packets that could be read when it was taken.
/// Their records lie where those of a full extent lie. Dropped, the extent stays as it is and grows no more.
pub struct Growing {
    arena: Arc<ExtentArena>,
    extent: u32,
    layout: WireLayout,
    /// Those that can be read.
    packets: u32,
}

impl Growing {
    /// Which extent of the arena.
    pub fn extent(&self) -> u32 {
        self.extent
    }

    /// The slots of the packets that cannot be read yet, and their records.
    pub fn room(&mut self) -> (&mut [u8], &mut [[u8; PacketMeta::BYTES]]) {
        let all = self.layout.packets_per_extent();
        let left = (all - self.packets) as usize;
        let slots = self.packets as usize * self.layout.slot_bytes();
        let records = self.layout.meta_offset(self.packets, all);
        self.arena.access[self.extent as usize].write(self.packets as usize);
        let start = self.arena.start(self.extent);
        // SAFETY: a layout has room for the slots of `all` packets and behind them for their records, so the ranges lie inside the extent
        // and do not overlap. Until this value goes the state is READY with at least one lease, so no Fill exists. Leases read packets
        // below the mark, which is `packets`, at most; only this value raises it, and not while these borrows of it last.
        unsafe {
            (
                std::slice::from_raw_parts_mut(start.add(slots), left * self.layout.slot_bytes()),
                std::slice::from_raw_parts_mut(start.add(records).cast(), left),
            )
        }
    }

    /// Makes the first `packets` of the room readable, for leases taken from now on.
    pub fn advance(&mut self, packets: u32) {
        self.packets = self.layout.packets_per_extent().min(self.packets.saturating_add(packets));
        // Pairs with ExtentArena::lend.
        self.arena.marks[self.extent as usize].store(mark(self.layout, self.packets), Ordering::Release);
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.arena.states[self.extent as usize].fetch_sub(1, Ordering::Release);
    }
}

/// The content of an extent: the title, its packets in the extent, and their layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentContent {
    /// The title.
    pub title: TitleRef,
    /// Number of the extent in the title: packets `number * layout.packets_per_extent()` onwards.
    pub number: u32,
    /// First packet, counted from the title's start.
    pub first_packet: u32,
    /// Packets in here.
    pub packets: u32,
    /// Payload bytes of the last packet in here: shorter than the others only at the title's end.
    pub last_packet_bytes: u16,
    /// Where they lie.
    pub layout: WireLayout,
    /// How many packets of one codeword a viewer must be able to repair itself to make do with this
    /// extent; 0: it is whole. Missing packets are marked ([`PacketMeta::MISSING`]).
    pub spare: u8,
}

impl ExtentContent {
    /// [`Self::spare`] of an extent whose missing packets cannot be recovered at all: no viewer can
    /// be lent anything better.
    pub const DAMAGED: u8 = u8::MAX;

    /// Whether packets are missing that cannot be recovered at all.
    pub fn is_damaged(&self) -> bool {
        self.spare == Self::DAMAGED
    }
}

/// A filled extent, borrowed, or the readable part of one that grows. The bytes stay unchanged
/// until the last lease is dropped.
pub struct Lease {
    arena: Arc<ExtentArena>,
    extent: u32,
    // Its content, packed: an engine has two leases and a destination side by side in two cache
    // lines per stream.
    title: TitleRef,
    number: u32,
    first_packet: u32,
    packets: u16,
    last_packet_bytes: u16,
    layout: WireLayout,
    spare: u8,
    /// Of an extent that grows.
    grows: bool,
}

const _: () = {
    assert!(size_of::<Lease>() == 32);
    assert!(EXTENT_BYTES / TS_PACKET_BYTES <= u16::MAX as usize);
};

impl std::fmt::Debug for ExtentArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtentArena").field("extents", &self.extents()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("extent", &self.extent).field("content", &self.content()).finish()
    }
}

impl Lease {
    /// Returns its content.
    #[inline]
    pub fn content(&self) -> ExtentContent {
        ExtentContent {
            title: self.title,
            number: self.number,
            first_packet: self.first_packet,
            packets: u32::from(self.packets),
            last_packet_bytes: self.last_packet_bytes,
            layout: self.layout,
            spare: self.spare,
        }
    }

    /// Which extent of the arena.
    pub fn extent(&self) -> u32 {
        self.extent
    }

    /// Asks for permission to keep references to the extent's pages beyond this lease, as the kernel does for a connection.
    /// With permission the pages do not change as long as they are referenced: the extent gets others before its next fill.
    pub fn refer(&self) -> bool {
        let may = !self.grows && self.arena.renews.load(Ordering::Relaxed);
        if may && !self.arena.referred[self.extent as usize].load(Ordering::Relaxed) {
            // Visible to the next fill, which happens after the release of this lease.
            self.arena.referred[self.extent as usize].store(true, Ordering::Relaxed);
        }
        may
    }

    /// Whether it is of an extent that grows, or grew.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// Whether the extent grows and is not full: another lease may cover more.
    pub fn is_partial(&self) -> bool {
        self.grows && u32::from(self.packets) < self.layout.packets_per_extent()
    }

    /// All bytes of the extent; of one that grows, those of the packets.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let packets = usize::from(self.packets);
        let len = if self.grows { packets * self.layout.slot_bytes() } else { EXTENT_BYTES };
        self.part(0, len)
    }

    /// `len` bytes from `at` on. Of an extent that grows: of its packets or of their records.
    #[inline]
    fn part(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= EXTENT_BYTES && len <= EXTENT_BYTES - at, "bytes {at}+{len} of an extent");
        self.arena.access[self.extent as usize].read(if self.grows {
            self.packets.into()
        } else {
            usize::MAX
        });
        // SAFETY: while this lease lives the state is READY + n with n >= 1, so no Fill exists. A Growing writes no packet below the mark
        // and no record of one, and the mark was `packets` or more when the lease was taken. The range lies inside the extent.
        unsafe { std::slice::from_raw_parts(self.arena.start(self.extent).add(at), len) }
    }

    /// `count` datagrams (RTP header + payload) from packet `place` of this extent on, contiguous; the last is shorter
    /// if it is the title's short last packet.
    ///
    /// # Panics
    /// If the extent does not hold these packets.
    #[inline]
    pub fn wire(&self, place: u32, count: u32) -> &[u8] {
        let c = self.content();
        assert!(place + count <= c.packets, "packets {place}+{count} of {}", c.packets);
        let slot = c.layout.slot_bytes();
        let mut end = (place + count) as usize * slot;
        if place + count == c.packets {
            end -= c.layout.packet_bytes() - usize::from(c.last_packet_bytes);
        }
        &self.bytes()[place as usize * slot..end]
    }

    /// The arena that the extent is of.
    pub fn arena(&self) -> &Arc<ExtentArena> {
        &self.arena
    }

    /// Metadata of `count` packets from packet `place` of this extent on ([`PacketMeta::from_bytes`]).
    ///
    /// # Panics
    /// If the extent does not hold these packets.
    #[inline]
    pub fn metas(&self, place: u32, count: u32) -> &[[u8; PacketMeta::BYTES]] {
        let c = self.content();
        assert!(count <= c.packets && place <= c.packets - count, "packets {place}+{count} of {}", c.packets);
        let all = if self.grows { c.layout.packets_per_extent() } else { c.packets };
        self.part(c.layout.meta_offset(place, all), count as usize * PacketMeta::BYTES).as_chunks().0
    }

    /// Metadata of packet `place` of this extent.
    ///
    /// # Panics
    /// If the extent does not hold that packet.
    #[inline]
    pub fn meta(&self, place: u32) -> PacketMeta {
        PacketMeta::from_bytes(self.metas(place, 1)[0])
    }
}

impl Clone for Lease {
    /// Another lease on the same extent.
    fn clone(&self) -> Self {
        self.arena.lend(self.extent, self.content()).expect("an extent under lease can be lent again")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.arena.states[self.extent as usize].fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;

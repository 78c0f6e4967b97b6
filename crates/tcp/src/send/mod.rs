//! The send queue: descriptors of ranges of leased extents, of areas of an application and of host
//! pages. There is no socket buffer: a segment points into the memory that the descriptors name,
//! and so does a retransmission.
//!
//! ```text
//! Queue (24 bytes in the connection)      Store (shared by all connections)
//!   head ---------------------> descriptor -> descriptor -> descriptor      each: bytes, how many frames the device holds
//!   first, end: sequence numbers   |              |              |
//!                               extent         host page      extent
//! ```
//!
//! A descriptor goes when its bytes are acknowledged and the device has given back every frame that
//! points into it. One whose connection makes no progress gives its lease back earlier and keeps
//! the description of the extent's content: [`Cutting::Wanted`] requests it again.
//!
//! | file | holds |
//! | --- | --- |
//! | `grid` | where a segment ends, and its sum |
//! | `host` | pages for data that the application wrote itself |
//! | `area` | ranges of memory that the application writes to |

mod area;
mod grid;
mod host;

use millrace_core::limits::{FRAME_PREFIX_BYTES, RTP_HEADER_BYTES};
use millrace_core::pool::{ExtentContent, Lease, Recall};
use millrace_core::prefetch::prefetch_all;

use crate::limits::HOST_PAGE_BYTES;
use crate::seq::Seq;

pub use self::area::Area;
use self::area::Areas;
use self::grid::Geometry;
pub use self::grid::{Cutting, Payload, SegmentPayload};
use self::host::HostPages;

/// Longest head of [`Store::append_framed`]: the prefix of an interleaved frame and an RTP header.
pub const HEAD_BYTES: usize = FRAME_PREFIX_BYTES + RTP_HEADER_BYTES;

/// Stands for no descriptor.
pub(crate) const NONE: u32 = u32::MAX;

/// What of a packet's slot is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPart {
    /// The payload, without the bytes before it in the slot.
    Payloads,
    /// The whole slot: RTP header and payload.
    Frames,
}

/// Which bytes of an extent are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRange {
    /// Packet in the extent that the first byte is of.
    pub place: u32,
    /// Bytes of this packet before it.
    pub skip: u32,
    /// How many.
    pub bytes: u32,
    /// What of each packet.
    pub part: SlotPart,
}

impl ExtentRange {
    /// Whether `lease` has all of it.
    pub fn is_in(&self, lease: &Lease) -> bool {
        Geometry::new(&lease.content(), self.part).has(lease, self)
    }
}

/// Why something was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// No descriptor or no host page is free: try again when something was acknowledged.
    Full,
    /// The range is not in the lease, or packets of it are missing there.
    Unfit,
}

impl std::fmt::Display for QueueRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full => {
                "the send queue has no descriptor or page left; try again when data was acknowledged"
            }
            Self::Unfit => {
                "the range lies outside the leased extent or has missing packets; lease the extent again"
            }
        })
    }
}

impl std::error::Error for QueueRefusal {}

/// A lease, or the description of its content and the means to get it again.
#[derive(Debug)]
enum HeldContent {
    Lease(Lease),
    Recall(Recall),
}

#[derive(Debug)]
enum DescriptorSource {
    Free,
    Extent {
        held: HeldContent,
        place: u32,
        skip: u32,
        part: SlotPart,
    },
    Host {
        page: u32,
        at: u32,
    },
    /// Bytes of an area from `at` on.
    Area {
        area: u16,
        at: u32,
    },
    /// A few bytes before a range, in the descriptor itself.
    Head([u8; HEAD_BYTES]),
}

#[derive(Debug)]
struct Descriptor {
    source: DescriptorSource,
    next: u32,
    bytes: u32,
    /// Frames with its bytes that the device has not given back.
    in_device: u32,
    /// Its bytes are acknowledged or given up: it goes with the last frame.
    is_done: bool,
    /// Its lease goes back with the last frame.
    is_unpinned: bool,
    /// Its extent was asked for.
    is_wanted: bool,
    /// Its lease is not given back before it is done with: another could not be supplied.
    is_held: bool,
}

const _: () = assert!(size_of::<Descriptor>() <= 80);

/// One connection's queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    head: u32,
    tail: u32,
    /// Sequence number of the first byte of `head`.
    first: Seq,
    /// One behind the last byte.
    end: Seq,
    /// The furthest descriptor that was sent from, and its first sequence number: new data is found without walking.
    hint: u32,
    hint_first: Seq,
}

impl Queue {
    /// Nothing queued; the first byte will be `first`.
    pub const fn new(first: Seq) -> Self {
        Self { head: NONE, tail: NONE, first, end: first, hint: NONE, hint_first: first }
    }

    /// One behind the last queued byte.
    #[inline]
    pub const fn end(&self) -> Seq {
        self.end
    }

    /// Whether everything that was queued is gone.
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// Descriptors that the device holds a frame of: to be handed back when it has given the frame back ([`Store::returned`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    first: u32,
    descriptors: u8,
}

/// All descriptors and host pages.
pub struct Store {
    descriptors: Box<[Descriptor]>,
    /// First free one; they are linked by `next`.
    free: u32,
    used: u32,
    leases: u32,
    host: HostPages,
    areas: Areas,
}

impl Store {
    /// Returns the bytes of a store with `descriptors` descriptors and `host_pages` pages.
    pub const fn bytes(descriptors: u32, host_pages: u32) -> usize {
        descriptors as usize * size_of::<Descriptor>() + HostPages::bytes(host_pages)
    }

    /// Room for `descriptors` descriptors and `host_pages` pages of [`crate::limits::HOST_PAGE_BYTES`].
    pub fn new(descriptors: u32, host_pages: u32) -> Self {
        let empty = |index| Descriptor {
            source: DescriptorSource::Free,
            next: if index + 1 == descriptors { NONE } else { index + 1 },
            bytes: 0,
            in_device: 0,
            is_done: false,
            is_unpinned: false,
            is_wanted: false,
            is_held: false,
        };
        Self {
            descriptors: (0..descriptors).map(empty).collect(),
            free: if descriptors == 0 { NONE } else { 0 },
            used: 0,
            leases: 0,
            host: HostPages::new(host_pages),
            areas: Areas::default(),
        }
    }

    /// Descriptors in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Descriptors that are free.
    pub fn free_descriptors(&self) -> u32 {
        self.descriptors.len() as u32 - self.used
    }

    /// Leases held.
    pub fn leases(&self) -> u32 {
        self.leases
    }

    /// Host pages that are free.
    pub fn free_host_pages(&self) -> u32 {
        self.host.free()
    }

    /// Host pages in use.
    pub fn host_pages(&self) -> u32 {
        self.host.used()
    }

    /// Queues a range of `lease`.
    ///
    /// # Errors
    /// Why not, and the lease back.
    pub fn append_extent(
        &mut self,
        queue: &mut Queue,
        lease: Lease,
        range: ExtentRange,
    ) -> Result<(), (QueueRefusal, Lease)> {
        if !range.is_in(&lease) {
            return Err((QueueRefusal::Unfit, lease));
        }
        let ExtentRange { place, skip, part, bytes } = range;
        let Some(index) = self.take() else { return Err((QueueRefusal::Full, lease)) };
        self.leases += 1;
        self.descriptors[index as usize].source =
            DescriptorSource::Extent { held: HeldContent::Lease(lease), place, skip, part };
        self.append(queue, index, bytes);
        Ok(())
    }

    /// The same with a lease that stays until its bytes are acknowledged, however long that takes.
    ///
    /// # Errors
    /// As [`Store::append_extent`].
    pub fn append_held(
        &mut self,
        queue: &mut Queue,
        lease: Lease,
        range: ExtentRange,
    ) -> Result<(), (QueueRefusal, Lease)> {
        self.append_extent(queue, lease, range)?;
        self.descriptors[queue.tail as usize].is_held = true;
        Ok(())
    }

    /// Queues `head` and a range of `lease` behind it: both or nothing. The head is kept in a descriptor, and takes no page.
    ///
    /// # Errors
    /// Why not, and the lease back. A head longer than [`HEAD_BYTES`], or none, is [`QueueRefusal::Unfit`].
    pub fn append_framed(
        &mut self,
        queue: &mut Queue,
        head: &[u8],
        lease: Lease,
        range: ExtentRange,
    ) -> Result<(), (QueueRefusal, Lease)> {
        let mut bytes = [0; HEAD_BYTES];
        match bytes.get_mut(..head.len()) {
            Some(part) if !head.is_empty() => part.copy_from_slice(head),
            _ => return Err((QueueRefusal::Unfit, lease)),
        }
        if !range.is_in(&lease) {
            return Err((QueueRefusal::Unfit, lease));
        }
        if self.free_descriptors() < 2 {
            return Err((QueueRefusal::Full, lease));
        }
        if let Some(index) = self.take() {
            self.descriptors[index as usize].source = DescriptorSource::Head(bytes);
            self.append(queue, index, head.len() as u32);
        }
        self.append_extent(queue, lease, range)
    }

    /// Copies all of `parts` into host pages and queues them, one behind the other, or nothing. `false`: there is no room.
    pub fn append_whole(&mut self, queue: &mut Queue, parts: &[&[u8]]) -> bool {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let pages = bytes.div_ceil(HOST_PAGE_BYTES) as u32;
        if self.free_descriptors() < pages || self.host.free() < pages {
            return false;
        }
        let taken: usize = parts.iter().map(|part| self.append_bytes(queue, part)).sum();
        debug_assert_eq!(taken, bytes, "there was room for all of it");
        true
    }

    /// Copies as much of `bytes` into host pages as there is room for, and queues it; how much that was.
    pub fn append_bytes(&mut self, queue: &mut Queue, bytes: &[u8]) -> usize {
        self.append_from(queue, bytes.len(), &mut |at, room| {
            room.copy_from_slice(&bytes[at..at + room.len()]);
        })
    }

    /// Does the same with bytes that are elsewhere: `fill` copies those from `at` on to the room
    /// passed to it, and the whole room is queued. There are `most` bytes.
    pub fn append_from(
        &mut self,
        queue: &mut Queue,
        most: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> usize {
        let mut done = 0;
        loop {
            done += self.extend_tail(queue, most - done, &mut |room| fill(done, room));
            if done == most {
                break;
            }
            let Some(page) = self.host.take() else { break };
            let Some(index) = self.take() else {
                self.host.give_back(page);
                break;
            };
            self.descriptors[index as usize].source = DescriptorSource::Host { page, at: 0 };
            self.append(queue, index, 0);
        }
        done
    }

    /// Puts as much as fits into the rest of the page of the last descriptor, if it has one.
    fn extend_tail(&mut self, queue: &mut Queue, most: usize, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        let Some(tail) = self.descriptors.get_mut(queue.tail as usize) else { return 0 };
        let DescriptorSource::Host { page, at } = tail.source else { return 0 };
        let room = self.host.room(page, (at + tail.bytes) as usize, most);
        let bytes = room.len();
        if bytes > 0 {
            fill(room);
        }
        tail.bytes += bytes as u32;
        queue.end += bytes as u32;
        bytes
    }

    fn take(&mut self) -> Option<u32> {
        let index = self.free;
        let descriptor = self.descriptors.get_mut(index as usize)?;
        self.free = descriptor.next;
        self.used += 1;
        (descriptor.next, descriptor.in_device) = (NONE, 0);
        (descriptor.is_done, descriptor.is_unpinned) = (false, false);
        (descriptor.is_wanted, descriptor.is_held) = (false, false);
        Some(index)
    }

    fn append(&mut self, queue: &mut Queue, index: u32, bytes: u32) {
        self.descriptors[index as usize].bytes = bytes;
        match queue.tail {
            NONE => queue.head = index,
            tail => self.descriptors[tail as usize].next = index,
        }
        if queue.hint == NONE {
            (queue.hint, queue.hint_first) = (index, queue.end);
        }
        queue.tail = index;
        queue.end += bytes;
    }

    /// Everything before `una` is acknowledged: what of it the device does not hold goes.
    pub fn acked(&mut self, queue: &mut Queue, una: Seq) {
        while queue.head != NONE {
            let index = queue.head;
            let descriptor = &self.descriptors[index as usize];
            let end = queue.first + descriptor.bytes;
            if end.after(una) {
                break;
            }
            let next = descriptor.next;
            if queue.hint == index {
                (queue.hint, queue.hint_first) = (next, end);
            }
            (queue.head, queue.first) = (next, end);
            self.done(index);
        }
        if queue.head == NONE {
            queue.tail = NONE;
        }
    }

    /// Asks for the descriptor that an acknowledgment reads first.
    #[inline]
    pub(crate) fn fetch(&self, queue: &Queue) {
        if let Some(descriptor) = self.descriptors.get(queue.head as usize) {
            prefetch_all(descriptor);
        }
    }

    /// Nothing of the queue will be sent again.
    pub fn clear(&mut self, queue: &mut Queue) {
        self.acked(queue, queue.end);
    }

    fn done(&mut self, index: u32) {
        let descriptor = &mut self.descriptors[index as usize];
        descriptor.is_done = true;
        if descriptor.in_device == 0 {
            self.release(index);
        }
    }

    fn release(&mut self, index: u32) {
        let descriptor = &mut self.descriptors[index as usize];
        match std::mem::replace(&mut descriptor.source, DescriptorSource::Free) {
            DescriptorSource::Extent { held: HeldContent::Lease(_), .. } => self.leases -= 1,
            DescriptorSource::Host { page, .. } => self.host.give_back(page),
            DescriptorSource::Area { area, .. } => self.areas.shares.give(area::group(area)),
            DescriptorSource::Extent { .. } | DescriptorSource::Head(_) | DescriptorSource::Free => {}
        }
        descriptor.next = self.free;
        self.free = index;
        self.used -= 1;
    }

    /// Takes note that the device has a frame that points into `cut`.
    pub fn handed(&mut self, cut: &SegmentPayload) -> Handed {
        let mut index = cut.first();
        for _ in 0..cut.descriptors() {
            let descriptor = &mut self.descriptors[index as usize];
            descriptor.in_device += 1;
            index = descriptor.next;
        }
        Handed { first: cut.first(), descriptors: cut.descriptors() }
    }

    /// The device has given that frame back.
    pub fn returned(&mut self, handed: Handed) {
        let mut index = handed.first;
        for _ in 0..handed.descriptors {
            let Some(descriptor) = self.descriptors.get_mut(index as usize) else { return };
            let next = descriptor.next;
            descriptor.in_device = descriptor.in_device.saturating_sub(1);
            if descriptor.in_device == 0 {
                match (descriptor.is_done, descriptor.is_unpinned) {
                    (true, _) => self.release(index),
                    (false, true) => self.drop_lease(index),
                    (false, false) => {}
                }
            }
            index = next;
        }
    }

    fn drop_lease(&mut self, index: u32) {
        let DescriptorSource::Extent { held, .. } = &mut self.descriptors[index as usize].source else {
            return;
        };
        // Without the title its data could not be leased again: then the extent stays here.
        if let HeldContent::Lease(lease) = held
            && let Some(recall) = lease.recall()
        {
            *held = HeldContent::Recall(recall);
            self.leases -= 1;
        }
    }

    /// Gives every lease of the queue back, those of frames in the device as soon as it has given
    /// them back, except those of titles that are closed. Queued data stays. Returns whether there
    /// was one.
    pub fn unpin(&mut self, queue: &Queue) -> bool {
        let before = self.leases;
        let mut is_pinned = false;
        let mut index = queue.head;
        while let Some(descriptor) = self.descriptors.get_mut(index as usize) {
            let next = descriptor.next;
            if !descriptor.is_held {
                descriptor.is_unpinned = true;
                is_pinned |= descriptor.in_device > 0;
                if descriptor.in_device == 0 {
                    self.drop_lease(index);
                }
            }
            index = next;
        }
        is_pinned || self.leases < before
    }

    /// There is progress again: leases stay until their bytes are acknowledged.
    pub fn keep(&mut self, queue: &Queue) {
        let mut index = queue.head;
        while let Some(descriptor) = self.descriptors.get_mut(index as usize) {
            descriptor.is_unpinned = false;
            index = descriptor.next;
        }
    }

    /// Returns the content of a descriptor's extent, if the extent is not there and was not
    /// requested. It counts as requested from now on.
    pub(crate) fn want(&mut self, index: u32) -> Option<ExtentContent> {
        let descriptor = self.descriptors.get_mut(index as usize)?;
        let DescriptorSource::Extent { held: HeldContent::Recall(recall), .. } = &descriptor.source else {
            return None;
        };
        (!std::mem::replace(&mut descriptor.is_wanted, true)).then(|| recall.content())
    }

    /// An extent that was asked for: every descriptor of the queue that wants its content and can have it gets a lease.
    /// How many did. With `is_unpinned` it goes back with the next frame that the device returns.
    pub fn supply(&mut self, queue: &Queue, lease: &Lease, is_unpinned: bool) -> u32 {
        let (mut index, mut count) = (queue.head, 0);
        let new = lease.content();
        while let Some(descriptor) = self.descriptors.get_mut(index as usize) {
            if let DescriptorSource::Extent { held, .. } = &mut descriptor.source
                && let HeldContent::Recall(recall) = held
                && let old = recall.content()
                && (new.title, new.number, new.first_packet, new.layout)
                    == (old.title, old.number, old.first_packet, old.layout)
                && new.packets >= old.packets
                && new.spare == 0
            {
                *held = HeldContent::Lease(lease.clone());
                (descriptor.is_unpinned, descriptor.is_wanted) = (is_unpinned, false);
                self.leases += 1;
                count += 1;
            }
            index = descriptor.next;
        }
        count
    }
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;

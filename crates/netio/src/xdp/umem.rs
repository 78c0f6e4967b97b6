//! The memory that a socket may send from: the whole arena, registered once, and the frames in its extents aside.
//!
//! Chunks are unaligned and 4096 bytes long: a descriptor may begin anywhere and be up to that long. No extent, hence no
//! payload, lies across the end of a huge page, and no frame across that of an ordinary one.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, Fill, Lease};
use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

/// Longest descriptor: the largest chunk that the kernel takes, whatever the size of pages.
pub const CHUNK_BYTES: usize = 4096;
/// A huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Registers all of the arena's memory with an AF_XDP socket. The kernel keeps the pages until the socket is gone; the owner
/// of the socket keeps the arena.
///
/// # Errors
/// The kernel's error: `ENOBUFS` or `ENOMEM` if the memory may not be locked.
pub fn register(socket: impl AsFd, arena: &ExtentArena) -> io::Result<()> {
    let (base, bytes) = arena.registered();
    let form = XdpUmemReg {
        addr: base.as_ptr() as u64,
        len: bytes as u64,
        chunk_size: CHUNK_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
        tx_metadata_len: 0,
    };
    Ok(set_xdp_umem_reg(socket, form)?)
}

/// Where `bytes` lie in the arena; `None` if they lie elsewhere.
pub fn address_of(arena: &ExtentArena, bytes: &[u8]) -> Option<u64> {
    let (base, len) = arena.memory();
    let offset = (bytes.as_ptr() as usize).checked_sub(base.as_ptr() as usize)?;
    (offset.checked_add(bytes.len())? <= len).then_some(offset as u64)
}

/// Whether the arena lies on huge pages that the system has reserved, so that a range within one is contiguous.
pub fn is_on_huge_pages(arena: &ExtentArena) -> bool {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    page_bytes(&text, arena.memory().0.as_ptr() as u64).is_some_and(|bytes| bytes >= HUGE_PAGE_BYTES)
}

/// The page size of the mapping that holds `address`, from the text of `smaps`.
fn page_bytes(smaps: &str, address: u64) -> Option<u64> {
    let mut is_inside = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        if let Some((start, end)) = first.split_once('-') {
            let bounds = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            is_inside = (bounds.0..bounds.1).contains(&address);
        } else if is_inside && first == "KernelPageSize:" {
            return words.next()?.parse::<u64>().ok()?.checked_mul(1024);
        }
    }
    None
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A header alone: [`HEADER_FRAME_BYTES`].
    Header,
    /// A whole datagram with its headers.
    Full,
}

/// Length of a frame for a header: two cache lines, the longest header has 78 bytes.
pub const HEADER_FRAME_BYTES: usize = 128;

/// One of the two sizes of frames: which are free, and which are in the device's hands.
#[derive(Debug, Default)]
struct Stack {
    /// Addresses of free frames. The one that came back last goes out first: it is most likely still in the cache.
    free: Vec<u64>,
    /// Their length is two to the power of this.
    shift: u32,
}

impl Stack {
    fn bytes(&self) -> usize {
        1 << self.shift
    }
}

/// Frames to build headers and datagrams in. A frame that was taken is the device's until its completion.
#[derive(Debug)]
pub struct Frames {
    fills: Vec<FrameExtent>,
    /// For each extent aside: which of `fills` it is.
    places: Box<[Option<u16>]>,
    first_aside: u32,
    headers: Stack,
    full: Stack,
}

/// An extent of frames.
struct FrameExtent {
    fill: Fill,
    kind: FrameKind,
    /// For each frame in it, whether it is taken.
    taken: Box<[bool]>,
}

impl std::fmt::Debug for FrameExtent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("extent", &self.fill.extent()).field("kind", &self.kind).finish()
    }
}

impl Frames {
    /// Takes up to `extents` of the extents that `arena` has aside and that are free: one of them for headers if
    /// `headers`, the others for full frames of `full_bytes` (a power of two, at most [`CHUNK_BYTES`]).
    pub fn take_from(arena: &Arc<ExtentArena>, extents: u32, headers: bool, full_bytes: usize) -> Self {
        let full_bytes = full_bytes.next_power_of_two().clamp(HEADER_FRAME_BYTES, CHUNK_BYTES);
        let stack = |bytes: usize| Stack { free: Vec::new(), shift: bytes.trailing_zeros() };
        let mut frames = Self {
            fills: Vec::new(),
            places: vec![None; arena.aside().len()].into(),
            first_aside: arena.aside().start,
            headers: stack(HEADER_FRAME_BYTES),
            full: stack(full_bytes),
        };
        for fill in arena.aside().filter_map(|extent| arena.fill(extent)).take(extents as usize) {
            let is_first = frames.fills.is_empty();
            frames.add(fill, if headers && is_first { FrameKind::Header } else { FrameKind::Full });
        }
        frames
    }

    fn add(&mut self, fill: Fill, kind: FrameKind) {
        let start = u64::from(fill.extent()) * EXTENT_BYTES as u64;
        let place = fill.extent() - self.first_aside;
        self.places[place as usize] = Some(self.fills.len() as u16);
        let stack = self.stack(kind);
        let (bytes, count) = (stack.bytes(), EXTENT_BYTES >> stack.shift);
        // The lowest address is at the end, so that it goes out first.
        stack.free.extend((0..count).rev().map(|n| start + (n * bytes) as u64));
        self.fills.push(FrameExtent { fill, kind, taken: vec![false; count].into() });
    }

    fn stack(&mut self, kind: FrameKind) -> &mut Stack {
        match kind {
            FrameKind::Header => &mut self.headers,
            FrameKind::Full => &mut self.full,
        }
    }

    /// Extents in use.
    pub fn extents(&self) -> u32 {
        self.fills.len() as u32
    }

    /// Frames of a kind that are free.
    pub fn free(&self, kind: FrameKind) -> usize {
        match kind {
            FrameKind::Header => self.headers.free.len(),
            FrameKind::Full => self.full.free.len(),
        }
    }

    /// Length of a full frame.
    pub fn full_bytes(&self) -> usize {
        self.full.bytes()
    }

    /// The extent of a frame, and the frame's number and length in it.
    fn find(&mut self, address: u64) -> Option<(&mut FrameExtent, usize, usize)> {
        let extent = u32::try_from(address / EXTENT_BYTES as u64).ok()?;
        let place = extent.checked_sub(self.first_aside)?;
        let index = (*self.places.get(place as usize)?)?;
        let held = self.fills.get_mut(usize::from(index))?;
        let shift = match held.kind {
            FrameKind::Header => self.headers.shift,
            FrameKind::Full => self.full.shift,
        };
        let (offset, bytes) = ((address % EXTENT_BYTES as u64) as usize, 1 << shift);
        (offset & (bytes - 1) == 0).then_some((held, offset >> shift, bytes))
    }

    /// Takes a frame; its address.
    pub fn take(&mut self, kind: FrameKind) -> Option<u64> {
        let address = self.stack(kind).free.pop()?;
        let (held, number, _) = self.find(address)?;
        held.taken[number] = true;
        Some(address)
    }

    /// The bytes of a frame that was taken and that the device does not have: not yet, or not any more.
    pub fn bytes_mut(&mut self, address: u64) -> Option<&mut [u8]> {
        let (held, number, bytes) = self.find(address)?;
        Some(held.fill.part_mut(number * bytes, bytes))
    }

    /// The device is done with a frame; `false` if it had none at this address.
    pub fn complete(&mut self, address: u64) -> bool {
        let Some((held, number, _)) = self.find(address) else { return false };
        if !std::mem::take(&mut held.taken[number]) {
            return false;
        }
        let kind = held.kind;
        self.stack(kind).free.push(address);
        true
    }

    /// Gives all extents back to the arena.
    pub fn give_back(&mut self) {
        self.headers.free.clear();
        self.full.free.clear();
        self.places.fill(None);
        self.fills.clear();
    }
}

/// The content of a lease that only keeps an extent as it is: nothing is read through it.
fn unread() -> ExtentContent {
    ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets: 0,
        last_packet_bytes: 0,
        layout: WireLayout::fec(),
        spare: 0,
    }
}

/// Leases on the extents that the device still has to send from, one each, however many datagrams are on their way.
#[derive(Debug)]
pub struct HeldLeases {
    extents: Box<[(u32, Option<Lease>)]>,
    now: u64,
}

impl HeldLeases {
    /// Room for all extents of `arena`.
    pub fn new(arena: &ExtentArena) -> Self {
        Self { extents: (0..arena.extents()).map(|_| (0, None)).collect(), now: 0 }
    }

    /// The device is given `descriptors` descriptors that lie in this extent.
    pub fn hold(&mut self, lease: &Lease, descriptors: u32) {
        let Some((count, held)) = self.extents.get_mut(lease.extent() as usize) else { return };
        if held.is_none() {
            *held = Some(lease.clone());
            self.now += 1;
        }
        *count += descriptors;
    }

    /// The device is given a descriptor at `address`, in memory that the caller can read: its extent is under lease, so it can be lent once
    /// more. `false`, and nothing is held, for an extent that grows: without its layout it cannot.
    pub fn hold_at(&mut self, arena: &Arc<ExtentArena>, address: u64) -> bool {
        let extent = u32::try_from(address / EXTENT_BYTES as u64).unwrap_or(u32::MAX);
        let Some((count, held)) = self.extents.get_mut(extent as usize) else { return false };
        if held.is_none() {
            let Some(lease) = arena.lend(extent, unread()) else { return false };
            *held = Some(lease);
            self.now += 1;
        }
        *count += 1;
        true
    }

    /// The device is done with a descriptor; `false` if it had none in this extent.
    pub fn complete(&mut self, address: u64) -> bool {
        let extent = usize::try_from(address / EXTENT_BYTES as u64).unwrap_or(usize::MAX);
        match self.extents.get_mut(extent) {
            Some((count, held)) if *count > 0 => {
                *count -= 1;
                if *count == 0 && held.take().is_some() {
                    self.now -= 1;
                }
                true
            }
            _ => false,
        }
    }

    /// Leases held.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Gives all of them back.
    pub fn give_back(&mut self) {
        self.extents.fill_with(|| (0, None));
        self.now = 0;
    }
}

#[cfg(test)]
#[path = "umem_tests.rs"]
mod tests;

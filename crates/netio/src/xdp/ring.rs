//! Rings between this process and the kernel (or, in tests, between two ends in memory): one writes entries and counts
//! them, the other reads them and counts those.
//!
//! Both counts run on for ever and wrap at 2^32; an entry's slot is its number modulo the ring's
//! size, a power of two. The writer publishes its count with release order after the entries, the
//! reader loads it with acquire order before them; the other way round for slots that are free
//! again. Each end keeps a copy of the other's count and reads the shared word only when the copy
//! shows that nothing is left: the words' cache lines move between processors.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

use super::sys::RingMemory;

/// An entry of a ring: a fixed number of 64-bit words.
pub trait RingEntry: Copy {
    /// Words of one entry.
    const WORDS: usize;
    /// Writes the words.
    fn store(self, words: &[AtomicU64]);
    /// Reads them.
    fn load(words: &[AtomicU64]) -> Self;
}

/// An address in the UMEM: the entry of fill and completion rings.
impl RingEntry for u64 {
    const WORDS: usize = 1;
    fn store(self, words: &[AtomicU64]) {
        words[0].store(self, Ordering::Relaxed);
    }
    fn load(words: &[AtomicU64]) -> Self {
        words[0].load(Ordering::Relaxed)
    }
}

/// `struct xdp_desc`: a range of the UMEM, as it lies in TX and RX rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// First byte, from the start of the UMEM.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the packet goes on in the next descriptor (`XDP_PKT_CONTD`).
    pub more: bool,
}

/// `XDP_PKT_CONTD`.
const CONTINUED: u32 = 1;

impl RingEntry for Desc {
    const WORDS: usize = 2;

    fn store(self, words: &[AtomicU64]) {
        let options = if self.more { CONTINUED } else { 0 };
        let [a, b, c, d] = self.len.to_ne_bytes();
        let [e, f, g, h] = options.to_ne_bytes();
        words[0].store(self.address, Ordering::Relaxed);
        words[1].store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Ordering::Relaxed);
    }

    fn load(words: &[AtomicU64]) -> Self {
        let [a, b, c, d, e, f, g, h] = words[1].load(Ordering::Relaxed).to_ne_bytes();
        Self {
            address: words[0].load(Ordering::Relaxed),
            len: u32::from_ne_bytes([a, b, c, d]),
            more: u32::from_ne_bytes([e, f, g, h]) & CONTINUED != 0,
        }
    }
}

/// The memory of one ring; make an end of it.
#[derive(Debug)]
pub struct Ring<T> {
    memory: RingMemory,
    entries: u32,
    kind: PhantomData<T>,
}

impl<T: RingEntry> Ring<T> {
    /// Maps a ring of an AF_XDP socket.
    ///
    /// # Errors
    /// If `entries` is no power of two, or the kernel refuses.
    pub fn map(fd: BorrowedFd<'_>, place: u64, at: &XdpRingOffset, entries: u32) -> io::Result<Self> {
        if !entries.is_power_of_two() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let memory = RingMemory::map(fd, place, at, entries as usize * T::WORDS)?;
        Ok(Self { memory, entries, kind: PhantomData })
    }

    /// Both ends of a ring in memory, of at least `entries` entries.
    pub fn heap(entries: u32) -> (Producer<T>, Consumer<T>) {
        let entries = entries.max(1).next_power_of_two();
        let memory = RingMemory::heap(entries as usize * T::WORDS);
        let half = |memory| Self { memory, entries, kind: PhantomData };
        (half(memory.clone()).into_producer(), half(memory).into_consumer())
    }

    /// The end that writes.
    pub fn into_producer(self) -> Producer<T> {
        let written = self.memory.producer().load(Ordering::Acquire);
        let taken = self.memory.consumer().load(Ordering::Acquire);
        Producer { ring: self, written, published: written, taken }
    }

    /// The end that reads.
    pub fn into_consumer(self) -> Consumer<T> {
        let published = self.memory.producer().load(Ordering::Acquire);
        let read = self.memory.consumer().load(Ordering::Acquire);
        Consumer { ring: self, read, released: read, published }
    }

    fn words(&self, number: u32) -> &[AtomicU64] {
        let place = (number & (self.entries - 1)) as usize;
        &self.memory.words()[place * T::WORDS..][..T::WORDS]
    }
}

/// The writing end of a ring: TX and fill rings of a socket.
#[derive(Debug)]
pub struct Producer<T> {
    ring: Ring<T>,
    /// Entries written.
    written: u32,
    /// Those of them that the other end may read.
    published: u32,
    /// Entries that the other end was done with when last looked at.
    taken: u32,
}

impl<T: RingEntry> Producer<T> {
    /// Places in the ring.
    pub fn capacity(&self) -> u32 {
        self.ring.entries
    }

    /// Places that are free as far as is known.
    fn known_free(&self) -> u32 {
        self.ring.entries.saturating_sub(self.written.wrapping_sub(self.taken))
    }

    /// Places that are free; looks at the other end's count only if fewer than `wanted` are known to be.
    pub fn free(&mut self, wanted: u32) -> u32 {
        if self.known_free() < wanted {
            self.taken = self.ring.memory.consumer().load(Ordering::Acquire);
        }
        self.known_free()
    }

    /// Writes an entry, not yet to be read by the other end; `false` if the ring is full.
    pub fn push(&mut self, entry: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        entry.store(self.ring.words(self.written));
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Lets the other end read the entries written.
    pub fn publish(&mut self) {
        if self.published != self.written {
            self.ring.memory.producer().store(self.written, Ordering::Release);
            self.published = self.written;
        }
    }

    /// Entries published that the other end has not taken yet.
    pub fn pending(&mut self) -> u32 {
        self.taken = self.ring.memory.consumer().load(Ordering::Acquire);
        self.published.wrapping_sub(self.taken)
    }

    /// Whether the other end wants to be woken up by a system call. Without the flag (kernels before 5.4, sockets bound
    /// without `XDP_USE_NEED_WAKEUP`) always.
    pub fn needs_wakeup(&self, flagged: bool) -> bool {
        match self.ring.memory.flags() {
            Some(flags) if flagged => {
                // The count that was published must be visible before the flag is looked at, or both sides could sleep.
                std::sync::atomic::fence(Ordering::SeqCst);
                flags.load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
            }
            _ => true,
        }
    }
}

/// The reading end of a ring: RX and completion rings of a socket.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: Ring<T>,
    /// Entries read.
    read: u32,
    /// Those of them whose places the other end may write again.
    released: u32,
    /// Entries that the other end had published when last looked at.
    published: u32,
}

impl<T: RingEntry> Consumer<T> {
    /// Places in the ring.
    pub fn capacity(&self) -> u32 {
        self.ring.entries
    }

    /// Entries that can be read; looks at the other end's count only if none is known.
    pub fn available(&mut self) -> u32 {
        if self.published == self.read {
            self.published = self.ring.memory.producer().load(Ordering::Acquire);
        }
        self.published.wrapping_sub(self.read).min(self.ring.entries)
    }

    /// The next entry; its place stays taken until [`Consumer::release`].
    pub fn pop(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        let entry = T::load(self.ring.words(self.read));
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Lets the other end write the places of the entries read.
    pub fn release(&mut self) {
        if self.released != self.read {
            self.ring.memory.consumer().store(self.read, Ordering::Release);
            self.released = self.read;
        }
    }

    /// Sets whether the writing end must wake this one up by a call, as a driver does. For tests of
    /// the other end.
    pub fn ask_for_wakeup(&self, wanted: bool) {
        if let Some(flags) = self.ring.memory.flags() {
            let bits = if wanted { XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() } else { 0 };
            flags.store(bits, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;

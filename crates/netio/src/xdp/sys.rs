//! The memory shared with the kernel: ring mappings as atomic words, frames to read back in tests,
//! and memory that can be locked away to prove that it is never read.
//!
//! Everything in a ring is an atomic word, entries too, so that a ring used wrongly can carry nonsense but never breaks
//! the rules of the language; on x86-64 and aarch64 a relaxed load or store of a word is an ordinary move.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use millrace_core::pool::{ExtentArena, Region};
use millrace_core::prefetch::CACHE_LINE_BYTES;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rustix::net::xdp::XdpRingOffset;

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; its contents are only lent out as atomics, or
// governed by an arena.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by the constructors below, unmapped once; no borrow of it outlives `self`.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

fn not_null(base: *mut std::ffi::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// One ring in shared memory: its producer and consumer counts, its flags, its entries as words.
#[derive(Clone, Debug)]
pub(super) struct RingMemory {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    words: NonNull<AtomicU64>,
    word_count: usize,
    /// Keeps the memory: a mapping, or words of the heap.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers lead into memory that the owner keeps, and are only lent out as references to atomics.
unsafe impl Send for RingMemory {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for RingMemory {}

/// Words between the three counts of a heap ring: each has a cache line of its own.
const COUNT_WORDS: usize = CACHE_LINE_BYTES / 8;
/// Words before the entries of a heap ring.
const HEAD_WORDS: usize = 3 * COUNT_WORDS;

impl RingMemory {
    /// Maps a ring of the socket: `words` words of entries, at the kernel's offsets in `at`.
    pub(super) fn map(fd: BorrowedFd<'_>, place: u64, at: &XdpRingOffset, words: usize) -> io::Result<Self> {
        let len = at.desc as usize + words * 8;
        let counts = [Some(at.producer), Some(at.consumer), at.flags];
        let fits = |offset: u64| offset.is_multiple_of(4) && offset as usize + 4 <= len;
        if !at.desc.is_multiple_of(8) || !counts.into_iter().flatten().all(fits) {
            return Err(io::Error::other("the kernel reports an invalid ring layout"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = not_null(unsafe { mmap(std::ptr::null_mut(), len, access, flags, fd, place) }?)?;
        let mapping = Arc::new(Mapping { base, len });
        let count = |offset: u64| {
            // SAFETY: checked above: the offset is aligned to 4 and inside the mapping.
            unsafe { base.add(offset as usize) }.cast::<AtomicU32>()
        };
        Ok(Self {
            producer: count(at.producer),
            consumer: count(at.consumer),
            flags: at.flags.map(count),
            // SAFETY: the mapping has `at.desc + 8 * words` bytes, and `at.desc` is aligned to 8.
            words: unsafe { base.add(at.desc as usize) }.cast(),
            word_count: words,
            _owner: mapping,
        })
    }

    /// The same in the heap, for both ends.
    pub(super) fn heap(words: usize) -> Self {
        let ring: Arc<[AtomicU64]> = (0..HEAD_WORDS + words).map(|_| AtomicU64::new(0)).collect();
        let base = NonNull::from(&*ring).cast::<AtomicU64>();
        // SAFETY: the slice has HEAD_WORDS + `words` words, so all of these offsets are inside it.
        // An AtomicU32 in the place of an AtomicU64 is aligned, and no code reaches these words by
        // the other type: the slice is private.
        let at = |word: usize| unsafe { base.add(word) };
        Self {
            producer: at(0).cast(),
            consumer: at(COUNT_WORDS).cast(),
            flags: Some(at(2 * COUNT_WORDS).cast()),
            words: at(HEAD_WORDS),
            word_count: words,
            _owner: Arc::new(ring),
        }
    }

    pub(super) fn producer(&self) -> &AtomicU32 {
        // SAFETY: inside memory that `_owner` keeps, aligned, only ever used as an atomic.
        unsafe { self.producer.as_ref() }
    }

    pub(super) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for the producer.
        unsafe { self.consumer.as_ref() }
    }

    /// `None` on kernels before 5.4.
    pub(super) fn flags(&self) -> Option<&AtomicU32> {
        // SAFETY: as for the producer.
        self.flags.map(|flags| unsafe { flags.as_ref() })
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `word_count` words that `_owner` keeps, aligned to 8, zero or written by the kernel, only ever used as
        // atomics.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.word_count) }
    }
}

/// Bytes of a descriptor's range in the arena, as a device reads them: the code that built the frame does not write it before
/// the completion. `None` if the range is not inside the memory.
pub(super) fn read_memory(arena: &ExtentArena, address: u64, len: usize) -> Option<Vec<u8>> {
    let (base, bytes) = arena.memory();
    let start = usize::try_from(address).ok()?;
    start.checked_add(len).filter(|&end| end <= bytes)?;
    let mut copy = vec![0; len];
    // SAFETY: the range was just checked to be inside the arena's region, which is initialised
    // memory and lives as long as the arena. Nothing writes to frames and leased extents in a ring
    // until their completion.
    unsafe { std::ptr::copy_nonoverlapping(base.as_ptr().add(start), copy.as_mut_ptr(), len) };
    Some(copy)
}

/// Memory for an arena. Parts of it can be taken from this process while the kernel continues to
/// use them: any read of ours there ends the process. It proves that a device sends without
/// looking.
#[derive(Debug)]
pub struct GuardedRegion(Arc<Mapping>);

/// Locks and unlocks parts of a [`GuardedRegion`].
#[derive(Debug)]
pub struct Guard(Arc<Mapping>);

/// Bytes of a page, the unit of protection.
pub const PAGE_BYTES: usize = 4096;

impl GuardedRegion {
    /// Maps at least `bytes` zeroed bytes.
    ///
    /// # Errors
    /// When the system has not that much memory.
    pub fn new(bytes: usize) -> io::Result<(Self, Guard)> {
        let len = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let mapping = Arc::new(Mapping { base: not_null(base)?, len });
        Ok((Self(Arc::clone(&mapping)), Guard(mapping)))
    }
}

impl Guard {
    /// Takes the pages of `range` (bytes from the start, whole pages) away from this process, or gives them back.
    ///
    /// # Errors
    /// If the range is not whole pages of the region, or the kernel refuses.
    pub fn set_locked(&self, range: Range<usize>, locked: bool) -> io::Result<()> {
        let whole = range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES);
        if !whole || range.start > range.end || range.end > self.0.len {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let access = if locked { MprotectFlags::empty() } else { MprotectFlags::READ | MprotectFlags::WRITE };
        // SAFETY: the range was just checked to be inside the mapping. A page without access makes a read of it end the
        // process at once, which is what this is for; it never makes one return other bytes.
        unsafe { mprotect(self.0.base.as_ptr().add(range.start).cast(), range.len(), access) }?;
        Ok(())
    }
}

// SAFETY: one zero-filled private mapping, page aligned, alive until the last of region and guard
// is dropped, shared with no other process: the guard changes access, not contents.
unsafe impl Region for GuardedRegion {
    fn base(&self) -> NonNull<u8> {
        self.0.base
    }
    fn len(&self) -> usize {
        self.0.len
    }
    fn describe(&self) -> &'static str {
        "ordinary pages that can be locked"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn ring_memory_keeps_counts_and_words_separate() {
        let ring = RingMemory::heap(8);
        let other = ring.clone();
        ring.producer().store(1, Ordering::Release);
        ring.consumer().store(2, Ordering::Release);
        ring.flags().unwrap().store(3, Ordering::Release);
        for (n, word) in ring.words().iter().enumerate() {
            word.store(n as u64 + 100, Ordering::Relaxed);
        }
        drop(ring);
        let counts = [other.producer(), other.consumer(), other.flags().unwrap()];
        assert_eq!(counts.map(|c| c.load(Ordering::Acquire)), [1, 2, 3]);
        let words: Vec<u64> = other.words().iter().map(|w| w.load(Ordering::Relaxed)).collect();
        assert_eq!(words, (100..108).collect::<Vec<u64>>());
    }

    #[test]
    fn reading_memory_is_bounded() {
        let (region, _guard) = GuardedRegion::new(256 << 10).unwrap();
        let arena = ExtentArena::new(Box::new(region));
        let mut fill = arena.fill(0).unwrap();
        fill.bytes_mut()[100..104].copy_from_slice(b"film");
        assert_eq!(read_memory(&arena, 100, 4).unwrap(), b"film");
        assert_eq!(read_memory(&arena, (256 << 10) - 4, 5), None);
        assert_eq!(read_memory(&arena, u64::MAX, 1), None);
    }

    #[test]
    fn locked_pages_come_back_with_their_bytes() {
        let (region, guard) = GuardedRegion::new(3 * PAGE_BYTES).unwrap();
        let base = region.base();
        // SAFETY: inside the fresh mapping, which no other code uses.
        unsafe { base.add(PAGE_BYTES).write(7) };
        guard.set_locked(PAGE_BYTES..2 * PAGE_BYTES, true).unwrap();
        assert!(guard.set_locked(1..PAGE_BYTES, true).is_err());
        assert!(guard.set_locked(0..4 * PAGE_BYTES, true).is_err());
        guard.set_locked(PAGE_BYTES..2 * PAGE_BYTES, false).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { base.add(PAGE_BYTES).read() }, 7);
    }
}

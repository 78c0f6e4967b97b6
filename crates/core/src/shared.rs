//! Memory that two sides share and that neither trusts the other with: words, and rings of 64-byte records in them.
//!
//! It contains no pointer and no lock: everything is named by an offset, and every access is an
//! access to an atomic word. So one side may write any value at any time; the other reads wrong
//! numbers at worst, never outside the memory, and the language sees no data race in it. The same
//! layout can lie in memory that two processes have mapped.
//!
//! A ring has no indices that both sides write. The last word of each entry, the turn, shows its
//! owner:
//!
//! ```text
//!   lap n:   2n   free: the producer may fill it
//!          2n+1   ready: the consumer may read it; then 2n + 2, which is free in the next lap
//! ```
//!
//! Memory that is all zeros is an empty ring.

mod copy;

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;
/// Words of an entry: 64 bytes, a cache line.
pub const ENTRY_WORDS: usize = 8;
/// Words of an entry that are the record; the last one is the turn.
pub const RECORD_WORDS: usize = ENTRY_WORDS - 1;

/// What crosses.
pub type Record = [u64; RECORD_WORDS];

/// Memory from elsewhere, such as a mapping that another process has too.
pub trait Region: Send + Sync {
    /// Its words, always the same. The first one begins a cache line.
    fn words(&self) -> &[AtomicU64];
}

/// The memory. A clone is the same memory.
#[derive(Clone)]
pub struct Words(WordStorage);

#[derive(Clone)]
enum WordStorage {
    Own {
        all: Arc<[AtomicU64]>,
        /// Words before the first one, so that it begins a cache line.
        skip: usize,
        count: usize,
    },
    Region(Arc<dyn Region>),
}

impl Words {
    /// `count` words, all zeros.
    pub fn new(count: usize) -> Self {
        let all: Arc<[AtomicU64]> = (0..count + ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect();
        let address = all.as_ptr().addr() / WORD_BYTES;
        Self(WordStorage::Own { skip: address.next_multiple_of(ENTRY_WORDS) - address, all, count })
    }

    /// The words of `region`, as they are.
    pub fn over(region: Arc<dyn Region>) -> Self {
        Self(WordStorage::Region(region))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.words().len()
    }

    /// Returns the words if no other process can have them: they belong to this process, and are no
    /// mapping.
    pub fn own(&self) -> Option<&[AtomicU64]> {
        matches!(self.0, WordStorage::Own { .. }).then(|| self.words())
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            WordStorage::Own { all, skip, count } => &all[*skip..*skip + *count],
            WordStorage::Region(region) => region.words(),
        }
    }

    /// Loads a word, together with everything written before it was stored; 0 outside the memory.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.words().get(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Stores a word behind everything that was written before. Nothing happens outside the memory.
    #[inline]
    pub fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words().get(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Copies the bytes from byte `at` on to `to`. False, and nothing happens, if they are not all in the memory.
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let Some((words, skip)) = self.around(at, to.len()) else { return false };
        let head = if skip == 0 { 0 } else { (WORD_BYTES - skip).min(to.len()) };
        let (begin, rest) = to.split_at_mut(head);
        if let Some(first) = words.first() {
            begin.copy_from_slice(&first.load(Ordering::Relaxed).to_ne_bytes()[skip..skip + head]);
        }
        let words = &words[usize::from(skip > 0).min(words.len())..];
        let (chunks, end) = rest.as_chunks_mut::<WORD_BYTES>();
        copy::out_of(words, chunks);
        if !end.is_empty() {
            end.copy_from_slice(&words[chunks.len()].load(Ordering::Relaxed).to_ne_bytes()[..end.len()]);
        }
        true
    }

    /// Copies bytes to byte `at` and on. Of the first and the last word the bytes beside them are written back as they were: at that moment
    /// they must not be the other side's to write. False, and nothing happens, if there is not room for all in the memory.
    pub fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let Some((words, skip)) = self.around(at, bytes.len()) else { return false };
        let head = if skip == 0 { 0 } else { (WORD_BYTES - skip).min(bytes.len()) };
        let (begin, rest) = bytes.split_at(head);
        if let Some(first) = words.first().filter(|_| head > 0) {
            patch(first, skip, begin);
        }
        let words = &words[usize::from(skip > 0).min(words.len())..];
        let (chunks, end) = rest.as_chunks::<WORD_BYTES>();
        copy::into(words, chunks);
        if !end.is_empty() {
            patch(&words[chunks.len()], 0, end);
        }
        true
    }

    /// The words that hold `bytes` bytes from byte `at` on, and how many bytes of the first are before them.
    fn around(&self, at: usize, bytes: usize) -> Option<(&[AtomicU64], usize)> {
        let end = at.checked_add(bytes)?;
        let words = self.words().get(at / WORD_BYTES..end.div_ceil(WORD_BYTES).max(at / WORD_BYTES))?;
        Some((words, at % WORD_BYTES))
    }
}

fn patch(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut whole = word.load(Ordering::Relaxed).to_ne_bytes();
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
}

/// One side's place in a ring.
struct RingCursor {
    words: Words,
    /// First word of the ring.
    first: usize,
    entries: u64,
    next: u64,
}

impl RingCursor {
    fn new(words: &Words, first: usize, entries: u32) -> Option<Self> {
        let end = (entries as usize).checked_mul(ENTRY_WORDS)?.checked_add(first)?;
        let fits = entries.is_power_of_two() && end <= words.count();
        fits.then(|| Self { words: words.clone(), first, entries: u64::from(entries), next: 0 })
    }

    /// Returns the first word of the entry `ahead` of the next one, and the turn that marks it as
    /// free.
    fn entry(&self, ahead: u64) -> (usize, u64) {
        let number = self.next + ahead;
        let entry = (number & (self.entries - 1)) as usize;
        (self.first + entry * ENTRY_WORDS, number / self.entries * 2)
    }

    fn turn(&self, at: usize) -> u64 {
        self.words.load(at + RECORD_WORDS)
    }
}

/// The record of the entry that begins with word `at`, and its turn.
#[inline]
fn entry_of(words: &Words, at: usize) -> Option<(&[AtomicU64], &AtomicU64)> {
    words.words().get(at..)?.get(..ENTRY_WORDS)?.split_last().map(|(turn, record)| (record, turn))
}

/// The side that fills entries.
pub struct RingProducer(RingCursor);

impl RingProducer {
    /// The ring of `entries` entries, a power of two, that begins with word `first`; `None` if it does not lie in the memory.
    pub fn new(words: &Words, first: usize, entries: u32) -> Option<Self> {
        RingCursor::new(words, first, entries).map(Self)
    }

    /// Whether the next entry is free.
    #[inline]
    pub fn has_room(&self) -> bool {
        let (at, free) = self.0.entry(0);
        self.0.turn(at) == free
    }

    /// Hands over a record. False, and nothing happens, if the next entry is not free.
    #[inline]
    #[must_use = "a full ring takes nothing"]
    pub fn push(&mut self, record: &Record) -> bool {
        let (at, free) = self.0.entry(0);
        let Some((words, turn)) = entry_of(&self.0.words, at) else { return false };
        if turn.load(Ordering::Acquire) != free {
            return false;
        }
        for (word, value) in words.iter().zip(record) {
            word.store(*value, Ordering::Relaxed);
        }
        // Behind the record: who sees the turn sees the record.
        turn.store(free + 1, Ordering::Release);
        self.0.next += 1;
        true
    }
}

/// The side that reads entries.
pub struct RingConsumer(RingCursor);

impl RingConsumer {
    /// The other side of [`RingProducer::new`].
    pub fn new(words: &Words, first: usize, entries: u32) -> Option<Self> {
        RingCursor::new(words, first, entries).map(Self)
    }

    /// Whether there is a record.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let (at, free) = self.0.entry(0);
        self.0.turn(at) == free + 1
    }

    /// Returns the next record, copied once: later writes by the other side do not change it.
    #[inline]
    pub fn pop(&mut self) -> Option<Record> {
        let (at, free) = self.0.entry(0);
        let (words, turn) = entry_of(&self.0.words, at)?;
        if turn.load(Ordering::Acquire) != free + 1 {
            return None;
        }
        let mut record = [0; RECORD_WORDS];
        for (value, word) in record.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        // Behind the reads: who sees that it is free may write.
        turn.store(free + 2, Ordering::Release);
        self.0.next += 1;
        Some(record)
    }
}

#[cfg(all(test, not(millrace_loom)))]
#[path = "shared_tests.rs"]
mod tests;

//! Whole words into shared memory and out of it.
//!
//! Its meaning is a loop of relaxed accesses, a word each, and on most processors it is one. On
//! x86-64 it is machine code, for two reasons:
//!
//! * A compiler puts accesses to atomics into no vectors. That loop takes 1.2 times as long as memcpy where memory is what both wait for, and 1.7 times from
//!   cache to cache.
//! * The words to overwrite usually lie in the cache of the processor that has read them last, and
//!   each store waits until this cache has let go: up to eight times the time of memcpy, by how far
//!   apart the two processors are. Stores past the caches do not wait. They are for many bytes at
//!   once; few bytes are soon read, and are faster from cache to cache.
#![allow(unsafe_code)]

use super::WORD_BYTES;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of one's own that are a word.
type Own = [u8; WORD_BYTES];

/// Copies words to `to`; of the longer one the rest stays as it is.
#[inline]
pub(super) fn out_of(words: &[AtomicU64], to: &mut [Own]) {
    let count = words.len().min(to.len());
    let (words, to) = (&words[..count], &mut to[..count]);
    let done = vectors::out_of(words, to);
    for (to, word) in to[done..].iter_mut().zip(&words[done..]) {
        *to = word.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// Copies `from` into words; of the longer one the rest stays as it is.
#[inline]
pub(super) fn into(words: &[AtomicU64], from: &[Own]) {
    let count = words.len().min(from.len());
    let (words, from) = (&words[..count], &from[..count]);
    let done = vectors::into(words, from);
    for (word, from) in words[done..].iter().zip(&from[done..]) {
        word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
}

/// Loom's words are no memory, and Miri knows no machine code.
#[cfg(not(all(target_arch = "x86_64", not(millrace_loom), not(miri))))]
mod vectors {
    use super::{AtomicU64, Own};

    pub(super) fn out_of(_: &[AtomicU64], _: &mut [Own]) -> usize {
        0
    }

    pub(super) fn into(_: &[AtomicU64], _: &[Own]) -> usize {
        0
    }
}

#[cfg(all(target_arch = "x86_64", not(millrace_loom), not(miri)))]
mod vectors {
    use std::arch::asm;

    use super::{AtomicU64, Ordering, Own, WORD_BYTES};

    /// What one round of a loop moves: four vectors, a cache line.
    const BLOCK_WORDS: usize = 8;
    const BLOCK_BYTES: usize = BLOCK_WORDS * WORD_BYTES;
    /// From how many words on they are stored past the caches: a segment of an Ethernet is, a request or a response as a rule is not.
    const PAST_CACHES_WORDS: usize = 128;

    /// Copies as many words as are whole blocks; how many.
    pub(super) fn out_of(words: &[AtomicU64], to: &mut [Own]) -> usize {
        let count = words.len().min(to.len()) / BLOCK_WORDS * BLOCK_WORDS;
        if count > 0 {
            // SAFETY: both have `count` words, not 0 and whole blocks. `to` is borrowed by no other
            // code. Words may be written by other threads or processes meanwhile: see `copy`.
            unsafe { copy(words.as_ptr().cast(), to.as_mut_ptr().cast(), count * WORD_BYTES) };
        }
        count
    }

    /// The same into words.
    pub(super) fn into(words: &[AtomicU64], from: &[Own]) -> usize {
        let count = words.len().min(from.len());
        // Stores past the caches cover whole cache lines.
        let before = words.as_ptr().addr().wrapping_neg() % BLOCK_BYTES / WORD_BYTES;
        if count < PAST_CACHES_WORDS + before {
            return into_caches(&words[..count], &from[..count]);
        }
        for (word, from) in words[..before].iter().zip(from) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        let (words, from) = (&words[before..count], &from[before..count]);
        let whole = words.len() / BLOCK_WORDS * BLOCK_WORDS;
        // SAFETY: both have `whole` words, not 0 and whole blocks, and the first of `words` begins
        // a line. `from` is borrowed, so it is not written. Atomics may be written through a shared
        // reference; that others access the words meanwhile: see `copy`.
        unsafe {
            copy_past(from.as_ptr().cast(), words.as_ptr().cast_mut().cast(), whole * WORD_BYTES);
        }
        before + whole
    }

    fn into_caches(words: &[AtomicU64], from: &[Own]) -> usize {
        let count = words.len().min(from.len()) / BLOCK_WORDS * BLOCK_WORDS;
        if count > 0 {
            // SAFETY: both have `count` words, not 0 and whole blocks. `from` is borrowed, so it is
            // not written. Atomics may be written through a shared reference; that others access
            // the words meanwhile: see `copy`.
            unsafe { copy(from.as_ptr().cast(), words.as_ptr().cast_mut().cast(), count * WORD_BYTES) };
        }
        count
    }

    /// The machine code: `$store` moves 16 bytes of a register to memory, `$end` is what follows the loop.
    macro_rules! copy {
        ($from:ident, $to:ident, $bytes:ident, $store:literal, $end:literal) => {
            asm!(
                "2:",
                "movups {a}, [{from} + {at}]",
                "movups {b}, [{from} + {at} + 16]",
                "movups {c}, [{from} + {at} + 32]",
                "movups {d}, [{from} + {at} + 48]",
                concat!($store, " [{to} + {at}], {a}"),
                concat!($store, " [{to} + {at} + 16], {b}"),
                concat!($store, " [{to} + {at} + 32], {c}"),
                concat!($store, " [{to} + {at} + 48], {d}"),
                "add {at}, 64",
                "jnz 2b",
                $end,
                from = in(reg) $from.add($bytes),
                to = in(reg) $to.add($bytes),
                at = inout(reg) $bytes.wrapping_neg() => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            )
        };
    }

    const _: () = assert!(BLOCK_BYTES == 64, "what the machine code counts by");

    /// Copies `bytes` bytes.
    ///
    /// Another thread or process may access one of the two sides at the same time. To the language
    /// the machine code stands for relaxed accesses to atomic words: the shared side is made of
    /// `AtomicU64`, so it is aligned to words, and no instruction here touches a part of one. A
    /// vector is moved in one piece or in several, in any order, and relaxed accesses to several
    /// words promise no more. Every x86-64 reads and writes words in one cache line whole; if one
    /// were torn nevertheless, a number would be wrong that no reader may trust before the turn of
    /// a ring confirms it. The order that the turn establishes is kept: the code is opaque to the
    /// compiler, which has to assume that any memory was accessed, and the processor delays no such
    /// load or store beyond a later store.
    ///
    /// # Safety
    /// `from` can be read and `to` written for `bytes` bytes, a multiple of a block's and not 0; they do not overlap.
    #[inline]
    unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: as promised by the caller: `at` goes from `-bytes` to 0 in blocks, and each round accesses a block from there on. Nothing
        // else is touched; the stack is not used.
        unsafe { copy!(from, to, bytes, "movups", "") };
    }

    /// The same, past the caches. These stores are delayed beyond later ones, so a fence follows
    /// them: then everything stated for `copy` holds here too.
    ///
    /// # Safety
    /// As for `copy`; and `to` begins a cache line.
    #[inline]
    unsafe fn copy_past(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: as in `copy`; these stores want 16 bytes aligned, and get them.
        unsafe { copy!(from, to, bytes, "movntps", "sfence") };
    }
}

#[cfg(all(test, not(millrace_loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn words(count: usize, of: impl Fn(usize) -> u64) -> Vec<AtomicU64> {
        (0..count).map(|at| AtomicU64::new(of(at))).collect()
    }

    #[test]
    fn exactly_the_words_that_both_have_are_copied() {
        // Beyond the threshold for stores past the caches.
        const MOST: usize = 160;
        for count in 0..MOST {
            // Neither side begins where a vector would like it to.
            for at in 0..8 {
                let from = words(MOST + 8, |at| at as u64 + 1);
                let mut own = vec![[0xaa; WORD_BYTES]; MOST + 11];
                out_of(&from[at..at + count], &mut own[at + 1..]);
                for (place, bytes) in own.iter().enumerate() {
                    let is_one = (at + 1..at + 1 + count).contains(&place);
                    let expected = if is_one { (place as u64).to_ne_bytes() } else { [0xaa; WORD_BYTES] };
                    assert_eq!(*bytes, expected, "{count} from {at}, word {place}");
                }
                let to = words(MOST + 11, |_| 7);
                into(&to[at + 2..], &own[at + 1..at + 1 + count]);
                for (place, word) in to.iter().enumerate() {
                    let is_one = (at + 2..at + 2 + count).contains(&place);
                    let expected = if is_one { place as u64 - 1 } else { 7 };
                    assert_eq!(word.load(Ordering::Relaxed), expected, "{count} to {at}, word {place}");
                }
            }
        }
    }

    /// Whoever writes at the same time: each word that is read is one that was written.
    #[test]
    fn words_come_whole_while_somebody_writes_them() {
        const COUNT: usize = 267;
        let (shared, stop) = (words(COUNT, |_| 0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let [zeros, ones] = [[[0; WORD_BYTES]; COUNT], [[0xff; WORD_BYTES]; COUNT]];
                while !stop.load(Ordering::Relaxed) {
                    into(&shared, &ones);
                    into(&shared, &zeros);
                }
            });
            let mut own = [[0; WORD_BYTES]; COUNT];
            for _ in 0..if cfg!(miri) { 20 } else { 10_000 } {
                out_of(&shared, &mut own);
                assert!(own.iter().all(|word| *word == [0; 8] || *word == [0xff; 8]), "{own:?}");
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

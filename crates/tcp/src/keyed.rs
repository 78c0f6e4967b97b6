//! The keyed hash behind all values that no outsider may compute: initial sequence numbers, ports,
//! cookies, places in tables.
//!
//! SipHash (Aumasson, Bernstein: SipHash: a fast short-input PRF, INDOCRYPT 2012) over a few 64-bit words, without the buffer that
//! a hash of bytes carries along.

/// A secret of 128 bits, another at each start.
#[derive(Clone, Copy)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// The key made of two random words. Whoever makes it takes them from the operating system.
    pub const fn new(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Returns SipHash-2-4 of `words`, for values that must keep a secret.
    #[inline]
    pub fn strong(&self, words: &[u64]) -> u64 {
        self.sip::<2, 4>(words)
    }

    /// Returns SipHash-1-3 of `words`, for places in tables, which no outsider sees.
    #[inline(always)] // of a known number of words, without a loop
    pub fn fast(&self, words: &[u64]) -> u64 {
        self.sip::<1, 3>(words)
    }

    #[inline(always)]
    fn sip<const EACH: usize, const LAST: usize>(&self, words: &[u64]) -> u64 {
        let [a, b] = self.0;
        let mut state = SipState([
            a ^ 0x736f_6d65_7073_6575,
            b ^ 0x646f_7261_6e64_6f6d,
            a ^ 0x6c79_6765_6e65_7261,
            b ^ 0x7465_6462_7974_6573,
        ]);
        for &word in words {
            state.take::<EACH>(word);
        }
        // The last word has the length in bytes at its top and the remaining bytes, here none.
        state.take::<EACH>((words.len() as u64 * 8) << 56);
        state.0[2] ^= 0xff;
        for _ in 0..LAST {
            state.round();
        }
        state.0[0] ^ state.0[1] ^ state.0[2] ^ state.0[3]
    }
}

/// Nothing of a key gets into a log.
impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

struct SipState([u64; 4]);

impl SipState {
    #[inline]
    fn take<const ROUNDS: usize>(&mut self, word: u64) {
        self.0[3] ^= word;
        for _ in 0..ROUNDS {
            self.round();
        }
        self.0[0] ^= word;
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    #![allow(deprecated, reason = "the only SipHash-2-4 of the standard library with a key")]

    use std::hash::{Hasher, SipHasher};

    use super::*;

    #[test]
    fn hash_key_strong_equals_siphash_of_std() {
        let mut random = millrace_core::random::SplitMix(3);
        for count in 0..12 {
            let (key, words) =
                ([random.next(), random.next()], Vec::from_iter((0..count).map(|_| random.next())));
            let mut library = SipHasher::new_with_keys(key[0], key[1]);
            words.iter().for_each(|word| library.write(&word.to_le_bytes()));
            assert_eq!(HashKey::new(key).strong(&words), library.finish(), "{count} words");
        }
    }

    #[test]
    fn hash_key_fast_depends_on_all_bits_of_key_and_words() {
        let (key, words) = ([1, 2], [3, 4, 5]);
        let hash = HashKey::new(key).fast(&words);
        for bit in 0..64 {
            let turned = |mut words: Vec<u64>, at: usize| {
                words[at] ^= 1 << bit;
                words
            };
            for at in 0..2 {
                let key = turned(key.to_vec(), at).try_into().unwrap();
                assert_ne!(HashKey::new(key).fast(&words), hash);
            }
            for at in 0..3 {
                assert_ne!(HashKey::new(key).fast(&turned(words.to_vec(), at)), hash);
            }
        }
        assert_ne!(HashKey::new(key).fast(&[3, 4, 5, 0]), hash);
    }

    #[test]
    fn hash_key_debug_hides_key() {
        assert_eq!(format!("{:?}", HashKey::new([77, 78])), "HashKey(..)");
    }
}

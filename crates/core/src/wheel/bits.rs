//! A set of small numbers that finds its next member in two steps.

/// A set of `64 * N` bits with a summary word, so that the next one is two steps away.
pub(super) struct Bits<const N: usize> {
    summary: u64,
    words: [u64; N],
}

impl<const N: usize> Bits<N> {
    const FITS: () = assert!(N >= 1 && N <= 64, "one summary word");

    pub(super) fn new() -> Self {
        let () = Self::FITS;
        Self { summary: 0, words: [0; N] }
    }

    pub(super) fn set(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
        self.summary |= 1 << (bit / 64);
    }

    pub(super) fn clear(&mut self, bit: usize) {
        self.words[bit / 64] &= !(1 << (bit % 64));
        if self.words[bit / 64] == 0 {
            self.summary &= !(1 << (bit / 64));
        }
    }

    /// The lowest bit that is set.
    pub(super) fn first(&self) -> Option<usize> {
        if self.summary == 0 {
            return None;
        }
        let word = self.summary.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// The first bit that is set from `start` on, round the end.
    pub(super) fn first_from(&self, start: usize) -> Option<usize> {
        let (word, bit) = (start / 64, start % 64);
        let rest = self.words[word] & (u64::MAX << bit);
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let later = if word == 63 { 0 } else { self.summary & (u64::MAX << (word + 1)) };
        if later == 0 {
            return self.first();
        }
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

//! The code that protects titles on disk and on the network: systematic Cauchy Reed-Solomon over GF(2^8), byte by byte.
//!
//! A codeword has k data symbols and m parity symbols, blocks of one length. Any k of the k + m give all the others. The
//! coefficients are those of a Cauchy matrix over the polynomial 0x11D, `1 / ((k + p) ^ j)` for parity p and data j (the
//! `gf_gen_cauchy1_matrix` of ISA-L), with every column scaled so that parity 0 has coefficients 1: it is the plain XOR of the
//! data. The code works byte by byte, so any slice of the parity protects the same slice of the data.
//!
//! Absent data counts as zeros: data symbols beyond those that are passed, and the rest of those
//! that are shorter than the parity. `docs/design/0008-parity-code.md` explains the choice of this
//! code.
//!
//! ```
//! use millrace_core::fec::{Code, Plans};
//!
//! let code = Code::new(3, 2).unwrap();
//! let data = [&b"one"[..], b"two", b"six"];
//! let (mut xor, mut second) = ([0; 3], [0; 3]);
//! code.encode(&data, &mut [&mut xor, &mut second]);
//!
//! // Symbols 0 and 2 are lost; 1, 3 and 4 are there.
//! let plan = Plans::new(code).plan(0b11010).unwrap();
//! assert_eq!((plan.sources(), plan.restores()), (&[1, 3, 4][..], &[0, 2][..]));
//! let (mut zero, mut two) = ([0; 3], [0; 3]);
//! plan.restore(&[data[1], &xor, &second], &mut [&mut zero, &mut two]);
//! assert_eq!((&zero, &two), (b"one", b"six"));
//! ```

pub mod field;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plan;
mod scalar;
mod spread;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::field::{inverse, mul};
use self::kernel::{Column, combine};
use crate::limits::{MAX_DATA_UNITS, MAX_PARITY_UNITS};

pub use self::kernel::Kernel;
pub use self::plan::{DecodePlan, Plans};
pub use self::spread::{FecPlace, Spread};

/// The code of k data and m parity symbols. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Code {
    m: usize,
    /// One for each data symbol.
    columns: Arc<[Column]>,
}

impl Code {
    /// The code of `k` (1..=64) data symbols and `m` (0..=8) parity symbols; `None` beyond that.
    pub fn new(k: usize, m: usize) -> Option<Self> {
        if !(1..=MAX_DATA_UNITS).contains(&k) || m > MAX_PARITY_UNITS {
            return None;
        }
        let coefficient = |p: usize, j: usize| {
            // Rows begin at k, columns at 0: they never meet, so nothing is divided by zero. The factor makes row 0 all 1.
            if p < m { mul(inverse(((k + p) ^ j) as u8), (k ^ j) as u8) } else { 0 }
        };
        let columns = (0..k).map(|j| Column::new(std::array::from_fn(|p| coefficient(p, j)))).collect();
        Some(Self { m, columns })
    }

    /// Data symbols of a codeword.
    pub fn k(&self) -> usize {
        self.columns.len()
    }

    /// Parity symbols of a codeword.
    pub fn m(&self) -> usize {
        self.m
    }

    /// What data symbol `data` is multiplied with in parity symbol `parity`; 0 if the code has no such symbols.
    pub fn coefficient(&self, parity: usize, data: usize) -> u8 {
        let column = self.columns.get(data).filter(|_| parity < self.m);
        column.map_or(0, |column| column.coefficients[parity])
    }

    /// Computes the first `parity.len()` parities of `data`. Data symbols beyond those passed are zeros, and one shorter than
    /// the parities is followed by zeros.
    ///
    /// # Panics
    /// If there are more symbols than the code has, if the parities differ in length, or a data symbol is longer than they are.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        self.encode_with(Kernel::best(), data, parity);
    }

    /// The same by a certain kernel; by the scalar one when the processor does not know it.
    ///
    /// # Panics
    /// As [`Code::encode`].
    pub fn encode_with(&self, kernel: Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert!(parity.len() <= self.m, "more parities than the code has");
        combine(kernel, &self.columns, data, parity, false);
        if !parity.is_empty() {
            count_encoded(data.iter().map(|symbol| symbol.len()).sum());
        }
    }

    /// Brings the first `parity.len()` parities up to date after data symbol `index` has changed from `old` to `new`, without
    /// the other data symbols.
    ///
    /// # Panics
    /// If the code has no such symbol, if the parities differ in length, or one of the two is longer than they are.
    pub fn update(&self, index: usize, old: &[u8], new: &[u8], parity: &mut [&mut [u8]]) {
        self.update_with(Kernel::best(), index, old, new, parity);
    }

    /// The same by a certain kernel; by the scalar one when the processor does not know it.
    ///
    /// # Panics
    /// As [`Code::update`].
    pub fn update_with(
        &self,
        kernel: Kernel,
        index: usize,
        old: &[u8],
        new: &[u8],
        parity: &mut [&mut [u8]],
    ) {
        assert!(parity.len() <= self.m, "more parities than the code has");
        // The sum of both is the change, and their products add up to the change of each parity.
        let column = self.columns[index];
        combine(kernel, &[column, column], &[old, new], parity, true);
        count_encoded(new.len());
    }

    /// Returns how the missing data symbols come from those whose bits are set in `present` (bit i:
    /// data symbol i below k, then parity symbol i - k; higher bits are ignored); `None` if fewer
    /// than k are there. [`Plans`] keeps the results.
    pub fn plan(&self, present: u128) -> Option<DecodePlan> {
        DecodePlan::new(self, present)
    }
}

/// What this process has encoded and decoded since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FecCounters {
    /// Bytes of data encoded into parity.
    pub encoded_bytes: u64,
    /// Bytes of data that were restored.
    pub decoded_bytes: u64,
}

static ENCODED_BYTES: AtomicU64 = AtomicU64::new(0);
static DECODED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The counters of this process: sending FEC must not move `encoded_bytes`, which is how that is known.
pub fn counters() -> FecCounters {
    FecCounters {
        encoded_bytes: ENCODED_BYTES.load(Ordering::Relaxed),
        decoded_bytes: DECODED_BYTES.load(Ordering::Relaxed),
    }
}

fn count_encoded(bytes: usize) {
    ENCODED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

fn count_decoded(out: &[&mut [u8]]) {
    DECODED_BYTES.fetch_add(out.iter().map(|symbol| symbol.len() as u64).sum(), Ordering::Relaxed);
}

#[cfg(test)]
#[path = "fec_tests.rs"]
mod tests;

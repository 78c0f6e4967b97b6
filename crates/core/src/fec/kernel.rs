//! Sums of products of whole blocks: which way a processor does it, and what all ways have in common.

use super::field::AFFINE;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::scalar;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::limits::{MAX_DATA_UNITS, MAX_PARITY_UNITS};

/// Outputs that one pass makes: every source is read once for all of them.
pub(super) const MAX_OUTPUTS: usize = MAX_PARITY_UNITS;
/// Sources of one pass: never more than a codeword's data symbols, and two for an update of a code with one.
const MAX_SOURCES: usize = MAX_DATA_UNITS;

/// A way to multiply and add blocks. All give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Tables of half bytes, a byte at a time: the kernel that every processor supports, and the
    /// reference for the others.
    Scalar,
    /// The same tables looked up 32 bytes at a time (`vpshufb`).
    Avx2,
    /// Bit matrices, 64 bytes at a time (`vgf2p8affineqb` with AVX-512).
    Gfni,
    /// Tables of half bytes, 16 bytes at a time (`tbl` of 64-bit ARM).
    Neon,
}

impl Kernel {
    /// All of them, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Gfni];

    /// Whether this processor can do it. Asked once; later answers come from memory.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => x86::has_gfni(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::has_neon(),
            #[allow(unreachable_patterns, reason = "which kernels are left depends on the processor")]
            _ => false,
        }
    }

    /// Those that this processor can do, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available())
    }

    /// The fastest that this processor can do.
    #[inline]
    pub fn best() -> Self {
        [Self::Gfni, Self::Avx2, Self::Neon]
            .into_iter()
            .find(|kernel| kernel.is_available())
            .unwrap_or(Self::Scalar)
    }
}

/// What one source is multiplied with, for each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    /// The coefficients.
    pub(super) coefficients: [u8; MAX_OUTPUTS],
    /// The same as bit matrices.
    pub(super) affine: [u64; MAX_OUTPUTS],
}

impl Column {
    pub(super) fn new(coefficients: [u8; MAX_OUTPUTS]) -> Self {
        Self { coefficients, affine: coefficients.map(|c| AFFINE[usize::from(c)]) }
    }
}

/// One pass of a kernel: columns and sources of the same number, all sources and outputs at least as long as the range.
pub(super) struct Pass<'a, 'b, 'c> {
    pub(super) columns: &'a [Column],
    pub(super) sources: &'a [&'a [u8]],
    pub(super) outputs: &'b mut [&'c mut [u8]],
    pub(super) range: std::ops::Range<usize>,
    /// The first output's coefficients are all 1: it is a plain XOR.
    pub(super) first_is_xor: bool,
    /// Products are added to the contents of the outputs, which are otherwise overwritten.
    pub(super) adds: bool,
}

impl<'a, 'b, 'c> Pass<'a, 'b, 'c> {
    fn new(
        columns: &'a [Column],
        sources: &'a [&'a [u8]],
        outputs: &'b mut [&'c mut [u8]],
        range: std::ops::Range<usize>,
        adds: bool,
    ) -> Self {
        let first_is_xor = columns.iter().all(|column| column.coefficients[0] == 1);
        Self { columns, sources, outputs, range, first_is_xor, adds }
    }
}

/// `outputs[o] = sum over i of columns[i][o] * sources[i]`, or `+=` that. A source shorter than the outputs counts as followed
/// by zeros; at most as many sources as columns.
///
/// # Panics
/// If the outputs are not of one length, a source is longer than they are, or there are more than the code can have.
pub(super) fn combine(
    kernel: Kernel,
    columns: &[Column],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    adds: bool,
) {
    let Some(len) = outputs.first().map(|output| output.len()) else { return };
    assert!(
        outputs.len() <= MAX_OUTPUTS && outputs.iter().all(|output| output.len() == len),
        "outputs differ in length"
    );
    assert!(
        sources.len() <= columns.len() && sources.len() <= MAX_SOURCES,
        "more sources than the code has symbols"
    );
    assert!(sources.iter().all(|source| source.len() <= len), "a source is longer than the outputs");
    if sources.iter().all(|source| source.len() == len) {
        let columns = &columns[..sources.len()];
        return run(kernel, Pass::new(columns, sources, outputs, 0..len, adds));
    }
    combine_ragged(kernel, columns, sources, outputs, adds);
}

/// The same piece by piece, from where one source ends to where the next does. Titles end once, so this may take longer.
#[cold]
fn combine_ragged(
    kernel: Kernel,
    columns: &[Column],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    adds: bool,
) {
    let (mut from, len) = (0, outputs[0].len());
    while from < len {
        // All sources that have something here.
        let mut some_columns =
            [Column { coefficients: [0; MAX_OUTPUTS], affine: [0; MAX_OUTPUTS] }; MAX_SOURCES];
        let mut some_sources = [&[][..]; MAX_SOURCES];
        let (mut count, mut to) = (0, len);
        for (column, source) in columns.iter().zip(sources).filter(|(_, source)| source.len() > from) {
            (some_columns[count], some_sources[count]) = (*column, source);
            to = to.min(source.len());
            count += 1;
        }
        let (columns, sources) = (&some_columns[..count], &some_sources[..count]);
        run(kernel, Pass::new(columns, sources, &mut *outputs, from..to, adds));
        from = to;
    }
}

fn run(kernel: Kernel, pass: Pass<'_, '_, '_>) {
    match kernel {
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => x86::run_avx2(pass),
        #[cfg(target_arch = "x86_64")]
        Kernel::Gfni => x86::run_gfni(pass),
        #[cfg(target_arch = "aarch64")]
        Kernel::Neon => neon::run(pass),
        _ => scalar::run(pass),
    }
}

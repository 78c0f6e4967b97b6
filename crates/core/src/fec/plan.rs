//! The plan for missing symbols: which of those left are used, and their coefficients.

use std::collections::HashMap;
use std::sync::Arc;

use super::field::{inverse, product};
use super::kernel::{Column, Kernel, MAX_OUTPUTS, combine};
use super::{Code, count_decoded};
use crate::limits::MAX_DECODE_PLANS;

/// How the missing data symbols of a codeword come from those that are there, for one pattern of loss.
#[derive(Clone, Debug)]
pub struct DecodePlan {
    sources: Box<[usize]>,
    restores: Box<[usize]>,
    columns: Box<[Column]>,
}

impl DecodePlan {
    /// The plan for the symbols whose bits are set in `present` (bit i: data symbol i below k, then parity symbol i - k; higher
    /// bits are ignored). `None` if fewer than k are there.
    pub(super) fn new(code: &Code, present: u128) -> Option<Self> {
        let (k, m) = (code.k(), code.m());
        let has = |symbol: usize| present >> symbol & 1 != 0;
        let restores: Box<[usize]> = (0..k).filter(|symbol| !has(*symbol)).collect();
        let parities: Vec<usize> = (0..m).filter(|p| has(k + p)).take(restores.len()).collect();
        if parities.len() < restores.len() {
            return None;
        }
        // parity p = sum over lost l of a[p][l] d[l] + sum over present j of a[p][j] d[j]; solved for the lost ones.
        let mut lost = [[0; MAX_OUTPUTS]; MAX_OUTPUTS];
        for (row, p) in parities.iter().enumerate() {
            for (column, l) in restores.iter().enumerate() {
                lost[row][column] = code.coefficient(*p, *l);
            }
        }
        let inverted = invert(lost, restores.len())?;
        let data = (0..k).filter(|symbol| has(*symbol)).map(|symbol| {
            let parts: Vec<u8> = parities.iter().map(|p| code.coefficient(*p, symbol)).collect();
            let sum =
                |row: &[u8; MAX_OUTPUTS]| row.iter().zip(&parts).fold(0, |sum, (a, b)| sum ^ product(*a, *b));
            (symbol, Column::new(inverted.map(|row| sum(&row))))
        });
        let parity =
            parities.iter().enumerate().map(|(at, p)| (k + p, Column::new(inverted.map(|row| row[at]))));
        let (sources, columns): (Vec<usize>, Vec<Column>) = data.chain(parity).unzip();
        Some(Self { sources: sources.into(), restores, columns: columns.into() })
    }

    /// The symbols that are read: k of them, in ascending order (data 0..k, parity k..k+m). Data symbols that are there are all
    /// among them, and as many parities as data symbols are missing, the lowest first.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// The data symbols that are restored, in ascending order.
    pub fn restores(&self) -> &[usize] {
        &self.restores
    }

    /// Restores the missing data symbols: `out[i]` becomes symbol `restores()[i]` (fewer outputs than that: the first of them).
    /// `sources[i]` is symbol `sources()[i]`; one shorter than the outputs counts as followed by zeros, so an empty one is all
    /// zeros. Missing parity comes from [`Code::encode`] afterwards.
    ///
    /// # Panics
    /// If the outputs differ in length or are more than there are missing, if a source is longer than they are, or if there are
    /// not as many sources as the plan names.
    pub fn restore(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.restore_with(Kernel::best(), sources, out);
    }

    /// The same by a certain kernel; by the scalar one when the processor does not know it.
    ///
    /// # Panics
    /// As [`DecodePlan::restore`].
    pub fn restore_with(&self, kernel: Kernel, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        assert_eq!(sources.len(), self.sources.len(), "a plan reads as many symbols as it names");
        assert!(out.len() <= self.restores.len(), "more outputs than missing symbols");
        combine(kernel, &self.columns, sources, out, false);
        count_decoded(out);
    }
}

/// Inverse of the upper left `n` x `n` of a matrix, by Gauss and Jordan; `None` if it has none.
fn invert(
    mut matrix: [[u8; MAX_OUTPUTS]; MAX_OUTPUTS],
    n: usize,
) -> Option<[[u8; MAX_OUTPUTS]; MAX_OUTPUTS]> {
    let mut result = [[0; MAX_OUTPUTS]; MAX_OUTPUTS];
    (0..n).for_each(|i| result[i][i] = 1);
    for pivot in 0..n {
        let row = (pivot..n).find(|row| matrix[*row][pivot] != 0)?;
        matrix.swap(pivot, row);
        result.swap(pivot, row);
        let scale = inverse(matrix[pivot][pivot]);
        matrix[pivot] = matrix[pivot].map(|x| product(x, scale));
        result[pivot] = result[pivot].map(|x| product(x, scale));
        for row in (0..n).filter(|row| *row != pivot) {
            let factor = matrix[row][pivot];
            for column in 0..n {
                matrix[row][column] ^= product(factor, matrix[pivot][column]);
                result[row][column] ^= product(factor, result[pivot][column]);
            }
        }
    }
    Some(result)
}

/// The plans of one code that were needed last, so that a pattern of loss costs its matrix once. Bounded by
/// [`MAX_DECODE_PLANS`]; the one that was not used for longest goes first.
#[derive(Clone, Debug)]
pub struct Plans {
    code: Code,
    known: HashMap<u128, (Arc<DecodePlan>, u64)>,
    /// The last request: codewords of a row usually miss the same symbols.
    last: Option<(u128, Arc<DecodePlan>)>,
    uses: u64,
}

impl Plans {
    /// No plan yet.
    pub fn new(code: Code) -> Self {
        Self { code, known: HashMap::new(), last: None, uses: 0 }
    }

    /// The code that the plans are for.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// How many plans are kept.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The plan for the symbols whose bits are set in `present` (bit i: data symbol i below k, then parity symbol i - k; higher
    /// bits are ignored). `None` if fewer than k are there: nothing can be restored. Allocates when the pattern is new.
    pub fn plan(&mut self, present: u128) -> Option<Arc<DecodePlan>> {
        let symbols = self.code.k() + self.code.m();
        let present = present & ((1 << symbols) - 1);
        if let Some((known, plan)) = &self.last
            && *known == present
        {
            return Some(plan.clone());
        }
        self.uses += 1;
        let plan = match self.known.get_mut(&present) {
            Some((plan, used)) => {
                *used = self.uses;
                plan.clone()
            }
            None => self.make(present)?,
        };
        self.last = Some((present, plan.clone()));
        Some(plan)
    }

    fn make(&mut self, present: u128) -> Option<Arc<DecodePlan>> {
        let plan = Arc::new(DecodePlan::new(&self.code, present)?);
        if self.known.len() >= MAX_DECODE_PLANS
            && let Some(oldest) =
                self.known.iter().min_by_key(|(_, (_, used))| *used).map(|(present, _)| *present)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(present, (plan.clone(), self.uses));
        Some(plan)
    }
}

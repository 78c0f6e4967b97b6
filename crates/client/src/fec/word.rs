//! Words of a code: packets at even distances, whose missing ones are recovered from the others and
//! the parities.

use std::ops::Range;

use millrace_core::fec::Plans;
use millrace_core::wire::fec::PROTECTED_FIELDS_BYTES;

/// Bytes of a symbol in front of the payload: the protected fields of the packet's header.
pub(super) const FIELDS: usize = PROTECTED_FIELDS_BYTES;
/// Symbols of a word that may be missing and still come back: as many as there are parities.
const MAX_MISSING: usize = millrace_core::limits::MAX_PARITY_UNITS;

/// Packets that a codeword covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodewordSpan {
    /// Extended number of the first.
    pub(super) base: u64,
    /// Numbers from one to the next, not 0.
    pub(super) step: u64,
    /// How many, not 0.
    pub(super) count: u64,
}

impl CodewordSpan {
    /// Its packets.
    pub(super) fn members(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |n| self.base + n * self.step)
    }

    /// Number of its last packet.
    pub(super) fn last(self) -> u64 {
        self.base + (self.count - 1) * self.step
    }

    pub(super) fn contains(self, ext: u64) -> bool {
        (self.base..=self.last()).contains(&ext) && (ext - self.base).is_multiple_of(self.step)
    }
}

/// One parity of a word: parity of the header fields, then of the payloads.
#[derive(Debug)]
pub(super) struct Parity {
    /// 0 is the XOR.
    pub(super) index: u8,
    pub(super) symbol: Vec<u8>,
}

/// A word in which something is missing, with the parities that have come.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) place: CodewordSpan,
    pub(super) parities: Vec<Parity>,
}

/// Result of an attempt to repair a word.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// More is missing than there are parities for.
    NotYet,
    /// Nothing is missing.
    Whole,
    /// The missing packets with their symbols, as long as the parity.
    Repaired(Vec<(u64, Vec<u8>)>),
    /// The packets do not fit the parity: it is not theirs.
    Unfit,
}

fn xor_into(sum: &mut [u8], symbol: &[u8]) {
    sum.iter_mut().zip(symbol).for_each(|(sum, byte)| *sum ^= byte);
}

impl Word {
    /// Tries to repair it. `known` gives the symbols that are there, `plans` are those of the code if it has one.
    pub(super) fn attempt<'a>(
        &self,
        known: impl Fn(u64) -> Option<&'a [u8]>,
        plans: Option<&mut Plans>,
    ) -> Attempt {
        let mut missing = [0; MAX_MISSING];
        let mut count = 0;
        for (n, ext) in self.place.members().enumerate() {
            if known(ext).is_none() {
                if count == self.parities.len().min(MAX_MISSING) {
                    return Attempt::NotYet;
                }
                missing[count] = n;
                count += 1;
            }
        }
        let missing = &missing[..count];
        let Some(first) = self.parities.first().filter(|_| count > 0) else { return Attempt::Whole };
        let len = first.symbol.len();
        if self.place.members().filter_map(&known).any(|symbol| symbol.len() > len) {
            return Attempt::Unfit;
        }
        let restored = match (missing, self.parities.iter().find(|parity| parity.index == 0), plans) {
            ([_], Some(xor), _) => {
                let mut sum = xor.symbol.clone();
                self.place.members().filter_map(&known).for_each(|symbol| xor_into(&mut sum, symbol));
                vec![sum]
            }
            (_, _, Some(plans)) => match self.decode(missing, &known, plans, len) {
                Some(restored) => restored,
                None => return Attempt::NotYet,
            },
            _ => return Attempt::NotYet,
        };
        let number = |n: &usize| self.place.base + *n as u64 * self.place.step;
        Attempt::Repaired(missing.iter().map(number).zip(restored).collect())
    }

    fn decode<'a>(
        &self,
        missing: &[usize],
        known: &impl Fn(u64) -> Option<&'a [u8]>,
        plans: &mut Plans,
        len: usize,
    ) -> Option<Vec<Vec<u8>>> {
        let k = plans.code().k();
        // The symbols past the end of the title are known: zeros.
        let data = (1u128 << k) - 1;
        let present = missing.iter().fold(data, |bits, n| bits & !(1 << n));
        let present =
            self.parities.iter().fold(present, |bits, parity| bits | 1 << (k + usize::from(parity.index)));
        let plan = plans.plan(present)?;
        let symbol = |source: &usize| -> &[u8] {
            if *source >= k {
                let parity = self.parities.iter().find(|parity| usize::from(parity.index) == source - k);
                return parity.map_or(&[], |parity| &parity.symbol);
            }
            let n = *source as u64;
            if n >= self.place.count {
                return &[];
            }
            known(self.place.base + n * self.place.step).unwrap_or_default()
        };
        let sources: Vec<&[u8]> = plan.sources().iter().map(symbol).collect();
        let mut restored = vec![vec![0; len]; missing.len()];
        let mut out: Vec<&mut [u8]> = restored.iter_mut().map(Vec::as_mut_slice).collect();
        plan.restore(&sources, &mut out);
        Some(restored)
    }
}

/// Returns the payload of a symbol, whose length field gives its share of the rest; `None` if it
/// cannot be that long, or if anything other than zeros lies behind it.
pub(super) fn payload_range(symbol: &[u8]) -> Option<Range<usize>> {
    let len = usize::from(u16::from_be_bytes([*symbol.first()?, *symbol.get(1)?]));
    let rest = symbol.get(FIELDS + len..)?;
    (len > 0 && rest.iter().all(|byte| *byte == 0)).then_some(FIELDS..FIELDS + len)
}

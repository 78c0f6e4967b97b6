//! Some stripes of a title in memory: the data read, the correct part of it, and the data restored
//! by the code.
//!
//! A symbol is one packet of a unit: packet j of all units of a stripe is a codeword. Symbol i is
//! data unit i below k, and parity unit i - k from there on. Data beyond the title's end is zero
//! and always correct.

use millrace_core::fec::{Code, Plans};
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::wire::checksum::sum16;

use crate::meta::PacketCrc;
use crate::stripes::StripeLayout;

const PACKET: usize = DEFAULT_PACKET_BYTES;

/// A codeword that cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsolved {
    /// The stripe of the title.
    pub(crate) stripe: u32,
    /// The place in each unit.
    pub(crate) j: usize,
    /// Symbols that are not right.
    pub(crate) wrong: u128,
}

/// The stripes in memory.
pub(crate) struct Grid {
    shape: StripeLayout,
    plans: Plans,
    first_stripe: u32,
    stripes: u32,
    /// By stripe, then unit, then packet.
    bytes: Vec<u8>,
    /// Stored sums in the same order.
    sums: Vec<u16>,
    /// Stored CRCs likewise, where they are known.
    crcs: Vec<Option<PacketCrc>>,
    /// Whether those of the parity are known.
    parity_known: bool,
    /// For each codeword, by stripe, then place: the symbols that have their sums and CRCs.
    right: Vec<u128>,
    scratch: Vec<u8>,
}

impl Grid {
    /// Nothing in it yet. `None` if there is no such code.
    pub(crate) fn new(shape: StripeLayout) -> Option<Self> {
        let plans = Plans::new(Code::new(shape.k(), shape.m())?);
        let (bytes, sums, right) = (Vec::new(), Vec::new(), Vec::new());
        let (crcs, parity_known, scratch) = (Vec::new(), true, Vec::new());
        Some(Self {
            shape,
            plans,
            first_stripe: 0,
            stripes: 0,
            bytes,
            sums,
            crcs,
            parity_known,
            right,
            scratch,
        })
    }

    /// Empties it for `stripes` stripes from `first_row` on. `data_sums` are those of the title's packets in these stripes, fewer in
    /// the last one; `parity_sums` those of all parity packets, by stripe, unit and place, or none if they are not known: then what
    /// is put of the parity must be right.
    pub(crate) fn begin(&mut self, first_stripe: u32, stripes: u32, data_sums: &[u16], parity_sums: &[u16]) {
        let shape = self.shape;
        let (units, in_unit) = (self.units(), self.in_unit());
        (self.first_stripe, self.stripes) = (first_stripe, stripes);
        let stripes = stripes as usize;
        self.bytes.clear();
        self.bytes.resize(stripes * units * shape.unit_bytes(), 0);
        self.sums.clear();
        self.crcs.clear();
        self.right.clear();
        self.right.resize(stripes * in_unit, 0);
        let (data_stripe, parity_stripe) = (shape.k() * in_unit, shape.m() * in_unit);
        self.parity_known = parity_stripe == 0 || !parity_sums.is_empty();
        for stripe in 0..stripes {
            let data = data_sums.get(stripe * data_stripe..).unwrap_or_default();
            let data = &data[..data.len().min(data_stripe)];
            self.sums.extend_from_slice(data);
            self.sums.resize((stripe * units + shape.k()) * in_unit, 0);
            let parity = parity_sums.get(stripe * parity_stripe..).unwrap_or_default();
            self.sums.extend_from_slice(&parity[..parity.len().min(parity_stripe)]);
            self.sums.resize((stripe + 1) * units * in_unit, 0);
            for unit in 0..shape.k() {
                let media = shape.media_in_unit(first_stripe + stripe as u32, unit).div_ceil(PACKET);
                for right in &mut self.right[stripe * in_unit + media..(stripe + 1) * in_unit] {
                    *right |= 1 << unit;
                }
            }
        }
    }

    /// The CRCs of the same packets, in the same order as the sums: of the title's, and of the parity's; either may be missing.
    /// Called before anything is put.
    pub(crate) fn know_crcs(&mut self, data: &[PacketCrc], parity: &[PacketCrc]) {
        let (units, in_unit, k) = (self.units(), self.in_unit(), self.shape.k());
        self.crcs.clear();
        self.crcs.resize(self.stripes as usize * units * in_unit, None);
        for (stripe, crcs) in self.crcs.chunks_mut((units * in_unit).max(1)).enumerate() {
            let (of_data, of_parity) = crcs.split_at_mut(k * in_unit);
            for (known, of) in [(data, of_data), (parity, of_parity)] {
                let known = known.iter().skip(stripe * of.len());
                of.iter_mut().zip(known).for_each(|(place, crc)| *place = Some(*crc));
            }
        }
    }

    /// Whether bytes have the stored CRC of a packet, as far as it is known.
    fn has_crc(&self, index: usize, bytes: &[u8]) -> bool {
        self.crcs.get(index).copied().flatten().is_none_or(|crc| crc == PacketCrc::of(bytes))
    }

    /// The stripes of the title that are in it.
    pub(crate) fn stripes(&self) -> std::ops::Range<u32> {
        self.first_stripe..self.first_stripe + self.stripes
    }

    /// Stores the data read from a unit, starting at its first packet: each packet that matches its
    /// stored sum and CRC counts as correct. Returns the packets that do not match.
    pub(crate) fn put(&mut self, stripe: u32, unit: usize, bytes: &[u8]) -> Vec<usize> {
        let mut wrong = Vec::new();
        let start = self.unit_start(stripe, unit);
        for (j, packet) in bytes.chunks(PACKET).enumerate().take(self.in_unit()) {
            let index = start + j;
            // A short packet is the title's last one: the data behind it is zero and adds nothing
            // to the sum.
            let right =
                (!self.knows(unit) || sum16(packet) == self.sums[index]) && self.has_crc(index, packet);
            let word = self.word(stripe, j);
            let known = &mut self.right[word];
            if right && *known >> unit & 1 == 0 {
                self.bytes[index * PACKET..][..packet.len()].copy_from_slice(packet);
                *known |= 1 << unit;
            }
            if !right {
                wrong.push(j);
            }
        }
        wrong
    }

    /// The bytes of a unit.
    pub(crate) fn unit(&self, stripe: u32, unit: usize) -> &[u8] {
        let start = self.unit_start(stripe, unit) * PACKET;
        &self.bytes[start..start + self.shape.unit_bytes()]
    }

    /// Whether every packet of a unit is right.
    pub(crate) fn is_whole(&self, stripe: u32, unit: usize) -> bool {
        let first = (stripe - self.first_stripe) as usize * self.in_unit();
        self.right[first..first + self.in_unit()].iter().all(|right| right >> unit & 1 != 0)
    }

    /// Restores all incorrect data from the correct data. With `suspects` (the symbols of a stripe
    /// whose files have a wrong hash), codewords are also compared with the code where all sums
    /// match. Returns the codewords that cannot be restored; their incorrect data stays as it is.
    pub(crate) fn solve(&mut self, suspects: Option<&dyn Fn(u32) -> u128>) -> Vec<Unsolved> {
        let all = (1u128 << self.units()) - 1;
        let mut unsolved = Vec::new();
        for stripe in self.stripes() {
            let mut j = 0;
            while j < self.in_unit() {
                let right = self.right[self.word(stripe, j)];
                let alike =
                    (j..self.in_unit()).take_while(|&j| self.right[self.word(stripe, j)] == right).count();
                if right != all || suspects.is_some() {
                    let agreed = self.restore(stripe, j, alike, right);
                    for (j, agreed) in (j..).zip(agreed) {
                        let suspects = suspects.map_or(0, |of| of(stripe));
                        if !agreed && !self.settle(stripe, j, right, suspects) {
                            unsolved.push(Unsolved { stripe, j, wrong: all & !right });
                        }
                    }
                }
                j += alike;
            }
        }
        unsolved
    }

    /// Codewords of a stripe whose parity is not that of their data; all must be right by their sums.
    pub(crate) fn contradictions(&mut self, stripe: u32) -> Vec<usize> {
        let shape = self.shape;
        let unit_bytes = shape.unit_bytes();
        let start = self.unit_start(stripe, 0) * PACKET;
        let units: Vec<&[u8]> = self.bytes[start..].chunks(unit_bytes).take(self.units()).collect();
        self.scratch.clear();
        self.scratch.resize(shape.m() * unit_bytes, 0);
        let mut parity: Vec<&mut [u8]> = self.scratch.chunks_mut(unit_bytes).collect();
        self.plans.code().encode(&units[..shape.k()], &mut parity);
        let at = |j: usize| j * PACKET..(j + 1) * PACKET;
        let differs = |j: &usize| {
            parity.iter().zip(&units[shape.k()..]).any(|(made, stored)| made[at(*j)] != stored[at(*j)])
        };
        (0..shape.unit_packets() as usize).filter(differs).collect()
    }

    /// Restores places `j..j + count` of a stripe, where the same symbols are `right`: those whose codeword agrees with every
    /// stored sum and every symbol that was right. Says which did.
    fn restore(&mut self, stripe: u32, j: usize, count: usize, right: u128) -> Vec<bool> {
        let Some(made) = self.codewords(stripe, j, count, right) else { return vec![false; count] };
        let mut agreed = Vec::with_capacity(count);
        for place in 0..count {
            agreed.push(self.agrees(stripe, j + place, right, place, &made));
            if agreed[place] {
                self.take(stripe, j + place, place, &made);
            }
        }
        agreed
    }

    /// Returns whether place `place` of the data reconstructed for place `j` of a stripe matches
    /// the symbols that were `right`, and the stored sums of the others.
    fn agrees(&self, stripe: u32, j: usize, right: u128, place: usize, made: &[Vec<u8>]) -> bool {
        made.iter().enumerate().all(|(unit, made)| {
            let made = &made[place * PACKET..][..PACKET];
            let is_right = right >> unit & 1 != 0;
            if is_right {
                made == self.packet(self.unit_start(stripe, unit) + j)
            } else {
                self.has_sum(stripe, unit, j, made)
            }
        })
    }

    /// All symbols at places `j..j + count` as they follow from those that are `right`; `None` if these are too few.
    fn codewords(&mut self, stripe: u32, j: usize, count: usize, right: u128) -> Option<Vec<Vec<u8>>> {
        let shape = self.shape;
        let plan = self.plans.plan(right)?;
        let len = count * PACKET;
        let stored = |unit: usize| {
            let start = (self.unit_start(stripe, unit) + j) * PACKET;
            &self.bytes[start..start + len]
        };
        let mut made: Vec<Vec<u8>> = (0..self.units()).map(|_| vec![0; len]).collect();
        for &unit in plan.sources().iter().filter(|&&unit| unit < shape.k()) {
            made[unit].copy_from_slice(stored(unit));
        }
        let sources: Vec<&[u8]> = plan.sources().iter().map(|&unit| stored(unit)).collect();
        let mut restored = vec![0; plan.restores().len() * len];
        let mut out: Vec<&mut [u8]> = restored.chunks_mut(len).collect();
        plan.restore(&sources, &mut out);
        for (&unit, bytes) in plan.restores().iter().zip(out) {
            made[unit].copy_from_slice(bytes);
        }
        let (data, parity) = made.split_at_mut(shape.k());
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        self.plans.code().encode(&data, &mut parity);
        Some(made)
    }

    /// For a codeword that contradicts itself although its sums are right, or whose restored symbols have wrong sums: leaves
    /// out the suspects, then each symbol in turn. Taken is what agrees with everything else, if only one thing does.
    fn settle(&mut self, stripe: u32, j: usize, right: u128, suspects: u128) -> bool {
        let units = self.units();
        let suspected = right & suspects;
        if suspected != 0
            && let Some(made) = self.without(stripe, j, right, suspected)
        {
            self.take(stripe, j, 0, &made);
            return true;
        }
        let mut found: Option<Vec<Vec<u8>>> = None;
        for unit in (0..units).filter(|unit| right >> unit & 1 != 0) {
            let Some(made) = self.without(stripe, j, right, 1 << unit) else { continue };
            match &found {
                Some(other) if *other != made => return false,
                _ => found = Some(made),
            }
        }
        let Some(made) = found else { return false };
        self.take(stripe, j, 0, &made);
        true
    }

    /// The codeword that follows without the symbols `left_out`, if it agrees with all stored sums and all other symbols.
    fn without(&mut self, stripe: u32, j: usize, right: u128, left_out: u128) -> Option<Vec<Vec<u8>>> {
        let kept = right & !left_out;
        let made = self.codewords(stripe, j, 1, kept)?;
        self.agrees(stripe, j, kept, 0, &made).then_some(made)
    }

    /// Whether bytes have the stored sum and CRC of a packet; beyond the title's end, whether they are zero.
    fn has_sum(&self, stripe: u32, unit: usize, j: usize, bytes: &[u8]) -> bool {
        let in_unit = if unit < self.shape.k() {
            self.shape.media_in_unit(stripe, unit)
        } else {
            self.shape.unit_bytes()
        };
        let (media, beyond) = bytes.split_at(in_unit.saturating_sub(j * PACKET).min(bytes.len()));
        if beyond.iter().any(|&byte| byte != 0) {
            return false;
        }
        let index = self.unit_start(stripe, unit) + j;
        media.is_empty()
            || (!self.knows(unit) || sum16(media) == self.sums[index]) && self.has_crc(index, media)
    }

    /// Whether a unit has stored sums.
    fn knows(&self, unit: usize) -> bool {
        self.parity_known || unit < self.shape.k()
    }

    /// Takes place `place` of the data reconstructed for place `j` of a stripe: from here on the
    /// whole codeword is correct.
    fn take(&mut self, stripe: u32, j: usize, place: usize, made: &[Vec<u8>]) {
        for (unit, made) in made.iter().enumerate() {
            let index = self.unit_start(stripe, unit) + j;
            self.bytes[index * PACKET..][..PACKET].copy_from_slice(&made[place * PACKET..][..PACKET]);
        }
        let word = self.word(stripe, j);
        self.right[word] = (1 << self.units()) - 1;
    }

    fn units(&self) -> usize {
        self.shape.k() + self.shape.m()
    }

    fn in_unit(&self) -> usize {
        self.shape.unit_packets() as usize
    }

    fn packet(&self, index: usize) -> &[u8] {
        &self.bytes[index * PACKET..][..PACKET]
    }

    fn word(&self, stripe: u32, j: usize) -> usize {
        (stripe - self.first_stripe) as usize * self.in_unit() + j
    }

    /// Index of the first packet of a unit.
    fn unit_start(&self, stripe: u32, unit: usize) -> usize {
        ((stripe - self.first_stripe) as usize * self.units() + unit) * self.in_unit()
    }
}

#[cfg(test)]
#[path = "grid_tests.rs"]
mod tests;

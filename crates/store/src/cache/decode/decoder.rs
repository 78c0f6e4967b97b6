//! Restores stripes with missing or wrong data, codeword by codeword, from data and parity that
//! match their stored sums and CRCs, where these can be read: one of the two is enough.

use std::collections::HashMap;
use std::ops::Range;

use millrace_core::fec::{Code, Plans};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_PARITY_UNITS};
use millrace_core::wire::checksum::{copy_sum16, sum16};

use super::records::{Records, load_crcs};
use super::results::Results;
use crate::cache::crcs::Crcs;
use crate::cache::order::Role;
use crate::limits::cache::CODES_KEPT;
use crate::member_set::PositionSet;
use crate::stripes::StripeLayout;

/// Decodes stripes; keeps its scratch memory and the plans.
#[derive(Default)]
pub(in crate::cache) struct Decoder {
    /// The stripes as media, zeros where nothing is known.
    media: Vec<u8>,
    /// Which symbols of each codeword are there: bit of data unit, `k` + parity.
    present: Vec<u128>,
    media_metas: Records,
    parity_metas: Records,
    media_crcs: Crcs,
    parity_crcs: Crcs,
    restored: Vec<u8>,
    plans: HashMap<(usize, usize), Plans>,
}

/// Decoded stripes.
pub(in crate::cache) struct Decoded<'a> {
    /// First byte of the first stripe.
    pub(in crate::cache) start: u64,
    /// The stripes as media, followed by zeros.
    pub(in crate::cache) media: &'a [u8],
    present: &'a [u128],
    stripes: StripeLayout,
    first_stripe: u32,
    /// Bytes that were restored.
    pub(in crate::cache) bytes: u64,
    /// Positions whose bytes did not have their sums.
    pub(in crate::cache) wrong_positions: PositionSet,
    /// Whether the CRCs of the title were known: correct packets then match them.
    pub(in crate::cache) crcs_known: bool,
}

impl Decoded<'_> {
    /// For each default-size packet from the first stripe on, up to the end of `bytes`: whether it is right.
    pub(in crate::cache) fn good_until(&self, bytes: &Range<u64>) -> Vec<bool> {
        let (k, columns) = (self.stripes.k(), self.stripes.unit_packets() as usize);
        let count = (bytes.end - self.start).div_ceil(DEFAULT_PACKET_BYTES as u64) as usize;
        let is_good = |packet: usize| {
            let (stripe, unit, column) = (packet / (k * columns), packet / columns % k, packet % columns);
            self.present.get(stripe * columns + column).is_some_and(|present| present >> unit & 1 != 0)
        };
        debug_assert_eq!(self.start, u64::from(self.first_stripe) * self.stripes.stripe_bytes());
        (0..count).map(is_good).collect()
    }
}

/// The state of one pass over stripes.
struct Pass<'a> {
    stripes: &'a StripeLayout,
    touched: Range<u32>,
    /// Default-size packets that are needed, counted from the first stripe's first.
    needed: Range<usize>,
    results: Results<'a>,
    bytes: u64,
    wrong_positions: PositionSet,
}

impl Decoder {
    /// Decodes what `bytes` of the title touch from everything that came of a thorough order. What nothing proves is not used.
    pub(in crate::cache) fn decode<'d>(
        &'d mut self,
        stripes: &StripeLayout,
        bytes: &Range<u64>,
        results: Results<'_>,
    ) -> Decoded<'d> {
        let touched = stripes.stripes_of(bytes);
        let start = u64::from(touched.start) * stripes.stripe_bytes();
        let (of_media, of_parity) = (stripes.media_records(&touched), stripes.parity_records(&touched));
        self.media_metas.read(of_media, results, Role::StripeMeta);
        self.parity_metas.read(of_parity, results, Role::ParityMeta);
        let crcs_known = load_crcs(&mut self.media_crcs, of_media, results, Role::Crcs);
        load_crcs(&mut self.parity_crcs, of_parity, results, Role::ParityCrcs);
        let packet = DEFAULT_PACKET_BYTES as u64;
        let needed = ((bytes.start - start) / packet) as usize..(bytes.end - start).div_ceil(packet) as usize;
        let wrong_positions = PositionSet::EMPTY;
        let mut pass = Pass { stripes, touched, needed, results, bytes: 0, wrong_positions };
        self.take_data(&mut pass);
        self.restore(&mut pass);
        let Pass { touched, bytes, wrong_positions, .. } = pass;
        let (media, present) = (&self.media[..], &self.present[..]);
        let first_stripe = touched.start;
        let stripes = *stripes;
        Decoded { start, media, present, stripes, first_stripe, bytes, wrong_positions, crcs_known }
    }

    /// Copies the data that came and has its sums to its place.
    fn take_data(&mut self, pass: &mut Pass<'_>) {
        let (stripes, columns) = (pass.stripes, pass.stripes.unit_packets() as usize);
        let count = pass.touched.len();
        self.media.clear();
        self.media.resize(count * stripes.stripe_bytes() as usize, 0);
        self.present.clear();
        self.present.resize(count * columns, 0);
        let first = stripes.media_records(&pass.touched).0;
        let units = pass.touched.clone().flat_map(|stripe| (0..stripes.k()).map(move |unit| (stripe, unit)));
        for ((stripe, unit), media) in units.zip(self.media.chunks_mut(stripes.unit_bytes())) {
            let (in_unit, position) =
                (stripes.media_in_unit(stripe, unit), stripes.position_of(stripe, unit));
            let (role, offset) = (Role::Data { position: position as u16 }, stripes.offset_of(stripe, unit));
            let codewords = (stripe - pass.touched.start) as usize * columns;
            let packets =
                (stripe - pass.touched.start) as usize * stripes.stripe_packets() as usize + unit * columns;
            for (column, room) in media.chunks_mut(DEFAULT_PACKET_BYTES).enumerate() {
                let start = column * DEFAULT_PACKET_BYTES;
                let length = in_unit.saturating_sub(start).min(DEFAULT_PACKET_BYTES);
                let bytes = pass.results.bytes_at(role, offset + start as u64, length);
                let bytes = Some(bytes).filter(|bytes| bytes.len() == length);
                let is_right = bytes.and_then(|bytes| {
                    let sum = copy_sum16(&mut room[..length], bytes);
                    let (record, crcs) = (packets + column, &self.media_crcs);
                    self.media_metas.prove(record, crcs, first + record as u32, sum, bytes)
                });
                // Behind the end of the title everything is zero, and known to be.
                if length == 0 || is_right == Some(true) {
                    self.present[codewords + column] |= 1 << unit;
                } else {
                    room.fill(0);
                    if is_right.is_some() {
                        pass.wrong_positions.insert(position as u16);
                    }
                }
            }
        }
    }

    /// Restores the packets that are needed and not there.
    fn restore(&mut self, pass: &mut Pass<'_>) {
        let stripes = pass.stripes;
        let (k, m, columns) = (stripes.k(), stripes.m(), stripes.unit_packets() as usize);
        if self.plans.len() >= CODES_KEPT && !self.plans.contains_key(&(k, m)) {
            self.plans.clear();
        }
        let Some(code) = Code::new(k, m) else { return };
        let mut plans = self.plans.remove(&(k, m)).unwrap_or_else(|| Plans::new(code));
        let data = (1u128 << k) - 1;
        for codeword in 0..self.present.len() {
            let (stripe, column) = (codeword / columns, codeword % columns);
            let missing = data & !self.present[codeword];
            let is_needed = |unit: usize| pass.needed.contains(&((stripe * k + unit) * columns + column));
            if (0..k).any(|unit| missing >> unit & 1 != 0 && is_needed(unit)) {
                self.restore_codeword(pass, &mut plans, codeword);
            }
        }
        self.plans.insert((k, m), plans);
    }

    fn restore_codeword(&mut self, pass: &mut Pass<'_>, plans: &mut Plans, codeword: usize) {
        let stripes = pass.stripes;
        let (k, m, columns) = (stripes.k(), stripes.m(), stripes.unit_packets() as usize);
        let (stripe, column) = (codeword / columns, codeword % columns);
        let in_unit = (column * DEFAULT_PACKET_BYTES) as u64;
        let file_row = pass.touched.start + stripe as u32;
        let mut parity = [&[][..]; MAX_PARITY_UNITS];
        let mut present = self.present[codeword];
        for (p, place) in parity.iter_mut().enumerate().take(m) {
            if present.count_ones() as usize >= k {
                break;
            }
            let position = stripes.position_of(file_row, k + p) as u16;
            let from = stripes.offset_of(file_row, k + p) + in_unit;
            let bytes = pass.results.bytes_at(Role::Parity { position }, from, DEFAULT_PACKET_BYTES);
            if bytes.len() < DEFAULT_PACKET_BYTES {
                continue;
            }
            let record = (stripe * m + p) * columns + column;
            let number = stripes.parity_records(&pass.touched).0 + record as u32;
            match self.parity_metas.prove(record, &self.parity_crcs, number, sum16(bytes), bytes) {
                Some(true) => {
                    present |= 1 << (k + p);
                    *place = bytes;
                }
                Some(false) => pass.wrong_positions.insert(position),
                None => {}
            }
        }
        let Some(plan) = plans.plan(present) else { return };
        let place = |unit: usize| ((stripe * k + unit) * columns + column) * DEFAULT_PACKET_BYTES;
        let source = |&symbol: &usize| match symbol.checked_sub(k) {
            Some(p) => parity[p],
            None => &self.media[place(symbol)..place(symbol) + DEFAULT_PACKET_BYTES],
        };
        let sources: Vec<&[u8]> = plan.sources().iter().map(source).collect();
        self.restored.resize(plan.restores().len() * DEFAULT_PACKET_BYTES, 0);
        let mut out: Vec<&mut [u8]> = self.restored.chunks_mut(DEFAULT_PACKET_BYTES).collect();
        plan.restore(&sources, &mut out);
        for (&unit, bytes) in plan.restores().iter().zip(self.restored.chunks(DEFAULT_PACKET_BYTES)) {
            let record = (stripe * k + unit) * columns + column;
            let in_unit = stripes.media_in_unit(pass.touched.start + stripe as u32, unit);
            let length = in_unit.saturating_sub(column * DEFAULT_PACKET_BYTES).min(DEFAULT_PACKET_BYTES);
            let number = stripes.media_records(&pass.touched).0 + record as u32;
            // The padding beyond the title's end is zero, so the sum of all is that of the packet.
            let (sum, bytes_of_it) = (sum16(bytes), &bytes[..length]);
            if self.media_metas.prove(record, &self.media_crcs, number, sum, bytes_of_it) == Some(true) {
                self.media[place(unit)..place(unit) + DEFAULT_PACKET_BYTES].copy_from_slice(bytes);
                self.present[codeword] |= 1 << unit;
                pass.bytes += DEFAULT_PACKET_BYTES as u64;
            }
        }
    }
}

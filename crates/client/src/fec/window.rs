//! The receive window: keeps packets in a ring, repairs missing ones and delivers everything in
//! order.
//!
//! Memory is bounded by the ring: four matrices plus the packets that may be out of order or late,
//! and at most as many parities. Time is bounded in packets: missing packets are given up when the
//! sender is two matrices further and its FEC has had some time to be late, or when nothing comes
//! for a while.

use millrace_core::fec::Plans;
use millrace_core::limits::{MAX_FEC_MATRIX_PACKETS, SLOW_READ_NS};
use millrace_core::time::Instant;
use millrace_core::wire::fec::{FecHeader, FecKind, protected_fields, split_fields};
use millrace_core::wire::rtp::RtpHeader;
use serde::Serialize;

use super::CodeShape;
use super::word::{Attempt, CodewordSpan, FIELDS, Parity, Word, payload_range};
use crate::limits::{FEC_LATE_PACKETS, FEC_REORDER_PACKETS, MAX_FEC_WINDOW_PACKETS};
use crate::reorder::InOrder;

/// How far a repaired timestamp may lie outside its neighbours', in ticks of 90 kHz: 5 s. Repair from packets of another place
/// of the title gives any of 2^32.
const TIMESTAMP_SLACK: u32 = 450_000;

/// A run that begins no more than this many packets after the highest of the previous run continues
/// it: packets are lost around a pause too. A seek may lead as near: [`Window::jump`].
const RESUME_PACKETS: u16 = 16;

/// How much later than due FEC may come: a disk of the server hangs while its title goes on.
const LATE_NS: u64 = SLOW_READ_NS;

/// Counts since the start, over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FecCounts {
    /// FEC packets that came.
    pub fec_packets: u64,
    /// Media packets that were repaired in time and never came themselves.
    pub repaired: u64,
    /// Media packets given up: missing in the output.
    pub lost: u64,
    /// Media packets that were still missing, and not given up, when a seek, a pause or the viewer's own end came before the FEC
    /// that might have repaired them.
    pub unsettled: u64,
    /// Media packets that came, or could be repaired, after they had been given up.
    pub late: u64,
    /// FEC packets that had nothing to repair: all was there, or it was given up already.
    pub useless: u64,
    /// FEC packets that are none, or do not fit the media that came.
    pub unfit: u64,
}

impl FecCounts {
    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            fec_packets: self.fec_packets + other.fec_packets,
            repaired: self.repaired + other.repaired,
            lost: self.lost + other.lost,
            unsettled: self.unsettled + other.unsettled,
            late: self.late + other.late,
            useless: self.useless + other.useless,
            unfit: self.unfit + other.unfit,
        }
    }
}

#[derive(Debug, Default)]
struct SymbolSlot {
    /// Whose symbol it is.
    ext: Option<u64>,
    /// It was repaired in time, and has not come itself.
    is_repaired: bool,
    /// When it came or was repaired.
    at: Instant,
    symbol: Vec<u8>,
}

/// A receive window that repairs.
#[derive(Debug, Default)]
pub struct Window {
    slots: Vec<SymbolSlot>,
    /// Packets of the largest matrix seen in this run.
    matrix: usize,
    code: Option<(CodeShape, Plans)>,
    /// That of the media, once some has come.
    payload_type: Option<u8>,
    /// Where the run began: earlier packets were not sent to us.
    first: u64,
    /// Next number to give out; `None` before the first run.
    next: Option<u64>,
    /// One behind the highest number that came, and that some word in use names.
    end: u64,
    named_end: u64,
    /// One past the last packet of any word kept: packets from there on complete nothing.
    words_end: u64,
    arrived: Instant,
    wait_ns: u64,
    is_paused: bool,
    /// The next run begins elsewhere, whatever its first number.
    is_jumping: bool,
    words: Vec<Word>,
    counts: FecCounts,
}

impl Window {
    /// Creates a window that gives up missing packets when nothing has come for `wait_ns`. `shape`
    /// is that of the sender's Reed-Solomon code; without one the window repairs by XOR only.
    pub fn new(wait_ns: u64, shape: Option<CodeShape>) -> Self {
        let shape = shape.filter(CodeShape::is_sensible);
        let code = shape.and_then(|shape| Some((shape, Plans::new(shape.code()?))));
        let matrix =
            code.as_ref().map_or(MAX_FEC_MATRIX_PACKETS as usize, |(shape, _)| shape.matrix_packets());
        let mut window = Self { code, wait_ns, ..Self::default() };
        window.learn(matrix);
        window
    }

    /// Begins a run at `start`. After a pause, where the numbers on the wire go on, missing packets
    /// may still be repaired; otherwise the packets held are delivered, and everything before is
    /// forgotten.
    pub fn begin(&mut self, start: u64, out: &mut dyn InOrder) {
        self.is_paused = false;
        let is_jump = std::mem::take(&mut self.is_jumping);
        let ahead = (start as u16).wrapping_sub(self.end as u16);
        let end = start.saturating_sub(u64::from(ahead));
        if !is_jump && self.next.is_some() && ahead <= RESUME_PACKETS && end >= self.end {
            return self.renumber(end - self.end);
        }
        self.cut(out);
        self.slots.iter_mut().for_each(|slot| slot.ext = None);
        self.words.clear();
        (self.first, self.next) = (start, Some(start));
        (self.end, self.named_end, self.words_end) = (start, start, 0);
    }

    /// The same packets have numbers that are higher by `by` from now on.
    fn renumber(&mut self, by: u64) {
        self.next = self.next.map(|next| next + by);
        for number in [&mut self.first, &mut self.end, &mut self.named_end, &mut self.words_end] {
            *number += by;
        }
        self.words.iter_mut().for_each(|word| word.place.base += by);
        self.slots.iter_mut().filter_map(|slot| slot.ext.as_mut()).for_each(|ext| *ext += by);
        self.arrange(self.slots.len());
    }

    /// Marks a pause that the viewer requested: nothing comes, and missing packets are waited for
    /// until the title goes on.
    pub fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Marks a seek. The FEC of packets missing now is no longer sent, even if the new position
    /// follows the last packet sent: a viewer that seeks to the next random access point may be
    /// there already.
    pub fn jump(&mut self) {
        self.is_jumping = true;
    }

    /// Takes the media packet with extended number `ext`; `false` if its place was given up already.
    pub fn media(
        &mut self,
        now: Instant,
        ext: u64,
        header: &RtpHeader,
        payload: &[u8],
        out: &mut dyn InOrder,
    ) -> bool {
        if self.next.is_none() {
            self.begin(ext, out);
        }
        let next = self.next.unwrap_or(ext);
        self.arrived = now;
        self.payload_type = Some(header.payload_type);
        if ext >= self.end {
            self.end = ext + 1;
            let most = self.hold() + FEC_LATE_PACKETS as u64;
            self.give_up_until(self.end.saturating_sub(most), out);
        }
        let len = self.slots.len() as u64;
        let slot = &mut self.slots[(ext % len) as usize];
        if slot.ext == Some(ext) {
            // Reordered behind its own FEC, which was not needed, or sent twice.
            let was_repaired = u64::from(std::mem::take(&mut slot.is_repaired));
            self.counts.repaired -= was_repaired;
            self.counts.useless += was_repaired;
        } else {
            let Ok(len) = u16::try_from(payload.len()) else { return true };
            let fields = protected_fields(len, header.payload_type, header.timestamp);
            self.store(ext, false, |symbol| {
                symbol.extend_from_slice(&fields);
                symbol.extend_from_slice(payload);
            });
            self.counts.late += u64::from(ext < next);
        }
        if ext < self.words_end {
            self.repair(vec![ext], out);
        }
        self.drain(out);
        self.give_up_overdue(now, out);
        ext >= next
    }

    /// Gives up what no FEC can be expected for any more, late as it may be.
    fn give_up_overdue(&mut self, now: Instant, out: &mut dyn InOrder) {
        let hold = self.hold();
        while let Some(next) = self.next.filter(|next| next + hold < self.end) {
            let arrived_at = |ext: u64| {
                let slot = &self.slots[(ext % self.slots.len() as u64) as usize];
                (slot.ext == Some(ext)).then_some(slot.at)
            };
            // From here on it was overdue.
            let since = (next + hold..self.end).find_map(arrived_at);
            if since.is_none_or(|since| now < since.plus_ns(LATE_NS)) {
                return;
            }
            self.give_up_until(next + 1, out);
        }
    }

    /// Takes a datagram of an FEC port.
    pub fn fec(&mut self, now: Instant, datagram: &[u8], out: &mut dyn InOrder) {
        self.counts.fec_packets += 1;
        let body = RtpHeader::parse(datagram).and_then(|(_, body)| FecHeader::parse(body));
        let Some((place, header, parity)) = body.and_then(|(header, parity)| {
            Some((self.place_of(&header).filter(|_| !parity.is_empty())?, header, parity))
        }) else {
            self.counts.unfit += 1;
            return;
        };
        let next = self.next.unwrap_or_default();
        let is_whole = place.members().all(|ext| ext < self.first || self.known(ext).is_some());
        if is_whole || place.last() < next {
            self.counts.useless += 1;
            return;
        }
        let mut symbol = Vec::with_capacity(FIELDS + parity.len());
        symbol.extend_from_slice(&header.recovery());
        symbol.extend_from_slice(parity);
        let Some(at) = self.add(place, Parity { index: header.index, symbol }) else { return };
        self.arrived = now;
        self.words_end = self.words_end.max(place.last() + 1);
        self.named_end = self.named_end.max(place.last() + 1);
        let changed = self.attempt(at);
        self.repair(changed, out);
        self.drain(out);
    }

    /// Which packets an FEC packet protects; `None` if they are not near those that came, or if it is of a code that is not known.
    fn place_of(&mut self, header: &FecHeader) -> Option<CodewordSpan> {
        let (step, count) = (usize::from(header.offset), usize::from(header.count));
        self.next?;
        let is_fit = match header.kind {
            FecKind::Xor => header.index == 0,
            FecKind::ReedSolomon => self.code.as_ref().is_some_and(|(shape, _)| {
                let is_further = (1..shape.parity_units).contains(&usize::from(header.index));
                is_further && !header.row && step == shape.unit_packets && count <= shape.data_units
            }),
        };
        let matrix = if header.row { count } else { step * count };
        if !is_fit || ring_packets(matrix) > MAX_FEC_WINDOW_PACKETS {
            return None;
        }
        let highest = self.end.max(1) - 1;
        let from_highest = header.sn_base.wrapping_sub(highest as u16).cast_signed();
        let base = highest.checked_add_signed(i64::from(from_highest))?;
        let place = CodewordSpan { base, step: step as u64, count: count as u64 };
        if place.last() >= self.end + matrix.max(self.matrix) as u64 {
            return None;
        }
        self.learn(matrix);
        Some(place)
    }

    /// Keeps a parity; gives the place of its word, `None` if it is of no use.
    fn add(&mut self, place: CodewordSpan, parity: Parity) -> Option<usize> {
        let Some(at) = self.words.iter().position(|word| word.place == place) else {
            if self.words.len() >= self.slots.len() {
                let oldest = (0..self.words.len()).min_by_key(|at| self.words[*at].place.last());
                oldest.map(|at| self.words.swap_remove(at));
            }
            self.words.push(Word { place, parities: vec![parity] });
            return Some(self.words.len() - 1);
        };
        let parities = &mut self.words[at].parities;
        if parities.iter().any(|other| other.index == parity.index) {
            self.counts.useless += 1;
            return None;
        }
        if parities[0].symbol.len() != parity.symbol.len() {
            self.counts.unfit += 1;
            return None;
        }
        parities.push(parity);
        Some(at)
    }

    /// Makes all repairs that the numbers `changed`, which have come or been repaired, allow.
    fn repair(&mut self, mut changed: Vec<u64>, out: &mut dyn InOrder) {
        while let Some(ext) = changed.pop() {
            let mut at = 0;
            while at < self.words.len() {
                let before = self.words.len();
                if self.words[at].place.contains(ext) {
                    changed.extend(self.attempt(at));
                }
                // A word that is done makes room for another.
                at += usize::from(self.words.len() == before);
            }
            self.drain(out);
        }
        if self.words.is_empty() {
            self.words_end = 0;
        }
    }

    /// Tries to repair one word, which is taken out when that is settled. Returns the numbers that were repaired.
    fn attempt(&mut self, at: usize) -> Vec<u64> {
        let slots = &self.slots;
        let known = |ext| known_in(slots, ext);
        let plans = self.code.as_mut().map(|(_, plans)| plans);
        match self.words[at].attempt(known, plans) {
            Attempt::NotYet => Vec::new(),
            Attempt::Whole => {
                self.counts.useless += self.words.swap_remove(at).parities.len() as u64;
                Vec::new()
            }
            Attempt::Unfit => self.drop_unfit(at),
            Attempt::Repaired(packets)
                if packets.iter().any(|(ext, symbol)| !self.is_credible(*ext, symbol)) =>
            {
                self.drop_unfit(at)
            }
            Attempt::Repaired(packets) => {
                self.words.swap_remove(at);
                let next = self.next.unwrap_or_default();
                let numbers = packets.iter().map(|(ext, _)| *ext).collect();
                for (ext, repaired) in packets {
                    let end = payload_range(&repaired).map_or(FIELDS, |range| range.end);
                    let in_time = ext >= next;
                    self.store(ext, in_time, |symbol| symbol.extend_from_slice(&repaired[..end]));
                    self.counts.repaired += u64::from(in_time);
                    self.counts.late += u64::from(!in_time && ext >= self.first);
                }
                numbers
            }
        }
    }

    fn drop_unfit(&mut self, at: usize) -> Vec<u64> {
        self.counts.unfit += self.words.swap_remove(at).parities.len() as u64;
        Vec::new()
    }

    /// Whether a repaired packet looks like one of this stream. The FEC of another position in the
    /// title, left over from before a seek, may have the numbers of this one; its result has no
    /// sensible length, payload type and timestamp.
    fn is_credible(&self, ext: u64, symbol: &[u8]) -> bool {
        let Some((fields, _)) = symbol.split_first_chunk::<FIELDS>() else { return false };
        let (_, payload_type, timestamp) = split_fields(*fields);
        if payload_range(symbol).is_none() || self.payload_type.is_some_and(|ours| ours != payload_type) {
            return false;
        }
        let reach = self.matrix as u64;
        let timestamp_of = |ext| {
            let fields = self.known(ext).and_then(|symbol| symbol.first_chunk::<FIELDS>());
            fields.map(|fields| split_fields(*fields).2)
        };
        let before = (ext.saturating_sub(reach)..ext).rev().find_map(timestamp_of);
        let after = (ext + 1..=ext + reach).find_map(timestamp_of);
        let Some(from) = before.or(after) else { return true };
        let to = after.unwrap_or(from);
        let span = to.wrapping_sub(from);
        // The sender's clock may jump; then no conclusion is possible.
        span > u32::MAX / 4
            || timestamp.wrapping_sub(from.wrapping_sub(TIMESTAMP_SLACK)) <= span + 2 * TIMESTAMP_SLACK
    }

    fn known(&self, ext: u64) -> Option<&[u8]> {
        known_in(&self.slots, ext)
    }

    /// Puts a symbol in its slot, unless a newer one is there.
    fn store(&mut self, ext: u64, is_repaired: bool, fill: impl FnOnce(&mut Vec<u8>)) {
        let len = self.slots.len() as u64;
        let slot = &mut self.slots[(ext % len) as usize];
        if slot.ext.is_none_or(|other| other < ext) {
            (slot.ext, slot.is_repaired, slot.at) = (Some(ext), is_repaired, self.arrived);
            slot.symbol.clear();
            fill(&mut slot.symbol);
        }
    }

    /// Packets behind the highest at which the FEC for a missing one should have come.
    fn hold(&self) -> u64 {
        hold_packets(self.matrix) as u64
    }

    /// A matrix of this size was seen: makes room for its like.
    fn learn(&mut self, matrix: usize) {
        if matrix <= self.matrix {
            return;
        }
        self.matrix = matrix;
        self.arrange(ring_packets(matrix));
    }

    /// Puts every packet where it belongs in a ring of `len`.
    fn arrange(&mut self, len: usize) {
        let old = std::mem::take(&mut self.slots);
        self.slots.resize_with(len, SymbolSlot::default);
        for slot in old {
            if let Some(ext) = slot.ext {
                let to = &mut self.slots[(ext % len as u64) as usize];
                if to.ext.is_none_or(|other| other < ext) {
                    *to = slot;
                }
            }
        }
    }

    /// Delivers packets in order while the next one is present.
    fn drain(&mut self, out: &mut dyn InOrder) {
        while let Some(next) = self.next {
            let Some(symbol) = known_in(&self.slots, next) else { return };
            out.payload(next, &symbol[FIELDS..]);
            self.next = Some(next + 1);
        }
    }

    /// Advances to `limit`: delivers the packets present and reports the missing ones.
    fn give_up_until(&mut self, limit: u64, out: &mut dyn InOrder) {
        let mut gave_up = false;
        while let Some(next) = self.next.filter(|next| *next < limit) {
            let found = (next..limit).find(|ext| self.known(*ext).is_some()).unwrap_or(limit);
            if found > next {
                out.gap(next, found - next);
                self.counts.lost += found - next;
                self.next = Some(found);
                gave_up = true;
            }
            self.drain(out);
        }
        if gave_up {
            let next = self.next.unwrap_or_default();
            let before = self.words.iter().map(|word| word.parities.len() as u64).sum::<u64>();
            self.words.retain(|word| word.place.last() >= next);
            let after = self.words.iter().map(|word| word.parities.len() as u64).sum::<u64>();
            self.counts.useless += before - after;
        }
    }

    /// One behind the highest number that is known to exist.
    fn limit(&self) -> u64 {
        self.end.max(self.named_end)
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_at(&self) -> Option<Instant> {
        let waits = !self.is_paused && self.next.is_some_and(|next| next < self.limit());
        waits.then(|| self.arrived.plus_ns(self.wait_ns))
    }

    /// Gives up missing packets if nothing has come for long enough.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut dyn InOrder) {
        if self.poll_at().is_some_and(|at| now >= at) {
            self.flush(out);
        }
    }

    /// Gives out everything that is held.
    pub fn flush(&mut self, out: &mut dyn InOrder) {
        self.give_up_until(self.limit(), out);
    }

    /// Delivers everything held; the missing packets might still have been repaired.
    pub fn cut(&mut self, out: &mut dyn InOrder) {
        let before = self.counts.lost;
        self.flush(out);
        let cut = self.counts.lost - before;
        self.counts.lost = before;
        self.counts.unsettled += cut;
    }

    /// Returns the counts.
    pub fn counts(&self) -> FecCounts {
        self.counts
    }

    /// Packets that are missing now and not given up.
    pub fn missing(&self) -> u64 {
        let from = self.next.unwrap_or_default();
        (from..self.end).filter(|ext| self.known(*ext).is_none()).count() as u64
    }

    /// Packets behind the last that came which are known by the FEC that names them.
    pub fn behind_last(&self) -> u64 {
        self.named_end.saturating_sub(self.end)
    }
}

fn known_in(slots: &[SymbolSlot], ext: u64) -> Option<&[u8]> {
    let slot = &slots[(ext % slots.len() as u64) as usize];
    (slot.ext == Some(ext)).then_some(slot.symbol.as_slice())
}

/// The FEC of a matrix is sent during the next one; packets out of order come on top.
fn hold_packets(matrix: usize) -> usize {
    2 * matrix + FEC_REORDER_PACKETS
}

/// Returns the most packets waited for, plus the matrix of the oldest before it and one ahead,
/// which FEC may name before it comes.
pub(super) fn ring_packets(matrix: usize) -> usize {
    hold_packets(matrix) + FEC_LATE_PACKETS + 2 * matrix
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;

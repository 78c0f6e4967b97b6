//! Cuts the data into media packets of one size: sums each, gives each its time when the clock knows it, hands them
//! out in order.

use std::collections::VecDeque;

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum;
use millrace_media::ts_packet::SYSTEM_TICKS_PER_MEDIA_TICK;

use super::clock::Point;

/// A packet that is not yet handed out.
#[derive(Clone, Copy, Debug, Default)]
struct PendingPacket {
    sum: u16,
    ticks: u64,
}

/// A packet that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletePacket {
    /// Number in the title.
    pub number: u64,
    /// Its length.
    pub bytes: usize,
    /// Media time of its first byte in 27 MHz ticks.
    pub ticks: u64,
    /// The record stored for it.
    pub meta: PacketMeta,
}

/// Packets of one size. A packet is handed out when it is whole, its time is known and nothing more can mark it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packetizer {
    packet_bytes: usize,
    sums: bool,
    pending: VecDeque<PendingPacket>,
    /// Number of `pending[0]`.
    first: u64,
    /// How many of `pending` are whole.
    whole: usize,
    /// How many of `pending` have their time.
    timed: usize,
    /// Bytes already present of the packet that is not whole.
    partial_bytes: usize,
    /// Bytes with a flag, ascending for each flag.
    access: VecDeque<u64>,
    jumps: VecDeque<u64>,
    last: Point,
}

impl Packetizer {
    /// For packets of `packet_bytes`; without `sums` the sums of all packets are 0.
    pub(crate) fn new(packet_bytes: u16, sums: bool) -> Self {
        Self { packet_bytes: usize::from(packet_bytes), sums, ..Self::default() }
    }

    /// Length of a full packet.
    pub(crate) fn packet_bytes(&self) -> u16 {
        self.packet_bytes as u16
    }

    /// The next bytes, an even number of them.
    pub(crate) fn data(&mut self, mut bytes: &[u8]) {
        if self.partial_bytes > 0 {
            let now = bytes.len().min(self.packet_bytes - self.partial_bytes);
            let sum = self.sum(&bytes[..now]);
            let partial = self.pending.back_mut().expect("a partial packet is pending");
            partial.sum = checksum::add(partial.sum, sum);
            self.partial_bytes += now;
            bytes = &bytes[now..];
            if self.partial_bytes < self.packet_bytes {
                return;
            }
            self.whole += 1;
            self.partial_bytes = 0;
        }
        let packets = bytes.chunks_exact(self.packet_bytes);
        let rest = packets.remainder();
        self.whole += packets.len();
        for packet in packets {
            let sum = self.sum(packet);
            self.pending.push_back(PendingPacket { sum, ticks: 0 });
        }
        if !rest.is_empty() {
            let sum = self.sum(rest);
            self.pending.push_back(PendingPacket { sum, ticks: 0 });
            self.partial_bytes = rest.len();
        }
    }

    fn sum(&self, bytes: &[u8]) -> u16 {
        if self.sums { checksum::sum16(bytes) } else { 0 }
    }

    /// Media time is linear from the last point to this one: every packet that begins between them gets its time.
    pub(crate) fn point(&mut self, point: Point) {
        let size = self.packet_bytes as u64;
        if point.jump {
            self.jumps.push_back(point.byte);
        }
        let begun = point.byte.div_ceil(size).saturating_sub(self.first);
        let upto = self.pending.len().min(usize::try_from(begun).unwrap_or(usize::MAX));
        for at in self.timed..upto {
            self.pending[at].ticks = self.last.time_at(&point, (self.first + at as u64) * size);
        }
        self.timed = self.timed.max(upto);
        self.last = point;
    }

    /// A decoder can start at this byte.
    pub(crate) fn mark_access(&mut self, byte: u64) {
        self.access.push_back(byte);
    }

    /// No more bytes come; the last packet may be short.
    pub(crate) fn end(&mut self) {
        self.whole = self.pending.len();
    }

    /// The next packet in order that ends at or before `limit`; `None` if it is not ready.
    pub(crate) fn next_ready(&mut self, limit: u64) -> Option<CompletePacket> {
        if self.whole == 0 || self.timed == 0 {
            return None;
        }
        let is_short = self.pending.len() == 1 && self.partial_bytes > 0;
        let bytes = if is_short { self.partial_bytes } else { self.packet_bytes };
        let end = self.first * self.packet_bytes as u64 + bytes as u64;
        if end > limit {
            return None;
        }
        let PendingPacket { sum, ticks } = self.pending.pop_front()?;
        let mut flags = 0;
        for (marks, flag) in
            [(&mut self.access, PacketMeta::RANDOM_ACCESS), (&mut self.jumps, PacketMeta::DISCONTINUITY)]
        {
            while marks.front().is_some_and(|&byte| byte < end) {
                marks.pop_front();
                flags |= flag;
            }
        }
        let number = self.first;
        self.first += 1;
        self.whole -= 1;
        self.timed -= 1;
        let meta = PacketMeta::new(sum, flags, MediaTicks(ticks / SYSTEM_TICKS_PER_MEDIA_TICK));
        Some(CompletePacket { number, bytes, ticks, meta })
    }
}

/// Highest rate over windows of 1 s that slide by 10 ms.
#[derive(Clone, Debug)]
pub(crate) struct PeakRate {
    slots: [u64; Self::SLOTS as usize],
    now: u64,
    sum: u64,
    highest: u64,
}

impl PeakRate {
    const SLOTS: u64 = 100;
    const SLOT_TICKS: u64 = millrace_media::ts_packet::SYSTEM_HZ / Self::SLOTS;

    /// Nothing seen.
    pub(crate) fn new() -> Self {
        Self { slots: [0; Self::SLOTS as usize], now: 0, sum: 0, highest: 0 }
    }

    /// `bytes` leave at `ticks` (27 MHz); times never run back.
    pub(crate) fn add(&mut self, ticks: u64, bytes: usize) {
        let slot = ticks / Self::SLOT_TICKS;
        for old in self.now + 1..=slot.min(self.now + Self::SLOTS) {
            self.sum -= std::mem::take(&mut self.slots[(old % Self::SLOTS) as usize]);
        }
        self.now = slot;
        self.slots[(slot % Self::SLOTS) as usize] += bytes as u64;
        self.sum += bytes as u64;
        self.highest = self.highest.max(self.sum);
    }

    /// Most bytes in any window of 1 s.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.highest
    }
}

#[cfg(test)]
#[path = "packetize_tests.rs"]
mod tests;

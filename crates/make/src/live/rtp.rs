//! RTP packets of a live source, in the order of their numbers (RFC 3550, RFC 2250).
//!
//! A packet whose predecessors are missing is held, up to [`REORDER_PACKETS`] and [`REORDER_NS`]; then the missing ones count as lost.
//! Duplicates are dropped: two senders of the same stream are one.

use millrace_core::time::Instant;
use millrace_core::wire::rtp::RtpHeader;

use crate::limits::live::{MAX_SEQUENCE_JUMP, REORDER_NS, REORDER_PACKETS, SEQUENCE_SILENT_NS};

/// Fate of the packets of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtpCounts {
    /// Numbers that never came.
    pub lost: u64,
    /// Packets that came before one with a smaller number.
    pub reordered: u64,
    /// Packets that came twice, or after they counted as lost.
    pub late: u64,
    /// Restarts of the numbers.
    pub restarts: u64,
}

#[derive(Debug, Default)]
struct HeldPacket {
    is_held: bool,
    payload: Vec<u8>,
}

/// The reorder window of one source.
#[derive(Debug)]
pub struct RtpReorder {
    /// Packet `n` is at `n` modulo their number.
    window: Vec<HeldPacket>,
    held: usize,
    /// Since when the missing packet is waited for.
    waits_since: Instant,
    /// Source, and the number that comes next.
    next: Option<(u32, u16)>,
    last_packet: Instant,
    counts: RtpCounts,
}

impl Default for RtpReorder {
    fn default() -> Self {
        Self {
            window: (0..REORDER_PACKETS).map(|_| HeldPacket::default()).collect(),
            held: 0,
            waits_since: Instant(0),
            next: None,
            last_packet: Instant(0),
            counts: RtpCounts::default(),
        }
    }
}

impl RtpReorder {
    /// Counts up to now.
    pub fn counts(&self) -> RtpCounts {
        self.counts
    }

    /// Takes a datagram; calls `out` with the payloads that are in order now. `false`: it is no RTP.
    pub fn push(&mut self, now: Instant, datagram: &[u8], out: &mut dyn FnMut(&[u8])) -> bool {
        let Some((header, payload)) = RtpHeader::parse(datagram) else { return false };
        let is_silent = now.ns_since(self.last_packet) > SEQUENCE_SILENT_NS;
        self.last_packet = now;
        let next = match self.next {
            Some((ssrc, next)) if ssrc == header.ssrc && !is_silent => next,
            before => {
                self.release_all(out);
                self.counts.restarts += u64::from(before.is_some());
                header.sequence
            }
        };
        let ahead = header.sequence.wrapping_sub(next).cast_signed();
        self.next = Some((header.ssrc, next));
        if ahead == 0 {
            self.deliver(payload, out);
            self.release_ready(now, out);
        } else if !(-MAX_SEQUENCE_JUMP..=MAX_SEQUENCE_JUMP).contains(&ahead) {
            self.release_all(out);
            self.counts.restarts += 1;
            self.next = Some((header.ssrc, header.sequence));
            self.deliver(payload, out);
        } else if ahead < 0 {
            self.counts.late += 1;
        } else {
            // Packets that leave the window are lost.
            for _ in REORDER_PACKETS..=ahead.unsigned_abs().into() {
                self.release_next(out);
            }
            self.hold(now, header.sequence, payload);
            self.release_ready(now, out);
        }
        true
    }

    /// Gives up packets that were waited for long enough.
    pub fn expire(&mut self, now: Instant, out: &mut dyn FnMut(&[u8])) {
        if self.held > 0 && now.ns_since(self.waits_since) >= REORDER_NS {
            while self.held > 0 && !self.release_next(out) {}
            // Another gap has its own time.
            self.waits_since = now;
            self.release_ready(now, out);
        }
    }

    /// When [`RtpReorder::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        (self.held > 0).then(|| self.waits_since.plus_ns(REORDER_NS))
    }

    fn hold(&mut self, now: Instant, sequence: u16, payload: &[u8]) {
        let place = &mut self.window[usize::from(sequence) % REORDER_PACKETS];
        if place.is_held {
            self.counts.late += 1;
            return;
        }
        if self.held == 0 {
            self.waits_since = now;
        }
        place.is_held = true;
        place.payload.clear();
        place.payload.extend_from_slice(payload);
        self.held += 1;
    }

    fn deliver(&mut self, payload: &[u8], out: &mut dyn FnMut(&[u8])) {
        self.advance();
        self.counts.reordered += u64::from(self.held > 0);
        out(payload);
    }

    fn advance(&mut self) {
        self.next = self.next.map(|(ssrc, next)| (ssrc, next.wrapping_add(1)));
    }

    /// Delivers the next packet or counts it as lost; whether it was there.
    fn release_next(&mut self, out: &mut dyn FnMut(&[u8])) -> bool {
        let Some((_, next)) = self.next else { return false };
        let place = &mut self.window[usize::from(next) % REORDER_PACKETS];
        let was_held = std::mem::take(&mut place.is_held);
        if was_held {
            self.held -= 1;
            out(&place.payload);
        } else {
            self.counts.lost += 1;
        }
        self.advance();
        was_held
    }

    /// Delivers the packets that nothing is missing before.
    fn release_ready(&mut self, now: Instant, out: &mut dyn FnMut(&[u8])) {
        let is_next = |this: &Self| {
            this.next.is_some_and(|(_, next)| this.window[usize::from(next) % REORDER_PACKETS].is_held)
        };
        while self.held > 0 && is_next(self) {
            self.release_next(out);
            self.waits_since = now;
        }
    }

    fn release_all(&mut self, out: &mut dyn FnMut(&[u8])) {
        while self.held > 0 {
            self.release_next(out);
        }
    }
}

#[cfg(test)]
#[path = "rtp_tests.rs"]
mod tests;

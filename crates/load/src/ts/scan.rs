//! A light look at a transport stream: sync bytes, continuity counters, program clock references, in a few hundred
//! bytes of state. The bytes may be cut anywhere; nothing of them is kept but the front of a packet.

use millrace_core::limits::TS_PACKET_BYTES;
use serde::Serialize;

use super::packet::{ContinuityState, FRONT_BYTES, NULL_PID, PCR_WRAP, PacketFront, SYNC};
use crate::limits::{MAX_PCR_INTERVAL_NS, MAX_PIDS};

/// Units a second of a program clock reference.
const PCR_HZ: u64 = 27_000_000;

/// The findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScanCounts {
    /// TS packets.
    pub packets: u64,
    /// Times that the sync byte was not where a packet should begin.
    pub sync_losses: u64,
    /// Continuity counters that do not follow.
    pub continuity_errors: u64,
    /// Packets that are missing at least, going by these counters: they count to 16.
    pub missing: u64,
    /// Packets with transport_error_indicator.
    pub marked_errors: u64,
    /// Clock references of the PID whose clock is followed.
    pub pcrs: u64,
    /// Longest distance between two of them up to a second, in media time; a longer one is a jump.
    pub pcr_interval_max_ns: u64,
}

impl ScanCounts {
    /// Adds those of another stream.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.sync_losses += other.sync_losses;
        self.continuity_errors += other.continuity_errors;
        self.missing += other.missing;
        self.marked_errors += other.marked_errors;
        self.pcrs += other.pcrs;
        self.pcr_interval_max_ns = self.pcr_interval_max_ns.max(other.pcr_interval_max_ns);
    }
}

/// A program clock reference and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pcr {
    /// In units of 27 MHz.
    pub value: u64,
    /// Whether the stream itself signals that its clock or counters jump here.
    pub discontinuity: bool,
}

impl Pcr {
    /// Nanoseconds from `earlier` to here, across the wrap; up to 26.5 hours, so a step back is a very long one.
    pub(crate) fn ns_since(self, earlier: Self) -> u64 {
        let units = (self.value + PCR_WRAP - earlier.value % PCR_WRAP) % PCR_WRAP;
        (u128::from(units) * 1_000_000_000 / u128::from(PCR_HZ)) as u64
    }

    /// The 90 kHz part, as an RTP timestamp would carry it.
    pub(crate) fn timestamp(self) -> u32 {
        (self.value / 300) as u32
    }
}

#[derive(Clone, Copy, Debug)]
struct PidState {
    pid: u16,
    continuity: ContinuityState,
}

/// Looks at one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct TsScan {
    front: [u8; FRONT_BYTES],
    /// Bytes of the current packet that have come.
    at: usize,
    /// Bytes are passed over until one looks like a sync byte.
    is_hunting: bool,
    pids: Vec<PidState>,
    /// The PID whose clock is followed: the first that has one.
    pcr_pid: Option<u16>,
    last_pcr: Option<Pcr>,
    counts: ScanCounts,
}

impl TsScan {
    /// Takes the next bytes; clock references go to `each`, in order.
    pub(crate) fn bytes(&mut self, mut bytes: &[u8], mut each: impl FnMut(Pcr)) {
        while !bytes.is_empty() {
            if self.at == 0 && !self.find_sync(&mut bytes) {
                return;
            }
            if self.at < FRONT_BYTES {
                let len = bytes.len().min(FRONT_BYTES - self.at);
                self.front[self.at..self.at + len].copy_from_slice(&bytes[..len]);
                self.at += len;
                bytes = &bytes[len..];
                if self.at == FRONT_BYTES
                    && let Some(pcr) = self.packet()
                {
                    each(pcr);
                }
            } else {
                let len = bytes.len().min(TS_PACKET_BYTES - self.at);
                self.at += len;
                bytes = &bytes[len..];
                if self.at == TS_PACKET_BYTES {
                    self.at = 0;
                }
            }
        }
    }

    /// Whether `bytes` begin with a sync byte, after those were cut off that do not.
    fn find_sync(&mut self, bytes: &mut &[u8]) -> bool {
        if bytes[0] == SYNC {
            self.is_hunting = false;
            return true;
        }
        if !self.is_hunting {
            self.counts.sync_losses += 1;
            self.is_hunting = true;
        }
        let Some(skip) = bytes.iter().position(|byte| *byte == SYNC) else { return false };
        *bytes = &bytes[skip..];
        self.is_hunting = false;
        true
    }

    /// Marks a break: the next data does not follow the last, because of a seek or another file.
    /// Counters and clock begin again.
    pub(crate) fn restart(&mut self) {
        *self = Self { counts: self.counts, ..Self::default() };
    }

    /// Returns the findings to date.
    pub(crate) fn counts(&self) -> ScanCounts {
        self.counts
    }

    /// Judges the packet whose front is whole.
    fn packet(&mut self) -> Option<Pcr> {
        self.counts.packets += 1;
        let Some(packet) = PacketFront::parse(&self.front) else {
            self.counts.marked_errors += 1;
            return None;
        };
        if packet.pid == NULL_PID {
            return None;
        }
        self.follow(&packet);
        let pcr = Pcr { value: packet.pcr?, discontinuity: packet.is_discontinuous };
        if *self.pcr_pid.get_or_insert(packet.pid) != packet.pid {
            return None;
        }
        let step_ns = self.last_pcr.replace(pcr).map_or(0, |last| pcr.ns_since(last));
        if step_ns <= MAX_PCR_INTERVAL_NS {
            self.counts.pcr_interval_max_ns = self.counts.pcr_interval_max_ns.max(step_ns);
        }
        self.counts.pcrs += 1;
        Some(pcr)
    }

    fn follow(&mut self, packet: &PacketFront) {
        let Some(state) = self.pids.iter_mut().find(|state| state.pid == packet.pid) else {
            if self.pids.len() < MAX_PIDS {
                self.pids.push(PidState { pid: packet.pid, continuity: ContinuityState::new(packet) });
            }
            return;
        };
        let missing = state.continuity.follow(packet);
        self.counts.continuity_errors += u64::from(missing > 0);
        self.counts.missing += u64::from(missing);
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
pub(crate) mod tests;

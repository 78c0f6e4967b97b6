//! A light look at a transport stream: sync bytes, continuity counters, program clock references, in a few hundred
//! bytes of state. The bytes may be cut anywhere; nothing of them is kept but the front of a packet.

use millrace_core::limits::TS_PACKET_BYTES;
use serde::Serialize;

use crate::limits::{MAX_PCR_INTERVAL_NS, MAX_PIDS};

const NULL_PID: u16 = 0x1fff;
const SYNC: u8 = 0x47;
/// The front of a packet with everything that is looked at: header, adaptation field up to its clock reference.
const FRONT_BYTES: usize = 12;
/// Units a second of a program clock reference, and where it wraps.
const PCR_HZ: u64 = 27_000_000;
const PCR_WRAP: u64 = (1 << 33) * 300;

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
    counter: u8,
    doubled: bool,
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
        let front = &self.front;
        self.counts.packets += 1;
        if front[1] & 0x80 != 0 {
            self.counts.marked_errors += 1;
            return None; // nothing in its header can be relied upon
        }
        let pid = u16::from_be_bytes([front[1] & 0x1f, front[2]]);
        if pid == NULL_PID {
            return None;
        }
        let (has_payload, has_field) = (front[3] & 0x10 != 0, front[3] & 0x20 != 0);
        let field_bytes = if has_field { front[4] } else { 0 };
        let flags = if field_bytes > 0 { front[5] } else { 0 };
        let discontinuity = flags & 0x80 != 0;
        let pcr = (field_bytes >= 7 && flags & 0x10 != 0).then(|| {
            let base = front[6..10].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)) << 1
                | u64::from(front[10] >> 7);
            let extension = u64::from(front[10] & 1) << 8 | u64::from(front[11]);
            Pcr { value: base * 300 + extension, discontinuity }
        });
        let counter = front[3] & 0x0f;
        self.follow(pid, counter, has_payload, discontinuity);
        let pcr = pcr?;
        if *self.pcr_pid.get_or_insert(pid) != pid {
            return None;
        }
        let step_ns = self.last_pcr.replace(pcr).map_or(0, |last| pcr.ns_since(last));
        if step_ns <= MAX_PCR_INTERVAL_NS {
            self.counts.pcr_interval_max_ns = self.counts.pcr_interval_max_ns.max(step_ns);
        }
        self.counts.pcrs += 1;
        Some(pcr)
    }

    /// ISO/IEC 13818-1 section 2.4.3.3: the counter goes up with each packet that has a payload and only with those; a
    /// packet may be sent twice, and only twice.
    fn follow(&mut self, pid: u16, counter: u8, has_payload: bool, may_jump: bool) {
        let Some(state) = self.pids.iter_mut().find(|state| state.pid == pid) else {
            if self.pids.len() < MAX_PIDS {
                self.pids.push(PidState { pid, counter, doubled: false });
            }
            return;
        };
        let next = (state.counter + u8::from(has_payload)) & 0x0f;
        let is_double = has_payload && counter == state.counter && !state.doubled;
        if counter != next && !is_double && !may_jump {
            self.counts.continuity_errors += 1;
            self.counts.missing += u64::from(counter.wrapping_sub(next) & 0x0f);
        }
        *state = PidState { pid, counter, doubled: is_double && !may_jump };
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
pub(crate) mod tests;

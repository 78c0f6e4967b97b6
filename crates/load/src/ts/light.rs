//! Is a transport stream whole, in 200 bytes a stream: sync bytes, continuity counters of a few PIDs, the program clock.
//!
//! It is a lightweight TS checker beside `millrace-ts`: it watches the first 16 PIDs, which is all
//! that a title has, and judges the sender only. Where packets are missing or out of order it
//! forgets the counters, so that damage by the network is counted as loss and not again as an error
//! of the stream.
//!
//! From the program clock (PCR) of the first PID that has one it takes two figures: the longest
//! distance between two clock references, in media time (ISO/IEC 13818-1 section 2.7.2 allows 100
//! ms, DVB 40 ms), and by how much their arrivals differ from a clock that runs evenly: the span
//! from the earliest to the latest `arrival - PCR` of a run. The second figure includes the
//! network, the sender's pacing and a drift of the clocks alike. Arrivals do not show how exact the
//! references are in a stream of constant rate; that is a property of the file.

use millrace_core::limits::TS_PACKET_BYTES;
use serde::Serialize;

use super::packet::{ContinuityState, NULL_PID, PCR_WRAP, PacketFront, SYNC};
use crate::limits::MAX_PCR_STEP;

/// PIDs that are watched; packets of others are only counted.
const PIDS: usize = 16;

/// Findings on one stream, or on many together: counts are added, times are maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TsFindings {
    /// TS packets looked at.
    pub packets: u64,
    /// Packets without the sync byte, and payloads that do not consist of whole packets.
    pub sync_losses: u64,
    /// Continuity counters that do not follow although nothing is missing: the sender's data is at fault.
    pub continuity_errors: u64,
    /// Packets with transport_error_indicator.
    pub marked_errors: u64,
    /// Packets of PIDs beyond those that are watched.
    pub unwatched: u64,
    /// Clock references.
    pub pcrs: u64,
    /// Clock references that jump by more than a second, or back, without saying so.
    pub pcr_jumps: u64,
    /// Longest distance between two clock references, in media time.
    pub pcr_interval_max_us: u64,
    /// Span of `arrival - PCR` within a run.
    pub pcr_jitter_us: u64,
}

impl TsFindings {
    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            sync_losses: self.sync_losses + other.sync_losses,
            continuity_errors: self.continuity_errors + other.continuity_errors,
            marked_errors: self.marked_errors + other.marked_errors,
            unwatched: self.unwatched + other.unwatched,
            pcrs: self.pcrs + other.pcrs,
            pcr_jumps: self.pcr_jumps + other.pcr_jumps,
            pcr_interval_max_us: self.pcr_interval_max_us.max(other.pcr_interval_max_us),
            pcr_jitter_us: self.pcr_jitter_us.max(other.pcr_jitter_us),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Pid {
    /// Number plus one; 0 is a free entry.
    key: u16,
    known: bool,
    continuity: ContinuityState,
}

/// The clock of one run.
#[derive(Clone, Copy, Debug)]
struct PcrRun {
    pid: u16,
    last: u64,
    /// Ticks since the run's first reference.
    ticks: u64,
    first_arrival_ns: u64,
    min_ns: i64,
    max_ns: i64,
}

/// Looks into one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct TsLight {
    pids: [Pid; PIDS],
    pcr: Option<PcrRun>,
    findings: TsFindings,
}

impl TsLight {
    /// Marks a gap: packets are missing or out of order before the next ones, so counters are not
    /// compared across.
    pub(crate) fn gap(&mut self) {
        self.pids.iter_mut().for_each(|pid| pid.known = false);
    }

    /// Begins a run: the next packets are from another position in the title.
    pub(crate) fn begin_run(&mut self) {
        self.gap();
        self.pcr = None;
    }

    /// Takes data that came in one piece, in order.
    pub(crate) fn payload(&mut self, arrival_ns: u64, bytes: &[u8]) {
        let packets = bytes.chunks_exact(TS_PACKET_BYTES);
        if !packets.remainder().is_empty() || bytes.is_empty() {
            self.findings.sync_losses += 1;
        }
        for packet in packets {
            self.packet(arrival_ns, packet);
        }
    }

    fn packet(&mut self, arrival_ns: u64, packet: &[u8]) {
        self.findings.packets += 1;
        if packet[0] != SYNC {
            self.findings.sync_losses += 1;
            return;
        }
        let Some(packet) = packet.first_chunk().and_then(PacketFront::parse) else {
            self.findings.marked_errors += 1;
            return;
        };
        if packet.pid == NULL_PID {
            return;
        }
        if let Some(pcr) = packet.pcr {
            self.pcr(arrival_ns, packet.pid, pcr, packet.is_discontinuous);
        }
        let key = packet.pid + 1;
        let Some(pid) = self.pids.iter_mut().find(|pid| pid.key == key || pid.key == 0) else {
            self.findings.unwatched += 1;
            return;
        };
        if !pid.known {
            *pid = Pid { key, known: true, continuity: ContinuityState::new(&packet) };
            return;
        }
        self.findings.continuity_errors += u64::from(pid.continuity.follow(&packet) > 0);
    }

    fn pcr(&mut self, arrival_ns: u64, pid: u16, pcr: u64, is_discontinuous: bool) {
        let fresh = PcrRun { pid, last: pcr, ticks: 0, first_arrival_ns: arrival_ns, min_ns: 0, max_ns: 0 };
        let run = match &mut self.pcr {
            Some(run) if run.pid != pid => return, // another program's
            Some(run) if !is_discontinuous => run,
            _ => {
                self.findings.pcrs += 1;
                self.pcr = Some(fresh);
                return;
            }
        };
        self.findings.pcrs += 1;
        let step = (pcr + PCR_WRAP - run.last) % PCR_WRAP;
        if step > MAX_PCR_STEP {
            self.findings.pcr_jumps += 1;
            self.pcr = Some(fresh);
            return;
        }
        (run.last, run.ticks) = (pcr, run.ticks + step);
        let elapsed_ns = arrival_ns.wrapping_sub(run.first_arrival_ns).cast_signed();
        let offset = elapsed_ns.saturating_sub((u128::from(run.ticks) * 1000 / 27) as i64);
        (run.min_ns, run.max_ns) = (run.min_ns.min(offset), run.max_ns.max(offset));
        let jitter_us = run.max_ns.abs_diff(run.min_ns) / 1000;
        self.findings.pcr_jitter_us = self.findings.pcr_jitter_us.max(jitter_us);
        self.findings.pcr_interval_max_us = self.findings.pcr_interval_max_us.max(step / 27);
    }

    /// Returns the findings to date.
    pub(crate) fn findings(&self) -> TsFindings {
        self.findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pid: u16, counter: u8) -> Vec<u8> {
        let mut bytes = vec![SYNC, (pid >> 8) as u8, pid as u8, 0x10 | counter & 0x0f];
        bytes.resize(TS_PACKET_BYTES, 0xff);
        bytes
    }

    fn with_pcr(counter: u8, pcr: u64) -> Vec<u8> {
        let mut bytes = packet(256, counter);
        let (base, extension) = (pcr / 300, pcr % 300);
        bytes[3] |= 0x20;
        bytes[4..6].copy_from_slice(&[7, 0x10]);
        bytes[6..10].copy_from_slice(&((base >> 1) as u32).to_be_bytes());
        bytes[10] = (base as u8 & 1) << 7 | 0x7e | (extension >> 8) as u8;
        bytes[11] = extension as u8;
        bytes
    }

    fn check(packets: &[Vec<u8>]) -> TsFindings {
        let mut light = TsLight::default();
        light.payload(0, &packets.concat());
        light.findings()
    }

    #[test]
    fn counters_follow_per_pid() {
        let fine: Vec<_> =
            (0..40u8).flat_map(|n| [packet(256, n), packet(0, n + 3), packet(17, n)]).collect();
        assert_eq!(check(&fine), TsFindings { packets: 120, ..TsFindings::default() });
        assert_eq!(check(&[packet(1, 7), packet(1, 7), packet(1, 8)]).continuity_errors, 0);
        assert_eq!(check(&[packet(1, 7), packet(1, 7), packet(1, 7)]).continuity_errors, 1);
        assert_eq!(check(&[packet(1, 7), packet(1, 9), packet(1, 10)]).continuity_errors, 1);
        let many: Vec<_> = (1..=20u16).map(|pid| packet(pid, 0)).collect();
        assert_eq!(check(&many).unwatched, 4);
    }

    #[test]
    fn ts_light_gap_is_not_a_continuity_error() {
        let mut light = TsLight::default();
        light.payload(0, &packet(1, 0));
        light.gap();
        light.payload(0, &packet(1, 9));
        light.payload(0, &packet(1, 11));
        assert_eq!(light.findings().continuity_errors, 1);
    }

    #[test]
    fn ts_light_measures_pcr_interval_and_jitter_across_wrap() {
        let mut light = TsLight::default();
        let start = PCR_WRAP - 27_000_000 / 100;
        for n in 0..5u8 {
            let late_ns = if n == 3 { 4_000_000 } else { 0 };
            let pcr = (start + u64::from(n) * 270_000) % PCR_WRAP;
            light.payload(5_000_000_000 + u64::from(n) * 10_000_000 + late_ns, &with_pcr(n, pcr));
        }
        let found = light.findings();
        assert_eq!((found.pcrs, found.pcr_jumps, found.pcr_interval_max_us), (5, 0, 10_000));
        assert_eq!((found.pcr_jitter_us, found.continuity_errors), (4000, 0));
        light.payload(9_000_000_000, &with_pcr(5, 27_000_000 * 100));
        light.payload(9_000_000_000, &with_pcr(6, 27_000_000 * 50));
        light.begin_run();
        light.payload(90_000_000_000, &with_pcr(7, 0));
        assert_eq!((light.findings().pcr_jumps, light.findings().pcr_jitter_us), (2, 4000));
    }

    #[test]
    fn damage_is_counted_and_nothing_panics() {
        let mut marked = packet(1, 0);
        marked[1] |= 0x80;
        let mut unsynced = packet(1, 0);
        unsynced[0] = 0;
        let found = check(&[marked, unsynced, vec![SYNC; 100]]);
        assert_eq!((found.packets, found.marked_errors, found.sync_losses), (2, 1, 2));
        bolero::check!().with_iterations(2000).for_each(|bytes: &[u8]| {
            let mut light = TsLight::default();
            let long: Vec<u8> = bytes.iter().copied().cycle().take(bytes.len().min(1) * 1316).collect();
            light.payload(u64::MAX, &long);
            light.payload(0, &long);
            light.payload(7, bytes);
        });
    }
}

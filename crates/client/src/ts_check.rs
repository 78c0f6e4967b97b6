//! Whether a transport stream is whole: sync bytes and continuity counters (ISO/IEC 13818-1 section 2.4.3).

use millrace_core::limits::TS_PACKET_BYTES;
use serde::Serialize;

/// Packet identifiers.
const PIDS: usize = 8192;
/// Stuffing; its counter means nothing.
const NULL_PID: u16 = 0x1fff;
const SYNC: u8 = 0x47;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TsCounts {
    /// TS packets looked at.
    pub packets: u64,
    /// Packets without the sync byte 0x47.
    pub sync_losses: u64,
    /// Payloads whose length is not a multiple of 188.
    pub odd_payloads: u64,
    /// Continuity counters that do not follow although no RTP packet is missing: the sender's data is at fault.
    pub continuity_errors: u64,
    /// Continuity counters that do not follow across missing RTP packets or a seek.
    pub continuity_breaks_at_gaps: u64,
    /// Packets with transport_error_indicator.
    pub marked_errors: u64,
    /// Different PIDs, stuffing not counted.
    pub pids: u32,
}

#[derive(Clone, Copy, Default)]
struct PidState {
    known: bool,
    counter: u8,
    doubled: bool,
    stretch: u32,
}

/// Checks payloads in order. 64 KiB.
pub struct TsCheck {
    pids: Box<[PidState]>,
    counts: TsCounts,
    /// Number of the stretch of data without a gap.
    stretch: u32,
}

impl Default for TsCheck {
    fn default() -> Self {
        Self {
            pids: vec![PidState::default(); PIDS].into_boxed_slice(),
            counts: TsCounts::default(),
            stretch: 0,
        }
    }
}

impl TsCheck {
    /// Data is missing between what was seen and what comes, or the place in the title changed.
    pub fn gap(&mut self) {
        self.stretch = self.stretch.wrapping_add(1);
    }

    /// Checks one RTP payload.
    pub fn payload(&mut self, bytes: &[u8]) {
        let packets = bytes.chunks_exact(TS_PACKET_BYTES);
        if !packets.remainder().is_empty() || bytes.is_empty() {
            self.counts.odd_payloads += 1;
        }
        for packet in packets {
            self.packet(packet);
        }
    }

    fn packet(&mut self, packet: &[u8]) {
        self.counts.packets += 1;
        if packet[0] != SYNC {
            self.counts.sync_losses += 1;
            return;
        }
        if packet[1] & 0x80 != 0 {
            self.counts.marked_errors += 1;
            return; // nothing in its header can be relied upon
        }
        let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
        if pid == NULL_PID {
            return;
        }
        let (counter, has_payload) = (packet[3] & 0x0f, packet[3] & 0x10 != 0);
        let has_field = packet[3] & 0x20 != 0;
        let may_jump = has_field && packet[4] > 0 && packet[5] & 0x80 != 0; // discontinuity_indicator
        let state = &mut self.pids[usize::from(pid)];
        if !state.known {
            self.counts.pids += 1;
            *state = PidState { known: true, counter, doubled: false, stretch: self.stretch };
            return;
        }
        // Section 2.4.3.3: the counter goes up with each packet that has a payload and only with those; a packet may
        // be sent twice, and only twice.
        let next = (state.counter + u8::from(has_payload)) & 0x0f;
        let is_double = has_payload && counter == state.counter && !state.doubled;
        if counter != next && !is_double && !may_jump {
            if state.stretch == self.stretch {
                self.counts.continuity_errors += 1;
            } else {
                self.counts.continuity_breaks_at_gaps += 1;
            }
        }
        *state = PidState { known: true, counter, doubled: is_double && !may_jump, stretch: self.stretch };
    }

    /// What was found so far.
    pub fn counts(&self) -> TsCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pid: u16, counter: u8, control: u8) -> Vec<u8> {
        let mut bytes = vec![SYNC, (pid >> 8) as u8, pid as u8, control << 4 | counter & 0x0f];
        bytes.resize(TS_PACKET_BYTES, 0xff);
        if control & 2 != 0 {
            (bytes[4], bytes[5]) = (10, 0);
        }
        bytes
    }

    fn check(packets: &[Vec<u8>]) -> TsCounts {
        let mut check = TsCheck::default();
        check.payload(&packets.concat());
        check.counts()
    }

    #[test]
    fn counters_follow_per_pid_and_wrap() {
        let packets: Vec<_> = (0..64u8).flat_map(|n| [packet(256, n, 1), packet(0, n + 5, 3)]).collect();
        assert_eq!(check(&packets), TsCounts { packets: 128, pids: 2, ..TsCounts::default() });
    }

    #[test]
    fn every_rule_of_the_counter() {
        // Adaptation field only: the counter stands still. A packet may come twice, not three times.
        let fine = [packet(1, 7, 1), packet(1, 7, 2), packet(1, 8, 1), packet(1, 8, 1), packet(1, 9, 3)];
        assert_eq!(check(&fine).continuity_errors, 0);
        let three = [packet(1, 7, 1), packet(1, 7, 1), packet(1, 7, 1), packet(1, 8, 1)];
        assert_eq!(check(&three).continuity_errors, 1);
        assert_eq!(check(&[packet(1, 7, 1), packet(1, 9, 1), packet(1, 10, 1)]).continuity_errors, 1);
        let mut jump = packet(1, 3, 3);
        jump[5] = 0x80;
        assert_eq!(check(&[packet(1, 7, 1), jump, packet(1, 4, 1)]).continuity_errors, 0);
        assert_eq!(check(&[packet(NULL_PID, 1, 1), packet(NULL_PID, 5, 1)]).pids, 0);
    }

    #[test]
    fn damage_is_told_from_loss() {
        let mut check = TsCheck::default();
        check.payload(&packet(1, 0, 1));
        check.gap();
        check.payload(&packet(1, 5, 1));
        check.payload(&packet(1, 6, 1));
        check.payload(&packet(1, 8, 1));
        let counts = check.counts();
        assert_eq!((counts.continuity_errors, counts.continuity_breaks_at_gaps), (1, 1));
    }

    #[test]
    fn sync_length_and_error_marks() {
        let mut bad_sync = packet(1, 0, 1);
        bad_sync[0] = 0x48;
        let mut marked = packet(1, 9, 1);
        marked[1] |= 0x80;
        let mut check = TsCheck::default();
        check.payload(&[packet(1, 0, 1), bad_sync, marked, packet(1, 1, 1)].concat());
        check.payload(&[SYNC; 100]);
        check.payload(&[]);
        let expected = TsCounts {
            packets: 4,
            sync_losses: 1,
            marked_errors: 1,
            odd_payloads: 2,
            pids: 1,
            ..TsCounts::default()
        };
        assert_eq!(check.counts(), expected);
    }

    #[test]
    fn any_bytes_never_panic() {
        bolero::check!().with_iterations(2000).for_each(|bytes: &[u8]| {
            let mut check = TsCheck::default();
            check.payload(bytes);
            let long: Vec<u8> = bytes.iter().copied().cycle().take(bytes.len().min(1) * 376).collect();
            check.payload(&long);
            assert!(check.counts().sync_losses <= check.counts().packets);
        });
    }
}

//! The program clock of a transport stream in the place of RTP timestamps.

use crate::limits::MAX_CLOCK_STEP_NS;
use crate::ts::scan::{Pcr, TsScan};

/// Follows the clock of one stream.
#[derive(Clone, Debug, Default)]
pub(super) struct PcrClock {
    scan: TsScan,
    last: Option<Pcr>,
}

/// A moment of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// In ticks of 90 kHz, as an RTP timestamp has it.
    pub(super) timestamp: u32,
    /// Whether the clock does not go on from the moment before.
    pub(super) is_jump: bool,
}

impl PcrClock {
    /// The first clock reference in a payload, if there is one.
    pub(super) fn payload(&mut self, bytes: &[u8]) -> Option<Moment> {
        let mut first = None;
        self.scan.bytes(bytes, |pcr| {
            first.get_or_insert(pcr);
        });
        let pcr = first?;
        let follows = self.last.is_some_and(|last| pcr.ns_since(last) <= MAX_CLOCK_STEP_NS);
        let is_jump = self.last.is_some() && (!follows || pcr.discontinuity);
        self.last = Some(pcr);
        Some(Moment { timestamp: pcr.timestamp(), is_jump })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ts::scan::tests::packet;

    #[test]
    fn references_are_found_and_jumps_are_named() {
        let mut clock = PcrClock::default();
        let mut at =
            |counter: u8, ms: Option<u64>| clock.payload(&packet(1, counter, ms.map(|ms| ms * 27_000)));
        let moment = |ms: u32, is_jump| Some(Moment { timestamp: ms * 90, is_jump });
        assert_eq!(at(0, None), None);
        assert_eq!(at(1, Some(100)), moment(100, false));
        assert_eq!(at(2, Some(140)), moment(140, false));
        assert_eq!(at(3, Some(90_000)), moment(90_000, true));
        assert_eq!(at(4, Some(80_000)), moment(80_000, true));
        assert_eq!(at(5, Some(80_040)), moment(80_040, false));
    }
}

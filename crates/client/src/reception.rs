//! Reception as a receiver report states it (RFC 3550 section 6.4.1), for the player and for viewers of a load alike.

use millrace_core::time::NS_PER_S;
use millrace_core::wire::rtcp::ReportBlock;

/// The figures of a stream for its next report.
#[derive(Clone, Copy, Debug)]
pub struct ReceptionState {
    /// The source.
    pub ssrc: u32,
    /// Fraction lost since the report before, in 1/256: [`ReportInterval::fraction_lost`].
    pub fraction_lost: u8,
    /// Packets lost in all. Where duplicates are counted as received it may be negative.
    pub lost: i64,
    /// Highest extended sequence number.
    pub highest_sequence: u32,
    /// Interarrival jitter.
    pub jitter_ns: u64,
    /// Ticks of the RTP clock in a second.
    pub clock_hz: u32,
}

impl ReceptionState {
    /// The block of a report: losses within 24 bits, jitter in ticks of the RTP clock.
    pub fn report_block(self) -> ReportBlock {
        let jitter_ticks = u128::from(self.jitter_ns) * u128::from(self.clock_hz) / u128::from(NS_PER_S);
        ReportBlock {
            ssrc: self.ssrc,
            fraction_lost: self.fraction_lost,
            cumulative_lost: self.lost.clamp(-0x80_0000, 0x7f_ffff) as i32,
            highest_sequence: self.highest_sequence,
            jitter: u32::try_from(jitter_ticks).unwrap_or(u32::MAX),
        }
    }
}

/// The time between two reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportInterval {
    /// Packets expected and received up to the last report.
    reported: (u64, u64),
}

impl ReportInterval {
    /// Ends the interval at these counts. Returns the fraction of packets lost in it, in 1/256 (RFC 3550 appendix A.3).
    pub fn fraction_lost(&mut self, expected: u64, received: u64) -> u8 {
        let expected_now = expected.saturating_sub(self.reported.0);
        let received_now = received.saturating_sub(self.reported.1);
        self.reported = (expected, received);
        let lost = expected_now.saturating_sub(received_now);
        (lost * 256).checked_div(expected_now).unwrap_or(0).min(255) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_block_bounds_losses_and_counts_jitter_in_ticks() {
        let state = ReceptionState {
            ssrc: 7,
            fraction_lost: 3,
            lost: -5,
            highest_sequence: 70_000,
            jitter_ns: 1_000_000,
            clock_hz: 90_000,
        };
        let block = state.report_block();
        assert_eq!((block.ssrc, block.fraction_lost, block.highest_sequence), (7, 3, 70_000));
        assert_eq!((block.cumulative_lost, block.jitter), (-5, 90));
        let of = |lost| ReceptionState { lost, jitter_ns: u64::MAX, ..state }.report_block();
        assert_eq!((of(i64::MAX).cumulative_lost, of(i64::MAX).jitter), (0x7f_ffff, u32::MAX));
        assert_eq!(of(i64::MIN).cumulative_lost, -0x80_0000);
    }

    #[test]
    fn fraction_lost_covers_only_the_interval() {
        let mut interval = ReportInterval::default();
        assert_eq!(interval.fraction_lost(0, 0), 0);
        assert_eq!(interval.fraction_lost(100, 50), 128);
        assert_eq!(interval.fraction_lost(200, 150), 0);
        assert_eq!(interval.fraction_lost(300, 150), 255);
        // Packets that came late after all.
        assert_eq!(interval.fraction_lost(310, 260), 0);
    }
}

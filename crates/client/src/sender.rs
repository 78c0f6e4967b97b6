//! Compares the sender's RTCP statistics with the packets received (RFC 3550 section 6.4.1).

use millrace_core::time::{MEDIA_HZ, NS_PER_S};
use millrace_core::wire::rtcp::{NTP_UNIX_OFFSET_S, SenderReport};
use serde::Serialize;

use crate::lateness::RunClock;

/// Sender reports against reception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SenderReports {
    /// Reports received.
    pub count: u64,
    /// Packets sent, according to the last one.
    pub last_packets: u32,
    /// Payload bytes sent, according to the last one.
    pub last_octets: u32,
    /// Packets sent by the last report, less those that were received or known to be lost when it
    /// came. Packets lost at the very end show here; 0 is right.
    pub last_difference: i64,
    /// The same for octets; only where nothing was lost.
    pub last_octet_difference: Option<i64>,
    /// The largest difference of any report, as an amount. A report overtakes packets in flight, so a burst is normal.
    pub worst_difference: u64,
    /// How far the wall clock and the RTP clock of the reports drift apart within a run, in microseconds, at worst.
    pub clock_error_us: u64,
    /// The sender's wall clock for a moment of the title, less the earliest arrival of the same
    /// moment here, in microseconds. Meaningful where both clocks agree, as on one machine. `None`
    /// without packets.
    pub media_offset_us: Option<i64>,
}

/// Follows the reports of one source.
#[derive(Debug, Default)]
pub(crate) struct SenderWatch {
    reports: SenderReports,
    /// NTP time in nanoseconds since 1970 and RTP timestamp of the run's first report.
    base: Option<(i64, u32)>,
}

/// Reception when a report comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) clock: &'a RunClock,
    pub(crate) baseline_ns: i64,
}

/// Unix nanoseconds of an NTP timestamp.
fn unix_ns(ntp: u64) -> i64 {
    let seconds = (ntp >> 32).cast_signed() - NTP_UNIX_OFFSET_S.cast_signed();
    let fraction = ((ntp & 0xffff_ffff) * NS_PER_S) >> 32;
    seconds.saturating_mul(NS_PER_S.cast_signed()).saturating_add(fraction.cast_signed())
}

impl SenderWatch {
    /// The title's place changed: the clocks may be related again.
    pub(crate) fn begin_run(&mut self) {
        self.base = None;
    }

    pub(crate) fn handle(&mut self, report: &SenderReport, received: Received<'_>) {
        let r = &mut self.reports;
        r.count += 1;
        (r.last_packets, r.last_octets) = (report.packets, report.octets);
        let seen = (received.packets + received.lost) as u32;
        r.last_difference = i64::from(report.packets.wrapping_sub(seen).cast_signed());
        r.worst_difference = r.worst_difference.max(r.last_difference.unsigned_abs());
        let octets = report.octets.wrapping_sub(received.payload_bytes as u32).cast_signed();
        r.last_octet_difference = (received.lost == 0).then_some(i64::from(octets));
        let ntp_ns = unix_ns(report.ntp);
        let (base_ns, base_rtp) = *self.base.get_or_insert((ntp_ns, report.rtp_timestamp));
        let ticks = i128::from(report.rtp_timestamp.wrapping_sub(base_rtp).cast_signed());
        let media_ns = ticks * i128::from(NS_PER_S) / i128::from(MEDIA_HZ);
        let error_ns = (i128::from(ntp_ns) - i128::from(base_ns) - media_ns).unsigned_abs();
        r.clock_error_us = r.clock_error_us.max(u64::try_from(error_ns / 1000).unwrap_or(u64::MAX));
        r.media_offset_us = received
            .clock
            .arrival_of(report.rtp_timestamp)
            .map(|arrival| ntp_ns.saturating_sub(arrival.saturating_add(received.baseline_ns)) / 1000);
    }

    pub(crate) fn reports(&self) -> SenderReports {
        self.reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::wire::rtcp::ntp_from_unix_ns;

    const S: u64 = NS_PER_S;

    fn report(unix_ns: u64, rtp_timestamp: u32, packets: u32) -> SenderReport {
        SenderReport {
            ssrc: 1,
            ntp: ntp_from_unix_ns(unix_ns),
            rtp_timestamp,
            packets,
            octets: packets * 1316,
        }
    }

    #[test]
    fn sender_watch_measures_packet_difference_and_clock_drift() {
        let mut clock = RunClock::default();
        clock.observe(1_000 * S, 500);
        let received =
            |packets: u64| Received { packets, lost: 2, payload_bytes: 0, clock: &clock, baseline_ns: 0 };
        let mut watch = SenderWatch::default();
        watch.handle(&report(1_000 * S, 500, 12), received(10));
        watch.handle(&report(1_005 * S, 500 + 450_000, 20), received(15));
        let r = watch.reports();
        assert_eq!((r.count, r.last_packets, r.last_difference, r.worst_difference), (2, 20, 3, 3));
        assert!(r.clock_error_us <= 1 && r.media_offset_us.unwrap().abs() <= 1, "{r:?}");
        assert_eq!(r.last_octet_difference, None);
        // Half a second of media is missing between two reports.
        watch.handle(&report(1_010 * S, 500 + 855_000, 22), received(20));
        let r = watch.reports();
        assert!(r.clock_error_us.abs_diff(500_000) <= 2, "{r:?}");
        assert!(r.media_offset_us.unwrap().abs_diff(500_000) <= 2, "{r:?}");
        // After a seek another relation holds.
        watch.begin_run();
        watch.handle(&report(1_020 * S, 9, 22), received(20));
        assert!(watch.reports().clock_error_us.abs_diff(500_000) <= 2);
        assert_eq!(watch.reports().last_difference, 0);
    }

    #[test]
    fn counters_wrap_and_octets_are_compared_without_loss() {
        let clock = RunClock::default();
        let mut watch = SenderWatch::default();
        let sr = SenderReport { ssrc: 1, ntp: 0, rtp_timestamp: 0, packets: 3, octets: 7 };
        let received = Received {
            packets: (1 << 32) + 1,
            lost: 0,
            payload_bytes: (1 << 32) + 7,
            clock: &clock,
            baseline_ns: 0,
        };
        watch.handle(&sr, received);
        let r = watch.reports();
        assert_eq!((r.last_difference, r.last_octet_difference, r.media_offset_us), (2, Some(0), None));
        watch.handle(&SenderReport { ntp: u64::MAX, rtp_timestamp: u32::MAX, ..sr }, received);
        assert_eq!(watch.reports().count, 2);
    }
}

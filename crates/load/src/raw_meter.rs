//! The counts of a listener for TS packets in plain datagrams.
//!
//! Nothing numbers these datagrams but the continuity counters of the PIDs in them, which count to
//! 16: the loss they show is a minimum. A datagram that overtakes another, or comes twice, looks
//! like loss too. Lateness is that of the program clock references or, where there are none, that
//! of every datagram against the given rate.

use hdrhistogram::Histogram;
use millrace_client::lateness::LightLateness;
use millrace_client::receive::SequenceCounts;
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MEDIA_HZ;
use millrace_core::units::BitRate;

use crate::limits::MAX_CLOCK_STEP_NS;
use crate::meter::ViewerMeasurements;
use crate::ts::light::TsLight;
use crate::ts::scan::{Pcr, TsScan};

/// The meter of one stream.
pub(super) struct RawMeter {
    scan: TsScan,
    /// Looks closer, if it is to.
    ts: Option<Box<TsLight>>,
    lateness: LightLateness,
    rate: Option<BitRate>,
    last_pcr: Option<Pcr>,
    packets: u64,
    payload_bytes: u64,
    lost: u64,
    malformed: u64,
    first_arrival_ns: Option<u64>,
    last_arrival_ns: u64,
    longest_gap_ns: u64,
}

impl RawMeter {
    /// `rate` is what lateness counts against while no clock reference has come.
    pub(super) fn new(rate: Option<BitRate>, inspect: bool) -> Self {
        Self {
            scan: TsScan::default(),
            ts: inspect.then(Box::default),
            lateness: LightLateness::default(),
            rate: rate.filter(|rate| rate.0 > 0),
            last_pcr: None,
            packets: 0,
            payload_bytes: 0,
            lost: 0,
            malformed: 0,
            first_arrival_ns: None,
            last_arrival_ns: 0,
            longest_gap_ns: 0,
        }
    }

    /// Takes a datagram. Lateness goes into `shared`.
    pub(super) fn datagram(&mut self, shared: &mut Histogram<u64>, arrival_ns: u64, bytes: &[u8]) {
        let ts_packets = bytes.chunks_exact(TS_PACKET_BYTES);
        let is_whole = !bytes.is_empty() && ts_packets.remainder().is_empty();
        if !is_whole || !ts_packets.clone().all(|packet| packet[0] == 0x47) {
            self.malformed += 1;
            return;
        }
        let missing_before = self.scan.counts().missing;
        let mut first_pcr = None;
        self.scan.bytes(bytes, |pcr| {
            first_pcr.get_or_insert(pcr);
        });
        let missing = self.scan.counts().missing - missing_before;
        // Packets are as long as this one, as far as anybody can tell.
        self.lost += missing.div_ceil(ts_packets.len() as u64);
        if let Some(ts) = &mut self.ts {
            if missing > 0 {
                ts.gap();
            }
            ts.payload(arrival_ns, bytes);
        }
        if self.first_arrival_ns.is_some() {
            // Kernel stamps of packets that went through different cores may run back by microseconds.
            self.longest_gap_ns = self.longest_gap_ns.max(arrival_ns.saturating_sub(self.last_arrival_ns));
        }
        self.first_arrival_ns.get_or_insert(arrival_ns);
        self.last_arrival_ns = self.last_arrival_ns.max(arrival_ns);
        self.time(shared, arrival_ns, first_pcr);
        self.packets += 1;
        self.payload_bytes += bytes.len() as u64;
    }

    /// Lateness of a datagram with this clock reference, or without one.
    fn time(&mut self, shared: &mut Histogram<u64>, arrival_ns: u64, pcr: Option<Pcr>) {
        match (pcr, self.last_pcr, self.rate) {
            (Some(pcr), last, _) => {
                let follows = last.is_some_and(|last| pcr.ns_since(last) <= MAX_CLOCK_STEP_NS);
                if !follows || pcr.discontinuity {
                    self.lateness.begin_run(shared);
                }
                self.last_pcr = Some(pcr);
                self.lateness.observe(arrival_ns, pcr.timestamp(), shared);
            }
            (None, None, Some(rate)) => {
                let ts_bytes = self.scan.counts().missing * TS_PACKET_BYTES as u64;
                let bits = u128::from(self.payload_bytes + ts_bytes) * 8;
                let timestamp = (bits * u128::from(MEDIA_HZ) / u128::from(rate.0)) as u32;
                self.lateness.observe(arrival_ns, timestamp, shared);
            }
            _ => {}
        }
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Ends the measurement at wall-clock time `end_ns`.
    pub(super) fn finish(&mut self, shared: &mut Histogram<u64>, end_ns: u64) -> ViewerMeasurements {
        self.lateness.finish(shared);
        let clock = self.lateness.clock();
        let tail_ns = end_ns.saturating_sub(self.last_arrival_ns);
        ViewerMeasurements {
            counts: SequenceCounts { received: self.packets, lost: self.lost, ..SequenceCounts::default() },
            payload_bytes: self.payload_bytes,
            malformed: self.malformed,
            lateness_max_us: self.lateness.max_us(),
            understated_us: self.lateness.understated_us(),
            longest_gap_us: self.longest_gap_ns.max(tail_ns) / 1000,
            first_arrival_ns: self.first_arrival_ns,
            span_ns: self.first_arrival_ns.map_or(0, |first| self.last_arrival_ns - first),
            jitter_us: clock.jitter_ns() / 1000,
            jitter_max_us: clock.jitter_max_ns() / 1000,
            runs: 1,
            ts: self.ts.as_ref().map(|ts| ts.findings()),
            ..ViewerMeasurements::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ts::scan::tests::packet;
    use millrace_client::lateness::histogram_us;

    const MS: u64 = 1_000_000;
    const START: u64 = 1_000_000_000_000;

    /// Returns seven TS packets of one PID, the first with a clock reference of `pcr_ms`
    /// milliseconds if one is given.
    fn datagram(number: u64, pcr_ms: Option<u64>) -> Vec<u8> {
        let first = (number * 7) as u8;
        (0..7)
            .flat_map(|n| packet(1, first.wrapping_add(n), pcr_ms.filter(|_| n == 0).map(|ms| ms * 27_000)))
            .collect()
    }

    #[test]
    fn loss_is_the_least_that_the_counters_show() {
        let (mut meter, mut shared) = (RawMeter::new(None, true), histogram_us());
        for number in (0..40).filter(|number| ![5, 20, 21].contains(number)) {
            meter.datagram(&mut shared, START + number * MS, &datagram(number, None));
        }
        meter.datagram(&mut shared, START, b"");
        meter.datagram(&mut shared, START, &[0x47; 187]);
        meter.datagram(&mut shared, START, &[0x48; 188]);
        let found = meter.finish(&mut shared, START + 50 * MS);
        assert_eq!((found.counts.received, found.counts.lost, found.malformed), (37, 3, 3));
        assert_eq!((found.payload_bytes, found.longest_gap_us, found.span_ns), (37 * 1316, 11_000, 39 * MS));
        // Loss by the network is not the stream's fault.
        assert_eq!(found.ts.map(|ts| (ts.packets, ts.continuity_errors)), Some((37 * 7, 0)));
        assert!(shared.is_empty(), "nothing tells what is late");
    }

    #[test]
    fn clock_references_are_late_against_each_other() {
        let (mut meter, mut shared) = (RawMeter::new(Some(BitRate(1)), false), histogram_us());
        for number in 0..100u64 {
            let late_ms = if number == 50 { 30 } else { 0 };
            // The clock jumps in the middle of the title.
            let pcr_ms = number * 20 + if number < 70 { 0 } else { 90_000 };
            let arrival_ns = START + (number * 20 + late_ms) * MS;
            meter.datagram(&mut shared, arrival_ns, &datagram(number, Some(pcr_ms)));
        }
        let found = meter.finish(&mut shared, START + 2000 * MS);
        assert_eq!((found.lateness_max_us, shared.len()), (30_000, 100));
        assert_eq!((found.counts.lost, found.ts.is_some()), (0, false));
    }

    #[test]
    fn raw_meter_without_pcr_measures_lateness_by_rate() {
        // 1316 bytes in 10 ms.
        let (mut meter, mut shared) = (RawMeter::new(Some(BitRate(1_052_800)), false), histogram_us());
        for number in (0..100u64).filter(|number| *number != 10) {
            let late_ms = if number == 90 { 25 } else { 0 };
            meter.datagram(&mut shared, START + (number * 10 + late_ms) * MS, &datagram(number, None));
        }
        let found = meter.finish(&mut shared, START + 1000 * MS);
        assert!((24_000..=26_000).contains(&found.lateness_max_us), "{}", found.lateness_max_us);
        assert_eq!((shared.len(), found.counts.lost), (99, 1));
    }

    #[test]
    fn raw_meter_with_arbitrary_datagrams_counts_each_once() {
        bolero::check!().with_type::<Vec<(Vec<u8>, u32)>>().with_iterations(500).for_each(|datagrams| {
            let (mut meter, mut shared) = (RawMeter::new(Some(BitRate(1)), true), histogram_us());
            for (bytes, arrival_ns) in datagrams {
                let mut long: Vec<u8> =
                    bytes.iter().copied().cycle().take(bytes.len().min(1) * 376).collect();
                meter.datagram(&mut shared, u64::from(*arrival_ns), bytes);
                long.iter_mut().step_by(188).for_each(|byte| *byte = 0x47);
                meter.datagram(&mut shared, u64::from(*arrival_ns), &long);
            }
            let found = meter.finish(&mut shared, u64::MAX);
            assert!(found.counts.received + found.malformed == 2 * datagrams.len() as u64);
        });
    }
}

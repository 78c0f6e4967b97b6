//! Lateness, jitter and gaps: the program against a model with wide integers.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use millrace_netio::bpf::{Assembler, Reg};

/// Clock of one run, as our own receiver computes it.
#[derive(Default)]
struct Model {
    first: Option<(u64, u32)>,
    last_arrival: u64,
    last_timestamp: u32,
    ticks: i128,
    last_offset: i128,
    jitter_x16: i128,
    longest_gap: u64,
    offsets: Vec<i128>,
    /// Time from the first packet to the last when each came.
    spans: Vec<i128>,
}

impl Model {
    fn observe(&mut self, hz: u64, arrival: u64, timestamp: u32) {
        let Some((first, _)) = self.first else {
            self.first = Some((arrival, timestamp));
            (self.last_arrival, self.last_timestamp) = (arrival, timestamp);
            self.offsets.push(0);
            self.spans.push(0);
            return;
        };
        self.ticks += i128::from(timestamp.wrapping_sub(self.last_timestamp).cast_signed());
        self.last_timestamp = timestamp;
        self.longest_gap = self.longest_gap.max(arrival.saturating_sub(self.last_arrival));
        self.last_arrival = self.last_arrival.max(arrival);
        let media = (self.ticks * 1_000_000_000).div_euclid(i128::from(hz));
        let offset = i128::from(arrival) - i128::from(first) - media;
        let difference = (offset - self.last_offset).abs();
        self.jitter_x16 += difference - ((self.jitter_x16 + 8) >> 4);
        self.last_offset = offset;
        self.offsets.push(offset);
        self.spans.push(i128::from(self.last_arrival - first));
    }

    fn min(&self, count: usize) -> i128 {
        self.offsets[..count].iter().copied().min().unwrap()
    }

    /// The first packets wait for the baseline; the others count from the best one until then.
    fn lateness(&self) -> Vec<(u64, u64)> {
        let learned = self.offsets.len().min(64);
        let mut bins = vec![0; BINS];
        for (at, offset) in self.offsets.iter().enumerate() {
            let known = if at < learned { learned } else { at + 1 };
            let lateness = (offset - self.min(known)).min(self.spans[known - 1]);
            bins[histogram::bin_of(lateness as u64)] += 1;
        }
        histogram::edges(&bins)
    }

    fn assert_same(&self, counts: &ProbeCounts) {
        let all = self.offsets.len();
        let max = self.offsets.iter().max().unwrap() - self.min(all);
        let understated = if all >= 64 { self.min(64) - self.min(all) } else { 0 };
        assert_eq!(i128::from(counts.lateness_max_ns), max.min(self.spans[all - 1]));
        assert_eq!(i128::from(counts.understated_ns), understated);
        assert_eq!(i128::from(counts.jitter_ns), self.jitter_x16 / 16);
        assert_eq!(counts.longest_gap_ns, self.longest_gap);
        assert_eq!(Some(counts.first_arrival_ns), self.first.map(|first| first.0));
        assert_eq!(counts.last_arrival_ns, self.last_arrival);
        assert_eq!(counts.first_timestamp, self.first.map(|first| first.1));
    }
}

/// Steps of arrival in nanoseconds and of the timestamp in ticks; both may run back.
fn steps() -> impl Strategy<Value = Vec<(i64, i32)>> {
    let arrival = prop_oneof![
        5 => 0..40_000_000i64,
        1 => 0..3_000i64,
        1 => -5_000..0i64,
        1 => 0..90_000_000_000i64,
    ];
    let timestamp = prop_oneof![
        5 => 0..4_000i32,
        1 => -9_000..0i32,
        1 => Just(0),
        1 => any::<i32>(),
    ];
    prop::collection::vec((arrival, timestamp), 1..150)
}

#[test]
fn probe_timing_matches_model_for_any_arrivals() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    // Slower clocks would run out of nanoseconds with these steps.
    let rates = prop_oneof![Just(90_000u32), Just(48_000), Just(1_000_000_000), 1000..200_000u32];
    proptest!(|(steps in steps(), start in any::<u32>(), clock_hz in rates)| {
        probe.watch(local(LOCAL), 0, ProbeMedia::Rtp { payload_type: 33, clock_hz }).unwrap();
        let before: HashMap<u64, u64> = probe.lateness().unwrap().into_iter().collect();
        let mut model = Model::default();
        let (mut arrival, mut timestamp) = (1u64 << 50, start);
        for (sequence, (arrival_step, timestamp_step)) in steps.into_iter().enumerate() {
            arrival = arrival.wrapping_add_signed(arrival_step);
            timestamp = timestamp.wrapping_add_signed(timestamp_step);
            probe.judge_at(&Frame::new(LOCAL, rtp(sequence as u16, timestamp, 0)), arrival);
            model.observe(u64::from(clock_hz), arrival, timestamp);
        }
        model.assert_same(&probe.read(0).unwrap());
        // The histogram is of all cases until now.
        let all = probe.lateness().unwrap();
        let new = |&(edge, count): &(u64, u64)| (edge, count - before.get(&edge).unwrap_or(&0));
        let lateness: Vec<_> = all.iter().map(new).filter(|(_, count)| *count > 0).collect();
        prop_assert_eq!(lateness, model.lateness());
    });
}

#[test]
fn raw_probe_measures_lateness_by_nominal_rate() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    // 1 byte in 8 us: 100 bytes take 0.8 ms.
    probe.watch(local(LOCAL), 0, ProbeMedia::Raw { bytes_per_s: 125_000 }).unwrap();
    let due = |packet: u64| (1 << 40) + packet * 800_000;
    for packet in 0..200 {
        let late = if packet == 150 { 5_000_000 } else { packet % 2 * 1000 };
        probe.judge_at(&Frame::new(LOCAL, vec![0; 100]), due(packet) + late);
    }
    let counts = probe.read(0).unwrap();
    assert_eq!(counts.lateness_max_ns, 5_000_000);
    assert_eq!(counts.longest_gap_ns, 5_000_000 + 800_000 - 1000);
    assert_eq!(counts.understated_ns, 0);
    let lateness = probe.lateness().unwrap();
    assert_eq!(lateness.iter().map(|(_, count)| count).sum::<u64>(), 200);
    assert_eq!(lateness.last().map(|&(edge, count)| (edge / 100, count)), Some((49, 1)));
}

#[test]
fn late_baseline_is_reported_as_understated_lateness() {
    let Some(probe) = watching() else { return };
    let feed = |packet: u16, early_ns: u64| {
        let frame = Frame::new(LOCAL, rtp(packet, u32::from(packet) * 90, 0));
        probe.judge_at(&frame, (1 << 40) + u64::from(packet) * 1_000_000 - early_ns);
    };
    (0..70).for_each(|packet| feed(packet, 0));
    assert_eq!(probe.read(0).unwrap().understated_ns, 0);
    feed(70, 300_000);
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.understated_ns, counts.lateness_max_ns), (300_000, 300_000));
    // Another run has a baseline of its own; the figures of the first stay.
    probe.begin_run(0).unwrap();
    feed(100, 900_000);
    feed(101, 900_000);
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.understated_ns, counts.lateness_max_ns, counts.jitter_ns), (300_000, 300_000, 0));
}

#[test]
fn lateness_histogram_survives_new_watch_of_slot() {
    let Some(probe) = watching() else { return };
    for packet in 0..10 {
        probe.judge(&Frame::new(LOCAL, rtp(packet, 0, 0)));
    }
    assert_eq!(probe.lateness().unwrap(), [(0, 10)]);
    probe.watch(local(LOCAL), 0, ProbeMedia::rtp(33)).unwrap();
    assert_eq!(probe.lateness().unwrap(), [(0, 10)]);
}

#[test]
fn datagrams_of_a_train_arrive_together() {
    let Some(probe) = watching() else { return };
    let train = |first: u16, arrival_ns: u64| {
        let payload = (first..first + 40).flat_map(|packet| rtp(packet, u32::from(packet) * 90, 0)).collect();
        probe.judge_at(&Frame { gso_size: 12, ..Frame::new(LOCAL, payload) }, arrival_ns);
        probe.read(0).unwrap()
    };
    let counts = train(0, 7_000_000_000);
    assert_eq!((counts.first_arrival_ns, counts.last_arrival_ns), (7_000_000_000, 7_000_000_000));
    // Nothing can be late in a run that took no time.
    assert_eq!((counts.lateness_max_ns, counts.longest_gap_ns), (0, 0));
    // The last one of each came 39 ms before its time, and so the first one 39 ms after.
    let counts = train(40, 7_040_000_000);
    assert_eq!((counts.lateness_max_ns, counts.longest_gap_ns), (39_000_000, 40_000_000));
}

/// Nanoseconds of a datagram, for people:
/// `cargo test -p millrace-load --lib cost_of_a_packet -- --ignored --nocapture`. The first line
/// is the kernel's time to call a program that does nothing.
#[test]
#[ignore = "prints figures and judges nothing"]
fn cost_of_a_packet() {
    let Some(probe) = probe(1000, ProbeAction::Drop) else { return };
    let form = Form { action: ProbeAction::Drop, header_bytes: 14, arrival: ArrivalClock::Clock };
    let clocked = DropProbe::load(1000, form).unwrap();
    let mut nothing = Assembler::default();
    nothing.mov(Reg::R0, PASS);
    nothing.exit();
    let nothing = BpfProgram::load("nothing", ProgramType::TcxIngress, nothing).unwrap();
    for probe in [&probe, &clocked] {
        probe.watch(local(LOCAL), 0, ProbeMedia::Raw { bytes_per_s: 1 << 30 }).unwrap();
        probe.watch(local("10.1.2.3:6"), 1, ProbeMedia::rtp(33)).unwrap();
    }
    let print = |what: &str, program: &BpfProgram, frame: Frame, datagrams: u32| {
        let (packet, context) = (frame.bytes(), frame.context(1));
        let run = TestRun { packet: &packet, context: &context, repeat: 200_000 };
        let best = (0..9).map(|_| program.test_run(&run).unwrap().duration_ns).min().unwrap();
        eprintln!("{what}: {} ns", best / datagrams);
    };
    let raw = || Frame::new(LOCAL, rtp(1, 0, 1316));
    let train = (0..100).flat_map(|packet| rtp(packet, 0, 8)).collect();
    let train = Frame { gso_size: 20, ..Frame::new("10.1.2.3:6", train) };
    print("nothing", &nothing, raw(), 1);
    print("not watched", &clocked.program, Frame::new("10.1.2.3:7", rtp(1, 0, 1316)), 1);
    print("raw", &clocked.program, raw(), 1);
    print("raw, without reading the clock", &probe.program, raw(), 1);
    print("RTP, the same packet again", &clocked.program, Frame::new("10.1.2.3:6", rtp(1, 0, 1316)), 1);
    print("RTP, a train of 100, each", &clocked.program, train, 100);
}

/// The server answers PAUSE before its last packets have left, and a reply may be read after the
/// packets that it announces. The numbers go on across the seek, so packets lost in between are
/// seen.
#[test]
fn suspended_clock_hides_seek_from_lateness() {
    let Some(probe) = watching() else { return };
    let feed = |ms: u64, sequence: u16, media_ms: u32| {
        probe.judge_at(&Frame::new(LOCAL, rtp(sequence, media_ms * 90, 4)), (1000 + ms) * 1_000_000);
    };
    (0..100u16).for_each(|n| feed(u64::from(n) * 10, n, 40_000 + u32::from(n) * 10));
    probe.suspend_clock(0).unwrap();
    feed(1005, 100, 41_000); // left over
    feed(1400, 101, 10_000); // before the reply was read
    probe.resume_clock(0).unwrap();
    // 102 is lost.
    (103..200u16).for_each(|n| feed(1400 + u64::from(n - 101) * 10, n, 10_000 + u32::from(n - 101) * 10));
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.packets, counts.lost, counts.strays, counts.restarts), (199, 1, 0, 0));
    assert_eq!((counts.lateness_max_ns, counts.longest_gap_ns), (0, 10_000_000));
    assert_eq!(counts.last_timestamp, Some((10_000 + 98 * 10) * 90));
    assert_eq!(probe.lateness().unwrap(), [(0, 197)]);
    // A first packet that no clock takes is still the first.
    probe.watch(local(LOCAL), 1, ProbeMedia::rtp(33)).unwrap();
    probe.suspend_clock(1).unwrap();
    feed(5000, 7, 0);
    assert_eq!(probe.read(1).unwrap().first_arrival_ns, 6_000_000_000);
}

//! Sequence numbers: the program against a model with sets instead of windows.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// The rules of our own receiver for sequence numbers (RFC 3550 appendix A.1, with larger bounds),
/// in the plainest form.
#[derive(Default)]
struct Model {
    run: Option<Run>,
    previous: Option<u64>,
    confirms: Option<u16>,
    packets: u64,
    lost: u64,
    reordered: u64,
    duplicates: u64,
    strays: u64,
    restarts: u64,
}

struct Run {
    lowest: u64,
    highest: u64,
    seen: HashSet<u64>,
}

fn distance(from: u64, to: u16) -> i64 {
    i64::from(to.wrapping_sub(from as u16).cast_signed())
}

impl Model {
    fn missing(run: &Run) -> u64 {
        run.highest - run.lowest + 1 - run.seen.len() as u64
    }

    fn lost(&self) -> u64 {
        self.lost + self.run.as_ref().map_or(0, Self::missing)
    }

    fn begin_run(&mut self) {
        self.confirms = None;
        if let Some(run) = self.run.take() {
            self.lost += Self::missing(&run);
            self.previous = Some(run.highest);
        }
    }

    fn start(&mut self, sequence: u16) {
        self.confirms = None;
        let cycle = self.previous.map_or(1 << 32, |previous| (previous | 0xffff) + 1);
        let ext = cycle + u64::from(sequence);
        self.run = Some(Run { lowest: ext, highest: ext, seen: HashSet::from([ext]) });
        self.packets += 1;
    }

    fn accept(&mut self, ext: u64) {
        let run = self.run.as_mut().unwrap();
        run.lowest = run.lowest.min(ext);
        run.highest = run.highest.max(ext);
        assert!(run.seen.insert(ext));
        self.packets += 1;
    }

    fn stray(&mut self, confirms: Option<u16>) {
        self.strays += 1;
        self.confirms = confirms;
    }

    fn observe(&mut self, sequence: u16) {
        let Some(run) = &self.run else {
            return match self.previous.map(|previous| distance(previous, sequence)) {
                None | Some(1..=3000) => self.start(sequence),
                Some(-4096..=0) => self.stray(None),
                Some(_) => self.far(sequence, None),
            };
        };
        let step = distance(run.highest, sequence);
        let ext = run.highest.wrapping_add_signed(step);
        match step {
            1..=3000 => self.confirms = None,
            3001.. => return self.far(sequence, Some(ext)),
            ..=-4096 => return self.far(sequence, None),
            _ => {
                self.confirms = None;
                if run.seen.contains(&ext) {
                    self.duplicates += 1;
                    return;
                }
                self.reordered += 1;
            }
        }
        self.accept(ext);
    }

    fn far(&mut self, sequence: u16, ahead: Option<u64>) {
        if self.confirms != Some(sequence) {
            return self.stray(Some(sequence.wrapping_add(1)));
        }
        self.confirms = None;
        self.strays -= 1;
        if let Some(ext) = ahead {
            self.accept(ext - 1);
            return self.accept(ext);
        }
        self.restarts += u64::from(self.run.is_some());
        self.begin_run();
        self.start(sequence.wrapping_sub(1));
        let next = self.run.as_ref().unwrap().highest + 1;
        self.accept(next);
    }

    fn assert_same(&self, counts: &ProbeCounts) {
        let ours = (self.packets, self.lost(), self.reordered, self.duplicates, self.strays, self.restarts);
        let theirs = (
            counts.packets,
            counts.lost,
            counts.reordered,
            counts.duplicates,
            counts.strays,
            counts.restarts,
        );
        assert_eq!(theirs, ours, "packets, lost, reordered, duplicates, strays, restarts");
        if let Some(run) = &self.run {
            assert_eq!(counts.first_sequence, Some(run.lowest as u16));
            assert_eq!(counts.highest_sequence_ext, run.highest);
        }
        assert_eq!(counts.datagrams, counts.packets + counts.duplicates + counts.strays);
        assert_eq!(counts.payload_bytes, counts.packets * 4);
    }
}

/// Effects of a network and a sender on a stream.
#[derive(Clone, Debug)]
enum Event {
    /// A number of packets in order.
    Flow(u16),
    /// A number of sequence numbers are left out.
    Lose(u16),
    /// A packet from this far behind, seen before or not.
    Behind(u16),
    /// A packet from this far ahead; the stream goes on where it was.
    Ahead(u16),
    /// The stream goes on somewhere else.
    Jump(u16),
    /// A pause: the next packet begins a run.
    BeginRun,
}

fn events() -> impl Strategy<Value = (u16, Vec<Event>)> {
    let event = prop_oneof![
        6 => (1..80u16).prop_map(Event::Flow),
        3 => (1..40u16).prop_map(Event::Lose),
        1 => (1..8000u16).prop_map(Event::Lose),
        4 => (0..64u16).prop_map(Event::Behind),
        2 => (0..5000u16).prop_map(Event::Behind),
        2 => (4090..4100u16).prop_map(Event::Behind),
        1 => (2990..3010u16).prop_map(Event::Ahead),
        2 => any::<u16>().prop_map(Event::Jump),
        1 => Just(Event::BeginRun),
    ];
    (any::<u16>(), prop::collection::vec(event, 1..40))
}

fn numbers(start: u16, events: &[Event]) -> Vec<Option<u16>> {
    let mut next = start;
    let mut sent = Vec::new();
    for event in events {
        match *event {
            Event::Flow(count) => {
                sent.extend((0..count).map(|step| Some(next.wrapping_add(step))));
                next = next.wrapping_add(count);
            }
            Event::Lose(count) => next = next.wrapping_add(count),
            Event::Behind(by) => sent.push(Some(next.wrapping_sub(by))),
            Event::Ahead(by) => sent.push(Some(next.wrapping_add(by))),
            Event::Jump(to) => next = to,
            Event::BeginRun => sent.push(None),
        }
    }
    sent
}

/// Feeds packets one by one, or in trains of `train`, and compares.
fn compare(probe: &DropProbe, sent: &[Option<u16>], train: usize) {
    probe.watch(local(LOCAL), 0, ProbeMedia::rtp(33)).unwrap();
    let mut model = Model::default();
    for run in sent.split_inclusive(Option::is_none) {
        for group in run.iter().flatten().collect::<Vec<_>>().chunks(train) {
            let payload = group.iter().flat_map(|&&sequence| rtp(sequence, 0, 4)).collect();
            let gso_size = if group.len() > 1 { 16 } else { 0 };
            assert_eq!(probe.judge(&Frame { gso_size, ..Frame::new(LOCAL, payload) }), DROP);
            group.iter().for_each(|&&sequence| model.observe(sequence));
        }
        if run.last() == Some(&None) {
            probe.begin_run(0).unwrap();
            model.begin_run();
        }
    }
    model.assert_same(&probe.read(0).unwrap());
}

#[test]
fn probe_sequence_counts_match_model_for_any_stream() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    proptest!(|((start, events) in events(), train in 1..100usize)| {
        compare(&probe, &numbers(start, &events), train);
    });
}

/// The numbers that the tests of our own receiver are made of.
#[test]
fn known_streams() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    let counted = |numbers: &[u16]| {
        let sent: Vec<_> = numbers.iter().copied().map(Some).collect();
        compare(&probe, &sent, 1);
        let c = probe.read(0).unwrap();
        [c.packets, c.lost, c.reordered, c.duplicates, c.strays, c.restarts]
    };
    assert_eq!(counted(&[10, 11, 14, 12, 12, 14, 15]), [5, 1, 1, 2, 0, 0]);
    assert_eq!(counted(&[65_534, 0, 65_535, 2, 1, 65_533]), [6, 0, 3, 0, 0, 0]);
    let mut outage: Vec<u16> = (0..100).collect();
    outage.extend([20_000, 20_001, 20_002]);
    assert_eq!(counted(&outage), [103, 19_900, 0, 0, 0, 0]);
    assert_eq!(counted(&[50_000, 50_001, 40_000, 40_001, 40_002]), [5, 0, 0, 0, 0, 1]);
    assert_eq!(counted(&[7, 40_000, 8, 41_000]), [2, 0, 0, 0, 2, 0]);
}

#[test]
fn numbers_wrap_many_times_without_a_trace() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    let sent: Vec<_> = (0..200_000u32).map(|number| Some((number + 65_530) as u16)).collect();
    compare(&probe, &sent, 128);
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.packets, counts.lost, counts.duplicates), (200_000, 0, 0));
    assert_eq!(counts.highest_sequence_ext, (1 << 32) + 65_530 + 199_999);
}

#[test]
fn restart_of_sender_resets_clock_baseline() {
    let Some(probe) = watching() else { return };
    let feed = |arrival_ms: u64, sequence: u16, timestamp: u32| {
        probe.judge_at(&Frame::new(LOCAL, rtp(sequence, timestamp, 4)), arrival_ms * 1_000_000);
    };
    feed(1000, 50_000, 0);
    feed(1010, 50_001, 0);
    // The sender begins again, with other numbers and times, a minute later.
    feed(61_000, 40_010, 3_000_000_000);
    feed(61_001, 40_011, 3_000_000_090);
    feed(61_002, 40_012, 3_000_000_180);
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.packets, counts.restarts, counts.lost), (5, 1, 0));
    assert_eq!(counts.lateness_max_ns, 10_000_000);
    assert_eq!(counts.longest_gap_ns, 10_000_000);
    assert_eq!((counts.first_arrival_ns, counts.last_arrival_ns), (1_000_000_000, 61_002_000_000));
}

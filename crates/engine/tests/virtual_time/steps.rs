//! Runs that send the first packets of each stride of their title, beside a model that goes through the title packet by packet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Payload, SendOutcome, TransmitBatch};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::{RtpHeader, sequence_of};
use millrace_engine::{
    Engine, EngineConfig, Numbering, Refusal, RunCut, RunEnd, RunSpec, StepPattern, StopReason, StreamEvent,
    StreamSpec,
};
use proptest::prelude::*;

use crate::world::{MS, S, START, udp};
use millrace_testkit::film::Film;

const PER_EXTENT: u32 = 196;
const PACKETS: u32 = 3_000;
const STREAM: StreamId = StreamId { index: 0, generation: 0 };

/// A packet as the viewer must get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    packet: u32,
    sequence: u16,
    timestamp: u32,
    /// When it departs, behind the first one.
    ns: u64,
}

/// Packets of many lengths, up to 3 ms.
fn film() -> Film {
    let (mut times, mut ticks, mut state) = (Vec::new(), 0, 7u64);
    for _ in 0..PACKETS {
        times.push(ticks);
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ticks += 1 + (state >> 33) % 300;
    }
    Film::new(0, PACKETS, move |packet| times[packet as usize])
}

/// How long a packet takes: to the one behind it, and at the end of an extent as long as the one before, if what follows is left out.
fn length(film: &Film, packet: u32, is_followed: bool) -> u64 {
    let time = |packet| film.time(packet).0;
    let ends = (packet + 1).is_multiple_of(PER_EXTENT) || packet + 1 == PACKETS;
    if !ends || is_followed { time(packet + 1) - time(packet) } else { time(packet) - time(packet - 1) }
}

/// All packets of a run, and what would come behind them.
fn model(film: &Film, from: u32, until: u32, step: (u32, u32), sequence: u16) -> Vec<Expected> {
    let is_sent = |packet: u32| packet < until && packet % step.1 < step.0;
    let mut ticks = 0;
    let mut all = Vec::new();
    let mut first = None;
    for packet in (from..until).filter(|&packet| is_sent(packet)) {
        let first = *first.get_or_insert(film.timeline.timestamp(film.time(packet)));
        all.push(Expected {
            packet,
            sequence: sequence.wrapping_add(all.len() as u16),
            timestamp: first.wrapping_add(ticks as u32),
            ns: ticks * 100_000 / 9,
        });
        ticks += length(film, packet, is_sent(packet + 1));
    }
    all.push(Expected {
        packet: until,
        sequence: sequence.wrapping_add(all.len() as u16),
        timestamp: first.unwrap_or(0).wrapping_add(ticks as u32),
        ns: ticks * 100_000 / 9,
    });
    all
}

/// An engine with one stream, a disk and a device.
struct Rig {
    engine: Engine,
    arena: Arc<ExtentArena>,
    film: Film,
    now: Instant,
    /// How long a read takes.
    read_ns: u64,
    reads: BTreeMap<(Instant, u32), RunSerial>,
    /// Every `torn`-th burst is taken only in part.
    torn: u32,
    bursts: u32,
    /// Packets the viewer got: number in the title from the shared header, own header, and arrival
    /// time.
    got: Vec<(u16, RtpHeader, Instant)>,
    /// When bursts left.
    left: Vec<(usize, Instant)>,
    wanted: Vec<u32>,
    ends: Vec<RunEnd>,
    began: Vec<(RunSerial, Instant)>,
}

impl Rig {
    fn new(read_ns: u64, torn: u32) -> Self {
        let mut engine = Engine::new(EngineConfig { streams: 1, ..EngineConfig::default() });
        let spec = StreamSpec { id: STREAM, dest: udp(0), quiet: false, lends: false, once: false };
        engine.open(START, spec).unwrap();
        Self {
            engine,
            arena: ExtentArena::new(Box::new(HeapRegion::new(PACKETS.div_ceil(PER_EXTENT) as usize))),
            film: film(),
            now: START,
            read_ns,
            reads: BTreeMap::new(),
            torn,
            bursts: 0,
            got: Vec::new(),
            left: Vec::new(),
            wanted: Vec::new(),
            ends: Vec::new(),
            began: Vec::new(),
        }
    }

    fn run_spec(
        &self,
        run: u32,
        from: u32,
        until: u32,
        step: Option<StepPattern>,
        numbering: Numbering,
    ) -> RunSpec {
        let (run, media) = (RunSerial(run), self.film.media(u8::from(step.is_some())));
        RunSpec { run, media, from, until, numbering, scale_permille: 1000, step }
    }

    fn turn(&mut self) {
        loop {
            while let Some((&(at, extent), &run)) =
                self.reads.first_key_value().filter(|((at, _), _)| *at <= self.now)
            {
                self.reads.remove(&(at, extent));
                let content = self.film.content(extent);
                let lease = match self.arena.lend(extent, content) {
                    Some(lease) => lease,
                    None => self.film.load(&self.arena, extent, extent),
                };
                self.engine.handle_lease(self.now, STREAM, run, extent, lease);
            }
            let bursts = self.engine.poll_bursts(self.now);
            self.send();
            let mut wants = 0;
            while let Some(want) = self.engine.poll_want() {
                wants += 1;
                assert_eq!(want.spare, 0, "nobody repairs that");
                self.wanted.push(want.extent);
                self.reads.insert((self.now.plus_ns(self.read_ns), want.extent), want.run);
            }
            let leases: u32 = (0..self.arena.extents()).map(|extent| self.arena.leases(extent)).sum();
            assert!(leases <= 2, "{leases}");
            if bursts == 0 && wants == 0 {
                break;
            }
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                StreamEvent::RunEnded { end, .. } => self.ends.push(end),
                StreamEvent::RunBegan { run, at, .. } => self.began.push((run, at)),
                _ => {}
            }
        }
    }

    fn send(&mut self) {
        let mut outcomes = Vec::new();
        for at in 0..self.engine.batch().len() {
            let transmit = self.engine.batch().get(at);
            let (bytes, headers, segment) = match transmit.payload {
                Payload::Wire { bytes, segment } => (bytes, None, segment),
                Payload::Patched { bytes, headers, segment } => (bytes, Some(headers), segment),
                _ => {
                    outcomes.push(SendOutcome::Sent);
                    continue;
                }
            };
            self.bursts += 1;
            let all = transmit.datagrams();
            let taken = if self.torn > 0 && self.bursts.is_multiple_of(self.torn) { all / 2 } else { all };
            self.left.push((self.got.len(), self.now));
            for (index, datagram) in bytes.chunks(segment).enumerate().take(taken) {
                let (shared, _) = RtpHeader::parse(datagram).unwrap();
                let own = headers.map_or(datagram, |headers| &headers[index * 12..][..12]);
                self.got.push((shared.sequence, RtpHeader::parse(own).unwrap().0, self.now));
            }
            outcomes.push(match taken == all {
                true => SendOutcome::Sent,
                false => SendOutcome::Blocked { taken: taken as u16 },
            });
        }
        self.engine.handle_sent(self.now, &outcomes);
    }

    fn run_for(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        loop {
            self.turn();
            let read = self.reads.keys().next().map(|&(at, _)| at);
            let next = [read, self.engine.poll_at()].into_iter().flatten().min().unwrap_or(Instant(u64::MAX));
            if next > end {
                break;
            }
            self.now = next.max(self.now);
        }
        self.now = end;
    }

    /// Checks that the packets received since packet `from` of all match `expected`; returns their
    /// number.
    fn check(&self, from: usize, expected: &[Expected]) -> usize {
        for ((shared, header, _), expected) in self.got[from..].iter().zip(expected) {
            let got = (*shared, header.sequence, header.timestamp, header.ssrc);
            let ssrc = self.film.timeline.ssrc;
            assert_eq!(
                got,
                (sequence_of(expected.packet), expected.sequence, expected.timestamp, ssrc),
                "{expected:?}"
            );
        }
        let got = self.got.len() - from;
        assert!(got < expected.len(), "{got} packets of {}", expected.len() - 1);
        got
    }
}

fn step_of(block: u16, stride: u16) -> StepPattern {
    StepPattern::new(block, stride).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_time: 30_000, ..ProptestConfig::default() })]

    /// With pauses anywhere, reads that take their time, and bursts that are torn.
    #[test]
    fn stepped_run_with_pauses_and_torn_bursts_matches_model(
        (block, over) in (1u16..300, 1u16..800),
        (from, len) in (0u32..PACKETS, 0u32..=PACKETS),
        read_ms in 0u64..30,
        torn in prop_oneof![Just(0), 2u32..7],
        pauses in proptest::collection::vec(1u64..400, 0..6),
    ) {
        let (step, until) = (step_of(block, block + over), PACKETS.min(from + len));
        let pattern = (u32::from(block), u32::from(block) + u32::from(over));
        let mut rig = Rig::new(read_ms * MS, torn);
        let (mut next, mut sequence, mut serial) = (from, 9_000u16, 0);
        for pause_ms in pauses.into_iter().map(Some).chain([None]) {
            serial += 1;
            let (before, wants_before) = (rig.got.len(), rig.wanted.len());
            let expected = model(&rig.film, next, until, pattern, sequence);
            let run = rig.run_spec(serial, next, until, Some(step), Numbering::Sequence(sequence));
            rig.engine.play(rig.now, STREAM, rig.now, run).unwrap();
            rig.run_for(pause_ms.map_or(100 * S, |ms| ms * MS));
            let _ = rig.engine.pause(rig.now, STREAM);
            rig.turn();
            let got = rig.check(before, &expected);
            let end = *rig.ends.last().unwrap();
            prop_assert_eq!((end.next_packet, end.next_sequence), (expected[got].packet, expected[got].sequence));
            prop_assert_eq!((end.run.0, end.packets as usize), (serial, got));
            if let Some(&(_, at)) = rig.began.iter().find(|(run, _)| *run == end.run)
                && got > 0
                && !expected[got].packet.is_multiple_of(PER_EXTENT)
            {
                // Behind an extent's border it is known only when that extent has come.
                prop_assert_eq!(end.next_due, at.plus_ns(expected[got].ns));
            }
            let parts: BTreeSet<_> =
                expected[..expected.len() - 1].iter().map(|expected| expected.packet / PER_EXTENT).collect();
            prop_assert!(rig.wanted[wants_before..].iter().all(|extent| parts.contains(extent)), "{:?}", rig.wanted);
            if pause_ms.is_none() {
                prop_assert_eq!(got + 1, expected.len());
                prop_assert_eq!(end.reason, StopReason::Finished);
            }
            if pause_ms.is_none() && got > 0 {
                prop_assert_eq!(rig.wanted.len() - wants_before, parts.len(), "each once");
            }
            (next, sequence) = (end.next_packet, end.next_sequence);
        }
        let leases: u32 = (0..rig.arena.extents()).map(|extent| rig.arena.leases(extent)).sum();
        prop_assert_eq!(leases, 0);
    }

    /// No packet is late if the next data has been read when its time comes: every burst leaves at
    /// the time of its first packet.
    #[test]
    fn bursts_leave_at_the_time_of_what_is_sent((block, over) in (1u16..300, 1u16..2_000), from in 0u32..PACKETS) {
        let step = step_of(block, block + over);
        let mut rig = Rig::new(0, 0);
        let pattern = (u32::from(block), u32::from(block) + u32::from(over));
        let expected = model(&rig.film, from, PACKETS, pattern, 5);
        let run = rig.run_spec(1, from, PACKETS, Some(step), Numbering::Sequence(5));
        rig.engine.play(rig.now, STREAM, rig.now, run).unwrap();
        rig.run_for(100 * S);
        prop_assert_eq!(rig.check(0, &expected) + 1, expected.len());
        for &(first, left) in &rig.left {
            prop_assert_eq!(left, START.plus_ns(expected[first].ns));
        }
        prop_assert_eq!((rig.engine.counters().late, rig.engine.counters().catch_ups), (0, 0));
    }
}

/// The last packet sent of an extent may be far from its end: what follows has been asked for by then.
#[test]
fn stepped_run_leaving_extent_early_requests_next_in_time() {
    let (block, stride) = (100, 196);
    let mut rig = Rig::new(20 * MS, 0);
    let step = Some(step_of(block, stride));
    let run = rig.run_spec(1, 0, PACKETS, step, Numbering::Sequence(5));
    rig.engine.play(rig.now, STREAM, rig.now, run).unwrap();
    rig.run_for(100 * S);
    let expected = model(&rig.film, 0, PACKETS, (block.into(), stride.into()), 5);
    assert_eq!(rig.check(0, &expected) + 1, expected.len());
    assert!(rig.left.iter().all(|&(first, left)| left == START.plus_ns(20 * MS + expected[first].ns)));
    assert_eq!(rig.engine.counters().starved, 0);
}

/// A run that follows one with steps, whether its cut is in a block, in a gap, or at the end, goes on with its numbers and its clock.
#[test]
fn another_run_follows_without_a_break() {
    // Blocks of 50 packets, at 0, 500, 1000 ...
    for (cut, sent) in
        [(RunCut::At(1_020), 120), (RunCut::At(700), 100), (RunCut::At(1_500), 150), (RunCut::End, 300)]
    {
        let mut rig = Rig::new(MS, 0);
        let first = rig.run_spec(1, 0, PACKETS, Some(step_of(50, 500)), Numbering::Sequence(100));
        rig.engine.play(rig.now, STREAM, rig.now, first).unwrap();
        rig.run_for(20 * MS);
        let next = rig.run_spec(2, 400, 900, None, Numbering::Viewer);
        rig.engine.queue(rig.now, STREAM, cut, next).unwrap();
        rig.run_for(100 * S);
        let until = if let RunCut::At(packet) = cut { packet } else { PACKETS };
        let expected = model(&rig.film, 0, until, (50, 500), 100);
        assert_eq!((rig.got.len(), expected.len()), (sent + 500, sent + 1), "{cut:?}");
        let behind = expected[sent];
        let (_, header, _) = rig.got[sent];
        assert_eq!((header.sequence, header.timestamp), (behind.sequence, behind.timestamp), "{cut:?}");
        let reasons: Vec<_> =
            rig.ends.iter().map(|end| (end.reason, end.next_packet, end.next_due)).collect();
        assert_eq!((reasons[0].0, reasons[0].1), (StopReason::Finished, until));
        assert_eq!(
            (rig.began[1].1, reasons[0].2),
            (START.plus_ns(MS + behind.ns), START.plus_ns(MS + behind.ns))
        );
        assert_eq!((reasons[1].0, reasons[1].1, reasons.len()), (StopReason::Finished, 900, 2));
    }
}

#[test]
fn step_new_with_invalid_block_or_stride_returns_none() {
    assert_eq!(
        [(0, 5), (5, 0), (6, 5), (5, 5)].map(|(block, stride)| StepPattern::new(block, stride)),
        [None; 4]
    );
    let mut rig = Rig::new(0, 0);
    let bytes = Numbering::Bytes { head: 0, last: 0 };
    let run = rig.run_spec(1, 0, 100, Some(step_of(1, 2)), bytes);
    assert_eq!(rig.engine.play(rig.now, STREAM, rig.now, run), Err(Refusal::OutOfRange));
    // From within a gap to its end there is nothing but BYE.
    let run = rig.run_spec(2, 60, 100, Some(step_of(50, 500)), Numbering::Title);
    assert_eq!(rig.engine.play(rig.now, STREAM, rig.now, run), Ok(()));
    rig.run_for(10 * S);
    assert_eq!((rig.got.len(), rig.wanted.len()), (0, 0));
    assert_eq!((rig.ends[0].reason, rig.ends[0].next_packet), (StopReason::Finished, 100));
}

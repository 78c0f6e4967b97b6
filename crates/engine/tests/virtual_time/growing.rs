//! A title that is sent while it is written: the part that a lease covers is sent, the rest is
//! asked for again, and the end comes as an answer.

use std::sync::Arc;

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::pool::{ExtentArena, ExtentContent, Growing, HeapRegion};
use millrace_core::seam::{Payload, SendOutcome, TransmitBatch, Want};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::{RtpHeader, sequence_of};
use millrace_engine::{
    Engine, EngineConfig, FailReason, LeaseFailure, Numbering, RunSpec, StopReason, StreamEvent, StreamSpec,
};

use crate::world::{MS, S, START, stop_of, udp};
use millrace_testkit::film::Film;

const PER_EXTENT: u32 = 196;
const STREAM: StreamId = StreamId { index: 0, generation: 0 };
const RUN: RunSerial = RunSerial(1);

struct Live {
    engine: Engine,
    arena: Arc<ExtentArena>,
    film: Film,
    growing: Vec<Growing>,
    written: u32,
    now: Instant,
    sent: u32,
}

impl Live {
    /// One viewer who plays from packet `from`. Nothing is written.
    fn new(from: u32) -> Self {
        let mut engine = Engine::new(EngineConfig { streams: 1, ..EngineConfig::default() });
        let arena = ExtentArena::new(Box::new(HeapRegion::new(8)));
        let film = Film::constant(0, u32::MAX, 8_000_000);
        engine
            .open(START, StreamSpec { id: STREAM, dest: udp(0), quiet: false, lends: false, once: false })
            .unwrap();
        let (media, numbering) = (film.media(0), Numbering::Title);
        let run =
            RunSpec { run: RUN, media, from, until: u32::MAX, numbering, scale_permille: 1000, step: None };
        engine.play(START, STREAM, START, run).unwrap();
        Self { engine, arena, film, growing: Vec::new(), written: 0, now: START, sent: from }
    }

    /// Writes up to packet `until`.
    fn write(&mut self, until: u32) {
        for packet in self.written..until {
            if packet % PER_EXTENT == 0 {
                let fill = self.arena.fill(packet / PER_EXTENT).unwrap();
                self.growing.push(fill.grow(self.film.layout));
            }
            let (growing, time) = (self.growing.last_mut().unwrap(), self.film.time(packet));
            let (slots, records) = growing.room();
            slots[..12].copy_from_slice(&self.film.timeline.header(packet, time).emit());
            records[0] = millrace_core::packet::PacketMeta::new(0, 0, time).to_bytes();
            growing.advance(1);
        }
        self.written = self.written.max(until);
    }

    /// The only want that the engine has, for this packet.
    fn want(&mut self, packet: u32) -> Want {
        let want = self.engine.poll_want().expect("a want");
        assert_eq!((want.extent, u32::from(want.place)), (packet / PER_EXTENT, packet % PER_EXTENT));
        assert_eq!(self.engine.poll_want(), None);
        want
    }

    /// Lends what there is of an extent.
    fn lend(&mut self, extent: u32) {
        let lease = self.arena.lend(extent, self.film.content(extent)).unwrap();
        self.engine.handle_lease(self.now, STREAM, RUN, extent, lease);
    }

    /// Fills an extent as one that does not grow and lends it.
    fn lend_filled(&mut self, extent: u32, packets: u32) {
        let (layout, first) = (self.film.layout, extent * PER_EXTENT);
        let mut fill = self.arena.fill(extent).unwrap();
        for place in 0..packets {
            let time = self.film.time(first + place);
            let header = self.film.timeline.header(first + place, time).emit();
            fill.bytes_mut()[place as usize * layout.slot_bytes()..][..12].copy_from_slice(&header);
            let record = millrace_core::packet::PacketMeta::new(0, 0, time).to_bytes();
            fill.bytes_mut()[layout.meta_offset(place, packets)..][..record.len()].copy_from_slice(&record);
        }
        fill.publish();
        let content = ExtentContent { packets, ..self.film.content(extent) };
        let lease = self.arena.lend(extent, content).unwrap();
        self.engine.handle_lease(self.now, STREAM, RUN, extent, lease);
    }

    /// Sends the packets due within `ns`; returns the first packet that was not sent.
    fn run_for(&mut self, ns: u64) -> u32 {
        let end = self.now.plus_ns(ns);
        while let Some(at) = self.engine.poll_at().filter(|&at| at <= end) {
            self.now = at.max(self.now);
            while self.engine.poll_bursts(self.now) > 0 {
                for at in 0..self.engine.batch().len() {
                    let Payload::Wire { bytes, segment } = self.engine.batch().get(at).payload else {
                        continue;
                    };
                    for datagram in bytes.chunks(segment) {
                        let (header, _) = RtpHeader::parse(datagram).unwrap();
                        assert_eq!(header.sequence, sequence_of(self.sent));
                        self.sent += 1;
                    }
                }
                let outcomes = vec![SendOutcome::Sent; self.engine.batch().len()];
                self.engine.handle_sent(self.now, &outcomes);
            }
        }
        self.now = end;
        self.sent
    }

    fn fail(&mut self, extent: u32, failure: LeaseFailure) {
        self.engine.handle_lease_failed(self.now, STREAM, RUN, extent, failure);
    }

    /// How the run has ended.
    fn end(&mut self) -> (StopReason, u32, u16) {
        let events = std::iter::from_fn(|| self.engine.poll_event());
        let mut ends = events.filter_map(|event| match event {
            StreamEvent::RunEnded { end, .. } => Some(stop_of(&end)),
            _ => None,
        });
        ends.next().expect("the run has ended")
    }
}

#[test]
fn growing_extent_is_sent_and_rest_requested_once() {
    let mut live = Live::new(0);
    live.want(0);
    live.write(50);
    live.lend(0);
    assert_eq!(live.run_for(S), 50);
    live.want(50);
    // It waits, however long, and is not late by its own fault.
    assert_eq!((live.run_for(5 * S), live.engine.poll_want()), (50, None));
    live.write(PER_EXTENT + 10);
    live.lend(0);
    assert!((51..PER_EXTENT).contains(&live.run_for(20 * MS)), "at the title's pace, not all at once");
    assert_eq!(live.run_for(S), PER_EXTENT);
    live.want(PER_EXTENT);
    live.lend(1);
    assert_eq!(live.run_for(S), PER_EXTENT + 10);
    live.want(PER_EXTENT + 10);
    let counters = live.engine.counters();
    assert_eq!((counters.overdue, counters.starved, counters.catch_ups), (0, 0, 0), "{counters:?}");
    assert_eq!((live.arena.leases(0), live.arena.leases(1)), (1, 1), "only the writers have them");
}

/// A recording is read from its files: its extents are whole, but for the last one.
#[test]
fn short_last_extent_of_endless_title_is_sent_and_the_end_asked_for() {
    let mut live = Live::new(0);
    live.want(0);
    live.lend_filled(0, PER_EXTENT);
    assert_eq!(live.run_for(S), PER_EXTENT);
    live.want(PER_EXTENT);
    // Written late: late for good, and not sent all at once.
    live.run_for(5 * S);
    live.lend_filled(1, 50);
    assert!((PER_EXTENT + 1..PER_EXTENT + 50).contains(&live.run_for(20 * MS)), "{}", live.sent);
    assert_eq!(live.run_for(S), PER_EXTENT + 50);
    live.want(PER_EXTENT + 50);
    live.fail(1, LeaseFailure::Ended);
    live.run_for(4 * S);
    let counters = live.engine.counters();
    assert_eq!((counters.overdue, counters.starved, counters.catch_ups), (0, 0, 0), "{counters:?}");
    assert_eq!(live.end(), (StopReason::Finished, PER_EXTENT + 50, sequence_of(PER_EXTENT + 50)));
}

#[test]
fn run_may_begin_and_end_anywhere_in_growing_title() {
    for (written, place) in [(130, 120), (PER_EXTENT, 120), (PER_EXTENT + 1, 195)] {
        let mut live = Live::new(place);
        live.want(place);
        live.write(written);
        live.lend(0);
        let here = written.min(PER_EXTENT);
        assert_eq!(live.run_for(S), here);
        live.want(here);
        if written > here {
            live.lend(1);
            assert_eq!(live.run_for(S), written);
            live.want(written);
        }
        live.fail(written / PER_EXTENT, LeaseFailure::Ended);
        live.run_for(4 * S);
        assert_eq!(live.end(), (StopReason::Finished, written, sequence_of(written)));
    }
}

/// The title ends where an extent ends, and the engine hears of it before it has sent that.
#[test]
fn lease_failure_ended_finishes_run_after_last_packet() {
    let mut live = Live::new(0);
    live.want(0);
    live.write(PER_EXTENT);
    live.lend(0);
    while live.engine.counters().wants < 2 {
        live.run_for(MS);
        live.engine.poll_want();
    }
    assert!(live.sent < PER_EXTENT, "the extent behind is asked for while there is something to send");
    live.fail(1, LeaseFailure::Ended);
    live.run_for(4 * S);
    assert_eq!(live.end(), (StopReason::Finished, PER_EXTENT, PER_EXTENT as u16 + 1));
}

#[test]
fn lease_failure_source_lost_or_passed_fails_run() {
    for failure in [LeaseFailure::Passed, LeaseFailure::SourceLost] {
        let mut live = Live::new(0);
        live.want(0);
        live.write(10);
        live.lend(0);
        live.run_for(S);
        live.want(10);
        live.fail(0, failure);
        assert_eq!(live.end(), (StopReason::Failed(FailReason::ReadError(failure)), 10, 11));
    }
}

/// Nothing may be sent that could not be read when it was lent.
#[test]
fn lease_without_needed_packet_fails_run_as_out_of_range() {
    let mut live = Live::new(0);
    live.want(0);
    live.write(10);
    live.lend(0);
    live.run_for(S);
    live.want(10);
    live.lend(0);
    let reason = FailReason::ReadError(LeaseFailure::OutOfRange);
    assert_eq!(live.end(), (StopReason::Failed(reason), 10, 11));
}

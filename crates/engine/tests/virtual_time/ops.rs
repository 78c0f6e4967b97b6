//! Anything in any order: random commands, delays, refusals and holes. The device of the world checks that every viewer
//! gets every packet of its run once, in order, with the right header; here the ledger must balance.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::seam::SendOutcome;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::{EngineConfig, LeaseFailure, Numbering, RunCut, StreamEvent};
use proptest::prelude::*;

use crate::world::{MS, PlaySpec, World, tcp, udp};
use millrace_testkit::film::Film;

const STREAMS: u32 = 4;

#[derive(Clone, Debug)]
enum Op {
    Open(u32),
    Play {
        stream: u32,
        title: usize,
        from: u32,
        len: u32,
        delay_ms: u64,
        own: bool,
        scale_permille: u16,
    },
    Queue {
        stream: u32,
        title: usize,
        /// This many packets ahead; `None`: at the end.
        cut: Option<u32>,
        from: u32,
        len: u32,
        numbering: u8,
    },
    Pause(u32),
    Close(u32),
    ConnGone(u32),
    Finish,
    Run(u64),
    Hole(u64),
    /// Takes a batch and never answers.
    Forget,
    Disk(u8),
    Device(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0..STREAMS;
    prop_oneof![
        3 => stream.clone().prop_map(Op::Open),
        6 => (stream.clone(), 0usize..2, 0u32..1_010, 0u32..600, 0u64..100, any::<bool>(), 400u16..4_000).prop_map(
            |(stream, title, from, len, delay_ms, own, scale_permille)| {
                Op::Play { stream, title, from, len, delay_ms, own, scale_permille }
            }
        ),
        6 => (stream.clone(), 0usize..2, proptest::option::of(0u32..500), 0u32..1_010, 0u32..600, 0u8..3).prop_map(
            |(stream, title, cut, from, len, numbering)| Op::Queue { stream, title, cut, from, len, numbering }
        ),
        3 => stream.clone().prop_map(Op::Pause),
        2 => stream.prop_map(Op::Close),
        1 => (0u32..2).prop_map(Op::ConnGone),
        1 => Just(Op::Finish),
        8 => (1u64..1_500).prop_map(Op::Run),
        2 => (1u64..9_000).prop_map(Op::Hole),
        2 => Just(Op::Forget),
        2 => any::<u8>().prop_map(Op::Disk),
        2 => any::<u8>().prop_map(Op::Device),
    ]
}

struct Ledger {
    world: World,
    films: [Film; 2],
    /// Runs that the engine has taken, by stream.
    accepted: Vec<(StreamId, RunSerial)>,
    generations: [u32; STREAMS as usize],
    disk_mode: Rc<RefCell<u8>>,
    device_mode: Rc<RefCell<u8>>,
}

impl Ledger {
    fn new(shares_wakes: bool) -> Self {
        let config = EngineConfig { streams: STREAMS as usize, shares_wakes, ..EngineConfig::default() };
        let mut world = World::new(config, 16);
        let films = [Film::constant(3, 1_000, 6_000_000).ending_with(376), Film::constant(4, 900, 3_000_000)];
        let (disk_mode, device_mode) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(0)));
        let mode = Rc::clone(&disk_mode);
        let mut turn = 0u64;
        world.disk.rule = Box::new(move |_| {
            turn += 1;
            match *mode.borrow() % 6 {
                0..3 => (turn % 5 * MS, Ok(())),
                3 => (turn % 7 * 100 * MS, Ok(())),
                4 if turn.is_multiple_of(3) => (MS, Err(LeaseFailure::Checksum)),
                5 if turn.is_multiple_of(4) => (MS, Err(LeaseFailure::NoTitle)),
                _ => (0, Ok(())),
            }
        });
        let mode = Rc::clone(&device_mode);
        let mut turn = 0u64;
        world.device = Box::new(move |_, transmit| {
            turn += 1;
            match (*mode.borrow() % 8, turn % 5) {
                (4, 0..3) => SendOutcome::Blocked { taken: (turn % 4) as u16 % transmit.datagrams() as u16 },
                (5, _) => SendOutcome::Blocked { taken: 0 },
                (6, 0..4) => SendOutcome::Unreachable { errno: 1 },
                (7, 0) if turn.is_multiple_of(50) => SendOutcome::Closed { errno: 32 },
                _ => SendOutcome::Sent,
            }
        });
        let mode = Rc::clone(&device_mode);
        let mut turn = 0u64;
        world.writable = Box::new(move |now, _| {
            turn += 1;
            (*mode.borrow() < 128).then(|| now.plus_ns(turn % 4 * 150 * MS + MS))
        });
        let accepted = Vec::new();
        Self { world, films, accepted, generations: [0; STREAMS as usize], disk_mode, device_mode }
    }

    fn id(&self, index: u32) -> StreamId {
        StreamId { index, generation: self.generations[index as usize] }
    }

    fn run(&mut self, op: &Op) {
        let now = self.world.now;
        match *op {
            Op::Open(index) => {
                let next = StreamId { index, generation: self.generations[index as usize] + 1 };
                let dest = if index < 2 { tcp(index) } else { udp(index) };
                if self.world.try_open(&self.films[0], next, dest).is_ok() {
                    self.generations[index as usize] += 1;
                }
            }
            Op::Play { stream, title, from, len, delay_ms, own, scale_permille } => {
                let sequence = if own { 65_000 } else { sequence_of(from) };
                let at = now.plus_ns(delay_ms * MS);
                let spec = PlaySpec { from, until: from + len, at, sequence, scale_permille };
                let id = self.id(stream);
                self.world.ahead_ms = if own { len as u16 * 10 } else { 0 };
                if self.world.has_viewer(id) && self.world.play_film(id, &self.films[title], spec).is_ok() {
                    self.accepted.push((id, self.world.run_of(id)));
                }
            }
            Op::Queue { stream, title, cut, from, len, numbering } => {
                let id = self.id(stream);
                if !self.world.has_viewer(id) {
                    return;
                }
                let cut = cut.map_or(RunCut::End, |ahead| RunCut::At(self.world.position(id) + ahead));
                let numbering = match numbering {
                    0 => Numbering::Sequence(65_000),
                    1 if self.world.has_begun(id) => Numbering::Viewer,
                    _ => Numbering::Title,
                };
                let packets = (from, from + len);
                if let Ok(run) = self.world.queue(id, cut, &self.films[title], packets, numbering) {
                    self.accepted.push((id, run));
                }
            }
            Op::Pause(index) => drop(self.world.engine.pause(now, self.id(index))),
            Op::Close(index) => drop(self.world.engine.close(now, self.id(index))),
            Op::ConnGone(conn) => self.world.engine.conn_gone(now, ConnId(conn)),
            Op::Finish => self.world.engine.finish(now),
            Op::Run(ms) => self.world.run_for(ms * MS),
            Op::Hole(ms) => self.world.hole(ms * MS),
            Op::Forget => drop(self.world.engine.poll_bursts(now)),
            Op::Disk(mode) => *self.disk_mode.borrow_mut() = mode,
            Op::Device(mode) => *self.device_mode.borrow_mut() = mode,
        }
    }

    /// Checks that each stream's events follow the order of a life; returns the totals reported.
    fn check_events(&self) -> (u64, u64) {
        let mut last: HashMap<StreamId, StreamEvent> = HashMap::new();
        let (mut packets, mut gone) = (0, 0);
        for &(_, event) in &self.world.events {
            let before = last.insert(event.stream(), event);
            assert!(!matches!(before, Some(StreamEvent::Closed { .. })), "{event:?} after Closed");
            match event {
                StreamEvent::RunEnded { .. } => {
                    assert!(!matches!(before, Some(StreamEvent::Failed { .. })), "an end after Failed");
                }
                StreamEvent::Closed { packets: p, unreachable, .. } => {
                    packets += p;
                    gone += unreachable;
                }
                _ => {}
            }
        }
        (packets, gone)
    }

    /// Checks that every accepted run has ended once, and that nothing was reported about it
    /// afterwards; returns their packets.
    fn check_ends(&self) -> u64 {
        let mut left: HashSet<_> = self.accepted.iter().copied().collect();
        let mut packets = 0;
        for &(_, event) in &self.world.events {
            match event {
                StreamEvent::RunEnded { stream, end } => {
                    assert!(left.remove(&(stream, end.run)), "ended twice, or never taken: {end:?}");
                    packets += u64::from(end.packets);
                }
                StreamEvent::Drained { stream, run } => {
                    assert!(left.contains(&(stream, run)), "{run:?} drained after its end");
                }
                _ => {}
            }
        }
        assert!(left.is_empty(), "without an end: {left:?}");
        packets
    }
}

proptest! {
    // A failure is reported within a minute, if not in its shortest form.
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_time: 30_000, ..ProptestConfig::default() })]

    #[test]
    fn counters_and_leases_after_random_operations_balance(
        ops in proptest::collection::vec(op(), 1..60),
        shares_wakes in any::<bool>(),
    ) {
        let mut ledger = Ledger::new(shares_wakes);
        for op in &ops {
            ledger.run(op);
            ledger.world.hear();
            let playing = ledger.world.engine.counters().playing;
            prop_assert!(ledger.world.disk.leases() as u64 <= 2 * playing, "two leases for each that plays");
        }
        for index in 0..STREAMS {
            let _ = ledger.world.engine.close(ledger.world.now, ledger.id(index));
        }
        ledger.world.run_out();
        let (packets, gone) = ledger.check_events();
        let ends = ledger.check_ends();
        prop_assert_eq!(ends, packets, "every packet belongs to a run");
        let counters = *ledger.world.engine.counters();
        prop_assert_eq!((counters.open, counters.playing, ledger.world.disk.leases()), (0, 0, 0));
        prop_assert_eq!((counters.packets, counters.unreachable), (packets, gone));
        prop_assert_eq!(packets + gone, ledger.world.datagrams);
        prop_assert!(ledger.world.engine.poll_at().is_none());
        prop_assert!(ledger.world.engine.poll_want().is_none());
    }
}

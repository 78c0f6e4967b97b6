//! Nanoseconds of one core for each packet, engine only: virtual time, a device that looks at every descriptor and sends
//! nothing. Run with `cargo run --release -p millrace-engine --example inner_loop [STREAMS..]`.
//!
//! Beside the engine, in the same run and in turn with it, two loops that only pace: the engine's timing wheel and a
//! binary heap, each with 128 bytes of state a stream and a 48-byte header written a packet.
//!
//! Not for comparing machines: it says what pacing, framing and bookkeeping cost here, relative to the bare loops.
//! Each line is the p10 and p50 of single turns of about 64 bursts; the machine's own noise is in the p50.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use millrace_core::ids::StreamId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_BATCH_BURSTS};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Dest, Payload, SendOutcome, TransmitBatch};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::pace::wheel::Wheel;
use millrace_engine::{Engine, EngineConfig, PlaySpec, StreamSpec};

#[allow(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/support/film.rs"]
mod film;
use film::Film;

const RATE: u64 = 8_000_000;
const PACKET_NS: u64 = DEFAULT_PACKET_BYTES as u64 * 8 * 1_000_000_000 / RATE;
const EXTENTS: u32 = 64;
/// Rounds in which every contender has its turn.
const ROUNDS: usize = 12;
const PACKETS_A_ROUND: u64 = 200_000;

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Something that sends what is due, and says how many packets that was.
trait Contender {
    fn turn(&mut self) -> u64;
}

struct Paced {
    engine: Engine,
    leases: Vec<Lease>,
    now: Instant,
    step_ns: u64,
}

impl Paced {
    fn new(streams: u32, smooth: bool, patched: bool) -> Self {
        let film = Film::constant(0, EXTENTS * 196, RATE);
        let arena = ExtentArena::new(Box::new(HeapRegion::new(EXTENTS as usize)));
        let leases = (0..EXTENTS).map(|extent| film.load(&arena, extent, extent)).collect();
        let config = EngineConfig { streams: streams as usize, smooth, ..EngineConfig::default() };
        let mut engine = Engine::new(config);
        let (now, mut random) = (Instant(1 << 50), Lcg(1));
        for index in 0..streams {
            let id = StreamId { index, generation: 0 };
            let addr = |port| ([10, (index >> 16) as u8, (index >> 8) as u8, index as u8], port).into();
            let spec = StreamSpec {
                id,
                title: film.title,
                layout: film.layout,
                packets: film.packets,
                timeline: film.timeline,
                dest: Dest::Udp { rtp: addr(5000), rtcp: addr(5001) },
            };
            engine.open(now, spec).expect("a free place");
            let from = random.below(u64::from(film.packets) / 2) as u32;
            let sequence = sequence_of(from).wrapping_add(u16::from(patched));
            let at = now.plus_ns(random.below(10_000_000));
            let play = PlaySpec { from, until: film.packets, at, sequence, scale_permille: 1000 };
            engine.play(now, id, play).expect("in the film");
        }
        let burst_ns = if smooth { PACKET_NS } else { 8 * PACKET_NS };
        let step_ns = (burst_ns * MAX_BATCH_BURSTS as u64 / u64::from(streams)).max(1);
        Self { engine, leases, now, step_ns }
    }
}

impl Contender for Paced {
    fn turn(&mut self) -> u64 {
        let before = self.engine.counters().packets;
        let engine = &mut self.engine;
        self.now = self.now.plus_ns(self.step_ns);
        while let Some(want) = engine.poll_want() {
            let lease = self.leases[want.extent as usize].clone();
            engine.handle_lease(self.now, want.stream, want.title, want.extent, lease);
        }
        let outcomes = [SendOutcome::Sent; MAX_BATCH_BURSTS];
        loop {
            let count = engine.poll_bursts(self.now);
            if count == 0 {
                break;
            }
            for at in 0..count {
                let transmit = engine.batch().get(at);
                let Dest::Udp { rtp, .. } = transmit.dest else { continue };
                let len = match transmit.payload {
                    Payload::Wire { bytes, .. } | Payload::Patched { bytes, .. } | Payload::Rtcp(bytes) => {
                        bytes.len()
                    }
                };
                black_box((rtp.port(), len));
            }
            engine.handle_sent(self.now, &outcomes[..count]);
        }
        while let Some(event) = engine.poll_event() {
            // A film that is over begins again, so that the load stays the same.
            if let millrace_engine::StreamEvent::Drained { stream } = event {
                let until = EXTENTS * 196;
                let play =
                    PlaySpec { from: 0, until, at: self.now, sequence: sequence_of(0), scale_permille: 1000 };
                engine.play(self.now, stream, play).expect("draining");
            }
        }
        engine.counters().packets - before
    }
}

/// State and header of a packet, as a loop that only paces touches them.
#[derive(Clone)]
#[repr(align(128))]
struct Flow {
    due: u64,
    sequence: u64,
    bytes: u64,
    _rest: [u64; 13],
}

struct Bare<Q> {
    queue: Q,
    flows: Vec<Flow>,
    ring: Vec<[u8; 48]>,
    at: usize,
    now: u64,
    step_ns: u64,
}

impl<Q> Bare<Q> {
    fn new(streams: u32, mut queue: Q, mut insert: impl FnMut(&mut Q, u32, u64)) -> Self {
        let (now, mut random) = (1 << 50, Lcg(1));
        let flow = |_| Flow { due: now + random.below(PACKET_NS), sequence: 0, bytes: 0, _rest: [0; 13] };
        let flows: Vec<_> = (0..streams).map(flow).collect();
        for (flow, index) in flows.iter().zip(0..) {
            insert(&mut queue, index, flow.due);
        }
        let step_ns = (PACKET_NS * MAX_BATCH_BURSTS as u64 / u64::from(streams)).max(1);
        Self { queue, flows, ring: vec![[0; 48]; 256], at: 0, now, step_ns }
    }

    /// Sends one packet of a flow and returns when the next is due.
    fn send(&mut self, index: u32) -> u64 {
        let flow = &mut self.flows[index as usize];
        flow.due += PACKET_NS;
        flow.sequence += 1;
        flow.bytes += 1328;
        let header = &mut self.ring[self.at % 256];
        header[..8].copy_from_slice(&flow.sequence.to_be_bytes());
        header[8..16].copy_from_slice(&flow.due.to_be_bytes());
        header[40..].copy_from_slice(&flow.bytes.to_be_bytes());
        black_box(&header);
        self.at += 1;
        flow.due
    }
}

impl Contender for Bare<Wheel> {
    fn turn(&mut self) -> u64 {
        self.now += self.step_ns;
        let before = self.at;
        while let Some(index) = self.queue.pop_due(Instant(self.now)) {
            let due = self.send(index);
            self.queue.set(index, Instant(due), Instant(self.now));
        }
        (self.at - before) as u64
    }
}

impl Contender for Bare<BinaryHeap<Reverse<(u64, u32)>>> {
    fn turn(&mut self) -> u64 {
        self.now += self.step_ns;
        let before = self.at;
        while self.queue.peek().is_some_and(|&Reverse((due, _))| due <= self.now) {
            let Some(Reverse((_, index))) = self.queue.pop() else { break };
            let due = self.send(index);
            self.queue.push(Reverse((due, index)));
        }
        (self.at - before) as u64
    }
}

/// Runs a contender for a round; the nanoseconds a packet of each turn go into `samples`.
fn round(contender: &mut dyn Contender, samples: &mut Vec<f64>) {
    let mut packets = 0;
    while packets < PACKETS_A_ROUND {
        let start = std::time::Instant::now();
        let sent = contender.turn();
        let ns = start.elapsed().as_nanos() as f64;
        if sent > 0 {
            samples.push(ns / sent as f64);
            packets += sent;
        }
    }
}

fn main() {
    let mut streams: Vec<u32> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if streams.is_empty() {
        streams = vec![1_000, 10_000, 100_000];
    }
    println!("ns a packet: p10 / p50 of turns of about {MAX_BATCH_BURSTS} bursts, {ROUNDS} rounds in turn");
    for n in streams {
        let wheel = Bare::new(n, Wheel::new(n as usize), |wheel, index, due| {
            wheel.set(index, Instant(due), Instant(1 << 50))
        });
        let heap = Bare::new(n, BinaryHeap::new(), |heap, index, due| heap.push(Reverse((due, index))));
        let mut contenders: Vec<(&str, Box<dyn Contender>)> = vec![
            ("engine, bursts of 10 ms", Box::new(Paced::new(n, false, false))),
            ("engine, bursts, own timelines", Box::new(Paced::new(n, false, true))),
            ("engine, single packets", Box::new(Paced::new(n, true, false))),
            ("bare wheel, single packets", Box::new(wheel)),
            ("bare binary heap, single packets", Box::new(heap)),
        ];
        let mut samples = vec![Vec::new(); contenders.len()];
        for at in 0..=ROUNDS {
            for ((_, contender), samples) in contenders.iter_mut().zip(&mut samples) {
                round(contender.as_mut(), samples);
                if at == 0 {
                    samples.clear(); // warming up
                }
            }
        }
        println!("{n} streams");
        for ((name, _), samples) in contenders.iter().zip(&mut samples) {
            samples.sort_by(f64::total_cmp);
            let [p10, p50] = [samples.len() / 10, samples.len() / 2].map(|at| samples[at]);
            println!("  {name:34} {p10:7.1} / {p50:7.1}");
        }
    }
}

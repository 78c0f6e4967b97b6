//! Loops that pace and write headers and do nothing else, around some queue: the cost of a
//! scheduler by itself.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::prefetch::prefetch_all;
use millrace_core::time::Instant;
use millrace_core::wheel::Wheel;
use millrace_core::wire::frame::{MAX_HEADER_BYTES, Template};

use super::framing::template;
use super::{PACKET_NS, START};
use crate::frame::ContenderSlot;

pub(super) type Heap = BinaryHeap<Reverse<(u64, u32)>>;

/// State of a stream, as a loop that only paces touches it.
#[derive(Clone)]
#[repr(align(128))]
struct Flow {
    due: u64,
    packets: u64,
    bytes: u64,
    headers: Template,
}

/// Frames whose headers are written one after the other: they stay in the cache, as a ring of a device does.
const RING: usize = 256;

/// A loop that only paces and writes headers, around some queue.
pub(super) struct Bare<Q> {
    queue: Q,
    flows: Vec<Flow>,
    ring: Vec<[u8; MAX_HEADER_BYTES]>,
    at: usize,
    now: u64,
    step_ns: u64,
    /// Hash of the packets sent and their times, independent of the order within a turn.
    sent: u64,
}

impl<Q> Bare<Q> {
    pub(super) fn new(streams: u32, mut queue: Q, mut insert: impl FnMut(&mut Q, u32, u64)) -> Self {
        let mut random = Lcg(1);
        let flow = |index| Flow {
            due: START.0 + random.below(PACKET_NS),
            packets: 0,
            bytes: 0,
            headers: template(index),
        };
        let flows: Vec<_> = (0..streams).map(flow).collect();
        for (flow, index) in flows.iter().zip(0..) {
            insert(&mut queue, index, flow.due);
        }
        let step_ns = (PACKET_NS * MAX_BATCH_BURSTS as u64 / u64::from(streams.max(1))).max(1);
        Self { queue, flows, ring: vec![[0; MAX_HEADER_BYTES]; RING], at: 0, now: START.0, step_ns, sent: 0 }
    }

    pub(super) fn slot(
        &mut self,
        slot: &mut ContenderSlot,
        turn: fn(&mut Self) -> u64,
    ) -> anyhow::Result<()> {
        while slot.goes_on() {
            slot.batch_counted(|| turn(self));
            slot.produced(self.sent);
        }
        Ok(())
    }

    /// Sends one packet of a flow and returns when the next is due.
    fn send(&mut self, index: u32) -> u64 {
        let flow = &mut self.flows[index as usize];
        self.sent = self.sent.wrapping_add((flow.due ^ u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        flow.due += PACKET_NS;
        flow.packets += 1;
        flow.bytes += (RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES) as u64;
        let mut rtp = [0x80; RTP_HEADER_BYTES];
        rtp[2..4].copy_from_slice(&(flow.packets as u16).to_be_bytes());
        rtp[4..8].copy_from_slice(&(flow.due as u32).to_be_bytes());
        let (sum, id) = (flow.bytes as u16, flow.packets as u16);
        let header = &mut self.ring[self.at % RING];
        flow.headers.emit(header, &rtp, sum, DEFAULT_PACKET_BYTES, id);
        black_box(&header);
        self.at += 1;
        flow.due
    }
}

impl Bare<Wheel> {
    pub(super) fn turn(&mut self) -> u64 {
        self.now += self.step_ns;
        let before = self.at;
        let mut due = [0; MAX_BATCH_BURSTS];
        while let count @ 1.. = self.queue.pop_due_into(Instant(self.now), &mut due) {
            // The flows are fetched side by side, as the engine does it.
            for &index in &due[..count] {
                prefetch_all(&self.flows[index as usize]);
            }
            for &index in &due[..count] {
                let due = self.send(index);
                self.queue.set(index, Instant(due), Instant(self.now));
            }
        }
        (self.at - before) as u64
    }
}

impl Bare<Heap> {
    /// Takes out the flows that are due, at most as many as fit; returns their number.
    fn pop_due_into(&mut self, due: &mut [u32]) -> usize {
        let mut count = 0;
        while count < due.len() && self.queue.peek().is_some_and(|&Reverse((at, _))| at <= self.now) {
            let Some(Reverse((_, index))) = self.queue.pop() else { break };
            due[count] = index;
            count += 1;
        }
        count
    }

    pub(super) fn turn(&mut self) -> u64 {
        self.now += self.step_ns;
        let before = self.at;
        let mut due = [0; MAX_BATCH_BURSTS];
        while let count @ 1.. = self.pop_due_into(&mut due) {
            // The flows are fetched side by side, as around the wheel.
            for &index in &due[..count] {
                prefetch_all(&self.flows[index as usize]);
            }
            for &index in &due[..count] {
                let due = self.send(index);
                self.queue.push(Reverse((due, index)));
            }
        }
        (self.at - before) as u64
    }
}

/// A linear congruential generator: the same streams in every run.
pub(super) struct Lcg(pub(super) u64);

impl Lcg {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

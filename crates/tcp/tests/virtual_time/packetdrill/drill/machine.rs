//! The stack, its clock, and the segments that it has sent; numbers of scripts into those on the wire and back.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use millrace_core::time::Instant;
use millrace_tcp::stack::{Arrived, Ecn as StackEcn, FrameDisposal, Stack};

use super::segment::{self, ACK, Ecn, Opt, SYN, Segment};
use super::setup::{Family, Setup, Start};
use crate::sim::Packet;
use crate::sim::app::stream;

/// Port of the stack unless a script sets another.
pub(super) const LOCAL_PORT: u16 = 8080;
/// Port of the peer that connects, unless a script sets another; a peer that the stack connects to
/// has the stack's own.
const REMOTE_PORT: u16 = 40_000;
/// The peer's sequence number 0, and its time stamp 0: both wrap early.
const THEIR_SEQ: u32 = 0u32.wrapping_sub(2_000);
const THEIR_STAMP: u32 = 0u32.wrapping_sub(150);
/// What both streams consist of.
const OUR_STREAM: u64 = 1;
const THEIR_STREAM: u64 = 2;
/// Turns in one moment after which something goes in circles.
const MOST_TURNS: usize = 1_000;

/// A segment that the stack has sent, as it was on the wire.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// Nanoseconds since the script began.
    pub(super) at: i64,
    pub(super) segment: Segment,
    payload: Vec<u8>,
}

/// Known numbers of the flow between two ports.
#[derive(Debug)]
struct Flow {
    local: u16,
    remote: u16,
    /// Our sequence number 0.
    our_seq: Option<u32>,
    /// Our next SYN sets the start of our numbers.
    is_new: bool,
    /// The peer's last SYN.
    syn: Option<u32>,
    /// Our time stamps: the script's value, and the one sent for it.
    stamps: Vec<(u32, u32)>,
}

pub(super) struct Machine {
    pub(super) stack: Stack,
    pub(super) family: Family,
    began: Instant,
    now: Instant,
    sent: VecDeque<Sent>,
    flows: Vec<Flow>,
    current: usize,
}

impl Machine {
    pub(super) fn new(setup: &Setup, start: Start) -> Self {
        let first = Instant(1_000_000_000_000);
        let began = if start.wraps { wrapping(setup, start, first) } else { first };
        Self {
            stack: Stack::new(&setup.settings),
            family: start.family,
            began,
            now: began,
            sent: VecDeque::new(),
            flows: vec![Flow::new(LOCAL_PORT, REMOTE_PORT)],
            current: 0,
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Nanoseconds since the script began.
    pub(super) fn script_now(&self) -> i64 {
        self.now.ns_since(self.began) as i64
    }

    /// Lets time pass up to `until`, turn by turn, as long as `goes_on`.
    pub(super) fn advance(
        &mut self,
        until: i64,
        mut goes_on: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), String> {
        let until = self.began.plus_ns(until.max(0) as u64).max(self.now);
        let mut still = 0;
        while goes_on(self) {
            let due = self.stack.next_due(self.now).map(|due| due.max(self.now)).filter(|&due| due <= until);
            let Some(due) = due else {
                self.now = until;
                return Ok(());
            };
            still = if due == self.now { still + 1 } else { 0 };
            if still > MOST_TURNS {
                return Err(format!("no time passes: the stack is due again and again at {:?}", self.now));
            }
            self.now = due;
            self.turn()?;
        }
        Ok(())
    }

    /// A turn of three stages; the first is already over.
    fn turn(&mut self) -> Result<(), String> {
        let (now, at) = (self.now, self.script_now());
        self.stack.protocol(now);
        let mut packets = Vec::new();
        self.stack.output(now, &mut |out| {
            packets.push((Packet::of(out), out.ecn));
            FrameDisposal::Copied
        });
        for (packet, ecn) in packets {
            let ecn = if ecn == StackEcn::Capable { Ecn::Ect } else { Ecn::None };
            let ends: (IpAddr, IpAddr) = (packet.source, packet.destination);
            let (segment, payload) = segment::read(&packet.bytes, ends, ecn)
                .map_err(|what| format!("a segment went out with {what}: {:02x?}", packet.bytes))?;
            self.sent.push_back(Sent { at, segment, payload: payload.to_vec() });
        }
        Ok(())
    }

    /// The first sent segment that has not been examined.
    pub(super) fn first_sent(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Takes it.
    pub(super) fn take_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }

    /// The flow between two ports, the stack's first; without them the latest.
    fn flow(&mut self, ports: Option<(u16, u16)>) -> &mut Flow {
        if let Some((local, remote)) = ports {
            self.look_at(local, remote);
        }
        &mut self.flows[self.current]
    }

    /// The script's statements from now on apply to these ports, the stack's first.
    pub(super) fn look_at(&mut self, local: u16, remote: u16) {
        let known = self.flows.iter().position(|flow| (flow.local, flow.remote) == (local, remote));
        self.current = known.unwrap_or_else(|| {
            self.flows.push(Flow::new(local, remote));
            self.flows.len() - 1
        });
    }

    /// A new connection: our numbers start again.
    pub(super) fn begin_anew(&mut self) {
        self.flows[self.current].is_new = true;
    }

    /// A segment of a script arrives.
    pub(super) fn arrives(&mut self, script: &Segment) {
        let (family, now) = (self.family, self.now);
        let flow = self.flow(script.ports.map(|(from, to)| (to, from)));
        if script.flags & (SYN | ACK) == SYN {
            flow.is_new |= flow.syn.replace(script.seq) != Some(script.seq);
        }
        let base = flow.our_seq.unwrap_or(0);
        let echo = |echo: u32| {
            let known = flow.stamps.iter().rev().find(|(known, _)| *known == echo);
            // A value that was never sent: as far from the first as in the script.
            let guess = flow
                .stamps
                .first()
                .map_or(echo, |(script, wire)| wire.wrapping_add(echo.wrapping_sub(*script)));
            known.map_or(guess, |(_, wire)| *wire)
        };
        let option = |option: &Opt| match option {
            Opt::Sack(blocks) => Opt::Sack(
                blocks.iter().map(|(from, to)| (from.wrapping_add(base), to.wrapping_add(base))).collect(),
            ),
            Opt::Stamps(value, echoed) => {
                let echoed = if script.has(ACK) { echo(*echoed) } else { 0 };
                Opt::Stamps(value.wrapping_add(THEIR_STAMP), echoed)
            }
            other => other.clone(),
        };
        let on_wire = Segment {
            seq: script.seq.wrapping_add(THEIR_SEQ),
            ack: if script.has(ACK) { script.ack.wrapping_add(base) } else { 0 },
            options: script.options.as_ref().map(|options| options.iter().map(option).collect()),
            ..script.clone()
        };
        let payload = payload(THEIR_STREAM, script.seq, script.has(SYN), script.length as usize);
        let ports = (flow.remote, flow.local);
        let (local, remote) = family.ends();
        let bytes = segment::write(&on_wire, ports, (remote, local), &payload);
        let arrived = Arrived {
            source: SocketAddr::new(remote, 0),
            destination: SocketAddr::new(local, 0),
            is_marked: script.ecn == Some(Ecn::Ce),
            is_checked: false,
            bytes: &bytes,
            at: now,
        };
        self.stack.input(&arrived, now);
    }

    /// A segment that was sent, in the numbers of the script, which expects `expected` in its place.
    pub(super) fn translate(&mut self, sent: &Sent, expected: &Segment) -> Segment {
        let wire = &sent.segment;
        let flow = self.flow(expected.ports);
        if wire.has(SYN) && std::mem::take(&mut flow.is_new) {
            flow.our_seq = Some(wire.seq.wrapping_sub(expected.seq));
        }
        let base = flow.our_seq.unwrap_or(0);
        let mut option = |option: &Opt| match option {
            Opt::Sack(blocks) => Opt::Sack(
                blocks
                    .iter()
                    .map(|(from, to)| (from.wrapping_sub(THEIR_SEQ), to.wrapping_sub(THEIR_SEQ)))
                    .collect(),
            ),
            Opt::Stamps(value, echo) => {
                let wanted = expected.options.iter().flatten().find_map(|option| match option {
                    Opt::Stamps(value, _) => Some(*value),
                    _ => None,
                });
                let value = flow.note_stamp(*value, wanted);
                Opt::Stamps(value, if *echo == 0 { 0 } else { echo.wrapping_sub(THEIR_STAMP) })
            }
            other => other.clone(),
        };
        Segment {
            seq: wire.seq.wrapping_sub(base),
            ack: if wire.has(ACK) { wire.ack.wrapping_sub(THEIR_SEQ) } else { 0 },
            options: wire.options.as_ref().map(|options| options.iter().map(&mut option).collect()),
            ports: expected.ports.and(wire.ports),
            ..wire.clone()
        }
    }

    /// Whether a segment that was sent is between the ports that the script means.
    pub(super) fn is_of_flow(&mut self, sent: &Sent, expected: &Segment) -> bool {
        let flow = self.flow(expected.ports);
        sent.segment.ports == Some((flow.local, flow.remote))
    }

    /// Whether a segment of a script acknowledges what one on the wire does.
    pub(super) fn is_acked(expected: &Segment, wire: u32) -> bool {
        expected.has(ACK) && expected.ack.wrapping_add(THEIR_SEQ) == wire
    }

    /// Whether the payload matches the bytes written; `seq` is in the numbers of the script.
    pub(super) fn is_payload_right(sent: &Sent, seq: u32) -> bool {
        sent.payload == payload(OUR_STREAM, seq, sent.segment.has(SYN), sent.payload.len())
    }

    /// The bytes that an application writes from byte `at` on.
    pub(super) fn written(at: u64, bytes: usize) -> Vec<u8> {
        stream(OUR_STREAM, at, bytes)
    }

    /// The bytes that an application must read from byte `at` on.
    pub(super) fn to_read(at: u64, bytes: usize) -> Vec<u8> {
        stream(THEIR_STREAM, at, bytes)
    }
}

impl Flow {
    fn new(local: u16, remote: u16) -> Self {
        Self { local, remote, our_seq: None, is_new: true, syn: None, stamps: Vec::new() }
    }

    /// Returns the script's value for one of our time stamps. The first has the value given in the
    /// script; from there on both count milliseconds, and values within two of each other are the
    /// same.
    fn note_stamp(&mut self, wire: u32, wanted: Option<u32>) -> u32 {
        let first = *self.stamps.first().unwrap_or(&(wanted.unwrap_or(0), wire));
        // The stack's clock has ticks of 2^20 ns.
        let passed_ms = ((u64::from(wire.wrapping_sub(first.1)) << 20) / 1_000_000) as u32;
        let value = first.0.wrapping_add(passed_ms);
        if let Some(wanted) = wanted {
            self.stamps.push((wanted, wire));
            if wanted.abs_diff(value) <= 2 {
                return wanted;
            }
        }
        value
    }
}

/// The bytes of a segment: sequence number 1 is the first of the stream, and with a SYN all numbers are one more.
fn payload(seed: u64, seq: u32, has_syn: bool, bytes: usize) -> Vec<u8> {
    let at = u64::from(seq.wrapping_add(u32::from(has_syn)).wrapping_sub(1));
    stream(seed, at, bytes)
}

/// When a script has to begin for the stack's first sequence number to be 1,000 to 1,100 below 2^32: it counts 4 us.
fn wrapping(setup: &Setup, start: Start, first: Instant) -> Instant {
    let mut stack = Stack::new(&setup.settings);
    let (local, remote) = (start.family.local(LOCAL_PORT), start.family.remote(REMOTE_PORT));
    let _ = stack.open(local, remote, first);
    let mut seq = 0;
    stack.output(first, &mut |out| {
        let four = out.header.get(4..8).and_then(|four| four.try_into().ok());
        seq = four.map_or(0, u32::from_be_bytes);
        FrameDisposal::Copied
    });
    let steps = 0u32.wrapping_sub(1_100).wrapping_sub(seq);
    first.plus_ns(u64::from(steps) * 4_000)
}

//! A world in virtual time: endpoints around a hub, the links to it, and connections between them, all from one seed.
//!
//! | file | holds |
//! | --- | --- |
//! | `scenario` | the elements of a run, from a seed; scenarios with one thing less |
//! | `shrink` | many seeds, and the smallest scenario that still fails |
//! | `link` | faults on the path |
//! | `ours`, `smol` | endpoints: this crate's stack, and smoltcp |
//! | `window` | the data that an end may send |
//! | `app` | the data that an application sends and expects |

pub(crate) mod app;
pub(crate) mod link;
pub(crate) mod ours;
pub(crate) mod scenario;
pub(crate) mod shrink;
pub(crate) mod smol;
pub(crate) mod window;
pub(crate) mod wire;

use std::net::{IpAddr, SocketAddr};

use millrace_core::time::Instant;
use millrace_tcp::conn::TcpCounters;
use millrace_tcp::stack::{Arrived, Ecn, OutgoingSegment};

use self::link::{Link, Pushed};

pub(crate) const MS: u64 = 1_000_000;
/// From here on the links are perfect: whatever happened before, the remaining data must arrive.
pub(crate) const WELL_AT: Instant = Instant(30_000 * MS);
/// Longest time without progress of a connection on links that are well: two retransmission time-outs at their longest and a third of
/// a silent black hole.
pub(crate) const STUCK_NS: u64 = 180_000 * MS;
/// By then everything is over: three retransmission time-outs at their longest, and TIME-WAIT.
pub(crate) const END: Instant = Instant(400_000 * MS);

/// A packet on a link: a segment, and what of the IP header matters.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) is_capable: bool,
    pub(crate) is_marked: bool,
    /// A bit was flipped.
    pub(crate) is_damaged: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    /// Around a segment that a stack sends.
    pub(crate) fn of(out: &OutgoingSegment<'_>) -> Self {
        let mut bytes = out.header.to_vec();
        out.payload.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
        Self {
            source: out.flow.local().ip(),
            destination: out.flow.remote().ip(),
            is_capable: out.ecn == Ecn::Capable,
            is_marked: false,
            is_damaged: false,
            bytes,
        }
    }

    /// Its length with the IP header.
    pub(crate) fn ip_bytes(&self) -> usize {
        self.bytes.len() + if self.source.is_ipv4() { 20 } else { 40 }
    }

    /// As a stack takes it in.
    pub(crate) fn arrived(&self, at: Instant) -> Arrived<'_> {
        Arrived {
            source: SocketAddr::new(self.source, 0),
            destination: SocketAddr::new(self.destination, 0),
            is_marked: self.is_marked,
            is_checked: false,
            bytes: &self.bytes,
            at,
        }
    }
}

/// Who stands at the end of a link.
pub(crate) trait Endpoint {
    /// A packet comes in.
    fn take(&mut self, now: Instant, packet: &Packet);
    /// A router reports that this packet of ours is longer than the `mtu` of a link.
    fn too_big(&mut self, _now: Instant, _packet: &Packet, _mtu: usize) {}
    /// Runs a turn at `now` and returns the outgoing packets.
    fn turn(&mut self, now: Instant) -> Vec<Packet>;
    /// When it wants its next turn.
    fn due(&mut self, now: Instant) -> Option<Instant>;
    /// Whether the applications have sent and received everything.
    fn is_done(&self) -> bool;
    /// What its stack has counted.
    fn counters(&self) -> TcpCounters {
        TcpCounters::default()
    }
    /// How far the applications are, for people.
    fn progress(&self) -> String;
    /// Panics if something is wrong now.
    fn check(&mut self, _now: Instant) {}
    /// Everything is over: panics if anything is left.
    fn end(&mut self, _now: Instant) {}
}

/// Outcome of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    pub(crate) took_ns: u64,
    /// Of each endpoint.
    pub(crate) counters: Vec<TcpCounters>,
}

/// A host at the hub, and the link from it to the hub. The return path is perfect.
pub(crate) struct Node {
    pub(crate) address: IpAddr,
    pub(crate) end: Box<dyn Endpoint>,
    pub(crate) link: Link,
}

/// Runs all ends until they are done.
pub(crate) fn run(nodes: &mut [Node]) -> Outcome {
    let (mut now, mut outcome, mut still) = (Instant(0), Outcome::default(), 0);
    loop {
        for from in 0..nodes.len() {
            while let Some(packet) = nodes[from].link.pop(now) {
                outcome.packets += 1;
                // A packet misdirected by a flipped bit is lost.
                let Some(to) = nodes.iter_mut().find(|node| node.address == packet.destination) else {
                    continue;
                };
                to.end.take(now, &packet);
                to.end.check(now);
            }
        }
        for Node { end, link, .. } in nodes.iter_mut() {
            for packet in end.turn(now) {
                if let Pushed::TooBig(packet, mtu) = link.push(now, packet) {
                    end.too_big(now, &packet, mtu);
                }
            }
            end.check(now);
        }
        if nodes.iter().all(|node| node.end.is_done() && node.link.is_empty()) {
            outcome.took_ns = now.0;
            break;
        }
        let dues = nodes.iter_mut().flat_map(|node| [node.end.due(now), node.link.due()]);
        let Some(next) = dues.flatten().min() else {
            panic!("stuck at {now:?}: {}", progress(nodes));
        };
        assert!(next < END, "not done in time: {}", progress(nodes));
        still = if next <= now { still + 1 } else { 0 };
        assert!(still < 20_000, "no time passes at {now:?}: {}", progress(nodes));
        now = now.max(next);
    }
    for node in nodes {
        node.end.end(now);
        outcome.counters.push(node.end.counters());
    }
    outcome
}

fn progress(nodes: &[Node]) -> String {
    nodes.iter().map(|node| node.end.progress()).collect::<Vec<_>>().join(" | ")
}

//! A world in virtual time: two endpoints and the links between them, all from one seed.

pub(crate) mod app;
pub(crate) mod link;
pub(crate) mod ours;
pub(crate) mod smol;

use std::net::{IpAddr, SocketAddr};

use millrace_core::time::Instant;
use millrace_tcp::stack::{Arrived, Ecn, Out};

use self::link::Link;

pub(crate) const MS: u64 = 1_000_000;
/// From here on the links are perfect: whatever happened, what is left has to come through.
pub(crate) const WELL_AT: Instant = Instant(30_000 * MS);
/// By then everything is over: three retransmission time-outs at their longest, and TIME-WAIT.
pub(crate) const END: Instant = Instant(400_000 * MS);

/// A packet on a link: a segment, and what of the IP header matters.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) is_capable: bool,
    pub(crate) is_marked: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    /// Around a segment that a stack sends.
    pub(crate) fn of(out: &Out<'_>) -> Self {
        let mut bytes = out.header.to_vec();
        out.payload.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
        Self {
            source: out.flow.local().ip(),
            destination: out.flow.remote().ip(),
            is_capable: out.ecn == Ecn::Capable,
            is_marked: false,
            bytes,
        }
    }

    /// As a stack takes it in.
    pub(crate) fn arrived(&self, at: Instant) -> Arrived<'_> {
        Arrived {
            source: SocketAddr::new(self.source, 0),
            destination: SocketAddr::new(self.destination, 0),
            is_marked: self.is_marked,
            bytes: &self.bytes,
            at,
        }
    }
}

/// Who stands at the end of a link.
pub(crate) trait Endpoint {
    /// A packet comes in.
    fn take(&mut self, now: Instant, packet: &Packet);
    /// It is `now`: what goes out.
    fn turn(&mut self, now: Instant) -> Vec<Packet>;
    /// When it wants its next turn.
    fn due(&mut self, now: Instant) -> Option<Instant>;
    /// Whether the application has sent and received everything.
    fn is_done(&self) -> bool;
    /// How far the application is, for people.
    fn progress(&self) -> String;
    /// Panics if something is wrong now.
    fn check(&self) {}
    /// Everything is over: panics if anything is left.
    fn end(&mut self, _now: Instant) {}
}

/// What a run came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    pub(crate) took_ns: u64,
}

/// Runs both ends until they are done.
pub(crate) fn run(ends: &mut [&mut dyn Endpoint; 2], links: &mut [Link; 2]) -> Outcome {
    let (mut now, mut outcome, mut still) = (Instant(0), Outcome::default(), 0);
    loop {
        for side in 0..2 {
            while let Some(packet) = links[1 - side].pop(now) {
                outcome.packets += 1;
                ends[side].take(now, &packet);
                ends[side].check();
            }
            for packet in ends[side].turn(now) {
                links[side].push(now, packet);
            }
            ends[side].check();
        }
        let is_over = ends.iter().all(|end| end.is_done()) && links.iter().all(Link::is_empty);
        if is_over {
            outcome.took_ns = now.0;
            break;
        }
        let dues = ends.iter_mut().map(|end| end.due(now)).chain(links.iter().map(Link::due));
        let Some(next) = dues.flatten().min() else {
            panic!("stuck at {now:?}: {} | {}", ends[0].progress(), ends[1].progress());
        };
        assert!(next < END, "not done in time: {} | {}", ends[0].progress(), ends[1].progress());
        still = if next <= now { still + 1 } else { 0 };
        assert!(still < 20_000, "no time passes at {now:?}: {} | {}", ends[0].progress(), ends[1].progress());
        now = now.max(next);
    }
    for end in ends {
        end.end(now);
    }
    outcome
}

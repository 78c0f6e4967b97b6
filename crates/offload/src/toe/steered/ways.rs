//! Ethernet headers of packets that go out, as the kernel's routes and neighbours say, and packets that wait until the kernel has found one.
//!
//! The kernel is asked by a thread of its own (`netio/src/route`), which also follows what changes. The packet that waits for a host is the latest one to
//! it, copied: what was sent before it TCP sends again.

use std::io;
use std::net::IpAddr;

use millrace_core::limits::toe::{WAITING_NS, WAITING_PACKETS, WAY_LOOK_NS};
use millrace_core::time::Instant;
use millrace_core::wire::frame::LinkHeader;
use millrace_netio::route::{HopId, HopTable, RouteWatch};

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// By the interface, with this header.
    There(LinkHeader),
    /// The kernel was asked, or it has no way now.
    NotKnown,
    /// By another interface, or by a VLAN on this one.
    Elsewhere,
}

/// A packet that waits.
struct Waiting {
    /// `None`: the place is free.
    remote: Option<IpAddr>,
    since: Instant,
    bytes: usize,
    packet: Box<[u8]>,
}

/// How others are reached by one interface.
pub(super) struct Ways {
    hops: HopTable,
    /// Follows them, unless a test does.
    _watch: Option<RouteWatch>,
    if_index: u32,
    /// Where the last packet went: those of a connection follow each other.
    recent: Option<(IpAddr, HopId)>,
    waiting: Box<[Waiting]>,
    /// When it is looked for the ways of those that wait.
    look_at: Option<Instant>,
}

impl Ways {
    pub(super) fn new(hops: HopTable, watch: Option<RouteWatch>, if_index: u32, packet_bytes: usize) -> Self {
        let place =
            |_| Waiting { remote: None, since: Instant(0), bytes: 0, packet: vec![0; packet_bytes].into() };
        Self {
            hops,
            _watch: watch,
            if_index,
            recent: None,
            waiting: (0..WAITING_PACKETS).map(place).collect(),
            look_at: None,
        }
    }

    /// The way to a destination.
    pub(super) fn to(&mut self, remote: IpAddr) -> Where {
        let known = self.recent.filter(|&(of, id)| of == remote && self.hops.get(id).usable);
        let id = match known {
            Some((_, id)) => id,
            None => {
                let Some(id) = self.hops.hop(remote) else { return Where::NotKnown };
                self.recent = Some((remote, id));
                id
            }
        };
        let hop = self.hops.get(id);
        if hop.if_index == self.if_index && hop.link.vlan.is_none() {
            Where::There(hop.link)
        } else {
            Where::Elsewhere
        }
    }

    /// Keeps a copy of a packet until the way to there is known, in place of the one to there that has waited before. Without room it is lost, as on
    /// any network.
    pub(super) fn put_off(&mut self, remote: IpAddr, head: &[u8], body: &[&[u8]], now: Instant) {
        let place_of = |of: Option<IpAddr>| self.waiting.iter().position(|waiting| waiting.remote == of);
        let Some(place) = place_of(Some(remote)).or_else(|| place_of(None)) else { return };
        let waiting = &mut self.waiting[place];
        waiting.remote = None;
        waiting.bytes = 0;
        for piece in std::iter::once(&head).chain(body) {
            let end = waiting.bytes + piece.len();
            let Some(room) = waiting.packet.get_mut(waiting.bytes..end) else { return };
            room.copy_from_slice(piece);
            waiting.bytes = end;
        }
        (waiting.remote, waiting.since) = (Some(remote), now);
        self.look_at.get_or_insert(now.plus_ns(WAY_LOOK_NS));
    }

    /// Takes in what the kernel has said, and sends what has waited for it. `send` says whether there was room.
    pub(super) fn look(
        &mut self,
        now: Instant,
        send: &mut dyn FnMut(&LinkHeader, &[u8]) -> io::Result<bool>,
    ) -> io::Result<()> {
        self.hops.poll();
        if self.look_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        let mut still_waits = false;
        for place in 0..self.waiting.len() {
            let Some(remote) = self.waiting[place].remote else { continue };
            let way = self.to(remote);
            let waiting = &mut self.waiting[place];
            let is_done = match way {
                Where::There(link) => send(&link, &waiting.packet[..waiting.bytes])?,
                Where::NotKnown => false,
                Where::Elsewhere => true,
            };
            if is_done || now.ns_since(waiting.since) >= WAITING_NS {
                waiting.remote = None;
            } else {
                still_waits = true;
            }
        }
        self.look_at = still_waits.then(|| now.plus_ns(WAY_LOOK_NS));
        Ok(())
    }

    /// When [`Self::look`] has something to do next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_at
    }
}

#[cfg(test)]
#[path = "ways_tests.rs"]
mod tests;

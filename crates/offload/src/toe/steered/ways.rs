//! Ethernet headers of packets that go out, as the kernel's routes and neighbours say, and packets that wait until the kernel has found one.
//!
//! The peer of a connection has an entry in the egress path table: it has shown that it receives
//! packets sent to its address, or a host of the engine connects to it. The receiver of a mere
//! answer to a segment that any host may have sent gets one of a few entries for a second. When
//! those are taken, as in a flood of calls from spoofed addresses, the answer goes back to the
//! station that sent the segment, and the kernel is not queried.
//!
//! A separate thread (`netio/src/route`) queries the kernel and follows changes. Only the latest
//! packet to a host waits for it, as a copy: TCP retransmits the earlier ones.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use millrace_core::time::Instant;
use millrace_core::wire::frame::LinkHeader;
use millrace_netio::route::{Hop, HopId, HopTable, RouteWatch};

use super::stations::{Mac, Stations};
use crate::limits::{STRANGER_NS, STRANGERS, WAITING_ANSWERS, WAITING_NS, WAITING_PACKETS, WAY_LOOK_NS};

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// By the interface, with this header.
    There(LinkHeader),
    /// The kernel was asked, or it has no way now.
    NotKnown,
    /// Through another interface, or through a VLAN on this one; or back to a station that is not
    /// remembered.
    Elsewhere,
}

/// Kind of a packet, by its relation to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SteeredPacketKind {
    /// The first answer to a caller, which may not be at that address: SYN,ACK.
    Handshake,
    /// The end of a connection, or the answer to what belongs to none: RST.
    Reset,
    /// It is of a connection.
    Other,
}

/// A packet that waits.
struct WaitingPacket {
    /// `None`: the place is free.
    remote: Option<IpAddr>,
    /// It only answers a stranger.
    is_answer: bool,
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
    mac: Mac,
    /// Where answers go back to.
    stations: Stations,
    /// Those for whose answers the kernel was asked, and when, in that order.
    strangers: VecDeque<(IpAddr, Instant)>,
    /// Where the last packet went: those of a connection follow each other.
    recent: Option<(IpAddr, HopId)>,
    waiting: Box<[WaitingPacket]>,
    /// When it is looked for the ways of those that wait.
    look_at: Option<Instant>,
}

impl Ways {
    /// Creates the paths through the interface with this number and Ethernet address; packets have
    /// at most `packet_bytes` bytes.
    pub(super) fn new(
        hops: HopTable,
        watch: Option<RouteWatch>,
        (if_index, mac): (u32, Mac),
        stations: Stations,
        packet_bytes: usize,
    ) -> Self {
        let place = |_| WaitingPacket {
            remote: None,
            is_answer: false,
            since: Instant(0),
            bytes: 0,
            packet: vec![0; packet_bytes].into(),
        };
        Self {
            hops,
            _watch: watch,
            if_index,
            mac,
            stations,
            strangers: VecDeque::with_capacity(STRANGERS),
            recent: None,
            waiting: (0..WAITING_PACKETS).map(place).collect(),
            look_at: None,
        }
    }

    /// A packet of a host came from this station.
    pub(super) fn heard(&mut self, host: IpAddr, station: Mac) {
        self.stations.heard(host, station);
    }

    /// The way of a packet.
    pub(super) fn way(&mut self, remote: IpAddr, kind: SteeredPacketKind, now: Instant) -> Where {
        if kind == SteeredPacketKind::Other {
            return self.to(remote);
        }
        if let Some(way) = self.known(remote) {
            return way;
        }
        if self.asks_for_stranger(remote, now) {
            return Where::NotKnown;
        }
        match self.stations.of(remote) {
            Some(destination) => Where::There(LinkHeader { destination, source: self.mac, vlan: None }),
            // The caller calls again, and is answered then.
            None if kind == SteeredPacketKind::Handshake => Where::Elsewhere,
            None => self.to(remote),
        }
    }

    /// The way to a destination, if there is one now.
    fn known(&self, remote: IpAddr) -> Option<Where> {
        self.hops.known(remote).map(|hop| self.by(hop))
    }

    /// Whether the kernel is asked for the way of an answer to a stranger, which can wait for it.
    fn asks_for_stranger(&mut self, remote: IpAddr, now: Instant) -> bool {
        while let Some(&(host, since)) = self.strangers.front()
            && now.ns_since(since) >= STRANGER_NS
        {
            self.strangers.pop_front();
            // It is kept if a connection with it has used it.
            self.hops.forget_unused(host);
        }
        let waits = |waiting: &&WaitingPacket| waiting.remote.is_some() && waiting.is_answer;
        if self.strangers.len() == STRANGERS || self.waiting.iter().filter(waits).count() >= WAITING_ANSWERS {
            return false;
        }
        let is_asked = self.hops.ask_unused(remote);
        if is_asked && self.strangers.iter().all(|(host, _)| *host != remote) {
            self.strangers.push_back((remote, now));
        }
        is_asked
    }

    /// The way to a destination.
    fn to(&mut self, remote: IpAddr) -> Where {
        let known = self.recent.filter(|&(of, id)| of == remote && self.hops.get(id).usable);
        let id = match known {
            Some((_, id)) => id,
            None => {
                let Some(id) = self.hops.hop(remote) else { return Where::NotKnown };
                self.recent = Some((remote, id));
                id
            }
        };
        self.by(self.hops.get(id))
    }

    fn by(&self, hop: &Hop) -> Where {
        if hop.if_index == self.if_index && hop.link.vlan.is_none() {
            Where::There(hop.link)
        } else {
            Where::Elsewhere
        }
    }

    /// Keeps a copy of a packet until the way to there is known, in place of the one to there that has waited before. Without room it is lost, as on
    /// any network.
    pub(super) fn put_off(
        &mut self,
        (remote, kind): (IpAddr, SteeredPacketKind),
        head: &[u8],
        body: &[&[u8]],
        now: Instant,
    ) {
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
        (waiting.remote, waiting.is_answer, waiting.since) =
            (Some(remote), kind != SteeredPacketKind::Other, now);
        self.look_at.get_or_insert(now.plus_ns(WAY_LOOK_NS));
    }

    /// Processes the kernel's answers and sends the packets that waited for them. `send` returns
    /// whether there was space.
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
            let way = match self.waiting[place].is_answer {
                true => self.known(remote).unwrap_or(Where::NotKnown),
                false => self.to(remote),
            };
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

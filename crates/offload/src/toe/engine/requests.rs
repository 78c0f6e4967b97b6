//! The requests of hosts. No record is trusted: a socket that does not exist, a range outside the
//! area, or a buffer that the host does not hold is counted, and nothing else happens.

use std::net::SocketAddr;

use millrace_core::limits::toe::MAX_PAIRS;
use millrace_core::shared::Record;
use millrace_core::time::Instant;

use super::send::Descriptors;
use super::{Core, NONE, Owner, Pair, SocketConnection, SocketId, SocketUse};
use crate::limits::REQUESTS_PER_TURN;
use crate::toe::record::{Choice, Fault, GIVEN_AT_ONCE, HostEvent, HostRequest};

/// Returns the group that the stack counts a pair's connections under. Group 0 is for connections
/// that no host knows yet.
pub(super) fn group(pair: u16) -> u8 {
    pair as u8 + 1
}

const _: () = assert!(MAX_PAIRS < u8::MAX as usize);

impl Core {
    /// Takes what hosts have asked for, of each as much as a turn allows.
    pub(super) fn take_requests(&mut self, now: Instant) {
        for pair in 0..self.pairs.len() {
            for _ in 0..REQUESTS_PER_TURN {
                let Some(record) = self.pairs[pair].end.requests.pop() else { break };
                self.take_record(pair as u16, &record, now);
            }
        }
    }

    /// Takes all that one host had asked for when this was called.
    pub(super) fn take_all_requests(&mut self, pair: u16, now: Instant) {
        let Some(most) = self.pairs.get(usize::from(pair)).map(|of| of.settings.requests) else { return };
        for _ in 0..most {
            let Some(record) = self.pairs[usize::from(pair)].end.requests.pop() else { break };
            self.take_record(pair, &record, now);
        }
    }

    fn take_record(&mut self, pair: u16, record: &Record, now: Instant) {
        self.counters.requests += 1;
        let is_taken =
            HostRequest::decode(record).is_some_and(|request| self.take_request(pair, request, now));
        self.counters.rejected += u64::from(!is_taken);
    }

    /// Whether it could be.
    fn take_request(&mut self, pair: u16, request: HostRequest, now: Instant) -> bool {
        match request {
            HostRequest::Listen { socket, backlog, sharing, local } => {
                self.listen((pair, socket), backlog, sharing, local)
            }
            HostRequest::Accept { listener, socket } => self.accept(pair, listener, socket, now),
            HostRequest::Take { socket } => self.take_offer((pair, socket)),
            HostRequest::Connect { socket, local, remote } => {
                self.connect((pair, socket), local, remote, now)
            }
            HostRequest::Send { socket, offset, bytes } => self.give_bytes((pair, socket), offset, bytes),
            HostRequest::SendExtent { socket } => self.give_extent((pair, socket)),
            HostRequest::Shutdown { socket } => {
                let line = self.pair(pair).line(socket).filter(|line| line.closing.is_none());
                let Some(line) = line else { return false };
                line.is_shut = true;
                self.make_dirty((pair, socket));
                true
            }
            HostRequest::Close { socket, is_reset } => self.close((pair, socket), is_reset, now),
            HostRequest::Set { socket, option, is_on } => self.set((pair, socket), option, is_on, now),
            HostRequest::Wake { socket, at } => {
                let Some(line) = self.pair(pair).line(socket) else { return false };
                line.wake_at = Some(at);
                self.make_dirty((pair, socket));
                true
            }
            HostRequest::Give { count, buffers } => self.take_buffers(pair, count, &buffers),
        }
    }

    pub(super) fn pair(&mut self, pair: u16) -> &mut Pair {
        &mut self.pairs[usize::from(pair)]
    }

    pub(super) fn tell(&mut self, pair: u16, event: &HostEvent) {
        self.pairs[usize::from(pair)].tell(event, &mut self.counters);
    }

    fn connect(
        &mut self,
        (pair, socket): SocketId,
        mut local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> bool {
        if !self.pair(pair).has_free(socket) {
            return false;
        }
        let own = |ip| local.ip().is_unspecified() || ip == local.ip();
        let address = self.addresses.iter().copied().find(|&ip| ip.is_ipv4() == remote.is_ipv4() && own(ip));
        let opened = match address {
            None => Err(Fault::NoAddress),
            Some(_) if remote.port() == 0 || remote.ip().is_unspecified() => Err(Fault::Refused),
            Some(_) if local.port() != 0 && !self.has_port(local.port()) => Err(Fault::NotOwnPort),
            Some(_) if self.is_at_share(pair) => Err(Fault::NoRoom),
            Some(ip) => {
                local.set_ip(ip);
                self.stack.open(local, remote, now).map_err(Fault::of_call)
            }
        };
        match opened {
            Ok(id) => {
                self.stack.set_group(id, group(pair));
                let ends = self.stack.ends(id).unwrap_or((local, remote));
                let line = SocketConnection { is_connecting: true, ..SocketConnection::new(id, ends) };
                self.join((pair, socket), line);
            }
            Err(error) => {
                self.pair(pair).places[socket as usize].what = SocketUse::Failed;
                self.tell(
                    pair,
                    &HostEvent::Connected { socket, error: Some(error), generation: 0, local, remote },
                );
            }
        }
        true
    }

    /// Whether a pair has all the connections of the stack that it may have.
    pub(super) fn is_at_share(&self, pair: u16) -> bool {
        !self.stack.has_share_for(group(pair))
    }

    /// Joins a socket and a connection of the stack from now on; returns the connection's
    /// generation.
    pub(super) fn join(&mut self, (pair, socket): SocketId, line: SocketConnection) -> u16 {
        self.owners[line.id.number() as usize] = Owner::Line(line.id, (pair, socket));
        let pair_of = self.pair(pair);
        let count = pair_of.end.layout.count(socket);
        pair_of.end.words.store(count, 0);
        let place = &mut pair_of.places[socket as usize];
        place.what = SocketUse::Line(line);
        place.generation = place.generation.wrapping_add(1);
        let generation = place.generation;
        self.make_dirty((pair, socket));
        generation
    }

    fn close(&mut self, (pair, socket): SocketId, is_reset: bool, now: Instant) -> bool {
        let Some(place) = self.pair(pair).places.get_mut(socket as usize) else { return false };
        match &mut place.what {
            // A socket that waits for a connection goes with its listener.
            SocketUse::Free | SocketUse::Waiting => false,
            SocketUse::Failed => {
                place.what = SocketUse::Free;
                self.tell(pair, &HostEvent::Closed { socket });
                true
            }
            SocketUse::Listener(index) => {
                let index = *index;
                self.unlisten(index, now);
                self.pair(pair).places[socket as usize].what = SocketUse::Free;
                self.tell(pair, &HostEvent::Closed { socket });
                true
            }
            SocketUse::Line(line) if line.closing.is_some() => false,
            SocketUse::Line(line) if line.offered_by.is_some() => {
                self.withdraw((pair, socket), now);
                self.tell(pair, &HostEvent::Closed { socket });
                true
            }
            SocketUse::Line(line) => {
                line.closing = Some(is_reset);
                self.make_dirty((pair, socket));
                true
            }
        }
    }

    fn set(&mut self, (pair, socket): SocketId, option: Choice, is_on: bool, now: Instant) -> bool {
        let Some(line) = self.pair(pair).line(socket) else { return false };
        let (id, is_over) = (line.id, line.closed.is_some());
        match option {
            Choice::NoDelay => self.stack.nagle(id, !is_on, now),
            Choice::KeepAlive => self.stack.keep_alive(id, is_on, now),
            Choice::Cork => self.stack.cork(id, is_on, now),
        }
        self.tell(pair, &HostEvent::Done { socket, error: is_over.then_some(Fault::NotConnected) });
        true
    }

    /// Receive buffers are given back. Those that the host does not hold are passed over, and make the request a wrong one.
    fn take_buffers(&mut self, pair: u16, count: u8, buffers: &[u32; GIVEN_AT_ONCE]) -> bool {
        let mut are_all_good = true;
        for &buffer in &buffers[..usize::from(count).min(GIVEN_AT_ONCE)] {
            let of = self.pair(pair);
            let Some((socket, id)) = of.lent.get_mut(buffer as usize).and_then(Option::take) else {
                are_all_good = false;
                continue;
            };
            of.free.push_back(buffer);
            let line = of.line(socket).filter(|line| line.id == id);
            if let Some(line) = line {
                line.held -= 1;
                self.make_dirty((pair, socket));
            }
            while let Some(socket) = self.pair(pair).starved.pop_front() {
                self.pair(pair).places[socket as usize].is_starved = false;
                self.make_dirty((pair, socket));
            }
        }
        are_all_good
    }

    /// The range is in the area, or the request is a wrong one.
    fn give_bytes(&mut self, (pair, socket): SocketId, offset: u32, bytes: u32) -> bool {
        let area = self.pair(pair).end.layout.send_bytes;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > area) {
            return false;
        }
        self.give_at((pair, socket), bytes, |descriptors| descriptors.put(offset, bytes))
    }

    /// The next range of an extent is this socket's. If it cannot be the lease goes back.
    fn give_extent(&mut self, (pair, socket): SocketId) -> bool {
        let extent = self.pair(pair).end.extents.as_mut().and_then(|extents| extents.pop().ok());
        let Some(extent) = extent else { return false };
        let bytes = extent.1.bytes;
        self.give_at((pair, socket), bytes, |descriptors| descriptors.put_extent(extent))
    }

    /// `bytes` bytes go behind those of the socket, in the descriptor that `put` makes.
    fn give_at(
        &mut self,
        (pair, socket): SocketId,
        bytes: u32,
        put: impl FnOnce(&mut Descriptors) -> Option<u32>,
    ) -> bool {
        let Pair { places, descriptors, .. } = self.pair(pair);
        let Some(SocketUse::Line(line)) = places.get_mut(socket as usize).map(|place| &mut place.what) else {
            return false;
        };
        let is_offered = line.offered_by.is_some();
        if line.is_shut || line.closing.is_some() || line.lent.is_some() || is_offered {
            return false;
        }
        line.given += u64::from(bytes);
        if line.closed.is_some() {
            // The host does not know yet. The data it has given is its own again at once: the count
            // shows it.
            self.make_dirty((pair, socket));
            return true;
        }
        let Some(index) = put(descriptors) else {
            line.given -= u64::from(bytes);
            return false;
        };
        match line.last {
            NONE => line.first = index,
            last => descriptors.link(last, index),
        }
        line.last = index;
        self.make_dirty((pair, socket));
        true
    }
}

//! Listeners, and connections that wait to be accepted.

use std::net::SocketAddr;

use millrace_core::limits::toe::MAX_BACKLOG;
use millrace_core::time::Instant;
use millrace_tcp::conn::{Happened, Reason};
use millrace_tcp::stack::{ConnectionEvent as StackEvent, ConnectionId, ListenerId};

use super::requests::group;
use super::{Core, Listening, NONE, Owner, SocketConnection, SocketId, SocketUse};
use crate::limits::OFFER_NS;
use crate::toe::record::{Fault, HostEvent, Sharing};

impl Core {
    pub(super) fn listen(
        &mut self,
        (pair, socket): SocketId,
        backlog: u32,
        sharing: Sharing,
        mut local: SocketAddr,
    ) -> bool {
        if !self.pair(pair).has_free(socket) {
            return false;
        }
        if local.port() == 0 {
            local.set_port(self.port_to_listen());
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        let (what, error) = match self.listening_at((pair, socket), backlog, sharing, local) {
            Err(error) => (SocketUse::Failed, Some(error)),
            Ok((index, listening)) => {
                let id = listening.id;
                self.listeners[index] = Some(listening);
                self.set_room(id);
                (SocketUse::Listener(index as u16), None)
            }
        };
        self.pair(pair).places[socket as usize].what = what;
        self.tell(pair, &HostEvent::Listening { socket, error, local });
        true
    }

    /// A listener, and its place among the others.
    fn listening_at(
        &mut self,
        socket: SocketId,
        backlog: u32,
        sharing: Sharing,
        local: SocketAddr,
    ) -> Result<(usize, Listening), Fault> {
        if !local.ip().is_unspecified() && !self.addresses.contains(&local.ip()) {
            return Err(Fault::NoAddress);
        }
        if !self.has_port(local.port()) {
            return Err(Fault::NotOwnPort);
        }
        let of_pair = self.listeners.iter().flatten().filter(|other| other.socket.0 == socket.0).count();
        if of_pair >= usize::from(self.pair(socket.0).settings.listeners) {
            return Err(Fault::NoRoom);
        }
        let index = self.listeners.iter().position(Option::is_none).ok_or(Fault::NoRoom)?;
        let (id, sharing, user) = match self.group_to_join(socket.0, sharing, local)? {
            Some(first) => (first.id, Sharing { is_shared: first.sharing.is_shared, ..sharing }, first.user),
            None => {
                let id = self.stack.listen(local, backlog).map_err(Fault::of_call)?;
                (id, sharing, self.pair(socket.0).end.user)
            }
        };
        let listening = Listening {
            id,
            local,
            sharing,
            user,
            socket,
            backlog,
            first: NONE,
            last: NONE,
            count: 0,
            waiting: None,
            offered: None,
            has_asked: false,
        };
        Ok((index, listening))
    }

    /// One of the listeners that share the address with a new one; `None`: it is the first.
    ///
    /// A key is enough: a worker may have another user than the process that it has inherited the listener from. Without it the users are
    /// compared, also between a listener at the unspecified address and one at a certain address, which would take its connections.
    fn group_to_join(
        &self,
        pair: u16,
        sharing: Sharing,
        local: SocketAddr,
    ) -> Result<Option<&Listening>, Fault> {
        let overlapping = || self.listeners.iter().flatten().filter(|other| other.overlaps(local));
        let mut those = overlapping().filter(|other| other.local == local);
        let has_key = |other: &&Listening| sharing.key != 0 && other.sharing.key == sharing.key;
        if let Some(with_key) = those.clone().find(has_key) {
            return Ok(Some(with_key));
        }
        let user = self.pairs[usize::from(pair)].end.user;
        if overlapping().any(|other| other.user != user) {
            return Err(Fault::InUse);
        }
        match those.next() {
            Some(other) if !(sharing.is_shared && other.sharing.is_shared) => Err(Fault::InUse),
            other => Ok(other),
        }
    }

    /// Returns a port without a listener; if there is none, one of the ports.
    fn port_to_listen(&mut self) -> u16 {
        let count = self.ports.count();
        for _ in 0..count {
            let index = self.next_port % count;
            self.next_port = index + 1;
            let port = self.ports.nth(index).unwrap_or_default();
            let is_taken = |other: &Listening| other.local.port() == port;
            if !self.listeners.iter().flatten().any(is_taken) {
                return port;
            }
        }
        self.ports.nth(0).unwrap_or_default()
    }

    /// The stack lets in as many as the listeners have room for.
    fn set_room(&mut self, id: ListenerId) {
        let those = self.listeners.iter().flatten().filter(|listening| listening.id == id);
        let room = those.map(Listening::room).sum();
        self.stack.set_backlog(id, room);
    }

    /// Of the listeners that share an address, and whose hosts may have another connection, the one that the next connection goes to: one that waits for it before others, then one with
    /// room whose host accepts at all, then that with the fewest that wait there, and in turn among equals.
    fn choose(&mut self, id: ListenerId) -> Option<usize> {
        let count = self.listeners.len();
        let all = (0..count).map(|step| (self.next_listener + step) % count);
        let those = all.filter_map(|index| {
            let of = self.listeners[index].as_ref().filter(|of| of.id == id)?;
            let pair = of.socket.0;
            let rank =
                (self.is_at_share(pair), of.waiting.is_none(), of.room() == 0, !of.has_asked, of.count);
            Some((index, rank))
        });
        let (chosen, (is_at_share, ..)) = those.min_by_key(|&(_, rank)| rank)?;
        self.next_listener = chosen + 1;
        (!is_at_share).then_some(chosen)
    }

    pub(super) fn accept(&mut self, pair: u16, listener: u32, socket: u32, now: Instant) -> bool {
        let of = self.pair(pair);
        let Some(SocketUse::Listener(index)) = of.places.get(listener as usize).map(|place| &place.what)
        else {
            return false;
        };
        let index = *index;
        if !of.has_free(socket) {
            return false;
        }
        let Some(listening) = self.listeners[usize::from(index)].as_mut() else { return false };
        if listening.waiting.is_some() {
            return false;
        }
        (listening.waiting, listening.has_asked) = (Some(socket), true);
        self.pair(pair).places[socket as usize].what = SocketUse::Waiting;
        self.deliver(index, now);
        true
    }

    /// The first connection that waits goes to the socket that waits, if there are both. Where none waits, it comes from another listener that
    /// shares the address: no connection depends on a host that does not accept.
    fn deliver(&mut self, index: u16, now: Instant) {
        let Some(listening) = self.listeners[usize::from(index)].as_ref() else { return };
        let (pair, _) = listening.socket;
        let (stack_id, is_shared) = (listening.id, listening.sharing.has_others());
        let Some(socket) = listening.waiting else { return };
        let from = match listening.first {
            NONE if is_shared && !self.is_at_share(pair) => self.longest_queue(stack_id),
            NONE => None,
            _ => Some(usize::from(index)),
        };
        let Some(Owner::Queued { id, ends, happened, reason, .. }) = from.and_then(|from| self.dequeue(from))
        else {
            return;
        };
        if let Some(listening) = self.listeners[usize::from(index)].as_mut() {
            (listening.waiting, listening.offered) = (None, is_shared.then_some((socket, now)));
        }
        if is_shared {
            self.offers_due.get_or_insert(now.plus_ns(OFFER_NS));
        }
        self.stack.set_group(id, group(pair));
        self.set_room(stack_id);
        let mut line = SocketConnection::new(id, ends);
        line.offered_by = is_shared.then_some(stack_id);
        line.hear(happened, reason);
        let generation = self.join((pair, socket), line);
        let (local, remote) = ends;
        self.tell(pair, &HostEvent::Accepted { socket, error: None, generation, local, remote });
    }

    /// Of the listeners that share an address that where the most connections wait.
    fn longest_queue(&self, id: ListenerId) -> Option<usize> {
        let those = self.listeners.iter().enumerate();
        let counts =
            those.filter_map(|(index, of)| Some((of.as_ref().filter(|of| of.id == id)?.count, index)));
        counts.max().filter(|&(count, _)| count > 0).map(|(_, index)| index)
    }

    /// Takes the first connection that waits at a listener.
    fn dequeue(&mut self, index: usize) -> Option<Owner> {
        let listening = self.listeners[index].as_mut()?;
        let owner = self.owners.get(listening.first as usize).copied()?;
        let Owner::Queued { next, .. } = owner else { return None };
        listening.first = next;
        listening.count -= 1;
        if next == NONE {
            listening.last = NONE;
        }
        Some(owner)
    }

    /// A host accepts a connection that it was offered: from now on received bytes are handed over. If it was recalled meanwhile it is over for this host.
    pub(super) fn take_offer(&mut self, (pair, socket): SocketId) -> bool {
        match self.pair(pair).places.get_mut(socket as usize).map(|place| &mut place.what) {
            Some(SocketUse::Line(line)) => {
                line.offered_by = None;
                self.make_dirty((pair, socket));
                true
            }
            Some(SocketUse::Failed) => {
                self.tell(pair, &HostEvent::End { socket, error: Some(Fault::Aborted) });
                true
            }
            _ => false,
        }
    }

    /// A connection that its host has not taken in time goes to a listener that waits for one, if there is one.
    pub(super) fn recall_offers(&mut self, now: Instant) {
        if self.offers_due.is_none_or(|due| now < due) {
            return;
        }
        self.offers_due = None;
        for index in 0..self.listeners.len() {
            let Some(of) = &self.listeners[index] else { continue };
            let (pair, id) = (of.socket.0, of.id);
            let Some((socket, since)) = of.offered else { continue };
            let is_open = self.pair(pair).line(socket).is_some_and(|line| line.offered_by == Some(id));
            let is_late = now.ns_since(since) >= OFFER_NS;
            let is_wanted = |core: &Self, other: usize| {
                core.listeners[other].as_ref().is_some_and(|of| of.waiting.is_some())
            };
            let other = if is_open && is_late { self.choose(id) } else { None };
            if other.is_some_and(|other| is_wanted(self, other)) {
                self.withdraw((pair, socket), now);
                self.pair(pair).places[socket as usize].what = SocketUse::Failed;
                self.tell(pair, &HostEvent::Recalled { socket });
            } else if is_open {
                self.offers_due = Some(now.plus_ns(OFFER_NS));
            }
        }
    }

    /// A connection that its host has not taken waits again, at another listener that shares the address, or is over.
    pub(super) fn withdraw(&mut self, (pair, socket): SocketId, now: Instant) {
        let Some(line) = self.pair(pair).line(socket) else { return };
        let Some(listener) = line.offered_by else { return };
        let (id, ends, reason) = (line.id, line.ends, line.closed);
        let mut happened = Happened::READABLE;
        for (bit, has) in [(Happened::PEER_CLOSED, line.peer_closed), (Happened::CLOSED, reason.is_some())] {
            happened.0 |= if has { bit.0 } else { 0 };
        }
        self.pair(pair).places[socket as usize].what = SocketUse::Free;
        self.owners[id.number() as usize] = Owner::Nobody;
        let reason = reason.unwrap_or(Reason::Finished);
        self.pass_on(listener, Owner::Queued { id, ends, next: NONE, happened, reason }, now);
    }

    /// A connection that has waited at a listener waits at another one there, if that has room, or is over.
    fn pass_on(&mut self, listener: ListenerId, owner: Owner, now: Instant) {
        let Owner::Queued { id, ends, .. } = owner else { return };
        // The stack may have given the number of a listener that is gone to another one.
        let has_room = |of: &Listening| of.takes() && of.overlaps(ends.0);
        let other = self.choose(listener);
        match other.filter(|&other| self.listeners[other].as_ref().is_some_and(has_room)) {
            Some(other) => self.queue(other, owner, id.number(), now),
            None => self.let_go(id, now),
        }
    }

    /// Handles a connection that no host knows yet: it waits at its listener.
    pub(super) fn hear_of_new(&mut self, event: &StackEvent, now: Instant) {
        let id = event.connection;
        let found = event.listener.and_then(|listener| self.choose(listener));
        // One that is over before anybody has seen it, whose listener is gone, or whose host has its share already, is let go of.
        let (Some(index), Some(ends)) = (found, self.stack.ends(id)) else {
            return self.let_go(id, now);
        };
        if self.keeps_alive {
            self.stack.keep_alive(id, true, now);
        }
        let (happened, reason) = (event.happened, event.reason);
        self.queue(index, Owner::Queued { id, ends, next: NONE, happened, reason }, id.number(), now);
    }

    /// The connection waits at this listener, behind the others.
    fn queue(&mut self, index: usize, owner: Owner, number: u32, now: Instant) {
        let Some(listening) = self.listeners[index].as_mut() else { return };
        self.owners[number as usize] = owner;
        if let Owner::Queued { id, .. } = owner {
            self.stack.set_group(id, group(listening.socket.0));
        }
        match listening.last {
            NONE => listening.first = number,
            last => {
                if let Owner::Queued { next, .. } = &mut self.owners[last as usize] {
                    *next = number;
                }
            }
        }
        listening.last = number;
        listening.count += 1;
        let stack_id = listening.id;
        self.set_room(stack_id);
        self.deliver(index as u16, now);
    }

    fn let_go(&mut self, id: ConnectionId, now: Instant) {
        self.stack.abort(id, now);
        self.stack.release(id, now);
    }

    /// Closes the listener. Connections waiting there go on to others at the same address while
    /// those have room, and are turned away otherwise; so is the socket that waits.
    pub(super) fn unlisten(&mut self, index: u16, now: Instant) {
        let Some(listening) = self.listeners[usize::from(index)].take() else { return };
        if !self.listeners.iter().flatten().any(|other| other.id == listening.id) {
            self.stack.unlisten(listening.id);
        }
        let mut number = listening.first;
        while number != NONE {
            let owner = std::mem::replace(&mut self.owners[number as usize], Owner::Nobody);
            let Owner::Queued { id, ends, next, happened, reason } = owner else { break };
            self.pass_on(listening.id, Owner::Queued { id, ends, next: NONE, happened, reason }, now);
            number = next;
        }
        self.set_room(listening.id);
        if let Some(socket) = listening.waiting {
            let pair = listening.socket.0;
            self.pair(pair).places[socket as usize].what = SocketUse::Failed;
            let none = SocketAddr::from(([0; 4], 0));
            let error = Some(Fault::Aborted);
            self.tell(pair, &HostEvent::Accepted { socket, error, generation: 0, local: none, remote: none });
        }
    }
}

impl Listening {
    /// Whether a connection might be for this listener and for one at `local`. The stack takes an unspecified address for all, of both families.
    fn overlaps(&self, local: SocketAddr) -> bool {
        let (own, other) = (self.local.ip(), local.ip());
        self.local.port() == local.port() && (own == other || own.is_unspecified() || other.is_unspecified())
    }

    /// Connections that may still come to wait here.
    fn room(&self) -> u32 {
        self.backlog.saturating_sub(self.count)
    }

    /// Whether a connection that has waited elsewhere can come here.
    fn takes(&self) -> bool {
        self.waiting.is_some() || self.room() > 0
    }
}

//! Listeners, and connections that wait to be accepted.

use std::net::SocketAddr;

use millrace_core::limits::toe::MAX_BACKLOG;
use millrace_core::time::Instant;
use millrace_tcp::stack::{ConnectionEvent as StackEvent, ConnectionId, ListenerId};

use super::requests::group;
use super::{Core, Listening, NONE, Owner, SocketConnection, SocketId, SocketUse};
use crate::toe::record::{Fault, HostEvent};

impl Core {
    pub(super) fn listen(
        &mut self,
        (pair, socket): SocketId,
        backlog: u32,
        is_shared: bool,
        mut local: SocketAddr,
    ) -> bool {
        if !self.pair(pair).has_free(socket) {
            return false;
        }
        if local.port() == 0 {
            local.set_port(self.port_to_listen());
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        let (what, error) = match self.listening_at((pair, socket), backlog, is_shared, local) {
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
        is_shared: bool,
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
        let id = match self.listeners.iter().flatten().find(|other| other.local == local) {
            Some(other) if is_shared && other.is_shared => other.id,
            Some(_) => return Err(Fault::InUse),
            None => self.stack.listen(local, backlog).map_err(Fault::of_call)?,
        };
        let (first, last) = (NONE, NONE);
        let listening =
            Listening { id, local, is_shared, socket, backlog, first, last, count: 0, waiting: None };
        Ok((index, listening))
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

    /// Of the listeners that share an address, and whose hosts may have another connection, the one that the next connection goes to: one that waits for it before others, then that with
    /// the fewest that wait there, and in turn among equals.
    fn choose(&mut self, id: ListenerId) -> Option<usize> {
        let count = self.listeners.len();
        let all = (0..count).map(|step| (self.next_listener + step) % count);
        let those = all.filter_map(|index| {
            let of = self.listeners[index].as_ref().filter(|of| of.id == id)?;
            Some((index, (self.is_at_share(of.socket.0), of.waiting.is_none(), of.room() == 0, of.count)))
        });
        let (chosen, (is_at_share, ..)) = those.min_by_key(|&(_, rank)| rank)?;
        self.next_listener = chosen + 1;
        (!is_at_share).then_some(chosen)
    }

    pub(super) fn accept(&mut self, pair: u16, listener: u32, socket: u32) -> bool {
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
        listening.waiting = Some(socket);
        self.pair(pair).places[socket as usize].what = SocketUse::Waiting;
        self.deliver(index);
        true
    }

    /// The first connection that waits goes to the socket that waits, if there are both.
    fn deliver(&mut self, index: u16) {
        let Some(listening) = self.listeners[usize::from(index)].as_mut() else { return };
        let (pair, _) = listening.socket;
        if listening.waiting.is_none() || listening.first == NONE {
            return;
        }
        let number = listening.first;
        let Owner::Queued { id, ends, next, happened, reason } = self.owners[number as usize] else { return };
        let Some(socket) = listening.waiting.take() else { return };
        listening.first = next;
        listening.count -= 1;
        if next == NONE {
            listening.last = NONE;
        }
        let stack_id = listening.id;
        self.set_room(stack_id);
        let mut line = SocketConnection::new(id, ends);
        line.hear(happened, reason);
        let generation = self.join((pair, socket), line);
        let (local, remote) = ends;
        self.tell(pair, &HostEvent::Accepted { socket, error: None, generation, local, remote });
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
        self.queue(index, Owner::Queued { id, ends, next: NONE, happened, reason }, id.number());
    }

    /// The connection waits at this listener, behind the others.
    fn queue(&mut self, index: usize, owner: Owner, number: u32) {
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
        self.deliver(index as u16);
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
            let other = self.choose(listening.id);
            match other.filter(|&other| self.listeners[other].as_ref().is_some_and(Listening::takes)) {
                Some(other) => {
                    self.queue(other, Owner::Queued { id, ends, next: NONE, happened, reason }, number);
                }
                None => self.let_go(id, now),
            }
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
    /// Connections that may still come to wait here.
    fn room(&self) -> u32 {
        self.backlog.saturating_sub(self.count)
    }

    /// Whether a connection that has waited elsewhere can come here.
    fn takes(&self) -> bool {
        self.waiting.is_some() || self.room() > 0
    }
}

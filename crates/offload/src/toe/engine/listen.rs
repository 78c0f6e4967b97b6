//! Listeners, and connections that wait to be accepted.

use std::net::SocketAddr;

use millrace_core::limits::toe::MAX_BACKLOG;
use millrace_core::time::Instant;
use millrace_tcp::stack::{ConnectionId, Event as StackEvent};

use super::{Core, Line, Listening, NONE, Owner, SocketId, What};
use crate::toe::record::{Event, Fault};

impl Core {
    pub(super) fn listen(&mut self, (pair, socket): SocketId, backlog: u32, local: SocketAddr) -> bool {
        if !self.pair(pair).has_free(socket) {
            return false;
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        let is_own = local.ip().is_unspecified() || self.addresses.contains(&local.ip());
        let place = self.listeners.iter().position(Option::is_none);
        let listening = match place {
            _ if !is_own || local.port() == 0 => Err(Fault::NoAddress),
            None => Err(Fault::NoRoom),
            Some(index) => self.stack.listen(local, backlog).map(|id| (index, id)).map_err(Fault::of_call),
        };
        let (what, error) = match listening {
            Err(error) => (What::Failed, Some(error)),
            Ok((index, id)) => {
                let socket = (pair, socket);
                let listening =
                    Listening { id, socket, backlog, first: NONE, last: NONE, count: 0, waiting: None };
                self.listeners[index] = Some(listening);
                (What::Listener(index as u16), None)
            }
        };
        self.pair(pair).places[socket as usize].what = what;
        self.tell(pair, &Event::Listening { socket, error, local });
        true
    }

    pub(super) fn accept(&mut self, pair: u16, listener: u32, socket: u32) -> bool {
        let of = self.pair(pair);
        let Some(What::Listener(index)) = of.places.get(listener as usize).map(|place| &place.what) else {
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
        self.pair(pair).places[socket as usize].what = What::Waiting;
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
        let (stack_id, room) = (listening.id, listening.backlog - listening.count);
        self.stack.set_backlog(stack_id, room);
        let mut line = Line::new(id, ends);
        line.hear(happened, reason);
        let generation = self.join((pair, socket), line);
        let (local, remote) = ends;
        self.tell(pair, &Event::Accepted { socket, error: None, generation, local, remote });
    }

    /// A connection of which nobody has heard: it waits at its listener.
    pub(super) fn hear_of_new(&mut self, event: &StackEvent, now: Instant) {
        let id = event.connection;
        let found = self.listeners.iter().position(|listening| {
            listening.as_ref().is_some_and(|listening| Some(listening.id) == event.listener)
        });
        // One that is over before anybody has seen it, or whose listener is gone, is let go of.
        let (Some(index), Some(ends)) = (found, self.stack.ends(id)) else {
            return self.let_go(id, now);
        };
        let Some(listening) = self.listeners[index].as_mut() else { return };
        let number = id.number();
        self.owners[number as usize] =
            Owner::Queued { id, ends, next: NONE, happened: event.happened, reason: event.reason };
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
        let (stack_id, room) = (listening.id, listening.backlog.saturating_sub(listening.count));
        self.stack.set_backlog(stack_id, room);
        self.deliver(index as u16);
    }

    fn let_go(&mut self, id: ConnectionId, now: Instant) {
        self.stack.abort(id, now);
        self.stack.release(id, now);
    }

    /// The listener closes: who waits there is sent away, and so is the socket that waits.
    pub(super) fn unlisten(&mut self, index: u16, now: Instant) {
        let Some(listening) = self.listeners[usize::from(index)].take() else { return };
        self.stack.unlisten(listening.id);
        let mut number = listening.first;
        while number != NONE {
            let Owner::Queued { id, next, .. } =
                std::mem::replace(&mut self.owners[number as usize], Owner::Nobody)
            else {
                break;
            };
            self.let_go(id, now);
            number = next;
        }
        if let Some(socket) = listening.waiting {
            let pair = listening.socket.0;
            self.pair(pair).places[socket as usize].what = What::Failed;
            let none = SocketAddr::from(([0; 4], 0));
            let error = Some(Fault::Aborted);
            self.tell(pair, &Event::Accepted { socket, error, generation: 0, local: none, remote: none });
        }
    }
}

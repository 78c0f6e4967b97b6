//! The work of a connection, step by step, and its end.

use millrace_core::time::Instant;
use millrace_tcp::conn::ConnectionState;

use super::{Core, NONE, Owner, SocketId, SocketUse};
use crate::toe::record::{Fault, HostEvent};

impl Core {
    /// Every line that may have something to do, once.
    pub(super) fn serve_all(&mut self, now: Instant) {
        self.retry_short();
        for _ in 0..self.dirty.len() {
            let Some((pair, socket)) = self.dirty.pop_front() else { break };
            self.pair(pair).places[socket as usize].is_dirty = false;
            self.serve((pair, socket), now);
        }
    }

    fn serve(&mut self, id: SocketId, now: Instant) {
        if self.pair(id.0).line(id.1).is_some_and(|line| line.offered_by.is_some()) {
            return;
        }
        self.tell_opened(id);
        self.move_bytes(id, now);
        self.mirror(id);
        self.fill(id, now);
        self.tell_end(id);
        self.tell_loop(id);
        self.shut(id, now);
        self.finish(id, now);
    }

    /// Reports to the host, once, the outcome of a connection that is being opened.
    fn tell_opened(&mut self, (pair, socket): SocketId) {
        let place = &self.pairs[usize::from(pair)].places[socket as usize];
        let (SocketUse::Line(line), generation) = (&place.what, place.generation) else { return };
        if !line.is_connecting {
            return;
        }
        let (state, closed, (local, remote)) = (self.stack.state(line.id), line.closed, line.ends);
        let error = closed.map(|reason| Fault::of_reason(reason).unwrap_or(Fault::Aborted));
        if error.is_none() && state < ConnectionState::Established {
            return;
        }
        if let Some(line) = self.pair(pair).line(socket) {
            line.is_connecting = false;
            // The answer has reported it.
            line.close_told = error.is_some();
        }
        self.tell(pair, &HostEvent::Connected { socket, error, generation, local, remote });
    }

    /// Nothing more will come: the end of the peer's data is reported after the last bytes, a
    /// failure at once.
    fn tell_end(&mut self, (pair, socket): SocketId) {
        let Some(line) = self.pair(pair).line(socket) else { return };
        if line.closing.is_some() {
            return;
        }
        if let Some(error) = line.closed.and_then(Fault::of_reason) {
            if !std::mem::replace(&mut line.close_told, true) {
                self.tell(pair, &HostEvent::End { socket, error: Some(error) });
            }
            return;
        }
        let is_over = line.peer_closed || line.closed.is_some();
        let is_read = !line.is_readable && line.filling == NONE;
        if is_over && is_read && !std::mem::replace(&mut line.end_told, true) {
            self.tell(pair, &HostEvent::End { socket, error: None });
        }
    }

    /// A FIN goes behind the last byte that was given; the loop's are among them as long as it writes.
    /// Every connection is shut for writing, as if its host had asked for it; the loop writes to none any more.
    pub(in crate::toe) fn shut_all(&mut self, now: Instant) {
        for pair in 0..self.pairs.len() as u16 {
            for socket in 0..self.pair(pair).places.len() as u32 {
                if let Some(line) = self.pair(pair).line(socket) {
                    (line.is_shut, line.lent) = (true, None);
                    self.make_dirty((pair, socket));
                }
            }
        }
        self.serve_all(now);
    }

    fn shut(&mut self, (pair, socket): SocketId, now: Instant) {
        let Some(line) = self.pair(pair).line(socket) else { return };
        let is_over = line.closed.is_some() || line.closing.is_some();
        if line.is_shut && line.first == NONE && line.lent.is_none() && !is_over {
            let id = line.id;
            // It is an error to close twice, and nothing happens then.
            let _ = self.stack.close(id, now);
        }
    }

    /// A connection that its host has closed ends when the stack has all its bytes, in pages of its
    /// own: it sends them, and nothing waits for this.
    fn finish(&mut self, (pair, socket): SocketId, now: Instant) {
        let of = self.pair(pair);
        let Some(line) = of.line(socket) else { return };
        let Some(is_reset) = line.closing else { return };
        if !is_reset && (line.first != NONE || !self.keep_bytes((pair, socket), now)) {
            return;
        }
        let of = self.pair(pair);
        let Some(line) = of.line(socket) else { return };
        // Received bytes that will never be read are lost: the peer must know (RFC 9293 section
        // 3.6.1).
        let (id, filling, loses_bytes) = (line.id, line.filling, line.filled > 0);
        if filling != NONE {
            of.free.push_back(filling);
        }
        of.places[socket as usize].what = SocketUse::Free;
        self.owners[id.number() as usize] = Owner::Nobody;
        if is_reset || loses_bytes {
            self.stack.abort(id, now);
        }
        self.stack.release(id, now);
        self.tell(pair, &HostEvent::Closed { socket });
    }
}

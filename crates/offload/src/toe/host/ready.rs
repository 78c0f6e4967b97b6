//! The readiness of sockets, and which of them have something new: for code that waits for many of
//! them at once.

use std::io;

use super::state::HostState;
use super::state::{SocketPhase, stopped};
use crate::toe::record::{Fault, HostEvent};

/// The readiness of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// It is being made: a connection that is not open yet, a listener that the engine has not answered.
    pub is_opening: bool,
    /// A read has something to say, be it the end or a failure; a listener has a connection.
    pub is_readable: bool,
    /// Bytes that have come and are not read.
    pub unread: usize,
    /// The peer has sent everything.
    pub has_ended: bool,
    /// Why it is over, if it has failed.
    pub fault: Option<Fault>,
}

/// Sockets with something new, each once until it is taken. Nothing is recorded before the first
/// request for it.
#[derive(Default)]
pub(super) struct ReadyQueue {
    is_kept: bool,
    sockets: Vec<u32>,
    is_noted: Vec<bool>,
    stop_told: bool,
}

impl ReadyQueue {
    fn note(&mut self, socket: u32) {
        if self.is_noted.get_mut(socket as usize).is_some_and(|is_noted| !std::mem::replace(is_noted, true)) {
            self.sockets.push(socket);
        }
    }

    /// An event of a socket, or of the next connection of this listener.
    pub(super) fn hear(&mut self, event: &HostEvent, socket: u32) {
        if self.is_kept && !matches!(event, HostEvent::Closed { .. } | HostEvent::Done { .. }) {
            self.note(socket);
        }
    }

    /// A socket that had no chunk to write to may have one now.
    pub(super) fn has_chunk(&mut self, socket: u32) {
        if self.is_kept {
            self.note(socket);
        }
    }
}

impl HostState {
    /// From now on it is noted which sockets have something new.
    pub(in crate::toe) fn keep_news(&mut self) {
        let sockets = self.settings.sockets as usize;
        self.news.is_kept = true;
        self.news.sockets.reserve(sockets);
        self.news.is_noted = vec![false; sockets];
    }

    /// A socket with something new since it was taken last. When the engine has stopped, each once more.
    pub(in crate::toe) fn next_news(&mut self) -> Option<u32> {
        if self.is_stopped() && !self.has_events() && !std::mem::replace(&mut self.news.stop_told, true) {
            (0..self.settings.sockets)
                .filter(|&socket| self.sockets[socket as usize].phase != SocketPhase::Free)
                .for_each(|socket| self.news.note(socket));
        }
        self.wake_for_chunks();
        let socket = self.news.sockets.pop()?;
        self.news.is_noted[socket as usize] = false;
        Some(socket)
    }

    /// Returns the readiness of a socket; for writing see [`HostState::room`].
    pub(in crate::toe) fn ready(&self, socket: u32) -> Readiness {
        let of = &self.sockets[socket as usize];
        let mut ready = Readiness { has_ended: of.has_ended || of.is_read_shut, ..Readiness::default() };
        match of.phase {
            SocketPhase::Asked => ready.is_opening = true,
            SocketPhase::Failed(fault) => ready.fault = Some(fault),
            _ => ready.fault = of.fault,
        }
        if ready.fault.is_none() && self.is_stopped() && !self.has_events() {
            (ready.fault, ready.is_opening) = (Some(Fault::Aborted), false);
        }
        ready.unread = of.pieces.iter().map(|piece| (piece.to - piece.from) as usize).sum();
        let has_next = of.next.is_some_and(|next| {
            matches!(self.sockets[next as usize].phase, SocketPhase::Ready | SocketPhase::Failed(_))
        });
        ready.is_readable = ready.unread > 0 || ready.has_ended || ready.fault.is_some() || has_next;
        ready
    }

    /// Bytes that a write would take now. 0: the engine has been asked to say when there is room again.
    pub(in crate::toe) fn room_for(&mut self, socket: u32) -> io::Result<usize> {
        let of = self.socket(socket);
        let fault = match of.phase {
            SocketPhase::Asked => return Ok(0),
            SocketPhase::Failed(fault) => Some(fault),
            _ => of.fault.or(of.is_write_shut.then_some(Fault::Shut)),
        };
        match fault {
            Some(fault) => Err(fault.into()),
            None if self.is_stopped() => Err(stopped()),
            None => {
                let room = self.room(socket)?;
                Ok(room.min(self.bytes_in_chunks(socket)))
            }
        }
    }

    /// Whether a socket that was closed is not free yet.
    pub(in crate::toe) fn is_closing(&self) -> bool {
        self.sockets.iter().any(|socket| socket.phase == SocketPhase::Closing)
    }

    /// The same by the count as it is now, for those who only look.
    pub(super) fn outstanding(&self, socket: u32) -> u64 {
        let acked = self.end.words.load(self.end.layout.count(socket));
        self.sockets[socket as usize].sent.saturating_sub(acked)
    }

    /// Returns the received buffers unread.
    pub(super) fn throw_away(&mut self, socket: u32) {
        let unread = std::mem::take(&mut self.socket(socket).pieces);
        unread.iter().for_each(|piece| self.give_back(piece.buffer));
    }

    /// Bytes that were given and are not acknowledged.
    pub(in crate::toe) fn unacknowledged(&mut self, socket: u32) -> u64 {
        let acked = self.reap(socket);
        self.socket(socket).sent.saturating_sub(acked)
    }

    /// Returns whether a stop of the engine has not been reported yet.
    pub(in crate::toe) fn has_untold_stop(&self) -> bool {
        self.is_stopped() && !self.news.stop_told
    }
}

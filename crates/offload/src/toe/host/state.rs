//! A host's view of its sockets and buffers: requests go out, events are taken in and delivered to
//! their sockets. Nothing here waits.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use super::ready::ReadyQueue;
use super::waiters::{Interest, Waiters};
use crate::bell::EventBell;
use crate::engine_socket::EngineSocket;
use crate::limits::EXTENTS_UNDER_WAY;
use crate::toe::pair::{HostEnd, PairSettings};
use crate::toe::record::{Choice, Fault, GIVEN_AT_ONCE, HostEvent, HostRequest, Sharing};

/// Returns the error of a call when there is no engine any more.
pub(in crate::toe) fn stopped() -> io::Error {
    let text = "the offload engine has stopped: start it again and connect again";
    io::Error::new(io::ErrorKind::ConnectionAborted, text)
}

/// Requests after which a host looks whether the engine's process is still there, if nothing else makes it look: a system call then.
const ASKED_WITHOUT_A_LOOK: u64 = 16;

/// How far a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketPhase {
    Free,
    /// The engine was asked to make something of it.
    Asked,
    Ready,
    Failed(Fault),
    Closing,
}

/// Received bytes that are not read.
#[derive(Clone, Copy)]
pub(super) struct ReceivedPiece {
    pub(super) buffer: u32,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Stands for no chunk: bytes of an extent.
pub(super) const EXTENT: u32 = u32::MAX;

/// A chunk with bytes that are not acknowledged, or a range of an extent.
#[derive(Clone, Copy)]
pub(super) struct InFlight {
    pub(super) buffer: u32,
    /// Bytes of it that are given.
    pub(super) used: u32,
    /// Count at which it is free.
    pub(super) end: u64,
}

pub(super) struct Socket {
    pub(super) phase: SocketPhase,
    /// How many connections it has been, as the engine counts.
    pub(super) generation: u16,
    pub(super) ends: (SocketAddr, SocketAddr),
    pub(super) pieces: VecDeque<ReceivedPiece>,
    pub(super) has_ended: bool,
    /// A failure that no call has reported yet.
    pub(super) fault: Option<Fault>,
    /// There was one: nothing more comes or goes.
    pub(super) is_broken: bool,
    pub(super) sent: u64,
    pub(super) in_flight: VecDeque<InFlight>,
    /// The engine was asked to say when there is room.
    pub(super) waits_for_room: bool,
    pub(super) is_read_shut: bool,
    pub(super) is_write_shut: bool,
    /// The answer to an option.
    pub(super) done: Option<Option<Fault>>,
    /// For a listener: the socket that will be its next connection.
    pub(super) next: Option<u32>,
    /// Of such a socket: the listener.
    pub(super) listener: Option<u32>,
    /// For a listener: others may listen there, and get the connections not taken here.
    pub(super) has_others: bool,
    pub(super) waiters: Waiters,
    /// It is in the list of those that wait for a chunk.
    pub(super) lacks_chunk: bool,
}

impl Socket {
    fn new() -> Self {
        let none = SocketAddr::from(([0; 4], 0));
        Self {
            phase: SocketPhase::Free,
            generation: 0,
            ends: (none, none),
            pieces: VecDeque::new(),
            has_ended: false,
            fault: None,
            is_broken: false,
            sent: 0,
            in_flight: VecDeque::new(),
            waits_for_room: false,
            is_read_shut: false,
            is_write_shut: false,
            done: None,
            next: None,
            listener: None,
            has_others: false,
            waiters: Waiters::default(),
            lacks_chunk: false,
        }
    }
}

/// A host's state. It goes from thread to thread with its pair.
pub(in crate::toe) struct HostState {
    /// Which of the engine's pairs it is; and which of the program's engines, 0 if it is another program's.
    pub(super) number: u16,
    engine: u32,
    pub(super) end: HostEnd,
    pub(super) engine_bell: Arc<EventBell>,
    pub(super) settings: PairSettings,
    pub(super) sockets: Box<[Socket]>,
    pub(super) free_sockets: Vec<u32>,
    /// The one that has been free for longest is filled next: few of its lines are still in the cache of the engine's processor, where each
    /// write to them would have to wait.
    pub(super) free_chunks: VecDeque<u32>,
    /// Ranges of extents that may be given; an engine of another process takes none.
    pub(super) free_extents: u32,
    /// Sockets that may write more, if there were a chunk.
    pub(super) lacks_chunk: VecDeque<u32>,
    /// Tasks that had an event.
    pub(super) woken: Vec<Waker>,
    /// Something has happened to a socket since this was last asked.
    pub(super) has_heard: bool,
    /// Receive buffers that are read and not given back yet.
    pub(super) read: Vec<u32>,
    /// How many of them are given back at once.
    pub(super) batch: usize,
    pub(super) keeps_buffers: bool,
    /// Receive buffers that the application has.
    pub(super) lent: usize,
    /// There may be records in the ring that are not this host's own.
    pub(super) has_injected: bool,
    /// Something was asked of the engine since it was rung.
    pub(super) has_asked: bool,
    /// Requests made until now.
    asked: u64,
    /// Sockets that have something new, for callers that request them.
    pub(super) news: ReadyQueue,
}

impl HostState {
    pub(in crate::toe) fn new(
        number: u16,
        end: HostEnd,
        engine_bell: Arc<EventBell>,
        settings: &PairSettings,
    ) -> Self {
        Self {
            number,
            engine: 0,
            engine_bell,
            sockets: (0..settings.sockets).map(|_| Socket::new()).collect(),
            free_sockets: (0..settings.sockets).rev().collect(),
            free_chunks: (0..settings.send_buffers).collect(),
            free_extents: if end.extents.is_some() { EXTENTS_UNDER_WAY } else { 0 },
            lacks_chunk: VecDeque::new(),
            woken: Vec::new(),
            has_heard: false,
            read: Vec::with_capacity(settings.receive_buffers as usize),
            batch: GIVEN_AT_ONCE.min((settings.receive_share as usize / 2).max(1)),
            settings: settings.clone(),
            end,
            keeps_buffers: false,
            lent: 0,
            has_injected: false,
            has_asked: false,
            asked: 0,
            news: ReadyQueue::default(),
        }
    }

    /// The same as a host of this engine of the program.
    pub(in crate::toe) fn of_engine(self, engine: u32) -> Self {
        Self { engine, ..self }
    }

    pub(in crate::toe) fn bell(&self) -> &Arc<EventBell> {
        &self.end.bell
    }

    pub(in crate::toe) fn is_stopped(&self) -> bool {
        self.end.is_stopped()
    }

    pub(in crate::toe) fn has_events(&self) -> bool {
        self.end.events.is_ready()
    }

    /// Returns whether a wait would be in vain: something has happened since the last call,
    /// including events taken in by a call for another socket.
    pub(in crate::toe) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_heard) || self.is_stopped()
    }

    pub(in crate::toe) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.has_asked)
    }

    pub(in crate::toe) fn inject(&mut self, record: &[u64; 7]) -> bool {
        if self.lent > 0 {
            return false;
        }
        self.has_injected = true;
        self.end.requests.push(record)
    }

    pub(in crate::toe) fn keep_buffers(&mut self) {
        self.keeps_buffers = true;
    }

    /// The memory of the pair.
    #[cfg(test)]
    pub(in crate::toe) fn words(&self) -> &millrace_core::shared::Words {
        &self.end.words
    }

    /// Sockets and chunks that are free.
    #[cfg(test)]
    pub(in crate::toe) fn unused(&self) -> (usize, usize) {
        (self.free_sockets.len(), self.free_chunks.len())
    }

    pub(super) fn socket(&mut self, socket: u32) -> &mut Socket {
        &mut self.sockets[socket as usize]
    }

    /// Sends a request to the engine. A full ring is soon empty: the engine takes its contents
    /// whatever this host does.
    pub(super) fn ask(&mut self, request: &HostRequest) -> io::Result<()> {
        self.has_asked = true;
        self.asked += 1;
        // Who only writes would not notice otherwise that the engine's process is gone.
        let mut looks = self.asked.is_multiple_of(ASKED_WITHOUT_A_LOOK);
        loop {
            if self.is_stopped() || (looks && self.end.bell.look_for_hang_up()) {
                return Err(stopped());
            }
            looks = true;
            if self.end.requests.push(&request.encode()) {
                return Ok(());
            }
            self.engine_bell.ring();
            std::thread::yield_now();
        }
    }

    /// Takes in all events.
    pub(in crate::toe) fn hear(&mut self) {
        while let Some(record) = self.end.events.pop() {
            if let Some(event) = HostEvent::decode(&record) {
                self.has_heard = true;
                self.hear_event(event);
            }
        }
    }

    fn hear_event(&mut self, event: HostEvent) {
        let socket = match event {
            HostEvent::Listening { socket, .. }
            | HostEvent::Accepted { socket, .. }
            | HostEvent::Connected { socket, .. }
            | HostEvent::Data { socket, .. }
            | HostEvent::End { socket, .. }
            | HostEvent::Room { socket }
            | HostEvent::Closed { socket }
            | HostEvent::Recalled { socket }
            | HostEvent::Done { socket, .. } => socket,
        };
        let Some(of) = self.sockets.get_mut(socket as usize) else { return };
        self.news.hear(&event, of.listener.unwrap_or(socket));
        let waits = match event {
            // Tasks that wait for the next connection wait at its listener.
            HostEvent::Accepted { .. } => of.listener.unwrap_or(socket),
            _ => socket,
        };
        match event {
            HostEvent::Listening { error, local, .. } => of.opened(error, (local, local)),
            HostEvent::Accepted { error, generation, local, remote, .. }
            | HostEvent::Connected { error, generation, local, remote, .. } => {
                of.generation = generation;
                of.opened(error, (local, remote));
            }
            HostEvent::Data { buffer, bytes, .. } => {
                if of.phase != SocketPhase::Ready {
                    return self.give_back(buffer);
                }
                of.pieces.push_back(ReceivedPiece {
                    buffer,
                    from: 0,
                    to: bytes.min(self.settings.receive_bytes),
                });
            }
            HostEvent::End { error: None, .. } => of.has_ended = true,
            HostEvent::End { error, .. } => (of.fault, of.is_broken) = (error, true),
            HostEvent::Room { .. } => of.waits_for_room = false,
            HostEvent::Done { error, .. } => of.done = Some(error),
            HostEvent::Recalled { .. } => return self.lose_next(socket),
            HostEvent::Closed { .. } if of.phase == SocketPhase::Closing => {
                self.free(socket);
                return;
            }
            HostEvent::Closed { .. } => {}
        }
        let (reads, writes) = match event {
            HostEvent::Data { .. } | HostEvent::Accepted { .. } | HostEvent::End { error: None, .. } => {
                (true, false)
            }
            HostEvent::Room { .. } => (false, true),
            HostEvent::Done { .. } => (false, false),
            _ => (true, true),
        };
        if matches!(event, HostEvent::Room { .. }) {
            // Others may wait for its chunks.
            self.reap(socket);
        }
        if reads {
            self.wake(waits, Interest::Read);
        }
        if writes {
            self.wake(waits, Interest::Write);
        }
    }

    /// The next connection of a listener is another's. Waiting tasks and callers ask for one more.
    fn lose_next(&mut self, socket: u32) {
        // One that was taken meanwhile ends with an error.
        let Some(listener) = self.socket(socket).listener.take() else { return };
        self.socket(listener).next = None;
        self.close(socket, false);
        self.wake(listener, Interest::Read);
    }

    /// The engine is done with a socket.
    fn free(&mut self, socket: u32) {
        for interest in [Interest::Read, Interest::Write] {
            self.wake(socket, interest);
        }
        let of = self.socket(socket);
        let lacks_chunk = of.lacks_chunk;
        let chunks = std::mem::replace(of, Socket { lacks_chunk, ..Socket::new() }).in_flight;
        chunks.iter().for_each(|chunk| self.free_chunk(chunk.buffer));
        self.free_sockets.push(socket);
    }

    fn free_chunk(&mut self, buffer: u32) {
        match buffer {
            EXTENT => self.free_extents += 1,
            chunk => self.free_chunks.push_back(chunk),
        }
    }

    /// Takes the first of a socket's chunks, if its bytes are among the first `count`.
    pub(super) fn free_first(&mut self, socket: u32, count: u64) -> bool {
        let in_flight = &mut self.socket(socket).in_flight;
        let Some(chunk) = in_flight.front().filter(|chunk| chunk.end <= count).copied() else { return false };
        in_flight.pop_front();
        self.free_chunk(chunk.buffer);
        true
    }

    /// Takes a socket for the next request.
    fn take_socket(&mut self) -> io::Result<u32> {
        let socket = self.free_sockets.pop();
        let none = || {
            let text = "every socket of this host is in use: close some, or start the engine with more for each pair";
            io::Error::new(io::ErrorKind::QuotaExceeded, text)
        };
        socket.ok_or_else(none)
    }

    fn open(&mut self, request: impl FnOnce(u32) -> HostRequest) -> io::Result<u32> {
        let socket = self.take_socket()?;
        if let Err(error) = self.ask(&request(socket)) {
            self.free_sockets.push(socket);
            return Err(error);
        }
        self.socket(socket).phase = SocketPhase::Asked;
        Ok(socket)
    }

    pub(in crate::toe) fn listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        is_shared: bool,
    ) -> io::Result<u32> {
        self.listen_with(local, backlog, Sharing { is_shared, key: 0 })
    }

    pub(in crate::toe) fn listen_with(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> io::Result<u32> {
        let socket = self.open(|socket| HostRequest::Listen { socket, backlog, sharing, local })?;
        self.socket(socket).has_others = sharing.has_others();
        Ok(socket)
    }

    /// Whether other listeners may share a listener's address.
    pub(super) fn has_others(&self, listener: u32) -> bool {
        self.sockets[listener as usize].has_others
    }

    pub(in crate::toe) fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<u32> {
        let socket = self.open(|socket| HostRequest::Connect { socket, local, remote })?;
        self.socket(socket).ends = (local, remote);
        Ok(socket)
    }

    pub(in crate::toe) fn ends(&mut self, socket: u32) -> (SocketAddr, SocketAddr) {
        self.socket(socket).ends
    }

    /// Sees to it that a listener's next connection has a socket to go to.
    pub(in crate::toe) fn ask_for_next(&mut self, listener: u32) -> io::Result<()> {
        if self.socket(listener).next.is_none() {
            let next = self.open(|socket| HostRequest::Accept { listener, socket })?;
            self.socket(next).listener = Some(listener);
            self.socket(listener).next = Some(next);
        }
        Ok(())
    }

    /// The next connection of a listener, if it has come.
    pub(in crate::toe) fn take_next(&mut self, listener: u32) -> io::Result<Option<u32>> {
        let Some(next) = self.socket(listener).next else { return Ok(None) };
        let outcome = self.outcome(next);
        if !matches!(outcome, Ok(None)) {
            self.socket(listener).next = None;
            self.socket(next).listener = None;
        }
        if matches!(outcome, Ok(Some(_))) && self.socket(listener).has_others {
            self.ask(&HostRequest::Take { socket: next })?;
        }
        if outcome.is_err() {
            self.close(next, false);
        }
        Ok(outcome?.map(|_| next))
    }

    /// Returns the outcome of a socket: `None`, nothing yet; else its ends.
    pub(in crate::toe) fn outcome(&mut self, socket: u32) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
        match self.socket(socket).phase {
            SocketPhase::Ready => Ok(Some(self.socket(socket).ends)),
            SocketPhase::Failed(fault) => Err(fault.into()),
            _ => Ok(None),
        }
    }

    /// Returns the name, outside of this host, of a socket that is a connection.
    pub(in crate::toe) fn name(&self, socket: u32) -> EngineSocket {
        let generation = self.sockets[socket as usize].generation;
        EngineSocket { engine: self.engine, pair: self.number, generation, socket }
    }

    /// The host has no more use for a socket. Nothing happens the second time.
    pub(in crate::toe) fn close(&mut self, socket: u32, is_reset: bool) {
        if matches!(self.socket(socket).phase, SocketPhase::Free | SocketPhase::Closing) {
            return;
        }
        let next = self.socket(socket).next.take();
        let of = self.socket(socket);
        let unread = std::mem::take(&mut of.pieces);
        of.phase = SocketPhase::Closing;
        unread.iter().for_each(|piece| self.give_back(piece.buffer));
        let is_reset = is_reset || !unread.is_empty();
        // Without an engine there is nothing to be closed.
        let _ = self.ask(&HostRequest::Close { socket, is_reset });
        // A listener's next connection, whether still pending or already open but never accepted,
        // is closed after it.
        if let Some(next) = next {
            self.close(next, true);
        }
    }

    pub(in crate::toe) fn set(&mut self, socket: u32, option: Choice, is_on: bool) -> io::Result<()> {
        self.socket(socket).done = None;
        self.ask(&HostRequest::Set { socket, option, is_on })
    }

    /// The answer to [`HostState::set`].
    pub(in crate::toe) fn take_done(&mut self, socket: u32) -> io::Result<Option<()>> {
        match self.socket(socket).done.take() {
            None => Ok(None),
            Some(None) => Ok(Some(())),
            Some(Some(fault)) => Err(fault.into()),
        }
    }

    /// A failure that no call has reported yet; it is reported once.
    pub(in crate::toe) fn take_fault(&mut self, socket: u32) -> Option<Fault> {
        let of = self.socket(socket);
        match of.phase {
            SocketPhase::Failed(fault) => Some(fault),
            _ => of.fault.take(),
        }
    }

    pub(in crate::toe) fn shut_write(&mut self, socket: u32) -> io::Result<()> {
        let of = self.socket(socket);
        if of.is_broken {
            return Err(Fault::NotConnected.into());
        }
        if !std::mem::replace(&mut of.is_write_shut, true) {
            self.ask(&HostRequest::Shutdown { socket })?;
        }
        Ok(())
    }

    /// Received data can still be read; then reading ends instead of waiting.
    pub(in crate::toe) fn shut_read(&mut self, socket: u32) {
        self.socket(socket).is_read_shut = true;
        self.wake(socket, Interest::Read);
    }
}

impl Socket {
    fn opened(&mut self, error: Option<Fault>, ends: (SocketAddr, SocketAddr)) {
        if self.phase == SocketPhase::Asked {
            self.phase = error.map_or(SocketPhase::Ready, SocketPhase::Failed);
            self.ends = ends;
        }
    }
}

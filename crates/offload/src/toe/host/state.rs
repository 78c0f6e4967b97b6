//! What a host knows of its sockets and buffers: requests go out, events are taken in and brought to their sockets. Nothing here waits.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::bell::EventBell;
use crate::toe::EngineSocket;
use crate::toe::pair::{HostEnd, PairSettings};
use crate::toe::record::{Choice, Event, Fault, GIVEN_AT_ONCE, Request};

/// What a call is told when there is no engine any more.
pub(in crate::toe) fn stopped() -> io::Error {
    let text = "the offload engine has stopped: start it again and connect again";
    io::Error::new(io::ErrorKind::ConnectionAborted, text)
}

/// How far a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// The engine was asked to make something of it.
    Asked,
    Ready,
    Failed(Fault),
    Closing,
}

/// Received bytes that are not read.
#[derive(Clone, Copy)]
struct Piece {
    buffer: u32,
    from: u32,
    to: u32,
}

/// A chunk with bytes that are not acknowledged.
#[derive(Clone, Copy)]
struct InFlight {
    buffer: u32,
    /// Bytes of it that are given.
    used: u32,
    /// Count at which it is free.
    end: u64,
}

struct Socket {
    phase: Phase,
    /// How many connections it has been, as the engine counts.
    generation: u16,
    ends: (SocketAddr, SocketAddr),
    pieces: VecDeque<Piece>,
    has_ended: bool,
    fault: Option<Fault>,
    sent: u64,
    in_flight: VecDeque<InFlight>,
    /// The engine was asked to say when there is room.
    waits_for_room: bool,
    is_read_shut: bool,
    is_write_shut: bool,
    /// The answer to an option.
    done: Option<Option<Fault>>,
    /// Of a listener: the socket that is to be its next connection.
    next: Option<u32>,
}

impl Socket {
    fn new() -> Self {
        let none = SocketAddr::from(([0; 4], 0));
        Self {
            phase: Phase::Free,
            generation: 0,
            ends: (none, none),
            pieces: VecDeque::new(),
            has_ended: false,
            fault: None,
            sent: 0,
            in_flight: VecDeque::new(),
            waits_for_room: false,
            is_read_shut: false,
            is_write_shut: false,
            done: None,
            next: None,
        }
    }
}

/// A host's state. It goes from thread to thread with its pair.
pub(in crate::toe) struct HostState {
    /// Which of the engine's pairs it is.
    number: u16,
    end: HostEnd,
    engine_bell: Arc<EventBell>,
    settings: PairSettings,
    sockets: Box<[Socket]>,
    free_sockets: Vec<u32>,
    free_chunks: Vec<u32>,
    /// Receive buffers that are read and not given back yet.
    read: Vec<u32>,
    /// How many of them are given back at once.
    batch: usize,
    keeps_buffers: bool,
    /// Something was asked of the engine since it was rung.
    has_asked: bool,
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
            end,
            engine_bell,
            sockets: (0..settings.sockets).map(|_| Socket::new()).collect(),
            free_sockets: (0..settings.sockets).rev().collect(),
            free_chunks: (0..settings.send_buffers).rev().collect(),
            read: Vec::with_capacity(settings.receive_buffers as usize),
            batch: GIVEN_AT_ONCE.min((settings.receive_share as usize / 2).max(1)),
            settings: settings.clone(),
            keeps_buffers: false,
            has_asked: false,
        }
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

    /// Whether a wait would be in vain.
    pub(in crate::toe) fn has_news(&self) -> bool {
        self.has_events() || self.is_stopped()
    }

    pub(in crate::toe) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.has_asked)
    }

    pub(in crate::toe) fn inject(&mut self, record: &[u64; 7]) -> bool {
        self.end.requests.push(record)
    }

    pub(in crate::toe) fn keep_buffers(&mut self) {
        self.keeps_buffers = true;
    }

    /// Sockets and chunks that are free.
    #[cfg(test)]
    pub(in crate::toe) fn unused(&self) -> (usize, usize) {
        (self.free_sockets.len(), self.free_chunks.len())
    }

    fn socket(&mut self, socket: u32) -> &mut Socket {
        &mut self.sockets[socket as usize]
    }

    /// Asks the engine for something. A full ring is soon empty: the engine takes what is there whatever this host does.
    fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.has_asked = true;
        loop {
            if self.is_stopped() {
                return Err(stopped());
            }
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
            if let Some(event) = Event::decode(&record) {
                self.hear_event(event);
            }
        }
    }

    fn hear_event(&mut self, event: Event) {
        let socket = match event {
            Event::Listening { socket, .. }
            | Event::Accepted { socket, .. }
            | Event::Connected { socket, .. }
            | Event::Data { socket, .. }
            | Event::End { socket, .. }
            | Event::Room { socket }
            | Event::Closed { socket }
            | Event::Done { socket, .. } => socket,
        };
        let Some(of) = self.sockets.get_mut(socket as usize) else { return };
        match event {
            Event::Listening { error, local, .. } => of.opened(error, (local, local)),
            Event::Accepted { error, generation, local, remote, .. }
            | Event::Connected { error, generation, local, remote, .. } => {
                of.generation = generation;
                of.opened(error, (local, remote));
            }
            Event::Data { buffer, bytes, .. } => {
                if of.phase != Phase::Ready || of.is_read_shut {
                    self.give_back(buffer);
                } else {
                    of.pieces.push_back(Piece {
                        buffer,
                        from: 0,
                        to: bytes.min(self.settings.receive_bytes),
                    });
                }
            }
            Event::End { error: None, .. } => of.has_ended = true,
            Event::End { error, .. } => of.fault = error,
            Event::Room { .. } => of.waits_for_room = false,
            Event::Done { error, .. } => of.done = Some(error),
            Event::Closed { .. } if of.phase == Phase::Closing => {
                let chunks = std::mem::take(&mut of.in_flight);
                *of = Socket::new();
                self.free_chunks.extend(chunks.iter().map(|chunk| chunk.buffer));
                self.free_sockets.push(socket);
            }
            Event::Closed { .. } => {}
        }
    }

    /// A socket for what is asked next.
    fn take_socket(&mut self) -> io::Result<u32> {
        let socket = self.free_sockets.pop();
        let none = || {
            let text = "every socket of this host is in use: close some, or start the engine with more for each pair";
            io::Error::new(io::ErrorKind::QuotaExceeded, text)
        };
        socket.ok_or_else(none)
    }

    fn open(&mut self, request: impl FnOnce(u32) -> Request) -> io::Result<u32> {
        let socket = self.take_socket()?;
        if let Err(error) = self.ask(&request(socket)) {
            self.free_sockets.push(socket);
            return Err(error);
        }
        self.socket(socket).phase = Phase::Asked;
        Ok(socket)
    }

    pub(in crate::toe) fn listen(&mut self, local: SocketAddr, backlog: u32) -> io::Result<u32> {
        self.open(|socket| Request::Listen { socket, backlog, local })
    }

    pub(in crate::toe) fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<u32> {
        self.open(|socket| Request::Connect { socket, local, remote })
    }

    /// Sees to it that a listener's next connection has a socket to go to.
    pub(in crate::toe) fn ask_for_next(&mut self, listener: u32) -> io::Result<()> {
        if self.socket(listener).next.is_none() {
            let next = self.open(|socket| Request::Accept { listener, socket })?;
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
        }
        if outcome.is_err() {
            self.close(next, false);
        }
        Ok(outcome?.map(|_| next))
    }

    /// What has become of a socket: `None`, nothing yet; else its ends.
    pub(in crate::toe) fn outcome(&mut self, socket: u32) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
        match self.socket(socket).phase {
            Phase::Ready => Ok(Some(self.socket(socket).ends)),
            Phase::Failed(fault) => Err(fault.into()),
            _ => Ok(None),
        }
    }

    /// What a socket that is a connection is called outside of this host.
    pub(in crate::toe) fn name(&self, socket: u32) -> EngineSocket {
        EngineSocket { pair: self.number, generation: self.sockets[socket as usize].generation, socket }
    }

    /// The host has no more use for a socket. Nothing happens the second time.
    pub(in crate::toe) fn close(&mut self, socket: u32, is_reset: bool) {
        if matches!(self.socket(socket).phase, Phase::Free | Phase::Closing) {
            return;
        }
        let next = self.socket(socket).next.take();
        let of = self.socket(socket);
        let unread = std::mem::take(&mut of.pieces);
        of.phase = Phase::Closing;
        unread.iter().for_each(|piece| self.give_back(piece.buffer));
        let is_reset = is_reset || !unread.is_empty();
        // Without an engine there is nothing to be closed.
        let _ = self.ask(&Request::Close { socket, is_reset });
        // What a listener's next connection was to be, or is already and nobody has seen, goes behind it.
        if let Some(next) = next {
            self.close(next, true);
        }
    }

    pub(in crate::toe) fn set(&mut self, socket: u32, option: Choice, is_on: bool) -> io::Result<()> {
        self.socket(socket).done = None;
        self.ask(&Request::Set { socket, option, is_on })
    }

    /// The answer to [`HostState::set`].
    pub(in crate::toe) fn take_done(&mut self, socket: u32) -> io::Result<Option<()>> {
        match self.socket(socket).done.take() {
            None => Ok(None),
            Some(None) => Ok(Some(())),
            Some(Some(fault)) => Err(fault.into()),
        }
    }

    pub(in crate::toe) fn shut_write(&mut self, socket: u32) -> io::Result<()> {
        if !std::mem::replace(&mut self.socket(socket).is_write_shut, true) {
            self.ask(&Request::Shutdown { socket })?;
        }
        Ok(())
    }

    pub(in crate::toe) fn shut_read(&mut self, socket: u32) {
        let of = self.socket(socket);
        of.is_read_shut = true;
        let unread = std::mem::take(&mut of.pieces);
        unread.iter().for_each(|piece| self.give_back(piece.buffer));
    }

    // --- receiving ---

    /// Copies what has come to `to`, as far as it goes, and lets go of it if `takes`. `None`: nothing has come yet; 0: nothing will.
    pub(in crate::toe) fn read(
        &mut self,
        socket: u32,
        to: &mut [u8],
        takes: bool,
    ) -> io::Result<Option<usize>> {
        let HostState { end, settings, sockets, .. } = self;
        let of = &mut sockets[socket as usize];
        let (mut done, mut emptied) = (0, 0);
        for piece in &mut of.pieces {
            let bytes = ((piece.to - piece.from) as usize).min(to.len() - done);
            let at = end.layout.receive(piece.buffer, settings.receive_bytes) + piece.from as usize;
            end.words.read(at, &mut to[done..done + bytes]);
            done += bytes;
            if takes {
                piece.from += bytes as u32;
                emptied += usize::from(piece.from == piece.to);
            }
            if done == to.len() {
                break;
            }
        }
        for _ in 0..emptied {
            if let Some(piece) = self.socket(socket).pieces.pop_front() {
                self.give_back(piece.buffer);
            }
        }
        let of = self.socket(socket);
        match (done, of.fault) {
            (1.., _) => Ok(Some(done)),
            _ if to.is_empty() || of.is_read_shut || of.has_ended => Ok(Some(0)),
            (_, Some(fault)) => Err(fault.into()),
            _ => Ok(None),
        }
    }

    /// A receive buffer is read: it is given back with others.
    fn give_back(&mut self, buffer: u32) {
        if self.keeps_buffers {
            return;
        }
        self.read.push(buffer);
        while self.read.len() >= self.batch && self.give_some() {}
    }

    /// Gives back all that there are, as before a sleep.
    pub(in crate::toe) fn give_back_all(&mut self) {
        while !self.read.is_empty() && self.give_some() {}
    }

    fn give_some(&mut self) -> bool {
        let count = self.read.len().min(GIVEN_AT_ONCE);
        let mut buffers = [0; GIVEN_AT_ONCE];
        let from = self.read.len() - count;
        buffers[..count].copy_from_slice(&self.read[from..]);
        self.read.truncate(from);
        // Without an engine nobody needs them.
        self.ask(&Request::Give { count: count as u8, buffers }).is_ok()
    }

    // --- sending ---

    /// Frees the chunks whose bytes are acknowledged; the count.
    fn reap(&mut self, socket: u32) -> u64 {
        let count = self.end.words.load(self.end.layout.count(socket));
        let HostState { sockets, free_chunks, .. } = self;
        let in_flight = &mut sockets[socket as usize].in_flight;
        while in_flight.front().is_some_and(|chunk| chunk.end <= count) {
            free_chunks.extend(in_flight.pop_front().map(|chunk| chunk.buffer));
        }
        count
    }

    /// Gives the engine as much of `parts` as the socket's share and the chunks allow. `None`: nothing; the engine has been asked to say when.
    pub(in crate::toe) fn write(&mut self, socket: u32, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let of = self.socket(socket);
        if let Some(fault) = of.fault {
            return Err(fault.into());
        }
        if of.is_write_shut {
            return Err(Fault::Shut.into());
        }
        if of.waits_for_room {
            // One event ends the wait, and no sooner than it is worth while.
            return if self.is_stopped() { Err(stopped()) } else { Ok(None) };
        }
        let all: usize = parts.iter().map(|part| part.len()).sum();
        if all == 0 {
            return Ok(Some(0));
        }
        let acked = self.reap(socket);
        let outstanding = self.socket(socket).sent.saturating_sub(acked);
        let share = u64::from(self.settings.send_share_bytes);
        let room = share.saturating_sub(outstanding).min(all as u64) as usize;
        let done = self.give(socket, parts, room)?;
        if done > 0 {
            return Ok(Some(done));
        }
        self.wait_for_room(socket, room == 0)?;
        Ok(None)
    }

    /// Asks for the event: for this socket if its share is used up, else for all that hold chunks.
    fn wait_for_room(&mut self, socket: u32, is_over_share: bool) -> io::Result<()> {
        let all = if is_over_share { socket..socket + 1 } else { 0..self.settings.sockets };
        for socket in all {
            let count = self.reap(socket);
            let of = self.socket(socket);
            if of.phase != Phase::Ready || of.in_flight.is_empty() || of.waits_for_room {
                continue;
            }
            let outstanding = of.sent.saturating_sub(count);
            let at = count + outstanding.min(u64::from(self.settings.wake_bytes));
            self.ask(&Request::Wake { socket, at })?;
            self.socket(socket).waits_for_room = true;
        }
        Ok(())
    }

    /// Copies up to `most` bytes into chunks and hands them over; how many.
    fn give(&mut self, socket: u32, parts: &[IoSlice<'_>], most: usize) -> io::Result<usize> {
        let mut done = 0;
        let (mut part, mut skip) = (0, 0);
        while done < most {
            let Some((buffer, used)) = self.chunk(socket) else { break };
            let base = buffer * self.settings.send_bytes + used;
            let room = ((self.settings.send_bytes - used) as usize).min(most - done);
            let mut filled = 0;
            while filled < room {
                let bytes = &parts[part][skip..];
                let bytes = &bytes[..bytes.len().min(room - filled)];
                self.end.words.write(self.end.layout.send(base) + filled, bytes);
                (filled, skip) = (filled + bytes.len(), skip + bytes.len());
                if skip == parts[part].len() {
                    (part, skip) = (part + 1, 0);
                }
            }
            self.ask(&Request::Send { socket, offset: base, bytes: filled as u32 })?;
            let of = self.socket(socket);
            of.sent += filled as u64;
            if let Some(chunk) = of.in_flight.back_mut() {
                (chunk.used, chunk.end) = (used + filled as u32, of.sent);
            }
            done += filled;
        }
        Ok(done)
    }

    /// The chunk that the next byte goes to, and how much of it is used.
    fn chunk(&mut self, socket: u32) -> Option<(u32, u32)> {
        let bytes = self.settings.send_bytes;
        if let Some(last) = self.socket(socket).in_flight.back().filter(|last| last.used < bytes) {
            return Some((last.buffer, last.used));
        }
        if self.free_chunks.is_empty() {
            (0..self.settings.sockets).for_each(|other| {
                if !self.sockets[other as usize].in_flight.is_empty() {
                    self.reap(other);
                }
            });
        }
        let buffer = self.free_chunks.pop()?;
        // Free at a count that is never reached, until it is given.
        self.socket(socket).in_flight.push_back(InFlight { buffer, used: 0, end: u64::MAX });
        Some((buffer, 0))
    }
}

impl Socket {
    fn opened(&mut self, error: Option<Fault>, ends: (SocketAddr, SocketAddr)) {
        if self.phase == Phase::Asked {
            self.phase = error.map_or(Phase::Ready, Phase::Failed);
            self.ends = ends;
        }
    }
}

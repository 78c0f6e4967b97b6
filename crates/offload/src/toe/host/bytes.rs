//! Bytes from and to a socket: receive buffers are read and given back, chunks of the area are filled and freed.

use std::io::{self, IoSlice};

use millrace_core::limits::MAX_CONN_PENDING_BYTES;
use millrace_core::pool::Lease;
use millrace_tcp::send::ExtentRange;

use super::state::{EXTENT, HostState, InFlight, SocketPhase, stopped};
use crate::toe::record::{Fault, GIVEN_AT_ONCE, HostRequest};

/// Which part of its area a loop leaves for control bytes, as an engine that it turns leaves of its pages.
const RESERVE: u32 = 16;

pub(super) fn elsewhere() -> io::Error {
    let text = "leased extents go to an engine of the same program only: write their bytes instead";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

impl HostState {
    // --- receiving ---

    /// Copies received bytes to `to`, as many as fit, and releases them if `takes`. `None`: nothing
    /// has come yet; 0: nothing will.
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
        if done > 0 || to.is_empty() {
            return Ok(Some(done));
        }
        match of.fault.take() {
            Some(fault) => Err(fault.into()),
            None => Ok((of.is_read_shut || of.has_ended || of.is_broken).then_some(0)),
        }
    }

    /// A receive buffer is read: it is given back with others.
    pub(super) fn give_back(&mut self, buffer: u32) {
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
        // Without an engine they are not needed.
        self.ask(&HostRequest::Give { count: count as u8, buffers }).is_ok()
    }

    // --- sending ---

    /// Frees the chunks whose bytes are acknowledged; the count.
    pub(super) fn reap(&mut self, socket: u32) -> u64 {
        let count = self.end.words.load(self.end.layout.count(socket));
        while self.free_first(socket, count) {}
        count
    }

    /// Gives the engine as much of `parts` as the socket's share and the chunks allow. `None`: nothing; the engine has been asked to say when.
    pub(in crate::toe) fn write(&mut self, socket: u32, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.may_write(socket)?;
        let all: usize = parts.iter().map(|part| part.len()).sum();
        if all == 0 {
            return Ok(Some(0));
        }
        match self.room(socket)? {
            0 => Ok(None),
            room => self.give(socket, parts, room.min(all)).map(Some),
        }
    }

    fn may_write(&mut self, socket: u32) -> io::Result<()> {
        let of = self.socket(socket);
        match of.fault.take() {
            Some(fault) => Err(fault.into()),
            None if of.is_write_shut || of.is_broken => Err(Fault::Shut.into()),
            None => Ok(()),
        }
    }

    /// Gives the engine a range of a leased extent, which is in it. `None`: not now; the engine has been asked to say when.
    pub(in crate::toe) fn write_extent(
        &mut self,
        socket: u32,
        lease: &Lease,
        range: ExtentRange,
    ) -> io::Result<Option<()>> {
        self.may_write(socket)?;
        if self.end.extents.is_none() {
            return Err(elsewhere());
        }
        if self.socket(socket).waits_for_room {
            return if self.is_stopped() { Err(stopped()) } else { Ok(None) };
        }
        let acked = self.reap(socket);
        let outstanding = self.socket(socket).sent.saturating_sub(acked);
        let is_over_share = outstanding >= u64::from(self.settings.send_share_bytes);
        if is_over_share || !self.has_extent() {
            self.wait_for_room(socket, is_over_share)?;
            return Ok(None);
        }
        self.give_extent(socket, lease, range)
    }

    fn give_extent(&mut self, socket: u32, lease: &Lease, range: ExtentRange) -> io::Result<Option<()>> {
        let Some(extents) = &mut self.end.extents else { return Err(elsewhere()) };
        if extents.push((lease.clone(), range)).is_err() {
            // As many as it holds are not acknowledged yet: there is no room in it only for a moment.
            return Ok(None);
        }
        self.ask(&HostRequest::SendExtent { socket })?;
        self.free_extents -= 1;
        let of = self.socket(socket);
        of.sent += u64::from(range.bytes);
        // Nothing is appended to it.
        let end = of.sent;
        of.in_flight.push_back(InFlight { buffer: EXTENT, used: u32::MAX, end });
        Ok(Some(()))
    }

    /// Gives the engine a head, which may be empty, and a range behind it: both or none. `None`: none; the engine has been asked to say when.
    pub(super) fn write_framed(
        &mut self,
        socket: u32,
        head: &[u8],
        lease: &Lease,
        range: ExtentRange,
    ) -> io::Result<Option<()>> {
        self.may_write(socket)?;
        if !self.takes(socket, head.len())? {
            return Ok(None);
        }
        if !head.is_empty() {
            self.give(socket, &[IoSlice::new(head)], head.len())?;
        }
        self.give_extent(socket, lease, range)
    }

    /// Gives the engine all of `parts` or nothing. `None`: nothing; the engine has been asked to say when.
    pub(super) fn write_whole(&mut self, socket: u32, parts: &[&[u8]]) -> io::Result<Option<()>> {
        self.may_write(socket)?;
        let all = parts.iter().map(|part| part.len()).sum();
        if !self.takes(socket, all)? {
            return Ok(None);
        }
        for part in parts {
            self.give(socket, &[IoSlice::new(part)], part.len())?;
        }
        Ok(Some(()))
    }

    /// Gives the engine bytes that are not limited by the share alone: the allowance for a
    /// connection's control bytes comes on top. False: it is used up.
    pub(super) fn write_control(&mut self, socket: u32, bytes: &[u8]) -> io::Result<bool> {
        self.may_write(socket)?;
        let most = u64::from(self.settings.send_share_bytes) + MAX_CONN_PENDING_BYTES as u64;
        if self.unacknowledged(socket) + bytes.len() as u64 > most || !self.has_chunks(socket, bytes.len()) {
            return Ok(false);
        }
        self.give(socket, &[IoSlice::new(bytes)], bytes.len())?;
        Ok(true)
    }

    /// Whether `bytes` bytes and a range of an extent would be taken now. If not, the engine has been asked to say when.
    pub(super) fn takes(&mut self, socket: u32, bytes: usize) -> io::Result<bool> {
        if self.room(socket)? == 0 {
            return Ok(false);
        }
        let is_full = self.end.extents.as_ref().is_some_and(rtrb::Producer::is_full);
        // Some is left for control bytes, whatever else is under way.
        let reserve = self.settings.send_buffers / RESERVE * self.settings.send_bytes;
        if !is_full && self.has_chunks(socket, bytes + reserve as usize) && self.has_extent() {
            return Ok(true);
        }
        self.wait_for_room(socket, false)?;
        Ok(false)
    }

    /// Returns whether there are chunks for `bytes` bytes.
    fn has_chunks(&mut self, socket: u32, bytes: usize) -> bool {
        if self.bytes_in_chunks(socket) < bytes {
            self.reap_all();
        }
        self.bytes_in_chunks(socket) >= bytes
    }

    /// Returns the number of bytes that fit into the chunk that was begun, and into the free ones.
    pub(super) fn bytes_in_chunks(&self, socket: u32) -> usize {
        let last = self.sockets[socket as usize].in_flight.back();
        let begun = last.map_or(0, |last| self.settings.send_bytes.saturating_sub(last.used));
        self.free_chunks.len() * self.settings.send_bytes as usize + begun as usize
    }

    /// Whether another range may be under way, now that all that is acknowledged is counted.
    fn has_extent(&mut self) -> bool {
        if self.free_extents == 0 {
            self.reap_all();
        }
        self.free_extents > 0 || self.end.extents.is_none()
    }

    fn reap_all(&mut self) {
        (0..self.settings.sockets).for_each(|other| {
            if !self.sockets[other as usize].in_flight.is_empty() {
                self.reap(other);
            }
        });
    }

    /// Bytes of a socket's share that are left, if there is a chunk for them. 0: the engine has been asked to say when.
    pub(super) fn room(&mut self, socket: u32) -> io::Result<usize> {
        if self.socket(socket).waits_for_room {
            // One event ends the wait, and no sooner than it is worth while.
            return if self.is_stopped() { Err(stopped()) } else { Ok(0) };
        }
        let acked = self.reap(socket);
        let outstanding = self.socket(socket).sent.saturating_sub(acked);
        let room = u64::from(self.settings.send_share_bytes).saturating_sub(outstanding) as usize;
        if room > 0 && self.has_chunk(socket) {
            return Ok(room);
        }
        // One that may have no more of them hears when its own come back.
        let waits = self.settings.send_reserve == 0 || !self.holds_chunk(socket);
        if room > 0 && waits && !std::mem::replace(&mut self.socket(socket).lacks_chunk, true) {
            self.lacks_chunk.push_back(socket);
        }
        self.wait_for_room(socket, room == 0)?;
        Ok(0)
    }

    /// Whether the peer has everything that was written, or never will. If not, the engine has been asked to say when.
    pub(in crate::toe) fn is_flushed(&mut self, socket: u32) -> io::Result<bool> {
        let acked = self.reap(socket);
        let of = self.socket(socket);
        let at = of.sent;
        if of.is_broken || acked >= at {
            return Ok(true);
        }
        if !std::mem::replace(&mut of.waits_for_room, true) {
            self.ask(&HostRequest::Wake { socket, at })?;
        }
        Ok(false)
    }

    /// Whether a read would not wait.
    pub(in crate::toe) fn is_readable(&mut self, socket: u32) -> bool {
        let of = self.socket(socket);
        !of.pieces.is_empty() || of.has_ended || of.is_read_shut || of.is_broken
    }

    /// Whether a write would not wait. If it would, the engine has been asked to say when.
    pub(in crate::toe) fn is_writable(&mut self, socket: u32) -> io::Result<bool> {
        let of = self.socket(socket);
        Ok(of.is_broken || of.is_write_shut || self.room(socket)? > 0)
    }

    /// Asks for the event: for this socket if its share is used up, else for all that hold chunks.
    fn wait_for_room(&mut self, socket: u32, is_over_share: bool) -> io::Result<()> {
        let all = if is_over_share { socket..socket + 1 } else { 0..self.settings.sockets };
        for socket in all {
            let count = self.reap(socket);
            let of = self.socket(socket);
            if of.phase != SocketPhase::Ready || of.in_flight.is_empty() || of.waits_for_room {
                continue;
            }
            let outstanding = of.sent.saturating_sub(count);
            let at = count + outstanding.min(u64::from(self.settings.wake_bytes));
            self.ask(&HostRequest::Wake { socket, at })?;
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
            self.ask(&HostRequest::Send { socket, offset: base, bytes: filled as u32 })?;
            let of = self.socket(socket);
            of.sent += filled as u64;
            if let Some(chunk) = of.in_flight.back_mut() {
                (chunk.used, chunk.end) = (used + filled as u32, of.sent);
            }
            done += filled;
        }
        Ok(done)
    }

    /// Whether there is room in a chunk, of any socket that has been acknowledged.
    fn has_chunk(&mut self, socket: u32) -> bool {
        let bytes = self.settings.send_bytes;
        if self.may_take_chunk(socket)
            || self.socket(socket).in_flight.back().is_some_and(|last| last.used < bytes)
        {
            return true;
        }
        self.reap_all();
        self.may_take_chunk(socket)
    }

    fn holds_chunk(&self, socket: u32) -> bool {
        self.sockets[socket as usize].in_flight.iter().any(|piece| piece.buffer != EXTENT)
    }

    fn may_take_chunk(&self, socket: u32) -> bool {
        let free = self.free_chunks.len();
        free > self.settings.send_reserve as usize || (free > 0 && !self.holds_chunk(socket))
    }

    /// The chunk that the next byte goes to, and how much of it is used.
    fn chunk(&mut self, socket: u32) -> Option<(u32, u32)> {
        let bytes = self.settings.send_bytes;
        if let Some(last) = self.socket(socket).in_flight.back().filter(|last| last.used < bytes) {
            return Some((last.buffer, last.used));
        }
        if !self.has_chunk(socket) {
            return None;
        }
        let buffer = self.free_chunks.pop_front()?;
        // Free at a count that is never reached, until it is given.
        self.socket(socket).in_flight.push_back(InFlight { buffer, used: 0, end: u64::MAX });
        Some((buffer, 0))
    }
}

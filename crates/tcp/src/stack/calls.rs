//! Requests of an application: OPEN, SEND, RECEIVE, CLOSE, ABORT, STATUS (RFC 9293 section 3.9.1).

use std::fmt;
use std::net::SocketAddr;

use millrace_core::pool::Lease;
use millrace_core::time::Instant;

use super::{ConnectionEvent, ConnectionId, Reply, Stack, WantedExtent};
use crate::conn::{Connection, ConnectionState, Env, Happened, Info, Marks, Reason};
use crate::isn::initial_seq;
use crate::send::{Area, ExtentRange, QueueRefusal};
use crate::wire::FlowKey;

/// Why a call was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// "connection does not exist": it is closed, or was never there.
    NoConnection,
    /// "connection closing": nothing can be sent after CLOSE.
    Closing,
    /// "insufficient resources": no slot, descriptor or page is free.
    NoRoom,
    /// The same of ports: each that may be chosen is taken.
    NoPort,
    /// "connection already exists" between these ends.
    Exists,
    /// The two ends are of different families.
    Families,
    /// One of the ends is no single host: an unspecified, multicast or broadcast address.
    Address,
    /// The range cannot be sent from this lease.
    Unfit,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoConnection => "connection does not exist",
            Self::Closing => "connection closing: nothing can be sent after a close",
            Self::NoRoom => "insufficient resources: close connections or wait until data is acknowledged",
            Self::NoPort => {
                "no port is left: close connections, listen on fewer ports, or give the stack more"
            }
            Self::Exists => "connection already exists",
            Self::Families => "local and remote address are of different families",
            Self::Address => {
                "a connection has one host at each end: no unspecified, multicast or broadcast address"
            }
            Self::Unfit => "the range lies outside the leased extent or has missing packets",
        })
    }
}

impl std::error::Error for CallError {}

impl Stack {
    /// OPEN, active. Port 0 here: one is chosen.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<ConnectionId, CallError> {
        //= RFC 9293 section 3.9.1.1
        //# The optional "local IP address" parameter MUST be supported to allow
        //# the specification of the local IP address (MUST-43).
        let mut flow = FlowKey::new(local, remote).ok_or(CallError::Families)?;
        //= RFC 9293 section 3.9.1.1
        //# A TCP implementation MUST reject as an error a local OPEN call for an
        //# invalid remote IP address (e.g., a broadcast or multicast address)
        //# (MUST-46).
        //= RFC 9293 section 3.9.1.1
        //= type=exception
        //= reason=the routes are known to whoever has the IP layer: it names the local address
        //# If an application on a multihomed host does not specify the local IP
        //# address when actively opening a TCP connection, then the TCP
        //# implementation MUST ask the IP layer to select a local IP address
        //# before sending the (first) SYN (MUST-44).
        if !flow.is_unicast() {
            return Err(CallError::Address);
        }
        //= RFC 9293 section 3.9.1.1
        //# At all other times, a previous segment has either been sent or
        //# received on this connection, and TCP implementations MUST use the
        //# same local address that was used in those previous segments (MUST-
        //# 45).
        if flow.local_port() == 0 {
            let (table, time_waits, listeners) = (&self.table, &self.time_waits, &self.listeners);
            let is_free = |port| {
                let flow = flow.with_local_port(port);
                let is_listened_on = listeners.iter().flatten().any(|other| other.local.port() == port);
                !is_listened_on && table.find(&flow).is_none() && !time_waits.contains(&flow)
            };
            let port = self.ports.pick(&flow, is_free).ok_or(CallError::NoPort)?;
            flow = flow.with_local_port(port);
        }
        //= RFC 9293 section 3.10.1
        //# Return "error: connection already exists".
        if self.table.find(&flow).is_some() || self.requests.find(&flow).is_some() {
            return Err(CallError::Exists);
        }
        let iss = initial_seq(&self.keys.isn, &flow, now);
        let ts_offset = self.keys.stamps.strong(flow.words()) as u32;
        let connection = Connection::open(&flow, &mut self.shared.env(now), iss, ts_offset);
        let number = self.occupy(&flow, connection).ok_or(CallError::NoRoom)?;
        self.make_ready(number);
        self.settle(number, now, None);
        Ok(self.id(number))
    }

    /// SEND of bytes of the application's own: how many were taken.
    ///
    /// # Errors
    /// Why nothing can be sent.
    pub fn write(&mut self, id: ConnectionId, bytes: &[u8], now: Instant) -> Result<usize, CallError> {
        self.write_from(id, bytes.len(), now, &mut |at, room| {
            room.copy_from_slice(&bytes[at..at + room.len()]);
        })
    }

    /// The same with bytes that are elsewhere, `most` of them: `fill` copies those from the number on that it is given to the room that it is shown.
    ///
    /// # Errors
    /// Why nothing can be sent.
    pub fn write_from(
        &mut self,
        id: ConnectionId,
        most: usize,
        now: Instant,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<usize, CallError> {
        self.may_send(id)?;
        let taken =
            self.with(id.number, now, |connection, env| connection.write(env, most, fill)).unwrap_or(0);
        if taken > 0 {
            self.make_ready(id.number);
            self.settle(id.number, now, None);
        }
        Ok(taken)
    }

    /// SEND of a range of a leased extent.
    ///
    /// # Errors
    /// Why not, and the lease back.
    pub fn send_extent(
        &mut self,
        id: ConnectionId,
        lease: Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Result<(), (CallError, Lease)> {
        self.send_lease(id, lease, now, |connection, env, lease| connection.send_extent(env, lease, range))
    }

    /// The same with a lease that is not given back before the bytes are acknowledged, also while the peer does not read: it is never wanted again.
    ///
    /// # Errors
    /// As [`Stack::send_extent`].
    pub fn send_held(
        &mut self,
        id: ConnectionId,
        lease: Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Result<(), (CallError, Lease)> {
        self.send_lease(id, lease, now, |connection, env, lease| connection.send_held(env, lease, range))
    }

    /// The same behind a head of up to [`HEAD_BYTES`](crate::send::HEAD_BYTES), which is copied: both or nothing.
    ///
    /// # Errors
    /// As [`Stack::send_extent`].
    pub fn send_framed(
        &mut self,
        id: ConnectionId,
        head: &[u8],
        lease: Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Result<(), (CallError, Lease)> {
        self.send_lease(id, lease, now, |connection, env, lease| {
            connection.send_framed(env, head, lease, range)
        })
    }

    fn send_lease(
        &mut self,
        id: ConnectionId,
        lease: Lease,
        now: Instant,
        send: impl FnOnce(&mut Connection, &mut Env<'_>, Lease) -> Result<(), (QueueRefusal, Lease)>,
    ) -> Result<(), (CallError, Lease)> {
        // A closure that may not run cannot hand the lease back: it is looked up first.
        if let Err(error) = self.may_send(id) {
            return Err((error, lease));
        }
        match self.with(id.number, now, |connection, env| send(connection, env, lease)) {
            Some(Err((QueueRefusal::Full, lease))) => return Err((CallError::NoRoom, lease)),
            Some(Err((QueueRefusal::Unfit, lease))) => return Err((CallError::Unfit, lease)),
            _ => {}
        }
        self.make_ready(id.number);
        self.settle(id.number, now, None);
        Ok(())
    }

    /// SEND of bytes of the application's own, all of `parts` one behind the other, or nothing.
    ///
    /// # Errors
    /// Why nothing can be sent; [`CallError::NoRoom`]: not now.
    pub fn write_whole(&mut self, id: ConnectionId, parts: &[&[u8]], now: Instant) -> Result<(), CallError> {
        self.may_send(id)?;
        if !self.with(id.number, now, |connection, env| connection.write_whole(env, parts)).unwrap_or(false) {
            return Err(CallError::NoRoom);
        }
        self.make_ready(id.number);
        self.settle(id.number, now, None);
        Ok(())
    }

    /// Ranges of area `number` are in this memory from now on; `None`: there is none. To be called only while no connection has any to send.
    pub fn set_area(&mut self, number: u16, area: Option<Area>) {
        self.shared.store.set_area(number, area);
    }

    /// SEND of a range of an area. Its bytes are not to be changed until they are acknowledged or kept ([`Stack::keep_areas`]), or the peer may get others.
    ///
    /// # Errors
    /// Why nothing can be sent.
    pub fn send_area(
        &mut self,
        id: ConnectionId,
        area: u16,
        at: u32,
        bytes: u32,
        now: Instant,
    ) -> Result<(), CallError> {
        self.may_send(id)?;
        match self.with(id.number, now, |connection, env| connection.send_area(env, area, at, bytes)) {
            Some(Err(QueueRefusal::Full)) => return Err(CallError::NoRoom),
            Some(Err(QueueRefusal::Unfit)) => return Err(CallError::Unfit),
            _ => {}
        }
        self.make_ready(id.number);
        self.settle(id.number, now, None);
        Ok(())
    }

    /// Copies the data that a connection has still to send from areas into pages, as far as three
    /// quarters of the pages are free. Returns false if some of it is still in an area.
    pub fn keep_areas(&mut self, id: ConnectionId, now: Instant) -> bool {
        self.connection(id).is_none() || self.with(id.number, now, Connection::keep_areas).unwrap_or(true)
    }

    fn may_send(&self, id: ConnectionId) -> Result<(), CallError> {
        match self.connection(id).ok_or(CallError::NoConnection)? {
            connection if connection.may_send() => Ok(()),
            connection if connection.state() == ConnectionState::Closed => Err(CallError::NoConnection),
            _ => Err(CallError::Closing),
        }
    }

    /// RECEIVE: copies data that came in order into `to`. Returns 0 if nothing is there, or (after
    /// [`Happened::PEER_CLOSED`]) nothing will be.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn read(&mut self, id: ConnectionId, to: &mut [u8], now: Instant) -> Result<usize, CallError> {
        let mut at = 0;
        self.read_to(id, to.len(), now, &mut |bytes| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
    }

    /// The same with bytes that go elsewhere: `take` is shown up to `most` of them, piece by piece.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn read_to(
        &mut self,
        id: ConnectionId,
        most: usize,
        now: Instant,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, CallError> {
        self.connection(id).ok_or(CallError::NoConnection)?;
        let bytes =
            self.with(id.number, now, |connection, env| connection.read(env, most, take)).unwrap_or(0);
        if bytes > 0 {
            self.make_ready(id.number);
            self.settle(id.number, now, None);
        }
        Ok(bytes)
    }

    /// CLOSE: nothing more will be sent; data from the peer can still be read.
    ///
    /// # Errors
    /// There is no such connection, or it was closed already.
    pub fn close(&mut self, id: ConnectionId, now: Instant) -> Result<(), CallError> {
        self.connection(id).ok_or(CallError::NoConnection)?;
        let is_first = self.with(id.number, now, Connection::close).unwrap_or(false);
        self.make_ready(id.number);
        self.settle(id.number, now, None);
        if is_first { Ok(()) } else { Err(CallError::Closing) }
    }

    /// ABORT: notifies the peer by a reset.
    pub fn abort(&mut self, id: ConnectionId, now: Instant) {
        if self.connection(id).is_some() {
            self.abort_number(id.number, now);
        }
    }

    fn abort_number(&mut self, number: u32, now: Instant) {
        let flow = self.table.flow(number).copied();
        let reset =
            self.with(number, now, |connection, env| connection.abort(env, Reason::Aborted)).flatten();
        if let (Some(flow), Some(head)) = (flow, reset) {
            self.reply(Reply { flow, head });
        }
        self.settle(number, now, None);
    }

    /// Releases a connection's number, which the application does not need any more. A connection
    /// that is not closed yet closes by itself; with data left that will not be read, it is reset
    /// (RFC 9293 section 3.6.1).
    pub fn release(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connection(id) else { return };
        let loses_data = connection.unread_bytes() > 0;
        if loses_data && !matches!(connection.state(), ConnectionState::Closed | ConnectionState::TimeWait) {
            self.abort_number(id.number, now);
        }
        self.with(id.number, now, |connection, env| {
            connection.marks_mut().insert(Marks::ORPHAN);
            if connection.may_send() {
                connection.close(env);
            }
        });
        self.make_ready(id.number);
        self.settle(id.number, now, None);
    }

    /// STATUS.
    pub fn state(&self, id: ConnectionId) -> ConnectionState {
        self.connection(id).map_or(ConnectionState::Closed, Connection::state)
    }

    /// STATUS in full, of the connection that has this number now, if there is one; numbers are below [`Stack::capacity`].
    pub fn info(&self, number: u32, now: Instant) -> Option<(ConnectionId, Info)> {
        let connection = self.slots.get(number as usize)?.connection.as_ref()?;
        Some((self.id(number), connection.info(now)))
    }

    /// The two ends of a connection that is not closed, the local one first.
    pub fn ends(&self, id: ConnectionId) -> Option<(SocketAddr, SocketAddr)> {
        self.connection(id)?;
        self.table.flow(id.number).map(|flow| (flow.local(), flow.remote()))
    }

    /// Bytes queued and not acknowledged.
    pub fn unacked_bytes(&self, id: ConnectionId) -> u32 {
        self.connection(id).map_or(0, Connection::unacked_bytes)
    }

    /// Returns the bytes queued and never sent: those that the windows have held back until now.
    pub fn unsent_bytes(&self, id: ConnectionId) -> u32 {
        self.connection(id).map_or(0, Connection::unsent_bytes)
    }

    /// Bytes up to the end of the urgent data that are not read.
    pub fn urgent_bytes(&self, id: ConnectionId) -> u32 {
        self.connection(id).map_or(0, Connection::urgent_bytes)
    }

    /// Marks everything queued until now as urgent (RFC 9293 section 3.8.5).
    pub fn mark_urgent(&mut self, id: ConnectionId) {
        if self.connection(id).is_some() {
            self.with(id.number, Instant(0), |connection, _| connection.mark_urgent());
        }
    }

    /// Whose a connection is, for an application that shares the stack out among others: it is counted there until it is over, also when it was
    /// released. A new one is of group 0.
    pub fn set_group(&mut self, id: ConnectionId, group: u8) {
        let Some(connection) = self.connection(id) else { return };
        self.shares.give(connection.group());
        self.shares.take(group);
        self.with(id.number, Instant(0), |connection, _| connection.set_group(group));
    }

    //= RFC 9293 section 3.8.4
    //# If
    //# keep-alives are included, the application MUST be able to turn them
    //# on or off for each TCP connection (MUST-24), and they MUST default to
    //# off (MUST-25).
    /// Turns keep-alive on or off.
    pub fn keep_alive(&mut self, id: ConnectionId, on: bool, now: Instant) {
        self.set_mark(id, Marks::KEEP_ALIVE, on, now);
    }

    //= RFC 9293 section 3.8.3
    //# An application MUST (MUST-21) be able to set the value for R2
    //# for a particular connection.
    /// Sets how long data of this connection may stay unacknowledged, instead of
    /// [`Config::user_timeout_ns`]. The value that a peer requests ([`Config::takes_user_timeout`])
    /// still overrides it.
    ///
    /// [`Config::user_timeout_ns`]: crate::conn::Config::user_timeout_ns
    /// [`Config::takes_user_timeout`]: crate::conn::Config::takes_user_timeout
    pub fn user_timeout(&mut self, id: ConnectionId, timeout_ns: u64, now: Instant) {
        if self.connection(id).is_some() {
            self.with(id.number, now, |connection, _| connection.set_user_timeout(timeout_ns));
            self.settle(id.number, now, None);
        }
    }

    /// Turns Nagle's algorithm on or off.
    pub fn nagle(&mut self, id: ConnectionId, on: bool, now: Instant) {
        self.set_mark(id, Marks::NAGLE, on, now);
    }

    /// Makes a segment that is not full wait for more, or for the persist timer; without the cork,
    /// waiting data goes as Nagle's algorithm allows.
    pub fn cork(&mut self, id: ConnectionId, on: bool, now: Instant) {
        self.set_mark(id, Marks::CORKED, on, now);
    }

    fn set_mark(&mut self, id: ConnectionId, mark: Marks, on: bool, now: Instant) {
        if self.connection(id).is_some() {
            self.with(id.number, now, |connection, _| connection.marks_mut().set(mark, on));
            self.make_ready(id.number);
            self.settle(id.number, now, None);
        }
    }

    /// An extent that was wanted ([`Stack::poll_wanted`]) is here: whether anything of it was still wanted.
    pub fn supply(&mut self, id: ConnectionId, lease: &Lease, now: Instant) -> bool {
        if self.connection(id).is_none() {
            return false;
        }
        let used =
            self.with(id.number, now, |connection, env| connection.supply(env, lease)).unwrap_or(false);
        self.make_ready(id.number);
        self.settle(id.number, now, None);
        used
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        while let Some(number) = self.told.pop_front() {
            let id = self.id(number);
            let Some(slot) = self.slots.get_mut(number as usize) else { continue };
            slot.left_told();
            let Some(connection) = slot.connection.as_mut() else { continue };
            let (happened, reason) = (connection.take_happened(), connection.reason());
            let listener = connection.listener();
            let first = connection.unseen_of();
            connection.marks_mut().remove(Marks::UNSEEN);
            if let Some(listener) = first {
                self.seen(listener);
            }
            if happened != Happened::default() {
                return Some(ConnectionEvent { connection: id, happened, reason, listener });
            }
        }
        None
    }

    /// The next extent that is needed again, if there is one.
    pub fn poll_wanted(&mut self) -> Option<WantedExtent> {
        while let Some(wanted) = self.wanted.pop_front() {
            if self.connection(wanted.connection).is_some() {
                return Some(wanted);
            }
        }
        None
    }
}

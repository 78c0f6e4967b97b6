//! Lines whose writes belong to the loop that turns the engine: it gives the stack ranges of leased extents, straight from where the packets lie.
//!
//! ```text
//!   the bytes of a line    host's (area) │ loop's (extents, replies) │ host's
//!                          until `lend`  │ until `take_back`         │
//! ```
//!
//! The host still accepts, reads and closes. A send request of the host in the meantime is invalid.
//! Its count of acknowledged bytes covers only its own bytes. A connection that its host closes, or
//! that breaks, no longer belongs to the loop: the loop is notified
//! ([`LoopConnectionEvent::Gone`]), and data it gives after this reaches no peer.

use millrace_core::ids::ConnId;
use millrace_core::limits::MAX_CONN_PENDING_BYTES;
use millrace_core::limits::egress::TCP_NOT_SENT_BYTES;
use millrace_core::pool::Lease;
use millrace_core::time::Instant;
use millrace_tcp::conn::{ConnectionState, Reason};
use millrace_tcp::send::ExtentRange;
use millrace_tcp::stack::{CallError, Stack, WantedExtent};

use super::{Core, NONE, SocketConnection, SocketId, SocketUse};
use crate::engine_socket::EngineSocket;
use crate::limits::{LOW_DESCRIPTORS, PENDING_SHARE_BYTES};

/// Bytes of a connection that may wait for their first transmission: the same limit as for a loop's
/// connections of the kernel.
const NOT_SENT_BYTES: u32 = TCP_NOT_SENT_BYTES as u32;

/// The fraction of the pages reserved for replies: one in `RESERVE`.
const RESERVE: u32 = 16;

/// A connection that the loop writes to, by the name that the loop gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::toe) struct LoopConnection {
    pub(in crate::toe) socket: SocketId,
    pub(in crate::toe) conn: ConnId,
}

/// An event of a connection that the loop writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::toe) enum LoopConnectionEvent {
    /// It has refused something, and takes some again.
    Writable(ConnId),
    /// It is over, by this errno; 0: its host has closed it.
    Gone(ConnId, i32),
}

/// The answer of a connection to data given to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::toe) enum Given {
    /// It goes out.
    Taken,
    /// There is no room now; [`LoopConnectionEvent::Writable`] follows.
    Full,
    /// The data cannot be sent from where it lies: it must be copied.
    Unfit,
    /// The line is over.
    Gone(i32),
}

/// State of a connection while the loop writes to it.
pub(super) struct LoopWriteState {
    conn: ConnId,
    /// Bytes of loops in the stack when it was lent: those of the host lie before them.
    before: u64,
    /// Control bytes that may not be acknowledged, and behind how many bytes the last of them stands.
    control: u32,
    control_end: u64,
    /// Something was refused.
    is_full: bool,
    is_gone: bool,
}

impl SocketConnection {
    /// Bytes that the peer has acknowledged, the host's and the loop's.
    fn acked(&self, stack: &Stack) -> u64 {
        let all = self.taken + self.foreign;
        all - u64::from(stack.unacked_bytes(self.id)).min(all)
    }

    /// Bytes of the host that the peer has acknowledged; never more, and exact when nothing of a loop before the host's last byte is under way.
    pub(super) fn own_acked(&mut self, stack: &Stack) -> u64 {
        let others = self.lent.as_ref().map_or(self.foreign, |lent| lent.before);
        let acked = self.acked(stack).saturating_sub(others).min(self.taken);
        self.mirrored = self.mirrored.max(acked);
        self.mirrored
    }

    /// Whether the loop may give something: the host's bytes go first, and not too much waits.
    fn takes(&self, stack: &Stack, waiting: u32, unacked: u32) -> bool {
        self.first == NONE && stack.unsent_bytes(self.id) < waiting && stack.unacked_bytes(self.id) < unacked
    }

    /// Why it is of no use to the loop.
    fn over(&self) -> Option<i32> {
        if let Some(reason) = self.closed {
            return Some(errno_of(reason));
        }
        self.closing.map(|is_reset| if is_reset { libc::ECONNABORTED } else { 0 })
    }
}

/// Whether the stack has descriptors for a burst.
fn has_descriptors(stack: &Stack) -> bool {
    let store = stack.store();
    let all = store.used() + store.free_descriptors();
    store.free_descriptors() >= LOW_DESCRIPTORS.min(all / 2)
}

fn errno_of(reason: Reason) -> i32 {
    match reason {
        Reason::Finished => libc::EPIPE,
        Reason::Reset => libc::ECONNRESET,
        Reason::Refused => libc::ECONNREFUSED,
        Reason::Unreachable => libc::EHOSTUNREACH,
        Reason::TimedOut | Reason::Silent => libc::ETIMEDOUT,
        Reason::Aborted | Reason::Forgotten => libc::ECONNABORTED,
    }
}

impl Core {
    /// Gives the writes of a connection to the loop from now on, after everything that its host has
    /// requested until now.
    ///
    /// # Errors
    /// As an errno: there is no such connection, it is over, or it already has a writer.
    pub(in crate::toe) fn lend(
        &mut self,
        name: EngineSocket,
        conn: ConnId,
        now: Instant,
    ) -> Result<LoopConnection, i32> {
        if name.engine != self.number {
            return Err(libc::EBADF);
        }
        // Requests that the host made before the loop was notified are in its ring.
        self.take_all_requests(name.pair, now);
        let socket = (name.pair, name.socket);
        let place = self.pairs.get_mut(usize::from(name.pair));
        let place = place.and_then(|pair| pair.places.get_mut(name.socket as usize)).ok_or(libc::EBADF)?;
        let is_it = place.generation == name.generation;
        let SocketUse::Line(line) = &mut place.what else { return Err(libc::EBADF) };
        if !is_it {
            return Err(libc::EBADF);
        }
        if let Some(errno) = line.over() {
            return Err(errno);
        }
        if line.lent.is_some() {
            return Err(libc::EBUSY);
        }
        if line.is_shut || self.stack.state(line.id) < ConnectionState::Established {
            return Err(libc::ENOTCONN);
        }
        let (before, id) = (line.foreign, line.id);
        let lent =
            LoopWriteState { conn, before, control: 0, control_end: 0, is_full: false, is_gone: false };
        line.lent = Some(lent);
        // Frames leave in bursts already; waiting for more would only add delay (RFC 1122 section 4.2.3.4).
        self.stack.nagle(id, false, now);
        // A reply of the loop goes after the data that the host has just written, however much of
        // it waits, without delay until the next turn.
        self.move_ahead(socket, u32::MAX, now);
        self.make_dirty(socket);
        Ok(LoopConnection { socket, conn })
    }

    /// Lets the host write again, after the data that the loop has given. Does nothing if the
    /// connection is over.
    pub(in crate::toe) fn take_back(&mut self, way: LoopConnection) {
        // The name is used again: pending news must not be reported for the next connection.
        self.news
            .retain(|news| !matches!(news, LoopConnectionEvent::Writable(conn) | LoopConnectionEvent::Gone(conn, _) if *conn == way.conn));
        if self.lent(way).is_some() {
            if let Some(line) = self.pair(way.socket.0).line(way.socket.1) {
                line.lent = None;
            }
            self.make_dirty(way.socket);
        }
    }

    fn lent(&mut self, way: LoopConnection) -> Option<&mut SocketConnection> {
        let line = self.pair(way.socket.0).line(way.socket.1)?;
        line.lent.as_ref().is_some_and(|lent| lent.conn == way.conn).then_some(line)
    }

    /// Gives the stack something of `bytes` bytes, if the line has room.
    fn give(
        &mut self,
        way: LoopConnection,
        bytes: usize,
        send: impl FnOnce(&mut Stack, millrace_tcp::stack::ConnectionId) -> Result<(), CallError>,
    ) -> Given {
        let (pair, number) = way.socket;
        let Self { stack, pairs, short, .. } = self;
        let place = &mut pairs[usize::from(pair)].places[number as usize];
        let line = match &mut place.what {
            SocketUse::Line(line) if line.lent.as_ref().is_some_and(|lent| lent.conn == way.conn) => line,
            _ => return Given::Gone(0),
        };
        if let Some(errno) = line.over() {
            return Given::Gone(errno);
        }
        let given = match line.takes(stack, NOT_SENT_BYTES, PENDING_SHARE_BYTES) {
            false => Err(None),
            true => send(stack, line.id).map_err(Some),
        };
        match given {
            Ok(()) => {
                line.foreign += bytes as u64;
                return Given::Taken;
            }
            Err(Some(CallError::Unfit)) => return Given::Unfit,
            Err(Some(CallError::NoRoom)) => {
                // Others have all there is: nothing of this line's own may ever make room.
                if !std::mem::replace(&mut place.is_short, true) {
                    short.push_back(way.socket);
                }
            }
            Err(Some(_)) => return Given::Gone(libc::EPIPE),
            Err(None) => {}
        }
        if let Some(lent) = &mut line.lent {
            lent.is_full = true;
        }
        Given::Full
    }

    /// A frame: a head of up to 16 bytes, and a range behind it.
    pub(in crate::toe) fn give_framed(
        &mut self,
        way: LoopConnection,
        head: &[u8],
        lease: &Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Given {
        self.give(way, head.len() + range.bytes as usize, |stack, id| {
            stack.send_framed(id, head, lease.clone(), range, now).map_err(|(error, _)| error)
        })
    }

    /// A range with nothing around it.
    pub(in crate::toe) fn give_range(
        &mut self,
        way: LoopConnection,
        lease: &Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Given {
        self.give(way, range.bytes as usize, |stack, id| {
            stack.send_extent(id, lease.clone(), range, now).map_err(|(error, _)| error)
        })
    }

    /// Bytes that are copied, all of them or none.
    pub(in crate::toe) fn give_copied(
        &mut self,
        way: LoopConnection,
        parts: &[&[u8]],
        now: Instant,
    ) -> Given {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let reserve = self.reserve_pages();
        self.give(way, bytes, |stack, id| {
            if stack.store().free_host_pages() <= reserve {
                return Err(CallError::NoRoom);
            }
            stack.write_whole(id, parts, now)
        })
    }

    /// Writes control bytes: they go after the data already given, however much waits there.
    ///
    /// # Errors
    /// As an errno: the line is over, or too many control bytes are not acknowledged.
    pub(in crate::toe) fn give_control(
        &mut self,
        way: LoopConnection,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), i32> {
        let (pair, number) = way.socket;
        let Self { stack, pairs, .. } = self;
        let Some(line) = pairs[usize::from(pair)].line(number) else { return Err(0) };
        if let Some(errno) = line.over() {
            return Err(errno);
        }
        let acked = line.acked(stack);
        let Some(lent) = line.lent.as_mut().filter(|lent| lent.conn == way.conn) else { return Err(0) };
        if acked >= lent.control_end {
            lent.control = 0;
        }
        let control = lent.control as usize + bytes.len();
        // Those of the host that the stack has not taken are too many by themselves.
        if control > MAX_CONN_PENDING_BYTES || line.first != NONE {
            return Err(libc::ENOBUFS);
        }
        stack.write_whole(line.id, &[bytes], now).map_err(|error| match error {
            CallError::NoRoom => libc::ENOBUFS,
            _ => libc::EPIPE,
        })?;
        line.foreign += bytes.len() as u64;
        (lent.control, lent.control_end) = (control as u32, line.taken + line.foreign);
        Ok(())
    }

    /// Bytes that were given and that the peer has not acknowledged; `None`: the line is over.
    pub(in crate::toe) fn backlog_bytes(&self, way: LoopConnection) -> Option<u64> {
        match &self.pairs[usize::from(way.socket.0)].places[way.socket.1 as usize].what {
            SocketUse::Line(line) if line.lent.as_ref().is_some_and(|lent| lent.conn == way.conn) => {
                Some(u64::from(self.stack.unacked_bytes(line.id)))
            }
            _ => None,
        }
    }

    /// Returns whether there is something to report, or to request.
    pub(in crate::toe) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// What happened next.
    pub(in crate::toe) fn poll_news(&mut self) -> Option<LoopConnectionEvent> {
        self.news.pop_front()
    }

    /// An extent that a connection gave back while its peer did not read, and needs again.
    pub(in crate::toe) fn poll_wanted(&mut self) -> Option<WantedExtent> {
        self.stack.poll_wanted()
    }

    /// Takes the answer. Without the extent the bytes are unavailable: the connection is aborted.
    pub(in crate::toe) fn supply(&mut self, wanted: &WantedExtent, lease: Option<&Lease>, now: Instant) {
        let is_supplied = lease.is_some_and(|lease| self.stack.supply(wanted.connection, lease, now));
        if !is_supplied {
            self.stack.abort(wanted.connection, now);
        }
    }

    /// Reports the changes of a connection to its loop.
    pub(super) fn tell_loop(&mut self, (pair, socket): SocketId) {
        let Self { stack, pairs, news, .. } = self;
        let Some(line) = pairs[usize::from(pair)].line(socket) else { return };
        let over = line.over();
        let has_room =
            line.takes(stack, NOT_SENT_BYTES / 2, PENDING_SHARE_BYTES / 2) && has_descriptors(stack);
        let Some(lent) = &mut line.lent else { return };
        if let Some(errno) = over {
            if !std::mem::replace(&mut lent.is_gone, true) {
                news.push_back(LoopConnectionEvent::Gone(lent.conn, errno));
            }
        } else if lent.is_full && has_room {
            lent.is_full = false;
            news.push_back(LoopConnectionEvent::Writable(lent.conn));
        }
    }

    /// Returns the number of pages reserved for replies: a viewer is answered however much the
    /// others have in flight.
    fn reserve_pages(&self) -> u32 {
        self.host_pages / RESERVE
    }
}

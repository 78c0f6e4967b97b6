//! Connections of an engine with its own thread, written by a loop: the loop is the host of their
//! queue pair, and gives ranges of leased extents by request, as any host may. Writes never wait; a
//! full connection is reported when it takes data again.
//!
//! ```text
//!   loop ──► EngineTx ──► QueuePairAccess ══ requests, ranges of extents ══► engine's thread ─► stack ─► device
//!                              ◄═ counts, events ═══════════════
//! ```
//!
//! Nothing is read here: data from peers is discarded.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use millrace_core::ids::ConnId;
use millrace_core::limits::MAX_CONN_PENDING_BYTES;
use millrace_core::pool::Lease;
use millrace_tcp::send::ExtentRange;

use super::engine::{Given, LoopConnection, LoopConnectionEvent};
use super::host::Sockets;
use super::record::Fault;
use crate::engine_socket::EngineSocket;

/// A connection that the loop writes to.
#[derive(Clone, Copy)]
struct QueuePairConnection {
    conn: ConnId,
    /// It has refused something.
    is_full: bool,
    is_gone: bool,
}

/// See the module.
pub(super) struct QueuePairAccess {
    sockets: Sockets,
    lent: Box<[Option<QueuePairConnection>]>,
    news: VecDeque<LoopConnectionEvent>,
}

impl Drop for QueuePairAccess {
    fn drop(&mut self) {
        self.sockets.close_all();
    }
}

fn errno_of(fault: Option<Fault>) -> i32 {
    match fault {
        Some(Fault::Reset) => libc::ECONNRESET,
        Some(Fault::TimedOut) => libc::ETIMEDOUT,
        Some(Fault::Unreachable) => libc::EHOSTUNREACH,
        Some(Fault::Refused) => libc::ECONNREFUSED,
        Some(Fault::Aborted) => libc::ECONNABORTED,
        _ => libc::EPIPE,
    }
}

impl QueuePairAccess {
    /// # Errors
    /// An engine of another process, which takes no extents; an area too small for the data a
    /// connection may be given at once.
    pub(super) fn new(sockets: Sockets) -> io::Result<Self> {
        let settings = sockets.settings()?;
        let area = u64::from(settings.send_bytes) * u64::from(settings.send_buffers);
        if area < 2 * MAX_CONN_PENDING_BYTES as u64 {
            let text = format!(
                "an area of {area} bytes to send from: choose send_buffers and send_bytes so that a loop has {} at least",
                2 * MAX_CONN_PENDING_BYTES
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let count = settings.sockets as usize;
        let (lent, news) = ((0..count).map(|_| None).collect(), VecDeque::with_capacity(2 * count));
        Ok(Self { sockets, lent, news })
    }

    /// Readable when the engine has something to report. Request this whenever the loop is about to
    /// sleep: events that have arrived by then are found by [`QueuePairAccess::has_events`], and no ring that
    /// is still in flight wakes it twice.
    pub(super) fn readable(&self) -> BorrowedFd<'_> {
        self.sockets.await_events();
        self.sockets.readiness()
    }

    /// Whether the engine has something to tell.
    pub(super) fn has_events(&self) -> bool {
        self.sockets.has_events() || self.sockets.is_stopped()
    }

    /// Whether there is something for [`QueuePairAccess::poll_news`] or [`QueuePairAccess::arrive`].
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty() || self.has_events()
    }

    /// Takes in the engine's events.
    ///
    /// # Errors
    /// There is no engine any more.
    pub(super) fn arrive(&mut self) -> Result<(), String> {
        if !self.has_events() {
            return Ok(());
        }
        if self.sockets.is_stopped() {
            return Err("its thread has ended".into());
        }
        self.sockets.hear();
        while let Some(socket) = self.sockets.take_news() {
            self.attend(socket);
        }
        // A chunk or an extent that came back may be anybody's.
        for socket in 0..self.lent.len() as u32 {
            self.look_for_room(socket);
        }
        Ok(())
    }

    /// Looks at a socket with something new.
    fn attend(&mut self, socket: u32) {
        self.sockets.throw_away(socket);
        let fault = self.sockets.ready(socket).fault;
        if let (Some(lent), Some(fault)) = (&mut self.lent[socket as usize], fault)
            && !std::mem::replace(&mut lent.is_gone, true)
        {
            self.news.push_back(LoopConnectionEvent::Gone(lent.conn, errno_of(Some(fault))));
        }
    }

    fn look_for_room(&mut self, socket: u32) {
        let Some(lent) = self.lent[socket as usize].as_mut().filter(|lent| lent.is_full && !lent.is_gone)
        else {
            return;
        };
        // A failure is reported by its event.
        if self.sockets.takes(socket, 1).unwrap_or(false) {
            lent.is_full = false;
            self.news.push_back(LoopConnectionEvent::Writable(lent.conn));
        }
    }

    pub(super) fn poll_news(&mut self) -> Option<LoopConnectionEvent> {
        self.news.pop_front()
    }

    /// Passes the requests to the engine. Returns the work done: none that keeps a loop from
    /// sleeping.
    pub(super) fn depart(&mut self) -> usize {
        self.sockets.give_back_all();
        self.sockets.flush();
        0
    }

    /// # Errors
    /// As an errno: there is no such connection, it is over, or the loop writes to it already.
    pub(super) fn lend(&mut self, name: EngineSocket, conn: ConnId) -> Result<LoopConnection, i32> {
        let socket = name.socket;
        let place = self.lent.get_mut(socket as usize).ok_or(libc::EBADF)?;
        if self.sockets.engine_socket(socket) != name || self.sockets.ends(socket).is_none() {
            return Err(libc::EBADF);
        }
        if let Some(fault) = self.sockets.ready(socket).fault {
            return Err(errno_of(Some(fault)));
        }
        if place.is_some() {
            return Err(libc::EBUSY);
        }
        *place = Some(QueuePairConnection { conn, is_full: false, is_gone: false });
        // Frames leave in bursts already. Without an engine the loop is notified in its next turn.
        let _ = self.sockets.set_nodelay(socket, true);
        Ok(LoopConnection { socket: (name.pair, socket), conn })
    }

    /// The connection has no owner any more: closes it, after the data queued on it.
    pub(super) fn take_back(&mut self, way: LoopConnection) {
        self.news
            .retain(|news| !matches!(news, LoopConnectionEvent::Writable(conn) | LoopConnectionEvent::Gone(conn, _) if *conn == way.conn));
        if self.lent(way).is_some() {
            self.lent[way.socket.1 as usize] = None;
            self.sockets.close(way.socket.1, false);
        }
    }

    fn lent(&mut self, way: LoopConnection) -> Option<&mut QueuePairConnection> {
        self.lent.get_mut(way.socket.1 as usize)?.as_mut().filter(|lent| lent.conn == way.conn)
    }

    /// Converts the outcome of a write.
    fn given(&mut self, way: LoopConnection, outcome: io::Result<Option<()>>) -> Given {
        let socket = way.socket.1;
        match outcome {
            Ok(Some(())) => Given::Taken,
            Ok(None) => {
                if let Some(lent) = self.lent(way) {
                    lent.is_full = true;
                }
                Given::Full
            }
            Err(_) if self.sockets.is_stopped() => Given::Gone(libc::ENETDOWN),
            Err(_) => Given::Gone(errno_of(self.sockets.ready(socket).fault)),
        }
    }

    /// A head, which may be empty, and a range behind it: both or none.
    pub(super) fn give_framed(
        &mut self,
        way: LoopConnection,
        head: &[u8],
        lease: &Lease,
        range: ExtentRange,
    ) -> Given {
        if self.lent(way).is_none() {
            return Given::Gone(0);
        }
        if !range.is_in(lease) {
            return Given::Unfit;
        }
        let outcome = self.sockets.write_framed(way.socket.1, head, lease, range);
        self.given(way, outcome)
    }

    /// Bytes that are copied, all of them or none.
    pub(super) fn give_copied(&mut self, way: LoopConnection, parts: &[&[u8]]) -> Given {
        if self.lent(way).is_none() {
            return Given::Gone(0);
        }
        let outcome = self.sockets.write_whole(way.socket.1, parts);
        self.given(way, outcome)
    }

    /// Writes control bytes: they go after the data already given, even if the connection is full.
    ///
    /// # Errors
    /// As an errno: the connection is over, or there is no room even for them.
    pub(super) fn give_control(&mut self, way: LoopConnection, bytes: &[u8]) -> Result<(), i32> {
        if self.lent(way).is_none() {
            return Err(0);
        }
        match self.sockets.write_control(way.socket.1, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(libc::ENOBUFS),
            Err(_) => Err(errno_of(self.sockets.ready(way.socket.1).fault)),
        }
    }

    /// Bytes that were given and that the peer has not acknowledged; `None`: the connection is over.
    pub(super) fn backlog_bytes(&self, way: LoopConnection) -> Option<u64> {
        let lent = self.lent.get(way.socket.1 as usize)?.as_ref()?;
        (lent.conn == way.conn).then(|| self.sockets.outstanding(way.socket.1))
    }

    /// Signals the end to all peers, after the data already given.
    pub(super) fn shut_all(&mut self) {
        self.sockets.close_all();
        self.lent.fill(None);
    }
}

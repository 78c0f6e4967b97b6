//! The egress path that a loop needs, as traits; and the paths of `millrace-netio` as such.
//!
//! | trait | holds |
//! | --- | --- |
//! | [`LoopTx`] | packets, and the work of each turn |
//! | [`LoopConnections`] | connections whose writes the path owns |
//! | [`LoopEngine`] | the offload engine behind it; [`WithoutEngine`] for a path that has none |

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::pool::Lease;
use millrace_core::seam::{Dest, PacketTx};
use millrace_core::time::Instant;
use millrace_netio::egress_select::{BestTx, XdpDevice};
use millrace_netio::{KernelTx, TxCounters};
use millrace_tcp::stack::WantedExtent;

use crate::command::ConnSocket;

/// An egress path: packets, and the work of each turn.
pub trait LoopTx: PacketTx + LoopConnections + LoopEngine + Send {
    /// Records that ICMP reports this address as unreachable: the next send to it gets this
    /// outcome.
    fn note_unreachable(&mut self, dest: SocketAddr, errno: i32);
    /// Returns whether packets taken for this destination are read until [`LoopTx::poll_done`]
    /// reports that they are not any more. A path that keeps leases of its own
    /// ([`millrace_core::seam::PayloadSource`]) need not.
    fn is_zero_copy(&self, dest: &Dest) -> bool;
    /// A stream, and how many of the packets that it has taken of it, from the first on, it no
    /// longer reads ([`millrace_engine::Engine::handle_done`]).
    fn poll_done(&mut self) -> Option<(StreamId, u64)>;
    /// The counters of its sockets.
    fn counters(&self) -> &TxCounters;
    /// Runs once a turn, before anything else: takes the packets that have arrived, takes back data
    /// the devices have finished with and takes in news. Returns whether something is still in
    /// flight, so that the loop must not sleep for long.
    fn tend(&mut self, now: Instant) -> bool;
}

/// Connections whose writes an egress path owns.
pub trait LoopConnections {
    /// Takes over the writes of a connection.
    ///
    /// # Errors
    /// The table is full, or it has no way to such a socket.
    fn add_conn(&mut self, conn: ConnId, socket: ConnSocket) -> Result<(), i32>;
    /// Queues control bytes at a frame boundary.
    ///
    /// # Errors
    /// As an errno: there is no such connection, it is broken, or too many bytes wait.
    fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), i32>;
    /// Gives a connection back once the kernel has taken all that it was given; `false`: there is
    /// none.
    fn return_conn(&mut self, conn: ConnId) -> bool;
    /// A connection that is given back.
    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)>;
    /// Gives up a connection.
    fn remove_conn(&mut self, conn: ConnId) -> Option<ConnSocket>;
    /// Once a turn: sends what full connections could not take before, where they can be written
    /// again; whether any has to be tried again by time.
    fn flush_conns(&mut self) -> bool;
    /// A connection that held packets back and can be written again, once for each time.
    fn poll_conn_writable(&mut self) -> Option<ConnId>;
    /// Readable when there is something for [`LoopConnections::flush_conns`]; `None` while no
    /// connection is full.
    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>>;
    /// A connection that broke, each once.
    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)>;
    /// Bytes that a connection was given and its peer has not acknowledged, if that is known.
    fn backlog_bytes(&self, conn: ConnId) -> Option<u64>;
}

/// The offload engine behind an egress path.
pub trait LoopEngine {
    /// Runs once a turn, after all sends: the data gathered leaves. Returns the work done by this
    /// and [`LoopTx::tend`], where it should keep the loop from sleeping.
    fn depart(&mut self, now: Instant) -> usize;
    /// Called when the loop exits: closes the connections that nothing else will close, after the
    /// data queued on them. Their owners wait for nothing more.
    fn shut_down(&mut self, now: Instant);
    /// When it has something to do even if nothing happens.
    fn next_due(&self, now: Instant) -> Option<Instant>;
    /// Readable when something has come in for [`LoopTx::tend`].
    fn incoming_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Returns whether a request is pending: the last check before the loop sleeps.
    fn is_asked(&self) -> bool;
    /// An extent that it gave back and needs again, to be answered by [`LoopEngine::supply`].
    fn poll_wanted(&mut self) -> Option<WantedExtent>;
    /// Supplies the extent, or reports that it is unavailable.
    fn supply(&mut self, now: Instant, wanted: &WantedExtent, lease: Option<Lease>);
}

/// An egress path with no offload engine behind it: its [`LoopEngine`] has no work and wants none.
pub trait WithoutEngine {}

impl<T: WithoutEngine> LoopEngine for T {
    fn depart(&mut self, _: Instant) -> usize {
        0
    }
    fn shut_down(&mut self, _: Instant) {}
    fn next_due(&self, _: Instant) -> Option<Instant> {
        None
    }
    fn incoming_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn is_asked(&self) -> bool {
        false
    }
    fn poll_wanted(&mut self) -> Option<WantedExtent> {
        None
    }
    fn supply(&mut self, _: Instant, _: &WantedExtent, _: Option<Lease>) {}
}

/// Stands for "the connection's backlog of control bytes is full" or "no such connection" in [`Event::ConnGone`](crate::command::Event::ConnGone).
pub const ERRNO_NO_BUFFERS: i32 = libc::ENOBUFS;

impl WithoutEngine for KernelTx {}

impl LoopConnections for KernelTx {
    fn add_conn(&mut self, conn: ConnId, socket: ConnSocket) -> Result<(), i32> {
        // A connection of an offload engine that this loop does not turn.
        let fd = socket.into_fd().ok_or(libc::EOPNOTSUPP)?;
        KernelTx::add_conn(self, conn, fd).map_err(|_| ERRNO_NO_BUFFERS)
    }
    fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), i32> {
        KernelTx::write_control(self, conn, bytes).map_err(|_| ERRNO_NO_BUFFERS)
    }
    fn return_conn(&mut self, conn: ConnId) -> bool {
        KernelTx::return_conn(self, conn)
    }
    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        KernelTx::poll_conn_returned(self).map(|(conn, fd)| (conn, fd.into()))
    }
    fn remove_conn(&mut self, conn: ConnId) -> Option<ConnSocket> {
        KernelTx::remove_conn(self, conn).map(ConnSocket::Kernel)
    }
    fn flush_conns(&mut self) -> bool {
        KernelTx::flush_conns(self)
    }
    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        KernelTx::poll_conn_writable(self)
    }
    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        KernelTx::full_conns_fd(self)
    }
    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        KernelTx::poll_conn_gone(self)
    }
    fn backlog_bytes(&self, conn: ConnId) -> Option<u64> {
        KernelTx::backlog_bytes(self, conn)
    }
}

impl LoopTx for KernelTx {
    fn note_unreachable(&mut self, dest: SocketAddr, errno: i32) {
        KernelTx::note_unreachable(self, dest, errno);
    }
    fn counters(&self) -> &TxCounters {
        KernelTx::counters(self)
    }
    fn tend(&mut self, _: Instant) -> bool {
        // Every send takes back the data that the kernel has sent.
        false
    }
    fn is_zero_copy(&self, _: &Dest) -> bool {
        false
    }
    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        None
    }
}

impl<K, D> WithoutEngine for BestTx<K, D> {}

impl<D: XdpDevice + Send> LoopConnections for BestTx<KernelTx, D> {
    fn add_conn(&mut self, conn: ConnId, socket: ConnSocket) -> Result<(), i32> {
        LoopConnections::add_conn(self.kernel_mut(), conn, socket)
    }
    fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), i32> {
        LoopConnections::write_control(self.kernel_mut(), conn, bytes)
    }
    fn return_conn(&mut self, conn: ConnId) -> bool {
        self.kernel_mut().return_conn(conn)
    }
    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        LoopConnections::poll_conn_returned(self.kernel_mut())
    }
    fn remove_conn(&mut self, conn: ConnId) -> Option<ConnSocket> {
        LoopConnections::remove_conn(self.kernel_mut(), conn)
    }
    fn flush_conns(&mut self) -> bool {
        self.kernel_mut().flush_conns()
    }
    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        self.kernel_mut().poll_conn_writable()
    }
    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel().full_conns_fd()
    }
    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        self.kernel_mut().poll_conn_gone()
    }
    fn backlog_bytes(&self, conn: ConnId) -> Option<u64> {
        self.kernel().backlog_bytes(conn)
    }
}

impl<D: XdpDevice + Send> LoopTx for BestTx<KernelTx, D> {
    fn note_unreachable(&mut self, dest: SocketAddr, errno: i32) {
        self.kernel_mut().note_unreachable(dest, errno);
    }
    fn counters(&self) -> &TxCounters {
        self.kernel().counters()
    }
    fn tend(&mut self, _: Instant) -> bool {
        BestTx::tend(self)
    }
    fn is_zero_copy(&self, _: &Dest) -> bool {
        // Kernel and devices keep leases of their own.
        false
    }
    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        None
    }
}

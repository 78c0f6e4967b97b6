//! A connection, as the standard library's `TcpStream` is one.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_core::pool::Lease;
use millrace_tcp::send::ExtentRange;

use super::handle::{Host, Until};
use super::waiters::Interest;
use crate::engine_socket::EngineSocket;
use crate::toe::record::Choice;

/// A connection. It stays on the thread of its [`Host`]; when dropped, it closes: written data is
/// still sent, and if some received data was not read the peer gets a reset.
///
/// Features of the standard library's that are missing here: `try_clone`, since a socket belongs to
/// one thread, where a reference reads and writes and an `Rc` is a clone; and `ttl`, since every
/// packet of an engine begins with 64. A time-out is [`io::ErrorKind::TimedOut`] here, where Linux
/// returns `WouldBlock`.
pub struct TcpStream {
    pub(super) host: Host,
    pub(super) socket: u32,
    pub(super) read_timeout: Cell<Option<Duration>>,
    write_timeout: Cell<Option<Duration>>,
    is_nonblocking: Cell<bool>,
    is_nodelay: Cell<bool>,
    linger: Cell<Option<Duration>>,
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = self.ends();
        f.debug_struct("TcpStream").field("local", &local).field("peer", &peer).finish()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let linger = self.linger.get();
        if let Some(limit) = linger.filter(|limit| !limit.is_zero()) {
            // It closes all the same, whatever becomes of the wait.
            let _ = self.host.with(|state| state.shut_write(self.socket));
            let _ = self.host.wait_for(Until::within(Some(limit)), |state| {
                Ok(state.is_flushed(self.socket)?.then_some(()))
            });
        }
        self.host.with(|state| state.close(self.socket, linger == Some(Duration::ZERO)));
    }
}

/// A time-out of 0 would be none at all.
fn not_zero(limit: Option<Duration>) -> io::Result<Option<Duration>> {
    if limit == Some(Duration::ZERO) {
        let text = "a time-out of 0: choose a longer one, or none";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(limit)
}

fn check_range(lease: &Lease, range: ExtentRange) -> io::Result<()> {
    if range.is_in(lease) {
        return Ok(());
    }
    let text = "the range lies outside the leased extent or has missing packets";
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

impl TcpStream {
    pub(super) fn new(host: &Host, socket: u32) -> Self {
        Self {
            host: host.clone(),
            socket,
            read_timeout: Cell::new(None),
            write_timeout: Cell::new(None),
            is_nonblocking: Cell::new(false),
            is_nodelay: Cell::new(false),
            linger: Cell::new(None),
        }
    }

    /// Connects, from an address and port that the engine chooses.
    ///
    /// # Errors
    /// There is no listener, the peer does not answer, the engine has no address of this family or
    /// no place left.
    pub fn connect(host: &Host, remote: SocketAddr) -> io::Result<Self> {
        Self::open(host, None, remote, None)
    }

    /// The same, but not longer than `limit`.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; the time is over.
    pub fn connect_timeout(host: &Host, remote: SocketAddr, limit: Duration) -> io::Result<Self> {
        Self::open(host, None, remote, not_zero(Some(limit))?)
    }

    /// Connects from an end that the caller chooses; its address may be unspecified, its port 0.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; there is such a connection.
    pub fn connect_from(host: &Host, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        Self::open(host, Some(local), remote, None)
    }

    fn open(
        host: &Host,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        let stream = Self::begin(host, local, remote)?;
        host.wait_for(Until::within(limit), |state| state.outcome(stream.socket))?;
        Ok(stream)
    }

    /// Begins to connect and does not wait: [`TcpStream::is_connected`] and
    /// [`TcpStream::poll_connected`] report the outcome.
    ///
    /// # Errors
    /// No socket is left on this host; the engine has stopped.
    pub fn begin(host: &Host, local: Option<SocketAddr>, remote: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match remote {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let socket = host.with(|state| state.connect(local.unwrap_or(any), remote))?;
        // Dropped, it gives the socket back, also if nothing comes of it.
        Ok(Self::new(host, socket))
    }

    /// Whether it is a connection; false: not yet.
    ///
    /// # Errors
    /// Why it is none: as [`TcpStream::connect`].
    pub fn is_connected(&self) -> io::Result<bool> {
        self.host.with(|state| state.outcome(self.socket)).map(|ends| ends.is_some())
    }

    /// The same for a task, which is woken when it is known.
    ///
    /// # Errors
    /// As [`TcpStream::is_connected`].
    pub fn poll_connected(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let outcome =
            self.host.poll_for(context, (self.socket, Interest::Write), |state| state.outcome(self.socket));
        outcome.map_ok(|_| ())
    }

    /// Ready when a read would not wait, also for the end or a failure; else the task is woken
    /// then. The caller must ensure that [`Host::arm`] is called when [`Host::readiness`] is
    /// readable, as `toe::tokio` does.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let interest = (self.socket, Interest::Read);
        self.host.poll_for(context, interest, |state| Ok(state.is_readable(self.socket).then_some(())))
    }

    /// The same for writing.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn poll_writable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let interest = (self.socket, Interest::Write);
        self.host.poll_for(context, interest, |state| Ok(state.is_writable(self.socket)?.then_some(())))
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        self.host.with(|state| state.ends(self.socket))
    }

    /// This end; before it is connected, the one that was asked for.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends().0)
    }

    /// The other end.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends().1)
    }

    /// Returns the name of this connection for the thread that turns the engine. A loop that
    /// received it ([`Command::ConnAdd`](crate::command::Command::ConnAdd)) writes to it from then
    /// on, and this only reads.
    pub fn engine_socket(&self) -> EngineSocket {
        self.host.with(|state| state.name(self.socket))
    }

    /// Copies received data and leaves it to be read again.
    ///
    /// # Errors
    /// As reading.
    pub fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
        self.receive(to, false)
    }

    fn receive(&self, to: &mut [u8], takes: bool) -> io::Result<usize> {
        let until = self.until(&self.read_timeout);
        self.host.wait_for(until, |state| state.read(self.socket, to, takes))
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let until = self.until(&self.write_timeout);
        self.host.wait_for(until, |state| state.write(self.socket, parts))
    }

    /// Sends a range of a leased extent after the data written, from where it lies: nothing is
    /// copied. It waits as a write does, for the connection's share, and then gives all of the
    /// range. The extent stays leased until the peer has acknowledged it or the connection is over.
    ///
    /// # Errors
    /// As writing; the range is not in the lease, or packets of it are missing; the engine is another process.
    pub fn send_extent(&self, lease: &Lease, range: ExtentRange) -> io::Result<()> {
        check_range(lease, range)?;
        let until = self.until(&self.write_timeout);
        self.host.wait_for(until, |state| state.write_extent(self.socket, lease, range))
    }

    /// Does the same for a task, which is woken when there is room: then all of the range is given.
    /// The caller must ensure that [`Host::arm`] is called when [`Host::readiness`] is readable, as
    /// `toe::tokio` does.
    ///
    /// # Errors
    /// As [`TcpStream::send_extent`].
    pub fn poll_send_extent(
        &self,
        context: &Context<'_>,
        lease: &Lease,
        range: ExtentRange,
    ) -> Poll<io::Result<()>> {
        check_range(lease, range)?;
        let interest = (self.socket, Interest::Write);
        self.host.poll_for(context, interest, |state| state.write_extent(self.socket, lease, range))
    }

    /// Bytes that were written and that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.host.with(|state| state.unacknowledged(self.socket))
    }

    pub(super) fn until(&self, limit: &Cell<Option<Duration>>) -> Until {
        if self.is_nonblocking.get() { Until::Now } else { Until::within(limit.get()) }
    }

    /// Ends reading, writing or both. After the last byte written the peer learns that nothing more
    /// will come. Received data can still be read.
    ///
    /// # Errors
    /// There is no connection any more; the engine has stopped.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.host.with(|state| {
            if how != Shutdown::Write {
                state.shut_read(self.socket);
            }
            if how != Shutdown::Read { state.shut_write(self.socket) } else { Ok(()) }
        })
    }

    /// How long a read waits; `None`: without end.
    ///
    /// # Errors
    /// A time-out of 0.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(not_zero(limit)?);
        Ok(())
    }

    /// How long a read waits.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.read_timeout.get())
    }

    /// How long a write waits.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.write_timeout.get())
    }

    /// Returns a failure that no call has reported yet. This counts as its report: then reads
    /// return the end, and writes fail as after a shutdown.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.host.with(|state| state.take_fault(self.socket)).map(io::Error::from))
    }

    /// Sets the effect of dropping this: `None` returns at once, and the data written is sent; a
    /// time waits that long for the peer to acknowledge all of it; 0 aborts the connection, as
    /// [`TcpStream::abort`] does.
    ///
    /// # Errors
    /// None; those of other sockets have one.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.linger.set(linger);
        Ok(())
    }

    /// As it was set.
    ///
    /// # Errors
    /// None; those of other sockets have one.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.linger.get())
    }

    /// How long a write waits until at least one byte is taken; `None`: without end.
    ///
    /// # Errors
    /// A time-out of 0.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.write_timeout.set(not_zero(limit)?);
        Ok(())
    }

    /// Sets whether calls wait, or return [`io::ErrorKind::WouldBlock`]; then [`Host::readiness`]
    /// shows when to try again.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.set(is_nonblocking);
        Ok(())
    }

    /// Whether short segments go at once, without Nagle's algorithm.
    ///
    /// # Errors
    /// There is no connection any more; the engine has stopped.
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        self.set(Choice::NoDelay, is_on)?;
        self.is_nodelay.set(is_on);
        Ok(())
    }

    /// As it was set.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.is_nodelay.get())
    }

    /// Whether it is looked now and then if the peer is still there.
    ///
    /// # Errors
    /// There is no connection any more; the engine has stopped.
    pub fn set_keepalive(&self, is_on: bool) -> io::Result<()> {
        self.set(Choice::KeepAlive, is_on)
    }

    fn set(&self, option: Choice, is_on: bool) -> io::Result<()> {
        self.host.with(|state| state.set(self.socket, option, is_on))?;
        self.host.wait_for(Until::Then(None), |state| state.take_done(self.socket))
    }

    /// Aborts the connection: the peer gets a reset, and data not sent yet is lost.
    pub fn abort(self) {
        self.host.with(|state| state.close(self.socket, true));
    }
}

impl Read for &TcpStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.receive(to, true)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for part in parts.iter_mut().filter(|part| !part.is_empty()) {
            // The first part waits; the others take the available data.
            let until = if done == 0 { self.until(&self.read_timeout) } else { Until::Now };
            match self.host.wait_for(until, |state| state.read(self.socket, part, true)) {
                Ok(bytes) => done += bytes,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            if done == 0 {
                break;
            }
        }
        Ok(done)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(parts)
    }

    /// Nothing is kept here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        (&*self).read(to)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(parts)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

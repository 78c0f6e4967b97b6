//! A listener, as the standard library's `TcpListener` is one.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use super::handle::{Host, Until};
use super::state::HostState;
use super::stream::TcpStream;
use super::waiters::Interest;
use crate::limits::DEFAULT_BACKLOG;

/// A listener. It stays on the thread of its [`Host`]; when dropped, it closes: connections not yet
/// accepted are reset.
pub struct TcpListener {
    host: Host,
    socket: u32,
    local: SocketAddr,
    is_nonblocking: Cell<bool>,
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local).finish()
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.host.with(|state| state.close(self.socket, false));
    }
}

impl TcpListener {
    /// Listens, with the backlog that the standard library takes. The address may be unspecified; for port 0 the engine chooses one.
    ///
    /// # Errors
    /// The address has a listener already, or is not of this engine.
    pub fn bind(host: &Host, local: SocketAddr) -> io::Result<Self> {
        Self::bind_with_backlog(host, local, DEFAULT_BACKLOG)
    }

    /// Does the same; at most `backlog` connections wait to be accepted, and further callers are
    /// not answered.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind_with_backlog(host: &Host, local: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::open(host, local, backlog, false)
    }

    /// The same where others listen too, on this host or on others, as with `SO_REUSEPORT`: all of them have to say so. A connection goes to one that waits
    /// in [`TcpListener::accept`], in turn if there are several, else to where the fewest wait. When one closes, those that wait there go on to
    /// the others as far as they have room, and are reset else.
    ///
    /// # Errors
    /// As [`TcpListener::bind`]; there is a listener that does not share.
    pub fn bind_shared(host: &Host, local: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::open(host, local, backlog, true)
    }

    fn open(host: &Host, local: SocketAddr, backlog: u32, is_shared: bool) -> io::Result<Self> {
        let socket = host.with(|state| state.listen(local, backlog, is_shared))?;
        // Dropped, it gives the socket back, also if nothing comes of it.
        let mut listener = Self { host: host.clone(), socket, local, is_nonblocking: Cell::new(false) };
        listener.local = host.wait_for(Until::Then(None), |state| state.outcome(socket))?.0;
        Ok(listener)
    }

    /// The next connection, and where it comes from.
    ///
    /// # Errors
    /// No socket is left on this host; the engine has stopped.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_until(if self.is_nonblocking.get() { Until::Now } else { Until::Then(None) })
    }

    /// The same, but not longer than `limit`.
    ///
    /// # Errors
    /// As [`TcpListener::accept`]; the time is over.
    pub fn accept_timeout(&self, limit: Duration) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_until(Until::within(Some(limit)))
    }

    fn accept_until(&self, until: Until) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, ends) = self.host.wait_for(until, |state| self.next(state))?;
        Ok((TcpStream::new(&self.host, socket), ends.1))
    }

    /// Returns the next connection, for a task: it is woken when there is one. The caller must
    /// ensure that [`Host::arm`] is called when [`Host::readiness`] is readable, as `toe::tokio`
    /// does.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn poll_accept(&self, context: &Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let next = self.host.poll_for(context, (self.socket, Interest::Read), |state| self.next(state));
        next.map_ok(|(socket, ends)| (TcpStream::new(&self.host, socket), ends.1))
    }

    fn next(&self, state: &mut HostState) -> io::Result<Option<(u32, (SocketAddr, SocketAddr))>> {
        state.ask_for_next(self.socket)?;
        let Some(next) = state.take_next(self.socket)? else { return Ok(None) };
        Ok(state.outcome(next)?.map(|ends| (next, ends)))
    }

    /// Connections without end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Returns a fault that occurred outside its calls: there never is one.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None; the standard library's has one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Sets whether [`TcpListener::accept`] waits, or returns [`io::ErrorKind::WouldBlock`]; then
    /// [`Host::readiness`] shows when to try again.
    ///
    /// # Errors
    /// The engine has stopped; no socket is left on this host.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.set(is_nonblocking);
        if is_nonblocking {
            // A connection is reported only when it has been requested.
            self.host.with(|state| state.ask_for_next(self.socket))?;
        }
        Ok(())
    }
}

/// Connections of a listener, without end.
#[derive(Debug)]
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

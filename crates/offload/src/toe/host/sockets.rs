//! A queue pair's sockets as numbers: no call waits, and the whole goes from thread to thread.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::pool::Lease;
use millrace_tcp::send::ExtentRange;

use super::handle::Host;
use super::home::Home;
use super::ready::Readiness;
use super::state::HostState;
use crate::bell::EventBell;
use crate::engine_socket::EngineSocket;
use crate::toe::pair::PairSettings;
use crate::toe::record::{Choice, Sharing};

/// The sockets of a queue pair, for a layer that has locks and waits of its own: a library between programs and their sockets, an executor. Numbers
/// are those that its calls have given and that are not closed; any other number panics.
///
/// To wait, call [`Sockets::arm`], wait until [`Sockets::readiness`] is readable, call
/// [`Sockets::hear`] and then [`Sockets::take_news`] until there is none.
pub struct Sockets {
    /// Taken out only when this goes.
    state: Option<HostState>,
    bell: Arc<EventBell>,
    home: Arc<Home>,
    /// Listeners for whose next connection no socket was left.
    hungry: Vec<u32>,
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.home.take_back(state);
        }
    }
}

impl Sockets {
    /// Takes the pair of a host that has no sockets. Its streams and listeners would be on one thread.
    ///
    /// # Errors
    /// There are some, or clones of the host.
    pub fn new(host: Host) -> io::Result<Self> {
        let shared = |_| io::Error::new(io::ErrorKind::InvalidInput, "the host has sockets: drop them first");
        // The cell dropped here has no pair any more.
        let cell = Rc::try_unwrap(host.0).map_err(shared)?;
        let mut state = cell.state.borrow_mut().take();
        if let Some(state) = &mut state {
            state.keep_news();
        }
        Ok(Self { state, bell: Arc::clone(&cell.bell), home: Arc::clone(&cell.home), hungry: Vec::new() })
    }

    fn own(&self) -> &HostState {
        self.state.as_ref().expect("it is there until this is dropped")
    }

    fn state(&mut self) -> &mut HostState {
        self.state.as_mut().expect("it is there until this is dropped")
    }

    /// Readable when something may have happened, after [`Sockets::arm`].
    pub fn readiness(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Must be called before each wait for [`Sockets::readiness`]. True: something has happened
    /// already: do not wait.
    pub fn arm(&mut self) -> bool {
        self.bell.announce_sleep();
        let state = self.state();
        state.give_back_all();
        let has_news = state.has_events() || state.has_untold_stop();
        self.flush();
        has_news
    }

    /// Makes [`Sockets::readiness`] quiet until the next event. To be called before [`Sockets::hear`].
    pub fn quiet(&mut self) {
        self.bell.clear();
    }

    /// Takes in all events.
    pub fn hear(&mut self) {
        self.state().hear();
        for listener in std::mem::take(&mut self.hungry) {
            self.ask_for_next(listener);
        }
    }

    /// A socket with something new; of a new connection it is the listener.
    pub fn take_news(&mut self) -> Option<u32> {
        self.state().next_news()
    }

    /// Waits until something has happened, which it takes in, or until the time is over.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if !self.arm() {
            self.bell.sleep(limit);
        }
        self.hear();
        if self.is_stopped() { Err(super::state::stopped()) } else { Ok(()) }
    }

    /// Rings the engine if it was asked for something. To be called behind calls that ask: everything but [`Sockets::read`], which may wait until
    /// [`Sockets::arm`].
    pub fn flush(&mut self) {
        if self.state().take_asked() {
            self.home.bell.ring();
        }
    }

    /// Whether the engine has ended.
    pub fn is_stopped(&self) -> bool {
        self.state.as_ref().is_none_or(HostState::is_stopped)
    }

    /// Creates a listener; [`Sockets::outcome`] reports the result. No connection is for it while others that share its address accept, until
    /// [`Sockets::ask_for_next`].
    ///
    /// # Errors
    /// No socket is left on this host; the engine has stopped.
    pub fn listen(&mut self, local: SocketAddr, backlog: u32, sharing: Sharing) -> io::Result<u32> {
        self.state().listen_with(local, backlog, sharing)
    }

    /// Creates a connection; [`Sockets::outcome`] reports the result. The address of `local` may be
    /// unspecified, its port 0.
    ///
    /// # Errors
    /// No socket is left on this host; the engine has stopped.
    pub fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<u32> {
        self.state().connect(local, remote)
    }

    /// This end and the other one of a connection that is open, a listener's end twice; `None`: not yet.
    ///
    /// # Errors
    /// Why nothing has come of it.
    pub fn outcome(&mut self, socket: u32) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
        self.state().outcome(socket)
    }

    /// The listener has news when there is a connection. Without a socket for it that is asked again when one may be free.
    pub fn ask_for_next(&mut self, listener: u32) {
        if self.state().ask_for_next(listener).is_err() && !self.hungry.contains(&listener) {
            self.hungry.push(listener);
        }
    }

    /// The next connection of a listener and its ends, if there is one. The one behind it is asked for, unless others share the address: a caller that is busy
    /// with this one leaves it to them, and asks when it waits again.
    ///
    /// # Errors
    /// The fault of the connection or listener.
    pub fn accept(&mut self, listener: u32) -> io::Result<Option<(u32, (SocketAddr, SocketAddr))>> {
        let state = self.state();
        let Some(socket) = state.take_next(listener)? else { return Ok(None) };
        let ends = state.outcome(socket)?;
        if !self.own().has_others(listener) {
            self.ask_for_next(listener);
        }
        Ok(ends.map(|ends| (socket, ends)))
    }

    /// Returns the readiness of a socket.
    pub fn ready(&mut self, socket: u32) -> Readiness {
        self.state().ready(socket)
    }

    /// Bytes that [`Sockets::write`] would take now. 0: the socket has news when that changes.
    ///
    /// # Errors
    /// As writing.
    pub fn room(&mut self, socket: u32) -> io::Result<usize> {
        self.state().room_for(socket)
    }

    /// Copies received bytes to `to` and releases them if `takes`. `None`: nothing has come yet; 0:
    /// nothing will.
    ///
    /// # Errors
    /// Why the connection is over.
    pub fn read(&mut self, socket: u32, to: &mut [u8], takes: bool) -> io::Result<Option<usize>> {
        let state = self.state();
        let is_over = state.is_stopped() && !state.has_events();
        match state.read(socket, to, takes)? {
            None if is_over => Err(super::state::stopped()),
            outcome => Ok(outcome),
        }
    }

    /// Takes as much of `parts` as there is room for. `None`: nothing; the socket has news when that changes.
    ///
    /// # Errors
    /// Why the connection is over, or nothing can be sent.
    pub fn write(&mut self, socket: u32, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let state = self.state();
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(Some(0));
        }
        match state.room_for(socket)? {
            0 => Ok(None),
            _ => state.write(socket, parts),
        }
    }

    /// Ends reading, writing or both.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn shutdown(&mut self, socket: u32, how: Shutdown) -> io::Result<()> {
        let state = self.state();
        if how != Shutdown::Write {
            state.shut_read(socket);
        }
        if how != Shutdown::Read { state.shut_write(socket) } else { Ok(()) }
    }

    /// Whether short segments go at once, without Nagle's algorithm. What becomes of it is not waited for.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn set_nodelay(&mut self, socket: u32, is_on: bool) -> io::Result<()> {
        self.state().set(socket, Choice::NoDelay, is_on)
    }

    /// Whether it is looked now and then if the peer is still there. What becomes of it is not waited for.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn set_keepalive(&mut self, socket: u32, is_on: bool) -> io::Result<()> {
        self.state().set(socket, Choice::KeepAlive, is_on)
    }

    /// Whether short segments wait for more, for as long as a retransmission would. What becomes of it is not waited for.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn set_cork(&mut self, socket: u32, is_on: bool) -> io::Result<()> {
        self.state().set(socket, Choice::Cork, is_on)
    }

    /// Ends the use of the socket: written data is still sent, unless `is_reset` or some received
    /// data was not read.
    pub fn close(&mut self, socket: u32, is_reset: bool) {
        self.hungry.retain(|&listener| listener != socket);
        self.state().close(socket, is_reset);
    }

    /// Whether the engine still has something to do for a socket that was closed.
    pub fn is_closing(&self) -> bool {
        self.state.as_ref().is_some_and(HostState::is_closing)
    }

    /// Bytes that were written and are not acknowledged.
    pub fn unacknowledged(&mut self, socket: u32) -> u64 {
        self.state().unacknowledged(socket)
    }

    /// Returns the name of a connection outside of this host.
    pub fn engine_socket(&self, socket: u32) -> EngineSocket {
        self.own().name(socket)
    }

    /// Settings of its pair.
    ///
    /// # Errors
    /// The engine is another process, which takes no leased extents.
    pub(in crate::toe) fn settings(&self) -> io::Result<&PairSettings> {
        self.own().end.extents.as_ref().map(|_| &self.own().settings).ok_or_else(super::bytes::elsewhere)
    }

    /// Returns whether there are events of the engine that were not taken in yet.
    pub(in crate::toe) fn has_events(&self) -> bool {
        self.own().has_events()
    }

    /// The ends of a socket that is a connection.
    pub(in crate::toe) fn ends(&mut self, socket: u32) -> Option<(SocketAddr, SocketAddr)> {
        // A listener's are both its own.
        self.state().outcome(socket).ok().flatten().filter(|(local, remote)| local != remote)
    }

    /// As [`HostState::takes`].
    pub(in crate::toe) fn takes(&mut self, socket: u32, bytes: usize) -> io::Result<bool> {
        self.state().takes(socket, bytes)
    }

    /// As [`HostState::write_framed`].
    pub(in crate::toe) fn write_framed(
        &mut self,
        socket: u32,
        head: &[u8],
        lease: &Lease,
        range: ExtentRange,
    ) -> io::Result<Option<()>> {
        self.state().write_framed(socket, head, lease, range)
    }

    /// As [`HostState::write_whole`].
    pub(in crate::toe) fn write_whole(&mut self, socket: u32, parts: &[&[u8]]) -> io::Result<Option<()>> {
        self.state().write_whole(socket, parts)
    }

    /// As [`HostState::write_control`].
    pub(in crate::toe) fn write_control(&mut self, socket: u32, bytes: &[u8]) -> io::Result<bool> {
        self.state().write_control(socket, bytes)
    }

    /// Bytes that were written and are not acknowledged, or were not when that was looked at last.
    pub(in crate::toe) fn outstanding(&self, socket: u32) -> u64 {
        self.own().outstanding(socket)
    }

    /// [`Sockets::readiness`] is quiet until the next event.
    pub(in crate::toe) fn await_events(&self) {
        self.bell.clear();
        self.bell.announce_sleep();
    }

    /// Buffers that were read, or thrown away, are the engine's again.
    pub(in crate::toe) fn give_back_all(&mut self) {
        self.state().give_back_all();
    }

    /// Discards the received data unread.
    pub(in crate::toe) fn throw_away(&mut self, socket: u32) {
        self.state().throw_away(socket);
    }

    /// Closes all that are open.
    pub(in crate::toe) fn close_all(&mut self) {
        let state = self.state();
        for socket in 0..state.settings.sockets {
            state.throw_away(socket);
            state.close(socket, false);
        }
        self.flush();
    }

    /// Numbers of the descriptors that this has: a layer that closes all that it does not know leaves them alone.
    pub fn descriptors(&self) -> Vec<i32> {
        let link = self.home.link.iter().map(AsRawFd::as_raw_fd);
        [self.bell.fd(), self.home.bell.fd()].iter().map(AsRawFd::as_raw_fd).chain(link).collect()
    }
}

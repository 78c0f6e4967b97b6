//! A listener, as `tokio::net::TcpListener` is one.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use ::tokio::task::coop::poll_proceed;

use super::reactor::Reactor;
use super::stream::TcpStream;
use crate::toe::host;

/// A listener; when dropped, it closes: connections not yet accepted are reset.
#[derive(Debug)]
pub struct TcpListener {
    reactor: Reactor,
    inner: host::TcpListener,
}

impl TcpListener {
    /// Listens, as [`toe::TcpListener::bind`](crate::toe::TcpListener::bind) does: the engine answers within a turn.
    ///
    /// # Errors
    /// The address has a listener already, or is not of this engine.
    pub fn bind(reactor: &Reactor, local: SocketAddr) -> io::Result<Self> {
        Ok(Self::new(reactor, host::TcpListener::bind(reactor.host(), local)?))
    }

    /// A listener that there is already.
    pub fn new(reactor: &Reactor, listener: host::TcpListener) -> Self {
        Self { reactor: reactor.clone(), inner: listener }
    }

    /// The next connection, and where it comes from. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// No socket is left on this host; the engine has stopped.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// The same, asked for once.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let turn = ready!(poll_proceed(context));
        let next = self.inner.poll_accept(context);
        if next.is_ready() {
            turn.made_progress();
        }
        next.map_ok(|(stream, peer)| (TcpStream::new(&self.reactor, stream), peer))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None; tokio's has one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

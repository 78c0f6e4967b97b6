//! A connection, as `tokio::net::TcpStream` is one.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ::tokio::task::coop::poll_proceed;
use millrace_core::pool::Lease;

use millrace_tcp::send::ExtentRange;

use super::reactor::Reactor;
use crate::engine_socket::EngineSocket;
use crate::toe::host::{self, Received};

/// A connection; when dropped, it closes: written data is still sent, and if some received data was
/// not read the peer gets a reset.
///
/// A reference reads and writes too, so that two tasks can share one by `Rc`.
#[derive(Debug)]
pub struct TcpStream {
    inner: host::TcpStream,
    /// Behind the socket: while there is one its events are heard.
    _reactor: Reactor,
}

impl TcpStream {
    /// Connects, from an address and port that the engine chooses.
    ///
    /// # Errors
    /// There is no listener, the peer does not answer, the engine has no address of this family or
    /// no place left.
    pub async fn connect(reactor: &Reactor, remote: SocketAddr) -> io::Result<Self> {
        let inner = host::TcpStream::begin(reactor.host(), None, remote)?;
        poll_fn(|context| inner.poll_connected(context)).await?;
        Ok(Self::new(reactor, inner))
    }

    /// A connection that there is already.
    pub fn new(reactor: &Reactor, stream: host::TcpStream) -> Self {
        // A call that would wait reports it; nothing else can go wrong.
        let _ = stream.set_nonblocking(true);
        Self { inner: stream, _reactor: reactor.clone() }
    }

    /// Returns when a read would not wait, also for the end or a failure.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_read_ready(context)).await
    }

    /// Returns when a write would not wait.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_write_ready(context)).await
    }

    /// [`TcpStream::readable`], asked for once.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let turn = ready!(poll_proceed(context));
        let ready = self.inner.poll_readable(context);
        if ready.is_ready() {
            turn.made_progress();
        }
        ready
    }

    /// [`TcpStream::writable`], asked for once.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let turn = ready!(poll_proceed(context));
        let ready = self.inner.poll_writable(context);
        if ready.is_ready() {
            turn.made_progress();
        }
        ready
    }

    /// Reads the available data.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: nothing is. The connection is over.
    pub fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        (&self.inner).read(to)
    }

    /// The same, to several buffers.
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn try_read_vectored(&self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&self.inner).read_vectored(to)
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: there is no room. The connection is over.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.inner).write(bytes)
    }

    /// The same, from several buffers.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.inner).write_vectored(parts)
    }

    /// Copies received data and leaves it to be read again; waits until there is some.
    ///
    /// # Errors
    /// As reading.
    pub async fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
        self.readable().await?;
        self.inner.peek(to)
    }

    /// Sends a range of a leased extent after the data written, from where it lies: nothing is
    /// copied. It waits for the connection's share, and then gives all of the range; dropped
    /// before, it has given nothing. The extent stays leased until the peer has acknowledged it or
    /// the connection is over.
    ///
    /// # Errors
    /// As writing; the range is not in the lease, or packets of it are missing; the engine is another process.
    pub async fn send_extent(&self, lease: &Lease, range: ExtentRange) -> io::Result<()> {
        poll_fn(|context| {
            let turn = ready!(poll_proceed(context));
            let sent = self.inner.poll_send_extent(context, lease, range);
            if sent.is_ready() {
                turn.made_progress();
            }
            sent
        })
        .await
    }

    /// The next bytes that have come, where they lie: as many as the engine has handed over in one buffer, none at the end. They are the caller's until it
    /// drops them; dropped before it returns, it has taken nothing.
    ///
    /// # Errors
    /// As reading.
    pub async fn read_lent(&self) -> io::Result<Received> {
        poll_fn(|context| {
            let turn = ready!(poll_proceed(context));
            let lent = self.inner.poll_read_lent(context);
            if lent.is_ready() {
                turn.made_progress();
            }
            lent
        })
        .await
    }

    /// Ends reading, writing or both at once; `AsyncWriteExt::shutdown` ends writing.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn shut(&self, how: Shutdown) -> io::Result<()> {
        self.inner.shutdown(how)
    }

    /// This end.
    ///
    /// # Errors
    /// None; tokio's has one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// The other end.
    ///
    /// # Errors
    /// None; tokio's has one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }

    /// Returns the name of this connection for the thread that turns the engine, as
    /// [`toe::TcpStream::engine_socket`](crate::toe::TcpStream::engine_socket) does.
    pub fn engine_socket(&self) -> EngineSocket {
        self.inner.engine_socket()
    }

    /// Whether short segments go at once, without Nagle's algorithm. The engine answers within a turn.
    ///
    /// # Errors
    /// There is no connection any more; the engine has stopped.
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        self.inner.set_nodelay(is_on)
    }

    /// Sets the effect of dropping this: `None` sends the data written; 0 aborts the connection, as
    /// [`TcpStream::abort`] does. Any other time makes it wait, and everything on its thread with
    /// it.
    ///
    /// # Errors
    /// None; tokio's has one.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.inner.set_linger(linger)
    }

    /// Aborts the connection: the peer gets a reset, and data not sent yet is lost.
    pub fn abort(self) {
        self.inner.abort();
    }

    /// A call that would wait has the task woken when it is ready, and is not ready itself.
    fn poll<T>(
        context: &mut Context<'_>,
        wait: impl FnOnce(&Context<'_>) -> Poll<io::Result<()>>,
        call: impl FnOnce() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let turn = ready!(poll_proceed(context));
        ready!(wait(context))?;
        turn.made_progress();
        Poll::Ready(call())
    }

    fn poll_read(&self, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        Self::poll(
            context,
            |context| self.inner.poll_readable(context),
            || {
                let count = (&self.inner).read(to.initialize_unfilled())?;
                to.advance(count);
                Ok(())
            },
        )
    }

    fn poll_write(&self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Self::poll(
            context,
            |context| self.inner.poll_writable(context),
            || (&self.inner).write_vectored(parts),
        )
    }
}

impl AsyncRead for &TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        TcpStream::poll_read(&self, context, to)
    }
}

impl AsyncWrite for &TcpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        TcpStream::poll_write(&self, context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        TcpStream::poll_write(&self, context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing is kept here.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut(Shutdown::Write))
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Self::poll_read(&self, context, to)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Self::poll_write(&self, context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Self::poll_write(&self, context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing is kept here.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut(Shutdown::Write))
    }
}

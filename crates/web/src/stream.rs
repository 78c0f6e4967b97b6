//! A viewer's connection: plain, or by TLS. An engine can write to a plain one itself, whether the kernel's TCP carries it or another one.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use millrace_tls::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::limits::WEB_READ_BYTES;
use crate::plain::PlainStream;

pub(crate) enum WebStream {
    Plain(PlainStream),
    Tls(Box<TlsStream<TcpStream>>),
    Carried(Carried),
}

/// A connection carried by a TCP other than the kernel's. It stays on the web side's thread, which
/// reads it, writes to it and closes it; an engine that must write to it gets its name.
pub struct Carried {
    stream: Box<dyn CarriedStream>,
    name: Arc<dyn Any + Send + Sync>,
}

/// What such a connection can do.
pub trait CarriedStream {
    /// To read and to write.
    fn io(&mut self) -> &mut dyn ReadWrite;

    /// Sets whether dropping it sends a reset to its viewer, so that the viewer does not wait for
    /// the data cut off.
    fn reset_when_dropped(&self, is_reset: bool);
}

/// Both.
pub trait ReadWrite: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> ReadWrite for T {}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carried").finish_non_exhaustive()
    }
}

impl Carried {
    /// Creates it from the connection and the value that
    /// [`OrderSocket::Carried`](crate::OrderSocket::Carried) holds for it.
    pub fn new(stream: impl CarriedStream + 'static, name: Arc<dyn Any + Send + Sync>) -> Self {
        Self { stream: Box::new(stream), name }
    }

    /// Its name, for an engine that writes to it until [`Carried::take_back`].
    pub(crate) fn lend(&self) -> Arc<dyn Any + Send + Sync> {
        self.stream.reset_when_dropped(true);
        Arc::clone(&self.name)
    }

    /// No engine writes to it any more.
    pub(crate) fn take_back(&self) {
        self.stream.reset_when_dropped(false);
    }
}

impl WebStream {
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Appends arriving data to the data already there; 0: no more will come. It holds no buffer
    /// while it waits: ten thousand idle connections use none.
    pub(crate) async fn read_behind(&mut self, read: &mut Vec<u8>) -> io::Result<usize> {
        poll_fn(|context| {
            let mut bytes = [const { MaybeUninit::uninit() }; WEB_READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut bytes);
            ready!(Pin::new(&mut *self).poll_read(context, &mut buf))?;
            read.extend_from_slice(buf.filled());
            Poll::Ready(Ok(buf.filled().len()))
        })
        .await
    }
}

impl AsyncRead for WebStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Carried(carried) => Pin::new(carried.stream.io()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for WebStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Carried(carried) => Pin::new(carried.stream.io()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Carried(carried) => Pin::new(carried.stream.io()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Carried(_) => true,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Carried(carried) => Pin::new(carried.stream.io()).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Carried(carried) => Pin::new(carried.stream.io()).poll_shutdown(cx),
        }
    }
}

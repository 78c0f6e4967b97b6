//! A connection with bytes already read from it, which fails when its viewer takes nothing for too
//! long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use millrace_core::limits::web::MAX_BYTES_STALL_NS;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::stream::WebStream;
use crate::totals::Totals;

/// The same as for a connection that an engine has: the data not taken may be a title's bytes.
const STALL: Duration = Duration::from_nanos(MAX_BYTES_STALL_NS);

pub(super) struct Rewound {
    stream: WebStream,
    /// Precedes the data from the connection; from `used` on.
    read: Vec<u8>,
    used: usize,
    /// Nothing comes behind `read`.
    is_whole: bool,
    /// It stays open when its user shuts it down.
    is_lent: bool,
    /// Runs while the viewer takes nothing.
    stall: Option<Pin<Box<Sleep>>>,
    totals: Arc<Totals>,
}

impl Rewound {
    pub(super) fn new(stream: WebStream, read: Vec<u8>, totals: Arc<Totals>) -> Self {
        Self { stream, read, used: 0, is_whole: false, is_lent: false, stall: None, totals }
    }

    /// For one request; nothing follows `read` if it `is_whole`. The caller takes the connection
    /// back.
    pub(super) fn lent(stream: WebStream, read: Vec<u8>, is_whole: bool, totals: Arc<Totals>) -> Self {
        Self { is_whole, is_lent: true, ..Self::new(stream, read, totals) }
    }

    pub(super) fn into_stream(self) -> WebStream {
        self.stream
    }

    /// Passes on what became of a write; fails if there was none for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stall = None;
            return wrote;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL)));
        ready!(stall.as_mut().poll(cx));
        self.totals.add(|c| c.connections_too_slow += 1);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.used < this.read.len() {
            let rest = &this.read[this.used..];
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            this.used += count;
            if this.used == this.read.len() {
                (this.read, this.used) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        if this.is_whole {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // With TLS, data already taken from the writer may be left here.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_lent {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! A viewer's connection in the kernel, watched for what arrives and not for room. An engine that writes media to it makes room come and go
//! all the time, which does not concern this thread; only a write that found no room waits for it.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

pub(crate) struct PlainStream {
    socket: AsyncFd<TcpStream>,
    /// The same connection by another descriptor, since a write found it full: a descriptor is watched for one thing.
    full: Option<AsyncFd<TcpStream>>,
}

fn watch(stream: TcpStream, interest: Interest) -> io::Result<AsyncFd<TcpStream>> {
    // Deprecated for types that may close or change their descriptor while it is registered; this one does neither,
    // and its successor is `unsafe`, which this crate does without.
    #[expect(deprecated)]
    AsyncFd::with_interest(stream, interest)
}

impl PlainStream {
    /// # Errors
    /// The socket cannot be watched.
    pub(crate) fn new(stream: tokio::net::TcpStream) -> io::Result<Self> {
        let socket = watch(stream.into_std()?, Interest::READABLE)?;
        Ok(Self { socket, full: None })
    }

    /// Another descriptor, for an engine that writes to the connection.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn share(&mut self) -> io::Result<TcpStream> {
        self.full = None;
        self.socket.get_ref().try_clone()
    }

    pub(crate) fn into_std(self) -> TcpStream {
        self.socket.into_inner()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    /// Waits until something can be read, the connection's end included.
    pub(crate) async fn readable(&self) {
        // An error is found by the read.
        if let Ok(mut ready) = self.socket.readable().await {
            ready.retain_ready();
        }
    }

    fn poll_written(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&mut &TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write(&mut self.socket.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                written => return Poll::Ready(written),
            }
            let full = match &self.full {
                Some(full) => full,
                None => {
                    let other = self.socket.get_ref().try_clone()?;
                    self.full.insert(watch(other, Interest::WRITABLE)?)
                }
            };
            // Room that came before this call is found by one more write.
            ready!(full.poll_write_ready(cx))?.clear_ready();
        }
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.initialize_unfilled();
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match ready.try_io(|socket| socket.get_ref().read(room)) {
                Ok(Ok(count)) => {
                    if (1..room.len()).contains(&count) {
                        // The socket is empty: another read would find nothing. Later bytes raise a new event.
                        ready.clear_ready();
                    }
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |socket| socket.write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |socket| socket.write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.full = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

//! A viewer's connection, whichever TCP carries it: the kernel's or the offload engine's.

use std::future::pending;
#[cfg(feature = "sim")]
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use millrace_offload::command::ConnSocket;
use millrace_offload::toe;
use millrace_web::OrderSocket;
use rustix::net::{SendFlags, Shutdown};
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};

use super::run::watch;

/// Where a connection comes from.
pub(super) struct ConnOrigin {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// The only engine that can write to it; `None`: any can.
    pub(super) writer: Option<usize>,
    /// It came by TLS.
    pub(super) is_encrypted: bool,
}

/// Read and written without waiting, with waits beside it, as tokio's sockets are.
#[derive(Debug)]
pub(super) enum ViewerStream {
    /// A socket of the kernel's.
    Kernel(TcpStream),
    /// A socket of the offload engine's.
    Offload(toe::tokio::TcpStream),
    /// An end of a pair whose other end TLS reads.
    Inside(UnixStream),
    /// A socket of the offload engine's that the web side's thread has. It reads it too; here is only its name, for the loop that writes to it.
    Elsewhere(toe::EngineSocket),
    /// The connection of an order. An engine writes to it, and notices when the viewer has gone. The viewer's next request waits
    /// in the kernel for the web side.
    Ordered(OrderEnd),
    /// The connection of an order without an end: a live title may be silent for hours, and meanwhile no engine notices that the
    /// viewer has gone. The connection is watched for input alone, because each change of writability would wake this thread too.
    Endless(AsyncFd<OrderEnd>),
    /// A connection of a simulation.
    #[cfg(feature = "sim")]
    Simulated(Arc<dyn SimulatedSocket>),
}

/// The connection of an order, in the kernel.
#[derive(Debug)]
pub(super) enum OrderEnd {
    /// The viewer's own.
    Viewer(std::net::TcpStream),
    /// An end of a pair whose other end the web side reads.
    Inside(std::os::unix::net::UnixStream),
}

impl AsFd for OrderEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Viewer(stream) => stream.as_fd(),
            Self::Inside(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for OrderEnd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A connection of a simulation, or the name of one that the web side reads. A name is never
/// readable.
#[cfg(feature = "sim")]
pub trait SimulatedSocket: std::fmt::Debug + Send + Sync {
    /// Polls for arrived bytes or the end of the stream.
    fn poll_readable(&self, context: &mut std::task::Context<'_>) -> std::task::Poll<()>;
    /// Polls for free capacity.
    fn poll_writable(&self, context: &mut std::task::Context<'_>) -> std::task::Poll<()>;
    /// Reads arrived bytes; 0 is the end of the stream.
    ///
    /// # Errors
    /// As of a socket that does not block.
    fn try_read(&self, to: &mut [u8]) -> io::Result<usize>;
    /// Writes as many bytes as the connection takes.
    ///
    /// # Errors
    /// As of a socket that does not block.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the stream after the written bytes.
    fn shut_write(&self);
    /// The socket for the loop that must write to it.
    ///
    /// # Errors
    /// No descriptor is left.
    fn for_loop(&self) -> io::Result<ConnSocket>;
}

impl ViewerStream {
    /// Whether the offload engine carries it.
    pub(super) fn is_offloaded(&self) -> bool {
        matches!(self, Self::Offload(_) | Self::Elsewhere(_))
    }

    /// The connection of an order.
    ///
    /// # Errors
    /// It cannot be watched, or is none that is known here.
    pub(super) fn of_order(socket: OrderSocket, is_endless: bool) -> io::Result<Self> {
        let end = match socket {
            OrderSocket::Viewer(stream) => OrderEnd::Viewer(stream),
            OrderSocket::Inside(stream) => OrderEnd::Inside(stream),
            OrderSocket::Carried(name) => {
                #[cfg(feature = "sim")]
                if let Some(socket) = name.downcast_ref::<Arc<dyn SimulatedSocket>>() {
                    return Ok(Self::Simulated(Arc::clone(socket)));
                }
                let name = name.downcast_ref().ok_or(io::ErrorKind::InvalidInput)?;
                return Ok(Self::Elsewhere(*name));
            }
        };
        Ok(if is_endless { Self::Endless(watch(end)?) } else { Self::Ordered(end) })
    }

    /// Returns when the viewer of an order without an end sends no more; of other connections never.
    pub(super) async fn endless_viewer_gone(&self) {
        let Self::Endless(socket) = self else { return pending().await };
        while let Ok(mut ready) = socket.readable().await {
            if ready.ready().is_read_closed() {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Returns when a read would not wait; of a connection that is read elsewhere never.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => stream.readable().await,
            Self::Offload(stream) => stream.readable().await,
            Self::Inside(stream) => stream.readable().await,
            Self::Elsewhere(_) | Self::Ordered(_) | Self::Endless(_) => pending().await,
            #[cfg(feature = "sim")]
            Self::Simulated(socket) => poll_fn(|context| socket.poll_readable(context).map(Ok)).await,
        }
    }

    /// Returns when a write would not wait.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => stream.writable().await,
            Self::Offload(stream) => stream.writable().await,
            Self::Inside(stream) => stream.writable().await,
            // An engine sends the output of these.
            Self::Elsewhere(_) | Self::Ordered(_) | Self::Endless(_) => pending().await,
            #[cfg(feature = "sim")]
            Self::Simulated(socket) => poll_fn(|context| socket.poll_writable(context).map(Ok)).await,
        }
    }

    pub(super) fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => stream.try_read(to),
            Self::Offload(stream) => stream.try_read(to),
            Self::Inside(stream) => stream.try_read(to),
            Self::Elsewhere(_) | Self::Ordered(_) | Self::Endless(_) => Err(io::ErrorKind::WouldBlock.into()),
            #[cfg(feature = "sim")]
            Self::Simulated(socket) => socket.try_read(to),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => stream.try_write(bytes),
            Self::Offload(stream) => stream.try_write(bytes),
            Self::Inside(stream) => stream.try_write(bytes),
            Self::Elsewhere(_) => Err(io::ErrorKind::WouldBlock.into()),
            Self::Ordered(end) => Ok(rustix::net::send(end, bytes, SendFlags::NOSIGNAL)?),
            Self::Endless(socket) => Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?),
            #[cfg(feature = "sim")]
            Self::Simulated(socket) => socket.try_write(bytes),
        }
    }

    /// Ends the stream: the viewer sees its end behind the data written.
    pub(super) fn shut_write(&self) {
        // A connection that is already over has no end to signal.
        match self {
            Self::Kernel(stream) => drop(rustix::net::shutdown(stream, Shutdown::Write)),
            Self::Offload(stream) => drop(stream.shut(std::net::Shutdown::Write)),
            Self::Elsewhere(_) => {}
            Self::Inside(stream) => drop(rustix::net::shutdown(stream, Shutdown::Write)),
            Self::Ordered(end) => drop(rustix::net::shutdown(end, Shutdown::Write)),
            Self::Endless(socket) => drop(rustix::net::shutdown(socket, Shutdown::Write)),
            #[cfg(feature = "sim")]
            Self::Simulated(socket) => socket.shut_write(),
        }
    }

    /// Returns the socket for the loop that must write to it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn for_loop(&self) -> io::Result<ConnSocket> {
        Ok(match self {
            Self::Kernel(stream) => ConnSocket::Kernel(stream.as_fd().try_clone_to_owned()?),
            Self::Offload(stream) => ConnSocket::Engine(stream.engine_socket()),
            Self::Inside(stream) => ConnSocket::Kernel(stream.as_fd().try_clone_to_owned()?),
            Self::Elsewhere(name) => ConnSocket::Engine(*name),
            Self::Ordered(end) => ConnSocket::Kernel(end.as_fd().try_clone_to_owned()?),
            Self::Endless(socket) => ConnSocket::Kernel(socket.as_fd().try_clone_to_owned()?),
            #[cfg(feature = "sim")]
            Self::Simulated(socket) => socket.for_loop()?,
        })
    }
}

//! A viewer's connection, whichever TCP carries it: the kernel's or the offload engine's.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use millrace_offload::command::ConnSocket;
use millrace_offload::toe;
use millrace_web::OrderSocket;
use tokio::net::{TcpStream, UnixStream};

/// Where a connection comes from.
pub(super) struct Arrival {
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
    /// An end of a pair whose other end the web side, or TLS, reads.
    Inside(UnixStream),
    /// A socket of the offload engine's that the web side's thread has. It reads it too; here is only its name, for the loop that writes to it.
    Elsewhere(toe::EngineSocket),
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
    pub(super) fn of_order(socket: OrderSocket) -> io::Result<Self> {
        Ok(match socket {
            OrderSocket::Viewer(stream) => Self::Kernel(TcpStream::from_std(stream)?),
            OrderSocket::Inside(stream) => Self::Inside(UnixStream::from_std(stream)?),
            OrderSocket::Carried(name) => match name.downcast_ref() {
                Some(name) => Self::Elsewhere(*name),
                None => return Err(io::ErrorKind::InvalidInput.into()),
            },
        })
    }

    /// The way back; `None`: it cannot be had, or was none.
    pub(super) fn into_order(self) -> Option<OrderSocket> {
        match self {
            Self::Kernel(stream) => stream.into_std().ok().map(OrderSocket::Viewer),
            Self::Inside(stream) => stream.into_std().ok().map(OrderSocket::Inside),
            Self::Offload(_) => None,
            Self::Elsewhere(name) => Some(OrderSocket::Carried(Arc::new(name))),
        }
    }

    /// Returns when a read would not wait; of a connection that is elsewhere never.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => stream.readable().await,
            Self::Offload(stream) => stream.readable().await,
            Self::Inside(stream) => stream.readable().await,
            Self::Elsewhere(_) => pending().await,
        }
    }

    /// Returns when a write would not wait.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Kernel(stream) => stream.writable().await,
            Self::Offload(stream) => stream.writable().await,
            Self::Inside(stream) => stream.writable().await,
            Self::Elsewhere(_) => pending().await,
        }
    }

    pub(super) fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => stream.try_read(to),
            Self::Offload(stream) => stream.try_read(to),
            Self::Inside(stream) => stream.try_read(to),
            Self::Elsewhere(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(stream) => stream.try_write(bytes),
            Self::Offload(stream) => stream.try_write(bytes),
            Self::Inside(stream) => stream.try_write(bytes),
            Self::Elsewhere(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// The viewer sees the end of the stream behind what has been written.
    pub(super) fn shut_write(&self) {
        // A connection that is over already has no end to be told of.
        match self {
            Self::Kernel(stream) => drop(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)),
            Self::Offload(stream) => drop(stream.shut(std::net::Shutdown::Write)),
            Self::Inside(stream) => drop(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)),
            Self::Elsewhere(_) => {}
        }
    }

    /// What the loop that is to write to it is given.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn for_loop(&self) -> io::Result<ConnSocket> {
        Ok(match self {
            Self::Kernel(stream) => ConnSocket::Kernel(stream.as_fd().try_clone_to_owned()?),
            Self::Offload(stream) => ConnSocket::Engine(stream.engine_socket()),
            Self::Inside(stream) => ConnSocket::Kernel(stream.as_fd().try_clone_to_owned()?),
            Self::Elsewhere(name) => ConnSocket::Engine(*name),
        })
    }
}

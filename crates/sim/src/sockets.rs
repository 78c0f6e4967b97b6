//! The server's ends of connections: as the control plane has them, and as the web side has them.

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use millrace_offload::command::ConnSocket;
use millrace_server::control::simulated::SimulatedSocket;
use millrace_web::{Carried, CarriedStream, ReadWrite};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::network::SharedNetwork;

/// A connection that the control plane reads, or the name of one that the web side reads.
#[derive(Debug)]
pub struct SimSocket {
    network: SharedNetwork,
    number: u32,
    is_name: bool,
}

impl SimSocket {
    /// The end of an RTSP connection.
    pub fn open(network: &SharedNetwork, number: u32) -> Arc<dyn SimulatedSocket> {
        network.lock().open_server_end(number);
        Arc::new(Self { network: network.clone(), number, is_name: false })
    }
}

fn blocked() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

impl SimulatedSocket for SimSocket {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut network = self.network.lock();
        if !self.is_name && network.is_readable(self.number) {
            return Poll::Ready(());
        }
        // A name is never readable, so that nothing has to wake its task.
        if let Some(conn) = network.conns.get_mut(&self.number).filter(|_| !self.is_name) {
            conn.readers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut network = self.network.lock();
        if network.has_room(self.number) {
            return Poll::Ready(());
        }
        if let Some(conn) = network.conns.get_mut(&self.number) {
            conn.writers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        if self.is_name {
            return Err(blocked());
        }
        self.network.lock().read_up(self.number, to).ok_or_else(blocked)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.network.lock().write_some(self.number, bytes) {
            None => Err(io::ErrorKind::ConnectionReset.into()),
            Some(0) if !bytes.is_empty() => Err(blocked()),
            Some(len) => Ok(len),
        }
    }

    fn shut_write(&self) {
        self.network.lock().shut_down(self.number);
    }

    fn for_loop(&self) -> io::Result<ConnSocket> {
        let socket: OwnedFd = File::open("/dev/null")?.into();
        let mut network = self.network.lock();
        network.sockets.insert(socket.as_raw_fd(), self.number);
        network.open_server_end(self.number);
        Ok(ConnSocket::Kernel(socket))
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if !self.is_name {
            self.network.lock().close_server_end(self.number);
        }
    }
}

/// A connection that the web side reads and closes, as one of another TCP.
pub struct SimStream {
    network: SharedNetwork,
    number: u32,
}

impl SimStream {
    /// The end of an HTTP connection.
    pub fn carried(network: &SharedNetwork, number: u32) -> Carried {
        network.lock().open_server_end(number);
        let name: Arc<dyn SimulatedSocket> =
            Arc::new(SimSocket { network: network.clone(), number, is_name: true });
        let name: Arc<dyn Any + Send + Sync> = Arc::new(name);
        Carried::new(Self { network: network.clone(), number }, name)
    }
}

impl CarriedStream for SimStream {
    fn io(&mut self) -> &mut dyn ReadWrite {
        self
    }

    fn reset_when_dropped(&self, _: bool) {}
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut network = self.network.lock();
        match network.read_up(self.number, buf.initialize_unfilled()) {
            Some(len) => {
                buf.advance(len);
                Poll::Ready(Ok(()))
            }
            None => {
                if let Some(conn) = network.conns.get_mut(&self.number) {
                    conn.readers.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut network = self.network.lock();
        match network.write_some(self.number, bytes) {
            None => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(0) if !bytes.is_empty() => {
                if let Some(conn) = network.conns.get_mut(&self.number) {
                    conn.writers.push(context.waker().clone());
                }
                Poll::Pending
            }
            Some(len) => Poll::Ready(Ok(len)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.lock().shut_down(self.number);
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.network.lock().drop_connection(self.number);
    }
}

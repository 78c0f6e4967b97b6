//! The front: accepts connections, reads the head of each request, and answers those for media or sends their connection elsewhere.
//!
//! | file | does |
//! | --- | --- |
//! | `head` | reads the head of a request |
//! | `conn` | one connection |
//! | `reply` | writes a response in HTTP/1.1 |

mod conn;
pub(crate) mod head;
mod reply;

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use millrace_core::limits::control::{ACCEPT_PAUSE, KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL};
use millrace_tls::Acceptor;
use rustix::net::sockopt;
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::context::ServerContext;
use crate::plain::PlainStream;
use crate::stream::{Carried, WebStream};

/// Accepts until the task is aborted; by TLS if there is something that answers its handshakes.
pub(crate) async fn accept(listener: TcpListener, tls: Option<Acceptor>, shared: Arc<ServerContext>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => arrive(stream, peer, tls.as_ref(), &shared),
            // No descriptor is left, or the viewer has gone again.
            Err(error) => {
                tracing::debug!(%error, "HTTP: cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn arrive(stream: TcpStream, peer: SocketAddr, tls: Option<&Acceptor>, shared: &Arc<ServerContext>) {
    let Some(place) = shared.admit(peer) else {
        if tls.is_none() {
            // This little fits the buffer of a new connection; if not, the connection is closed all
            // the same.
            let _ = stream.try_write(reply::FULL);
        }
        return;
    };
    prepare(&stream);
    let (tls, shared) = (tls.cloned(), Arc::clone(shared));
    spawn_local(async move {
        let stream = match tls {
            None => match PlainStream::new(stream) {
                Ok(stream) => WebStream::Plain(stream),
                Err(error) => return tracing::debug!(%error, "HTTP: cannot watch a connection"),
            },
            Some(tls) => {
                let Some(stream) = Box::pin(tls.accept(stream, peer.ip())).await else { return };
                WebStream::Tls(Box::new(stream))
            }
        };
        conn::serve(stream, peer, shared, place).await;
    });
}

/// Where connections are brought that another TCP than the kernel's carries.
#[derive(Clone)]
pub struct Arrivals(Arc<ServerContext>);

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl Arrivals {
    pub(crate) fn new(shared: &Arc<ServerContext>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Serves a connection of this peer, in a task of its own; or closes it, if there are too many.
    pub fn take(&self, conn: Carried, peer: SocketAddr) {
        let mut stream = WebStream::Carried(conn);
        match self.0.admit(peer) {
            Some(place) => drop(spawn_local(conn::serve(stream, peer, Arc::clone(&self.0), place))),
            // As with the kernel's: it fits, or is left out.
            None => {
                let mut context = Context::from_waker(Waker::noop());
                let _ = Pin::new(&mut stream).poll_write(&mut context, reply::FULL);
            }
        }
    }
}

/// Sets the options of a connection. Without them everything works, only worse.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

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

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::limits::control::{ACCEPT_PAUSE, KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL};
use millrace_tls::Acceptor;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};

use crate::shared::Shared;
use crate::stream::WebStream;

/// Accepts until the task is aborted; by TLS if there is something that answers its handshakes.
pub(crate) async fn accept(listener: TcpListener, tls: Option<Acceptor>, shared: Arc<Shared>) {
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

fn arrive(stream: TcpStream, peer: SocketAddr, tls: Option<&Acceptor>, shared: &Arc<Shared>) {
    let Some(place) = shared.admit(peer) else {
        if tls.is_none() {
            // So little fits the buffer of a new connection; if not, it is closed all the same.
            let _ = stream.try_write(reply::FULL);
        }
        return;
    };
    prepare(&stream);
    let (tls, shared) = (tls.cloned(), Arc::clone(shared));
    tokio::spawn(async move {
        let stream = match tls {
            None => WebStream::Plain(stream),
            Some(tls) => {
                let Some(stream) = Box::pin(tls.accept(stream)).await else { return };
                WebStream::Tls(Box::new(stream))
            }
        };
        conn::serve(stream, peer, shared, place).await;
    });
}

/// What is set on a connection. Without it everything works, only worse.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

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
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};

use crate::shared::Shared;

/// Accepts until the task is aborted.
pub(crate) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => arrive(stream, peer, &shared),
            // No descriptor is left, or the viewer has gone again.
            Err(error) => {
                tracing::debug!(%error, "HTTP: cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn arrive(stream: TcpStream, peer: SocketAddr, shared: &Arc<Shared>) {
    let Some(place) = shared.admit(peer) else {
        // So little fits the buffer of a new connection; if not, it is closed all the same.
        let _ = stream.try_write(reply::FULL);
        return;
    };
    prepare(&stream);
    tokio::spawn(conn::serve(stream, peer, Arc::clone(shared), place));
}

/// What is set on a connection. Without it everything works, only worse.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

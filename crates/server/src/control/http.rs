//! HTTP by the offload engine: the web side's thread is a host of it beside the control thread, and has its connections as it has the kernel's. Of one that
//! is sent bytes of a title only the writes go to the loop that turns the engine, by the connection's name (`orders.rs`).
//!
//! ```text
//!   web side's thread ──► queue pair ──────────► engine ◄── loop: ranges of leased extents
//!     accepts, reads, writes what is no media        ▲
//!     Order { name, a..b } ─► control thread ─► ConnAdd { name }
//! ```

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use millrace_core::limits::control::ACCEPT_PAUSE;
use millrace_core::limits::toe::MAX_BACKLOG;
use millrace_offload::toe::tokio::{Reactor, TcpListener, TcpStream};
use millrace_offload::toe::{self, Engine, Host};
use millrace_web::{Arrivals, Carried, CarriedStream, Carrier, ReadWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Listens at these ends of each engine that it is shown ([`Offload::shown`](super::Offload)), one after the other.
pub fn http_by_offload(mut engines: watch::Receiver<Weak<Engine>>, ends: Vec<SocketAddr>) -> Carrier {
    Carrier::new(move |arrivals| async move {
        // Who shows them ends with the server.
        while engines.changed().await.is_ok() {
            let engine = engines.borrow_and_update().upgrade();
            if let Some(engine) = engine {
                serve(engine, &ends, &arrivals).await;
            }
        }
    })
}

/// Until the engine has ended.
async fn serve(engine: Arc<Engine>, ends: &[SocketAddr], arrivals: &Arrivals) {
    let listened = listen(&engine, ends);
    // No reference here keeps it from ending.
    drop(engine);
    let (host, listeners) = match listened {
        Ok(listened) => listened,
        Err(error) => {
            tracing::warn!(
                "HTTP is carried by the kernel's TCP alone, because the offload engine does not listen for it: {error}"
            );
            return;
        }
    };
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn_local(accept(host.clone(), listener, arrivals.clone()));
    }
    let at: Vec<_> = ends.iter().map(ToString::to_string).collect();
    tracing::info!("the offload engine carries HTTP to {}", at.join(", "));
    while accepting.join_next().await.is_some() {}
}

fn listen(engine: &Engine, ends: &[SocketAddr]) -> io::Result<(Host, Vec<TcpListener>)> {
    let host = engine.attach()?;
    let reactor = Reactor::new(&host)?;
    let listen = |end: &SocketAddr| {
        let listener = toe::TcpListener::bind_with_backlog(&host, *end, MAX_BACKLOG)?;
        Ok(TcpListener::new(&reactor, listener))
    };
    let listeners = ends.iter().map(listen).collect::<io::Result<_>>()?;
    Ok((host, listeners))
}

/// A connection as the web side has it.
struct CarriedConnection(TcpStream);

impl CarriedStream for CarriedConnection {
    fn io(&mut self) -> &mut dyn ReadWrite {
        &mut self.0
    }

    fn reset_when_dropped(&self, is_reset: bool) {
        // It cannot fail.
        let _ = self.0.set_linger(is_reset.then_some(Duration::ZERO));
    }
}

async fn accept(host: Host, listener: TcpListener, arrivals: Arrivals) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let name = Arc::new(stream.engine_socket());
                arrivals.take(Carried::new(CarriedConnection(stream), name), peer);
            }
            Err(_) if host.is_stopped() => return,
            // Of one connection, not of the listener.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::debug!(%error, "HTTP: the offload engine accepts no connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

//! Connections that are terminated here and continue inside in the clear: each gets a pair of
//! sockets, one end is handed out, and bytes are passed in both directions. A slow reader lets the
//! pair fill, and the writer waits, as it would for the viewer's own socket. One thread serves all
//! of them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::limits::control::{ACCEPT_PAUSE, KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use crate::accept::Acceptor;
use crate::limits::{MAX_RELAYS_WAITING, RELAY_DROP_TIME, RELAY_LINGER, RELAY_READ_BYTES, TLS_RECORD_BYTES};
use crate::stall::Stalling;
use crate::totals::Totals;

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Relayed {
    /// The end that is read and written in the clear. It does not block.
    pub stream: std::os::unix::net::UnixStream,
    /// Address of the other end of the connection.
    pub peer: SocketAddr,
    /// Which address it has called.
    pub local: SocketAddr,
}

/// The thread. Dropping it ends all connections.
#[derive(Debug)]
pub struct Relay {
    addresses: Vec<SocketAddr>,
    ends: watch::Sender<Option<Duration>>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the tasks of the relay.
#[derive(Clone)]
struct RelayContext {
    acceptor: Acceptor,
    arrived: mpsc::Sender<Relayed>,
    stall: Duration,
    /// Held by each connection, so that it is known when the last one has ended.
    _alive: mpsc::Sender<()>,
}

type TlsViewerStream = TlsStream<Stalling<TcpStream>>;

impl Relay {
    /// Accepts connections from now on, and gives each away when its handshake is done. One that takes nothing for as long as `stall` is closed.
    ///
    /// # Errors
    /// If the thread cannot be started, or a listener cannot be used.
    pub fn start(
        listeners: Vec<TcpListener>,
        acceptor: Acceptor,
        stall: Duration,
    ) -> io::Result<(Self, mpsc::Receiver<Relayed>)> {
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listeners = {
            let _entered = runtime.enter();
            let listener = |listener: TcpListener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            };
            listeners.into_iter().map(listener).collect::<io::Result<Vec<_>>>()?
        };
        let (ends, ended) = watch::channel(None);
        let (arrived, arrivals) = mpsc::channel(MAX_RELAYS_WAITING);
        let (alive, all_ended) = mpsc::channel(1);
        let shared = RelayContext { acceptor, arrived, stall, _alive: alive };
        let thread = std::thread::Builder::new()
            .name("rtsp-tls".to_owned())
            .spawn(move || run(runtime, listeners, shared, ended, all_ended))?;
        Ok((Self { addresses, ends, thread: Some(thread) }, arrivals))
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts no more connections, and gives the existing ones up to `limit` to end.
    pub fn stop(mut self, limit: Duration) {
        self.end(limit);
    }

    fn end(&mut self, limit: Duration) {
        let _ = self.ends.send(Some(limit));
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end(RELAY_DROP_TIME);
    }
}

fn run(
    runtime: Runtime,
    listeners: Vec<tokio::net::TcpListener>,
    shared: RelayContext,
    mut ended: watch::Receiver<Option<Duration>>,
    mut all_ended: mpsc::Receiver<()>,
) {
    runtime.block_on(async {
        let accepting: Vec<_> =
            listeners.into_iter().map(|listener| tokio::spawn(accept(listener, shared.clone()))).collect();
        drop(shared);
        let limit = ended.wait_for(Option::is_some).await.ok().and_then(|limit| *limit);
        accepting.iter().for_each(tokio::task::JoinHandle::abort);
        // The remaining connections are cut off.
        let _ = timeout(limit.unwrap_or(RELAY_DROP_TIME), all_ended.recv()).await;
    });
    runtime.shutdown_background();
}

async fn accept(listener: tokio::net::TcpListener, shared: RelayContext) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => drop(tokio::spawn(serve(stream, peer, shared.clone()))),
            // No descriptor is left, or the viewer has gone again.
            Err(error) => {
                tracing::debug!(%error, "RTSP by TLS: cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, shared: RelayContext) {
    let Ok(local) = stream.local_addr() else { return };
    prepare(&stream);
    let stream = Stalling::new(stream, shared.stall);
    let Some(viewer) = shared.acceptor.accept(stream, peer.ip()).await else { return };
    let pair = UnixStream::pair().and_then(|(near, far)| Ok((near, far.into_std()?)));
    let Ok((near, far)) = pair else {
        return tracing::debug!("RTSP by TLS: no descriptor is left for a connection");
    };
    if shared.arrived.send(Relayed { stream: far, peer, local }).await.is_err() {
        return; // the other side has ended
    }
    let totals = Arc::clone(&shared.acceptor.totals);
    totals.add(|c| c.relayed += 1);
    relay(viewer, near, &totals).await;
    totals.add(|c| c.relayed -= 1);
}

/// Sets the options of a connection. Without them everything works, only worse.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

/// Passes bytes on both ways until one side is over.
async fn relay(viewer: TlsViewerStream, inside: UnixStream, totals: &Totals) {
    let (from_viewer, to_viewer) = tokio::io::split(viewer);
    let (from_inside, to_inside) = inside.into_split();
    let up = pass_up(from_viewer, to_inside);
    let down = pass_down(from_inside, to_viewer);
    tokio::pin!(up, down);
    let passed = tokio::select! {
        passed = &mut down => {
            // The viewer takes the last reply and closes: closing with bytes unread would reset the connection, and the reply would be lost with it.
            if passed.is_ok() {
                let _ = timeout(RELAY_LINGER, up).await;
            }
            passed
        }
        // The viewer sends no more. The remaining replies still go out.
        _ = &mut up => down.await,
    };
    if passed.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        totals.add(|c| c.relayed_too_slow += 1);
    }
}

/// Passes on data from the viewer. The buffer is small: each connection holds one permanently.
async fn pass_up(mut from: ReadHalf<TlsViewerStream>, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut bytes = vec![0; RELAY_READ_BYTES];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..count]).await?;
    }
}

/// Passes on data to the viewer. A buffer exists only while there is data to send.
async fn pass_down(from: OwnedReadHalf, mut to: WriteHalf<TlsViewerStream>) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut bytes = vec![0; TLS_RECORD_BYTES];
        let count = match from.try_read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..count]).await?;
        // Nothing stays behind: as much as lies here, whoever writes has no idea of.
        to.flush().await?;
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;

//! The control thread's tasks, and how they end.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_core::limits::control::{ACCEPT_PAUSE, KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL};
use millrace_offload::clock::MonotonicClock;
use millrace_web::OrderSocket;
use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::hub::{Hub, SharedHub};
use super::stream::{ConnOrigin, ViewerStream};
use super::{
    Ask, ControlConfig, ControlError, ControlSheets, EnginePort, Farewell, LimitsRequest, Sockets, conn,
    offload, orders, udp,
};
use crate::limits::ADMISSION_LOOK_NS;
use crate::limits::control::{BYE_LIMIT, CONTROL_TICK, END_POLL, LISTEN_BACKLOG, RING_RETRY};
use crate::service::{ConnKey, Library, Service};
use crate::session::{Entropy, Server, UdpPort};

/// The inputs of the thread.
pub(super) struct ControlInputs {
    pub(super) config: ControlConfig,
    pub(super) library: Box<dyn Library>,
    pub(super) entropy: Box<dyn Entropy>,
    pub(super) engines: Vec<Box<dyn EnginePort>>,
    pub(super) sockets: Sockets,
    pub(super) sheets: ControlSheets,
}

/// Runs until asked to shut down, or until the handle is gone.
pub(super) async fn run(
    parts: ControlInputs,
    mut asked: mpsc::UnboundedReceiver<Ask>,
    ready: std::sync::mpsc::Sender<Result<(), ControlError>>,
) -> Farewell {
    let ControlInputs { config, library, entropy, engines, sockets, sheets } = parts;
    let count = engines.len();
    let service = Service::new(config.session.service.clone(), library);
    let server = Server::new(config.session, entropy);
    let (checked, hears_checked) = mpsc::unbounded_channel();
    let faces = (config.write_timeout_ns, config.feed);
    let hub = Hub::new(Box::new(MonotonicClock), service, server, engines, faces, sheets, checked);
    let hub: SharedHub = Rc::new(RefCell::new(hub));
    spawn_local(hear_checks(Rc::clone(&hub), hears_checked));
    let (listeners, limit) = match start(&hub, count, sockets) {
        Ok(listeners) => {
            // If the caller does not wait for the start any more, the handle is gone and `asked`
            // ends at once.
            let _ = ready.send(Ok(()));
            (listeners, answer(&hub, &mut asked).await)
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            (Vec::new(), Duration::ZERO)
        }
    };
    listeners.iter().for_each(JoinHandle::abort);
    shut_down(&hub, count, limit).await
}

/// Answers until asked to shut down; returns how long that may take.
pub(super) async fn answer(hub: &SharedHub, asked: &mut mpsc::UnboundedReceiver<Ask>) -> Duration {
    loop {
        match asked.recv().await {
            // The asker may have given up waiting.
            Some(Ask::Snapshot(answer)) => drop(answer.try_send(hub.borrow().snapshot())),
            Some(Ask::InUse(answer)) => drop(answer.try_send(hub.borrow().service.in_use())),
            Some(Ask::Fetch(fetch)) => orders::fetch(hub, *fetch),
            Some(Ask::Viewer(admission)) => orders::admit_viewer(hub, *admission),
            Some(Ask::Tunnel(tunnel)) => take_tunnel(hub, *tunnel),
            Some(Ask::Limits(LimitsRequest { new, is_decided, answer })) => {
                // A caller that has given up was promised that nothing changes.
                if !is_decided.swap(true, Ordering::Relaxed) {
                    hub.borrow_mut().service.set_limits(&new);
                    let _ = answer.try_send(());
                }
            }
            Some(Ask::ShutDown(limit)) => return limit,
            None => return Duration::ZERO,
        }
    }
}

/// Starts all tasks; returns those that accept connections.
fn start(hub: &SharedHub, engines: usize, sockets: Sockets) -> Result<Vec<JoinHandle<()>>, ControlError> {
    let refused = |what| move |source| ControlError::Socket { what, address: "a socket".to_owned(), source };
    for pair in sockets.udp {
        let rtp = watch(pair.rtp).map_err(refused("watch the RTP port"))?;
        spawn_local(udp::listen(Rc::clone(hub), UdpPort::Rtp, rtp));
        let rtcp = watch(pair.rtcp).map_err(refused("watch the RTCP port"))?;
        spawn_local(udp::listen(Rc::clone(hub), UdpPort::Rtcp, rtcp));
    }
    for engine in 0..engines {
        let fd = hub.borrow().engine_port(engine).map(|handle| handle.event_fd().try_clone_to_owned());
        let fd = fd.unwrap_or_else(|| Err(io::Error::other("no such engine"))).and_then(watch);
        let fd = fd.map_err(refused("watch the engine's bell"))?;
        spawn_local(hear(Rc::clone(hub), engine, fd));
    }
    let fd = hub.borrow().service.openings_fd().map(|fd| fd.try_clone_to_owned());
    if let Some(fd) = fd {
        let fd = fd.and_then(watch).map_err(refused("watch the library's bell"))?;
        spawn_local(hear_library(Rc::clone(hub), fd));
    }
    spawn_local(tick(Rc::clone(hub)));
    if hub.borrow().service.config().admission.is_on {
        spawn_local(look_at_load(Rc::clone(hub)));
    }
    spawn_local(retry(Rc::clone(hub)));
    if let Some(engine) = sockets.offload {
        // It goes on until the end: connections end with it, and take leave before.
        spawn_local(offload::run(Rc::clone(hub), engine));
    }
    let mut listeners = Vec::new();
    if let Some(orders) = sockets.orders {
        // None are taken any more when the server ends.
        listeners.push(spawn_local(orders::take(Rc::clone(hub), orders)));
    }
    if let Some(arrivals) = sockets.secure {
        listeners.push(spawn_local(take_secure(Rc::clone(hub), arrivals)));
    }
    for listener in sockets.listeners {
        rustix::net::listen(&listener, LISTEN_BACKLOG).map_err(|errno| refused("listen")(errno.into()))?;
        let listener = TcpListener::from_std(listener).map_err(refused("listen"))?;
        listeners.push(spawn_local(accept(Rc::clone(hub), listener)));
    }
    Ok(listeners)
}

/// Registers a descriptor in the reactor, and watches it for readability.
pub(super) fn watch<T: AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    // Deprecated for types that may close or change their descriptor while it is registered; those that come here do
    // neither, and its successor is `unsafe`, which this crate does without.
    #[expect(deprecated)]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

async fn accept(hub: SharedHub, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Ok(local) = stream.local_addr() else { continue }; // already reset
                set_options(&stream);
                let stream = ViewerStream::Kernel(stream);
                let from = ConnOrigin { peer, local, writer: None, is_encrypted: false };
                let line = hub.borrow_mut().accept(stream, from);
                if let Some(line) = line {
                    spawn_local(conn::serve(Rc::clone(&hub), line, Vec::new()));
                }
            }
            // Of one connection, not of the listener.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                hub.borrow_mut().no_files("connections cannot be accepted", &error);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Takes connections that came by TLS. If there is no room for one, it is dropped, and its viewer
/// sees the end of it.
async fn take_secure(hub: SharedHub, mut arrivals: mpsc::Receiver<millrace_tls::Relayed>) {
    while let Some(millrace_tls::Relayed { stream, peer, local }) = arrivals.recv().await {
        match UnixStream::from_std(stream) {
            Ok(stream) => {
                let from = ConnOrigin { peer, local, writer: None, is_encrypted: true };
                let line = hub.borrow_mut().accept(ViewerStream::Inside(stream), from);
                if let Some(line) = line {
                    spawn_local(conn::serve(Rc::clone(&hub), line, Vec::new()));
                }
            }
            Err(error) => hub.borrow_mut().no_files("a connection by TLS cannot be watched", &error),
        }
    }
}

/// Takes over a connection of the web side that carries RTSP in HTTP. If there is no room for it,
/// it is dropped and the viewer sees it close.
fn take_tunnel(hub: &SharedHub, tunnel: millrace_web::TunnelConn) {
    let millrace_web::TunnelConn { socket, read, peer, local, is_encrypted } = tunnel;
    let stream = match socket {
        OrderSocket::Viewer(stream) => TcpStream::from_std(stream).map(ViewerStream::Kernel),
        OrderSocket::Inside(stream) => UnixStream::from_std(stream).map(ViewerStream::Inside),
        // The web side relays connections of another TCP stack.
        OrderSocket::Carried(_) => return,
    };
    match stream {
        Ok(stream) => {
            let any = SocketAddr::new(
                if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
                0,
            );
            let from = ConnOrigin { peer, local: local.unwrap_or(any), writer: None, is_encrypted };
            let line = hub.borrow_mut().accept(stream, from);
            if let Some(line) = line {
                spawn_local(conn::serve(Rc::clone(hub), line, read));
            }
        }
        Err(error) => hub.borrow_mut().no_files("a connection of RTSP in HTTP cannot be watched", &error),
    }
}

/// Replies leave at once; a viewer that vanished without a word is noticed within two minutes, paused or not.
fn set_options(stream: &TcpStream) {
    // Without them the connection works, only later: nothing to tell.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

/// Takes an engine's events when its bell rings.
async fn hear(hub: SharedHub, engine: usize, fd: AsyncFd<OwnedFd>) {
    loop {
        match fd.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return, // the reactor has ended
        }
        while hub.borrow_mut().take_events(engine) {
            tokio::task::yield_now().await;
        }
        hub.borrow_mut().retry();
    }
}

/// Goes on with requests whose passwords have been checked.
pub(super) async fn hear_checks(hub: SharedHub, mut checked: mpsc::UnboundedReceiver<ConnKey>) {
    while let Some(conn) = checked.recv().await {
        hub.borrow_mut().password_checked(conn);
    }
}

/// Takes the library's answers when its bell rings.
async fn hear_library(hub: SharedHub, fd: AsyncFd<OwnedFd>) {
    // Takes the answers to requests made before the bell was watched.
    hub.borrow_mut().take_openings();
    while let Ok(mut guard) = fd.readable().await {
        guard.clear_ready();
        hub.borrow_mut().take_openings();
    }
}

async fn tick(hub: SharedHub) {
    let mut ticks = interval(CONTROL_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        hub.borrow_mut().tick();
    }
}

async fn look_at_load(hub: SharedHub) {
    let mut ticks = interval(Duration::from_nanos(ADMISSION_LOOK_NS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        hub.borrow_mut().look_at_load();
    }
}

async fn retry(hub: SharedHub) {
    let backlog = Rc::clone(&hub.borrow().backlog);
    loop {
        backlog.notified().await;
        loop {
            sleep(RING_RETRY).await;
            if !hub.borrow_mut().retry() {
                break;
            }
        }
    }
}

/// BYE first, because without it players wait for ever; then sessions, streams, connections.
async fn shut_down(hub: &SharedHub, engines: usize, limit: Duration) -> Farewell {
    let look = |hub: &mut Hub| (0..engines).for_each(|engine| hub.look_for_end(engine));
    if hub.borrow_mut().service.begin_shutdown() > 0 {
        hub.borrow_mut().stop_engines();
        let bye = async {
            loop {
                look(&mut hub.borrow_mut());
                if hub.borrow().service.unfinished_count() == 0 || hub.borrow().engines_gone() {
                    return;
                }
                sleep(END_POLL).await;
            }
        };
        // Viewers that were not notified by then are not notified.
        let _ = timeout(BYE_LIMIT.min(limit), bye).await;
    }
    {
        let mut hub = hub.borrow_mut();
        let now = hub.now();
        hub.rtsp().shut_down(now);
        hub.flush();
    }
    let end = async {
        loop {
            look(&mut hub.borrow_mut());
            if hub.borrow().service.place_count() == 0 && hub.borrow().line_count() == 0 {
                return;
            }
            sleep(END_POLL).await;
        }
    };
    // The rest is counted below.
    let _ = timeout(limit, end).await;
    let mut hub = hub.borrow_mut();
    hub.finish_log();
    hub.publish();
    Farewell { streams_left: hub.service.place_count(), connections_left: hub.line_count() }
}

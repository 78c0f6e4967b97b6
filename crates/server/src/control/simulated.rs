//! The control plane in a simulation of the whole server: the same tasks, on the simulation's own
//! runtime and clock, with connections and engines that the simulation brings.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use millrace_offload::command::ConnSocket;
use millrace_web::Order;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::hub::{Hub, SharedHub};
use super::run::{answer, hear_checks};
use super::stream::{ConnOrigin, ViewerStream};
use super::{Asker, ControlClock, ControlConfig, ControlSheets, EnginePort, conn, orders};
use crate::service::{Library, Service, ServiceEvent};
use crate::session::{Entropy, Server, UdpPort};

/// Called with everything that happens.
pub type Observer = Box<dyn FnMut(&ServiceEvent)>;

/// A simulated connection. Of one that the web side has, this is the name that an order carries:
/// such a name is never readable.
pub trait SimulatedSocket: fmt::Debug + Send + Sync {
    /// Whether a read would not wait.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()>;
    /// Whether a write would not wait.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()>;
    /// Reads what has arrived; 0: no more comes.
    ///
    /// # Errors
    /// As of a socket that does not block.
    fn try_read(&self, to: &mut [u8]) -> io::Result<usize>;
    /// Writes what there is room for.
    ///
    /// # Errors
    /// As of a socket that does not block.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the stream behind what was written.
    fn shut_write(&self);
    /// The socket for the loop that must write to it.
    ///
    /// # Errors
    /// No descriptor is left.
    fn for_loop(&self) -> io::Result<ConnSocket>;
}

/// What the control plane uses of the simulation.
pub struct SimulatedParts {
    /// The time.
    pub clock: Box<dyn ControlClock>,
    /// The titles.
    pub library: Box<dyn Library>,
    /// Session names.
    pub entropy: Box<dyn Entropy>,
    /// The engines.
    pub engines: Vec<Box<dyn EnginePort>>,
    /// Sees what happens.
    pub observer: Observer,
}

impl fmt::Debug for SimulatedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedParts").finish_non_exhaustive()
    }
}

/// The control plane. Its tasks end with the `LocalSet` in which it was started.
pub struct SimulatedControl {
    hub: SharedHub,
    asker: Asker,
    orders: mpsc::UnboundedSender<Order>,
}

impl fmt::Debug for SimulatedControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedControl").finish_non_exhaustive()
    }
}

impl SimulatedControl {
    /// Starts its tasks. Bells are not watched: the caller takes events and openings.
    pub fn start(config: ControlConfig, parts: SimulatedParts) -> Self {
        let SimulatedParts { clock, library, entropy, engines, observer } = parts;
        let service = Service::new(config.session.service.clone(), library);
        let server = Server::new(config.session, entropy);
        let (checked, hears_checked) = mpsc::unbounded_channel();
        let faces = (config.write_timeout_ns, config.feed);
        let mut hub = Hub::new(clock, service, server, engines, faces, ControlSheets::default(), checked);
        hub.observer = Some(observer);
        let hub: SharedHub = Rc::new(RefCell::new(hub));
        let (orders, ordered) = mpsc::unbounded_channel();
        let (asks, mut asked) = mpsc::unbounded_channel();
        spawn_local(hear_checks(Rc::clone(&hub), hears_checked));
        spawn_local(orders::take(Rc::clone(&hub), ordered));
        let answering = Rc::clone(&hub);
        spawn_local(async move { answer(&answering, &mut asked).await });
        Self { hub, asker: Asker(asks), orders }
    }

    /// Where the web side sends its orders.
    pub fn orders(&self) -> mpsc::UnboundedSender<Order> {
        self.orders.clone()
    }

    /// Where the web side asks for everything else.
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Serves RTSP on a connection; `false`: there are too many.
    pub fn accept(&self, socket: Arc<dyn SimulatedSocket>, peer: SocketAddr, local: SocketAddr) -> bool {
        let from = ConnOrigin { peer, local, writer: None, is_encrypted: false };
        let line = self.hub.borrow_mut().accept(ViewerStream::Simulated(socket), from);
        let is_open = line.is_some();
        if let Some(line) = line {
            spawn_local(conn::serve(Rc::clone(&self.hub), line, Vec::new()));
        }
        is_open
    }

    /// A datagram has arrived at the RTCP port.
    pub fn receive_report(&self, from: SocketAddr, bytes: &[u8]) {
        let mut hub = self.hub.borrow_mut();
        let now = hub.now();
        hub.rtsp().handle_datagram(now, UdpPort::Rtcp, from, bytes);
        hub.flush();
    }

    /// Takes what an engine reports, and hands over commands that waited for room.
    pub fn look_at_engine(&self, engine: usize) {
        let mut hub = self.hub.borrow_mut();
        while hub.take_events(engine) {}
        hub.retry();
    }

    /// Takes the library's answers.
    pub fn take_openings(&self) {
        self.hub.borrow_mut().take_openings();
    }

    /// Does the periodic checks.
    pub fn tick(&self) {
        self.hub.borrow_mut().tick();
    }

    /// Reads the service's state.
    pub fn look<T>(&self, read: impl FnOnce(&Service) -> T) -> T {
        read(&self.hub.borrow().service)
    }
}

//! The control plane in a simulation of the whole server: the same tasks, on the simulation's own
//! runtime and clock, with connections and engines that the simulation brings.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use millrace_web::Order;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::hub::{Hub, SharedHub};
use super::run::{answer, hear_checks};
pub use super::stream::SimulatedSocket;
use super::stream::{ConnOrigin, ViewerStream};
use super::{Asker, ControlClock, ControlConfig, ControlSheets, EnginePort, conn, orders};
use crate::service::{Library, Service, ServiceEvent};
use crate::session::{Entropy, Server, UdpPort};

/// A callback for each event.
pub type Observer = Box<dyn FnMut(&ServiceEvent)>;

/// The parts of the simulation that the control plane uses.
pub struct SimulatedParts {
    /// The time.
    pub clock: Box<dyn ControlClock>,
    /// The titles.
    pub library: Box<dyn Library>,
    /// Session names.
    pub entropy: Box<dyn Entropy>,
    /// The engines.
    pub engines: Vec<Box<dyn EnginePort>>,
    /// Called with each event.
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
        let sheets = ControlSheets::default();
        let casts = Arc::clone(&sheets.casts);
        let mut hub = Hub::new(clock, service, server, engines, faces, sheets, checked);
        hub.observer = Some(observer);
        let hub: SharedHub = Rc::new(RefCell::new(hub));
        let (orders, ordered) = mpsc::unbounded_channel();
        let (asks, mut asked) = mpsc::unbounded_channel();
        spawn_local(hear_checks(Rc::clone(&hub), hears_checked));
        spawn_local(orders::take(Rc::clone(&hub), ordered));
        let answering = Rc::clone(&hub);
        spawn_local(async move { answer(&answering, &mut asked).await });
        Self { hub, asker: Asker { asks, casts }, orders }
    }

    /// The sender for orders of the web side.
    pub fn orders(&self) -> mpsc::UnboundedSender<Order> {
        self.orders.clone()
    }

    /// The sender for all other requests of the web side.
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

    /// Takes the events of an engine, and hands over commands that waited for room.
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

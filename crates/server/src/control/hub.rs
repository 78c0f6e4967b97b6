//! What all tasks share: the service, the session server, the engines' handles and the lines to the viewers.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use millrace_core::ids::{ConnId, ViewerSession};
use millrace_core::limits::MAX_CONN_PENDING_BYTES;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_offload::command::{self, Command};
use millrace_offload::toe;
use tokio::sync::{Notify, mpsc};

use super::connection::{ConnWriter, ControlConnection};
use super::counters::{ServerCounters, ServerGauges};
use super::log::ClientLog;
use super::offload::OffloadCounters;
use super::refusals::Refusals;
use super::stream::{ConnOrigin, ViewerStream};
use super::titles::TitleTotals;
use super::tunnel::{Tunnel, TunnelKey};
use super::{ControlClock, ControlSheets, EnginePort, Snapshot};
use crate::limits::control::{EVENTS_PER_TURN, MAX_BACKLOG};
use crate::service::{self, ConnKey, ConnRefusal, Service};
use crate::session::{Output, RtspFace, Server, canonical};

/// One thread, so no lock; borrowed only between two awaits.
pub(super) type SharedHub = Rc<RefCell<Hub>>;

pub(super) struct Hub {
    clock: Box<dyn ControlClock>,
    pub(super) service: Service,
    pub(super) server: Server,
    engines: Vec<EngineLink>,
    pub(super) lines: HashMap<ConnKey, Rc<ControlConnection>>,
    /// Tunnels of RTSP in HTTP by their keys; at most as many as there are connections.
    pub(super) tunnels: HashMap<TunnelKey, Rc<Tunnel>>,
    /// Subscribers of what happens, with the log.
    counters: ServerCounters,
    titles: TitleTotals,
    log: ClientLog,
    feed: millrace_web::Feed,
    write_timeout_ns: u64,
    refusals: Refusals,
    sheets: ControlSheets,
    /// The offload engine that carries connections, and the loop that writes to them.
    offload: Option<(toe::Host, usize)>,
    /// Connections that ended with it, before it was known that it has.
    offload_cut: usize,
    /// What offload engines have done that run no more.
    offload_before: OffloadCounters,
    /// The loops are being stopped, and the offload engine with them.
    is_ending: bool,
    /// Where checked passwords are reported.
    pub(super) checked: mpsc::UnboundedSender<ConnKey>,
    /// Rung when a command had to wait.
    pub(super) backlog: Rc<Notify>,
    /// Rung when no more commands wait.
    pub(super) room: Rc<Notify>,
    /// Callback of a simulation for each event.
    #[cfg(feature = "sim")]
    pub(super) observer: Option<super::simulated::Observer>,
}

struct EngineLink {
    handle: Box<dyn EnginePort>,
    /// Commands that the ring had no room for, in their order.
    waiting: VecDeque<Command>,
    /// It was not woken yet for its newest commands. It is woken once for several: on a core that both
    /// share, each wake-up interrupts the control thread.
    has_unrung: bool,
    gone: bool,
}

impl Hub {
    pub(super) fn new(
        clock: Box<dyn ControlClock>,
        service: Service,
        server: Server,
        engines: Vec<Box<dyn EnginePort>>,
        (write_timeout_ns, feed): (u64, millrace_web::Feed),
        sheets: ControlSheets,
        checked: mpsc::UnboundedSender<ConnKey>,
    ) -> Self {
        let link = |handle| EngineLink { handle, waiting: VecDeque::new(), has_unrung: false, gone: false };
        Self {
            clock,
            service,
            server,
            engines: engines.into_iter().map(link).collect(),
            lines: HashMap::new(),
            tunnels: HashMap::new(),
            counters: ServerCounters::default(),
            titles: TitleTotals::default(),
            log: ClientLog::default(),
            feed,
            write_timeout_ns,
            refusals: Refusals::default(),
            sheets,
            offload: None,
            offload_cut: 0,
            offload_before: OffloadCounters::default(),
            is_ending: false,
            checked,
            backlog: Rc::new(Notify::new()),
            room: Rc::new(Notify::new()),
            #[cfg(feature = "sim")]
            observer: None,
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// RTSP, for one call.
    pub(super) fn rtsp(&mut self) -> RtspFace<'_> {
        self.server.face(&mut self.service)
    }

    /// No descriptor was left for `what`.
    pub(super) fn no_files(&mut self, what: &str, error: &std::io::Error) {
        let now = self.now();
        self.log.no_files(now, what, error);
    }

    /// The last log lines about clients.
    pub(super) fn finish_log(&mut self) {
        self.log.finish();
    }

    /// A new connection; `None` if there are too many.
    pub(super) fn accept(&mut self, stream: ViewerStream, from: ConnOrigin) -> Option<Rc<ControlConnection>> {
        let now = self.now();
        let opened = self.rtsp().conn_opened(now, from.peer, from.local);
        if let (Ok(key), Some(writer)) = (&opened, from.writer) {
            self.service.bind_conn(*key, writer);
        }
        if let (Ok(key), true) = (&opened, from.is_encrypted) {
            self.server.conn_is_encrypted(*key);
        }
        let line = opened.ok().map(|key| Rc::new(ControlConnection::new(key, stream)));
        if let Some(line) = &line {
            self.lines.insert(line.key, Rc::clone(line));
        }
        self.flush();
        line
    }

    /// A connection that comes with an order; given back if there are too many.
    pub(super) fn accept_order(
        &mut self,
        stream: ViewerStream,
        peer: SocketAddr,
        session: Option<ViewerSession>,
    ) -> Result<Rc<ControlConnection>, (ViewerStream, ConnRefusal)> {
        let opened = self.service.conn_lent(peer, session);
        self.flush();
        let key = match opened {
            Ok(key) => key,
            Err(refusal) => return Err((stream, refusal)),
        };
        if let Some((_, writer)) = self.offload.as_ref().filter(|_| stream.is_offloaded()) {
            self.service.bind_conn(key, *writer);
        }
        let line = Rc::new(ControlConnection::new(key, stream));
        self.lines.insert(key, Rc::clone(&line));
        Ok(line)
    }

    /// The connection is closed.
    pub(super) fn hang_up(&mut self, key: ConnKey) {
        let line = self.lines.remove(&key);
        let tunnel = line.as_ref().and_then(|line| line.tunnel.take());
        if let Some(tunnel) = tunnel.and_then(|tunnel| self.tunnels.remove(&tunnel)) {
            tunnel.end();
        }
        // The connections may notice the engine's end before its listeners do.
        if line.is_some_and(|line| line.stream.is_offloaded())
            && self.offload.as_ref().is_some_and(|(host, _)| host.is_stopped())
        {
            self.offload_cut += 1;
        }
        let now = self.now();
        match self.server.has_conn(key) {
            true => self.rtsp().conn_closed(now, key),
            // It was lent, and its place is given back like any other.
            false => self.service.conn_closed(now, key),
        }
        self.flush();
    }

    /// Handles received ICMP errors: about these addresses, and `hearsay` of them that do not
    /// count.
    pub(super) fn icmp_errors(&mut self, unreachable: &[(SocketAddr, i32)], hearsay: u64) {
        for _ in 0..hearsay {
            self.publish_event(&service::ServiceEvent::IcmpHearsay);
        }
        // An engine that is not notified now is notified of the next one.
        if !self.is_congested() {
            for &(dest, errno) in unreachable {
                // It is no reason to end a session: a player may come back, and one that does not
                // is silent.
                self.service.unreachable(canonical(dest), errno);
            }
            self.flush();
        }
    }

    /// The offload engine carries connections from now on.
    pub(super) fn offload_up(&mut self, host: toe::Host, at: Vec<SocketAddr>, writer: usize) {
        self.offload = Some((host, writer));
        self.publish_event(&service::ServiceEvent::OffloadUp { at });
    }

    /// Publishes the counters of the running offload engine.
    pub(super) fn offload_counts(&self, now: &OffloadCounters) {
        self.sheets.offload.publish(&self.offload_before.and(now));
    }

    /// What one has done that runs no more.
    pub(super) fn offload_counted(&mut self, all: &OffloadCounters) {
        // Nothing that it held is left.
        self.offload_before = self.offload_before.and(all).and(&OffloadCounters::default());
        self.sheets.offload.publish(&self.offload_before);
    }

    /// The offload engine has ended, and with it every connection that it carried. `false`: so does everything.
    pub(super) fn offload_lost(&mut self, why: String) -> bool {
        if self.is_ending {
            return false;
        }
        self.offload = None;
        let lost: Vec<_> =
            self.lines.values().filter(|line| line.stream.is_offloaded()).map(Rc::clone).collect();
        let connections = lost.len() + std::mem::take(&mut self.offload_cut);
        self.publish_event(&service::ServiceEvent::OffloadLost { connections, why });
        for line in lost {
            line.broken.set(true);
            line.wake.notify_one();
        }
        true
    }

    pub(super) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Carries out the outputs of the service and of the session server.
    pub(super) fn flush(&mut self) {
        self.flush_unrung();
        self.ring_engines();
    }

    fn ring_engines(&mut self) {
        for link in self.engines.iter_mut().filter(|link| link.has_unrung) {
            link.has_unrung = false;
            link.handle.ring();
        }
    }

    /// Does the same for a caller that flushes again at once: engines are not woken yet.
    pub(super) fn flush_unrung(&mut self) {
        let now = self.now();
        self.rtsp().drain_service(now);
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Service(output) => self.carry_out(output),
                Output::Reply { conn, bytes } => self.write_to(conn, bytes),
                Output::Close { conn } => {
                    if let Some(line) = self.lines.get(&conn) {
                        line.closing.set(true);
                        line.wake.notify_one();
                    }
                }
                Output::Check { conn, check } => self.check_password(conn, check),
                Output::Ask { conn, question } => self.ask_beside(conn, question),
            }
        }
    }

    fn carry_out(&mut self, output: service::Output) {
        match output {
            service::Output::Attach { conn, engine, id } => self.attach(conn, engine, id),
            service::Output::Hold { conn } => {
                if let Some(line) = self.lines.get(&conn) {
                    line.writer.replace(ConnWriter::Nobody(Vec::new()));
                }
            }
            service::Output::Command { engine, command } => self.send(engine, command),
            service::Output::Event(event) => self.publish_event(&event),
        }
    }

    /// Sends an event to all subscribers: one more is one more line here.
    fn publish_event(&mut self, event: &service::ServiceEvent) {
        let now = self.now();
        self.counters.count(event);
        self.titles.count(event);
        let wall_s = || (now.0 + self.clock.wall_offset_ns()) / NS_PER_S;
        self.refusals.note(wall_s, event);
        self.log.write(now, event);
        super::news::tell(&self.feed, event);
        #[cfg(feature = "sim")]
        if let Some(observer) = &mut self.observer {
            observer(event);
        }
        self.tell_order(event);
    }

    /// Notifies an order's task of the events it waits for.
    fn tell_order(&self, event: &service::ServiceEvent) {
        let tell = |conn: &ConnKey, tell: fn(&ControlConnection)| {
            if let Some(line) = self.lines.get(conn) {
                tell(line);
                line.wake.notify_one();
            }
        };
        match event {
            service::ServiceEvent::BytesSent { conn } => tell(conn, |line| line.order.sent.set(true)),
            service::ServiceEvent::Ended { is_bytes: true, conn: Some(conn), .. } => {
                tell(conn, |line| line.order.over.set(true));
            }
            service::ServiceEvent::ConnectionReturned { conn } => tell(conn, |line| {
                line.writer.replace(ConnWriter::Control);
                line.order.returned.set(true);
            }),
            // The connections of RTSP are closed by its server.
            service::ServiceEvent::ConnectionLost { conn } => tell(conn, |line| line.order.lost.set(true)),
            _ => {}
        }
    }

    pub(super) fn write_to(&mut self, conn: ConnKey, bytes: Vec<u8>) {
        let Some(line) = self.lines.get(&conn).cloned() else { return };
        match &mut *line.writer.borrow_mut() {
            ConnWriter::Control => return line.write(self.now(), &bytes),
            ConnWriter::Engine(engine, conn) => self.send(*engine, Command::ConnWrite { conn: *conn, bytes }),
            // Hardly more than one reply: no request is taken meanwhile.
            ConnWriter::Nobody(held) if held.len() + bytes.len() <= MAX_CONN_PENDING_BYTES => {
                held.extend(bytes)
            }
            ConnWriter::Nobody(_) => line.broken.set(true),
        }
        line.wake.notify_one();
    }

    /// From here on, the engine is the only writer. Only held-back bytes wait to be written:
    /// requests are taken one by one, and only when the previous reply has gone out.
    fn attach(&mut self, key: ConnKey, engine: usize, id: ConnId) {
        let Some(line) = self.lines.get(&key).cloned() else { return };
        let before = line.writer.replace(ConnWriter::Engine(engine, id));
        match line.stream.for_loop() {
            Ok(socket) => self.send(engine, Command::ConnAdd { conn: id, socket }),
            Err(error) => {
                self.no_files("a connection cannot be passed to its engine", &error);
                line.broken.set(true);
            }
        }
        if let ConnWriter::Nobody(held) = before {
            if !held.is_empty() {
                self.send(engine, Command::ConnWrite { conn: id, bytes: held });
            }
            line.wake.notify_one();
        }
    }

    fn send(&mut self, engine: usize, command: Command) {
        let Some(link) = self.engines.get_mut(engine) else { return };
        if link.gone {
            return;
        }
        link.waiting.push_back(command);
        self.push_waiting(engine);
    }

    /// Hands over what waits, as far as there is room.
    fn push_waiting(&mut self, engine: usize) {
        let link = &mut self.engines[engine];
        while let Some(command) = link.waiting.pop_front() {
            if let Err(command) = link.handle.send(command) {
                link.waiting.push_front(command);
                return self.backlog.notify_one();
            }
            link.has_unrung = true;
        }
    }

    /// Tries again to hand over what waits; whether anything still does.
    pub(super) fn retry(&mut self) -> bool {
        for engine in 0..self.engines.len() {
            if !self.engines[engine].waiting.is_empty() {
                self.push_waiting(engine);
            }
        }
        self.ring_engines();
        let waiting = self.engines.iter().any(|link| !link.waiting.is_empty());
        if !self.is_congested() {
            self.room.notify_waiters();
        }
        waiting
    }

    /// Returns whether connections should not be read now: their requests could not be handed over.
    pub(super) fn is_congested(&self) -> bool {
        self.engines.iter().any(|link| link.waiting.len() > MAX_BACKLOG)
    }

    pub(super) fn engine_port(&self, engine: usize) -> Option<&dyn EnginePort> {
        self.engines.get(engine).map(|link| &*link.handle)
    }

    /// Takes an engine's events; returns whether there may be more.
    pub(super) fn take_events(&mut self, engine: usize) -> bool {
        self.engines[engine].handle.rearm();
        for _ in 0..EVENTS_PER_TURN {
            match self.engines[engine].handle.poll_event() {
                // The buffer of a written reply: freed here, on the side that may.
                Some(command::Event::Recycle { .. }) => {}
                Some(event) => {
                    let now = self.now();
                    self.service.engine_event(now, engine, event);
                    self.flush();
                }
                None => return false,
            }
        }
        true
    }

    /// The library has opened something, or could not.
    pub(super) fn take_openings(&mut self) {
        let now = self.now();
        for conn in self.rtsp().take_openings(now) {
            if let Some(line) = self.lines.get(&conn) {
                line.order.opened.set(true);
                line.wake.notify_one();
            }
        }
        self.flush();
    }

    /// Does the periodic checks.
    pub(super) fn tick(&mut self) {
        let now = self.now();
        self.server.set_wall_offset_ns(self.clock.wall_offset_ns());
        self.rtsp().tick(now);
        let stuck = |line: &ControlConnection| {
            line.stuck_since.get().is_some_and(|since| now.ns_since(since) > self.write_timeout_ns)
        };
        let not_reading: Vec<_> =
            self.lines.values().filter(|line| stuck(line) && !line.broken.get()).cloned().collect();
        for line in not_reading {
            self.publish_event(&service::ServiceEvent::NotReading);
            line.broken.set(true);
            line.wake.notify_one();
        }
        for engine in 0..self.engines.len() {
            // A lost ring of the bell costs half a second, not the session.
            while self.take_events(engine) {}
            self.look_for_end(engine);
        }
        self.flush();
        self.log.tell_left_out(now);
        self.retry();
        self.publish();
    }

    /// Passes the totals of the engines and the cache on to admission.
    pub(super) fn look_at_load(&mut self) {
        let now = self.now();
        self.service.look_at_cache(now);
        for (engine, link) in self.engines.iter().enumerate() {
            if let Some(figures) = link.handle.figures() {
                self.service.look_at_load(now, engine, figures);
            }
        }
        self.flush();
    }

    /// Shows other threads how things stand.
    pub(super) fn publish(&mut self) {
        self.sheets.rounds.fetch_add(1, Ordering::Relaxed);
        self.sheets.counters.publish(&self.counters);
        self.titles.publish(&self.sheets.titles);
        self.sheets.casts.publish(self.service.casts());
        let service = &self.service;
        self.sheets.held.publish(&ServerGauges {
            connections: service.connection_count() as u64,
            deliveries: service.lent_count() as u64,
            sessions: service.session_count() as u64,
            segment_viewers: service.fetchers().count() as u64,
            streams: service.place_count() as u64,
            reserved_bits_per_s: service.reserved_rate(),
        });
    }

    /// Notices that an engine's thread has ended.
    pub(super) fn look_for_end(&mut self, engine: usize) {
        let link = &mut self.engines[engine];
        if link.gone || !link.handle.is_finished() {
            return;
        }
        while self.take_events(engine) {} // its last words
        let link = &mut self.engines[engine];
        link.gone = true;
        link.waiting.clear();
        let now = self.now();
        self.service.engine_gone(now, engine);
        self.flush();
    }

    /// Whether every engine's thread has ended.
    pub(super) fn engines_gone(&self) -> bool {
        self.engines.iter().all(|link| link.gone)
    }

    /// Ends the engines: they say BYE to whom they send.
    pub(super) fn stop_engines(&mut self) {
        self.is_ending = true;
        for engine in 0..self.engines.len() {
            self.send(engine, Command::Stop);
        }
        self.ring_engines();
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let service = &self.service;
        Snapshot {
            counters: self.counters,
            sessions: self.server.sessions(service, self.now()),
            fetchers: service.fetchers().cloned().collect(),
            now: self.now(),
            connections: service.connection_count(),
            deliveries: service.lent_count(),
            streams: service.place_count(),
            reserved_rate: service.reserved_rate(),
            in_use: service.in_use(),
            casts: service.casts(),
            turned_away: self.refusals.list(),
        }
    }
}

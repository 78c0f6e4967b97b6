//! The server in the simulation: the real service and sessions, the real loops, the real cache. Only
//! the sockets and tasks of `control` are simulated.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use millrace_core::ids::ConnId;
use millrace_core::limits::control::CONN_LINGER;
use millrace_core::limits::{MAX_BURST_NS, MAX_CONN_PENDING_BYTES, RETRY_NS, RING_RECORDS};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Clock, Doorbell};
use millrace_core::time::Instant;
use millrace_engine::{Engine, EngineConfig};
use millrace_offload::adaptive_burst::AdaptiveBurst;
use millrace_offload::bell::EventBell;
use millrace_offload::command::{Command, ConnSocket, Event};
use millrace_offload::core_loop::CoreLoop;
use millrace_offload::idle::IdlePolicy;
use millrace_offload::load::{LoadMeter, LoopSheets};
use millrace_server::admission::AdmissionConfig;
use millrace_server::limits::RTSP_WRITE_TIMEOUT_NS;
use millrace_server::limits::control::CONTROL_TICK;
use millrace_server::rtsp::{Framer, Incoming};
use millrace_server::service::{self, ConnKey, Service, ServiceConfig, ServiceEvent};
use millrace_server::session::{Entropy, Output, RtspFace, Server, ServerConfig, UdpPort};
use millrace_store::cache::{CacheConfig, SteppedCache};
use millrace_store::disk::ReadFaults;
use millrace_store::volume::Volume;

use crate::library::SimLibrary;
use crate::network::{SharedNetwork, SimClock, path_mtu, route_source};
use crate::scenario::ServerPlan;
use crate::titles::StoredVolume;
use crate::transmit::SimTx;

/// The server's RTP and RTCP ports.
const PORTS: (u16, u16) = (50_000, 50_001);
/// How long a session may be silent.
pub const SESSION_TIMEOUT_NS: u64 = 10_000_000_000;
/// And how much longer it is kept.
pub const SESSION_SLACK_NS: u64 = 1_000_000_000;

/// Session names that are the same for the same seed.
struct SeededEntropy(millrace_core::random::SplitMix);

impl Entropy for SeededEntropy {
    fn bytes16(&mut self) -> Option<[u8; 16]> {
        let number = u128::from(self.0.next()) << 64 | u128::from(self.0.next());
        Some(number.to_be_bytes())
    }
}

/// One engine and its rings.
struct LoopSide {
    core: CoreLoop<SimClock, SimTx>,
    commands: rtrb::Producer<Command>,
    events: rtrb::Consumer<Event>,
    /// Commands that the ring had no room for.
    waiting: VecDeque<Command>,
}

/// The side that writes to a connection, as in the control plane.
enum ConnWriterSide {
    Control,
    Engine(usize, ConnId),
    Neither(Vec<u8>),
}

/// A connection as the control side has it.
struct HostConnection {
    number: u32,
    framer: Framer,
    writer: ConnWriterSide,
    /// Replies that the connection has not taken, and since when.
    out: VecDeque<Vec<u8>>,
    stuck_since: Option<Instant>,
    has_ended: bool,
    /// It is closed as soon as the viewer has closed it, at the latest then.
    closing: Option<Instant>,
    is_broken: bool,
}

/// The server.
pub struct SimHost {
    clock: SimClock,
    network: SharedNetwork,
    service: Service,
    server: Server,
    loops: Vec<LoopSide>,
    /// The titles and the cache.
    pub library: SimLibrary,
    /// The cache's memory.
    pub arena: Arc<ExtentArena>,
    conns: BTreeMap<ConnKey, HostConnection>,
    next_tick: Instant,
    null: OwnedFd,
    /// Unix time minus monotonic time.
    wall_offset_ns: u64,
    /// Events of the service that have not been checked yet.
    pub happened: Vec<ServiceEvent>,
}

fn server_config(plan: &ServerPlan) -> ServerConfig {
    let service = ServiceConfig {
        engines: plan.engines,
        streams_per_engine: plan.streams_per_engine,
        conns_per_engine: 16,
        max_streams: plan.max_streams,
        max_sessions: plan.max_streams + 2,
        address_share_percent: 100,
        admission: AdmissionConfig::off(),
        fast_start_ms: plan.fast_start_ms,
        path_mtu,
        ..ServiceConfig::default()
    };
    ServerConfig {
        service,
        session_timeout_ns: SESSION_TIMEOUT_NS,
        session_slack_ns: SESSION_SLACK_NS,
        ports_v4: Some(PORTS),
        route_source,
        ..ServerConfig::default()
    }
}

impl SimHost {
    /// Starts the server on a volume.
    ///
    /// # Errors
    /// If the volume cannot be read.
    pub fn start(
        (clock, network): (SimClock, SharedNetwork),
        plan: &ServerPlan,
        stored: &StoredVolume,
        (faults, seed): (ReadFaults, u64),
    ) -> Result<Self, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let volume = Volume::open_members(&stored.dirs).map_err(|error| said(&error))?;
        let arena = ExtentArena::new(Box::new(HeapRegion::new(plan.extents)));
        let now = clock.now();
        let bells: Vec<_> = (0..plan.engines)
            .map(|_| EventBell::new().map(Arc::new).map_err(|error| said(&error)))
            .collect::<Result<_, _>>()?;
        let config = CacheConfig {
            reads_in_flight: plan.reads_in_flight,
            prefetch_ns: plan.prefetch_ns,
            ..CacheConfig::default()
        };
        let doorbells = bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Doorbell>).collect();
        let cache_clock = Arc::new(clock.clone());
        let (cache, handles) =
            SteppedCache::new(config, Arc::clone(&arena), cache_clock, doorbells, (faults, seed))
                .map_err(|error| said(&error))?;
        let library = SimLibrary::new(clock.clone(), volume, cache, seed)?;
        let mut loops = Vec::new();
        for (bell, handle) in bells.into_iter().zip(handles) {
            let (commands, command_end) = rtrb::RingBuffer::new(RING_RECORDS);
            let (event_end, events) = rtrb::RingBuffer::new(RING_RECORDS);
            let engine = EngineConfig {
                streams: plan.streams_per_engine,
                smooth: plan.is_smooth,
                shares_wakes: plan.shares_wakes,
                ..EngineConfig::default()
            };
            let burst = AdaptiveBurst::new(engine.burst_ns, MAX_BURST_NS, now);
            let core = CoreLoop::new(
                clock.clone(),
                Engine::new(engine),
                handle,
                SimTx::new(network.clone()),
                command_end,
                event_end,
                Arc::clone(&bell),
                bell,
                IdlePolicy::default(),
                LoadMeter::new(LoopSheets::default(), now),
                burst,
            );
            loops.push(LoopSide { core, commands, events, waiting: VecDeque::new() });
        }
        let entropy = SeededEntropy(millrace_core::random::SplitMix::numbered(seed, 3));
        let config = server_config(plan);
        let service = Service::new(config.service.clone(), Box::new(library.clone()));
        let server = Server::new(config, Box::new(entropy));
        let null = File::open("/dev/null").map_err(|error| said(&error))?.into();
        Ok(Self {
            clock,
            network,
            service,
            server,
            loops,
            library,
            arena,
            conns: BTreeMap::new(),
            next_tick: now,
            null,
            wall_offset_ns: 1_700_000_000_000_000_000,
            happened: Vec::new(),
        })
    }

    /// The wall clock is set.
    pub fn step_wall_clock(&mut self, offset_ns: u64) {
        self.wall_offset_ns = offset_ns;
    }

    /// A viewer connects; `false`: the server refuses.
    pub fn accept(&mut self, number: u32, peer: SocketAddr) -> bool {
        let now = self.clock.now();
        let local = SocketAddr::from(([192, 0, 2, 1], 554));
        let opened = self.rtsp().conn_opened(now, peer, local);
        let is_open = opened.is_ok();
        if let Ok(key) = opened {
            let conn = HostConnection {
                number,
                framer: Framer::default(),
                writer: ConnWriterSide::Control,
                out: VecDeque::new(),
                stuck_since: None,
                has_ended: false,
                closing: None,
                is_broken: false,
            };
            self.conns.insert(key, conn);
            let mut network = self.network.lock();
            network.conns.entry(number).or_default().server_ends = 1;
        }
        self.flush();
        is_open
    }

    /// A datagram arrives at the RTCP port.
    pub fn receive_report(&mut self, from: SocketAddr, bytes: &[u8]) {
        let now = self.clock.now();
        self.rtsp().handle_datagram(now, UdpPort::Rtcp, from, bytes);
        self.flush();
    }

    /// Does everything that can be done now.
    pub fn run(&mut self) {
        let now = self.clock.now();
        if now >= self.next_tick {
            self.next_tick = now.plus_ns(CONTROL_TICK.as_nanos() as u64);
            self.tick(now);
        }
        // A few rounds are enough; the bound finds a server that never comes to rest.
        for _ in 0..10_000 {
            if self.round(now) == 0 {
                return;
            }
        }
        panic!("the server does not come to rest at {} ns", now.0);
    }

    fn round(&mut self, now: Instant) -> usize {
        let mut work = 0;
        if self.library.has_answer(now) {
            // HTTP alone has orders that wait for a title.
            let _ = self.rtsp().take_openings(now);
            self.flush();
            work += 1;
        }
        let keys: Vec<_> = self.conns.keys().copied().collect();
        for key in keys {
            work += self.serve(now, key);
        }
        for engine in 0..self.loops.len() {
            self.push_waiting(engine);
            work += self.loops[engine].core.turn().1;
            work += self.take_events(now, engine);
        }
        work + self.library.turn_cache(now)
    }

    fn take_events(&mut self, now: Instant, engine: usize) -> usize {
        let mut taken = 0;
        while let Ok(event) = self.loops[engine].events.pop() {
            taken += 1;
            if !matches!(event, Event::Recycle { .. }) {
                self.service.engine_event(now, engine, event);
                self.flush();
            }
        }
        taken
    }

    fn tick(&mut self, now: Instant) {
        self.server.set_wall_offset_ns(self.wall_offset_ns);
        self.rtsp().tick(now);
        let is_stuck = |conn: &HostConnection| {
            conn.stuck_since.is_some_and(|since| now.ns_since(since) > RTSP_WRITE_TIMEOUT_NS)
        };
        self.conns.values_mut().filter(|conn| is_stuck(conn)).for_each(|conn| conn.is_broken = true);
        self.flush();
    }

    /// When it has something to do although nothing arrives.
    pub fn poll_at(&self) -> Instant {
        let loops = self.loops.iter().filter_map(|side| side.core.engine.poll_at());
        let lingering = self.conns.values().filter_map(|conn| conn.closing);
        let blocked = self.conns.values().any(|conn| !conn.out.is_empty());
        let retry = blocked.then(|| self.clock.now().plus_ns(RETRY_NS));
        let all = loops.chain(lingering).chain(self.library.poll_at()).chain(retry);
        all.fold(self.next_tick, Instant::min)
    }

    /// Reads one connection, hands over its messages, and closes it when it is over.
    fn serve(&mut self, now: Instant, key: ConnKey) -> usize {
        let mut work = self.write_out(now, key);
        let Some(conn) = self.conns.get_mut(&key) else { return work };
        if conn.closing.is_none() && conn.out.is_empty() {
            while let Some(bytes) = self.network.lock().read_up(conn.number) {
                conn.framer.push(&bytes);
                work += 1;
            }
        }
        work += self.handle_messages(now, key);
        let Some(conn) = self.conns.get_mut(&key) else { return work };
        {
            let mut network = self.network.lock();
            let wire = network.conns.entry(conn.number).or_default();
            if conn.closing.is_some() {
                wire.up.clear();
            }
            conn.has_ended |= wire.viewer_closed && wire.up.is_empty();
        }
        let is_done = conn.has_ended && (conn.out.is_empty() || conn.closing.is_some());
        let is_late = conn.closing.is_some_and(|at| at <= now);
        if conn.is_broken || is_done || is_late {
            let number = conn.number;
            self.conns.remove(&key);
            self.network.lock().close_server_end(number);
            self.rtsp().conn_closed(now, key);
            self.flush();
            work += 1;
        }
        work
    }

    /// Hands over whole messages, each one only when nothing of the one before is waiting.
    fn handle_messages(&mut self, now: Instant, key: ConnKey) -> usize {
        let mut handled = 0;
        loop {
            let Some(conn) = self.conns.get_mut(&key) else { return handled };
            let is_held = matches!(conn.writer, ConnWriterSide::Neither(_));
            if conn.is_broken || conn.closing.is_some() {
                return handled;
            }
            if !conn.out.is_empty() || is_held || self.server.is_waiting(key) {
                self.server.conn_progress(now, key, false);
                return handled;
            }
            match conn.framer.next_incoming() {
                Ok(Some(Incoming::Request(request))) => self.rtsp().handle_request(now, key, &request),
                Ok(Some(Incoming::Interleaved { channel, bytes })) => {
                    self.rtsp().handle_interleaved(now, key, channel, &bytes);
                }
                Ok(Some(Incoming::Response)) => {}
                Ok(Some(Incoming::Tunnel(_))) => self.rtsp().refuse_tunnel(key, 400, "no tunnel here"),
                Ok(None) => {
                    let mid_message = conn.framer.is_mid_message();
                    self.server.conn_progress(now, key, mid_message);
                    return handled;
                }
                Err(error) => self.rtsp().handle_bad_message(now, key, &error),
            }
            handled += 1;
            self.flush();
        }
    }

    /// RTSP, for one call.
    fn rtsp(&mut self) -> RtspFace<'_> {
        self.server.face(&mut self.service)
    }

    /// Carries out the outputs of the service and of the session server.
    fn flush(&mut self) {
        let now = self.clock.now();
        self.rtsp().drain_service(now);
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Service(output) => self.carry_out(output),
                Output::Reply { conn, bytes } => self.write_to(conn, bytes),
                Output::Close { conn } => {
                    let by = now.plus_ns(CONN_LINGER.as_nanos() as u64);
                    if let Some(conn) = self.conns.get_mut(&conn) {
                        conn.closing = Some(by);
                    }
                }
                Output::Check { .. } | Output::Ask { .. } => unreachable!("there is no gate"),
            }
        }
    }

    fn carry_out(&mut self, output: service::Output) {
        match output {
            service::Output::Attach { conn, engine, id } => self.attach(conn, engine, id),
            service::Output::Hold { conn } => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.writer = ConnWriterSide::Neither(Vec::new());
                }
            }
            service::Output::Command { engine, command } => self.send(engine, command),
            service::Output::Event(event) => self.happened.push(event),
        }
    }

    fn write_to(&mut self, key: ConnKey, bytes: Vec<u8>) {
        let now = self.clock.now();
        let Some(conn) = self.conns.get_mut(&key) else { return };
        match &mut conn.writer {
            ConnWriterSide::Control => {
                let waiting: usize = conn.out.iter().map(Vec::len).sum();
                conn.is_broken |= waiting + bytes.len() > MAX_CONN_PENDING_BYTES;
                conn.out.push_back(bytes);
                self.write_out(now, key);
            }
            ConnWriterSide::Engine(engine, id) => {
                let (engine, conn) = (*engine, *id);
                self.send(engine, Command::ConnWrite { conn, bytes });
            }
            ConnWriterSide::Neither(held) => {
                conn.is_broken |= held.len() + bytes.len() > MAX_CONN_PENDING_BYTES;
                held.extend(bytes);
            }
        }
    }

    /// Writes what waits, as far as the connection takes it.
    fn write_out(&mut self, now: Instant, key: ConnKey) -> usize {
        let Some(conn) = self.conns.get_mut(&key) else { return 0 };
        let mut network = self.network.lock();
        let mut written = 0;
        while !conn.out.is_empty() && network.has_room(conn.number) {
            network.write_down(conn.number, conn.out.pop_front().unwrap_or_default());
            conn.stuck_since = None;
            written += 1;
        }
        if !conn.out.is_empty() {
            conn.stuck_since.get_or_insert(now);
        }
        written
    }

    fn attach(&mut self, key: ConnKey, engine: usize, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let before = std::mem::replace(&mut conn.writer, ConnWriterSide::Engine(engine, id));
        let Ok(socket) = self.null.try_clone() else {
            conn.is_broken = true;
            return;
        };
        let number = conn.number;
        {
            let mut network = self.network.lock();
            network.sockets.insert(socket.as_raw_fd(), number);
            network.conns.entry(number).or_default().server_ends += 1;
        }
        self.send(engine, Command::ConnAdd { conn: id, socket: ConnSocket::Kernel(socket) });
        if let ConnWriterSide::Neither(held) = before
            && !held.is_empty()
        {
            self.send(engine, Command::ConnWrite { conn: id, bytes: held });
        }
    }

    fn send(&mut self, engine: usize, command: Command) {
        self.loops[engine].waiting.push_back(command);
        self.push_waiting(engine);
    }

    fn push_waiting(&mut self, engine: usize) {
        let side = &mut self.loops[engine];
        while let Some(command) = side.waiting.pop_front() {
            if let Err(rtrb::PushError::Full(command)) = side.commands.push(command) {
                return side.waiting.push_front(command);
            }
        }
    }

    /// Returns the resources that the server holds for viewers: none when no viewer is left.
    pub fn held(&self) -> HeldResources {
        let service = &self.service;
        HeldResources {
            connections: service.connection_count(),
            sessions: service.session_count(),
            streams: service.place_count(),
            reserved_streams: service.reserved_streams(),
            reserved_rate: service.reserved_rate(),
            engine_streams: self.loops.iter().map(|side| side.core.engine.counters().open).sum(),
            leased_extents: self.library.leased(),
            title_viewers: self.library.viewers(),
        }
    }
}

/// Everything that viewers make a server hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldResources {
    /// Connections.
    pub connections: usize,
    /// Sessions.
    pub sessions: usize,
    /// Places in the engines, as the service counts them.
    pub streams: usize,
    /// Streams that have reserved room.
    pub reserved_streams: usize,
    /// Bits a second that they have reserved.
    pub reserved_rate: u64,
    /// Streams that are open in the engines.
    pub engine_streams: u64,
    /// Extents that are leased.
    pub leased_extents: u64,
    /// Viewers of open titles.
    pub title_viewers: u32,
}

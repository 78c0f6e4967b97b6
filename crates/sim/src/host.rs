//! The server in the simulation: the real control plane and web side, the real loops, the real cache.
//! Threads, sockets and clocks are simulated: tasks run on a runtime whose clock is virtual.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::limits::{MAX_BURST_NS, RING_RECORDS};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::random::SplitMix;
use millrace_core::seam::{Clock, Doorbell};
use millrace_core::time::Instant;
use millrace_engine::{Engine, EngineConfig};
use millrace_offload::adaptive_burst::AdaptiveBurst;
use millrace_offload::bell::EventBell;
use millrace_offload::command::{Command, Event};
use millrace_offload::core_loop::CoreLoop;
use millrace_offload::idle::IdlePolicy;
use millrace_offload::load::{LoadMeter, LoopSheets};
use millrace_rights::{Gate, Policy, RightsSnapshot, TrustHere, Watching};
use millrace_server::admission::AdmissionConfig;
use millrace_server::control::simulated::{SimulatedControl, SimulatedParts};
use millrace_server::control::{ControlClock, ControlConfig, EnginePort};
use millrace_server::limits::control::CONTROL_TICK;
use millrace_server::service::{ServiceConfig, ServiceEvent};
use millrace_server::session::{Entropy, ServerConfig};
use millrace_store::cache::{CacheConfig, SteppedCache};
use millrace_store::disk::ReadFaults;
use millrace_store::volume::Volume;
use millrace_web::simulated::SimulatedWeb;
use millrace_web::{Totals, WebCounters, WebLimits};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, yield_now};

use crate::library::SimLibrary;
use crate::network::{SharedNetwork, SimClock, path_mtu, route_source};
use crate::scenario::ServerPlan;
use crate::site::SimSite;
use crate::sockets::{SimSocket, SimStream};
use crate::titles::StoredVolume;
use crate::transmit::SimTx;

/// The server's RTP and RTCP ports.
const PORTS: (u16, u16) = (50_000, 50_001);
/// How long a session may be silent.
pub const SESSION_TIMEOUT_NS: u64 = 10_000_000_000;
/// And how much longer it is kept.
pub const SESSION_SLACK_NS: u64 = 1_000_000_000;
/// The system gives the processor of an engine to others now and then: at each moment with this
/// chance in a million, and for up to this long. Commands and leases meet in its rings meanwhile.
const KEPT_PPM: u32 = 30_000;
const MOST_KEPT_NS: u64 = 20_000_000;
/// Tasks that wake each other get this many turns before it is looked whether any of them has read,
/// written or ordered something. If so, they get more.
const TASK_TURNS: usize = 12;

/// Session names that are the same for the same seed.
struct SeededEntropy(SplitMix);

impl Entropy for SeededEntropy {
    fn bytes16(&mut self) -> Option<[u8; 16]> {
        let number = u128::from(self.0.next()) << 64 | u128::from(self.0.next());
        Some(number.to_be_bytes())
    }
}

/// The time as the control plane reads it.
struct HostClock {
    clock: SimClock,
    /// Unix time minus monotonic time.
    wall_offset_ns: Rc<Cell<u64>>,
}

impl Clock for HostClock {
    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl ControlClock for HostClock {
    fn wall_offset_ns(&self) -> u64 {
        self.wall_offset_ns.get()
    }
}

/// The rings of an engine, as the control plane has them.
struct SimPort {
    network: SharedNetwork,
    commands: rtrb::Producer<Command>,
    events: rtrb::Consumer<Event>,
    /// Stands for its bell, which nothing watches here.
    null: OwnedFd,
}

impl EnginePort for SimPort {
    fn send(&mut self, command: Command) -> Result<(), Command> {
        self.network.lock().activity += 1;
        self.commands.push(command).map_err(|rtrb::PushError::Full(command)| command)
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop().ok()?;
        self.network.lock().activity += 1;
        Some(event)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }

    fn rearm(&mut self) {}

    fn is_finished(&self) -> bool {
        false
    }
}

/// The server.
pub struct SimHost {
    /// The tasks of control plane and web side.
    tasks: LocalSet,
    clock: SimClock,
    network: SharedNetwork,
    control: SimulatedControl,
    web: SimulatedWeb,
    totals: Arc<Totals>,
    loops: Vec<CoreLoop<SimClock, SimTx>>,
    /// Until when each of them is kept from its turn.
    kept_until: Vec<Instant>,
    /// When they are kept, and for how long.
    keeps: SplitMix,
    /// The titles and the cache.
    pub library: SimLibrary,
    /// The cache's memory.
    pub arena: Arc<ExtentArena>,
    next_tick: Instant,
    wall_offset_ns: Rc<Cell<u64>>,
    happened: Rc<RefCell<Vec<ServiceEvent>>>,
    /// The time of the runtime's clock.
    tasks_at: Instant,
    runtime: Runtime,
}

fn server_config(plan: &ServerPlan, gate: Arc<Gate>) -> ServerConfig {
    let service = ServiceConfig {
        engines: plan.engines,
        streams_per_engine: plan.streams_per_engine,
        conns_per_engine: 16,
        max_streams: plan.max_streams,
        max_sessions: plan.max_streams + 2,
        address_share_percent: plan.address_share_percent,
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
        gate: Some(gate),
        ..ServerConfig::default()
    }
}

fn cache_config(plan: &ServerPlan) -> CacheConfig {
    let &ServerPlan { reads_in_flight, prefetch_ns, .. } = plan;
    CacheConfig { reads_in_flight, prefetch_ns, ..CacheConfig::default() }
}

/// An engine's loop, and the port to it.
fn start_loop(
    (clock, network): (&SimClock, &SharedNetwork),
    plan: &ServerPlan,
    bell: Arc<EventBell>,
    handle: millrace_store::cache::CacheHandle,
) -> std::io::Result<(CoreLoop<SimClock, SimTx>, Box<dyn EnginePort>)> {
    let (commands, command_end) = rtrb::RingBuffer::new(RING_RECORDS);
    let (event_end, events) = rtrb::RingBuffer::new(RING_RECORDS);
    let engine = EngineConfig {
        streams: plan.streams_per_engine,
        smooth: plan.is_smooth,
        shares_wakes: plan.shares_wakes,
        ..EngineConfig::default()
    };
    let now = clock.now();
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
    let null = File::open("/dev/null")?.into();
    Ok((core, Box::new(SimPort { network: network.clone(), commands, events, null })))
}

/// The web side, and its counters.
fn start_web(
    library: &SimLibrary,
    control: &SimulatedControl,
    gate: Arc<Gate>,
) -> (SimulatedWeb, Arc<Totals>) {
    let (volume, titles) = library.stored();
    let site = SimSite::new(volume, titles, control.orders(), control.asker());
    let totals = Arc::<Totals>::default();
    let web = SimulatedWeb::new(WebLimits::default(), gate, Arc::clone(&totals), Arc::new(site));
    (web, totals)
}

/// The gate of a server; without users all viewers may watch.
fn open_gate(known: Option<RightsSnapshot>) -> Result<Arc<Gate>, String> {
    let watching = if known.is_some() { Watching::ByRights } else { Watching::Open };
    let policy = Policy { watching, trust_here: TrustHere::Never, ..Policy::default() };
    let gate = Gate::new(policy, known.unwrap_or_default());
    gate.map(Arc::new).map_err(|error| error.to_string())
}

impl SimHost {
    /// Starts the server on a volume. `known` are its users.
    ///
    /// # Errors
    /// If the volume cannot be read.
    pub fn start(
        (clock, network): (SimClock, SharedNetwork),
        plan: &ServerPlan,
        stored: &StoredVolume,
        (faults, seed): (ReadFaults, u64),
        known: Option<RightsSnapshot>,
    ) -> Result<Self, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let volume = Volume::open_members(&stored.dirs).map_err(|error| said(&error))?;
        let arena = ExtentArena::new(Box::new(HeapRegion::new(plan.extents)));
        let now = clock.now();
        let bells: Vec<_> = (0..plan.engines)
            .map(|_| EventBell::new().map(Arc::new).map_err(|error| said(&error)))
            .collect::<Result<_, _>>()?;
        let doorbells = bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Doorbell>).collect();
        let cache_clock = Arc::new(clock.clone());
        let (cache, handles) =
            SteppedCache::new(cache_config(plan), Arc::clone(&arena), cache_clock, doorbells, (faults, seed))
                .map_err(|error| said(&error))?;
        let library = SimLibrary::new(clock.clone(), volume, cache, seed)?;
        let (mut loops, mut engines) = (Vec::new(), Vec::new());
        for (bell, handle) in bells.into_iter().zip(handles) {
            let (core, port) =
                start_loop((&clock, &network), plan, bell, handle).map_err(|error| said(&error))?;
            loops.push(core);
            engines.push(port);
        }
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| said(&error))?;
        let tasks = LocalSet::new();
        let wall_offset_ns = Rc::new(Cell::new(1_700_000_000_000_000_000));
        let happened = Rc::<RefCell<Vec<ServiceEvent>>>::default();
        let heard = Rc::clone(&happened);
        let parts = SimulatedParts {
            clock: Box::new(HostClock { clock: clock.clone(), wall_offset_ns: Rc::clone(&wall_offset_ns) }),
            library: Box::new(library.clone()),
            entropy: Box::new(SeededEntropy(SplitMix::numbered(seed, 3))),
            engines,
            observer: Box::new(move |event| heard.borrow_mut().push(event.clone())),
        };
        let gate = open_gate(known)?;
        let config =
            ControlConfig { session: server_config(plan, Arc::clone(&gate)), ..ControlConfig::default() };
        let control = {
            let _entered = tasks.enter();
            SimulatedControl::start(config, parts)
        };
        let (web, totals) = start_web(&library, &control, gate);
        Ok(Self {
            tasks,
            clock,
            network,
            control,
            web,
            totals,
            kept_until: vec![now; loops.len()],
            keeps: SplitMix::numbered(seed, 4),
            loops,
            library,
            arena,
            next_tick: now,
            wall_offset_ns,
            happened,
            tasks_at: now,
            runtime,
        })
    }

    /// The wall clock is set.
    pub fn step_wall_clock(&mut self, offset_ns: u64) {
        self.wall_offset_ns.set(offset_ns);
    }

    /// A viewer connects by RTSP; `false`: the server refuses.
    pub fn accept(&mut self, number: u32, peer: SocketAddr) -> bool {
        let local = SocketAddr::from(([192, 0, 2, 1], 554));
        let _entered = self.tasks.enter();
        self.control.accept(SimSocket::open(&self.network, number), peer, local)
    }

    /// A viewer connects by HTTP.
    pub fn accept_http(&mut self, number: u32, peer: SocketAddr) {
        let _entered = self.tasks.enter();
        self.web.arrivals().take(SimStream::carried(&self.network, number), peer);
    }

    /// A datagram arrives at the RTCP port.
    pub fn receive_report(&mut self, from: SocketAddr, bytes: &[u8]) {
        self.control.receive_report(from, bytes);
    }

    /// The service's events since the last call.
    pub fn take_happened(&mut self) -> Vec<ServiceEvent> {
        self.happened.take()
    }

    /// Leases that came for runs that were over.
    pub fn late_leases(&self) -> u64 {
        self.loops.iter().map(|core| core.engine.counters().leases_unwanted).sum()
    }

    /// The counters of the web side.
    pub fn web_counters(&self) -> WebCounters {
        self.totals.read()
    }

    /// Does everything that can be done now.
    pub fn run(&mut self) {
        let now = self.clock.now();
        if now >= self.next_tick {
            self.next_tick = now.plus_ns(CONTROL_TICK.as_nanos() as u64);
            self.control.tick();
        }
        for until in self.kept_until.iter_mut().filter(|until| **until <= now) {
            if self.keeps.hits(KEPT_PPM) {
                *until = now.plus_ns(self.keeps.below(MOST_KEPT_NS));
            }
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
        let before = self.network.lock().activity;
        if self.library.has_answer(now) {
            self.control.take_openings();
            work += 1;
        }
        self.run_tasks(now);
        for (engine, core) in self.loops.iter_mut().enumerate() {
            if self.kept_until[engine] <= now {
                work += core.turn().1;
            }
            self.control.look_at_engine(engine);
        }
        work += self.library.turn_cache(now);
        let after = self.network.lock().activity;
        work + (after - before) as usize
    }

    fn run_tasks(&mut self, now: Instant) {
        self.network.lock().wake_tasks();
        let ahead_ns = now.ns_since(self.tasks_at);
        self.tasks_at = now;
        self.runtime.block_on(self.tasks.run_until(async {
            if ahead_ns > 0 {
                tokio::time::advance(Duration::from_nanos(ahead_ns)).await;
            }
            for _ in 0..TASK_TURNS {
                yield_now().await;
            }
        }));
        // The runtime catches the panics of its tasks.
        if let Some(panic) = crate::search::take_panic() {
            panic!("a task: {panic}");
        }
    }

    /// When it has something to do although nothing arrives.
    pub fn poll_at(&self) -> Instant {
        let now = self.clock.now();
        let kept = self.kept_until.iter().copied();
        let loops = self.loops.iter().zip(kept.clone()).filter_map(|(core, kept)| {
            let due = core.engine.poll_at()?;
            Some(due.max(kept))
        });
        let loops = loops.chain(kept.filter(|until| *until > now));
        loops.chain(self.library.poll_at()).fold(self.next_tick, Instant::min)
    }

    /// Returns the resources that the server holds for viewers: none when no viewer is left.
    pub fn held(&self) -> HeldResources {
        self.control.look(|service| HeldResources {
            connections: service.connection_count(),
            deliveries: service.lent_count(),
            web_connections: self.totals.read().connections,
            sessions: service.session_count(),
            segment_viewers: service.fetchers().count(),
            streams: service.place_count(),
            reserved_streams: service.reserved_streams(),
            reserved_rate: service.reserved_rate(),
            engine_streams: self.loops.iter().map(|core| core.engine.counters().open).sum(),
            leased_extents: self.library.leased(),
            title_viewers: self.library.viewers(),
        })
    }
}

/// Everything that viewers make a server hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldResources {
    /// Connections.
    pub connections: usize,
    /// Connections on which bytes of titles are sent.
    pub deliveries: usize,
    /// Connections of the web side.
    pub web_connections: u64,
    /// Sessions.
    pub sessions: usize,
    /// Viewers that fetch segments.
    pub segment_viewers: usize,
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

//! Starts and stops everything: memory, cache, engines, ports, the events' thread.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread::JoinHandle;

use millrace_core::ids::TitleId;
use millrace_core::limits::{
    BUSY_BURST_NS, DEFAULT_BURST_NS, DEFAULT_PACKET_BYTES, MAX_CONNS_PER_ENGINE, MAX_ENGINES,
    MAX_STREAMS_PER_ENGINE, MIN_CACHE_BYTES,
};
use millrace_core::pool::ExtentArena;
use millrace_core::seam::Doorbell;
use millrace_core::units::BitRate;
use millrace_offload::bell::EventBell;
use millrace_offload::clock::{MonotonicClock, wall_offset_ns};
use millrace_offload::handle::{EngineConfig, EngineHandle, ThreadConfig};
use millrace_offload::hugepage::PageRegion;
use millrace_offload::idle::IdlePolicy;
use millrace_offload::load::LoopSheets;
use millrace_offload::toe::{Device, Engine, EngineSettings, EngineTx, Seat, Sockets};
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig, UdpPorts, bind_ports};
use millrace_store::cache::{Cache, CacheConfig, CacheHandle, ReadyTitle};
use millrace_store::transform::{Derivation, NamedTransform, Transforms};
use millrace_store::volume::Volume;

use crate::buffer::{Buffer, BufferWriter};
use crate::calls::{Bounds, Calls, ContextKey};
use crate::context::Transport;
use crate::events::{self, DescriptorWatch, Receivers};
use crate::file::{BlockPacing, Opening};
use crate::limits::{
    BUSY_LOOK_NS, DEFAULT_CALL_PORTS, DEFAULT_CALLS_PER_ENGINE, DEFAULT_MAX_BUSY_PERMILLE,
    DEFAULT_STREAM_CACHE_BYTES,
};
use crate::outcome::{OpenError, RunError, RunRefusal};
use crate::run::LineHandle;
use crate::source::{MediaSource, PacketFraming, SourceInner, SourceParts, SourcePosition};

/// Settings for starting an engine. The default is good for some thousand streams on one core.
#[derive(Clone, Debug)]
pub struct StreamEngineConfig {
    /// Loops, each with a thread of its own, 1 to [`MAX_ENGINES`].
    pub engines: usize,
    /// Cores that they are pinned to, in their order; those beyond are not pinned.
    pub cpus: Vec<usize>,
    /// Memory for the data sent, in bytes: at least [`MIN_CACHE_BYTES`]. It is taken when it is
    /// used. Buffers have half of it at most.
    pub cache_bytes: u64,
    /// Streams in each engine at once, up to [`MAX_STREAMS_PER_ENGINE`].
    pub streams: usize,
    /// Address that IPv4 datagrams leave from; `None`: none are sent.
    pub ipv4: Option<Ipv4Addr>,
    /// Address that IPv6 datagrams leave from; `None`: none are sent.
    pub ipv6: Option<Ipv6Addr>,
    /// Ports in which an even one and the next are looked for, first and last.
    pub udp_ports: (u16, u16),
    /// Behaviour of a loop when there is nothing to do.
    pub idle: IdlePolicy,
    /// What all runs together may send, by the rates of their sources; `None`: no bound.
    pub max_rate: Option<BitRate>,
    /// Share of its core, in thousandths. An engine that has reached it accepts no more runs; 1000:
    /// no bound.
    pub max_busy_permille: u64,
    /// Transformations of titles, by the names that
    /// [`Assembly::Transformed`](crate::Assembly::Transformed) uses to request them.
    pub transforms: Transforms,
}

impl Default for StreamEngineConfig {
    fn default() -> Self {
        Self {
            engines: 1,
            cpus: Vec::new(),
            cache_bytes: DEFAULT_STREAM_CACHE_BYTES,
            streams: DEFAULT_CALLS_PER_ENGINE,
            ipv4: Some(Ipv4Addr::UNSPECIFIED),
            ipv6: None,
            udp_ports: DEFAULT_CALL_PORTS,
            idle: IdlePolicy::default(),
            max_rate: None,
            max_busy_permille: DEFAULT_MAX_BUSY_PERMILLE,
            transforms: Transforms::default(),
        }
    }
}

impl StreamEngineConfig {
    fn check(&self) -> Result<(), OpenError> {
        let fail = |what: String| Err(OpenError::Config(what));
        match self {
            Self { engines, .. } if !(1..=usize::from(MAX_ENGINES)).contains(engines) => {
                fail(format!("engines: {engines}; allowed are 1 to {MAX_ENGINES}"))
            }
            Self { cache_bytes, .. } if *cache_bytes < MIN_CACHE_BYTES => {
                fail(format!("cache_bytes: {cache_bytes}; at least {MIN_CACHE_BYTES} are needed"))
            }
            Self { streams, .. } if !(1..=MAX_STREAMS_PER_ENGINE).contains(streams) => {
                fail(format!("streams: {streams}; allowed are 1 to {MAX_STREAMS_PER_ENGINE}"))
            }
            _ => Ok(()),
        }
    }
}

/// The loop that turns the offload engine.
const OFFLOADED: usize = 0;

/// How busy the core of an engine is.
#[derive(Default)]
struct Busy {
    /// Time that its loop has been busy, and all of its time, when this was looked at last.
    at: (u64, u64),
    permille: u64,
}

impl Busy {
    fn look(&mut self, sheets: &LoopSheets) -> u64 {
        let load = sheets.load.read();
        let (busy_ns, all_ns) = (load.busy_ns, load.busy_ns + load.idle_ns);
        let passed_ns = all_ns.saturating_sub(self.at.1);
        if passed_ns >= BUSY_LOOK_NS {
            self.permille = busy_ns.saturating_sub(self.at.0) * 1000 / passed_ns;
            self.at = (busy_ns, all_ns);
        }
        self.permille
    }
}

/// State shared by the engine, its contexts and the events' thread.
pub(crate) struct SharedEngine {
    calls: Mutex<Calls<EngineHandle>>,
    pub(crate) watch: DescriptorWatch,
    pub(crate) wake: EventBell,
    pub(crate) is_stopping: AtomicBool,
    cache: Weak<Cache>,
    busy: Vec<(LoopSheets, Mutex<Busy>)>,
    max_busy_permille: u64,
    has_family: [bool; 2],
}

impl SharedEngine {
    /// Does something with the calls, on the events' thread.
    pub(crate) fn locked<T>(&self, work: impl FnOnce(&mut Calls<EngineHandle>) -> T) -> T {
        // No code panics while it holds the lock; if some did, the state is as it was left.
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut calls);
        let awake = calls.take_awake();
        // A waker may drop a run, which comes here.
        drop(calls);
        awake.into_iter().for_each(Waker::wake);
        done
    }

    /// Does the same on any other thread. Commands that do not fit into a loop's ring go out later.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Calls<EngineHandle>) -> T) -> T {
        let (done, has_queued) = self.locked(|calls| (work(calls), calls.has_queued()));
        if has_queued {
            self.wake.ring();
        }
        done
    }

    pub(crate) fn has_source(&self, source: &MediaSource) -> bool {
        self.cache.upgrade().is_some_and(|cache| source.is_of(&cache))
    }

    /// Opens the way to a viewer.
    pub(crate) fn open(self: &Arc<Self>, transport: &mut Transport) -> Result<LineHandle, RunError> {
        let is_v6 = transport.dest.address(false).map(|address| address.is_ipv6());
        if is_v6.is_some_and(|is_v6| !self.has_family[usize::from(is_v6)]) {
            return Err(RunRefusal::AddressFamily.into());
        }
        let key = self.with(|calls| {
            let engine = if transport.is_offloaded() { OFFLOADED } else { calls.next_engine()? };
            calls.open(engine, transport.dest, transport.socket.take()).map_err(|(refused, socket)| {
                transport.socket = socket;
                RunError::Refused(refused)
            })
        })?;
        Ok(LineHandle { shared: Arc::clone(self), key })
    }

    /// Whether another run of this line has room: memory, and the time of its engine's core. Streams and rates are counted when it begins.
    pub(crate) fn admit(&self, key: ContextKey, is_buffer: bool) -> Result<(), RunError> {
        let cache = self.cache.upgrade().ok_or(RunError::ShutDown)?;
        let positions = cache.positions();
        if !is_buffer && positions.admit(1).is_err() {
            return Err(RunRefusal::Memory { used: positions.used, max: positions.max }.into());
        }
        let engine = self.with(|calls| calls.engine_of(key)).ok_or(RunError::ShutDown)?;
        if let Some((sheets, busy)) = self.busy.get(engine).filter(|_| self.max_busy_permille < 1000) {
            let permille = busy.lock().unwrap_or_else(PoisonError::into_inner).look(sheets);
            if permille >= self.max_busy_permille {
                return Err(RunRefusal::Busy { permille, most: self.max_busy_permille }.into());
            }
        }
        Ok(())
    }
}

/// Loops, a cache, and the ports that they send from. Dropped, it ends all runs ([`Reason::ShutDown`](crate::Reason::ShutDown)) and everything that it has
/// started; contexts that are left say [`RunError::ShutDown`] from then on, and writers of buffers [`std::io::ErrorKind::BrokenPipe`].
pub struct StreamEngine {
    pub(crate) shared: Arc<SharedEngine>,
    cache: Arc<Cache>,
    transforms: Transforms,
    buffers: Mutex<Vec<Weak<SourceInner>>>,
    /// Where an offload engine is put; `None`: there has been one.
    seat: Mutex<Option<Seat>>,
    thread: Option<JoinHandle<()>>,
}

impl StreamEngine {
    /// Starts it.
    ///
    /// # Errors
    /// [`OpenError`]: a setting is out of range, or ports, memory, threads or descriptors are not
    /// available.
    pub fn start(config: &StreamEngineConfig) -> Result<Self, OpenError> {
        config.check()?;
        let system = |what| move |source| OpenError::System { what, source };
        let bells =
            (0..config.engines).map(|_| EventBell::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let bells = bells.map_err(system("descriptors for its loops"))?;
        let region = PageRegion::new(config.cache_bytes).map_err(system("memory for its cache"))?;
        let arena = ExtentArena::new(Box::new(region));
        let rings = bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Doorbell>).collect();
        let (cache, handles) = Cache::start(CacheConfig::default(), arena, Arc::new(MonotonicClock), rings)?;
        let cache = Arc::new(cache);
        let (first, last) = config.udp_ports;
        let bind = |address| bind_ports(address, first, last, config.engines);
        let mut udp = [
            config.ipv4.map(|address| bind(address.into())).transpose()?,
            config.ipv6.map(|address| bind(address.into())).transpose()?,
        ];
        let (engines, seat) = start_engines(config, &mut udp, handles, &bells)?;
        let watch = DescriptorWatch::new().map_err(system("a descriptor to watch others"))?;
        let wake = EventBell::new().map_err(system("a descriptor for its events"))?;
        // It is watched all the time.
        wake.announce_sleep();
        watch.wake(wake.fd()).map_err(system("to watch its events"))?;
        for (number, engine) in engines.iter().enumerate() {
            watch.engine(number, engine.event_fd()).map_err(system("to watch its loops"))?;
        }
        let has_family = udp.each_ref().map(Option::is_some);
        let receivers = Receivers::new(udp.into_iter().flatten().map(|ports| ports.receiver).collect());
        receivers.watch(&watch).map_err(system("to watch its ports"))?;
        let busy = engines.iter().map(|engine| (engine.sheets(), Mutex::default())).collect();
        let bounds = Bounds {
            streams: config.streams,
            conns: config.streams.min(MAX_CONNS_PER_ENGINE),
            max_rate: config.max_rate,
        };
        let shared = Arc::new(SharedEngine {
            calls: Mutex::new(Calls::new(engines, bounds)),
            watch,
            wake,
            is_stopping: AtomicBool::new(false),
            cache: Arc::downgrade(&cache),
            busy,
            max_busy_permille: config.max_busy_permille,
            has_family,
        });
        let heard = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("mr-events".into());
        let thread = thread
            .spawn(move || events::run(&heard, &receivers))
            .map_err(system("a thread for its events"))?;
        let transforms = config.transforms.clone();
        let (buffers, seat) = (Mutex::default(), Mutex::new(seat));
        Ok(Self { shared, cache, transforms, buffers, seat, thread: Some(thread) })
    }

    /// Starts an offload engine, a TCP of this program's own on a device of its own
    /// ([`millrace_offload::toe`]), whose connections can be [transports](Transport::offload) of
    /// runs: data that a run sends there leaves from the cache's memory, without a copy and without
    /// the kernel's TCP. The first loop turns it beside its streams. It ends when the returned
    /// value is dropped, and with this stream engine.
    ///
    /// ```no_run
    /// # use millrace_stream::{StreamContext, StreamEngine, Transport, toe};
    /// # fn f(engine: &StreamEngine, device: Box<dyn toe::Device>) -> Result<(), Box<dyn std::error::Error>> {
    /// let film = engine.transport_stream("film.ts".as_ref())?;
    /// let offload = engine.start_offload(&toe::EngineSettings::new(&[("10.0.0.1".parse()?, 24)]), device)?;
    /// let host = offload.attach()?; // on each thread that has sockets
    /// let listener = toe::TcpListener::bind(&host, "10.0.0.1:80".parse()?)?;
    /// let (viewer, _) = listener.accept()?;
    /// let mut stream = StreamContext::new(Transport::offload(&viewer), &film)?;
    /// // A run ends when the viewer says something: there are no other sockets on this host that anybody writes to.
    /// host.arm();
    /// stream.control(&host.readiness())?;
    /// let outcome = engine.run(&mut stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A setting that cannot be, no descriptors; there has been one: names of its connections must not reach those of another.
    pub fn start_offload(
        &self,
        settings: &EngineSettings,
        device: Box<dyn Device>,
    ) -> Result<Engine, OpenError> {
        self.take_seat(|seat| seat.start(settings, device))
    }

    /// Sends through an offload engine that has a thread of its own, and may have other hosts: the
    /// first loop takes over this queue pair of it, whose connections can be
    /// [transports](Transport::offload_socket) of runs. Data that a run sends there leaves from the
    /// cache's memory, without a copy; all of TCP is on the other thread. These connections are not
    /// read any more. Those that no run has used are closed when this stream engine ends.
    ///
    /// ```no_run
    /// # use millrace_stream::{StreamContext, StreamEngine, Transport, toe};
    /// # fn f(engine: &StreamEngine, offload: &toe::Engine, viewer: std::net::SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    /// let film = engine.transport_stream("film.ts".as_ref())?;
    /// let mut sockets = toe::Sockets::new(offload.attach()?)?;
    /// let socket = sockets.connect("0.0.0.0:0".parse()?, viewer)?;
    /// while sockets.outcome(socket)?.is_none() {
    ///     sockets.wait(None)?;
    /// }
    /// let name = sockets.engine_socket(socket);
    /// engine.use_offload(sockets)?;
    /// let outcome = engine.run(&mut StreamContext::new(Transport::offload_socket(name), &film)?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The offload engine is another process, which takes no extents, or the pair's area is small; there has been an offload engine.
    pub fn use_offload(&self, sockets: Sockets) -> Result<(), OpenError> {
        self.take_seat(|seat| seat.take(sockets))
    }

    fn take_seat<T>(&self, take: impl FnOnce(&mut Seat) -> std::io::Result<T>) -> Result<T, OpenError> {
        let mut seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(free) = seat.as_mut() else {
            let what = "a stream engine has one offload engine, once: start another stream engine";
            return Err(OpenError::Config(what.into()));
        };
        let taken = take(free).map_err(|source| OpenError::System { what: "an offload engine", source })?;
        *seat = None;
        Ok(taken)
    }

    /// A title of a volume.
    ///
    /// # Errors
    /// If it is not there, or not enough of its disks are.
    pub fn title(&self, volume: &Volume, id: TitleId) -> Result<MediaSource, OpenError> {
        let files = volume.open_title(id, DEFAULT_PACKET_BYTES)?;
        let (layout, timeline, packets) = (files.layout, files.timeline(), files.packets());
        let (rate, bytes) = (files.info.mean_rate, files.info.bytes);
        let volume = volume.clone();
        let reopen = move |wire: PacketFraming,
                           named: Option<&Arc<NamedTransform>>|
              -> Result<Option<ReadyTitle>, OpenError> {
            let files = volume.open_title(id, DEFAULT_PACKET_BYTES)?;
            let files = if wire == PacketFraming::Raw { files.raw() } else { Some(files) };
            let derivation = named.map(|named| Derivation::of_title(named, &volume, id)).transpose()?;
            Ok(files.map(|files| match derivation {
                Some(derivation) => ReadyTitle::of_derived(files, derivation),
                None => ReadyTitle::of_title(files),
            }))
        };
        let of_wire =
            move |wire: PacketFraming| if wire == PacketFraming::Raw { layout.raw() } else { Some(layout) };
        let parts = SourceParts {
            reopen: Some(Box::new(reopen)),
            lies: Box::new(move |wire| of_wire(wire).map(|layout| (layout, timeline, packets))),
            times: Box::new(files),
            rate,
            bytes: Some(bytes),
            edge: None,
            begins_at: SourcePosition::START,
            transforms: Some(self.transforms.clone()),
        };
        Ok(MediaSource::new(&self.cache, parts, Vec::new()))
    }

    /// Opens a transport stream (188-byte packets, nothing else) in a file, sent as it is stored.
    /// It is read once, to find its times; that takes as long as reading the file does. Eight bytes
    /// are kept in memory for each 1316 of it. Data changed in the file later is left out of the
    /// stream.
    ///
    /// # Errors
    /// If it cannot be read, or is not such a file: then add it to a volume, which takes other containers too.
    pub fn transport_stream(&self, path: &Path) -> Result<MediaSource, OpenError> {
        Ok(MediaSource::new(&self.cache, Opening::begin(path)?.transport_stream()?, Vec::new()))
    }

    /// Opens a file of any bytes, cut into blocks that leave at a constant pace: for formats that
    /// the caller knows. Its bytes are sent as they are read; data changed in the file is sent
    /// changed.
    ///
    /// # Errors
    /// If it cannot be read, is empty or no regular file.
    pub fn plain_file(&self, path: &Path, pace: BlockPacing) -> Result<MediaSource, OpenError> {
        Ok(MediaSource::new(&self.cache, Opening::begin(path)?.plain(pace)?, Vec::new()))
    }

    /// Memory that the caller fills while it is sent.
    ///
    /// # Errors
    /// If there is not enough memory left: all buffers together have half of it.
    pub fn buffer(&self, buffer: Buffer) -> Result<(MediaSource, BufferWriter), OpenError> {
        let (source, writer) = buffer.open(&self.cache)?;
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.retain(|buffer| buffer.strong_count() > 0);
        buffers.push(Arc::downgrade(&source.inner));
        Ok((source, writer))
    }

    /// What all runs that last send, by the rates of their sources.
    pub fn rate(&self) -> BitRate {
        self.shared.with(|calls| calls.used())
    }

    /// Contexts that have been run and are still there.
    pub fn streams(&self) -> usize {
        self.shared.with(|calls| calls.lines())
    }

    /// Returns the data that the loops publish about themselves: how busy they are, and their
    /// transmissions.
    pub fn sheets(&self) -> Vec<LoopSheets> {
        self.shared.busy.iter().map(|(sheets, _)| sheets.clone()).collect()
    }
}

impl Drop for StreamEngine {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake.ring();
        if let Some(thread) = self.thread.take() {
            // The thread has printed its panic, if any; no caller is left to report it to.
            let _ = thread.join();
        }
        let engines = self.shared.with(Calls::shut_down);
        engines.into_iter().for_each(EngineHandle::stop);
        let buffers = std::mem::take(&mut *self.buffers.lock().unwrap_or_else(PoisonError::into_inner));
        buffers.iter().filter_map(Weak::upgrade).for_each(|buffer| buffer.close());
    }
}

fn start_engines(
    config: &StreamEngineConfig,
    udp: &mut [Option<UdpPorts>; 2],
    handles: Vec<CacheHandle>,
    bells: &[Arc<EventBell>],
) -> Result<(Vec<EngineHandle>, Option<Seat>), OpenError> {
    let mut seat = None;
    let start = |(number, (handle, bell)): (usize, (CacheHandle, &Arc<EventBell>))| {
        let [v4, v6] = udp.each_mut().map(|ports| ports.as_mut().and_then(|ports| ports.senders.pop()));
        let conns = config.streams.min(MAX_CONNS_PER_ENGINE);
        let tx = KernelTx::new(KernelTxConfig { v4, v6, gso: GsoMode::Auto, conns })?;
        let engine = EngineConfig {
            streams: config.streams,
            burst_ns: DEFAULT_BURST_NS,
            shares_wakes: config.idle != IdlePolicy::Busy,
            wall_offset_ns: wall_offset_ns(),
            ..EngineConfig::default()
        };
        let cpu = config.cpus.get(number).copied();
        let thread = ThreadConfig { number, cpu, idle: config.idle, busy_burst_ns: BUSY_BURST_NS };
        let bell = Arc::clone(bell);
        let started = if number == OFFLOADED {
            let (tx, free) = EngineTx::with_seat(tx, conns, Arc::clone(&bell));
            seat = Some(free);
            EngineHandle::start(thread, engine, MonotonicClock, handle, tx, bell)
        } else {
            EngineHandle::start(thread, engine, MonotonicClock, handle, tx, bell)
        };
        started.map_err(|source| OpenError::System { what: "a thread for a loop", source })
    };
    let engines = handles.into_iter().zip(bells).enumerate().map(start).collect::<Result<_, _>>()?;
    Ok((engines, seat))
}

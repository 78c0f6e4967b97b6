//! A title on disk, a cache over it and a loop on top, for tests of the whole way.
#![allow(unreachable_pub)]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::counters::Group;
use millrace_core::ids::{ConnId, RunSerial, StreamId, TitleId, TitleRef};
use millrace_core::limits::{BUSY_BURST_NS, DEFAULT_BURST_NS, DEFAULT_PACKET_BYTES, RING_RECORDS};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::ExtentArena;
use millrace_core::seam::{Clock, Doorbell, PacketTx, SendOutcome, TransmitBatch};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_engine::{Engine, EngineConfig};
use millrace_offload::TxCounters;
use millrace_offload::adaptive_burst::AdaptiveBurst;
use millrace_offload::bell::EventBell;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::command::{Command, ConnSocket, Dest, Event, Numbering, RunMedia, RunSpec};
use millrace_offload::core_loop::CoreLoop;
use millrace_offload::hugepage::PageRegion;
use millrace_offload::idle::IdlePolicy;
use millrace_offload::load::{LoadMeter, LoopSheets};
use millrace_offload::loop_tx::{LoopConnections, LoopTx, WithoutEngine};
use millrace_store::cache::{Cache, CacheConfig};
use millrace_store::index::TitleIndex;
use millrace_store::volume::{FinishTitle, Naming, SourceIdentity, TitleWriter, Volume};

/// A device for tests with no connections.
pub struct WithoutConns<T>(pub T);

impl<T: PacketTx> PacketTx for WithoutConns<T> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.0.send(batch, outcomes);
    }
}

impl<T: PacketTx + Send> LoopConnections for WithoutConns<T> {
    fn add_conn(&mut self, _: ConnId, _: ConnSocket) -> Result<(), i32> {
        Err(0)
    }
    fn write_control(&mut self, _: ConnId, _: &[u8]) -> Result<(), i32> {
        Err(0)
    }
    fn return_conn(&mut self, _: ConnId) -> bool {
        false
    }
    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        None
    }
    fn remove_conn(&mut self, _: ConnId) -> Option<ConnSocket> {
        None
    }
    fn flush_conns(&mut self) -> bool {
        false
    }
    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        None
    }
    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        None
    }
    fn backlog_bytes(&self, _: ConnId) -> Option<u64> {
        None
    }
}

impl<T: PacketTx + Send> WithoutEngine for WithoutConns<T> {}

impl<T: PacketTx + Send> LoopTx for WithoutConns<T> {
    fn counters(&self) -> &TxCounters {
        &TxCounters::ZERO
    }
    fn note_unreachable(&mut self, _: SocketAddr, _: i32) {}
    fn tend(&mut self, _: Instant) -> bool {
        false
    }
    fn is_zero_copy(&self, _: &Dest) -> bool {
        false
    }
    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        None
    }
}

/// The bytes of a title: every packet differs from every other.
pub fn film_bytes(packets: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; packets * DEFAULT_PACKET_BYTES];
    for (i, ts) in bytes.chunks_exact_mut(188).enumerate() {
        ts.iter_mut().enumerate().for_each(|(j, b)| *b = (i * 31 + j * 7 + (i >> 8)) as u8);
        ts[0] = 0x47;
    }
    bytes
}

/// A clock that advances only on command.
#[derive(Clone)]
pub struct StepClock(Arc<AtomicU64>);

impl StepClock {
    /// From now on.
    pub fn start() -> Self {
        Self(Arc::new(AtomicU64::new(MonotonicClock.now().0)))
    }

    /// Lets time pass.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for StepClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }
}

/// A title in a store of its own, open in a cache, with the loop's parts around it.
pub struct Stage<T, C = MonotonicClock> {
    _dir: tempfile::TempDir,
    pub cache: Cache,
    pub title: TitleRef,
    pub packets: u32,
    pub timeline: Timeline,
    pub layout: WireLayout,
    pub commands: rtrb::Producer<Command>,
    pub events: rtrb::Consumer<Event>,
    pub core: CoreLoop<C, T>,
    arena: Arc<ExtentArena>,
    volume: Volume,
    id: TitleId,
}

impl<T: LoopTx> Stage<T> {
    /// A title of `packets` packets that lasts `duration`, and a loop that sends to `tx`.
    pub fn new(packets: usize, duration: MediaTicks, tx: T) -> Self {
        Self::with_clock(packets, duration, tx, MonotonicClock)
    }
}

impl<T: LoopTx, C: Clock> Stage<T, C> {
    /// The same with this clock.
    pub fn with_clock(packets: usize, duration: MediaTicks, tx: T, clock: C) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open_or_create(dir.path()).unwrap();
        let mut writer = TitleWriter::begin(&volume, &[DEFAULT_PACKET_BYTES as u16]).unwrap();
        writer.write_data(&film_bytes(packets)).unwrap();
        for i in 0..packets as u64 {
            let time = MediaTicks(duration.0 * i / packets as u64);
            writer.push_meta(DEFAULT_PACKET_BYTES as u16, PacketMeta::new(0, 0, time)).unwrap();
        }
        let info = writer.commit(finish(duration)).unwrap();
        let files = volume.open_title(info.id, DEFAULT_PACKET_BYTES).unwrap();
        let layout = files.layout;
        let bell = Arc::new(EventBell::new().unwrap());
        let arena = ExtentArena::new(Box::new(PageRegion::new(32 << 20).unwrap()));
        let bells = vec![Arc::clone(&bell) as Arc<dyn Doorbell>];
        let (cache, mut handles) =
            Cache::start(CacheConfig::default(), Arc::clone(&arena), Arc::new(MonotonicClock), bells)
                .unwrap();
        let title = cache.open_title(files).unwrap();
        let (commands, command_end) = rtrb::RingBuffer::new(RING_RECORDS);
        let (event_end, events) = rtrb::RingBuffer::new(RING_RECORDS);
        let engine = Engine::new(EngineConfig { streams: 1024, ..EngineConfig::default() });
        let now = clock.now();
        let load = LoadMeter::new(LoopSheets::default(), now);
        let control_bell = Arc::new(EventBell::new().unwrap());
        let handle = handles.remove(0);
        let core = CoreLoop::new(
            clock,
            engine,
            handle,
            tx,
            command_end,
            event_end,
            control_bell,
            bell,
            IdlePolicy::Adaptive,
            load,
            AdaptiveBurst::new(DEFAULT_BURST_NS, BUSY_BURST_NS, now),
        );
        let (packets, timeline) = (info.packets, info.timeline);
        Self {
            _dir: dir,
            cache,
            title,
            packets,
            timeline,
            layout,
            commands,
            events,
            core,
            arena,
            volume,
            id: info.id,
        }
    }

    /// The command that opens stream `index` towards a port of its own.
    pub fn open(&self, index: u32) -> Command {
        let port = 2 * index as u16 + 10_000;
        let dest = Dest::udp(([127, 0, 0, 1], port).into(), Some(port + 1));
        Command::Open { stream: StreamId { index, generation: 0 }, dest, quiet: false, once: false }
    }

    /// The command that plays the title on stream `index` from packet `from` on, with this sequence number.
    pub fn play(&self, index: u32, from: u32, sequence: u16, scale_permille: u16) -> Command {
        let (title, packets, timeline, layout) = (self.title, self.packets, self.timeline, self.layout);
        let run = RunSpec {
            run: RunSerial(1),
            media: RunMedia { title, packets, timeline, layout, spare: 0 },
            from,
            until: packets,
            numbering: Numbering::Sequence(sequence),
            scale_permille,
            step: None,
        };
        let stream = StreamId { index, generation: 0 };
        Command::Play { stream, at: self.core.clock.now(), ahead_ms: 0, run }
    }

    /// From here on the title is played raw.
    pub fn go_raw(&mut self) {
        let files = self.volume.open_title(self.id, DEFAULT_PACKET_BYTES).unwrap().raw().unwrap();
        self.layout = files.layout;
        self.title = self.cache.open_title(files).unwrap();
    }

    /// Changes the byte at this place of the title on disk.
    pub fn damage(&self, place: usize) {
        let files = |dir: &std::path::Path| -> Vec<std::path::PathBuf> {
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
        };
        let (mut dirs, mut media) = (vec![self._dir.path().to_owned()], Vec::new());
        while let Some(dir) = dirs.pop() {
            let (below, found): (Vec<_>, Vec<_>) = files(&dir).into_iter().partition(|path| path.is_dir());
            dirs.extend(below);
            media.extend(found.into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "ts")));
        }
        assert_eq!(media.len(), 1, "{media:?}");
        let file = std::fs::File::options().read(true).write(true).open(&media[0]).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, place as u64).unwrap();
        file.write_all_at(&[byte[0] ^ 0xff], place as u64).unwrap();
    }

    /// Leases out now, on all extents.
    pub fn leases(&self) -> u32 {
        (0..self.arena.extents()).map(|extent| self.arena.leases(extent)).sum()
    }
}

fn finish(duration: MediaTicks) -> FinishTitle {
    FinishTitle {
        name: "film".into(),
        source: SourceIdentity { path: "/film.ts".into(), bytes: 1, modified_unix_ns: 1 },
        duration,
        mean_rate: BitRate(1),
        peak_rate: BitRate(1),
        constant_rate: true,
        streams: vec![],
        index: TitleIndex::default(),
        notes: vec![],
        derived: None,
        rendition: None,
        naming: Naming::default(),
    }
}

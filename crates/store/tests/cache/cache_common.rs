//! Helpers that the cache tests share: titles, clocks, bells, a cache with its handles.
#![allow(unreachable_pub)]

#[path = "../../src/cache/naive.rs"]
pub mod naive;
#[path = "../../src/cache/sample.rs"]
pub mod sample;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant as RealInstant};

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Clock, Doorbell, Want};
use millrace_core::time::Instant;
use millrace_store::cache::{Cache, CacheConfig, CacheHandle, CacheStats, Grant, ReadBackend};
pub use millrace_store::cache::{PlainSource, SourceKind, TitleSource};
use millrace_store::disk::ReadFaults;
pub use millrace_store::meta::MetaError;
pub use millrace_store::sums::DeriveError;

/// Nothing here takes a tenth of this; a longer wait means that something was lost.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A bell that can be waited for.
#[derive(Default)]
pub struct TestBell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Doorbell for TestBell {
    fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_all();
    }
}

impl TestBell {
    pub fn rings(&self) -> u64 {
        *self.rings.lock().unwrap()
    }

    /// Waits until it has been rung more than `seen` times.
    pub fn wait_beyond(&self, seen: u64) {
        let rings = self.rings.lock().unwrap();
        let (_rings, timeout) = self.rung.wait_timeout_while(rings, TIMEOUT, |rings| *rings <= seen).unwrap();
        assert!(!timeout.timed_out(), "the bell was not rung");
    }
}

/// A clock that stands still until it is moved.
#[derive(Default)]
pub struct StandingClock(AtomicU64);

impl StandingClock {
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for StandingClock {
    fn now(&self) -> Instant {
        Instant(1_000_000_000 + self.0.load(Ordering::SeqCst))
    }
}

/// The real clock.
pub struct RunningClock(pub RealInstant);

impl Clock for RunningClock {
    fn now(&self) -> Instant {
        Instant(self.0.elapsed().as_nanos() as u64)
    }
}

/// One engine's side.
pub struct Engine {
    pub handle: CacheHandle,
    pub bell: Arc<TestBell>,
}

impl Engine {
    /// The next grant; waits for it.
    pub fn grant(&mut self) -> Grant {
        loop {
            let rings = self.bell.rings();
            if let Some(grant) = self.handle.poll() {
                return grant;
            }
            self.bell.wait_beyond(rings);
        }
    }

    /// Asks until the ring has room.
    pub fn want(&mut self, index: u32, title: TitleRef, extent: u32, by: Instant) {
        let want = Want { stream: stream(index), run: RunSerial(0), title, extent, place: 0, by, spare: 0 };
        loop {
            let rings = self.bell.rings();
            if self.handle.want(&want) {
                return;
            }
            self.bell.wait_beyond(rings);
        }
    }

    /// Wants an extent and waits for the answer.
    pub fn fetch(&mut self, index: u32, title: TitleRef, extent: u32, by: Instant) -> Grant {
        self.want(index, title, extent, by);
        let grant = self.grant();
        assert_eq!((grant.stream, grant.title, grant.extent), (stream(index), title, extent));
        grant
    }
}

pub fn stream(index: u32) -> StreamId {
    StreamId { index, generation: 0 }
}

/// A cache, its arena, its engines.
pub struct World {
    pub cache: Cache,
    pub arena: Arc<ExtentArena>,
    pub engines: Vec<Engine>,
}

impl World {
    /// `None`: this machine has not got this way of reading.
    pub fn new(
        backend: ReadBackend,
        extents: usize,
        prefetch_ns: u64,
        engines: usize,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Option<Self> {
        Self::with_faults(backend, extents, prefetch_ns, engines, clock, ReadFaults::default())
    }

    /// The same, with disks that fail on order.
    pub fn with_faults(
        backend: ReadBackend,
        extents: usize,
        prefetch_ns: u64,
        engines: usize,
        clock: Arc<dyn Clock + Send + Sync>,
        faults: ReadFaults,
    ) -> Option<Self> {
        let config = CacheConfig { prefetch_ns, backend, ..CacheConfig::default() };
        Self::with_config(config, extents, engines, clock, faults)
    }

    /// The same, with all settings.
    pub fn with_config(
        config: CacheConfig,
        extents: usize,
        engines: usize,
        clock: Arc<dyn Clock + Send + Sync>,
        faults: ReadFaults,
    ) -> Option<Self> {
        let backend = config.backend;
        let arena = ExtentArena::new(Box::new(HeapRegion::new(extents)));
        let bells: Vec<_> = (0..engines).map(|_| Arc::new(TestBell::default())).collect();
        let doorbells = bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Doorbell>).collect();
        match Cache::start_with_faults(config, Arc::clone(&arena), clock, doorbells, faults) {
            Ok((cache, handles)) => {
                let engines =
                    handles.into_iter().zip(bells).map(|(handle, bell)| Engine { handle, bell }).collect();
                Some(Self { cache, arena, engines })
            }
            Err(error) if backend == ReadBackend::Uring => {
                eprintln!("not tested here: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the counters are as they should be; they change without a bell.
    pub fn wait_stats(&self, what: &str, mut are: impl FnMut(&CacheStats) -> bool) -> CacheStats {
        let begun = RealInstant::now();
        loop {
            let stats = self.cache.stats();
            if are(&stats) {
                return stats;
            }
            assert!(begun.elapsed() < TIMEOUT, "{what}: {stats:?}");
            std::thread::yield_now();
        }
    }
}

/// Both ways of reading.
pub const BACKENDS: [ReadBackend; 2] = [ReadBackend::Threads, ReadBackend::Uring];

//! Titles without members that are read block by block because the disk cannot read all of an
//! extent: which reads are given up, and when. The manager runs on a clock that the test moves,
//! with real reads and places that hang on demand.

use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant};

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Clock, Doorbell, Want};

use super::super::super::handle::{self, CacheHandle};
use super::super::super::residents::ResidentExtents;
use super::super::super::sample::SampleFiles;
use super::super::super::{CacheConfig, ReadBackend};
use super::super::ManagerParts;
use super::*;
use crate::bell::EventBell;
use crate::disk::{ReadFault, ReadFaults};

/// Nothing here takes a tenth of this; a longer wait means that something was lost.
const TIMEOUT: Duration = Duration::from_secs(60);
const MS: u64 = 1_000_000;
/// Memory of the reads of one block at most, but for the first of an extent.
const BLOCK_MEMORY_BYTES: usize = 32 * 1024;

struct Silent;

impl Doorbell for Silent {
    fn ring(&self) {}
}

struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Instant {
        Instant(0)
    }
}

/// A manager with a title in one file of eight extents.
struct BlockReadFixture {
    manager: Manager,
    handle: CacheHandle,
    faults: ReadFaults,
    sample: SampleFiles,
    title: TitleRef,
    granted: Vec<(u32, Result<Lease, ReadFailure>)>,
}

impl BlockReadFixture {
    /// `None`: this machine has not got this way of reading.
    fn new(backend: ReadBackend) -> Option<Self> {
        let wake = Arc::new(EventBell::new().unwrap());
        let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(9))));
        let (handle, end) = handle::pair(Arc::clone(&wake), Arc::new(Silent), &residents);
        let config = CacheConfig { prefetch_ns: 0, reads_in_flight: 8, backend, ..CacheConfig::default() };
        let faults = ReadFaults::settable();
        // No commands are sent.
        let (_, control) = std::sync::mpsc::channel();
        let manager = Manager::new(ManagerParts {
            config,
            residents,
            handles: vec![end],
            control,
            wake,
            clock: Arc::new(StoppedClock),
            counters: Arc::default(),
            faults: faults.clone(),
        });
        let mut manager = match manager {
            Ok(manager) => manager,
            Err(error) => {
                assert_eq!(backend, ReadBackend::Uring, "{error}");
                eprintln!("not tested here: {error}");
                return None;
            }
        };
        let sample = SampleFiles::of_extents(8);
        let title = manager.policy.open_title(OpenTitle::new(Box::new(sample.open()))).unwrap();
        Some(Self { manager, handle, faults, sample, title, granted: Vec::new() })
    }

    fn want(&mut self, extent: u32) {
        let stream = StreamId { index: extent, generation: 0 };
        let want =
            Want { stream, run: RunSerial(0), title: self.title, extent, place: 0, by: Instant(0), spare: 0 };
        assert!(self.handle.want(&want));
    }

    fn turn(&mut self, at_ms: u64) {
        self.manager.turn(Instant(at_ms * MS));
        while let Some(grant) = self.handle.poll() {
            self.granted.push((grant.extent, grant.lease));
        }
    }

    /// Lets the reader collect completions until a condition holds.
    fn wait(&mut self, at_ms: u64, is_so: impl Fn(&mut Self) -> bool) {
        let begun = RealInstant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < TIMEOUT, "{} bytes are missing", self.missing(at_ms));
            self.manager.reader.wait(Instant(at_ms * MS), Some(Duration::ZERO));
            std::thread::yield_now();
        }
    }

    /// Returns the memory of the missing data at all places.
    fn missing(&mut self, at_ms: u64) -> usize {
        let places = 0..self.manager.flights.len();
        places.map(|place| self.manager.reader.unanswered(Instant(at_ms * MS), place).bytes).sum()
    }

    /// An extent cannot be read as a whole because of a bad place; from then on reads of this other place are not answered.
    fn begin_blocks(&mut self, extent: u32, bad: ReadFault, then: ReadFault) {
        self.faults.set(0, bad);
        self.want(extent);
        self.turn(0);
        self.wait(0, |world| world.manager.reader.has_done());
        self.faults.set(0, then);
        self.turn(10);
        assert!(self.granted.is_empty());
    }
}

const BACKENDS: [ReadBackend; 2] = [ReadBackend::Threads, ReadBackend::Uring];

/// A bad sector in which the disk tries for ever: its block is given up, the others are not.
#[test]
fn hung_block_is_given_up_and_other_blocks_are_used() {
    for mut world in BACKENDS.into_iter().filter_map(BlockReadFixture::new) {
        // Block 24 of the extent.
        let (at, bytes) = (100_000, 1);
        world.begin_blocks(0, ReadFault::EioAt { at, bytes }, ReadFault::HangAt { at, bytes });
        world.wait(10, |world| (1..=BLOCK_MEMORY_BYTES).contains(&world.missing(10)));
        world.turn(100);
        world.turn(2090);
        assert!(world.granted.is_empty(), "a busy disk may take a while");
        world.turn(2200);
        let [(0, Ok(lease))] = &world.granted[..] else { panic!("{:?}", world.granted.len()) };
        assert_eq!(world.sample.check_rest(lease, 0), [74, 75, 76, 77]);
        assert!((1..=BLOCK_MEMORY_BYTES).contains(&world.manager.reader.aside_bytes()));
        world.faults.set(0, ReadFault::None);
        world.wait(2210, |world| world.manager.reader.aside_bytes() == 0);
        world.turn(2210);
        let stats = world.manager.counters.snapshot();
        assert_eq!((stats.aside_bytes, stats.damaged_packets, stats.read_errors), (0, 4, 0));
    }
}

/// A disk on which every block of an extent hangs: others are read meanwhile, and after a while the extent is given up.
#[test]
fn blocks_that_are_not_answered_hold_up_nobody_else() {
    for mut world in BACKENDS.into_iter().filter_map(BlockReadFixture::new) {
        // The records lie before that in their file.
        let at = 196 * 1316;
        let then = ReadFault::HangAt { at, bytes: 196 * 1316 - 4096 };
        world.begin_blocks(1, ReadFault::EioAt { at, bytes: 1 }, then);
        for extent in 2..8 {
            world.want(extent);
        }
        world.turn(20);
        world.wait(20, |world| {
            world.turn(20);
            world.granted.len() == 6
        });
        for (extent, lease) in &world.granted {
            world.sample.check(lease.as_ref().unwrap(), *extent);
        }
        world.granted.clear();
        for at_ms in (100..).step_by(100).take_while(|at_ms| *at_ms < 10_000) {
            world.turn(at_ms);
        }
        // All but the last packets are missing: more than may be left out of a title of eight extents.
        assert!(matches!(world.granted[..], [(1, Err(ReadFailure::Io(libc::ETIMEDOUT)))]));
        world.faults.set(0, ReadFault::None);
        world.wait(10_000, |world| world.manager.reader.aside_bytes() == 0);
    }
}

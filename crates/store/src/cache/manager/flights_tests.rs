//! What becomes of reads of many members when some answer late: the manager's turns on a clock that the test moves, real
//! reads, members that hang on order.

use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant};

use millrace_core::ids::{StreamId, TitleRef};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Clock, Doorbell, Want};

use super::super::super::ReadBackend;
use super::super::super::door::{self, CacheDoor};
use super::super::super::health::GOOD_PROBES;
use super::super::super::rows::sample::{RowSample, RowSource, geometry};
use super::super::Parts;
use super::*;
use crate::bell::EventBell;
use crate::cache::{CacheConfig, MemberHealth};
use crate::disk::{ReadFault, ReadFaults};

/// Nothing here takes a tenth of this; who waits longer has lost something.
const PATIENCE: Duration = Duration::from_secs(60);
const MS: u64 = 1_000_000;

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

/// A manager on three members of which one may be lost.
struct World {
    manager: Manager,
    door: CacheDoor,
    faults: ReadFaults,
    sample: RowSample,
    title: TitleRef,
    spare: u8,
    granted: Vec<(u32, Result<Lease, ReadFailure>)>,
}

impl World {
    fn new(places: usize, extents: usize) -> Self {
        let sample = RowSample::of_rows(geometry(4, 2, 3, 5), extents * 9);
        let film = sample.open(1316);
        Self::of(places, extents, sample, (film, 0))
    }

    /// The same of any title; who wants it can do without `spare` packets of a codeword.
    fn of(places: usize, extents: usize, sample: RowSample, (source, spare): (RowSource, u8)) -> Self {
        let wake = Arc::new(EventBell::new().unwrap());
        let (door, end) = door::pair(Arc::clone(&wake), Arc::new(Silent));
        let config = CacheConfig { prefetch_ns: 0, reads_in_flight: places, backend: ReadBackend::Threads };
        let faults = ReadFaults::settable();
        // Nobody commands.
        let (_, control) = std::sync::mpsc::channel();
        let mut manager = Manager::new(Parts {
            config,
            arena: ExtentArena::new(Box::new(HeapRegion::new(extents + 1))),
            doors: vec![end],
            control,
            wake,
            clock: Arc::new(StoppedClock),
            counters: Arc::default(),
            faults: faults.clone(),
        })
        .unwrap();
        let title = manager.policy.open_title(OpenTitle::new(Box::new(source))).unwrap();
        Self { manager, door, faults, sample, title, spare, granted: Vec::new() }
    }

    fn want(&mut self, extent: u32) {
        let stream = StreamId { index: extent, generation: 0 };
        let want = Want { stream, title: self.title, extent, by: Instant(0), spare: self.spare };
        assert!(self.door.want(&want));
    }

    fn turn(&mut self, at_ms: u64) {
        self.manager.turn(Instant(at_ms * MS));
        while let Some(grant) = self.door.poll() {
            self.granted.push((grant.extent, grant.lease));
        }
    }

    /// Waits until these members (bits) and no others owe answers to reads under way, the probe among them.
    fn wait_missing(&mut self, at_ms: u64, members: u32) {
        let begun = RealInstant::now();
        let now = Instant(at_ms * MS);
        loop {
            self.manager.reader.wait(now, Some(Duration::ZERO));
            let places = 0..=self.manager.flights.len();
            let missing =
                places.fold(0, |all, place| all | self.manager.reader.unanswered(now, place).members);
            if missing == members {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "missing are {missing:b}");
            std::thread::yield_now();
        }
    }

    /// Waits until reads of all these members are under way.
    fn wait_begun(&mut self, at_ms: u64, members: u32) {
        let begun = RealInstant::now();
        let now = Instant(at_ms * MS);
        loop {
            let places = 0..self.manager.flights.len();
            let asked = places.fold(0, |all, place| {
                let missing = self.manager.reader.unanswered(now, place);
                all | missing.members & !missing.queued
            });
            if asked & members == members {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "asked are {asked:b}");
            std::thread::yield_now();
        }
    }

    /// Takes turns at one moment until so many have been granted in all.
    fn wait_any(&mut self, at_ms: u64, count: usize) {
        let begun = RealInstant::now();
        while self.granted.len() < count {
            assert!(begun.elapsed() < PATIENCE, "{} of {count} are granted", self.granted.len());
            self.turn(at_ms);
        }
    }

    /// The same of film, each of which has to be right.
    fn wait_granted(&mut self, at_ms: u64, count: usize) {
        self.wait_any(at_ms, count);
        for (extent, lease) in &self.granted {
            let lease = lease.as_ref().unwrap_or_else(|failure| panic!("extent {extent}: {failure}"));
            assert_eq!(self.sample.check(&lease.content(), lease.bytes()), [0; 0]);
        }
    }

    /// How often a member was late.
    fn late(&self, member: usize) -> u64 {
        self.manager.counters.of_members[member].late.get()
    }

    fn health(&self, member: usize) -> MemberHealth {
        self.manager.counters.member_reports()[member].health
    }
}

/// Two members are late, one more than the parity makes up for; then one of them answers, and the other hangs on.
#[test]
fn of_two_that_were_late_the_one_that_answered_counts() {
    // As many threads as hang, and some.
    let mut world = World::new(7, 1);
    world.faults.set_all(&[(0, ReadFault::Hang), (1, ReadFault::Hang)]);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, 0b011);
    world.wait_missing(0, 0b011);
    world.turn(260);
    assert_eq!((world.late(0), world.late(1)), (1, 1));
    assert_eq!(world.manager.counters.snapshot().hung_reads, 0, "without both of them it cannot be had");
    world.faults.set(1, ReadFault::None);
    world.wait_missing(261, 0b001);
    world.turn(330);
    assert_eq!(world.manager.counters.snapshot().hung_reads, 0, "the other may be about to");
    world.turn(400);
    assert_eq!(world.manager.counters.snapshot().hung_reads, 1, "the one that hangs is given up");
    world.wait_granted(401, 1);
    assert_eq!(world.manager.counters.snapshot().read_errors, 0);
    world.faults.set_all(&[]);
}

/// More reads have been answered than are taken in a turn, and all of them were late.
#[test]
fn what_was_answered_late_is_taken_once_and_not_given_up() {
    let (places, extents) = (20, 40);
    let mut world = World::new(places, extents as usize);
    world.faults.set_all(&[(0, ReadFault::Hang), (1, ReadFault::Hang)]);
    (0..extents).for_each(|extent| world.want(extent));
    world.turn(0);
    world.wait_begun(70, 0b011);
    world.turn(330);
    assert!(world.late(0) > 0 && world.late(1) > 0);
    world.faults.set_all(&[]);
    world.wait_missing(340, 0);
    for turn in 0..20 {
        let at_ms = 3000 + turn * 100;
        world.turn(at_ms);
        world.wait_missing(at_ms, 0);
    }
    world.wait_granted(5000, extents as usize);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.hung_reads, stats.retries, stats.read_errors, stats.degraded), (0, 0, 0, 0));
}

/// A probe has been answered and stands behind more reads than are taken in a turn.
#[test]
fn a_probe_that_was_answered_is_not_given_up() {
    let (places, extents) = (20, 60);
    let mut world = World::new(places, extents as usize);
    world.want(0);
    world.wait_granted(0, 1);
    world.faults.set(1, ReadFault::Hang);
    world.want(1);
    world.turn(0);
    world.wait_begun(0, 0b010);
    world.wait_missing(0, 0b010);
    world.turn(260);
    assert_eq!(world.health(1), MemberHealth::Slow);
    world.faults.set_all(&[]);
    world.wait_granted(260, 2);
    world.wait_missing(270, 0);
    (2..extents).for_each(|extent| world.want(extent));
    world.turn(900);
    world.wait_missing(900, 0);
    assert_eq!(world.manager.counters.snapshot().probes, 0);
    // Eight are taken, eight and the probe are begun behind the twelve that are left.
    world.turn(1300);
    assert_eq!(world.manager.counters.snapshot().probes, 1);
    world.wait_missing(1300, 0);
    for turn in 0..20 {
        let at_ms = 1600 + turn * 300;
        world.turn(at_ms);
        world.wait_missing(at_ms, 0);
    }
    world.wait_granted(8000, extents as usize);
    assert_eq!(world.health(1), MemberHealth::Healthy);
    assert_eq!(world.manager.counters.snapshot().probes, u64::from(GOOD_PROBES), "each was good");
}

/// A parity track on one member: there is nowhere else to read its parity from.
#[test]
fn a_parity_track_waits_for_members_that_nothing_makes_up_for() {
    let sample = RowSample::of_rows(geometry(8, 3, 1, 20), 8);
    let track = sample.open_track(1);
    let mut world = World::of(7, 2, sample, (track, u8::MAX));
    world.faults.set(0, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, 0b1);
    world.turn(260);
    world.turn(3000);
    assert_eq!((world.late(0), world.granted.len()), (1, 0));
    world.faults.set_all(&[]);
    world.wait_any(3001, 1);
    let lease = world.granted[0].1.as_ref().unwrap();
    assert_eq!(lease.content().spare, 0, "nothing is missing");
}

/// What was read with holes while a member was away is read anew once it is back, for whoever wants it then.
#[test]
fn holes_do_not_outlive_what_made_them() {
    let sample = RowSample::of_rows(geometry(4, 2, 3, 5), 18);
    let film = sample.open(1316);
    let mut world = World::of(7, 2, sample, (film, 2));
    // Not the one that the records are read from.
    world.faults.set(0, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, 0b001);
    world.wait_missing(0, 0b001);
    world.turn(260);
    world.wait_any(260, 1);
    let missing = |world: &World, grant: usize| {
        let lease = world.granted[grant].1.as_ref().unwrap();
        world.sample.check(&lease.content(), lease.bytes()).len()
    };
    assert!(missing(&world, 0) > 0);
    world.want(0);
    world.wait_any(270, 2);
    assert!(missing(&world, 1) > 0, "it is still away");
    world.faults.set_all(&[]);
    world.wait_missing(280, 0);
    let begun = RealInstant::now();
    let mut at_ms = 280;
    while world.health(0) != MemberHealth::Healthy {
        assert!(begun.elapsed() < PATIENCE);
        at_ms += 50;
        world.turn(at_ms);
        std::thread::yield_now();
    }
    world.want(0);
    world.wait_any(at_ms, 3);
    assert_eq!(missing(&world, 2), 0);
    assert!(missing(&world, 0) > 0, "what is lent stays as it is");
}

#[test]
fn of_a_title_that_was_closed_while_it_was_read_no_file_stays_open() {
    let mut world = World::new(7, 2);
    world.want(0);
    world.wait_granted(0, 1);
    assert!(world.manager.care.remembers(world.title));
    world.faults.set(1, ReadFault::Hang);
    world.want(1);
    world.turn(0);
    world.wait_begun(0, 0b010);
    world.manager.policy.close_title(Instant(0), world.title);
    world.manager.care.forget_title(world.title);
    world.faults.set_all(&[]);
    world.wait_missing(10, 0);
    world.turn(10);
    assert_eq!(world.manager.free_places.len(), 7, "the read has ended");
    assert!(!world.manager.care.remembers(world.title));
}

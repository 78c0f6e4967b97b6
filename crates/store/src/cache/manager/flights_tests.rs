//! What becomes of reads of many members when some answer late: the manager's turns on a clock that the test moves, real
//! reads, members that hang on order.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant};

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Clock, Doorbell, Want};
use proptest::prelude::*;

use super::super::super::ReadBackend;
use super::super::super::handle::{self, CacheHandle};
use super::super::super::health::{GOOD_PROBES, MemberFault};
use super::super::super::member_files::TitleFile;
use super::super::super::residents::ResidentExtents;
use super::super::super::stripes::sample::{StripeSample, StripeSource, geometry};
use super::super::ManagerParts;
use super::*;
use crate::bell::EventBell;
use crate::cache::read::MAX_OF_MEMBER;
use crate::cache::{CacheConfig, MemberHealth};
use crate::disk::{ReadFault, ReadFaults};

/// Nothing here takes a tenth of this; a longer wait means that something was lost.
const TIMEOUT: Duration = Duration::from_secs(60);
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

/// A manager on three members that can lose one, or on others.
struct FlightFixture {
    manager: Manager,
    handle: CacheHandle,
    faults: ReadFaults,
    sample: StripeSample,
    title: TitleRef,
    spare: u8,
    granted: Vec<(u32, Result<Lease, ReadFailure>)>,
}

impl FlightFixture {
    fn new(places: usize, extents: usize) -> Self {
        let sample = StripeSample::of_stripes(geometry(4, 2, 3, 5), extents * 9);
        let media = sample.open(1316);
        Self::of(places, extents, sample, (media, 0))
    }

    /// The same for any title; the viewer can do without `spare` packets of a codeword.
    fn of(places: usize, extents: usize, sample: StripeSample, (source, spare): (StripeSource, u8)) -> Self {
        let wake = Arc::new(EventBell::new().unwrap());
        let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(extents + 1))));
        let (handle, end) = handle::pair(Arc::clone(&wake), Arc::new(Silent), &residents);
        let config = CacheConfig {
            prefetch_ns: 0,
            reads_in_flight: places,
            backend: ReadBackend::Threads,
            ..CacheConfig::default()
        };
        let faults = ReadFaults::settable();
        // No commands are sent.
        let (_, control) = std::sync::mpsc::channel();
        let mut manager = Manager::new(ManagerParts {
            config,
            residents,
            handles: vec![end],
            control,
            wake,
            clock: Arc::new(StoppedClock),
            counters: Arc::default(),
            faults: faults.clone(),
        })
        .unwrap();
        let title = manager.policy.open_title(OpenTitle::new(Box::new(source))).unwrap();
        Self { manager, handle, faults, sample, title, spare, granted: Vec::new() }
    }

    fn want(&mut self, extent: u32) {
        let stream = StreamId { index: extent, generation: 0 };
        let want = Want {
            stream,
            run: RunSerial(0),
            title: self.title,
            extent,
            place: 0,
            by: Instant(0),
            spare: self.spare,
        };
        assert!(self.handle.want(&want));
    }

    fn turn(&mut self, at_ms: u64) {
        self.manager.turn(Instant(at_ms * MS));
        while let Some(grant) = self.handle.poll() {
            self.granted.push((grant.extent, grant.lease));
        }
    }

    /// Waits until these members and no others owe answers to reads under way, the probe among them.
    fn wait_missing(&mut self, at_ms: u64, members: impl Into<MemberSet>) {
        let members = members.into();
        self.wait_until(at_ms, |missing| missing == members);
    }

    /// Waits until no others than these do: on a busy machine their threads may not have run yet, and the test's clock does not
    /// wait for them.
    fn wait_others(&mut self, at_ms: u64, members: MemberSet) {
        self.wait_until(at_ms, |missing| (missing - members).is_empty());
    }

    /// Waits until those who owe answers are as they should be.
    fn wait_until(&mut self, at_ms: u64, is_right: impl Fn(MemberSet) -> bool) {
        let begun = RealInstant::now();
        let now = Instant(at_ms * MS);
        loop {
            self.manager.reader.wait(now, Some(Duration::ZERO));
            let places = 0..=self.manager.flights.len();
            let members = |all, place| all | self.manager.reader.unanswered(now, place).members;
            let missing = places.fold(MemberSet::EMPTY, members);
            if is_right(missing) {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "missing are {missing:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until no member owes an answer, including answers to reads that were given up. On a
    /// busy machine, threads of members that answer again may not have run yet, and a member that
    /// owes answers for two seconds of the test's clock counts as hung.
    fn wait_owed(&mut self, at_ms: u64) {
        let begun = RealInstant::now();
        while !self.manager.monitor.owing().is_empty() {
            assert!(begun.elapsed() < TIMEOUT, "owing are {:?}", self.manager.monitor.owing());
            self.turn(at_ms);
            std::thread::yield_now();
        }
    }

    /// Waits until reads of all these members are under way.
    fn wait_begun(&mut self, at_ms: u64, members: impl Into<MemberSet>) {
        let members = members.into();
        let all = |asked: &[MemberSet]| asked.iter().fold(MemberSet::EMPTY, |all, &asked| all | asked);
        self.wait_asked(at_ms, |asked| (members - all(asked)).is_empty());
    }

    /// Waits until reads of all these members are in progress at `places` places.
    fn wait_begun_at(&mut self, at_ms: u64, places: usize, members: impl Into<MemberSet>) {
        let members = members.into();
        let is_begun = |asked: &&MemberSet| (members - **asked).is_empty();
        self.wait_asked(at_ms, |asked| asked.iter().filter(is_begun).count() == places);
    }

    /// Waits until the members whose reads are under way, at each place, are as they should be.
    fn wait_asked(&mut self, at_ms: u64, is_right: impl Fn(&[MemberSet]) -> bool) {
        let begun = RealInstant::now();
        let now = Instant(at_ms * MS);
        loop {
            let asked = (0..self.manager.flights.len()).map(|place| {
                let missing = self.manager.reader.unanswered(now, place);
                missing.members - missing.queued
            });
            let asked: Vec<MemberSet> = asked.collect();
            if is_right(&asked) {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "asked are {asked:?}");
            std::thread::yield_now();
        }
    }

    /// Runs turns at one moment until `count` extents have been granted in total.
    fn wait_any(&mut self, at_ms: u64, count: usize) {
        let begun = RealInstant::now();
        while self.granted.len() < count {
            assert!(begun.elapsed() < TIMEOUT, "{} of {count} are granted", self.granted.len());
            self.turn(at_ms);
        }
    }

    /// The same for media; every extent must be correct.
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
fn flight_with_two_late_members_uses_the_one_that_answers() {
    // As many threads as hang, and some.
    let mut world = FlightFixture::new(7, 1);
    world.faults.set_all(&[(0, ReadFault::Hang), (1, ReadFault::Hang)]);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, [0, 1]);
    world.wait_missing(0, [0, 1]);
    world.turn(260);
    assert_eq!((world.late(0), world.late(1)), (1, 1));
    assert_eq!(world.manager.counters.snapshot().hung_reads, 0, "without both of them it cannot be had");
    world.faults.set(1, ReadFault::None);
    world.wait_missing(261, [0]);
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
fn flight_answered_late_is_taken_once_and_not_given_up() {
    let (places, extents) = (20, 40);
    let mut world = FlightFixture::new(places, extents as usize);
    world.faults.set_all(&[(0, ReadFault::Hang), (1, ReadFault::Hang)]);
    (0..extents).for_each(|extent| world.want(extent));
    world.turn(0);
    // Both are asked for the same extents: if one were asked later, it would be waited for and the other given up.
    world.wait_begun_at(70, MAX_OF_MEMBER, [0, 1]);
    world.turn(330);
    assert!(world.late(0) > 0 && world.late(1) > 0);
    world.faults.set_all(&[]);
    world.wait_missing(340, []);
    for turn in 0..20 {
        let at_ms = 3000 + turn * 100;
        world.turn(at_ms);
        world.wait_missing(at_ms, []);
    }
    world.wait_granted(5000, extents as usize);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.hung_reads, stats.retries, stats.read_errors, stats.degraded), (0, 0, 0, 0));
}

/// A probe has been answered and stands behind more reads than are taken in a turn.
#[test]
fn probe_answered_behind_many_reads_is_not_given_up() {
    let (places, extents) = (20, 60);
    let mut world = FlightFixture::new(places, extents as usize);
    world.want(0);
    world.wait_granted(0, 1);
    world.faults.set(1, ReadFault::Hang);
    world.want(1);
    world.turn(0);
    world.wait_begun(0, [1]);
    world.wait_missing(0, [1]);
    world.turn(260);
    assert_eq!(world.health(1), MemberHealth::Slow);
    world.faults.set_all(&[]);
    world.wait_granted(260, 2);
    world.wait_missing(270, []);
    (2..extents).for_each(|extent| world.want(extent));
    world.turn(900);
    world.wait_missing(900, []);
    assert_eq!(world.manager.counters.snapshot().probes, 0);
    // Eight are taken, eight and the probe are begun behind the twelve that are left.
    world.turn(1300);
    assert_eq!(world.manager.counters.snapshot().probes, 1);
    world.wait_missing(1300, []);
    for turn in 0..20 {
        let at_ms = 1600 + turn * 300;
        world.turn(at_ms);
        world.wait_missing(at_ms, []);
    }
    world.wait_granted(8000, extents as usize);
    assert_eq!(world.health(1), MemberHealth::Healthy);
    assert_eq!(world.manager.counters.snapshot().probes, u64::from(GOOD_PROBES), "each was good");
}

/// A parity track on one member: there is nowhere else to read its parity from.
#[test]
fn parity_track_on_single_member_waits_for_late_read() {
    let sample = StripeSample::of_stripes(geometry(8, 3, 1, 20), 8);
    let track = sample.open_track(1);
    let mut world = FlightFixture::of(7, 2, sample, (track, u8::MAX));
    world.faults.set(0, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, [0]);
    world.turn(260);
    world.turn(3000);
    assert_eq!((world.late(0), world.granted.len()), (1, 0));
    world.faults.set_all(&[]);
    world.wait_any(3001, 1);
    let lease = world.granted[0].1.as_ref().unwrap();
    assert_eq!(lease.content().spare, 0, "nothing is missing");
}

/// An extent read with holes while a member was away is read again for the next request once the
/// member is back.
#[test]
fn holes_do_not_outlive_what_made_them() {
    let sample = StripeSample::of_stripes(geometry(4, 2, 3, 5), 18);
    let media = sample.open(1316);
    let mut world = FlightFixture::of(7, 2, sample, (media, 2));
    let missing = |world: &FlightFixture, grant: usize| {
        let lease = world.granted[grant].1.as_ref().unwrap();
        world.sample.check(&lease.content(), lease.bytes()).len()
    };
    // Not the one that the records are read from.
    world.faults.set(0, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, [0]);
    world.wait_missing(0, [0]);
    world.turn(260);
    world.wait_any(260, 1);
    assert_eq!(missing(&world, 0), 0, "it was late: what it has is decoded");
    // By now it counts as lost.
    world.want(1);
    world.wait_any(2260, 2);
    assert!(missing(&world, 1) > 0);
    world.want(1);
    world.wait_any(2270, 3);
    assert!(missing(&world, 2) > 0, "it is still away");
    world.faults.set_all(&[]);
    world.wait_missing(2280, []);
    let begun = RealInstant::now();
    let mut at_ms = 2280;
    while world.health(0) != MemberHealth::Healthy {
        assert!(begun.elapsed() < TIMEOUT);
        at_ms += 50;
        world.turn(at_ms);
        std::thread::yield_now();
    }
    world.want(1);
    world.wait_any(at_ms, 4);
    assert_eq!(missing(&world, 3), 0);
    assert!(missing(&world, 1) > 0, "what is lent stays as it is");
}

#[test]
fn close_title_during_read_leaves_no_file_open() {
    let mut world = FlightFixture::new(7, 2);
    world.want(0);
    world.wait_granted(0, 1);
    assert!(world.manager.monitor.remembers(world.title));
    world.faults.set(1, ReadFault::Hang);
    world.want(1);
    world.turn(0);
    world.wait_begun(0, [1]);
    world.manager.policy.close_title(Instant(0), world.title);
    world.manager.monitor.forget_title(world.title);
    world.faults.set_all(&[]);
    world.wait_missing(10, []);
    world.turn(10);
    let places = world.manager.flights.len();
    assert_eq!(world.manager.free_places.len(), places, "the read has ended");
    assert!(!world.manager.monitor.remembers(world.title));
}

/// The manager had no processor: it has not seen its members' answers in the meantime, and blames
/// no member.
#[test]
fn forgive_after_manager_stall_blames_no_member() {
    let mut world = FlightFixture::new(7, 1);
    world.faults.set(1, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, [1]);
    world.wait_missing(0, [1]);
    // It meant to look at 70 ms.
    world.manager.forgive(Instant(3000 * MS), Instant(70 * MS));
    for at_ms in [3000, 3170] {
        world.turn(at_ms);
        assert_eq!(world.late(1), 0, "at {at_ms} ms");
    }
    // Now it has been seen to take too long.
    world.turn(3260);
    assert_eq!((world.late(1), world.health(1)), (1, MemberHealth::Slow));
    world.wait_granted(3260, 1);
    world.faults.set_all(&[]);
}

/// A turn that comes a little late is none that was missed.
#[test]
fn little_delays_are_not_forgiven() {
    let mut world = FlightFixture::new(7, 1);
    world.faults.set(1, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, [1]);
    world.wait_missing(0, [1]);
    (1..=10).for_each(|turn| world.manager.forgive(Instant(turn * 30 * MS), Instant((turn * 30 - 20) * MS)));
    world.turn(300);
    assert_eq!(world.late(1), 1);
    world.wait_granted(300, 1);
    world.faults.set_all(&[]);
}

/// All members are late and there is no alternative: the manager waits for them, and does not give
/// up the rest once some have answered.
#[test]
fn members_that_are_all_late_are_waited_for() {
    let mut world = FlightFixture::new(7, 1);
    world.faults.set_all(&[(0, ReadFault::Hang), (1, ReadFault::Hang), (2, ReadFault::Hang)]);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, [0, 1, 2]);
    for at_ms in [260, 700, 1400, 1990] {
        world.turn(at_ms);
        assert_eq!(
            (world.granted.len(), world.manager.counters.snapshot().hung_reads),
            (0, 0),
            "at {at_ms} ms"
        );
    }
    world.faults.set_all(&[]);
    world.wait_granted(1991, 1);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.read_errors, stats.hung_reads), (0, 0), "{stats:?}");
}

/// A title with damaged files, and the known damage.
struct Damaged {
    sample: StripeSample,
    random: u64,
}

impl Damaged {
    fn new(shape: (u16, u16, u16, u32), stripes: usize, seed: u64) -> Self {
        let (k, m, members, unit) = shape;
        Self { sample: StripeSample::of_stripes(geometry(k, m, members, unit), stripes), random: seed | 1 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end.max(1)
    }

    /// Flips a bit of a symbol: packet `column` of a unit of a stripe. `false`: it lies behind the title's end.
    fn flip(&mut self, stripe: u32, unit: usize, column: u32) -> bool {
        let stripes = self.sample.stripes;
        let (position, at) = (stripes.position_of(stripe, unit), column as usize * 1316);
        let kind = match unit < stripes.k() {
            true if stripes.media_in_unit(stripe, unit) <= at => return false,
            true => TitleFile::Data,
            false => TitleFile::Parity,
        };
        let length = match kind {
            TitleFile::Data => (stripes.media_in_unit(stripe, unit) - at).min(1316),
            _ => 1316,
        };
        let offset = stripes.offset_of(stripe, unit) + (at + self.below(length)) as u64;
        let file = File::options().read(true).write(true).open(self.sample.path(position, kind)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << self.below(8)], offset).unwrap();
        true
    }

    /// The same of several packets of a unit.
    fn flip_unit(&mut self, stripe: u32, unit: usize, columns: std::ops::Range<u32>) {
        for column in columns {
            self.flip(stripe, unit, column);
        }
    }

    /// Damages at most `m` symbols of each codeword; the members with the numbers in `bad` more often than the others.
    fn flip_any(&mut self, bad: &[u16], percent: usize) {
        let stripes = self.sample.stripes;
        for (stripe, column) in
            (0..stripes.stripes()).flat_map(|stripe| (0..stripes.unit_packets()).map(move |c| (stripe, c)))
        {
            let mut left = stripes.m();
            let first = self.below(stripes.k() + stripes.m());
            for unit in
                (0..stripes.k() + stripes.m()).map(|unit| (first + unit) % (stripes.k() + stripes.m()))
            {
                let is_bad = bad.contains(&(stripes.position_of(stripe, unit) as u16));
                let chance = if is_bad { percent } else { percent / 8 };
                if left > 0 && self.below(100) < chance && self.flip(stripe, unit, column) {
                    left -= 1;
                }
            }
        }
    }

    fn world(self) -> FlightFixture {
        let media = self.sample.open(1316);
        // Room for a part of the title: it is read more than once.
        FlightFixture::of(6, 5, self.sample, (media, 0))
    }
}

impl FlightFixture {
    /// The next extents, in this order, wanted one after another; each has to be right.
    fn play(&mut self, at_ms: &mut u64, extents: &[u32]) {
        for &extent in extents {
            self.want(extent);
            self.wait_right(at_ms);
            *at_ms += 40;
        }
    }

    /// Waits until something is granted, which has to be right.
    fn wait_right(&mut self, at_ms: &mut u64) {
        let (begun, mut seconds) = (RealInstant::now(), 1);
        while self.granted.is_empty() {
            let elapsed = begun.elapsed();
            assert!(elapsed < TIMEOUT, "nothing is granted");
            if elapsed > Duration::from_secs(seconds) {
                // Threads that open files have had no processor: that is looked at again as time goes on.
                (*at_ms, seconds) = (*at_ms + 70, seconds + 1);
            }
            self.turn(*at_ms);
            std::thread::yield_now();
        }
        for (extent, lease) in std::mem::take(&mut self.granted) {
            let lease = lease.unwrap_or_else(|failure| panic!("extent {extent}: {failure}"));
            assert_eq!(self.sample.check(&lease.content(), lease.bytes()), [0; 0]);
        }
    }

    fn extents(&self) -> u32 {
        self.manager.policy.title(self.title).unwrap().extents()
    }
}

/// Two members of four are damaged, where one may be lost, but never in the same stripe; both are suspended, in any order.
#[test]
fn flight_with_two_damaged_members_serves_recoverable_extents() {
    let mut damaged = Damaged::new((6, 2, 4, 5), 60, 5);
    let stripes = damaged.sample.stripes;
    for stripe in 0..stripes.stripes() {
        let member = match stripe * 100 / stripes.stripes() {
            0..60 => 2,
            65..100 => 1,
            _ => continue,
        };
        for unit in stripes.units_on(member, stripe).filter(|&unit| unit < stripes.k()) {
            damaged.flip_unit(stripe, unit, 0..stripes.unit_packets());
        }
    }
    let mut world = damaged.world();
    let (extents, mut at_ms) = (world.extents(), 0);
    // One viewer from the beginning, one from where the other member's damage is.
    let order: Vec<u32> =
        (0..extents).flat_map(|extent| [extent, (extent + extents * 2 / 3) % extents]).collect();
    world.play(&mut at_ms, &order);
    for member in [1, 2] {
        assert_ne!(world.health(member), MemberHealth::Healthy, "it was seen to be damaged");
    }
    world.play(&mut at_ms, &order);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.read_errors, stats.checksum_errors), (0, 0), "{stats:?}");
}

/// An extent is ordered without a member that has hung for long; when it turns out not to be enough, that member has come back.
#[test]
fn flight_rereads_hung_member_that_returns_before_failure() {
    const MEMBER: MemberSet = MemberSet::of(1);
    let mut damaged = Damaged::new((4, 2, 3, 5), 40, 5);
    let stripes = damaged.sample.stripes;
    // Behind the first extent no stripe can do without that member.
    for stripe in stripes.stripes() / 2..stripes.stripes() {
        for unit in stripes.units_on(0, stripe).take(1) {
            damaged.flip_unit(stripe, unit, 0..stripes.unit_packets());
        }
    }
    let mut world = damaged.world();
    world.faults.set(1, ReadFault::Hang);
    world.want(0);
    world.turn(0);
    world.wait_begun(0, MEMBER);
    world.wait_missing(0, MEMBER);
    world.turn(260);
    let mut at_ms = 260;
    world.wait_right(&mut at_ms);
    at_ms = 2400;
    world.turn(at_ms);
    assert_eq!(world.manager.monitor.view(Instant(at_ms * MS)).hung, MEMBER);
    world.want(world.extents() - 1);
    let begun = RealInstant::now();
    while !world.manager.flights.iter().flatten().any(|flight| flight.effort == Effort::All) {
        assert!(begun.elapsed() < TIMEOUT && world.granted.is_empty());
        world.turn(at_ms);
        world.wait_others(at_ms, MEMBER);
    }
    world.faults.set_all(&[]);
    world.wait_missing(at_ms, []);
    world.wait_right(&mut at_ms);
    assert_eq!(world.manager.counters.snapshot().read_errors, 0);
}

/// One file is truncated in the middle of a unit, and another member is damaged up to there: the
/// remaining data is taken packet by packet.
#[test]
fn files_that_end_too_early_give_what_they_have() {
    let mut damaged = Damaged::new((6, 2, 4, 5), 40, 5);
    let stripes = damaged.sample.stripes;
    let cut = |position: usize, kind: TitleFile, bytes: u64| {
        let file = File::options().write(true).open(damaged.sample.path(position, kind)).unwrap();
        file.set_len(bytes).unwrap();
    };
    let middle = stripes.stripes() / 2;
    let unit = stripes.units_on(1, middle).find(|&unit| unit < stripes.k()).unwrap();
    cut(1, TitleFile::Data, stripes.offset_of(middle, unit) + 1316 * 2 + 100);
    for stripe in 0..middle {
        for unit in stripes.units_on(3, stripe) {
            damaged.flip_unit(stripe, unit, 0..stripes.unit_packets());
        }
    }
    // In that stripe too, as far as the first member has one of its two units.
    for unit in stripes.units_on(3, middle).take(1) {
        damaged.flip_unit(middle, unit, 0..2);
    }
    let mut world = damaged.world();
    let (extents, mut at_ms) = (world.extents(), 0);
    let order: Vec<u32> = (0..extents).chain((0..extents).rev()).collect();
    world.play(&mut at_ms, &order);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.read_errors, stats.checksum_errors), (0, 0), "{stats:?}");
}

/// A member whose file is gone, and one that is damaged elsewhere.
#[test]
fn flight_without_data_file_uses_parity_of_that_member() {
    let mut damaged = Damaged::new((4, 4, 2, 3), 30, 9);
    let stripes = damaged.sample.stripes;
    std::fs::remove_file(damaged.sample.path(0, TitleFile::Data)).unwrap();
    // Half of the other's parity: without that of the first there is not enough.
    for stripe in 0..stripes.stripes() {
        let parity: Vec<usize> = stripes.units_on(1, stripe).filter(|&unit| unit >= stripes.k()).collect();
        for &unit in parity.iter().take(parity.len() / 2) {
            damaged.flip_unit(stripe, unit, 0..stripes.unit_packets());
        }
    }
    let mut world = damaged.world();
    let order: Vec<u32> = (0..world.extents()).collect();
    world.play(&mut 0, &order);
}

/// Something that happens while viewers play.
#[derive(Clone, Copy, Debug)]
enum FlightEvent {
    /// This many milliseconds pass.
    Wait(u64),
    /// Something becomes of another read of a member.
    Blame(u16, u8),
    /// A member does not answer for this long, and then does.
    Late(u16, u64, u32),
    /// A viewer requests an extent.
    Play(u32),
    /// The members' files are reported as replaced.
    Repaired,
}

fn event() -> impl Strategy<Value = FlightEvent> {
    prop_oneof![
        (0u64..3000).prop_map(FlightEvent::Wait),
        (0u16..5, 0u8..5).prop_map(|(member, kind)| FlightEvent::Blame(member, kind)),
        (0u16..5, 0u64..1500, any::<u32>())
            .prop_map(|(member, ms, extent)| FlightEvent::Late(member, ms, extent)),
        any::<u32>().prop_map(FlightEvent::Play),
        any::<u32>().prop_map(FlightEvent::Play),
        Just(FlightEvent::Repaired),
    ]
}

fn happen(world: &mut FlightFixture, at_ms: &mut u64, event: FlightEvent) {
    let members = world.sample.stripes.members() as u16;
    let extents = world.extents();
    match event {
        FlightEvent::Wait(ms) => {
            // Probes are begun and answered meanwhile.
            for _ in 0..ms.div_ceil(250) {
                *at_ms += 250;
                world.turn(*at_ms);
                world.wait_missing(*at_ms, []);
            }
        }
        FlightEvent::Blame(member, kind) => {
            let outcome = match kind {
                0 => MemberFault::Late,
                1 => MemberFault::Error(libc::ENODEV),
                2 => MemberFault::Error(libc::EIO),
                _ => MemberFault::Wrong,
            };
            let times = if kind > 2 { 6 } else { 1 };
            let now = Instant(*at_ms * MS);
            (0..times).for_each(|_| world.manager.monitor.blame(now, member % members, outcome));
        }
        FlightEvent::Late(member, ms, extent) => {
            world.faults.set(member % members, ReadFault::Hang);
            world.want(extent % extents);
            for _ in 0..ms.div_ceil(70) {
                world.turn(*at_ms);
                world.wait_others(*at_ms, MemberSet::of(member % members));
                *at_ms += 70;
            }
            world.faults.set_all(&[]);
            world.wait_right(at_ms);
            world.wait_missing(*at_ms, []);
        }
        FlightEvent::Play(extent) => world.play(at_ms, &[extent % extents]),
        FlightEvent::Repaired => {
            world.sample.epoch.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    world.wait_owed(*at_ms);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(16)))]
    /// Whatever is damaged, as long as no codeword has more than `m` bad symbols, and whatever happens in whatever order (errors,
    /// suspensions, probes, late answers): every viewer gets every byte.
    #[test]
    fn flight_with_recoverable_damage_is_never_refused(
        shape in prop::sample::select(vec![(6, 2, 4, 5), (4, 4, 2, 3), (4, 2, 3, 5), (4, 1, 5, 4), (4, 4, 4, 3)]),
        seed: u64,
        bad in proptest::collection::vec(0u16..5, 0..4),
        percent in 0usize..=100,
        events in proptest::collection::vec(event(), 0..24),
    ) {
        let mut damaged = Damaged::new(shape, 24, seed);
        damaged.flip_any(&bad, percent);
        let mut world = damaged.world();
        let mut at_ms = 0;
        for event in events {
            happen(&mut world, &mut at_ms, event);
        }
        let all: Vec<u32> = (0..world.extents()).collect();
        world.play(&mut at_ms, &all);
        let stats = world.manager.counters.snapshot();
        prop_assert_eq!((stats.read_errors, stats.checksum_errors), (0, 0));
    }
}

/// With many members extents that follow one another are one read of each of them, also while one is lost.
#[test]
fn extents_that_follow_one_another_are_read_together() {
    for lost in [0, 1] {
        let sample = StripeSample::of_stripes(geometry(6, 2, 8, 5), 60);
        let media = sample.open(1316);
        let mut world = FlightFixture::of(8, 16, sample, (media, 0));
        if lost > 0 {
            world.sample.take_away(&[0]);
        }
        let extents = 8;
        (0..extents).for_each(|extent| world.want(extent));
        world.wait_granted(0, extents as usize);
        let stats = world.manager.counters.snapshot();
        assert_eq!((stats.reads, stats.read_errors), (u64::from(extents), 0));
        let reads = |member: usize| world.manager.counters.of_members[member].reads.get();
        // Two extents at a time, of data, and of parity to decode; and records from one member or two.
        let most = 4 + lost * 4;
        for member in lost as usize..8 {
            let records = if reads(member) > most { 4 * (1 + 2 * lost) } else { 0 };
            assert!(
                (4..=most + records).contains(&reads(member)),
                "member {member}: {} reads",
                reads(member)
            );
        }
    }
}

/// A member that hangs is given up for all extents that were read together.
#[test]
fn run_with_hung_member_is_read_without_it() {
    let sample = StripeSample::of_stripes(geometry(6, 2, 8, 5), 60);
    let media = sample.open(1316);
    let mut world = FlightFixture::of(8, 16, sample, (media, 0));
    world.faults.set(3, ReadFault::Hang);
    (0..8).for_each(|extent| world.want(extent));
    world.turn(0);
    world.wait_begun(0, [3]);
    world.wait_missing(0, [3]);
    world.turn(260);
    assert!(world.manager.counters.snapshot().hung_reads > 0);
    world.wait_granted(261, 8);
    assert_eq!(world.health(3), MemberHealth::Slow);
    world.faults.set_all(&[]);
}

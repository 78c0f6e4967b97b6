use std::sync::Arc;

use millrace_core::ids::{RunSerial, StreamId, TitleId};
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::Doorbell;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use super::super::super::live::{FeedError, Feeder, Keep, LiveTitle, pair};
use super::super::super::residents::ResidentExtents;
use super::super::super::stats::CacheCounters;
use super::*;
use crate::bell::EventBell;

struct Silent;

impl Doorbell for Silent {
    fn ring(&self) {}
}

const NOW: Instant = Instant(5);

struct LivePolicyFixture {
    arena: Arc<ExtentArena>,
    counters: Arc<CacheCounters>,
    policy: Policy,
}

impl LivePolicyFixture {
    fn new(extents: usize) -> Self {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(extents)));
        let counters = Arc::new(CacheCounters::default());
        let policy = Policy::new(ResidentExtents::new(Arc::clone(&arena)), 1, 0, 4, Arc::clone(&counters));
        Self { arena, counters, policy }
    }

    fn open(&mut self, id: u8, extents: usize) -> Result<(TitleRef, Feeder), CacheError> {
        self.open_keeping(Keep::Newest, id, extents)
    }

    fn open_keeping(&mut self, keep: Keep, id: u8, extents: usize) -> Result<(TitleRef, Feeder), CacheError> {
        let (layout, timeline) = (WireLayout::new(1316).unwrap(), Timeline { ssrc: 1, timestamp_base: 0 });
        let title = LiveTitle { id: TitleId([id; 16]), layout, timeline, extents, keep };
        let wake = Arc::new(EventBell::new().unwrap());
        let (feeder, feed) = pair(title, Arc::clone(&self.arena), wake, Arc::new(Silent));
        let title = self.policy.open_live(NOW, OpenTitle::new(Box::new(title)), feed)?;
        Ok((title, feeder))
    }

    fn want(&mut self, index: u32, title: TitleRef, place: u16) {
        self.want_of(index, title, (0, place));
    }

    fn want_of(&mut self, index: u32, title: TitleRef, (extent, place): (u32, u16)) {
        let stream = StreamId { index, generation: 0 };
        let want = Want { stream, run: RunSerial(0), title, extent, place, by: Instant(0), spare: 0 };
        self.policy.want(NOW, 0, &want);
    }

    /// Returns the streams that were answered, each with the number of packets or the failure.
    fn granted(&mut self) -> Vec<(u32, Result<u32, ReadFailure>)> {
        let grants = std::iter::from_fn(|| self.policy.poll_grant()).map(|(_, grant)| grant);
        grants.map(|grant| (grant.stream.index, grant.lease.map(|lease| lease.content().packets))).collect()
    }
}

fn feed(feeder: &mut Feeder, packets: usize) {
    for _ in 0..packets {
        feeder.push(&[0; 1316], 0, MediaTicks(0)).unwrap();
    }
    feeder.publish().unwrap();
}

#[test]
fn live_want_is_granted_by_feeder_and_not_by_time() {
    let mut world = LivePolicyFixture::new(16);
    let (title, mut feeder) = world.open(1, 5).unwrap();
    (0..3).for_each(|index| world.want(index, title, 0));
    assert_eq!((world.granted(), world.policy.poll_at(NOW)), (vec![], None), "nothing is looked at by time");
    feed(&mut feeder, 2);
    assert!(world.policy.has_fed());
    assert_eq!((world.policy.take_fed(NOW), world.policy.has_fed()), (1, false));
    assert_eq!(world.granted(), [0, 1, 2].map(|index| (index, Ok(2))));
    world.want(0, title, 1);
    world.want(1, title, 2);
    world.want(1, title, 2);
    assert_eq!(world.granted(), [(0, Ok(2))], "of one that waits for what is there and one that does not");
    assert_eq!(world.policy.poll_at(NOW), None);
    assert!(world.policy.next_read(NOW).is_none(), "nothing is ever read");
    feed(&mut feeder, 1);
    world.policy.take_fed(NOW);
    assert_eq!(world.granted(), [(1, Ok(3))], "once, however often it has asked");
    let stats = world.counters.snapshot();
    assert_eq!((stats.hits, stats.joins, stats.misses, stats.late_grants), (1, 4, 0, 0));
}

#[test]
fn streams_that_come_and_go_at_a_silent_feeder_leave_nothing_behind() {
    let mut world = LivePolicyFixture::new(16);
    let (title, mut feeder) = world.open(1, 5).unwrap();
    for index in 0..1000 {
        world.want(index, title, 0);
        if index >= 10 {
            world.policy.leave(0, StreamId { index: index - 10, generation: 0 });
        }
    }
    let waiters = world.policy.live[0].1.waiters.len();
    assert!(waiters <= 40, "{waiters} are kept of ten");
    feed(&mut feeder, 1);
    world.policy.take_fed(NOW);
    assert_eq!(world.granted().len(), 10);
}

#[test]
fn closed_titles_answer_who_waits_and_give_everything_back() {
    let mut world = LivePolicyFixture::new(16);
    let places = world.counters.positions().max;
    let (title, mut feeder) = world.open(1, 5).unwrap();
    assert!(world.counters.positions().max < places, "what it holds carries nobody else");
    feed(&mut feeder, 3);
    world.want(0, title, 3);
    world.policy.close_title(NOW, title);
    assert_eq!(world.granted(), [(0, Err(ReadFailure::NoTitle))]);
    world.want(0, title, 0);
    assert_eq!(world.granted(), [(0, Err(ReadFailure::NoTitle))]);
    assert_eq!(feeder.publish(), Err(FeedError::Closed));
    drop(feeder);
    world.policy.handle_time(Instant(1_000_000_000));
    world.policy.publish();
    assert_eq!((world.counters.snapshot().free, world.counters.positions().max), (16, places));
}

#[test]
fn live_titles_have_half_of_the_memory_and_one_feeder_each() {
    let mut world = LivePolicyFixture::new(2 * (MAX_FEEDERS + 1) * MIN_LIVE_EXTENTS);
    assert!(matches!(world.open(0, MIN_LIVE_EXTENTS - 1), Err(CacheError::LiveExtents(_))));
    assert!(matches!(world.open(0, MAX_LIVE_EXTENTS + 1), Err(CacheError::LiveExtents(_))));
    let all = (MAX_FEEDERS + 1) * MIN_LIVE_EXTENTS;
    let too_much = world.open(0, all + 1).map(|_| ());
    assert!(matches!(too_much, Err(CacheError::NoRoomForLive { left, .. }) if left == all));
    let feeders: Vec<_> =
        (0..MAX_FEEDERS).map(|id| world.open(id as u8, MIN_LIVE_EXTENTS).unwrap()).collect();
    assert!(matches!(world.open(255, MIN_LIVE_EXTENTS), Err(CacheError::TooManyFeeders)));
    world.policy.close_title(NOW, feeders[0].0);
    assert!(matches!(world.open(1, MIN_LIVE_EXTENTS), Err(CacheError::HasFeeder)));
    assert!(world.open(0, MIN_LIVE_EXTENTS).is_ok());
}

/// All memory is leased: the feeder is refused, and continues when some has been returned.
#[test]
fn feeder_refused_for_lack_of_memory_continues_after_release() {
    let mut world = LivePolicyFixture::new(2 * MIN_LIVE_EXTENTS);
    let Policy { extent_table, titles, .. } = &mut world.policy;
    let held: Vec<_> = std::iter::from_fn(|| extent_table.take(0, Brings::Demand, titles)).collect();
    let (_, mut feeder) = world.open(1, MIN_LIVE_EXTENTS).unwrap();
    assert_eq!(feeder.push(&[0; 1316], 0, MediaTicks(0)), Err(FeedError::NoRoom));
    assert!(world.policy.poll_at(NOW).is_some(), "it is looked again");
    held.into_iter().for_each(|fill| world.policy.extent_table.give_back(fill));
    world.policy.take_fed(NOW);
    feed(&mut feeder, 1);
}

/// Packets that the feeder can write before it must wait.
fn fill(world: &mut LivePolicyFixture, feeder: &mut Feeder) -> u32 {
    let (before, mut refused) = (feeder.next_packet(), 0);
    while refused < 2 {
        match feeder.push(&[0; 1316], 0, MediaTicks(0)) {
            Ok(()) => refused = 0,
            Err(FeedError::NoRoom) => {
                refused += 1;
                world.policy.take_fed(NOW);
            }
            Err(error) => panic!("{error}"),
        }
    }
    feeder.publish().unwrap();
    feeder.next_packet() - before
}

#[test]
fn keep_unread_feeder_waits_for_slowest_viewer() {
    let mut world = LivePolicyFixture::new(2 * MIN_LIVE_EXTENTS);
    let (title, mut feeder) = world.open_keeping(Keep::Unread, 1, MIN_LIVE_EXTENTS).unwrap();
    let whole = MIN_LIVE_EXTENTS as u32 * 196;
    assert_eq!((fill(&mut world, &mut feeder), fill(&mut world, &mut feeder)), (whole, 0), "nobody plays");
    (0..2).for_each(|index| world.want(index, title, 0));
    assert_eq!(world.granted(), [(0, Ok(196)), (1, Ok(196))]);
    world.want_of(0, title, (3, 0));
    assert_eq!(fill(&mut world, &mut feeder), 0, "the other one is still at the first");
    world.want_of(1, title, (2, 0));
    assert_eq!(fill(&mut world, &mut feeder), 196, "it may still be in the one before");
    world.policy.leave(0, StreamId { index: 1, generation: 0 });
    assert_eq!(fill(&mut world, &mut feeder), 196, "up to the one that is left");
    world.policy.leave(0, StreamId { index: 0, generation: 0 });
    assert_eq!(fill(&mut world, &mut feeder), 0, "what nobody plays is kept");
    world.granted();
    world.want(2, title, 0);
    assert_eq!(world.granted(), [(2, Err(ReadFailure::Passed { first: 2 }))]);
}

#[test]
fn keep_all_feeder_stops_at_title_capacity() {
    let mut world = LivePolicyFixture::new(2 * MIN_LIVE_EXTENTS);
    let (title, mut feeder) = world.open_keeping(Keep::All, 1, MIN_LIVE_EXTENTS).unwrap();
    assert_eq!(fill(&mut world, &mut feeder), MIN_LIVE_EXTENTS as u32 * 196);
    for extent in 0..MIN_LIVE_EXTENTS as u32 {
        world.want_of(0, title, (extent, 0));
    }
    assert_eq!(fill(&mut world, &mut feeder), 0, "it is kept although it has been read");
    world.want_of(1, title, (0, 195));
    assert_eq!(world.granted().pop(), Some((1, Ok(196))));
}

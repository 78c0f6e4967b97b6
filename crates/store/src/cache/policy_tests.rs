use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use millrace_core::ids::TitleId;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;
use proptest::prelude::*;

use super::super::naive::{Audience, Rule, simulate};
use super::super::source::{PlainSource, SourceKind, TitleSource};
use super::*;

const PER_EXTENT: u32 = 196;
/// An extent lasts this long: 100 ms.
const EXTENT_NS: u64 = 100_000_000;

/// A title of any length without a byte behind it: policy never reads.
struct Bare {
    id: u8,
    extents: u32,
    nothing: File,
}

impl TitleSource for Bare {
    fn id(&self) -> TitleId {
        TitleId([self.id; 16])
    }
    fn layout(&self) -> WireLayout {
        WireLayout::new(1316).unwrap()
    }
    fn timeline(&self) -> Timeline {
        Timeline { ssrc: 1, timestamp_base: 0 }
    }
    fn packets(&self) -> u32 {
        self.extents * PER_EXTENT
    }
    fn packet_bytes_at(&self, _: u32) -> usize {
        1316
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        MediaTicks(u64::from(packet) * 9000 / u64::from(PER_EXTENT))
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Plain(self)
    }
}

impl PlainSource for Bare {
    fn data(&self) -> &File {
        &self.nothing
    }
    fn data_path(&self) -> &Path {
        Path::new("/dev/null")
    }
    fn meta(&self) -> &File {
        &self.nothing
    }
}

/// A policy with instant reads.
struct PolicyFixture {
    policy: Policy,
    counters: Arc<CacheCounters>,
    arena: Arc<ExtentArena>,
    now: Instant,
    /// Extents in the order they were read in.
    read: Vec<ExtentKey>,
}

impl PolicyFixture {
    fn new(extents: usize, prefetch_ns: u64) -> Self {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(extents)));
        let counters = Arc::new(CacheCounters::default());
        let policy =
            Policy::new(ResidentExtents::new(Arc::clone(&arena)), 2, prefetch_ns, 8, Arc::clone(&counters));
        Self { policy, counters, arena, now: Instant(1_000_000_000), read: Vec::new() }
    }

    fn open(&mut self, id: u8, extents: u32) -> TitleRef {
        let bare = Bare { id, extents, nothing: File::open("/dev/null").unwrap() };
        self.policy.open_title(OpenTitle::new(Box::new(bare))).unwrap()
    }

    /// A title of its own for a viewer, long enough for any test.
    fn open_long(&mut self, index: u32) -> TitleRef {
        self.open(index as u8, 1_000)
    }

    fn want(&mut self, index: u32, title: TitleRef, extent: u32, in_ns: u64) {
        self.want_spare(index, title, extent, in_ns, 0);
    }

    fn want_spare(&mut self, index: u32, title: TitleRef, extent: u32, in_ns: u64, spare: u8) {
        let stream = StreamId { index, generation: 0 };
        let want =
            Want { stream, run: RunSerial(0), title, extent, place: 0, by: self.now.plus_ns(in_ns), spare };
        self.policy.want(self.now, 0, &want);
    }

    fn leave(&mut self, index: u32) {
        self.policy.leave(0, StreamId { index, generation: 0 });
    }

    fn finish(&mut self, order: ReadOrder) {
        let content = ExtentContent {
            title: order.key.title,
            number: order.key.extent,
            first_packet: order.key.extent * PER_EXTENT,
            packets: PER_EXTENT,
            last_packet_bytes: 1316,
            layout: WireLayout::new(1316).unwrap(),
            spare: order.spare, // as many holes as they can do with
        };
        self.read.push(order.key);
        self.policy.finish(self.now, order.key, order.fill, Ok(content));
    }

    /// Advances the time and performs all planned reads.
    fn read_all(&mut self) {
        self.policy.handle_time(self.now);
        while let Some(order) = self.policy.next_read(self.now) {
            self.finish(order);
        }
        self.policy.publish();
    }

    fn granted(&mut self) -> Vec<Grant> {
        std::iter::from_fn(|| self.policy.poll_grant()).map(|(_, grant)| grant).collect()
    }

    fn read_extents(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.read).into_iter().map(|key| key.extent).collect()
    }
}

fn extents_of(grants: &[Grant]) -> Vec<(u32, u32)> {
    grants.iter().map(|grant| (grant.stream.index, grant.extent)).collect()
}

#[test]
fn read_ahead_starts_when_extents_come_within_horizon() {
    let mut world = PolicyFixture::new(64, 3 * EXTENT_NS);
    let title = world.open(1, 100);
    world.want(0, title, 10, EXTENT_NS);
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(0, 10)]);
    assert_eq!(world.read_extents(), [10, 11, 12], "due in 1, 2 and 3 extents' time");
    world.now = world.now.plus_ns(EXTENT_NS / 2);
    world.read_all();
    assert!(world.read_extents().is_empty());
    let due = world.now.0 + EXTENT_NS / 2;
    let together = due.next_multiple_of(LOOK_AHEAD_TICK_NS as u64);
    assert_eq!(world.policy.poll_at(world.now), Some(Instant(together)), "with what else is due then");
    world.now = world.now.plus_ns(EXTENT_NS / 2);
    world.read_all();
    assert_eq!(world.read_extents(), [13], "although nobody said anything");
    world.want(0, title, 11, EXTENT_NS);
    world.now = world.now.plus_ns(2 * EXTENT_NS);
    world.read_all();
    assert_eq!(world.read_extents(), [14, 15]);
    world.leave(0);
    world.now = world.now.plus_ns(10 * EXTENT_NS);
    world.read_all();
    assert!(world.read_extents().is_empty(), "he is gone");
}

/// For a stream that leases extents in memory directly, the same is read ahead as for one that asks.
#[test]
fn read_ahead_follows_a_stream_that_takes_its_extents_itself() {
    let run = |takes: bool| {
        let mut world = PolicyFixture::new(64, 3 * EXTENT_NS);
        let title = world.open(1, 100);
        world.want(0, title, 10, EXTENT_NS);
        world.read_all();
        world.granted();
        world.read_extents();
        let stream = StreamId { index: 1, generation: 0 };
        let by = world.now.plus_ns(EXTENT_NS);
        let want = Want { stream, run: RunSerial(0), title, extent: 12, place: 0, by, spare: 0 };
        if takes {
            world.policy.took(world.now, 0, &want);
        } else {
            world.policy.want(world.now, 0, &want);
        }
        let granted = extents_of(&world.granted());
        world.read_all();
        world.leave(0);
        world.now = world.now.plus_ns(2 * EXTENT_NS);
        world.read_all();
        (granted, world.read_extents(), world.counters.hits.get(), world.counters.playheads.get())
    };
    let (granted, read, hits, playheads) = run(false);
    assert_eq!((granted, &read[..], hits, playheads), (vec![(1, 12)], &[13, 14, 15, 16][..], 1, 1));
    assert_eq!(run(true), (vec![], read, hits, playheads), "and nothing is granted twice");
}

#[test]
fn read_ahead_for_late_viewer_starts_at_requested_extent() {
    let mut world = PolicyFixture::new(64, 2 * EXTENT_NS);
    let title = world.open(1, 100);
    world.now = world.now.plus_ns(1000 * EXTENT_NS);
    let stream = StreamId { index: 0, generation: 0 };
    let want = Want {
        stream,
        run: RunSerial(0),
        title,
        extent: 5,
        place: 0,
        by: Instant(world.now.0 - 50 * EXTENT_NS),
        spare: 0,
    };
    world.policy.want(world.now, 0, &want);
    world.read_all();
    assert_eq!(world.read_extents(), [5, 6, 7]);
    assert_eq!(world.counters.late_grants.get(), 1);
}

#[test]
fn read_ahead_at_title_end_stops_and_removes_playhead() {
    let mut world = PolicyFixture::new(64, 10 * EXTENT_NS);
    let title = world.open(1, 12);
    world.want(0, title, 10, 0);
    world.read_all();
    assert_eq!((world.read_extents(), world.counters.playheads.get()), (vec![10, 11], 1));
    world.want(0, title, 11, EXTENT_NS);
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(0, 10), (0, 11)]);
    assert_eq!((world.read_extents(), world.counters.playheads.get()), (vec![], 0));
    world.want(0, title, 12, 0);
    assert_eq!(world.granted()[0].lease.as_ref().err(), Some(&ReadFailure::OutOfRange));
}

#[test]
fn those_who_wait_come_first_and_a_part_of_the_reads_is_kept_for_them() {
    let mut world = PolicyFixture::new(64, 20 * EXTENT_NS);
    let title = world.open(1, 100);
    world.want(0, title, 0, 0);
    let mut orders = Vec::new();
    while let Some(order) = world.policy.next_read(world.now) {
        orders.push(order);
    }
    // Of 8 reads 6 may be reads ahead: the one that is waited for and five more are in flight now, or six.
    let ahead = world.counters.reads_ahead.get();
    assert_eq!((orders.len() as u64, orders[0].key.extent), (6, 0));
    assert_eq!(ahead, 5);
    world.want(1, title, 50, 0);
    let urgent = world.policy.next_read(world.now).unwrap();
    assert_eq!(urgent.key.extent, 50, "before the reads ahead that were there first");
    orders.push(urgent);
    assert!(world.policy.next_read(world.now).is_none());
    orders.into_iter().for_each(|order| world.finish(order));
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(0, 0), (1, 50)]);
}

#[test]
fn reads_go_by_deadline() {
    let mut world = PolicyFixture::new(64, 0);
    let title = world.open(1, 100);
    for (index, in_ns) in [(0, 900), (1, 300), (2, 700), (3, 100)] {
        world.want(index, title, 10 * index, in_ns);
    }
    world.want(0, title, 0, 200); // more urgent now
    world.read_all();
    assert_eq!(world.read_extents(), [30, 0, 10, 20]);
    assert_eq!(world.granted().len(), 4, "the repeated want has one answer");
}

#[test]
fn want_by_many_viewers_for_same_extent_shares_one_read() {
    let mut world = PolicyFixture::new(64, 0);
    let title = world.open(1, 100);
    (0..200).for_each(|index| world.want(index, title, 7, 1000));
    world.read_all();
    assert_eq!(world.read_extents(), [7]);
    let grants = world.granted();
    assert_eq!(grants.len(), 200);
    assert!(grants.iter().all(|grant| grant.lease.is_ok()));
    assert_eq!(world.arena.leases(grants[0].lease.as_ref().unwrap().extent()), 200);
    let counters = &world.counters;
    assert_eq!((counters.misses.get(), counters.joins.get(), counters.hits.get()), (1, 199, 0));
}

#[test]
fn leave_cancels_pending_grants_and_reads() {
    let mut world = PolicyFixture::new(64, 5 * EXTENT_NS);
    let title = world.open(1, 100);
    world.want(0, title, 7, 1000);
    world.want(1, title, 9, 1000);
    world.leave(0);
    world.policy.leave(0, StreamId { index: 1, generation: 5 }); // an older stream of that index: not this one
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(1, 9)]);
    assert!(!world.read_extents().contains(&7));
    world.policy.handle_gone(0);
    world.read_all();
    assert_eq!(world.counters.playheads.get(), 0);
}

#[test]
fn stream_of_new_generation_gets_no_earlier_grants() {
    let mut world = PolicyFixture::new(64, 0);
    let title = world.open(1, 100);
    world.want(0, title, 7, 1000);
    let stream = StreamId { index: 0, generation: 1 };
    for extent in [8, 7] {
        world.policy.want(
            world.now,
            0,
            &Want { stream, run: RunSerial(0), title, extent, place: 0, by: world.now, spare: 0 },
        );
    }
    world.read_all();
    let ids = |grants: Vec<Grant>| grants.iter().map(|g| (g.stream.generation, g.extent)).collect::<Vec<_>>();
    assert_eq!(ids(world.granted()), [(1, 7), (1, 8)]);
    // The same stream after a pause: its earlier request is not granted a second time.
    world.want(1, title, 9, 0);
    world.leave(1);
    world.want(1, title, 9, 0);
    world.read_all();
    assert_eq!(ids(world.granted()), [(0, 9)]);
}

#[test]
fn seeks_give_up_the_oldest_wants() {
    let mut world = PolicyFixture::new(64, 0);
    let title = world.open(1, 100);
    (0..9).for_each(|place| world.want(0, title, 10 * place, 1000));
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(0, 50), (0, 60), (0, 70), (0, 80)]);
    assert_eq!(world.counters.displaced.get(), 5);
}

#[test]
fn close_title_fails_waiters_and_discards_reads_in_flight() {
    let mut world = PolicyFixture::new(8, 0);
    let title = world.open(1, 100);
    world.want(0, title, 1, 0);
    world.want(1, title, 2, 10);
    let in_flight = world.policy.next_read(world.now).unwrap();
    world.policy.close_title(world.now, title);
    let failures: Vec<_> = world.granted().into_iter().map(|grant| grant.lease.err()).collect();
    assert_eq!(failures, [Some(ReadFailure::NoTitle); 2]);
    let again = world.open(1, 100);
    assert_ne!(again, title);
    world.want(2, again, 1, 0);
    world.finish(in_flight);
    world.read_all();
    assert_eq!(world.read_extents(), [1, 1], "what was read for the closed title is thrown away");
    let grants = world.granted();
    assert_eq!((extents_of(&grants), grants[0].title), (vec![(2, 1)], again));
    world.want(3, title, 1, 0);
    assert_eq!(world.granted()[0].lease.as_ref().err(), Some(&ReadFailure::NoTitle));
    drop(grants);
    world.policy.close_title(world.now, again);
    world.policy.publish();
    assert_eq!(world.counters.free.get(), 8);
}

#[test]
fn close_title_with_outstanding_recall_keeps_title_open() {
    for opened_again in [false, true] {
        let mut world = PolicyFixture::new(8, 0);
        let title = world.open(1, 100);
        world.want(0, title, 1, 0);
        world.read_all();
        let recall = world.granted()[0].lease.as_ref().unwrap().recall().unwrap();
        for _ in 0..2 {
            // Closed too often, too.
            world.policy.close_title(world.now, title);
        }
        assert_eq!(world.policy.next_closed(world.now), None);
        let look = world.policy.poll_at(world.now);
        assert_eq!(look, Some(world.now.plus_ns(SWEEP_NS as u64)), "nobody says when");
        // It comes back.
        world.want(1, title, 1, 0);
        assert!(world.granted()[0].lease.is_ok());
        if opened_again {
            assert_eq!(world.open(1, 100), title);
        }
        drop(recall);
        assert_eq!(world.policy.next_closed(world.now), Some(title));
        assert_eq!(world.policy.next_closed(world.now), None);
        assert_eq!(world.policy.is_open(title), opened_again);
        world.policy.close_title(world.now, title);
        world.policy.publish();
        assert!(!world.policy.is_open(title));
        assert_eq!((world.counters.free.get(), world.policy.poll_at(world.now)), (8, None));
    }
}

#[test]
fn want_with_all_extents_leased_waits_without_failure() {
    let mut world = PolicyFixture::new(4, 0);
    let title = world.open(1, 100);
    (0..4).for_each(|index| world.want(index, title, 10 * index, 0));
    world.read_all();
    let mut held = world.granted();
    assert_eq!(held.len(), 4);
    world.want(4, title, 40, 0);
    world.want(5, title, 50, 10);
    for _ in 0..5 {
        world.read_all();
        world.now = world.now.plus_ns(CACHE_SPACE_RETRY_NS / 2);
    }
    assert_eq!((world.granted().len(), world.counters.waits_for_space.get()), (0, 1));
    assert!(world.policy.poll_at(world.now).is_some(), "it will look again");
    held.pop();
    world.now = world.now.plus_ns(CACHE_SPACE_RETRY_NS);
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(4, 40)]);
    assert_eq!(world.counters.waits_for_space.get(), 2, "the other one waits now");
}

/// A viewer of a slow media asks long before he needs it: until then he does not drive out what others need sooner.
#[test]
fn want_with_late_deadline_evicts_only_later_needed_extents() {
    let mut world = PolicyFixture::new(4, 0);
    let (fast, slow) = (world.open(1, 100), world.open(2, 100));
    (0..4).for_each(|index| world.want(index, fast, index, 0));
    world.read_all();
    drop(world.granted());
    (0..4).for_each(|index| world.leave(index));
    world.want(0, fast, 0, 0); // needs 1, 2 and 3 within 300 ms
    drop(world.granted());
    (1..4).for_each(|index| world.want(index, slow, index, 30_000_000_000));
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(1, 1)], "nobody needed extent 0 any more");
    assert_eq!((world.counters.evictions.get(), world.counters.waits_for_space.get()), (1, 0));
    assert!(world.policy.poll_at(world.now).is_some());
    world.now = world.now.plus_ns(29_500_000_000);
    world.read_all();
    assert_eq!(extents_of(&world.granted()), [(2, 2), (3, 3)], "now it is urgent");
}

#[test]
fn read_ahead_skips_failed_extent_until_requested() {
    let mut world = PolicyFixture::new(64, 3 * EXTENT_NS);
    let title = world.open(1, 100);
    world.want(0, title, 0, EXTENT_NS);
    while let Some(order) = world.policy.next_read(world.now) {
        match order.key.extent {
            2 => world.policy.finish(world.now, order.key, order.fill, Err(ReadFailure::Checksum)),
            _ => world.finish(order),
        }
    }
    assert_eq!(world.read_extents(), [0, 1]);
    world.want(0, title, 1, EXTENT_NS);
    world.read_all();
    assert_eq!(world.read_extents(), [3], "2 is left out");
    world.want(0, title, 2, EXTENT_NS);
    world.read_all();
    assert!(world.read_extents().contains(&2), "who asks for it gets another try");
}

fn play(audience: &Audience, capacity: usize, prefetch_ns: u64) -> u64 {
    let mut world = PolicyFixture::new(capacity, prefetch_ns);
    let title = world.open(1, audience.extents);
    let start = world.now;
    let mut playing: HashMap<usize, Lease> = HashMap::new();
    audience.run(|step, viewer, extent| {
        world.now = start.plus_ns(u64::from(step) * EXTENT_NS);
        playing.remove(&viewer);
        let Some(extent) = extent else { return world.leave(viewer as u32) };
        world.want(viewer as u32, title, extent, 0);
        world.read_all();
        let grants = world.granted();
        assert_eq!(extents_of(&grants), [(viewer as u32, extent)]);
        playing.extend(grants.into_iter().map(|grant| (viewer, grant.lease.unwrap())));
    });
    assert_eq!(world.counters.playheads.get(), 0);
    world.counters.reads.get()
}

/// On demand and with reading ahead, the number of reads equals that of the next-use rule and is
/// far below that of LRU. (Reading ahead costs some reads in a cache that is too small: extents
/// read early occupy memory early.)
#[test]
fn eviction_is_as_good_as_the_next_use_rule_and_better_than_lru() {
    let mut sums = [0; 5];
    for seed in 0..12 {
        let audience = Audience::new(seed, 6 + seed % 5 * 3, 300);
        let capacity = 64 + 16 * (seed as usize % 4);
        let lru = simulate(&audience, capacity, Rule::Lru, 0);
        let rule = [0, 3].map(|ahead| simulate(&audience, capacity, Rule::NextUse, ahead));
        let cache = [0, 3].map(|ahead| play(&audience, capacity, ahead * EXTENT_NS));
        println!(
            "seed {seed}: LRU {lru}; next use {rule:?}, this cache {cache:?} (on demand, reading ahead)"
        );
        // Reads deferred for lack of memory are retried at other times than in the simulation.
        for ((cache, rule), within) in cache.into_iter().zip(rule).zip([1.01, 1.08]) {
            assert!(cache as f64 <= rule as f64 * within, "seed {seed}: {cache} reads, not {rule}");
            assert!(cache < lru, "seed {seed}: {cache} reads, LRU {lru}");
        }
        for (sum, reads) in sums.iter_mut().zip([lru, rule[0], cache[0], rule[1], cache[1]]) {
            *sum += reads;
        }
    }
    println!(
        "all: LRU {}; on demand {} and {}, reading ahead {} and {}",
        sums[0], sums[1], sums[2], sums[3], sums[4]
    );
    assert!(sums[2] as f64 <= sums[1] as f64 * 1.01, "on demand it is the rule");
    assert!(sums[4] as f64 <= sums[1] as f64 * 1.10, "reading ahead costs little");
    assert!((sums[4] as f64) < 0.6 * sums[0] as f64, "LRU is far worse");
}

#[derive(Clone, Debug)]
enum Op {
    Want {
        stream: u32,
        title: usize,
        extent: u32,
        in_ns: u64,
    },
    Leave {
        stream: u32,
    },
    /// Begins the next read.
    Begin,
    /// Ends the read that was begun first, well or not.
    End {
        well: bool,
    },
    /// Gives back the lease held longest.
    GiveBack,
    Pass {
        ns: u64,
    },
    /// Closes a title and opens another in its stead.
    Reopen {
        title: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..6, 0usize..2, 0u32..14, 0u64..3_000_000_000)
            .prop_map(|(stream, title, extent, in_ns)| Op::Want { stream, title, extent, in_ns }),
        1 => (0u32..6).prop_map(|stream| Op::Leave { stream }),
        6 => Just(Op::Begin),
        6 => prop::bool::weighted(0.9).prop_map(|well| Op::End { well }),
        5 => Just(Op::GiveBack),
        3 => (0u64..400_000_000).prop_map(|ns| Op::Pass { ns }),
        1 => (0usize..2).prop_map(|title| Op::Reopen { title }),
    ]
}

proptest! {
    /// Whatever happens in whatever order: no extent is lost, no want is answered twice, and once reads end and leases
    /// come back, everybody who still waits is answered.
    #[test]
    fn policy_random_operations_lose_no_extent_and_answer_all_wants(ops in prop::collection::vec(op(), 0..300)) {
        let mut world = PolicyFixture::new(5, 300_000_000);
        let mut titles = [world.open(0, 12), world.open(1, 12)];
        let mut next_id = 2;
        let (mut reads, mut held) = (VecDeque::new(), VecDeque::new());
        let mut waiting: HashMap<(u32, ExtentKey), u32> = HashMap::new();
        for op in ops {
            match op {
                Op::Want { stream, title, extent, in_ns } => {
                    world.want(stream, titles[title], extent, in_ns);
                    waiting.insert((stream, ExtentKey { title: titles[title], extent }), 1);
                }
                Op::Leave { stream } => {
                    world.leave(stream);
                    waiting.retain(|(waits, _), _| *waits != stream);
                }
                Op::Begin => reads.extend(world.policy.next_read(world.now)),
                Op::End { well } => match reads.pop_front() {
                    Some(order) if well => world.finish(order),
                    Some(order) => {
                        let outcome = Err(ReadFailure::Io(libc::EIO));
                        world.policy.finish(world.now, order.key, order.fill, outcome);
                    }
                    None => {}
                },
                Op::GiveBack => drop(held.pop_front()),
                Op::Pass { ns } => {
                    world.now = world.now.plus_ns(ns);
                    world.policy.handle_time(world.now);
                }
                Op::Reopen { title } => {
                    world.policy.close_title(world.now, titles[title]);
                    titles[title] = world.open(next_id, 12);
                    next_id += 1;
                }
            }
            for grant in world.granted() {
                let key = ExtentKey { title: grant.title, extent: grant.extent };
                let asked = waiting.remove(&(grant.stream.index, key));
                prop_assert!(asked.is_some(), "{:?} was not asked for", key);
                held.extend(grant.lease.ok());
            }
            let extent_table = &world.policy.extent_table;
            prop_assert_eq!(extent_table.free() + extent_table.held() + extent_table.orphans() + reads.len(), 5);
            prop_assert!(world.policy.timers.len() <= 64 + 4 * 6 + 1);
        }
        // Everything ends well.
        reads.into_iter().for_each(|order| world.finish(order));
        for _ in 0..40 {
            held.clear();
            world.now = world.now.plus_ns(500_000_000);
            world.read_all();
            for grant in world.granted() {
                let key = ExtentKey { title: grant.title, extent: grant.extent };
                prop_assert!(waiting.remove(&(grant.stream.index, key)).is_some());
                held.extend(grant.lease.ok());
            }
        }
        // Only wants that had to give way to newer ones of their stream are left without an answer.
        prop_assert!(waiting.len() as u64 <= world.counters.displaced.get(), "{:?} wait for ever", waiting);
        held.clear();
        titles.into_iter().for_each(|title| world.policy.close_title(world.now, title));
        world.policy.handle_time(world.now.plus_ns(1_000_000_000));
        prop_assert_eq!(world.policy.extent_table.free(), 5);
    }
}

/// Cost of decisions in a large cache: `cargo test --release -p millrace-store --lib decision_cost -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn decision_cost() {
    for (extents, viewers) in [(1024, 200), (1024, 10_000), (65_536, 10_000)] {
        let mut world = PolicyFixture::new(extents, 2_000_000_000);
        let title = world.open(1, 4 * extents as u32);
        let (mut wants, mut seconds) = (0, 0.0);
        let start = world.now;
        for round in 0..8u64 {
            world.now = start.plus_ns(round * EXTENT_NS);
            let begun = std::time::Instant::now();
            for viewer in 0..viewers {
                let extent = viewer * (4 * extents as u32 - 64) / viewers + round as u32;
                world.want(viewer, title, extent, EXTENT_NS);
                world.read_all();
                drop(world.granted());
            }
            if round >= 2 {
                seconds += begun.elapsed().as_secs_f64();
                wants += viewers;
            }
        }
        let evictions = world.counters.evictions.get();
        let reads = world.counters.reads.get();
        println!(
            "{extents} extents, {viewers} viewers: {:.0} ns a want with its share of {reads} reads and {evictions} evictions",
            seconds * 1e9 / f64::from(wants)
        );
    }
}

#[test]
fn extent_with_holes_is_granted_to_repairers_and_reread_for_others() {
    let mut world = PolicyFixture::new(8, 0);
    let title = world.open(1, 4);
    let spare = |grant: (u16, Grant)| grant.1.lease.map(|lease| lease.content().spare);
    world.want_spare(0, title, 2, 0, 4);
    world.want_spare(1, title, 2, 0, 1);
    world.read_all();
    let mut held: Vec<_> = (0..2).map(|_| world.policy.poll_grant().unwrap().1.lease.unwrap()).collect();
    assert!(held.iter().all(|lease| lease.content().spare == 1), "no more than all of them can do with");
    world.want_spare(2, title, 2, 0, 3);
    assert_eq!(spare(world.policy.poll_grant().unwrap()), Ok(1), "there already");
    // A stream that wants the extent whole while it is read with holes keeps waiting; so does a
    // stream that changes its mind.
    world.want_spare(3, title, 3, 0, 1);
    world.want_spare(4, title, 3, 0, 1);
    let order = world.policy.next_read(world.now).unwrap();
    world.want(5, title, 3, 0);
    world.want(4, title, 3, 0);
    world.finish(order);
    assert_eq!(spare(world.policy.poll_grant().unwrap()), Ok(1));
    assert!(world.policy.poll_grant().is_none());
    world.want(6, title, 2, 0);
    world.read_all();
    let whole: Vec<_> = (0..3).map(|_| spare(world.policy.poll_grant().unwrap())).collect();
    assert_eq!((whole, world.policy.extent_table.orphans()), (vec![Ok(0); 3], 1), "what is lent out stays");
    world.want_spare(7, title, 2, 0, 1);
    assert_eq!(spare(world.policy.poll_grant().unwrap()), Ok(0), "the better of the two");
    assert_eq!(world.read.iter().filter(|key| key.extent == 3).count(), 2);
    held.clear();
    world.now = world.now.plus_ns(SWEEP_NS as u64);
    world.read_all();
    assert_eq!((world.policy.extent_table.orphans(), world.policy.extent_table.free()), (0, 6));
}

#[path = "policy_positions_tests.rs"]
mod positions;
#[path = "policy_spare_tests.rs"]
mod spare;

/// Extents are read together while a playhead will want them soon and there is memory that no other
/// extent needs.
#[test]
fn next_of_run_stops_at_playhead_horizon_or_memory_limit() {
    let second = 1_000_000_000;
    let mut world = PolicyFixture::new(64, second);
    let title = world.open(1, 200);
    world.want(0, title, 10, EXTENT_NS);
    let mut before = world.policy.next_read(world.now).unwrap();
    let mut run = vec![before.key.extent];
    while let Some(next) = world.policy.next_of_run(world.now, &before) {
        world.finish(std::mem::replace(&mut before, next));
        run.push(before.key.extent);
        assert!(run.len() < 100, "there are 64 extents of memory");
    }
    world.finish(before);
    let last = *run.last().unwrap();
    assert_eq!(run, (10..=last).collect::<Vec<_>>());
    let free = world.policy.extent_table.free();
    assert_eq!(free, 0, "what nobody needs yet takes what is free and nothing else");
    world.read_all();
    // The end of the title, an extent already in memory, and an extent not wanted soon also end the
    // run.
    let other = world.open(2, 3);
    world.want(1, other, 2, EXTENT_NS);
    let end = world.policy.next_read(world.now).unwrap();
    assert!(world.policy.next_of_run(world.now, &end).is_none());
    world.finish(end);
    let mut roomy = PolicyFixture::new(512, second);
    let title = roomy.open(1, 400);
    roomy.want(0, title, 0, 0);
    let mut before = roomy.policy.next_read(roomy.now).unwrap();
    while let Some(next) = roomy.policy.next_of_run(roomy.now, &before) {
        roomy.finish(std::mem::replace(&mut before, next));
    }
    let ahead = (second + RUN_AHEAD_NS) / EXTENT_NS;
    assert_eq!(u64::from(before.key.extent), ahead);
    roomy.finish(before);
}

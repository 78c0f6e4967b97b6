//! How many places in titles the memory carries.

use millrace_core::limits::LEASE_AHEAD_NS;

use super::*;
use crate::cache::Positions;

/// Time of one disk read. With the reads allowed in flight, the disk delivers twice the data
/// needed.
const READ_NS: u64 = 5_000_000;
const MS: u64 = 1_000_000;

/// A viewer at a position of its own, behaving like the engine: it holds the extent it sends from
/// and requests the next one when the current one is nearly over.
struct SimulatedViewer {
    title: TitleRef,
    extent: u32,
    /// When its next extent is needed.
    by: Instant,
    asked: bool,
    held: Vec<Lease>,
}

/// Plays five seconds with `viewers` viewers, each in a title of its own. Returns the cache's
/// counters afterwards.
fn play_apart(extents: usize, viewers: u32) -> (PolicyFixture, u64) {
    let mut world = PolicyFixture::new(extents, 2_000_000_000);
    let begin = world.now;
    let mut audience: Vec<_> = (0..viewers)
        .map(|index| {
            let by = begin.plus_ns(3_000 * MS + u64::from(index) * EXTENT_NS / u64::from(viewers));
            SimulatedViewer { title: world.open_long(index), extent: 0, by, asked: false, held: Vec::new() }
        })
        .collect();
    let mut in_flight = VecDeque::new();
    let mut late = 0;
    let begin = begin.plus_ns(3_000 * MS);
    while world.now < begin.plus_ns(5_000 * MS) {
        for (index, viewer) in (0..).zip(&mut audience) {
            // It returns the extents it has passed.
            if world.now >= viewer.by {
                viewer.held.clear();
            } else if world.now.plus_ns(EXTENT_NS) >= viewer.by && viewer.held.len() > 1 {
                viewer.held.remove(0);
            }
            if !viewer.asked && world.now.plus_ns(LEASE_AHEAD_NS) >= viewer.by {
                let left = viewer.by.ns_since(world.now);
                world.want(index, viewer.title, viewer.extent, left);
                viewer.asked = true;
            }
        }
        world.policy.handle_time(world.now);
        while in_flight.front().is_some_and(|(at, _)| *at <= world.now) {
            let Some((_, order)) = in_flight.pop_front() else { break };
            world.finish(order);
        }
        while let Some(order) = world.policy.next_read(world.now) {
            in_flight.push_back((world.now.plus_ns(READ_NS), order));
        }
        for grant in world.granted() {
            let viewer = &mut audience[grant.stream.index as usize];
            late += u64::from(world.now > viewer.by);
            viewer.held.push(grant.lease.unwrap());
            (viewer.extent, viewer.asked) = (viewer.extent + 1, false);
            viewer.by = viewer.by.max(world.now).plus_ns(EXTENT_NS);
        }
        world.policy.publish();
        world.now = world.now.plus_ns(MS);
    }
    (world, late)
}

#[test]
fn so_many_viewers_apart_are_carried_as_is_said() {
    let extents = 128;
    let max = PolicyFixture::new(extents, 0).counters.positions().max;
    let (world, late) = play_apart(extents, max as u32);
    let counters = &world.counters;
    assert_eq!((late, counters.waits_for_space.get()), (0, 0), "{max} viewers");
    assert_eq!(counters.positions(), Positions { used: max, max });
    assert!(counters.positions().admit(0).is_ok() && counters.positions().admit(1).is_err());
    // Nor is the figure far too low.
    let (_, late) = play_apart(extents, extents as u32);
    assert!(late > 0, "{extents} viewers cannot be carried");
}

#[test]
fn viewers_of_the_same_place_count_once_and_who_pauses_not_at_all() {
    let mut world = PolicyFixture::new(16, 0);
    let (title, other) = (world.open(1, 100), world.open(2, 100));
    for (index, (title, extent)) in (0..).zip([(title, 5), (title, 5), (title, 6), (other, 5), (other, 5)]) {
        world.want(index, title, extent, 0);
    }
    world.policy.publish();
    assert_eq!(world.counters.positions().used, 3);
    world.read_all();
    let held = world.granted();
    // Each viewer is one extent further and holds the extents it was granted.
    let leased = |world: &PolicyFixture| (0..16).filter(|&extent| world.arena.leases(extent) > 0).count();
    assert_eq!((world.counters.positions().used, leased(&world)), (3, 3));
    world.leave(1);
    world.leave(2);
    world.policy.publish();
    assert_eq!(world.counters.positions().used, 2, "one is still where another has left");
    // Do as the engine does when it pauses: return its leases and report that it has left.
    drop(held);
    [0, 3, 4].into_iter().for_each(|index| world.leave(index));
    world.read_all();
    let counters = &world.counters;
    assert_eq!((counters.positions().used, leased(&world), counters.queued.get()), (0, 0, 0));
}

#[test]
fn places_in_a_closed_title_are_forgotten() {
    let mut world = PolicyFixture::new(16, 0);
    let (title, other) = (world.open(1, 100), world.open(2, 100));
    (0..4).for_each(|index| world.want(index, title, index, 0));
    world.want(4, other, 0, 0);
    world.policy.close_title(world.now, title);
    world.policy.publish();
    assert_eq!(world.counters.positions().used, 1);
    // Those who were in it go elsewhere, or leave.
    world.want(0, other, 7, 0);
    (1..4).for_each(|index| world.leave(index));
    world.policy.publish();
    assert_eq!(world.counters.positions().used, 2);
}

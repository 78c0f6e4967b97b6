//! One copy for all: one read for any number of viewers, and no viewer fails because others hold
//! the capacity that it needs.

use std::sync::Arc;

use crate::cache_common::sample::SampleFiles;
use crate::cache_common::{BACKENDS, StandingClock, World, stream};
use millrace_core::ids::RunSerial;
use millrace_core::pool::Lease;
use millrace_core::seam::{Clock, Want};
use millrace_store::cache::ReadFailure;

/// 200 viewers, all at different places of one title, each playing it to the end: the title is read once.
#[test]
fn cache_with_200_viewers_reads_title_once() {
    let sample = SampleFiles::of_extents(40);
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 48, 400_000_000, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let (extents, engine) = (sample.extents(), &mut world.engines[0]);
        let mut held: Vec<Option<Lease>> = (0..200).map(|_| None).collect();
        let mut wants = 0;
        for step in 0..extents {
            let playing: Vec<_> = (0..200).filter(|viewer| viewer % extents + step < extents).collect();
            for &viewer in &playing {
                engine.want(viewer, title, viewer % extents + step, clock.now());
            }
            for _ in &playing {
                let grant = engine.grant();
                held[grant.stream.index as usize] = Some(grant.lease.unwrap());
            }
            wants += playing.len() as u64;
            clock.advance(196_000_000);
        }
        let stats = world.cache.stats();
        assert_eq!(stats.reads, u64::from(extents), "one read for each extent: {stats:?}");
        let (file, slack) = (sample.data.len() as u64, u64::from(extents) * 2 * 4096);
        assert!((file..=file + slack).contains(&stats.bytes_read), "{} bytes of {file}", stats.bytes_read);
        assert_eq!((stats.evictions, stats.resident, stats.extents), (0, u64::from(extents), 48));
        assert_eq!(stats.hits + stats.joins + stats.misses, wants);
        assert!(stats.leased <= u64::from(extents), "lent out are extents, not copies");
        for lease in held.iter().flatten() {
            sample.check(lease, lease.content().number);
        }
    }
}

#[test]
fn want_with_all_extents_leased_waits_for_release() {
    let sample = SampleFiles::of_extents(12);
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 4, 0, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let fetch = |world: &mut World, n| world.engines[0].fetch(n, title, n, clock.now()).lease.unwrap();
        let mut held: Vec<_> = (0..4).map(|n| fetch(&mut world, n)).collect();
        world.engines[0].want(9, title, 9, clock.now());
        let stats = world.wait_stats("a read waits for room", |stats| stats.waits_for_space == 1);
        assert_eq!((stats.leased, stats.free, stats.read_errors), (4, 0, 0));
        assert!(world.engines[0].handle.poll().is_none());
        drop(held.remove(2)); // nobody is told; the clock stands still
        let grant = world.engines[0].grant();
        assert_eq!(grant.stream, stream(9));
        sample.check(&grant.lease.unwrap(), 9);
        for lease in &held {
            sample.check(lease, lease.content().number);
        }
    }
}

#[test]
fn close_title_refuses_wants_at_once_and_frees_memory_after_leases() {
    let sample = SampleFiles::of_extents(6);
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 8, 1_000_000_000, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let lease = world.engines[0].fetch(0, title, 0, clock.now()).lease.unwrap();
        world.engines[0].want(1, title, 5, clock.now());
        world.cache.close_title(title);
        // The want came before the closing or after it: both are answered.
        let grant = world.engines[0].grant();
        assert!(matches!(grant.lease, Ok(_) | Err(ReadFailure::NoTitle)), "{grant:?}");
        drop(grant);
        let late = world.engines[0].fetch(0, title, 1, clock.now());
        assert_eq!(late.lease.err(), Some(ReadFailure::NoTitle));
        sample.check(&lease, 0);
        drop(lease);
        world.wait_stats("everything is free", |stats| {
            clock.advance(1_000_000);
            (stats.free, stats.resident, stats.titles) == (8, 0, 0)
        });
        let again = world.cache.open_source(Box::new(sample.open())).unwrap();
        assert_ne!(again, title);
        assert_eq!(world.cache.open_source(Box::new(sample.open())).unwrap(), again, "one copy in memory");
        let stale = world.engines[0].fetch(0, title, 1, clock.now());
        assert_eq!(stale.lease.err(), Some(ReadFailure::NoTitle));
        sample.check(&world.engines[0].fetch(0, again, 1, clock.now()).lease.unwrap(), 1);
        world.cache.close_title(again);
        sample.check(&world.engines[0].fetch(0, again, 2, clock.now()).lease.unwrap(), 2);
    }
}

#[test]
fn shutting_down_ends_the_reads_in_flight_and_leaves_the_leases_good() {
    let sample = SampleFiles::of_extents(30);
    for backend in BACKENDS {
        for round in 0..10 {
            let clock = Arc::new(StandingClock::default());
            let Some(mut world) = World::new(backend, 40, 0, 1, clock.clone()) else { continue };
            let title = world.cache.open_source(Box::new(sample.open())).unwrap();
            let engine = &mut world.engines[0];
            let lease = engine.fetch(0, title, 29, clock.now()).lease.unwrap();
            (0..3 * round).for_each(|n| engine.want(n, title, n, clock.now()));
            world.cache.shutdown();
            sample.check(&lease, 29);
            let leases: Vec<_> = std::iter::from_fn(|| engine.handle.poll()).collect();
            for grant in leases {
                sample.check(&grant.lease.unwrap(), grant.extent);
            }
            let want = Want {
                stream: stream(0),
                run: RunSerial(0),
                title,
                extent: 0,
                place: 0,
                by: clock.now(),
                spare: 0,
            };
            assert!(engine.handle.want(&want) && engine.handle.poll().is_none(), "nobody is there any more");
            drop(lease);
            assert!((0..40).all(|extent| world.arena.leases(extent) == 0));
        }
    }
}

#[test]
fn engine_drop_releases_its_playheads_and_leases() {
    let sample = SampleFiles::of_extents(4);
    let clock = Arc::new(StandingClock::default());
    let Some(mut world) = World::new(BACKENDS[0], 8, 0, 2, clock.clone()) else { return };
    let title = world.cache.open_source(Box::new(sample.open())).unwrap();
    drop(world.engines[1].fetch(7, title, 0, clock.now()));
    (0..50).for_each(|n| world.engines[1].want(n, title, n % 4, clock.now()));
    drop(world.engines.pop());
    world.wait_stats("its leases are back", |stats| stats.playheads == 0 && stats.leased == 0);
    sample.check(&world.engines[0].fetch(0, title, 3, clock.now()).lease.unwrap(), 3);
}

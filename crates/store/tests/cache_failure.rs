//! What is damaged is never lent, and nobody but those who want just that notices.

mod cache_common;

use std::fs::File;
use std::sync::Arc;

use cache_common::sample::Sample;
use cache_common::{BACKENDS, StandingClock, World};
use millrace_core::ids::TitleRef;
use millrace_core::seam::Clock;
use millrace_store::cache::ReadFailure;

/// Fetches every extent; returns those that fail, with their failures. The others are checked byte for byte.
fn failures(
    world: &mut World,
    sample: &Sample,
    title: TitleRef,
    clock: &StandingClock,
) -> Vec<(u32, ReadFailure)> {
    let mut failed = Vec::new();
    for extent in 0..sample.extents() {
        match world.engines[0].fetch(extent, title, extent, clock.now()).lease {
            Ok(lease) => sample.check(&lease, extent),
            Err(failure) => failed.push((extent, failure)),
        }
    }
    failed
}

#[test]
fn one_damaged_byte_of_film_costs_one_extent() {
    for backend in BACKENDS {
        let sample = Sample::of_extents(8);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        sample.damage(&sample.data_path(), 5 * 196 * 1316 + 77_777);
        assert_eq!(failures(&mut world, &sample, title, &clock), [(5, ReadFailure::Checksum)]);
        let stats = world.cache.stats();
        assert_eq!((stats.checksum_errors, stats.retries, stats.read_errors), (1, 1, 0));
        let trouble = world.cache.trouble().unwrap();
        assert_eq!((trouble.title, trouble.extent, trouble.failures), (title, 5, 1));
        let start = 5 * 196 * 1316;
        let expected = format!("{}: bytes {start}..{}: ", sample.data_path().display(), start + 196 * 1316);
        assert!(trouble.to_string().starts_with(&expected), "{trouble}");
        assert_eq!(world.cache.trouble(), None, "said once");
        // The disk is repaired: nothing of the failure is left.
        sample.damage(&sample.data_path(), 5 * 196 * 1316 + 77_777);
        sample.check(&world.engines[0].fetch(0, title, 5, clock.now()).lease.unwrap(), 5);
    }
}

#[test]
fn a_damaged_block_of_records_costs_the_extents_that_need_it() {
    for backend in BACKENDS {
        let sample = Sample::of_extents(8);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 400_000_000, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        sample.damage(&sample.meta_path(), 4096 * 2 + 1000); // block 1: packets 510 to 1019, extents 2 to 5
        let failed = failures(&mut world, &sample, title, &clock);
        assert_eq!(failed, [2, 3, 4, 5].map(|extent| (extent, ReadFailure::Checksum)));
    }
}

#[test]
fn a_file_that_was_cut_off_costs_what_lay_behind_the_cut() {
    for backend in BACKENDS {
        let sample = Sample::of_extents(8);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let cut = 6 * 196 * 1316 + 100_000;
        File::options().write(true).open(sample.data_path()).unwrap().set_len(cut).unwrap();
        let failed = failures(&mut world, &sample, title, &clock);
        assert_eq!(failed, [6, 7].map(|extent| (extent, ReadFailure::Io(libc::ENODATA))));
        assert_eq!(world.cache.stats().read_errors, 2);
        assert!(world.cache.trouble().unwrap().to_string().contains("read error: No data available"));
    }
}

/// All who wait for a bad extent are told, and reading ahead into it does not disturb those who come later.
#[test]
fn everybody_who_waits_is_told() {
    let sample = Sample::of_extents(8);
    sample.damage(&sample.data_path(), 3 * 196 * 1316);
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 2_000_000_000, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let engine = &mut world.engines[0];
        (0..100).for_each(|viewer| engine.want(viewer, title, 3, clock.now()));
        for _ in 0..100 {
            assert_eq!(engine.grant().lease.err(), Some(ReadFailure::Checksum));
        }
        (0..100).for_each(|viewer| engine.want(viewer, title, 2, clock.now()));
        for _ in 0..100 {
            sample.check(&engine.grant().lease.unwrap(), 2);
        }
        let errors = world.cache.stats().checksum_errors;
        assert!((1..=4).contains(&errors), "{errors} failing reads for 100 viewers");
    }
}

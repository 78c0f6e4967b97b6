//! A cache smaller than the title: it keeps the data that will be read soonest. The whole cache,
//! with its thread and real reads, is compared with a simulation in whole steps.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cache_common::naive::{Audience, Rule, simulate};
use crate::cache_common::sample::SampleFiles;
use crate::cache_common::{BACKENDS, StandingClock, World, stream};
use millrace_core::seam::Clock;
use millrace_store::cache::ReadBackend;

/// Ticks of an extent are 90 a packet: 196 ms.
const EXTENT_NS: u64 = 196_000_000;

fn play(
    sample: &SampleFiles,
    audience: &Audience,
    capacity: usize,
    ahead: u64,
    backend: ReadBackend,
) -> Option<u64> {
    let clock = Arc::new(StandingClock::default());
    let mut world = World::new(backend, capacity, ahead * EXTENT_NS, 1, clock.clone())?;
    let title = world.cache.open_source(Box::new(sample.open())).unwrap();
    let engine = &mut world.engines[0];
    let (mut playing, mut at) = (HashMap::new(), 0);
    audience.run(|step, viewer, extent| {
        clock.advance(u64::from(step - at) * EXTENT_NS);
        at = step;
        playing.remove(&viewer);
        let Some(extent) = extent else {
            return assert!(engine.handle.leave(clock.now(), stream(viewer as u32)));
        };
        let lease = engine.fetch(viewer as u32, title, extent, clock.now()).lease.unwrap();
        sample.check(&lease, extent);
        playing.insert(viewer, lease);
    });
    Some(world.cache.stats().reads)
}

#[test]
fn reads_are_as_few_as_the_next_use_rule_allows() {
    let sample = SampleFiles::of_extents(100);
    for (seed, viewers, capacity) in [(1, 6, 24), (2, 9, 32)] {
        let audience = Audience::new(seed, viewers, sample.extents());
        let rule = simulate(&audience, capacity, Rule::NextUse, 0);
        let lru = simulate(&audience, capacity, Rule::Lru, 0);
        for backend in BACKENDS {
            let Some(on_demand) = play(&sample, &audience, capacity, 0, backend) else { continue };
            let Some(ahead) = play(&sample, &audience, capacity, 2, backend) else { continue };
            println!(
                "{backend:?}: next use {rule}, cache {on_demand}, reading ahead {ahead}, LRU {lru} reads"
            );
            assert!(on_demand as f64 <= rule as f64 * 1.05, "{on_demand} reads, not {rule}");
            assert!(on_demand < lru && ahead < lru, "{on_demand} and {ahead} reads, LRU {lru}");
        }
    }
}

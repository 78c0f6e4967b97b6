//! Leases contain the data that was stored: headers, payloads, records, for every packet size and
//! both ways of reading.

use std::path::Path;
use std::sync::Arc;

use crate::cache_common::sample::SampleFiles;
use crate::cache_common::{BACKENDS, StandingClock, World, stream};
use millrace_core::ids::TitleRef;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_store::cache::{Cache, CacheConfig, CacheError, ReadBackend, ReadFailure};

fn serve_whole(sample: &SampleFiles, backend: ReadBackend, prefetch_ns: u64) {
    let clock = Arc::new(StandingClock::default());
    let Some(mut world) = World::new(backend, 4, prefetch_ns, 1, clock.clone()) else { return };
    let title = world.cache.open_source(Box::new(sample.open())).unwrap();
    for extent in 0..sample.extents() {
        let grant = world.engines[0].fetch(0, title, extent, clock.now());
        sample.check(&grant.lease.unwrap(), extent);
        clock.advance(100_000_000);
    }
    let grant = world.engines[0].fetch(0, title, sample.extents(), clock.now());
    assert_eq!(grant.lease.err(), Some(ReadFailure::OutOfRange));
    let stats = world.cache.stats();
    assert_eq!((stats.checksum_errors, stats.read_errors, stats.retries), (0, 0, 0));
    assert_eq!(stats.hits + stats.joins + stats.misses, u64::from(sample.extents()));
    assert!(stats.bytes_read >= sample.data.len() as u64 && stats.meta_bytes_read > 0);
}

#[test]
fn cache_serves_all_packet_sizes_byte_for_byte() {
    for (packet_bytes, bytes) in
        [(1316, 1_500_000), (188, 700_000), (188 * 48, 800_000), (188 * 11, 188 * 11)]
    {
        let sample = SampleFiles::new(packet_bytes, bytes);
        for backend in BACKENDS {
            serve_whole(&sample, backend, 0);
            serve_whole(&sample, backend, 300_000_000);
        }
    }
}

#[test]
fn lease_with_last_packet_of_one_ts_packet_is_short() {
    let sample = SampleFiles::new(1316, 196 * 1316 + 188);
    let Some(mut world) = World::new(ReadBackend::Auto, 4, 0, 1, Arc::new(StandingClock::default())) else {
        return;
    };
    let title = world.cache.open_source(Box::new(sample.open())).unwrap();
    let lease = world.engines[0].fetch(0, title, 1, Instant(0)).lease.unwrap();
    assert_eq!((lease.content().packets, lease.content().last_packet_bytes), (1, 188));
    assert_eq!(lease.wire(0, 1).len(), 12 + 188);
    sample.check(&lease, 1);
}

#[test]
fn cache_serves_title_from_tmpfs() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return eprintln!("no /dev/shm here: nothing to test");
    }
    let sample = SampleFiles::new_in(memory, 1316, 1_000_000);
    for backend in BACKENDS {
        serve_whole(&sample, backend, 0);
    }
}

#[test]
fn unknown_titles_are_refused() {
    let Some(mut world) = World::new(ReadBackend::Auto, 4, 0, 1, Arc::new(StandingClock::default())) else {
        return;
    };
    for title in [TitleRef(0), TitleRef(77), TitleRef(u32::MAX)] {
        let grant = world.engines[0].fetch(3, title, 0, Instant(0));
        assert_eq!(grant.lease.err(), Some(ReadFailure::NoTitle));
    }
    assert!(world.engines[0].handle.leave(Instant(0), stream(9)), "leaving unknown is harmless");
}

#[test]
fn settings_out_of_range_are_refused() {
    use millrace_core::pool::{ExtentArena, HeapRegion};
    let arena = ExtentArena::new(Box::new(HeapRegion::new(2)));
    for reads_in_flight in [0, 33] {
        let config = CacheConfig { reads_in_flight, ..CacheConfig::default() };
        let refused =
            Cache::start(config, Arc::clone(&arena), Arc::new(StandingClock::default()), Vec::new());
        let error = refused.err().unwrap();
        assert!(matches!(error, CacheError::ReadsInFlight(n) if n == reads_in_flight));
        assert_eq!(
            error.to_string(),
            format!("cache: {reads_in_flight} reads in flight; allowed are 1 to 32")
        );
    }
    let config = CacheConfig { reads_in_flight: 1, ..CacheConfig::default() };
    let (cache, handles) =
        Cache::start(config, arena, Arc::new(StandingClock::default()), Vec::new()).unwrap();
    assert!(handles.is_empty() && ["io_uring", "threads"].contains(&cache.backend()));
    cache.shutdown();
}

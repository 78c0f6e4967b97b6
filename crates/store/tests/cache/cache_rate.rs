//! How fast the cache fills: the whole way from a title on disk to leases. A measurement, not a test:
//!
//! ```text
//! cargo test --release -p millrace-store --test cache cache_rate:: -- --ignored --nocapture
//! ```
//!
//! `MILLRACE_RATE_DIR` sets the directory that the title is written to (default: the temporary
//! directory), `MILLRACE_RATE_MIB` its length. The contenders take turns, because the machine is
//! shared; medians over the rounds are printed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant as RealInstant;

use crate::cache_common::sample::{SampleFiles, SampleSource};
use crate::cache_common::{DeriveError, PlainSource, RunningClock, SourceKind, TitleSource, World};
use millrace_core::ids::TitleId;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::seam::Clock;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;
use millrace_store::cache::ReadBackend;

/// A title whose data file cannot be opened for direct reads, because the source does not report
/// its path.
struct Buffered(SampleSource);

impl TitleSource for Buffered {
    fn id(&self) -> TitleId {
        self.0.id()
    }
    fn layout(&self) -> WireLayout {
        self.0.layout()
    }
    fn timeline(&self) -> Timeline {
        self.0.timeline()
    }
    fn packets(&self) -> u32 {
        self.0.packets()
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        self.0.packet_bytes_at(packet)
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.0.media_time(packet)
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Plain(self)
    }
    fn meta_range(&self, first: u32, count: u32) -> std::ops::Range<u64> {
        self.0.meta_range(first, count)
    }
    fn records(
        &self,
        meta: &[u8],
        sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        self.0.records(meta, sums, first, out)
    }
}

impl PlainSource for Buffered {
    fn data(&self) -> &std::fs::File {
        self.0.data()
    }
    fn data_path(&self) -> &std::path::Path {
        std::path::Path::new("/nowhere")
    }
    fn meta(&self) -> &std::fs::File {
        self.0.meta()
    }
}

/// Returns the processor time that this process has used, in seconds. Other processes disturb it
/// less than the wall clock.
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds, and seconds of processor time, to bring in the whole title once, 64 wants ahead.
fn bring_in(sample: &SampleFiles, backend: ReadBackend, direct: bool) -> [f64; 2] {
    let clock = Arc::new(RunningClock(RealInstant::now()));
    let mut world = World::new(backend, 256, 0, 1, clock.clone()).unwrap();
    let source: Box<dyn TitleSource> =
        if direct { Box::new(sample.open()) } else { Box::new(Buffered(sample.open())) };
    let title = world.cache.open_source(source).unwrap();
    let (engine, extents) = (&mut world.engines[0], sample.extents());
    let (begun, processor) = (RealInstant::now(), processor_time());
    let mut wanted = 0;
    for granted in 0..extents {
        while wanted < extents && wanted < granted + 64 {
            engine.want(wanted % 1000, title, wanted, clock.now());
            wanted += 1;
        }
        drop(engine.grant().lease.unwrap());
    }
    let seconds = [begun.elapsed().as_secs_f64(), processor_time() - processor];
    assert_eq!(world.cache.stats().reads, u64::from(extents));
    seconds
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn fill_rate() {
    let dir = std::env::var_os("MILLRACE_RATE_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let mib: usize = std::env::var("MILLRACE_RATE_MIB").map_or(512, |mib| mib.parse().unwrap());
    let sample = SampleFiles::new_in(&dir, 1316, mib << 20);
    std::fs::File::open(sample.data_path()).unwrap().sync_all().unwrap();
    let contenders = [
        ("io_uring, direct", ReadBackend::Uring, true),
        ("io_uring, page cache", ReadBackend::Uring, false),
        ("threads, direct", ReadBackend::Threads, true),
        ("threads, page cache", ReadBackend::Threads, false),
    ];
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..7 {
        for ((_, backend, direct), times) in contenders.iter().zip(&mut times) {
            times.push(bring_in(&sample, *backend, *direct));
        }
    }
    for ((name, ..), times) in contenders.iter().zip(times) {
        let [wall, processor] =
            [0, 1].map(|which| times.iter().map(|both| both[which]).collect::<Vec<f64>>());
        let best = wall.iter().copied().fold(f64::MAX, f64::min);
        let gigabytes = sample.data.len() as f64 / 1e9;
        println!(
            "{name}: {:.2} GB/s (best {:.2}), {:.0} ms of processor time a GB",
            gigabytes / median(wall),
            gigabytes / best,
            median(processor) * 1e3 / gigabytes
        );
    }
}

/// Cost of a request when the extent is cached: 1000 streams cycling through 64 extents.
#[test]
#[ignore = "a measurement"]
fn grant_rate() {
    let sample = SampleFiles::of_extents(64);
    let clock = Arc::new(RunningClock(RealInstant::now()));
    let mut world = World::new(ReadBackend::Auto, 128, 2_000_000_000, 1, clock.clone()).unwrap();
    let title = world.cache.open_source(Box::new(sample.open())).unwrap();
    let engine = &mut world.engines[0];
    (0..64).for_each(|extent| drop(engine.fetch(0, title, extent, clock.now()).lease.unwrap()));
    let mut rates = Vec::new();
    for round in 0..50u32 {
        let processor = processor_time();
        for index in 0..1000 {
            engine.want(index, title, (index + round) % 64, clock.now().plus_ns(1_000_000_000));
        }
        (0..1000).for_each(|_| drop(engine.grant().lease.unwrap()));
        rates.push((processor_time() - processor) * 1e9 / 1000.0);
    }
    println!("a want and its grant: {:.0} ns of processor time, both sides", median(rates));
}

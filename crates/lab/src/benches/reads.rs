//! Size of disk reads and its effects: volumes of more and more members whose disks have one arm
//! each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, anyhow, ensure};
use millrace_core::ids::{RunSerial, StreamId, TitleId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, MEMBER_READ_BYTES};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Clock, Doorbell, Want};
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_offload::clock::MonotonicClock;
use millrace_store::cache::{Cache, CacheConfig, CacheHandle, ReadBackend};
use millrace_store::disk::{ReadFault, ReadFaults};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::Volume;

use super::ingest::{make_media_file, tempdir};
use crate::frame::{
    Axis, Bench, Interval, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row, Turns,
};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "reads",
    shows: "bytes a second from 1 to 32 disks that seek, extents read by themselves and together: bytes of a read, reads of a disk",
    not_for: "real disks: the volume lies in memory, and each read of media is held up as by an arm that seeks for 8 ms and reads 150 MB/s",
    options: &["streams", "duration"],
    targets: &["reads-bytes", "reads-rate-14", "reads-rate-32", "reads-rate-4"],
    needs: &[Need::Program("ffmpeg", "apt-get install ffmpeg")],
    run,
};

const SEEK_NS: u64 = 8_000_000;
const BYTES_PER_S: u64 = 150_000_000;
const RATE_KBPS: u64 = 8_000;
/// Members, and how many of them may be lost.
const VOLUMES: [(usize, usize); 7] = [(1, 0), (2, 1), (4, 1), (5, 1), (8, 2), (14, 2), (32, 4)];
/// Memory of the cache, in extents: a fifth of the title, and twice the read-ahead of all viewers.
const CACHE_EXTENTS: usize = 512;
/// Smallest number of members that makes the part of an extent on each member less than
/// [`MEMBER_READ_BYTES`].
const FIRST_SPLIT: usize = 5;

/// How extents are read: by themselves, as they would be without [`CacheConfig::read_bytes`], or together.
const WAYS: [(&str, usize); 2] = [("each extent by itself", 0), ("extents together", MEMBER_READ_BYTES)];

#[derive(Clone, Copy)]
struct ReadFigures {
    mb_per_s: f64,
    read_bytes: f64,
    reads_per_s: f64,
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let dir = tempdir(options)?;
    let slot_ms = options.duration_s.unwrap_or(2) * 1000;
    let (secs, loops, slot_ms) = options.pick((2, 3, 200), (20, 29, slot_ms), (20, 29, slot_ms));
    let volumes = if options.tiny { &VOLUMES[3..4] } else { &VOLUMES[..] };
    options.say("making a media file");
    let file = make_media_file(&dir.0, RATE_KBPS, secs, loops)?;
    let streams = options.streams.unwrap_or(16);
    let (mut report, mut meter) = (Report::new("reads"), NoiseMeter::start());
    let mut plots = vec![Vec::new(); WAYS.len()];
    let mut least: Option<Interval> = None;
    for &(members, lost) in volumes {
        options.say(&format!("{members} members"));
        let (volume, title) = make_volume(&dir.0, &file, (members, lost), options)?;
        let names = WAYS.map(|(name, _)| format!("{members} members, {lost} may be lost: {name}"));
        let turn = |way: usize, _| {
            watch(&volume, title, (WAYS[way].1, streams, members), Duration::from_millis(slot_ms))
        };
        let seen = Turns::take(options, &mut meter, &names, turn, |seen| promises(members, seen))?;
        for (way, name) in names.into_iter().enumerate() {
            meter.repeated(&name, &seen.values(way, |figures| figures.mb_per_s));
            let rate = seen.median(way, |figures| figures.mb_per_s);
            plots[way].push(Point::bar(members.to_string(), rate));
            report.rows.push(
                Row::new(name)
                    .with("rate", rate, "MB/s")
                    .with("a read", seen.median(way, |figures| figures.read_bytes) / 1024.0, "KiB")
                    .with("reads of a member", seen.median(way, |figures| figures.reads_per_s), "1/s"),
            );
        }
        least = least.into_iter().chain(wanted_part(members, &seen)).reduce(Interval::min);
        report.promises.extend(rate_promise(members, &seen));
    }
    report.promises.extend(least.map(bytes_promise));
    let (x, y) = (Axis::new("members", ""), Axis::new("rate", "MB/s"));
    let plot = Plot::new(PlotKind::Bars, "Disks that seek for 8 ms", x, y);
    report
        .plots
        .push(WAYS.iter().zip(plots).fold(plot, |plot, ((name, _), points)| plot.with(*name, points)));
    report.noise = Some(meter.finish());
    Ok(report)
}

/// The targets of a volume with this number of members.
fn promises(members: usize, seen: &Turns<ReadFigures>) -> Vec<Promise> {
    rate_promise(members, seen).into_iter().chain(wanted_part(members, seen).map(bytes_promise)).collect()
}

/// More than one extent is read together only where there are that many members; with fewer nothing may change.
fn rate_promise(members: usize, seen: &Turns<ReadFigures>) -> Option<Promise> {
    let bound = match members {
        4 => 0.95,
        14 => 1.3,
        32 => 2.0,
        _ => return None,
    };
    let ratio = seen.ratio(1, 0, |figures| figures.mb_per_s);
    Some(Promise::at_least(&format!("reads-rate-{members}"), ratio, bound, "times the rate"))
}

/// Bytes of a read of extents together, relative to those that the cache aims at.
fn wanted_part(members: usize, seen: &Turns<ReadFigures>) -> Option<Interval> {
    let part = |figures: &ReadFigures| figures.read_bytes / MEMBER_READ_BYTES as f64;
    (members >= FIRST_SPLIT).then(|| seen.interval(1, part))
}

fn bytes_promise(part: Interval) -> Promise {
    Promise::at_least("reads-bytes", part, 0.9, "of the wanted size")
}

/// A folder for a volume that goes with it.
struct Members {
    volume: Volume,
    dirs: Vec<PathBuf>,
}

impl Drop for Members {
    fn drop(&mut self) {
        for dir in &self.dirs {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

fn make_volume(
    dir: &std::path::Path,
    file: &std::path::Path,
    (members, lost): (usize, usize),
    options: &Options,
) -> anyhow::Result<(Members, TitleId)> {
    let dirs: Vec<_> = (0..members).map(|member| dir.join(format!("{members}-{member}"))).collect();
    let volume = if members == 1 {
        Volume::open_or_create(&dirs[0])?
    } else {
        let geometry = Geometry::choose(members, lost, 0).map_err(|error| anyhow!(error))?;
        Volume::create(&dirs, geometry).with_context(|| format!("a volume of {members} members"))?
    };
    let volume = Members { volume, dirs };
    let ingest_options = IngestOptions { cancel: Arc::clone(&options.cancel), ..IngestOptions::default() };
    let title = ingest(&volume.volume, file, &ingest_options, &mut |_| ())?;
    Ok((volume, title.id))
}

struct NoBell;

impl Doorbell for NoBell {
    fn ring(&self) {}
}

/// Lets viewers at distant positions read as much as they can for a while.
fn watch(
    volume: &Members,
    id: TitleId,
    (read_bytes, streams, members): (usize, usize, usize),
    duration: Duration,
) -> anyhow::Result<ReadFigures> {
    let faults = ReadFaults::settable();
    let config = CacheConfig { read_bytes, backend: ReadBackend::Auto, ..CacheConfig::default() };
    let arena = ExtentArena::new(Box::new(HeapRegion::new(CACHE_EXTENTS)));
    let bells = vec![Arc::new(NoBell) as Arc<dyn Doorbell>];
    let (cache, mut handles) =
        Cache::start_with_faults(config, arena, Arc::new(MonotonicClock), bells, faults.clone())?;
    let handle = handles.first_mut().context("a cache with one engine")?;
    let files = volume.volume.open_title(id, DEFAULT_PACKET_BYTES)?;
    let extents = u32::try_from(files.info.bytes / EXTENT_BYTES as u64).context("a shorter title")?;
    let title = cache.open_title(files)?;
    let arm = ReadFault::Arm { seek_ns: SEEK_NS, bytes_per_s: BYTES_PER_S };
    faults.set_all(&(0..members as u16).map(|member| (member, arm)).collect::<Vec<_>>());
    let mut next: Vec<u32> = (0..streams as u32).map(|stream| stream * (extents / streams as u32)).collect();
    for (stream, &extent) in (0..).zip(&next) {
        want(handle, title, (stream, extent));
    }
    let (begun, mut granted) = (StdInstant::now(), 0_u64);
    while begun.elapsed() < duration {
        let Some(grant) = handle.poll() else {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        let lease = grant.lease.map_err(|failure| anyhow!("extent {}: {failure}", grant.extent))?;
        granted += lease.bytes().len() as u64;
        let stream = grant.stream.index;
        let place = &mut next[stream as usize];
        *place = (*place + 1) % extents;
        want(handle, title, (stream, *place));
    }
    let (took_s, stats) = (begun.elapsed().as_secs_f64(), cache.stats());
    let reports = cache.members();
    let (reads, read_bytes) = match reports.len() {
        0 => (stats.reads, stats.bytes_read),
        _ => reports.iter().fold((0, 0), |all, one| (all.0 + one.unit_reads, all.1 + one.unit_bytes)),
    };
    ensure!(reads > 0 && granted > 0, "nothing was read in {took_s:.1} s");
    Ok(ReadFigures {
        mb_per_s: granted as f64 / 1e6 / took_s,
        read_bytes: read_bytes as f64 / reads as f64,
        reads_per_s: reads as f64 / took_s / members as f64,
    })
}

/// Wants an extent at once.
fn want(handle: &mut CacheHandle, title: TitleRef, (stream, extent): (u32, u32)) {
    let stream = StreamId { index: stream, generation: 0 };
    // The ring has room for all of them: each has one want.
    handle.want(&Want {
        stream,
        run: RunSerial(0),
        title,
        extent,
        place: 0,
        by: MonotonicClock.now(),
        spare: 0,
    });
}

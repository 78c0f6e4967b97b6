//! How fast a transport stream becomes a title, from the page cache, on one core.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant as StdInstant;

use anyhow::Context;
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_store::volume::Volume;

use crate::frame::stats::ratio_interval;
use crate::frame::{
    Axis, Bench, LEAST_ROUNDS, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Rounds,
    Row, percentile,
};
use crate::media;
use crate::proc::own_cpu_ns;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "ingest",
    shows: "MB/s at which a transport stream is indexed, summed, hashed and stored, beside a plain copy",
    not_for: "disk speed: source and store lie in memory, and nothing waits for a disk",
    options: &[],
    targets: &["ingest-rate"],
    needs: &[Need::Program("ffmpeg", "apt-get install ffmpeg")],
    run,
};

/// Least rate of a processor, as a part of the rate at which it copies the file.
const RATE_BOUND: f64 = 0.65;

/// One timed round: wall seconds and seconds of processor time.
pub(super) fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<(f64, f64)> {
    let (cpu_before, start) = (own_cpu_ns(), StdInstant::now());
    work()?;
    Ok((start.elapsed().as_secs_f64(), (own_cpu_ns() - cpu_before) as f64 / 1e9))
}

pub(super) fn plain_copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    use std::io::{Read, Write};
    let (mut from, mut out) = (std::fs::File::open(from)?, std::fs::File::create(to)?);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        out.write_all(&buffer[..n])?;
    }
    std::fs::remove_file(to)?;
    Ok(())
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let dir = tempdir(options)?;
    let (least, secs, loops) = if options.tiny { (1, 2, 0) } else { (LEAST_ROUNDS, 20, 15) };
    options.say("making a media file");
    let file = make_media_file(&dir.0, 20_000, secs, loops)?;
    let mb = std::fs::metadata(&file)?.len() as f64 / 1e6;
    let volume = Volume::open_or_create(&dir.0.join("store"))?;
    let ingest_options = IngestOptions { cancel: Arc::clone(&options.cancel), ..IngestOptions::default() };
    let (mut wall, mut cpu, mut copy_wall, mut copy_cpu) = (vec![], vec![], vec![], vec![]);
    let mut meter = NoiseMeter::start();
    let rate = |cpu: &[f64], copy_cpu: &[f64], confidence| {
        let ratio = ratio_interval(cpu, copy_cpu, confidence);
        Promise::at_least("ingest-rate", ratio, RATE_BOUND, "of a plain copy's, by processor time")
    };
    let mut rounds = Rounds::at_least(options, least);
    while rounds.go_on(|confidence| rate(&cpu, &copy_cpu, confidence).is_decided()) {
        options.go_on()?;
        options.say(&format!("round {}", rounds.count()));
        meter.look();
        let (copied, copied_cpu) = timed(|| plain_copy(&file, &dir.0.join("copy")))?;
        let (added, added_cpu) = timed(|| {
            let title = ingest(&volume, &file, &ingest_options, &mut |_| ())?;
            volume.remove(title.id)?;
            Ok(())
        })?;
        wall.push(mb / added);
        cpu.push(mb / added_cpu);
        copy_wall.push(mb / copied);
        copy_cpu.push(mb / copied_cpu);
    }
    let mut report = Report::new("ingest");
    meter.repeated("ingest by processor time", &cpu);
    let rate = rate(&cpu, &copy_cpu, rounds.confidence());
    let ratio = ratio_interval(&wall, &copy_wall, rounds.confidence());
    let mut points = Vec::new();
    let mut spread = |label: &str, values: &mut Vec<f64>| {
        let p = |values: &mut Vec<f64>, p| percentile(values, p);
        let (low, mid, high) = (p(values, 10.0), p(values, 50.0), p(values, 90.0));
        points.push(Point::spread(label, low, mid, high));
        Row::new(label).with("p10", low, "MB/s").with("p50", mid, "MB/s").with("p90", high, "MB/s")
    };
    report.rows.push(Row::new("title").with("size", mb, "MB").with("rounds", rounds.count() as f64, ""));
    report.rows.push(spread("ingest, wall clock", &mut wall));
    report.rows.push(spread("ingest, processor time", &mut cpu));
    report.rows.push(spread("plain read + write of the same file", &mut copy_wall));
    report.rows.push(spread("plain read + write, processor time", &mut copy_cpu));
    report.rows.push(Row::new("ingest / plain copy, same round").with("median", ratio.mid, ""));
    let plot =
        Plot::new(PlotKind::Spread, "Ingest beside a plain copy", Axis::default(), Axis::new("rate", "MB/s"));
    report.plots.push(plot.with("p10, p50, p90 of the rounds", points));
    report.noise = Some(meter.finish());
    report.promises.push(rate);
    Ok(report)
}

/// A media file of real pictures, repeated without a break in its clock.
pub(super) fn make_media_file(
    dir: &Path,
    rate_kbps: u64,
    secs: u64,
    loops: u32,
) -> anyhow::Result<std::path::PathBuf> {
    let (once, file) = (dir.join("once.ts"), dir.join("media.ts"));
    media::make_cbr_ts(&once, secs, rate_kbps)?;
    let status = std::process::Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-y", "-stream_loop", &loops.to_string(), "-i"])
        .arg(&once)
        .args(["-c", "copy", "-f", "mpegts", "-muxrate", &format!("{rate_kbps}k")])
        .args(["-pcr_period", "20"])
        .arg(&file)
        .status()
        .context("ffmpeg: cannot be started")?;
    anyhow::ensure!(status.success(), "ffmpeg could not repeat the media file");
    std::fs::remove_file(once)?;
    Ok(file)
}

/// A folder that goes when the benchmark ends; in memory if the machine has /dev/shm.
pub(super) struct Scratch(pub(super) std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn tempdir(options: &Options) -> anyhow::Result<Scratch> {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() { shm } else { &options.scratch };
    let dir = base.join(format!("millrace-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    Ok(Scratch(dir))
}

//! Viewers at places of their own: many titles, a cache that holds a quarter of them, and everybody seeks now and then.
//!
//! Nothing is read for two of them at once, so this is about the disk and what reads from it, beside sending.

use std::time::Duration;

use anyhow::Context;
use millrace_core::units::BitRate;
use millrace_load::Behaviour;

use crate::capacity::crowd::{Crowd, Offer, offer};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::BenchSite;
use crate::capacity::{Scene, Scratch};
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
use crate::held::counters;
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "seeks",
    shows: "viewers who seek every 12 s in 50 titles of which a quarter fits the cache, all threads on one core, beside as many who only watch: loss, lateness, what was read",
    not_for: "how fast a disk is: titles lie below --scratch, and are read past the page cache",
    options: &["streams", "rate", "titles", "offload", "scratch"],
    targets: &["seeks-lateness-ratio", "seeks-loss", "seeks-playing"],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("taskset", "apt-get install util-linux"),
    ],
    run,
};

/// Each viewer seeks once in this interval, on average.
const SEEKS: &str = "seek 12s";
/// The cache holds one part in `CACHE_PARTS` of the media.
const CACHE_PARTS: u64 = 4;
/// Media time over which viewers begin.
const SPREAD: Duration = Duration::from_secs(15);
/// Lateness of 99 % of the packets, relative to the same viewers who only watch.
const LATENESS_RATIO: f64 = 5.0;
/// Viewers that play in the end, relative to the same: a viewer leaves at the end of a title, and a seek brings it nearer.
const PLAYING: f64 = 0.7;
/// The contenders' behaviour.
const BEHAVIOURS: [&str; 2] = [SEEKS, "watch"];

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("seeks");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "seeks")?;
    let rate = options.rates.first().copied();
    let rate = rate.unwrap_or(BitRate(options.pick(2_000_000, 8_000_000, 8_000_000)));
    let titles = options.titles.unwrap_or(options.pick(2, 50, 50)).max(2);
    let seconds = options.pick(20, 72, 72);
    options.say(&format!("making {titles} media files of {rate}"));
    let files = MediaFiles::make(&scratch.0.join("media"), rate, seconds, titles)?;
    // Reading and sending share the core: without segmentation offload there would be no time to read in.
    let offload = options.offload.unwrap_or(true);
    let site = BenchSite::new(offload, 1, scratch.0.join("site"))?;
    let spread = if options.tiny { Duration::ZERO } else { SPREAD };
    let cache_bytes = Some((files.bytes() / CACHE_PARTS).max(16 << 20));
    let scene = Scene { cache_bytes, ..Scene::new(options, &site, &files, spread) };
    let viewers = match options.streams {
        Some(viewers) => vec![u32::try_from(viewers)?],
        None => options.pick(vec![4], vec![1_150], vec![800, 1_000, 1_150, 1_300]),
    };
    for viewers in viewers {
        let offload = if offload { "on" } else { "off" };
        let label = |behaviour: &str| {
            format!(
                "{viewers} viewers of {rate}, {behaviour}, {titles} titles of {seconds} s, segmentation offload {offload}"
            )
        };
        let names = BEHAVIOURS.map(label);
        let is_judged = options.streams.is_some() || viewers == 1_150 || options.tiny;
        let targets = |runs: &Turns<SeekRun>| if is_judged { judge(runs) } else { Vec::new() };
        let turn = |at: usize, _| play(options, scene, viewers, BEHAVIOURS[at]);
        let runs = Turns::take(options, &mut noise, &names, turn, targets)?;
        for (at, name) in names.iter().enumerate() {
            for run in runs.of(at) {
                report.rows.extend(run.crowd.rows(name));
                report.rows.push(what_was_read(name, run));
            }
        }
        report.promises.extend(targets(&runs));
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

/// One run, and the server's counters after it.
struct SeekRun {
    crowd: Crowd,
    counters: serde_json::Value,
}

impl SeekRun {
    fn playing(&self) -> f64 {
        self.crowd.series.last().map_or(0.0, |sample| sample.playing as f64)
    }

    /// Packets lost; 0 if the receiver itself may have dropped them.
    fn lost(&self) -> u64 {
        if self.crowd.figures.spoiled { 0 } else { self.crowd.lost }
    }
}

/// The targets, from all runs of those who seek and those who only watch.
fn judge(runs: &Turns<SeekRun>) -> Vec<Promise> {
    let late = runs.ratio(0, 1, |run| run.crowd.figures.p99_ms);
    let playing = runs.ratio(0, 1, SeekRun::playing);
    vec![
        Promise::at_most("seeks-lateness-ratio", late, LATENESS_RATIO, "of viewers who only watch"),
        Promise::at_most("seeks-loss", runs.sum(SeekRun::lost) as f64, 0.0, "packets"),
        Promise::at_least("seeks-playing", playing, PLAYING, "of those who only watch"),
    ]
}

/// Runs `viewers` viewers with a server of their own.
fn play(options: &Options, scene: Scene<'_>, viewers: u32, behaviour: &str) -> anyhow::Result<SeekRun> {
    let services = peers::OURSELVES.services(scene)?;
    let service = services.into_iter().next().context("our server over UDP")?;
    let hold = Duration::from_secs(options.pick(2, 10, 30));
    let coming_s = options.pick(1.0, 5.0, 10.0);
    let behaviour: Behaviour = behaviour.parse()?;
    let running = (service.start)(viewers).context("start our server")?;
    let offered = Offer { viewers, per_s: f64::from(viewers) / coming_s, hold, behaviour };
    let crowd = offer(scene.site, &service, &running, offered, &options.cancel, &mut |_| ())?;
    Ok(SeekRun { crowd, counters: counters(&peers::stats_file(scene.site))? })
}

/// Its counters, written once a second: the last second is missing.
fn what_was_read(label: &str, run: &SeekRun) -> Row {
    let of = |name: &str| run.counters["cache"][name].as_f64().unwrap_or(f64::NAN);
    Row::new(format!("{label}: what the server read"))
        .with("read", of("bytes_read") / 1e9, "GB")
        .with("reads", of("reads"), "")
        .with("found in memory", of("hits"), "")
        .with("caused a read", of("misses"), "")
        .with("granted late", of("late_grants"), "")
        .with("playing in the end", run.playing(), "")
}

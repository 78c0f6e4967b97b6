//! Viewers at places of their own: many titles, a cache that holds a quarter of them, and everybody seeks now and then.
//!
//! Nothing is read for two of them at once, so this is about the disk and what reads from it, beside sending.

use std::time::Duration;

use anyhow::Context;
use millrace_core::units::BitRate;
use millrace_load::Behaviour;

use crate::capacity::crowd::{Crowd, Offer, offer};
use crate::capacity::limits::{Limits, is_disturbing};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::BenchSite;
use crate::capacity::{Scene, Scratch, in_peace};
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row};
use crate::held::counters;
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "seeks",
    shows: "viewers who seek every 12 s in 50 titles of which a quarter fits the cache, all threads on one core: loss, lateness, what was read",
    not_for: "how fast a disk is: titles lie below --scratch, and are read past the page cache",
    options: &["streams", "rate", "titles", "offload", "scratch"],
    targets: &["seeks-lateness-p99", "seeks-loss", "seeks-playing"],
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
/// Viewers come in this time.
const COMING_S: f64 = 10.0;
/// The cache holds one part in `CACHE_PARTS` of the media.
const CACHE_PARTS: u64 = 4;
/// Media time over which viewers begin.
const SPREAD: Duration = Duration::from_secs(15);
/// What 99 % of the packets keep.
const P99_MS: f64 = Limits::PATIENT.p99_ms;
/// Viewers leave at the end of a title: this share of those who came must still be there at the end
/// of the time.
const PLAYING: f64 = 0.7;

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
        noise.look();
        let (crowd, read) = play(options, scene, viewers)?;
        let offload = if offload { "on" } else { "off" };
        let label = format!(
            "{viewers} viewers of {rate}, {SEEKS}, {titles} titles of {seconds} s, segmentation offload {offload}"
        );
        let playing = crowd.series.last().map_or(0, |sample| sample.playing);
        report.rows.extend(crowd.rows(&label));
        report.rows.push(read.with("playing in the end", playing as f64, ""));
        let is_judged = options.streams.is_some() || viewers == 1_150 || options.tiny;
        if is_judged && !crowd.figures.spoiled {
            let p99 = Promise::at_most("seeks-lateness-p99", crowd.figures.p99_ms, P99_MS, "ms");
            let share = playing as f64 / f64::from(viewers);
            let playing = Promise::at_least("seeks-playing", share, PLAYING, "of those who came");
            let lost = Promise::at_most("seeks-loss", crowd.lost as f64, 0.0, "packets");
            report.promises.extend([p99, lost, playing]);
        }
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

/// Runs `viewers` viewers with a server of their own; also returns the server's reads for them.
fn play(options: &Options, scene: Scene<'_>, viewers: u32) -> anyhow::Result<(Crowd, Row)> {
    let services = peers::OURSELVES.services(scene)?;
    let service = services.into_iter().next().context("our server over UDP")?;
    let hold = Duration::from_secs(options.pick(2, 30, 30));
    let coming_s = if options.tiny { 1.0 } else { COMING_S };
    let behaviour: Behaviour = SEEKS.parse()?;
    options.say(&format!("{viewers} viewers"));
    in_peace(
        || {
            options.go_on()?;
            let running = (service.start)(viewers).context("start our server")?;
            let per_s = f64::from(viewers) / coming_s;
            let offered = Offer { viewers, per_s, hold, behaviour: behaviour.clone() };
            let crowd = offer(scene.site, &service, &running, offered, &options.cancel, &mut |_| ())?;
            Ok((crowd, what_was_read(viewers, &counters(&peers::stats_file(scene.site))?)))
        },
        |(crowd, _): &(Crowd, Row)| {
            crowd.figures.p99_ms > P99_MS && is_disturbing(crowd.figures.stolen_ratio)
        },
    )
}

/// Its counters, written once a second: the last second is missing.
fn what_was_read(viewers: u32, counters: &serde_json::Value) -> Row {
    let of = |name: &str| counters["cache"][name].as_f64().unwrap_or(f64::NAN);
    Row::new(format!("{viewers} viewers: what the server read"))
        .with("read", of("bytes_read") / 1e9, "GB")
        .with("reads", of("reads"), "")
        .with("found in memory", of("hits"), "")
        .with("caused a read", of("misses"), "")
        .with("granted late", of("late_grants"), "")
}

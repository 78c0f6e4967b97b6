//! Viewers who all go over to fast forward within a second, and back, beside others who only watch.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use millrace_core::units::BitRate;
use millrace_load::{Behaviour, LoadProgress, StreamReport};
use serde_json::Value;

use crate::capacity::crowd::{Crowd, Offer, offer, worst_p99_ms};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::BenchSite;
use crate::capacity::{Scene, Scratch};
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
use crate::held::counters;
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "switches",
    shows: "1,000 viewers who go over to eight times the speed within a second, and back, beside 200 who only watch: lateness, loss, processor time",
    not_for: "how long a player takes to show the first picture at the new speed",
    options: &["streams", "rate", "offload", "scratch"],
    targets: &["switches-lateness-ratio", "switches-loss", "switches-failed", "switches-cost"],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
    ],
    run,
};

/// How fast.
const SPEED: u32 = 8;
/// One viewer in `ONE_WATCHES` only watches.
const ONE_WATCHES: u32 = 6;
/// All come within this time, so they change the speed within it too.
const COMING_S: f64 = 1.0;
/// The worst p99 of half a second around the changes, relative to as much time at normal speed.
const LATENESS_RATIO: f64 = 1.25;
/// Processor time per packet, relative to normal speed.
const COST_RATIO: f64 = 1.1;
/// Time after a change in which the packets sent represent neither speed.
const SETTLE: Duration = Duration::from_secs(2);

/// The engine's counters at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    busy_ns: u64,
    packets: u64,
}

impl Spent {
    fn of(counters: &Value) -> Option<Self> {
        let sum = |name: &str| {
            let loops = counters["loop"].as_array()?;
            loops.iter().map(|one| one[name].as_u64()).sum::<Option<u64>>()
        };
        Some(Self { busy_ns: sum("busy_ns")?, packets: sum("packets")? })
    }

    fn ns_a_packet(from: Self, to: Self) -> f64 {
        (to.busy_ns - from.busy_ns) as f64 / to.packets.saturating_sub(from.packets).max(1) as f64
    }
}

/// Reads the engine's counters at the beginning and the end of the time watched at each speed.
#[derive(Debug)]
struct CounterWatch {
    at: [Duration; 4],
    seen: [Option<Spent>; 4],
}

impl CounterWatch {
    /// Creates a watch of a speed that changes each time `lasts` has passed.
    fn new(lasts: Duration) -> Self {
        let settled = |begins: Duration| begins + SETTLE.min(lasts / 3);
        let before = |ends: Duration| ends - Duration::from_millis(500).min(lasts / 4);
        let at = [settled(Duration::ZERO), before(lasts), settled(lasts), before(lasts * 2)];
        Self { at, seen: [None; 4] }
    }

    fn look(&mut self, elapsed: Duration, stats: &Path) {
        let due = |n: usize| elapsed >= self.at[n] && self.seen[n].is_none();
        // The file is written once a second: its content may be that old.
        if let Some(n) = (0..4).rev().find(|&n| due(n)) {
            self.seen[n] = counters(stats).ok().and_then(|all| Spent::of(&all));
        }
    }

    /// Nanoseconds a packet at normal and at the other speed.
    fn costs(&self) -> Option<(f64, f64)> {
        let [Some(a), Some(b), Some(c), Some(d)] = self.seen else { return None };
        Some((Spent::ns_a_packet(a, b), Spent::ns_a_packet(c, d)))
    }

    /// How many packets were sent at the other speed for one at normal speed, in the same time.
    fn packets_ratio(&self) -> Option<f64> {
        let [Some(a), Some(b), Some(c), Some(d)] = self.seen else { return None };
        let [normal, other] = [[a, b], [c, d]].map(|[from, to]| to.packets.saturating_sub(from.packets));
        Some(other as f64 / normal.max(1) as f64)
    }
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("switches");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "switches")?;
    let rate = options.rates.first().copied().unwrap_or(BitRate(1_000_000));
    let lasts = Duration::from_secs(options.pick(2, 6, 15));
    let spread = if options.tiny { Duration::ZERO } else { Duration::from_secs(10) };
    let seconds = spread.as_secs() + lasts.as_secs() * u64::from(SPEED + 2) + 15;
    options.say(&format!("making a media file of {rate}"));
    let files = MediaFiles::make(&scratch.0.join("media"), rate, seconds, 1)?;
    let site = BenchSite::new(options.offload.unwrap_or(true), 1, scratch.0.join("site"))?;
    let scene = Scene::new(options, &site, &files, spread);
    // 1,000 of them change the speed.
    let viewers = u32::try_from(options.streams.unwrap_or(options.pick(6, 1_200, 1_200)))?;
    let name = format!("{viewers} viewers of {rate}");
    let turn = |_, _| play(options, scene, viewers, lasts);
    let runs = Turns::take(options, &mut noise, &[&name], turn, judge)?;
    for (number, run) in runs.of(0).iter().enumerate() {
        report_run(&mut report, run, &format!("{name}, run {}", number + 1));
    }
    report.promises = judge(&runs);
    report.noise = Some(noise.finish());
    Ok(report)
}

/// Runs `viewers` viewers with a server of their own.
fn play(options: &Options, scene: Scene<'_>, viewers: u32, lasts: Duration) -> anyhow::Result<SwitchRun> {
    options.go_on()?;
    let services = peers::OURSELVES.services(scene)?;
    let service = services.into_iter().next().context("our server over UDP")?;
    let mut trick = Command::new(scene.program);
    trick.args(["trick", "--quiet", "--all", "--speeds", &SPEED.to_string(), "--store"]);
    peers::run(trick.arg(scene.files.dir.join("store"))).context("make the title for the other speed")?;
    let seconds = lasts.as_secs();
    let behaviour: Behaviour =
        format!("trick {seconds}s fixed at {SPEED}:{}, watch:1", ONE_WATCHES - 1).parse()?;
    let stats = peers::stats_file(scene.site);
    let running = (service.start)(viewers).context("start our server")?;
    let offered = Offer { viewers, per_s: f64::from(viewers) / COMING_S, hold: lasts * 5 / 2, behaviour };
    let mut watch = CounterWatch::new(lasts);
    let mut look = |progress: &LoadProgress| watch.look(progress.elapsed, &stats);
    let crowd = offer(scene.site, &service, &running, offered, &options.cancel, &mut look)?;
    let [normal_p99_ms, changes_p99_ms] =
        lateness_windows(lasts).map(|windows| worst_p99_ms(&crowd.series, &windows));
    Ok(SwitchRun { crowd, watch, normal_p99_ms, changes_p99_ms })
}

/// One run, and the worst p99 of half a second at normal speed, and around the changes.
struct SwitchRun {
    crowd: Crowd,
    watch: CounterWatch,
    normal_p99_ms: f64,
    changes_p99_ms: f64,
}

impl SwitchRun {
    /// Packets lost; 0 if the receiver itself may have dropped them.
    fn lost(&self) -> u64 {
        if self.crowd.figures.spoiled { 0 } else { self.crowd.lost }
    }

    /// Viewers that failed, or did not play before time was over.
    fn failed(&self) -> u64 {
        self.crowd.fates.otherwise + self.crowd.fates.asking
    }

    fn cost_ratio(&self) -> f64 {
        self.watch.costs().map_or(f64::NAN, |(normal, other)| other / normal)
    }
}

/// As much time at normal speed, before the first change, as from the changes there and back on.
fn lateness_windows(lasts: Duration) -> [Vec<(Duration, Duration)>; 2] {
    let settled = SETTLE.min(lasts / 3);
    let half = (lasts - settled) / 2;
    [vec![(settled, lasts)], [lasts, lasts * 2].map(|change| (change, change + half)).into()]
}

/// The targets, from all runs.
fn judge(runs: &Turns<SwitchRun>) -> Vec<Promise> {
    let late = runs.interval(0, |run| run.changes_p99_ms / run.normal_p99_ms);
    let cost = runs.interval(0, SwitchRun::cost_ratio);
    vec![
        Promise::at_most("switches-lateness-ratio", late, LATENESS_RATIO, "of normal speed"),
        Promise::at_most("switches-loss", runs.sum(SwitchRun::lost) as f64, 0.0, "packets"),
        Promise::at_most("switches-failed", runs.sum(SwitchRun::failed) as f64, 0.0, "viewers"),
        Promise::at_most("switches-cost", cost, COST_RATIO, "of normal speed"),
    ]
}

/// Those who never changed the speed, or those who did.
fn of_kind(crowd: &Crowd, changed: bool) -> impl Iterator<Item = &StreamReport> {
    crowd.streams.iter().filter(move |stream| stream.setup_us.is_some() && (stream.runs > 1) == changed)
}

fn report_run(report: &mut Report, run: &SwitchRun, label: &str) {
    let SwitchRun { crowd, watch, .. } = run;
    let others = || of_kind(crowd, false);
    let latest_ms = others().map(|stream| stream.lateness_max_us).max().unwrap_or(0) as f64 / 1e3;
    let runs = of_kind(crowd, true).map(|stream| u64::from(stream.runs)).sum::<u64>();
    let changed = of_kind(crowd, true).count();
    report.rows.extend(crowd.rows(label));
    let (normal, other) = watch.costs().unwrap_or((f64::NAN, f64::NAN));
    report.rows.push(
        Row::new(format!("{label}: changes of speed"))
            .with("viewers who changed it", changed as f64, "")
            .with("times", (runs - changed as u64) as f64, "")
            .with("worst p99 at normal speed", run.normal_p99_ms, "ms")
            .with("around the changes", run.changes_p99_ms, "ms")
            .with("others", others().count() as f64, "")
            .with("the latest packet of the others", latest_ms, "ms")
            .with("busy at normal speed", normal, "ns/packet")
            .with(&format!("at {SPEED} times"), other, "ns/packet")
            .with("packets for one at normal speed", watch.packets_ratio().unwrap_or(f64::NAN), ""),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_measures_each_speed_away_from_changes() {
        let lasts = Duration::from_secs(10);
        let watch = CounterWatch::new(lasts);
        assert_eq!(watch.at.map(|at| at.as_millis()), [2_000, 9_500, 12_000, 19_500]);
        let spent = |busy_ns, packets| Some(Spent { busy_ns, packets });
        let seen = [spent(1_000, 10), spent(3_000, 20), spent(9_000, 50), spent(10_000, 60)];
        let watch = CounterWatch { seen, ..watch };
        assert_eq!((watch.costs(), watch.packets_ratio()), (Some((200.0, 100.0)), Some(1.0)));
        assert_eq!(CounterWatch::new(lasts).costs(), None);
    }

    #[test]
    fn lateness_windows_are_as_long_at_normal_speed_as_around_changes() {
        let s = Duration::from_secs;
        assert_eq!(lateness_windows(s(10)), [vec![(s(2), s(10))], vec![(s(10), s(14)), (s(20), s(24))]]);
    }

    #[test]
    fn spent_of_sums_event_loop_counters() {
        let counters =
            serde_json::json!({"loop": [{"busy_ns": 5, "packets": 2}, {"busy_ns": 6, "packets": 3}]});
        let spent = Spent::of(&counters).unwrap();
        assert_eq!((spent.busy_ns, spent.packets), (11, 5));
        assert!(Spent::of(&serde_json::json!({"loop": [{"busy_ns": 5}]})).is_none());
    }
}

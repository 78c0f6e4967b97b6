//! Twice as many viewers as one core carries, and a neighbour that takes half of the core when it is full.
//!
//! ```text
//!   viewers come at random, twice what was found                     judged: what the admitted got, how the others were refused
//!   a fresh server, the same again, on and on
//!        │ full      │ a busy process on the server's core │ it ends      judged: who was ended, how soon the rest are in
//!        ▼           ▼                                     ▼              time, whether newcomers are let in again
//!   0 ───────── FILL ─────────────────────────────── + BUSY ─────── + AFTER
//! ```

use std::time::Duration;

use anyhow::Context;
use millrace_core::units::BitRate;
use millrace_load::{Behaviour, LoadProgress, LoadSample, StreamReport};
use serde_json::Value;

use crate::capacity::crowd::{Crowd, Offer, SessionFate, offer};
use crate::capacity::limits::{Limits, is_disturbing};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::{BenchSite, Group};
use crate::capacity::trial::{RunningService, Service};
use crate::capacity::{Effort, Hunt, Scene, Scratch, in_peace};
use crate::frame::{Axis, Bench, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row};
use crate::held::{HeldResources, counters};
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "overload",
    shows: "twice the viewers that one core carries, then a busy process on that core: lateness and loss of those admitted, who is ended, recovery",
    not_for: "the speed of a network card: a veth pair runs the receiver's kernel path on the sender's core",
    options: &["streams", "rate"],
    targets: &[
        "overload-lateness-p99",
        "overload-loss",
        "overload-failed",
        "overload-refused",
        "overload-recovery",
        "overload-newest-first",
        "overload-told",
        "overload-kept-loss",
        "overload-admitted-again",
    ],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("taskset", "apt-get install util-linux"),
    ],
    run,
};

/// How many times what one core carries is offered.
const OFFERED: u32 = 2;
/// Lateness that 99 % of the packets keep, and that an interval must keep to count as in time.
const IN_TIME_MS: f64 = 100.0;
/// In which those who are kept are in time again.
const RECOVERY_S: f64 = 5.0;
/// Viewers that play in the end, of those before the busy process.
const AGAIN_RATIO: f64 = 0.8;
/// Two viewers who came so shortly one after the other may be set up in another order.
const SAME_TIME_MS: u64 = 1_000;
/// Media time over which viewers begin.
const SPREAD: Duration = Duration::from_secs(15);
/// How long the server may take to forget all viewers and to write that down: it writes its counters once a second.
const EMPTY: Duration = Duration::from_secs(15);

/// The parts of a run.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Twice as many as the core carries come in this time.
    fill: Duration,
    /// Running time of the busy process.
    busy: Duration,
    /// Time after it during which viewers go on arriving.
    after: Duration,
    /// Time during which the admitted viewers then play on.
    hold: Duration,
}

impl Times {
    fn of(options: &Options) -> Self {
        let [fill, busy, after, hold] = options.pick([1, 1, 1, 1], [12, 12, 10, 3], [20, 15, 15, 5]);
        let [fill, busy, after, hold] = [fill, busy, after, hold].map(Duration::from_secs);
        Self { fill, busy, after, hold }
    }

    fn all(&self) -> Duration {
        self.fill + self.busy + self.after + self.hold
    }
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("overload");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "overload")?;
    let (effort, times) = (Effort::of(options), Times::of(options));
    let spread = if options.tiny { Duration::ZERO } else { SPREAD };
    let default_rate = options.pick(2_000_000, 8_000_000, 8_000_000);
    let rate = options.rates.first().copied().unwrap_or(BitRate(default_rate));
    options.say(&format!("making a media file of {rate}"));
    let seconds = effort.media_s(spread).max((spread + times.all()).as_secs() + 15);
    let files = MediaFiles::make(&scratch.0.join("media"), rate, seconds, 1)?;
    let site = BenchSite::new(false, 1, scratch.0.join("site"))?;
    let scene = Scene::new(options, &site, &files, spread);
    noise.look();
    let carried = match options.streams {
        Some(viewers) => u32::try_from(viewers)?,
        None if options.tiny => 3,
        None => search(options, scene, effort, &mut report)?,
    };
    if carried == 0 {
        report.rows.push(Row::new("one core was found to carry nobody: nothing can be offered"));
    } else {
        let service = ours(Scene { has_admission: true, ..scene })?;
        let stage = OverloadContext { options, site: &site, service: &service, times, carried };
        noise.look();
        admitted(&stage, &mut report)?;
        noise.look();
        struck(&stage, &mut report)?;
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

fn ours(scene: Scene<'_>) -> anyhow::Result<Service<'_>> {
    peers::OURSELVES.services(scene)?.into_iter().next().context("our server over UDP")
}

/// What one core carries without admission, within the limits of `bench capacity`.
fn search(options: &Options, scene: Scene<'_>, effort: Effort, report: &mut Report) -> anyhow::Result<u32> {
    let service = ours(scene)?;
    let mut hunt = Hunt::new(options, scene.site, &service, effort)?;
    let found = hunt.find(&Limits::STRICT, None)?.found;
    let row = Row::new("one core carries, by a search without admission");
    report.rows.push(row.with("viewers", f64::from(found.passed), "").with(
        "trials",
        hunt.trials() as f64,
        "",
    ));
    Ok(found.passed)
}

/// Settings that both parts share.
struct OverloadContext<'a> {
    options: &'a Options,
    site: &'a BenchSite,
    service: &'a Service<'a>,
    times: Times,
    carried: u32,
}

impl OverloadContext<'_> {
    /// Viewers a second.
    fn per_s(&self) -> f64 {
        f64::from(self.carried * OFFERED) / self.times.fill.as_secs_f64()
    }

    /// Lets viewers arrive at a server of their own for the time `coming`; returns the server's
    /// counters after they are gone.
    fn play(
        &self,
        coming: Duration,
        look: &mut (dyn FnMut(&LoadProgress) + Send),
    ) -> anyhow::Result<(Crowd, Value)> {
        self.options.go_on()?;
        let viewers = ((self.per_s() * coming.as_secs_f64()).round() as u32).max(1);
        let offered =
            Offer { viewers, per_s: self.per_s(), hold: self.times.hold, behaviour: Behaviour::default() };
        let running: RunningService = (self.service.start)(viewers).context("start our server")?;
        let crowd = offer(self.site, self.service, &running, offered, &self.options.cancel, look)?;
        self.options.go_on()?;
        let stats = peers::stats_file(self.site);
        for group in &running.groups {
            // Descriptors of titles that are open do not matter here.
            HeldResources::settle(group.id(), &stats, HeldResources::nothing_but(u64::MAX), EMPTY)?;
        }
        Ok((crowd, counters(&stats)?))
    }
}

/// Twice as many as the core carries: what those who were admitted got.
fn admitted(stage: &OverloadContext<'_>, report: &mut Report) -> anyhow::Result<()> {
    let times = stage.carried * OFFERED;
    let label = format!("{times} viewers at {:.0}/s", stage.per_s());
    stage.options.say(&label);
    let measure = || -> anyhow::Result<Crowd> { Ok(stage.play(stage.times.fill, &mut |_| ())?.0) };
    let limits = Limits { loss_ratio: 0.0, ..Limits::PATIENT };
    let is_disturbed =
        |crowd: &Crowd| crowd.keeps(&limits) != Some(true) && is_disturbing(crowd.figures.stolen_ratio);
    let crowd = in_peace(measure, is_disturbed)?;
    report.rows.extend(crowd.rows(&label));
    report.promises.extend(judge_admitted(&crowd));
    Ok(())
}

/// Without a refusal nothing was overloaded, so the targets for an overload were not measured,
/// unless the admitted viewers suffered.
fn judge_admitted(crowd: &Crowd) -> Vec<Promise> {
    let (fates, figures) = (&crowd.fates, &crowd.figures);
    let is_harmless = figures.p99_ms <= IN_TIME_MS && crowd.lost == 0 && figures.without == 0;
    if fates.refused == 0 && is_harmless || figures.spoiled {
        return Vec::new();
    }
    let p99 = Promise::at_most("overload-lateness-p99", figures.p99_ms, IN_TIME_MS, "ms");
    let refused = Promise::at_least("overload-refused", fates.refused as f64, 1.0, "viewers with 453");
    vec![
        p99,
        none("overload-loss", crowd.lost, "packets"),
        none("overload-failed", figures.without, "sessions that failed or were ended"),
        refused,
    ]
}

fn none(id: &str, count: u64, what: &str) -> Promise {
    Promise::at_most(id, count as f64, 0.0, what)
}

/// Times of a busy process on the server's core, in milliseconds since the first viewer could come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Strike {
    began_ms: u64,
    ended_ms: u64,
}

/// The core is full, half of it is taken away, and given back.
fn struck(stage: &OverloadContext<'_>, report: &mut Report) -> anyhow::Result<()> {
    let label = "a busy process on the server's core";
    stage.options.say(label);
    let times = stage.times;
    let measure = || -> anyhow::Result<OverloadResult> {
        let (mut busy, mut strike, mut failed) = (None, Strike::default(), None);
        let (crowd, counted) = stage.play(times.fill + times.busy + times.after, &mut |progress| {
            let now = progress.elapsed;
            let now_ms = now.as_millis() as u64;
            if strike.began_ms == 0 && now >= times.fill {
                match spin(stage.site) {
                    Ok(group) => (busy, strike.began_ms) = (Some(group), now_ms),
                    Err(error) => (failed, strike.began_ms) = (Some(error), now_ms),
                }
            } else if busy.is_some() && now >= times.fill + times.busy {
                (busy, strike.ended_ms) = (None, now_ms);
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None => Ok(OverloadResult::of(
                crowd,
                strike,
                counted["sessions"]["sessions_overload"].as_u64().unwrap_or(0),
            )),
        }
    };
    let seen = in_peace(measure, OverloadResult::is_disturbed)?;
    report.rows.extend(seen.rows(label));
    report.plots.extend(seen.plots());
    report.promises.extend(seen.judge());
    Ok(())
}

/// A process that does nothing but spin, on the server's cores.
fn spin(site: &BenchSite) -> anyhow::Result<Group> {
    let mut command = site.command("sh");
    command.args(["-c", "while :; do :; done"]);
    Group::start(site, "busy process", command)
}

/// Measurements of the overload.
#[derive(Clone, Debug)]
struct OverloadResult {
    crowd: Crowd,
    strike: Strike,
    /// Sessions that the server reports as ended for this reason.
    ended_by_server: u64,
    /// Viewers that played right before.
    before: u64,
    /// The fewest that played while the busy process ran.
    fewest: u64,
    /// Viewers that played in the end.
    in_the_end: u64,
    /// Until the last interval that was not in time, from the beginning of the busy process.
    recovery_s: f64,
    /// Lateness while the busy process ran: the worst p99 of an interval, and the latest packet.
    worst_p99_ms: f64,
    latest_ms: f64,
    /// Sessions that were ended although a newer one was kept.
    out_of_order: u64,
    /// Packets missing of those who were not ended.
    kept_lost: u64,
    /// Sessions that were let in after it.
    admitted_after: u64,
}

impl OverloadResult {
    fn of(crowd: Crowd, strike: Strike, ended_by_server: u64) -> Self {
        let Strike { began_ms, ended_ms } = strike;
        let during: Vec<LoadSample> =
            crowd.series.iter().filter(|s| s.at_ms > began_ms && s.at_ms <= ended_ms).copied().collect();
        let ms = |us: u64| us as f64 / 1e3;
        let highest = |what: fn(&LoadSample) -> u64| ms(during.iter().map(what).max().unwrap_or(0));
        let before = crowd.series.iter().rfind(|s| s.at_ms <= began_ms).map_or(0, |s| s.playing);
        let kept = crowd.streams.iter().filter(|stream| SessionFate::of(stream) == SessionFate::Kept);
        let newcomers = kept.clone().filter(|stream| stream.began_ms >= ended_ms);
        Self {
            before,
            fewest: during.iter().map(|s| s.playing).min().unwrap_or(0),
            in_the_end: crowd.series.last().map_or(0, |s| s.playing),
            recovery_s: recovery_s(&during, began_ms),
            worst_p99_ms: highest(|s| s.lateness_p99_us),
            latest_ms: highest(|s| s.lateness_max_us),
            out_of_order: out_of_order(&crowd.streams, began_ms),
            kept_lost: kept.clone().map(|stream| stream.lost).sum(),
            admitted_after: newcomers.count() as u64,
            ended_by_server,
            strike,
            crowd,
        }
    }

    /// Whether the core was too full while the busy process ran: nothing is shown otherwise.
    fn was_overloaded(&self) -> bool {
        self.crowd.fates.ended > 0 || self.ended_by_server > 0 || self.recovery_s > 0.0
    }

    fn judge(&self) -> Vec<Promise> {
        if !self.was_overloaded() || self.crowd.figures.spoiled {
            return Vec::new();
        }
        let again = self.in_the_end as f64 / self.before.max(1) as f64;
        let untold = self.ended_by_server.abs_diff(self.crowd.fates.ended);
        vec![
            Promise::at_most("overload-recovery", self.recovery_s, RECOVERY_S, "s"),
            none("overload-newest-first", self.out_of_order, "ended although a newer one was kept"),
            none("overload-told", untold, "ended without a BYE, or with one for another reason"),
            none("overload-kept-loss", self.kept_lost, "packets"),
            Promise::at_least("overload-admitted-again", again, AGAIN_RATIO, "of those before"),
        ]
    }

    /// Returns whether the run failed while the hypervisor took enough processor time to be a
    /// possible cause.
    fn is_disturbed(&self) -> bool {
        let fails = self.judge().iter().any(|promise| !promise.holds);
        (fails || !self.was_overloaded()) && is_disturbing(self.crowd.figures.stolen_ratio)
    }

    fn rows(&self, label: &str) -> Vec<Row> {
        let at = |what: &str| format!("{label}: {what}");
        let mut rows = self.crowd.rows(&at("the whole run"));
        rows.push(
            Row::new(at("while it ran"))
                .with("viewers before", self.before as f64, "")
                .with("fewest", self.fewest as f64, "")
                .with("ended with BYE", self.crowd.fates.ended as f64, "")
                .with("ended, says the server", self.ended_by_server as f64, "")
                .with("in time again after", self.recovery_s, "s")
                .with("worst p99 of half a second", self.worst_p99_ms, "ms")
                .with("latest packet", self.latest_ms, "ms")
                .with("lost by those kept", self.kept_lost as f64, ""),
        );
        let lasted_s = self.strike.ended_ms.saturating_sub(self.strike.began_ms) as f64 / 1e3;
        rows.push(
            Row::new(at("after it"))
                .with("it ran for", lasted_s, "s")
                .with("admitted since", self.admitted_after as f64, "")
                .with("viewers in the end", self.in_the_end as f64, ""),
        );
        rows
    }

    fn plots(&self) -> [Plot; 2] {
        let line = |value: fn(&LoadSample) -> f64| {
            self.crowd.series.iter().map(|s| Point::xy(s.at_ms as f64 / 1e3, value(s))).collect::<Vec<_>>()
        };
        let time = || Axis::new("since the first viewer", "s");
        let Strike { began_ms, ended_ms } = self.strike;
        let when =
            format!("busy process from {:.1} to {:.1} s", began_ms as f64 / 1e3, ended_ms as f64 / 1e3);
        let viewers =
            Plot::new(PlotKind::Lines, format!("Viewers, {when}"), time(), Axis::new("viewers", ""));
        let late =
            Plot::new(PlotKind::Lines, format!("Lateness, {when}"), time(), Axis::log("lateness", "ms"));
        [
            viewers
                .with("playing", line(|s| s.playing as f64))
                .with("refused so far", line(|s| s.failed as f64)),
            late.with("p99", line(|s| s.lateness_p99_us as f64 / 1e3))
                .with("max", line(|s| s.lateness_max_us as f64 / 1e3)),
        ]
    }
}

/// Seconds from `began_ms` to the end of the last interval of `during` that was not in time; 0 if all were.
fn recovery_s(during: &[LoadSample], began_ms: u64) -> f64 {
    let is_late = |sample: &&LoadSample| sample.lateness_p99_us as f64 / 1e3 > IN_TIME_MS;
    let last = during.iter().rfind(is_late);
    last.map_or(0.0, |last| last.at_ms.saturating_sub(began_ms) as f64 / 1e3)
}

/// Counts sessions that were ended although a newer one was kept, among those that had begun by
/// `began_ms`.
fn out_of_order(streams: &[StreamReport], began_ms: u64) -> u64 {
    let came_before = |stream: &&StreamReport| stream.began_ms < began_ms;
    let of = |fate: SessionFate| {
        streams.iter().filter(came_before).filter(move |stream| SessionFate::of(stream) == fate)
    };
    let newest_kept = of(SessionFate::Kept).map(|stream| stream.began_ms).max().unwrap_or(0);
    of(SessionFate::Ended).filter(|ended| ended.began_ms + SAME_TIME_MS < newest_kept).count() as u64
}

#[cfg(test)]
#[path = "overload_tests.rs"]
mod tests;

//! Twice as many viewers as one core carries, and a neighbour that takes half of the core when it is full.
//!
//! ```text
//!   as many viewers as were found come at random                     the measure of lateness
//!   a fresh server, twice as many                                    judged: lateness and loss of those admitted, how the others were refused
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
use crate::capacity::limits::Limits;
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::{BenchSite, Group};
use crate::capacity::trial::{RunningService, Service};
use crate::capacity::{Effort, Hunt, Scene, Scratch};
use crate::frame::{
    Axis, Bench, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row, Turns,
};
use crate::held::{HeldResources, counters};
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "overload",
    shows: "twice the viewers that one core carries, then a busy process on that core: lateness and loss of those admitted, who is ended, recovery",
    not_for: "the speed of a network card: a veth pair runs the receiver's kernel path on the sender's core",
    options: &["streams", "rate"],
    targets: &[
        "overload-lateness-ratio",
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
/// Lateness of 99 % of the packets, relative to as many viewers as the core carries; half a second that keeps it counts as
/// in time.
const IN_TIME_RATIO: f64 = 5.0;
/// In which part of the time of the busy process those who are kept are in time again.
const RECOVERY_RATIO: f64 = 0.4;
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
        let [fill, busy, after, hold] = options.pick([1, 1, 1, 1], [6, 8, 6, 3], [20, 15, 15, 5]);
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
        let name = format!("{} viewers at {:.0}/s", carried * OFFERED, stage.per_s());
        let rounds = Turns::take(options, &mut noise, &[&name], |_, _| stage.round(), judge)?;
        for (number, round) in rounds.of(0).iter().enumerate() {
            report.rows.extend(round.rows(&format!("{name}, round {}", number + 1)));
        }
        report.plots.extend(rounds.of(0).last().map(|round| round.struck.plots()).into_iter().flatten());
        report.promises = judge(&rounds);
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

    fn round(&self) -> anyhow::Result<OverloadRound> {
        let (carried, _) = self.play(self.times.fill / OFFERED, &mut |_| ())?;
        let (admitted, _) = self.play(self.times.fill, &mut |_| ())?;
        let struck = self.struck(carried.figures.p99_ms * IN_TIME_RATIO)?;
        Ok(OverloadRound { carried, admitted, struck })
    }

    /// The core is full, half of it is taken away, and given back.
    fn struck(&self, in_time_ms: f64) -> anyhow::Result<OverloadResult> {
        let times = self.times;
        let (mut busy, mut strike, mut failed) = (None, Strike::default(), None);
        let (crowd, counted) = self.play(times.fill + times.busy + times.after, &mut |progress| {
            let now = progress.elapsed;
            let now_ms = now.as_millis() as u64;
            if strike.began_ms == 0 && now >= times.fill {
                match spin(self.site) {
                    Ok(group) => (busy, strike.began_ms) = (Some(group), now_ms),
                    Err(error) => (failed, strike.began_ms) = (Some(error), now_ms),
                }
            } else if busy.is_some() && now >= times.fill + times.busy {
                (busy, strike.ended_ms) = (None, now_ms);
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None => {
                let ended_by_server = counted["sessions"]["sessions_overload"].as_u64().unwrap_or(0);
                Ok(OverloadResult::of(crowd, strike, ended_by_server, in_time_ms))
            }
        }
    }
}

/// As many viewers as the core carries; twice as many; those again with a busy process beside them.
struct OverloadRound {
    carried: Crowd,
    admitted: Crowd,
    struck: OverloadResult,
}

impl OverloadRound {
    fn lateness_ratio(&self) -> f64 {
        self.admitted.figures.p99_ms / self.carried.figures.p99_ms
    }

    /// Without a refusal nothing was overloaded, so nothing is shown, unless the admitted viewers suffered.
    fn was_full(&self) -> bool {
        let Crowd { fates, figures, lost, .. } = &self.admitted;
        fates.refused > 0 || *lost > 0 || figures.without > 0 || self.lateness_ratio() > IN_TIME_RATIO
    }

    fn rows(&self, label: &str) -> Vec<Row> {
        let mut rows = self.admitted.rows(label);
        rows.extend(self.carried.rows(&format!("{label}: half of them, which the core carries")));
        rows.extend(self.struck.rows(&format!("{label}: a busy process on the server's core")));
        rows
    }
}

/// The targets, from all rounds.
fn judge(rounds: &Turns<OverloadRound>) -> Vec<Promise> {
    let mut promises = Vec::new();
    if rounds.of(0).iter().any(OverloadRound::was_full) {
        // The server did send the packets that the receiver itself dropped.
        let sum = |count: fn(&Crowd) -> u64| {
            rounds.sum(|round| if round.admitted.figures.spoiled { 0 } else { count(&round.admitted) })
        };
        let late = rounds.interval(0, OverloadRound::lateness_ratio);
        let refused = rounds.interval(0, |round| round.admitted.fates.refused as f64);
        promises.extend([
            Promise::at_most(
                "overload-lateness-ratio",
                late,
                IN_TIME_RATIO,
                "of as many as the core carries",
            ),
            none("overload-loss", sum(|crowd| crowd.lost), "packets"),
            none("overload-failed", sum(|crowd| crowd.figures.without), "sessions that failed or were ended"),
            Promise::at_least("overload-refused", refused, 1.0, "viewers with 453"),
        ]);
    }
    if rounds.of(0).iter().any(|round| round.struck.was_overloaded()) {
        let struck = |count: fn(&OverloadResult) -> u64| rounds.sum(|round| count(&round.struck));
        let recovery = rounds.interval(0, |round| round.struck.recovery_ratio());
        let again = rounds.interval(0, |round| round.struck.again_ratio());
        let kept_lost = struck(|struck| if struck.crowd.figures.spoiled { 0 } else { struck.kept_lost });
        promises.extend([
            Promise::at_most("overload-recovery", recovery, RECOVERY_RATIO, "of the busy process's time"),
            none(
                "overload-newest-first",
                struck(|struck| struck.out_of_order),
                "ended although a newer one was kept",
            ),
            none(
                "overload-told",
                struck(|struck| struck.ended_by_server.abs_diff(struck.crowd.fates.ended)),
                "ended without a BYE, or with one for another reason",
            ),
            none("overload-kept-loss", kept_lost, "packets"),
            Promise::at_least("overload-admitted-again", again, AGAIN_RATIO, "of those before"),
        ]);
    }
    promises
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
    /// The p99 that an interval in time keeps.
    in_time_ms: f64,
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
    fn of(crowd: Crowd, strike: Strike, ended_by_server: u64, in_time_ms: f64) -> Self {
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
            in_time_ms,
            recovery_s: recovery_s(&during, began_ms, in_time_ms),
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

    fn lasted_s(&self) -> f64 {
        self.strike.ended_ms.saturating_sub(self.strike.began_ms) as f64 / 1e3
    }

    fn recovery_ratio(&self) -> f64 {
        self.recovery_s / self.lasted_s()
    }

    fn again_ratio(&self) -> f64 {
        self.in_the_end as f64 / self.before.max(1) as f64
    }

    fn rows(&self, label: &str) -> Vec<Row> {
        let at = |what: &str| format!("{label}: {what}");
        let mut rows = self.crowd.rows(&at("the whole run"));
        rows.push(
            Row::new(at("while it ran"))
                .with("in time", self.in_time_ms, "ms")
                .with("viewers before", self.before as f64, "")
                .with("fewest", self.fewest as f64, "")
                .with("ended with BYE", self.crowd.fates.ended as f64, "")
                .with("ended, says the server", self.ended_by_server as f64, "")
                .with("in time again after", self.recovery_s, "s")
                .with("worst p99 of half a second", self.worst_p99_ms, "ms")
                .with("latest packet", self.latest_ms, "ms")
                .with("lost by those kept", self.kept_lost as f64, ""),
        );
        rows.push(
            Row::new(at("after it"))
                .with("it ran for", self.lasted_s(), "s")
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
fn recovery_s(during: &[LoadSample], began_ms: u64, in_time_ms: f64) -> f64 {
    let is_late = |sample: &&LoadSample| sample.lateness_p99_us as f64 / 1e3 > in_time_ms;
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

//! The cost of viewers that watch: players of HLS, and clients that read a file at its own rate.
//!
//! The same number of viewers watches from one server and then from the other, in turns, each time
//! with a server that has just been started: both use the same core, and its time is taken only
//! after the players have filled their buffers. Counted is all the time in which the core was not
//! idle, so the kernel's work for acknowledgements and timers is in it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::BenchSite;
use crate::capacity::trial::Service;
use crate::capacity::{Effort, Hunt, Scene};
use crate::frame::stats::{Spread, median, ratio_interval};
use crate::frame::{Interval, LEAST_ROUNDS, NoiseMeter, Options, Promise, Report, Rounds, Row, TargetBound};
use crate::peers::{self, OURSELVES};

/// The parts, the services of either server that they compare, and their targets.
pub(super) const PARTS: [(&str, &str, &str); 2] =
    [("players", "HLS", "http-players-cost"), ("paced", "HTTP progressive", "http-paced-cost")];
/// Core time of a bit from ours against one from nginx.
const COST_BOUND: f64 = 1.0;
/// Viewers at 8 Mb/s: half the capacity of a core, so both servers keep the limits.
const VIEWERS: u32 = 300;
/// How long they watch while the core is observed: a segment, so that each player fetches one.
const WINDOW: Duration = Duration::from_secs(6);

/// What one server needed in one turn.
struct ViewersTurn {
    /// Core time for each gigabit that viewers received.
    seconds_per_gb: f64,
    processes_s: f64,
    cores_s: f64,
    switches_per_s: f64,
    late_p99_ms: f64,
}

/// All parts that `wants` names.
pub(super) fn run(
    options: &Options,
    dir: &Path,
    wants: impl Fn(&str) -> bool,
    noise: &mut NoiseMeter,
    report: &mut Report,
) -> anyhow::Result<()> {
    if !PARTS.iter().any(|(part, ..)| wants(part)) {
        return Ok(());
    }
    if options.tiny {
        // Viewers have the whole of a tiny title in their buffers before they are looked at.
        report.rows.push(Row::new("viewers that watch: not tried in a tiny run"));
        return Ok(());
    }
    let count = VIEWERS;
    let effort = Effort { window: WINDOW, max_viewers: count, ..Effort::of(options) };
    let rate = super::rate(options);
    options.say(&format!("making a media file of {rate} to watch"));
    let files = MediaFiles::make(&dir.join("watched"), rate, effort.media_s(Duration::ZERO), 1)?;
    let site = BenchSite::new(options.offload.unwrap_or(false), 1, dir.join("viewers"))?;
    let scene = Scene::new(options, &site, &files, Duration::ZERO);
    let nginx = peers::ALL.iter().find(|peer| peer.name == "nginx").context("nginx")?;
    let (ours, theirs) = (OURSELVES.services(scene)?, nginx.services(scene)?);
    for (part, kind, target) in PARTS.into_iter().filter(|(part, ..)| wants(part)) {
        let services = [find(&ours, kind)?, find(&theirs, kind)?];
        let (turns, confidence) = rounds(options, &site, services, effort, noise)?;
        for (name, turns) in ["ours", "nginx"].into_iter().zip(&turns) {
            report.rows.push(row(&format!("{part}: {name}, {count} viewers"), turns));
        }
        let cost = cost(&turns, confidence);
        report.rows.push(
            Row::new(format!("{part}: ours / nginx, core time of a bit"))
                .with("ratio", cost.mid, "")
                .with("low end", cost.low, "")
                .with("high end", cost.high, "")
                .with("rounds", turns[0].len() as f64, ""),
        );
        report.promises.push(Promise::at_most(target, cost, COST_BOUND, ""));
    }
    Ok(())
}

fn find<'a>(services: &'a [Service<'a>], kind: &str) -> anyhow::Result<&'a Service<'a>> {
    services
        .iter()
        .find(|service| service.name.ends_with(&format!(", {kind}")))
        .context("a service over HTTP")
}

/// Turns of both, in an order that changes, until the verdict is clear.
fn rounds(
    options: &Options,
    site: &BenchSite,
    services: [&Service<'_>; 2],
    effort: Effort,
    noise: &mut NoiseMeter,
) -> anyhow::Result<([Vec<ViewersTurn>; 2], f64)> {
    let mut rounds = Rounds::at_least(options, LEAST_ROUNDS);
    let mut hunts = Vec::new();
    for service in services {
        let mut hunt = Hunt::new(options, site, service, effort)?;
        hunt.stop();
        hunts.push(hunt);
    }
    let mut turns = [Vec::new(), Vec::new()];
    while rounds.go_on(|confidence| cost(&turns, confidence).keeps(TargetBound::AtMost(COST_BOUND)).is_some())
    {
        noise.look();
        for at in [0, 1] {
            let at = (at + rounds.count()) % 2;
            turns[at].push(turn(&mut hunts[at], effort)?);
        }
    }
    Ok((turns, rounds.confidence()))
}

/// A server that has just been started, and its viewers.
fn turn(hunt: &mut Hunt<'_>, effort: Effort) -> anyhow::Result<ViewersTurn> {
    let trial = hunt.attempt(effort.max_viewers, effort.window, false)?;
    hunt.stop();
    let (figures, spent) =
        (&trial.figures, trial.spent.context("the viewers left before the core was observed")?);
    ensure!(
        figures.bits_per_s > 0.0,
        "nothing came: {}",
        trial.why.as_deref().unwrap_or("no reason is known")
    );
    Ok(ViewersTurn {
        seconds_per_gb: spent.cores_s / (figures.bits_per_s * spent.wall_s / 1e9),
        processes_s: spent.processes_s / spent.wall_s,
        cores_s: spent.cores_s / spent.wall_s,
        switches_per_s: spent.voluntary_switches as f64 / spent.wall_s,
        late_p99_ms: figures.p99_ms,
    })
}

/// Core time of a bit, ours over nginx's.
fn cost(turns: &[Vec<ViewersTurn>; 2], confidence: f64) -> Interval {
    let of = |turns: &[ViewersTurn]| turns.iter().map(|turn| turn.seconds_per_gb).collect::<Vec<f64>>();
    ratio_interval(&of(&turns[0]), &of(&turns[1]), confidence)
}

fn row(label: &str, turns: &[ViewersTurn]) -> Row {
    let of = |value: fn(&ViewersTurn) -> f64| turns.iter().map(value).collect::<Vec<f64>>();
    let spread = Spread::of(&of(|turn| turn.seconds_per_gb));
    Row::new(label)
        .with("core time of a gigabit", spread.p50 * 1e3, "ms")
        .with("p10", spread.p10 * 1e3, "")
        .with("p90", spread.p90 * 1e3, "")
        .with("core", median(&of(|turn| turn.cores_s)) * 100.0, "%")
        .with("processes", median(&of(|turn| turn.processes_s)) * 100.0, "%")
        .with("changes of thread", median(&of(|turn| turn.switches_per_s)), "1/s")
        .with("late p99", median(&of(|turn| turn.late_p99_ms)), "ms")
}

//! How many viewers one core carries within limits, found by search and found again.

use std::time::Duration;

use anyhow::{Context, bail};
use millrace_core::units::BitRate;
use millrace_load::Behaviour;

use crate::capacity::crowd::{Crowd, Offer, offer};
use crate::capacity::limits::{Limits, is_disturbing};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::search::TrialVerdict;
use crate::capacity::site::BenchSite;
use crate::capacity::trial::Service;
use crate::capacity::{Capacity, Effort, Hunt, Scene, Scratch, in_peace, rows};
use crate::frame::stats::median;
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row};
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "capacity",
    shows: "viewers that one core (or --cores) serves: loss at most 0.01 %, lateness p99 at most 20 ms (over TCP 100 ms), everything delivered; and how many of them admission lets in",
    not_for: "the speed of a network card: a veth pair runs the receiver's kernel path on the sender's core",
    options: &[
        "server-cmd",
        "url",
        "rate",
        "transport",
        "titles",
        "offload",
        "backend",
        "cores",
        "runs",
        "quick",
        "streams",
        "duration",
        "scratch",
    ],
    targets: &["capacity-repeat", "capacity-confirmed", "capacity-admitted", "capacity-admitted-kept"],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
    ],
    run,
};

/// Words of `--transport`, and how the services of our server are called.
const TRANSPORTS: [(&str, &str); 4] =
    [("udp", "RTP/UDP"), ("tcp", "RTP/TCP"), ("http", "HTTP progressive"), ("hls", "HLS")];
/// Viewers that admission lets in, of those that the search found.
const ADMITTED_BOUND: f64 = 0.95;
/// Viewers offered then, as a multiple of the number that the search found.
const OFFERED: f64 = 1.2;
/// How many of them arrive in a second: a crowd at the beginning of a title, a busy evening, a quiet one. Admission
/// measures the cost of a viewer while they arrive, so it has measured longest on a quiet evening.
const ARRIVALS_PER_S: [f64; 3] = [250.0, 25.0, 5.0];
/// Longest time in which they arrive: their titles have to last as long.
const LONGEST_ARRIVALS: Duration = Duration::from_secs(400);
/// Between the smallest and the largest of several runs.
const REPEAT_BOUND: f64 = 0.10;
/// Media time over which viewers begin.
const SPREAD: Duration = Duration::from_secs(15);

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("capacity");
    let mut noise = NoiseMeter::start();
    let rates = match options.rates.as_slice() {
        [] if options.tiny => vec![BitRate(2_000_000)],
        [] => vec![BitRate(8_000_000)],
        given => given.to_vec(),
    };
    let mut services = Vec::new();
    for rate in rates {
        services.extend(one_rate(options, rate, &mut report, &mut noise)?);
    }
    judge(&services, &mut report);
    report.noise = Some(noise.finish());
    Ok(report)
}

/// The judged figures of one service.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    /// max / min - 1 over its searches, if there were several.
    repeat: Option<f64>,
    /// Whether the run at 90 % kept the limits; `None` if the receiver was too slow, or nothing was found.
    is_confirmed: Option<bool>,
    /// With admission: viewers let in, of those found.
    admitted: Option<f64>,
    /// Whether these viewers got the quality that the limits demand.
    is_kept: Option<bool>,
}

fn judge(services: &[Judged], report: &mut Report) {
    if let Some(worst) = services.iter().filter_map(|service| service.repeat).reduce(f64::max) {
        let repeat = Promise::at_most("capacity-repeat", worst, REPEAT_BOUND, "");
        report.promises.push(repeat);
    }
    if let Some(least) = services.iter().filter_map(|service| service.admitted).reduce(f64::min) {
        let admitted =
            Promise::at_least("capacity-admitted", least, ADMITTED_BOUND, "of what the search found");
        report.promises.push(admitted);
    }
    let mut over_limits = |id, keeps: fn(&Judged) -> Option<bool>| {
        let keeps: Vec<bool> = services.iter().filter_map(keeps).collect();
        if !keeps.is_empty() {
            let over = keeps.iter().filter(|keeps| !**keeps).count();
            let over = Promise::at_most(id, over as f64, 0.0, "runs over the limits");
            report.promises.push(over);
        }
    };
    over_limits("capacity-confirmed", |service| service.is_confirmed);
    over_limits("capacity-admitted-kept", |service| service.is_kept);
}

/// All transports with titles of one rate.
fn one_rate(
    options: &Options,
    rate: BitRate,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<Vec<Judged>> {
    let scratch = Scratch::new(options, "capacity")?;
    let effort = Effort::of(options);
    let spread = if options.tiny { Duration::ZERO } else { SPREAD };
    let titles = options.titles.unwrap_or(1).max(1);
    options.say(&format!("making {titles} media files of {rate}"));
    let seconds = effort.media_s(spread) + longest_arrivals(options).as_secs();
    let files = MediaFiles::make(&scratch.0.join("media"), rate, seconds, titles)?;
    let offload = options.offload.unwrap_or(false);
    let cores = options.cores.unwrap_or(1);
    let site = BenchSite::new(offload, cores, scratch.0.join("site"))?;
    let backend = options.backend.as_deref();
    let scene = Scene { backend, ..Scene::new(options, &site, &files, spread) };
    let mut repeats = Vec::new();
    for service in services(options, scene)? {
        let label = format!(
            "{} at {rate}, {titles} {}, {cores} {}, segmentation offload {}",
            service.name,
            if titles == 1 { "title" } else { "titles" },
            if cores == 1 { "core" } else { "cores" },
            if offload { "on" } else { "off" }
        );
        repeats.push(one_service(options, scene, &service, effort, &label, report, noise)?);
    }
    Ok(repeats)
}

/// Returns the services to measure: ours, or the given one.
fn services<'a>(options: &'a Options, scene: Scene<'a>) -> anyhow::Result<Vec<Service<'a>>> {
    let transports: Vec<&str> = match options.transports.is_empty() {
        true => vec!["udp"],
        false => options.transports.iter().map(String::as_str).collect(),
    };
    let allowed = TRANSPORTS.map(|(word, _)| word);
    if let Some(unknown) = transports.iter().find(|t| !allowed.contains(t)) {
        bail!("--transport: got \"{unknown}\", allowed {}", allowed.join(", "));
    }
    match (&options.server_cmd, &options.url) {
        (Some(command), Some(url)) => {
            Ok(transports.iter().map(|t| peers::custom(scene, command, url, *t == "tcp")).collect())
        }
        (None, None) => {
            let wanted = |service: &Service<'_>| {
                TRANSPORTS
                    .iter()
                    .any(|(word, name)| transports.contains(word) && service.name.ends_with(name))
            };
            Ok(peers::OURSELVES.services(scene)?.into_iter().filter(wanted).collect())
        }
        _ => bail!("--server-cmd and --url belong together: a server and where its titles are"),
    }
}

fn one_service(
    options: &Options,
    scene: Scene<'_>,
    service: &Service<'_>,
    effort: Effort,
    label: &str,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<Judged> {
    let runs = options.runs.unwrap_or(options.pick(1, 2, 3)).max(1);
    let near = options.streams.and_then(|n| u32::try_from(n).ok());
    let (mut found, mut by_other) = (Vec::new(), Vec::new());
    let mut last: Option<Capacity> = None;
    let mut hunt = Hunt::new(options, scene.site, service, effort)?;
    let limits = Limits::of(service.transport);
    let other = limits.other();
    for run in 1..=runs {
        noise.look();
        hunt.begin_search(run - 1);
        let capacity = hunt.find(limits, near)?;
        options.say(&format!("{label}: run {run} of {runs}: {} viewers", capacity.found.passed));
        found.push(f64::from(capacity.found.passed));
        if !options.tiny {
            by_other.push(f64::from(hunt.find(other, near)?.found.passed));
        }
        last = Some(capacity);
    }
    let Some(last) = last else { return Ok(Judged::default()) };
    let min = found.iter().copied().fold(f64::INFINITY, f64::min);
    let max = found.iter().copied().fold(0.0, f64::max);
    let middle = median(&found);
    let of = |limits: &Limits| format!("{label}: viewers with p99 at most {} ms", limits.p99_ms);
    let mut row = Row::new(of(limits))
        .with("median", middle, "")
        .with("min", min, "")
        .with("max", max, "")
        .with("runs", runs as f64, "")
        .with("trials", hunt.trials() as f64, "");
    if !last.found.is_narrow {
        row = row.with("time ran out, failed at", f64::from(last.found.failed.unwrap_or(0)), "");
    }
    if last.found.is_spoiled {
        row = row.with("bounded by the receiver", 1.0, "");
    }
    report.rows.push(row);
    if !by_other.is_empty() {
        report.rows.push(Row::new(of(other)).with("median", median(&by_other), ""));
    }
    let repeat = (runs > 1 && min > 0.0).then(|| max / min - 1.0);
    let mut judged = Judged { repeat, ..Judged::default() };
    if middle >= 1.0 {
        let count = (middle * 0.9).ceil() as u32;
        judged.is_confirmed =
            confirm(&mut hunt, count, (effort, limits), &format!("{label}, at 90 %"), report)?;
    }
    if let Some(at) = &last.at {
        report.rows.extend(rows(&format!("{label}, at the limit"), at));
    }
    // Another server has its port then.
    drop(hunt);
    if middle >= 1.0 && options.server_cmd.is_none() {
        let crowds = with_admission(options, scene, service, middle, effort, label, report)?;
        judged.admitted = crowds.iter().map(|crowd| admitted(crowd, middle)).reduce(f64::min);
        judged.is_kept = crowds.iter().filter_map(|crowd| crowd.keeps(limits)).reduce(|a, b| a && b);
    }
    Ok(judged)
}

fn longest_arrivals(options: &Options) -> Duration {
    options.pick(Duration::from_secs(1), LONGEST_ARRIVALS / 5, LONGEST_ARRIVALS)
}

/// More viewers than were found, `per_s` of them in a second, or as many as it takes for all to come while the titles last.
fn offered(options: &Options, found: f64, per_s: f64, effort: Effort) -> Offer {
    let viewers = (found * OFFERED).ceil() as u32;
    Offer {
        viewers,
        per_s: per_s.max((f64::from(viewers) / longest_arrivals(options).as_secs_f64()).ceil()),
        hold: effort.window.max(Duration::from_secs(2)),
        behaviour: Behaviour::default(),
    }
}

/// Viewers let in, relative to those that the search found.
fn admitted(crowd: &Crowd, found: f64) -> f64 {
    f64::from(crowd.figures.viewers) / found
}

/// More viewers than were found come to our server with admission, at each rate of arrivals to a new server.
fn with_admission(
    options: &Options,
    scene: Scene<'_>,
    service: &Service<'_>,
    found: f64,
    effort: Effort,
    label: &str,
    report: &mut Report,
) -> anyhow::Result<Vec<Crowd>> {
    let mut crowds = Vec::new();
    for per_s in options.pick(&ARRIVALS_PER_S[..1], &ARRIVALS_PER_S[..2], &ARRIVALS_PER_S[..]) {
        let offered = offered(options, found, *per_s, effort);
        let per_s = offered.per_s;
        let label = format!("{label}, with admission, {OFFERED} times as many offered, {per_s} a second");
        let crowd = one_crowd(options, scene, service, &offered, &label)?;
        let mut rows = crowd.rows(&label);
        if let Some(row) = rows.first_mut() {
            *row = row.clone().with("admitted of those found", admitted(&crowd, found), "");
        }
        report.rows.extend(rows);
        crowds.push(crowd);
    }
    Ok(crowds)
}

fn one_crowd(
    options: &Options,
    scene: Scene<'_>,
    service: &Service<'_>,
    offered: &Offer,
    label: &str,
) -> anyhow::Result<Crowd> {
    let services = peers::OURSELVES.services(Scene { has_admission: true, ..scene })?;
    let guarded = services.into_iter().find(|other| other.name == service.name);
    let guarded = guarded.context("our server with admission")?;
    let measure = || -> anyhow::Result<Crowd> {
        options.go_on()?;
        options.say(&format!("{label}: {} viewers come", offered.viewers));
        let running = (guarded.start)(offered.viewers)?;
        let crowd = offer(scene.site, &guarded, &running, offered.clone(), &options.cancel, &mut |_| ())?;
        options.go_on()?;
        Ok(crowd)
    };
    let limits = Limits::of(service.transport);
    let is_disturbed =
        |crowd: &Crowd| crowd.keeps(limits) != Some(true) && is_disturbing(crowd.figures.stolen_ratio);
    in_peace(measure, is_disturbed)
}

/// Runs once more, a little below the number found: this run must keep the limits. Then runs once
/// with system calls counted, which slows the server: only their number is used.
fn confirm(
    hunt: &mut Hunt<'_>,
    count: u32,
    (effort, limits): (Effort, &Limits),
    label: &str,
    report: &mut Report,
) -> anyhow::Result<Option<bool>> {
    let mut trial = hunt.attempt_in_peace(count, effort.window.max(Duration::from_secs(2)), limits)?;
    let verdict = trial.figures.judge(limits);
    let window = effort.window.clamp(Duration::from_secs(2), Duration::from_secs(4));
    let counted = hunt.attempt(count, window, true)?;
    trial.syscalls_per_s = counted.syscalls_per_s;
    report.rows.extend(rows(label, &trial));
    let is_over = matches!(verdict, TrialVerdict::NarrowFail | TrialVerdict::ClearFail);
    if is_over {
        report.rows.push(Row::new(format!("{label}: over the limits: {}", trial.figures)));
    }
    if counted.syscalls_per_s.is_some() {
        let row = Row::new(format!("{label}, while perf counts system calls"));
        report.rows.push(row.with("lateness p99", counted.figures.p99_ms, "ms"));
    }
    Ok((verdict != TrialVerdict::Spoiled).then_some(!is_over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Noise, TargetState};

    fn states(services: &[Judged]) -> Vec<Option<TargetState>> {
        let mut report = Report::new("capacity");
        judge(services, &mut report);
        report.declare(BENCH.targets);
        report.noise = Some(Noise::noisy("the hypervisor took 3 % of the processors' time"));
        let of = |id| report.promises.iter().find(|p| p.id == id).map(|p| p.verdict);
        BENCH.targets.iter().map(|id| of(*id)).collect()
    }

    const GOOD: Judged =
        Judged { repeat: Some(0.05), is_confirmed: Some(true), admitted: Some(0.97), is_kept: Some(true) };

    #[test]
    fn runs_that_differ_and_a_run_over_the_limits_are_missed_on_a_noisy_machine_too() {
        assert_eq!(states(&[GOOD]), [Some(TargetState::Met); 4]);
        let bad = Judged {
            repeat: Some(0.3),
            is_confirmed: Some(false),
            admitted: Some(0.94),
            is_kept: Some(false),
        };
        assert_eq!(states(&[GOOD, bad]), [Some(TargetState::Missed); 4]);
        // One run, or a receiver that was too slow: no target can be judged.
        assert_eq!(states(&[Judged::default()]), [Some(TargetState::NotMeasured); 4]);
    }

    #[test]
    fn too_few_let_in_and_too_many_let_in_are_two_targets() {
        let [.., admitted, kept] = BENCH.targets else { panic!("{:?}", BENCH.targets) };
        assert_eq!([*admitted, *kept], ["capacity-admitted", "capacity-admitted-kept"]);
        let two = |admitted, is_kept| states(&[Judged { admitted, is_kept, ..GOOD }])[2..].to_vec();
        assert_eq!(two(Some(0.5), Some(true)), [Some(TargetState::Missed), Some(TargetState::Met)]);
        assert_eq!(two(Some(1.2), Some(false)), [Some(TargetState::Met), Some(TargetState::Missed)]);
    }
}

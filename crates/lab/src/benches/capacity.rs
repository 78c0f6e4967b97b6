//! How many viewers one core carries within limits, found by search and found again.

use std::time::Duration;

use anyhow::bail;
use millrace_client::play::TransportChoice;
use millrace_core::units::BitRate;

use crate::capacity::films::Films;
use crate::capacity::limits::Limits;
use crate::capacity::site::Site;
use crate::capacity::trial::Service;
use crate::capacity::{Capacity, Effort, Hunt, Scene, Scratch, rows};
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row};
use crate::peers;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "capacity",
    shows: "viewers that one core (or --cores) serves: loss at most 0.01 %, lateness p99 at most 20 ms, everything delivered",
    not_for: "the speed of a network card: a veth pair runs the receiver's kernel path on the sender's core",
    options: &[
        "server-cmd",
        "url",
        "rate",
        "transport",
        "titles",
        "offload",
        "cores",
        "runs",
        "quick",
        "streams",
        "duration",
        "scratch",
    ],
    targets: &["capacity-repeat"],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
    ],
    run,
};

/// Between the smallest and the largest of several runs.
const REPEAT_BOUND: f64 = 0.10;
/// Film over which viewers begin.
const SPREAD: Duration = Duration::from_secs(15);

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("capacity");
    let mut noise = NoiseMeter::start();
    let rates = match options.rates.as_slice() {
        [] if options.tiny => vec![BitRate(2_000_000)],
        [] => vec![BitRate(8_000_000)],
        given => given.to_vec(),
    };
    let mut worst_repeat: Option<f64> = None;
    for rate in rates {
        for repeat in one_rate(options, rate, &mut report, &mut noise)? {
            worst_repeat = Some(worst_repeat.map_or(repeat, |worst| worst.max(repeat)));
        }
    }
    if let Some(repeat) = worst_repeat {
        report.promises.push(Promise::at_most("capacity-repeat", repeat, REPEAT_BOUND, ""));
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

/// All transports with films of one rate; returns max / min - 1 over the runs of each.
fn one_rate(
    options: &Options,
    rate: BitRate,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<Vec<f64>> {
    let scratch = Scratch::new(options, "capacity")?;
    let effort = Effort::of(options);
    let spread = if options.tiny { Duration::ZERO } else { SPREAD };
    let titles = options.titles.unwrap_or(1).max(1);
    options.say(&format!("making {titles} films of {rate}"));
    let films = Films::make(&scratch.0.join("films"), rate, effort.film_s(spread), titles)?;
    let offload = options.offload.unwrap_or(false);
    let cores = options.cores.unwrap_or(1);
    let site = Site::new(offload, cores, scratch.0.join("site"))?;
    let scene = Scene { site: &site, films: &films, spread, program: &options.program };
    let mut repeats = Vec::new();
    for service in services(options, scene)? {
        let label = format!(
            "{} at {rate}, {titles} {}, {cores} {}, segmentation offload {}",
            service.name,
            if titles == 1 { "title" } else { "titles" },
            if cores == 1 { "core" } else { "cores" },
            if offload { "on" } else { "off" }
        );
        repeats.extend(one_service(options, &site, &service, effort, &label, report, noise)?);
    }
    Ok(repeats)
}

/// What is measured: ours, or what was given.
fn services<'a>(options: &'a Options, scene: Scene<'a>) -> anyhow::Result<Vec<Service<'a>>> {
    let transports: Vec<&str> = match options.transports.is_empty() {
        true => vec!["udp"],
        false => options.transports.iter().map(String::as_str).collect(),
    };
    if let Some(unknown) = transports.iter().find(|t| !["udp", "tcp"].contains(t)) {
        bail!("--transport: got \"{unknown}\", allowed udp and tcp");
    }
    match (&options.server_cmd, &options.url) {
        (Some(command), Some(url)) => {
            Ok(transports.iter().map(|t| peers::custom(scene, command, url, *t == "tcp")).collect())
        }
        (None, None) => {
            let wanted = |service: &Service<'_>| {
                let is_tcp = service.transport == TransportChoice::Tcp;
                transports.contains(&if is_tcp { "tcp" } else { "udp" })
            };
            Ok(peers::OURSELVES.services(scene)?.into_iter().filter(wanted).collect())
        }
        _ => bail!("--server-cmd and --url belong together: a server and where its films are"),
    }
}

fn one_service(
    options: &Options,
    site: &Site,
    service: &Service<'_>,
    effort: Effort,
    label: &str,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<Option<f64>> {
    let runs = options.runs.unwrap_or(options.pick(1, 2, 3)).max(1);
    let mut near = options.streams.and_then(|n| u32::try_from(n).ok());
    let mut found: Vec<f64> = Vec::new();
    let mut last: Option<Capacity> = None;
    let mut hunt = Hunt::new(options, site, service, effort)?;
    for run in 1..=runs {
        noise.look();
        let capacity = hunt.find(&Limits::STRICT, near)?;
        options.say(&format!("{label}: run {run} of {runs}: {} viewers", capacity.found.passed));
        found.push(f64::from(capacity.found.passed));
        near = Some(capacity.found.passed.max(1));
        last = Some(capacity);
    }
    let Some(last) = last else { return Ok(None) };
    let min = found.iter().copied().fold(f64::INFINITY, f64::min);
    let max = found.iter().copied().fold(0.0, f64::max);
    let middle = crate::frame::stats::median(&found);
    let mut row = Row::new(format!("{label}: viewers"))
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
    noise.repeated("the capacity", &found);
    // What it takes: once more at that number, with system calls counted.
    if middle >= 1.0 {
        let window = effort.window.max(Duration::from_secs(2)).min(Duration::from_secs(4));
        let trial = hunt.attempt((middle * 0.9).ceil() as u32, window, true)?;
        report.rows.extend(rows(&format!("{label}, at 90 %"), &trial));
    }
    if let Some(at) = &last.at {
        report.rows.extend(rows(&format!("{label}, at the limit"), at));
    }
    Ok((runs > 1 && min > 0.0).then(|| max / min - 1.0))
}

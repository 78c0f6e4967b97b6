//! The same search on everything that is installed here, and on ourselves: same titles, same limits, same receiver.

use std::time::Duration;

use millrace_client::play::TransportChoice;
use millrace_core::units::BitRate;

use crate::capacity::limits::Limits;
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::BenchSite;
use crate::capacity::trial::{Service, Trial};
use crate::capacity::{Effort, Hunt, Scene, Scratch, rows};
use crate::frame::stats::{median, median_interval};
use crate::frame::{
    Axis, Bench, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row, Series,
};
use crate::peers::{self, Peer};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "peers",
    shows: "viewers that one core serves with us, with other servers and with senders that anybody could write",
    not_for: "absolute figures: the machine, the veth pair and the receiver are the same for all, so read the ratios",
    options: &[
        "peers",
        "only",
        "rate",
        "transport",
        "titles",
        "offload",
        "backend",
        "runs",
        "quick",
        "duration",
        "scratch",
    ],
    targets: &["peers-ratio", "gso-cpu-ratio", "peers-hls-ratio"],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
    ],
    run,
};

/// Ours against the best of the others.
const RATIO_BOUND: f64 = 3.0;
/// Viewers by HLS, ours against nginx's.
const HLS_RATIO_BOUND: f64 = 1.0;
/// How the names of services over HTTP end.
const HTTP_KINDS: [&str; 2] = ["HLS", "HTTP progressive"];
/// Processor time a packet, ours against the kernel's own bound.
const CPU_RATIO_BOUND: f64 = 1.25;
/// Media time over which viewers begin.
const SPREAD: Duration = Duration::from_secs(10);
/// Rounds of the comparison of processor times.
const CPU_ROUNDS: usize = 6;
/// Part of our capacity at which they are compared.
const CPU_LOAD: f64 = 0.6;

/// Services of a tiny run.
const TINY_SERVICES: usize = 6;

/// Lines of the report, sorted by kind: each kind is a table.
#[derive(Default)]
struct Lines {
    capacities: Vec<Row>,
    got: Vec<Row>,
    took: Vec<Row>,
    without: Vec<Row>,
}

/// The known results of one service.
struct Standing {
    name: String,
    strict: f64,
    patient: f64,
    is_udp: bool,
    is_ours: bool,
    is_reference: bool,
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("peers");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "peers")?;
    let mut effort = Effort::of(options);
    // Many searches: each may take a little less time than one that is alone.
    effort.budget = Duration::from_secs(options.pick(1, 20, 80));
    let default_rate = options.pick(2_000_000, 8_000_000, 8_000_000);
    let rate = options.rates.first().copied().unwrap_or(BitRate(default_rate));
    let spread = if options.tiny { Duration::ZERO } else { SPREAD };
    let titles = options.titles.unwrap_or(1).max(1);
    options.say(&format!("making {titles} media files of {rate}"));
    let files = MediaFiles::make(&scratch.0.join("media"), rate, effort.media_s(spread), titles)?;
    let site = BenchSite::new(options.offload.unwrap_or(false), 1, scratch.0.join("site"))?;
    let scene = Scene { backend: options.backend.as_deref(), ..Scene::new(options, &site, &files, spread) };
    let (mut standings, mut lines) = (Vec::new(), Lines::default());
    for peer in std::iter::once(&peers::OURSELVES).chain(peers::ALL) {
        let is_wanted = options.peers.is_empty() || options.peers.iter().any(|name| name == peer.name);
        if !is_wanted && peer.name != peers::OURSELVES.name {
            continue;
        }
        if options.tiny && standings.len() >= TINY_SERVICES {
            lines.without.push(Row::new(format!("{}: not tried in a tiny run", peer.name)));
            continue;
        }
        noise.look();
        one_peer(options, scene, peer, effort, &mut lines, &mut standings)?;
    }
    report.rows = [lines.capacities, lines.got, lines.took, lines.without].concat();
    compare(&standings, &mut report);
    let ours = standings.iter().find(|s| s.is_ours && s.is_udp).map_or(0.0, |s| s.strict.max(s.patient));
    // A word of a name leaves nothing to compare with.
    if options.only.is_empty()
        && let Err(error) = cpu_ratio(options, scene, ours, &mut report)
    {
        options.go_on()?;
        report.rows.push(Row::new(format!("processor time a packet: could not be measured: {error:#}")));
    }
    report.plots.push(plot(&standings));
    report.noise = Some(noise.finish());
    Ok(report)
}

/// Both capacities of every service of a peer. A peer that does not work is a line, not an end.
fn one_peer(
    options: &Options,
    scene: Scene<'_>,
    peer: &Peer,
    effort: Effort,
    lines: &mut Lines,
    standings: &mut Vec<Standing>,
) -> anyhow::Result<()> {
    if let Some(missing) = peer.missing() {
        lines.without.push(Row::new(format!("{}: {missing}", peer.name)));
        return Ok(());
    }
    let services = match peer.services(scene) {
        Ok(services) => services,
        Err(error) => {
            lines.without.push(Row::new(format!("{}: does not work here: {error:#}", peer.name)));
            return Ok(());
        }
    };
    for service in services.iter().take(options.pick(1, usize::MAX, usize::MAX)) {
        let is_udp = service.transport != TransportChoice::Tcp;
        let wanted = options.transports.is_empty()
            || options.transports.iter().any(|t| (t == "udp" && is_udp) || (t == "tcp" && !is_udp));
        if !wanted || !is_named(&service.name, &options.only) {
            continue;
        }
        options.go_on()?;
        match both(options, scene, service, effort, lines) {
            Ok((strict, patient)) => standings.push(Standing {
                name: service.name.clone(),
                strict,
                patient,
                is_udp,
                is_ours: peer.name == peers::OURSELVES.name,
                is_reference: peer.is_reference(),
            }),
            Err(error) => {
                options.go_on()?;
                lines.without.push(Row::new(format!("{}: does not work here: {error:#}", service.name)));
            }
        }
    }
    Ok(())
}

/// Whether `--only` has a word of this service's name: `hls`, `rtp/tcp`.
fn is_named(service: &str, only: &[String]) -> bool {
    let service = service.to_lowercase();
    only.is_empty() || only.iter().any(|word| service.contains(&word.to_lowercase()))
}

fn both(
    options: &Options,
    scene: Scene<'_>,
    service: &Service<'_>,
    effort: Effort,
    lines: &mut Lines,
) -> anyhow::Result<(f64, f64)> {
    let mut hunt = Hunt::new(options, scene.site, service, effort)?;
    let strict = hunt.find(&Limits::STRICT, None)?;
    let patient = if options.tiny { strict.clone() } else { hunt.find(&Limits::PATIENT, None)? };
    let viewers = |found: crate::capacity::search::SearchResult| f64::from(found.passed);
    // Who keeps the strict limits keeps the others.
    let (a, b) = (viewers(strict.found), viewers(patient.found).max(viewers(strict.found)));
    let is_narrow = strict.found.is_narrow && patient.found.is_narrow;
    let is_spoiled = strict.found.is_spoiled || patient.found.is_spoiled;
    lines.capacities.push(
        Row::new(service.name.clone())
            .with("viewers (p99 <= 20 ms)", a, "")
            .with("viewers (p99 <= 100 ms)", b, "")
            .with("trials", hunt.trials() as f64, "")
            .with("time ran out", f64::from(u8::from(!is_narrow)), "")
            .with("receiver too slow", f64::from(u8::from(is_spoiled)), ""),
    );
    // A service that passed with no number of viewers is shown as it was at its best.
    let mut rows = patient.at.or(strict.at).or(hunt.smallest()).map_or(vec![], |at| rows(&service.name, &at));
    lines.took.extend(rows.split_off(rows.len().min(1)));
    lines.got.extend(rows);
    Ok((a, b))
}

/// Ours against the best other server over RTP/UDP. The reference senders are no servers: they are shown, not counted.
fn compare(standings: &[Standing], report: &mut Report) {
    for is_udp in [true, false] {
        let label = if is_udp { "RTP/UDP" } else { "TCP" };
        // Ours by RTP, which is listed first.
        let mine = standings.iter().find(|s| s.is_ours && s.is_udp == is_udp);
        let others = standings.iter().filter(|s| !s.is_ours && !s.is_reference && s.is_udp == is_udp);
        let best = others.max_by(|a, b| a.patient.total_cmp(&b.patient));
        let (Some(mine), Some(best)) = (mine, best) else { continue };
        if best.patient <= 0.0 {
            continue;
        }
        // The others get the looser limit, we the stricter one, but over TCP: see [`Limits::PATIENT`].
        let (ours, limit) = if is_udp { (mine.strict, "20 ms") } else { (mine.patient, "100 ms") };
        let ratio = ours / best.patient;
        report.rows.push(
            Row::new(format!("ours ({limit}) / {} (100 ms), {label}", best.name)).with("ratio", ratio, ""),
        );
        if is_udp {
            report.promises.push(Promise::at_least("peers-ratio", ratio, RATIO_BOUND, ""));
        }
    }
    for kind in HTTP_KINDS {
        compare_http(standings, kind, report);
    }
}

/// Ours over HTTP against nginx, in one way of it, under the same limits.
fn compare_http(standings: &[Standing], kind: &str, report: &mut Report) {
    let of = |server: &str| {
        let name = format!("{server}, {kind}");
        standings.iter().find(|s| s.name == name && s.patient > 0.0).map(|s| s.patient)
    };
    let (Some(ours), Some(nginx)) = (of("millrace"), of("nginx")) else { return };
    let ratio = ours / nginx;
    report.rows.push(Row::new(format!("ours / nginx (both 100 ms), {kind}")).with("ratio", ratio, ""));
    if kind == "HLS" {
        report.promises.push(Promise::at_least("peers-hls-ratio", ratio, HLS_RATIO_BOUND, ""));
    }
}

/// Processor time a packet at the same number of viewers, ours and the ring's in turns.
fn cpu_ratio(options: &Options, scene: Scene<'_>, ours: f64, report: &mut Report) -> anyhow::Result<()> {
    let count = ((ours * CPU_LOAD) as u32).max(1);
    let window = Duration::from_secs_f64(options.pick(1.0, 3.0, 4.0));
    let effort = Effort { max_viewers: count, ..Effort::of(options) };
    let udp = |peer: &Peer| -> anyhow::Result<Option<Service<'_>>> {
        // The last one of the ring has bursts about as long as ours can be.
        Ok(peer.services(scene)?.into_iter().rfind(|s| s.transport != TransportChoice::Tcp))
    };
    let ring = peers::ALL.iter().find(|peer| peer.name == "reference-ring");
    let (Some(mine), Some(ring)) = (udp(&peers::OURSELVES)?, ring.map(udp).transpose()?.flatten()) else {
        return Ok(());
    };
    let per_packet = |trial: &Trial| {
        let spent = trial.spent?;
        let packets = trial.figures.packets_per_s * spent.wall_s;
        (packets > 0.0).then(|| spent.processes_s * 1e9 / packets)
    };
    let mut mine = Hunt::new(options, scene.site, &mine, effort)?;
    let mut ring = Hunt::new(options, scene.site, &ring, effort)?;
    let (mut ratios, mut ours_ns, mut ring_ns) = (vec![], vec![], vec![]);
    for _ in 0..options.pick(1, 3, CPU_ROUNDS) {
        let a = per_packet(&mine.attempt(count, window, false)?);
        mine.stop();
        let b = per_packet(&ring.attempt(count, window, false)?);
        if let (Some(a), Some(b)) = (a, b) {
            ratios.push(a / b);
            ours_ns.push(a);
            ring_ns.push(b);
        }
    }
    if ratios.is_empty() {
        report.rows.push(Row::new("processor time a packet: could not be measured"));
        return Ok(());
    }
    report.rows.push(
        Row::new("processor time a packet, at the same number of viewers")
            .with("viewers", f64::from(count), "")
            .with("ours", median(&ours_ns), "ns")
            .with("GSO ring", median(&ring_ns), "ns")
            .with("rounds", ratios.len() as f64, ""),
    );
    report.promises.push(Promise::at_most("gso-cpu-ratio", median_interval(&ratios), CPU_RATIO_BOUND, ""));
    Ok(())
}

fn plot(standings: &[Standing]) -> Plot {
    let series = |name: &str, value: fn(&Standing) -> f64| Series {
        name: name.to_owned(),
        points: standings.iter().map(|s| Point::bar(s.name.clone(), value(s))).collect(),
    };
    Plot {
        title: "Viewers of one core".to_owned(),
        x: Axis::default(),
        y: Axis { label: "viewers".to_owned(), ..Axis::default() },
        series: vec![series("p99 <= 20 ms", |s| s.strict), series("p99 <= 100 ms", |s| s.patient)],
        kind: PlotKind::Bars,
    }
}

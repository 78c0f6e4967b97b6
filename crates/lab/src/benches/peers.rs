//! The same search on everything that is installed here, and on ourselves: same titles, same limits, same receiver.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use millrace_client::play::TransportChoice;
use millrace_core::units::BitRate;

use crate::capacity::limits::Limits;
use crate::capacity::media_files::MediaFiles;
use crate::capacity::site::BenchSite;
use crate::capacity::trial::{Service, Trial};
use crate::capacity::{Effort, Hunt, Scene, Scratch, rows};
use crate::frame::{
    Axis, Bench, Interval, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row, Series,
    Turns,
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

/// Core time of a bit by RTP/UDP, the best of the others against ours.
const RATIO_BOUND: f64 = 3.0;
/// The same by HLS, nginx against ours.
const HLS_RATIO_BOUND: f64 = 1.0;
/// How the names of services over HTTP end.
const HTTP_KINDS: [&str; 2] = ["HLS", "HTTP progressive"];
/// Processor time a packet, ours against the kernel's own bound.
const CPU_RATIO_BOUND: f64 = 1.25;
/// How the reference with segmentation offload is called.
const RING: &str = "GSO ring";
/// Media time over which viewers begin.
const SPREAD: Duration = Duration::from_secs(10);
/// Part of its capacity at which a service is compared with others.
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
    show_ratios(&standings, &mut report);
    for pair in pairs(&standings) {
        if let Err(error) = pair.compare(options, scene, &mut noise, &mut report) {
            options.go_on()?;
            report.rows.push(Row::new(format!("{}: could not be measured: {error:#}", pair.target)));
        }
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

/// The best other server over one transport. The reference senders are no servers: they are shown, not counted.
fn best_other(standings: &[Standing], is_udp: bool) -> Option<&Standing> {
    let others = standings.iter().filter(|s| !s.is_ours && !s.is_reference && s.is_udp == is_udp);
    others.filter(|s| s.patient > 0.0).max_by(|a, b| a.patient.total_cmp(&b.patient))
}

/// Ours by RTP, which is listed first.
fn ours(standings: &[Standing], is_udp: bool) -> Option<&Standing> {
    standings.iter().find(|s| s.is_ours && s.is_udp == is_udp)
}

fn over_http<'a>(standings: &'a [Standing], server: &str, kind: &str) -> Option<&'a Standing> {
    let name = format!("{server}, {kind}");
    standings.iter().find(|s| s.name == name && s.patient > 0.0)
}

/// How many viewers ours carries for one of the best other. Of one search each: for information.
fn show_ratios(standings: &[Standing], report: &mut Report) {
    for is_udp in [true, false] {
        let label = if is_udp { "RTP/UDP" } else { "TCP" };
        let (Some(mine), Some(best)) = (ours(standings, is_udp), best_other(standings, is_udp)) else {
            continue;
        };
        // The others get the looser limit, we the stricter one, but over TCP: see [`Limits::PATIENT`].
        let (carried, limit) = if is_udp { (mine.strict, "20 ms") } else { (mine.patient, "100 ms") };
        let label = format!("ours ({limit}) / {} (100 ms), {label}", best.name);
        report.rows.push(Row::new(label).with("ratio", carried / best.patient, ""));
    }
    for kind in HTTP_KINDS {
        let of = |server| over_http(standings, server, kind);
        if let (Some(ours), Some(nginx)) = (of("millrace"), of("nginx")) {
            let row = Row::new(format!("ours / nginx (both 100 ms), {kind}"));
            report.rows.push(row.with("ratio", ours.patient / nginx.patient, ""));
        }
    }
}

/// Two services that take turns, each with its viewers.
struct Pair {
    target: &'static str,
    /// Another service, and ours: their names, and the numbers of viewers.
    sides: [(String, u32); 2],
}

/// The services that targets compare.
fn pairs(standings: &[Standing]) -> Vec<Pair> {
    let load = |viewers: f64| ((viewers * CPU_LOAD) as u32).max(1);
    let side = |standing: &Standing, viewers: f64| (standing.name.clone(), load(viewers));
    let mut pairs = Vec::new();
    if let Some(mine) = ours(standings, true).filter(|mine| mine.patient > 0.0) {
        if let Some(best) = best_other(standings, true) {
            let sides = [side(best, best.patient), side(mine, mine.strict)];
            pairs.push(Pair { target: "peers-ratio", sides });
        }
        // The last one of the ring has bursts about as long as ours can be.
        let ring = standings.iter().rfind(|s| s.is_udp && s.name.contains(RING));
        if let Some(ring) = ring {
            let viewers = mine.strict.max(mine.patient);
            pairs.push(Pair { target: "gso-cpu-ratio", sides: [side(ring, viewers), side(mine, viewers)] });
        }
    }
    let of = |server| over_http(standings, server, "HLS");
    if let (Some(nginx), Some(mine)) = (of("nginx"), of("millrace")) {
        let sides = [side(nginx, nginx.patient), side(mine, mine.patient)];
        pairs.push(Pair { target: "peers-hls-ratio", sides });
    }
    pairs
}

/// Times of a service in one turn.
struct PairTurn {
    /// Core time for each gigabit that viewers received, in milliseconds.
    core_ms: f64,
    /// Processor time of its processes for each packet, in nanoseconds.
    packet_ns: f64,
}

impl PairTurn {
    fn of(trial: &Trial) -> anyhow::Result<Self> {
        let spent = trial.spent.context("the viewers left before the core was observed")?;
        let figures = &trial.figures;
        ensure!(
            figures.bits_per_s > 0.0,
            "nothing came: {}",
            trial.why.as_deref().unwrap_or("no reason is known")
        );
        Ok(Self {
            core_ms: spent.cores_s * 1e3 / (figures.bits_per_s * spent.wall_s / 1e9),
            packet_ns: spent.processes_s * 1e9 / (figures.packets_per_s * spent.wall_s),
        })
    }
}

impl Pair {
    /// The target, from the turns of the other and of ours.
    fn promise(&self, turns: &Turns<PairTurn>) -> Promise {
        let core = || turns.ratio(0, 1, |turn| turn.core_ms);
        let at_least =
            |ratio: Interval, bound| Promise::at_least(self.target, ratio, bound, "of our core time");
        match self.target {
            "peers-ratio" => at_least(core(), RATIO_BOUND),
            "peers-hls-ratio" => at_least(core(), HLS_RATIO_BOUND),
            target => Promise::at_most(target, turns.ratio(1, 0, |turn| turn.packet_ns), CPU_RATIO_BOUND, ""),
        }
    }

    fn compare(
        &self,
        options: &Options,
        scene: Scene<'_>,
        noise: &mut NoiseMeter,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let services = self.sides.each_ref().map(|(name, _)| service(scene, name));
        let [Some(other), Some(ours)] = services else { bail!("a service is missing") };
        let effort = Effort::of(options);
        let mut hunts =
            [Hunt::new(options, scene.site, &other, effort)?, Hunt::new(options, scene.site, &ours, effort)?];
        hunts.iter_mut().for_each(Hunt::stop);
        let names =
            self.sides.each_ref().map(|(name, count)| format!("{}: {name}, {count} viewers", self.target));
        let turn = |at: usize, _| {
            let trial = hunts[at].attempt(self.sides[at].1, effort.window, false)?;
            hunts[at].stop();
            PairTurn::of(&trial)
        };
        let turns = Turns::take(options, noise, &names, turn, |turns| vec![self.promise(turns)])?;
        for (at, name) in names.into_iter().enumerate() {
            report.rows.push(
                Row::new(name)
                    .with("core time of a gigabit", turns.median(at, |turn| turn.core_ms), "ms")
                    .with("processes, for a packet", turns.median(at, |turn| turn.packet_ns), "ns")
                    .with("rounds", turns.of(at).len() as f64, ""),
            );
        }
        report.promises.push(self.promise(&turns));
        Ok(())
    }
}

/// The service with this name.
fn service<'a>(scene: Scene<'a>, name: &str) -> Option<Service<'a>> {
    let all = std::iter::once(&peers::OURSELVES).chain(peers::ALL);
    all.filter(|peer| peer.missing().is_none())
        .filter_map(|peer| peer.services(scene).ok())
        .flatten()
        .find(|service| service.name == name)
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

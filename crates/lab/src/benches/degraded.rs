//! Viewers of a volume that loses disks: the packets they miss, and the lateness around the event.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::MediaTicks;
use millrace_load::{Arrivals, LoadOptions, LoadReport, load};

use crate::capacity::Scratch;
use crate::capacity::crowd::worst_p99_ms;
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
use crate::media;
use crate::netns::{SERVER_IP, TwoHosts};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "degraded",
    shows: "200 viewers while members of the volume die, fail or hang: packets missing at the receivers, lateness around it",
    not_for: "the speed of disks: the members are directories of one disk, and the faults are injected where it is read",
    options: &["streams", "duration"],
    targets: &[
        "degraded-0-missing",
        "degraded-0-failed",
        "degraded-0-restarts",
        "degraded-0-too-few-packets",
        "degraded-0-stalled",
        "degraded-0-lateness-ratio",
        "degraded-1-missing",
        "degraded-1-failed",
        "degraded-1-restarts",
        "degraded-1-too-few-packets",
        "degraded-1-stalled",
        "degraded-1-lateness-ratio",
        "degraded-2-missing",
        "degraded-2-failed",
        "degraded-2-restarts",
        "degraded-2-too-few-packets",
        "degraded-2-stalled",
        "degraded-2-lateness-ratio",
        "degraded-3-missing",
        "degraded-3-failed",
        "degraded-3-restarts",
        "degraded-3-too-few-packets",
        "degraded-3-stalled",
        "degraded-3-lateness-ratio",
        "degraded-4-missing",
        "degraded-4-failed",
        "degraded-4-restarts",
        "degraded-4-too-few-packets",
        "degraded-4-stalled",
        "degraded-4-lateness-ratio",
    ],
    needs: &[
        Need::Root,
        Need::Program("ip", "apt-get install iproute2"),
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
    ],
    run,
};

const RATE_KBPS: u64 = 2_000;
/// Titles, each watched at positions so distant from each other that the cache holds the viewers'
/// current extents and hardly more.
const TITLES: usize = 6;
const SPREAD_S: u64 = 25;
const TS_PACKET_BYTES: usize = 188;
/// Packets that each viewer must have received per second in which all of them played, in
/// thousandths of the title's rate: the missing part is the time to the first packet and from the
/// last.
const LEAST_PERMILLE: u64 = 970;
/// The worst p99 of half a second behind the event, relative to as much time before it.
const LATENESS_RATIO: f64 = 10.0;

/// What happens to the members.
struct Case {
    name: &'static str,
    members: usize,
    parity: usize,
    /// Lines of the server's `--inject` file: "" for none.
    orders: &'static str,
    /// Members whose directory is renamed.
    renamed: &'static [usize],
}

const CASES: &[Case] = &[
    Case { name: "5 members, all well", members: 5, parity: 1, orders: "", renamed: &[] },
    Case { name: "1 of 5: reads fail", members: 5, parity: 1, orders: "member 2 eio\n", renamed: &[] },
    Case { name: "1 of 5: directory gone", members: 5, parity: 1, orders: "member 2 eio\n", renamed: &[2] },
    Case { name: "1 of 5: reads hang", members: 5, parity: 1, orders: "member 2 hang\n", renamed: &[] },
    Case {
        name: "2 of 6: one fails, one hangs",
        members: 6,
        parity: 2,
        orders: "member 1 eio\nmember 4 hang\n",
        renamed: &[],
    },
];

fn run(options: &Options) -> anyhow::Result<Report> {
    let streams = options.streams.unwrap_or(options.pick(10, 100, 200));
    let secs = options.duration_s.unwrap_or(options.pick(4, 6, 20));
    let scratch = Scratch::new(options, "degraded")?;
    let ramp_s = (streams as u64).div_ceil(100);
    let file = scratch.0.join("media.ts");
    options.say("making a media file");
    media::make_cbr_ts(&file, ramp_s + secs + SPREAD_S + 15, RATE_KBPS)?;
    let mut report = Report::new("degraded");
    let mut meter = NoiseMeter::start();
    let cases = if options.tiny { &CASES[3..4] } else { CASES };
    for (number, case) in cases.iter().enumerate() {
        // A volume that has lost a member does not get it back: each round has a volume of its own.
        let turn = |_, round: usize| -> anyhow::Result<DegradedRun> {
            let dir = scratch.0.join(format!("case{number}-{round}"));
            let site = VolumeServer::new(options, &dir, case, &file)?;
            let run = site.play(options, case, streams, ramp_s, secs)?;
            drop(site);
            std::fs::remove_dir_all(&dir).with_context(|| format!("{}: cannot be removed", dir.display()))?;
            Ok(run)
        };
        let judge = |runs: &Turns<DegradedRun>| judge(number, runs);
        let runs = Turns::take(options, &mut meter, &[case.name], turn, judge)?;
        report.rows.push(row(case, &runs));
        let failures = runs.of(0).iter().flat_map(|run| &run.seen.failures);
        report.rows.extend(failures.map(|(why, n)| Row::new(format!("{}: {n} failed: {why}", case.name))));
        report.promises.extend(judge(&runs));
    }
    report.noise = Some(meter.finish());
    Ok(report)
}

/// A volume, and a server for it on a host of its own.
struct VolumeServer {
    // The server ends before its host.
    server: Child,
    hosts: TwoHosts,
    url: String,
    members: Vec<PathBuf>,
    orders: PathBuf,
}

impl Drop for VolumeServer {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn command(options: &Options, args: &[&str], paths: &[&Path]) -> anyhow::Result<()> {
    let output = Command::new(&options.program).args(args).args(paths).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {}", args.join(" "), error.trim());
    Ok(())
}

impl VolumeServer {
    fn new(options: &Options, dir: &Path, case: &Case, file: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        let members: Vec<_> = (0..case.members).map(|number| dir.join(format!("disk{number}"))).collect();
        let all: Vec<&Path> = members.iter().map(PathBuf::as_path).collect();
        command(options, &["volume", "create", "--parity", &case.parity.to_string()], &all)?;
        for number in 0..TITLES {
            let copy = dir.join(format!("media-{number}.ts"));
            // Other bytes: the same file is no second title.
            let bytes = std::fs::read(file)?;
            std::fs::write(&copy, &bytes[..bytes.len() - number * TS_PACKET_BYTES])?;
            command(options, &["add", "--quiet", "--store"], &[&members[0], &copy])?;
        }
        let orders = dir.join("orders.txt");
        std::fs::write(&orders, "")?;
        let hosts = TwoHosts::new(false)?;
        let mut serve = hosts.on_server(&options.program);
        serve.args([
            "serve",
            "--quiet",
            "--listen",
            &format!("{SERVER_IP}:8554"),
            "--cpu",
            "0",
            "--admission",
            "off",
        ]);
        serve.args([
            "--cache",
            "64MiB",
            "--max-connections-per-address",
            "20000",
            "--share-per-address",
            "100%",
            "--inject",
        ]);
        serve.arg(&orders).arg("--store").arg(&members[0]);
        let mut server = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let out = server.stdout.take().context("the server's output")?;
        let mut lines = BufReader::new(out).lines();
        let url = lines.find_map(|line| line.ok()?.strip_prefix("ready ").map(str::to_owned));
        // The pipe must be read on, or the server's next line would block it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let site = Self { server, hosts, url: url.clone().unwrap_or_default(), members, orders };
        url.context("the server ended before it was ready")?;
        Ok(site)
    }

    /// Lets viewers arrive; in the middle of the time that all of them watch, the members fail.
    fn play(
        &self,
        options: &Options,
        case: &Case,
        streams: usize,
        ramp_s: u64,
        secs: u64,
    ) -> anyhow::Result<DegradedRun> {
        let urls = (0..TITLES).map(|number| format!("{}media-{number}", self.url)).collect();
        let mut load_options = LoadOptions::new(urls, u32::try_from(streams)?);
        load_options.arrivals = Arrivals::Ramp(Duration::from_secs(ramp_s));
        load_options.duration = Duration::from_secs(secs);
        load_options.start_spread = MediaTicks(90_000 * SPREAD_S);
        load_options.interval = Duration::from_millis(500);
        let (all_there, half) = (Duration::from_secs(ramp_s), Duration::from_secs(secs) / 2);
        let cancel = Arc::clone(&options.cancel);
        std::thread::scope(|scope| {
            let event = scope.spawn(move || {
                std::thread::sleep(all_there + half);
                self.strike(case)
            });
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let seen = self.hosts.on_client(move || {
                if cores > 1 {
                    let mut set = rustix::thread::CpuSet::new();
                    (1..cores).for_each(|cpu| set.set(cpu));
                    let _ = rustix::thread::sched_setaffinity(None, &set);
                }
                load(&load_options, &cancel, &mut |_| ())
            })?;
            event.join().map_err(|_| anyhow::anyhow!("the fault could not be injected"))??;
            options.go_on()?;
            let seen = seen.context("the receiver")?;
            let p99_ms = [all_there, all_there + half]
                .map(|begin| worst_p99_ms(&seen.series, &[(begin, begin + half)]));
            Ok(DegradedRun { short: short_changed(&seen, streams), p99_ms, seen })
        })
    }

    fn strike(&self, case: &Case) -> anyhow::Result<()> {
        let new = self.orders.with_extension("new");
        std::fs::write(&new, case.orders)?;
        std::fs::rename(&new, &self.orders)?;
        for &member in case.renamed {
            let gone = self.members[member].with_extension("gone");
            std::fs::rename(&self.members[member], gone)?;
        }
        Ok(())
    }
}

/// One run: all viewers, and the worst p99 of half a second before the event and behind it.
struct DegradedRun {
    seen: LoadReport,
    /// Viewers that got too little, or never came.
    short: u64,
    p99_ms: [f64; 2],
}

/// Viewers that got fewer packets than the title has in the time in which all of them played.
fn short_changed(seen: &LoadReport, streams: usize) -> u64 {
    let least = seen.together_ms * RATE_KBPS * LEAST_PERMILLE / 1000 / 8 / DEFAULT_PACKET_BYTES as u64;
    let short = seen.per_stream.iter().filter(|one| one.packets < least && !one.has_ended);
    short.count() as u64 + (streams as u64).saturating_sub(seen.per_stream.len() as u64)
}

/// The targets of a case, from all runs.
fn judge(number: usize, runs: &Turns<DegradedRun>) -> Vec<Promise> {
    let id = |what: &str| format!("degraded-{number}-{what}");
    let none = |what: &str, count: fn(&DegradedRun) -> u64, unit: &str| {
        Promise::at_most(&id(what), runs.sum(count) as f64, 0.0, unit)
    };
    let late = runs.interval(0, |run| run.p99_ms[1] / run.p99_ms[0]);
    vec![
        none("missing", |run| run.seen.lost_in_all(), "packets"),
        none("failed", |run| run.seen.failed, "viewers"),
        none("restarts", |run| run.seen.restarts, "jumps of sequence numbers"),
        none("too-few-packets", |run| run.short, "viewers"),
        none("stalled", |run| run.seen.sessions_stalled + run.seen.sessions_silent, "viewers"),
        Promise::at_most(&id("lateness-ratio"), late, LATENESS_RATIO, "of that before"),
    ]
}

/// The medians of a case.
fn row(case: &Case, runs: &Turns<DegradedRun>) -> Row {
    let middle = |figure: &dyn Fn(&DegradedRun) -> f64| runs.median(0, figure);
    let of = |count: fn(&LoadReport) -> u64| middle(&|run| count(&run.seen) as f64);
    Row::new(case.name)
        .with("viewers", of(|seen| seen.played), "")
        .with("failed", of(|seen| seen.failed), "")
        .with("packets", of(|seen| seen.packets), "")
        .with("missing", of(LoadReport::lost_in_all), "")
        .with("restarts", of(|seen| seen.restarts), "")
        .with("too few packets", middle(&|run| run.short as f64), "viewers")
        .with("stalled", of(|seen| seen.sessions_stalled), "")
        .with("lateness p50", of(|seen| seen.lateness.p50_us) / 1e3, "ms")
        .with("p99", of(|seen| seen.lateness.p99_us) / 1e3, "ms")
        .with("max", of(|seen| seen.lateness.max_us) / 1e3, "ms")
        .with("worst p99 before", middle(&|run| run.p99_ms[0]), "ms")
        .with("behind the event", middle(&|run| run.p99_ms[1]), "ms")
        .with("rounds", runs.of(0).len() as f64, "")
}

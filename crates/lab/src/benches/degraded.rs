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
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row};
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
        "degraded-0-lateness-p99",
        "degraded-1-missing",
        "degraded-1-failed",
        "degraded-1-restarts",
        "degraded-1-too-few-packets",
        "degraded-1-stalled",
        "degraded-1-lateness-p99",
        "degraded-2-missing",
        "degraded-2-failed",
        "degraded-2-restarts",
        "degraded-2-too-few-packets",
        "degraded-2-stalled",
        "degraded-2-lateness-p99",
        "degraded-3-missing",
        "degraded-3-failed",
        "degraded-3-restarts",
        "degraded-3-too-few-packets",
        "degraded-3-stalled",
        "degraded-3-lateness-p99",
        "degraded-4-missing",
        "degraded-4-failed",
        "degraded-4-restarts",
        "degraded-4-too-few-packets",
        "degraded-4-stalled",
        "degraded-4-lateness-p99",
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
/// Packets that each viewer must have received per second in which all of them played, in
/// thousandths of the title's rate: the missing part is the time to the first packet and from the
/// last.
const LEAST_PERMILLE: u64 = 970;

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
    let streams = options.streams.unwrap_or(if options.tiny { 10 } else { 200 });
    let secs = options.duration_s.unwrap_or(options.pick(4, 10, 20) as u64);
    let scratch = Scratch::new(options, "degraded")?;
    let ramp_s = (streams as u64).div_ceil(100);
    let file = scratch.0.join("media.ts");
    options.say("making a media file");
    media::make_cbr_ts(&file, ramp_s + secs + SPREAD_S + 15, RATE_KBPS)?;
    let mut report = Report::new("degraded");
    let meter = NoiseMeter::start();
    let cases = if options.tiny { &CASES[3..4] } else { CASES };
    for (number, case) in cases.iter().enumerate() {
        options.go_on()?;
        options.say(case.name);
        let dir = scratch.0.join(format!("case{number}"));
        let site = VolumeServer::new(options, &dir, case, &file)?;
        let seen = site.play(options, case, streams, ramp_s, secs)?;
        write_up(&mut report, number, case, streams, &seen);
        drop(site);
        std::fs::remove_dir_all(&dir).with_context(|| format!("{}: cannot be removed", dir.display()))?;
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
            std::fs::copy(file, &copy)?;
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
    ) -> anyhow::Result<LoadReport> {
        let urls = (0..TITLES).map(|number| format!("{}media-{number}", self.url)).collect();
        let mut load_options = LoadOptions::new(urls, u32::try_from(streams)?);
        load_options.arrivals = Arrivals::Ramp(Duration::from_secs(ramp_s));
        load_options.duration = Duration::from_secs(secs);
        load_options.start_spread = MediaTicks(90_000 * SPREAD_S);
        let cancel = Arc::clone(&options.cancel);
        std::thread::scope(|scope| {
            let event = scope.spawn(move || {
                std::thread::sleep(Duration::from_secs(ramp_s) + Duration::from_secs(secs) / 2);
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
            seen.context("the receiver")
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

/// Viewers that got fewer packets than the title has in the time in which all of them played.
fn short_changed(seen: &LoadReport) -> u64 {
    let least = seen.together_ms * RATE_KBPS * LEAST_PERMILLE / 1000 / 8 / DEFAULT_PACKET_BYTES as u64;
    let short = seen.per_stream.iter().filter(|one| one.packets < least && !one.has_ended);
    short.count() as u64
}

fn write_up(report: &mut Report, number: usize, case: &Case, streams: usize, seen: &LoadReport) {
    let ms = |us: u64| us as f64 / 1e3;
    let missing = seen.lost_in_all();
    let absent = (streams as u64).saturating_sub(seen.per_stream.len() as u64);
    let short = short_changed(seen) + absent;
    report.rows.push(
        Row::new(case.name)
            .with("viewers", seen.played as f64, "")
            .with("failed", seen.failed as f64, "")
            .with("packets", seen.packets as f64, "")
            .with("missing", missing as f64, "")
            .with("restarts", seen.restarts as f64, "")
            .with("too few packets", short as f64, "viewers")
            .with("stalled", seen.sessions_stalled as f64, "")
            .with("lateness p50", ms(seen.lateness.p50_us), "ms")
            .with("p99", ms(seen.lateness.p99_us), "ms")
            .with("max", ms(seen.lateness.max_us), "ms"),
    );
    let id = |what: &str| format!("degraded-{number}-{what}");
    let none = |what: &str, count: u64, unit: &str| Promise::at_most(&id(what), count as f64, 0.0, unit);
    report.promises.push(none("missing", missing, "packets"));
    report.promises.push(none("failed", seen.failed, "viewers"));
    report.promises.push(none("restarts", seen.restarts, "jumps of sequence numbers"));
    report.promises.push(none("too-few-packets", short, "viewers"));
    report.promises.push(none("stalled", seen.sessions_stalled + seen.sessions_silent, "viewers"));
    report.promises.push(Promise::at_most(&id("lateness-p99"), ms(seen.lateness.p99_us), 200.0, "ms"));
}

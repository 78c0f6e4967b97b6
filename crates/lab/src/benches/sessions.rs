//! Many viewers over a veth pair: loss and lateness at the receiver, processor time at the server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;
use millrace_core::time::MediaTicks;
use millrace_load::{Arrivals, LoadOptions, LoadReport, load};

use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row};
use crate::held::HeldResources;
use crate::media;
use crate::netns::{SERVER_IP, TwoHosts};
use crate::proc::{cpu_ns, resident_bytes};
use crate::visitors::{Visits, visit};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "sessions",
    shows: "viewers of a 2 Mb/s title that one engine carries: loss and lateness at the receiver, processor time; the same while connections come and go",
    not_for: "the speed of a network card: a veth pair runs the receiver's kernel path on the sender's core",
    options: &["streams", "duration"],
    targets: &[
        "sessions-failed",
        "sessions-loss",
        "sessions-lateness-p99",
        "sessions-checksums",
        "sessions-visits-loss",
        "sessions-visits-failed",
        "sessions-visits-left",
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
/// Viewers beside whom connections come and go.
const BESIDE: u32 = 50;
/// Time that the server may take to release everything that is left.
const CLEARED: Duration = Duration::from_secs(20);

fn run(options: &Options) -> anyhow::Result<Report> {
    let streams = options.streams.unwrap_or(if options.tiny { 5 } else { 1_000 });
    let secs = options.duration_s.unwrap_or(if options.tiny { 2 } else { 20 });
    let dir = options.scratch.join(format!("millrace-sessions-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let result = measure(options, &dir, streams, secs);
    // A folder that cannot be removed is not worth losing the result for.
    let _ = std::fs::remove_dir_all(&dir);
    result
}

/// Kills the server when the benchmark ends, however it ends.
pub(super) struct Server {
    child: Child,
    /// `rtsp://address/`
    pub(super) url: String,
}

impl Server {
    /// Starts it and waits until it is ready.
    pub(super) fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let out = child.stdout.take().context("the server's output")?;
        let mut lines = BufReader::new(out).lines();
        let mut server = Self { child, url: String::new() };
        let ready = lines.find_map(|line| line.ok()?.strip_prefix("ready ").map(str::to_owned));
        server.url = ready.context("the server ended before it was ready")?;
        // The pipe must be read on, or the server's next line would block it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure(options: &Options, dir: &Path, streams: usize, secs: u64) -> anyhow::Result<Report> {
    let (file, store) = (dir.join("title.ts"), dir.join("store"));
    let ramp_s = (streams as u64).div_ceil(200);
    options.say("making a media file");
    media::make_cbr_ts(&file, ramp_s + secs + 15, RATE_KBPS)?;
    let mut add = Command::new(&options.program);
    let added = add.args(["add", "--quiet"]).arg(&file).arg("--store").arg(&store).status()?;
    anyhow::ensure!(added.success(), "the title could not be added");

    options.go_on()?;
    let hosts = TwoHosts::new(false)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = hosts.on_server(&options.program);
    command.args(["serve", "--quiet", "--listen", &format!("{SERVER_IP}:8554"), "--cpu", "0"]);
    command.args(["--admission", "off"]);
    command
        .args([
            "--max-streams",
            "20000",
            "--max-connections-per-address",
            "20000",
            "--share-per-address",
            "100%",
            "--store",
        ])
        .arg(&store);
    let stats = dir.join("stats.json");
    command.arg("--stats").arg(&stats);
    let server = Server::start(command)?;
    let pid = server.child.id();

    let mut load_options = LoadOptions::new(vec![format!("{}title", server.url)], u32::try_from(streams)?);
    load_options.arrivals = Arrivals::Ramp(Duration::from_secs(ramp_s));
    load_options.duration = Duration::from_secs(secs);
    load_options.start_spread = MediaTicks(90_000 * 10);
    let meter = NoiseMeter::start();
    let before = (StdInstant::now(), cpu_ns(pid, "engine-0")?, cpu_ns(pid, "")?);
    let cancel = Arc::clone(&options.cancel);
    options.say(&format!("{streams} viewers arrive in {ramp_s} s and watch for {secs} s"));
    let report: LoadReport = hosts
        .on_client(move || {
            leave_core_0(cores);
            load(&load_options, &cancel, &mut |_| ())
        })?
        .context("the receiver")?;
    options.go_on()?;
    let wall_ns = before.0.elapsed().as_nanos() as f64;
    let engine_ns = cpu_ns(pid, "engine-0")?.saturating_sub(before.1) as f64;
    let all_ns = cpu_ns(pid, "")?.saturating_sub(before.2) as f64;
    let mut report = write_up(&report, streams, wall_ns, engine_ns, all_ns, resident_bytes(pid)?);
    let visited = Visited::measure(options, &hosts, &server, &stats, cores)?;
    visited.write_up(&mut report);
    report.noise = Some(meter.finish());
    Ok(report)
}

/// The engine has core 0 for itself when there is another one.
fn leave_core_0(cores: usize) {
    if cores > 1 {
        let mut set = rustix::thread::CpuSet::new();
        (1..cores).for_each(|cpu| set.set(cpu));
        // Not pinned is still measured.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Connections that come and go, as fast as one client can make them, beside viewers who play.
struct Visited {
    visits: Visits,
    lasted_s: f64,
    viewers: LoadReport,
    /// Resources that the server held when all clients were gone, and how many of them it did not
    /// hold before.
    held: HeldResources,
    left: u64,
}

impl Visited {
    fn measure(
        options: &Options,
        hosts: &TwoHosts,
        server: &Server,
        stats: &Path,
        cores: usize,
    ) -> anyhow::Result<Self> {
        let url = format!("{}title", server.url);
        let address = server.url.trim_start_matches("rtsp://").trim_end_matches('/');
        let address: SocketAddr = address.parse().context("the server's address")?;
        let beside = options.pick(3, BESIDE, BESIDE);
        let mut load_options = LoadOptions::new(vec![url.clone()], beside);
        load_options.duration = Duration::from_secs(options.pick(1, 5, 10));
        load_options.start_spread = MediaTicks(90_000 * 5);
        options.say(&format!("connections come and go beside {beside} viewers"));
        let pid = server.child.id();
        // The viewers of the first part are gone, and the files they opened stay open.
        let before = HeldResources::settle(pid, stats, HeldResources::nothing_but(u64::MAX), CLEARED)?;
        let (stop, cancel) = (AtomicBool::new(false), Arc::clone(&options.cancel));
        let (viewers, visits, lasted_s) = hosts.on_client(|| {
            leave_core_0(cores);
            std::thread::scope(|scope| {
                let begun = StdInstant::now();
                let visiting = scope.spawn(|| visit(address, &url, &stop));
                let viewers = load(&load_options, &cancel, &mut |_| ());
                stop.store(true, Ordering::Relaxed);
                let visits = visiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                (viewers, visits, begun.elapsed().as_secs_f64())
            })
        })?;
        options.go_on()?;
        let expected = HeldResources::nothing_but(before.descriptors);
        let held = HeldResources::settle(pid, stats, expected, CLEARED)?;
        let left = held.beyond(expected);
        Ok(Self { visits, lasted_s, viewers: viewers.context("viewers beside visitors")?, held, left })
    }

    fn write_up(&self, report: &mut Report) {
        let (visits, viewers, held) = (&self.visits, &self.viewers, &self.held);
        let ms = |us: u64| us as f64 / 1e3;
        report.rows.push(
            Row::new("connections that set a stream up and are gone, one after the other")
                .with("rate", visits.set_up as f64 / self.lasted_s, "1/s")
                .with("in all", visits.set_up as f64, "")
                .with("played to", visits.played as f64, "")
                .with("refused", visits.refused as f64, "")
                .with("failed", visits.failed as f64, ""),
        );
        if let Some(why) = &visits.why {
            report.rows.push(Row::new(format!("connections that set a stream up: went wrong: {why}")));
        }
        report.rows.push(
            Row::new("viewers beside them")
                .with("played", viewers.played as f64, "")
                .with("failed", viewers.failed as f64, "")
                .with("lost", viewers.lost_in_all() as f64, "packets")
                .with("lateness p99", ms(viewers.lateness.p99_us), "ms")
                .with("max", ms(viewers.lateness.max_us), "ms"),
        );
        report.rows.push(
            Row::new("what the server holds when all are gone")
                .with("connections", held.connections as f64, "")
                .with("sessions", held.sessions as f64, "")
                .with("streams", held.streams as f64, "")
                .with("reserved", held.reserved_bits_per_s as f64 / 1e6, "Mb/s")
                .with("descriptors", held.descriptors as f64, ""),
        );
        let failed = viewers.failed + viewers.sessions_silent + visits.refused + visits.failed;
        report.promises.push(none("sessions-visits-loss", viewers.lost_in_all(), "packets"));
        report.promises.push(none("sessions-visits-failed", failed, "viewers and connections"));
        report.promises.push(none("sessions-visits-left", self.left, "things that the server still holds"));
    }
}

fn none(id: &str, count: u64, what: &str) -> Promise {
    Promise::at_most(id, count as f64, 0.0, what)
}

fn write_up(r: &LoadReport, streams: usize, wall_ns: f64, engine_ns: f64, all_ns: f64, rss: u64) -> Report {
    let mut report = Report::new("sessions");
    let gigabits = r.payload_bytes as f64 * 8.0 / 1e9;
    report.rows.push(
        Row::new("viewers")
            .with("asked", streams as f64, "")
            .with("played", r.played as f64, "")
            .with("failed", r.failed as f64, "")
            .with("rate while all play", r.rate_bits_per_s as f64 / 1e6, "Mb/s"),
    );
    report.rows.push(
        Row::new("packets at the receiver")
            .with("received", r.packets as f64, "")
            .with("lost", (r.lost + r.lost_at_start) as f64, "")
            .with("reordered", r.reordered as f64, "")
            .with("bad checksums", r.receiver.checksum_errors as f64, ""),
    );
    let ms = |us: u64| us as f64 / 1e3;
    report.rows.push(
        Row::new("lateness against media time, kernel stamps")
            .with("p50", ms(r.lateness.p50_us), "ms")
            .with("p99", ms(r.lateness.p99_us), "ms")
            .with("p99.9", ms(r.lateness.p999_us), "ms")
            .with("max", ms(r.lateness.max_us), "ms"),
    );
    report.rows.push(
        Row::new("receiver itself")
            .with("packets waited p99", ms(r.receiver.read_delay.p99_us), "ms")
            .with("max", ms(r.receiver.read_delay.max_us), "ms")
            .with("dropped at its sockets", r.receiver.socket_drops as f64, ""),
    );
    report.rows.push(
        Row::new("server")
            .with("engine's core", engine_ns / wall_ns * 100.0, "%")
            .with("all threads", all_ns / wall_ns * 100.0, "%")
            .with("processor time", engine_ns / 1e9 / gigabits.max(1e-9), "s/Gb")
            .with("engine per packet", engine_ns / (r.packets.max(1)) as f64, "ns")
            .with("memory", rss as f64 / 1e6, "MB"),
    );
    report.promises.push(none("sessions-failed", r.failed, "sessions"));
    report.promises.push(none("sessions-loss", r.lost + r.lost_at_start, "packets"));
    report.promises.push(Promise::at_most("sessions-lateness-p99", ms(r.lateness.p99_us), 20.0, "ms"));
    report.promises.push(none("sessions-checksums", r.receiver.checksum_errors, "packets"));
    report
}

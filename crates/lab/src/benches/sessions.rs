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

use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
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
        "sessions-lateness-ratio",
        "sessions-checksums",
        "sessions-visits-lateness-ratio",
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
/// Lateness of 99 % of the packets, relative to as few viewers alone.
const LATENESS_RATIO: f64 = 1.25;
/// The contenders: all viewers; a few of them; those while connections come and go.
const MANY: usize = 0;
const FEW: usize = 1;
const VISITED: usize = 2;
/// Time that the server may take to release everything that is left.
const CLEARED: Duration = Duration::from_secs(20);

fn run(options: &Options) -> anyhow::Result<Report> {
    let streams = options.streams.unwrap_or(if options.tiny { 5 } else { 1_000 });
    let secs = options.duration_s.unwrap_or(options.pick(2, 5, 20));
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

    let scene = SessionScene { options, hosts: &hosts, server: &server, stats: &stats, cores };
    let beside = options.pick(3, BESIDE, BESIDE);
    let names = [
        format!("{streams} viewers"),
        format!("{beside} viewers"),
        format!("{beside} viewers beside connections that come and go"),
    ];
    let turn = |at: usize, _| match at {
        MANY => scene.watch(u32::try_from(streams)?, Duration::from_secs(ramp_s), secs, false),
        _ => scene.watch(beside, Duration::ZERO, options.pick(1, 3, 10), at == VISITED),
    };
    let (mut report, mut meter) = (Report::new("sessions"), NoiseMeter::start());
    let turns = Turns::take(options, &mut meter, &names, turn, judge)?;
    for (at, name) in names.iter().enumerate() {
        report.rows.extend(rows(name, &turns, at));
    }
    report.promises = judge(&turns);
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

/// A running server, and where its viewers are.
struct SessionScene<'a> {
    options: &'a Options,
    hosts: &'a TwoHosts,
    server: &'a Server,
    stats: &'a Path,
    cores: usize,
}

/// One turn.
struct SessionTurn {
    viewers: LoadReport,
    /// Connections that came and went, as fast as one client can make them.
    visits: Visits,
    lasted_s: f64,
    /// Shares of a core: the engine's thread, and all threads.
    engine: f64,
    all: f64,
    memory_bytes: u64,
    /// Resources that the server held when all clients were gone, and how many of them it did not
    /// hold before.
    held: HeldResources,
    left: u64,
}

impl SessionTurn {
    fn p99_ms(&self) -> f64 {
        self.viewers.lateness.p99_us as f64 / 1e3
    }
}

impl SessionScene<'_> {
    fn watch(
        &self,
        viewers: u32,
        ramp: Duration,
        secs: u64,
        is_visited: bool,
    ) -> anyhow::Result<SessionTurn> {
        let url = format!("{}title", self.server.url);
        let address = self.server.url.trim_start_matches("rtsp://").trim_end_matches('/');
        let address: SocketAddr = address.parse().context("the server's address")?;
        let mut load_options = LoadOptions::new(vec![url.clone()], viewers);
        load_options.arrivals = Arrivals::Ramp(ramp);
        load_options.duration = Duration::from_secs(secs);
        load_options.start_spread = MediaTicks(90_000 * 5);
        let pid = self.server.child.id();
        // The viewers of other turns are gone, and the files they opened stay open.
        let before = HeldResources::settle(pid, self.stats, HeldResources::nothing_but(u64::MAX), CLEARED)?;
        let (stop, cancel) = (AtomicBool::new(false), Arc::clone(&self.options.cancel));
        let (begun, engine_ns, all_ns) = (StdInstant::now(), cpu_ns(pid, "engine-0")?, cpu_ns(pid, "")?);
        let (viewers, visits) = self.hosts.on_client(|| {
            leave_core_0(self.cores);
            std::thread::scope(|scope| {
                let visiting = is_visited.then(|| scope.spawn(|| visit(address, &url, &stop)));
                let viewers = load(&load_options, &cancel, &mut |_| ());
                stop.store(true, Ordering::Relaxed);
                let visits = visiting
                    .map(|visiting| visiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                (viewers, visits.unwrap_or_default())
            })
        })?;
        self.options.go_on()?;
        let lasted = begun.elapsed();
        let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / lasted.as_nanos() as f64;
        let (engine, all) = (share(cpu_ns(pid, "engine-0")?, engine_ns), share(cpu_ns(pid, "")?, all_ns));
        let memory_bytes = resident_bytes(pid)?;
        // A title that viewers open for the first time stays open.
        let descriptors = if is_visited { before.descriptors } else { u64::MAX };
        let expected = HeldResources::nothing_but(descriptors);
        let held = HeldResources::settle(pid, self.stats, expected, CLEARED)?;
        let (left, viewers) = (held.beyond(expected), viewers.context("the receiver")?);
        Ok(SessionTurn {
            viewers,
            visits,
            lasted_s: lasted.as_secs_f64(),
            engine,
            all,
            memory_bytes,
            held,
            left,
        })
    }
}

/// The targets, from all turns.
fn judge(turns: &Turns<SessionTurn>) -> Vec<Promise> {
    let none = |id: &str, count: u64, what: &str| Promise::at_most(id, count as f64, 0.0, what);
    let sum = |which: &[usize], count: fn(&SessionTurn) -> u64| -> u64 {
        which.iter().flat_map(|at| turns.of(*at)).map(count).sum()
    };
    let late = |id: &str, of: usize| {
        let ratio = turns.ratio(of, FEW, SessionTurn::p99_ms);
        Promise::at_most(id, ratio, LATENESS_RATIO, "of a few viewers alone")
    };
    let failed = |turn: &SessionTurn| turn.viewers.failed + turn.viewers.sessions_silent;
    let went_wrong =
        sum(&[VISITED], failed) + sum(&[VISITED], |turn| turn.visits.refused + turn.visits.failed);
    vec![
        none("sessions-failed", sum(&[MANY, FEW], failed), "sessions"),
        none("sessions-loss", sum(&[MANY, FEW], |turn| turn.viewers.lost_in_all()), "packets"),
        late("sessions-lateness-ratio", MANY),
        none("sessions-checksums", turns.sum(|turn| turn.viewers.receiver.checksum_errors), "packets"),
        none("sessions-visits-loss", sum(&[VISITED], |turn| turn.viewers.lost_in_all()), "packets"),
        none("sessions-visits-failed", went_wrong, "viewers and connections"),
        none("sessions-visits-left", sum(&[VISITED], |turn| turn.left), "things that the server still holds"),
        late("sessions-visits-lateness-ratio", VISITED),
    ]
}

/// The medians of one contender.
fn rows(name: &str, turns: &Turns<SessionTurn>, at: usize) -> Vec<Row> {
    let middle = |figure: &dyn Fn(&SessionTurn) -> f64| turns.median(at, figure);
    let ms = |figure: fn(&LoadReport) -> u64| middle(&|turn| figure(&turn.viewers) as f64 / 1e3);
    let gigabits = |turn: &SessionTurn| turn.viewers.payload_bytes as f64 * 8.0 / 1e9;
    let mut rows = vec![
        Row::new(name)
            .with("rounds", turns.of(at).len() as f64, "")
            .with("played", middle(&|turn| turn.viewers.played as f64), "")
            .with("failed", middle(&|turn| turn.viewers.failed as f64), "")
            .with("rate while all play", middle(&|turn| turn.viewers.rate_bits_per_s as f64 / 1e6), "Mb/s")
            .with("lost", middle(&|turn| turn.viewers.lost_in_all() as f64), "packets")
            .with("reordered", middle(&|turn| turn.viewers.reordered as f64), "packets"),
        Row::new(format!("{name}: lateness against media time, kernel stamps"))
            .with("p50", ms(|seen| seen.lateness.p50_us), "ms")
            .with("p99", ms(|seen| seen.lateness.p99_us), "ms")
            .with("p99.9", ms(|seen| seen.lateness.p999_us), "ms")
            .with("max", ms(|seen| seen.lateness.max_us), "ms")
            .with("packets waited in the receiver, p99", ms(|seen| seen.receiver.read_delay.p99_us), "ms")
            .with(
                "dropped at its sockets",
                middle(&|turn| turn.viewers.receiver.socket_drops as f64),
                "packets",
            ),
        Row::new(format!("{name}: server"))
            .with("engine's core", middle(&|turn| turn.engine * 100.0), "%")
            .with("all threads", middle(&|turn| turn.all * 100.0), "%")
            .with(
                "processor time",
                middle(&|turn| turn.engine * turn.lasted_s / gigabits(turn).max(1e-9)),
                "s/Gb",
            )
            .with(
                "engine per packet",
                middle(&|turn| turn.engine * turn.lasted_s * 1e9 / turn.viewers.packets.max(1) as f64),
                "ns",
            )
            .with("memory", middle(&|turn| turn.memory_bytes as f64 / 1e6), "MB"),
    ];
    if at == VISITED {
        rows.push(
            Row::new("connections that set a stream up and are gone, one after the other")
                .with("rate", middle(&|turn| turn.visits.set_up as f64 / turn.lasted_s), "1/s")
                .with("in all", middle(&|turn| turn.visits.set_up as f64), "")
                .with("played to", middle(&|turn| turn.visits.played as f64), "")
                .with("refused", middle(&|turn| turn.visits.refused as f64), "")
                .with("failed", middle(&|turn| turn.visits.failed as f64), ""),
        );
        let why = turns.of(at).iter().find_map(|turn| turn.visits.why.as_ref());
        rows.extend(why.map(|why| Row::new(format!("connections that set a stream up: went wrong: {why}"))));
        rows.push(
            Row::new("what the server holds when all are gone")
                .with("connections", middle(&|turn| turn.held.connections as f64), "")
                .with("sessions", middle(&|turn| turn.held.sessions as f64), "")
                .with("streams", middle(&|turn| turn.held.streams as f64), "")
                .with("reserved", middle(&|turn| turn.held.reserved_bits_per_s as f64 / 1e6), "Mb/s")
                .with("descriptors", middle(&|turn| turn.held.descriptors as f64), ""),
        );
    }
    rows
}

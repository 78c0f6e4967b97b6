//! Viewers by RTSP beside hostile clients of the same server's HTTP, one kind after the other, and beside uploads.
//!
//! ```text
//!   core of the server                        other cores
//!   engine, web, uploads, passwords  ◄──────  the load generator: packets, their lateness by the kernel's stamps
//!                                    ◄──────  hostile clients, as fast as they can, from addresses of their own
//! ```
//!
//! The server has one core for everything, so whatever hostile clients have it do is done beside the engine.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, ensure};
use millrace_core::time::MediaTicks;
use millrace_load::{LoadOptions, LoadReport, load};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::capacity::Scratch;
use crate::capacity::site::{BenchSite, Group};
use crate::frame::{Bench, Interval, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
use crate::held::HeldResources;
use crate::hostile::{ATTACKS, AttackResult, AttackTarget, Bringer, Response, UPLOADS, idle, rounds};
use crate::media;
use crate::peers::{self, HTTP_PORT};
use crate::proc::resident_bytes;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "hostile",
    shows: "viewers by RTSP and a visitor by HTTP beside hostile clients and uploads: lateness and loss at the receiver, how long a playlist takes, memory of the server",
    not_for: "how many hostile clients a server carries: they have one core, and so has the server",
    options: &["streams", "duration", "only"],
    targets: &[
        "hostile-lateness-ratio",
        "hostile-visit-ratio",
        "hostile-loss",
        "hostile-failed",
        "hostile-memory",
        "hostile-left",
        "hostile-wrong",
        "hostile-tokens",
        "hostile-idle",
    ],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("taskset", "apt-get install util-linux"),
    ],
    run,
};

const RATE_KBPS: u64 = 2_000;
/// Port of RTSP.
const PORT: u16 = 8554;
/// Clients of each kind at the same time.
const CLIENTS: usize = 4;
/// Lateness of 99 % of the viewers' packets, and the time of 99 % of the visitor's playlists, relative to viewers alone.
const LATENESS_RATIO: f64 = 1.25;
const VISIT_RATIO: f64 = 8.0;
/// Time counted for a playlist that did not come.
const NEVER: Duration = Duration::from_secs(60);
/// Pause of the visitor between two playlists.
const VISIT_PAUSE: Duration = Duration::from_millis(10);
/// The server's memory, relative to that after viewers alone: ten thousand idle connections at 4 KB each, and memory that an
/// allocator keeps.
const MEMORY_RATIO: f64 = 1.4;
/// Bad tokens that are refused, for each path to elsewhere that is.
const TOKENS_RATIO: f64 = 0.8;
/// Time that the server may take to release everything that is left.
const CLEARED: Duration = Duration::from_secs(20);
/// Bytes of the disk that holds the store.
const DISK_BYTES: u64 = 256 << 20;
/// Space left on it for uploads when it is full, in addition to the space that the server keeps
/// free.
const FULL_BYTES: u64 = 8 << 20;
/// The server keeps a twentieth free.
const KEPT_FREE: u64 = 20;
const ALONE: &str = "alone";
const IDLE: &str = "idle connections";
const TOKENS: &str = "bad tokens";
const PATHS: &str = "paths";

/// One round of a hostile client, or of a client that uploads a file.
type Round = Box<dyn Fn(&AttackTarget) -> anyhow::Result<u64> + Send + Sync>;

/// What viewers are beside.
enum Beside {
    Nobody,
    /// This number of connections that send nothing.
    Idle(usize),
    /// Clients that do this again and again.
    Rounds(Round),
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("hostile");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "hostile")?;
    let seconds = options.duration_s.unwrap_or(options.pick(1, 2, 10));
    let viewers = options.streams.unwrap_or(options.pick(3, 50, 200));
    options.say("making a media file");
    let file = scratch.0.join("title.ts");
    media::make_cbr_ts(&file, seconds + 40, RATE_KBPS)?;
    raise_limit();
    let place = ServerUnderAttack::prepare(options, &scratch.0, &file)?;
    let stage = HostileContext { options, place: &place, viewers: u32::try_from(viewers)?, seconds };
    // Without viewers alone there is nothing to compare with.
    let is_wanted = |name: &str| {
        name == ALONE || options.only.is_empty() || options.only.iter().any(|only| name.contains(&**only))
    };
    let all: Vec<_> = all(options, &place.bringer).into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let judge = |phases: &Turns<AttackPhase>| judge(&names, phases, options);
    let turn = |at: usize, _| stage.play(all[at].0, &all[at].1);
    let phases = Turns::take(options, &mut noise, &names, turn, judge)?;
    for (at, name) in names.iter().enumerate() {
        report.rows.push(row(name, &phases, at));
        let why = phases.of(at).iter().find_map(|phase| phase.done.why.as_ref());
        report.rows.extend(why.map(|why| Row::new(format!("{name}: went wrong: {why}"))));
    }
    report.promises = judge(&phases);
    report.noise = Some(noise.finish());
    Ok(report)
}

/// Idle connections.
fn idle_count(options: &Options) -> usize {
    options.pick(50, 10_000, 10_000)
}

/// All that viewers are beside, one after the other.
fn all(options: &Options, bringer: &Bringer) -> Vec<(&'static str, Beside)> {
    let mut all = vec![(ALONE, Beside::Nobody), (IDLE, Beside::Idle(idle_count(options)))];
    // A test has all of them; here it is enough to see that some do their work.
    let attacks = options.pick(4, ATTACKS.len(), ATTACKS.len());
    all.extend(
        ATTACKS.iter().take(attacks).map(|attack| (attack.name, Beside::Rounds(Box::new(attack.round)))),
    );
    all.extend(UPLOADS.into_iter().map(|(name, round)| {
        let bringer = bringer.clone();
        (name, Beside::Rounds(Box::new(move |target: &AttackTarget| round(&bringer, target))))
    }));
    all
}

/// Both ends of ten thousand connections, if this machine gives that much.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A disk in memory, unmounted when it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&at).with_context(|| at.display().to_string())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "tmpfs"]).arg(&at);
        peers::run(&mut mount).context("mount a disk in memory")?;
        Ok(Self(at))
    }

    /// Takes nearly all that is free, until the file that is returned is removed.
    fn fill(&self) -> anyhow::Result<PathBuf> {
        let about = rustix::fs::statvfs(&self.0)?;
        let free = about.f_bavail * about.f_frsize;
        let taken = free.saturating_sub(DISK_BYTES / KEPT_FREE + FULL_BYTES);
        let path = self.0.join("ballast");
        let file = std::fs::File::create(&path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken.max(1))?;
        Ok(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A running server and the data about it.
struct ServerUnderAttack {
    // Ended before its disk is unmounted.
    server: Group,
    disk: Disk,
    site: BenchSite,
    stats: PathBuf,
    bringer: Bringer,
}

impl ServerUnderAttack {
    fn prepare(options: &Options, dir: &Path, file: &Path) -> anyhow::Result<Self> {
        let disk = Disk::mount(dir.join("disk"))?;
        let (store, rights, stats) =
            (disk.0.join("store"), dir.join("rights.sqlite"), dir.join("stats.json"));
        let mut add = Command::new(&options.program);
        add.args(["add", "--quiet"]).arg(file).arg("--store").arg(&store);
        peers::run(&mut add).context("put the title into a store")?;
        let token = manager(&options.program, &rights)?;
        let site = BenchSite::new(false, 1, dir.join("site"))?;
        let mut command = site.command(&options.program);
        let at = |port| format!("{}:{port}", site.server_ip());
        command.args(["serve", "--quiet", "--listen", &at(PORT), "--http", &at(HTTP_PORT), "--cpu", "0"]);
        command.args(["--admission", "off", "--max-streams", "16000", "--share-per-address", "100%"]);
        command.args(["--max-connections-per-address", "20000", "--cache", "64MiB", "--trick-space", "0B"]);
        command.args(["--upload-rate", "8Gb/s", "--picture-space", "0B"]);
        command.arg("--rights").arg(&rights).arg("--stats").arg(&stats).arg("--store").arg(&store);
        let mut server = Group::start(&site, "millrace", command)?;
        server.wait_for_word("ready ")?;
        let bytes: Arc<[u8]> = std::fs::read(file)?.into();
        let bringer = Bringer { bytes, authorization: format!("Bearer {token}") };
        Ok(Self { server, disk, site, stats, bringer })
    }

    fn target(&self, from: IpAddr) -> anyhow::Result<AttackTarget> {
        let web = SocketAddr::new(self.site.server_ip().parse().context("the server's address")?, HTTP_PORT);
        Ok(AttackTarget { web, from, title: "/titles/title.ts".to_owned() })
    }

    fn memory(&self) -> anyhow::Result<u64> {
        // What starts it becomes the server.
        resident_bytes(self.server.id())
    }
}

/// Makes a user who manages; returns a token of it.
fn manager(program: &Path, rights: &Path) -> anyhow::Result<String> {
    let mut user = Command::new(program);
    user.args(["user", "add", "boss", "--manage", "--rights"]).arg(rights);
    let mut user = user.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("make a user")?;
    user.stdin.take().context("the user's password")?.write_all(b"only-for-this-bench\n")?;
    ensure!(user.wait()?.success(), "no user could be made");
    let mut token = Command::new(program);
    let token = token.args(["user", "token", "boss", "--rights"]).arg(rights).output()?;
    ensure!(token.status.success(), "no token: {}", String::from_utf8_lossy(&token.stderr));
    Ok(String::from_utf8_lossy(&token.stdout).trim().to_owned())
}

/// A client that goes on until it is stopped.
type AttackClient<'a> = Box<dyn Fn(&AtomicBool) -> AttackResult + Send + Sync + 'a>;

/// Settings that all phases share.
struct HostileContext<'a> {
    options: &'a Options,
    place: &'a ServerUnderAttack,
    viewers: u32,
    seconds: u64,
}

/// Measurements of viewers beside other clients.
struct AttackPhase {
    viewers: LoadReport,
    /// How long the visitor's playlists took, the shortest first.
    visits: Vec<Duration>,
    done: AttackResult,
    lasted_s: f64,
    /// Memory before, the most while it went on, and when all were gone.
    memory: [u64; 3],
    /// Things that the server held when all were gone, and did not hold before.
    left: u64,
}

impl HostileContext<'_> {
    fn play(&self, name: &'static str, beside: &Beside) -> anyhow::Result<AttackPhase> {
        let place = self.place;
        let pid = place.server.id();
        let before = HeldResources::settle(pid, &place.stats, HeldResources::nothing_but(u64::MAX), CLEARED)?;
        let ballast = if name == UPLOADS[1].0 { Some(place.disk.fill()?) } else { None };
        let memory = place.memory()?;
        let mut most = memory;
        let (stop, clients) = (AtomicBool::new(false), self.clients(beside)?);
        let visitor = place.target(place.site.client_ips[0])?;
        let (viewers, mut visits, done, lasted_s) = place.site.on_client(|| {
            std::thread::scope(|scope| -> anyhow::Result<_> {
                let begun = StdInstant::now();
                let clients: Vec<_> = clients.iter().map(|client| scope.spawn(|| client(&stop))).collect();
                let visits = scope.spawn(|| visits(&visitor, VISIT_PAUSE, &stop));
                let viewers = self.watch(&mut most);
                stop.store(true, Ordering::Relaxed);
                let lasted_s = begun.elapsed().as_secs_f64();
                let done = clients.into_iter().map(join).fold(AttackResult::default(), AttackResult::and);
                Ok((viewers?, join(visits), done, lasted_s))
            })
        })??;
        if let Some(ballast) = ballast {
            std::fs::remove_file(&ballast).with_context(|| ballast.display().to_string())?;
        }
        // Titles that were brought and removed may stay open for a while.
        let expected = HeldResources { descriptors: u64::MAX, ..before };
        let left = HeldResources::settle(pid, &place.stats, expected, CLEARED)?.beyond(expected);
        let memory = [memory, most, place.memory()?];
        visits.sort();
        Ok(AttackPhase { viewers, visits, done, lasted_s, memory, left })
    }

    /// Returns the clients that run beside the viewers; each goes on until it is stopped.
    fn clients<'b>(&self, beside: &'b Beside) -> anyhow::Result<Vec<AttackClient<'b>>> {
        // The first address is the viewers'.
        let others = &self.place.site.client_ips[1..];
        match beside {
            Beside::Nobody => Ok(Vec::new()),
            Beside::Idle(count) => {
                let (count, target, others) = (*count, self.place.target(others[0])?, others.to_vec());
                Ok(vec![Box::new(move |stop: &AtomicBool| stay(&target, &others, count, stop))])
            }
            Beside::Rounds(round) => {
                let client = |from: &IpAddr| {
                    let target = self.place.target(*from)?;
                    let client = move |stop: &AtomicBool| {
                        give_way();
                        rounds(u64::MAX, Duration::ZERO, stop, || round(&target))
                    };
                    Ok(Box::new(client) as AttackClient<'b>)
                };
                others.iter().take(CLIENTS).map(client).collect()
            }
        }
    }

    /// Viewers for the measured time; the server's memory is looked at meanwhile.
    fn watch(&self, most: &mut u64) -> anyhow::Result<LoadReport> {
        let url = format!("rtsp://{}:{PORT}/title", self.place.site.server_ip());
        let mut load_options = LoadOptions::new(vec![url], self.viewers);
        load_options.duration = Duration::from_secs(self.seconds);
        load_options.start_spread = MediaTicks(90_000 * 20);
        load_options.interval = Duration::from_millis(500);
        load_options.local = self.place.site.client_ips[..1].to_vec();
        let report = load(&load_options, &self.options.cancel, &mut |_| {
            *most = (*most).max(self.place.memory().unwrap_or(0));
        });
        self.options.go_on()?;
        report.context("viewers")
    }
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Keeps idle connections from these addresses until `stop` is set.
fn stay(target: &AttackTarget, from: &[IpAddr], count: usize, stop: &AtomicBool) -> AttackResult {
    match idle(target, from, count) {
        Ok(all) => {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            AttackResult { rounds: 1, requests: all.len() as u64, ..AttackResult::default() }
        }
        Err(error) => {
            AttackResult { rounds: 1, wrong: 1, why: Some(format!("{error:#}")), ..AttackResult::default() }
        }
    }
}

/// Fetches a playlist again and again until `stop` is set, each time by a new connection, with a
/// pause behind each; returns how long each took, [`NEVER`] if it did not come.
fn visits(target: &AttackTarget, pause: Duration, stop: &AtomicBool) -> Vec<Duration> {
    let playlist = target.title.trim_end_matches(".ts").to_owned() + "/index.m3u8";
    // One viewer that reads its playlist again: each without the session would be another viewer.
    let mut session = String::new();
    let mut visit = || -> anyhow::Result<()> {
        let mut client = target.dial()?;
        let request = format!("GET {playlist}{session} HTTP/1.1\r\nHost: tv\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes())?;
        let response = Response::read(&mut client)?.context("no response")?;
        ensure!(response.status == 200, "{}", response.head);
        // The tag of a playlist ends with its session.
        let tag = response.head.lines().find_map(|line| line.strip_prefix("ETag: "));
        if let Some((_, given)) = tag.and_then(|tag| tag.trim_end_matches('"').rsplit_once('-')) {
            session = format!("?session={given}");
        }
        Ok(())
    };
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = StdInstant::now();
        took.push(visit().map_or(NEVER, |()| begun.elapsed()));
        std::thread::sleep(pause);
    }
    took
}

/// Gives the receiver priority on the cores that it shares with hostile clients: packets that it
/// fails to read are not the server's loss.
fn give_way() {
    // Without that it is measured as well, with more that the receiver may drop itself.
    let _ = rustix::process::setpriority_process(None, 10);
}

impl AttackPhase {
    fn per_s(&self) -> f64 {
        self.done.requests as f64 / self.lasted_s.max(1e-9)
    }

    /// The time in which this share of the visitor's playlists came, in milliseconds.
    fn visit_ms(&self, share: f64) -> f64 {
        let at = (self.visits.len() as f64 * share) as usize;
        self.visits.get(at).map_or(0.0, |took| took.as_secs_f64() * 1e3)
    }

    fn p99_ms(&self) -> f64 {
        self.viewers.lateness.p99_us as f64 / 1e3
    }

    /// The server did send the packets that the receiver itself dropped.
    fn lost(&self) -> u64 {
        self.viewers.lost_in_all().saturating_sub(self.viewers.receiver.socket_drops)
    }
}

/// The medians of one kind.
fn row(name: &str, phases: &Turns<AttackPhase>, at: usize) -> Row {
    let middle = |figure: &dyn Fn(&AttackPhase) -> f64| phases.median(at, figure);
    let ms = |figure: fn(&LoadReport) -> u64| middle(&|phase| figure(&phase.viewers) as f64 / 1e3);
    let memory = |when: usize| middle(&|phase| phase.memory[when] as f64 / 1e6);
    Row::new(format!("viewers, {name}"))
        .with("requests", middle(&AttackPhase::per_s), "1/s")
        .with("played", middle(&|phase| phase.viewers.played as f64), "")
        .with("lateness p50", ms(|seen| seen.lateness.p50_us), "ms")
        .with("p99", middle(&AttackPhase::p99_ms), "ms")
        .with("p99 to alone", phases.ratio(at, 0, AttackPhase::p99_ms).mid, "")
        .with("p99.9", ms(|seen| seen.lateness.p999_us), "ms")
        .with("max", ms(|seen| seen.lateness.max_us), "ms")
        .with("lost", middle(&|phase| phase.viewers.lost_in_all() as f64), "packets")
        .with("dropped by the receiver", middle(&|phase| phase.viewers.receiver.socket_drops as f64), "")
        .with("playlists", middle(&|phase| phase.visits.len() as f64), "")
        .with("playlist p50", middle(&|phase| phase.visit_ms(0.5)), "ms")
        .with("playlist p99", middle(&|phase| phase.visit_ms(0.99)), "ms")
        .with("playlist p99 to alone", phases.ratio(at, 0, |phase| phase.visit_ms(0.99)).mid, "")
        .with("server's memory before", memory(0), "MB")
        .with("most", memory(1), "MB")
        .with("after", memory(2), "MB")
}

/// All together: the worst of each. The first are viewers alone.
fn judge(names: &[&str], phases: &Turns<AttackPhase>, options: &Options) -> Vec<Promise> {
    let none = |id: &str, count: u64, what: &str| Promise::at_most(id, count as f64, 0.0, what);
    let worst = |figure: fn(&AttackPhase) -> f64| {
        (1..names.len()).map(|at| phases.ratio(at, 0, figure)).reduce(Interval::max)
    };
    let at = |name: &str| names.iter().position(|one| *one == name);
    let mut promises = vec![
        none("hostile-loss", phases.sum(AttackPhase::lost), "packets"),
        none(
            "hostile-failed",
            phases.sum(|phase| phase.viewers.failed + phase.viewers.sessions_silent),
            "viewers",
        ),
        none("hostile-left", phases.sum(|phase| phase.left), "things that the server still holds"),
        none(
            "hostile-wrong",
            phases.sum(|phase| phase.done.wrong),
            "rounds with an answer that must not be given",
        ),
    ];
    promises.extend(
        worst(AttackPhase::p99_ms).map(|ratio| {
            Promise::at_most("hostile-lateness-ratio", ratio, LATENESS_RATIO, "of viewers alone")
        }),
    );
    promises.extend(
        worst(|phase| phase.visit_ms(0.99))
            .map(|ratio| Promise::at_most("hostile-visit-ratio", ratio, VISIT_RATIO, "of viewers alone")),
    );
    // From when viewers alone have been there: the cache's memory is present then.
    if let Some(base) = phases.of(0).first().map(|alone| alone.memory[2] as f64) {
        let most = (1..names.len()).flat_map(|at| phases.values(at, |phase| phase.memory[1] as f64));
        let ratio = most.fold(base, f64::max) / base;
        promises.push(Promise::at_most("hostile-memory", ratio, MEMORY_RATIO, "of that with viewers alone"));
    }
    if let (Some(tokens), Some(paths)) = (at(TOKENS), at(PATHS)) {
        let ratio = phases.ratio(tokens, paths, AttackPhase::per_s);
        promises.push(Promise::at_least("hostile-tokens", ratio, TOKENS_RATIO, "for each path to elsewhere"));
    }
    if let Some(idle) = at(IDLE) {
        let held = phases.values(idle, |phase| phase.done.requests as f64);
        let (least, bound) = (held.into_iter().fold(f64::INFINITY, f64::min), idle_count(options) as f64);
        promises.push(Promise::at_least("hostile-idle", least, bound, "connections"));
    }
    promises
}

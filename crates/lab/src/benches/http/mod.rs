//! Cost of sending files over HTTP beside nginx with sendfile: as fast as they are taken, and to
//! viewers that watch (`viewers`).
//!
//! Both servers run all the time, on the same core; clients on the other cores fetch from one of them at a time, in turns. Everything is in memory: in
//! the cache of ours, in the page cache for nginx. Bytes are counted by the clients, processor time is that of the server's processes and of the
//! kernel thread that sends for them: on a veth pair it includes the way to the receiver's socket. The same segments by HTTPS from ours say what TLS costs: all
//! of it in the program, as this program has no TLS in the kernel. HTTP by a TCP of our own beside the kernel's has hosts of its own (`engine`).

mod engine;
mod fetch;
mod viewers;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_core::limits::web::FAST_START_MS;
use millrace_core::units::BitRate;

use self::fetch::{FetchClient, Fetched, Shop};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::meter::{Spent, Usage};
use crate::capacity::site::{BenchSite, Group};
use crate::capacity::{Scene, Scratch};
use crate::frame::stats::{Spread, median, ratio_interval};
use crate::frame::{
    Bench, Interval, LEAST_ROUNDS, Need, NoiseMeter, Options, Promise, Report, Rounds, Row, TargetBound,
};
use crate::peers::{self, HTTP_PORT, HTTPS_PORT, OURSELVES};
use crate::proc::cpu_ns;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "http",
    shows: "bytes a processor second of the server, by HTTP from memory as fast as they are taken: whole HLS segments, whole files; ours and nginx with sendfile, what HTTPS costs beside HTTP, and our TCP beside the kernel's; and the core time of viewers that watch by HLS and of files read at their own rate",
    not_for: "how many viewers a server carries (bench peers has that), and the speed of a network card: a veth pair runs the receiver's kernel path on the sender's core",
    options: &["runs", "rate", "only", "offload", "tun", "quick", "duration", "scratch"],
    targets: &[
        "http-segments-ratio",
        "http-files-ratio",
        "http-https-cost",
        "http-engine-ratio",
        "http-players-cost",
        "http-paced-cost",
    ],
    needs: &[
        Need::Root,
        Need::Program("ffmpeg", "apt-get install ffmpeg"),
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
        Need::Program("nginx", "apt-get install nginx-light (do not start it as a service)"),
        Need::Program("openssl", "apt-get install openssl"),
    ],
    run,
};

/// Ours against nginx, in bytes a processor second.
const RATIO_BOUND: f64 = 1.0;
/// Processor time of a byte by HTTPS against one by HTTP.
const TLS_BOUND: f64 = 1.3;
/// Clients that fetch at the same time.
const CLIENTS: usize = 8;
/// A file that goes out at once as a whole: the rest of a longer one is sent at its pace.
const FILE_S: u64 = FAST_START_MS as u64 / 1000 - 1;
/// Length of the title that is fetched in segments: ten of them.
const TITLE_S: u64 = 60;
/// Where nginx listens.
const NGINX_PORT: u16 = 8556;
/// How long the first bytes of a turn may take.
const FIRST_BYTES: Duration = Duration::from_secs(20);
/// Before a measurement begins, everybody is under way.
const SETTLE: Duration = Duration::from_millis(200);
/// What `--only` names.
const PARTS: [&str; 6] =
    ["segments", "files", "https", engine::PART, viewers::PARTS[0].0, viewers::PARTS[1].0];
/// Those that have clients on one host and the servers, with nginx among them, on another.
const ON_A_SITE: [&str; 3] = [PARTS[0], PARTS[1], PARTS[2]];

/// Bytes, files and processor time of one turn of a server.
struct ServerTurn {
    bytes: u64,
    files: u64,
    spent: Spent,
    /// Processor time in seconds of threads whose names begin so.
    threads: Vec<(&'static str, f64)>,
}

/// Bytes and files fetched until now, and the time used by the threads that are listed separately
/// and by the whole server.
type UsageReading = ((u64, u64), Vec<(&'static str, u64)>, Usage);

impl ServerTurn {
    /// Returns the difference between two looks.
    fn between(name: &str, before: UsageReading, after: UsageReading) -> anyhow::Result<Self> {
        let ((bytes, files), threads, usage) = after;
        let ((bytes_then, files_then), threads_then, usage_then) = before;
        ensure!(bytes > bytes_then, "{name}: nothing was fetched");
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / 1e9;
        let threads = threads.iter().zip(&threads_then);
        Ok(Self {
            bytes: bytes - bytes_then,
            files: files - files_then,
            spent: usage.since(&usage_then),
            threads: threads.map(|((name, now), (_, then))| (*name, seconds(*now, *then))).collect(),
        })
    }
}

/// A server, and the files fetched from it.
struct Contender<'a> {
    name: &'static str,
    group: u32,
    shop: Shop,
    /// Threads that are listed separately.
    threads: &'a [&'static str],
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let unknown = options.only.iter().find(|part| !PARTS.contains(&part.as_str()));
    ensure!(
        unknown.is_none(),
        "--only {}: the parts of bench http are {}",
        unknown.map_or("", |part| part),
        PARTS.join(", ")
    );
    let wants = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    let mut report = Report::new("http");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "http")?;
    let rate = rate(options);
    options.say(&format!("making media files of {rate}"));
    let files = titles(&scratch.0, rate, options.pick(8, TITLE_S, TITLE_S))?;
    if ON_A_SITE.into_iter().any(wants) {
        on_a_site(options, &scratch.0, &files, wants, &mut noise, &mut report)?;
    }
    if wants(engine::PART) {
        engine::run(options, &scratch.0, &files, &mut noise, &mut report)?;
    }
    viewers::run(options, &scratch.0, wants, &mut noise, &mut report)?;
    report.noise = Some(noise.finish());
    Ok(report)
}

/// The media rate.
fn rate(options: &Options) -> BitRate {
    let default_rate = options.pick(2_000_000, 8_000_000, 8_000_000);
    options.rates.first().copied().unwrap_or(BitRate(default_rate))
}

/// The parts with one server of ours, and nginx.
fn on_a_site(
    options: &Options,
    scratch: &Path,
    files: &MediaFiles,
    wants: impl Fn(&str) -> bool,
    noise: &mut NoiseMeter,
    report: &mut Report,
) -> anyhow::Result<()> {
    let site = BenchSite::new(options.offload.unwrap_or(false), 1, scratch.join("site"))?;
    let certificate = certificate(&site, scratch)?;
    let tls = Some([certificate[0].as_path(), certificate[1].as_path()]);
    let scene = Scene { tls, ..Scene::new(options, &site, files, Duration::ZERO) };
    let services = OURSELVES.services(scene)?;
    let ours = (services.first().context("our server")?.start)(0)?;
    let www = scratch.join("www");
    std::fs::create_dir_all(&www).with_context(|| format!("{}", www.display()))?;
    let nginx = peers::nginx_serves(&site, &www, NGINX_PORT)?;
    let ours = ours.groups.first().map(Group::id).context("our server")?;
    for part in ON_A_SITE.into_iter().filter(|part| wants(part)) {
        let threads = &["engine", "web", "control"];
        let contenders = if part == "https" {
            let (plain, by_tls) = site.on_client(|| shops_by_tls(&site, &certificate[0]))??;
            [
                Contender { name: "HTTPS", group: ours, shop: by_tls, threads },
                Contender { name: "HTTP", group: ours, shop: plain, threads },
            ]
        } else {
            let (our_shop, its_shop) = site.on_client(|| shops(&site, &www, part))??;
            [
                Contender { name: "ours", group: ours, shop: our_shop, threads },
                Contender { name: "nginx", group: nginx.id(), shop: its_shop, threads: &[] },
            ]
        };
        let bound = Some(if part == "https" { 1.0 / TLS_BOUND } else { RATIO_BOUND });
        let take_turn = |at: usize, length| turn(&site, &contenders[at], length);
        let (turns, confidence) = rounds(options, part, (2, bound), take_turn, noise)?;
        for (contender, turns) in contenders.iter().zip(&turns) {
            report.rows.extend(rows(part, contender, turns));
        }
        if part == "https" {
            report.rows.push(cost_of_tls(&turns[0], &turns[1]));
            let cost = ratio(&turns[1], &turns[0], confidence);
            report.promises.push(Promise::at_most("http-https-cost", cost, TLS_BOUND, ""));
            continue;
        }
        report.rows.push(compare(part, "ours", "nginx", &turns[0], &turns[1]));
        let ratio = ratio(&turns[0], &turns[1], confidence);
        report.promises.push(Promise::at_least(&format!("http-{part}-ratio"), ratio, RATIO_BOUND, ""));
    }
    Ok(())
}

/// One title for segments, and a short one that is sent as fast as it is taken.
fn titles(dir: &Path, rate: BitRate, seconds: u64) -> anyhow::Result<MediaFiles> {
    let mut files = MediaFiles::make(&dir.join("media"), rate, seconds, 1)?;
    let short = MediaFiles::make(&dir.join("short"), rate, FILE_S, 1)?;
    let path = files.dir.join("media-1.ts");
    std::fs::rename(&short.paths[0], &path).with_context(|| format!("{}", path.display()))?;
    files.paths.push(path);
    Ok(files)
}

/// Returns the files fetched from ours and from nginx: the same bytes, which ours serves first and
/// nginx then.
fn shops(site: &BenchSite, www: &Path, part: &str) -> anyhow::Result<(Shop, Shop)> {
    let address = |port: u16| -> anyhow::Result<SocketAddr> {
        Ok(SocketAddr::new(site.server_ip().parse().context("the server's address")?, port))
    };
    let (ours, nginx) = (address(HTTP_PORT)?, address(NGINX_PORT)?);
    let mut client = FetchClient::to(ours, None)?;
    let paths = match part {
        "segments" => segments(&mut client)?,
        _ => vec!["/titles/media-1.ts".to_owned()],
    };
    let mut copies = Vec::new();
    let mut other = FetchClient::to(nginx, None)?;
    for (n, path) in paths.iter().enumerate() {
        let file = client.get(path)?;
        let name = format!("{part}-{n}.ts");
        std::fs::write(www.join(&name), &file).with_context(|| format!("write {name}"))?;
        let copy = format!("/{name}");
        ensure!(other.get(&copy)? == file, "{path}: nginx gives other bytes");
        copies.push(copy);
    }
    let shop = |server, paths| Shop { server, tls: None, paths };
    Ok((shop(ours, paths), shop(nginx, copies)))
}

/// The segments of the longer title, as its playlist has them, but without its session: it would be
/// one viewer's, and all clients fetch these.
fn segments(client: &mut FetchClient) -> anyhow::Result<Vec<String>> {
    let list = client.get("/titles/media-0/media.m3u8")?;
    let list = String::from_utf8(list).context("the playlist is no text")?;
    let names = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let bare = names.map(|name| name.split_once('?').map_or(name, |(bare, _)| bare));
    let paths: Vec<_> = bare.map(|name| format!("/titles/media-0/{name}")).collect();
    ensure!(!paths.is_empty(), "the playlist has no segments");
    Ok(paths)
}

/// A certificate for the server's address, and its key.
fn certificate(site: &BenchSite, dir: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let files = ["certificate.pem", "key.pem"].map(|name| dir.join(name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    openssl.args(["-days", "30", "-subj", "/CN=bench", "-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-addext").arg(format!("subjectAltName=IP:{}", site.server_ip()));
    openssl.arg("-out").arg(&files[0]).arg("-keyout").arg(&files[1]);
    peers::run(&mut openssl).context("make a certificate")?;
    Ok(files)
}

/// The segments of ours by HTTP and by HTTPS: the same bytes.
fn shops_by_tls(site: &BenchSite, certificate: &Path) -> anyhow::Result<(Shop, Shop)> {
    let ip: IpAddr = site.server_ip().parse().context("the server's address")?;
    let (plain, by_tls) = (SocketAddr::new(ip, HTTP_PORT), SocketAddr::new(ip, HTTPS_PORT));
    let tls = Some(fetch::trusting(certificate)?);
    let (mut client, mut other) = (FetchClient::to(plain, None)?, FetchClient::to(by_tls, tls.as_ref())?);
    let paths = segments(&mut client)?;
    for path in &paths {
        ensure!(client.get(path)? == other.get(path)?, "{path}: other bytes by HTTPS");
    }
    let plain = Shop { server: plain, tls: None, paths: paths.clone() };
    Ok((plain, Shop { server: by_tls, tls, paths }))
}

/// All rounds of one part, in which each of `count` has its turn: more while it is open whether the
/// first reaches `bound` times the second. Returns the confidence that their ratio has, too.
fn rounds(
    options: &Options,
    part: &str,
    (count, bound): (usize, Option<f64>),
    turn: impl Fn(usize, Duration) -> anyhow::Result<ServerTurn>,
    noise: &mut NoiseMeter,
) -> anyhow::Result<(Vec<Vec<ServerTurn>>, f64)> {
    let mut rounds = Rounds::at_least(options, options.pick(1, LEAST_ROUNDS, LEAST_ROUNDS));
    let seconds = options.duration_s.map_or(options.pick(0.3, 1.5, 2.5), |s| s as f64);
    let length = Duration::from_secs_f64(seconds);
    let mut turns: Vec<Vec<ServerTurn>> = (0..count).map(|_| Vec::new()).collect();
    while rounds.go_on(|confidence| {
        let ratio = || ratio(&turns[0], &turns[1], confidence);
        bound.is_none_or(|bound| ratio().keeps(TargetBound::AtLeast(bound)).is_some())
    }) {
        let round = rounds.count();
        noise.look();
        options.say(&format!("{part}, round {round}"));
        for at in 0..count {
            options.go_on()?;
            let at = (at + round) % count;
            turns[at].push(turn(at, length)?);
        }
    }
    Ok((turns, rounds.confidence()))
}

/// Bytes a processor second of one over those of another.
fn ratio(turns: &[ServerTurn], others: &[ServerTurn], confidence: f64) -> Interval {
    let rates = |turns: &[ServerTurn]| turns.iter().map(per_second).collect::<Vec<f64>>();
    ratio_interval(&rates(turns), &rates(others), confidence)
}

/// One against another, in bytes a processor second.
fn compare(part: &str, name: &str, other: &str, turns: &[ServerTurn], others: &[ServerTurn]) -> Row {
    let ratios: Vec<f64> = turns.iter().zip(others).map(|(a, b)| per_second(a) / per_second(b)).collect();
    let (spread, ratio) = (Spread::of(&ratios), median(&ratios));
    Row::new(format!("{part}: {name} / {other}, bytes a processor second"))
        .with("ratio", ratio, "")
        .with("p10", spread.p10, "")
        .with("p90", spread.p90, "")
        .with("rounds", ratios.len() as f64, "")
}

/// What TLS costs: processor time for each Gb/s that is sent.
fn cost_of_tls(by_tls: &[ServerTurn], plain: &[ServerTurn]) -> Row {
    let share =
        |turn: &ServerTurn| turn.spent.processes_s / (turn.bytes as f64 * 8.0 / 1e9).max(1e-9) * 100.0;
    let of = |turns: &[ServerTurn]| median(&turns.iter().map(share).collect::<Vec<f64>>());
    let ratios: Vec<f64> = by_tls.iter().zip(plain).map(|(a, b)| share(a) / share(b)).collect();
    Row::new("https: processor for each Gb/s")
        .with("HTTPS", of(by_tls), "% of a core")
        .with("HTTP", of(plain), "% of a core")
        .with("ratio", median(&ratios), "")
        .with("rounds", ratios.len() as f64, "")
}

/// Bytes a second of processor time.
fn per_second(turn: &ServerTurn) -> f64 {
    turn.bytes as f64 / turn.spent.processes_s.max(1e-9)
}

fn rows(part: &str, contender: &Contender<'_>, turns: &[ServerTurn]) -> Vec<Row> {
    let middle = |value: &dyn Fn(&ServerTurn) -> f64| median(&turns.iter().map(value).collect::<Vec<f64>>());
    let label = format!("{part}: {}", contender.name);
    let spread = Spread::of(&turns.iter().map(per_second).collect::<Vec<f64>>());
    let mut rows = vec![
        Row::new(&label)
            .with("bytes a processor second", spread.p50 / 1e6, "MB/s")
            .with("p10", spread.p10 / 1e6, "")
            .with("p90", spread.p90 / 1e6, "")
            .with("rate", middle(&|t| t.bytes as f64 * 8.0 / t.spent.wall_s / 1e9), "Gb/s")
            .with("processes", middle(&|t| t.spent.processes_s / t.spent.wall_s * 100.0), "%")
            .with("files", middle(&|t| t.files as f64 / t.spent.wall_s), "1/s")
            .with("voluntary switches", middle(&|t| t.spent.voluntary_switches as f64 / gigabytes(t)), "/GB"),
    ];
    if !contender.threads.is_empty() {
        let mut row = Row::new(format!("{label}, by thread"));
        for (n, name) in contender.threads.iter().enumerate() {
            let of =
                |turn: &ServerTurn| turn.threads.get(n).map_or(0.0, |(_, seconds)| seconds / gigabytes(turn));
            row = row.with(name, middle(&of) * 1e3, "ms/GB");
        }
        rows.push(row);
    }
    rows
}

fn gigabytes(turn: &ServerTurn) -> f64 {
    (turn.bytes as f64 / 1e9).max(1e-9)
}

/// One turn: clients fetch, and the server's usage is read while all of them do.
fn turn(site: &BenchSite, contender: &Contender<'_>, length: Duration) -> anyhow::Result<ServerTurn> {
    let look = |fetched: &Fetched| -> anyhow::Result<UsageReading> {
        let threads = contender.threads.iter().map(|name| Ok((*name, cpu_ns(contender.group, name)?)));
        let threads = threads.collect::<anyhow::Result<Vec<_>>>()?;
        Ok((fetched.counts(), threads, Usage::look(&[contender.group], &site.server_cores)))
    };
    let (before, after) = site.on_client(|| while_fetching(&contender.shop, length, || Ok(()), look))??;
    ServerTurn::between(contender.name, before, after)
}

/// Looks twice, `length` apart, while clients fetch on threads that begin with `begin`.
fn while_fetching<T>(
    shop: &Shop,
    length: Duration,
    begin: impl Fn() -> anyhow::Result<()> + Sync,
    look: impl Fn(&Fetched) -> anyhow::Result<T>,
) -> anyhow::Result<(T, T)> {
    let (fetched, stop) = (Fetched::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (fetched, stop, begin) = (&fetched, &stop, &begin);
                // Each begins elsewhere, so that not all ask for the same at the same time.
                let first = n * shop.paths.len() / CLIENTS;
                scope.spawn(move || begin().and_then(|()| fetch::run(shop, first, fetched, stop)))
            })
            .collect();
        std::thread::sleep(SETTLE);
        let (before, bytes) = (look(&fetched), fetched.counts().0);
        std::thread::sleep(length);
        // A short turn in which others had the processors lasts longer.
        let late = Instant::now() + FIRST_BYTES;
        while fetched.counts().0 == bytes && Instant::now() < late {
            std::thread::sleep(SETTLE / 20);
        }
        let after = look(&fetched);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok((before?, after?))
    })
}

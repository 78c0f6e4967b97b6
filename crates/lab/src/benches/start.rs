//! How long a start takes: from the program's start to its first answers, and from PLAY to the first packet.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, ensure};
use millrace_client::play::{PlayOptions, TransportChoice, play};
use millrace_core::units::ByteLen;
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_store::volume::Volume;

use super::ingest::tempdir;
use super::sessions::Server;
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row, percentile};
use crate::media;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "start",
    shows: "time until `serve` is ready, by titles in the store and memory of the cache; to its first DESCRIBE; from PLAY to the first packet",
    not_for: "disks, since the store lies in memory; nor for the first picture, which waits for what a player buffers",
    options: &["titles", "runs"],
    targets: &["start-ready", "start-describe", "start-first-packet-udp", "start-first-packet-tcp"],
    needs: &[Need::Program("ffmpeg", "apt-get install ffmpeg")],
    run,
};

/// The slowest start.
const READY_MS: f64 = 1000.0;
/// From connecting to the reply, for a title that no viewer has opened yet.
const DESCRIBE_MS: f64 = 20.0;
/// From the reply to PLAY to the first packet.
const FIRST_PACKET_UDP_MS: f64 = 20.0;
/// The same on the RTSP connection, where the server waits for 50 ms.
const FIRST_PACKET_TCP_MS: f64 = 70.0;

const LARGE_CACHE: u64 = 5 << 30;
const SMALL_CACHE: u64 = 64 << 20;

/// The titles that are played, one by each transport, so that each is read for the first time.
const PLAYED: [(&str, TransportChoice); 2] =
    [("played-udp", TransportChoice::Udp), ("played-tcp", TransportChoice::Tcp)];
const PLAYED_S: u64 = 5;

/// Transport packets of each of the other titles: a fraction of a second.
const TINY_PACKETS: usize = 120;

/// What starts took, in milliseconds.
#[derive(Default)]
struct Starts {
    ready: Vec<f64>,
    describe: Vec<f64>,
    /// As in [`PLAYED`].
    first_packet: [Vec<f64>; 2],
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let (mut report, mut meter) = (Report::new("start"), NoiseMeter::start());
    let large = if options.tiny { SMALL_CACHE } else { large_cache(&mut report) };
    let counts = options.pick::<&[usize]>(&[3], &[10], &[10, 1_000, 10_000]);
    let counts = options.titles.map_or_else(|| counts.to_vec(), |count| vec![count]);
    let runs = options.runs.unwrap_or(options.pick(1, 3, 7));
    let dir = tempdir(options)?;
    let mut store = Store::make(&dir.0, options)?;
    let mut all = Vec::new();
    for count in counts {
        store.fill(count, options)?;
        let caches =
            if all.is_empty() && large > SMALL_CACHE { vec![SMALL_CACHE, large] } else { vec![large] };
        for cache in caches {
            let label = format!("{count} titles, cache of {}", ByteLen(cache));
            let mut starts = Starts::default();
            for run in 1..=runs {
                options.go_on()?;
                options.say(&format!("{label}: run {run} of {runs}"));
                meter.look();
                store.start(options, cache, &mut starts)?;
            }
            report.rows.push(row(label, &mut starts));
            all.push(starts);
        }
    }
    judge(&mut report, all);
    report.noise = Some(meter.finish());
    Ok(report)
}

/// Returns 5 GiB, or half of the free memory; the report shows which.
fn large_cache(report: &mut Report) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free_kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let half = free_kib.map_or(LARGE_CACHE, |kib| kib * 1024 / 2) >> 20 << 20;
    if half < LARGE_CACHE {
        let cache = ByteLen(half.max(SMALL_CACHE));
        report
            .rows
            .push(Row::new(format!("memory is short: a cache of {cache}, not {}", ByteLen(LARGE_CACHE))));
    }
    half.clamp(SMALL_CACHE, LARGE_CACHE)
}

fn row(label: String, starts: &mut Starts) -> Row {
    let ready = percentile(&mut starts.ready, 50.0);
    let slowest = percentile(&mut starts.ready, 100.0);
    let describe = percentile(&mut starts.describe, 50.0);
    let [udp, tcp] = starts.first_packet.each_mut().map(|values| percentile(values, 50.0));
    Row::new(label)
        .with("ready p50", ready, "ms")
        .with("slowest", slowest, "ms")
        .with("first DESCRIBE p50", describe, "ms")
        .with("PLAY to first packet by UDP p50", udp, "ms")
        .with("by TCP p50", tcp, "ms")
        .with("starts", starts.ready.len() as f64, "")
}

/// The slowest start of all; of the rest the slowest median of a row. That values scatter excuses none of them.
fn judge(report: &mut Report, all: Vec<Starts>) {
    let mut worst = [f64::MIN; 4];
    for mut starts in all {
        let [udp, tcp] = &mut starts.first_packet;
        let values = [
            percentile(&mut starts.ready, 100.0),
            percentile(&mut starts.describe, 50.0),
            percentile(udp, 50.0),
            percentile(tcp, 50.0),
        ];
        worst = std::array::from_fn(|at| worst[at].max(values[at]));
    }
    let bounds = [READY_MS, DESCRIBE_MS, FIRST_PACKET_UDP_MS, FIRST_PACKET_TCP_MS];
    for ((id, value), bound) in BENCH.targets.iter().zip(worst).zip(bounds) {
        report.promises.push(Promise::at_most(id, value, bound, "ms"));
    }
}

/// A store with titles of a few packets, beside those that are played.
struct Store {
    dir: PathBuf,
    tiny: PathBuf,
    titles: usize,
}

impl Store {
    fn make(dir: &Path, options: &Options) -> anyhow::Result<Self> {
        options.say("making titles");
        let (media, tiny, store) = (dir.join("media.ts"), dir.join("tiny.ts"), dir.join("store"));
        media::make_cbr_ts(&media, PLAYED_S, 2_000)?;
        let volume = Volume::open_or_create(&store)?;
        for (name, _) in PLAYED {
            add(&volume, &media, name, options)?;
        }
        media::make_cbr_ts(&tiny, 1, 600)?;
        let bytes = std::fs::read(&tiny)?;
        std::fs::write(&tiny, &bytes[..bytes.len().min(TINY_PACKETS * 188)])?;
        Ok(Self { dir: store, tiny, titles: 0 })
    }

    /// Adds the same bytes as further titles until there are `titles` of them.
    fn fill(&mut self, titles: usize, options: &Options) -> anyhow::Result<()> {
        let volume = Volume::open_or_create(&self.dir)?;
        for number in self.titles..titles {
            if number % 100 == 0 {
                options.say(&format!("adding title {number} of {titles}"));
            }
            add(&volume, &self.tiny, &format!("title-{number}"), options)?;
        }
        self.titles = self.titles.max(titles);
        Ok(())
    }

    /// One start: until it is ready, the first DESCRIBE, the first packets.
    fn start(&self, options: &Options, cache: u64, starts: &mut Starts) -> anyhow::Result<()> {
        let mut command = Command::new(&options.program);
        command.args(["serve", "--quiet", "--listen", "127.0.0.1:0", "--cache", &format!("{cache}B")]);
        // The machine may be busy with other work: no viewer is refused because of it.
        command.args(["--admission", "off"]).arg("--store").arg(&self.dir);
        let begun = StdInstant::now();
        let server = Server::start(command)?;
        starts.ready.push(millis(begun));
        let begun = StdInstant::now();
        describe(&format!("{}title-{}", server.url, self.titles - 1))?;
        starts.describe.push(millis(begun));
        for ((title, transport), values) in PLAYED.into_iter().zip(&mut starts.first_packet) {
            values.push(first_packet(options, &format!("{}{title}", server.url), transport)?);
        }
        Ok(())
    }
}

fn add(volume: &Volume, file: &Path, name: &str, options: &Options) -> anyhow::Result<()> {
    let cancel = Arc::clone(&options.cancel);
    let named = IngestOptions { name: Some(name.to_owned()), cancel, ..IngestOptions::default() };
    let added = ingest(volume, file, &named, &mut |_| ());
    options.go_on()?;
    added?;
    Ok(())
}

/// Plays a title until its first packet is there; milliseconds from the reply to PLAY.
fn first_packet(options: &Options, url: &str, transport: TransportChoice) -> anyhow::Result<f64> {
    let wanted = PlayOptions { transport, ..PlayOptions::new(url) };
    let is_enough = AtomicBool::new(false);
    let seen = play(&wanted, &is_enough, &mut |progress| {
        if progress.packets > 0 || options.go_on().is_err() {
            is_enough.store(true, Ordering::Relaxed);
        }
    });
    options.go_on()?;
    let seen = seen?;
    let first = seen.plays.first().and_then(|play| {
        // The reply may have been read later than it came.
        Some(play.first_packet_us?.saturating_add_unsigned(play.reply_read_late_us))
    });
    Ok(first.with_context(|| format!("{url}: no packet came"))? as f64 / 1e3)
}

fn millis(since: StdInstant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Connects, asks for a title and reads the reply to the end of its header.
fn describe(url: &str) -> anyhow::Result<()> {
    let (_, rest) = url.split_once("://").context("a URL")?;
    let address: SocketAddr =
        rest.split('/').next().unwrap_or_default().parse().context("the server's address")?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(stream, "DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\n\r\n")?;
    let (mut reply, mut buffer) = (Vec::new(), [0; 4096]);
    while !reply.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the server hung up on DESCRIBE {url}");
        reply.extend_from_slice(&buffer[..count]);
    }
    let status = String::from_utf8_lossy(&reply).lines().next().unwrap_or_default().to_owned();
    ensure!(status.starts_with("RTSP/1.0 200"), "DESCRIBE {url}: {status}");
    Ok(())
}

//! How long a start takes: from the program's start to its first answers, and from PLAY to the first packet.
//!
//! Each is compared with a bare loop that does on the same machine, right after it, what no server can leave out: a start of
//! the program and reading the small files of the store; a connection and a reply without a server behind it; a sleep as
//! long as the server may wait before it sends.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
use crate::frame::{Bench, Interval, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
use crate::media;

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "start",
    shows: "time until `serve` is ready, by titles in the store and memory of the cache; to its first DESCRIBE; from PLAY to the first packet; each beside a bare loop",
    not_for: "disks, since the store lies in memory; nor for the first picture, which waits for what a player buffers",
    options: &["titles", "runs"],
    targets: &["start-ready", "start-describe", "start-first-packet-udp", "start-first-packet-tcp"],
    needs: &[Need::Program("ffmpeg", "apt-get install ffmpeg")],
    run,
};

/// Name, unit and bound of each time in [`StartTimes`].
const TARGETS: [(&str, &str, f64); 4] = [
    ("start-ready", "of a bare start", 20.0),
    ("start-describe", "of a bare reply", 50.0),
    ("start-first-packet-udp", "of a bare sleep", 2.0),
    ("start-first-packet-tcp", "of a bare sleep", 1.4),
];
/// The longest wait of the server before the first packet: a burst by UDP, and on the RTSP connection.
const WAITS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];
/// Files of a store up to this size are no media: a start reads them.
const SMALL_FILE: u64 = 64 << 10;

const LARGE_CACHE: u64 = 5 << 30;
const SMALL_CACHE: u64 = 64 << 20;

/// The titles that are played, one by each transport, so that each is read for the first time.
const PLAYED: [(&str, TransportChoice); 2] =
    [("played-udp", TransportChoice::Udp), ("played-tcp", TransportChoice::Tcp)];
const PLAYED_S: u64 = 5;

/// Transport packets of each of the other titles: a fraction of a second.
const TINY_PACKETS: usize = 120;

/// Milliseconds of one start, and of the bare loops beside it: until it is ready; the first DESCRIBE, from connecting to the
/// reply, for a title that no viewer has opened yet; from the reply to PLAY to the first packet, by UDP and by TCP.
struct StartTimes {
    server: [f64; 4],
    bare: [f64; 4],
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let (mut report, mut meter) = (Report::new("start"), NoiseMeter::start());
    let large = if options.tiny { SMALL_CACHE } else { large_cache(&mut report) };
    let counts = options.pick::<&[usize]>(&[3], &[10], &[10, 1_000, 10_000]);
    let counts = options.titles.map_or_else(|| counts.to_vec(), |count| vec![count]);
    let dir = tempdir(options)?;
    let mut store = Store::make(&dir.0, options)?;
    let mut worst: Option<[Interval; 4]> = None;
    for count in counts {
        store.fill(count, options)?;
        let caches =
            if worst.is_none() && large > SMALL_CACHE { vec![SMALL_CACHE, large] } else { vec![large] };
        for cache in caches {
            let label = format!("{count} titles, cache of {}", ByteLen(cache));
            let turn = |_, _| store.start(options, cache);
            let starts =
                Turns::take(options, &mut meter, &[&label], turn, |starts| promises(ratios(starts)))?;
            report.rows.push(row(&label, &starts));
            let ratios = ratios(&starts);
            let worse = |worst: [Interval; 4]| std::array::from_fn(|at| worst[at].max(ratios[at]));
            worst = Some(worst.map_or(ratios, worse));
        }
    }
    report.promises = worst.map_or(Vec::new(), promises);
    report.noise = Some(meter.finish());
    Ok(report)
}

fn ratios(starts: &Turns<StartTimes>) -> [Interval; 4] {
    std::array::from_fn(|at| starts.interval(0, |start| start.server[at] / start.bare[at]))
}

fn promises(ratios: [Interval; 4]) -> Vec<Promise> {
    let promise = |((id, unit, bound), ratio)| Promise::at_most(id, ratio, bound, unit);
    TARGETS.into_iter().zip(ratios).map(promise).collect()
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

fn row(label: &str, starts: &Turns<StartTimes>) -> Row {
    let names = ["ready", "first DESCRIBE", "PLAY to first packet by UDP", "by TCP"];
    let bare = ["a bare start", "a bare reply", "a sleep of 10 ms", "of 50 ms"];
    let mut row = Row::new(label);
    for at in 0..names.len() {
        row = row.with(names[at], starts.median(0, |start| start.server[at]), "ms").with(
            bare[at],
            starts.median(0, |start| start.bare[at]),
            "ms",
        );
    }
    row.with("starts", starts.of(0).len() as f64, "")
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

    /// One start, with the bare loops right behind it.
    fn start(&self, options: &Options, cache: u64) -> anyhow::Result<StartTimes> {
        let mut command = Command::new(&options.program);
        command.args(["serve", "--quiet", "--listen", "127.0.0.1:0", "--cache", &format!("{cache}B")]);
        // The machine may be busy with other work: no viewer is refused because of it.
        command.args(["--admission", "off"]).arg("--store").arg(&self.dir);
        let begun = StdInstant::now();
        let server = Server::start(command)?;
        let ready = millis(begun);
        let begun = StdInstant::now();
        describe(&format!("{}title-{}", server.url, self.titles - 1))?;
        let described = millis(begun);
        let mut first = [0.0; 2];
        for ((title, transport), first) in PLAYED.into_iter().zip(&mut first) {
            *first = first_packet(options, &format!("{}{title}", server.url), transport)?;
        }
        drop(server);
        let [sleep_udp, sleep_tcp] = WAITS.map(bare_sleep);
        Ok(StartTimes {
            server: [ready, described, first[0], first[1]],
            bare: [self.bare_start(options)?, bare_reply()?, sleep_udp, sleep_tcp],
        })
    }

    /// Starts the program, which ends at once, and reads all small files of the store.
    fn bare_start(&self, options: &Options) -> anyhow::Result<f64> {
        let begun = StdInstant::now();
        let mut command = Command::new(&options.program);
        let status = command.arg("--version").stdout(Stdio::null()).status()?;
        ensure!(status.success(), "the program could not show its version");
        read_small_files(&self.dir)?;
        Ok(millis(begun))
    }
}

fn read_small_files(dir: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_dir() {
            read_small_files(&entry.path())?;
        } else if about.len() <= SMALL_FILE {
            black_box(std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Connects to a thread that replies to the first byte, until its reply has come.
fn bare_reply() -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let replies = scope.spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut [0])?;
            stream.write_all(&[0])
        });
        let begun = StdInstant::now();
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(&[0])?;
        stream.read_exact(&mut [0])?;
        let took = millis(begun);
        replies.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(took)
    })
}

/// How long a sleep of this length really takes.
fn bare_sleep(length: Duration) -> f64 {
    let begun = StdInstant::now();
    std::thread::sleep(length);
    millis(begun)
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

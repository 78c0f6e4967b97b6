//! Throughput against the number of connections, over a veth pair: Figures 3 and 8 of the paper.
//!
//! Every connection sends as fast as it may, 4 KB at a time; the peer reads and throws away. Bytes are counted by the peer.

use std::io::Write;
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_offload::toe::{Engine, EngineSettings, PairSettings, TcpListener};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::listen;

use crate::benches::toe::peer::{LOOK_UP, Readers, looks_up, wait};
use crate::benches::toe::rig::{ClockReadings, HOST, Offload, Places, ToeRig, become_};
use crate::frame::stats::{Spread, median};
use crate::frame::{Axis, NoiseMeter, Options, Plot, PlotKind, Point, Report, Row};
use crate::streams::raise_open_files;

/// Bytes sent at once, as in the paper.
const UNIT_BYTES: usize = 4096;
const WALK_BYTES: usize = 64 << 20;
const PORT: u16 = 7400;
const MTU: u32 = 1500;
const BACKLOG: u32 = 4096;
/// Bytes of all connections together that the engine's sender may have given.
const AREA_BYTES: u32 = 64 << 20;
const CHUNK_BYTES: u32 = 4096;
/// Processes beyond which a machine is busy starting them.
const MOST_PROCESSES: u32 = 64;
/// The paper's drop with 64 connections, with rescheduling and without.
const PAPER_DROPS: [f64; 2] = [2.0, 9.0];
/// Number of connections at which drops are reported; they are also reported at the largest number.
const TOLD: u32 = 64;
/// Open files of the benchmark itself.
const OWN_FILES: u64 = 512;
const LIMIT: Duration = Duration::from_secs(60);
/// Most sends between two looks at the clock.
const SENDS: usize = 256;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// Ours: whether ACKs are processed behind the output stage, and whether segments are paced by the wheel or by the window alone.
    Engine { defers: bool, paced: bool },
    /// One thread.
    Epoll,
    /// `dd` with the connection as its output.
    Processes,
}

const SENDERS: [(Sender, &str); 5] = [
    (Sender::Engine { defers: true, paced: true }, "engine, rescheduled, wheel-paced"),
    (Sender::Engine { defers: false, paced: true }, "engine, ACKs at once, wheel-paced"),
    (Sender::Engine { defers: true, paced: false }, "engine, rescheduled, window-paced"),
    (Sender::Epoll, "kernel, epoll"),
    (Sender::Processes, "kernel, a process each"),
];

struct LinkSample {
    gbit_per_s: f64,
    /// Shares of a processor.
    client: f64,
    host: f64,
}

impl LinkSample {
    /// An engine has a thread of its own, and so more processors than a kernel that sends in the
    /// application's calls: whole rates do not compare them.
    fn per_processor(&self) -> f64 {
        self.gbit_per_s / self.host
    }
}

pub(super) fn run(options: &Options, report: &mut Report, noise: &mut NoiseMeter) -> anyhow::Result<()> {
    let most = most_connections(raise_open_files());
    let counts: &[u32] = options.pick(
        &[1, 16],
        &[1, 8, 64, 1000, 10_000],
        &[1, 2, 4, 8, 13, 16, 32, 64, 256, 1000, 4000, 10_000],
    );
    let rounds = options.runs.unwrap_or(options.pick(1, 2, 5));
    let length = Duration::from_millis(options.pick(30, 300, 1000));
    let mut rig = ToeRig::lay(MTU)?;
    let mut medians: Vec<Vec<(u32, Vec<f64>)>> = SENDERS.map(|_| Vec::new()).into();
    if counts.iter().any(|count| *count > most) {
        report.rows.push(Row::new(format!(
            "{most} connections where more were meant: a process may have no more files open here (ulimit -Hn)"
        )));
    }
    for count in counts.iter().map(|count| *count.min(&most)) {
        let mut slots: Vec<Vec<LinkSample>> = SENDERS.map(|_| Vec::new()).into();
        for round in 0..rounds {
            noise.look();
            options.go_on()?;
            options.say(&format!("{count} connections, round {}", round + 1));
            for at in 0..SENDERS.len() {
                let at = (at + round) % SENDERS.len();
                if SENDERS[at].0 == Sender::Processes && count > MOST_PROCESSES {
                    continue;
                }
                slots[at].push(slot(&mut rig, options.tun, SENDERS[at].0, count, length)?);
            }
        }
        for (((_, name), slots), medians) in SENDERS.iter().zip(&slots).zip(&mut medians) {
            if !slots.is_empty() {
                let rates: Vec<f64> = slots.iter().map(LinkSample::per_processor).collect();
                report.rows.push(row(count, name, slots, &rates));
                medians.push((count, rates));
            }
        }
    }
    drops(&medians, report);
    report.plots.push(plot(&medians));
    Ok(())
}

/// Both ends of each are files of this process with the kernel's TCP.
fn most_connections(open_files: u64) -> u32 {
    u32::try_from(open_files.saturating_sub(OWN_FILES) / 2).unwrap_or(u32::MAX).max(1)
}

fn row(count: u32, name: &str, slots: &[LinkSample], rates: &[f64]) -> Row {
    let spread = Spread::of(rates);
    let middle = |value: &dyn Fn(&LinkSample) -> f64| median(&slots.iter().map(value).collect::<Vec<f64>>());
    Row::new(format!("{count} connections: {name}"))
        .with("throughput of a processor", median(rates), "Gb/s")
        .with("p10", spread.p10, "")
        .with("p90", spread.p90, "")
        .with("in all", middle(&|slot| slot.gbit_per_s), "Gb/s")
        .with("sender's side", middle(&|slot| slot.host) * 100.0, "% of a processor")
        .with("client", middle(&|slot| slot.client) * 100.0, "% of a processor")
}

/// How far each falls from its own peak.
fn drops(medians: &[Vec<(u32, Vec<f64>)>], report: &mut Report) {
    for ((_, name), medians) in SENDERS.iter().zip(medians) {
        let peak = medians.iter().max_by(|a, b| median(&a.1).total_cmp(&median(&b.1)));
        let Some((at, peak)) = peak.map(|(count, rates)| (*count, median(rates))) else { continue };
        let mut row = Row::new(format!("drop from the peak: {name}"))
            .with("peak of a processor", peak, "Gb/s")
            .with("connections at it", f64::from(at), "");
        let drop = |there: Option<&(u32, Vec<f64>)>| {
            there.map_or(f64::NAN, |(_, rates)| (1.0 - median(rates) / peak) * 100.0)
        };
        row = row.with(
            &format!("drop with {TOLD}"),
            drop(medians.iter().find(|(count, _)| *count == TOLD)),
            "%",
        );
        let most = medians.iter().map(|(count, _)| *count).max().filter(|most| *most > MOST_PROCESSES);
        let with_most = most.and_then(|most| medians.iter().find(|(count, _)| *count == most));
        row = row.with("drop with the most", drop(with_most), "%");
        report.rows.push(row);
    }
    report.rows.push(
        Row::new("drop from the peak: paper").with("rescheduled, with 64", PAPER_DROPS[0], "%").with(
            "ACKs at once, with 64",
            PAPER_DROPS[1],
            "%",
        ),
    );
}

fn plot(medians: &[Vec<(u32, Vec<f64>)>]) -> Plot {
    let x = Axis::log("connections", "");
    let mut plot = Plot::new(
        PlotKind::Lines,
        "throughput of all connections over a veth pair, for each processor of the sender's side",
        x,
        Axis::new("throughput", "Gb/s"),
    );
    for ((_, name), medians) in SENDERS.iter().zip(medians) {
        let point = |(count, rates): &(u32, Vec<f64>)| {
            let spread = Spread::of(rates);
            Point::xy(f64::from(*count), median(rates)).within(spread.p10, spread.p90)
        };
        plot = plot.with(*name, medians.iter().map(point).collect());
    }
    plot
}

fn slot(
    rig: &mut ToeRig,
    tun: bool,
    sender: Sender,
    count: u32,
    length: Duration,
) -> anyhow::Result<LinkSample> {
    let is_engine = matches!(sender, Sender::Engine { .. });
    let places = if is_engine { Places::apart() } else { Places::together() };
    rig.offload(Offload::Off, Offload::Off)?;
    let engine = match sender {
        Sender::Engine { defers, paced } => {
            let change = |settings: &mut EngineSettings| {
                settings.stack.defers_acks = defers;
                settings.stack.config.paced = paced;
                settings.cpu = Some(places.engine);
                size(settings, count);
            };
            Some(rig.engine(tun, change)?)
        }
        _ => None,
    };
    let to = SocketAddr::new(rig.ends(is_engine)?.0, PORT);
    let rig = &*rig;
    rig.place(&places)?;
    rig.host(|| -> anyhow::Result<LinkSample> {
        become_(HOST, places.app)?;
        match (&engine, sender) {
            (Some(engine), _) => by_engine(rig, engine, to, &places, count, length),
            (None, Sender::Processes) => by_processes(rig, to, &places, count, length),
            (None, _) => by_epoll(rig, to, &places, count, length),
        }
    })?
}

/// Makes room for `count` connections.
fn size(settings: &mut EngineSettings, count: u32) {
    let share = (AREA_BYTES / 2 / count).clamp(2 * CHUNK_BYTES, 512 << 10);
    settings.pairs = 1;
    settings.pair = PairSettings {
        sockets: count + 16,
        send_bytes: CHUNK_BYTES,
        send_buffers: AREA_BYTES / CHUNK_BYTES + 2 * count,
        send_share_bytes: share,
        wake_bytes: (share / 4).max(CHUNK_BYTES),
        ..PairSettings::default()
    };
    // A quarter is kept for the engine itself, which a host does not get.
    settings.stack.connections = 2 * count + 64;
    settings.stack.descriptors = 4 * count + 16_384;
    settings.stack.records = 8 * count + 65_536;
    settings.stack.host_pages = 32_768;
}

/// The peer: all its connections, and the bytes that arrived.
fn peer(rig: &ToeRig, to: SocketAddr, places: &Places, count: u32) -> anyhow::Result<Readers> {
    Readers::start(rig, places.peer, move |stop| {
        let mut all = Vec::new();
        while all.len() < count as usize && !stop.load(Ordering::Relaxed) {
            let stream = KernelStream::connect_timeout(&to, LIMIT);
            all.push(stream.with_context(|| format!("connection {} of the peer", all.len()))?);
        }
        Ok(all)
    })
}

/// Sends while `send` does, and measures once all is going: `send` is called until the time is over.
fn measure(
    rig: &ToeRig,
    peer: &Readers,
    length: Duration,
    mut send: impl FnMut(Instant) -> anyhow::Result<()>,
) -> anyhow::Result<LinkSample> {
    let begun = Instant::now();
    while !peer.is_ready() && !peer.is_over() {
        anyhow::ensure!(begun.elapsed() < LIMIT, "the peer's connections are not there within {LIMIT:?}");
        send(Instant::now() + Duration::from_millis(5))?;
    }
    send(Instant::now() + length / 2)?;
    let (begun, before) = (Instant::now(), (rig.look()?, peer.bytes()));
    send(begun + length)?;
    // A short slot in which others had the processors lasts longer.
    while peer.bytes() == before.1 {
        anyhow::ensure!(begun.elapsed() < LIMIT, "nothing has arrived within {LIMIT:?}");
        send(Instant::now() + Duration::from_millis(5))?;
    }
    let (used, bytes) = (rig.look()?.since(&before.0), peer.bytes() - before.1);
    let wall = begun.elapsed().as_nanos() as f64;
    let ClockReadings { host_ns, engine_ns, napi_ns, peer_ns, peer_napi_ns, .. } = used;
    Ok(LinkSample {
        gbit_per_s: bytes as f64 * 8.0 / wall,
        client: (peer_ns + peer_napi_ns) as f64 / wall,
        host: (host_ns + engine_ns + napi_ns) as f64 / wall,
    })
}

/// Units of a walk through memory that no cache holds.
struct Units {
    bytes: Vec<u8>,
    at: usize,
}

impl Units {
    fn new() -> Self {
        Self { bytes: vec![0x47; WALK_BYTES], at: 0 }
    }

    fn next(&mut self) -> &[u8] {
        let at = self.at;
        self.at = (at + UNIT_BYTES) % WALK_BYTES;
        &self.bytes[at..at + UNIT_BYTES]
    }
}

fn by_engine(
    rig: &ToeRig,
    engine: &Engine,
    to: SocketAddr,
    places: &Places,
    count: u32,
    length: Duration,
) -> anyhow::Result<LinkSample> {
    let host = engine.attach()?;
    let listener = TcpListener::bind_with_backlog(&host, to, BACKLOG)?;
    let mut peer = peer(rig, to, places, count)?;
    let mut all = Vec::new();
    for _ in 0..count {
        let (stream, _) = peer.accept(|| listener.accept_timeout(LOOK_UP))?;
        stream.set_nonblocking(true)?;
        all.push(stream);
    }
    let mut units = Units::new();
    let mut next = 0;
    let slot = measure(rig, &peer, length, |end| {
        while Instant::now() < end {
            let mut is_sent = false;
            for _ in 0..all.len().clamp(1, SENDS) {
                next = (next + 1) % all.len();
                is_sent |= (&all[next]).write(units.next()).is_ok();
            }
            // None of the connections tried has room: wait until the engine reports some.
            if !is_sent && all.len() <= SENDS && !host.arm() {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                let fd = host.readiness();
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).context("poll")?;
            }
        }
        Ok(())
    });
    peer.end()?;
    all.into_iter().for_each(millrace_offload::toe::TcpStream::abort);
    slot
}

/// The kernel's listener, with a backlog for all that call at once, and its connections.
fn accept_all(
    rig: &ToeRig,
    to: SocketAddr,
    places: &Places,
    count: u32,
) -> anyhow::Result<(Readers, Vec<KernelStream>)> {
    let listener = KernelListener::bind(to).context("listen")?;
    listen(listener.as_fd(), BACKLOG as i32).context("listen")?;
    looks_up(&listener, LOOK_UP)?;
    let mut peer = peer(rig, to, places, count)?;
    let accepted = (0..count).map(|_| peer.accept(|| listener.accept()).map(|(stream, _)| stream));
    let all = accepted.collect::<anyhow::Result<Vec<_>>>()?;
    Ok((peer, all))
}

fn by_epoll(
    rig: &ToeRig,
    to: SocketAddr,
    places: &Places,
    count: u32,
    length: Duration,
) -> anyhow::Result<LinkSample> {
    let (mut peer, all) = accept_all(rig, to, places, count)?;
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
    for (n, stream) in all.iter().enumerate() {
        stream.set_nonblocking(true)?;
        epoll::add(&watch, stream, epoll::EventData::new_u64(n as u64), epoll::EventFlags::OUT)?;
    }
    let mut units = Units::new();
    let mut events = Vec::with_capacity(SENDS);
    let slot = measure(rig, &peer, length, |end| {
        while Instant::now() < end {
            wait(&watch, &mut events)?;
            for event in &events {
                // A connection without room is reported again.
                let _ = (&all[event.data.u64() as usize]).write(units.next());
            }
        }
        Ok(())
    });
    peer.end()?;
    slot
}

/// Processes, ended and waited for when this goes.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn by_processes(
    rig: &ToeRig,
    to: SocketAddr,
    places: &Places,
    count: u32,
    length: Duration,
) -> anyhow::Result<LinkSample> {
    let (mut peer, all) = accept_all(rig, to, places, count)?;
    let mut children = Children(Vec::new());
    for stream in all {
        // Each inherits this thread's processor.
        let child = Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "status=none"])
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(stream))
            .stderr(Stdio::null())
            .spawn();
        children.0.push(child.context("dd cannot be started")?);
    }
    let slot = measure(rig, &peer, length, |end| {
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        Ok(())
    });
    drop(children);
    peer.end()?;
    slot.map(|slot| LinkSample { host: f64::NAN, ..slot })
}

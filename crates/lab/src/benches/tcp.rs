//! Goodput of our TCP beside this kernel's CUBIC over the same emulated link, at several losses; and both at once.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, ensure};
use millrace_core::time::Instant;
use millrace_core::units::BitRate;
use millrace_link::{Impairment, LinkSpec, QueueBound, RateLimit, Share};
use millrace_tcp::conn::{Config, Happened, TcpCounters};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::{ConnectionId, Settings, Stack};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::frame::{Bench, Interval, Need, NoiseMeter, Options, Promise, Report, Row, Turns};
use crate::runner::Application;
use crate::tcp_host::{KERNEL_IP, OUR_IP, TcpHost};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "tcp",
    shows: "goodput of our TCP beside this kernel's CUBIC over the same link of 100 Mb/s and 20 ms at several losses, and both at once",
    not_for: "the speed of a machine: the link is emulated by one thread, and slower than any processor",
    options: &["runs", "duration", "only", "quick"],
    targets: &["tcp-goodput", "tcp-fairness", "tcp-no-timeouts"],
    needs: &[Need::Root],
    run,
};

const RATE: BitRate = BitRate(100_000_000);
const ONE_WAY: Duration = Duration::from_millis(10);
/// One product of rate and round trip.
const QUEUE_BYTES: u64 = 250_000;
/// The time of two packets; delays differ by up to this where two connections share the link. No
/// packet overtakes another. With clockwork timing the packets of one connection would meet the
/// full queue just before a packet leaves, those of the other just after, again and again, and one
/// of the two would bear the losses (Floyd and Jacobson, 1992: phase effects).
const JITTER: Duration = Duration::from_micros(240);
/// Losses in parts of a million, and how they are called.
const LOSSES: [(u32, &str); 4] =
    [(0, "nothing lost"), (1_000, "0.1 % lost"), (10_000, "1 % lost"), (30_000, "3 % lost")];
const PORT: u16 = 7000;
/// What counts from the kernel's own.
const GOODPUT_BOUND: f64 = 0.95;
/// How far from one half the share of one of two flows may be: 40 to 60 %.
const FAIR_WITHIN: f64 = 0.1;
/// Buffers on both sides hold more than the link and its queue.
const BUFFER_BYTES: u32 = 4 << 20;
/// Data that waits until there is room.
const CHUNK: usize = 64 << 10;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Ours,
    Kernel,
    Both,
    /// Two connections of the kernel's.
    Kernels,
}

impl Who {
    fn includes_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Both)
    }

    /// Connections of the kernel.
    fn rivals(self) -> usize {
        match self {
            Self::Ours => 0,
            Self::Kernel | Self::Both => 1,
            Self::Kernels => 2,
        }
    }
}

/// What arrived, and what our stack counted.
struct TransferOutcome {
    /// Of ours, or of the first of two of the kernel's; and of the kernel's.
    bits_per_s: [f64; 2],
    counters: TcpCounters,
}

impl TransferOutcome {
    fn all_bits_per_s(&self) -> f64 {
        self.bits_per_s.iter().sum()
    }

    /// The first connection's part.
    fn share(&self) -> f64 {
        self.bits_per_s[0] / self.all_bits_per_s()
    }
}

/// Parts that `--only` names.
const PARTS: [&str; 2] = ["goodput", "fairness"];

fn run(options: &Options) -> anyhow::Result<Report> {
    let unknown = options.only.iter().find(|part| !PARTS.contains(&part.as_str()));
    ensure!(
        unknown.is_none(),
        "--only {}: the parts of bench tcp are {}",
        unknown.map_or("", |part| part),
        PARTS.join(", ")
    );
    let wants = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    let mut report = Report::new("tcp");
    let mut noise = NoiseMeter::start();
    let length = options
        .duration_s
        .map_or(Duration::from_millis(options.pick(400, 2_000, 10_000)), Duration::from_secs);
    if wants("goodput") {
        goodput(options, length, &mut report, &mut noise)?;
    }
    if wants("fairness") {
        fairness(options, length * 2, &mut report, &mut noise)?;
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

/// Our TCP and the kernel's in turns over links with the same losses.
fn goodput(
    options: &Options,
    length: Duration,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let names = ["ours", "the kernel's CUBIC"];
    let ratio = |turns: &Turns<TransferOutcome>| turns.ratio(0, 1, TransferOutcome::all_bits_per_s);
    let promise = |ratio: Interval| Promise::at_least("tcp-goodput", ratio, GOODPUT_BOUND, "of the kernel's");
    let (mut least, mut timeouts) = (Interval::from(f64::INFINITY), 0);
    for (ppm, label) in LOSSES {
        options.say(label);
        let turn =
            |at: usize, round: usize| transfer(ppm, round as u64, [Who::Ours, Who::Kernel][at], length);
        let turns = Turns::take(options, noise, &names, turn, |turns| vec![promise(ratio(turns))])?;
        // Above 1 %, retransmissions are lost again, and only a timeout finds the last of them.
        timeouts += if ppm <= 10_000 { turns.sum(|outcome| outcome.counters.timeouts) } else { 0 };
        least = least.min(ratio(&turns));
        let [ours, kernel] = [0, 1].map(|at| turns.median(at, TransferOutcome::all_bits_per_s) / 1e6);
        let ratio = ratio(&turns);
        report.rows.push(
            Row::new(label)
                .with("ours", ours, "Mb/s")
                .with("the kernel's CUBIC", kernel, "Mb/s")
                .with("ratio", ratio.mid, "")
                .with("low end", ratio.low, "")
                .with("high end", ratio.high, "")
                .with("segments sent again", turns.sum(|outcome| outcome.counters.retransmitted) as f64, ""),
        );
    }
    report.promises.push(promise(least));
    report.promises.push(Promise::at_most(
        "tcp-no-timeouts",
        timeouts as f64,
        0.0,
        "time-outs up to 1 % of loss",
    ));
    Ok(())
}

/// Both at once; and two connections of the kernel, which show how much of a difference is the link's doing.
fn fairness(
    options: &Options,
    length: Duration,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let names = ["ours beside the kernel's", "two of the kernel's"];
    let promise = |turns: &Turns<TransferOutcome>| {
        let share = turns.interval(0, TransferOutcome::share);
        let off = share.map(|share| share - 0.5).max(share.map(|share| 0.5 - share));
        vec![Promise::at_most("tcp-fairness", off, FAIR_WITHIN, "from one half")]
    };
    let turn = |at: usize, round: usize| transfer(0, round as u64, [Who::Both, Who::Kernels][at], length);
    let turns = Turns::take(options, noise, &names, turn, promise)?;
    for (at, name) in names.into_iter().enumerate() {
        let share = turns.interval(at, TransferOutcome::share);
        report.rows.push(
            Row::new(name)
                .with("the first", turns.median(at, |outcome| outcome.bits_per_s[0]) / 1e6, "Mb/s")
                .with("the second", turns.median(at, |outcome| outcome.bits_per_s[1]) / 1e6, "Mb/s")
                .with("share of the first", share.mid, "")
                .with("low end", share.low, "")
                .with("high end", share.high, ""),
        );
    }
    report.promises.extend(promise(&turns));
    Ok(())
}

fn link(ppm: u32, round: u64, who: Who) -> LinkSpec {
    let jitter = if matches!(who, Who::Both | Who::Kernels) { JITTER } else { Duration::ZERO };
    let there = Impairment {
        rate: Some(RateLimit { rate: RATE, queue: QueueBound::Bytes(QUEUE_BYTES) }),
        loss: Share::from_ppm(ppm),
        delay: ONE_WAY,
        jitter,
        seed: 1 + round,
        ..Impairment::default()
    };
    LinkSpec { there, back: Impairment { delay: ONE_WAY, jitter, ..Impairment::default() } }
}

fn settings() -> Settings {
    Settings {
        config: Config { receive_bytes: BUFFER_BYTES, ..Config::default() },
        connections: 16,
        requests: 16,
        listeners: 16,
        time_waits: 16,
        records: 16_384,
        descriptors: 8_192,
        host_pages: 8_192,
        clusters: vec![ClusterSize { bytes: 8 << 20, page_bytes: 2048 }; 2],
        defers_acks: true,
        cookies: true,
        ports: (49_152..=65_535).into(),
        secret: [0x6d69_6c6c_7261_6365, 0x7463_7020_6265_6e63],
    }
}

/// Opens a connection when it may and sends as much as it takes.
struct BulkSender {
    may_begin: Arc<AtomicBool>,
    id: Option<ConnectionId>,
    is_open: bool,
    bytes: Box<[u8]>,
}

impl Application for BulkSender {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        if !self.may_begin.load(Ordering::Relaxed) {
            return;
        }
        if self.id.is_none() {
            self.id = stack.open((OUR_IP, 0).into(), (KERNEL_IP, PORT).into(), now).ok();
        }
        while let Some(event) = stack.poll_event() {
            self.is_open |= event.happened.has(Happened::ESTABLISHED);
        }
        if let Some(id) = self.id.filter(|_| self.is_open) {
            while stack.unacked_bytes(id) < BUFFER_BYTES
                && stack.write(id, &self.bytes, now).is_ok_and(|taken| taken > 0)
            {}
        }
    }
}

/// Sends for `length`, and counts at the receiver after the first tenth of the time: the handshake
/// and the first doublings are the same for all.
fn transfer(ppm: u32, round: u64, who: Who, length: Duration) -> anyhow::Result<TransferOutcome> {
    let may_begin = Arc::new(AtomicBool::new(false));
    let source = BulkSender {
        may_begin: Arc::clone(&may_begin),
        id: None,
        is_open: false,
        bytes: vec![0x47; CHUNK].into(),
    };
    let host = TcpHost::start(&link(ppm, round, who), &settings(), source)?;
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let stop = Arc::new(AtomicBool::new(false));
    let listener = host.in_kernel(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?.context("listen")?;
    let (sinks, ends) = (counts.clone(), Arc::clone(&stop));
    std::thread::spawn(move || receive(&listener, who, &sinks, &ends));
    may_begin.store(who.includes_ours(), Ordering::Relaxed);
    for _ in 0..who.rivals() {
        let ends = Arc::clone(&stop);
        let stream = host.in_rival(connect_with_cubic)?.context("connect")?;
        std::thread::spawn(move || pour(stream, &ends));
    }
    let counted = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    std::thread::sleep(length / 10);
    let (begun, before) = (StdInstant::now(), counted());
    std::thread::sleep(length - length / 10);
    let (after, seconds) = (counted(), begun.elapsed().as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    // The link goes first: its remaining packets are not waited for.
    let counters = host.stop()?;
    let bits_per_s = [0, 1].map(|at| (after[at] - before[at]) as f64 * 8.0 / seconds);
    Ok(TransferOutcome { bits_per_s, counters })
}

/// Opens a connection with the congestion control of the comparison: the kernel's default may be
/// another.
fn connect_with_cubic() -> std::io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_tcp_congestion(&socket, "cubic")?;
    rustix::net::connect(&socket, &SocketAddr::from((KERNEL_IP, PORT)))?;
    Ok(socket.into())
}

/// Accepts one connection, or two, and counts the bytes from each sender.
fn receive(listener: &TcpListener, who: Who, counts: &[Arc<AtomicU64>; 2], stop: &Arc<AtomicBool>) {
    for number in 0..usize::from(who.includes_ours()) + who.rivals() {
        let Ok((stream, from)) = listener.accept() else { return };
        let is_first = match who {
            Who::Kernels => number == 0,
            _ => matches!(from, SocketAddr::V4(from) if *from.ip() == OUR_IP),
        };
        let (count, ends) = (Arc::clone(&counts[usize::from(!is_first)]), Arc::clone(stop));
        std::thread::spawn(move || drain(stream, &count, &ends));
    }
}

fn drain(mut stream: TcpStream, count: &AtomicU64, stop: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    let mut buffer = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(bytes) => {
                count.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}

fn pour(mut stream: TcpStream, stop: &AtomicBool) {
    let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
    let bytes = vec![0x47; CHUNK];
    while !stop.load(Ordering::Relaxed) {
        let _ = stream.write(&bytes);
    }
}

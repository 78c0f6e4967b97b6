//! Nanoseconds of one core for each packet, engine only: virtual time, and devices that send
//! nothing: one looks at every descriptor, as a kernel socket gets it, the other writes every
//! packet's headers, as a device without a kernel behind it must (`framing`). Beside it two loops
//! that only pace and write headers: one around the engine's timing wheel, one around a binary heap
//! (`bare`). The engine while connections come and go beside the streams that stay (`churn`). The
//! same in real time, with the cost of the connections and their effect on the other streams
//! (`visits`). And two engines on two cores beside one (`pair`).

mod bare;
mod churn;
mod framing;
mod pair;
mod visits;

use std::cmp::Reverse;
use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::seam::{Dest, Payload, SendOutcome, TransmitBatch};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wheel::Wheel;
use millrace_core::wire::rtp::{Timeline, sequence_of};
use millrace_engine::{Engine, EngineConfig, Numbering, RunMedia, RunSpec, StreamEvent, StreamSpec};

use self::bare::{Bare, Heap, Lcg};
use self::churn::Churn;
use self::framing::Framing;
use crate::frame::{
    Axis, Bench, Contest, ContestOptions, ContestResult, Noise, Options, Plot, PlotKind, Point, Promise,
    Report, TargetBound,
};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "engine",
    shows: "ns a packet of scheduling and framing at 1k, 10k and 100k streams, beside a loop around a binary heap; connections that come and go; two engines beside one",
    not_for: "comparing machines or counting viewers: nothing is sent; read the ratios",
    options: &["streams", "runs"],
    targets: &[
        "engine-wheel-rate",
        "engine-burst-rate",
        "engine-visits-late",
        "engine-visits-disturbed",
        pair::TARGET,
    ],
    needs: &[],
    run,
};

const RATE_BITS: u64 = 8_000_000;
const PACKET_NS: u64 = DEFAULT_PACKET_BYTES as u64 * 8 * 1_000_000_000 / RATE_BITS;
const EXTENTS: u32 = 64;
const EXTENT_PACKETS: u32 = 196;
const PACKETS: u32 = EXTENTS * EXTENT_PACKETS;
const START: Instant = Instant(1 << 50);
const HEAP: &str = "binary heap, single packets with headers";
const WHEEL: &str = "timing wheel, single packets with headers";
/// The number is [`churn::PER_SECOND`].
const CHURNED: &str = "engine, bursts, 10,000 connections come and go each second";
const FRAMED: &str = "engine, bursts with headers";
/// Number of streams that the targets apply to.
const PROMISED_STREAMS: u32 = 100_000;
/// Least ratio to the rate of the heap's loop, the usual design of a program with a timer for each packet: of the wheel's loop,
/// which is otherwise the same, and of the whole engine with its usual bursts, which keeps sessions, leases, reports and
/// counters as well.
const HEAP_BOUND: f64 = 3.0;

fn run(options: &Options) -> anyhow::Result<Report> {
    let counts = match options.streams {
        Some(streams) => vec![u32::try_from(streams)?],
        None => options.pick(vec![100], vec![1_000, 100_000], vec![1_000, 10_000, 100_000]),
    };
    let mut report = Report::new("engine");
    let mut noise = Noise::quiet();
    let mut lines: Vec<(String, Vec<Point>)> = Vec::new();
    for streams in counts {
        let result = compare(streams, options)?;
        report.rows.extend(result.rows("packet").into_iter().map(|mut row| {
            row.label = format!("{streams} streams: {}", row.label);
            row
        }));
        for contender in &result.contenders {
            let point = Point::xy(f64::from(streams), contender.p50).within(contender.p10, contender.p99);
            match lines.iter_mut().find(|(name, _)| *name == contender.name) {
                Some((_, points)) => points.push(point),
                None => lines.push((contender.name.clone(), vec![point])),
            }
        }
        if streams == PROMISED_STREAMS && !options.tiny {
            promise(&result, &mut report);
        }
        noise = noise.and(result.noise);
    }
    let visits = visits::measure(options)?;
    report.rows.extend(visits.rows);
    report.promises.extend(visits.promises);
    noise = noise.and(visits.noise);
    if let Some(pair) = pair::measure(options)? {
        report.rows.extend(pair.rows);
        noise = noise.and(pair.noise);
        if !options.tiny {
            report.promises.push(pair.promise);
        }
    }
    let (x, y) = (Axis::log("streams", ""), Axis::log("time per packet, p10 to p99 of turns", "ns"));
    let plot = Plot::new(PlotKind::Lines, "Scheduling and framing", x, y);
    report.plots.push(lines.into_iter().fold(plot, |plot, (name, points)| plot.with(name, points)));
    report.noise = Some(noise);
    Ok(report)
}

/// Adds the targets for this number of streams to the report.
fn promise(result: &ContestResult, report: &mut Report) {
    for (id, name) in [("engine-wheel-rate", WHEEL), ("engine-burst-rate", FRAMED)] {
        let rate = result.ratio(HEAP, name);
        report.promises.push(Promise::at_least(id, rate, HEAP_BOUND, "x the heap's"));
    }
}

fn compare(streams: u32, options: &Options) -> anyhow::Result<ContestResult> {
    let mut contest = Contest::new(format!("{streams} streams"));
    let plain = EngineWork::default();
    let kinds = [
        ("engine, bursts of 10 ms", plain),
        (CHURNED, EngineWork { churns: true, ..plain }),
        ("engine, bursts, own timelines", EngineWork { patched: true, ..plain }),
        (FRAMED, EngineWork { framed: true, ..plain }),
        ("engine, single packets", EngineWork { smooth: true, ..plain }),
        ("engine, single packets with headers", EngineWork { smooth: true, framed: true, ..plain }),
    ];
    for (name, kind) in kinds {
        let mut paced = Paced::new(streams, kind, Arc::new(Title::new()?))?;
        contest.contender(name, move |slot| {
            while slot.goes_on() {
                let mut done = Ok(());
                slot.batch_counted(|| {
                    paced.turn().unwrap_or_else(|e| {
                        done = Err(e);
                        0
                    })
                });
                done?;
            }
            Ok(())
        });
    }
    let mut wheel = Bare::new(streams, Wheel::new(streams as usize), |wheel, index, due| {
        wheel.set(index, Instant(due), START);
    });
    contest.contender(WHEEL, move |slot| wheel.slot(slot, Bare::<Wheel>::turn));
    let mut heap = Bare::new(streams, Heap::new(), |heap, index, due| heap.push(Reverse((due, index))));
    contest.contender(HEAP, move |slot| heap.slot(slot, Bare::<Heap>::turn)).as_base();
    if streams == PROMISED_STREAMS {
        for name in [WHEEL, FRAMED] {
            contest.goal(HEAP, name, TargetBound::AtLeast(HEAP_BOUND));
        }
    }
    contest.run(&ContestOptions::from_options(options))
}

/// A title of constant rate, all of it in memory: headers and times only, since the engine reads no payload.
struct Title {
    layout: WireLayout,
    timeline: Timeline,
    leases: Vec<Lease>,
    rate_bits: u64,
}

impl Title {
    const REF: TitleRef = TitleRef(0);

    fn new() -> anyhow::Result<Self> {
        Self::of_rate(RATE_BITS)
    }

    fn of_rate(rate_bits: u64) -> anyhow::Result<Self> {
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("the default packet")?;
        anyhow::ensure!(
            layout.packets_per_extent() == EXTENT_PACKETS,
            "extents hold {EXTENT_PACKETS} packets"
        );
        let timeline = Timeline { ssrc: 0x5eed_0000, timestamp_base: 0xffff_0000 };
        let arena = ExtentArena::new(Box::new(HeapRegion::new(EXTENTS as usize)));
        let title = Self { layout, timeline, leases: Vec::new(), rate_bits };
        let leases = (0..EXTENTS).map(|extent| title.load(&arena, extent)).collect::<anyhow::Result<_>>()?;
        Ok(Self { leases, ..title })
    }

    /// Time from one packet to the next.
    fn packet_ns(&self) -> u64 {
        DEFAULT_PACKET_BYTES as u64 * 8 * 1_000_000_000 / self.rate_bits
    }

    fn load(&self, arena: &Arc<ExtentArena>, extent: u32) -> anyhow::Result<Lease> {
        let (first_packet, packets) = (extent * EXTENT_PACKETS, EXTENT_PACKETS);
        let last_packet_bytes = self.layout.packet_bytes() as u16;
        let content = ExtentContent {
            title: Self::REF,
            number: extent,
            first_packet,
            packets,
            last_packet_bytes,
            layout: self.layout,
            spare: 0,
        };
        let mut fill = arena.fill(extent).context("a free extent")?;
        let bytes = fill.bytes_mut();
        for place in 0..packets {
            let packet = first_packet + place;
            let ticks = u64::from(packet) * DEFAULT_PACKET_BYTES as u64 * 8 * 90_000 / self.rate_bits;
            let slot = place as usize * self.layout.slot_bytes();
            let header = self.timeline.header(packet, MediaTicks(ticks)).emit();
            bytes[slot..slot + RTP_HEADER_BYTES].copy_from_slice(&header);
            let meta = PacketMeta::new(0, 0, MediaTicks(ticks)).to_bytes();
            let at = self.layout.meta_offset(place, packets);
            bytes[at..at + PacketMeta::BYTES].copy_from_slice(&meta);
        }
        fill.publish();
        arena.lend(extent, content).context("the extent that was just filled")
    }
}

/// The work of an engine beside pacing bursts.
#[derive(Clone, Copy, Default)]
struct EngineWork {
    /// Single packets.
    smooth: bool,
    /// Timelines of the viewers' own.
    patched: bool,
    /// The device writes headers.
    framed: bool,
    /// Connections come and go.
    churns: bool,
}

/// An engine with a given number of streams, at a time of its own.
struct Paced {
    engine: Engine,
    title: Arc<Title>,
    /// Writes the headers, if they are wanted.
    framing: Option<Framing>,
    churn: Option<Churn>,
    now: Instant,
    step_ns: u64,
    /// Streams that failed though their connections are there.
    failed: u64,
}

impl Paced {
    fn new(streams: u32, kind: EngineWork, title: Arc<Title>) -> anyhow::Result<Self> {
        let EngineWork { smooth, patched, framed, churns } = kind;
        let places = streams + if churns { churn::PLACES } else { 0 };
        let config = EngineConfig { streams: places as usize, smooth, ..EngineConfig::default() };
        let mut engine = Engine::new(config);
        let mut random = Lcg(1);
        for index in 0..streams {
            let id = StreamId { index, generation: 0 };
            let dest = Dest::udp(framing::viewer(index, 5000).into(), Some(5001));
            let spec = StreamSpec { id, dest, quiet: false, lends: false, once: false };
            engine.open(START, spec).map_err(|e| anyhow!("open: {e:?}"))?;
            let from = random.below(u64::from(PACKETS) / 2) as u32;
            // A sequence number that is not the title's own makes the engine write the viewer's headers.
            let sequence = sequence_of(from).wrapping_add(u16::from(patched));
            let at = START.plus_ns(random.below(10_000_000.max(title.packet_ns())));
            let run = run_of(&title, RunSerial(0), from, sequence);
            engine.play(START, id, at, run).map_err(|e| anyhow!("play: {e:?}"))?;
        }
        let burst_ns = if smooth { PACKET_NS } else { 8 * PACKET_NS };
        let step_ns = (burst_ns * MAX_BATCH_BURSTS as u64 / u64::from(streams.max(1))).max(1);
        let framing = framed.then(|| Framing::new(streams)).transpose()?;
        let churn = churns.then(|| Churn::new(streams, START));
        Ok(Self { engine, title, framing, churn, now: START, step_ns, failed: 0 })
    }

    /// Sends the packets due after a step of time, about a full batch; returns their number.
    fn turn(&mut self) -> anyhow::Result<u64> {
        self.now = self.now.plus_ns(self.step_ns);
        if let Some(churn) = &mut self.churn {
            churn.turn(&mut self.engine, &self.title, self.now)?;
        }
        self.send_due()
    }

    /// Sends the packets that are due; returns their number.
    fn send_due(&mut self) -> anyhow::Result<u64> {
        let engine = &mut self.engine;
        let before = engine.counters().packets;
        while let Some(want) = engine.poll_want() {
            let lease = self.title.leases[want.extent as usize].clone();
            engine.handle_lease(self.now, want.stream, want.run, want.extent, lease);
        }
        let outcomes = [SendOutcome::Sent; MAX_BATCH_BURSTS];
        loop {
            let count = engine.poll_bursts(self.now);
            if count == 0 {
                break;
            }
            match &mut self.framing {
                Some(framing) => framing.send(engine.batch()),
                None => look(engine.batch()),
            }
            engine.handle_sent(self.now, &outcomes[..count]);
        }
        while let Some(event) = engine.poll_event() {
            if let StreamEvent::Failed { stream, .. } = event {
                // The control side also forgets a stream that ends with its connection.
                if self.churn.as_ref().is_some_and(|churn| churn.has(stream)) {
                    engine.close(self.now, stream).map_err(|e| anyhow!("close: {e:?}"))?;
                } else {
                    self.failed += 1;
                }
            }
            // A title that is over begins again, so that the load stays the same.
            if let StreamEvent::Drained { stream, run: ended } = event {
                let run = run_of(&self.title, ended.next(), 0, sequence_of(0));
                engine.play(self.now, stream, self.now, run).map_err(|e| anyhow!("play again: {e:?}"))?;
            }
        }
        Ok(engine.counters().packets - before)
    }
}

/// The title from this packet on.
fn run_of(title: &Title, run: RunSerial, from: u32, sequence: u16) -> RunSpec {
    let (layout, timeline) = (title.layout, title.timeline);
    let media = RunMedia { title: Title::REF, packets: PACKETS, timeline, layout, spare: 0 };
    let numbering = Numbering::Sequence(sequence);
    RunSpec { run, media, from, until: PACKETS, numbering, scale_permille: 1000, step: None }
}

/// Does the work of a device that leaves the headers to the kernel.
fn look(batch: &impl TransmitBatch) {
    for at in 0..batch.len() {
        let transmit = batch.get(at);
        let Some(to) = transmit.dest.address(false) else { continue };
        let bytes = match transmit.payload {
            Payload::Wire { bytes, .. } | Payload::Patched { bytes, .. } | Payload::Rtcp(bytes) => bytes,
            Payload::Bytes(range) => range.piece(0),
        };
        black_box((to.port(), bytes.len()));
    }
}

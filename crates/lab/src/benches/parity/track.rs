//! Cost of an FEC packet on its whole path, engine and kernel backend, at the bursts that really
//! occur: a track of parity has an eighth or a quarter of the title's rate, so one packet or two
//! are due in a burst's time.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

use anyhow::{Context, anyhow, ensure};
use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::seam::{Dest, PacketTx, SendOutcome};
use millrace_core::time::{Instant, MEDIA_HZ, MediaTicks, NS_PER_S};
use millrace_core::wire::rtp::Timeline;
use millrace_engine::{
    Engine, EngineConfig, Numbering, RunMedia, RunSpec, StopReason, StreamEvent, StreamSpec,
};
use millrace_netio::KernelTx;

use crate::benches::tx::NOWHERE;
use crate::frame::{
    Contest, ContestOptions, ContestResult, Interval, Options, Promise, Report, Row, TargetBound,
};

/// Rate of the title.
const RATE_BITS: u64 = 8_000_000;
/// Viewers: a full batch of bursts.
const VIEWERS: u32 = MAX_BATCH_BURSTS as u32;
const EXTENTS: u32 = 64;
const START: Instant = Instant(1 << 50);
/// A burst: this much time of a title leaves at once.
const BURST_NS: u64 = 10_000_000;
/// Upper limit for the cost of a packet of parity, relative to one of data in bursts of the same
/// length.
const RATIO_BOUND: f64 = 1.05;

const TITLE: &str = "data, 8 Mb/s";
/// Part of the title's rate: a title with this rate, and a track.
const PARTS: [(u64, &str, &str); 2] = [
    (8, "data, an eighth of the rate", "FEC track, an eighth of the rate"),
    (4, "data, a quarter of the rate", "FEC track, a quarter of the rate"),
];

/// Measures it; returns the results and the number of datagrams sent.
pub(super) fn run(
    tx: &RefCell<KernelTx>,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<(ContestResult, u64)> {
    let data = WireLayout::new(DEFAULT_PACKET_BYTES).context("the default packet")?;
    let sent = Cell::new(0);
    let total = &sent;
    let mut contest = Contest::new("an FEC packet through the engine");
    let mut enter = |name: &'static str, layout: WireLayout, part: u64| -> anyhow::Result<()> {
        let mut paced = Paced::new(layout, part)?;
        contest.contender(name, move |slot| {
            while slot.goes_on() {
                let mut done = Ok(());
                let count = slot.batch_counted(|| {
                    paced.turn(&mut tx.borrow_mut()).unwrap_or_else(|error| {
                        done = Err(error);
                        0
                    })
                });
                total.set(total.get() + count);
                done?;
            }
            Ok(())
        });
        Ok(())
    };
    enter(TITLE, data, 1)?;
    for (part, title, track) in PARTS {
        enter(title, data, part)?;
        enter(track, WireLayout::fec(), part)?;
    }
    for (_, title, track) in PARTS {
        contest.goal(track, title, TargetBound::AtMost(RATIO_BOUND));
    }
    let result = contest.run(&ContestOptions::from_options(options))?;
    write_up(&result, report)?;
    Ok((result, sent.get()))
}

fn write_up(result: &ContestResult, report: &mut Report) -> anyhow::Result<()> {
    report.rows.extend(result.rows("datagram").into_iter().map(|mut row| {
        row.label = format!("engine and kernel backend: {}", row.label);
        row
    }));
    let of = |name: &str| result.of(name).with_context(|| format!("no contender {name:?}"));
    let mut worst = Interval::from(0.0);
    for (part, title, track) in PARTS {
        let fec = of(track)?;
        worst = worst.max(result.ratio(track, title));
        report.rows.push(
            Row::new(format!("a viewer with one FEC packet for {part} of data"))
                .with("an FEC packet", fec.ratio.mid, "of a data packet in its bursts")
                .with("FEC adds to sending", fec.ratio.mid / part as f64 * 100.0, "%"),
        );
    }
    report.promises.push(Promise::at_most("parity-fec-send", worst, RATIO_BOUND, "of a data packet"));
    Ok(())
}

/// Viewers of one title or track, at a time of its own.
struct Paced {
    engine: Engine,
    leases: Vec<Lease>,
    media: RunMedia,
    run: RunSerial,
    now: Instant,
    step_ns: u64,
}

impl Paced {
    fn new(layout: WireLayout, part: u64) -> anyhow::Result<Self> {
        let packet_ns = DEFAULT_PACKET_BYTES as u64 * 8 * NS_PER_S * part / RATE_BITS;
        let timeline = Timeline { ssrc: 0x5eed_0003, timestamp_base: 0 };
        let arena = ExtentArena::new(Box::new(HeapRegion::new(EXTENTS as usize)));
        let lease = |extent| load(&arena, layout, timeline, extent, packet_ns);
        let leases = (0..EXTENTS).map(lease).collect::<anyhow::Result<_>>()?;
        let packets = EXTENTS * layout.packets_per_extent();
        let media = RunMedia { title: TitleRef(0), packets, timeline, layout, spare: 0 };
        let config = EngineConfig { streams: VIEWERS as usize, ..EngineConfig::default() };
        let mut paced = Self {
            engine: Engine::new(config),
            leases,
            media,
            run: RunSerial(0),
            now: START,
            step_ns: BURST_NS.max(packet_ns),
        };
        for index in 0..VIEWERS {
            let spec = StreamSpec {
                id: StreamId { index, generation: 0 },
                dest: Dest::udp(SocketAddr::new(NOWHERE.into(), 6000 + 2 * index as u16), None),
                // A track has no reports of its own; a title's would be counted as datagrams.
                quiet: true,
                lends: false,
                once: false,
            };
            paced.engine.open(START, spec).map_err(|error| anyhow!("open: {error:?}"))?;
            let at = START.plus_ns(u64::from(index) * paced.step_ns / u64::from(VIEWERS));
            paced.play(spec.id, u32::from(index as u16) * packets / (2 * VIEWERS), at)?;
        }
        Ok(paced)
    }

    fn play(&mut self, stream: StreamId, from: u32, at: Instant) -> anyhow::Result<()> {
        self.run = self.run.next();
        let (run, media, numbering) = (self.run, self.media, Numbering::Title);
        let run =
            RunSpec { run, media, from, until: media.packets, numbering, scale_permille: 1000, step: None };
        self.engine.play(self.now, stream, at, run).map_err(|error| anyhow!("play: {error:?}"))
    }

    /// Sends the packets due after a burst's time; returns their number.
    fn turn(&mut self, tx: &mut KernelTx) -> anyhow::Result<u64> {
        let before = self.engine.counters().packets;
        self.now = self.now.plus_ns(self.step_ns);
        while let Some(want) = self.engine.poll_want() {
            let lease = self.leases[want.extent as usize].clone();
            self.engine.handle_lease(self.now, want.stream, want.run, want.extent, lease);
        }
        let mut outcomes = [SendOutcome::Sent; MAX_BATCH_BURSTS];
        loop {
            let count = self.engine.poll_bursts(self.now);
            if count == 0 {
                break;
            }
            let outcomes = &mut outcomes[..count];
            tx.send(self.engine.batch(), outcomes);
            ensure!(outcomes.iter().all(|o| *o == SendOutcome::Sent), "not all was sent: {outcomes:?}");
            self.engine.handle_sent(self.now, outcomes);
        }
        while let Some(event) = self.engine.poll_event() {
            // A finished run begins again, so that the load stays the same.
            if let StreamEvent::RunEnded { stream, end } = event
                && end.reason == StopReason::Finished
            {
                self.play(stream, 0, self.now)?;
            }
        }
        Ok(self.engine.counters().packets - before)
    }
}

/// An extent of packets with their headers and times.
fn load(
    arena: &std::sync::Arc<ExtentArena>,
    layout: WireLayout,
    timeline: Timeline,
    extent: u32,
    packet_ns: u64,
) -> anyhow::Result<Lease> {
    let packets = layout.packets_per_extent();
    let content = ExtentContent {
        title: TitleRef(0),
        number: extent,
        first_packet: extent * packets,
        packets,
        last_packet_bytes: layout.packet_bytes() as u16,
        layout,
        spare: 0,
    };
    let mut fill = arena.fill(extent).context("a free extent")?;
    let bytes = fill.bytes_mut();
    for place in 0..packets {
        let packet = extent * packets + place;
        let time = MediaTicks(u64::from(packet) * packet_ns * MEDIA_HZ / NS_PER_S);
        let slot = place as usize * layout.slot_bytes();
        bytes[slot..slot + RTP_HEADER_BYTES].copy_from_slice(&timeline.header(packet, time).emit());
        let at = layout.meta_offset(place, packets);
        bytes[at..at + PacketMeta::BYTES].copy_from_slice(&PacketMeta::new(0, 0, time).to_bytes());
    }
    fill.publish();
    arena.lend(extent, content).context("the extent that was just filled")
}

//! Tables I and II of the paper: the load of the measured host's processors in percents of one of them for each Gb/s.

use std::time::Duration;

use anyhow::bail;
use millrace_offload::toe::{Engine, EngineSettings, PairSettings};

use super::copies;
use super::judge;
use super::rig::{Offload, Places, Side, ToeRig};
use super::split::{self, Shares};
use super::work::{self, Beside, Moved, SlotJob, TransferDirection, WALK_BYTES, Walk};
use crate::frame::stats::{Spread, median};
use crate::frame::{Axis, NoiseMeter, Options, Plot, PlotKind, Point, Report, Row, Turns};

/// Bytes that applications move at once, and that engine and application hand to each other at once.
pub(super) const CHUNKS: [usize; 2] = [128 << 10, 8 << 10];
/// Chunks of the targets.
pub(super) const LARGE: usize = CHUNKS[0];
/// Bytes of an application's buffers, sent or received, that wait with the engine.
const AREA_BYTES: u32 = 8 << 20;
/// Most bytes that a connection may have given and not sent. This much memory would be used again
/// and again if the next chunk filled were the one that became free last.
const SHARE_BYTES: usize = 512 << 10;
/// Time that the engine waits for a buffer to be filled: as in the paper, where it waits until it
/// is.
const HAND_OVER_NS: u64 = 1_000_000;

/// Who moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) kind: StackKind,
    is_apart: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackKind {
    Kernel(Offload),
    /// For how long the engine looks for work before it sleeps.
    Engine(u64),
    /// The same engine, from and to whose memory nothing is copied by the host.
    Lent,
}

/// Those that copy; the first four are the baselines.
pub(super) const COPYING: usize = 7;
/// All: the last two copy nothing.
pub(super) const CONTENDERS: [Contender; COPYING + 2] = [
    Contender { name: "kernel, one processor", kind: StackKind::Kernel(Offload::Off), is_apart: false },
    Contender { name: "kernel, interrupts apart", kind: StackKind::Kernel(Offload::Off), is_apart: true },
    Contender {
        name: "kernel, one processor, GSO",
        kind: StackKind::Kernel(Offload::Software),
        is_apart: false,
    },
    Contender {
        name: "kernel, interrupts apart, GSO",
        kind: StackKind::Kernel(Offload::Software),
        is_apart: true,
    },
    Contender { name: "engine apart", kind: StackKind::Engine(0), is_apart: true },
    Contender { name: "engine apart, never sleeps", kind: StackKind::Engine(u64::MAX), is_apart: true },
    Contender { name: "engine on the same processor", kind: StackKind::Engine(0), is_apart: false },
    Contender { name: "engine apart, leased extents, lent buffers", kind: StackKind::Lent, is_apart: true },
    Contender {
        name: "engine on the same processor, leased extents, lent buffers",
        kind: StackKind::Lent,
        is_apart: false,
    },
];
/// The engine as the paper has it, and the one whose total is judged.
pub(super) const ENGINE: Contender = CONTENDERS[4];
pub(super) const POLLING: Contender = CONTENDERS[5];

/// Those whose host load targets are about, copying and not: with a processor for each side the engine has its own. With fewer the application would
/// have to share one with its peer, whose work costs it its caches and which the kernel's best baseline is spared; there the engine is on the
/// application's processor, as the kernel's interrupts are in that baseline.
pub(super) fn judged() -> [Contender; 2] {
    let places = Places::apart();
    match places.app == places.peer {
        false => [ENGINE, CONTENDERS[COPYING]],
        true => [CONTENDERS[COPYING - 1], CONTENDERS[COPYING + 1]],
    }
}

/// The number of a contender.
pub(super) fn index(of: Contender) -> usize {
    CONTENDERS.iter().position(|one| *one == of).unwrap_or_default()
}

impl Contender {
    pub(super) fn is_kernel(&self) -> bool {
        matches!(self.kind, StackKind::Kernel(_))
    }

    pub(super) fn places(&self) -> Places {
        let places = if self.is_apart { Places::apart() } else { Places::together() };
        match self.kind {
            // An engine that never sleeps shares its processor with no other thread.
            StackKind::Engine(u64::MAX) => Places { napi: places.peer, ..places },
            _ => places,
        }
    }

    /// Starts its engine, which waits for `hand_over_ns` for a buffer of `chunk` bytes to be filled.
    pub(super) fn start(
        &self,
        rig: &mut ToeRig,
        tun: bool,
        (chunk, hand_over_ns): (usize, u64),
        cpu: usize,
    ) -> anyhow::Result<Engine> {
        let poll_ns = match self.kind {
            StackKind::Engine(poll_ns) => poll_ns,
            StackKind::Lent => 0,
            StackKind::Kernel(_) => bail!("{} has no engine", self.name),
        };
        rig.offload(Offload::Off, Offload::Off)?;
        rig.engine(tun, |settings: &mut EngineSettings| {
            let chunk = chunk as u32;
            settings.poll_ns = poll_ns;
            settings.cpu = Some(cpu);
            settings.hand_over_ns = hand_over_ns;
            settings.pairs = 1;
            settings.pair = PairSettings {
                send_bytes: chunk,
                receive_bytes: chunk,
                send_buffers: AREA_BYTES / chunk,
                receive_buffers: AREA_BYTES / chunk,
                ..PairSettings::default()
            };
        })
    }

    /// One slot of it.
    pub(super) fn slot(
        &self,
        rig: &mut ToeRig,
        tun: bool,
        case: Case,
        walk: &mut Walk,
        beside: Beside<'_>,
    ) -> anyhow::Result<Moved> {
        self.slot_at(rig, tun, self.places(), case, walk, beside)
    }

    /// The same on other processors.
    pub(super) fn slot_at(
        &self,
        rig: &mut ToeRig,
        tun: bool,
        places: Places,
        (way, chunk, length): Case,
        walk: &mut Walk,
        beside: Beside<'_>,
    ) -> anyhow::Result<Moved> {
        let job = SlotJob { way, places, length };
        match self.kind {
            StackKind::Kernel(own) => {
                rig.offload(own, Offload::Off)?;
                work::by_kernel(rig, &job, walk, beside)
            }
            StackKind::Engine(_) | StackKind::Lent => {
                let engine = self.start(rig, tun, (chunk, HAND_OVER_NS), places.engine)?;
                work::by_engine(rig, (&engine, self.kind == StackKind::Lent), &job, walk, beside)
            }
        }
    }
}

/// Which way, in which chunks, for how long.
pub(super) type Case = (TransferDirection, usize, Duration);

/// A contender's results in one of the four cases.
struct ContenderResults {
    way: TransferDirection,
    chunk: usize,
    of: Contender,
    host: f64,
}

/// Loads of one turn, in percents of a processor for each Gb/s.
pub(super) struct TableTurn {
    pub(super) host: f64,
    pub(super) total: f64,
    /// `None` of the plain copy.
    moved: Option<Moved>,
}

/// Number of the plain copy of the same bytes, behind all contenders.
pub(super) const COPY: usize = CONTENDERS.len();

fn label(way: TransferDirection, chunk: usize, of: &Contender) -> String {
    format!("{}, {} KB: {}", way.name(), chunk >> 10, of.name)
}

/// The application's thread, and for the kernel's TCP what receives at its interface too: acknowledgments and data are its work.
pub(super) fn host_load(of: &Contender, moved: &Moved) -> f64 {
    let used = &moved.used;
    let driver = if of.is_kernel() { used.napi_ns } else { 0 };
    moved.percent(used.host_ns + driver)
}

/// All of it on the measured host. An engine that never sleeps takes all of its processor.
fn total_load(of: &Contender, moved: &Moved) -> f64 {
    let used = &moved.used;
    let engine = match of.kind {
        StackKind::Engine(u64::MAX) => moved.wall_ns,
        _ => used.engine_ns,
    };
    moved.percent(used.host_ns + used.napi_ns + engine)
}

/// All cases and contenders.
pub(super) fn run(
    options: &Options,
    tun: bool,
    rig: &mut ToeRig,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    let walk_bytes = walk_bytes(options);
    let length = Duration::from_millis(options.pick(30, 400, 1000));
    for way in TransferDirection::BOTH {
        for chunk in CHUNKS {
            let mut walk = Walk::new(walk_bytes, chunk);
            let mut names = CONTENDERS.map(|of| label(way, chunk, &of)).to_vec();
            names.push(format!("{}, {} KB: memcpy", way.name(), chunk >> 10));
            let turn = |at: usize, _| -> anyhow::Result<TableTurn> {
                let Some(of) = CONTENDERS.get(at) else {
                    let load = copies::memcpy(
                        way,
                        chunk,
                        walk_bytes,
                        AREA_BYTES as usize,
                        &ENGINE.places(),
                        length,
                    )?;
                    return Ok(TableTurn { host: load, total: load, moved: None });
                };
                let moved = of.slot(rig, tun, (way, chunk, length), &mut walk, None)?;
                let (host, total) = (host_load(of, &moved), total_load(of, &moved));
                Ok(TableTurn { host, total, moved: Some(moved) })
            };
            let targets =
                |seen: &Turns<TableTurn>| if chunk == LARGE { judge(way, seen) } else { Vec::new() };
            let seen = Turns::take(options, noise, &names, turn, targets)?;
            for (at, of) in CONTENDERS.iter().enumerate() {
                options.go_on()?;
                let sides = profile(options, rig, tun, of, (way, chunk), &mut walk, report)?;
                all.push(show(*of, (way, chunk), (&seen, at), &sides, report, noise));
            }
            report.rows.push(Row::new(names.swap_remove(COPY)).with(
                "host",
                seen.median(COPY, |turn| turn.host),
                "% a Gb/s",
            ));
            report.promises.extend(targets(&seen));
        }
    }
    report.plots.push(plot(&all));
    Ok(())
}

fn walk_bytes(options: &Options) -> usize {
    options.pick(1 << 20, WALK_BYTES, WALK_BYTES)
}

/// The copy alone.
pub(super) fn copies(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for way in TransferDirection::BOTH {
        for chunk in CHUNKS {
            options.go_on()?;
            options.say(&format!("{}, {} KB, the copy alone", way.name(), chunk >> 10));
            copied(options, (way, chunk), report)?;
        }
    }
    Ok(())
}

fn copied(
    options: &Options,
    (way, chunk): (TransferDirection, usize),
    report: &mut Report,
) -> anyhow::Result<()> {
    let walk = walk_bytes(options);
    let length = Duration::from_millis(options.pick(5, 200, 500));
    let copies = |area| copies::measure(way, chunk, walk, area, &ENGINE.places(), length);
    let (small, large) = (copies(SHARE_BYTES)?, copies(AREA_BYTES as usize)?);
    report.rows.push(
        Row::new(format!("{}, {} KB: the copy alone", way.name(), chunk >> 10))
            .with("memcpy", large.bare * copies::PERCENT_A_GBIT, "% a Gb/s")
            .with("shared words, 8 MB of them", large.across * copies::PERCENT_A_GBIT, "% a Gb/s")
            .with("over memcpy", large.across / large.bare, "times")
            .with("word by word", large.word_by_word * copies::PERCENT_A_GBIT, "% a Gb/s")
            .with("the same 512 KB again and again", small.across * copies::PERCENT_A_GBIT, "% a Gb/s")
            .with("those word by word", small.word_by_word * copies::PERCENT_A_GBIT, "% a Gb/s"),
    );
    Ok(())
}

/// The threads of one more slot, by routines.
fn profile(
    options: &Options,
    rig: &mut ToeRig,
    tun: bool,
    of: &Contender,
    (way, chunk): (TransferDirection, usize),
    walk: &mut Walk,
    report: &mut Report,
) -> anyhow::Result<Vec<(Side, Shares)>> {
    if options.tiny {
        return Ok(Vec::new());
    }
    let found = std::sync::Mutex::new(None);
    let seconds = options.pick(0.1, 0.5, 1.5);
    let beside = |threads: [(Side, Option<u32>); 3]| {
        let shares = split::sample(&threads, seconds, &options.scratch);
        *found.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(shares);
    };
    let length = Duration::from_secs_f64(seconds);
    of.slot(rig, tun, (way, chunk, length), walk, Some(&beside))?;
    match found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(Ok(shares)) => Ok(shares),
        Some(Err(error)) => {
            report.rows.push(Row::new(format!("{}: not split: {error:#}", label(way, chunk, of))));
            Ok(Vec::new())
        }
        None => Ok(Vec::new()),
    }
}

/// The rows of one contender in one case.
fn show(
    of: Contender,
    (way, chunk): (TransferDirection, usize),
    (seen, at): (&Turns<TableTurn>, usize),
    sides: &[(Side, Shares)],
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> ContenderResults {
    let moved: Vec<&Moved> = seen.of(at).iter().filter_map(|turn| turn.moved.as_ref()).collect();
    let middle =
        |value: &dyn Fn(&Moved) -> f64| median(&moved.iter().map(|moved| value(moved)).collect::<Vec<f64>>());
    let of_side = |wanted: Side| sides.iter().find(|(side, _)| *side == wanted).map(|(_, shares)| *shares);
    let application = middle(&|m| m.percent(m.used.host_ns));
    let receiver = middle(&|m| m.percent(m.used.napi_ns));
    let (host, total) = (seen.values(at, |turn| turn.host), seen.median(at, |turn| turn.total));
    // Without samples the part is unknown.
    let part = |pick: &dyn Fn(&Shares) -> f64| {
        let own = of_side(Side::Application).map_or(f64::NAN, |shares| pick(&shares)) * application;
        let at_interface = of_side(Side::Receiver).filter(|_| of.is_kernel());
        own + at_interface.map_or(0.0, |shares| pick(&shares) * receiver)
    };
    let (copy, protocol, driver) = (part(&|s| s.copy), part(&|s| s.protocol), part(&|s| s.driver));
    let spread = Spread::of(&host);
    let chunks = |m: &Moved| m.bytes as f64 / chunk as f64;
    let name = label(way, chunk, &of);
    noise.repeated(&name, &host);
    report.rows.push(
        Row::new(name.clone())
            .with("host", median(&host), "% a Gb/s")
            .with("p10", spread.p10, "")
            .with("p90", spread.p90, "")
            .with("copy", copy, "")
            .with("protocol", protocol, "")
            .with("driver", driver, "")
            .with("engine", middle(&|m| m.percent(m.used.engine_ns)), "")
            .with("interface", receiver, "")
            .with("total", total, "% a Gb/s")
            .with("peer", middle(&|m| m.percent(m.used.peer_ns + m.used.peer_napi_ns)), "")
            .with("rate", middle(&|m| m.gbit_per_s()), "Gb/s")
            .with("waits a chunk", middle(&|m| m.used.waits as f64 / chunks(m)), "")
            .with("sent again", middle(&|m| m.used.retransmitted as f64), ""),
    );
    for (at, side) in [(Side::Engine, "engine"), (Side::Receiver, "interface")] {
        if let Some(shares) = of_side(at).filter(|shares| shares.samples > 0) {
            report.rows.push(
                Row::new(format!("{name}: its {side}'s time"))
                    .with("copy", shares.copy * 100.0, "%")
                    .with("protocol", shares.protocol * 100.0, "%")
                    .with("driver", shares.driver * 100.0, "%"),
            );
        }
    }
    let softirqs: Vec<String> = (0..moved.first().map_or(0, |m| m.used.softirqs.len()))
        .map(|cpu| format!("{}", middle(&|m| m.used.softirqs.get(cpu).copied().unwrap_or(0) as f64)))
        .collect();
    if chunk == LARGE {
        let places = of.places().describe(!of.is_kernel());
        let softirqs = softirqs.join(", ");
        report.rows.push(Row::new(format!(
            "{name}: processors: {places}; NET_RX soft interrupts in a slot: {softirqs}"
        )));
    }
    ContenderResults { way, chunk, of, host: median(&host) }
}

fn plot(all: &[ContenderResults]) -> Plot {
    let axis = Axis::new("host's load", "% of a processor a Gb/s");
    let mut plot = Plot::new(PlotKind::Bars, "Tables I and II: the host's load", Axis::default(), axis);
    for contender in CONTENDERS {
        let mine = all.iter().filter(|shown| shown.of == contender);
        let bar = |shown: &ContenderResults| {
            Point::bar(format!("{}, {} KB", shown.way.name(), shown.chunk >> 10), shown.host)
        };
        plot = plot.with(contender.name, mine.map(bar).collect());
    }
    plot
}

//! Cost of a packet by batches: many packets between two readings of the clock, contenders in turns, medians.
//!
//! The figure to read for work of a few dozen cycles: the readings cost as much as such work
//! itself, and the counter of many processors moves in steps of this size.

use crate::framing::Connection;
use millrace_core::random::SplitMix;

use super::contenders::{
    IN_CKSUM, IN_QUICK_CKSUM_UDP_IP_HDR, OneGo, Room, Task, V3, V4, V4_FETCHED, procedures, versions,
};
use super::stream::{CacheState, PacketStream};
use crate::frame::ticks::settle;
use crate::frame::{
    ContenderResult, ContenderSlot, Contest, ContestOptions, ContestResult, Noise, Options, Row,
};

/// Packets between two readings of the clock.
pub(super) const BATCH: usize = 256;
/// Frames that headers go round in.
const FRAMES: usize = 64;

/// The results for one size and state.
pub(super) struct Costs {
    pub(super) state: CacheState,
    pub(super) packet_bytes: usize,
    pub(super) framing: ContestResult,
    pub(super) checksums: ContestResult,
}

/// Framing versions against v3, checksum procedures against the scalar one.
pub(super) fn measure(
    stream: &PacketStream<'_>,
    connection: &Connection,
    options: &Options,
) -> anyhow::Result<Costs> {
    let how = how(options);
    let run = |what, tasks: Vec<(&'static str, Task)>, base: &str| {
        let mut contest = Contest::new(format!("{what}, {}", stream.label()));
        for (name, task) in tasks {
            contest.contender(name, move |slot| turn(slot, task, stream, connection));
            if name == base {
                contest.as_base();
            }
        }
        contest.run(&how)
    };
    let framing = run("framing", versions(), V3)?;
    let checksums = run("checksums", procedures(), IN_CKSUM)?;
    Ok(Costs { state: stream.state, packet_bytes: stream.packet_bytes, framing, checksums })
}

/// How one version's cost grows with the packet: each size beside the smallest, in the same rounds.
pub(super) fn flatness(
    name: &'static str,
    streams: &[PacketStream<'_>],
    connection: &Connection,
    options: &Options,
) -> anyhow::Result<ContestResult> {
    let task = versions().into_iter().find(|(other, _)| *other == name).map(|(_, task)| task);
    let mut contest = Contest::new(format!("{name} by size"));
    for stream in streams {
        let task = task.unwrap_or(Task::QuickOutput);
        let label = format!("{name}, {}", stream.label());
        // Sizes frame different datagrams: there is nothing to compare.
        contest.contender(label, move |slot| turn_of_its_own(slot, task, stream, connection));
    }
    contest.run(&how(options))
}

/// Shorter slots than other benchmarks: a batch takes microseconds.
fn how(options: &Options) -> ContestOptions {
    ContestOptions {
        slot_ms: options.pick(1, 5, 15),
        check_batches: 4,
        ..ContestOptions::from_options(options)
    }
}

fn turn(
    slot: &mut ContenderSlot,
    task: Task,
    stream: &PacketStream<'_>,
    connection: &Connection,
) -> anyhow::Result<()> {
    batches(slot, task, stream, connection, true)
}

fn turn_of_its_own(
    slot: &mut ContenderSlot,
    task: Task,
    stream: &PacketStream<'_>,
    connection: &Connection,
) -> anyhow::Result<()> {
    batches(slot, task, stream, connection, false)
}

fn batches(
    slot: &mut ContenderSlot,
    task: Task,
    stream: &PacketStream<'_>,
    connection: &Connection,
    is_compared: bool,
) -> anyhow::Result<()> {
    let mut out: Vec<Room> = vec![[0; 128]; FRAMES];
    let mut compared = 0;
    while slot.goes_on() {
        // For the comparison all contenders take the same packets; otherwise no two do.
        let numbers = match slot.is_check() {
            true => compared..compared + BATCH,
            false => stream.take(BATCH),
        };
        compared += BATCH;
        let prepared = task.prepare(connection, stream, numbers);
        // The last sums that were looked up to prepare may be on their way from memory still: one such wait is a cycle for each packet of
        // a batch, and was more for small packets, whose metadata fits no cache.
        settle();
        let mut timing = OneGo { out: &mut out, returned: 0 };
        slot.batch(BATCH as u64, || task.run(connection, &prepared, &mut timing));
        let returned = std::hint::black_box(timing.returned);
        std::hint::black_box(&out);
        if is_compared && slot.is_check() {
            slot.produced(hash(returned, &out));
        }
    }
    Ok(())
}

/// Hashes the returned values and the headers of the last packets of the batch. Procedures write
/// none.
fn hash(returned: usize, out: &[Room]) -> u64 {
    out.iter()
        .flat_map(|room| room.as_chunks::<8>().0)
        .fold(returned as u64, |hash, &word| SplitMix(hash ^ u64::from_ne_bytes(word)).next())
}

impl Costs {
    fn of(&self, name: &str) -> Option<&ContenderResult> {
        self.framing.of(name).or_else(|| self.checksums.of(name))
    }

    /// Median cost of one packet.
    pub(super) fn p50_ns(&self, name: &str) -> f64 {
        self.of(name).map_or(f64::NAN, |contender| contender.p50)
    }

    /// Median over the rounds of a contender's cost over its base's.
    pub(super) fn ratio(&self, name: &str) -> f64 {
        self.of(name).map_or(f64::NAN, |contender| contender.ratio.mid)
    }

    /// Per cent of the scalar procedure's work that stored sums save.
    pub(super) fn saved_percent(&self) -> f64 {
        (1.0 - self.ratio(IN_QUICK_CKSUM_UDP_IP_HDR)) * 100.0
    }

    /// The same of the fastest form of the traditional procedure here.
    pub(super) fn saved_of_fastest_percent(&self) -> f64 {
        let forms = self.checksums.contenders.iter().filter(|c| c.name.starts_with("in_cksum"));
        let fastest = forms.map(|c| c.ratio.mid).fold(f64::INFINITY, f64::min);
        (1.0 - self.ratio(IN_QUICK_CKSUM_UDP_IP_HDR) / fastest) * 100.0
    }

    /// Returns the difference between v4's two forms. The dearer form is not v4's own work: the
    /// difference is the cost of the source of the sum.
    pub(super) fn fetch_ns(&self) -> f64 {
        self.p50_ns(V4_FETCHED) - self.p50_ns(V4)
    }

    pub(super) fn noise(&self) -> Noise {
        self.framing.noise.clone().and(self.checksums.noise.clone())
    }

    /// A row for each contender.
    pub(super) fn rows(&self, ticks_per_ns: f64) -> Vec<Row> {
        let label = format!("{}, {} KB", self.state.name(), self.packet_bytes >> 10);
        let of = |result: &ContestResult| rows(result, &label, ticks_per_ns);
        [of(&self.framing), of(&self.checksums)].concat()
    }
}

/// A row for each contender of a contest.
pub(super) fn rows(result: &ContestResult, label: &str, ticks_per_ns: f64) -> Vec<Row> {
    let row = |c: &ContenderResult| {
        Row::new(format!("batches, {label}: {}", c.name))
            .with("p10", c.p10 * ticks_per_ns, "cycles/packet")
            .with("p50", c.p50 * ticks_per_ns, "cycles/packet")
            .with("p99", c.p99 * ticks_per_ns, "cycles/packet")
            .with("p50", c.p50, "ns/packet")
            .with(&format!("of {}", result.base), c.ratio.mid, "times")
            .with("low end", c.ratio.low, "")
            .with("high end", c.ratio.high, "")
    };
    result.contenders.iter().map(row).collect()
}

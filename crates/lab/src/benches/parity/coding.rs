//! Encoding and decoding beside the plain XOR of the same blocks and beside other codes, with the blocks in the first caches of
//! the processor and with blocks that come from memory.

use anyhow::{Context, ensure};
use millrace_core::fec::{Code, Kernel};
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::random::SplitMix;

use super::coders::{Coder, XOR, decoders, encoders, ours};
use crate::frame::{
    Axis, ContenderSlot, Contest, ContestOptions, ContestResult, Noise, Options, Plot, PlotKind, Point,
    Promise, Report, Row, TargetBound,
};
use crate::isal::Isal;

/// Packets in a unit of the cold blocks: with 8 units a row has 96, within what ST 2022-1 allows.
const UNIT_PACKETS: usize = 12;
/// Codewords of packets that are coded between two readings of the clock when everything is hot: one alone takes less than
/// the clock's resolution allows for.
const HOT_CODEWORDS: u64 = 64;
/// The promises are about this code.
const PROMISED: (usize, usize) = (8, 2);
/// Of the speed of plain XOR, with blocks that no cache holds.
const COLD_BOUND: f64 = 0.8;
/// The same with blocks in the cache, where two parities are written for the one of the XOR.
const HOT_BOUND: f64 = 0.33;

/// Placement of the blocks in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockPlacement {
    /// One codeword of packets in the first cache, each beginning with a cache line.
    Hot,
    /// The same, the packets without gaps as in a title: most vector loads touch two lines, which bounds the fastest codes.
    Packed,
    /// Row after row of half a gigabyte, without gaps.
    Cold,
}

impl BlockPlacement {
    const ALL: [Self; 3] = [Self::Hot, Self::Packed, Self::Cold];

    fn word(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Packed => "hot without gaps",
            Self::Cold => "cold",
        }
    }

    /// Codewords of packets in a batch; whether they are the same one over and over.
    fn batch(self) -> (u64, bool) {
        match self {
            Self::Hot | Self::Packed => (HOT_CODEWORDS, true),
            Self::Cold => (UNIT_PACKETS as u64, false),
        }
    }
}

/// All contests.
pub(super) fn run(options: &Options, report: &mut Report) -> anyhow::Result<Noise> {
    let shapes =
        options.pick(vec![(8, 2)], vec![(4, 2), (8, 2)], vec![(4, 1), (4, 4), (8, 2), (10, 4), (20, 4)]);
    let isal = Isal::open();
    if isal.is_none() {
        report.rows.push(Row::new("without ISA-L: no libisal.so.2 (apt-get install libisal2)"));
    }
    if !cfg!(feature = "reed-solomon-crates") {
        report.rows.push(Row::new("without other crates: build with --features reed-solomon-crates"));
    }
    let (mut noise, mut points) = (Noise::quiet(), Vec::new());
    for (k, m) in shapes {
        for state in BlockPlacement::ALL {
            let blocks = Blocks::new(k, m, state, options)?;
            for lost in [0, 1, m] {
                options.go_on()?;
                if lost == 1 && m == 1 {
                    continue; // The same as losing m.
                }
                let result = contest(&blocks, lost, isal, options)?;
                write_up(&blocks, lost, &result, report, &mut points);
                if (k, m) == PROMISED && lost == 0 {
                    promise(state, &result, report)?;
                }
                noise = noise.and(result.noise);
            }
        }
    }
    let y = Axis::new("time of the plain XOR of the same blocks, median with its 95 % interval", "times");
    let plot = Plot::new(PlotKind::Spread, "Beside the plain XOR", Axis::default(), y);
    report.plots.push(plot.with(ours(Kernel::best()), points));
    Ok(noise)
}

/// Rows of data and parity, one after the other in memory.
struct Blocks {
    code: Code,
    state: BlockPlacement,
    unit_bytes: usize,
    /// From one unit to the next.
    step: usize,
    data: Vec<u8>,
    parity: Vec<u8>,
    /// Where in both the first unit begins.
    start: [usize; 2],
    rows: usize,
}

impl Blocks {
    fn new(k: usize, m: usize, state: BlockPlacement, options: &Options) -> anyhow::Result<Self> {
        options.say(&format!("{k}+{m}: making blocks"));
        let code = Code::new(k, m).context("no such code")?;
        let (unit_bytes, rows) = match state {
            BlockPlacement::Hot | BlockPlacement::Packed => (DEFAULT_PACKET_BYTES, 1),
            BlockPlacement::Cold => {
                let unit_bytes = UNIT_PACKETS * DEFAULT_PACKET_BYTES;
                (unit_bytes, options.pick(4 << 20, 512 << 20, 512 << 20) / (k * unit_bytes))
            }
        };
        let step = if state == BlockPlacement::Hot { unit_bytes.next_multiple_of(64) } else { unit_bytes };
        let mut random = SplitMix(1);
        // Room to begin with a cache line.
        let [mut data, mut parity] = [k, m].map(|units| vec![0; rows * units * step + 63]);
        data.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]));
        let start = [&data, &parity].map(|bytes| bytes.as_ptr().align_offset(64).min(63));
        for row in 0..rows {
            let units =
                |bytes: usize, units: usize| bytes + row * units * step..bytes + (row + 1) * units * step;
            let data: Vec<&[u8]> =
                data[units(start[0], k)].chunks(step).map(|unit| &unit[..unit_bytes]).collect();
            let mut parity: Vec<&mut [u8]> =
                parity[units(start[1], m)].chunks_mut(step).map(|unit| &mut unit[..unit_bytes]).collect();
            code.encode(&data, &mut parity);
        }
        Ok(Self { code, state, unit_bytes, step, data, parity, start, rows })
    }

    fn symbol(&self, row: usize, symbol: usize) -> &[u8] {
        let (k, m) = (self.code.k(), self.code.m());
        let (bytes, unit) = match symbol.checked_sub(k) {
            None => (&self.data[self.start[0]..], row * k + symbol),
            Some(p) => (&self.parity[self.start[1]..], row * m + p),
        };
        &bytes[unit * self.step..][..self.unit_bytes]
    }

    fn label(&self, lost: usize) -> String {
        let what = match lost {
            0 => "encode".to_owned(),
            lost => format!("restore {lost}"),
        };
        format!("{}+{} {}, {what}", self.code.k(), self.code.m(), self.state.word())
    }

    /// One contender's turn: row after row, or one row over and over. The outputs are written to the same place again and
    /// again, as an ingest does, whose parity goes to disk from there.
    fn slot(
        &self,
        job: &CodingJob,
        coder: &mut Coder,
        at: &mut usize,
        slot: &mut ContenderSlot,
    ) -> anyhow::Result<()> {
        let mut out = vec![0; coder.outputs * self.step + 63];
        let start = out.as_ptr().align_offset(64).min(63);
        let out = &mut out[start..][..coder.outputs * self.step];
        let (codewords, is_same) = self.state.batch();
        let (items, times) = (codewords * self.code.k() as u64, if is_same { codewords } else { 1 });
        while slot.goes_on() {
            let blocks: Vec<&[u8]> = job.sources.iter().map(|s| self.symbol(*at, *s)).collect();
            let mut views: Vec<&mut [u8]> =
                out.chunks_mut(self.step).map(|unit| &mut unit[..self.unit_bytes]).collect();
            slot.batch(items, || {
                for _ in 0..times {
                    (coder.run)(std::hint::black_box(&blocks), &mut views);
                }
            });
            if slot.is_check() && coder.is_same_code {
                let is_right = |(view, symbol): (&&mut [u8], usize)| **view == *self.symbol(*at, symbol);
                let all_right = views.iter().zip(job.first_output..).all(is_right);
                ensure!(all_right, "row {at}: wrong bytes came out");
            }
            *at = (*at + 1) % self.rows;
        }
        Ok(())
    }
}

/// The computation for each row.
struct CodingJob {
    /// The symbols that are read.
    sources: Vec<usize>,
    /// The first symbol that comes out; the others follow.
    first_output: usize,
}

/// Encoding (nothing `lost`), or restoring the first data units of each row.
fn contest(
    blocks: &Blocks,
    lost: usize,
    isal: Option<Isal>,
    options: &Options,
) -> anyhow::Result<ContestResult> {
    let (k, m) = (blocks.code.k(), blocks.code.m());
    let coders = if lost == 0 { encoders(k, m, isal)? } else { decoders(&blocks.code, lost, isal)? };
    let job = match lost {
        0 => CodingJob { sources: (0..k).collect(), first_output: k },
        lost => {
            let plan = blocks.code.plan(u128::MAX << lost).context("too much is lost")?;
            CodingJob { sources: plan.sources().to_vec(), first_output: 0 }
        }
    };
    let mut contest = Contest::new(blocks.label(lost));
    let job = &job;
    for mut coder in coders {
        let mut at = 0;
        contest.contender(coder.name.clone(), move |slot| blocks.slot(job, &mut coder, &mut at, slot));
    }
    if (k, m) == PROMISED && lost == 0 {
        let best = ours(Kernel::best());
        match blocks.state {
            BlockPlacement::Cold => contest.goal(XOR, best, TargetBound::AtLeast(COLD_BOUND)),
            BlockPlacement::Hot => contest.goal(XOR, best, TargetBound::AtLeast(HOT_BOUND)),
            BlockPlacement::Packed => &mut contest,
        };
    }
    contest.run(&ContestOptions::from_options(options))
}

fn write_up(
    blocks: &Blocks,
    lost: usize,
    result: &ContestResult,
    report: &mut Report,
    points: &mut Vec<Point>,
) {
    let label = blocks.label(lost);
    for contender in &result.contenders {
        let c = contender;
        let row = Row::new(format!("{label}: {}", c.name))
            .with("p10", c.p10, "ns/packet")
            .with("p50", c.p50, "ns/packet")
            .with("p99", c.p99, "ns/packet")
            .with("read at p50", DEFAULT_PACKET_BYTES as f64 / c.p50, "GB/s")
            .with("to XOR", c.ratio.mid, "")
            .with("low end", c.ratio.low, "")
            .with("high end", c.ratio.high, "");
        report.rows.push(row);
        if c.name == ours(Kernel::best()) {
            points.push(Point::spread(label.as_str(), c.ratio.low, c.ratio.mid, c.ratio.high));
        }
    }
}

fn promise(state: BlockPlacement, result: &ContestResult, report: &mut Report) -> anyhow::Result<()> {
    let best = &ours(Kernel::best());
    for name in [best.as_str(), XOR] {
        result.of(name).with_context(|| format!("{name} was not measured"))?;
    }
    let (id, bound) = match state {
        BlockPlacement::Cold => ("parity-encode-cold", COLD_BOUND),
        BlockPlacement::Hot => ("parity-encode-hot", HOT_BOUND),
        BlockPlacement::Packed => return Ok(()),
    };
    report.promises.push(Promise::at_least(id, result.ratio(XOR, best), bound, "of XOR"));
    Ok(())
}

//! What framing costs: each version of the two papers on prebuilt packets, and ours, over the same datagrams. Table 1 and Figures 3 and
//! 4 of the evaluation of 2001 in the same form.

mod batches;
mod contenders;
pub(super) mod paths;
mod send;
mod single;
mod stream;

use batches::Costs;
use contenders::{FULL, IN_CKSUM, IN_QUICK_CKSUM_UDP_IP_HDR, V1, V3, V4, V4_FETCHED};
use stream::{
    CacheState, HOT_BYTES, PacketStream, PayloadMemory, SIZES, STREAM_BYTES, VIEWER, connection_to,
};

use crate::frame::stats::median_interval;
use crate::frame::ticks::{TickProbe, clock};
use crate::frame::{
    Axis, Bench, ContestResult, Interval, Need, Noise, Options, Plot, PlotKind, Point, Promise, Report, Row,
    Series,
};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "nlf",
    shows: "cycles a packet of framing: a traditional stack, the papers' versions 1 to 3, and version 4, which runs",
    not_for: "what sending costs: nothing but Figure 4 leaves the process, and that into devices of its own (see nlf-send)",
    options: &["runs"],
    targets: &[
        "nlf-v3-flat",
        "nlf-v4-flat",
        "nlf-v4-of-v3",
        "nlf-v3-of-v1",
        "nlf-checksum-saved-1k",
        "nlf-checksum-saved-8k",
        "nlf-v4-cycles",
        "nlf-v4-fetched-saved-1k",
        "nlf-bad-checksums",
    ],
    needs: &[],
    run,
};

/// What version 4 has to save of a traditional stack's framing, the fetch of the stored sum from memory included.
const FETCHED_BOUND: f64 = 90.0;

/// The results for one state.
struct CacheStateResults {
    state: CacheState,
    costs: Vec<Costs>,
    /// v3 and v4 by size.
    flat: [ContestResult; 2],
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let cold_bytes = options.pick(4 << 20, 128 << 20, 512 << 20);
    let stream_bytes = options.pick(300_000, STREAM_BYTES / 5, STREAM_BYTES);
    let mut report = Report::new("nlf");
    let ticks_per_ns = 1e6 / clock().ns(0, 1_000_000);
    options.say("filling memory");
    let (hot, cold) = (PayloadMemory::new(HOT_BYTES)?, PayloadMemory::new(cold_bytes)?);
    report.rows.push(facts(cold_bytes, stream_bytes, ticks_per_ns));
    report.rows.push(Row::new(format!("cold payloads lie in {}", cold.kind)));

    let mut all = Vec::new();
    for (memory, state) in [(&hot, CacheState::Hot), (&cold, CacheState::Cold)] {
        all.push(measure(memory, state, stream_bytes, ticks_per_ns, options, &mut report)?);
    }
    for measured in &all {
        figure_3(measured, stream_bytes, ticks_per_ns, &mut report);
    }
    figure_4(&cold, stream_bytes, options, &mut report)?;
    promises(&all, ticks_per_ns, &mut report);
    let noises = all.iter().flat_map(|m| {
        let contests = m.flat.iter().map(|flat| flat.noise.clone());
        contests.chain(m.costs.iter().map(Costs::noise)).collect::<Vec<_>>()
    });
    report.noise = Some(noises.fold(Noise::quiet(), Noise::and));
    Ok(report)
}

fn facts(cold_bytes: usize, stream_bytes: usize, ticks_per_ns: f64) -> Row {
    let probe = TickProbe::calibrated();
    Row::new("what was measured with")
        .with("stream", stream_bytes as f64 / 1e6, "MB")
        .with("memory of cold payloads", (cold_bytes >> 20) as f64, "MiB")
        .with("counter", ticks_per_ns * 1000.0, "MHz")
        .with("step of the counter", probe.step as f64, "cycles")
        .with("cost of a pair of probes, subtracted", probe.cost, "cycles")
        .with("packets of a batch", batches::BATCH as f64, "")
}

/// Everything of one state; the rows of the tables go into the report.
fn measure(
    memory: &PayloadMemory,
    state: CacheState,
    stream_bytes: usize,
    ticks_per_ns: f64,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<CacheStateResults> {
    let connection = connection_to(VIEWER)?;
    let streams: Vec<PacketStream<'_>> =
        SIZES.iter().map(|&size| PacketStream::new(memory, size, state)).collect();
    let mut costs = Vec::new();
    for stream in &streams {
        let lines = single::measure(stream, stream_bytes, &connection, options)?;
        report.rows.extend(lines.iter().map(|line| line.row(stream, ticks_per_ns)));
        let cost = batches::measure(stream, &connection, options)?;
        report.rows.extend(cost.rows(ticks_per_ns));
        report.rows.push(
            Row::new(format!("stored sums, {}", stream.label()))
                .with("saved of scalar", cost.saved_percent(), "%")
                .with("saved of the fastest form", cost.saved_of_fastest_percent(), "%")
                .with("fetching the stored sum adds", cost.fetch_ns() * ticks_per_ns, "cycles"),
        );
        costs.push(cost);
    }
    let flat = |name| batches::flatness(name, &streams, &connection, options);
    let flat = [flat(V3)?, flat(V4)?];
    for result in &flat {
        report.rows.extend(batches::rows(result, "by size", ticks_per_ns));
    }
    Ok(CacheStateResults { state, costs, flat })
}

/// Average processing overhead: the whole protocol, the checksum, and the total of the stream with the checksum's part of it.
fn figure_3<'a>(
    measured: &'a CacheStateResults,
    stream_bytes: usize,
    ticks_per_ns: f64,
    report: &mut Report,
) {
    for part in ["A, framing", "B, checksum"] {
        let of = |cost: &'a Costs| if part.starts_with('A') { &cost.framing } else { &cost.checksums };
        let mut series: Vec<Series> = Vec::new();
        for cost in &measured.costs {
            for c in &of(cost).contenders {
                let point = Point::xy(cost.packet_bytes as f64, c.p50 * ticks_per_ns)
                    .within(c.p10 * ticks_per_ns, c.p99 * ticks_per_ns);
                match series.iter_mut().find(|s| s.name == c.name) {
                    Some(s) => s.points.push(point),
                    None => series.push(Series::new(c.name.as_str(), vec![point])),
                }
            }
        }
        let title = format!("Figure 3{part}: payload {}", measured.state.name());
        let (x, y) =
            (Axis::log("packet", "bytes"), Axis::log("cycles per packet, p10 to p99 of batches", ""));
        report.plots.push(Plot { series, ..Plot::new(PlotKind::Lines, title, x, y) });
    }
    let (mut framing, mut checksum) = (Vec::new(), Vec::new());
    for cost in &measured.costs {
        let packets = (stream_bytes / cost.packet_bytes) as f64;
        for (version, procedure) in [
            (FULL, IN_CKSUM),
            (V1, "in_QuickCksum"),
            ("v2", IN_QUICK_CKSUM_UDP_IP_HDR),
            (V3, IN_QUICK_CKSUM_UDP_IP_HDR),
            (V4, IN_QUICK_CKSUM_UDP_IP_HDR),
        ] {
            let label = format!("{} KB, {version}", cost.packet_bytes >> 10);
            let bar = |name| Point::bar(label.as_str(), cost.p50_ns(name) * packets / 1e6);
            framing.push(bar(version));
            checksum.push(bar(procedure));
        }
    }
    let title = format!("Figure 3C: the whole stream, payload {}", measured.state.name());
    // Medians: in a sum of single packets one that was interrupted weighs as much as ten thousand.
    let y = Axis::new("median of batches times packets", "ms");
    let plot = Plot::new(PlotKind::Bars, title, Axis::default(), y);
    report.plots.push(plot.with("framing", framing).with("its checksum procedure by itself", checksum));
}

/// Processor time of whole sends.
fn figure_4(
    memory: &PayloadMemory,
    stream_bytes: usize,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let streams: Vec<PacketStream<'_>> =
        SIZES.iter().map(|&size| PacketStream::new(memory, size, CacheState::InOrder)).collect();
    let mut lines = Vec::new();
    for stream in &streams {
        lines.extend(send::into_null(stream, stream_bytes, options)?);
    }
    if [Need::Root, Need::Program("ip", "apt-get install iproute2")]
        .iter()
        .all(|need| need.missing().is_none())
    {
        let checked = options.pick(200, 200_000, 10_000_000);
        let (more, verdict) = send::into_tun(&streams, stream_bytes, checked, options)?;
        lines.extend(more);
        report.rows.push(
            Row::new("version 4, verified by the kernel").with("sent", verdict.sent as f64, "packets").with(
                "not accepted",
                verdict.bad as f64,
                "packets",
            ),
        );
        report.promises.push(Promise::at_most("nlf-bad-checksums", verdict.bad as f64, 0.0, "packets"));
    } else {
        report.rows.push(Row::new("figure 4, TUN device: skipped, it needs root and the program ip"));
    }
    report.rows.extend(lines.iter().map(send::SendCostLine::row));
    let y = Axis::new("processor time of the whole stream", "ms");
    let mut plot = Plot::new(PlotKind::Bars, "Figure 4: whole sends", Axis::default(), y);
    let mut names: Vec<&str> = lines.iter().map(|line| line.name).collect();
    names.truncate(names.iter().skip(1).position(|name| *name == names[0]).map_or(names.len(), |at| at + 1));
    for name in names {
        let of = lines.iter().filter(|line| line.name == name);
        let bar = |line: &send::SendCostLine| {
            Point::bar(format!("{}, {} KB", line.device, line.packet_bytes >> 10), line.cpu_ms)
        };
        plot = plot.with(name, of.map(bar).collect());
    }
    report.plots.push(plot);
    Ok(())
}

fn promises(all: &[CacheStateResults], ticks_per_ns: f64, report: &mut Report) {
    for (at, id) in [(0, "nlf-v3-flat"), (1, "nlf-v4-flat")] {
        let spread = |m: &CacheStateResults| {
            let ratios = m.flat[at].contenders.iter().map(|c| c.ratio);
            let most = ratios.clone().reduce(Interval::max)?;
            let least = ratios.reduce(Interval::min)?;
            // The dearest over the cheapest, whose intervals are both of the same base.
            Some(Interval {
                low: most.low / least.high,
                mid: most.mid / least.mid,
                high: most.high / least.low,
                confidence: most.confidence,
            })
        };
        if let Some(worst) = all.iter().filter_map(spread).reduce(Interval::max) {
            report.promises.push(Promise::at_most(id, worst, 1.05, "times"));
        }
    }
    let costs = || all.iter().flat_map(|m| &m.costs);
    for (id, names) in [("nlf-v4-of-v3", [V4, V3]), ("nlf-v3-of-v1", [V3, V1])] {
        let ratios = costs().map(|cost| cost.framing.ratio(names[0], names[1]));
        if let Some(worst) = ratios.reduce(Interval::max) {
            report.promises.push(Promise::at_most(id, worst, 1.0, "times"));
        }
    }
    for (bytes, id, bound) in
        [(1 << 10, "nlf-checksum-saved-1k", 97.3), (8 << 10, "nlf-checksum-saved-8k", 99.6)]
    {
        let Some(cost) = costs().find(|cost| cost.state == CacheState::Cold && cost.packet_bytes == bytes)
        else {
            continue;
        };
        let saved = |ratio: Interval| ratio.map(|ratio| (1.0 - ratio) * 100.0);
        let sums = saved(cost.checksums.ratio(IN_QUICK_CKSUM_UDP_IP_HDR, IN_CKSUM));
        report.promises.push(Promise::at_least(id, sums, bound, "%"));
        if bytes == 1 << 10 {
            // The smallest packets have the most sums to look up, and no cache holds them.
            let (id, framed) = ("nlf-v4-fetched-saved-1k", saved(cost.framing.ratio(V4_FETCHED, FULL)));
            report.promises.push(Promise::at_least(id, framed, FETCHED_BOUND, "% of full"));
        }
    }
    let cycles = |cost: &Costs| {
        let rounds = cost.framing.of(V4)?.rounds.iter().map(|ns| ns * ticks_per_ns);
        Some(median_interval(&rounds.collect::<Vec<f64>>()))
    };
    if let Some(worst) = costs().filter_map(cycles).reduce(Interval::max) {
        report.promises.push(Promise::at_most("nlf-v4-cycles", worst, 60.0, "cycles"));
    }
}

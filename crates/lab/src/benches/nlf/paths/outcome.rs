//! From costs to rows, a picture and targets.

use super::stage::{CALL_PACKETS, MTU_BYTES};
use super::{CONTENDERS, Cost, PacketSizeResults, TRADITIONAL, XDP_FULL, XDP_V4};
use crate::frame::stats::{Spread, median, median_interval};
use crate::frame::{Axis, NoiseMeter, Plot, PlotKind, Point, Promise, Report, Row};

/// The paper's savings at its smallest and its largest packet.
const PAPER_1K: f64 = 53.1;
const PAPER_8K: f64 = 62.33;
/// What stored sums alone have to save over one path at the largest packet: more than nothing, whatever the path costs beside.
const SUMS_8K: f64 = 10.0;

/// Returns the name of a row and of the repetitions behind it.
pub(super) fn label(packet_bytes: usize, name: &str) -> String {
    format!("{} KB: {name}", packet_bytes >> 10)
}

/// Per cent of what `base` took that `values` did not take, by rounds.
pub(super) fn saved_percent(values: &[f64], base: &[f64]) -> Vec<f64> {
    values.iter().zip(base).map(|(value, base)| (1.0 - value / base) * 100.0).collect()
}

impl PacketSizeResults {
    fn cost(&self, name: &str) -> Option<&Cost> {
        let at = CONTENDERS.iter().position(|contender| contender.name == name)?;
        self.costs[at].as_ref()
    }

    /// Per cent of the processor time of `base` that `name` saves, by rounds; empty if either was not measured.
    fn saved(&self, name: &str, base: &str) -> Vec<f64> {
        match (self.cost(name), self.cost(base)) {
            (Some(cost), Some(base)) => saved_percent(&cost.cpu_ms, &base.cpu_ms),
            _ => Vec::new(),
        }
    }

    fn rows(&self, stream_bytes: usize) -> Vec<Row> {
        let Some(base) = self.cost(TRADITIONAL) else { return Vec::new() };
        let packets = (stream_bytes / self.packet_bytes).max(1) as f64;
        let row = |(contender, cost): (&super::Contender, &Cost)| {
            let spread = Spread::of(&cost.cpu_ms);
            let cpu_ms = median(&cost.cpu_ms);
            let saved = median_interval(&saved_percent(&cost.cpu_ms, &base.cpu_ms));
            let own = median(&saved_percent(&cost.own_ms(), &base.own_ms()));
            Row::new(label(self.packet_bytes, contender.name))
                .with("whole send", cpu_ms, "ms")
                .with("p10", spread.p10, "ms")
                .with("p90", spread.p90, "ms")
                .with("per packet", cpu_ms * 1e6 / packets, "ns")
                .with("in soft interrupts", cost.softirq_per_send_ms() * 1e6 / packets, "ns")
                .with("a core carries", stream_bytes as f64 * 8.0 / cpu_ms / 1e6, "Gb/s")
                .with("saved", saved.mid, "%")
                .with("low end", saved.low, "%")
                .with("high end", saved.high, "%")
                .with("without soft interrupts", own, "%")
        };
        let entered = CONTENDERS.iter().zip(&self.costs);
        entered.filter_map(|(contender, cost)| Some(row((contender, cost.as_ref()?)))).collect()
    }
}

pub(super) fn report(
    all: &[PacketSizeResults],
    missing: u64,
    stream_bytes: usize,
    meter: NoiseMeter,
) -> Report {
    let mut report = Report::new("nlf-send");
    report.rows.push(
        Row::new("what was sent")
            .with("stream", stream_bytes as f64 / 1e6, "MB")
            .with("packets in a call, where there are several", CALL_PACKETS as f64, "")
            .with("MTU", MTU_BYTES as f64, "bytes")
            .with("packets in all", all.iter().map(|m| m.sent as f64).sum(), ""),
    );
    report.rows.extend(all.iter().flat_map(|measured| measured.rows(stream_bytes)));
    report.rows.extend(all.iter().flat_map(|m| &m.notes).map(|note| Row::new(note.as_str())));
    saving(all, 1 << 10, ("nlf-send-saved-1k", PAPER_1K), [XDP_V4, TRADITIONAL], &mut report);
    saving(all, 8 << 10, ("nlf-send-saved-8k", PAPER_8K), [XDP_V4, TRADITIONAL], &mut report);
    saving(all, 8 << 10, ("nlf-send-sums-saved-8k", SUMS_8K), [XDP_V4, XDP_FULL], &mut report);
    let none = |id, value: f64| Promise::at_most(id, value, 0.0, "packets");
    report.promises.push(none("nlf-send-missing", missing as f64));
    report.promises.push(none("nlf-send-damaged", all.iter().map(|m| m.damaged as f64).sum()));
    report.plots.push(plot(all, stream_bytes));
    report.noise = Some(meter.finish());
    report
}

/// What one contender saves of another at one size, if both were measured.
fn saving(
    all: &[PacketSizeResults],
    packet_bytes: usize,
    (id, bound): (&str, f64),
    names: [&str; 2],
    report: &mut Report,
) {
    let Some(measured) = all.iter().find(|m| m.packet_bytes == packet_bytes) else { return };
    let saved = measured.saved(names[0], names[1]);
    if !saved.is_empty() {
        report.promises.push(Promise::at_least(id, median_interval(&saved), bound, "%"));
    }
}

fn plot(all: &[PacketSizeResults], stream_bytes: usize) -> Plot {
    let y = Axis::new("processor time of the whole stream", "ms");
    let title = format!("Figure 4 across a veth pair: whole sends of {} MB", stream_bytes / 1_000_000);
    let mut plot = Plot::new(PlotKind::Bars, title, Axis::default(), y);
    for (at, contender) in CONTENDERS.iter().enumerate() {
        let bar = |m: &PacketSizeResults| {
            let cost = m.costs[at].as_ref()?;
            Some(Point::bar(format!("{} KB", m.packet_bytes >> 10), median(&cost.cpu_ms)))
        };
        plot = plot.with(contender.name, all.iter().filter_map(bar).collect());
    }
    plot
}

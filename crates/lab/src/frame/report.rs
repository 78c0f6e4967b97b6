//! The results of a benchmark: rows of figures, targets, plots, and whether they can be trusted.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::noise::Noise;
use super::plot::Plot;
use super::stats::{Interval, TargetBound};

/// The results. The JSON form is stable: `{bench, commit, machine, rows, promises}`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: String,
    /// Commit of the source tree it ran in, "-dirty" if changed, "unknown" outside a tree.
    pub commit: String,
    /// The machine.
    pub machine: String,
    /// The measurements, in order.
    pub rows: Vec<Row>,
    /// The targets.
    pub promises: Vec<Promise>,
    /// Pictures for the report.
    #[serde(skip)]
    pub plots: Vec<Plot>,
    /// Whether the machine was fit to measure, if the benchmark looked.
    #[serde(skip)]
    pub noise: Option<Noise>,
    /// The command line that repeats it; set by who runs the benchmark.
    #[serde(skip)]
    pub command: String,
}

/// One measured line: a label and named figures with their units.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The subject of the line.
    pub label: String,
    /// Figures in order.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Unit, empty for counts.
    pub unit: String,
}

/// A bound that the project promises to keep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Promise {
    /// Stable name.
    pub id: String,
    /// Measured value.
    #[serde(deserialize_with = "number_or_null")]
    pub value: f64,
    /// Lower end of its interval: of the 95 % interval of a median, the value itself of a count.
    #[serde(deserialize_with = "number_or_null")]
    pub low: f64,
    /// Upper end.
    #[serde(deserialize_with = "number_or_null")]
    pub high: f64,
    /// Its unit.
    pub unit: String,
    /// The bound in words, for people: ">= 800".
    pub bound: String,
    /// Whether the value keeps the bound.
    pub holds: bool,
    /// Whether it could be measured; what could not does not hold.
    pub measured: bool,
    /// The verdict on it.
    pub verdict: TargetState,
}

/// JSON has no NaN, so a missing value is null.
fn number_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Whether one target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// The whole interval keeps the bound.
    #[serde(rename = "met")]
    Met,
    /// The whole interval breaks it.
    #[serde(rename = "missed")]
    Missed,
    /// The bound lies in the interval.
    #[serde(rename = "undecided")]
    Undecided,
    /// There is no value.
    #[serde(rename = "not measured")]
    NotMeasured,
}

impl TargetState {
    /// All of them, the best first.
    pub const ALL: [Self; 4] = [Self::Met, Self::Missed, Self::Undecided, Self::NotMeasured];

    /// As tables and lines have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Whether a report meets its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportVerdict {
    /// Every target is met.
    Holds,
    /// One is missed.
    Missed,
    /// None is missed, but some are unknown: they were not measured, or undecided.
    Unknown,
}

impl Promise {
    /// `value >= bound`. The value is a count or an interval.
    pub fn at_least(id: &str, value: impl Into<Interval>, bound: f64, unit: &str) -> Self {
        Self::new(id, value.into(), unit, format!(">= {bound}"), TargetBound::AtLeast(bound))
    }

    /// `value <= bound`. The value is a count or an interval.
    pub fn at_most(id: &str, value: impl Into<Interval>, bound: f64, unit: &str) -> Self {
        Self::new(id, value.into(), unit, format!("<= {bound}"), TargetBound::AtMost(bound))
    }

    fn new(id: &str, value: Interval, unit: &str, words: String, bound: TargetBound) -> Self {
        let verdict = match value.keeps(bound) {
            _ if value.mid.is_nan() => TargetState::NotMeasured,
            Some(true) => TargetState::Met,
            Some(false) => TargetState::Missed,
            None => TargetState::Undecided,
        };
        Self {
            id: id.into(),
            value: value.mid,
            low: value.low,
            high: value.high,
            unit: unit.into(),
            bound: words,
            holds: Interval::from(value.mid).keeps(bound) == Some(true),
            measured: verdict != TargetState::NotMeasured,
            verdict,
        }
    }

    /// A target that could not be measured. It does not hold.
    pub fn not_measured(id: &str) -> Self {
        Self { bound: "not measured".to_owned(), ..Self::at_least(id, f64::NAN, 0.0, "") }
    }

    /// Whether it is met or missed.
    pub fn is_decided(&self) -> bool {
        matches!(self.verdict, TargetState::Met | TargetState::Missed)
    }

    /// The bound as a number.
    pub fn bound_value(&self) -> Option<f64> {
        self.bound.split_once(' ')?.1.parse().ok()
    }

    /// All about it in one line.
    pub fn line(&self) -> String {
        let word = match self.verdict {
            TargetState::NotMeasured => return format!("{}: not measured", self.id),
            TargetState::Missed => "MISSED",
            state => state.word(),
        };
        let within = self.interval();
        let within = if within.is_empty() { within } else { format!(", {within}") };
        format!("{}: {}{} ({}{within}) {word}", self.id, number(self.value), unit(&self.unit), self.bound)
    }

    /// The ends of its interval in words; nothing of a count.
    pub fn interval(&self) -> String {
        let is_wide = self.measured && self.low < self.high;
        if is_wide { format!("{} to {}", number(self.low), number(self.high)) } else { String::new() }
    }
}

impl Row {
    /// A line without figures yet.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), figures: Vec::new() }
    }

    /// Adds a figure.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64, unit: &str) -> Self {
        self.figures.push(Figure { name: name.into(), value, unit: unit.into() });
        self
    }

    fn has_shape_of(&self, other: &Self) -> bool {
        let same = |(a, b): (&Figure, &Figure)| a.name == b.name && a.unit == b.unit;
        self.figures.len() == other.figures.len() && self.figures.iter().zip(&other.figures).all(same)
    }
}

/// Rows with figures of the same names and units, wherever they are: each group belongs into one table. Groups are in the
/// order of their first rows.
pub(crate) fn groups(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| group[0].has_shape_of(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

impl Report {
    /// An empty report of `bench`, with machine and commit.
    pub fn new(bench: &str) -> Self {
        Self {
            bench: bench.into(),
            commit: tree_commit(),
            machine: machine(),
            rows: Vec::new(),
            promises: Vec::new(),
            plots: Vec::new(),
            noise: None,
            command: String::new(),
        }
    }

    /// Adds the targets of `declared` that have no value: what could not be measured must not pass for met.
    pub fn declare(&mut self, declared: &[&str]) {
        for id in declared {
            if !self.promises.iter().any(|promise| promise.id == *id) {
                self.promises.push(Promise::not_measured(id));
            }
        }
    }

    /// Names of its targets that come to this.
    pub fn names_of(&self, state: TargetState) -> Vec<&str> {
        let of_state = |promise: &&Promise| promise.verdict == state;
        self.promises.iter().filter(of_state).map(|promise| promise.id.as_str()).collect()
    }

    /// Returns the verdict of a check.
    pub fn verdict(&self) -> ReportVerdict {
        ReportVerdict::of(&self.promises)
    }
}

impl ReportVerdict {
    /// A miss outranks an unknown target.
    pub fn of<'a>(targets: impl IntoIterator<Item = &'a Promise>) -> Self {
        let rank = |promise: &Promise| match promise.verdict {
            TargetState::Missed => Self::Missed,
            TargetState::Undecided | TargetState::NotMeasured => Self::Unknown,
            TargetState::Met => Self::Holds,
        };
        targets.into_iter().map(rank).fold(Self::Holds, |worst, verdict| match (worst, verdict) {
            (Self::Missed, _) | (_, Self::Missed) => Self::Missed,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            _ => Self::Holds,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bench {}   commit {}\nmachine {}", self.bench, self.commit, self.machine)?;
        for group in groups(&self.rows) {
            match group[..] {
                [row] => write_line(f, row)?,
                [first, ..] if first.figures.is_empty() => {
                    group.iter().try_for_each(|row| write_line(f, row))?;
                }
                _ => write_table(f, &group)?,
            }
        }
        for promise in &self.promises {
            writeln!(f, "  target {}", promise.line())?;
        }
        if let Some(noise) = &self.noise {
            writeln!(f, "  {noise}")?;
        }
        Ok(())
    }
}

/// A row that has no neighbours like it: `label: name value unit, name value unit`.
fn write_line(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let colon = if row.figures.is_empty() { "" } else { ":" };
    write!(f, "  {}{colon}", row.label)?;
    for (i, figure) in row.figures.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        write!(f, "{comma} {} {}{}", figure.name, number(figure.value), unit(&figure.unit))?;
    }
    writeln!(f)
}

/// Rows with the same figures, aligned below the names.
fn write_table(f: &mut fmt::Formatter<'_>, rows: &[&Row]) -> fmt::Result {
    let mut lines = vec![vec![String::new()]; rows.len() + 1];
    lines[0].extend(rows[0].figures.iter().map(|figure| format!("{}{}", figure.name, unit(&figure.unit))));
    for (line, row) in lines[1..].iter_mut().zip(rows) {
        line[0].clone_from(&row.label);
        line.extend(row.figures.iter().map(|figure| number(figure.value)));
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    for line in &lines {
        write!(f, "  {:width$}", line[0], width = widths[0])?;
        for (text, width) in line.iter().zip(&widths).skip(1) {
            write!(f, "  {text:>width$}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" {unit}") }
}

/// A figure as people read it: whole numbers whole, others with one to three digits behind the point.
pub fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value}");
    }
    let digits = if value.abs() >= 100.0 { 1 } else { 3 };
    format!("{value:.digits$}")
}

/// Commit of the tree around the working directory, "-dirty" if changed, "unknown" outside a tree.
pub(crate) fn tree_commit() -> String {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let dirty =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    if dirty { format!("{hash}-dirty") } else { hash }
}

/// Processor, cores, memory, kernel; and how the program was compiled, since that decides as much.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|l| l.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    format!("{cpu}, {cores} cores, {memory}, Linux {}, {build}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_text_lists_rows_and_missed_targets() {
        let mut report = Report::new("demo");
        report.rows.push(Row::new("copy").with("rate", 812.25, "MB/s").with("runs", 9.0, ""));
        report.promises.push(Promise::at_least("ingest-rate", 812.25, 800.0, "MB/s"));
        assert_eq!(report.verdict(), ReportVerdict::Holds);
        report.promises.push(Promise::at_most("loss", 1.0, 0.0, "packets"));
        assert_eq!(report.verdict(), ReportVerdict::Missed);
        let text = report.to_string();
        assert!(
            text.contains("copy: rate 812.2 MB/s, runs 9") || text.contains("copy: rate 812.3 MB/s, runs 9")
        );
        assert!(text.contains("target loss: 1 packets (<= 0) MISSED"), "{text}");
    }

    #[test]
    fn rows_of_one_shape_are_printed_as_a_table() {
        let row = |label: &str, ns: f64| Row::new(label).with("p50", ns, "ns").with("runs", 3.0, "");
        let alone = Row::new("alone").with("x", 1.0, "");
        let note = || Row::new("not installed");
        let rows = vec![row("a", 1.5), note(), alone, row("longer", 1234.5), note()];
        let text = Report { rows, ..Report::new("demo") }.to_string();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let table = ["          p50 ns  runs", "  a        1.500     3", "  longer  1234.5     3"];
        assert_eq!(lines[..3], table);
        assert_eq!(lines[3..], ["  not installed", "  not installed", "  alone: x 1"]);
    }

    #[test]
    fn report_json_has_exact_format() {
        let mut report = Report { commit: "c".into(), machine: "m".into(), ..Report::new("demo") };
        report.rows.push(Row::new("copy").with("rate", 2.5, "MB/s"));
        report.promises.push(Promise::at_most("loss", 0.0, 0.0, "packets"));
        report.noise = Some(Noise::quiet());
        report.command = "millrace bench demo".into();
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"bench":"demo","commit":"c","machine":"m","rows":[{"label":"copy","figures":[{"name":"rate","value":2.5,"unit":"MB/s"}]}],"promises":[{"id":"loss","value":0.0,"low":0.0,"high":0.0,"unit":"packets","bound":"<= 0","holds":true,"measured":true,"verdict":"met"}]}"#
        );
    }

    #[test]
    fn interval_decides_and_noise_does_not() {
        let within = |low, high| Interval { low, mid: f64::midpoint(low, high), high, confidence: 0.96 };
        let verdict = |interval: Interval| Report {
            promises: vec![Promise::at_most("slow", interval, 0.5, "")],
            noise: Some(Noise::noisy("the hypervisor took 9.0 % of the processors' time")),
            ..Report::new("x")
        };
        assert_eq!(verdict(within(0.3, 0.4)).verdict(), ReportVerdict::Holds);
        assert_eq!(verdict(within(0.6, 0.7)).verdict(), ReportVerdict::Missed);
        let open = verdict(within(0.4, 0.56));
        assert_eq!(open.verdict(), ReportVerdict::Unknown);
        assert_eq!(open.names_of(TargetState::Undecided), ["slow"]);
        assert!(open.to_string().contains("target slow: 0.480 (<= 0.5, 0.400 to 0.560) undecided"), "{open}");
        // Five rounds give no 95 %, wherever they lie.
        let few = Interval { confidence: 0.9375, ..within(0.3, 0.4) };
        assert_eq!(verdict(few).verdict(), ReportVerdict::Unknown);
        // A count decides by itself.
        assert_eq!(verdict(Interval::from(1.0)).verdict(), ReportVerdict::Missed);
    }

    #[test]
    fn target_without_measurement_is_not_met() {
        let mut report = Report::new("x");
        report.promises.push(Promise::at_most("slow", 0.0, 0.5, ""));
        report.declare(&["slow", "absent"]);
        assert_eq!(report.names_of(TargetState::NotMeasured), ["absent"]);
        assert_eq!((report.promises.len(), report.verdict()), (2, ReportVerdict::Unknown));
        assert!(report.to_string().contains("target absent: not measured"), "{report}");
        assert!(serde_json::to_string(&report).unwrap().contains(r#""value":null"#));
        // A figure that came out as no number was not measured either, and a miss outranks it.
        report.promises.push(Promise::at_least("ratio", f64::NAN, 1.0, ""));
        assert_eq!(report.names_of(TargetState::NotMeasured), ["absent", "ratio"]);
        report.promises.push(Promise::at_least("missed", 0.0, 1.0, ""));
        assert_eq!(report.verdict(), ReportVerdict::Missed);
        let json = serde_json::to_string(&report.promises).unwrap();
        let read: Vec<Promise> = serde_json::from_str(&json).unwrap();
        assert_eq!(ReportVerdict::of(&read[..2]), ReportVerdict::Unknown);
        assert!(read[1].value.is_nan() && read[3].verdict == TargetState::Missed);
    }
}

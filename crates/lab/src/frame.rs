//! One way to write a benchmark, so that all are read the same way.

use std::fmt;

use serde::Serialize;

/// A benchmark.
pub struct Bench {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// What it is not for.
    pub not_for: &'static str,
    /// Runs it.
    pub run: fn(&Options) -> anyhow::Result<Report>,
}

/// How a benchmark is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tiny inputs: shows that the benchmark still works, its figures mean nothing.
    pub tiny: bool,
    /// The program that serves, for benchmarks of the whole: the `millrace` binary.
    pub program: std::path::PathBuf,
    /// Viewers, for benchmarks that have them.
    pub streams: Option<usize>,
    /// Length of the measured part.
    pub duration_s: Option<u64>,
    /// Where large files may be made; a folder of its own below it is removed at the end.
    pub scratch: std::path::PathBuf,
}

/// What came out. The JSON form is stable: `{bench, commit, machine, rows, promises}`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: String,
    /// Commit of the source tree it ran in, "-dirty" if changed, "unknown" outside a tree.
    pub commit: String,
    /// The machine.
    pub machine: String,
    /// What was measured, in order.
    pub rows: Vec<Row>,
    /// What was promised.
    pub promises: Vec<Promise>,
}

/// One measured line: a label and named figures with their units.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What the line is about.
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
#[derive(Clone, Debug, Serialize)]
pub struct Promise {
    /// Stable name.
    pub id: String,
    /// Measured value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// The bound in words, for people: ">= 800".
    pub bound: String,
    /// Whether the value keeps the bound.
    pub holds: bool,
}

impl Promise {
    /// `value >= bound`.
    pub fn at_least(id: &str, value: f64, bound: f64, unit: &str) -> Self {
        Self { id: id.into(), value, unit: unit.into(), bound: format!(">= {bound}"), holds: value >= bound }
    }

    /// `value <= bound`.
    pub fn at_most(id: &str, value: f64, bound: f64, unit: &str) -> Self {
        Self { id: id.into(), value, unit: unit.into(), bound: format!("<= {bound}"), holds: value <= bound }
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
}

impl Report {
    /// An empty report of `bench`, with machine and commit.
    pub fn new(bench: &str) -> Self {
        Self { bench: bench.into(), commit: commit(), machine: machine(), rows: vec![], promises: vec![] }
    }

    /// Whether every promise holds.
    pub fn holds(&self) -> bool {
        self.promises.iter().all(|p| p.holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bench {}   commit {}\nmachine {}", self.bench, self.commit, self.machine)?;
        for row in &self.rows {
            write!(f, "  {}:", row.label)?;
            for (i, figure) in row.figures.iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                write!(f, "{comma} {} {}{}", figure.name, number(figure.value), unit(&figure.unit))?;
            }
            writeln!(f)?;
        }
        for p in &self.promises {
            let verdict = if p.holds { "holds" } else { "MISSED" };
            writeln!(f, "  promise {}: {}{} ({}) {verdict}", p.id, number(p.value), unit(&p.unit), p.bound)?;
        }
        Ok(())
    }
}

fn unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" {unit}") }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value}");
    }
    let digits = if value.abs() >= 100.0 { 1 } else { 3 };
    format!("{value:.digits$}")
}

/// Commit of the tree around the working directory.
fn commit() -> String {
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

/// Percentile `p` (0..=100) of unsorted values by nearest rank; NaN of none.
pub fn percentile(values: &mut [f64], p: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (p / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_well_and_knows_its_promises() {
        let mut report = Report::new("demo");
        report.rows.push(Row::new("copy").with("rate", 812.25, "MB/s").with("runs", 9.0, ""));
        report.promises.push(Promise::at_least("ingest-rate", 812.25, 800.0, "MB/s"));
        assert!(report.holds());
        report.promises.push(Promise::at_most("loss", 1.0, 0.0, "packets"));
        assert!(!report.holds());
        let text = report.to_string();
        assert!(
            text.contains("copy: rate 812.2 MB/s, runs 9") || text.contains("copy: rate 812.3 MB/s, runs 9")
        );
        assert!(text.contains("promise loss: 1 packets (<= 0) MISSED"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["promises"][0]["holds"], true);
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(percentile(&mut values, 50.0), 3.0);
        assert_eq!(percentile(&mut values, 99.0), 5.0);
        assert_eq!(percentile(&mut values, 0.0), 1.0);
        assert!(percentile(&mut [], 50.0).is_nan());
    }
}

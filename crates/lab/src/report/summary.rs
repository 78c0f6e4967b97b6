//! One page about many benchmarks: all targets, how far each is from its bound, links to the pages.

use super::html::{add, begin, html_table, picture};
use super::table::promises;
use super::text::escape;
use crate::frame::{Axis, Bench, Plot, PlotKind, Point, Promise, TargetState};

/// One benchmark of several.
#[derive(Clone, Debug)]
pub struct BenchOutcome {
    /// The benchmark.
    pub bench: &'static Bench,
    /// Its targets; those of a benchmark without a result were not measured.
    pub promises: Vec<Promise>,
    /// Whether it has run.
    pub state: OutcomeState,
}

/// Whether a benchmark has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutcomeState {
    /// It has.
    Measured,
    /// It has not had its turn.
    Waiting,
    /// The machine lacks something.
    Skipped(String),
    /// It ended with an error.
    Failed(String),
}

impl OutcomeState {
    /// A remark behind its targets; empty when it has run.
    pub fn words(&self) -> String {
        match self {
            Self::Measured => String::new(),
            Self::Waiting => " (not run yet)".to_owned(),
            Self::Skipped(why) => format!(" (cannot run here, {why})"),
            Self::Failed(why) => format!(" (failed: {why})"),
        }
    }
}

impl BenchOutcome {
    /// All its targets were not measured.
    pub fn without_result(bench: &'static Bench, state: OutcomeState) -> Self {
        let promises = bench.targets.iter().map(|id| Promise::not_measured(id)).collect();
        Self { bench, promises, state }
    }
}

/// The page.
pub(super) fn page(outcomes: &[BenchOutcome], (commit, command, date): (&str, &str, &str)) -> String {
    let title = escape(&format!("bench all, commit {commit}"));
    let mut out = begin(&title);
    add(&mut out, format_args!("<h1>{title}</h1>"));
    if commit.ends_with("-dirty") || commit == "unknown" {
        add(
            &mut out,
            format_args!(
                "<p class=\"noisy\"><b>Of no commit:</b> the tree had changes that are in none.</p>"
            ),
        );
    }
    let all = || outcomes.iter().flat_map(|outcome| &outcome.promises);
    out.push_str("<dl>\n");
    add(&mut out, format_args!("<dt>command</dt><dd><code>{}</code></dd>", escape(command)));
    add(&mut out, format_args!("<dt>date</dt><dd>{}</dd>", escape(date)));
    for state in TargetState::ALL {
        let count = all().filter(|promise| promise.verdict == state).count();
        add(&mut out, format_args!("<dt>{}</dt><dd>{count}</dd>", state.word()));
    }
    out.push_str("</dl>\n");
    for outcome in outcomes {
        section(&mut out, outcome);
    }
    out += "</main>\n</body>\n</html>\n";
    out
}

fn section(out: &mut String, outcome: &BenchOutcome) {
    let (name, state) = (escape(outcome.bench.name), escape(&outcome.state.words()));
    let name = match outcome.state {
        OutcomeState::Measured => format!("<a href=\"{name}/index.html\">{name}</a>"),
        _ => name,
    };
    add(out, format_args!("<h2>{name}{state}</h2>\n<p>{}</p>", escape(outcome.bench.shows)));
    if let Some(table) = promises(&outcome.promises) {
        html_table(out, &table);
    }
    let point = |promise: &Promise| {
        let bound = promise.bound_value().filter(|bound| *bound > 0.0 && promise.measured)?;
        let [low, mid, high] = [promise.low, promise.value, promise.high].map(|value| value / bound);
        Some(Point::spread(format!("{} {}", promise.id, &promise.bound), low, mid, high))
    };
    let points: Vec<Point> = outcome.promises.iter().filter_map(point).collect();
    if !points.is_empty() {
        let axis = Axis::new("measured over the bound, with its 95 % interval", "");
        let plot = Plot::new(PlotKind::Spread, "Targets beside their bounds", Axis::default(), axis);
        picture(out, &plot.with("1 is the bound", points));
    }
}

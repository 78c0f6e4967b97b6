//! `millrace bench all`: every benchmark on one commit, with one report.
//!
//! | path below the directory | holds |
//! | --- | --- |
//! | `COMMIT/index.html` | all targets; written again after every benchmark |
//! | `COMMIT/BENCH/` | page and JSON document of one benchmark; one that is there is not run again |

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use millrace_cli::exit::usage;

use super::bench::{BenchArgs, EXIT_INTERRUPTED, ProgressLine, code_of, now_utc};
use crate::benches;
use crate::frame::{
    Bench, Cancelled, Options, ProgressSink, Promise, ReportVerdict, TargetState, tree_commit,
};
use crate::report::{self, BenchOutcome, OutcomeState};

/// Directory of the report without `--report`.
const DIRECTORY: &str = "bench-report";
/// Name in the markers of a document without `--section`.
const SECTION: &str = "all";
/// Options of single benchmarks that have a meaning for all.
const OPTIONS: [&str; 2] = ["only", "runs"];

/// Runs them.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let chosen = chosen(args).map_err(usage)?;
    let commit = tree_commit();
    check_tree(&commit, args.allow_dirty)?;
    let dir = args.report.clone().unwrap_or_else(|| PathBuf::from(DIRECTORY)).join(key(args, &commit));
    report::make_dir(&dir)?;
    let document = args.markdown.as_deref().map(|file| (file, args.section.as_deref().unwrap_or(SECTION)));
    if let Some((file, section)) = document {
        report::check_markdown(file, section)?;
    }
    let options = Options { only: Vec::new(), ..args.options(ProgressSink::silent())? };
    let waiting = |bench: &&'static Bench| BenchOutcome::without_result(bench, OutcomeState::Waiting);
    let mut outcomes: Vec<BenchOutcome> = chosen.iter().map(waiting).collect();
    let (command, mut is_interrupted) = (args.command(), false);
    for (at, bench) in chosen.into_iter().enumerate() {
        match one(args, bench, &options, (&dir, &commit))? {
            Some(outcome) => outcomes[at] = outcome,
            None => is_interrupted = true,
        }
        // Written each time, so that the page is complete however this program ends.
        report::write_summary(&dir, &outcomes, (&commit, &command, &now_utc()))?;
        if is_interrupted {
            break;
        }
    }
    print!("{}", text(&outcomes));
    eprintln!("millrace: wrote {}", dir.join("index.html").display());
    if is_interrupted {
        eprintln!("millrace: bench all: {Cancelled}; the same command goes on where it was");
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    // Not before the end: a changed document is a changed tree, in which nothing can go on.
    if let Some((file, section)) = document {
        report::write_summary_markdown(file, section, &outcomes, (&commit, &command, &now_utc()))?;
    }
    Ok(ExitCode::from(exit_code(&outcomes, args.check)))
}

/// The benchmarks named by `--only`, or all.
fn chosen(args: &BenchArgs) -> anyhow::Result<Vec<&'static Bench>> {
    let given = args.what.given();
    let unknown = given.iter().map(|(name, _)| *name).find(|name| !OPTIONS.contains(name));
    let unknown = unknown.or(args.json.then_some("json"));
    anyhow::ensure!(
        unknown.is_none(),
        "bench all: --{} means nothing to it; its own options are: --{}",
        unknown.unwrap_or_default(),
        OPTIONS.join(" --")
    );
    let find = |name: &String| {
        benches::find(name).ok_or_else(|| {
            let names: Vec<&str> = benches::ALL.iter().map(|bench| bench.name).collect();
            anyhow::anyhow!("bench all: --only {name}: no such benchmark; there are: {}", names.join(", "))
        })
    };
    match args.what.only.as_slice() {
        [] => Ok(benches::ALL.iter().collect()),
        names => names.iter().map(find).collect(),
    }
}

/// Figures of a tree that cannot be checked out again are no report.
fn check_tree(commit: &str, is_dirty_allowed: bool) -> anyhow::Result<()> {
    if is_dirty_allowed {
        return Ok(());
    }
    anyhow::ensure!(
        commit != "unknown",
        "bench all: there is no git tree here; start it in the tree that the program was built from, \
         or give --allow-dirty, which marks the report"
    );
    anyhow::ensure!(
        !is_dirty(commit),
        "bench all: the tree at {commit} has changes that are not committed; commit them, \
         or give --allow-dirty, which marks the report"
    );
    Ok(())
}

fn is_dirty(commit: &str) -> bool {
    commit.ends_with("-dirty")
}

/// Name of the results' directory: other options make other results.
fn key(args: &BenchArgs, commit: &str) -> String {
    let parts = [
        Some(commit.to_owned()),
        args.quick.then(|| "quick".to_owned()),
        args.tiny.then(|| "tiny".to_owned()),
        args.limit.map(|secs| format!("limit-{secs}s")),
        args.what.runs.map(|runs| format!("runs-{runs}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("-")
}

/// Runs one, or reads the result that is there; `None` when the user stops it.
fn one(
    args: &BenchArgs,
    bench: &'static Bench,
    options: &Options,
    (dir, commit): (&Path, &str),
) -> anyhow::Result<Option<BenchOutcome>> {
    let place = dir.join(bench.name);
    // A changed tree may have changed since.
    let finished = if is_dirty(commit) { None } else { report::read_targets(&place)? };
    if let Some(promises) = finished {
        eprintln!("millrace: bench {}: measured before, in {}", bench.name, place.display());
        return Ok(Some(BenchOutcome { bench, promises, state: OutcomeState::Measured }));
    }
    let missing = bench.missing();
    if !missing.is_empty() {
        let state = OutcomeState::Skipped(format!("needs {}", missing.join(", and ")));
        return Ok(Some(BenchOutcome::without_result(bench, state)));
    }
    let line = ProgressLine::new(bench.name);
    let measured = bench.measure(&Options { progress: line.progress(), ..options.clone() });
    line.finish();
    let mut measured = match measured {
        Err(error) if error.is::<Cancelled>() => return Ok(None),
        Err(error) => {
            eprintln!("millrace: bench {}: {error:#}", bench.name);
            let state = OutcomeState::Failed(format!("{error:#}"));
            return Ok(Some(BenchOutcome::without_result(bench, state)));
        }
        Ok(measured) => measured,
    };
    anyhow::ensure!(
        measured.commit == commit,
        "bench all: the tree was at {commit} and is at {}; go back to the first, or begin again",
        measured.commit
    );
    measured.command = args.command_of(bench.name);
    report::write_dir(&place, bench, &measured, &now_utc())?;
    Ok(Some(BenchOutcome { bench, promises: measured.promises, state: OutcomeState::Measured }))
}

/// A line for each benchmark, and one for each target that is not met.
fn text(outcomes: &[BenchOutcome]) -> String {
    let mut out = String::new();
    for outcome in outcomes {
        let of = |state| outcome.promises.iter().filter(move |p| p.verdict == state);
        let counts: Vec<String> = TargetState::ALL
            .into_iter()
            .map(|state| (state, of(state).count()))
            .filter(|(_, count)| *count > 0)
            .map(|(state, count)| format!("{count} {}", state.word()))
            .collect();
        out += &format!("{:15} {}{}\n", outcome.bench.name, counts.join(", "), outcome.state.words());
        for promise in of(TargetState::Missed).chain(of(TargetState::Undecided)) {
            out += &format!("                {}\n", promise.line());
        }
    }
    out
}

/// 1 when a benchmark failed; with `--check` the verdict on all targets.
fn exit_code(outcomes: &[BenchOutcome], checks: bool) -> u8 {
    if outcomes.iter().any(|outcome| matches!(outcome.state, OutcomeState::Failed(_))) {
        return 1;
    }
    let targets: Vec<&Promise> = outcomes.iter().flat_map(|outcome| &outcome.promises).collect();
    if checks { code_of(ReportVerdict::of(targets)) } else { 0 }
}

#[cfg(test)]
#[path = "bench_all_tests.rs"]
mod tests;

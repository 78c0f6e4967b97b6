//! A [`Report`] for people: one HTML page with tables and pictures, or tables inside a Markdown document.

mod html;
mod markdown;
mod scale;
mod summary;
mod svg;
mod table;
mod text;

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::frame::{Bench, Promise, Report};

pub use summary::{BenchOutcome, OutcomeState};
pub use text::utc_date;

/// Writes `index.html` (needs nothing else to be shown) and `report.json` into `dir`, which is made if it is not there.
/// Returns the path of the page.
///
/// # Errors
/// When a file cannot be written.
pub fn write_dir(dir: &Path, bench: &Bench, report: &Report, date: &str) -> anyhow::Result<PathBuf> {
    make_dir(dir)?;
    let page = dir.join("index.html");
    write_whole(&page, &html::page(bench, report, date))?;
    let json = serde_json::to_string_pretty(report).context("the report as JSON")?;
    write_whole(&dir.join("report.json"), &(json + "\n"))?;
    Ok(page)
}

/// Reads the targets of the benchmark that [`write_dir`] has written into `dir`; `None` if it has not.
///
/// # Errors
/// When there is a document that cannot be read.
pub fn read_targets(dir: &Path) -> anyhow::Result<Option<Vec<Promise>>> {
    #[derive(serde::Deserialize)]
    struct Targets {
        promises: Vec<Promise>,
    }
    let path = dir.join("report.json");
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("{}: cannot be read", path.display()))?,
    };
    let targets: Targets = serde_json::from_str(&text).with_context(|| {
        format!("{}: is no report of this version; remove it to measure again", path.display())
    })?;
    Ok(Some(targets.promises))
}

/// Writes the page about many benchmarks, one in each folder below `dir`. `facts`: commit, command line
/// and date.
///
/// # Errors
/// When it cannot be written.
pub fn write_summary(dir: &Path, outcomes: &[BenchOutcome], facts: (&str, &str, &str)) -> anyhow::Result<()> {
    write_whole(&dir.join("index.html"), &summary::page(outcomes, facts))
}

/// Makes the folder of a report: to be done before something is measured for long.
///
/// # Errors
/// When it cannot be made.
pub fn make_dir(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))
}

/// Replaces the text between `<!-- bench SECTION -->` and `<!-- /bench SECTION -->` in `file` by
/// the tables of this run.
///
/// # Errors
/// When the file cannot be read or written, or does not have the two markers exactly once; the file is then as before.
pub fn write_markdown(file: &Path, section: &str, report: &Report, date: &str) -> anyhow::Result<()> {
    write_whole(file, &with_section(file, section, &markdown::body(report, date))?)
}

/// The same for the targets of many benchmarks. `facts`: commit, command line and date.
///
/// # Errors
/// As [`write_markdown`].
pub fn write_summary_markdown(
    file: &Path,
    section: &str,
    outcomes: &[BenchOutcome],
    facts: (&str, &str, &str),
) -> anyhow::Result<()> {
    write_whole(file, &with_section(file, section, &markdown::summary(outcomes, facts))?)
}

/// Whether [`write_markdown`] will find its place: to be asked before something is measured for long.
///
/// # Errors
/// As [`write_markdown`].
pub fn check_markdown(file: &Path, section: &str) -> anyhow::Result<()> {
    with_section(file, section, "").map(drop)
}

fn with_section(file: &Path, section: &str, body: &str) -> anyhow::Result<String> {
    let old = std::fs::read_to_string(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    markdown::replace_section(&old, section, body).with_context(|| file.display().to_string())
}

/// Writes to a second file and renames it, so that no reader ever sees half a file.
fn write_whole(path: &Path, content: &str) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, content)
        .and_then(|()| std::fs::rename(&beside, path))
        .inspect_err(|_| drop(std::fs::remove_file(&beside)))
        .with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;

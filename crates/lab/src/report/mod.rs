//! A [`Report`] for people: one HTML page with tables and pictures, or tables inside a Markdown document.

mod html;
mod markdown;
mod scale;
mod svg;
mod table;
mod text;

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::frame::{Bench, Report};

pub use text::utc_date;

/// Writes `index.html` (needs nothing else to be shown) and `report.json` into `dir`, which is made if it is not there.
/// Returns the path of the page.
///
/// # Errors
/// When a file cannot be written.
pub fn write_dir(dir: &Path, bench: &Bench, report: &Report, date: &str) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    let page = dir.join("index.html");
    write_whole(&page, &html::page(bench, report, date))?;
    let json = serde_json::to_string_pretty(report).context("the report as JSON")?;
    write_whole(&dir.join("report.json"), &(json + "\n"))?;
    Ok(page)
}

/// Replaces what lies between `<!-- bench SECTION -->` and `<!-- /bench SECTION -->` in `file` by the tables of this run.
///
/// # Errors
/// When the file cannot be read or written, or does not have the two markers exactly once; the file is then as before.
pub fn write_markdown(file: &Path, section: &str, report: &Report, date: &str) -> anyhow::Result<()> {
    let old = std::fs::read_to_string(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    let new = markdown::replace_section(&old, section, &markdown::body(report, date))
        .with_context(|| file.display().to_string())?;
    write_whole(file, &new)
}

/// Writes beside and renames, so that nobody ever reads half a file.
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

//! Documents: one title each, links and paths that lead somewhere, and nothing that holds only on one machine or one
//! day.

use super::modules::join;
use super::tree::File;
use super::{Finding, Tree};

/// Folders whose paths in backticks must exist.
const OURS: &[&str] = &["crates/", "xtask/", "scripts/", "docs/", ".ci/", ".cargo/"];

/// Absolute paths that mean nothing to a reader, concatenated here so that this file does not
/// contain them.
const PLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];
/// The same, in documents only: programs do use the temporary folder.
const DOCUMENT_PLACES: &[&str] = &[concat!("/tm", "p/"), concat!("/wo", "rk"), concat!("/ro", "ot")];

/// Phrases of a person at work, which give a reader no information about the program.
const TALK: &[&str] =
    &["as requested", "as discussed", "subagent", "sub-agent", "language model", "the brief", "prompt"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        places(file, PLACES, findings);
        if file.path.ends_with(".md") {
            places(file, DOCUMENT_PLACES, findings);
            title(file, findings);
            talk(file, findings);
            links(tree, file, findings);
        } else if file.path.ends_with("src/lib.rs") {
            entry_points(tree, file, findings);
        }
    }
}

pub(super) fn finding(file: &File, line: usize, what: String, remedy: &str) -> Finding {
    Finding { path: file.path.clone(), line, what, remedy: remedy.into() }
}

/// Lines with their numbers from 1, those inside of code fences left out.
pub(super) fn prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    file.text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((index + 1, line))
    })
}

fn places(file: &File, places: &[&str], findings: &mut Vec<Finding>) {
    for (index, line) in file.text.lines().enumerate() {
        let is_path_start = |at: usize| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || "._-~}/)$".contains(c))
        };
        let hit = |place: &&str| {
            line.match_indices(place).any(|(at, _)| {
                let behind = line[at + place.len()..].chars().next();
                is_path_start(at)
                    && (place.ends_with('/') || !behind.is_some_and(|c| c.is_alphanumeric() || c == '/'))
            })
        };
        for place in places.iter().filter(|p| hit(p)) {
            let what = format!("the path {place} exists on one machine only");
            findings.push(finding(file, index + 1, what, "name a path within the repository or a variable"));
        }
    }
}

fn title(file: &File, findings: &mut Vec<Finding>) {
    let titles: Vec<usize> =
        prose(file).filter(|(_, line)| line.starts_with("# ")).map(|(line, _)| line).collect();
    let first = prose(file).find(|(_, line)| !line.trim().is_empty()).map_or(0, |(line, _)| line);
    match titles.as_slice() {
        [only] if *only == first => {}
        [] => findings.push(finding(
            file,
            1,
            "the document has no title".into(),
            "begin it with a line `# Title`",
        )),
        [only] => findings.push(finding(file, *only, "the title is not the first line".into(), "move it up")),
        [_, second, ..] => {
            findings.push(finding(
                file,
                *second,
                "a second title".into(),
                "make it `## ` or another document",
            ));
        }
    }
}

fn talk(file: &File, findings: &mut Vec<Finding>) {
    for (number, line) in prose(file) {
        let lower = line.to_lowercase();
        let word = TALK.iter().find(|talk| crate::rust_text::words(&lower, talk).next().is_some());
        let numbered = crate::rust_text::words(&lower, "session").any(|at| {
            let rest = lower[at + "session".len()..].trim_start_matches([' ', '#']);
            rest.starts_with(|c: char| c.is_ascii_digit())
        });
        if let Some(word) = word.copied().or(numbered.then_some("session <number>")) {
            let what = format!("'{word}' is talk about the work, not about the program");
            findings.push(finding(file, number, what, "say what holds now and why"));
        }
    }
}

fn links(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    for (number, line) in prose(file) {
        for target in link_targets(line) {
            let outside = target.contains("://") || target.starts_with("mailto:");
            let (path, anchor) =
                target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
            let full = if path.is_empty() { file.path.clone() } else { join(folder, path) };
            if outside {
                continue;
            }
            if !tree.exists(&full) {
                let what = format!("the link to {target} leads nowhere");
                findings.push(finding(
                    file,
                    number,
                    what,
                    "repair the path, which is taken from this document's folder",
                ));
            } else if anchor.is_some_and(|anchor| tree.file(&full).is_some_and(|f| !has_heading(f, anchor))) {
                let what = format!("{full} has no heading for the link to {target}");
                findings.push(finding(
                    file,
                    number,
                    what,
                    "name one of its headings, in lower case with hyphens",
                ));
            }
        }
        paths(tree, file, number, line, findings);
    }
}

/// Paths in a crate's head, which leads to its files.
fn entry_points(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    let head = file.text.lines().zip(1..).filter(|(line, _)| line.starts_with("//!"));
    head.for_each(|(line, number)| paths(tree, file, number, line, findings));
}

fn paths(tree: &Tree, file: &File, number: usize, line: &str, findings: &mut Vec<Finding>) {
    for path in quoted_paths(line).filter(|path| !tree.exists(path)) {
        let what = format!("`{path}` is not in the repository");
        findings.push(finding(file, number, what, "repair the path"));
    }
}

/// Targets of `[text](target)` outside of backticks.
fn link_targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (part, text) in line.split('`').enumerate() {
        // Between a first and a second backtick lies code; a link's text may be code too, its target never is.
        if part % 2 == 1 {
            continue;
        }
        for (at, _) in text.match_indices("](") {
            let target = &text[at + 2..];
            if let Some(end) = target.find(')') {
                found.push(target[..end].split_whitespace().next().unwrap_or_default());
            }
        }
    }
    found
}

/// Paths of this repository in backticks; patterns are left alone.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter_map(|text| {
        let path = text.split([' ', ':', '#']).next().unwrap_or_default();
        let ours = OURS.iter().any(|folder| path.starts_with(folder));
        (ours && !path.contains(['*', '{', '<', '…', '$'])).then_some(path)
    })
}

/// Whether a heading of the document has this anchor, formed as the usual viewers form it.
fn has_heading(file: &File, anchor: &str) -> bool {
    let headings =
        prose(file).filter_map(|(_, line)| line.trim_start_matches('#').strip_prefix(' ').map(|h| (line, h)));
    headings.filter(|(line, _)| line.starts_with('#')).any(|(_, heading)| {
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        slug == anchor
    })
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;

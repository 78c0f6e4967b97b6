//! Tables inside a Markdown document, between two comments that name the benchmark.

use anyhow::{bail, ensure};

use super::summary::BenchOutcome;
use super::table::{TextTable, promises, tables};
use crate::frame::{Report, TargetState};

/// What stands between the markers: how it was measured, the figures, the promises.
pub(super) fn body(report: &Report, date: &str) -> String {
    let mut out = String::new();
    let facts = [
        (!report.command.is_empty()).then(|| format!("`{}`", report.command.replace('`', "'"))),
        Some(format!("commit {}", cell(&report.commit))),
        Some(cell(&report.machine)),
        (!date.is_empty()).then(|| date.to_owned()),
    ];
    out += &facts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    out += ".\n";
    if let Some(noise) = report.noise.as_ref().filter(|noise| noise.is_noisy) {
        out += &format!("\nRead the figures with care: {}.\n", cell(&noise.to_string()));
    }
    for table in tables(&report.rows).iter().chain(&promises(&report.promises)) {
        out.push('\n');
        markdown_table(&mut out, table);
    }
    out
}

/// The same for many benchmarks: how many targets have which verdict, and all targets in one table.
pub(super) fn summary(outcomes: &[BenchOutcome], (commit, command, date): (&str, &str, &str)) -> String {
    let all = || outcomes.iter().flat_map(|outcome| &outcome.promises);
    let counts = TargetState::ALL.map(|state| {
        format!("{} {}", all().filter(|promise| promise.verdict == state).count(), state.word())
    });
    let command = command.replace('`', "'");
    let mut out = format!("`{command}`; commit {}; {date}. Targets: {}.\n", cell(commit), counts.join(", "));
    let mut table: Option<TextTable> = None;
    for outcome in outcomes {
        let Some(mut part) = promises(&outcome.promises) else { continue };
        // The name stands once, at its first target.
        for (at, row) in part.rows.iter_mut().enumerate() {
            row.insert(0, if at == 0 { outcome.bench.name.to_owned() } else { String::new() });
        }
        match &mut table {
            Some(table) => table.rows.append(&mut part.rows),
            None => {
                part.head.insert(0, "bench".to_owned());
                table = Some(TextTable { words: part.words + 1, ..part });
            }
        }
    }
    if let Some(table) = &table {
        out.push('\n');
        markdown_table(&mut out, table);
    }
    out
}

fn markdown_table(out: &mut String, table: &TextTable) {
    let mut line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    };
    line(&table.head);
    let rule = |at| if at < table.words { "---" } else { "---:" };
    line(&(0..table.head.len()).map(|at| rule(at).to_owned()).collect::<Vec<_>>());
    table.rows.iter().for_each(|row| line(row));
}

/// Text that means nothing but itself in Markdown.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// `text` with `body` between the markers of `section`.
///
/// # Errors
/// When one of the markers is missing, is there twice, or when they are the wrong way round.
pub(super) fn replace_section(text: &str, section: &str, body: &str) -> anyhow::Result<String> {
    let (from, to) = (format!("<!-- bench {section} -->"), format!("<!-- /bench {section} -->"));
    let once = |marker: &str| match text.match_indices(marker).collect::<Vec<_>>()[..] {
        [(at, _)] => Ok(at),
        [] => bail!("no line \"{marker}\"; add \"{from}\" and \"{to}\" where the tables belong"),
        [..] => bail!("\"{marker}\" is there more than once; keep one"),
    };
    let (begin, end) = (once(&from)? + from.len(), once(&to)?);
    ensure!(begin <= end, "\"{to}\" comes before \"{from}\"; turn them round");
    Ok(format!("{}\n\n{}\n\n{}", &text[..begin], body.trim_end(), &text[end..]))
}

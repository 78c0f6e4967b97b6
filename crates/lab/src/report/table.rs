//! Rows of a report as tables: those with the same figures become one.

use super::text::{figure, with_unit};
use crate::frame::{Promise, Row, groups};

/// A table of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextTable {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// Number of columns at the left that hold words.
    pub(super) words: usize,
}

/// Rows with figures of the same names and units share a table with a column for each figure. Rows that are the only ones
/// of their kind share one in which every figure has a line; rows without figures are notes.
pub(super) fn tables(rows: &[Row]) -> Vec<TextTable> {
    let mut out: Vec<TextTable> = Vec::new();
    let mut last_was_long = false;
    for group in groups(rows) {
        let is_long = group.len() == 1 && !group[0].figures.is_empty();
        if !is_long {
            out.push(wide(&group));
        } else {
            if !last_was_long {
                let head = ["", "figure", "value"].map(str::to_owned).to_vec();
                out.push(TextTable { head, rows: Vec::new(), words: 2 });
            }
            if let Some(table) = out.last_mut() {
                table.rows.extend(long(group[0]));
            }
        }
        last_was_long = is_long;
    }
    out
}

fn wide(rows: &[&Row]) -> TextTable {
    let first = if rows[0].figures.is_empty() { "notes" } else { "" };
    let figures = rows[0].figures.iter().map(|f| with_unit(&f.name, &f.unit));
    let head = std::iter::once(first.to_owned()).chain(figures).collect();
    let line = |row: &&Row| {
        let figures = row.figures.iter().map(|f| figure(f.value));
        std::iter::once(row.label.clone()).chain(figures).collect()
    };
    TextTable { head, rows: rows.iter().map(line).collect(), words: 1 }
}

fn long(row: &Row) -> Vec<Vec<String>> {
    let line = |(at, f): (usize, &crate::frame::Figure)| {
        // The label stands once, at its first figure.
        let label = if at == 0 { row.label.clone() } else { String::new() };
        let unit = if f.unit.is_empty() { String::new() } else { format!(" {}", f.unit) };
        vec![label, f.name.clone(), figure(f.value) + &unit]
    };
    row.figures.iter().enumerate().map(line).collect()
}

/// The targets with their verdicts.
pub(super) fn promises(targets: &[Promise]) -> Option<TextTable> {
    let line = |p: &Promise| {
        let verdict = p.verdict.word().to_owned();
        let (value, bound) = match p.measured {
            true => (with_space(&figure(p.value), &p.unit), with_space(&p.bound, &p.unit)),
            false => (figure(f64::NAN), figure(f64::NAN)),
        };
        vec![p.id.clone(), value, p.interval(), bound, verdict]
    };
    let head = ["target", "measured", "95 % interval", "bound", "verdict"].map(str::to_owned).to_vec();
    let rows: Vec<_> = targets.iter().map(line).collect();
    (!rows.is_empty()).then_some(TextTable { head, rows, words: 1 })
}

fn with_space(value: &str, unit: &str) -> String {
    if unit.is_empty() { value.to_owned() } else { format!("{value} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Report;

    #[test]
    fn rows_of_one_shape_share_a_table() {
        let speed = |label: &str, ns: f64| Row::new(label).with("p50", ns, "ns").with("runs", 3.0, "");
        let rows = [
            Row::new("title").with("size", 12.5, "MB").with("rounds", 9.0, ""),
            Row::new("alone").with("share", 3.0, "%"),
            speed("a", 10.0),
            Row::new("end"),
            speed("b", f64::NAN),
        ];
        let tables = tables(&rows);
        assert_eq!(tables.len(), 3);
        let text = |table: &TextTable| table.rows.iter().map(|r| r.join("/")).collect::<Vec<_>>();
        assert_eq!(text(&tables[0]), ["title/size/12.500 MB", "/rounds/9", "alone/share/3 %"]);
        assert_eq!(tables[1].head, ["", "p50, ns", "runs"]);
        assert_eq!(text(&tables[1]), ["a/10/3", "b/–/3"]);
        assert_eq!(text(&tables[2]), ["end"]);
    }

    #[test]
    fn promises_say_what_they_are_worth() {
        let mut report = Report::new("demo");
        assert_eq!(promises(&report.promises), None);
        report.promises.push(Promise::at_most("loss", 2.0, 0.0, "packets"));
        report.declare(&["loss", "rate"]);
        let table = promises(&report.promises).unwrap();
        assert_eq!(table.rows[0], ["loss", "2 packets", "", "<= 0 packets", "missed"]);
        assert_eq!(table.rows[1], ["rate", "–", "", "–", "not measured"]);
    }
}

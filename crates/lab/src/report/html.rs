//! The page: head, promises, pictures, tables. Everything that it needs is in it; it is also well-formed XML, so that a
//! slip in escaping is found by a parser.

use std::fmt::Write;

use super::svg;
use super::table::{TextTable, promises, tables};
use super::text::escape;
use crate::frame::{Bench, Plot, Report, TargetState};

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(super) fn page(bench: &Bench, report: &Report, date: &str) -> String {
    let title = escape(&format!("bench {}", report.bench));
    let mut out = begin(&title);
    head(&mut out, bench, report, date, &title);
    if let Some(table) = promises(&report.promises) {
        out += "<h2>Targets</h2>\n";
        html_table(&mut out, &table);
    }
    for plot in &report.plots {
        picture(&mut out, plot);
    }
    if !report.rows.is_empty() {
        out += "<h2>Figures</h2>\n";
        tables(&report.rows).iter().for_each(|table| html_table(&mut out, table));
    }
    out += "<p class=\"foot\">The same figures for programs: <a href=\"report.json\">report.json</a></p>\n";
    out += "</main>\n</body>\n</html>\n";
    out
}

/// Everything before the heading; `title` is escaped already.
pub(super) fn begin(title: &str) -> String {
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
    out += "<meta name=\"color-scheme\" content=\"light dark\"/>\n";
    add(&mut out, format_args!("<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>"));
    out
}

pub(super) fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

fn head(out: &mut String, bench: &Bench, report: &Report, date: &str, title: &str) {
    add(out, format_args!("<h1>{title}</h1>\n<p class=\"shows\">{}</p>", escape(bench.shows)));
    if let Some(noise) = report.noise.as_ref().filter(|noise| noise.is_noisy) {
        add(
            out,
            format_args!(
                "<p class=\"noisy\"><b>Read the figures with care.</b> {}</p>",
                escape(&noise.to_string())
            ),
        );
    }
    out.push_str("<dl>\n");
    let quiet = report.noise.as_ref().filter(|noise| !noise.is_noisy).map(|_| "quiet while it ran");
    let facts = [
        ("not for", bench.not_for),
        ("command", report.command.as_str()),
        ("commit", report.commit.as_str()),
        ("machine", report.machine.as_str()),
        ("", quiet.unwrap_or_default()),
        ("date", date),
    ];
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        let value = escape(value);
        let value = if name == "command" { format!("<code>{value}</code>") } else { value };
        add(out, format_args!("<dt>{name}</dt><dd>{value}</dd>"));
    }
    out.push_str("</dl>\n");
}

pub(super) fn picture(out: &mut String, plot: &Plot) {
    add(out, format_args!("<figure>\n<figcaption>{}</figcaption>", escape(&plot.title)));
    if plot.series.len() > 1 {
        out.push_str("<ul class=\"legend\">\n");
        for (number, series) in plot.series.iter().enumerate() {
            let class = svg::class(number);
            add(out, format_args!("<li><span class=\"key {class}\"></span>{}</li>", escape(&series.name)));
        }
        out.push_str("</ul>\n");
    } else if let Some(series) = plot.series.first().filter(|series| !series.name.is_empty()) {
        add(out, format_args!("<p class=\"legend\">{}</p>", escape(&series.name)));
    }
    add(out, format_args!("<div class=\"scroll\">\n{}</div>\n</figure>", svg::plot(plot)));
}

pub(super) fn html_table(out: &mut String, table: &TextTable) {
    out.push_str("<div class=\"scroll\">\n<table>\n<thead><tr>");
    let words = |at: usize| if at < table.words { " class=\"word\"" } else { "" };
    for (at, cell) in table.head.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", words(at), escape(cell));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let mark = match cell.as_str() {
                word if word == TargetState::Met.word() => " class=\"holds\"",
                word if word == TargetState::Missed.word() => " class=\"missed\"",
                _ => words(at),
            };
            let _ = write!(out, "<td{mark}>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

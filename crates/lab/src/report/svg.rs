//! A [`Plot`] as SVG. Colours are classes (`c0`..`c7`) that the page's style gives their values, light and dark.

use std::fmt::Write;

use super::scale::Scale;
use super::text::{escape, figure, with_unit};
use crate::frame::{Plot, PlotKind, Point};

/// Colours there are; further series begin again with dashes or hatching.
pub(super) const COLOURS: usize = 8;
/// Width of every picture, in its own units.
const WIDTH: f64 = 680.0;
/// Right of the drawing area: room for half a tick label.
const RIGHT: f64 = 24.0;

/// The picture; a sentence when there is nothing to draw.
pub(super) fn plot(plot: &Plot) -> String {
    let drawn = match plot.kind {
        PlotKind::Lines => lines(plot),
        PlotKind::Bars | PlotKind::Spread => bars(plot),
    };
    drawn.unwrap_or_else(|| "<p class=\"none\">No figures to draw.</p>\n".into())
}

/// Class of a series: its colour, and `again` when the colours have been used up.
pub(super) fn class(series: usize) -> String {
    let again = if series >= COLOURS { " again" } else { "" };
    format!("c{}{again}", series % COLOURS)
}

/// SVG under construction. Writing to a string cannot fail, so results are dropped in one place.
struct Drawing(String);

impl Drawing {
    fn new(title: &str, height: f64) -> Self {
        let label = escape(title);
        Self(format!(
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{label}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n"
        ))
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{element}");
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        self.add(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text)));
    }

    fn done(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// Lines with a dot at every point and whiskers where there is a range.
fn lines(plot: &Plot) -> Option<String> {
    const HEIGHT: f64 = 360.0;
    const BOTTOM: f64 = HEIGHT - 52.0;
    const TOP: f64 = 34.0;
    const LEFT: f64 = 58.0;
    let all = || plot.series.iter().flat_map(|s| &s.points);
    let x = Scale::of(all().map(|p| p.x), plot.x.is_log, false, 6);
    let y = Scale::of(all().flat_map(|p| [p.low, p.y, p.high]), plot.y.is_log, true, 5);
    let shown = |p: &&Point| x.shows(p.x) && y.shows(p.y);
    all().find(|p| shown(p))?;

    let mut out = Drawing::new(&plot.title, HEIGHT);
    let at_x = |v: f64| LEFT + x.place(v) * (WIDTH - RIGHT - LEFT);
    let at_y = |v: f64| BOTTOM - y.place(v) * (BOTTOM - TOP);
    for (value, label) in y.labels() {
        out.line("grid", (LEFT, at_y(value)), (WIDTH - RIGHT, at_y(value)));
        out.text("tick end", (LEFT - 8.0, at_y(value) + 4.5), &label);
    }
    for (value, label) in x.labels() {
        out.line("axis", (at_x(value), BOTTOM), (at_x(value), BOTTOM + 5.0));
        out.text("tick middle", (at_x(value), BOTTOM + 21.0), &label);
    }
    out.line("axis", (LEFT, BOTTOM), (WIDTH - RIGHT, BOTTOM));
    out.text("label", (4.0, 16.0), &with_unit(&plot.y.label, &plot.y.unit));
    out.text(
        "label middle",
        ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0),
        &with_unit(&plot.x.label, &plot.x.unit),
    );
    for (number, series) in plot.series.iter().enumerate() {
        let class = class(number);
        let mut points: Vec<&Point> = series.points.iter().collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        // A gap in the figures is a gap in the line.
        for run in points.split(|p| !shown(p)) {
            let path: Vec<String> =
                run.iter().map(|p| format!("{:.1},{:.1}", at_x(p.x), at_y(p.y))).collect();
            if path.len() > 1 {
                out.add(format_args!("<polyline class=\"line {class}\" points=\"{}\"/>", path.join(" ")));
            }
        }
        // Many points are a curve already; their dots would hide it.
        let radius = if points.len() > 40 { 1.5 } else { 4.0 };
        for p in points.into_iter().filter(shown) {
            let (px, py) = (at_x(p.x), at_y(p.y));
            if p.low < p.high && p.low.is_finite() && p.high.is_finite() {
                // Beside each other, or the last series would hide the others.
                let px = px + (number as f64 - (plot.series.len() - 1) as f64 / 2.0) * 3.0;
                out.line(&format!("whisker {class}"), (px, at_y(p.low)), (px, at_y(p.high)));
            }
            let place = with_unit_value(&plot.x.label, p.x, &plot.x.unit);
            out.add(format_args!(
                "<g><title>{}</title><circle class=\"dot {class}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"{radius}\"/>\
                 <circle class=\"hit\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"11\"/></g>",
                escape(&format!("{}: {place}: {}", series.name, range_text(p, &plot.y.unit)))
            ));
        }
    }
    Some(out.done())
}

/// Height of a bar with the gap behind it.
const BAR: f64 = 18.0;

/// Bars that lie down: labels have room above them, however long, and there may be many.
fn bars(plot: &Plot) -> Option<String> {
    const LEFT: f64 = 8.0;
    const TOP: f64 = 8.0;
    const LABEL: f64 = 20.0;
    const GAP: f64 = 12.0;
    /// Room for the figure behind the longest bar.
    const BEHIND: f64 = 92.0;
    let all = || plot.series.iter().flat_map(|s| &s.points);
    let is_spread = plot.kind == PlotKind::Spread;
    let scale = Scale::of(
        all().flat_map(|p| if is_spread { [p.low, p.y, p.high] } else { [p.y; 3] }),
        plot.y.is_log,
        !is_spread,
        5,
    );
    all().find(|p| scale.shows(p.y))?;

    let mut labels: Vec<&str> = Vec::new();
    all().for_each(|p| {
        if !labels.contains(&p.label.as_str()) {
            labels.push(&p.label)
        }
    });
    let of = |label: &str| {
        let series = plot.series.iter().enumerate();
        series
            .flat_map(|(number, s)| s.points.iter().map(move |p| (number, s, p)))
            .filter(|(_, _, p)| p.label == label)
            .collect::<Vec<_>>()
    };
    let bars: usize = labels.iter().map(|label| of(label).len()).sum();
    let bottom = TOP + labels.len() as f64 * (LABEL + GAP) + bars as f64 * BAR;
    let at = |v: f64| LEFT + scale.place(v) * (WIDTH - BEHIND - LEFT);
    let mut out = Drawing::new(&plot.title, bottom + 50.0);
    for (value, label) in scale.labels() {
        out.line("grid", (at(value), TOP), (at(value), bottom));
        let class = if at(value) <= LEFT { "tick" } else { "tick middle" };
        out.text(class, (at(value), bottom + 17.0), &label);
    }
    out.text(
        "label middle",
        ((LEFT + WIDTH - BEHIND) / 2.0, bottom + 42.0),
        &with_unit(&plot.y.label, &plot.y.unit),
    );
    let mut top = TOP;
    for label in labels {
        out.text("name", (LEFT, top + LABEL - 6.0), label);
        top += LABEL;
        for (number, series, p) in of(label) {
            let hover = format!("{label}: {}: {}", series.name, range_text(p, &plot.y.unit));
            out.add(format_args!("<g><title>{}</title>", escape(&hover)));
            if scale.shows(p.y) {
                let end = bar(&mut out, plot, (&scale, &at), &class(number), p, top);
                out.text("figure", (end + 6.0, top + BAR - 4.5), &figure(p.y));
            } else {
                out.text("figure", (LEFT, top + BAR - 4.5), "–");
            }
            out.add(format_args!("</g>"));
            top += BAR;
        }
        top += GAP;
    }
    Some(out.done())
}

/// One bar; returns where it ends.
fn bar(
    out: &mut Drawing,
    plot: &Plot,
    (scale, at): (&Scale, &dyn Fn(f64) -> f64),
    class: &str,
    p: &Point,
    top: f64,
) -> f64 {
    let is_spread = plot.kind == PlotKind::Spread;
    let zero = if plot.y.is_log { scale.first() } else { 0.0 };
    let (from, to) = if is_spread { ends(p, scale) } else { (p.y.min(zero), p.y.max(zero)) };
    let kind = if is_spread { "spread" } else { "bar" };
    out.add(format_args!(
        "<rect class=\"{kind} {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"/>",
        at(from),
        top + 2.0,
        (at(to) - at(from)).max(1.5),
        BAR - 4.0
    ));
    if is_spread {
        out.line(&format!("mark {class}"), (at(p.y), top), (at(p.y), top + BAR - 0.5));
    }
    at(to)
}

/// The range of a point as far as the axis can show it.
fn ends(p: &Point, scale: &Scale) -> (f64, f64) {
    let end = |v: f64| if scale.shows(v) { v } else { p.y };
    (end(p.low).min(p.y), end(p.high).max(p.y))
}

fn with_unit_value(name: &str, value: f64, unit: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!("{name} ") };
    format!("{name}{}", space_unit(value, unit))
}

fn space_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { figure(value) } else { format!("{} {unit}", figure(value)) }
}

fn range_text(p: &Point, unit: &str) -> String {
    let value = space_unit(p.y, unit);
    if p.low < p.high { format!("{value} ({} to {})", figure(p.low), figure(p.high)) } else { value }
}

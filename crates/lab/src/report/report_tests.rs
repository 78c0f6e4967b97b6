use super::*;
use crate::frame::{Axis, Noise, Plot, PlotKind, Point, Promise, Row};

const HOSTILE: &str = "</title><script>alert(\"1\" & '2')</script> ]]> --> <!-- \u{0}\u{1b}";

static BENCH: Bench = Bench {
    name: "demo",
    shows: "a & b < c",
    not_for: "</dd>",
    options: &[],
    targets: &[],
    needs: &[],
    run: |_| anyhow::bail!("never run"),
};

fn report() -> Report {
    let mut report = Report { commit: "abc".into(), machine: "a | machine".into(), ..Report::new("demo") };
    report.command = "millrace bench demo --streams 3".into();
    report.rows.push(Row::new("first").with("p50", 12.5, "ns").with("runs", 9.0, ""));
    report.rows.push(Row::new("second").with("p50", f64::NAN, "ns").with("runs", 9.0, ""));
    report.promises.push(Promise::at_most("loss", 0.0, 0.0, "packets"));
    report.promises.push(Promise::at_least("rate", 2.0, 3.0, "MB/s"));
    report
}

fn line(points: Vec<Point>) -> Plot {
    Plot::new(PlotKind::Lines, "t", Axis::new("viewers", ""), Axis::new("late", "ms")).with("s", points)
}

/// Checks that a page is well-formed XML (after the doctype) and returns its text outside of tags, entities resolved.
fn well_formed(page: &str) -> String {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    let (mut open, mut text): (Vec<&str>, String) = (Vec::new(), String::new());
    while let Some(at) = rest.find('<') {
        text += &unescaped(&rest[..at]);
        // Nothing here writes '>' into an attribute without escaping it.
        let end = at + rest[at..].find('>').expect("a tag that ends");
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<'), "a tag inside of a tag: {tag}");
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        let inside = tag.strip_suffix('/').unwrap_or(tag);
        let (name, attributes) = inside.split_once([' ', '\n']).unwrap_or((inside, ""));
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric()), "a name: {name}");
        attributes_are_quoted(attributes);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    text += &unescaped(rest);
    assert!(open.is_empty(), "never closed: {open:?}");
    text
}

fn attributes_are_quoted(mut attributes: &str) {
    while !attributes.trim().is_empty() {
        let (name, rest) = attributes.trim_start().split_once("=\"").expect("name=\"value\"");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b':'), "{name}");
        let (value, rest) = rest.split_once('"').expect("a value that ends");
        unescaped(value);
        attributes = rest;
    }
}

fn unescaped(text: &str) -> String {
    assert!(!text.contains('>') || text.contains("color-scheme"), "a bare > in {text:?}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "control characters: {text:?}");
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(';').expect("an entity that ends");
        let known = [("lt", '<'), ("gt", '>'), ("amp", '&'), ("quot", '"'), ("#39", '\'')];
        out.push(known.iter().find(|k| k.0 == name).expect("a known entity").1);
        out += rest;
    }
    out
}

#[test]
fn html_page_is_well_formed_and_self_contained() {
    let mut report = report();
    report.plots.push(line(vec![Point::xy(1.0, 2.0), Point::xy(2.0, 4.0).within(3.0, 6.0)]));
    let page = html::page(&BENCH, &report, "2026-01-01 00:00 UTC");
    let text = well_formed(&page);
    for part in [
        "a & b < c",
        "</dd>",
        "millrace bench demo --streams 3",
        "abc",
        "a | machine",
        "2026-01-01 00:00 UTC",
        "p50, ns",
        "12.500",
        "0 packets",
        "met",
        "missed",
        "s: viewers 2: 4 ms (3 to 6)",
        "late, ms",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("Read the figures with care"));
    for outside in ["http:", "https:", "url(", "@import", "<script", "<link", "src="] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(outside), "the page needs nothing from elsewhere: {outside}");
    }
}

#[test]
fn summary_page_lists_every_target_and_marks_a_changed_tree() {
    let measured =
        || BenchOutcome { bench: &BENCH, promises: report().promises, state: OutcomeState::Measured };
    let skipped = BenchOutcome {
        bench: &BENCH,
        promises: vec![Promise::not_measured("more")],
        state: OutcomeState::Skipped(HOSTILE.to_owned()),
    };
    let page = summary::page(&[measured(), skipped.clone()], ("abc", "millrace bench all", "today"));
    let text = well_formed(&page);
    for part in
        ["bench all, commit abc", "a & b < c", "rate", "2 MB/s", "more", "not measured", "cannot run here"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    // One bound is 0, which nothing can be drawn beside.
    assert!(page.contains("<svg") && page.contains("href=\"demo/index.html\""), "{page}");
    assert!(!text.contains("Of no commit"));
    let dirty = well_formed(&summary::page(&[skipped], ("abc-dirty", HOSTILE, HOSTILE)));
    assert!(dirty.contains("Of no commit"));
}

#[test]
fn hostile_text_stays_text() {
    let mut report = report();
    let shown = HOSTILE.replace(['\u{0}', '\u{1b}'], "\u{fffd}");
    for text in [&mut report.bench, &mut report.commit, &mut report.machine, &mut report.command] {
        HOSTILE.clone_into(text);
    }
    report.rows.push(Row::new(HOSTILE).with(HOSTILE, 1.0, HOSTILE));
    report.promises.push(Promise::at_most(HOSTILE, 1.0, 2.0, HOSTILE));
    report.noise = Some(Noise::noisy(HOSTILE));
    for kind in [PlotKind::Lines, PlotKind::Bars, PlotKind::Spread] {
        let point = || vec![Point { label: HOSTILE.into(), ..Point::spread("", 1.0, 2.0, 3.0) }];
        let axis = || Axis::new(HOSTILE, HOSTILE);
        let plot = Plot::new(kind, HOSTILE, axis(), axis());
        report.plots.push(plot.with(HOSTILE, point()).with(HOSTILE, point()));
    }
    let text = well_formed(&html::page(&BENCH, &report, HOSTILE));
    assert!(text.matches(&shown).count() > 25, "{}", text.matches(&shown).count());
    assert!(text.contains("Read the figures with care"));
}

#[test]
fn figures_that_are_none_break_no_picture() {
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e308, 5e-324];
    for kind in [PlotKind::Lines, PlotKind::Bars, PlotKind::Spread] {
        for is_log in [false, true] {
            let axis = || Axis { is_log, ..Axis::new("a", "b") };
            let empty = Plot::new(kind, "empty", axis(), axis());
            let none = empty.clone().with("no points", vec![]);
            let hopeless = none.clone().with("nan", vec![Point::spread("x", f64::NAN, f64::NAN, f64::NAN)]);
            for plot in [&empty, &none, &hopeless] {
                assert!(svg::plot(plot).contains("No figures to draw"), "{plot:?}");
            }
            let points = bad.iter().flat_map(|&x| {
                bad.iter().map(move |&y| Point { x, ..Point::spread(format!("{x}"), y, -y, x) })
            });
            let mixed = hopeless.with("bad", points.collect()).with("good", vec![Point::bar("x", 5.0)]);
            let drawn = svg::plot(&mixed);
            well_formed(&format!("<!DOCTYPE html>{drawn}"));
            let numbers = drawn.split("=\"").map(|part| part.split('"').next().unwrap_or_default());
            for number in numbers {
                assert!(!number.contains("NaN") && !number.contains("inf"), "{kind:?} {is_log}: {number}");
            }
        }
    }
}

#[test]
fn plot_with_nan_value_breaks_line() {
    let ys = [1.0, 2.0, f64::NAN, 3.0, 4.0];
    let drawn = svg::plot(&line((0..5).map(|x| Point::xy(x as f64, ys[x])).collect()));
    assert_eq!((drawn.matches("<polyline").count(), drawn.matches("class=\"dot").count()), (2, 4));
}

#[test]
fn bars_are_as_long_as_their_figures() {
    let plot = Plot::new(PlotKind::Bars, "t", Axis::default(), Axis::new("viewers", ""));
    let drawn = svg::plot(&plot.with("s", vec![Point::bar("a", 25.0), Point::bar("b", 100.0)]));
    let widths: Vec<f64> =
        drawn.split(" width=\"").skip(1).map(|w| w.split('"').next().unwrap().parse().unwrap()).collect();
    assert_eq!(widths.len(), 2);
    assert!((widths[1] / widths[0] - 4.0).abs() < 0.01, "{widths:?}");
}

#[test]
fn write_dir_creates_page_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("new/folder");
    let page = write_dir(&inside, &BENCH, &report(), "today").unwrap();
    assert!(std::fs::read_to_string(page).unwrap().contains("today"));
    let json = std::fs::read(inside.join("report.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["rows"][0]["figures"][0]["value"], 12.5);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 2);
    // A file where the folder should be.
    let error = write_dir(&inside.join("index.html"), &BENCH, &report(), "").unwrap_err();
    assert!(format!("{error:#}").contains("index.html: cannot be made"), "{error:#}");
}

#[test]
fn markdown_replaces_its_section_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.md");
    let (before, after) =
        ("# Title\n\n<!-- bench demo-udp -->", "<!-- /bench demo-udp -->\n\nThe end | of it.\n");
    std::fs::write(&file, format!("{before}\nold tables\n{after}")).unwrap();
    check_markdown(&file, "demo-udp").unwrap();
    assert!(check_markdown(&file, "demo").is_err());
    write_markdown(&file, "demo-udp", &report(), "today").unwrap();
    let once = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        once,
        format!(
            "{before}\n\n`millrace bench demo --streams 3`; commit abc; a \\| machine; today.\n\n\
             |  | p50, ns | runs |\n| --- | ---: | ---: |\n| first | 12.500 | 9 |\n| second | – | 9 |\n\n\
             | target | measured | 95 % interval | bound | verdict |\n| --- | ---: | ---: | ---: | ---: |\n\
             | loss | 0 packets |  | &lt;= 0 packets | met |\n| rate | 2 MB/s |  | >= 3 MB/s | missed |\n\n{after}"
        )
    );
    write_markdown(&file, "demo-udp", &report(), "today").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), once, "the second time changes nothing");
}

#[test]
fn summary_in_markdown_lists_every_target_of_every_benchmark() {
    let measured = BenchOutcome { bench: &BENCH, promises: report().promises, state: OutcomeState::Measured };
    let waiting = BenchOutcome {
        promises: vec![Promise::not_measured("more")],
        state: OutcomeState::Waiting,
        ..measured.clone()
    };
    let text = markdown::summary(&[measured, waiting], ("abc", "millrace bench all", "today"));
    assert_eq!(
        text,
        "`millrace bench all`; commit abc; today. Targets: 1 met, 1 missed, 0 undecided, 1 not measured.\n\n\
         | bench | target | measured | 95 % interval | bound | verdict |\n\
         | --- | --- | ---: | ---: | ---: | ---: |\n\
         | demo | loss | 0 packets |  | &lt;= 0 packets | met |\n\
         |  | rate | 2 MB/s |  | >= 3 MB/s | missed |\n\
         | demo | more | – |  | – | not measured |\n"
    );
}

#[test]
fn markdown_without_its_markers_is_left_alone() {
    let replace = |text: &str| markdown::replace_section(text, "x", "new").unwrap_err().to_string();
    assert_eq!(
        replace("nothing"),
        "no line \"<!-- bench x -->\"; add \"<!-- bench x -->\" and \"<!-- /bench x -->\" where the tables belong"
    );
    assert!(replace("<!-- bench x -->").contains("no line \"<!-- /bench x -->\""));
    assert!(replace("<!-- /bench x --> <!-- bench x -->").contains("comes before"));
    assert!(replace("<!-- bench x --> <!-- /bench x --> <!-- bench x -->").contains("more than once"));
    let dir = tempfile::tempdir().unwrap();
    let error = write_markdown(&dir.path().join("absent.md"), "x", &report(), "").unwrap_err();
    assert!(format!("{error:#}").contains("absent.md: cannot be read"), "{error:#}");
}

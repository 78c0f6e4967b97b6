use super::*;
use crate::frame::{ContenderResult, ReportVerdict};

const NAMES: [(&str, BackendKind); 6] = [
    ("sendmmsg", BackendKind::Sendmmsg),
    ("gso", BackendKind::Loop),
    ("built", BackendKind::Floor),
    ("KernelTx", BackendKind::Ours),
    ("XdpTx", BackendKind::Staging),
    ("BestTx", BackendKind::Choice),
];

/// A contest in which each contender took the same time in every round.
fn contest(ns: [f64; 6]) -> ContestResult {
    let contender = |((name, _), ns): ((&str, BackendKind), f64)| ContenderResult {
        name: name.into(),
        batches: 1,
        items: 1,
        p10: ns - 1.0,
        p50: ns,
        p99: ns,
        rounds: vec![ns; 9],
        ratio: median_interval(&[1.0]),
        hash: None,
    };
    let contenders = NAMES.into_iter().zip(ns).map(contender).collect();
    ContestResult {
        contenders,
        noise: Noise::quiet(),
        base: "sendmmsg".into(),
        name: "burst".into(),
        confidence: 0.95,
    }
}

fn outcome(hot_1: [f64; 6], cold_1: [f64; 6], cold_8: [f64; 6]) -> BackendResults {
    let names = NAMES.map(|(text, kind)| Name { text: text.into(), kind }).into();
    let mut outcome = BackendResults::new(names, &[1, 8]);
    outcome.add(Temperature::Hot, 1, contest(hot_1));
    outcome.add(Temperature::Cold, 1, contest(cold_1));
    outcome.add(Temperature::Cold, 8, contest(cold_8));
    outcome
}

fn value(report: &Report, id: &str) -> f64 {
    report.promises.iter().find(|p| p.id == id).unwrap().value
}

const FAST: [f64; 6] = [1000.0, 900.0, 100.0, 950.0, 500.0, 500.0];

#[test]
fn backends_choice_is_compared_with_best_loop() {
    let report = outcome(FAST, FAST, [900.0, 400.0, 100.0, 410.0, 500.0, 420.0]).report();
    assert_eq!(value(&report, "backends-choice"), 400.0 / 420.0, "the worst of all");
    assert_eq!(value(&report, "backends-staging-hot"), 2.0);
    assert_eq!(value(&report, "backends-staging-cold"), 2.0);
    assert_eq!(report.verdict(), ReportVerdict::Holds);
    let row = report.rows.iter().find(|row| row.label.starts_with("cold, bursts of 8")).unwrap();
    assert!(row.label.ends_with("BestTx beside \"gso\""), "{}", row.label);
    // A table of six rows for p50 and p10, hot and cold; three lines about the choice.
    assert_eq!(report.rows.len(), 4 * 6 + 3);
    assert_eq!(report.rows[0].figures.len(), 2);
    assert_eq!(report.plots.len(), 2);
    assert_eq!(report.plots[0].series[5].points.len(), 1, "what was not measured is not drawn");
}

#[test]
fn misses_are_misses() {
    let slow = [1000.0, 900.0, 100.0, 950.0, 600.0, 1010.0];
    let mut bad = outcome(FAST, slow, FAST);
    (bad.missing, bad.checksum_errors, bad.notes) = (1, 2, vec!["a note".into()]);
    let report = bad.report();
    assert_eq!(value(&report, "backends-choice"), 900.0 / 1010.0);
    let missed: Vec<&str> = report.promises.iter().filter(|p| !p.holds).map(|p| p.id.as_str()).collect();
    let wanted = ["backends-choice", "backends-staging-cold", "backends-missing", "backends-checksum-errors"];
    assert_eq!(missed, wanted);
    assert_eq!(report.verdict(), ReportVerdict::Missed);
    assert_eq!(report.rows.last().unwrap().label, "a note");
}

#[test]
fn outcome_without_measurement_lists_no_performance_target() {
    let names = vec![Name { text: "sendmmsg".into(), kind: BackendKind::Sendmmsg }];
    let mut outcome = BackendResults::new(names, &[1]);
    outcome.add(Temperature::Hot, 1, ContestResult { contenders: Vec::new(), ..contest(FAST) });
    let report = outcome.report();
    let ids: Vec<&str> = report.promises.iter().map(|p| p.id.as_str()).collect();
    assert_eq!(ids, ["backends-missing", "backends-checksum-errors"]);
}

//! `millrace doctor` as people run it.

mod support;

use std::path::Path;

use millrace_lab::netns::TwoHosts;
use support::{fails, ok};

#[test]
fn it_reports_in_words_and_in_json() {
    let text = ok(&["doctor"]);
    for part in ["Linux ", "udp-gso", "af-xdp", "huge-pages", "locked-memory", "open-files", "io-uring"] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    let report: serde_json::Value = serde_json::from_str(&ok(&["doctor", "--json"])).unwrap();
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        let works = check["works"].as_bool().unwrap();
        assert_eq!(check["remedy"].is_null(), works, "{check}");
    }
    assert!(checks.len() >= 14 && report["measured"].is_null());
}

#[test]
fn a_wrong_interface_is_answered_with_the_right_ones() {
    let error = fails(&["doctor", "--measure", "eht9"]);
    assert!(error.contains("--measure: eht9: no such interface") && error.contains("lo"), "{error}");
    let error = fails(&["doctor", "--measure", "lo"]);
    assert!(error.contains("lo is no Ethernet interface"), "{error}");
}

#[test]
fn a_measurement_is_shown_and_kept() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let hosts = TwoHosts::new(false).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut command = hosts.on_server(Path::new(env!("CARGO_BIN_EXE_millrace")));
    command.env("XDG_CACHE_HOME", dir.path());
    let done = command.args(["doctor", "--json", "--measure", "vs"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let rows = report["measured"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row["ns"]["kernel"].as_f64().is_some_and(|ns| ns > 0.0)), "{report}");
    assert!(report["interfaces"].as_array().unwrap().iter().any(|device| device["name"] == "vs"), "{report}");
    let kept = std::fs::read_to_string(dir.path().join("millrace/ways-out.json")).unwrap();
    assert!(kept.contains("\"vs\""), "{kept}");
}

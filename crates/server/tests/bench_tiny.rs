//! Every benchmark runs with tiny inputs, so that none can rot. Its figures mean nothing here.

mod support;

use support::{millrace, ok};

/// Runs a benchmark tiny and returns its JSON.
fn tiny(name: &str) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().to_str().unwrap();
    let output = millrace().args(["bench", name, "--tiny", "--json", "--scratch", scratch]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0, "{name} leaves nothing behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_benchmark_says_what_it_is_for() {
    let list = ok(&["bench", "list"]);
    for bench in millrace_lab::benches::ALL {
        assert!(list.contains(bench.name) && list.contains(bench.not_for), "{list}");
    }
}

#[test]
fn ingest_runs() {
    let report = tiny("ingest");
    assert_eq!(report["bench"], "ingest");
    assert!(report["promises"][0]["value"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn sessions_runs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let report = tiny("sessions");
    let value = |id: &str| {
        let promises = report["promises"].as_array().unwrap();
        promises.iter().find(|p| p["id"] == id).unwrap()["value"].as_f64().unwrap()
    };
    assert_eq!((value("sessions-failed"), value("sessions-checksums")), (0.0, 0.0), "{report}");
    assert_eq!(report["rows"][0]["figures"][1]["value"], 5.0, "five viewers played: {report}");
}

//! Every benchmark runs with tiny inputs, so that none can rot. Its figures mean nothing here.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{fails, millrace, ok, signal};
use millrace_lab::benches::{self, ALL};
use millrace_lab::frame::Bench;
use serde_json::Value;

/// No benchmark takes nearly as long when it is tiny.
const LIMIT: Duration = Duration::from_secs(300);

/// Returns a program's output until it ends. A program that does not end is ended, and its output
/// until then is reported.
fn ended(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let (done, output) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    output.recv_timeout(LIMIT).map(Result::unwrap).unwrap_or_else(|_| {
        signal(pid, "KILL");
        panic!("{command:?} did not end within {LIMIT:?}: {:?}", output.recv_timeout(LIMIT / 10));
    })
}

/// Runs a benchmark tiny and returns its JSON.
fn tiny(name: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().to_str().unwrap();
    let output = ended(millrace().args(["bench", name, "--tiny", "--json", "--scratch", scratch]));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0, "{name} leaves nothing behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns whether this machine can run it; logs why not.
fn can_run(bench: &Bench) -> bool {
    let missing = bench.missing();
    if !missing.is_empty() {
        eprintln!("skipped: bench {} needs {}", bench.name, missing.join(", and "));
    }
    missing.is_empty()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn promise<'a>(report: &'a Value, id: &str) -> &'a Value {
    let promises = report["promises"].as_array().unwrap();
    promises.iter().find(|p| p["id"] == id).unwrap_or_else(|| panic!("no promise {id}: {report}"))
}

/// The JSON form that other programs rely on.
fn has_the_form(report: &Value, name: &str) {
    assert_eq!(keys(report), ["bench", "commit", "machine", "promises", "rows"], "{report}");
    assert_eq!(report["bench"], name);
    assert!(report["machine"].as_str().unwrap().contains("Linux"));
    let rows = report["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{name} measured nothing");
    for row in rows {
        assert_eq!(keys(row), ["figures", "label"]);
        for figure in row["figures"].as_array().unwrap() {
            assert_eq!(keys(figure), ["name", "unit", "value"]);
            assert!(figure["value"].is_f64() || figure["value"].is_null(), "{figure}");
        }
    }
    let mut ids = Vec::new();
    for promise in report["promises"].as_array().unwrap() {
        assert_eq!(
            keys(promise),
            ["bound", "high", "holds", "id", "low", "measured", "unit", "value", "verdict"]
        );
        assert!(promise["holds"].is_boolean());
        assert!(promise["measured"] == true || promise["holds"] == false, "{promise}");
        ids.push(promise["id"].as_str().unwrap());
    }
    let declared = benches::find(name).unwrap().targets;
    for id in &ids {
        assert!(declared.contains(id), "{name} does not declare its target {id}");
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "{name}: two promises of one name");
}

#[test]
fn bench_with_tiny_input_produces_valid_report() {
    for bench in ALL.iter().filter(|bench| can_run(bench)) {
        let report = tiny(bench.name);
        has_the_form(&report, bench.name);
        match bench.name {
            "ingest" => assert!(promise(&report, "ingest-rate")["value"].as_f64().unwrap() > 0.0, "{report}"),
            "parity" => {
                let rows = report["rows"].as_array().unwrap();
                let some =
                    |word: &str| rows.iter().any(|row| row["label"].as_str().unwrap().starts_with(word));
                assert!(some("8+2 cold, encode: ours") && some("8+2 hot, restore 2: ours"), "{report}");
                assert!(some("8+2, an FEC packet from stored parity"), "{report}");
            }
            "nlf" => {
                let table = |row: &&Value| row["label"].as_str().unwrap().starts_with("table 1, cold, 8 KB");
                assert!(report["rows"].as_array().unwrap().iter().filter(table).count() >= 11, "{report}");
                if rustix::process::geteuid().is_root() {
                    assert_eq!(promise(&report, "nlf-bad-checksums")["value"], 0.0, "{report}");
                }
            }
            "nlf-send" => {
                assert_eq!(promise(&report, "nlf-send-missing")["value"], 0.0, "{report}");
                assert_eq!(promise(&report, "nlf-send-damaged")["value"], 0.0, "{report}");
            }
            "start" => assert!(promise(&report, "start-ready")["value"].as_f64().unwrap() > 0.0, "{report}"),
            "tx" => assert_eq!(promise(&report, "tx-missing")["value"], 0.0, "{report}"),
            "sessions" => {
                assert_eq!(promise(&report, "sessions-failed")["value"], 0.0, "{report}");
                assert_eq!(promise(&report, "sessions-checksums")["value"], 0.0, "{report}");
                assert_eq!(report["rows"][0]["figures"][1]["value"], 5.0, "five viewers played: {report}");
                assert_eq!(promise(&report, "sessions-visits-loss")["value"], 0.0, "{report}");
                assert_eq!(promise(&report, "sessions-visits-left")["value"], 0.0, "{report}");
            }
            "overload" => {
                let offered = &report["rows"][0]["figures"][0];
                assert_eq!(
                    (&offered["name"], &offered["value"]),
                    (&"offered".into(), &6.0.into()),
                    "{report}"
                );
            }
            "hostile" => {
                for id in ["hostile-loss", "hostile-failed", "hostile-left", "hostile-wrong"] {
                    assert_eq!(promise(&report, id)["value"], 0.0, "{id}: {report}");
                }
                assert_eq!(promise(&report, "hostile-idle")["value"], 50.0, "{report}");
                let requests = |row: &Value| row["figures"][0]["value"].as_f64();
                let rows = report["rows"].as_array().unwrap();
                assert!(rows.len() > 7 && rows[1..].iter().all(|row| requests(row) > Some(0.0)), "{report}");
            }
            "seeks" => {
                assert_eq!(promise(&report, "seeks-loss")["value"], 0.0, "{report}");
                let read = &report["rows"][1]["figures"][0];
                assert_eq!(read["name"], "read", "{report}");
                assert!(read["value"].as_f64().is_some_and(|gigabytes| gigabytes > 0.0), "{report}");
            }
            "switches" => {
                assert_eq!(promise(&report, "switches-loss")["value"], 0.0, "{report}");
                let changed = &report["rows"][1]["figures"];
                assert_eq!(changed[0]["name"], "viewers who changed it", "{report}");
                assert!(changed[0]["value"].as_f64().is_some_and(|viewers| viewers > 0.0), "{report}");
            }
            "tcp" => {
                let rows = report["rows"].as_array().unwrap();
                let ours = rows.iter().filter_map(|row| row["figures"][0]["value"].as_f64());
                assert_eq!(ours.filter(|rate| *rate > 0.0).count(), rows.len(), "{report}");
            }
            "tcp-turns" => {
                assert!(promise(&report, "tcp-segment-ratio")["value"].as_f64().unwrap() > 0.0, "{report}");
            }
            "toe" => {
                // Each way, each size, each contender has moved bytes.
                let rows = report["rows"].as_array().unwrap();
                let rates = rows.iter().filter_map(|row| {
                    let figures = row["figures"].as_array()?;
                    figures.iter().find(|figure| figure["name"] == "rate" && figure["unit"] == "Gb/s")
                });
                let rates: Vec<f64> = rates.filter_map(|figure| figure["value"].as_f64()).collect();
                assert_eq!(rates.len(), 36, "{report}");
                assert!(rates.iter().all(|rate| *rate > 0.0), "{report}");
            }
            "tcp-sessions" => {
                assert!(promise(&report, "tcp-sessions-64")["value"].as_f64().unwrap() > 0.0, "{report}");
                let rows = report["rows"].as_array().unwrap();
                let some =
                    |word: &str| rows.iter().any(|row| row["label"].as_str().unwrap().starts_with(word));
                assert!(some("16 connections: kernel, a process each"), "{report}");
                assert!(some("16 connections: engine, ACKs at once"), "{report}");
            }
            "stream-offload" => {
                let rows = report["rows"].as_array().unwrap();
                let hosts = rows.iter().filter(|row| row["figures"][0]["name"] == "host");
                assert_eq!(hosts.count(), 5, "{report}");
            }
            "http" => {
                // By our TCP as by the kernel's, bytes have come.
                let rows = report["rows"].as_array().unwrap();
                let sends = |word: &str| {
                    let row = rows.iter().find(|row| row["label"].as_str().unwrap().starts_with(word));
                    let figures = &row.unwrap_or_else(|| panic!("no row {word}: {report}"))["figures"];
                    figures.as_array().unwrap().iter().any(|figure| {
                        figure["name"] == "rate" && figure["value"].as_f64().is_some_and(|rate| rate > 0.0)
                    })
                };
                for of in ["segments: nginx", "engine: our TCP", "engine: the kernel's TCP with GSO"] {
                    assert!(sends(of), "{of}: {report}");
                }
            }
            _ => {}
        }
    }
}

#[test]
fn names_differ_and_the_list_says_what_each_is_for() {
    let list = ok(&["bench", "list"]);
    for (at, bench) in ALL.iter().enumerate() {
        assert!(list.contains(bench.name) && list.contains(bench.not_for), "{list}");
        assert!(bench.options.iter().all(|name| list.contains(&format!("--{name}"))), "{list}");
        assert!(ALL[..at].iter().all(|other| other.name != bench.name));
        assert_eq!(benches::find(bench.name).unwrap().shows, bench.shows);
    }
    let error = fails(&["bench", "nonsense"]);
    assert!(ALL.iter().all(|bench| error.contains(bench.name)), "{error}");
}

#[test]
fn bench_help_lists_options_of_all_benchmarks() {
    let help = ok(&["bench", "--help"]);
    for option in ALL.iter().flat_map(|bench| bench.options) {
        assert!(help.contains(&format!("--{option} ")), "--{option}: {help}");
    }
}

#[test]
fn bench_with_report_and_markdown_writes_both() {
    let dir = tempfile::tempdir().unwrap();
    let document = dir.path().join("p.md");
    std::fs::write(&document, "# P\n\n<!-- bench heap -->\n<!-- /bench heap -->\n").unwrap();
    let (folder, document) = (dir.path().join("out"), document.to_str().unwrap());
    let args = ["bench", "engine", "--tiny", "--streams", "50", "--report", folder.to_str().unwrap()];
    let text = ok(&[&args[..], &["--markdown", document, "--section", "heap"]].concat());
    assert!(text.contains("50 streams: binary heap"), "{text}");
    let page = std::fs::read_to_string(folder.join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("millrace bench engine --tiny --streams 50</code>"));
    let report: Value = serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    has_the_form(&report, "engine");
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.contains("`millrace bench engine --tiny --streams 50`; commit "), "{document}");
    assert!(document.contains("| 50 streams: binary heap, single packets with headers |"), "{document}");
}

/// Starts a benchmark that would run for hours, interrupts it when it is at work; returns its
/// process id and its output.
fn interrupted(name: &str) -> (u32, String) {
    let mut child = millrace()
        .args(["bench", name, "--runs", "1000"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut error = child.stderr.take().unwrap();
    let mut said = Vec::new();
    // It reports each round, so it is at work when the first report has been read.
    while !String::from_utf8_lossy(&said).contains("round 1 ") {
        let mut byte = [0];
        assert_eq!(error.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    let pid = child.id();
    signal(pid, "INT");
    error.read_to_end(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(output.stdout.is_empty());
    (pid, said)
}

#[test]
fn bench_when_interrupted_reports_early_stop() {
    let (_, said) = interrupted("engine");
    assert!(said.contains("stopped before it was done"), "{said}");
}

#[test]
fn bench_when_interrupted_removes_network_namespaces() {
    if !can_run(benches::find("tx").unwrap()) {
        return;
    }
    let (pid, _) = interrupted("tx");
    let left: Vec<String> = std::fs::read_dir("/run/netns")
        .map(|dir| dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let ours = |name: &&String| name.starts_with("mill") && name.contains(&pid.to_string());
    assert_eq!(left.iter().filter(ours).count(), 0, "{left:?}");
}

#[test]
fn bench_with_unusable_output_path_fails_before_measuring() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.md");
    std::fs::write(&file, "# P\n").unwrap();
    let path = file.to_str().unwrap();
    // Both would run for hours.
    let error = fails(&["bench", "engine", "--runs", "1000", "--markdown", path]);
    assert!(error.contains("p.md: no line \"<!-- bench engine -->\"; add"), "{error}");
    let error = fails(&["bench", "engine", "--runs", "1000", "--report", path]);
    assert!(error.contains("p.md: cannot be made"), "{error}");
}

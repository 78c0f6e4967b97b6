//! `millrace doctor` as people run it.

use std::path::Path;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::{fails, millrace, ok};
use millrace_lab::netns::TwoHosts;
use serde_json::Value;

#[test]
fn doctor_reports_checks_as_text_and_json() {
    let text = ok(&["doctor"]);
    for part in [
        "Linux ",
        "udp-gso",
        "af-xdp",
        "huge-pages",
        "locked-memory",
        "open-files",
        "io-uring",
        "ffprobe  ",
        "hls.js",
        "ports",
        "space",
        "TCP offload engine (millrace engine, serve --tcp engine): at ",
        "engine-xdp  ",
        "engine-tun  ",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    let report: serde_json::Value = serde_json::from_str(&ok(&["doctor", "--json"])).unwrap();
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        let works = check["works"].as_bool().unwrap();
        assert_eq!(check["remedy"].is_null(), works, "{check}");
    }
    assert!(checks.len() >= 14 && report["measured"].is_null());
    for need in report["offload_engine"]["needs"].as_array().unwrap() {
        assert_eq!(need["remedy"].is_null(), need["works"].as_bool().unwrap(), "{need}");
    }
}

/// Checks of missing programs fail, and name the remedy.
#[test]
fn doctor_without_ffmpeg_reports_that_it_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut command = millrace();
    let done = command.args(["doctor", "--json"]).env("PATH", "").env("MILLRACE_STORE", &store).output();
    let report: Value = serde_json::from_slice(&done.unwrap().stdout).unwrap();
    let of = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
    };
    for name in ["ffmpeg", "ffprobe"] {
        assert_eq!(of(name)["works"], false, "{report}");
        assert!(of(name)["detail"].as_str().unwrap().contains("cannot be started"), "{report}");
        assert!(of(name)["remedy"].as_str().unwrap().contains("--ffmpeg PROGRAM"), "{report}");
    }
    let space = of("space")["detail"].as_str().unwrap();
    assert!(space.ends_with(&format!(" free for {}", store.display())), "{space}");
}

/// Returns doctor's report on an offload engine at an interface of the first of two hosts.
fn of_engine(hosts: &TwoHosts, program: &[&str], interface: &str) -> (Value, Value) {
    let mut command = hosts.on_server(Path::new(program[0]));
    let done = command.args(&program[1..]).args(["doctor", "--json"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let all = &report["offload_engine"];
    let of = all["interfaces"].as_array().unwrap().iter().find(|of| of["name"] == interface).cloned();
    (all.clone(), of.unwrap_or_else(|| panic!("no {interface}: {all:#}")))
}

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn doctor_reports_offload_engine_only_where_it_can_run() {
    const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
    let (root, tun) = (rustix::process::geteuid().is_root(), Path::new("/dev/net/tun").exists());
    if !root || !tun {
        eprintln!("skipped: needs root ({root}) and /dev/net/tun ({tun})");
        return;
    }
    let hosts = TwoHosts::new(false).unwrap();
    let ip = |line: &str| {
        let done = Command::new("ip").args(["-n", &hosts.server]).args(line.split(' ')).output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
    };
    let dir = tempfile::tempdir().unwrap();
    let start = |interface: &str, address: &str| {
        let mut command = hosts.on_server(Path::new(MILLRACE));
        command.args(["engine", "--interface", interface, "--address", address, "--socket"]);
        command.arg(dir.path().join(interface)).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("offload engine at "), "{line:?}");
        Running(child)
    };
    let says = |of: &Value, works: bool, detail: &str, remedy: &str| {
        let text = |name: &str| of[name].as_str().unwrap_or_default().to_owned();
        let is_so = of["works"] == works && of["remedy"].is_null() == works;
        assert!(is_so && text("detail").contains(detail) && text("remedy").contains(remedy), "{of:#}");
    };
    let (all, of) = of_engine(&hosts, &[MILLRACE], "vs");
    if all["needs"][0]["detail"].as_str().unwrap().contains("not supported") {
        eprintln!("skipped: a kernel without AF_XDP: {all}");
        return;
    }
    assert_eq!((&all["works"], &all["instead"]), (&true.into(), &Value::Null));
    says(&of, true, "AF_XDP in the driver", "");
    // As root without rights.
    let (all, of) = of_engine(&hosts, &["setpriv", "--bounding-set=-all", MILLRACE], "vs");
    assert_eq!(all["works"], false);
    assert!(all["instead"].as_str().unwrap().contains("the kernel's TCP carries all connections"), "{all:#}");
    assert!(all["needs"][0]["remedy"].as_str().unwrap().contains("cap_bpf"), "{all:#}");
    says(&of, false, "AF_XDP", "engine-xdp above");
    // Each engine runs where doctor reports that one can; then no other one can.
    ip("tuntap add dev toe0 mode tun");
    says(&of_engine(&hosts, &[MILLRACE], "toe0").1, false, "down", "ip link set toe0 up");
    ip("link set toe0 up");
    says(&of_engine(&hosts, &[MILLRACE], "toe0").1, true, "the kernel is at the other end", "");
    let engines = [start("vs", "10.77.0.100/24"), start("toe0", "10.78.0.1/24")];
    says(&of_engine(&hosts, &[MILLRACE], "vs").1, false, "another XDP program", "millrace engine status");
    says(&of_engine(&hosts, &[MILLRACE], "toe0").1, false, "a program has it open", "ip tuntap add");
    drop(engines);
    ip("link set vs down");
    says(&of_engine(&hosts, &[MILLRACE], "vs").1, false, "down", "ip link set vs up");
}

#[test]
fn doctor_measure_of_wrong_interface_reports_cause() {
    let error = fails(&["doctor", "--measure", "eht9"]);
    assert!(error.contains("--measure: eht9: no such interface") && error.contains("lo"), "{error}");
    let error = fails(&["doctor", "--measure", "lo"]);
    assert!(error.contains("lo is no Ethernet interface"), "{error}");
}

#[test]
fn doctor_measure_prints_and_caches_result() {
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

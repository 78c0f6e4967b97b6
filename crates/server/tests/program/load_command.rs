//! `millrace load` as people use it: a real server, exit codes, files, Ctrl-C.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Server, copy_program, film, millrace, ok, run};

fn server_with_film(dir: &Path, secs: u64) -> (Server, String) {
    let store = dir.join("store");
    let source = film(dir, "film.ts", secs);
    ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    let server = Server::start(&store, &[]);
    let url = server.title("film");
    (server, url)
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn lines(path: &PathBuf) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn load_without_failures_exits_with_0_and_writes_files() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = server_with_film(dir.path(), 20);
    let list = dir.path().join("list.txt");
    std::fs::write(&list, format!("# one film\n{url}\n")).unwrap();
    let (series, streams) = (dir.path().join("series.csv"), dir.path().join("streams.csv"));
    let output = run(&[
        "load",
        &format!("@{}", list.display()),
        "--streams",
        "6",
        "--duration",
        "4s",
        "--arrivals",
        "poisson:20/s",
        "--behaviour",
        "zap 2200ms fixed:1,pause 1s fixed for 500ms fixed:1,seek 1s fixed:1",
        "--stall",
        "3s",
        "--json",
        "--series",
        series.to_str().unwrap(),
        "--per-stream",
        streams.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    // Sessions after a zap begin less than 2 s before the end, so that a busy machine need not play them in time.
    assert_eq!((report["streams"].as_u64(), report["failed"].as_u64()), (Some(6), Some(0)), "{report}");
    let deeds = ["zaps", "pauses", "seeks"].map(|deed| report[deed].as_u64().unwrap());
    assert!(deeds.iter().sum::<u64>() >= 6, "{report}");
    assert_eq!(report["lost"], 0, "{report}");
    assert_eq!(report["ts"]["continuity_errors"], 0, "{report}");
    assert!(report["ts"]["pcrs"].as_u64().unwrap() > 10, "{report}");
    let sessions = report["sessions"].as_u64().unwrap() as usize;
    assert_eq!(lines(&streams).len(), sessions + 1);
    assert!(lines(&series).len() >= 4, "{:?}", lines(&series));
    assert!(lines(&series)[0].starts_with("at_ms,"));
}

#[test]
fn load_exits_with_1_on_failures_and_2_on_bad_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = server_with_film(dir.path(), 10);
    let missing = server.title("missing");
    let load = |more: &[&str]| {
        let mut args = vec!["load", "--streams", "4", "--duration", "1s", "--quiet"];
        args.extend(more);
        run(&args)
    };
    let half = load(&[&url, &missing]);
    assert_eq!(half.status.code(), Some(1), "{half:?}");
    let text = String::from_utf8_lossy(&half.stdout);
    assert!(text.contains("2 x DESCRIBE refused: 404"), "{text}");
    assert!(String::from_utf8_lossy(&half.stderr).contains("2 sessions failed, allowed 0"), "{half:?}");
    assert_eq!(load(&[&url, &missing, "--max-failed", "2"]).status.code(), Some(0));
    let late = load(&[&url, "--max-lateness", "1ns"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let csv = dir.path().join("both.csv").to_str().unwrap().to_owned();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    nobody.set_nonblocking(true).unwrap();
    let url = format!("rtsp://{}/film", nobody.local_addr().unwrap());
    for (args, words) in [
        (vec!["http//x"], "no scheme"),
        (vec![&*url, "--threads", "99"], "1 to 16"),
        (vec![&*url, "--behaviour", "dance 5s"], "verbs"),
        (vec![&*url, "--max-loss", "3"], "0.1%"),
        (vec!["@/nowhere/list.txt"], "/nowhere/list.txt"),
        (vec![&*url, "--series", "/nowhere/series.csv"], "--series /nowhere/series.csv: cannot be written"),
        (vec![&*url, "--per-stream", "/nowhere/s.csv"], "--per-stream /nowhere/s.csv: cannot be written"),
        (vec![&*url, "--series", &csv, "--per-stream", &csv], "is the file of --series too"),
        (vec![&*url, "--probe", "lo", "--transport", "tcp"], "probe"),
    ] {
        let output = load(&args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
    // None of them has connected before.
    assert_eq!(nobody.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn load_on_interrupt_ends_sessions_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, url) = server_with_film(dir.path(), 60);
    let child = millrace()
        .args(["load", &url, "--streams", "3", "--duration", "10m", "--json", "--quiet"])
        // The server logs that it plays before its reply is read; a viewer that pauses has read it.
        .args(["--behaviour", "pause@0.5,play@1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..3 {
        server.wait_for("pauses: film", Duration::from_secs(20));
    }
    let began = Instant::now();
    support::signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30));
    let report = json(&output);
    assert_eq!((report["played"].as_u64(), report["failed"].as_u64()), (Some(3), Some(0)), "{report}");
    for _ in 0..3 {
        server.wait_for("ended: film", Duration::from_secs(10));
    }
}

#[test]
fn load_without_lab_program_names_what_to_install() {
    let dir = tempfile::tempdir().unwrap();
    let alone = copy_program(dir.path());
    for args in [&["load", "rtsp://host/film"][..], &["help", "bench"]] {
        let output = std::process::Command::new(&alone).args(args).env("PATH", dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("the program millrace-lab is not installed; install the package"), "{said}");
    }
}

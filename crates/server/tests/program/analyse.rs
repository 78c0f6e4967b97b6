//! `inspect --ts` and `play --analyse`: what Millrace stores and sends is a clean transport stream, and damage is found.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Server, add, film, ok, play, run, volume};
use serde_json::Value;

/// A film at a variable rate in `dir`.
fn variable(dir: &Path, name: &str, secs: u64) -> PathBuf {
    let path = dir.join(name);
    let done = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-v", "error", "-f", "lavfi", "-i"])
        .arg(format!("testsrc2=s=320x180:r=25:d={secs}"))
        .args(["-f", "lavfi", "-i", &format!("sine=f=440:r=48000:d={secs}"), "-c:v", "libx264", "-bf", "2"])
        .args(["-preset", "ultrafast", "-g", "25", "-pix_fmt", "yuv420p", "-c:a", "mp2", "-f", "mpegts"])
        .arg(&path)
        .output()
        .expect("ffmpeg can be started");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    path
}

/// The report of `inspect --ts --json`, and the exit code.
fn inspect(args: &[&str]) -> (Value, Option<i32>) {
    let done = run(&[&["inspect", "--ts", "--json"], args].concat());
    let text = String::from_utf8_lossy(&done.stdout);
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} {done:?}"));
    (report, done.status.code())
}

#[test]
fn stored_titles_and_received_streams_are_clean() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let store = store.to_str().unwrap();
    for source in [film(dir.path(), "constant.ts", 5), variable(dir.path(), "variable.ts", 5)] {
        add(&source, Path::new(store));
    }
    let server = Server::start(Path::new(store), &[]);
    for (title, rate) in [("constant", true), ("variable", false)] {
        let (report, code) = inspect(&[title, "--store", store]);
        assert_eq!((&report["verdict"], code), (&Value::from("clean"), Some(0)), "{report:#}");
        assert_eq!(report["rate"].get("constant").is_some(), rate, "{report:#}");
        for transport in ["udp", "tcp"] {
            let received = play(&[&server.title(title), "--transport", transport, "--analyse"]);
            let analysis = &received["analysis"];
            assert_eq!(analysis["verdict"], "clean", "{title} by {transport}: {received:#}");
            assert_eq!(analysis["packets"], report["packets"], "{title} by {transport}");
            assert_eq!(analysis["duration_ns"], report["duration_ns"], "{title} by {transport}");
        }
    }
    // Another place of the title is no jump of its clock.
    let script = "seek@1=3,seek@2=0";
    let received = play(&[&server.title("constant"), "--analyse", "--do", script]);
    assert_eq!(received["analysis"]["verdict"], "clean", "{received:#}");
    let text = ok(&["play", "--quiet", &server.title("variable"), "--analyse"]);
    assert!(text.contains("\nanalysis\n  stream ") && text.contains("  verdict           clean"), "{text}");
}

#[test]
fn inspect_of_striped_title_is_clean_with_or_without_one_member() {
    let dir = tempfile::tempdir().unwrap();
    let members: Vec<_> = ["a", "b", "c"].map(|name| dir.path().join(name)).into();
    volume(&members, 1);
    add(&film(dir.path(), "film.ts", 5), &members[0]);
    let first = members[0].to_str().unwrap();
    let (report, code) = inspect(&["film", "--store", first]);
    assert_eq!((&report["verdict"], code), (&Value::from("clean"), Some(0)), "{report:#}");
    std::fs::remove_dir_all(&members[2]).unwrap();
    let (without, code) = inspect(&["film", "--store", first]);
    assert_eq!((without, code), (report, Some(0)), "the parity gives what is missing");
}

#[test]
fn damage_changes_the_exit_code_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = film(dir.path(), "film.ts", 4);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.drain(188 * 1000..188 * 1001);
    std::fs::write(&path, &bytes).unwrap();
    let path = path.to_str().unwrap();
    let (report, code) = inspect(&[path]);
    assert_eq!((&report["verdict"], code), (&Value::from("faulty"), Some(1)), "{report:#}");
    let finding = report["findings"].as_array().unwrap().iter().find(|f| f["check"] == "continuity").unwrap();
    assert_eq!((&finding["clause"], &finding["severity"]), (&Value::from("1.4"), &Value::from("fault")));
    let text = run(&["inspect", "--ts", "--quiet", path]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("fault             continuity (1.4): 1"), "{text}");
    assert!(
        text.lines().last().unwrap().starts_with("verdict           faulty: 1 continuity (1.4)"),
        "{text}"
    );
    let (report, _) = inspect(&["--buffers", path]);
    assert!(report["pids"].as_array().unwrap().iter().any(|pid| pid["buffers"].is_object()), "{report:#}");
    let nothing = dir.path().join("nothing.ts");
    std::fs::write(&nothing, "no film").unwrap();
    let (report, code) = inspect(&[nothing.to_str().unwrap()]);
    assert_eq!((&report["verdict"], code), (&Value::from("no_stream"), Some(1)));
    let directory = dir.path().to_str().unwrap();
    for (args, code, said) in [
        (vec!["inspect", "--ts"], 2, "name a title or a file"),
        (vec!["inspect", "--ts", directory], 2, "is a directory"),
        (vec!["inspect", "--ts", "--packets", "0..1", path], 2, "--packets"),
        (vec!["inspect", "--buffers", path], 2, "--ts"),
    ] {
        let done = run(&args);
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(code) && error.contains(said), "{args:?}: {error}");
    }
}

//! Near video on demand from end to end: `millrace cast` to groups of the loopback interface, `millrace play` from them.

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{add, film, millrace, signal};

/// Groups of a documentation range (RFC 5771 section 9.2).
const GROUP: &str = "233.252.0.64";

/// A port that is free on this machine now.
fn free_port() -> u16 {
    UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

fn start(args: &[&str]) -> Child {
    let mut command = millrace();
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// JSON of a command that has ended, its standard error and its exit code.
fn ended(child: Child) -> (Value, String, i32) {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    (value, errors, output.status.code().unwrap())
}

/// The bytes of the only title of a store.
fn stored(store: &Path) -> Vec<u8> {
    let titles: Vec<_> = std::fs::read_dir(store.join("titles")).unwrap().collect();
    assert_eq!(titles.len(), 1);
    std::fs::read(titles[0].as_ref().unwrap().path().join("data.ts")).unwrap()
}

/// Two viewers of one cast, one later than the other, both to files.
fn watch(store: &Path, dir: &Path, scheme: &str, channels: u8) {
    let address = format!("nvod://{GROUP}:{}", free_port());
    let url = format!("{address}?channels={channels}&scheme={scheme}&iface=127.0.0.1");
    let cast = start(&["cast", "one", &url, "--json", "--store", store.to_str().unwrap()]);
    let expected = stored(store);
    let reference = dir.join("reference.ts");
    std::fs::write(&reference, &expected).unwrap();
    let play = |number: u8| {
        let file = dir.join(format!("{scheme}-{number}.ts"));
        let address = format!("{address}?interface=127.0.0.1");
        let (file_arg, reference) = (file.to_str().unwrap(), reference.to_str().unwrap());
        let child = start(&[
            "play",
            &address,
            "-o",
            file_arg,
            "--stats",
            "json",
            "--verify",
            reference,
            "--duration",
            "60s",
        ]);
        (child, file)
    };
    let first = play(1);
    // Any time between two slots will do.
    std::thread::sleep(Duration::from_millis(730));
    for (viewer, file) in [first, play(2)] {
        let (report, errors, code) = ended(viewer);
        assert_eq!((code, report["end"].as_str()), (0, Some("complete")), "{scheme}: {errors} {report}");
        assert!(std::fs::read(file).unwrap() == expected, "{scheme}: other bytes: {report}");
        assert_eq!(report["sequence"]["lost"], 0);
    }
    signal(cast.id(), "INT");
    let (summary, errors, code) = ended(cast);
    assert_eq!((code, errors.as_str()), (0, ""), "{summary}");
    assert_eq!(
        (summary["scheme"].as_str(), summary["refused"].as_u64()),
        (Some(scheme), Some(0)),
        "{summary}"
    );
}

#[test]
fn nvod_cast_of_each_scheme_is_received_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    film(dir.path(), "one.ts", 3);
    let store = dir.path().join("store");
    add(&dir.path().join("one.ts"), &store);
    for (scheme, channels) in [("fixed-delay", 3), ("pagoda", 3), ("skyscraper", 4), ("staggered", 2)] {
        watch(&store, dir.path(), scheme, channels);
    }
}

#[test]
fn nvod_cast_that_cannot_be_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    film(dir.path(), "one.ts", 1);
    let store = dir.path().join("store");
    add(&dir.path().join("one.ts"), &store);
    let store = store.to_str().unwrap();
    for (args, code, part) in [
        (&["one", "nvod://127.0.0.1:5000"][..], 2, "GROUP a multicast group"),
        (&["one", "nvod://239.1.1.1:5000?channels=99"], 2, "channels=1 to 16"),
        (&["one", "nvod://239.1.1.1:5000", "--loop"], 2, "leave them out"),
        (&["one", "udp://239.1.1.1:5000", "--for", "1s"], 2, "--for"),
        (&["one", "two", "nvod://239.1.1.1:5000"], 2, "got 2 titles"),
        (&["gone", "nvod://239.1.1.1:5000"], 1, "gone: no such title"),
        (&["one", "nvod://239.1.1.1:5000?channels=16&scheme=pagoda"], 1, "use fewer channels"),
    ] {
        let mut all = vec!["cast", "--store", store];
        all.extend(args);
        let output = Command::output(millrace().args(all)).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(part), "{args:?}: {errors}");
    }
}

#[test]
fn nvod_cast_for_a_time_ends_by_itself_and_its_viewers_are_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    film(dir.path(), "one.ts", 3);
    let store = dir.path().join("store");
    add(&dir.path().join("one.ts"), &store);
    let address = format!("nvod://{GROUP}:{}", free_port());
    let url = format!("{address}?channels=1&scheme=staggered&iface=127.0.0.1");
    let cast = start(&["cast", "one", &url, "--json", "--for", "1s", "--store", store.to_str().unwrap()]);
    let play = start(&["play", &format!("{address}?iface=127.0.0.1"), "--stats", "json"]);
    let (summary, errors, code) = ended(cast);
    assert_eq!((code, errors.as_str()), (0, ""), "{summary}");
    let (report, errors, code) = ended(play);
    assert!(code != 0 && report["end"] == "silence", "{code}: {errors} {report}");
}

#[test]
fn nvod_table_and_picture_show_schemes_of_a_length() {
    let run = |args: &[&str]| {
        let output = millrace().arg("nvod").args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let figures: Value = serde_json::from_str(&run(&["2h", "--channels", "4", "--json"])).unwrap();
    let delays: Vec<_> =
        figures.as_array().unwrap().iter().map(|row| row["delay_ms"].as_f64().unwrap()).collect();
    assert_eq!(delays.len(), 4);
    let bound = figures[0]["least_delay_ms"].as_f64().unwrap();
    assert!(delays.is_sorted_by(|one, next| one > next) && delays[3] > bound, "{figures}");
    assert_eq!(run(&["2h"]).lines().count(), 1 + 8 * 4);
    let picture = run(&["2h", "--channels", "3", "--draw", "pagoda"]);
    let lines: Vec<_> = picture.lines().collect();
    assert!(lines[0].starts_with("channel  1 [1] 1  1 "), "{picture}");
    assert!(lines[1].starts_with("channel  2 [2][4][2][5] 2 "), "{picture}");
    assert!(lines[3].starts_with("playback    1  2  3 "), "{picture}");
    let output = millrace().args(["nvod", "13h"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "longer than the clock of the packets");
}

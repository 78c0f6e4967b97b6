//! `serve --stats`: the file matches the events.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Server, add, fails, film, play};
use serde_json::Value;

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).expect("a whole document, whenever it is read")
}

/// A counter of both engines.
fn sum(document: &Value, part: &str, counter: &str) -> u64 {
    let engines = document[part].as_array().expect("a list");
    assert_eq!(engines.len(), 2, "{document}");
    engines.iter().map(|engine| engine[counter].as_u64().expect("a count")).sum()
}

#[test]
fn stats_file_counts_packets_received_by_viewers() {
    let dir = tempfile::tempdir().unwrap();
    let (store, path) = (dir.path().join("store"), dir.path().join("stats.json"));
    add(&film(dir.path(), "film.ts", 2), &store);
    let mut server = Server::start(&store, &["--stats", path.to_str().unwrap()]);
    let before = read(&path);
    assert_eq!(sum(&before, "engine", "packets"), 0);
    let by_udp = play(&[&server.title("film"), "-o", "null"]);
    let by_tcp = play(&[&server.title("film"), "--transport", "tcp", "-o", "null"]);
    let received = [&by_udp, &by_tcp].map(|report| report["packets"].as_u64().expect("a count"));
    // While it runs the file is replaced, and never seen in part.
    let deadline = Instant::now() + Duration::from_secs(30);
    while read(&path)["sessions"]["sessions_torn_down"] != 2 {
        assert!(Instant::now() < deadline, "{}", read(&path));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.interrupt());
    let after = read(&path);
    assert_eq!(sum(&after, "engine", "packets"), received[0] + received[1], "{after}");
    assert_eq!(sum(&after, "loop", "packets"), received[0] + received[1]);
    // Sender reports are frames too.
    assert!(sum(&after, "sockets", "frames") >= received[1], "{after}");
    assert_eq!((&after["now"]["sessions"], &after["now"]["streams"]), (&0.into(), &0.into()));
    assert_eq!(after["sessions"]["sessions_started"], 2);
    assert!(after["cache"]["bytes_read"].as_u64() > Some(0) && after["cache"]["leased"] == 0, "{after}");
    let kernel = after["paths"].as_array().unwrap().iter().find(|path| path["path"] == "kernel").unwrap();
    assert!(kernel["datagrams"].as_u64() >= Some(received[0]), "{after}");
}

#[test]
fn stats_file_has_separate_counters_per_title() {
    let dir = tempfile::tempdir().unwrap();
    let (store, path) = (dir.path().join("store"), dir.path().join("stats.json"));
    let sources = [("film.ts", 2), ("other.ts", 3)].map(|(name, secs)| film(dir.path(), name, secs));
    sources.iter().for_each(|source| add(source, &store));
    let mut server = Server::start(&store, &["--stats", path.to_str().unwrap()]);
    assert!(read(&path).get("titles").is_none(), "nobody has watched anything");
    let viewers: [(&str, &[&str]); 3] =
        [("film", &[]), ("film", &["--transport", "tcp"]), ("other", &["--do", "seek@0.5=2"])];
    let received = viewers.map(|(title, more)| {
        let url = server.title(title);
        let report = play(&[&[&*url, "-o", "null"][..], more].concat());
        report["packets"].as_u64().expect("a count")
    });
    // The server knows that a viewer has gone once its engine has reported it.
    let end = Instant::now() + Duration::from_secs(60);
    while !read(&path)["titles"]
        .as_array()
        .is_some_and(|titles| titles.len() == 2 && titles.iter().all(|line| line["viewers"] == 0))
    {
        assert!(Instant::now() < end, "{}", read(&path));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.interrupt());
    let after = read(&path);
    let line = |title: &str| {
        let lines = after["titles"].as_array().expect("a list");
        let line = lines.iter().find(|line| line["title"] == title).expect("a line of this title");
        ["viewers", "sessions", "packets", "bytes", "missing", "seeks"]
            .map(|counter| line[counter].as_u64().expect("a count"))
    };
    let film = received[0] + received[1];
    let film_bytes = 2 * std::fs::metadata(&sources[0]).unwrap().len() + film * 12;
    assert_eq!(line("film"), [0, 2, film, film_bytes, 0, 0], "{after}");
    let other = ["packets", "bytes"].map(|counter| sum(&after, "engine", counter));
    let other = [other[0] - film, other[1] - film_bytes];
    assert!(received[2] > 0 && received[2] <= other[0], "{after}");
    assert_eq!(line("other"), [0, 1, other[0], other[1], 0, 1], "{after}");
    assert_eq!(after["titles"].as_array().map(Vec::len), Some(2), "{after}");
}

#[test]
fn stats_path_not_writable_prevents_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let error = fails(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--cache",
        "32MiB",
        "--store",
        store.to_str().unwrap(),
        "--stats",
        "/none/x",
    ]);
    assert!(error.contains("--stats /none/x: cannot be written"), "{error}");
}

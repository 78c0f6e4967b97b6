//! Transformed titles over RTSP: real servers, real sockets, our own receiver and FFmpeg. What viewers get is what `millrace transform` writes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{Server, add, fails, ok, play};

/// Pictures, and sound in English and German, in a store.
fn store(dir: &Path) -> (PathBuf, PathBuf) {
    let (film, store) = (film(dir), dir.join("store"));
    add(&film, &store);
    (store, film)
}

fn film(dir: &Path) -> PathBuf {
    let film = dir.join("film.ts");
    let lavfi = |source: &str| ["-f".to_owned(), "lavfi".to_owned(), "-i".to_owned(), source.to_owned()];
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-y"]);
    command.args(lavfi("testsrc=size=320x180:rate=25:duration=5"));
    command.args(lavfi("sine=frequency=440:duration=5")).args(lavfi("sine=frequency=880:duration=5"));
    command.args(["-map", "0", "-map", "1", "-map", "2", "-c:v", "mpeg2video", "-b:v", "2M", "-c:a", "mp2"]);
    command.args(["-metadata:s:a:0", "language=eng", "-metadata:s:a:1", "language=deu", "-f", "mpegts"]);
    assert!(command.arg(&film).status().expect("ffmpeg can be started").success());
    film
}

/// The whole title by this transport is this file.
fn plays(url: &str, transport: &str, expected: &Path) {
    let report = play(&[url, "--transport", transport, "--verify", expected.to_str().unwrap()]);
    assert_eq!(report["byte_check"]["different_bytes"], 0, "{transport}: {report}");
    assert_eq!(report["sequence"]["lost"], 0, "{transport}: {report}");
    assert_eq!(report["rtp_info_exact"], true, "{transport}: {report}");
}

/// Languages of the sounds that ffprobe sees behind a URL.
fn languages(url: &str, transport: &str) -> Vec<String> {
    let output = Command::new("ffprobe")
        .args(["-v", "error", "-rtsp_transport", transport, "-select_streams", "a"])
        .args(["-show_entries", "stream_tags=language", "-of", "csv=p=0", url])
        .output()
        .unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

/// The lowest presentation time stamp of the pictures, in seconds.
fn first_stamp(path: &Path) -> f64 {
    let output = Command::new("ffprobe")
        .args(["-v", "error", "-select_streams", "v", "-show_entries", "packet=pts_time", "-of", "csv=p=0"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let stamps = text.lines().filter_map(|line| line.trim_end_matches(',').parse::<f64>().ok());
    stamps.fold(f64::INFINITY, f64::min)
}

#[test]
fn viewers_get_what_they_ask_for_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (store, film) = store(dir.path());
    let steps = [
        ("deu", "select:audio=deu"),
        ("late", "restamp:offset=1h,continuity=5"),
        ("fra", "select:audio=fra"),
    ];
    let specs = steps.map(|(name, step)| format!("{name}={step}"));
    let stats = dir.path().join("stats.json");
    let mut args = vec!["--stats", stats.to_str().unwrap()];
    specs.iter().for_each(|spec| args.extend(["--transform", spec]));
    let expected = [&specs[0], &specs[1]].map(|spec| {
        let out = dir.path().join(format!("{}.ts", &spec[..3]));
        let (out_name, store) = (out.to_str().unwrap(), store.to_str().unwrap());
        ok(&["transform", "film", spec, "-o", out_name, "--store", store, "--quiet"]);
        out
    });
    let mut server = Server::start(&store, &args);
    let url = |query: &str| format!("{}{query}", server.title("film"));
    std::thread::scope(|scope| {
        for transport in ["udp", "tcp"] {
            for (query, expected) in
                [("?transform=deu", &expected[0]), ("?transform=late", &expected[1]), ("", &film)]
            {
                let url = url(query);
                scope.spawn(move || plays(&url, transport, expected));
            }
        }
    });
    for transport in ["udp", "tcp"] {
        assert_eq!(languages(&url("?transform=deu"), transport), ["deu"]);
        assert_eq!(languages(&url(""), transport), ["deu", "eng"]);
    }
    // FFmpeg asks for places in the time stamps that it sees: it gets the same place of both.
    let begins = ["", "?transform=late"].map(|query| {
        let part = dir.path().join("part.ts");
        let status = Command::new("ffmpeg")
            .args(["-nostdin", "-v", "error", "-y", "-rtsp_transport", "tcp", "-ss", "2", "-i"])
            .args([&url(query), "-c", "copy", "-copyts", "-f", "mpegts"])
            .arg(&part)
            .status();
        assert!(status.unwrap().success());
        first_stamp(&part)
    });
    let into = begins[0] - first_stamp(&film);
    assert!((1.0..4.0).contains(&into), "{into} s of 5 s");
    assert!((begins[1] - begins[0] - 3600.0).abs() < 0.001, "{begins:?}");
    let unknown = fails(&["play", &url("?transform=nothing"), "-o", "null"]);
    assert!(unknown.contains("404") && unknown.contains("no transformation of that name"), "{unknown}");
    let unfit = fails(&["play", &url("?transform=fra"), "-o", "null"]);
    assert!(unfit.contains("404") && unfit.contains("no audio in fra"), "{unfit}");
    server.wait_for("no audio in fra", Duration::from_secs(10));
    assert!(server.interrupt());
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    let of = |name: &str| {
        let all = stats["transforms"].as_array().unwrap();
        let found = all.iter().find(|entry| entry["transform"] == name).unwrap();
        (found["transformed_blocks"].as_u64().unwrap(), found["failed_blocks"].as_u64().unwrap())
    };
    // Each extent of each track was made once, whoever watched it: it stays in memory.
    let extents = std::fs::metadata(&film).unwrap().len().div_ceil(196 * 1316);
    assert_eq!([of("deu"), of("late"), of("fra")], [(extents, 0), (extents, 0), (0, 0)], "{stats}");
}

/// Fast forward of a transformed title is the title made for it, transformed in the same way.
#[test]
fn other_speeds_are_transformed_as_the_title_is() {
    let dir = tempfile::tempdir().unwrap();
    let (film, store) = (film(dir.path()), dir.path().join("store"));
    let (film, store_name) = (film.to_str().unwrap(), store.to_str().unwrap());
    ok(&["add", "--quiet", "--trick=4", film, "--store", store_name]);
    let spec = "late=select:audio=deu+restamp:offset=1h";
    let [stored, expected] = ["stored=select:audio=all", spec].map(|spec| {
        let out = dir.path().join(&spec[..4]);
        ok(&["transform", "film@4", spec, "-o", out.to_str().unwrap(), "--store", store_name, "--quiet"]);
        out
    });
    assert!(std::fs::read(&stored).unwrap() != std::fs::read(&expected).unwrap());
    let mut server = Server::start(&store, &["--transform", spec]);
    for (query, expected) in [("?transform=late", &expected), ("", &stored)] {
        let url = format!("{}{query}", server.title("film"));
        let report = play(&[&url, "--scale", "4", "--verify", expected.to_str().unwrap()]);
        let numbers = (&report["byte_check"]["different_bytes"], &report["sequence"]["lost"]);
        assert_eq!(numbers, (&0.into(), &0.into()), "{report}");
        assert_eq!(report["rtp_info_exact"], true, "{report}");
    }
    assert!(server.interrupt());
}

#[cfg(feature = "wasm")]
#[test]
fn transform_with_failing_wasm_module_passes_title_and_warns_once() {
    const BLANK_PID: &str = include_str!("../../../../examples/wasm-blank-pid/blank_pid.wat");
    let dir = tempfile::tempdir().unwrap();
    let (store, film) = store(dir.path());
    let hostile = BLANK_PID.replace("(local $end i32)", "(local $end i32) (loop $on (br $on))");
    let module = dir.path().join("loop.wasm");
    std::fs::write(&module, wat::parse_str(&hostile).unwrap()).unwrap();
    let spec = format!("bad=wasm:{}", module.to_str().unwrap());
    let mut server = Server::start(&store, &["--transform", &spec]);
    plays(&format!("{}?transform=bad", server.title("film")), "tcp", &film);
    let said = server.wait_for("transformation bad: film: ", Duration::from_secs(10));
    assert!(said.contains("exceeded the work limit of a block") && said.contains("WARN"), "{said}");
    assert!(server.interrupt());
    assert_eq!(server.said("transformation bad: film: ").len(), 1);
}

#[test]
fn definitions_that_make_no_sense_are_refused_at_the_start() {
    let error = fails(&["serve", "--transform", "x=select:audio=German"]);
    assert!(error.contains("three letters"), "{error}");
    let error = fails(&["serve", "--transform", "x=restamp:offset=1s", "--transform", "x=restamp:offset=2s"]);
    assert!(error.contains("the name x is taken"), "{error}");
}

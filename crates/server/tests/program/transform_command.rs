//! `millrace transform` on real films: FFmpeg examines the output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{add, fails, millrace, ok, run};

/// Pictures, and sound in English and German; the time stamps begin where they wrap 2 s later.
fn film(dir: &Path) -> PathBuf {
    let path = dir.join("film.ts");
    let lavfi = |source: &str| ["-f".to_owned(), "lavfi".to_owned(), "-i".to_owned(), source.to_owned()];
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-y"]);
    command.args(lavfi("testsrc=size=320x180:rate=25:duration=6"));
    command.args(lavfi("sine=frequency=440:duration=6")).args(lavfi("sine=frequency=880:duration=6"));
    command.args(["-map", "0", "-map", "1", "-map", "2", "-c:v", "mpeg2video", "-b:v", "2M", "-c:a", "mp2"]);
    command.args(["-metadata:s:a:0", "language=eng", "-metadata:s:a:1", "language=deu"]);
    command.args(["-output_ts_offset", "95441.7", "-f", "mpegts"]);
    let status = command.arg(&path).status().expect("ffmpeg can be started");
    assert!(status.success());
    path
}

/// What ffprobe prints; nothing may be wrong with the file.
fn ffprobe(path: &Path, args: &[&str]) -> String {
    let mut command = Command::new("ffprobe");
    let output =
        command.args(["-v", "error"]).args(args).args(["-of", "csv=p=0"]).arg(path).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Codec and language of each stream.
fn streams(path: &Path) -> Vec<String> {
    let text = ffprobe(path, &["-show_entries", "stream=index,codec_name:stream_tags=language"]);
    // Programs list their streams once more, without languages.
    let mut streams = BTreeMap::<&str, &str>::new();
    for (index, about) in text.lines().filter_map(|line| line.trim_end_matches(',').split_once(',')) {
        let known = streams.entry(index).or_default();
        *known = if about.len() > known.len() { about } else { known };
    }
    let mut streams: Vec<_> = streams.into_values().map(str::to_owned).collect();
    streams.sort();
    streams
}

/// Stream and time stamps of each packet, modulo 2^33 as they stand in the stream.
fn stamps(path: &Path) -> Vec<(u32, Option<i64>, Option<i64>)> {
    let text = ffprobe(path, &["-show_entries", "packet=stream_index,pts,dts"]);
    let lines = text.lines().map(|line| line.trim_end_matches(',')).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let words: Vec<_> = line.split(',').collect();
            let stamp = |word: &str| word.parse::<i64>().ok().map(|stamp| stamp.rem_euclid(1 << 33));
            (words[0].parse().unwrap(), stamp(words[1]), stamp(words[2]))
        })
        .collect()
}

/// Decodes everything; returns the decoder's complaints.
fn complaints(path: &Path) -> String {
    let output = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-xerror", "-i"])
        .arg(path)
        .args(["-map", "0", "-f", "null", "-"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn transform(store: &Path, source: &str, spec: &str, out: &Path) {
    let store = store.to_str().unwrap();
    ok(&["transform", source, spec, "-o", out.to_str().unwrap(), "--store", store, "--quiet"]);
}

#[test]
fn transform_select_audio_keeps_one_language_decodable() {
    let dir = tempfile::tempdir().unwrap();
    let (film, store, out) = (film(dir.path()), dir.path().join("store"), dir.path().join("out.ts"));
    add(&film, &store);
    assert_eq!(streams(&film), ["mp2,deu", "mp2,eng", "mpeg2video"]);
    transform(&store, "film", "deu=select:audio=deu", &out);
    assert_eq!(streams(&out), ["mp2,deu", "mpeg2video"]);
    assert_eq!(complaints(&out), "");
    assert_eq!(std::fs::metadata(&out).unwrap().len(), std::fs::metadata(&film).unwrap().len());
    let of = |path: &Path, wanted: u32| -> Vec<_> {
        stamps(path)
            .into_iter()
            .filter(|(stream, ..)| *stream == wanted)
            .map(|(_, pts, dts)| (pts, dts))
            .collect()
    };
    assert_eq!(of(&out, 0), of(&film, 0), "pictures");
    assert_eq!(of(&out, 1), of(&film, 2), "German");
    // From a file it is the same.
    let other = dir.path().join("other.ts");
    transform(&store, film.to_str().unwrap(), "deu=select:audio=deu", &other);
    assert!(std::fs::read(&other).unwrap() == std::fs::read(&out).unwrap());
}

#[test]
fn time_stamps_move_by_exactly_so_much_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let (film, store) = (film(dir.path()), dir.path().join("store"));
    let (out, back) = (dir.path().join("out.ts"), dir.path().join("back.ts"));
    add(&film, &store);
    transform(&store, "film", "x=restamp:offset=1h,continuity=7", &out);
    let moved: Vec<_> = stamps(&film)
        .into_iter()
        .map(|(stream, pts, dts)| {
            let moved = |stamp: i64| (stamp + 3600 * 90_000).rem_euclid(1 << 33);
            (stream, pts.map(moved), dts.map(moved))
        })
        .collect();
    assert!(moved.iter().filter(|(_, pts, _)| pts.is_some()).count() > 300);
    assert_eq!(stamps(&out), moved);
    assert_eq!(complaints(&out), "");
    let again = "y=restamp:offset=-1h,continuity=9";
    transform(&store, out.to_str().unwrap(), again, &back);
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&film).unwrap());
}

#[test]
fn definitions_come_from_options_and_from_the_servers_file() {
    let dir = tempfile::tempdir().unwrap();
    let (film, out) = (film(dir.path()), dir.path().join("out.ts"));
    let config = dir.path().join("millrace.toml");
    std::fs::write(&config, "transform = [\"deu=select:audio=deu\", \"late=restamp:offset=1s\"]\n").unwrap();
    let (film, config) = (film.to_str().unwrap(), config.to_str().unwrap());
    let list = ok(&["transform", "--list", "--config", config, "--transform", "no=select:audio=none"]);
    assert_eq!(list, "no=select:audio=none\ndeu=select:audio=deu\nlate=restamp:offset=1s\n");
    ok(&["transform", film, "deu", "--config", config, "-o", out.to_str().unwrap()]);
    let by_variable = millrace()
        .args(["transform", film, "deu", "-o", "-", "--quiet"])
        .env("MILLRACE_TRANSFORM", "no=select:audio=none;deu=select:audio=deu")
        .output()
        .unwrap();
    assert!(by_variable.status.success() && by_variable.stderr.is_empty(), "{by_variable:?}");
    assert!(by_variable.stdout == std::fs::read(&out).unwrap(), "standard output");
}

#[test]
fn transform_with_invalid_request_reports_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (film, store) = (film(dir.path()), dir.path().join("store"));
    add(&film, &store);
    let out = dir.path().join("out.ts");
    let (store, out, film) = (store.to_str().unwrap(), out.to_str().unwrap(), film.to_str().unwrap());
    let said = |title: &str, spec: &str| fails(&["transform", title, spec, "-o", out, "--store", store]);
    for title in ["film", film] {
        let error = said(title, "fra=select:audio=fra");
        assert!(error.contains("no audio in fra; it has: eng, deu"), "{error}");
    }
    assert!(said("film", "deu").contains("none is defined"));
    assert!(said("nothing", "x=restamp:offset=1s").contains("no such title or file"));
    assert!(said("film", "x=restamp:offset=soon").contains("soon"));
    assert!(!Path::new(out).exists(), "nothing is written before that is known");
    // The file that is read is not overwritten.
    let before = std::fs::read(film).unwrap();
    let error = fails(&["transform", film, "x=restamp:offset=1s", "-o", film]);
    assert!(error.contains("is the input file"), "{error}");
    assert!(std::fs::read(film).unwrap() == before);
    let noise = dir.path().join("noise");
    std::fs::write(&noise, vec![1; 5000]).unwrap();
    assert!(said(noise.to_str().unwrap(), "x=restamp:offset=1s").contains("no MPEG transport stream"));
}

#[cfg(feature = "wasm")]
#[test]
fn modules_change_the_film_or_leave_it_as_it_is() {
    const BLANK_PID: &str = include_str!("../../../../examples/wasm-blank-pid/blank_pid.wat");
    let dir = tempfile::tempdir().unwrap();
    let (film, store, out) = (film(dir.path()), dir.path().join("store"), dir.path().join("out.ts"));
    add(&film, &store);
    let module = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
        format!("x=wasm:{}", path.to_str().unwrap())
    };
    // FFmpeg's second stream is PID 0x101.
    transform(&store, "film", &module("blank.wasm", BLANK_PID), &out);
    let (before, after) = (std::fs::read(&film).unwrap(), std::fs::read(&out).unwrap());
    let mut blanked = 0;
    for (was, is) in before.chunks(188).zip(after.chunks(188)) {
        if was[1] & 0x1f == 1 && was[2] == 1 {
            blanked += 1;
            assert_eq!(is[..4], [0x47, 0x1f, 0xff, 0x10]);
        } else {
            assert!(is == was);
        }
    }
    assert!(blanked > 100 && before.len() == after.len());
    let hostile = BLANK_PID.replace("(local $end i32)", "(local $end i32) (loop $on (br $on))");
    let spec = module("loop.wasm", &hostile);
    let args = ["transform", "film", &spec, "-o", out.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let output = run(&args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("left as stored, the last because the module exceeded the work limit"), "{said}");
    assert!(std::fs::read(&out).unwrap() == before);
}

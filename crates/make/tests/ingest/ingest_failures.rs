//! Bad files, bad programs, and callers that change their mind: a clear word, and nothing left behind.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::ingest_support::ffmpeg;
use millrace_core::time::MediaTicks;
use millrace_make::ingest::{IngestError, IngestOptions, IngestProgress, IngestStage, Sandbox, ingest};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::mux::{Film, film, usual_film};
use tempfile::TempDir;

struct Bench {
    dir: TempDir,
    volume: Volume,
    options: IngestOptions,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
        Self { dir, volume, options: IngestOptions::default() }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// An executable script beside others of this bench. Written by a program of its own: a child that a neighbour forks
    /// while this process has it open for writing would keep it from being run.
    fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
        let done = Command::new("sh").args(["-c", write]).arg(&path).arg(body).status().unwrap();
        assert!(done.success(), "{done}");
        path
    }

    fn ingest(&self, source: &Path) -> Result<TitleInfo, IngestError> {
        ingest(&self.volume, source, &self.options, &mut |_| {})
    }

    /// Refused with words that name the file and contain `words`; nothing is left.
    fn refused(&self, source: &Path, words: &[&str]) -> IngestError {
        let error = self.ingest(source).unwrap_err();
        self.check(source, &error, words);
        error
    }

    fn check(&self, source: &Path, error: &IngestError, words: &[&str]) {
        let text = error.to_string();
        let name = source.file_name().unwrap().to_str().unwrap();
        for word in words.iter().chain([&name]) {
            assert!(text.contains(word), "\"{word}\" in: {text}");
        }
        self.nothing_left();
    }

    fn nothing_left(&self) {
        for folder in ["tmp", "titles"] {
            let left: Vec<_> = fs::read_dir(self.volume.dir().join(folder)).unwrap().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
        assert!(self.volume.titles().unwrap().is_empty());
    }
}

#[test]
fn files_that_are_no_films() {
    let bench = Bench::new();
    bench.refused(&bench.dir.path().join("missing.ts"), &["cannot open", "No such file"]);
    bench.refused(&bench.file("empty.mp4", b""), &["the file is empty"]);
    bench.refused(bench.dir.path(), &["not a file but a directory"]);
    let text: Vec<u8> = b"This is no film, whatever its name says.\n".repeat(200);
    bench.refused(&bench.file("text.mp4", &text), &["not a readable media file"]);
    bench.refused(&bench.file("text.ts", &text), &["not a readable media file"]);
    bench.refused(&bench.file("noise.mkv", &noise(300_000)), &["not a readable media file"]);
    bench.refused(&bench.file("zeros.mov", &[0; 100_000]), &["not a readable media file"]);
    let socket = bench.dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    bench.refused(&socket, &["not a file but a socket"]);
    let looped = bench.dir.path().join("looped.ts");
    std::os::unix::fs::symlink(&looped, &looped).unwrap();
    bench.refused(&looped, &["cannot open", "permissions"]);
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(next).collect()
}

#[test]
fn playlists_and_scripts_cannot_make_it_read_other_files() {
    let bench = Bench::new();
    let other = bench.dir.path().join("other.ts");
    fs::write(&other, usual_film()).unwrap();
    let concat = format!("ffconcat version 1.0\nfile {}\n", other.display());
    bench.refused(&bench.file("list.mp4", concat.as_bytes()), &["not a readable media file"]);
    let playlist =
        format!("#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n", other.display());
    bench.refused(&bench.file("list.mkv", playlist.as_bytes()), &["not a readable media file"]);
    bench.refused(
        &bench.file("page.svg", b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>"),
        &["not a readable media file"],
    );
}

#[test]
fn transport_streams_that_cannot_be_used() {
    let bench = Bench::new();
    let no_clock = film(&Film { pcr: false, stamps: false, ..Film::default() });
    let error =
        bench.refused(&bench.file("clockless.ts", &no_clock), &["no clock in the first", "ffmpeg -i IN"]);
    assert!(matches!(error, IngestError::Stream { .. }));
    let no_tables: Vec<u8> = usual_film()[376..]
        .chunks(188)
        .filter(|p| p[1] & 0x1f != 0x10 && p[2] != 0 || p[1] & 0x1f != 0)
        .flatten()
        .copied()
        .collect();
    bench.refused(&bench.file("tableless.ts", &no_tables), &["no program"]);
    let mostly = [&usual_film()[..], &noise(2_000_000)].concat();
    bench.refused(&bench.file("damaged.ts", &mostly), &["damaged", "copy or record the film again"]);
}

#[test]
fn packet_sizes_that_cannot_be() {
    let mut bench = Bench::new();
    let source = bench.file("film.ts", &usual_film());
    for sizes in [vec![], vec![188], vec![1316, 1300], vec![1316, 9212]] {
        bench.options.packet_sizes = sizes.clone();
        let error = bench.ingest(&source).unwrap_err();
        assert!(matches!(&error, IngestError::PacketSizes { given } if *given == sizes), "{error}");
        bench.nothing_left();
    }
}

#[test]
fn ingest_without_ffmpeg_names_remedy() {
    let mut bench = Bench::new();
    let source = bench.dir.path().join("film.mp4");
    ffmpeg::make(&source, 1, ffmpeg::H264);
    bench.options.ffmpeg = PathBuf::from("/nonexistent/ffmpeg");
    bench.refused(&source, &["/nonexistent/ffprobe", "apt-get install ffmpeg"]);
    // Transport streams do not need it.
    let stream = bench.file("film.ts", &usual_film());
    assert_eq!(bench.ingest(&stream).unwrap().name, "film");
}

#[test]
fn ingest_of_truncated_container_is_refused() {
    let bench = Bench::new();
    let source = bench.dir.path().join("film.mp4");
    ffmpeg::make(&source, 2, ffmpeg::H264);
    let bytes = fs::read(&source).unwrap();
    bench.refused(
        &bench.file("cut.mp4", &bytes[..bytes.len() / 2]),
        &["not a readable media file", "moov atom not found"],
    );
}

/// ffprobe's description of a title with one copied picture stream.
const DESCRIPTION: &str = r#"echo '{"streams":[{"index":0,"codec_type":"video","codec_name":"h264"}],"format":{"format_name":"x","duration":"60"}}'"#;

#[test]
fn ingest_with_failing_ffmpeg_leaves_nothing_and_reports_stderr() {
    let mut bench = Bench::new();
    // The scripts use files beside them.
    bench.options.bounds.sandbox = Sandbox::Off;
    let source = bench.file("film.mp4", b"....ftypisom");
    let half = bench.file("half.ts", &usual_film());
    bench.script("ffprobe", DESCRIPTION);
    bench.options.ffmpeg = bench.script(
        "ffmpeg",
        &format!("cat {}; echo 'Error while decoding: disk on fire' >&2; exit 69", half.display()),
    );
    let error = bench.refused(&source, &["disk on fire", "69", "ffmpeg"]);
    assert!(matches!(error, IngestError::Ffmpeg { .. }));
    // An ffmpeg that prints nothing and writes nothing.
    bench.options.ffmpeg = bench.script("ffmpeg", "exit 0");
    bench.refused(&source, &["no transport stream packet"]);
    bench.script("ffprobe", "echo 'not json'");
    bench.refused(&source, &["description cannot be read"]);
    bench.script("ffprobe", "kill -9 $$");
    bench.refused(&source, &["not a readable media file"]);
}

#[test]
fn cancelling_while_ffmpeg_is_silent_kills_it_at_once() {
    let mut bench = Bench::new();
    // The scripts use files beside them.
    bench.options.bounds.sandbox = Sandbox::Off;
    let source = bench.file("film.mp4", b"....ftypisom");
    let pid_file = bench.dir.path().join("pid");
    for (silent, other) in [("ffmpeg", "ffprobe"), ("ffprobe", "ffmpeg")] {
        bench.script(other, DESCRIPTION);
        let script = bench.script(silent, &format!("echo $$ > {}; exec sleep 1000", pid_file.display()));
        bench.options.ffmpeg = script.with_file_name("ffmpeg");
        bench.options.cancel = Arc::new(AtomicBool::new(false));
        let mut asked = None;
        let mut reports = 0;
        let cancel = Arc::clone(&bench.options.cancel);
        let error = ingest(&bench.volume, &source, &bench.options, &mut |_| {
            // Cancelled only once the program runs, which its pid file shows.
            reports += 1;
            if fs::read_to_string(&pid_file).is_ok_and(|pid| pid.ends_with('\n')) {
                asked.get_or_insert_with(Instant::now);
                cancel.store(true, Ordering::Relaxed);
            }
        })
        .unwrap_err();
        let late = asked.expect("was asked to stop").elapsed();
        assert!(matches!(error, IngestError::Cancelled { .. }), "{error}");
        assert!(late < Duration::from_secs(60), "{silent}: stopped {late:?} after it was asked to");
        assert!(reports > 1);
        bench.check(&source, &error, &["cancelled"]);
        let pid = fs::read_to_string(&pid_file).unwrap();
        assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists(), "{silent} still runs");
        fs::remove_file(&pid_file).unwrap();
    }
}

#[test]
fn cancelling_while_a_stream_is_read_leaves_nothing() {
    let bench = Bench::new();
    let source = bench.file("film.ts", &film(&Film { packets: 40_000, ..Film::default() }));
    let cancel = &bench.options.cancel;
    let error = ingest(&bench.volume, &source, &bench.options, &mut |p: &IngestProgress| {
        cancel.store(p.stage == IngestStage::Indexing, Ordering::Relaxed);
    })
    .unwrap_err();
    bench.check(&source, &error, &["cancelled"]);
    let error = ingest(&bench.volume, &source, &bench.options, &mut |p: &IngestProgress| {
        cancel.store(p.stage == IngestStage::Committing, Ordering::Relaxed);
    })
    .unwrap_err();
    bench.check(&source, &error, &["cancelled"]);
}

#[test]
fn ingest_of_growing_file_is_refused() {
    let bench = Bench::new();
    let source = bench.file("film.ts", &usual_film());
    let mut grown = false;
    let error = ingest(&bench.volume, &source, &bench.options, &mut |p| {
        if p.stage == IngestStage::Indexing && !std::mem::replace(&mut grown, true) {
            fs::OpenOptions::new().append(true).open(&source).unwrap().write_all(&[0x47; 188]).unwrap();
        }
    })
    .unwrap_err();
    bench.check(&source, &error, &["changed while it was read", "add it again when it is complete"]);
}

#[test]
fn progress_is_told_in_order() {
    let bench = Bench::new();
    let bytes = film(&Film { packets: 20_000, ..Film::default() });
    let source = bench.file("film.ts", &bytes);
    let mut seen: Vec<IngestProgress> = Vec::new();
    let options = IngestOptions { name: Some("My Film!".into()), ..bench.options.clone() };
    let title = ingest(&bench.volume, &source, &options, &mut |p| seen.push(*p)).unwrap();
    assert_eq!(title.name, "my-film");
    assert_eq!(title.duration, MediaTicks(20_002 * 90));
    let mut stages: Vec<IngestStage> = seen.iter().map(|p| p.stage).collect();
    stages.dedup();
    assert_eq!(stages, [IngestStage::Probing, IngestStage::Indexing, IngestStage::Committing]);
    assert!(
        seen.windows(2).all(|w| w[0].bytes_done <= w[1].bytes_done && w[0].media_done <= w[1].media_done)
    );
    let last = seen[seen.len() - 1];
    assert_eq!((last.bytes_done, last.bytes_total), (bytes.len() as u64, Some(bytes.len() as u64)));
    assert!(last.media_done.0 > 20_000 * 90 - 3 * 90 * 40, "{}", last.media_done);
}

#[test]
fn progress_of_a_container_knows_the_media_time() {
    let bench = Bench::new();
    let source = bench.dir.path().join("film.mkv");
    ffmpeg::make(&source, 4, ffmpeg::H264);
    let mut seen: Vec<IngestProgress> = Vec::new();
    ingest(&bench.volume, &source, &bench.options, &mut |p| seen.push(*p)).unwrap();
    let last = seen[seen.len() - 1];
    assert_eq!((last.stage, last.bytes_total), (IngestStage::Committing, None));
    let total = last.media_total.unwrap();
    assert!(total.0.abs_diff(4 * 90_000) < 9000, "{total}");
    assert!(last.media_done.0.abs_diff(total.0) < 9000 && last.bytes_done > 0);
    assert!(seen.iter().any(|p| p.stage == IngestStage::Remuxing));
}

//! Splices of films that ffmpeg made, judged by ffmpeg and by our analyser.

use std::path::{Path, PathBuf};

use millrace_make::channel::{SpliceRun, SpliceSource, Splicer};
use millrace_media::ts_packet::PCR_MODULUS;
use millrace_ts::{Analyser, AnalyserOptions, Severity};

use crate::ingest_support::ffmpeg::{H264, frame_md5, make, run};

/// Splices files into one; the clock begins at `start`.
fn splice(files: &[&Path], start: u64, out: &Path) {
    let (mut splicer, mut spliced) = (Splicer::new(start), Vec::new());
    let mut take = |run: SpliceRun<'_>| spliced.extend_from_slice(run.bytes);
    for file in files {
        let (mut source, mut packets) = (SpliceSource::of_file(file).unwrap(), Vec::new());
        while source.read(&mut packets).unwrap() {
            splicer.push(&packets, &mut take).unwrap();
            packets.clear();
        }
        splicer.end(&mut take).unwrap();
    }
    std::fs::write(out, spliced).unwrap();
}

/// Findings that are faults.
fn faults(file: &Path) -> Vec<(&'static str, u64)> {
    let mut analyser = Analyser::new(AnalyserOptions::default());
    analyser.push(&std::fs::read(file).unwrap());
    let report = analyser.finish();
    let faults = report.checks.iter().filter(|count| count.severity == Severity::Fault && count.count > 0);
    faults.map(|count| (count.check, count.count)).collect()
}

/// ffmpeg's complaints about a file, decoded from beginning to end.
fn complaints(file: &Path) -> String {
    let done = run("ffmpeg", &["-nostdin", "-v", "error", "-i", file.to_str().unwrap(), "-f", "null", "-"]);
    String::from_utf8_lossy(&done.stderr).into_owned()
}

struct Films {
    dir: tempfile::TempDir,
    with_pictures_out_of_order: PathBuf,
    other_size: PathBuf,
}

/// Two films that share neither size, frame rate, start nor audio format.
fn films() -> Films {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one.ts"), dir.path().join("two.ts"));
    let mut args =
        vec!["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-g", "25", "-bf", "2"];
    args.extend(["-c:a", "aac", "-b:a", "96k", "-streamid", "0:300", "-streamid", "1:301"]);
    make(&one, 2, &args);
    let mut args = H264.to_vec();
    args.extend(["-s", "160x90", "-c:a", "aac", "-ac", "1", "-output_ts_offset", "5000"]);
    make(&two, 2, &args);
    Films { dir, with_pictures_out_of_order: one, other_size: two }
}

#[test]
fn splice_of_different_films_decodes_to_the_frames_of_both() {
    let films = films();
    let (one, two) = (&films.with_pictures_out_of_order, &films.other_size);
    for (name, start) in [("plain.ts", 0), ("wrap.ts", PCR_MODULUS - 27_000_000)] {
        let out = films.dir.path().join(name);
        splice(&[one, two, one], start, &out);
        assert_eq!(complaints(&out), "", "{name}");
        // ffmpeg writes the clock of the second film less often than the standard asks for; the splice adds nothing to that.
        assert_eq!((faults(one), faults(&out)), (vec![], faults(two)), "{name}");
        let video = |file: &Path| frame_md5(file, "0:v");
        // The decoder shows the pictures of the second film in the size of the first: only the number counts there.
        let (first, second) = (video(one), video(two));
        let spliced = video(&out);
        assert_eq!(spliced.len(), 2 * first.len() + second.len(), "{name}");
        assert_eq!(spliced[..first.len()], first[..], "{name}");
        assert_eq!(spliced[first.len() + second.len()..], first[..], "{name}");
        let audio = |file: &Path| frame_md5(file, "0:a").len();
        assert!(audio(&out) >= 2 * audio(one), "{name}: {} of {}", audio(&out), audio(one));
    }
}

#[test]
fn splice_of_the_same_film_has_all_frames_twice_and_even_times() {
    let films = films();
    let (one, out) = (&films.with_pictures_out_of_order, films.dir.path().join("twice.ts"));
    splice(&[one, one], 0, &out);
    for stream in ["0:v", "0:a"] {
        let (of_one, of_both) = (frame_md5(one, stream), frame_md5(&out, stream));
        assert_eq!(of_both.len(), 2 * of_one.len(), "{stream}");
    }
    let path = out.to_str().unwrap();
    let probed = run(
        "ffprobe",
        &["-v", "error", "-select_streams", "v", "-show_entries", "frame=pts", "-of", "csv=p=0", path],
    );
    let times = String::from_utf8(probed.stdout).unwrap();
    let times: Vec<i64> = times.lines().filter_map(|line| line.trim_end_matches(',').parse().ok()).collect();
    let steps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(steps.len(), 99);
    // The sound may end up to a frame of AAC after the pictures.
    let (before, seam, after) = (&steps[..49], steps[49], &steps[50..]);
    assert!(before.iter().chain(after).all(|&step| step == 3600), "{steps:?}");
    assert!((3600..=3600 + 2 * 2090).contains(&seam), "{seam}");
}

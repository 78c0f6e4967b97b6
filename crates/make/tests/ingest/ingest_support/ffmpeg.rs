//! Real titles, made by the ffmpeg program. Tests that need it fail with the remedy where it is missing.

use std::path::Path;
use std::process::{Command, Output};

/// Runs ffmpeg or ffprobe; panics with its messages if it fails.
pub fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).stdin(std::process::Stdio::null()).output().unwrap_or_else(
        |error| panic!("{program}: {error}; these tests need ffmpeg: apt-get install ffmpeg"),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?} failed: {said}");
    output
}

/// Makes `out` from a test picture and a tone of `secs` seconds with these codec and container arguments.
pub fn make(out: &Path, secs: u32, args: &[&str]) {
    let picture = format!("testsrc=size=320x180:rate=25:duration={secs}");
    let tone = format!("sine=frequency=440:duration={secs}");
    let mut all =
        vec!["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &tone];
    all.extend(args);
    let out = out.to_str().expect("test paths are UTF-8");
    all.push(out);
    run("ffmpeg", &all);
}

pub const H264: &[&str] = &[
    "-c:v",
    "libx264",
    "-preset",
    "ultrafast",
    "-pix_fmt",
    "yuv420p",
    "-g",
    "25",
    "-keyint_min",
    "25",
    "-sc_threshold",
    "0",
];

/// One checksum for each picture and each piece of sound, as decoded.
pub fn frame_md5(file: &Path, stream: &str) -> Vec<String> {
    let path = file.to_str().expect("test paths are UTF-8");
    let args = [
        "-nostdin",
        "-v",
        "error",
        "-i",
        path,
        "-map",
        stream,
        "-vsync",
        "passthrough",
        "-f",
        "framemd5",
        "-",
    ];
    let text = String::from_utf8(run("ffmpeg", &args).stdout).expect("framemd5 is text");
    let frames = text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.rsplit(',').next());
    frames.map(|md5| md5.trim().to_owned()).collect()
}

/// One value of ffprobe's, of the whole file.
pub fn probe(file: &Path, args: &[&str]) -> String {
    let path = file.to_str().expect("test paths are UTF-8");
    let mut all = vec!["-v", "error", "-of", "csv=p=0"];
    all.extend(args);
    all.push(path);
    String::from_utf8(run("ffprobe", &all).stdout).expect("ffprobe prints text").trim().to_owned()
}

/// Byte offsets of the packets that ffprobe calls key frames of the first picture stream.
pub fn key_frames(file: &Path) -> Vec<u64> {
    let text = probe(file, &["-select_streams", "v:0", "-show_entries", "packet=pos,flags"]);
    text.lines()
        .filter_map(|line| {
            let (pos, flags) = line.trim_end_matches(',').split_once(',')?;
            if flags.starts_with('K') { pos.parse().ok() } else { None }
        })
        .collect()
}

/// Length in seconds.
pub fn duration(file: &Path) -> f64 {
    probe(file, &["-show_entries", "format=duration"]).parse().expect("a duration")
}

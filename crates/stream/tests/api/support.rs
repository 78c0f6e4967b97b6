//! Media and noise for tests.
#![allow(unreachable_pub)]

use std::process::Command;

/// Noise, the same each time.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Makes a transport stream of `seconds` seconds with video and audio, 2 Mb/s.
pub fn film(seconds: u32) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".ts").tempfile().unwrap();
    make(
        &["-f", "lavfi", "-i", &format!("testsrc2=s=320x240:r=25:d={seconds}")],
        &[
            "-f",
            "lavfi",
            "-i",
            &format!("sine=d={seconds}"),
            "-c:v",
            "mpeg2video",
            "-b:v",
            "2M",
            "-g",
            "12",
            "-c:a",
            "mp2",
            "-f",
            "mpegts",
        ],
        &file,
    );
    file
}

/// Makes audio of `seconds` seconds, 128 kb/s.
pub fn sound(seconds: u32) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".mp2").tempfile().unwrap();
    make(
        &["-f", "lavfi", "-i", &format!("sine=d={seconds}")],
        &["-c:a", "mp2", "-b:a", "128k", "-f", "mp2"],
        &file,
    );
    file
}

fn make(inputs: &[&str], options: &[&str], file: &tempfile::NamedTempFile) {
    let status = Command::new("ffmpeg")
        .args(["-v", "error", "-y"])
        .args(inputs)
        .args(options)
        .arg(file.path())
        .status();
    assert!(status.expect("ffmpeg").success());
}

/// Returns whether a program is installed; reports that a test is left out if not.
pub fn has(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(program).is_file());
    if !found {
        println!("skipped in part: {program} is not installed");
    }
    found
}

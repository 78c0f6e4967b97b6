//! Requests by HTTP, and their answers by length, on connections of a test's own.
#![allow(unreachable_pub)]

use std::io::{Read, Write};
use std::ops::Range;
use std::process::Command;

use crate::support::{header, read_head};

/// Asks, and returns head and body of the answer.
pub fn get(stream: &mut (impl Read + Write), path: &str, more: &str) -> (String, Vec<u8>) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").unwrap();
    answer(stream)
}

/// The next answer.
pub fn answer(stream: &mut impl Read) -> (String, Vec<u8>) {
    let head = read_head(stream);
    let bytes = header(&head, "Content-Length").map_or(0, |bytes| bytes.parse().expect("a number"));
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).expect("a whole body");
    (head, body)
}

/// The field that asks for these bytes.
pub fn range(bytes: &Range<usize>) -> String {
    format!("Range: bytes={}-{}\r\n", bytes.start, bytes.end - 1)
}

/// MD5 of each decoded picture, as ffmpeg sees them.
pub fn frames(input: &str) -> Vec<String> {
    frames_of(&[], input)
}

/// The same by RTSP with a transport.
pub fn frames_by(transport: &str, url: &str) -> Vec<String> {
    frames_of(&["-rtsp_transport", transport], url)
}

fn frames_of(options: &[&str], input: &str) -> Vec<String> {
    // A player that waits for a reply that never comes would hang the test.
    let mut ffmpeg = Command::new("timeout");
    ffmpeg.args(["120", "ffmpeg", "-nostdin", "-v", "error"]).args(options);
    ffmpeg.args(["-i", input, "-map", "0:v", "-f", "framemd5", "-"]);
    let done = ffmpeg.output().expect("ffmpeg can be started");
    assert!(done.status.success(), "{input}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    // Without time stamps: the last field is the sum.
    let sums = text.lines().filter(|line| !line.starts_with('#'));
    sums.filter_map(|line| line.rsplit(',').next()).map(|sum| sum.trim().to_owned()).collect()
}

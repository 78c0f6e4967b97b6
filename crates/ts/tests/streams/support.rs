//! Shared by the tests: streams made by ffmpeg, and ways to damage them.
#![allow(unreachable_pub)]

use std::process::Command;
use std::sync::OnceLock;

use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport, Check};

/// A packet.
pub const PACKET: usize = 188;
/// PIDs as ffmpeg chooses them.
pub const PMT: u16 = 4096;
pub const VIDEO: u16 = 256;
pub const AUDIO: u16 = 257;

/// What ffmpeg makes with these arguments behind its inputs: `secs` of pictures and of a tone.
pub fn make(secs: u32, args: &[&str]) -> Vec<u8> {
    let (picture, tone) =
        (format!("testsrc2=s=160x120:r=25:d={secs}"), format!("sine=f=440:r=48000:d={secs}"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ts");
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-v", "error", "-f", "lavfi", "-i", &picture])
        .args(["-f", "lavfi", "-i", &tone])
        .args(["-threads", "1", "-preset", "ultrafast", "-g", "25", "-pix_fmt", "yuv420p"])
        .args(args)
        .args(["-f", "mpegts"])
        .arg(&path)
        .output()
        .expect("ffmpeg can be started; install it (Debian: apt-get install ffmpeg)");
    assert!(output.status.success(), "ffmpeg {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(path).expect("ffmpeg wrote a file")
}

/// A constant rate with H.264 and AAC.
pub const CBR: &[&str] = &[
    "-c:v",
    "libx264",
    "-bf",
    "2",
    "-b:v",
    "500k",
    "-maxrate",
    "500k",
    "-bufsize",
    "250k",
    "-c:a",
    "aac",
    "-b:a",
    "128k",
    "-muxrate",
    "1M",
    "-pcr_period",
    "20",
];
/// A variable rate.
pub const VBR: &[&str] = &["-c:v", "libx264", "-bf", "2", "-c:a", "aac", "-b:a", "64k", "-pcr_period", "20"];
/// The older codecs.
pub const MPEG2: &[&str] = &[
    "-c:v",
    "mpeg2video",
    "-bf",
    "2",
    "-b:v",
    "800k",
    "-maxrate",
    "800k",
    "-bufsize",
    "400k",
    "-c:a",
    "mp2",
    "-muxrate",
    "1500k",
];
/// Two programmes of one film each.
pub const TWO: &[&str] = &[
    "-map",
    "0:v",
    "-map",
    "1:a",
    "-map",
    "0:v",
    "-map",
    "1:a",
    "-c:v",
    "libx264",
    "-c:a",
    "aac",
    "-program",
    "title=one:st=0:st=1",
    "-program",
    "title=two:st=2:st=3",
    "-pcr_period",
    "20",
];

/// Six seconds of [`CBR`], made once.
pub fn cbr() -> Vec<u8> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| make(6, CBR)).clone()
}

/// Six seconds of [`VBR`], made once.
pub fn vbr() -> Vec<u8> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| make(6, VBR)).clone()
}

pub fn analyse_with(options: AnalyserOptions, stream: &[u8]) -> AnalysisReport {
    let mut analyser = Analyser::new(options);
    analyser.push(stream);
    analyser.finish()
}

pub fn analyse(stream: &[u8]) -> AnalysisReport {
    analyse_with(AnalyserOptions::default(), stream)
}

/// Every check with a fault, by its name, and how often.
pub fn faults(report: &AnalysisReport) -> Vec<(&'static str, u64)> {
    let is_fault = |check: &&Check| check.severity() == millrace_ts::Severity::Fault;
    let found = Check::ALL.iter().filter(is_fault).map(|check| (check.id(), report.count(*check)));
    found.filter(|(_, count)| *count > 0).collect()
}

pub fn pid(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[1] & 0x1f, packet[2]])
}

pub fn starts(packet: &[u8]) -> bool {
    packet[1] & 0x40 != 0
}

/// Where the payload begins.
pub fn payload_at(packet: &[u8]) -> usize {
    if packet[3] & 0x20 != 0 { 5 + usize::from(packet[4]) } else { 4 }
}

pub fn packets(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    stream.chunks_exact(PACKET)
}

pub fn packets_mut(stream: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    stream.chunks_exact_mut(PACKET)
}

/// Numbers of the packets that `is` chooses.
pub fn places(stream: &[u8], is: impl Fn(&[u8]) -> bool) -> Vec<usize> {
    packets(stream).enumerate().filter(|(_, packet)| is(packet)).map(|(number, _)| number).collect()
}

/// Leaves packets out, by their numbers.
pub fn without(stream: &[u8], gone: &[usize]) -> Vec<u8> {
    let kept = packets(stream).enumerate().filter(|(number, _)| !gone.contains(number));
    kept.flat_map(|(_, packet)| packet.iter().copied()).collect()
}

/// Gives the packets of a PID counters that follow.
pub fn renumber(stream: &mut [u8], of: u16) {
    let mut counter = 0u8;
    for packet in packets_mut(stream).filter(|packet| pid(packet) == of) {
        counter = counter.wrapping_add(packet[3] >> 4 & 1);
        packet[3] = packet[3] & 0xf0 | counter & 0x0f;
    }
}

pub fn pcr(packet: &[u8]) -> Option<u64> {
    if packet[3] & 0x20 == 0 || packet[4] < 7 || packet[5] & 0x10 == 0 {
        return None;
    }
    let base = u64::from(u32::from_be_bytes([packet[6], packet[7], packet[8], packet[9]])) << 1;
    Some((base | u64::from(packet[10] >> 7)) * 300 + (u64::from(packet[10] & 1) << 8) + u64::from(packet[11]))
}

pub fn set_pcr(packet: &mut [u8], value: u64) {
    let value = value % (300 << 33);
    let (base, extension) = (value / 300, value % 300);
    packet[6..10].copy_from_slice(&((base >> 1) as u32).to_be_bytes());
    packet[10] = ((base & 1) as u8) << 7 | 0x7e | (extension >> 8) as u8;
    packet[11] = extension as u8;
}

/// Where the time stamps of a PES packet stand that begins here, and how many: PTS, then DTS.
pub fn stamps_at(packet: &[u8]) -> Option<(usize, usize)> {
    let at = payload_at(packet);
    if !starts(packet) || packet.get(at..at + 3)? != [0, 0, 1] {
        return None;
    }
    Some((at + 9, usize::from(packet[at + 7] >> 7) + usize::from(packet[at + 7] >> 6 & 1)))
}

pub fn stamp(bytes: &[u8]) -> u64 {
    let b: Vec<u64> = bytes[..5].iter().map(|byte| u64::from(*byte)).collect();
    (b[0] >> 1 & 7) << 30 | b[1] << 22 | b[2] >> 1 << 15 | b[3] << 7 | b[4] >> 1
}

pub fn set_stamp(bytes: &mut [u8], value: u64) {
    bytes[0] = bytes[0] & 0xf1 | (value >> 29) as u8 & 0x0e;
    bytes[1] = (value >> 22) as u8;
    bytes[2] = (value >> 14) as u8 | 1;
    bytes[3] = (value >> 7) as u8;
    bytes[4] = (value << 1) as u8 | 1;
}

/// Moves the time stamps of a packet by `ticks` of 90 kHz.
pub fn shift_stamps(packet: &mut [u8], ticks: i64) {
    let Some((at, count)) = stamps_at(packet) else { return };
    for at in (0..count).map(|n| at + 5 * n) {
        let value = (stamp(&packet[at..]) as i64 + ticks).rem_euclid(1 << 33) as u64;
        set_stamp(&mut packet[at..], value);
    }
}

/// Moves all time from a packet on.
pub fn shift(stream: &mut [u8], from: usize, ticks: i64) {
    for packet in packets_mut(stream).skip(from) {
        if let Some(value) = pcr(packet) {
            set_pcr(packet, (value as i64 + ticks * 300).rem_euclid(300 << 33) as u64);
        }
        shift_stamps(packet, ticks);
    }
}

/// CRC of sections.
pub fn crc32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 24, |crc, _| {
            if crc & 0x8000_0000 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 }
        })
    })
}

/// Changes the section that begins in a packet and gives it a right CRC.
pub fn edit_section(packet: &mut [u8], edit: impl FnOnce(&mut [u8])) {
    let at = payload_at(packet);
    let at = at + 1 + usize::from(packet[at]);
    let length = 3 + (usize::from(packet[at + 1] & 0x0f) << 8 | usize::from(packet[at + 2]));
    let section = &mut packet[at..at + length];
    edit(section);
    let crc = crc32(&section[..length - 4]).to_be_bytes();
    section[length - 4..].copy_from_slice(&crc);
}

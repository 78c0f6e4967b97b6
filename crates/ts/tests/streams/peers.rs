//! What others see in the same streams: ffprobe's list of packets, and tstools.

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::*;
use millrace_ts::Check;
use serde_json::Value;

/// PTS and DTS of a packet, where it has them.
type Stamps = (Option<u64>, Option<u64>);

/// PTS and DTS of each PES packet, by PID, as ffprobe reads them.
fn ffprobe(path: &std::path::Path) -> BTreeMap<u16, Vec<Stamps>> {
    let done = Command::new("ffprobe")
        .args(["-v", "error", "-fflags", "+noparse+nofillin", "-of", "json"])
        .args(["-show_entries", "stream=index,id:packet=stream_index,pts,dts"])
        .arg(path)
        .output()
        .expect("ffprobe can be started");
    let found: Value = serde_json::from_slice(&done.stdout).expect("ffprobe prints JSON");
    let id = |stream: &Value| {
        let text = stream["id"].as_str().unwrap().trim_start_matches("0x").to_owned();
        (stream["index"].as_u64().unwrap(), u16::from_str_radix(&text, 16).unwrap())
    };
    let ids: BTreeMap<u64, u16> = found["streams"].as_array().unwrap().iter().map(id).collect();
    let mut packets: BTreeMap<u16, Vec<_>> = BTreeMap::new();
    for packet in found["packets"].as_array().unwrap() {
        let pid = ids[&packet["stream_index"].as_u64().unwrap()];
        packets.entry(pid).or_default().push((packet["pts"].as_u64(), packet["dts"].as_u64()));
    }
    packets
}

/// Longest distance from one PTS to the next higher.
fn longest(packets: &[(Option<u64>, Option<u64>)]) -> u64 {
    let mut all: Vec<u64> = packets.iter().filter_map(|(pts, _)| *pts).collect();
    all.sort_unstable();
    all.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

#[test]
fn ffprobe_sees_the_same_packets_and_times() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stream.ts");
    let healthy = cbr();
    let video = places(&healthy, |packet| pid(packet) == VIDEO && starts(packet));
    let pats = places(&healthy, |packet| pid(packet) == 0);
    // A whole picture is missing.
    let gone: Vec<usize> = (video[50]..video[51]).filter(|n| pid(&healthy[n * PACKET..]) == VIDEO).collect();
    for (what, stream) in [
        ("constant rate", healthy.clone()),
        ("variable rate", vbr()),
        ("MPEG-2", make(6, MPEG2)),
        ("two programmes", make(6, TWO)),
        ("without a picture", without(&healthy, &gone)),
        // Starts at a PAT: once ffprobe has found the tables, it also reads the packets before
        // them.
        ("without its first third", healthy[pats[pats.len() / 3] * PACKET..].to_vec()),
    ] {
        std::fs::write(&path, &stream).unwrap();
        let (report, theirs) = (analyse(&stream), ffprobe(&path));
        let ours = report.pids.iter().filter(|pid| pid.pes_packets > 0);
        assert_eq!(ours.clone().count(), theirs.len(), "{what}: {report}");
        for pid in ours {
            let packets = &theirs[&pid.pid];
            let name = format!("{what}, PID {}", pid.pid);
            assert_eq!(pid.pes_packets, packets.len() as u64, "{name}");
            assert_eq!(
                pid.pes_with_pts,
                packets.iter().filter(|(pts, _)| pts.is_some()).count() as u64,
                "{name}"
            );
            let (first, last) = (packets[0], packets[packets.len() - 1]);
            assert_eq!((pid.first_pts, pid.first_dts), first, "{name}");
            assert_eq!((pid.last_pts, pid.last_dts), last, "{name}");
            let ticks = pid.longest_pts_gap_ns.unwrap() * 9 / 100_000;
            assert!(ticks.abs_diff(longest(packets)) <= 1, "{name}: {ticks} and {}", longest(packets));
        }
    }
}

/// Returns the output of a tstools program for a stream; `None` if it is not installed.
fn tstools(program: &str, args: &[&str], path: &std::path::Path) -> Option<String> {
    match Command::new(program).args(args).arg(path).output() {
        Ok(done) => Some(String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()),
        Err(_) => {
            eprintln!("skipped: {program} is not installed (Debian: apt-get install tstools)");
            None
        }
    }
}

/// The number behind some words, the first time that they stand behind `from`.
fn number(text: &str, from: &str, words: &str) -> u64 {
    let rest = &text[text.find(from).unwrap_or_else(|| panic!("no {from:?} in {text}"))..];
    let rest = &rest[rest.find(words).unwrap_or_else(|| panic!("no {words:?} in {rest}")) + words.len()..];
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("no number behind {words:?} in {rest}"))
}

#[test]
fn tstools_see_the_same_streams() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stream.ts");
    for (stream, is_constant) in
        [(cbr(), true), (vbr(), false), (make(6, MPEG2), true), (make(6, TWO), false)]
    {
        std::fs::write(&path, &stream).unwrap();
        let report = analyse(&stream);
        let Some(info) = tstools("tsinfo", &[], &path) else { return };
        // It looks at the first programme only.
        let first = report.programs[0].program;
        for program in &report.programs {
            let pids =
                format!("Program {} -> PID {:04x} ({:4})", program.program, program.pmt_pid, program.pmt_pid);
            assert!(info.contains(&pids), "{pids} in {info}");
        }
        for pid in report.pids.iter().filter(|pid| pid.program == Some(first)) {
            assert!(info.contains(&format!("PID {:04x} ({:4})", pid.pid, pid.pid)), "{}: {info}", pid.pid);
        }
        let Some(timing) = tstools("tsreport", &["-b"], &path) else { return };
        for pid in report.pids.iter().filter(|pid| pid.program == Some(first)) {
            let from = format!("PID {:04x} ({}), ", pid.pid, pid.pid);
            let from = &timing[timing.rfind(&from).unwrap_or_else(|| panic!("no {from:?} in {timing}"))..];
            let stamps = |words| Some(number(from, words, words));
            assert_eq!(
                (pid.first_pts, pid.first_dts),
                (stamps("First PTS"), stamps("First DTS")),
                "{timing}"
            );
            assert_eq!(number(from, "First DTS", "last"), pid.last_dts.unwrap(), "{timing}");
            if pid.pcrs == 0 {
                continue;
            }
            assert_eq!(number(&timing, "PCRs found", ":"), pid.pcrs, "{timing}");
            let gap = number(&timing, "Max gap", ":");
            assert!(gap.abs_diff(pid.longest_pcr_gap_ns.unwrap() * 9 / 100_000) <= 1, "{gap}: {report}");
            let is_even = timing.contains("Linear PCR prediction errors: min=0t, max=0t");
            assert_eq!(is_even, is_constant, "{timing}");
            let rate = number(&timing, "Overall stream rate=", "=");
            assert!(!is_constant || rate.abs_diff(report.bits_per_s.unwrap()) < 100, "{rate}: {report}");
        }
    }
}

#[test]
fn tstools_see_the_same_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stream.ts");
    let stream = cbr();
    // Three packets are missing, one comes twice, and half a second has no clock references.
    let video = places(&stream, |packet| pid(packet) == VIDEO && !starts(packet) && pcr(packet).is_none());
    let gone: Vec<usize> = [500, 600, 700].iter().map(|n| video[*n]).collect();
    let mut damaged = stream[..(video[100] + 1) * PACKET].to_vec();
    damaged.extend_from_slice(&without(&stream, &gone)[video[100] * PACKET..]);
    for place in places(&damaged, |packet| pcr(packet).is_some()).into_iter().skip(120).take(25) {
        damaged[place * PACKET + 5] &= !0x10;
    }
    std::fs::write(&path, &damaged).unwrap();
    let report = analyse(&damaged);
    assert_eq!((report.count(Check::Continuity), report.count(Check::PcrRepetition)), (3, 1), "{report}");
    let Some(timing) = tstools("tsreport", &["-b"], &path) else { return };
    assert_eq!(number(&timing, "Bad (>.1s) gaps", ":"), 1, "{timing}");
    assert_eq!(number(&timing, "### CC error", "*"), 3, "{timing}");
}

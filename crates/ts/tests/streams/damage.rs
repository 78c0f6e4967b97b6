//! Real streams: healthy ones have no findings, and each damage is found as itself and as nothing
//! else.

use crate::support::*;
use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport, AnalysisVerdict, Check, FindingKind, Rate};

/// Packets of a second of the stream with a constant rate.
const SECOND: usize = 1_000_000 / 8 / PACKET;

#[track_caller]
fn assert_faults(stream: &[u8], expected: &[(&str, u64)]) -> AnalysisReport {
    let report = analyse(stream);
    assert_eq!(faults(&report), expected, "{report}");
    report
}

#[test]
fn healthy_streams_are_clean() {
    let made: [(&str, &[&str]); 6] = [
        ("constant rate", CBR),
        ("variable rate", VBR),
        ("MPEG-2 and mp2", MPEG2),
        ("two programmes", TWO),
        ("tables rarely", &["-c:v", "libx264", "-c:a", "aac", "-pat_period", "0.45", "-pcr_period", "60"]),
        (
            "each PES packet of sound has one frame",
            &["-c:v", "libx264", "-c:a", "aac", "-pes_payload_size", "0"],
        ),
    ];
    for (what, args) in made {
        let report = analyse(&make(6, args));
        assert_eq!(report.verdict, AnalysisVerdict::Clean, "{what}: {report}");
        let seconds = report.duration_ns.unwrap() as f64 / 1e9;
        assert!((5.0..7.5).contains(&seconds), "{what}: {seconds} s\n{report}");
        assert!(report.pids.iter().all(|pid| pid.what != "not in any PMT"), "{what}: {report}");
        let is_constant = matches!(report.rate, Rate::Constant { worst_ns } if worst_ns.abs() <= 100);
        assert_eq!(is_constant, args.contains(&"-muxrate"), "{what}: {report}");
        let said = report.checks.iter().find(|check| check.check == "pcr_accuracy").unwrap();
        assert_eq!(said.not_applicable.is_none(), is_constant, "{what}: {report}");
    }
}

#[test]
fn programmes_and_rates_are_as_they_were_made() {
    let report = analyse(&make(6, TWO));
    assert_eq!(report.programs.len(), 2, "{report}");
    let clocks: Vec<_> = report.programs.iter().map(|program| program.pcr_pid).collect();
    assert_eq!(clocks, [Some(256), Some(258)], "{report}");
    assert_eq!(report.pids.iter().filter(|pid| pid.pes_packets > 10).count(), 4, "{report}");
    let rate = analyse(&cbr()).bits_per_s.unwrap();
    assert!(rate.abs_diff(1_000_000) < 100, "{rate}");
}

#[test]
fn continuity_check_reports_missing_and_repeated_packets() {
    let stream = cbr();
    let videos = places(&stream, |packet| pid(packet) == VIDEO && !starts(packet));
    let lost = videos[videos.len() / 2];
    let report = assert_faults(&without(&stream, &[lost]), &[("continuity", 1)]);
    let finding = report.findings.iter().find(|finding| finding.what.check() == Check::Continuity).unwrap();
    assert_eq!((finding.pid, finding.byte % PACKET as u64), (Some(VIDEO), 0));
    assert!(finding.packet >= lost as u64 && finding.packet < lost as u64 + 30, "{finding}");
    let (time, place) = (finding.time_ns.unwrap() as f64, finding.packet as f64 * 1504.0 * 1e3);
    assert!((time - place).abs() < 2e6, "the rate is 1 Mb/s: {finding}");
    // Once more is allowed, twice more is not, and other bytes under the same number are not.
    let again = |times: usize| {
        let mut bytes = stream[..lost * PACKET].to_vec();
        (0..=times).for_each(|_| bytes.extend_from_slice(&stream[lost * PACKET..][..PACKET]));
        bytes.extend_from_slice(&stream[(lost + 1) * PACKET..]);
        bytes
    };
    // The packet more moves all clock references behind it by one packet.
    let found = |stream: &[u8]| analyse(stream).count(Check::Continuity);
    assert_eq!((found(&again(1)), found(&again(2))), (0, 1));
    let mut other = again(1);
    other[(lost + 1) * PACKET + 100] ^= 1;
    assert_eq!(found(&other), 1);
    // A packet without payload counts nothing.
    let mut stream = stream;
    let packet = &mut stream[lost * PACKET..][..PACKET];
    packet[3] = packet[3] & 0x0f | 0x20;
    (packet[4], packet[5]) = (183, 0);
    assert_faults(&stream, &[("continuity", 1)]);
    // With the sign every counter is right.
    let mut stream = cbr();
    let jump = places(&stream, |packet| pid(packet) == VIDEO && packet[3] & 0x30 == 0x30 && packet[4] > 0);
    stream[jump[5] * PACKET + 5] |= 0x80;
    packets_mut(&mut stream).skip(jump[5]).filter(|p| pid(p) == VIDEO).for_each(|packet| {
        packet[3] = packet[3] & 0xf0 | (packet[3] + 5) & 0x0f;
    });
    assert_faults(&stream, &[]);
}

#[test]
fn sync_bytes() {
    let stream = cbr();
    let null = places(&stream, |packet| pid(packet) == 0x1fff)[100];
    let mut wrong = stream.clone();
    wrong[null * PACKET] = 0x46;
    assert_faults(&wrong, &[("sync_byte", 1)]);
    wrong[(null + 1) * PACKET] = 0x46;
    let report = assert_faults(&wrong, &[("sync_loss", 1)]);
    assert_eq!(report.packets as usize, stream.len() / PACKET - 2);
    // Bytes too many, and bytes too few.
    let mut more = stream.clone();
    more.splice(null * PACKET..null * PACKET, [0x55; 100]);
    assert_faults(&more, &[("sync_loss", 1)]);
    let mut less = stream.clone();
    less.drain(null * PACKET + 50..null * PACKET + 90);
    assert_faults(&less, &[("sync_loss", 1)]);
    assert_faults(&stream[77..], &[("sync_loss", 1)]);
    assert_faults(&stream[..stream.len() - 60], &[("cut", 1)]);
    for nothing in [&[][..], &[0x55; 100_000], b"\x47"] {
        assert_eq!(analyse(nothing).verdict, AnalysisVerdict::NoStream);
    }
    // One packet alone is one.
    assert_eq!(analyse(&stream[..PACKET]).packets, 1);
}

#[test]
fn headers_that_cannot_be() {
    let stream = cbr();
    let at = places(&stream, |packet| pid(packet) == VIDEO && !starts(packet) && packet[3] & 0x20 == 0)[40]
        * PACKET;
    let mut marked = stream.clone();
    marked[at + 1] |= 0x80;
    let report = assert_faults(&marked, &[("transport_error", 1)]);
    assert_eq!(report.count(Check::Lost), 0);
    let mut reserved = stream.clone();
    reserved[at + 3] &= 0xcf;
    assert_faults(&reserved, &[("continuity", 1), ("packet_header", 1)]);
    let mut long = stream;
    long[at + 3] |= 0x20;
    long[at + 4] = 184;
    assert_eq!(analyse(&long).count(Check::PacketHeader), 1);
}

/// Leaves out what `is` chooses between two seconds and another, without a break in the counters.
fn hole(stream: &[u8], of: u16, seconds: std::ops::Range<f64>) -> Vec<u8> {
    let place = |second: f64| (second * SECOND as f64) as usize;
    let mut stream = stream.to_vec();
    for packet in packets_mut(&mut stream).take(place(seconds.end)).skip(place(seconds.start)) {
        if pid(packet) == of {
            // Stuffing in its place, so that the rate stays.
            packet[1..3].copy_from_slice(&[0x1f, 0xff]);
        }
    }
    renumber(&mut stream, of);
    stream
}

#[test]
fn tables_that_are_missing() {
    let stream = cbr();
    for (of, check) in [(0, "pat"), (PMT, "pmt")] {
        let report = assert_faults(&hole(&stream, of, 2.0..3.0), &[(check, 1)]);
        let text = report.findings.iter().find(|f| f.what.check().id() == check).unwrap().to_string();
        assert!(text.contains("for 1"), "{text}");
        assert_faults(&hole(&stream, of, 2.0..2.3), &[]);
        // At the end, and from the beginning.
        assert_faults(&hole(&stream, of, 5.0..60.0), &[(check, 1)]);
    }
    assert_faults(&hole(&stream, 0, 0.0..1.0), &[("pat", 1)]);
}

#[test]
fn tables_that_are_wrong() {
    let stream = cbr();
    let place = |of: u16| places(&stream, |packet| pid(packet) == of)[10] * PACKET;
    for of in [0, 17, PMT] {
        let mut stream = stream.clone();
        stream[place(of) + 14] ^= 1;
        assert_faults(&stream, &[("crc", 1)]);
    }
    let edited = |of: u16, edit: fn(&mut [u8])| {
        let mut stream = stream.clone();
        edit_section(&mut stream[place(of)..][..PACKET], edit);
        stream
    };
    assert_faults(&edited(0, |section| section[0] = 0x42), &[("pat", 1)]);
    // Another stream type, for once, and back.
    let report = assert_faults(&edited(PMT, |section| section[12] = 0x24), &[("table_version", 2)]);
    assert!(report.findings.iter().any(|finding| finding.pid == Some(PMT)), "{report}");
    // From now on, with a new version.
    let mut stream = cbr();
    packets_mut(&mut stream).filter(|packet| pid(packet) == PMT).skip(10).for_each(|packet| {
        edit_section(packet, |section| section[5] = section[5] & 0xc1 | 7 << 1);
    });
    let report = assert_faults(&stream, &[]);
    assert_eq!(report.count(Check::NewTable), 1, "{report}");
    // A pointer that leads nowhere.
    let mut stream = cbr();
    stream[place(0) + 4] = 250;
    assert_faults(&stream, &[("section", 1)]);
}

#[test]
fn scrambled_packets() {
    let scramble = |of: u16| {
        let mut stream = cbr();
        packets_mut(&mut stream)
            .filter(|packet| pid(packet) == of)
            .skip(3)
            .for_each(|packet| packet[3] |= 0x80);
        stream
    };
    assert_faults(&scramble(AUDIO), &[("cat", 1)]);
    let report = analyse(&scramble(0));
    assert!(report.count(Check::Pat) > 10 && report.count(Check::Cat) == 1, "{report}");
    // With a CAT it is in order.
    let mut stream = scramble(AUDIO);
    let mut cat = [0xff; PACKET];
    cat[..5].copy_from_slice(&[0x47, 0x40, 1, 0x10, 0]);
    cat[5..17].copy_from_slice(&[1, 0xb0, 9, 0xff, 0xff, 0xc1, 0, 0, 0, 0, 0, 0]);
    edit_section(&mut cat, |_| {});
    let null = places(&stream, |packet| pid(packet) == 0x1fff)[5] * PACKET;
    stream[null..null + PACKET].copy_from_slice(&cat);
    assert_faults(&stream, &[]);
    stream[null + 5] = 3;
    edit_section(&mut stream[null..null + PACKET], |_| {});
    assert_faults(&stream, &[("cat", 2)]);
}

#[test]
fn streams_that_stay_away() {
    let stream = cbr();
    let begins = |second: f64| {
        let from = (second * SECOND as f64) as usize;
        let place =
            packets(&stream).enumerate().skip(from).find(|(_, p)| pid(p) == AUDIO && starts(p)).unwrap().0;
        (place as f64 + 0.1) / SECOND as f64
    };
    // From one PES packet to another, so that none is cut.
    let options = AnalyserOptions { pid_interval_ticks: 27_000_000, ..AnalyserOptions::default() };
    let away = hole(&stream, AUDIO, begins(2.0)..begins(4.0));
    let report = analyse_with(options, &away);
    assert_eq!(faults(&report), [("pid", 1), ("pts_repetition", 1)], "{report}");
    let gap = report.pids.iter().find(|found| found.pid == AUDIO).unwrap().longest_pts_gap_ns.unwrap();
    assert!((2_000_000_000..2_400_000_000).contains(&gap), "{gap}");
    assert_faults(&hole(&stream, AUDIO, begins(2.0)..begins(2.2)), &[]);
    // The limit is 5 s unless configured otherwise.
    assert_faults(&hole(&stream, AUDIO, 0.0..60.0), &[("pid", 1)]);
    assert_faults(&away, &[("pts_repetition", 1)]);
}

#[test]
fn data_that_were_lost_on_the_way_are_no_fault() {
    let stream = cbr();
    let gaps = (0..stream.len().div_ceil(7 * PACKET)).filter(|number| number % 50 == 21).count() as u64;
    let mut analyser = Analyser::default();
    for (number, datagram) in stream.chunks(7 * PACKET).enumerate() {
        match number % 50 {
            20 => {}
            21 => {
                analyser.lost();
                analyser.push_packets(datagram);
            }
            _ => analyser.push_packets(datagram),
        }
    }
    let report = analyser.finish();
    assert!(faults(&report).is_empty(), "{report}");
    assert_eq!((report.verdict, report.count(Check::Lost)), (AnalysisVerdict::Incomplete, gaps), "{report}");
    assert!(report.breaks_at_gaps >= gaps, "{report}");
    // A second of it, and places in any order.
    let second = |from: usize| &stream[from * SECOND * PACKET..(from + 1) * SECOND * PACKET];
    let mut analyser = Analyser::default();
    for (number, from) in [0, 2, 1, 4, 3].into_iter().enumerate() {
        if number == 1 {
            analyser.lost()
        } else {
            analyser.jumped()
        }
        analyser.push_packets(second(from));
    }
    let report = analyser.finish();
    assert!(faults(&report).is_empty(), "{report}");
    // However much is missing, how long a table has been away is counted from behind the gap.
    for packets in 0..SECOND / 8 {
        let mut analyser = Analyser::default();
        analyser.push_packets(&second(0)[..(SECOND - packets) * PACKET]);
        analyser.lost();
        analyser.push_packets(second(4));
        let report = analyser.finish();
        assert!(faults(&report).is_empty(), "{report}");
    }
    // Offsets continue from the data taken before, even where packets must be searched for.
    let mut analyser = Analyser::default();
    analyser.push(&second(0)[..100]);
    analyser.lost();
    analyser.push(second(0));
    analyser.lost();
    analyser.push(&[0; 50]);
    analyser.push(second(3));
    let report = analyser.finish();
    let skipped =
        report.findings.iter().find(|finding| finding.what.check() == Check::SyncLoss).expect("50 bytes");
    assert_eq!(
        (skipped.what, skipped.byte),
        (FindingKind::Skipped { bytes: 50 }, 100 + (SECOND * PACKET) as u64)
    );
    // Other faults are still found.
    let mut analyser = Analyser::default();
    analyser.push_packets(second(0));
    analyser.lost();
    analyser.push_packets(&hole(second(3), 0, 0.0..0.9));
    let report = analyser.finish();
    assert_eq!(faults(&report), [("pat", 1)], "{report}");
}

#[test]
fn open_groups_without_parameter_sets_are_no_access_points() {
    // Matroska stores the sets separately, and ffmpeg inserts them before IDR pictures only.
    let dir = tempfile::tempdir().unwrap();
    let (mkv, ts) = (dir.path().join("open.mkv"), dir.path().join("open.ts"));
    let ffmpeg = |args: &[&str]| {
        let status =
            std::process::Command::new("ffmpeg").args(["-nostdin", "-v", "error"]).args(args).status();
        assert!(status.unwrap().success(), "ffmpeg {args:?}");
    };
    let (mkv, ts) = (mkv.to_str().unwrap(), ts.to_str().unwrap());
    let picture = "testsrc2=s=160x120:r=25:d=6";
    let x264 = "open-gop=1:bframes=3:keyint=50:scenecut=0";
    ffmpeg(&[
        "-f",
        "lavfi",
        "-i",
        picture,
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-x264-params",
        x264,
        mkv,
    ]);
    ffmpeg(&["-i", mkv, "-c", "copy", "-f", "mpegts", ts]);
    assert_faults(&std::fs::read(ts).unwrap(), &[("access_point", 2)]);
    ffmpeg(&[
        "-y",
        "-i",
        mkv,
        "-c",
        "copy",
        "-bsf:v",
        "h264_mp4toannexb,dump_extra=freq=keyframe",
        "-f",
        "mpegts",
        ts,
    ]);
    assert_faults(&std::fs::read(ts).unwrap(), &[]);
}

//! Real streams whose clock references and time stamps were changed.

use crate::support::*;
use millrace_ts::{AnalyserOptions, AnalysisReport, Check, Rate};

#[track_caller]
fn assert_faults(stream: &[u8], expected: &[(&str, u64)]) -> AnalysisReport {
    let report = analyse(stream);
    assert_eq!(faults(&report), expected, "{report}");
    report
}

/// Numbers of the packets with a clock reference.
fn references(stream: &[u8]) -> Vec<usize> {
    places(stream, |packet| pcr(packet).is_some())
}

#[test]
fn clock_references_that_are_missing() {
    for (stream, is_constant) in [(cbr(), true), (vbr(), false)] {
        let drop = |from: usize, count: usize| {
            let mut stream = stream.clone();
            for place in references(&stream).into_iter().skip(from).take(count) {
                stream[place * PACKET + 5] &= !0x10;
                // What stood there is stuffing now, but for the room of the flags.
            }
            stream
        };
        let apart = if is_constant { 20 } else { 40 };
        let report = assert_faults(&drop(60, 300 / apart), &[("pcr_repetition", 1)]);
        let longest = report.pids.iter().find(|pid| pid.pid == VIDEO).unwrap().longest_pcr_gap_ns.unwrap();
        assert!((300_000_000..360_000_000).contains(&longest), "{longest}");
        let report = assert_faults(&drop(60, 80 / apart - 1), &[]);
        assert!(report.count(Check::PcrSpacing) > 0, "{report}");
        // None any more; none at all.
        assert_faults(&drop(60, 10_000), &[("pcr_repetition", 1)]);
        let report = assert_faults(&drop(0, 10_000), &[("pcr_repetition", 1)]);
        assert_eq!((report.duration_ns, report.rate), (None, Rate::Unknown));
        let pat = report.checks.iter().find(|check| check.check == "pat").unwrap();
        assert!(pat.not_applicable.is_some(), "what cannot be said is not said to be right");
    }
}

#[test]
fn clocks_that_jump() {
    for stream in [cbr(), vbr()] {
        let place = references(&stream)[100];
        for ticks in [90_000 * 3600, 90_000 * 5, -90_000 * 5, -9_000, 1 << 32] {
            let mut jumped = stream.clone();
            shift(&mut jumped, place, ticks);
            assert_faults(&jumped, &[("pcr_discontinuity", 1)]);
            jumped[place * PACKET + 5] |= 0x80;
            let report = assert_faults(&jumped, &[]);
            assert_eq!(report.count(Check::NewClock), 1, "{report}");
            let seconds = report.duration_ns.unwrap() as f64 / 1e9;
            assert!((5.0..7.0).contains(&seconds), "time goes on at the jump: {seconds}");
        }
        // The clock alone: decoding is late or early by the same amount.
        let mut alone = stream.clone();
        for packet in packets_mut(&mut alone).skip(place) {
            if let Some(value) = pcr(packet) {
                set_pcr(packet, value + 27_000_000 * 20);
            }
        }
        let report = analyse(&alone);
        assert_eq!(report.count(Check::PcrDiscontinuity), 1, "{report}");
        assert!(report.count(Check::DecodeTime) > 40, "{report}");
    }
}

#[test]
fn counters_of_33_bits_wrap() {
    for stream in [cbr(), vbr(), make(6, MPEG2)] {
        let before = analyse(&stream);
        let first = packets(&stream).find_map(pcr).unwrap() / 300;
        for seconds in [1, 3, 5] {
            let mut wrapped = stream.clone();
            shift(&mut wrapped, 0, (1 << 33) - first as i64 - 90_000 * seconds);
            let report = assert_faults(&wrapped, &[]);
            assert_eq!(report.count(Check::NewClock), 0);
            assert_eq!(report.duration_ns, before.duration_ns);
        }
    }
}

#[test]
fn clock_references_that_are_off() {
    let stream = cbr();
    let all = references(&stream);
    let off = |places: &[usize], ticks: i64| {
        let mut stream = stream.clone();
        for place in places {
            let packet = &mut stream[place * PACKET..][..PACKET];
            set_pcr(packet, pcr(packet).unwrap().wrapping_add_signed(ticks));
        }
        stream
    };
    let report = assert_faults(&off(&all[50..51], 27), &[("pcr_accuracy", 1)]);
    assert_eq!(report.rate, Rate::Constant { worst_ns: 1000 });
    let finding = report.findings.iter().find(|f| f.what.check() == Check::PcrAccuracy).unwrap();
    assert_eq!((finding.packet, finding.byte), (all[50] as u64, (all[50] * PACKET) as u64));
    let time = finding.time_ns.unwrap() as i64;
    assert!((time - all[50] as i64 * 1_504_000).abs() < 2_000_000, "{finding}");
    assert_faults(&off(&[all[50], all[200], all[250]], -27), &[("pcr_accuracy", 3)]);
    // 370 ns are allowed.
    assert_faults(&off(&all[50..51], 10), &[]);
    // 50 ms forth is within what two may be apart, so only a constant rate shows it.
    let forth: Vec<_> = all[100..].to_vec();
    let report = analyse(&off(&forth, 27_000 * 50));
    assert_eq!(report.count(Check::PcrAccuracy), 1, "{report}");
    // At a variable rate, there is no way to judge it.
    let stream = vbr();
    let place = references(&stream)[50] * PACKET;
    let mut stream = stream;
    let packet = &mut stream[place..][..PACKET];
    set_pcr(packet, pcr(packet).unwrap() + 27);
    assert_faults(&stream, &[]);
}

/// Numbers of the packets of a PID in which a PES packet begins.
fn units(stream: &[u8], of: u16) -> Vec<usize> {
    places(stream, |packet| pid(packet) == of && stamps_at(packet).is_some())
}

#[test]
fn time_stamps_out_of_order() {
    for stream in [cbr(), make(6, MPEG2)] {
        // The stamps of two PES packets of sound changed places.
        let mut swapped = stream.clone();
        let places = units(&stream, AUDIO);
        let at =
            |n: usize| places[n] * PACKET + stamps_at(&stream[places[n] * PACKET..][..PACKET]).unwrap().0;
        let (one, other) = (at(10), at(11));
        let (first, second) = (stamp(&stream[one..]), stamp(&stream[other..]));
        set_stamp(&mut swapped[one..], second);
        set_stamp(&mut swapped[other..], first);
        assert_faults(&swapped, &[("timestamp_order", 1)]);
        // A picture's PTS before its DTS; one that was there.
        let places = units(&stream, VIDEO);
        let both = places
            .iter()
            .copied()
            .filter(|place| stamps_at(&stream[place * PACKET..][..PACKET]).unwrap().1 == 2);
        let at = both.clone().nth(20).unwrap() * PACKET;
        let at = at + stamps_at(&stream[at..at + PACKET]).unwrap().0;
        let mut early = stream.clone();
        let dts = stamp(&stream[at + 5..]);
        set_stamp(&mut early[at..], dts - 1000);
        assert_faults(&early, &[("timestamp_order", 1)]);
        let before = both.clone().nth(19).unwrap() * PACKET;
        let before = before + stamps_at(&stream[before..before + PACKET]).unwrap().0;
        let pts = stamp(&stream[before..]);
        let mut twice = stream.clone();
        set_stamp(&mut twice[at..], pts.max(dts));
        let report = analyse(&twice);
        assert!(report.count(Check::TimestampOrder) >= u64::from(pts >= dts), "{report}");
    }
}

#[test]
fn decoding_before_arrival_and_long_after() {
    for stream in [cbr(), vbr()] {
        let moved = |ticks: i64| {
            let mut stream = stream.clone();
            packets_mut(&mut stream)
                .filter(|packet| pid(packet) == AUDIO)
                .for_each(|p| shift_stamps(p, ticks));
            stream
        };
        let count = units(&stream, AUDIO).len() as u64;
        let report = analyse(&moved(-90_000 * 3));
        assert!(report.count(Check::DecodeTime) >= count - 2, "{count}: {report}");
        let report = analyse(&moved(90_000 * 12));
        assert!(report.count(Check::DecodeTime) >= count - 2, "{count}: {report}");
        assert_faults(&moved(90_000 * 5), &[]);
    }
}

#[test]
fn pes_headers_that_cannot_be() {
    let stream = cbr();
    let place = units(&stream, AUDIO)[10] * PACKET;
    let at = place + payload_at(&stream[place..place + PACKET]);
    let changed = |offset: usize, value: u8| {
        let mut stream = stream.clone();
        stream[at + offset] = value;
        stream
    };
    let cases = [
        ("no start code", 2, 2),
        ("marker bits of the header", 6, 0x40),
        ("flags 01", 7, 0x40),
        ("header too short", 8, 2),
        ("kind of the PTS", 9, 0x11),
        ("marker bit of the PTS", 11, stream[at + 11] & 0xfe),
    ];
    for (what, offset, value) in cases {
        let report = analyse(&changed(offset, value));
        assert_eq!(report.count(Check::PesHeader), 1, "{what}: {report}");
    }
    assert_faults(&changed(5, stream[at + 5] ^ 4), &[("pes_header", 1)]);
    // No length, which sound must have.
    let mut open = changed(5, 0);
    open[at + 4] = 0;
    assert_eq!(analyse(&open).count(Check::PesHeader), 1);
}

/// A level of H.264 in every parameter set.
fn set_level(stream: &mut [u8], level: u8) {
    let places: Vec<usize> = (0..stream.len() - 8)
        .filter(|at| stream[*at..at + 3] == [0, 0, 1] && stream[at + 3] & 0x1f == 7)
        .collect();
    assert!(places.len() > 3);
    places.into_iter().for_each(|at| stream[at + 6] = level);
}

#[test]
fn buffer_model_reports_overflow_and_underflow() {
    let options = AnalyserOptions { buffers: true, ..AnalyserOptions::default() };
    let mut stream = cbr();
    set_level(&mut stream, 40);
    let healthy = analyse_with(options, &stream);
    let of = |report: &AnalysisReport, of: u16| {
        report.pids.iter().find(|pid| pid.pid == of).unwrap().buffers.unwrap()
    };
    let video = of(&healthy, VIDEO);
    assert_eq!(video.main_size_bytes, (25_000_000 * 12 / 10 + 128_000) / 8, "{healthy}");
    assert!(video.transport_bytes <= 512 && video.main_bytes < video.main_size_bytes, "{healthy}");
    assert!(video.main_bytes > 10_000, "a picture was in it: {healthy}");
    for check in [Check::TransportBuffer, Check::Underflow] {
        assert_eq!(healthy.count(check), 0, "{healthy}");
    }
    // ffmpeg sends sound as early as pictures, which is more than the buffer of the standard holds.
    assert_eq!(of(&healthy, AUDIO).main_size_bytes, 3584);
    // A level whose buffers are too small for this.
    set_level(&mut stream, 10);
    let small = analyse_with(options, &stream);
    assert!(small.count(Check::MainBuffer) > 0 && small.count(Check::TransportBuffer) > 0, "{small}");
    // Pictures that are due when they begin to arrive.
    let mut late = cbr();
    let report = analyse(&late);
    assert_eq!(report.count(Check::DecodeTime), 0);
    let ahead = least_ahead(&late);
    packets_mut(&mut late).filter(|packet| pid(packet) == VIDEO).for_each(|p| shift_stamps(p, -ahead + 90));
    let late = analyse_with(options, &late);
    assert_eq!(late.count(Check::DecodeTime), 0, "each begins to arrive in time: {late}");
    assert!(late.count(Check::Underflow) > 0, "{late}");
    // Not requested.
    let report = analyse(&stream);
    assert!(report.pids.iter().all(|pid| pid.buffers.is_none()));
    let check = report.checks.iter().find(|check| check.check == "main_buffer").unwrap();
    assert_eq!(check.not_applicable, Some("not asked for"));
}

/// By how many ticks of 90 kHz a picture is ahead of the clock at least, at 1 Mb/s.
fn least_ahead(stream: &[u8]) -> i64 {
    let (place, value) = packets(stream).enumerate().find_map(|(n, packet)| Some((n, pcr(packet)?))).unwrap();
    let clock = |at: usize| value as i64 + (at as i64 - place as i64) * 40_608;
    let ahead = units(stream, VIDEO).into_iter().map(|at| {
        let packet = &stream[at * PACKET..][..PACKET];
        let (stamps, count) = stamps_at(packet).unwrap();
        stamp(&packet[stamps + 5 * (count - 1)..]) as i64 - clock(at) / 300
    });
    ahead.min().unwrap()
}

use super::*;
use crate::verify::Difference;

pub(crate) fn clean() -> ReceptionReport {
    ReceptionReport {
        url: "rtsp://h/film".to_owned(),
        title: "Film".to_owned(),
        transport: "udp",
        fallback: None,
        end: EndReason::Bye,
        place: EndPlace::default(),
        duration_ms: 62_500,
        packets: 1000,
        payload_bytes: 1_316_000,
        mean_rate_bits_per_s: 4_000_000,
        sequence: SequenceReport { lost_at_end: Some(0), ..SequenceReport::default() },
        fec: None,
        timing: TimingReport {
            lateness: LatenessSummary { p50_us: 120, p99_us: 4_500, p999_us: 9_000, max_us: 1_200_000 },
            kernel_stamps: true,
            ..TimingReport::default()
        },
        rtp_info_exact: Some(true),
        plays: vec![PlayRecord {
            rtp_info_exact: Some(true),
            first_packet_us: Some(50_123),
            packets: 1000,
            ..PlayRecord::default()
        }],
        renditions: Vec::new(),
        bye: Some(ByeReport { after_last_packet_us: Some(2_500_400) }),
        sender_reports: SenderReports { count: 13, ..SenderReports::default() },
        ts: TsCounts { packets: 7000, pids: 4, ..TsCounts::default() },
        analysis: None,
        byte_check: Some(ByteCheck {
            checked_bytes: 1_316_000,
            starts: vec![Some(0)],
            reference_bytes: 1_316_000,
            ..ByteCheck::default()
        }),
        receiver: ReceiverReport::default(),
        problems: Vec::new(),
    }
}

fn problems(change: impl FnOnce(&mut ReceptionReport)) -> Vec<String> {
    let mut report = clean();
    change(&mut report);
    report.judge();
    report.problems
}

#[test]
fn report_of_clean_session_lists_no_problem() {
    assert!(problems(|_| {}).is_empty());
    let text = clean().to_string();
    for line in [
        "title             rtsp://h/film (Film)",
        "end               bye after 62.500 s",
        "received          1000 packets, 1316000 bytes, 4Mb/s",
        "lost              0 (at start 0, at end 0)",
        "lateness          p50 120 us, p99 4.500 ms, p99.9 9.000 ms, max 1.200 s (kernel stamps)",
        "play              go on -> no Range, first packet 50.123 ms, RTP-Info exact, 1000 packets",
        "bye               2.500 s after the last packet",
        "byte check        1316000 bytes: all equal",
        "verdict           clean",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nnot in\n{text}");
    }
}

#[test]
fn report_problems_name_each_fault() {
    type Change = fn(&mut ReceptionReport);
    let cases: [(&str, Change); 17] = [
        ("no packet came", |r| r.packets = 0),
        ("3 packets lost", |r| r.sequence.lost = 3),
        ("2 packets missing before the first", |r| r.sequence.lost_at_start = 2),
        ("4 packets lost at the end", |r| r.sequence.lost_at_end = Some(4)),
        ("sequence numbers jumped 1 times", |r| r.sequence.restarts = 1),
        ("RTP-Info is not that of the first packet", |r| r.rtp_info_exact = Some(false)),
        ("BYE 100 ms after", |r| r.bye = Some(ByeReport { after_last_packet_us: Some(100_000) })),
        ("packets stopped without a BYE", |r| r.end = EndReason::Silence),
        ("the server closed the connection", |r| r.end = EndReason::ServerClosed),
        ("by up to 101 packets", |r| r.sender_reports.worst_difference = 101),
        ("clocks 20001 us apart", |r| r.sender_reports.clock_error_us = 20_001),
        ("1 TS packets without sync byte", |r| r.ts.sync_losses = 1),
        ("1 payloads that are no multiple", |r| r.ts.odd_payloads = 1),
        ("1 TS continuity errors", |r| r.ts.continuity_errors = 1),
        ("5 bytes not found", |r| r.byte_check.as_mut().unwrap().unaligned_bytes = 5),
        ("this receiver dropped 9", |r| r.receiver.socket_drops = 9),
        ("1 packets that are not what was agreed", |r| r.receiver.malformed = 1),
    ];
    for (words, change) in cases {
        let found = problems(change);
        assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
    }
    // 20 ms is the least on an interleaved connection; over UDP a packet may come at once.
    let early = |transport| {
        problems(|r| {
            r.transport = transport;
            r.plays[0].first_packet_us = Some(19_999);
        })
    };
    assert!(early("udp").is_empty() && early("tcp")[0].contains("interleaved needs 20 ms"));
    // Backwards a title stands at its beginning: no BYE comes.
    assert!(problems(|r| (r.end, r.place.scale_hundredths) = (EndReason::Silence, Some(-400))).is_empty());
    // The server is not blamed for a delay that may be our own.
    let unsure = problems(|r| {
        r.transport = "tcp";
        (r.plays[0].first_packet_us, r.plays[0].reply_read_late_us) = (Some(-5_000), 25_000);
    });
    assert!(unsure.is_empty(), "{unsure:?}");
}

#[test]
fn byte_check_difference_is_reported_with_position() {
    let mut report = clean();
    report.byte_check = Some(ByteCheck {
        checked_bytes: 100,
        different_bytes: 2,
        unaligned_bytes: 7,
        first_difference: Some(Difference { position: 12_345, sequence: 9, expected: Some(0x47), got: 0x48 }),
        starts: vec![None],
        reference_bytes: 107,
    });
    report.judge();
    let text = report.to_string();
    let line = "byte check        100 bytes: 2 differ, first at 12345 (packet 9): expected 0x47, got 0x48; \
                7 bytes not found in the reference";
    assert!(text.contains(line), "{text}");
    assert!(
        text.contains("verdict           2 bytes differ from the reference; 7 bytes not found"),
        "{text}"
    );
    assert!(!report.is_clean());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["byte_check"]["first_difference"]["position"], 12_345);
}

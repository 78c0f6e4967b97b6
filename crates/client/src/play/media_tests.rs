use super::*;
use crate::rtsp::headers::RtpInfo;
use crate::sink::Output;
use millrace_core::wire::rtcp::{SenderReport, write_sender_report};
use std::time::Duration;

fn media() -> MediaReceiver {
    MediaReceiver::new(SinkWriter::start(&Output::Null, None).unwrap(), 64, 1000)
}

fn packet(sequence: u16, timestamp: u32, ssrc: u32) -> Vec<u8> {
    let header = RtpHeader { marker: false, payload_type: PAYLOAD_TYPE_MP2T, sequence, timestamp, ssrc };
    let mut bytes = header.emit().to_vec();
    bytes.extend([0x47, 0x1f, 0xff, 0x10]);
    bytes.resize(12 + 188, 0);
    bytes
}

fn announced(sequence: u16, timestamp: u32) -> PlayReply {
    let info = RtpInfo { url: String::new(), sequence: Some(sequence), timestamp: Some(timestamp) };
    PlayReply { range: None, rtp_info: Some(info), scale: None }
}

fn finish(media: MediaReceiver) -> (MediaReport, u64) {
    let (report, sink) = media.finish(true);
    (report, sink.finish(Duration::from_secs(20)).unwrap().analysis.packets)
}

const MS: u64 = 1_000_000;

#[test]
fn rtp_before_the_reply_to_play_belongs_to_it() {
    let mut m = media();
    for n in 0..3u16 {
        m.rtp(Instant(0), 1000 * MS + u64::from(n) * MS, &packet(7 + n, 90 * u32::from(n), 1));
    }
    m.begin_play(None, &announced(7, 0), 1200 * MS, 0);
    m.rtp(Instant(0), 1003 * MS, &packet(10, 270, 1));
    let (report, ts) = finish(m);
    assert_eq!((report.packets, ts, report.rtp_info_exact), (4, 4, Some(true)));
    assert_eq!(report.plays[0].first_packet_us, Some(-200_000));
    assert_eq!(report.plays[0].packets, 4);
}

#[test]
fn another_source_takes_over_with_two_packets_and_not_with_one() {
    let mut m = media();
    m.begin_play(None, &PlayReply::default(), 0, 0);
    m.rtp(Instant(0), MS, &packet(1, 0, 1));
    m.rtp(Instant(0), 2 * MS, &packet(50, 0, 2)); // a stranger
    m.rtp(Instant(0), 3 * MS, &packet(2, 90, 1));
    assert_eq!(m.packets(), 2);
    m.rtp(Instant(0), 4 * MS, &packet(30_000, 0, 3));
    m.rtp(Instant(0), 5 * MS, &packet(30_001, 90, 3));
    m.rtp(Instant(0), 6 * MS, &packet(30_002, 180, 3));
    let (report, _) = finish(m);
    // The new source's first packets serve to believe in it: two of a source, then two in a row far away.
    assert_eq!((report.packets, report.malformed, report.sequence.lost), (4, 2, 0));
}

#[test]
fn media_confirmed_stray_packets_reach_output() {
    let mut m = media();
    m.begin_play(None, &PlayReply::default(), 0, 0);
    for sequence in [10, 11, 40_000, 40_001, 40_002] {
        m.rtp(Instant(0), MS, &packet(sequence, 0, 1));
    }
    let (report, ts) = finish(m);
    assert_eq!((report.packets, ts, report.sequence.restarts, report.sequence.strays), (5, 5, 1, 0));
}

#[test]
fn bye_and_final_report_come_from_the_right_source_only() {
    let mut m = media();
    m.begin_play(None, &PlayReply::default(), 0, 0);
    for n in 0..10u16 {
        m.rtp(Instant(0), 1000 * MS, &packet(n, 0, 1));
    }
    let mut out = [0; 128];
    let mut compound = |ssrc, packets| {
        let report = SenderReport { ssrc, ntp: 0, rtp_timestamp: 0, packets, octets: packets * 188 };
        let len = write_sender_report(&mut out, &report, "c", true);
        out[..len].to_vec()
    };
    m.rtcp(1100 * MS, &compound(9, 3));
    assert!(!m.has_bye());
    m.rtcp(3500 * MS, &compound(1, 12));
    m.rtcp(9900 * MS, &compound(1, 12)); // a second BYE changes nothing
    m.rtcp(0, b"not RTCP");
    let (report, _) = finish(m);
    assert_eq!(report.bye, Some(ByeReport { after_last_packet_us: Some(2_500_000) }));
    assert_eq!((report.sequence.lost_at_end, report.senders.count, report.malformed), (Some(2), 2, 1));
    assert_eq!(report.senders.last_octet_difference, Some(2 * 188));
}

#[test]
fn sender_report_before_last_packets_counts_no_loss() {
    for (reported, lost) in [(8, 0), (10, 0), (11, 1)] {
        let mut m = media();
        m.begin_play(None, &PlayReply::default(), 0, 0);
        for n in 0..10u16 {
            m.rtp(Instant(0), 1000 * MS, &packet(n, 0, 1));
        }
        let mut out = [0; 128];
        let report =
            SenderReport { ssrc: 1, ntp: 0, rtp_timestamp: 0, packets: reported, octets: reported * 188 };
        let len = write_sender_report(&mut out, &report, "c", true);
        m.rtcp(1100 * MS, &out[..len]);
        let (report, _) = finish(m);
        assert_eq!(report.sequence.lost_at_end, Some(lost), "{reported}");
        assert_eq!(report.senders.last_difference, i64::from(reported) - 10);
    }
}

#[test]
fn anything_at_all_is_survived_and_accounted_for() {
    bolero::check!().with_type::<Vec<(u8, u16, u8, Vec<u8>)>>().with_iterations(300).for_each(|steps| {
        let mut m = media();
        let mut given = 0;
        for (number, (what, sequence, ssrc, bytes)) in steps.iter().enumerate() {
            let at = number as u64 * MS;
            match what {
                0..8 => {
                    // Never version 2, so that every packet that counts is one of ours.
                    let not_rtp: Vec<u8> = bytes.iter().map(|byte| byte & 0x3f).collect();
                    m.rtp(Instant(at), at, &not_rtp);
                    given += 1;
                }
                8..12 => {
                    m.rtcp(at, bytes);
                    given += u64::from(rtcp::parse(bytes).count() == 0);
                }
                12..16 => m.begin_play(None, &announced(*sequence, 0), at, 0),
                16..20 => m.begin_play(None, &PlayReply::default(), at, 0),
                20..24 => m.turn(Instant(at + 5000)),
                _ => {
                    m.rtp(Instant(at), at, &packet(*sequence, u32::from(*sequence), u32::from(*ssrc % 2)));
                    given += 1;
                }
            }
            m.report_block();
        }
        let (report, ts) = finish(m);
        let s = report.sequence;
        // All input is counted once, and every packet received is in the output unless it came too
        // late.
        assert_eq!(report.packets + s.duplicates + s.strays + report.malformed, given);
        assert_eq!(ts + s.late, report.packets);
        assert_eq!(report.payload_bytes, report.packets * 188);
        assert!(report.plays.iter().map(|play| play.packets).sum::<u64>() <= report.packets);
    });
}

//! RTCP: when reports go out, and their content.

use millrace_core::seam::SendOutcome;
use millrace_core::wire::rtcp::{RtcpPacket, SenderReport, ntp_from_unix_ns};
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::limits::{FIRST_REPORT_NS, RTCP_INTERVAL_NS};
use millrace_engine::{EngineConfig, StopReason, StreamEvent};

use crate::world::{MS, PlaySpec, Reported, S, START, World, stop_of, tcp, udp};
use millrace_testkit::film::Film;

fn report_of(reported: &Reported) -> SenderReport {
    match reported.packets[0] {
        RtcpPacket::SenderReport(report) => report,
        other => panic!("not a sender report: {other:?}"),
    }
}

#[test]
fn sender_reports_begin_early_and_repeat_every_interval() {
    let film = Film::constant(0, 20_000, 8_000_000); // 26 s
    for dest in [udp(0), tcp(0)] {
        let mut world = World::small();
        let stream = world.open(&film, 0, dest);
        let first = START.plus_ns(50 * MS);
        world.play_from(stream, 0);
        world.run_out();
        let times: Vec<_> = world.reports.iter().map(|r| r.at.0 - first.0).collect();
        let bye = world.bye_of(stream).unwrap().0 - first.0;
        let expected: Vec<_> = (0..6).map(|i| FIRST_REPORT_NS + i * RTCP_INTERVAL_NS).chain([bye]).collect();
        assert_eq!(times, expected);
        assert_eq!(world.engine.counters().reports, 7);
        assert!(world.reports.iter().all(|r| r.packets.len() >= 2), "SR is never without SDES");
    }
}

#[test]
fn sender_report_maps_wall_clock_to_media_time() {
    let wall_offset_ns = 1_700_000_000 * S;
    let mut world = World::new(EngineConfig { streams: 1, wall_offset_ns, ..EngineConfig::default() }, 8);
    let film = Film::constant(0, 5_000, 8_000_000).ending_with(188);
    let stream = world.open(&film, 0, udp(0));
    let at = world.now.plus_ns(50 * MS);
    world
        .play(stream, PlaySpec { from: 1_000, until: 5_000, at, sequence: 5, scale_permille: 1000 })
        .unwrap();
    world.run_out();
    for reported in &world.reports {
        let report = report_of(reported);
        assert_eq!(report.ssrc, film.timeline.ssrc);
        assert_eq!(report.ntp, ntp_from_unix_ns(reported.at.0 + wall_offset_ns));
        let ticks = (reported.at.0 - at.0) * 9 / 100_000;
        let expected = film.timeline.timestamp(film.time(1_000)).wrapping_add(ticks as u32);
        assert!(report.rtp_timestamp.wrapping_sub(expected) <= 1, "rounded up to a tick");
        let sent = world.sent.iter().filter(|sent| sent.at <= reported.at);
        let packets: u32 = sent.map(|sent| sent.count).sum();
        assert_eq!(report.packets, packets);
        let octets = packets * 1316 - if packets == 4_000 { 1316 - 188 } else { 0 };
        assert_eq!(report.octets, octets, "payload only");
    }
    assert_eq!(report_of(world.reports.last().unwrap()).packets, 4_000);
}

#[test]
fn double_speed_is_double_time_in_the_report() {
    let mut world = World::small();
    let film = Film::constant(0, 20_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    let at = world.now;
    world.play(stream, PlaySpec { from: 0, until: 20_000, at, sequence: 0, scale_permille: 2000 }).unwrap();
    world.run_out();
    let [a, b] = [&world.reports[0], &world.reports[1]];
    let ticks = report_of(b).rtp_timestamp.wrapping_sub(report_of(a).rtp_timestamp);
    assert_eq!((b.at.0 - a.at.0, ticks), (RTCP_INTERVAL_NS, 5 * 180_000));
}

#[test]
fn reports_go_on_while_an_extent_is_missing_and_stop_on_pause() {
    let mut world = World::small();
    let film = Film::constant(0, 20_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.disk.rule = Box::new(|want| (if want.extent == 4 { 12 * S } else { MS }, Ok(())));
    world.play_from(stream, 0);
    world.run_for(11 * S);
    assert_eq!(world.reports.len(), 3);
    world.engine.pause(world.now, stream).unwrap();
    world.run_for(60 * S);
    assert_eq!(world.reports.len(), 3);
    world.play_from(stream, 100);
    let first = world.now.plus_ns(50 * MS);
    world.run_for(S);
    assert_eq!(world.reports.last().unwrap().at, first.plus_ns(FIRST_REPORT_NS));
}

#[test]
fn sender_report_of_run_that_cancels_bye_follows_first_packet() {
    let mut world = World::small();
    let film = Film::constant(0, 5_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 4_900);
    world.run_for(2_500 * MS);
    let before = world.reports.len();
    let first = world.now.plus_ns(2 * S);
    world
        .play(stream, PlaySpec { from: 0, until: 5_000, at: first, sequence: 0, scale_permille: 1000 })
        .unwrap();
    world.run_for(3 * S);
    let times: Vec<_> = world.reports[before..].iter().map(|r| r.at).collect();
    assert_eq!(times, [first.plus_ns(FIRST_REPORT_NS)], "nothing before the first packet, BYE least of all");
}

#[test]
fn sender_report_to_unreachable_port_is_dropped_without_failure() {
    let mut world = World::small();
    let film = Film::constant(0, 10_000, 8_000_000); // 13 s
    let stream = world.open(&film, 0, udp(0));
    world.device = Box::new(|_, transmit| match transmit.payload {
        millrace_core::seam::Payload::Rtcp(_) => SendOutcome::Unreachable { errno: 111 },
        _ => SendOutcome::Sent,
    });
    world.play_from(stream, 0);
    world.run_out();
    let counters = world.engine.counters();
    assert_eq!((counters.reports, counters.reports_lost, counters.failed), (0, 4, 0));
    assert_eq!(world.datagrams, 10_000);
    let ended = world.ends_of(stream).iter().map(stop_of).collect::<Vec<_>>();
    let finished = (StopReason::Finished, 10_000, sequence_of(10_000));
    assert_eq!(ended, [finished], "a player need not listen to RTCP");
}

#[test]
fn quiet_stream_sends_no_reports_and_no_bye() {
    let film = Film::constant(0, 9_000, 8_000_000); // 12 s
    let mut world = World::small();
    world.quiet = true;
    let (stream, shut) = (world.open(&film, 0, udp(0)), world.open(&film, 1, udp(1)));
    world.play_from(stream, 0);
    world.play_from(shut, 0);
    world.run_for(S);
    world.engine.close(world.now, shut).unwrap();
    world.run_out();
    assert!(world.reports.is_empty(), "{:?}", world.reports);
    let told = world.events_of(stream);
    assert!(matches!(told[..], [StreamEvent::RunEnded { .. }, StreamEvent::Left { .. }]), "{told:?}");
    // It can be played again, and a shut-down ends it at once.
    world.play_from(stream, 100);
    world.run_for(S);
    world.engine.finish(world.now);
    world.run_out();
    assert!(matches!(world.events_of(stream)[2..], [StreamEvent::RunEnded { .. }, StreamEvent::Left { .. }]));
    let reasons: Vec<_> = world.ends_of(stream).iter().map(|end| end.reason).collect();
    assert_eq!(reasons, [StopReason::Finished, StopReason::ShutDown]);
    assert!(world.reports.is_empty());
}

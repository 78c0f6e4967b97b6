//! The player against a server that misbehaves in exactly known ways.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_client::error::ClientError;
use millrace_client::play::{PlayOptions, PlayProgress, TransportChoice, play};
use millrace_client::report::{EndReason, ReceptionReport};
use millrace_client::sink::Output;
use millrace_client::verdict::ReceptionVerdict;
use millrace_core::time::MediaTicks;
use millrace_testkit::rtsp_server::{Behaviour, PAYLOAD, RtpInfo, Server, film, steady};

fn options(server: &Server, transport: TransportChoice) -> PlayOptions {
    let mut options = PlayOptions::new(server.url());
    options.transport = transport;
    options.silence = Duration::from_millis(800);
    options.duration = Some(Duration::from_secs(20));
    options.reorder_wait = Duration::from_millis(100);
    options
}

fn run(options: &PlayOptions) -> ReceptionReport {
    play(options, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Plays to a file and checks against the film; returns the report and the bytes written.
fn record(server: &Server, behaviour: &Behaviour, options: PlayOptions) -> (ReceptionReport, Vec<u8>) {
    record_with(server, behaviour, options, &mut |_| {})
}

fn record_with(
    server: &Server,
    behaviour: &Behaviour,
    mut options: PlayOptions,
    progress: &mut dyn FnMut(&PlayProgress),
) -> (ReceptionReport, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let (out, reference) = (dir.path().join("out.ts"), dir.path().join("film.ts"));
    std::fs::write(&reference, &behaviour.film).unwrap();
    options.output = Output::File(out.clone());
    options.reference = Some(reference);
    let report = play(&options, &AtomicBool::new(false), progress).unwrap();
    assert!(server.seen.count("TEARDOWN") >= 1, "the session was not ended");
    (report, std::fs::read(out).unwrap())
}

fn film_without(behaviour: &Behaviour, missing: &[u32]) -> Vec<u8> {
    (0..behaviour.packets())
        .filter(|n| !missing.contains(n))
        .flat_map(|n| behaviour.payload(n).to_vec())
        .collect()
}

#[test]
fn play_over_udp_of_clean_title_is_byte_exact() {
    steady(|| {
        let mut behaviour = Behaviour::new(300);
        behaviour.film.truncate(299 * PAYLOAD + 3 * 188); // a short last packet
        behaviour.first_sequence = 65_400;
        behaviour.first_timestamp = u32::MAX - 10_000;
        behaviour.bye = Some(Duration::from_millis(2500));
        let server = Server::start(behaviour.clone());
        let mut options = options(&server, TransportChoice::Udp);
        options.silence = Duration::from_secs(10);
        let mut progress = 0;
        let (report, written) =
            record_with(&server, &behaviour, options, &mut |p| progress += u64::from(p.packets <= 300));
        assert!(report.is_clean(), "{report}");
        assert_eq!(
            (report.end, report.transport, report.title.as_str()),
            (EndReason::Bye, "udp", "Test film")
        );
        assert_eq!((report.packets, report.payload_bytes), (300, behaviour.film.len() as u64));
        assert_eq!(report.sequence.lost_at_end, Some(0));
        assert_eq!((report.rtp_info_exact, report.plays[0].packets), (Some(true), 300));
        assert_eq!(report.plays[0].first_sequence, Some(65_400));
        assert_eq!(report.plays[0].range_asked.as_deref(), Some("npt=0.000-"));
        let first_us = report.plays[0].first_packet_us.unwrap() + report.plays[0].reply_read_late_us as i64;
        assert!((45_000..5_000_000).contains(&first_us), "{first_us}");
        assert!(report.bye.unwrap().after_last_packet_us.unwrap() >= 2_400_000);
        assert!(report.timing.kernel_stamps);
        let check = report.byte_check.as_ref().unwrap();
        assert_eq!((check.checked_bytes, check.first_difference), (behaviour.film.len() as u64, None));
        assert_eq!(report.ts.continuity_errors, 0);
        let sr = report.sender_reports;
        assert_eq!(
            (sr.count, sr.last_packets, sr.last_difference, sr.last_octet_difference),
            (4, 300, 0, Some(0))
        );
        assert!(sr.media_offset_us.unwrap().abs() < 2_000_000, "{sr:?}");
        assert!(written == behaviour.film);
        assert!(progress >= 5, "{progress}");
        // Punched at PLAY, and sent BYE at the end.
        let seen = (server.seen.punches.load(Ordering::Relaxed), server.seen.byes.load(Ordering::Relaxed));
        assert_eq!(seen, (1, 1));
        assert_eq!(server.seen.methods()[..4], ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"]);
    });
}

#[test]
fn play_over_tcp_split_into_small_writes_is_byte_exact() {
    steady(|| {
        for split in [None, Some(1), Some(7), Some(1319)] {
            let mut behaviour = Behaviour::new(if split == Some(1) { 40 } else { 200 });
            behaviour.split = split;
            let is_patient = split.is_none();
            behaviour.bye = Some(Duration::from_millis(if is_patient { 2500 } else { 100 }));
            let server = Server::start(behaviour.clone());
            let mut options = options(&server, TransportChoice::Tcp);
            options.silence = Duration::from_secs(10);
            let (report, written) = record(&server, &behaviour, options);
            assert_eq!(
                report.problems.len(),
                usize::from(!is_patient),
                "only that BYE comes early: {split:?}: {report}"
            );
            assert_eq!((report.transport, report.packets), ("tcp", u64::from(behaviour.packets())));
            assert_eq!(report.rtp_info_exact, Some(true));
            assert!(written == behaviour.film);
            assert_eq!(server.seen.byes.load(Ordering::Relaxed), 1);
        }
    });
}

#[test]
fn loss_duplicates_and_reorder_are_counted_exactly() {
    steady(|| {
        let mut behaviour = Behaviour::new(300);
        behaviour.drop = vec![10, 11, 12, 77, 200];
        behaviour.double = vec![20, 21, 150];
        behaviour.delay = vec![(50, 53), (90, 91), (120, 220)];
        let server = Server::start(behaviour.clone());
        let mut options = options(&server, TransportChoice::Udp);
        options.reorder_packets = 50;
        options.reorder_wait = Duration::from_secs(30); // so that only packets decide, and not how busy this machine is
        let (report, written) = record(&server, &behaviour, options);
        let s = report.sequence;
        assert_eq!((s.lost, s.lost_at_start, s.lost_at_end), (5, 0, Some(0)), "{report}");
        // Packet 120 comes behind packet 220, out of the window of 50: it arrived, but its place in the output was given up.
        assert_eq!((s.duplicates, s.reordered, s.late, s.strays, s.restarts), (3, 3, 1, 0, 0));
        assert_eq!(report.packets, 295);
        assert!(written == film_without(&behaviour, &[10, 11, 12, 77, 120, 200]));
        let check = report.byte_check.as_ref().unwrap();
        assert_eq!((check.checked_bytes, check.different_bytes), (294 * PAYLOAD as u64, 0));
        assert_eq!(report.ts.continuity_errors, 0, "loss is not the data's fault");
        assert!(report.ts.continuity_breaks_at_gaps >= 3);
        assert!(report.problems.iter().any(|p| p == "5 packets lost"), "{:?}", report.problems);
        assert_eq!(report.sender_reports.last_packets, 300);
    });
}

#[test]
fn loss_before_the_first_and_behind_the_last_packet() {
    steady(|| {
        let mut behaviour = Behaviour::new(60);
        behaviour.drop = vec![0, 1, 2, 58, 59];
        let server = Server::start(behaviour.clone());
        let (report, written) = record(&server, &behaviour, options(&server, TransportChoice::Udp));
        let s = report.sequence;
        assert_eq!((s.lost, s.lost_at_start, s.lost_at_end), (0, 3, Some(2)), "{report}");
        assert_eq!(report.rtp_info_exact, Some(false));
        assert!(written == film_without(&behaviour, &[0, 1, 2, 58, 59]));
    });
}

#[test]
fn byte_check_with_lost_first_packet_finds_start() {
    steady(|| {
        let mut behaviour = Behaviour::new(60);
        behaviour.drop = vec![0];
        behaviour.first_sequence = 30_000; // the number does not say where in the film it is
        let server = Server::start(behaviour.clone());
        let (report, _) = record(&server, &behaviour, options(&server, TransportChoice::Udp));
        let check = report.byte_check.unwrap();
        assert_eq!((check.checked_bytes, check.different_bytes, check.unaligned_bytes), (59 * 1316, 0, 0));
        assert_eq!(check.starts, [Some(1316)]);
    });
}

#[test]
fn rtp_info_is_held_against_the_first_packet() {
    steady(|| {
        for (rtp_info, exact) in
            [(RtpInfo::Off(5), Some(false)), (RtpInfo::Off(30_000), Some(false)), (RtpInfo::Absent, None)]
        {
            for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
                let mut behaviour = Behaviour::new(40);
                behaviour.first_sequence = 500;
                behaviour.rtp_info = rtp_info;
                let server = Server::start(behaviour.clone());
                let (report, written) = record(&server, &behaviour, options(&server, transport));
                assert_eq!((report.rtp_info_exact, report.packets), (exact, 40), "{rtp_info:?}: {report}");
                assert_eq!((report.sequence.lost, report.sequence.strays), (0, 0), "{rtp_info:?}: {report}");
                assert!(written == behaviour.film, "{rtp_info:?}");
            }
        }
    });
}

#[test]
fn byte_check_locates_flipped_byte_over_udp_and_tcp() {
    steady(|| {
        for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
            let mut behaviour = Behaviour::new(100);
            behaviour.flip = Some((61, 1000));
            let server = Server::start(behaviour.clone());
            let (report, _) = record(&server, &behaviour, options(&server, transport));
            let check = report.byte_check.as_ref().unwrap();
            let found = check.first_difference.unwrap();
            let expected = behaviour.payload(61)[1000];
            assert_eq!((found.position, found.sequence), (61 * 1316 + 1000, 61));
            assert_eq!((found.expected, found.got), (Some(expected), expected ^ 1));
            assert_eq!((check.checked_bytes, check.different_bytes), (behaviour.film.len() as u64, 1));
            assert!(report.to_string().contains("first at 81276 (packet 61)"), "{report}");
        }
    });
}

#[test]
fn stalled_server_shows_in_gap_and_lateness() {
    steady(|| {
        let mut behaviour = Behaviour::new(400);
        behaviour.stall = Some((100, Duration::from_millis(300)));
        let server = Server::start(behaviour.clone());
        let report = run(&options(&server, TransportChoice::Udp));
        let t = report.timing;
        assert!(t.longest_gap_us >= 299_000, "{report}");
        assert!((290_000..2_000_000).contains(&t.lateness.max_us), "{report}");
        // 150 of 400 packets were late by 300 ms down to 2 ms: the median was not.
        assert!(t.lateness.p50_us < t.lateness.p99_us && t.lateness.p99_us > 200_000, "{report}");
        assert!(t.jitter_max_us > 10_000, "{report}");
        assert_eq!((report.packets, report.sequence.lost), (400, 0));
    });
}

#[test]
fn end_reason_matches_how_stream_ended() {
    steady(|| {
        let film = Behaviour::new(60);
        let silent = Behaviour { bye: None, ..film.clone() };
        let early = Behaviour { stop_before: Some(30), bye: Some(Duration::ZERO), ..film.clone() };
        let closing = Behaviour { close_before: Some(40), ..film.clone() };
        let cases = [
            (silent, EndReason::Silence, 60, "packets stopped without a BYE"),
            (early, EndReason::Bye, 30, "players need 2.5 s"),
            (closing, EndReason::ServerClosed, 40, "the server closed the connection"),
        ];
        for (behaviour, end, packets, problem) in cases {
            for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
                let server = Server::start(behaviour.clone());
                let report = run(&options(&server, transport));
                assert_eq!((report.end, report.packets), (end, packets), "{transport:?} {report}");
                assert!(report.problems.iter().any(|p| p.contains(problem)), "{:?}", report.problems);
                assert_eq!(report.bye.is_some(), end == EndReason::Bye);
            }
        }
    });
}

/// An exit code is made of this.
#[test]
fn verdict_is_right_only_for_complete_transport_stream() {
    steady(|| {
        let short = Behaviour::new(60);
        let long = Behaviour { interval: Duration::from_millis(20), ..Behaviour::new(200) };
        let mut noise = film(60);
        noise[PAYLOAD..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 % 251) as u8);
        let cases = [
            ("whole", short.clone(), ReceptionVerdict::Right),
            ("ends without a BYE", Behaviour { bye: None, ..short.clone() }, ReceptionVerdict::Right),
            ("a hole", Behaviour { holes: vec![30], ..short.clone() }, ReceptionVerdict::Damaged),
            (
                "garbage after one packet",
                Behaviour { film: noise, ..short.clone() },
                ReceptionVerdict::Foreign,
            ),
            ("BYE too early", Behaviour { stop_before: Some(20), ..long.clone() }, ReceptionVerdict::CutOff),
            (
                "silence",
                Behaviour { stop_before: Some(20), bye: None, ..long.clone() },
                ReceptionVerdict::CutOff,
            ),
            ("hangs up", Behaviour { close_before: Some(20), ..long.clone() }, ReceptionVerdict::CutOff),
        ];
        for (name, behaviour, expected) in cases {
            for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
                let server = Server::start(behaviour.clone());
                let report = run(&options(&server, transport));
                assert_eq!(report.verdict(), expected, "{name} by {transport:?}: {report}");
            }
        }
        // With an end that the viewer chose there is nothing to cut off.
        let server = Server::start(long);
        let chosen = PlayOptions {
            duration: Some(Duration::from_millis(300)),
            ..options(&server, TransportChoice::Tcp)
        };
        assert_eq!(run(&chosen).verdict(), ReceptionVerdict::Right);
    });
}

#[test]
fn play_without_any_packet_ends_by_silence() {
    steady(|| {
        let behaviour = Behaviour { mute_udp: true, ..Behaviour::new(1000) };
        let server = Server::start(behaviour);
        let report = run(&options(&server, TransportChoice::Udp));
        assert_eq!((report.end, report.packets), (EndReason::Silence, 0));
        assert_eq!(report.problems, ["no packet came"]);
        assert_eq!(server.seen.count("TEARDOWN"), 1);
    });
}

#[test]
fn tcp_is_used_when_udp_is_refused_or_blocked() {
    steady(|| {
        let refusing = Behaviour { refuse_udp: true, ..Behaviour::new(50) };
        let server = Server::start(refusing.clone());
        let (report, written) = record(&server, &refusing, options(&server, TransportChoice::Auto));
        assert_eq!((report.transport, report.packets), ("tcp", 50));
        assert!(report.fallback.as_deref().unwrap().contains("461"), "{report}");
        assert!(written == refusing.film);
        assert_eq!(server.seen.count("OPTIONS"), 1, "in the same connection");

        let blocked = Behaviour { mute_udp: true, ..Behaviour::new(500) };
        let server = Server::start(blocked.clone());
        let mut patient = options(&server, TransportChoice::Auto);
        patient.udp_timeout = Duration::from_millis(200);
        let (report, written) = record(&server, &blocked, patient);
        assert_eq!((report.transport, report.packets), ("tcp", 500));
        assert!(report.fallback.as_deref().unwrap().contains("no packet over UDP within 0.2 s"), "{report}");
        assert!(written == blocked.film);
        assert_eq!((server.seen.count("OPTIONS"), server.seen.count("TEARDOWN")), (2, 2));

        let server = Server::start(refusing);
        let error =
            play(&options(&server, TransportChoice::Udp), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(
            error.to_string().contains("461") && error.to_string().contains("other transport"),
            "{error}"
        );
    });
}

#[test]
fn pause_resume_and_seek_by_script() {
    steady(|| {
        for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
            let behaviour = Behaviour { bye: Some(Duration::from_millis(200)), ..Behaviour::new(1000) };
            let server = Server::start(behaviour.clone());
            let mut options = options(&server, transport);
            options.start = MediaTicks::from_secs_f64(0.2);
            // 0.3 s from packet 100, a pause of 0.3 s, 0.3 s more, then from packet 900 to the end.
            options.script = "pause@0.3,play@0.6,seek@0.9=1.8".parse().unwrap();
            let (report, written) = record(&server, &behaviour, options);
            assert_eq!(report.end, EndReason::Bye, "{report}");
            assert_eq!(
                (report.sequence.lost, report.sequence.strays, report.sequence.restarts),
                (0, 0, 0),
                "{report}"
            );
            assert_eq!(report.rtp_info_exact, Some(true));
            let plays = &report.plays;
            assert_eq!(plays.len(), 3);
            let asked: Vec<_> = plays.iter().map(|play| play.range_asked.as_deref()).collect();
            assert_eq!(asked, [Some("npt=0.200-"), None, Some("npt=1.800-")]);
            assert_eq!((plays[0].first_sequence, plays[2].first_sequence), (Some(100), Some(900)));
            assert_eq!(plays[1].first_sequence, Some(100 + plays[0].packets as u16));
            assert_eq!(plays[2].packets, 100);
            assert!(plays.iter().all(|play| play.range_error_us.unwrap().abs() <= 1000), "{plays:?}");
            assert_eq!(plays.iter().map(|play| play.packets).sum::<u64>(), report.packets);
            let check = report.byte_check.as_ref().unwrap();
            let starts: Vec<_> =
                plays.iter().map(|p| Some(u64::from(p.first_sequence.unwrap()) * 1316)).collect();
            assert_eq!((check.starts.clone(), check.different_bytes, check.unaligned_bytes), (starts, 0, 0));
            assert_eq!(written.len() as u64, report.payload_bytes);
            let resumed = (plays[0].packets + plays[1].packets) as usize * PAYLOAD;
            assert!(written[..resumed] == behaviour.film[100 * PAYLOAD..100 * PAYLOAD + resumed]);
            assert!(written[resumed..] == behaviour.film[900 * PAYLOAD..]);
            assert!(report.timing.longest_gap_us < 250_000, "a pause is no gap: {report}");
            assert_eq!(server.seen.methods()[3..], ["PLAY", "PAUSE", "PLAY", "PAUSE", "PLAY", "TEARDOWN"]);
        }
    });
}

#[test]
fn seek_beyond_end_is_refused_and_session_torn_down() {
    steady(|| {
        let server = Server::start(Behaviour::new(500));
        let mut options = options(&server, TransportChoice::Udp);
        options.script = "seek@0.1=99".parse().unwrap();
        let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("PLAY refused: 457") && error.contains("outside the title"), "{error}");
        assert_eq!(server.seen.count("TEARDOWN"), 1);
    });
}

#[test]
fn keep_alive_continues_while_paused() {
    steady(|| {
        let behaviour = Behaviour { session_timeout_s: 1, ..Behaviour::new(300) };
        for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
            let server = Server::start(behaviour.clone());
            let mut options = options(&server, transport);
            options.script = "pause@0.1".parse().unwrap();
            options.duration = Some(Duration::from_millis(2300));
            let report = run(&options);
            assert_eq!(report.end, EndReason::Duration);
            let count = server.seen.count("GET_PARAMETER");
            assert!((2..=5).contains(&count), "{count} in 2.2 s of pause with a time-out of 1 s");
        }
    });
}

#[test]
fn duration_and_cancel_end_a_film_that_goes_on() {
    steady(|| {
        let server = Server::start(Behaviour::new(5000));
        let mut short = options(&server, TransportChoice::Udp);
        short.duration = Some(Duration::from_millis(400));
        let report = run(&short);
        assert_eq!((report.end, report.bye), (EndReason::Duration, None));
        assert!((400..3000).contains(&report.duration_ms) && report.packets > 20, "{report}");
        assert!(report.is_clean(), "{report}");

        let cancel = AtomicBool::new(false);
        let report = play(&options(&server, TransportChoice::Tcp), &cancel, &mut |progress| {
            cancel.store(progress.packets > 50, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(report.end, EndReason::Cancelled);
        assert_eq!(server.seen.count("TEARDOWN"), 2);
        let error = play(&options(&server, TransportChoice::Udp), &cancel, &mut |_| {}).unwrap_err();
        assert!(matches!(error, ClientError::Cancelled), "{error}");
    });
}

#[test]
fn teardown_without_reply_does_not_block_exit() {
    steady(|| {
        let server = Server::start(Behaviour { ignore_teardown: true, ..Behaviour::new(30) });
        let started = Instant::now();
        let report = run(&options(&server, TransportChoice::Udp));
        assert_eq!((report.end, report.packets), (EndReason::Bye, 30));
        assert!(started.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn failures_have_words() {
    steady(|| {
        let fails = |behaviour: Behaviour, words: &[&str]| {
            let server = Server::start(behaviour);
            let error = play(&options(&server, TransportChoice::Udp), &AtomicBool::new(false), &mut |_| {})
                .unwrap_err();
            let error = error.to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        let film = Behaviour::new(10);
        fails(
            Behaviour { describe_status: Some("404 Not Found"), ..film.clone() },
            &["/film", "DESCRIBE", "404", "title's name"],
        );
        fails(
            Behaviour { describe_status: Some("453 Not Enough Bandwidth"), ..film.clone() },
            &["453", "try later"],
        );
        fails(Behaviour { describe_status: Some("401 Unauthorized"), ..film.clone() }, &["401", "password"]);
        fails(Behaviour { describe_status: Some("200 OK"), ..film.clone() }, &["SDP cannot be read"]);
        fails(
            Behaviour { garbage: Some(b"HTTP/1.1 200 OK\r\n\r\n"), ..film },
            &["OPTIONS", "HTTP/1.1 200 OK"],
        );

        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = PlayOptions::new(format!("rtsp://{closed}/film"));
        let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
        assert!(
            error.contains(&closed.to_string()) && error.contains("refused") && error.contains("server runs"),
            "{error}"
        );
    });
}

#[test]
fn full_disk_ends_session_with_error() {
    steady(|| {
        let server = Server::start(Behaviour::new(2000));
        let mut options = options(&server, TransportChoice::Udp);
        options.output = Output::File("/dev/full".into());
        let started = Instant::now();
        let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("/dev/full") && error.contains("No space left"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(3), "noticed while playing, not at the end");
        assert_eq!(server.seen.count("TEARDOWN"), 1);
    });
}

#[test]
fn sender_reports_that_lie_are_noticed() {
    steady(|| {
        let server = Server::start(Behaviour { sr_error: 500, ..Behaviour::new(50) });
        let report = run(&options(&server, TransportChoice::Tcp));
        assert_eq!((report.sender_reports.last_difference, report.sequence.lost_at_end), (500, Some(500)));
        assert!(report.problems.iter().any(|p| p.contains("sender reports differ")), "{report}");
    });
}

#[test]
fn packets_of_strangers_change_nothing() {
    steady(|| {
        let behaviour = Behaviour::new(400);
        let server = Server::start(behaviour.clone());
        let stranger = std::net::UdpSocket::bind("127.0.0.2:0").unwrap();
        let mut sent = 0;
        let options = options(&server, TransportChoice::Udp);
        let report = play(&options, &AtomicBool::new(false), &mut |_| {
            let setup = server.seen.request("SETUP");
            let port =
                setup.split("client_port=").nth(1).and_then(|p| p.split('-').next()).unwrap().to_owned();
            stranger
                .send_to(&[0x80, 33, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x47], format!("127.0.0.1:{port}"))
                .unwrap();
            sent += 1;
        })
        .unwrap();
        assert!(sent > 0);
        assert_eq!(
            (report.receiver.foreign, report.packets, report.sequence.strays),
            (sent, 400, 0),
            "{report}"
        );
    });
}

#[test]
fn json_is_stable() {
    steady(|| {
        let server = Server::start(Behaviour::new(20));
        let report = run(&options(&server, TransportChoice::Tcp));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let keys: Vec<&str> = report
            .to_json()
            .lines()
            .filter_map(|l| l.strip_prefix("  \"")?.split('"').next())
            .map(|k| k.to_owned().leak() as &str)
            .collect();
        assert_eq!(
            keys,
            [
                "url",
                "title",
                "transport",
                "fallback",
                "end",
                "place",
                "duration_ms",
                "packets",
                "payload_bytes",
                "mean_rate_bits_per_s",
                "sequence",
                "fec",
                "timing",
                "rtp_info_exact",
                "plays",
                "bye",
                "sender_reports",
                "ts",
                "byte_check",
                "receiver",
                "problems"
            ]
        );
        assert_eq!((&json["end"], &json["packets"]), (&serde_json::json!("bye"), &serde_json::json!(20)));
        assert!(json["timing"]["lateness"]["p999_us"].is_u64());
    });
}

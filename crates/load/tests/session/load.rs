//! Many viewers against servers that misbehave in exactly known ways.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_client::play::TransportChoice;
use millrace_core::time::MediaTicks;
use millrace_load::{Arrivals, LoadOptions, LoadReport, load};
use millrace_testkit::rtsp_server::{Behaviour, RtpInfo, Server, steady};

fn options(servers: &[&Server], sessions: u32, transport: TransportChoice) -> LoadOptions {
    let urls = servers.iter().map(|server| server.url()).collect();
    let mut options = LoadOptions::new(urls, sessions);
    options.transport = transport;
    options.arrivals = Arrivals::Ramp(Duration::from_millis(200));
    options.duration = Duration::from_millis(1500);
    options
}

fn run(options: &LoadOptions) -> LoadReport {
    load(options, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// 20 ms from packet to packet, so that the server's threads keep up on a busy machine.
fn slow(packets: usize) -> Behaviour {
    Behaviour { interval: Duration::from_millis(20), ..Behaviour::new(packets) }
}

#[test]
fn clean_films_to_their_end_on_every_transport_and_thread_count() {
    steady(|| {
        for (transport, threads, own_rtcp) in [
            (TransportChoice::Udp, 1, true),
            (TransportChoice::Udp, 2, true),
            (TransportChoice::Tcp, 2, true),
            (TransportChoice::Udp, 2, false),
        ] {
            let server = Server::start(slow(40));
            let mut options = options(&[&server], 20, transport);
            (options.threads, options.own_rtcp) = (threads, own_rtcp);
            options.duration = Duration::from_millis(2500);
            options.stall = Duration::from_secs(3);
            let report = run(&options);
            assert!(report.is_clean(), "{transport:?} {threads} {own_rtcp}: {report}");
            assert_eq!((report.played, report.failed, report.packets), (20, 0, 800), "{report}");
            assert_eq!(report.payload_bytes, 800 * 1316);
            assert_eq!(report.delivered_ratio, 1.0);
            // A shared RTCP socket cannot tell whose BYE it is: those players wait at the end until the time is over.
            assert_eq!(report.sessions_ended, 20);
            assert_eq!(report.receiver.kernel_stamps, transport == TransportChoice::Udp);
            assert_eq!(report.receiver.threads, threads as u64);
            // Half of them at least: a reply that was read late makes the time short.
            assert!(report.first_packet.p50_us >= 20_000 && report.first_packet_min_us.is_some(), "{report}");
            assert!(report.rate_bits_per_s > 0, "{report}");
            assert!(report.setup.max_us > 0 && report.setup.max_us < 5_000_000, "{report}");
            assert_eq!(server.seen.count("TEARDOWN"), 20);
            assert_eq!(server.seen.byes.load(Ordering::Relaxed), 20);
        }
    });
}

#[test]
fn loss_is_counted_exactly_and_the_worst_are_named() {
    steady(|| {
        let good = Server::start(slow(40));
        let mut behaviour = slow(40);
        behaviour.drop = vec![0, 10, 11, 39];
        behaviour.double = vec![20];
        behaviour.delay = vec![(25, 27)];
        let bad = Server::start(behaviour);
        let report = run(&options(&[&good, &bad], 10, TransportChoice::Udp));
        assert_eq!(
            (report.packets, report.lost, report.lost_at_start, report.lost_at_end),
            (380, 10, 5, 5),
            "{report}"
        );
        assert_eq!((report.duplicates, report.reordered, report.strays), (5, 5, 0));
        // That the announced packet was lost does not make the announcement wrong.
        assert_eq!((report.sessions_with_loss, report.rtp_info_wrong, report.sessions_ended), (5, 0, 10));
        assert_eq!(report.delivered_ratio, 380.0 / 400.0);
        assert_eq!(report.worst.len(), 10);
        assert!(
            report.worst[..5].iter().all(|w| w.lost == 4 && w.session % 2 == 1 && w.url == bad.url()),
            "{report}"
        );
        assert!(report.problems.iter().any(|p| p == "20 packets lost"), "{:?}", report.problems);
        assert_eq!(report.receiver.socket_drops, 0);
    });
}

#[test]
fn players_that_fail_are_counted_by_reason() {
    steady(|| {
        let film = slow(500);
        let servers = [
            Server::start(film.clone()),
            Server::start(Behaviour { describe_status: Some("404 Not Found"), ..film.clone() }),
            Server::start(Behaviour { refuse_udp: true, ..film.clone() }),
            Server::start(Behaviour { garbage: Some(b"\x00\x01\x02\r\n\r\n"), ..film.clone() }),
            Server::start(Behaviour { close_before: Some(10), ..film.clone() }),
            Server::start(Behaviour { mute_udp: true, ..film }),
        ];
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut options = options(&servers.each_ref(), 21, TransportChoice::Udp);
        options.targets.push(format!("rtsp://{closed}/film"));
        options.own_rtcp = true;
        options.duration = Duration::from_secs(1);
        let report = run(&options);
        assert_eq!((report.sessions, report.played, report.failed), (21, 9, 15), "{report}");
        let expected = [
            ("DESCRIBE refused: 404", 3),
            ("OPTIONS: malformed reply", 3),
            ("SETUP refused: 461", 3),
            ("connect: connection refused", 3),
            ("the server closed the connection while playing", 3),
        ];
        assert_eq!(report.failures.iter().map(|(k, n)| (k.as_str(), *n)).collect::<Vec<_>>(), expected);
        assert_eq!((report.sessions_silent, report.lost), (3, 0));
        assert!(report.sessions_stalled >= 3, "silence is a stall: {report}");
    });
}

#[test]
fn stalls_show_in_gaps_and_lateness_of_the_player_that_had_them() {
    steady(|| {
        let smooth = Server::start(slow(500));
        let stalling =
            Server::start(Behaviour { stall: Some((20, Duration::from_millis(700))), ..slow(500) });
        let report = run(&options(&[&smooth, &stalling], 6, TransportChoice::Udp));
        assert_eq!((report.sessions_stalled, report.lost, report.played), (3, 0, 6), "{report}");
        // The packet behind the stall is due 20 ms after the one before it, so it is 680 ms late.
        assert!(report.session_lateness_max.max_us >= 679_000, "{report}");
        let gap = report.session_longest_gap;
        assert!(gap.p50_us < 600_000 && gap.max_us >= 699_000, "{report}");
        assert!(report.worst[..3].iter().all(|w| w.url == stalling.url()), "{report}");
        assert!(report.together_ms > 1000 && report.rate_bits_per_s > 0);
    });
}

#[test]
fn load_counts_stream_stopping_without_bye_as_stalled() {
    steady(|| {
        // At its announced end, 20 s from here, it would only wait for a BYE.
        let stops = Behaviour { bye: None, stop_before: Some(20), ..slow(1000) };
        let server = Server::start(stops);
        let report = run(&options(&[&server], 3, TransportChoice::Tcp));
        assert_eq!((report.packets, report.sessions_stalled, report.sessions_ended), (60, 3, 0), "{report}");
        assert!(report.session_longest_gap.max_us >= 700_000, "{report}");
    });
}

#[test]
fn players_can_begin_at_different_places() {
    steady(|| {
        let server = Server::start(Behaviour { rtp_info: RtpInfo::Exact, ..slow(500) });
        let mut options = options(&[&server], 4, TransportChoice::Udp);
        options.start = MediaTicks::from_secs_f64(1.0).unwrap();
        options.start_spread = MediaTicks::from_secs_f64(4.0).unwrap();
        let report = run(&options);
        assert!(report.is_clean(), "{report}");
        let requests = server.seen.requests.lock().unwrap().clone();
        for start in ["1.000", "2.000", "3.000", "4.000"] {
            assert!(
                requests.iter().any(|r| r.starts_with("PLAY") && r.contains(&format!("npt={start}-"))),
                "{requests:?}"
            );
        }
    });
}

#[test]
fn cancel_ends_all_sessions_properly() {
    steady(|| {
        let server = Server::start(slow(5000));
        let mut options = options(&[&server], 12, TransportChoice::Udp);
        options.duration = Duration::from_secs(60);
        let (cancel, started) = (AtomicBool::new(false), Instant::now());
        let mut most = 0;
        let report = load(&options, &cancel, &mut |progress| {
            most = most.max(progress.playing);
            cancel.store(progress.playing == 12 && progress.packets > 100, Ordering::Relaxed);
        })
        .unwrap();
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(
            (most, report.played, report.failed, server.seen.count("TEARDOWN")),
            (12, 12, 0, 12),
            "{report}"
        );
    });
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refused = |change: fn(&mut LoadOptions), words: &str| {
        let mut options = LoadOptions::new(vec!["rtsp://127.0.0.1/x".to_owned()], 1);
        change(&mut options);
        let error = load(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(|o| o.targets.clear(), "URLs");
    refused(|o| o.streams = 0, "1 to 20000");
    refused(|o| o.streams = 20_001, "got 20001");
    refused(|o| o.threads = 0, "threads");
    refused(|o| o.duration = Duration::ZERO, "more than 0");
    refused(|o| o.gather = Duration::from_secs(1), "100 ms");
    refused(|o| o.user_agent = "a\r\nb".to_owned(), "user agent");
    refused(|o| o.targets = vec!["ftp://x/".to_owned()], "the scheme is not rtsp");
    refused(
        |o| (o.probe, o.targets) = (Some("lo".to_owned()), vec!["rtp://@:5000".to_owned()]),
        "rtsp targets",
    );
}

#[test]
fn pauses_and_seeks_are_new_runs_and_nothing_is_lost_between_them() {
    steady(|| {
        for (transport, text) in [
            (TransportChoice::Udp, "pause@0.4,play@0.8,seek@1.2=3"),
            (TransportChoice::Tcp, "pause 400ms fixed for 300ms fixed"),
        ] {
            let server = Server::start(slow(500));
            let mut options = options(&[&server], 4, transport);
            options.behaviour = text.parse().unwrap();
            options.duration = Duration::from_secs(2);
            let report = run(&options);
            assert_eq!((report.failed, report.lost_in_all(), report.strays), (0, 0, 0), "{text}: {report}");
            // A pause is neither lateness nor a stall.
            assert_eq!((report.sessions_stalled, report.deeds_skipped), (0, 0), "{text}: {report}");
            assert!(report.lateness.max_us < 200_000, "{text}: {report}");
            assert!(report.pauses >= 4, "{text}: {report}");
            assert_eq!(
                report.seeks,
                if transport == TransportChoice::Udp { 4 } else { 0 },
                "{text}: {report}"
            );
            assert!(report.per_stream.iter().all(|stream| stream.runs >= 2), "{:?}", report.per_stream);
            // One TS of one PID with counters that go up: a seek is not an error in it.
            assert_eq!((report.sessions_inspected, report.ts.continuity_errors), (4, 0), "{text}: {report}");
            assert_eq!(report.ts.packets, report.packets * 7, "{text}: {report}");
        }
    });
}

#[test]
fn load_zap_opens_next_title_and_leave_replaced_starts_new_viewer() {
    steady(|| {
        let servers = [Server::start(slow(500)), Server::start(slow(500))];
        let mut options = options(&servers.each_ref(), 3, TransportChoice::Udp);
        options.behaviour = "zap 500ms fixed".parse().unwrap();
        options.duration = Duration::from_millis(2500);
        let report = run(&options);
        assert!(report.is_clean(), "{report}");
        // A viewer that zaps when the time is over does not begin again; one that has only just
        // begun has no session to end.
        let about = |count: u64, all: u64| (all - 3..=all).contains(&count);
        assert!(report.zaps >= 6 && about(report.sessions, 3 + report.zaps), "{report}");
        assert_eq!(report.per_stream.len() as u64, report.sessions);
        let zapped: Vec<_> = report.per_stream.iter().filter(|stream| stream.session > 0).collect();
        // The film's first packet comes 50 ms after the reply to PLAY.
        assert!(
            zapped.iter().filter_map(|s| s.zap_us).all(|us| (50_000..2_000_000).contains(&us)),
            "{zapped:?}"
        );
        assert_eq!(report.zap.p50_us > 50_000, zapped.iter().any(|stream| stream.zap_us.is_some()));
        let of_one: Vec<_> = report.per_stream.iter().filter(|stream| stream.viewer == 1).collect();
        assert!(of_one.windows(2).all(|two| two[0].title != two[1].title), "{of_one:?}");
        let teardowns: usize = servers.iter().map(|server| server.seen.count("TEARDOWN")).sum();
        assert!(about(teardowns as u64, report.sessions), "{teardowns} {report}");

        options.behaviour = "leave 500ms fixed".parse().unwrap();
        let report = run(&options);
        assert_eq!(
            (report.leaves, report.replaced, report.sessions, report.failed),
            (3, 0, 3, 0),
            "{report}"
        );
        options.behaviour = "leave 500ms fixed replaced".parse().unwrap();
        let report = run(&options);
        assert!(report.leaves >= 6 && about(report.replaced, report.leaves), "{report}");
        assert_eq!(report.failed, 0, "{report}");
        assert_eq!(report.sessions, 3 + report.replaced, "{report}");
    });
}

#[test]
fn load_series_matches_session_totals() {
    steady(|| {
        let server = Server::start(slow(500));
        let mut options = options(&[&server], 4, TransportChoice::Udp);
        options.threads = 2;
        options.interval = Duration::from_millis(250);
        options.duration = Duration::from_millis(1800);
        let report = run(&options);
        // 200 ms of ramp and 1.8 s together: eight intervals, the last one perhaps cut short.
        assert!((7..=8).contains(&report.series.len()), "{:?}", report.series);
        assert!(report.series.windows(2).all(|two| two[1].at_ms == two[0].at_ms + 250));
        let sampled: u64 = report.series.iter().map(|sample| sample.packets).sum();
        assert!(sampled > 0 && sampled <= report.packets, "{sampled} {report}");
        let last = report.series.last().unwrap();
        assert_eq!((last.started, last.playing, last.failed, last.lost), (4, 4, 0, 0), "{last:?}");
        assert!(last.rate_bits_per_s > 1_000_000 && last.lateness_p99_us <= last.lateness_max_us, "{last:?}");
        assert!(report.per_stream.iter().all(|stream| stream.packets > 0 && stream.rate_bits_per_s > 0));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["per_stream"].as_array().unwrap().len(), 4);
        assert_eq!(json["arrivals"], "ramp:200ms");
    });
}

#[test]
fn load_with_same_seed_chooses_same_titles() {
    steady(|| {
        let servers = [Server::start(slow(500)), Server::start(slow(500)), Server::start(slow(500))];
        let mut options = options(&servers.each_ref(), 12, TransportChoice::Tcp);
        options.titles = "zipf:1".parse().unwrap();
        options.arrivals = "poisson:60/s".parse().unwrap();
        options.duration = Duration::from_millis(300);
        let titles = |seed| {
            let report = run(&LoadOptions { seed, ..options.clone() });
            assert_eq!(report.played, 12, "{report}");
            report.per_stream.into_iter().map(|stream| stream.title).collect::<Vec<_>>()
        };
        let first = titles(7);
        assert_eq!(first, titles(7));
        assert_ne!(first, titles(8));
    });
}

#[test]
fn servers_that_are_full_or_mute_fail_some_and_spare_the_rest() {
    steady(|| {
        let good = Server::start(slow(500));
        let full =
            Server::start(Behaviour { describe_status: Some("453 Not Enough Bandwidth"), ..slow(500) });
        // The kernel makes the connections, and no server ever answers.
        let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut options = options(&[&good, &full], 6, TransportChoice::Udp);
        options.targets.push(format!("rtsp://{}/film", mute.local_addr().unwrap()));
        options.reply_timeout = Duration::from_millis(700);
        let report = run(&options);
        assert_eq!((report.played, report.failed, report.lost), (2, 4, 0), "{report}");
        let expected = [("DESCRIBE refused: 453", 2), ("OPTIONS: no reply", 2)];
        assert_eq!(report.failures.iter().map(|(k, n)| (k.as_str(), *n)).collect::<Vec<_>>(), expected);
        let failed = report.per_stream.iter().filter(|stream| stream.failure.is_some());
        assert_eq!(failed.map(|stream| stream.viewer % 3).collect::<Vec<_>>(), [1, 2, 1, 2]);
    });
}

#[test]
fn servers_that_say_nothing_or_something_wrong_about_numbers_lose_nothing() {
    steady(|| {
        for (rtp_info, wrong) in [(RtpInfo::Absent, 0), (RtpInfo::Off(300), 3)] {
            let server = Server::start(Behaviour { rtp_info, first_sequence: 65_500, ..slow(500) });
            let mut options = options(&[&server], 3, TransportChoice::Udp);
            options.behaviour = "pause@0.5,play@0.8,seek@1.2=2".parse().unwrap();
            options.duration = Duration::from_secs(2);
            let report = run(&options);
            assert_eq!((report.failed, report.lost_in_all()), (0, 0), "{rtp_info:?}: {report}");
            assert_eq!(report.rtp_info_wrong, wrong, "{rtp_info:?}: {report}");
            assert!(
                report.per_stream.iter().all(|s| s.runs == 3 && s.packets > 40),
                "{rtp_info:?}: {report}"
            );
        }
    });
}

#[test]
fn load_separates_own_read_delay_over_tcp() {
    steady(|| {
        for transport in [TransportChoice::Tcp, TransportChoice::Udp] {
            let server = Server::start(slow(500));
            let mut options = options(&[&server], 2, transport);
            // This process looks at its sockets every 60 ms only.
            options.gather = Duration::from_millis(60);
            let report = run(&options);
            assert_eq!((report.failed, report.lost), (0, 0), "{report}");
            let is_tcp = transport == TransportChoice::Tcp;
            assert_eq!(report.packets_in_own_stalls > report.packets / 2, is_tcp, "{report}");
            if is_tcp {
                assert!(report.lateness_own.max_us >= 20_000, "{report}");
            } else {
                assert_eq!(report.packets_in_own_stalls, 0, "{report}");
                assert!(report.receiver.read_delay.max_us >= 20_000, "{report}");
            }
        }
    });
}

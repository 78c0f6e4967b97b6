//! Viewers over HTTP against a server that misbehaves in exactly known ways, and films that ffmpeg has cut for HLS.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::http_server::{Page, Server};
use millrace_core::units::BitRate;
use millrace_load::{Arrivals, Inspect, LoadOptions, LoadReport, load};

fn options(urls: &[String], streams: u32) -> LoadOptions {
    let mut options = LoadOptions::new(urls.to_vec(), streams);
    options.arrivals = Arrivals::AllAtOnce;
    options.duration = Duration::from_secs(20);
    options.reply_timeout = Duration::from_secs(10);
    options.web.buffer = Some(Duration::from_secs(1));
    options.web.start_buffer = Duration::from_millis(200);
    options
}

fn run(options: &LoadOptions) -> LoadReport {
    load(options, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// A transport stream: one packet with a clock reference and four without, again and again, each five `step_ms` apart.
fn film(groups: u64, step_ms: u64) -> Vec<u8> {
    let mut film = Vec::new();
    for group in 0..groups {
        for place in 0..5u64 {
            let mut packet = vec![0x47, 1, 0, 0x10 | ((group * 5 + place) % 16) as u8];
            if place == 0 {
                let base = group * step_ms * 90;
                packet[3] |= 0x20;
                packet.extend_from_slice(&[7, 0x10]);
                packet.extend_from_slice(&((base >> 1) as u32).to_be_bytes());
                packet.extend_from_slice(&[(base as u8 & 1) << 7 | 0x7e, 0]);
            }
            packet.resize(188, 0xff);
            film.extend(packet);
        }
    }
    film
}

#[test]
fn web_load_plays_file_to_end_for_each_body_length_form() {
    let film = film(50, 20); // 980 ms
    for page in [Page::file(&film), Page::file(&film).chunked(777), Page::file(&film).until_close()] {
        let server = Server::start([("/film.ts", page)]);
        let report = run(&options(&[server.url("/film.ts")], 4));
        let web = report.web.clone().unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!((report.played, report.failed, report.sessions_ended), (4, 0, 4), "{report}");
        assert_eq!(report.payload_bytes, 4 * film.len() as u64);
        assert_eq!((web.viewers, web.started, web.rebuffers), (4, 4, 0), "{report}");
        assert_eq!((web.requests, web.connections, web.connection_losses), (4, 4, 0));
        assert_eq!((web.ts.packets, web.ts.continuity_errors, web.ts.sync_losses), (1000, 0, 0));
        assert_eq!(web.played_us, 4 * 980_000);
        assert!(web.first_byte.max_us > 0 && web.startup.max_us >= web.first_byte.p50_us / 2, "{report}");
        assert_eq!(report.lateness.max_us, 0, "all of it was there before it was needed: {report}");
    }
}

#[test]
fn web_load_with_slow_server_counts_rebuffering() {
    let film = film(60, 20); // 1180 ms
    // Half of the film, then nothing for longer than that half plays.
    let page = Page::file(&film).stall_after(film.len() / 2, Duration::from_millis(1500));
    let server = Server::start([("/film.ts", page)]);
    let report = run(&options(&[server.url("/film.ts")], 3));
    let web = report.web.clone().unwrap();
    assert_eq!((web.rebuffers, web.viewers_rebuffered, report.sessions_ended), (3, 3, 3), "{report}");
    // 1500 ms less the 580 ms of film that were present; the media needed first was equally late.
    assert!(web.longest_rebuffer_us >= 800_000 && web.rebuffering_us >= 3 * 800_000, "{report}");
    assert!(report.lateness.max_us >= 800_000 && report.session_lateness_max.p50_us >= 800_000, "{report}");
    assert_eq!((report.sessions_stalled, web.played_us), (3, 3 * 1_180_000), "{report}");
    assert!(report.problems.iter().any(|problem| problem.contains("stood still")), "{report}");
}

#[test]
fn web_load_with_full_buffer_reads_at_playback_rate() {
    let film = film(3000, 20); // a minute, 2.8 MB
    let server = Server::start([("/film.ts", Page::file(&film))]);
    let mut options = options(&[server.url("/film.ts")], 1);
    options.duration = Duration::from_secs(3);
    let report = run(&options);
    // Three seconds, one in the buffer, and at most 64 KiB (1.4 s) read in one piece.
    let bytes_per_s = film.len() as u64 / 60;
    assert!(report.payload_bytes >= bytes_per_s && report.payload_bytes < bytes_per_s * 12, "{report}");
    assert_eq!((report.played, report.sessions_ended, report.failed), (1, 0, 0), "{report}");
}

#[test]
fn web_load_counts_failures_by_reason() {
    let film = film(50, 20);
    let server = Server::start([
        ("/missing.ts", Page::status("404 Not Found")),
        ("/busy.ts", Page::status("503 Service Unavailable")),
        ("/cut.ts", Page::file(&film).cut_at(5000)),
        ("/garbage.ts", Page::raw(b"SSH-2.0-x\r\n\r\n")),
        ("/chunks.ts", Page::raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")),
        ("/loop.ts", Page::redirect("/loop.ts")),
        ("/lost.ts", Page::redirect("https://example.com/x")),
        ("/plain.mp4", Page::file(&[7; 3000])),
        ("/html.m3u8", Page::file(b"<html>")),
    ]);
    let paths = [
        "/missing.ts",
        "/busy.ts",
        "/cut.ts",
        "/garbage.ts",
        "/chunks.ts",
        "/loop.ts",
        "/lost.ts",
        "/plain.mp4",
        "/html.m3u8",
    ];
    let mut urls: Vec<String> = paths.iter().map(|path| server.url(path)).collect();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    urls.push(format!("http://{closed}/film.ts"));
    let report = run(&options(&urls, 20));
    let expected = [
        ("connect: connection refused", 2),
        ("file: HTTP 404", 2),
        ("file: HTTP 503", 2),
        ("file: more than 8 redirects", 2),
        ("file: redirect: HTTPS is not supported: use http://", 2),
        ("file: the body was cut short", 2),
        ("file: the chunked body is malformed", 2),
        ("file: the response is not HTTP/1", 2),
        (
            "no clock reference in the first MiB: give the media's bit rate (nominal rate) or its duration (film length)",
            2,
        ),
        ("playlist: not an M3U8 playlist", 2),
    ];
    assert_eq!(
        report.failures.iter().map(|(k, n)| (k.as_str(), *n)).collect::<Vec<_>>(),
        expected,
        "{report}"
    );
    let web = report.web.unwrap();
    assert_eq!((web.connection_losses, web.redirects), (2, 2 * 9 + 2));
}

#[test]
fn redirects_are_followed_and_a_rate_stands_in_for_a_clock() {
    let server = Server::start([
        ("/old/film.mp4", Page::redirect("../new/film.mp4?x=1")),
        ("/new/film.mp4?x=1", Page::file(&[7; 100_000])),
    ]);
    let mut options = options(&[server.url("/old/film.mp4")], 2);
    options.nominal_rate = Some(BitRate(1_000_000)); // 800 ms
    let report = run(&options);
    let web = report.web.clone().unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((web.redirects, web.requests, web.played_us), (2, 4, 1_600_000), "{report}");
    assert_eq!(web.ts.packets, 0);
    // The same by the length of the film.
    options.nominal_rate = None;
    options.web.film_length = Some(Duration::from_millis(500));
    assert_eq!(run(&options).web.unwrap().played_us, 1_000_000);
}

#[test]
fn web_load_with_nominal_rate_starts_by_byte_range() {
    let film = film(200, 20);
    let server = Server::start([("/film.ts", Page::file(&film))]);
    let mut options = options(&[server.url("/film.ts")], 1);
    // 5 packets of 188 bytes in 20 ms.
    options.nominal_rate = Some(BitRate(376_000));
    options.start = millrace_core::time::MediaTicks(90_000 * 3);
    let report = run(&options);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.payload_bytes, film.len() as u64 / 4, "{report}");
    assert!(
        server.requests().iter().any(|request| request.contains("Range: bytes=141000-\r\n")),
        "{:?}",
        server.requests()
    );
}

/// A film of four seconds that ffmpeg has cut into segments of one; `None` where there is no ffmpeg.
fn cut_by_ffmpeg(dir: &Path, more: &[&str]) -> Option<()> {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-f", "lavfi", "-i", "testsrc=duration=4:size=160x120:rate=25", "-g", "25"]);
    command.args(["-c:v", "mpeg2video", "-f", "hls", "-hls_time", "1", "-hls_list_size", "0"]);
    match command.args(more).arg("index.m3u8").current_dir(dir).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            eprintln!("ffmpeg: {error}: HLS made by it is not tried");
            return None;
        }
    }
    Some(())
}

fn serve_folder(dir: &Path) -> Server {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = format!("/hls/{}", entry.file_name().to_str().unwrap());
        pages.push((path, Page::file(&std::fs::read(entry.path()).unwrap())));
    }
    Server::start(pages)
}

#[test]
fn hls_films_of_every_make_are_played_to_their_end() {
    for more in [
        &[][..],
        &["-hls_flags", "single_file"],
        &["-hls_segment_type", "fmp4"],
        &["-master_pl_name", "master.m3u8"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let Some(()) = cut_by_ffmpeg(dir.path(), more) else { return };
        let server = serve_folder(dir.path());
        let has_master = dir.path().join("master.m3u8").exists();
        let url = server.url(if has_master { "/hls/master.m3u8" } else { "/hls/index.m3u8" });
        let mut options = options(&[url], 2);
        options.web.buffer = Some(Duration::from_secs(20));
        let report = run(&options);
        let web = report.web.clone().unwrap();
        assert!(report.is_clean(), "{more:?}: {report}");
        assert_eq!((report.played, report.sessions_ended), (2, 2), "{report}");
        assert_eq!((web.playlists, web.segments), (if has_master { 4 } else { 2 }, 8), "{more:?}: {report}");
        assert!((7_900_000..=8_100_000).contains(&web.played_us), "{report}");
        assert_eq!(web.connections, 2, "one connection carries all: {report}");
        assert_eq!(web.ts.packets > 0, !more.contains(&"fmp4"), "{more:?}: {report}");
        // Viewers without inspection are sent the same, and count it.
        options.inspect = Inspect::None;
        let unseen = run(&options);
        let unseen_web = unseen.web.clone().unwrap();
        assert!(unseen.is_clean(), "{more:?}: {unseen}");
        assert_eq!(
            (unseen.payload_bytes, unseen_web.segments),
            (report.payload_bytes, 8),
            "{more:?}: {unseen}"
        );
        assert_eq!((unseen_web.connections, unseen_web.played_us), (2, web.played_us), "{unseen}");
        assert_eq!(unseen_web.ts.packets, 0, "{more:?}: {unseen}");
    }
}

fn playlist(first: u64, count: u64, end: &str) -> Vec<u8> {
    let segments: String = (first..first + count).map(|n| format!("#EXTINF:0.4,\n{n}.ts\n")).collect();
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:{first}\n{segments}{end}").into_bytes()
}

#[test]
fn live_hls_is_loaded_again_until_it_ends() {
    let segment = film(21, 20);
    let mut pages = vec![(
        "/live.m3u8".to_owned(),
        Page::in_turn([
            playlist(4, 3, ""),
            playlist(4, 3, ""),
            playlist(5, 4, ""),
            playlist(6, 4, "#EXT-X-ENDLIST\n"),
        ]),
    )];
    pages.extend((4..10).map(|n| (format!("/{n}.ts"), Page::file(&segment))));
    let server = Server::start(pages);
    let report = run(&options(&[server.url("/live.m3u8")], 1));
    let web = report.web.clone().unwrap();
    assert_eq!((report.failed, report.sessions_ended), (0, 1), "{report}");
    assert_eq!((web.playlists, web.segments, web.segments_skipped), (4, 6, 0), "{report}");
    assert_eq!(web.played_us, 6 * 400_000);
    assert_eq!(web.ts.continuity_errors, 0, "{report}");
}

#[test]
fn segments_that_are_missing_or_break_off_end_the_film_or_are_asked_for_again() {
    let segment = film(21, 20);
    let server = Server::start([
        ("/gone/x.m3u8".to_owned(), Page::file(&playlist(0, 2, "#EXT-X-ENDLIST\n"))),
        ("/gone/0.ts".to_owned(), Page::file(&segment)),
        ("/cut/x.m3u8".to_owned(), Page::file(&playlist(0, 2, "#EXT-X-ENDLIST\n"))),
        ("/cut/0.ts".to_owned(), Page::in_turn([segment.clone(), segment.clone()]).cut_first_at(1000)),
        ("/cut/1.ts".to_owned(), Page::file(&segment)),
    ]);
    let report = run(&options(&[server.url("/gone/x.m3u8")], 1));
    assert_eq!(report.failures.keys().collect::<Vec<_>>(), ["segment: HTTP 404"], "{report}");
    let report = run(&options(&[server.url("/cut/x.m3u8")], 1));
    let web = report.web.clone().unwrap();
    assert_eq!((report.failed, report.sessions_ended, web.connection_losses), (0, 1, 1), "{report}");
    assert_eq!((web.segments, web.requests_failed, web.requests), (2, 1, 4), "{report}");
}

#[test]
fn web_load_tolerates_server_closing_idle_connections() {
    let segment = film(21, 20);
    let mut pages =
        vec![("/x.m3u8".to_owned(), Page::file(&playlist(0, 3, "#EXT-X-ENDLIST\n")).then_close())];
    pages.extend((0..3).map(|n| (format!("/{n}.ts"), Page::file(&segment).then_close())));
    let server = Server::start(pages);
    let report = run(&options(&[server.url("/x.m3u8")], 2));
    let web = report.web.clone().unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((web.connections, web.connection_losses, web.requests_failed), (8, 0, 0), "{report}");
}

#[test]
fn viewers_pause_and_seek_by_byte_range_and_by_segment() {
    let film = film(500, 20); // ten seconds
    let mut pages = vec![("/film.ts".to_owned(), Page::file(&film))];
    pages.push(("/x.m3u8".to_owned(), Page::file(&playlist(0, 25, "#EXT-X-ENDLIST\n"))));
    pages.extend((0..25).map(|n| (format!("/{n}.ts"), Page::file(&film[..21 * 5 * 188]))));
    let server = Server::start(pages);
    for (url, asked_for) in [("/film.ts", "Range: bytes=42"), ("/x.m3u8", "GET /22.ts")] {
        let mut options = options(&[server.url(url)], 2);
        options.behaviour = "pause@0.4,play@0.7,seek@1=9".parse().unwrap();
        let report = run(&options);
        let web = report.web.clone().unwrap();
        assert_eq!(
            (report.failed, report.sessions_ended, report.pauses, report.seeks),
            (0, 2, 2, 2),
            "{report}"
        );
        assert!(web.slowest_seek.max_us > 0 && web.ts.continuity_errors == 0, "{report}");
        // About 700 ms of the beginning and a second of the end: neither the pause nor the part in
        // between is seen.
        assert!(web.played_us > 2 * 1_200_000 && web.played_us < 2 * 3_000_000, "{report}");
        assert!(
            server.requests().iter().any(|request| request.contains(asked_for)),
            "{:?}",
            server.requests()
        );
    }
}

#[test]
fn web_load_with_silent_server_times_out() {
    let server = Server::start([("/film.ts", Page::raw(b"").hang())]);
    let mut options = options(&[server.url("/film.ts")], 2);
    options.reply_timeout = Duration::from_millis(300);
    let report = run(&options);
    assert_eq!(
        report.failures.iter().map(|(k, n)| (k.as_str(), *n)).collect::<Vec<_>>(),
        [("file: no reply", 2)]
    );
}

#[test]
fn cancelling_ends_viewers_in_the_middle() {
    let server = Server::start([("/film.ts", Page::file(&film(3000, 20)))]);
    let mut options = options(&[server.url("/film.ts")], 5);
    options.duration = Duration::from_secs(60);
    let cancel = AtomicBool::new(false);
    let report = load(&options, &cancel, &mut |progress| {
        cancel.store(progress.playing == 5, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!((report.played, report.failed), (5, 0), "{report}");
}

//! The findings of `--analyse` on a received stream: the sender's faults are distinguished from the
//! effects of the network.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_client::play::{PlayOptions, TransportChoice, play};
use millrace_client::report::ReceptionReport;
use millrace_testkit::rtsp_server::{Behaviour, PAYLOAD, Server, steady};
use millrace_ts::{AnalysisVerdict, Check};

/// Three seconds of a film at a constant rate, whole payloads.
fn film() -> Vec<u8> {
    let done = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=s=160x120:r=25:d=3"])
        .args(["-f", "lavfi", "-i", "sine=f=440:r=48000:d=3", "-c:v", "libx264", "-preset", "ultrafast"])
        .args(["-b:v", "500k", "-maxrate", "500k", "-bufsize", "250k", "-pix_fmt", "yuv420p", "-c:a", "aac"])
        .args(["-muxrate", "1M", "-pcr_period", "20", "-f", "mpegts", "-"])
        .output()
        .expect("ffmpeg can be started; install it (Debian: apt-get install ffmpeg)");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut film = done.stdout;
    film.truncate(film.len() / PAYLOAD * PAYLOAD);
    film
}

fn behaviour(film: Vec<u8>) -> Behaviour {
    let mut behaviour = Behaviour::new(1);
    behaviour.film = film;
    behaviour.interval = Duration::from_micros(2000);
    behaviour.bye = Some(Duration::from_millis(100));
    behaviour
}

fn received(behaviour: Behaviour, transport: TransportChoice) -> ReceptionReport {
    let server = Server::start(behaviour);
    let mut options = PlayOptions::new(server.url());
    options.transport = transport;
    options.duration = Some(Duration::from_secs(20));
    options.reorder_wait = Duration::from_millis(100);
    options.analyse = true;
    play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

#[test]
fn loss_is_no_fault_of_the_stream() {
    steady(|| {
        let mut behaviour = behaviour(film());
        behaviour.drop = vec![30, 31, 32, 100, 200];
        behaviour.delay = vec![(50, 53), (120, 126)];
        behaviour.double = vec![70];
        let report = received(behaviour, TransportChoice::Udp);
        let analysis = report.analysis.as_ref().unwrap();
        assert_eq!(report.sequence.lost, 5, "{report}");
        assert_eq!(
            (analysis.verdict, analysis.faults()),
            (AnalysisVerdict::Incomplete, String::new()),
            "{report}"
        );
        assert_eq!(analysis.count(Check::Lost), 3, "{report}");
        assert_eq!(report.ts.continuity_errors, 0);
        assert!(report.ts.continuity_breaks_at_gaps > 0);
        assert!(!report.problems.iter().any(|problem| problem.contains("transport stream")), "{report}");
    });
}

#[test]
fn analyse_separates_sender_faults_from_network_loss() {
    steady(|| {
        let mut film = film();
        // Two packets of tables at other places: a counter jumps in the middle of a payload that came whole.
        let video: Vec<usize> = (0..film.len() / 188)
            .filter(|n| film[n * 188 + 1] & 0x5f == 1 && film[n * 188 + 2] == 0)
            .collect();
        film[video[100] * 188 + 1] = 0x1f;
        film[video[100] * 188 + 2] = 0xff;
        let whole = received(behaviour(film.clone()), TransportChoice::Tcp);
        let analysis = whole.analysis.as_ref().unwrap();
        assert_eq!(
            (analysis.verdict, analysis.count(Check::Continuity)),
            (AnalysisVerdict::Faulty, 1),
            "{whole}"
        );
        let problem = "faults of the transport stream: 1 continuity (1.4)";
        assert!(whole.problems.iter().any(|said| said == problem), "{:?}", whole.problems);
        assert!(whole.to_string().contains("verdict           faulty: 1 continuity (1.4)"), "{whole}");
        // Both at once, and each is counted as its own kind.
        let mut lossy = behaviour(film);
        lossy.drop = vec![10];
        let both = received(lossy, TransportChoice::Udp);
        let analysis = both.analysis.as_ref().unwrap();
        assert_eq!((analysis.count(Check::Continuity), analysis.count(Check::Lost)), (1, 1), "{both}");
    });
}

#[test]
fn analysis_is_absent_unless_requested() {
    let server = Server::start(behaviour(film()));
    let mut options = PlayOptions::new(server.url());
    options.duration = Some(Duration::from_secs(20));
    let report = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(report.analysis, None);
    assert!(!report.to_json().contains("\"analysis\""), "{}", report.to_json());
}

//! A client that causes thousands of log lines: at most ten a second are written, and the others are counted. The log of a whole
//! process is caught here, so this test program has one test.

#[allow(dead_code)] // the program `control` uses the rest of it
#[path = "control/rtsp_support/mod.rs"]
mod rtsp_support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_server::limits::MAX_CLIENT_LINES_PER_S;
use rtsp_support::live::{Live, viewer_ports};

/// The logged text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn session_cycles_seeks_and_broken_requests_write_ten_lines_a_second() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let mut live = Live::start();
    let start = Instant::now();
    let (rtp, rtcp) = viewer_ports();
    let mut v = live.viewer();
    let mut caused = 0;
    while start.elapsed() < Duration::from_millis(2500) || caused < 3000 {
        // started, plays, seeks, pauses, ended.
        let id = v.setup_udp(&rtp, &rtcp).session();
        assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
        assert_eq!(v.ask_session("PLAY", &id, "Range: npt=10-").status, 200);
        assert_eq!(v.ask_session("PAUSE", &id, "").status, 200);
        assert_eq!(v.ask_session("TEARDOWN", &id, "").status, 200);
        caused += 5;
        // A connection that is cut off because of its data.
        let mut bad = live.viewer();
        bad.stream.write_all(b"no RTSP at all\r\n\r\n").unwrap();
        assert_eq!(bad.answer().status, 400);
        assert!(bad.is_closed());
        caused += 1;
    }
    live.control.take().unwrap().shut_down(Duration::from_secs(5)).unwrap();
    let seconds = start.elapsed().as_secs() as usize + 1;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("millrace_server")).collect();
    // The last count of omitted lines comes at the end, whatever came before.
    assert!(lines.len() <= seconds * MAX_CLIENT_LINES_PER_S + 1, "{} lines in {seconds} s", lines.len());
    let count = |line: &str| -> u64 {
        let before = line.split(" log lines about clients were left out").next().unwrap();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (counts, written): (Vec<&str>, Vec<&str>) =
        lines.iter().copied().partition(|line: &&str| line.contains("were left out"));
    let left_out: u64 = counts.iter().map(|line| count(line)).sum();
    assert_eq!(left_out + written.len() as u64, caused, "every line is written or counted\n{text}");
}

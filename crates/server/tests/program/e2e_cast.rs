//! `millrace cast`: titles in a row to UDP and RTP, judged by a socket, by ffmpeg and by our analyser.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::wire::rtp::RtpHeader;
use millrace_ts::{Analyser, AnalyserOptions, Severity};
use serde_json::Value;

use crate::support::{add, film, millrace, signal};

/// Groups of a documentation range (RFC 5771 section 9.2), on the loopback interface.
const GROUP: Ipv4Addr = Ipv4Addr::new(233, 252, 0, 17);

/// Collects the datagrams that come to a socket.
pub(crate) struct Collector {
    pub(crate) at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<u8>>>,
}

impl Collector {
    /// Joins a group at the loopback interface.
    pub(crate) fn of_group() -> Self {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.join_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST).unwrap();
        let port = socket.local_addr().unwrap().port();
        Self::start(socket, (GROUP, port).into())
    }

    pub(crate) fn of_host() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        Self::start(socket, at)
    }

    fn start(socket: UdpSocket, at: SocketAddr) -> Self {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut all, mut buffer) = (Vec::new(), [0; 2048]);
            loop {
                match socket.recv(&mut buffer) {
                    Ok(length) => all.push(buffer[..length].to_vec()),
                    // Datagrams from before the flag are in the socket.
                    Err(_) if stopped.load(Ordering::Relaxed) => return all,
                    Err(_) => {}
                }
            }
        });
        Self { at, stop, thread }
    }

    /// Returns the datagrams of a sender that has ended.
    pub(crate) fn finish(self) -> Vec<Vec<u8>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Pictures that ffmpeg decodes of a file, and its complaints.
pub(crate) fn decoded(file: &Path) -> (usize, String) {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error", "-i"]).arg(file);
    let output =
        ffmpeg.args(["-map", "0:v", "-vsync", "passthrough", "-f", "framemd5", "-"]).output().unwrap();
    let frames = String::from_utf8_lossy(&output.stdout);
    let count = frames.lines().filter(|line| !line.starts_with('#')).count();
    (count, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Faults that our analyser finds.
pub(crate) fn faults(bytes: &[u8]) -> Vec<(&'static str, u64)> {
    let mut analyser = Analyser::new(AnalyserOptions::default());
    analyser.push(bytes);
    let report = analyser.finish();
    let faults = report.checks.iter().filter(|count| count.severity == Severity::Fault && count.count > 0);
    faults.map(|count| (count.check, count.count)).collect()
}

fn cast(dir: &Path, args: &[&str]) -> Child {
    let mut command = millrace();
    command.arg("cast").args(args).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The summary of a cast that has ended, its standard error and its exit code.
fn ended(child: Child) -> (Value, String, i32) {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    (summary, errors, output.status.code().unwrap())
}

fn two_films(dir: &Path) -> (PathBuf, PathBuf) {
    (film(dir, "one.ts", 2), film(dir, "two.ts", 2))
}

#[test]
fn cast_of_files_and_title_to_multicast_rtp_arrives_as_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (one, _) = two_films(dir.path());
    let store = dir.path().join("store");
    add(&dir.path().join("two.ts"), &store);
    std::fs::remove_file(dir.path().join("two.ts")).unwrap();
    std::fs::write(dir.path().join("evening.m3u"), "#EXTM3U\n#EXTINF:2,One\none.ts\ngone.ts\ntwo.ts\n")
        .unwrap();
    let collector = Collector::of_group();
    let url = format!("rtp://{}?iface=127.0.0.1&ttl=2", collector.at);
    let store = store.to_str().unwrap();
    let (summary, errors, code) =
        ended(cast(dir.path(), &["evening.m3u", &url, "--json", "--sdp", "x.sdp", "--store", store]));
    let datagrams = collector.finish();
    assert_eq!(code, 1, "an item was skipped: {errors}");
    assert!(errors.contains("gone.ts: skipped: no such title or file"), "{errors}");
    assert_eq!(summary["packets"], datagrams.len(), "{summary}");
    let titles: Vec<_> =
        summary["titles"].as_array().unwrap().iter().map(|title| title["sent"].as_u64()).collect();
    assert_eq!(titles, [Some(1), Some(0), Some(1)], "{summary}");
    let mut stream = Vec::new();
    for (number, datagram) in datagrams.iter().enumerate() {
        let (header, payload) = RtpHeader::parse(datagram).unwrap();
        assert_eq!((header.sequence, header.payload_type), (1 + number as u16, 33));
        stream.extend_from_slice(payload);
    }
    assert_eq!(faults(&stream), []);
    let file = dir.path().join("received.ts");
    std::fs::write(&file, stream).unwrap();
    let (frames, _) = decoded(&one);
    assert_eq!(decoded(&file), (2 * frames, String::new()));
    // Four seconds of media take four seconds.
    let seconds = summary["seconds"].as_f64().unwrap();
    assert!((3.5..=6.0).contains(&seconds), "{summary}");
    let sdp = std::fs::read_to_string(dir.path().join("x.sdp")).unwrap();
    assert!(sdp.contains(&format!("c=IN IP4 {GROUP}/2\r\n")), "{sdp}");
}

#[test]
fn cast_loop_repeats_until_interrupted_and_sums_up() {
    let dir = tempfile::tempdir().unwrap();
    let one = film(dir.path(), "one.ts", 1);
    let (frames, _) = decoded(&one);
    let collector = Collector::of_host();
    let url = format!("udp://{}?dscp=34&pkt_size=752", collector.at);
    let child = cast(dir.path(), &["one.ts", &url, "--loop", "--json"]);
    // Two rounds and a part of the third.
    std::thread::sleep(Duration::from_millis(2500));
    signal(child.id(), "INT");
    let (summary, errors, code) = ended(child);
    let datagrams = collector.finish();
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(summary["packets"], datagrams.len());
    assert!(datagrams.iter().all(|datagram| matches!(datagram.len(), 564 | 752)), "4 and 3 of seven");
    assert!(summary["titles"][0]["sent"].as_u64() >= Some(1), "{summary}");
    let stream = datagrams.concat();
    let continuity: Vec<_> =
        faults(&stream).into_iter().filter(|(check, _)| *check == "continuity").collect();
    assert_eq!(continuity, []);
    let file = dir.path().join("received.ts");
    std::fs::write(&file, stream).unwrap();
    assert!(decoded(&file).0 > frames, "the second round was received too");
}

#[test]
fn cast_without_anything_to_send_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "no film").unwrap();
    for (args, code, part) in [
        (&["gone", "udp://127.0.0.1:9", "--loop", "--store", "none"][..], 1, "gone: skipped: "),
        (&["notes.txt", "udp://127.0.0.1:9", "--store", "none"], 1, "notes.txt: skipped: "),
        (&["gone", "127.0.0.1:9"], 2, "write udp://ADDR:PORT"),
        (&["gone", "udp://127.0.0.1:9?ttl=0"], 2, "ttl=1 to 255"),
        (&["gone", "udp://239.1.1.1:9?iface=nosuch0"], 2, "cannot choose the interface"),
        (&["gone", "udp://127.0.0.1:9", "--sdp", "x"], 2, "only rtp://"),
        (&["gone.m3u", "udp://127.0.0.1:9"], 1, "playlist gone.m3u: cannot read it"),
    ] {
        let output = cast(dir.path(), args).wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(part), "{args:?}: {errors}");
    }
}

//! ST 2022-1 from other senders, ffmpeg's prompeg and GStreamer's encoder, with forced losses: repaired bit by bit.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_client::play::{PlayOptions, play};
use millrace_client::report::ReceptionReport;
use millrace_client::{ClientError, FecChoice, Output};

/// Distances of the ports: media, columns, rows.
const PORTS: [u16; 3] = [0, 2, 4];
/// Longest that any part may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the relay loses a media packet, by its number in the stream.
type Loses = fn(u64) -> bool;

/// A first port with the two others free, and sockets there.
fn bind_all() -> (u16, Vec<UdpSocket>) {
    for _ in 0..1000 {
        let first = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        if port % 2 == 1 || port > 65_000 {
            continue;
        }
        let others = PORTS[1..].iter().map(|distance| UdpSocket::bind(("127.0.0.1", port + distance)));
        if let Ok(others) = others.collect::<Result<Vec<_>, _>>() {
            return (port, std::iter::once(first).chain(others).collect());
        }
    }
    panic!("no three free ports");
}

/// Kills the program it started, however the test ends.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a socket is bound to this port of 127.0.0.1. Trying to bind it would take it away.
fn is_bound(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    sockets.contains(&format!("0100007F:{port:04X} "))
}

/// Who sends.
#[derive(Clone, Copy)]
enum Sender {
    Ffmpeg,
    GStreamer,
}

impl Sender {
    /// Why it cannot.
    fn lacks(self) -> Option<&'static str> {
        let runs = |program: &str, args: &[&str]| {
            let status =
                Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        match self {
            _ if !runs("ffmpeg", &["-version"]) => Some("ffmpeg is not installed"),
            Self::GStreamer if !runs("gst-inspect-1.0", &["rtpst2022-1-fecenc"]) => {
                Some("rtpst2022-1-fecenc of GStreamer is not installed")
            }
            _ => None,
        }
    }

    /// Sends the film in real time, with matrices of 5 x 5.
    fn command(self, film: &Path, port: u16) -> Command {
        let film = film.to_str().unwrap();
        let [_, columns, rows] = PORTS.map(|distance| format!("port={}", port + distance));
        match self {
            Self::Ffmpeg => {
                let mut command = Command::new("ffmpeg");
                command.args(["-nostdin", "-v", "error", "-re", "-i", film, "-c", "copy"]);
                command.args(["-f", "rtp_mpegts", "-fec", "prompeg=l=5:d=5"]);
                command.arg(format!("rtp://127.0.0.1:{port}?pkt_size=1328"));
                command
            }
            Self::GStreamer => {
                let mut command = Command::new("gst-launch-1.0");
                let fec = r#"fec-encoders=fec,0="rtpst2022-1-fecenc\ rows\=5\ columns\=5";"#;
                command.args(["-q", "rtpbin", "name=rtp", fec]);
                command.args([
                    "filesrc",
                    &format!("location={film}"),
                    "!",
                    "tsparse",
                    "set-timestamps=true",
                    "!",
                ]);
                command.args(["rtpmp2tpay", "ssrc=0", "!", "rtp.send_rtp_sink_0"]);
                command.args([
                    "rtp.send_rtp_src_0",
                    "!",
                    "udpsink",
                    "host=127.0.0.1",
                    &format!("port={port}"),
                ]);
                command.args([
                    "rtp.send_fec_src_0_0",
                    "!",
                    "udpsink",
                    "async=false",
                    "host=127.0.0.1",
                    &columns,
                ]);
                command.args([
                    "rtp.send_fec_src_0_1",
                    "!",
                    "udpsink",
                    "async=false",
                    "host=127.0.0.1",
                    &rows,
                ]);
                command
            }
        }
    }
}

fn make_film(path: &Path) {
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25", "-t", "5"])
        .args(["-c:v", "mpeg2video", "-b:v", "3M", "-minrate", "3M", "-maxrate", "3M", "-bufsize", "1M"])
        .args(["-f", "mpegts"])
        .arg(path)
        .status()
        .unwrap();
    assert!(made.success());
}

/// What passed the relay.
#[derive(Default)]
struct Relayed {
    /// Payloads of all media packets that came, lost ones too.
    payloads: BTreeMap<u64, Vec<u8>>,
    lost: u64,
    fec: u64,
}

/// Receives the packets at `from` and sends them on to the ports from `to` on, except for the lost
/// ones, until `stop`.
fn relay(from: &[UdpSocket], to: u16, loses: Loses, stop: &AtomicBool) -> Relayed {
    let mut relayed = Relayed::default();
    let out = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let mut first = None;
    let mut buffer = [0; 2048];
    from.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let mut idle_since = Instant::now();
    // When the sender is gone, the packets it has sent must still be taken.
    while !stop.load(Ordering::Relaxed) || idle_since.elapsed() < Duration::from_millis(300) {
        let mut is_idle = true;
        for (socket, distance) in from.iter().zip(PORTS) {
            while let Ok(len) = socket.recv(&mut buffer) {
                is_idle = false;
                let datagram = &buffer[..len];
                let mut is_lost = false;
                if distance == 0 {
                    let sequence = u16::from_be_bytes([datagram[2], datagram[3]]);
                    let number = u64::from(sequence.wrapping_sub(*first.get_or_insert(sequence)));
                    relayed.payloads.insert(number, datagram[12..].to_vec());
                    is_lost = loses(number);
                    relayed.lost += u64::from(is_lost);
                } else {
                    relayed.fec += 1;
                }
                if !is_lost {
                    out.send_to(datagram, ("127.0.0.1", to + distance)).unwrap();
                }
            }
        }
        if is_idle {
            std::thread::sleep(Duration::from_micros(200));
        } else {
            idle_since = Instant::now();
        }
    }
    relayed
}

/// Sends a film with FEC through a relay that loses packets; returns the output, the packets
/// relayed, and the report.
fn run(sender: Sender, loses: Loses) -> Option<(Vec<u8>, Relayed, ReceptionReport)> {
    if let Some(what) = sender.lacks() {
        eprintln!("skipped: {what}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let (film, out) = (dir.path().join("film.ts"), dir.path().join("out.ts"));
    make_film(&film);
    let (port, sockets) = bind_all();
    let (stop_relay, stop_player) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (to, held) = bind_all();
        drop(held);
        let mut options = PlayOptions::new(format!("rtp://127.0.0.1:{to}"));
        (options.fec, options.output, options.silence) = (FecChoice::Xor, Output::File(out.clone()), TIMEOUT);
        let player = scope.spawn({
            let stop = &stop_player;
            move || play(&options, stop, &mut |_| {})
        });
        // It listens when its ports are taken.
        let deadline = Instant::now() + TIMEOUT;
        while !is_bound(to + PORTS[2]) {
            assert!(Instant::now() < deadline && !player.is_finished(), "the player does not listen");
            std::thread::sleep(Duration::from_millis(1));
        }
        let relay = scope.spawn({
            let (sockets, stop) = (&sockets, &stop_relay);
            move || relay(sockets, to, loses, stop)
        });
        let mut sender = Program(sender.command(&film, port).spawn().unwrap());
        while sender.0.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop_relay.store(true, Ordering::Relaxed);
        let relayed = relay.join().unwrap();
        // The relayed packets lie in the player's sockets, and it looks at them before it checks
        // whether to stop.
        stop_player.store(true, Ordering::Relaxed);
        let report = player.join().unwrap().unwrap();
        Some((std::fs::read(&out).unwrap(), relayed, report))
    })
}

fn check(sender: Sender, loses: Loses) {
    let Some((out, relayed, report)) = run(sender, loses) else { return };
    let sent: Vec<u8> = relayed.payloads.values().flatten().copied().collect();
    let counts = report.fec.clone().unwrap();
    let count = relayed.payloads.len() as u64;
    assert!(count > 1000 && relayed.lost > 20 && relayed.fec > 300, "{count} packets, {} lost", relayed.lost);
    assert_eq!(counts.lost_on_the_way, relayed.lost, "{report}");
    assert_eq!(
        (counts.counts.repaired, counts.counts.lost, counts.counts.unsettled),
        (relayed.lost, 0, 0),
        "{report}"
    );
    assert_eq!((report.packets + relayed.lost, counts.counts.fec_packets), (count, relayed.fec), "{report}");
    assert_eq!(
        (report.sequence.lost, counts.counts.unfit, report.ts.continuity_errors),
        (0, 0, 0),
        "{report}"
    );
    assert!(out == sent, "{} of {} bytes, {report}", out.len(), sent.len());
}

/// Where packets are lost: not in the first matrices, and not at the end, whose FEC ffmpeg does not send.
fn is_in_the_middle(number: u64) -> bool {
    (50..1000).contains(&number)
}

#[test]
fn single_packets_come_back() {
    check(Sender::Ffmpeg, |n| is_in_the_middle(n) && n % 20 == 7);
}

#[test]
fn bursts_of_a_row_come_back() {
    check(Sender::Ffmpeg, |n| is_in_the_middle(n) && n % 50 < 5);
}

/// Neither a row nor a column alone can: each repair makes the next one possible.
#[test]
fn rows_and_columns_help_each_other() {
    check(Sender::Ffmpeg, |n| is_in_the_middle(n) && matches!(n % 100, 50 | 51 | 55));
}

#[test]
fn gstreamer_is_repaired_by_rows_and_columns() {
    check(Sender::GStreamer, |n| is_in_the_middle(n) && (n % 50 < 5 || matches!(n % 100, 75 | 76 | 80)));
}

#[test]
fn listen_on_occupied_fec_port_reports_error() {
    let (port, _held) = bind_all();
    let mut options = PlayOptions::new(format!("rtp://127.0.0.1:{}", port - 2));
    options.fec = FecChoice::Xor;
    let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(matches!(error, ClientError::Listen { .. }), "{error}");
    assert!(error.to_string().contains("another program"), "{error}");
    options.start = Some(millrace_core::time::MediaTicks(1));
    let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("cannot be controlled"), "{error}");
}

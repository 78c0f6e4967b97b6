//! Listeners fed by sockets that send exactly known things, and by ffmpeg.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::units::BitRate;
use millrace_load::{Arrivals, LoadOptions, LoadReport, load};

/// The first of `count` even ports in a row that are free.
fn free_ports(count: u16) -> u16 {
    for _ in 0..1000 {
        let first = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() & !1;
        let ports: Vec<u16> = (0..2 * count).filter_map(|n| first.checked_add(n)).collect();
        let free = ports.iter().map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)));
        if ports.len() == usize::from(2 * count) && free.collect::<Result<Vec<_>, _>>().is_ok() {
            return first;
        }
    }
    panic!("no free ports");
}

/// Whether a socket is bound to the port.
fn is_taken(port: u16) -> bool {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_err()
}

fn options(url: String, streams: u32) -> LoadOptions {
    let mut options = LoadOptions::new(vec![url], streams);
    options.arrivals = Arrivals::AllAtOnce;
    options.duration = Duration::from_secs(60);
    options.stall = Duration::from_secs(30);
    options
}

/// Runs a load; when its listeners are there, `send` sends, and then the load ends.
fn run(options: &LoadOptions, ports: &[u16], send: impl FnOnce() + Send) -> LoadReport {
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for port in ports {
                while !is_taken(*port) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            send();
            cancel.store(true, Ordering::Relaxed);
        });
        load(options, &cancel, &mut |_| {}).unwrap()
    })
}

/// Seven TS packets of one PID; the counter goes up from datagram to datagram.
fn datagram(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for n in 0..7 {
        bytes.extend([0x47, 1, 0, 0x10 | ((number * 7 + n) % 16) as u8]);
        bytes.resize(bytes.len() + 184, n as u8);
    }
    bytes
}

#[test]
fn raw_streams_at_consecutive_even_ports() {
    let first = free_ports(3);
    let ports = [first, first + 2, first + 4];
    let mut options = options(format!("udp://127.0.0.1:{first}"), 3);
    options.nominal_rate = Some(BitRate(1_052_800)); // 10 ms a datagram
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let report = run(&options, &ports, || {
        for number in 0..100 {
            for port in ports {
                if port != ports[1] || ![10, 11, 50].contains(&number) {
                    sender.send_to(&datagram(number), ("127.0.0.1", port)).unwrap();
                }
            }
            std::thread::sleep(Duration::from_millis(1)); // the receive buffer is not what is tested
        }
        sender.send_to(b"not a transport stream", ("127.0.0.1", first)).unwrap();
    });
    assert_eq!((report.played, report.failed, report.packets, report.lost), (3, 0, 297, 3), "{report}");
    assert_eq!(
        (report.sessions_with_loss, report.payload_bytes, report.receiver.malformed),
        (1, 297 * 1316, 1)
    );
    assert!(report.receiver.kernel_stamps && report.receiver.socket_drops == 0, "{report}");
    assert_eq!(report.ts.continuity_errors, 0, "what is lost is no error of the stream: {report}");
    let lost: Vec<u64> = report.per_stream.iter().map(|stream| stream.lost).collect();
    assert_eq!(lost.iter().sum::<u64>(), 3);
}

#[test]
fn rtp_is_counted_as_over_rtsp_at_ports_side_by_side() {
    let first = free_ports(1);
    let ports = [first, first + 1];
    let options = options(format!("rtp://127.0.0.1:{first}?step=1"), 2);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let report = run(&options, &ports, || {
        for number in (0u16..100).filter(|number| ![20, 21].contains(number)) {
            let mut packet = vec![0x80, 33];
            packet.extend((65_500u16.wrapping_add(number)).to_be_bytes());
            packet.extend((u32::from(number) * 90).to_be_bytes());
            packet.extend(7u32.to_be_bytes());
            packet.extend(datagram(u64::from(number)));
            for port in ports {
                sender.send_to(&packet, ("127.0.0.1", port)).unwrap();
                if number == 30 {
                    sender.send_to(&packet, ("127.0.0.1", port)).unwrap();
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!((report.played, report.failed, report.packets), (2, 0, 2 * 98), "{report}");
    assert_eq!((report.lost, report.duplicates, report.sessions_with_loss), (4, 2, 2), "{report}");
    assert_eq!((report.payload_bytes, report.rtp_info_wrong), (2 * 98 * 1316, 0));
}

#[test]
fn silence_and_taken_ports_are_failures() {
    let first = free_ports(2);
    let _taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, first + 2)).unwrap();
    let mut silent = options(format!("udp://127.0.0.1:{first}"), 2);
    silent.reply_timeout = Duration::from_millis(200);
    let report = load(&silent, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let failures: Vec<_> = report.failures.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(failures, [("listen: address in use", 1), ("no packet within 0.2 s", 1)], "{report}");
    assert_eq!((report.played, report.sessions), (0, 2));
    let error = load(&options("udp://somewhere:5000".to_owned(), 1), &AtomicBool::new(false), &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("not a name"));
}

#[test]
fn listener_receives_ffmpeg_udp_and_rtp_intact() {
    for (scheme, format, options_of_url) in [("udp", "mpegts", "?pkt_size=1316"), ("rtp", "rtp_mpegts", "")] {
        let port = free_ports(2);
        let url = format!("{scheme}://127.0.0.1:{port}");
        let source = "testsrc=duration=3:size=320x240:rate=25";
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-re", "-f", "lavfi", "-i", source, "-c:v", "mpeg2video", "-b:v", "1M"]);
        ffmpeg.args(["-f", format, &format!("{url}{options_of_url}")]);
        let mut is_there = true;
        let report = run(&options(url, 1), &[port], || match ffmpeg.status() {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                eprintln!("ffmpeg: {error}: its streams are not tried");
                is_there = false;
            }
        });
        if !is_there {
            return;
        }
        assert!(report.is_clean(), "{scheme}: {report}");
        assert!(report.packets > 100 && report.payload_bytes % 188 == 0, "{scheme}: {report}");
        assert_eq!((report.played, report.sessions_inspected), (1, 1), "{scheme}: {report}");
        assert!(report.ts.pcrs > 10 && report.ts.continuity_errors == 0, "{scheme}: {report}");
    }
}

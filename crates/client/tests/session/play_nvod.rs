//! `nvod://` against a sender on the loopback interface that loses chosen packets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_client::report::EndReason;
use millrace_client::{Output, PlayOptions, ReceptionReport, ReceptionVerdict, play};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::RtpHeader;
use millrace_nvod::{Announcement, PlacedPacket, Plan, PlanRequest, Scheme, channel_group};

/// A group of a documentation range (RFC 5771 section 9.2).
const GROUP: Ipv4Addr = Ipv4Addr::new(233, 252, 0, 96);
const PACKETS: u32 = 100;
const PACKET_NS: u64 = 10_000_000;

/// Null packets with the number of the packet in the first.
fn payload(number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for packet in 0..7u8 {
        let mut ts = [0xff; 188];
        ts[..4].copy_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
        ts[4..8].copy_from_slice(&number.to_be_bytes());
        ts[8] = packet;
        bytes.extend(ts);
    }
    bytes
}

/// Sends a title of a second again and again on one channel until `stop`.
fn send(control: SocketAddr, lost: &[u32], stop: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_ip_multicast_if(&socket, &Ipv4Addr::LOCALHOST).unwrap();
    let film_ns = u64::from(PACKETS) * PACKET_NS;
    let plan = Plan::new(PlanRequest { scheme: Scheme::Staggered, channels: 1, film_ns }).unwrap();
    let start = Instant::now();
    let mut sequence = 0u32;
    while !stop.load(Ordering::Relaxed) {
        for number in 0..PACKETS {
            let due = u64::from(sequence) * PACKET_NS;
            sequence += 1;
            std::thread::sleep(Duration::from_nanos(due).saturating_sub(start.elapsed()));
            let announcement = Announcement {
                plan: plan.clone(),
                session: 9,
                packets: PACKETS,
                largest_segment: PACKETS,
                bytes: u64::from(PACKETS) * 1316,
                position_ns: start.elapsed().as_nanos() as u64,
                name: "Test film".to_owned(),
            };
            socket.send_to(&announcement.emit(), control).unwrap();
            let time = MediaTicks::from_ns(u64::from(number) * PACKET_NS);
            let header = RtpHeader {
                marker: false,
                payload_type: 33,
                sequence: sequence as u16,
                timestamp: 0,
                ssrc: 9,
            };
            let payload = payload(number);
            let packet = PlacedPacket { header, number, time, payload: &payload };
            if !lost.contains(&number) {
                let datagram = [&packet.emit_header()[..], &payload].concat();
                socket.send_to(&datagram, channel_group(control, 0).unwrap()).unwrap();
            }
        }
    }
}

fn received(lost: &'static [u32], output: Output) -> ReceptionReport {
    let port = UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let control = SocketAddr::from((GROUP, port));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let sender = std::thread::spawn(move || send(control, lost, &stopped));
    let mut options = PlayOptions::new(format!("nvod://{control}?interface=127.0.0.1"));
    options.output = output;
    options.duration = Some(Duration::from_secs(60));
    let report = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    report
}

#[test]
fn nvod_viewer_writes_whole_title_and_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.ts");
    let report = received(&[], Output::File(file.clone()));
    assert_eq!((report.end, report.verdict()), (EndReason::Complete, ReceptionVerdict::Right), "{report}");
    assert_eq!((report.title.as_str(), report.packets), ("Test film", PACKETS.into()));
    let expected: Vec<u8> = (0..PACKETS).flat_map(payload).collect();
    assert!(std::fs::read(file).unwrap() == expected);
    // At the playback rate too, where nothing is written.
    let report = received(&[], Output::Null);
    assert_eq!((report.end, report.verdict()), (EndReason::Complete, ReceptionVerdict::Right), "{report}");
}

#[test]
fn nvod_viewer_counts_lost_packets_wherever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.ts");
    let report = received(&[0, 30, 31, 99], Output::File(file.clone()));
    assert_eq!((report.end, report.verdict()), (EndReason::Complete, ReceptionVerdict::Damaged), "{report}");
    let sequence = report.sequence;
    assert_eq!((sequence.lost_at_start, sequence.lost, sequence.lost_at_end), (1, 2, Some(1)), "{report}");
    let expected: Vec<u8> =
        (0..PACKETS).filter(|number| ![0, 30, 31, 99].contains(number)).flat_map(payload).collect();
    assert!(std::fs::read(file).unwrap() == expected);
}

#[test]
fn nvod_address_that_is_no_group_is_refused() {
    let options = PlayOptions::new("nvod://127.0.0.1:5000");
    let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("no multicast group"), "{error}");
}

//! Files are read back by a reader of their blocks, by etherparse, and by tcpdump where it is installed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant as StdInstant};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

use super::*;

const LINK: LinkLayer = LinkLayer::Ethernet { mac: [2, 0, 0, 0, 0, 1], vlan: None };

/// A block of a file: its kind and its body.
fn blocks(bytes: &[u8]) -> Vec<(u32, &[u8])> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut blocks) = (0, Vec::new());
    while at < bytes.len() {
        let length = word(at + 4) as usize;
        assert_eq!((length % 4, word(at + length - 4) as usize), (0, length), "block at {at}");
        blocks.push((word(at), &bytes[at + 8..at + length - 4]));
        at += length;
    }
    blocks
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The value of an option.
fn option(mut options: &[u8], code: u16) -> Option<&[u8]> {
    while options.len() >= 4 {
        let half = |at: usize| u16::from_le_bytes([options[at], options[at + 1]]);
        let (found, length) = (half(0), usize::from(half(2)));
        if found == code {
            return Some(&options[4..4 + length]);
        }
        options = &options[4 + length.next_multiple_of(4)..];
    }
    None
}

/// A captured packet: nanoseconds, way, length, bytes.
type CapturedPacket = (u64, u32, u32, Vec<u8>);

fn packets(file: &[u8]) -> Vec<CapturedPacket> {
    let all = blocks(file);
    assert_eq!((all[0].0, number(all[0].1, 0)), (0x0a0d_0d0a, 0x1a2b_3c4d));
    assert_eq!(all[1].0, 1, "an interface");
    assert_eq!(option(&all[1].1[8..], 9), Some(&[9][..]), "nanoseconds");
    let packets = all.iter().filter(|(kind, _)| *kind == 6).map(|(_, body)| {
        let ns = u64::from(number(body, 4)) << 32 | u64::from(number(body, 8));
        let kept = number(body, 12) as usize;
        let flags = option(&body[20 + kept.next_multiple_of(4)..], 2).unwrap();
        (ns, number(flags, 0), number(body, 16), body[20..20 + kept].to_vec())
    });
    packets.collect()
}

/// The last block: packets, lost ones, and why it ends.
fn ending(file: &[u8]) -> (u64, u64, String) {
    let (kind, body) = *blocks(file).last().unwrap();
    assert_eq!(kind, 5, "statistics are at the end");
    let count = |code| u64::from_le_bytes(option(&body[12..], code).unwrap().try_into().unwrap());
    (count(4), count(5), String::from_utf8(option(&body[12..], 1).unwrap().to_vec()).unwrap())
}

/// A clock that goes on by a nanosecond each time.
struct Ticks(Cell<u64>);

impl Clock for Ticks {
    fn now(&self) -> Instant {
        Instant(self.0.replace(self.0.get() + 1))
    }
}

/// Packets to be received.
struct Queue(VecDeque<Vec<u8>>);

impl Device for Queue {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        Ok(self.0.pop_front().map(|packet| take(Inbound::new(&packet))).is_some())
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        Ok(packet.len() < 2000)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

const WALL_NS: u64 = 1_700_000_000_123_456_789;

fn open(capture: &Capture, received: Vec<Vec<u8>>) -> io::Result<Captured<Queue, Ticks>> {
    Captured::open(Queue(received.into()), capture, LINK, Ticks(Cell::new(1)), WALL_NS)
}

/// A TCP segment from port `port`.
fn frame(port: u16, payload: usize) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(port, 80, 1, 2000);
    let mut frame = Vec::new();
    builder.write(&mut frame, &vec![port as u8; payload]).unwrap();
    frame
}

fn capture_in(dir: &tempfile::TempDir) -> Capture {
    Capture::to(dir.path().join("engine.pcapng"), |text| panic!("{text}"))
}

#[test]
fn capture_file_holds_packets_of_both_directions_with_times() {
    let dir = tempfile::tempdir().unwrap();
    let capture = Capture { snap_bytes: 100, ..capture_in(&dir) };
    let mut device = open(&capture, vec![frame(1, 10), frame(2, 1400)]).unwrap();
    assert!(device.send(&frame(3, 33)).unwrap());
    let mut seen = Vec::new();
    while device.receive(&mut |packet| seen.push(packet.bytes.to_vec())).unwrap() {}
    assert_eq!(seen, [frame(1, 10), frame(2, 1400)], "the engine gets whole packets");
    assert!(!device.send(&[0; 2000]).unwrap(), "what was not sent is not in the file");
    assert!(device.flush(Instant(1)).unwrap() && device.readable().is_none());
    drop(device);
    let file = std::fs::read(&capture.file).unwrap();
    let all = packets(&file);
    let expected = [(1, 2, frame(3, 33)), (2, 1, frame(1, 10)), (3, 1, frame(2, 1400))];
    assert_eq!(all.len(), expected.len());
    for ((ns, way, length, bytes), (after, expected_way, sent)) in all.iter().zip(&expected) {
        assert_eq!((*ns, way), (WALL_NS + after, expected_way));
        assert_eq!(*length as usize, sent.len());
        assert_eq!(bytes[..], sent[..sent.len().min(100)]);
    }
    let sliced = SlicedPacket::from_ethernet(&all[1].3).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no segment") };
    assert_eq!((tcp.source_port(), tcp.payload()), (1, &[1; 10][..]));
    assert!(matches!(sliced.net, Some(NetSlice::Ipv4(_))));
    assert_eq!(ending(&file), (3, 0, "the engine has ended".to_owned()));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&capture.file).unwrap());
    assert_eq!(mode & 0o777, 0o600, "only its owner reads what others have said");
    // Another implementation.
    let Ok(output) = Command::new("tcpdump").args(["-n", "-tt", "--nano", "-r"]).arg(&capture.file).output()
    else {
        eprintln!("skipped: tcpdump is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 3, "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1700000000.123456791 IP 10.0.0.1.1 > 10.0.0.2.80"), "{text}");
}

#[test]
fn packets_without_a_link_header_are_marked_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture_in(&dir);
    let device =
        Captured::open(Queue(VecDeque::new()), &capture, LinkLayer::Ip, Ticks(Cell::new(1)), 0).unwrap();
    drop(device);
    let file = std::fs::read(&capture.file).unwrap();
    assert_eq!(number(blocks(&file)[1].1, 0), 101);
    assert_eq!(ending(&file).0, 0);
}

/// Waits until the thread has seen that the file takes no more.
fn until_over(device: &mut Captured<Queue, Ticks>, packet: &[u8]) {
    let begun = StdInstant::now();
    while !device.tap.shared.is_over.load(Ordering::Relaxed) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the capture goes on");
        assert!(device.send(packet).unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn capture_at_max_bytes_ends_with_whole_blocks() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let dir = tempfile::tempdir().unwrap();
    let report = |text: &str| SAID.lock().unwrap().push(text.to_owned());
    let capture = Capture { max_bytes: 500_000, report, ..capture_in(&dir) };
    let mut device = open(&capture, vec![frame(9, 9)]).unwrap();
    until_over(&mut device, &frame(7, 1000));
    assert!(device.send(&frame(8, 8)).unwrap() && device.receive(&mut |_| {}).unwrap());
    drop(device);
    let file = std::fs::read(&capture.file).unwrap();
    let all = packets(&file);
    assert!((490_000..=500_000).contains(&file.len()), "{}", file.len());
    assert!(all.iter().all(|packet| packet.3 == frame(7, 1000)), "nothing else is in there");
    let (count, lost, why) = ending(&file);
    assert!(count - lost == all.len() as u64 && why.contains("size that was set"), "{count} {lost} {why}");
    let said = SAID.lock().unwrap();
    assert!(said.len() == 1 && said[0].contains("engine goes on"), "{said:?}");
}

#[test]
fn capture_on_full_disk_ends_with_whole_blocks_and_error() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let report = |text: &str| SAID.lock().unwrap().push(text.to_owned());
    // The header is written at once, so nothing begins on a full disk.
    let full = Capture::to("/dev/full", report);
    let error = open(&full, Vec::new()).err().unwrap().to_string();
    assert!(error.contains("/dev/full") && error.contains("choose"), "{error}");
    // A file in memory that may not grow acts as a disk that is full after a number of bytes.
    let fd = rustix::fs::memfd_create("full", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(fd.try_clone().unwrap());
    let mut writer = CaptureWriter::new(file, &Capture::to("memory", report), LINK).unwrap();
    let header =
        std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))).unwrap().len();
    rustix::fs::ftruncate(&fd, 20_000).unwrap();
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::GROW).unwrap();
    let stamp = |ns| Stamp { ns, way: PacketDirection::Out, length: 900, kept: 900 };
    let mut fed = 0;
    let error = loop {
        if let Err(error) = writer.packet(&stamp(fed), &[7; 900]).and_then(|()| writer.flush()) {
            break error;
        }
        fed += 1;
    };
    let text = writer.give_up(&error, 5);
    assert!(text.contains(&format!("after {} packets", fed + 1)) && text.contains("memory"), "{text}");
    let mut bytes = Vec::new();
    io::Read::read_to_end(
        &mut File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))).unwrap(),
        &mut bytes,
    )
    .unwrap();
    assert!(bytes.len() as u64 > header && bytes.len() <= 20_000);
    assert_eq!(packets(&bytes).len() as u64, fed, "whole blocks only");
    assert!(SAID.lock().unwrap().is_empty());
}

#[test]
fn capture_with_full_ring_counts_lost_packets() {
    let (producer, mut consumer) = rtrb::RingBuffer::new(4096);
    let shared = Arc::new(CaptureStatus::default());
    let clock = Ticks(Cell::new(1));
    let mut tap = Tap { clock, epoch_ns: 0, snap_bytes: 65_536, ring: producer, shared, thread: None };
    for _ in 0..6 {
        tap.note(PacketDirection::In, &[5; 1000]);
    }
    assert_eq!(tap.shared.lost.load(Ordering::Relaxed), 2);
    let dir = tempfile::tempdir().unwrap();
    let capture = capture_in(&dir);
    let mut writer = CaptureWriter::new(File::create(&capture.file).unwrap(), &capture, LINK).unwrap();
    for _ in 0..3 {
        take_all(&mut consumer, &mut writer).unwrap();
        // Around the end of the ring.
        for _ in 0..3 {
            tap.note(PacketDirection::Out, &[6; 999]);
        }
    }
    take_all(&mut consumer, &mut writer).unwrap();
    writer.end(tap.shared.lost.load(Ordering::Relaxed), "test").unwrap();
    let file = std::fs::read(&capture.file).unwrap();
    let all = packets(&file);
    assert!(
        all[..4].iter().all(|packet| packet.3 == [5; 1000])
            && all[4..].iter().all(|packet| packet.3 == [6; 999])
    );
    assert_eq!((all.len(), ending(&file)), (13, (15, 2, "test".to_owned())));
}

use super::*;
use crate::null::{CollectTx, SliceBatch};
use millrace_core::ids::StreamId;
use millrace_core::seam::{Dest, Transmit};
use millrace_core::time::Instant;

struct Still(u64);

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(self.0)
    }
}

fn source() -> PcapSource {
    PcapSource {
        v4: "198.51.100.1:5000".parse().unwrap(),
        v6: "[2001:db8::1]:5000".parse().unwrap(),
        wall_offset_ns: 1_700_000_000_000_000_000,
    }
}

fn transmit(dest: Dest, payload: Payload<'_>) -> Transmit<'_> {
    Transmit { stream: StreamId { index: 0, generation: 0 }, dest, payload }
}

/// A capture of one batch with every kind of entry; the inner device blocks the first after two datagrams.
fn capture() -> (Vec<u8>, Vec<u8>) {
    let bytes: Vec<u8> = (0..101).collect();
    let headers = [0xee; 36];
    let v4 = Dest::Udp { rtp: "192.0.2.9:6000".parse().unwrap(), rtcp: "192.0.2.9:6001".parse().unwrap() };
    let v6 =
        Dest::Udp { rtp: "[2001:db8::9]:6000".parse().unwrap(), rtcp: "[2001:db8::9]:6001".parse().unwrap() };
    let tcp = Dest::Tcp { conn: ConnId(7), rtp_channel: 2, rtcp_channel: 3 };
    let wire = Payload::Wire { bytes: &bytes, segment: 33 };
    let batch = [
        transmit(v4, wire),
        transmit(v6, Payload::Patched { headers: &headers, bytes: &bytes[..79], segment: 33 }),
        transmit(v4, Payload::Rtcp(&bytes[..8])),
        transmit(tcp, wire),
        transmit(tcp, Payload::Rtcp(&bytes[..8])),
        transmit(v4, wire),
    ];
    let mut inner = CollectTx::default();
    inner.answers.push_back(SendOutcome::Blocked { taken: 2 });
    inner.answers.extend([SendOutcome::Sent; 4]);
    inner.answers.push_back(SendOutcome::Unreachable { errno: 1 });
    let mut tx = PcapTx::new(inner, Vec::new(), Still(5_000_000_123), source()).unwrap();
    tx.send(&SliceBatch(&batch), &mut [SendOutcome::Sent; 6]);
    let (inner, file, records) = tx.finish().unwrap();
    assert_eq!(inner.sent.len() as u64, records);
    assert_eq!(records, 2 + 3 + 1 + 4 + 1);
    (file, bytes)
}

/// The Internet checksum as RFC 1071 writes it, over bytes that include the checksum: zero if it is right.
fn rfc1071(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Layer-4 bytes of a packet, after its lengths and sums have been checked.
fn checked(packet: &[u8]) -> &[u8] {
    let (pseudo, body, length) = if packet[0] >> 4 == 4 {
        assert_eq!(rfc1071(&packet[..20]), 0, "IPv4 header");
        let length = u16::from_be_bytes([packet[2], packet[3]]) as usize - 20;
        ([&packet[12..20], &[0, packet[9]]].concat(), &packet[20..], length)
    } else {
        let length = u16::from_be_bytes([packet[4], packet[5]]) as usize;
        ([&packet[8..40], &[0, packet[6]]].concat(), &packet[40..], length)
    };
    assert_eq!(body.len(), length);
    let whole = [pseudo, (length as u16).to_be_bytes().to_vec(), body.to_vec()].concat();
    assert_eq!(rfc1071(&whole), 0, "UDP or TCP checksum");
    body
}

#[test]
fn every_record_is_a_whole_packet_with_right_sums() {
    let (file, bytes) = capture();
    assert_eq!(file[..4], 0xa1b2_3c4du32.to_le_bytes());
    assert_eq!(file[20..24], 101u32.to_le_bytes());
    let mut at = 24;
    let mut packets = Vec::new();
    while at < file.len() {
        let word = |o: usize| u32::from_le_bytes(file[at + o..at + o + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (1_700_000_005, 123));
        let length = word(8) as usize;
        assert_eq!(length, word(12) as usize);
        packets.push(checked(&file[at + 16..at + 16 + length]));
        at += 16 + length;
    }
    let ports = |p: &[u8]| (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]]));
    assert_eq!((ports(packets[0]), &packets[0][8..]), ((5000, 6000), &bytes[..33]));
    assert_eq!((ports(packets[4]), &packets[4][20..]), ((5000, 6000), &bytes[78..79]));
    assert_eq!(packets[4][8..20], [0xee; 12]);
    assert_eq!((ports(packets[5]), &packets[5][8..]), ((5001, 6001), &bytes[..8]));
    // Four frames of RTP and one of RTCP: sequence numbers run through.
    let mut sequence = 1;
    for (place, packet) in packets[6..].iter().enumerate() {
        assert_eq!(ports(packet), (554, 10_007));
        assert_eq!(packet[4..8], u32::to_be_bytes(sequence));
        assert_eq!(packet[20..22], [b'$', if place < 4 { 2 } else { 3 }]);
        assert_eq!(usize::from(u16::from_be_bytes([packet[22], packet[23]])), packet.len() - 24);
        sequence += packet.len() as u32 - 20;
    }
}

#[test]
fn tcpdump_reads_it_and_finds_no_bad_checksum() {
    let (file, _) = capture();
    let path = tempfile::Builder::new().suffix(".pcap").tempfile().unwrap();
    std::fs::write(path.path(), file).unwrap();
    let output = std::process::Command::new("tcpdump").args(["-n", "-vv", "-r"]).arg(path.path()).output();
    let Ok(output) = output else {
        eprintln!("skipped: tcpdump is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("198.51.100.1.5000 > 192.0.2.9.6000").count(), 2, "{text}");
    assert_eq!(text.matches("2001:db8::1.5000 > 2001:db8::9.6000").count(), 3, "{text}");
    assert!(text.contains("udp sum ok") && !text.contains("bad") && !text.contains("incorrect"), "{text}");
}

/// Takes `room` bytes, then no more.
struct Short {
    room: usize,
}

impl Write for Short {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room < bytes.len() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.room -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_sending() {
    let dest = Dest::Udp { rtp: "192.0.2.9:6000".parse().unwrap(), rtcp: "192.0.2.9:6001".parse().unwrap() };
    let bytes = [0; 100];
    let batch = [transmit(dest, Payload::Wire { bytes: &bytes, segment: 20 })];
    let mut tx =
        PcapTx::new(CollectTx::default(), Short { room: 24 + 2 * 64 + 20 }, Still(0), source()).unwrap();
    let mut outcomes = [SendOutcome::Closed { errno: 0 }];
    tx.send(&SliceBatch(&batch), &mut outcomes);
    assert_eq!(outcomes, [SendOutcome::Sent]);
    assert_eq!(tx.inner().sent.len(), 5);
    let Err(error) = tx.finish() else { panic!("the writer was full") };
    assert_eq!(error.to_string().split(':').next(), Some("packet capture"));
    assert!(error.to_string().contains("record 2"), "{error}");
    let Err(error) = PcapTx::new(CollectTx::default(), Short { room: 3 }, Still(0), source()) else {
        panic!("no room for the header")
    };
    assert!(error.to_string().contains("record 0"), "{error}");
}

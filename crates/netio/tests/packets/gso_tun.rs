//! What this kernel does with trains of a TUN device: cut where they leave by another one. Needs root; skipped otherwise.

use std::time::Instant;

use crate::support::*;
use etherparse::PacketBuilder;
use millrace_netio::NetError;
use millrace_netio::tun::{GsoTun, Tun};

const TCP_AT: [usize; 2] = [20, 40];

/// A router between two TUN devices: trains come by the first, and what leaves by the second is read here.
struct Router {
    _ns: Netns,
    trains: GsoTun,
    out: Tun,
}

fn router() -> Option<Router> {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: network namespaces need root, and TUN devices a kernel that has them");
        return None;
    }
    let ns = Netns::new("g");
    let up = |name: &str, v4: &str, v6: &str| {
        ns.ip(&format!("link set {name} addrgenmode none mtu 1500 txqueuelen 1000 up"));
        ns.ip(&format!("addr add {v4} dev {name}"));
        ns.ip(&format!("addr add {v6} dev {name} nodad"));
    };
    let trains = ns.inside(|| GsoTun::open("tg")).expect("a TUN device");
    let out = ns.inside(|| Tun::open("to")).expect("a TUN device");
    up("tg", "10.77.1.1/24", "fd77:1::1/64");
    up("to", "10.77.2.1/24", "fd77:2::1/64");
    ns.must("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    Some(Router { _ns: ns, trains, out })
}

fn segment(is_v4: bool, seq: u32, bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let body: Vec<u8> = (0..bytes).map(|at| (seq as usize * 7 + at * 3) as u8).collect();
    let v6 = |last: u8, net: u8| [0xfd, 0x77, 0, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let builder = if is_v4 {
        PacketBuilder::ipv4([10, 77, 1, 2], [10, 77, 2, 2], 64)
    } else {
        PacketBuilder::ipv6(v6(2, 1), v6(2, 2), 64)
    };
    let mut packet = Vec::new();
    builder.tcp(554, 40_000, seq, 1000).ack(1).write(&mut packet, &body).unwrap();
    (packet[..packet.len() - bytes].to_vec(), body)
}

impl Router {
    /// The next TCP segment that leaves; the kernel itself may have something to say.
    fn next_segment(&self) -> Vec<u8> {
        let (mut packet, deadline) = ([0; 70_000], Instant::now() + TIMEOUT);
        loop {
            assert!(Instant::now() < deadline, "nothing leaves");
            let Some(bytes) = self.out.read(&mut packet).expect("a device") else {
                std::thread::yield_now();
                continue;
            };
            let (protocol, tcp) =
                if packet[0] >> 4 == 4 { (packet[9], TCP_AT[0]) } else { (packet[6], TCP_AT[1]) };
            if protocol == 6 {
                return packet[tcp..bytes].to_vec();
            }
        }
    }
}

#[test]
fn gso_train_is_split_into_original_segments() {
    let Some(mut router) = router() else { return };
    for is_v4 in [true, false] {
        let (mut seq, mut given) = (u32::MAX - 3000, Vec::new());
        for bytes in [1440, 1440, 1440, 1440, 700, 1440, 3] {
            let (head, body) = segment(is_v4, seq, bytes);
            assert!(router.trains.gather(&head, &[&body[..bytes / 2], &body[bytes / 2..]]).unwrap());
            given.push([&head[TCP_AT[usize::from(!is_v4)]..], &body].concat());
            seq = seq.wrapping_add(bytes as u32);
        }
        assert!(router.trains.flush().unwrap());
        for (number, expected) in given.iter().enumerate() {
            // Checksums too: they cover nothing that a router changes.
            assert!(router.next_segment() == *expected, "IPv4: {is_v4}, segment {number}");
        }
    }
}

#[test]
fn non_segment_packet_passes_gso_tun_unchanged() {
    let Some(mut router) = router() else { return };
    let (head, body) = segment(true, 7, 100);
    assert!(router.trains.gather(&[&head[..], &body].concat(), &[]).unwrap());
    assert!(router.next_segment() == [&head[20..], &body].concat());
}

#[test]
fn gso_tun_open_of_used_device_is_refused() {
    let Some(router) = router() else { return };
    let error = router._ns.inside(|| GsoTun::open("tg")).unwrap_err();
    assert!(Tun::is_taken(&error), "{error}");
    assert!(matches!(error, NetError::Socket { .. }));
}

/// Builds by hand the answer to a SYN of the kernel, and acknowledgements of data.
fn reply(to: &etherparse::TcpHeader, is_syn: bool, ack: u32) -> Vec<u8> {
    let builder = PacketBuilder::ipv4([10, 77, 1, 2], [10, 77, 1, 1], 64);
    let mut tcp = builder.tcp(to.destination_port, to.source_port, if is_syn { 1000 } else { 1001 }, 65_535);
    tcp = tcp.ack(ack);
    if is_syn {
        tcp = tcp.syn().options(&[etherparse::TcpOptionElement::MaximumSegmentSize(1460)]).unwrap();
    }
    let mut packet = Vec::new();
    tcp.write(&mut packet, &[]).unwrap();
    packet
}

#[test]
fn gso_tun_receives_unsegmented_data_from_kernel() {
    let Some(mut router) = router() else { return };
    let sent: Vec<u8> = (0..60_000u32).map(|at| ((at * 7) >> 4) as u8).collect();
    let data = sent.clone();
    let ns = &router._ns;
    let (mut got, mut next, mut longest) = (Vec::new(), None::<u32>, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ns.inside(|| {
                let mut stream = std::net::TcpStream::connect("10.77.1.2:80").expect("a connection");
                std::io::Write::write_all(&mut stream, &data).expect("sent");
            });
        });
        let deadline = Instant::now() + TIMEOUT;
        while got.len() < sent.len() {
            assert!(Instant::now() < deadline, "{} bytes came", got.len());
            let Some((packet, is_checked)) = router.trains.receive().expect("a device") else {
                std::thread::yield_now();
                continue;
            };
            if packet[0] >> 4 != 4 || packet[9] != 6 {
                continue;
            }
            let (tcp, payload) = etherparse::TcpHeader::from_slice(&packet[20..]).expect("a segment");
            assert!(is_checked, "the kernel has made a checksum for nobody");
            let expected = *next.get_or_insert(tcp.sequence_number);
            if tcp.sequence_number == expected && (tcp.syn || !payload.is_empty()) {
                got.extend_from_slice(payload);
                longest = longest.max(payload.len());
                let ack = expected.wrapping_add(payload.len() as u32 + u32::from(tcp.syn));
                next = Some(ack);
                let answer = reply(&tcp, tcp.syn, ack);
                assert!(router.trains.gather(&answer, &[]).expect("a device"));
            }
        }
    });
    assert!(got == sent);
    assert!(longest > 1460, "all segments were cut: {longest} bytes at most");
}

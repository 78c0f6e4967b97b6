//! Every receiving device against the same rules: datagrams of a peer in another namespace, each once, in order, with the right addresses;
//! more than there is room for; an interface that is taken away. Needs root; skipped otherwise.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant as StdInstant};

use crate::support::*;
use millrace_core::limits::RX_BATCH_PACKETS;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{DeviceGone, PacketRx, Protocol, Received};
use millrace_core::time::Instant;
use millrace_netio::KernelRx;
use millrace_netio::limits::RX_LOOK_NS;
use millrace_netio::recv::UdpRxConfig;
use millrace_netio::xdp::steer::Steering;
use millrace_netio::xdp::{XdpError, XdpRx, XdpRxConfig};

/// Where the devices receive.
const LOCAL: [&str; 3] = ["10.77.0.2:5004", "10.77.0.3:5004", "[fd77::2]:5004"];
/// Frames of the AF_XDP device: few, so that tests go around its rings and beyond.
const FRAMES: u32 = 64;

/// A device, and what belongs to it.
struct Device {
    name: &'static str,
    // In this order: nothing is steered to a socket that is gone.
    _steering: Option<Steering>,
    rx: Box<dyn PacketRx>,
}

fn local(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// One socket for both families.
fn kernel(net: &Wire, receive_buffer: usize) -> Device {
    let socket = net.viewers.inside(|| UdpSocket::bind("[::]:5004")).expect("a socket");
    let config =
        UdpRxConfig { gro: true, batch: 8, receive_buffer: Some(receive_buffer), ..Default::default() };
    let rx = KernelRx::new(socket, config).expect("options");
    Device { name: "kernel", _steering: None, rx: Box::new(rx) }
}

/// `None`, with the reason printed, where this kernel has no AF_XDP.
fn xdp(net: &Wire) -> Option<Device> {
    let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(1)), 1);
    let config = XdpRxConfig { interface: "vb".into(), queue: 0, arena, frames: FRAMES, zero_copy: false };
    let rx = match net.viewers.inside(|| XdpRx::open(&config)) {
        Ok(rx) => rx,
        Err(XdpError::Call { source, .. }) if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            eprintln!("skipped: this kernel is built without AF_XDP");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let steering = net.viewers.inside(|| Steering::attach("vb")).expect("a program");
    for at in LOCAL {
        steering.steer(Protocol::Udp, local(at)).expect("steer");
    }
    steering.steer(Protocol::Tcp, local("10.77.0.2:80")).expect("steer");
    steering.set_socket(0, rx.socket_fd().expect("a socket")).expect("a place");
    Some(Device { name: "AF_XDP", _steering: Some(steering), rx: Box::new(rx) })
}

/// Runs `test` with each device on a wire of its own.
fn with_each(receive_buffer: usize, test: impl Fn(&Wire, &mut Device)) {
    let Some(net) = Wire::new() else { return };
    test(&net, &mut kernel(&net, receive_buffer));
    let Some(net) = Wire::new() else { return };
    if let Some(mut device) = xdp(&net) {
        test(&net, &mut device);
    }
}

/// Senders in the other namespace, each with one destination: two of them to the same.
fn flows(net: &Wire) -> Vec<(UdpSocket, SocketAddr)> {
    let pairs = [
        ("10.77.0.1:0", LOCAL[0]),
        ("10.77.0.1:0", LOCAL[0]),
        ("10.77.0.1:0", LOCAL[1]),
        ("[fd77::1]:0", LOCAL[2]),
    ];
    pairs.map(|(from, to)| (net.server.inside(|| UdpSocket::bind(from)).expect("a socket"), local(to))).into()
}

/// The clock of a loop.
fn now(begun: StdInstant) -> Instant {
    Instant(1 << 40).plus_ns(begun.elapsed().as_nanos() as u64)
}

#[test]
fn rx_devices_deliver_each_datagram_once_in_order() {
    with_each(8 << 20, |net, device| {
        let flows = flows(net);
        let begun = StdInstant::now();
        let mut got: HashMap<SocketAddr, Vec<Vec<u8>>> = HashMap::new();
        let mut last = Instant(0);
        // Empty ones, odd ones, the longest that fits; more in all than any ring holds.
        let sizes = [0, 1, 7, 333, 1000, 1451, 1452, 512];
        let payload = |flow: usize, round: u32| {
            pattern(flow as u32 * 1000 + round, sizes[(flow + round as usize) % sizes.len()])
        };
        let (rounds, mut sent_bytes) = (150u32, 0);
        for round in 0..rounds {
            let round_begun = StdInstant::now();
            for (number, (socket, to)) in flows.iter().enumerate() {
                let bytes = payload(number, round);
                sent_bytes += bytes.len() as u64;
                socket.send_to(&bytes, to).expect("send");
            }
            let wanted = flows.len() * (round as usize + 1);
            while got.values().map(Vec::len).sum::<usize>() < wanted {
                assert!(
                    round_begun.elapsed() < TIMEOUT,
                    "{}: datagrams are missing in round {round}",
                    device.name
                );
                let now = now(begun);
                let mut shown = 0;
                let mut sink = |r: &Received<'_>| {
                    let (_, to) = flows
                        .iter()
                        .find(|(socket, _)| socket.local_addr().expect("bound") == r.source)
                        .expect("a source that sent something");
                    assert_eq!((r.protocol, r.destination), (Protocol::Udp, *to), "{}", device.name);
                    assert!(last <= r.arrival && r.arrival <= now, "{}: {last:?} {r:?}", device.name);
                    last = r.arrival;
                    got.entry(r.source).or_default().push(r.bytes.to_vec());
                    shown += 1;
                };
                let taken = device.rx.receive(now, &mut sink).expect("a device");
                assert!(shown <= taken && taken <= RX_BATCH_PACKETS, "{shown} of {taken}");
            }
        }
        for (number, (socket, _)) in flows.iter().enumerate() {
            let expected: Vec<_> = (0..rounds).map(|round| payload(number, round)).collect();
            assert!(got[&socket.local_addr().expect("bound")] == expected, "{}: flow {number}", device.name);
        }
        let counters = *device.rx.counters();
        assert_eq!((counters.packets, counters.bytes), (u64::from(rounds) * 4, sent_bytes));
        assert_eq!(
            [counters.dropped, counters.truncated, counters.malformed, counters.bad_checksums],
            [0; 4]
        );
    });
}

#[test]
fn rx_overflow_is_counted_and_rest_is_undamaged() {
    with_each(8192, |net, device| {
        let (socket, to) = flows(net).remove(0);
        // Less than a veth interface itself holds.
        let mut sent = 0u32;
        let send = |sent: &mut u32| {
            socket.send_to(&pattern(*sent, 1000), to).expect("send");
            *sent += 1;
        };
        while sent < 200 {
            send(&mut sent);
        }
        let begun = StdInstant::now();
        let (mut got, mut time) = (Vec::new(), Instant(1 << 40));
        loop {
            let taken = device.rx.receive(time, &mut |r| got.push(r.bytes.to_vec())).expect("a device");
            if got.len() as u64 + device.rx.counters().dropped == u64::from(sent) {
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "{}: {:?} of {sent}", device.name, device.rx.counters());
            time = time.plus_ns(RX_LOOK_NS);
            if taken == 0 && sent < 1000 {
                // The kernel reports drops with the next datagram that finds room.
                send(&mut sent);
            }
        }
        assert!(device.rx.counters().dropped > 0, "{}: {:?}", device.name, device.rx.counters());
        // Those that came are whole, and in the order in which they were sent.
        let mut expected = (0..sent).map(|number| pattern(number, 1000));
        for bytes in &got {
            assert!(
                expected.any(|other| other == *bytes),
                "{}: a datagram is damaged or out of order",
                device.name
            );
        }
        assert!(!got.is_empty(), "{}", device.name);
        let counters = *device.rx.counters();
        assert_eq!((counters.packets, counters.malformed, counters.bad_checksums), (got.len() as u64, 0, 0));
    });
}

#[test]
fn rx_device_reports_removed_interface() {
    with_each(8 << 20, |net, device| {
        let (socket, to) = flows(net).remove(0);
        socket.send_to(b"before", to).expect("send");
        let begun = StdInstant::now();
        let mut time = Instant(1 << 40);
        let mut got = Vec::new();
        while got.is_empty() {
            assert!(begun.elapsed() < TIMEOUT, "{}: nothing came", device.name);
            device.rx.receive(time, &mut |r| got.push(r.bytes.to_vec())).expect("a device");
        }
        assert_eq!(got, [b"before"]);
        net.server.ip("link del va");
        let mut receive = || {
            time = time.plus_ns(RX_LOOK_NS);
            device.rx.receive(time, &mut |r| panic!("{r:?}"))
        };
        let gone = Err(DeviceGone { errno: libc::ENETDOWN });
        if device.name == "kernel" {
            // A socket outlives interfaces; others may bring something yet.
            assert_eq!((receive(), receive()), (Ok(0), Ok(0)));
        } else {
            while receive() != gone {
                assert!(begun.elapsed() < TIMEOUT, "nobody says that the interface is gone");
            }
            assert_eq!((receive(), receive()), (gone, gone));
        }
    });
}

#[test]
fn segments_of_a_steered_tcp_port_come_whole() {
    let Some(net) = Wire::new() else { return };
    let Some(mut device) = xdp(&net) else { return };
    let to = local("10.77.0.2:80");
    std::thread::scope(|scope| {
        // No host answers, so it keeps trying until its timeout.
        scope.spawn(|| net.server.inside(|| TcpStream::connect_timeout(&to, Duration::from_millis(50))));
        let begun = StdInstant::now();
        let mut got = None;
        while got.is_none() {
            assert!(begun.elapsed() < TIMEOUT, "no segment came");
            let mut sink =
                |r: &Received<'_>| got = Some((r.protocol, r.destination, r.source.ip(), r.bytes.to_vec()));
            device.rx.receive(now(begun), &mut sink).expect("a device");
        }
        let (protocol, destination, source, bytes) = got.expect("a segment");
        assert_eq!((protocol, destination), (Protocol::Tcp, to));
        assert_eq!(source.to_string(), "10.77.0.1");
        // The header is there, with its port, and SYN is set.
        assert_eq!((&bytes[2..4], bytes[13] & 0x12), (&80u16.to_be_bytes()[..], 2));
    });
}

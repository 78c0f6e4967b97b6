//! An offload engine that has TCP ports of the kernel's own address at an Ethernet interface, and nothing else of it: this kernel is at the other end of
//! the cable, and the one that has the address goes on with all else. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream as KernelStream, UdpSocket};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::support::cable::{
    BEHIND_V4, BEHIND_V6, BEYOND, Behind, Cable, FAR, FAR_V6, PORT, SHARED, SHARED_V6, far_echo,
    far_kernel_calls, far_v4, kernels_talk, run,
};
use crate::support::{TIMEOUT, echo_server, kernel_calls, pattern, ping};
use millrace_core::wire::checksum::sum16;
use millrace_lab::netns::{CLIENT_IP, SERVER_IP};
use millrace_lab::tap_host::has_v6;
use millrace_netio::xdp::XdpRawConfig;
use millrace_offload::toe::{
    Engine, EngineSettings, TcpListener as OurListener, TcpStream, ToeCounters, XdpPorts,
};

/// The engine's ports. [`PORT`], at which servers of the kernel listen, is none of them.
const PORTS: &str = "7300,7310-7311";
const LISTENS: u16 = 7300;

/// The kernel's addresses, and those at the other end, of the families that this kernel has.
fn ends() -> Vec<(IpAddr, IpAddr)> {
    let v6 = has_v6().then_some((SHARED_V6.into(), FAR_V6.into()));
    [(own_v4(), far_v4().into())].into_iter().chain(v6).collect()
}

fn own_v4() -> IpAddr {
    SERVER_IP.parse().unwrap()
}

fn start() -> std::io::Result<Engine> {
    let addresses: Vec<_> =
        ends().into_iter().map(|(ip, _)| (ip, if ip.is_ipv4() { 24 } else { 64 })).collect();
    let settings = EngineSettings::new(&addresses).on_ports(SHARED, PORTS.parse().unwrap())?;
    let device = XdpPorts::open(&XdpRawConfig::new(SHARED), &settings)?;
    Engine::start(&settings, Box::new(device))
}

fn with_engine() -> Option<Cable> {
    Cable::lay()?.start_engine(start)
}

/// Returns the engine's counters once no more packets come for it.
fn quiet(cable: &Cable) -> ToeCounters {
    let begun = Instant::now();
    loop {
        let before = cable.engine().counters();
        // Longer than a delayed ACK takes.
        std::thread::sleep(Duration::from_millis(250));
        let after = cable.engine().counters();
        if after.packets_in == before.packets_in && after.connections == 0 {
            return after;
        }
        assert!(begun.elapsed() < TIMEOUT, "{after:?}");
    }
}

#[test]
fn steered_ports_reach_engine_and_other_traffic_reaches_kernel() {
    const EACH: usize = 4;
    let Some(mut cable) = with_engine() else { return };
    let ends = ends();
    // All neighbour tables are empty at first.
    for host in [&cable.hosts.server, &cable.hosts.client] {
        run("ip", &format!("-n {host} neigh flush all"));
    }
    let at: Vec<SocketAddr> = ends.iter().map(|&(ours, _)| (ours, LISTENS).into()).collect();
    far_kernel_calls(&cable, &at, EACH);
    let before = quiet(&cable);
    let mac = cable.features().mac.unwrap().map(|byte| format!("{byte:02x}")).join(":");
    for &(ours, far) in &ends {
        // It was the kernel that has answered whoever asked for the address, and that has asked for the other one.
        let known = run("ip", &format!("-n {} neigh show to {ours} dev {FAR}", cable.hosts.client));
        assert!(known.contains(&mac), "{ours}: {known:?}, {mac}");
        let known = run("ip", &format!("-n {} neigh show to {far} dev {SHARED}", cable.hosts.server));
        assert!(known.contains("lladdr"), "{far}: {known:?}");
        for length in [0, 56, 1400, 4000] {
            let data = pattern(1, 0, length);
            assert_eq!(cable.far(|| ping(ours, &data)), Ok(data), "{ours}");
        }
        // Another port of TCP, datagrams, also to the engine's port and in pieces.
        kernels_talk(&cable, ours, 50);
        let here = cable.beside(|| UdpSocket::bind((ours, LISTENS)).unwrap());
        here.set_read_timeout(Some(TIMEOUT)).unwrap();
        let there = cable.far(|| UdpSocket::bind((far, 0)).unwrap());
        let mut buffer = [0; 9000];
        for length in [1, 1400, 8000] {
            let sent = pattern(length as u64, 0, length);
            there.send_to(&sent, (ours, LISTENS)).unwrap();
            let count = here.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], sent, "{ours}: {length} bytes");
        }
        // A port that belongs to neither has no listener.
        let refused = cable.far(|| KernelStream::connect((ours, 7301)).err().map(|error| error.kind()));
        assert_eq!(refused, Some(ErrorKind::ConnectionRefused), "{ours}");
    }
    let after = cable.engine().counters();
    assert_eq!(
        (after.packets_in, after.packets_passed),
        (before.packets_in, before.packets_passed),
        "nothing of that has come to the engine"
    );
    // The engine's port has no listener any more: the engine refuses.
    let refused = cable.far(|| KernelStream::connect((own_v4(), LISTENS)).err().map(|error| error.kind()));
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert!(counters.engine.packets_in > after.packets_in, "{counters:?}");
    assert_eq!((counters.engine.rejected, counters.stack.bad_checksums), (0, 0), "{counters:?}");
    assert_eq!(counters.stack.accepted, (EACH * ends.len()) as u64);
}

#[test]
fn connections_from_here_have_the_engines_ports_and_take_the_kernels_routes() {
    const BYTES: usize = 200_000;
    let Some(mut cable) = with_engine() else { return };
    run("ip", &format!("-n {} route add {BEYOND}/32 via {CLIENT_IP}", cable.hosts.server));
    run("ip", &format!("-n {} neigh flush all", cable.hosts.server));
    let to: Vec<IpAddr> = ends().into_iter().map(|(_, far)| far).chain([BEYOND.into()]).collect();
    let host = cable.engine().attach().unwrap();
    // A listener has one of the three ports.
    let first = OurListener::bind(&host, (own_v4(), LISTENS).into()).unwrap();
    for &to in &to {
        let listener = cable.far(|| TcpListener::bind((to, PORT)).unwrap());
        let host = &host;
        scope(|scope| {
            scope.spawn(|| far_echo(&listener, 2));
            let connect = |_| TcpStream::connect_timeout(host, (to, PORT).into(), TIMEOUT).unwrap();
            let mut streams: Vec<_> = (0..2).map(connect).collect();
            let mut ports: Vec<u16> =
                streams.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
            ports.sort_unstable();
            assert_eq!(ports, [7310, 7311], "{to}");
            let error = TcpStream::connect_timeout(host, (to, PORT).into(), TIMEOUT).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            assert!(error.to_string().contains("no local port is left"), "{error}");
            for (seed, stream) in streams.iter_mut().enumerate() {
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                for at in (0..BYTES).step_by(50_000) {
                    let sent = pattern(seed as u64, at, 50_000);
                    stream.write_all(&sent).unwrap();
                    let mut back = vec![0; 50_000];
                    stream.read_exact(&mut back).unwrap();
                    assert!(back == sent, "{to}: {seed} from {at} on");
                }
                stream.shutdown(Shutdown::Write).unwrap();
                assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "the end");
            }
        });
    }
    let error = TcpStream::connect_from(&host, (Ipv4Addr::UNSPECIFIED, 7309).into(), (far_v4(), PORT).into());
    assert!(error.unwrap_err().to_string().contains("is the kernel's"));
    // A neighbour that is not there.
    let nobody = SocketAddr::from(([10, 77, 0, 77], PORT));
    let error = TcpStream::connect_timeout(&host, nobody, Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop((first, host));
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.stack.bad_checksums), (0, 0), "{counters:?}");
}

/// Segments with these flags to the engine's port, from address after address, as many at a time as the engine takes in, until it is over; how many.
fn flood(cable: &Cable, flags: u8, is_over: &AtomicBool) -> u32 {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    const AT_ONCE: u32 = 128;
    const MOST: u32 = 1_000_000;
    cable.far(|| {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).unwrap();
        let to = SocketAddr::new(own_v4(), 0);
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) && count < MOST {
            let before = cable.engine().counters().packets_in;
            for number in count..count + AT_ONCE {
                let from = Ipv4Addr::from_bits(FLOOD.to_bits() + number);
                sendto(&socket, &segment(from, flags), SendFlags::empty(), &to).unwrap();
            }
            count += AT_ONCE;
            // Packets that it has no time for would be lost, and other connections with them.
            let begun = Instant::now();
            let is_behind = || cable.engine().counters().packets_in < before + u64::from(AT_ONCE);
            while is_behind() && begun.elapsed() < Duration::from_millis(10) {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        count
    })
}

/// Sources of a flood begin here: no host has such an address.
const FLOOD: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);

/// An IPv4 packet with a segment to the engine's port, its flags these.
fn segment(from: Ipv4Addr, flags: u8) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6]);
    packet[12..16].copy_from_slice(&from.octets());
    let IpAddr::V4(to) = own_v4() else { panic!("an IPv4 address") };
    packet[16..20].copy_from_slice(&to.octets());
    packet[20..24].copy_from_slice(&[[0x30, 0x39], LISTENS.to_be_bytes()].concat());
    packet[24..34].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0x50, flags]);
    packet[34..36].copy_from_slice(&[0x40, 0]);
    // The kernel sums the header.
    let pseudo = [&packet[12..20], &[0, 6, 0, 20], &packet[20..]].concat();
    let check = !sum16(&pseudo);
    packet[36..38].copy_from_slice(&check.to_be_bytes());
    packet
}

/// Connections from invented addresses keep no client out: a client that was never seen before gets
/// in and is served meanwhile.
#[test]
fn clients_get_in_while_the_ports_are_flooded_from_a_hundred_thousand_addresses() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    const ADDRESSES: u32 = 100_000;
    const CLIENTS: u8 = 8;
    let Some(mut cable) = with_engine() else { return };
    run("ip", &format!("-n {} route add 198.18.0.0/15 via {CLIENT_IP}", cable.hosts.server));
    for client in 1..=CLIENTS {
        run("ip", &format!("-n {} addr add 198.18.9.{client}/32 dev lo", cable.hosts.client));
    }
    let (is_over, listening) = (AtomicBool::new(false), Barrier::new(2));
    let (cable_of, is_over, listening) = (&cable, &is_over, &listening);
    let at = SocketAddr::new(own_v4(), LISTENS);
    scope(|scope| {
        scope.spawn(move || {
            let host = cable_of.engine().attach().unwrap();
            echo_server(&host, at, 2 * usize::from(CLIENTS), || {
                listening.wait();
            });
        });
        listening.wait();
        for (flags, first) in [(SYN, 1), (ACK, 1 + CLIENTS / 2)] {
            is_over.store(false, Ordering::Relaxed);
            let flood = scope.spawn(move || flood(cable_of, flags, is_over));
            // The table of ways has been filled several times over before the first client calls.
            let begun = Instant::now();
            let before = cable_of.engine().counters().packets_in;
            while cable_of.engine().counters().packets_in - before < ADDRESSES.into() {
                assert!(begun.elapsed() < TIMEOUT && !flood.is_finished(), "the flood does not come through");
                std::thread::sleep(Duration::from_millis(10));
            }
            for client in first..first + CLIENTS / 2 {
                let from = Ipv4Addr::new(198, 18, 9, client);
                cable_of.far(|| calls_from(from, at));
                cable_of.far(|| calls_from(from, at));
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(flood.join().unwrap() > ADDRESSES, "it went on meanwhile");
        }
    });
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!(counters.stack.accepted, 2 * u64::from(CLIENTS), "{counters:?}");
    assert!(counters.stack.cookies_sent > u64::from(ADDRESSES) / 2, "{counters:?}");
}

/// Opens a connection from an address; the engine echoes on it.
fn calls_from(from: Ipv4Addr, to: SocketAddr) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddr::from((from, 0))).unwrap();
    connect(&socket, &to).unwrap_or_else(|error| panic!("{from}: {error}"));
    let mut stream = KernelStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap_or_else(|error| panic!("{from}: {error}"));
    assert_eq!(said, b"hello", "{from}");
}

/// A count of the kernel beside the engine, by its names in `/proc/net/snmp`.
fn kernel_count(cable: &Cable, group: &str, name: &str) -> u64 {
    let table = cable.beside(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|other| other == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// The kernel has no connection at the engine's port, and must not reset the peer's for a segment that a router has cut.
#[test]
fn segments_that_were_cut_on_the_way_are_lost_and_nobodys_connection_is_reset() {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    const PIECES: [(usize, usize); 2] = [(20, 36), (36, 40)];
    let Some(mut cable) = with_engine() else { return };
    let host = cable.engine().attach().unwrap();
    let listener = OurListener::bind(&host, (own_v4(), LISTENS).into()).unwrap();
    let mut peer = cable.far(|| KernelStream::connect((own_v4(), LISTENS)).unwrap());
    let (mut stream, _) = listener.accept_timeout(TIMEOUT).unwrap();
    let before = kernel_count(&cable, "Tcp", "OutRsts");
    cable.far(|| {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).unwrap();
        let whole = segment(far_v4(), 16);
        for (from, to) in PIECES {
            let mut piece = [&whole[..20], &whole[from..to]].concat();
            let length = piece.len() as u16;
            piece[2..4].copy_from_slice(&length.to_be_bytes());
            let (offset, more) = ((from - 20) / 8, if to < whole.len() { 0x20 } else { 0 });
            (piece[5], piece[6], piece[7]) = (9, more, offset as u8);
            sendto(&socket, &piece, SendFlags::empty(), &SocketAddr::new(own_v4(), 0)).unwrap();
        }
    });
    // The data sent behind them has come: a datagram that the kernel reassembles, and bytes of the
    // connection.
    let here = cable.beside(|| UdpSocket::bind((own_v4(), LISTENS)).unwrap());
    here.set_read_timeout(Some(TIMEOUT)).unwrap();
    let sent = pattern(1, 0, 8000);
    let there = cable.far(|| UdpSocket::bind((far_v4(), 0)).unwrap());
    there.send_to(&sent, (own_v4(), LISTENS)).unwrap();
    let mut buffer = [0; 9000];
    assert_eq!(here.recv(&mut buffer).unwrap(), sent.len());
    peer.write_all(b"still here").unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut said = [0; 10];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"still here");
    assert_eq!(kernel_count(&cable, "Tcp", "OutRsts"), before, "the kernel has reset something");
    let begun = Instant::now();
    while cable.engine().sheets().ip().fragments == 0 {
        assert!(begun.elapsed() < TIMEOUT, "it is counted nowhere");
        std::thread::yield_now();
    }
    drop((stream, listener, host));
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!(counters.engine.rejected, 0, "{counters:?}");
}

/// A router's report about the engine's segments reaches the engine, though all other ICMP is the
/// kernel's.
#[test]
fn icmp_packet_too_big_from_router_reaches_engine() {
    const BYTES: usize = 300_000;
    let Some(mut cable) = with_engine() else { return };
    let behind = Behind::lay(&cable);
    run("ip", &format!("-n {} route add 198.18.1.0/24 via {CLIENT_IP}", cable.hosts.server));
    let mut to: Vec<IpAddr> = vec![BEHIND_V4.into()];
    if has_v6() {
        run("ip", &format!("-n {} route add fd78::/64 via {FAR_V6} dev {SHARED}", cable.hosts.server));
        to.push(BEHIND_V6.into());
    }
    for &at in &to {
        let listener = behind.listen(at);
        scope(|scope| {
            scope.spawn(|| far_echo(&listener, 1));
            let host = cable.engine().attach().unwrap();
            let mut stream = TcpStream::connect_timeout(&host, (at, PORT).into(), TIMEOUT).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            for from in (0..BYTES).step_by(50_000) {
                stream.write_all(&pattern(3, from, 50_000)).unwrap();
                let mut back = vec![0; 50_000];
                stream.read_exact(&mut back).unwrap();
                assert!(back == pattern(3, from, 50_000), "{at} from {from} on");
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
    }
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert!(counters.stack.icmp_too_big >= to.len() as u64, "a report of each family: {counters:?}");
}

#[test]
fn ports_that_the_kernel_uses_are_refused_and_those_of_the_engine_are_nobody_elses() {
    let Some(mut cable) = with_engine() else { return };
    for (ours, _) in ends() {
        for at in [SocketAddr::new(ours, LISTENS), SocketAddr::new(ours, 7311)] {
            let error = cable.beside(|| TcpListener::bind(at).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{at}");
        }
    }
    drop(cable.engine.take());
    for (ours, _) in ends() {
        let listener = cable.beside(|| TcpListener::bind((ours, 7311)).unwrap());
        let error = cable.beside(|| start().err().expect("it is the kernel's"));
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{text}");
        let port = SocketAddr::new(ours, 7311).to_string();
        assert!(text.contains(&port) && text.contains("ss -tanp 'sport = :7311'"), "{text}");
        drop(listener);
    }
    run("ip", &format!("-n {} addr del {SERVER_IP}/24 dev {SHARED}", cable.hosts.server));
    let text = cable.beside(|| start().err().expect("it has no such address")).to_string();
    assert!(text.contains(SERVER_IP) && text.contains("ip address"), "{text}");
}

#[test]
fn engine_drop_resets_peers_and_returns_ports_to_kernel() {
    let Some(mut cable) = with_engine() else { return };
    for (ours, _) in ends() {
        // The kernel's last connection has the port until its last segment is acknowledged.
        let begun = Instant::now();
        while cable.engine.is_none() {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", cable.beside(|| start().err()));
            cable.engine = cable.beside(|| start().ok());
        }
        let host = cable.engine().attach().unwrap();
        let listener = OurListener::bind(&host, (ours, LISTENS).into()).unwrap();
        let nobody = listener.accept_timeout(Duration::from_millis(30)).unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::TimedOut);
        let mut peer = cable.far(|| KernelStream::connect_timeout(&(ours, LISTENS).into(), TIMEOUT).unwrap());
        peer.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (mut stream, _) = listener.accept_timeout(TIMEOUT).unwrap();
        stream.write_all(b"hello").unwrap();
        peer.read_exact(&mut [0; 5]).unwrap();
        drop(cable.engine.take());
        // The program goes a moment after its last descriptor.
        while cable.features().has_xdp_program != Some(false) {
            assert!(begun.elapsed() < TIMEOUT, "the program is still there");
            std::thread::yield_now();
        }
        // The kernel knows of no connection.
        peer.write_all(b"still there?").unwrap();
        assert_eq!(peer.read(&mut [0; 5]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{ours}");
        let listener = cable.beside(|| TcpListener::bind((ours, LISTENS)).unwrap());
        scope(|scope| {
            scope.spawn(|| far_echo(&listener, 1));
            cable.far(|| kernel_calls((ours, LISTENS).into(), 5, 100_000));
        });
    }
}

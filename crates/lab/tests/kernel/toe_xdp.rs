//! An offload engine at an Ethernet interface by AF_XDP, with addresses of its own beside those of the kernel that has the interface; this kernel
//! is at the other end of the cable, too. Each finds the other, every byte arrives, and the kernel's own traffic does not notice. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, UdpSocket};
use std::sync::Barrier;
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::support::cable::{
    BEHIND_V4, BEHIND_V6, BEYOND, Behind, Cable, FAR, FAR_V6, PORT, SHARED, SHARED_V6, far_echo,
    far_kernel_calls, far_v4, kernels_talk, run,
};
use crate::support::{TIMEOUT, echo_server, kernel_calls, pattern, ping};
use millrace_lab::netns::SERVER_IP;
use millrace_lab::tap_host::has_v6;
use millrace_netio::bpf::{Assembler, BpfProgram, InterfaceLink, ProgramType, Reg};
use millrace_netio::xdp::XdpRawConfig;
use millrace_offload::toe::{Engine, EngineSettings, TcpStream, XdpDevice};
use rustix::process::Uid;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_res_uid};

/// The verdict "to the kernel".
const XDP_PASS: i32 = 2;
const ENGINE_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// It has the same solicited-node group as the kernel's address at the interface.
const ENGINE_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100);

fn with_engine() -> Option<Cable> {
    Cable::lay()?.start_engine(start)
}

fn start() -> std::io::Result<Engine> {
    start_on(SHARED)
}

fn start_on(interface: &str) -> std::io::Result<Engine> {
    let v6 = has_v6().then_some((ENGINE_V6.into(), 64));
    let addresses: Vec<_> = [(ENGINE_V4.into(), 24)].into_iter().chain(v6).collect();
    let mut settings = EngineSettings::new(&addresses).on_ethernet(interface)?;
    settings.interface.gateway_v4 = Some(far_v4());
    settings.interface.gateway_v6 = has_v6().then_some(FAR_V6);
    let device = XdpDevice::open(&XdpRawConfig::new(interface), &settings.interface)?;
    Engine::start(&settings, Box::new(device))
}

/// The engine's addresses, and the ones at the other end, of the families that this kernel has.
fn ends() -> Vec<(IpAddr, IpAddr)> {
    let v6 = has_v6().then_some((ENGINE_V6.into(), FAR_V6.into()));
    [(ENGINE_V4.into(), far_v4().into())].into_iter().chain(v6).collect()
}

#[test]
fn engine_accepts_connections_from_far_kernel() {
    const EACH: usize = 6;
    let Some(mut cable) = with_engine() else { return };
    let ends = ends();
    let at: Vec<SocketAddr> = ends.iter().map(|&(ours, _)| (ours, PORT).into()).collect();
    far_kernel_calls(&cable, &at, EACH);
    // It has asked, and we have answered with the interface's address.
    let mac = cable.features().mac.unwrap().map(|byte| format!("{byte:02x}")).join(":");
    for (ours, _) in &ends {
        let known = run("ip", &format!("-n {} neigh show to {ours} dev {FAR}", cable.hosts.client));
        assert!(known.contains(&mac), "{ours}: {known:?}, {mac}");
    }
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.stack.bad_checksums), (0, 0), "{counters:?}");
    assert_eq!(counters.stack.accepted, (EACH * ends.len()) as u64);
}

#[test]
fn we_find_the_far_kernel_and_what_is_behind_it() {
    const EACH: usize = 4;
    const BYTES: usize = 600_000;
    let Some(mut cable) = with_engine() else { return };
    let to: Vec<IpAddr> = ends().into_iter().map(|(_, far)| far).chain([BEYOND.into()]).collect();
    scope(|scope| {
        for &to in &to {
            let listener = cable.far(|| std::net::TcpListener::bind((to, PORT)).unwrap());
            scope.spawn(move || far_echo(&listener, EACH));
            let engine = cable.engine();
            scope.spawn(move || {
                let host = engine.attach().unwrap();
                let connect = |_| TcpStream::connect_timeout(&host, (to, PORT).into(), TIMEOUT).unwrap();
                let mut streams: Vec<_> = (0..EACH).map(connect).collect();
                for at in (0..BYTES).step_by(60_000) {
                    for (seed, stream) in streams.iter_mut().enumerate() {
                        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                        stream.write_all(&pattern(seed as u64, at, 60_000)).unwrap();
                    }
                    for (seed, stream) in streams.iter_mut().enumerate() {
                        let mut back = vec![0; 60_000];
                        stream.read_exact(&mut back).unwrap();
                        assert!(back == pattern(seed as u64, at, 60_000), "{to}: {seed} from {at} on");
                    }
                }
                for stream in &mut streams {
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "the end");
                }
            });
        }
    });
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.stack.bad_checksums), (0, 0), "{counters:?}");
}

#[test]
fn pings_are_answered_by_whom_they_are_for() {
    let Some(cable) = with_engine() else { return };
    let shared_v6 = has_v6().then_some(IpAddr::from(SHARED_V6));
    let kernels: Vec<IpAddr> = [SERVER_IP.parse().unwrap()].into_iter().chain(shared_v6).collect();
    let passed_before = cable.engine().counters().packets_passed;
    let mut count = 0;
    for to in ends().into_iter().map(|(ours, _)| ours).chain(kernels) {
        for length in [0, 1, 56, 1400] {
            let data = pattern(1, 0, length);
            assert_eq!(cable.far(|| ping(to, &data)), Ok(data), "{to}");
            count += 1;
        }
    }
    // Ours have come here and those of the kernel have not: an echo reply is among the packets that went out.
    let counters = cable.engine().counters();
    assert!(counters.packets_passed - passed_before >= count / 2, "{counters:?}");
    assert!(counters.packets_out >= count / 2, "{counters:?}");
}

#[test]
fn kernel_traffic_on_shared_interface_is_unaffected() {
    let Some(mut cable) = with_engine() else { return };
    let shared_v6 = has_v6().then_some(IpAddr::from(SHARED_V6));
    let kernels: Vec<IpAddr> = [SERVER_IP.parse().unwrap()].into_iter().chain(shared_v6).collect();
    let listening = Barrier::new(2);
    scope(|scope| {
        let (cable, listening, count) = (&cable, &listening, kernels.len());
        // The engine is busy meanwhile, at the same port.
        scope.spawn(move || {
            let host = cable.engine().attach().unwrap();
            for _ in 0..count {
                echo_server(&host, (ENGINE_V4, PORT).into(), 1, || {
                    listening.wait();
                });
            }
        });
        for &at in &kernels {
            listening.wait();
            std::thread::scope(|scope| {
                scope.spawn(|| cable.far(|| kernel_calls((ENGINE_V4, PORT).into(), 9, 1_000_000)));
                kernels_talk(cable, at, 300);
            });
        }
    });
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!(counters.stack.bad_checksums, 0, "{counters:?}");
}

#[test]
fn engine_stop_returns_address_and_interface_to_kernel() {
    let Some(mut cable) = with_engine() else { return };
    let groups = || run("ip", &format!("-n {} -6 maddr show dev {SHARED}", cable.hosts.server));
    let group = "ff02::1:ff00:100";
    if has_v6() {
        // Once for the kernel's address, once for the engine's.
        assert!(groups().contains(&format!("{group} users 2")), "{}", groups());
    }
    assert_eq!(cable.features().has_xdp_program, Some(true));
    assert!(cable.far(|| ping(ENGINE_V4.into(), b"here")).is_ok());
    let engine = cable.engine.take().unwrap();
    engine.stop().unwrap();
    // A process that another test has just started holds all descriptors for a moment.
    let begun = Instant::now();
    while cable.features().has_xdp_program != Some(false) {
        assert!(begun.elapsed() < TIMEOUT, "the program is still there");
        std::thread::yield_now();
    }
    while has_v6() && groups().contains("users 2") {
        assert!(begun.elapsed() < TIMEOUT, "{}", groups());
    }
    run("ip", &format!("-n {} addr add {ENGINE_V4}/24 dev {SHARED}", cable.hosts.server));
    kernels_talk(&cable, ENGINE_V4.into(), 3);
    // And it can be taken once more.
    run("ip", &format!("-n {} addr del {ENGINE_V4}/24 dev {SHARED}", cable.hosts.server));
    cable.engine = Some(cable.beside(start).unwrap());
    assert!(cable.far(|| ping(ENGINE_V4.into(), b"again")).is_ok());
}

#[test]
fn engine_ends_when_interface_vanishes_and_second_is_refused() {
    let Some(mut cable) = with_engine() else { return };
    let second = cable.beside(start).err().expect("the queue is taken").to_string();
    assert!(second.contains(SHARED) && second.contains("another AF_XDP socket"), "{second}");
    // Nothing of ours is on its way: the engine only waits.
    run("ip", &format!("-n {} link del {SHARED}", cable.hosts.server));
    let begun = Instant::now();
    while !cable.engine().is_finished() {
        assert!(begun.elapsed() < TIMEOUT, "the engine goes on");
        std::thread::yield_now();
    }
    let text = cable.engine.take().unwrap().stop().unwrap_err().to_string();
    assert!(text.contains(SHARED) && text.contains("down or gone"), "{text}");
}

/// Returns the error where no engine can run.
fn refusal(cable: &Cable, on: &str) -> std::io::Error {
    cable.beside(|| start_on(on).err().expect("there can be none"))
}

#[test]
fn start_without_privileges_suggests_tun_device() {
    let Some(cable) = Cable::lay() else { return };
    // Of this thread only, which ends here.
    let drop_capabilities = || {
        let sets = capabilities(None).unwrap();
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets }).unwrap();
    };
    let be_nobody = || {
        let nobody = Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
    };
    for lose in [&drop_capabilities as &(dyn Fn() + Sync), &be_nobody] {
        let error = cable.beside(|| {
            lose();
            start().err().expect("it has no rights")
        });
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(
            text.contains("TUN device") && text.contains("CAP_NET_RAW") && text.contains(SHARED),
            "{text}"
        );
    }
}

#[test]
fn start_on_unsuitable_interface_reports_remedy() {
    let Some(cable) = Cable::lay() else { return };
    let text = refusal(&cable, "lo").to_string();
    assert!(text.contains("interface lo has no Ethernet address") && text.contains("TUN device"), "{text}");
    let text = refusal(&cable, "gone7").to_string();
    assert!(text.contains("gone7") && text.contains("ip link"), "{text}");
    run("ip", &format!("-n {} link set {SHARED} down", cable.hosts.server));
    let text = refusal(&cable, SHARED).to_string();
    assert!(text.contains(SHARED) && text.contains("ip link set up"), "{text}");
    run("ip", &format!("-n {} link set {SHARED} up", cable.hosts.server));
    // A program of another owner.
    let other = cable.beside(|| {
        let mut code = Assembler::default();
        code.mov(Reg::R0, XDP_PASS);
        code.exit();
        let program = BpfProgram::load("pass", ProgramType::XdpFrags, code).unwrap();
        InterfaceLink::attach(&program, SHARED).unwrap()
    });
    let text = refusal(&cable, SHARED).to_string();
    let words = [SHARED, "another program", "xdp off", "TUN device"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    drop(other);
    let begun = Instant::now();
    while let Err(error) = cable.beside(start) {
        assert!(begun.elapsed() < TIMEOUT, "{error}");
    }
}

#[test]
fn engine_receives_from_all_interface_queues() {
    const QUEUES: u32 = 4;
    const CALLS: usize = 24;
    let Some(mut cable) = Cable::lay_with(QUEUES).and_then(|cable| cable.start_engine(start)) else { return };
    let listening = Barrier::new(2);
    scope(|scope| {
        let (cable, listening) = (&cable, &listening);
        scope.spawn(move || {
            let host = cable.engine().attach().unwrap();
            echo_server(&host, (ENGINE_V4, PORT).into(), CALLS, || {
                listening.wait();
            });
        });
        listening.wait();
        cable.far(|| {
            std::thread::scope(|scope| {
                for call in 0..CALLS {
                    scope.spawn(move || kernel_calls((ENGINE_V4, PORT).into(), call as u64, 30_000 + call));
                }
            });
        });
    });
    // The far kernel has chosen a queue for each connection. All of them together fit one queue, so nothing can have been lost.
    let statistics = run("ip", &format!("netns exec {} ethtool -S {SHARED}", cable.hosts.server));
    let of = |queue: u32, what: &str| {
        let name = format!("rx_queue_{queue}_{what}: ");
        let value = statistics.lines().find_map(|line| line.trim().strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{name} in {statistics}")).parse::<u64>().unwrap()
    };
    let used = (0..QUEUES).filter(|&queue| of(queue, "xdp_redirect") > 10).count();
    assert!(used >= 2, "{CALLS} connections came by {used} queue: {statistics}");
    let lost: u64 = (0..QUEUES).map(|queue| of(queue, "xdp_drops") + of(queue, "drops")).sum();
    let counters = cable.engine.take().unwrap().stop().unwrap();
    assert_eq!(
        (lost, counters.stack.bad_checksums, counters.stack.accepted),
        (0, 0, CALLS as u64),
        "{statistics}"
    );
}

/// Sends a datagram until it comes, and returns its sender: neighbours on a busy machine may answer
/// too late for the first.
fn arrives(from: &UdpSocket, to: SocketAddr, at: &UdpSocket, sent: &[u8]) -> SocketAddr {
    let mut buffer = [0; 9000];
    let begun = Instant::now();
    at.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    loop {
        from.send_to(sent, to).unwrap();
        match at.recv_from(&mut buffer) {
            // Else it is one that was sent again before.
            Ok((count, source)) if buffer[..count] == *sent => return source,
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(begun.elapsed() < TIMEOUT, "{} bytes to {to} do not arrive", sent.len());
    }
}

#[test]
fn datagrams_and_fragments_to_the_engines_address_are_the_kernels() {
    let Some(cable) = with_engine() else { return };
    // The engine has the address at the cable, the kernel elsewhere; it asks for neighbours by its own one, else the engine got the answers.
    let announce = format!("net.ipv4.conf.{SHARED}.arp_announce=2");
    run("ip", &format!("netns exec {} sysctl -q -w {announce}", cable.hosts.server));
    run("ip", &format!("-n {} addr add {ENGINE_V4}/32 dev lo", cable.hosts.server));
    if has_v6() {
        run("ip", &format!("-n {} addr add {ENGINE_V6}/128 dev lo nodad", cable.hosts.server));
    }
    for (ours, far) in ends() {
        let here = cable.beside(|| UdpSocket::bind((ours, PORT)).unwrap());
        let there = cable.far(|| UdpSocket::bind((far, 0)).unwrap());
        // The last two are cut.
        for length in [1, 1400, 4000, 8000] {
            let sent = pattern(length as u64, 0, length);
            let from = arrives(&there, (ours, PORT).into(), &here, &sent);
            arrives(&here, from, &there, &sent);
        }
        // What asks for the engine is answered all the same, and an echo request in pieces by the kernel.
        for length in [1000, 4000] {
            let data = pattern(2, 0, length);
            assert_eq!(
                cable.far(|| ping(ours, &data)).map(|back| back == data),
                Ok(true),
                "{ours}: {length}"
            );
        }
    }
}

#[test]
fn icmp_errors_from_router_reach_engine() {
    const BYTES: usize = 400_000;
    let Some(mut cable) = with_engine() else { return };
    let behind = Behind::lay(&cable);
    let v6 = has_v6().then_some(IpAddr::from(BEHIND_V6));
    for at in [BEHIND_V4.into()].into_iter().chain(v6) {
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
        });
    }
    // And one that reports that there is no route: the SYN is sent again, so the error is reported
    // and the attempt goes on.
    run("ip", &format!("-n {} route add unreachable 198.18.2.0/24", cable.hosts.client));
    let host = cable.engine().attach().unwrap();
    let nowhere = SocketAddr::from(([198, 18, 2, 1], PORT));
    let error =
        TcpStream::connect_timeout(&host, nowhere, std::time::Duration::from_millis(300)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop(host);
    let counters = cable.engine.take().unwrap().stop().unwrap();
    let too_big = counters.stack.icmp_too_big;
    assert!(too_big > v6.map_or(0, |_| 1), "a report of each family: {counters:?}");
    assert!(counters.stack.icmp_in > too_big, "the last one says that there is no way: {counters:?}");
}

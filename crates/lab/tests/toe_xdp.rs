//! An offload engine at an Ethernet interface by AF_XDP, with addresses of its own beside those of the kernel that has the interface; this kernel
//! is at the other end of the cable, too. Each finds the other, every byte arrives, and the kernel's own traffic does not notice. Needs root.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Barrier;
use std::thread::scope;
use std::time::Instant;

use millrace_lab::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use millrace_lab::tap_host::has_v6;
use millrace_netio::features::DeviceFeatures;
use millrace_netio::xdp::XdpRawConfig;
use millrace_offload::toe::{Engine, EngineSettings, TcpStream, XdpDevice};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use support::{TIMEOUT, echo_server, kernel_calls, pattern, ping};

const PORT: u16 = 7200;
/// The interface that engine and kernel share, and the one at the other end.
const SHARED: &str = "vs";
const FAR: &str = "vc";
const ENGINE_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
const ENGINE_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100);
/// The kernel's address at the same interface. It has the same solicited-node group as the engine's.
const SHARED_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 1, 0, 0, 0x100);
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// An address behind the other end, which is the engine's gateway to it.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);

/// The engine and both kernels.
struct Cable {
    hosts: TwoHosts,
    engine: Option<Engine>,
}

fn run(program: &str, args: &str) -> String {
    let output = Command::new(program).args(args.split_whitespace()).output().expect("it starts");
    assert!(output.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn far_v4() -> Ipv4Addr {
    CLIENT_IP.parse().unwrap()
}

impl Cable {
    /// Both kernels, joined; `None`, with the reason printed, without rights.
    fn lay() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let hosts = TwoHosts::new(true).unwrap();
        // Nobody computes checksums for an XDP program, or cuts what its peer has not cut.
        let off = "tx off tso off gso off";
        run("ip", &format!("netns exec {} ethtool -K {FAR} {off}", hosts.client));
        run("ip", &format!("-n {} addr add {BEYOND}/32 dev lo", hosts.client));
        if has_v6() {
            run("ip", &format!("-n {} addr add {SHARED_V6}/64 dev {SHARED} nodad", hosts.server));
            run("ip", &format!("-n {} addr add {FAR_V6}/64 dev {FAR} nodad", hosts.client));
            run("ip", &format!("-n {} route add {SHARED_V6}/128 dev {FAR}", hosts.client));
            run("ip", &format!("-n {} route add {FAR_V6}/128 dev {SHARED}", hosts.server));
        }
        Some(Self { hosts, engine: None })
    }

    /// With an engine; `None`, with the reason printed, on a kernel without AF_XDP.
    fn with_engine() -> Option<Self> {
        let mut cable = Self::lay()?;
        match cable.hosts.inside_server(start).unwrap() {
            Ok(engine) => cable.engine = Some(engine),
            Err(error) if error.to_string().contains("built without AF_XDP") => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        Some(cable)
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it runs")
    }

    fn far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.hosts.on_client(work).unwrap()
    }

    fn beside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.hosts.inside_server(work).unwrap()
    }

    fn features(&self) -> DeviceFeatures {
        self.beside(|| DeviceFeatures::of(SHARED).unwrap())
    }
}

fn start() -> std::io::Result<Engine> {
    let v6 = has_v6().then_some((ENGINE_V6.into(), 64));
    let addresses: Vec<_> = [(ENGINE_V4.into(), 24)].into_iter().chain(v6).collect();
    let mut settings = EngineSettings::new(&addresses).on_ethernet(SHARED)?;
    settings.interface.gateway_v4 = Some(far_v4());
    let device = XdpDevice::open(&XdpRawConfig::new(SHARED), &settings.interface)?;
    Engine::start(&settings, Box::new(device))
}

/// The engine's addresses, and the ones at the other end, of the families that this kernel has.
fn ends() -> Vec<(IpAddr, IpAddr)> {
    let v6 = has_v6().then_some((ENGINE_V6.into(), FAR_V6.into()));
    [(ENGINE_V4.into(), far_v4().into())].into_iter().chain(v6).collect()
}

#[test]
fn the_far_kernel_finds_us_and_calls_us_with_several_connections() {
    const EACH: usize = 6;
    let Some(mut cable) = Cable::with_engine() else { return };
    let ends = ends();
    let listening = Barrier::new(ends.len() + 1);
    scope(|scope| {
        for &(ours, _) in &ends {
            let (cable, listening) = (&cable, &listening);
            scope.spawn(move || {
                let host = cable.engine().attach().unwrap();
                echo_server(&host, (ours, PORT).into(), EACH, || {
                    listening.wait();
                });
            });
        }
        listening.wait();
        cable.far(|| {
            std::thread::scope(|scope| {
                for (call, &(ours, _)) in ends.iter().cycle().take(EACH * ends.len()).enumerate() {
                    scope.spawn(move || kernel_calls((ours, PORT).into(), call as u64, 300_000 + call));
                }
            });
        });
    });
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

/// The far kernel's echo, for `count` connections at once.
fn far_echo(listener: &std::net::TcpListener, count: usize) {
    std::thread::scope(|scope| {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().unwrap();
            scope.spawn(move || {
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
        }
    });
}

#[test]
fn we_find_the_far_kernel_and_what_is_behind_it() {
    const EACH: usize = 4;
    const BYTES: usize = 600_000;
    let Some(mut cable) = Cable::with_engine() else { return };
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
    let Some(cable) = Cable::with_engine() else { return };
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

/// What a kernel's sockets at both ends of the cable say to each other.
fn kernels_talk(cable: &Cable, at: IpAddr, rounds: usize) {
    let datagrams = cable.beside(|| UdpSocket::bind((at, PORT)).unwrap());
    let listener = cable.beside(|| std::net::TcpListener::bind((at, PORT)).unwrap());
    datagrams.set_read_timeout(Some(TIMEOUT)).unwrap();
    scope(|scope| {
        scope.spawn(|| far_echo(&listener, 1));
        scope.spawn(|| {
            let mut bytes = [0; 2000];
            for _ in 0..rounds {
                let (count, from) = datagrams.recv_from(&mut bytes).unwrap();
                datagrams.send_to(&bytes[..count], from).unwrap();
            }
        });
        cable.far(|| {
            let any: IpAddr =
                if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            for round in 0..rounds {
                let sent = pattern(round as u64, 0, 1 + round % 1400);
                let mut back = [0; 2000];
                socket.send_to(&sent, SocketAddr::from((at, PORT))).unwrap();
                let (count, from) = socket.recv_from(&mut back).unwrap();
                assert_eq!((&back[..count], from), (&sent[..], (at, PORT).into()));
            }
            kernel_calls((at, PORT).into(), 5, 300_000);
        });
    });
}

#[test]
fn the_kernels_own_traffic_does_not_notice() {
    let Some(mut cable) = Cable::with_engine() else { return };
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
fn when_the_engine_stops_the_kernel_has_everything_again() {
    let Some(mut cable) = Cable::with_engine() else { return };
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
fn an_interface_that_goes_ends_the_engine_and_a_second_one_is_refused() {
    let Some(mut cable) = Cable::with_engine() else { return };
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

#[test]
fn without_rights_a_tun_device_is_named() {
    let Some(cable) = Cable::lay() else { return };
    let error = cable.beside(|| {
        // Of this thread only, which ends here.
        let sets = capabilities(None).unwrap();
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets }).unwrap();
        start().err().expect("it has no rights")
    });
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("TUN device") && error.to_string().contains("CAP_NET_RAW"), "{error}");
}

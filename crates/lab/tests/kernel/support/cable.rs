//! Two kernels at the ends of a veth pair; the first shares its end with an offload engine. A third
//! kernel is behind the other one, and lets no packet of the usual length pass.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Barrier;
use std::thread::scope;

use millrace_lab::netns::{CLIENT_IP, TwoHosts};
use millrace_lab::tap_host::has_v6;
use millrace_netio::features::DeviceFeatures;
use millrace_offload::toe::Engine;

use super::{TIMEOUT, echo_server, kernel_calls, pattern};

/// What servers listen at.
pub const PORT: u16 = 7200;
/// The interface that engine and kernel share, and the one at the other end.
pub const SHARED: &str = "vs";
pub const FAR: &str = "vc";
/// The kernel's address at the shared interface.
pub const SHARED_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 1, 0, 0, 0x100);
/// The one at the other end.
pub const FAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// An address behind the other end, which is the gateway to it.
pub const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);

/// The engine and both kernels.
pub struct Cable {
    pub hosts: TwoHosts,
    pub engine: Option<Engine>,
}

/// Runs a program to its end, which must be a success; returns its output.
pub fn run(program: &str, args: &str) -> String {
    let output = Command::new(program).args(args.split_whitespace()).output().expect("it starts");
    assert!(output.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The address at the other end.
pub fn far_v4() -> Ipv4Addr {
    CLIENT_IP.parse().unwrap()
}

impl Cable {
    /// Both kernels, joined; `None`, with the reason printed, without rights.
    pub fn lay() -> Option<Self> {
        Self::lay_with(1)
    }

    /// Does the same with `queues` queues in each direction.
    pub fn lay_with(queues: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let hosts = TwoHosts::with_queues(true, queues).unwrap();
        // No device computes checksums for an XDP program, or cuts segments that its peer has not
        // cut.
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

    /// With an engine that `start` starts at the shared interface; `None`, with the reason printed, on a kernel without AF_XDP.
    pub fn start_engine(mut self, start: impl FnOnce() -> std::io::Result<Engine> + Send) -> Option<Self> {
        let cable = &mut self;
        match cable.hosts.inside_server(start).unwrap() {
            Ok(engine) => cable.engine = Some(engine),
            Err(error) if error.to_string().contains("built without AF_XDP") => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        Some(self)
    }

    /// The engine that runs.
    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it runs")
    }

    /// At the other end.
    pub fn far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.hosts.on_client(work).unwrap()
    }

    /// In the kernel beside the engine.
    pub fn beside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.hosts.inside_server(work).unwrap()
    }

    /// Returns the features of the shared interface.
    pub fn features(&self) -> DeviceFeatures {
        self.beside(|| DeviceFeatures::of(SHARED).unwrap())
    }
}

/// The far kernel's echo, for `count` connections at once.
pub fn far_echo(listener: &std::net::TcpListener, count: usize) {
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

/// The far kernel calls the engine at each of these addresses, `each` times and all at once; the
/// data that it sends comes back.
pub fn far_kernel_calls(cable: &Cable, at: &[SocketAddr], each: usize) {
    let listening = Barrier::new(at.len() + 1);
    scope(|scope| {
        for &ours in at {
            let listening = &listening;
            scope.spawn(move || {
                let host = cable.engine().attach().unwrap();
                echo_server(&host, ours, each, || {
                    listening.wait();
                });
            });
        }
        listening.wait();
        cable.far(|| {
            std::thread::scope(|scope| {
                for (call, &ours) in at.iter().cycle().take(each * at.len()).enumerate() {
                    scope.spawn(move || kernel_calls(ours, call as u64, 300_000 + call));
                }
            });
        });
    });
}

/// Lets a kernel's sockets at both ends of the cable talk to each other.
pub fn kernels_talk(cable: &Cable, at: IpAddr, rounds: usize) {
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

/// A host behind the far one, which lets no packet of the usual length pass to there.
pub struct Behind {
    namespace: String,
}

pub const BEHIND_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
pub const BEHIND_V6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2);
pub const BEHIND_MTU: u32 = 1300;

impl Behind {
    pub fn lay(cable: &Cable) -> Self {
        let (far, namespace) = (&cable.hosts.client, format!("{}-b", cable.hosts.client));
        let behind = Self { namespace: namespace.clone() };
        run("ip", &format!("netns add {namespace}"));
        run("ip", &format!("-n {far} link add vb type veth peer name va netns {namespace}"));
        let ends =
            [(far, "vb", "198.18.1.1/24", "fd78::1/64"), (&namespace, "va", "198.18.1.2/24", "fd78::2/64")];
        for (at, device, v4, v6) in ends {
            run("ip", &format!("-n {at} addr add {v4} dev {device}"));
            if has_v6() {
                run("ip", &format!("-n {at} addr add {v6} dev {device} nodad"));
            }
            run("ip", &format!("-n {at} link set {device} up"));
        }
        // Of the router's way there: the host behind it promises to take longer packets.
        run("ip", &format!("-n {far} route change 198.18.1.0/24 dev vb mtu lock {BEHIND_MTU}"));
        run("ip", &format!("-n {namespace} route add default via 198.18.1.1"));
        let mut switches = vec!["net.ipv4.ip_forward=1"];
        if has_v6() {
            run("ip", &format!("-n {far} -6 route add fd78::/64 dev vb metric 100 mtu lock {BEHIND_MTU}"));
            run("ip", &format!("-n {namespace} -6 route add default via fd78::1"));
            switches.push("net.ipv6.conf.all.forwarding=1");
        }
        for switch in switches {
            run("ip", &format!("netns exec {far} sysctl -q -w {switch}"));
        }
        behind
    }

    /// A listener there.
    pub fn listen(&self, at: IpAddr) -> std::net::TcpListener {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.namespace)).unwrap();
        scope(|scope| {
            let listens = scope.spawn(|| {
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                std::net::TcpListener::bind((at, PORT)).unwrap()
            });
            listens.join().unwrap()
        })
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).output();
    }
}

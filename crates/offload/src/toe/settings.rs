//! How an engine is made.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use millrace_tcp::conn::Config;
use millrace_tcp::ip;
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::Settings;

use super::capture::Capture;
use super::pair::PairSettings;
use crate::limits::HAND_OVER_NS;

/// How an engine is made. Nothing grows after the start.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The stack.
    pub stack: Settings,
    /// Its link and its addresses.
    pub interface: ip::Settings,
    /// The addresses are the kernel's: of them the engine has the TCP ports `stack.ports`, and nothing else ([`on_ports`](Self::on_ports)).
    pub has_ports_only: bool,
    /// Listeners of the kernel at these ports may stay: they hear nothing while the engine runs,
    /// and clients that connect afterwards reach them.
    pub is_beside_listeners: bool,
    /// Queue pairs for threads of this program: host threads at once.
    pub pairs: usize,
    /// Queue pairs for threads of other programs ([`Engine::serve`](super::Engine::serve)).
    pub remote_pairs: usize,
    /// The settings of each pair.
    pub pair: PairSettings,
    /// How long received bytes may wait for their buffer to be filled, in nanoseconds; 0: not at all.
    pub hand_over_ns: u64,
    /// How long the engine looks for work before it sleeps, in nanoseconds; `u64::MAX`: it never sleeps, and has a core for itself.
    pub poll_ns: u64,
    /// Whether peers of accepted connections are asked, after `stack.config.keep_alive_ns` of silence, whether they are still there.
    pub keeps_alive: bool,
    /// Core to pin its thread to.
    pub cpu: Option<usize>,
    /// File that everything which the device sends and receives is written to.
    pub capture: Option<Capture>,
}

impl EngineSettings {
    /// Room for a thousand connections, behind a TUN device, with these addresses and the lengths of their subnets' prefixes; [`on_ethernet`](Self::on_ethernet) is for the other one.
    pub fn new(addresses: &[(IpAddr, u8)]) -> Self {
        // The seeds of the standard library's hash tables come from the system's random numbers.
        let random = || RandomState::new().hash_one(0);
        let mut interface = ip::Settings::new(ip::LinkLayer::Ip, [random(), random()]);
        for &(address, prefix) in addresses {
            interface = interface.with(address, prefix);
        }
        let stack = Settings {
            config: Config { receive_bytes: 256 << 10, ..Config::default() },
            connections: 4096,
            requests: 1024,
            listeners: 128,
            time_waits: 4096,
            records: 65_536,
            descriptors: 16_384,
            host_pages: 16_384,
            clusters: vec![
                ClusterSize { bytes: 32 << 20, page_bytes: 2048 },
                ClusterSize { bytes: 16 << 20, page_bytes: 2048 },
            ],
            defers_acks: true,
            cookies: true,
            ports: (49_152..=65_535).into(),
            secret: [random(), random()],
        };
        Self {
            stack,
            interface,
            has_ports_only: false,
            is_beside_listeners: false,
            pairs: 8,
            remote_pairs: 0,
            pair: PairSettings::default(),
            hand_over_ns: HAND_OVER_NS,
            poll_ns: 0,
            keeps_alive: false,
            cpu: None,
            capture: None,
        }
    }
}
